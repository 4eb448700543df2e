//! [`Loader`]: gives a dataset's samples in batches, one epoch per `for` loop. [`DataLoader`] and [`StreamLoader`]
//! are its two kinds.

use std::marker::PhantomData;
use std::sync::Arc;

use pagelock_tensor::Generator;

use super::batches::{AnyBatches, Batches};
use super::core::Core;
use super::order::{OrderKind, Position};
use super::report::{LoaderReport, Skipped};
use super::source::{self, BatchSource, Step};
use crate::Result;
use crate::opaque::Opaque;
use crate::state::LoaderState;

/// Gives a dataset's samples in batches of type `B`, one epoch per `for` loop.
///
/// By default the batch size is 1, samples come from first to last, and the last batch may be smaller. Each loop is
/// the next epoch, and a shuffled loader gives each epoch its own order.
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
///     let (xb, yb) = batch?; // [64, 784] and [64], then [36, 784] and [36]
///     assert_eq!(xb.dims()[0], yb.dims()[0]);
/// }
/// assert_eq!(train_dl.epoch(), 1);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub type DataLoader<B> = Loader<B, Indices>;

/// Gives the samples of an [`IterableDataset`](crate::IterableDataset) in batches of type `B`, one epoch per `for`
/// loop: a [`DataLoader`] for datasets without indices.
///
/// By default the batch size is 1 and every shard is read to its end, where its last batch may be smaller. There is
/// no shuffling: a dataset can give each epoch another order in [`shard`](crate::IterableDataset::shard), which gets
/// the epoch.
///
/// # Examples
/// See [`IterableDataset`](crate::IterableDataset).
pub type StreamLoader<B> = Loader<B, Shards>;

/// What [`DataLoader`] and [`StreamLoader`] have in common: everything but the choice of the samples of a batch. The
/// functions for that choice belong to the kind `K`.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use pagelock_data::{DataLoader, TensorDataset};
/// use pagelock_memory::{Budget, ByteSize};
/// use pagelock_tensor::Tensor;
///
/// let dataset = TensorDataset::new(Tensor::zeros([100, 4])?)?;
/// let loader = DataLoader::new(dataset).batch_size(8).drop_last(true).skip_bad_samples(true);
/// let loader = loader.num_workers(2).prefetch_factor(4); // 8 batches ahead
/// let loader = loader.prefetch_budget(Budget::new("loader", ByteSize::mib(1))); // of 1 MiB in all
/// let loader = loader.persistent_workers(true).timeout(Duration::from_secs(60)).worker_init(|worker| {
///     println!("worker {worker} starts");
///     Ok(())
/// });
///
/// assert_eq!((loader.epoch(), loader.iter().count(), loader.epoch()), (0, 12, 1));
/// loader.set_epoch(7); // to repeat one, or to go on
/// for batch in &loader {
///     assert_eq!(batch?.dims(), [8, 4]);
/// }
/// assert_eq!((loader.n_samples(), loader.report().samples, loader.skipped().len()), (100, 2 * 96, 0));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub struct Loader<B, K> {
    pub(super) core: Opaque<'static, Core>,
    types: PhantomData<fn() -> (B, K)>,
}

/// The kind of a [`DataLoader`]: its [`Dataset`](crate::Dataset) gives samples by index.
pub enum Indices {}

/// The kind of a [`StreamLoader`]: its [`IterableDataset`](crate::IterableDataset) has shards that are read from their start.
pub enum Shards {}

impl<B: Send + 'static, K> Loader<B, K> {
    pub(super) fn of(source: impl BatchSource, order: OrderKind) -> Self {
        Self { core: Core::new(Arc::new(source), order), types: PhantomData }
    }

    /// The same loader with one more step for each batch.
    pub(super) fn with_step<M>(mut self, step: Arc<Step>) -> Loader<M, K> {
        self.core.add_step(step);
        Loader { core: self.core, types: PhantomData }
    }

    /// Applies `f` to every batch: the tutorial's `WrappedDataLoader`.
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
    pub fn map<M, F>(self, f: F) -> Loader<M, K>
    where
        M: Send + 'static,
        F: Fn(B) -> Result<M> + Send + Sync + 'static,
    {
        self.with_step(source::map(f))
    }

    /// Applies `f` to every batch. The random numbers that `f` gets depend only on `seed`, the epoch and the batch's
    /// position in it, so they are the same for any number of workers and after a restart.
    /// [`MixUp`](crate::transforms::MixUp) needs them.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::transforms::{MixUp, Transform};
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// # let dataset = TensorDataset::new((Tensor::zeros([100, 3, 8, 8])?, Tensor::full([100], 1)?))?;
    /// let mixup = MixUp::new(10);
    /// let loader = DataLoader::new(dataset).batch_size(50).shuffle(1).transform(2, move |batch, random| mixup.apply(batch, random));
    /// let (_, yb) = loader.iter().next().unwrap()?;
    /// assert_eq!(yb.dims(), [50, 10]); // probabilities of 10 classes
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn transform<M, F>(self, seed: u64, f: F) -> Loader<M, K>
    where
        M: Send + 'static,
        F: Fn(B, &Generator) -> Result<M> + Send + Sync + 'static,
    {
        self.with_step(source::transform(seed, f))
    }

    /// Which epoch the next loop will be, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.core.progress().start.epoch
    }

    /// Makes the next loop epoch number `epoch`, to repeat an epoch, or to continue where another run stopped.
    pub fn set_epoch(&self, epoch: u64) {
        self.core.go_to(Position::start_of(epoch));
    }

    /// What this loader has done so far, and how long it took; see [`LoaderReport`].
    pub fn report(&self) -> LoaderReport {
        self.core.report()
    }

    /// The samples that [`skip_bad_samples`](Self::skip_bad_samples) left out, in the order of their batches: the latest
    /// thousand, with the reasons.
    pub fn skipped(&self) -> Vec<Skipped> {
        self.core.progress().skipped.iter().cloned().collect()
    }

    /// The position of the loop that was started last, for a checkpoint; see [`LoaderState`].
    ///
    /// Only the request for another batch shows that a batch of a stream was the last one. A loop that resumes after
    /// the last batch gives none, and the loop after it is the next epoch.
    pub fn state(&self) -> LoaderState {
        self.core.state()
    }

    /// Makes the next loop resume where [`state`](Self::state) was taken, with the same batches, for any number of
    /// workers.
    ///
    /// A dataset with indices resumes at once. A stream reads the earlier samples again, unless its
    /// [`shard_from`](crate::IterableDataset::shard_from) can seek. It also opens shards again that had ended early, since they
    /// panicked or could not be opened: they may give the rest of their batches, or the error once more.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) if the state is of another dataset, order or batch size, or past the end of the
    /// epoch. The end of a stream is known only when the stream is read: then the loop gives the error.
    pub fn resume(&self, state: LoaderState) -> Result<()> {
        self.core.resume(state)
    }

    /// Starts the next epoch; `for batch in &loader` does the same.
    pub fn iter(&self) -> Batches<'_, B> {
        Batches { epoch: AnyBatches::start(&self.core), batches: PhantomData }
    }
}

impl<'a, B: Send + 'static, K> IntoIterator for &'a Loader<B, K> {
    type Item = Result<B>;
    type IntoIter = Batches<'a, B>;

    fn into_iter(self) -> Batches<'a, B> {
        self.iter()
    }
}
