//! [`Settings`], and the functions of [`Loader`] that set them. But for the batch size, none of them changes what a program sees,
//! except errors.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use pagelock_memory::Budget;

use super::device::ToDevice;
use super::loaders::Loader;
use super::pinned::WhenFull;
use super::source::Pinned;
use crate::Result;
use crate::error::check_most;
use crate::pin::PinMemory;

/// The most workers, each of which is a thread.
const MOST_WORKERS: usize = 1_024;
/// The most batches that are ahead of the program, for each worker.
pub(super) const MOST_AHEAD: usize = 1 << 16;
/// What each worker does first; it is given its number.
pub(super) type Init = dyn Fn(usize) -> Result<()> + Send + Sync;

/// How batches are made: by how many workers, how far ahead, and in which memory.
#[derive(Clone, Default)]
pub(super) struct Settings {
    pub(super) n_workers: usize,
    prefetch_factor: Option<usize>,
    pub(super) budget: Option<Budget>, // for batches that are ahead
    pub(super) timeout: Option<Duration>,
    pub(super) persistent: bool,
    pub(super) init: Option<Arc<Init>>,
    pub(super) pins: bool,
    pub(super) pin_budget: Option<Budget>,
    pub(super) when_full: WhenFull,
    pub(super) skips: bool,
    pub(super) device: Option<ToDevice>,
}

impl Settings {
    /// Refuses numbers of workers and batches for which no machine has the threads or the memory.
    pub(super) fn check(&self) -> Result<()> {
        let usual = "as many as the machine has cores is usual";
        check_most("num_workers", self.n_workers, MOST_WORKERS, usual)?;
        let usual = "2 is usual, and prefetch_budget bounds the memory";
        check_most("prefetch_factor", self.prefetch_factor(), MOST_AHEAD, usual)
    }

    pub(super) fn prefetch_factor(&self) -> usize {
        self.prefetch_factor.unwrap_or(2)
    }
}
impl<B: Send + 'static, K> Loader<B, K> {
    /// How many samples make a batch; 1 unless set. Zero is refused by [`len`](Self::len) and by the loop.
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.core.recipe_mut().order.batch_size = batch_size;
        self.core.reset_position();
        self
    }

    /// Whether a last batch that is smaller than the others is left out; of a stream, the last batch of each shard.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.core.recipe_mut().order.drop_last = drop_last;
        self
    }

    /// How many threads make batches ahead of the program; 0, the default, lets the program make each when it asks.
    /// Order and content of the batches are the same for any number.
    ///
    /// An error or a panic comes out as an error in the place of its batch, from every thread. More workers than 1,024 are
    /// refused by [`len`](Self::len) and by the loop. A shard of a stream is read by one thread, so more threads than shards
    /// are not started.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let dataset = TensorDataset::new(Tensor::arange(0.0, 100.0, 1.0)?)?;
    /// let alone = DataLoader::new(dataset.clone()).batch_size(8).shuffle(7);
    /// let helped = DataLoader::new(dataset).batch_size(8).shuffle(7).num_workers(4);
    /// for (one, other) in alone.iter().zip(&helped) {
    ///     assert_eq!(one?.to_vec::<f32>()?, other?.to_vec::<f32>()?);
    /// }
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn num_workers(mut self, num_workers: usize) -> Self {
        self.core.settings_mut().n_workers = num_workers;
        self
    }

    /// How many batches per worker may be ahead of the program; 2 unless set, at least 1 in all.
    pub fn prefetch_factor(mut self, prefetch_factor: usize) -> Self {
        self.core.settings_mut().prefetch_factor = Some(prefetch_factor);
        self
    }

    /// What the batches that are ahead of the program may take together, however many there are.
    ///
    /// A batch counts, with what the largest before it took, from when a worker takes it up until the program gets it.
    /// Where not even one fits, its place is taken by the refusal, with the numbers; of a stream,
    /// its samples are read all the same.
    ///
    /// # Examples
    /// ```
    /// use pagelock_memory::{Budget, ByteSize};
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// # let dataset = TensorDataset::new(Tensor::zeros([1_000, 256])?)?;
    /// let budget = Budget::new("loader", ByteSize::mib(1));
    /// let loader = DataLoader::new(dataset).batch_size(100).num_workers(2).prefetch_factor(50);
    /// let loader = loader.prefetch_budget(budget.clone());
    /// assert_eq!(loader.iter().filter(|batch| batch.is_ok()).count(), 10);
    /// assert!(budget.peak() <= ByteSize::mib(1));
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn prefetch_budget(mut self, budget: Budget) -> Self {
        self.core.settings_mut().budget = Some(budget);
        self
    }

    /// How long the program waits for a worker's batch before it gets [`Error::Timeout`](crate::Error::Timeout) instead, which says where the
    /// worker is; the epoch goes on with the next batch, and with another worker. Of a stream, the batch that is late comes later.
    /// Without a time-out, the program waits as long as it takes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.core.settings_mut().timeout = Some(timeout);
        self
    }

    /// Whether workers wait for the next epoch instead of ending with theirs.
    pub fn persistent_workers(mut self, persistent: bool) -> Self {
        self.core.settings_mut().persistent = persistent;
        self
    }

    /// What each worker does before its first batch; it is given the worker's number. If it fails, the epoch is one
    /// [`Error::Worker`](crate::Error::Worker).
    pub fn worker_init(mut self, init: impl Fn(usize) -> Result<()> + Send + Sync + 'static) -> Self {
        self.core.settings_mut().init = Some(Arc::new(init));
        self
    }

    /// Whether samples that fail, and those that panic, are left out of their batches, instead of costing the
    /// batch. [`skipped`](Self::skipped) says which and why, the report counts them. A batch of which nothing is left is an
    /// [`Error::AllSkipped`](crate::Error::AllSkipped). A shard of a stream gives nothing more after a panic.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{DataLoader, Dataset, Error, Result};
    ///
    /// struct OneIsDamaged;
    ///
    /// impl Dataset for OneIsDamaged {
    ///     type Sample = i64;
    ///     fn len(&self) -> usize {
    ///         6
    ///     }
    ///     fn get(&self, index: usize) -> Result<i64> {
    ///         if index == 4 { Err(Error::other("row 4 is damaged")) } else { Ok(index as i64) }
    ///     }
    /// }
    ///
    /// let loader = DataLoader::new(OneIsDamaged).batch_size(3).skip_bad_samples(true);
    /// let batches: Vec<_> = loader.iter().map(|batch| Ok(batch?.to_vec::<i64>()?)).collect::<Result<_>>()?;
    /// assert_eq!(batches, [vec![0, 1, 2], vec![3, 5]]);
    /// let skipped = &loader.skipped()[0];
    /// assert_eq!((skipped.index, &*skipped.error), (4, "row 4 is damaged"));
    /// assert_eq!(skipped.to_string(), "the calling thread left out sample 4 in epoch 0: row 4 is damaged");
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn skip_bad_samples(mut self, skip: bool) -> Self {
        self.core.settings_mut().skips = skip;
        self
    }

    /// Whether batches are made in page-locked memory, from which a GPU copies fastest and while the program goes on.
    /// They are collated there, not copied; a batch that its collation did not make anew is.
    ///
    /// Batches are page-locked where this stands in the chain: what a [`map`](Self::map) after it makes, is not.
    ///
    /// The memory comes from [`pagelock_tensor::page_locked`], a pool for the whole process, unless
    /// [`pin_budget`](Self::pin_budget) gives the loader its own; [`when_full`](Self::when_full) says what to do when
    /// there is no more.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let dataset = TensorDataset::new((Tensor::zeros([100, 784])?, Tensor::full([100], 0)?))?;
    /// for batch in &DataLoader::new(dataset).batch_size(50).num_workers(1).pin_memory(true) {
    ///     let (xb, yb) = batch?;
    ///     assert!(xb.is_pinned() && yb.is_pinned());
    /// }
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    ///
    /// A batch of a type without [`PinMemory`] does not compile:
    /// ```compile_fail,E0277
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// struct Batch(Tensor); // `#[derive(pagelock_data::PinMemory)]` is missing
    ///
    /// let dataset = TensorDataset::new(Tensor::zeros([100, 784]).unwrap()).unwrap();
    /// let loader = DataLoader::new(dataset).map(|batch| Ok(Batch(batch))).pin_memory(true);
    /// ```
    pub fn pin_memory(mut self, pin_memory: bool) -> Self
    where
        B: PinMemory,
    {
        if !pin_memory {
            return self;
        }
        self.core.settings_mut().pins = true;
        let source = self.core.recipe.source.clone();
        self.with_source(Arc::new(Pinned { source, batches: PhantomData::<fn() -> B> }))
    }

    /// How much page-locked memory the loader may take, for the batches that are ahead and those that the program still
    /// has; it then has a pool of its own, which goes with it.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset, WhenFull};
    /// # use pagelock_tensor::Tensor;
    /// use pagelock_memory::{Budget, ByteSize};
    ///
    /// # let dataset = TensorDataset::new(Tensor::zeros([1_000, 256])?)?;
    /// let budget = Budget::new("train", ByteSize::kib(512));
    /// let loader = DataLoader::new(dataset).batch_size(100).num_workers(2).pin_memory(true);
    /// let loader = loader.pin_budget(budget.clone()).when_full(WhenFull::Wait);
    /// assert!(loader.iter().all(|batch| batch.is_ok_and(|batch| batch.is_pinned())));
    /// assert!(budget.peak() <= ByteSize::kib(512));
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn pin_budget(mut self, budget: Budget) -> Self {
        self.core.settings_mut().pin_budget = Some(budget);
        self
    }

    /// What to do when there is no more page-locked memory: [`WhenFull::Pageable`] unless set. A stream with
    /// [`WhenFull::Wait`] waits for as long as the time-out, or a tenth of a second if there is none: finished batches are not
    /// made again.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset, WhenFull};
    /// # use pagelock_tensor::Tensor;
    /// use pagelock_memory::{Budget, ByteSize};
    ///
    /// let dataset = TensorDataset::new(Tensor::zeros([100, 256])?)?;
    /// let loader = DataLoader::new(dataset).batch_size(50).pin_memory(true);
    /// let loader = loader.pin_budget(Budget::new("train", ByteSize::kib(16)));
    /// assert!(loader.iter().all(|batch| batch.is_ok_and(|batch| !batch.is_pinned())));
    /// assert_eq!(loader.report().pageable, 2);
    ///
    /// let loader = loader.when_full(WhenFull::Error);
    /// assert!(loader.iter().all(|batch| batch.is_err()));
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.core.settings_mut().when_full = when_full;
        self
    }
}
