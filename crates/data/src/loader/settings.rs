//! [`Settings`], and the functions of [`Loader`] that set them. The batch size, `drop_last` and
//! `skip_bad_samples` decide what a program gets; the others decide when, and in which memory.

use std::sync::Arc;
use std::time::Duration;

use pagelock_memory::Budget;

use super::device::ToDevice;
use super::loaders::Loader;
use super::pinned::WhenFull;
use super::source;
use crate::Result;
use crate::error::check_most;
use crate::pin::PinMemory;

const MAX_WORKERS: usize = 1_024;
/// The most batches that are ahead of the program, for each worker.
pub(super) const MAX_AHEAD: usize = 1 << 16;
/// What each worker runs first; it gets the worker's number.
type Init = dyn Fn(usize) -> Result<()> + Send + Sync;

/// How batches are made: by how many workers, how far ahead, and in which memory.
#[derive(Clone, Default)]
pub(super) struct Settings {
    pub(super) n_workers: usize,
    prefetch_factor: Option<usize>,
    pub(super) budget: Option<Budget>, // for batches that are ahead
    pub(super) timeout: Option<Duration>,
    pub(super) persistent: bool,
    pub(super) init: Option<Arc<Init>>,
    pub(super) pin_budget: Option<Budget>,
    pub(super) when_full: WhenFull,
    pub(super) skips: bool,
    pub(super) device: Option<ToDevice>,
}

impl Settings {
    /// Refuses numbers of workers and batches for which no machine has the threads or the memory.
    pub(super) fn check(&self) -> Result<()> {
        let usual = "one per core is usual";
        check_most("num_workers", self.n_workers, MAX_WORKERS, usual)?;
        let usual = "2 is usual, and prefetch_budget bounds the memory";
        check_most("prefetch_factor", self.prefetch_factor(), MAX_AHEAD, usual)
    }

    pub(super) fn prefetch_factor(&self) -> usize {
        self.prefetch_factor.unwrap_or(2)
    }
}

impl<B: Send + 'static, K> Loader<B, K> {
    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(&mut self.core.recipe_mut().settings);
        self
    }

    /// How many samples make a batch; 1 unless set. [`len`](Self::len) and the loop refuse 0; a stream also above 2^28.
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.core.recipe_mut().order.batch_size = batch_size;
        self.core.reset_position();
        self
    }

    /// Whether a last batch that is smaller than the others is left out; in a stream, the last batch of each shard.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.core.recipe_mut().order.drop_last = drop_last;
        self
    }

    /// How many threads make batches ahead of the program. With 0, the default, the program's thread makes each batch
    /// when the program requests it. Order and content of the batches are the same for any number.
    ///
    /// On every thread, an error or a panic becomes an error in the place of its batch. [`len`](Self::len) and the
    /// loop refuse more than 1,024 workers. A shard of a stream is read by one thread, so there are at most as many
    /// threads as shards.
    pub fn num_workers(self, num_workers: usize) -> Self {
        self.set(|settings| settings.n_workers = num_workers)
    }

    /// How many batches per worker may be ahead of the program; 2 unless set, at least 1 in all.
    pub fn prefetch_factor(self, prefetch_factor: usize) -> Self {
        self.set(|settings| settings.prefetch_factor = Some(prefetch_factor))
    }

    /// The budget of the memory that all batches ahead of the program take together.
    ///
    /// A batch counts from when a worker starts it until the program gets it, with the size of the largest batch so
    /// far. If not even one batch fits, an error with the numbers takes the place of the batch; the samples of a
    /// stream are read all the same. A child of the host's budget counts each batch twice, since its tensors count there, too.
    pub fn prefetch_budget(self, budget: Budget) -> Self {
        self.set(|settings| settings.budget = Some(budget))
    }

    /// How long the program waits for a worker's batch. After that it gets [`Error::Timeout`](crate::Error::Timeout),
    /// which names the sample that the worker is fetching. The epoch goes on with the next batch and a new worker; in
    /// a stream, the late batch comes later. Without a time-out, the program waits as long as it takes.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set(|settings| settings.timeout = Some(timeout))
    }

    /// Whether workers wait for the next epoch instead of ending with their epoch.
    pub fn persistent_workers(self, persistent: bool) -> Self {
        self.set(|settings| settings.persistent = persistent)
    }

    /// What each worker runs before its first batch; it gets the worker's number. If it fails, the epoch consists of
    /// one [`Error::Worker`](crate::Error::Worker).
    pub fn worker_init(self, init: impl Fn(usize) -> Result<()> + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.init = Some(Arc::new(init)))
    }

    /// Whether samples that fail or panic are left out of their batches, instead of making the whole batch an error.
    /// [`skipped`](Self::skipped) lists them with the reasons, and the report counts them. A batch without any sample
    /// left is an [`Error::AllSkipped`](crate::Error::AllSkipped). A shard of a stream ends after a panic.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{DataLoader, Dataset, Error, Result, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    ///
    /// let numbers = TensorDataset::new(Tensor::arange(0, 6, 1)?)?;
    /// let checked = numbers.transform(0, |number, _| match number.item::<i64>()? {
    ///     4 => Err(Error::other("row 4 is damaged")),
    ///     number => Ok(number),
    /// });
    /// let loader = DataLoader::new(checked).batch_size(3).skip_bad_samples(true);
    /// let batches: Vec<_> = loader.iter().map(|batch| Ok(batch?.to_vec::<i64>()?)).collect::<Result<_>>()?;
    /// assert_eq!(batches, [vec![0, 1, 2], vec![3, 5]]);
    /// let skipped = &loader.skipped()[0];
    /// assert_eq!((skipped.index, &*skipped.error), (4, "row 4 is damaged"));
    /// assert_eq!(skipped.to_string(), "the calling thread left out sample 4 in epoch 0: row 4 is damaged");
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn skip_bad_samples(self, skip: bool) -> Self {
        self.set(|settings| settings.skips = skip)
    }

    /// Whether batches are made in page-locked memory, from which a GPU copies fastest and while the program goes on.
    /// Batches of a type without [`PinMemory`] do not compile.
    ///
    /// Batches are collated there. Tensors that the collation passes on, instead of making them, are copied. Strides
    /// stay, except of tensors with gaps, which are copied without. Tensors that a [`map`](Self::map) after this call
    /// makes are not page-locked.
    ///
    /// The memory comes from [`pagelock_tensor::page_locked`], a pool for the whole process, unless
    /// [`pin_budget`](Self::pin_budget) gives the loader its own. [`when_full`](Self::when_full) decides what happens
    /// when it runs out.
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
    pub fn pin_memory(self, pin_memory: bool) -> Self
    where
        B: PinMemory,
    {
        if !pin_memory {
            return self;
        }
        let mut pinned = self.with_step(source::pin::<B>());
        let recipe = pinned.core.recipe_mut();
        recipe.n_pinned_steps = recipe.steps.len();
        pinned
    }

    /// How much page-locked memory the loader may take, for batches that are ahead and for those that the program
    /// still holds. The loader then has its own pool, which ends with it.
    pub fn pin_budget(self, budget: Budget) -> Self {
        self.set(|settings| settings.pin_budget = Some(budget))
    }

    /// What to do when page-locked memory runs out: [`WhenFull::Pageable`] unless set. A stream with
    /// [`WhenFull::Wait`] waits for as long as the time-out, or a tenth of a second without one, because its finished
    /// batches cannot be made again.
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
    pub fn when_full(self, when_full: WhenFull) -> Self {
        self.set(|settings| settings.when_full = when_full)
    }
}
