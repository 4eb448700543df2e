//! [`Loader`]: gives a dataset's samples in batches, one epoch per `for` loop. [`DataLoader`] and [`StreamLoader`] are the
//! two kinds of it.

use std::marker::PhantomData;
use std::sync::Arc;

use super::batches::{Batches, Epoch};
use super::core::Core;
use super::opaque::Opaque;
use super::order::{OrderKind, Position};
use super::report::{LoaderReport, Skipped};
use super::source::{Data, Mapped, Source};
use crate::Result;
use crate::state::LoaderState;

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
pub type DataLoader<B> = Loader<B, Indices>;

/// Gives the samples of an [`IterableDataset`](crate::IterableDataset) in batches of type `B`, one epoch per `for` loop: a
/// [`DataLoader`] for datasets without numbers.
///
/// Starts as: batch size 1, every shard to its end, its last batch as small as it comes. There is no shuffling: a dataset
/// that gives each epoch another order does that in [`shard`](crate::IterableDataset::shard), which is told the epoch.
///
/// # Examples
/// See [`IterableDataset`](crate::IterableDataset).
pub type StreamLoader<B> = Loader<B, Shards>;

/// What [`DataLoader`] and [`StreamLoader`] have in common: all but which samples make which batch. Those are functions of the
/// kind `K` of dataset.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use pagelock_data::{DataLoader, TensorDataset};
/// use pagelock_tensor::Tensor;
///
/// let dataset = TensorDataset::new(Tensor::zeros([100, 4])?)?;
/// let loader = DataLoader::new(dataset).batch_size(8).drop_last(true).skip_bad_samples(true);
/// let loader = loader.num_workers(2).prefetch_factor(4); // 8 batches ahead
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
    pub(super) fn from_parts(data: Arc<dyn Data>, source: Arc<dyn Source>, order: OrderKind) -> Self {
        Self { core: Core::new(data, source, order), types: PhantomData }
    }

    /// The same loader with other batches.
    pub(super) fn with_source<M>(mut self, source: Arc<dyn Source>) -> Loader<M, K> {
        self.core.recipe_mut().source = source;
        Loader { core: self.core, types: PhantomData }
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
    pub fn map<M, F>(self, f: F) -> Loader<M, K>
    where
        M: Send + 'static,
        F: Fn(B) -> Result<M> + Send + Sync + 'static,
    {
        let source = self.core.recipe.source.clone();
        self.with_source(Arc::new(Mapped { source, f, batches: PhantomData }))
    }

    /// Which epoch the next loop will be, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.core.progress().start.epoch
    }

    /// Makes the next loop epoch number `epoch`, to repeat one or to go on where another run stopped.
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
        self.core.progress().record.skipped.iter().cloned().collect()
    }

    /// Where the loop that was started last is, to be kept in a checkpoint; see [`LoaderState`].
    ///
    /// That a batch of a stream was the last is known only when another is asked for. A loop that goes on from there gives
    /// nothing, and the next loop is the next epoch.
    pub fn state(&self) -> LoaderState {
        self.core.state()
    }

    /// Makes the next loop go on where [`state`](Self::state) was taken, with the same batches, for any number of workers.
    ///
    /// With a dataset that has indices, that takes no time. A stream takes what
    /// [`shard_from`](crate::IterableDataset::shard_from) takes: it reads again what came before, unless the dataset can jump.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) if the state is of another dataset, order or batch size, or behind the end of the
    /// epoch. Whether it is behind the end of a stream is known only when that is read: then the loop gives the error.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{IterableDataset, Result, Samples, StreamLoader};
    /// # struct Five;
    /// # impl IterableDataset for Five {
    /// #     type Sample = i64;
    /// #     fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<i64>> {
    /// #         Ok(Box::new((0..5).map(Ok)))
    /// #     }
    /// # }
    /// let loader = || StreamLoader::new(Five).batch_size(2); // of 0, 1, 2, 3, 4
    /// let first = loader();
    /// first.set_epoch(7);
    /// first.iter().next();
    /// let saved = first.state().to_string();
    /// assert!(saved.starts_with("epoch 7, round 1, turn 0 of 1 shards in batches of 2; shards: all; data: Five; check "));
    ///
    /// let second = loader();
    /// second.resume(saved.parse()?)?;
    /// assert_eq!((second.epoch(), second.iter().next().unwrap()?.to_vec::<i64>()?), (7, vec![2, 3]));
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn resume(&self, state: LoaderState) -> Result<()> {
        self.core.resume(state)
    }

    /// Starts the next epoch; `for batch in &loader` does the same.
    pub fn iter(&self) -> Batches<'_, B> {
        Batches::new(Epoch::start(&self.core))
    }
}

impl<'a, B: Send + 'static, K> IntoIterator for &'a Loader<B, K> {
    type Item = Result<B>;
    type IntoIter = Batches<'a, B>;

    fn into_iter(self) -> Batches<'a, B> {
        self.iter()
    }
}
