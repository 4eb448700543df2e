//! [`DataLoader`]: a dataset, an order and a way to make batches, read with `for`.
//!
//! A loader promises: the same seed and epoch give the same batches in the same order, for any number of workers; every
//! batch of an epoch is given once, as a batch or as an error that says what is wrong with it, with which sample, and which
//! worker was at it; nothing ends early in silence.
//!
//! Batches are a function of (epoch, number) alone, which is what lets several threads make them without changing what
//! a program sees, and a program go on where another stopped. `source.rs` makes one batch, `batches.rs` gives
//! those of an epoch, made on the spot or by the threads of `crew.rs`; `settings.rs` says by whom and where,
//! `slots.rs` has the page-locked memory, `state.rs` and `report.rs` say where a loader is and what it spent its time on.
//! `stream/` has the loader for datasets whose samples cannot be asked for by number.

mod batches;
mod crew;
mod device;
mod limits;
mod opaque;
mod report;
mod settings;
mod slots;
mod source;
mod state;
mod stream;
mod tuning;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use pagelock_memory::Holder;

use self::batches::Epoch;
use self::crew::{Account, Crew, Plan};
use self::limits::check_workers;
use self::opaque::Opaque;
use self::slots::{SlotMemory, slot_memory};
use self::source::{Collated, Mapped, Recipe, Source, Stacked};
pub use self::{
    batches::Batches,
    device::{DeviceBatches, DeviceLoader},
    report::LoaderReport,
    slots::{Slots, WhenFull},
    source::Skipped,
    state::LoaderState,
    stream::{StreamBatches, StreamLoader, StreamState},
    tuning::Tuning,
};
use crate::collate::Stack;
use crate::dataset::Dataset;
use crate::identity::in_a_line;
use crate::sampler::{BatchSampler, RandomSampler, Sampler, SequentialSampler};
use crate::{Error, Result};

/// Gives a dataset's samples in batches of type `B`, one epoch per `for` loop.
///
/// Starts as: batch size 1, first sample to last, the last batch as small as it comes. Each loop is the next epoch,
/// and a shuffled loader gives each epoch an order of its own.
///
/// # Examples
/// ```
/// use pagelock_data::{DataLoader, TensorDataset};
/// use pagelock_tensor::Tensor;
///
/// let train_ds = TensorDataset::new((Tensor::zeros([100, 784])?, Tensor::full([100], 0)?))?;
/// let train_dl = DataLoader::new(train_ds).batch_size(64).shuffle(42);
///
/// assert_eq!(train_dl.len()?, 2);
/// for batch in &train_dl {
///     let (xb, yb) = batch?;
///     assert_eq!(xb.dims()[0], yb.dims()[0]);
/// }
/// assert_eq!(train_dl.epoch(), 1);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub struct DataLoader<B> {
    loader: Opaque<'static, Loader>,
    batches: PhantomData<fn() -> B>,
}

/// A [`DataLoader`] of whatever batches: what it does is compiled here, once.
struct Loader {
    recipe: Recipe,
    identity: OnceLock<(String, String)>, // the order and the dataset, as states name them
    plan: Plan,
    pins: bool,
    slots: OnceLock<SlotMemory>, // where batches are made, if they are to be page-locked
    progress: Mutex<Progress>,   // guards where the loader is
    idle: Mutex<Option<Crew>>,   // guards workers that wait for the next epoch
}

/// Where a loader is.
#[derive(Default)]
struct Progress {
    /// Of the next loop.
    epoch: u64,
    /// Where the next loop starts.
    start: usize,
    /// The epoch and the number of the batch that comes next.
    next: (u64, usize),
    record: Record,
}

/// What a loader did so far.
#[derive(Default)]
struct Record {
    report: LoaderReport,
    /// The latest samples that were left out.
    skipped: VecDeque<Skipped>,
}

/// How many of the samples that were left out are remembered.
const KEPT_SKIPPED: usize = 1_000;

impl Record {
    fn add(&mut self, account: Account) {
        self.report += account.report;
        self.skipped.extend(account.skipped);
        let surplus = self.skipped.len().saturating_sub(KEPT_SKIPPED);
        self.skipped.drain(..surplus);
    }
}

impl<B: Send + 'static> DataLoader<B> {
    /// Loads `dataset`, whose samples [`Stack`] into batches.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{DataLoader, TensorDataset};
    /// use pagelock_tensor::Tensor;
    ///
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::arange(0.0, 6.0, 1.0)?)?).batch_size(4);
    /// let batches: Vec<_> = loader.iter().map(|batch| Ok(batch?.to_vec::<f32>()?)).collect::<pagelock_data::Result<_>>()?;
    /// assert_eq!(batches, [vec![0.0, 1.0, 2.0, 3.0], vec![4.0, 5.0]]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn new<D>(dataset: D) -> Self
    where
        D: Dataset,
        D::Sample: Stack<Batch = B>,
    {
        Self::from_source(Stacked(dataset))
    }

    /// Loads `dataset` and makes each batch with `collate`, which gets the samples in order and at least one.
    ///
    /// # Examples
    /// Texts of different lengths, padded to the longest of each batch:
    /// ```
    /// use pagelock_data::{DataLoader, Dataset, Result, Stack};
    /// use pagelock_tensor::{Int, Tensor};
    ///
    /// struct Texts(Vec<&'static str>);
    ///
    /// impl Dataset for Texts {
    ///     type Sample = Vec<u8>;
    ///     fn len(&self) -> usize {
    ///         self.0.len()
    ///     }
    ///     fn get(&self, index: usize) -> Result<Vec<u8>> {
    ///         Ok(self.0[index].into())
    ///     }
    /// }
    ///
    /// let loader = DataLoader::with_collate(Texts(vec!["to", "be", "or", "not"]), |texts| {
    ///     let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    ///     let n_texts = texts.len();
    ///     let padded = texts.into_iter().flat_map(|mut text| {
    ///         text.resize(longest, b' ');
    ///         text
    ///     });
    ///     Ok(Tensor::from_vec(padded.collect(), [n_texts, longest])?)
    /// });
    /// let batch: Tensor<Int> = loader.batch_size(4).iter().next().unwrap()?;
    /// assert_eq!(batch.to_vec::<u8>()?, b"to be or not");
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn with_collate<D, C>(dataset: D, collate: C) -> Self
    where
        D: Dataset,
        C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
    {
        Self::from_source(Collated { dataset, collate, batches: PhantomData })
    }

    fn from_source(source: impl Source) -> Self {
        Self { loader: Loader::new(Arc::new(source)), batches: PhantomData }
    }

    /// How many samples make a batch. Zero is refused by [`len`](Self::len) and by the loop.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// # let dataset = TensorDataset::new(Tensor::zeros([100, 2])?)?;
    /// assert_eq!(DataLoader::new(dataset).batch_size(32).len()?, 4);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.loader.set_batch_size(batch_size);
        self
    }

    /// A new random order in every epoch, all of them drawn from `seed`.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// # let dataset = TensorDataset::new(Tensor::arange(0.0, 100.0, 1.0)?)?;
    /// let loader = DataLoader::new(dataset).batch_size(100).shuffle(7);
    /// let first = loader.iter().next().unwrap()?.to_vec::<f32>()?;
    /// let second = loader.iter().next().unwrap()?.to_vec::<f32>()?;
    /// assert_ne!(first, second);
    ///
    /// loader.set_epoch(0);
    /// assert_eq!(loader.iter().next().unwrap()?.to_vec::<f32>()?, first);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.loader.shuffle(seed);
        self
    }

    /// The order that `sampler` gives.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, FixedSampler, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// # let dataset = TensorDataset::new(Tensor::arange(0.0, 100.0, 1.0)?)?;
    /// let loader = DataLoader::new(dataset).batch_size(3).sampler(FixedSampler::new([30, 10, 20]));
    /// assert_eq!(loader.iter().next().unwrap()?.to_vec::<f32>()?, [30.0, 10.0, 20.0]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.loader.set_sampler(Arc::new(sampler));
        self
    }

    /// Whether a last batch that is smaller than the others is left out.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// # let dataset = TensorDataset::new(Tensor::zeros([100, 2])?)?;
    /// assert_eq!(DataLoader::new(dataset).batch_size(32).drop_last(true).len()?, 3);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.loader.set_drop_last(drop_last);
        self
    }

    /// Puts every batch through `f`: the tutorial's `WrappedDataLoader`.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// # let dataset = TensorDataset::new((Tensor::zeros([100, 784])?, Tensor::zeros([100])?))?;
    /// let loader = DataLoader::new(dataset).batch_size(64).map(|(x, y)| Ok((x.reshape([-1, 1, 28, 28])?, y)));
    /// let (xb, _) = loader.iter().next().unwrap()?;
    /// assert_eq!(xb.dims(), [64, 1, 28, 28]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn map<M, F>(self, f: F) -> DataLoader<M>
    where
        M: Send + 'static,
        F: Fn(B) -> Result<M> + Send + Sync + 'static,
    {
        let source = self.loader.source();
        self.with_source(Arc::new(Mapped { source, f, batches: PhantomData }))
    }

    /// The same loader with other batches.
    fn with_source<M>(mut self, source: Arc<dyn Source>) -> DataLoader<M> {
        self.loader.set_source(source);
        DataLoader { loader: self.loader, batches: PhantomData }
    }

    /// How many batches an epoch has; never zero.
    ///
    /// # Errors
    /// What the loop would report instead of its first batch: [`Error::ZeroBatch`], [`Error::EmptyDataset`],
    /// [`Error::EmptySampler`], [`Error::NoBatch`] or [`Error::Setting`].
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let empty = TensorDataset::new(Tensor::zeros([0, 2])?)?;
    /// assert_eq!(
    ///     DataLoader::new(empty).len().unwrap_err().to_string(),
    ///     "the dataset is empty, so there is no batch to load; check the path, filter or split that it came from",
    /// );
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    #[allow(clippy::len_without_is_empty)] // an empty loader is an error
    pub fn len(&self) -> Result<usize> {
        self.loader.len()
    }

    /// How many samples the dataset has.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let dataset = TensorDataset::new(Tensor::zeros([100, 2])?)?;
    /// assert_eq!(DataLoader::new(dataset).batch_size(64).n_samples(), 100);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn n_samples(&self) -> usize {
        self.loader.n_samples()
    }

    /// Which epoch the next loop will be, counted from 0.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([3])?)?);
    /// assert_eq!((loader.epoch(), loader.iter().count(), loader.epoch()), (0, 3, 1));
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn epoch(&self) -> u64 {
        self.loader.progress().epoch
    }

    /// Makes the next loop epoch number `epoch`, to repeat one or to go on where another run stopped.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([3])?)?).shuffle(1);
    /// loader.set_epoch(12);
    /// assert_eq!(loader.epoch(), 12);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn set_epoch(&self, epoch: u64) {
        self.loader.set_epoch(epoch);
    }

    /// Where the loop that was started last is, to be kept in a checkpoint; see [`LoaderState`].
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([3])?)?);
    /// loader.iter().take(2).for_each(drop);
    /// assert_eq!((loader.state().epoch, loader.state().batch), (0, 2));
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn state(&self) -> LoaderState {
        self.loader.state()
    }

    /// Makes the next loop go on where [`state`](Self::state) was taken, with the same batches, at no cost.
    ///
    /// # Errors
    /// [`Error::OtherState`] if the state is of another dataset, order or batch size; [`Error::BehindEnd`] if an epoch has
    /// not that many batches; what [`len`](Self::len) reports.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, LoaderState, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([3])?)?);
    /// loader.resume(LoaderState { epoch: 8, batch: 2, ..loader.state() })?;
    /// assert_eq!((loader.epoch(), loader.iter().count()), (8, 1));
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn resume(&self, state: LoaderState) -> Result<()> {
        self.loader.resume(state)
    }

    /// What this loader has done so far, and how long it took; see [`LoaderReport`].
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([3])?)?);
    /// loader.iter().for_each(drop);
    /// assert_eq!(loader.report().samples, 3);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn report(&self) -> LoaderReport {
        self.loader.report()
    }

    /// The samples that [`skip_bad_samples`](Self::skip_bad_samples) left out, in the order of their batches: the latest
    /// thousand, with the reasons.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([3])?)?).skip_bad_samples(true);
    /// loader.iter().for_each(drop);
    /// assert_eq!(loader.skipped(), []);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn skipped(&self) -> Vec<Skipped> {
        self.loader.skipped()
    }

    /// Starts the next epoch; `for batch in &loader` does the same.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([10])?)?).batch_size(4);
    /// let sizes: Vec<usize> = loader.iter().flatten().map(|batch| batch.len()).collect();
    /// assert_eq!(sizes, [4, 4, 2]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn iter(&self) -> Batches<'_, B> {
        Batches::new(self.loader.start())
    }
}

impl Loader {
    fn new(source: Arc<dyn Source>) -> Opaque<'static, Self> {
        let recipe = Recipe {
            source,
            batches: BatchSampler::new(Arc::new(SequentialSampler), 1),
            holder: Holder::named("loader"),
        };
        let (slots, progress, idle) = (OnceLock::new(), Mutex::default(), Mutex::new(None));
        Opaque::new(Self {
            recipe,
            identity: OnceLock::new(),
            plan: Plan::default(),
            pins: false,
            slots,
            progress,
            idle,
        })
    }

    fn source(&self) -> Arc<dyn Source> {
        self.recipe.source.clone()
    }

    /// Workers of the source before are of no use to this one.
    fn set_source(&mut self, source: Arc<dyn Source>) {
        (self.recipe.source, self.idle) = (source, Mutex::new(None));
    }

    fn set_batch_size(&mut self, batch_size: usize) {
        self.recipe.batches = self.recipe.batches.clone().with_batch_size(batch_size);
    }

    fn set_drop_last(&mut self, drop_last: bool) {
        self.recipe.batches = self.recipe.batches.clone().drop_last(drop_last);
    }

    fn shuffle(&mut self, seed: u64) {
        self.set_sampler(Arc::new(RandomSampler::new(seed)));
    }

    fn set_sampler(&mut self, sampler: Arc<dyn Sampler>) {
        self.recipe.batches = self.recipe.batches.clone().with_sampler(sampler);
        self.identity = OnceLock::new();
    }

    fn len(&self) -> Result<usize> {
        check_workers(self.plan.n_workers, self.plan.prefetch_factor)?;
        self.recipe.batches.n_batches(self.n_samples())
    }

    fn n_samples(&self) -> usize {
        self.recipe.source.n_samples()
    }

    fn set_epoch(&self, epoch: u64) {
        let mut progress = self.progress();
        (progress.epoch, progress.start, progress.next) = (epoch, 0, (epoch, 0));
    }

    fn state(&self) -> LoaderState {
        let (epoch, batch) = self.progress().next;
        let (n_samples, batches) = (self.n_samples(), &self.recipe.batches);
        let (order, dataset) = self
            .identity
            .get_or_init(|| (in_a_line(&batches.order(n_samples)), in_a_line(&self.recipe.source.identity())));
        let (batch_size, drop_last) = (batches.batch_size(), batches.drops_last());
        LoaderState { epoch, batch, n_samples, batch_size, drop_last, order: order.clone(), dataset: dataset.clone() }
    }

    fn resume(&self, state: LoaderState) -> Result<()> {
        let here = self.state();
        if !state.differences(&here).is_empty() {
            return Err(Error::OtherState { state: state.into(), here: here.into() });
        }
        let LoaderState { epoch, batch, .. } = state;
        let n_batches = self.len()?;
        if batch >= n_batches {
            return Err(Error::BehindEnd { epoch, batch, n_batches });
        }
        let mut progress = self.progress();
        (progress.epoch, progress.start) = (state.epoch, state.batch);
        progress.next = (state.epoch, state.batch);
        Ok(())
    }

    fn report(&self) -> LoaderReport {
        LoaderReport { workers: self.plan.n_workers, ..self.progress().record.report }
    }

    fn skipped(&self) -> Vec<Skipped> {
        self.progress().record.skipped.iter().cloned().collect()
    }

    /// Starts the next epoch.
    fn start(&self) -> Opaque<'_, Epoch<'_>> {
        let mut progress = self.progress();
        let (epoch, start) = (progress.epoch, progress.start);
        (progress.epoch, progress.start, progress.next) = (epoch.saturating_add(1), 0, (epoch, start));
        drop(progress);
        let mut batches = Epoch::new(self, epoch);
        match self.len().and_then(|n_batches| Ok((n_batches, self.crew()?))) {
            Ok((n_batches, crew)) => {
                (batches.next, batches.end) = (start.min(n_batches), n_batches);
                crew.iter().for_each(|crew| crew.begin(epoch, batches.next, n_batches));
                batches.crew = crew;
            }
            Err(error) => batches.refusal = Some(error),
        }
        Opaque::new(batches)
    }

    /// Workers for one epoch, unless the program makes its batches itself.
    fn crew(&self) -> Result<Option<Crew>> {
        if self.plan.n_workers == 0 {
            return Ok(None);
        }
        match lock(&self.idle).take() {
            Some(crew) => Ok(Some(crew)),
            None => Crew::new(self.recipe.clone(), self.plan.clone(), self.slot_memory()).map(Some),
        }
    }

    /// Where batches are made that are to be page-locked.
    fn slot_memory(&self) -> Option<SlotMemory> {
        self.pins.then(|| self.slots.get_or_init(|| slot_memory(self.plan.pin_budget.as_ref())).clone())
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }
}

impl<'a, B: Send + 'static> IntoIterator for &'a DataLoader<B> {
    type Item = Result<B>;
    type IntoIter = Batches<'a, B>;

    fn into_iter(self) -> Batches<'a, B> {
        self.iter()
    }
}

/// The two loaders of the tutorial: `train_ds` shuffled in batches of `bs`, `valid_ds` in order and in batches of
/// `2 * bs`, which fit because validation keeps no gradients.
///
/// The shuffling seed is 0; `train_dl.shuffle(seed)` changes it.
///
/// # Examples
/// ```
/// use pagelock_data::{TensorDataset, get_data};
/// use pagelock_tensor::Tensor;
///
/// let train_ds = TensorDataset::new((Tensor::zeros([500, 784])?, Tensor::zeros([500])?))?;
/// let valid_ds = TensorDataset::new((Tensor::zeros([100, 784])?, Tensor::zeros([100])?))?;
/// let (train_dl, valid_dl) = get_data(train_ds, valid_ds, 50);
/// assert_eq!((train_dl.len()?, valid_dl.len()?), (10, 1));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub fn get_data<B, T, V>(train_ds: T, valid_ds: V, bs: usize) -> (DataLoader<B>, DataLoader<B>)
where
    B: Send + 'static,
    T: Dataset<Sample: Stack<Batch = B>>,
    V: Dataset<Sample: Stack<Batch = B>>,
{
    (DataLoader::new(train_ds).batch_size(bs).shuffle(0), DataLoader::new(valid_ds).batch_size(bs.saturating_mul(2)))
}

/// A lock that a panic of ours poisoned still guards what it says.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
