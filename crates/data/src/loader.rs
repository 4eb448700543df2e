//! [`DataLoader`]: a dataset, an order and a way to make batches, read with `for`.
//!
//! A loader promises: the same seed and epoch give the same batches in the same order; every batch of an epoch is
//! delivered once, as a batch or as an error that says what is wrong with it; nothing ends early in silence.
//!
//! Batches are a function of (epoch, number) alone, which is what will let several threads make them without changing
//! what a program sees. Today they are made on the thread that asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagelock_memory::Holder;

use crate::collate::Stack;
use crate::dataset::{Dataset, check_index};
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
/// use pagelock_tensor::{Create, Tensor};
///
/// let train_ds = TensorDataset::new((Tensor::zeros([100, 784])?, Tensor::<i64>::zeros([100])?))?;
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
    source: Arc<dyn Source<B>>,
    batches: BatchSampler<Box<dyn Sampler>>,
    epoch: AtomicU64, // the epoch of the next loop; guards no other memory
    holder: Holder,
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
    /// let batches: Vec<_> = loader.iter().map(|batch| Ok(batch?.to_vec()?)).collect::<pagelock_data::Result<_>>()?;
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
    /// use pagelock_tensor::Tensor;
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
    /// let batch: Tensor<u8> = loader.batch_size(4).iter().next().unwrap()?;
    /// assert_eq!(batch.to_vec()?, b"to be or not");
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn with_collate<D, C>(dataset: D, collate: C) -> Self
    where
        D: Dataset,
        C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
    {
        Self::from_source(Collated { dataset, collate })
    }

    fn from_source(source: impl Source<B>) -> Self {
        Self {
            source: Arc::new(source),
            batches: BatchSampler::new(Box::new(SequentialSampler), 1),
            epoch: AtomicU64::new(0),
            holder: Holder::named("loader"),
        }
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
        self.batches = self.batches.with_batch_size(batch_size);
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
    /// let first = loader.iter().next().unwrap()?.to_vec()?;
    /// let second = loader.iter().next().unwrap()?.to_vec()?;
    /// assert_ne!(first, second);
    ///
    /// loader.set_epoch(0);
    /// assert_eq!(loader.iter().next().unwrap()?.to_vec()?, first);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn shuffle(self, seed: u64) -> Self {
        self.sampler(RandomSampler::new(seed))
    }

    /// The order that `sampler` gives.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, FixedSampler, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// # let dataset = TensorDataset::new(Tensor::arange(0.0, 100.0, 1.0)?)?;
    /// let loader = DataLoader::new(dataset).batch_size(3).sampler(FixedSampler::new([30, 10, 20]));
    /// assert_eq!(loader.iter().next().unwrap()?.to_vec()?, [30.0, 10.0, 20.0]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.batches = self.batches.with_sampler(Box::new(sampler));
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
        self.batches = self.batches.drop_last(drop_last);
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
        let source = Mapped { source: self.source, f };
        DataLoader { source: Arc::new(source), batches: self.batches, epoch: self.epoch, holder: self.holder }
    }

    /// How many batches an epoch has; never zero.
    ///
    /// # Errors
    /// What the loop would report instead of its first batch: [`Error::ZeroBatch`], [`Error::EmptyDataset`],
    /// [`Error::EmptySampler`] or [`Error::NoBatch`].
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
        self.batches.n_batches(self.source.n_samples())
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
        self.source.n_samples()
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
        self.epoch.load(Ordering::Relaxed)
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
        self.epoch.store(epoch, Ordering::Relaxed);
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
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        let (end, refusal) = match self.len() {
            Ok(n_batches) => (n_batches, None),
            Err(error) => (0, Some(error)),
        };
        Batches { loader: self, epoch, next: 0, end, refusal, indices: Vec::new() }
    }

    /// Makes batch number `batch` of `epoch`; `indices` is only room that is used again and again.
    fn load(&self, epoch: u64, batch: usize, indices: &mut Vec<usize>) -> Result<B> {
        let n_samples = self.source.n_samples();
        self.batches.fill(epoch, batch, n_samples, indices);
        for &index in indices.iter() {
            check_index(index, n_samples)?;
        }
        let _charged = self.holder.enter();
        self.source.batch(indices).map_err(|error| error.locate(indices))
    }
}

impl<'a, B: Send + 'static> IntoIterator for &'a DataLoader<B> {
    type Item = Result<B>;
    type IntoIter = Batches<'a, B>;

    fn into_iter(self) -> Batches<'a, B> {
        self.iter()
    }
}

/// One epoch of a [`DataLoader`]. After an error the next batch follows, so a bad sample costs its own batch only.
///
/// # Examples
/// ```
/// # use pagelock_data::{DataLoader, TensorDataset};
/// # use pagelock_tensor::Tensor;
/// # let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([10])?)?).batch_size(4);
/// let mut batches = loader.iter();
/// assert_eq!(batches.size_hint(), (3, Some(3)));
/// batches.next();
/// assert_eq!(batches.size_hint(), (2, Some(2)));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub struct Batches<'a, B> {
    loader: &'a DataLoader<B>,
    epoch: u64,
    next: usize,
    end: usize,
    /// Why there is no batch at all; given once.
    refusal: Option<Error>,
    indices: Vec<usize>,
}

impl<B: Send + 'static> Iterator for Batches<'_, B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        if let Some(error) = self.refusal.take() {
            return Some(Err(error));
        }
        if self.next == self.end {
            return None;
        }
        let batch = self.next;
        self.next += 1;
        Some(self.loader.load(self.epoch, batch, &mut self.indices))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end - self.next + self.refusal.is_some() as usize;
        (left, Some(left))
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

/// Where a loader's batches come from: a dataset and a way to collate, without their types.
trait Source<B>: Send + Sync + 'static {
    fn n_samples(&self) -> usize;

    /// The batch of these samples, of which there is at least one.
    fn batch(&self, indices: &[usize]) -> Result<B>;
}

/// Samples that know how to stack; or the dataset's own shortcut.
struct Stacked<D>(D);

impl<D: Dataset<Sample: Stack>> Source<<D::Sample as Stack>::Batch> for Stacked<D> {
    fn n_samples(&self) -> usize {
        self.0.len()
    }

    fn batch(&self, indices: &[usize]) -> Result<<D::Sample as Stack>::Batch> {
        match self.0.gather(indices)? {
            Some(batch) => Ok(batch),
            None => Stack::stack(get_all(&self.0, indices)?),
        }
    }
}

/// Samples and a function.
struct Collated<D, C> {
    dataset: D,
    collate: C,
}

impl<B, D, C> Source<B> for Collated<D, C>
where
    D: Dataset,
    C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
{
    fn n_samples(&self) -> usize {
        self.dataset.len()
    }

    fn batch(&self, indices: &[usize]) -> Result<B> {
        (self.collate)(get_all(&self.dataset, indices)?).map_err(|error| match error {
            error @ Error::Uneven { .. } => error,
            error => Error::Collate { n_samples: indices.len(), first: indices[0], source: error.into() },
        })
    }
}

/// Another source's batches, put through a function.
struct Mapped<A, F> {
    source: Arc<dyn Source<A>>,
    f: F,
}

impl<A: 'static, B, F> Source<B> for Mapped<A, F>
where
    F: Fn(A) -> Result<B> + Send + Sync + 'static,
{
    fn n_samples(&self) -> usize {
        self.source.n_samples()
    }

    fn batch(&self, indices: &[usize]) -> Result<B> {
        (self.f)(self.source.batch(indices)?)
    }
}

/// Sample by sample; an error names the one that failed.
fn get_all<D: Dataset>(dataset: &D, indices: &[usize]) -> Result<Vec<D::Sample>> {
    let get = |&index| dataset.get(index).map_err(|error| Error::Sample { index, source: error.into() });
    indices.iter().map(get).collect()
}
