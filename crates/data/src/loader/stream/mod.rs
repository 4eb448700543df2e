//! [`StreamLoader`]: batches of an [`IterableDataset`], whose samples only come one after another.
//!
//! A loader promises: the same dataset and epoch give the same batches in the same order, for any number of workers; what
//! goes wrong is an error in its place; nothing ends early in silence.
//!
//! Batches do not mix shards. The shards take turns, a batch each, and one that has no more is left out, so the order is a
//! function of the shards alone. `desk.rs` makes batches, `turns.rs` bounds how much memory they take ahead of the program, `batches.rs`
//! gives those of an epoch, `state.rs` says where a loader is.

mod batches;
mod desk;
mod state;
mod turns;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use pagelock_memory::{Budget, Holder};
use pagelock_tensor::Device;

pub use self::batches::StreamBatches;
use self::desk::{Collated, Rules, Shards};
use self::state::StreamPlace;
pub use self::state::StreamState;
use super::crew::Init;
use super::device::{DeviceLoader, Feed};
use super::limits::{MOST_SHARDS, check_most, check_workers};
use super::slots::{Goal, SlotMemory, Slots, slot_memory};
use super::{LoaderReport, Record, Skipped, WhenFull, lock};
use crate::collate::Stack;
use crate::identity::in_a_line;
use crate::iterable::IterableDataset;
use crate::pin::PinMemory;
use crate::{Error, Result};

/// Gives the samples of an [`IterableDataset`] in batches of type `B`, one epoch per `for` loop: a
/// [`DataLoader`](crate::DataLoader) for datasets without numbers.
///
/// Starts as: batch size 1, every shard to its end, its last batch as small as it comes. There is no shuffling: a dataset
/// that gives each epoch another order does that in [`shard`](IterableDataset::shard), which is told the epoch.
///
/// # Examples
/// Lines of files:
/// ```
/// use std::fs::File;
/// use std::io::{BufRead, BufReader};
/// use std::path::PathBuf;
///
/// use pagelock_data::{Error, IterableDataset, Result, Samples, StreamLoader};
///
/// struct Lines(Vec<PathBuf>);
///
/// impl IterableDataset for Lines {
///     type Sample = String;
///
///     fn n_shards(&self) -> usize {
///         self.0.len()
///     }
///
///     fn shard(&self, shard: usize, _epoch: u64) -> Result<Samples<String>> {
///         let file = File::open(&self.0[shard]).map_err(Error::other)?;
///         Ok(Box::new(BufReader::new(file).lines().map(|line| line.map_err(Error::other))))
///     }
/// }
///
/// let folder = tempfile::tempdir().map_err(Error::other)?;
/// let paths = ["a", "b"].map(|name| folder.path().join(name));
/// std::fs::write(&paths[0], "to be\nor not\nto be\n").map_err(Error::other)?;
/// std::fs::write(&paths[1], "that is").map_err(Error::other)?;
///
/// let loader = StreamLoader::new(Lines(paths.into())).batch_size(2).num_workers(2);
/// let batches = loader.iter().collect::<Result<Vec<Vec<String>>>>()?;
/// assert_eq!(batches, [vec!["to be", "or not"], vec!["that is"], vec!["to be"]]);
/// # Ok::<(), Error>(())
/// ```
pub struct StreamLoader<B> {
    shards: Arc<dyn Shards<B>>,
    rules: Rules<B>,
    n_workers: usize,
    prefetch_factor: usize,
    prefetch_budget: Option<Budget>,
    timeout: Option<Duration>,
    init: Option<Arc<Init>>,
    rank: usize,
    world_size: usize,
    pin_budget: Option<Budget>,
    when_full: WhenFull,
    slots: OnceLock<SlotMemory>,
    holder: Holder,
    progress: Mutex<Progress>, // guards where the loader is
}

/// Where a loader of streams is.
struct Progress {
    /// Where the next loop starts.
    start: StreamPlace,
    /// Where the loop that was started last is.
    next: StreamPlace,
    record: Record,
}

impl<B: Send + 'static> StreamLoader<B> {
    /// Loads `dataset`, whose samples [`Stack`] into batches.
    ///
    /// # Examples
    /// See [`IterableDataset`].
    pub fn new<D>(dataset: D) -> Self
    where
        D: IterableDataset,
        D::Sample: Stack<Batch = B>,
    {
        Self::with_collate(dataset, Stack::stack)
    }

    /// Loads `dataset` and makes each batch with `collate`, which gets the samples in order and at least one.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{IterableDataset, Result, Samples, StreamLoader};
    /// # struct Words;
    /// # impl IterableDataset for Words {
    /// #     type Sample = &'static str;
    /// #     fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<&'static str>> {
    /// #         Ok(Box::new(["to", "be", "or"].into_iter().map(Ok)))
    /// #     }
    /// # }
    /// let loader = StreamLoader::with_collate(Words, |words| Ok(words.join(" "))).batch_size(2);
    /// assert_eq!(loader.iter().collect::<Result<Vec<_>>>()?, ["to be", "or"]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn with_collate<D, C>(dataset: D, collate: C) -> Self
    where
        D: IterableDataset,
        C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
    {
        let start = StreamPlace::start_of(0);
        Self {
            shards: Arc::new(Collated { dataset, collate: Arc::new(collate) }),
            rules: Rules { batch_size: 1, drop_last: false, skips: false, pin: None },
            n_workers: 0,
            prefetch_factor: 2,
            prefetch_budget: None,
            timeout: None,
            init: None,
            rank: 0,
            world_size: 1,
            pin_budget: None,
            when_full: WhenFull::default(),
            slots: OnceLock::new(),
            holder: Holder::named("loader"),
            progress: Mutex::new(Progress { start, next: start, record: Record::default() }),
        }
    }

    /// How many samples make a batch. Zero is refused by the loop.
    ///
    /// # Examples
    /// See [`IterableDataset`].
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.rules.batch_size = batch_size;
        self.restarted()
    }

    /// Whether the last batch of a shard is left out if it is smaller than the others.
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
    /// assert_eq!(StreamLoader::new(Five).batch_size(2).drop_last(true).iter().count(), 2);
    /// ```
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.rules.drop_last = drop_last;
        self
    }

    /// How many threads read shards ahead of the program; 0, the default, lets the program read when it asks. Order and
    /// content of the batches are the same for any number. A shard is read by one thread, so more threads than shards are
    /// not started.
    ///
    /// # Examples
    /// See [`IterableDataset`].
    pub fn num_workers(mut self, num_workers: usize) -> Self {
        self.n_workers = num_workers;
        self
    }

    /// How many finished batches of each worker may wait for the program; 2 unless set. One more is in its hands.
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
    /// assert_eq!(StreamLoader::new(Five).num_workers(1).prefetch_factor(8).iter().count(), 5);
    /// ```
    pub fn prefetch_factor(mut self, prefetch_factor: usize) -> Self {
        self.prefetch_factor = prefetch_factor;
        self
    }

    /// What the batches that are ahead of the program may take together, however many there are; see
    /// [`DataLoader::prefetch_budget`](crate::DataLoader::prefetch_budget). A batch that is refused is read over.
    ///
    /// # Examples
    /// ```
    /// use pagelock_memory::{Budget, ByteSize};
    /// # use pagelock_data::{IterableDataset, Result, Samples, StreamLoader};
    /// # struct Five;
    /// # impl IterableDataset for Five {
    /// #     type Sample = i64;
    /// #     fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<i64>> {
    /// #         Ok(Box::new((0..5).map(Ok)))
    /// #     }
    /// # }
    /// let budget = Budget::new("loader", ByteSize::kib(1));
    /// let loader = StreamLoader::new(Five).num_workers(1).prefetch_factor(8).prefetch_budget(budget.clone());
    /// assert_eq!(loader.iter().filter(|batch| batch.is_ok()).count(), 5);
    /// assert!(budget.peak() <= ByteSize::kib(1));
    /// ```
    pub fn prefetch_budget(mut self, budget: Budget) -> Self {
        self.prefetch_budget = Some(budget);
        self
    }

    /// How long the program waits for a batch before it gets [`Error::Timeout`] instead. The worker goes on: what follows in
    /// the loop is the same batch, or the same error.
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
    /// use std::time::Duration;
    ///
    /// assert_eq!(StreamLoader::new(Five).num_workers(1).timeout(Duration::from_secs(60)).iter().count(), 5);
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// What each worker does before its first batch; it is given the worker's number. If it fails, the epoch is one
    /// [`Error::WorkerInit`].
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
    /// let loader = StreamLoader::new(Five).num_workers(1).worker_init(|worker| {
    ///     println!("worker {worker} starts");
    ///     Ok(())
    /// });
    /// assert_eq!(loader.iter().count(), 5);
    /// ```
    pub fn worker_init(mut self, init: impl Fn(usize) -> Result<()> + Send + Sync + 'static) -> Self {
        self.init = Some(Arc::new(init));
        self
    }

    /// Reads only the shards `rank`, `rank + world_size` and so on: the part of one of several processes.
    ///
    /// # Errors
    /// [`Error::Rank`] if there is no such process.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{IterableDataset, Result, Samples, StreamLoader};
    /// # struct Shards;
    /// # impl IterableDataset for Shards {
    /// #     type Sample = i64;
    /// #     fn n_shards(&self) -> usize { 5 }
    /// #     fn shard(&self, shard: usize, _epoch: u64) -> Result<Samples<i64>> {
    /// #         Ok(Box::new(std::iter::once(Ok(shard as i64))))
    /// #     }
    /// # }
    /// let loader = StreamLoader::new(Shards).distributed(1, 2)?; // shards 1 and 3
    /// let shards: Vec<_> = loader.iter().map(|batch| Ok(batch?.to_vec::<i64>()?[0])).collect::<Result<_>>()?;
    /// assert_eq!(shards, [1, 3]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn distributed(mut self, rank: usize, world_size: usize) -> Result<Self> {
        if rank >= world_size {
            return Err(Error::Rank { rank, world_size });
        }
        (self.rank, self.world_size) = (rank, world_size);
        Ok(self.restarted())
    }

    /// Whether samples that are errors are left out of their batches, instead of costing the batch; see
    /// [`DataLoader::skip_bad_samples`](crate::DataLoader::skip_bad_samples). After a panic nothing more comes of a shard.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{Error, IterableDataset, Result, Samples, StreamLoader};
    ///
    /// struct OneIsDamaged;
    ///
    /// impl IterableDataset for OneIsDamaged {
    ///     type Sample = i64;
    ///     fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<i64>> {
    ///         Ok(Box::new((0..4).map(|i| if i == 2 { Err(Error::other("line 2 is damaged")) } else { Ok(i) })))
    ///     }
    /// }
    ///
    /// let loader = StreamLoader::new(OneIsDamaged).batch_size(4).skip_bad_samples(true);
    /// assert_eq!(loader.iter().next().unwrap()?.to_vec::<i64>()?, [0, 1, 3]);
    /// let skipped = loader.skipped();
    /// assert_eq!(skipped[0].to_string(), "the calling thread left out sample 2 of shard 0 in epoch 0: line 2 is damaged");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn skip_bad_samples(mut self, skip: bool) -> Self {
        self.rules.skips = skip;
        self
    }

    /// Whether batches are made in page-locked memory; see [`DataLoader::pin_memory`](crate::DataLoader::pin_memory).
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
    /// let loader = StreamLoader::new(Five).batch_size(2).num_workers(1).pin_memory(true);
    /// assert!(loader.iter().all(|batch| batch.is_ok_and(|batch| batch.is_pinned())));
    /// ```
    pub fn pin_memory(mut self, pin_memory: bool) -> Self
    where
        B: PinMemory,
    {
        let move_there = |batch: B, slots: &_| match batch.is_pinned() {
            true => Ok(batch), // collated there
            false => batch.move_into(&Slots(Goal::PageLocked(slots))),
        };
        self.rules.pin = if pin_memory { Some(move_there) } else { None };
        self
    }

    /// How much page-locked memory the loader may take; see [`DataLoader::pin_budget`](crate::DataLoader::pin_budget).
    ///
    /// # Examples
    /// See [`DataLoader::pin_budget`](crate::DataLoader::pin_budget).
    pub fn pin_budget(mut self, budget: Budget) -> Self {
        (self.pin_budget, self.slots) = (Some(budget), OnceLock::new());
        self
    }

    /// What to do when there is no more page-locked memory. [`WhenFull::Wait`] waits for as long as the time-out, or a tenth
    /// of a second if there is none: finished batches are not made again.
    ///
    /// # Examples
    /// See [`DataLoader::when_full`](crate::DataLoader::when_full).
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Batches on `device`, ahead of the program; see [`DataLoader::to`](crate::DataLoader::to).
    ///
    /// # Errors
    /// None so far; what keeps a batch from the device comes in its place.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{IterableDataset, Result, Samples, StreamLoader};
    /// # use pagelock_tensor::Device;
    /// # struct Five;
    /// # impl IterableDataset for Five {
    /// #     type Sample = i64;
    /// #     fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<i64>> {
    /// #         Ok(Box::new((0..5).map(Ok)))
    /// #     }
    /// # }
    /// let device = Device::best();
    /// for batch in &StreamLoader::new(Five).batch_size(2).num_workers(1).to(&device)? {
    ///     assert_eq!(batch?.device(), device);
    /// }
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn to(self, device: &Device) -> Result<DeviceLoader<B, Self>>
    where
        B: PinMemory,
    {
        let loader = if device.is_cpu() || self.rules.pin.is_some() { self } else { self.pin_memory(true) };
        Ok(DeviceLoader::new(loader, device))
    }

    /// Which epoch the next loop will be, counted from 0.
    ///
    /// # Examples
    /// See [`resume`](Self::resume).
    pub fn epoch(&self) -> u64 {
        self.progress().start.epoch
    }

    /// Makes the next loop epoch number `epoch`, from its start.
    ///
    /// # Examples
    /// See [`resume`](Self::resume).
    pub fn set_epoch(&self, epoch: u64) {
        let mut progress = self.progress();
        progress.start = StreamPlace::start_of(epoch);
        progress.next = progress.start;
    }

    /// Where the loop that was started last is, to be kept in a checkpoint; see [`StreamState`]. That the last batch was the
    /// last is known only when another is asked for: from there, a loop goes on with nothing, and the next is the next epoch.
    ///
    /// # Examples
    /// See [`resume`](Self::resume).
    pub fn state(&self) -> StreamState {
        let StreamPlace { epoch, round, turn } = self.progress().next;
        let Rules { batch_size, drop_last, .. } = self.rules;
        let share = match self.world_size {
            1 => "all".to_owned(),
            n => format!("those of rank {} of {n}", self.rank),
        };
        let (n_shards, dataset) = (self.n_shards(), in_a_line(&self.shards.identity()));
        StreamState { epoch, round, turn, n_shards, batch_size, drop_last, share, dataset }
    }

    /// Makes the next loop go on where [`state`](Self::state) was taken, with the same batches, for any number of workers. It
    /// costs what [`IterableDataset::shard_from`] costs: reading again what came before, unless the dataset can jump.
    ///
    /// # Errors
    /// [`Error::OtherStreamState`] if the state is of another dataset, other shards or another batch size. Whether it is
    /// behind the end is known only when it is read: then the loop gives [`Error::BehindStream`].
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
    pub fn resume(&self, state: StreamState) -> Result<()> {
        let here = self.state();
        let of_here = StreamState { epoch: here.epoch, round: here.round, turn: here.turn, ..state.clone() };
        if of_here != here || state.turn >= here.n_shards.max(1) {
            return Err(Error::OtherStreamState { state: state.into(), here: here.into() });
        }
        let mut progress = self.progress();
        (progress.start, progress.next) = (state.place(), state.place());
        Ok(())
    }

    /// What this loader has done so far, and how long it took; of workers' waiting, that for memory.
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
    /// let loader = StreamLoader::new(Five).batch_size(2);
    /// loader.iter().for_each(drop);
    /// assert_eq!((loader.report().batches, loader.report().samples), (3, 5));
    /// ```
    pub fn report(&self) -> LoaderReport {
        LoaderReport { workers: self.n_workers.min(self.n_shards()), ..self.progress().record.report }
    }

    /// The samples that [`skip_bad_samples`](Self::skip_bad_samples) left out: the latest thousand. Their index is that in
    /// their shard, which the error names.
    ///
    /// # Examples
    /// See [`skip_bad_samples`](Self::skip_bad_samples).
    pub fn skipped(&self) -> Vec<Skipped> {
        self.progress().record.skipped.iter().cloned().collect()
    }

    /// Starts the next epoch; `for batch in &loader` does the same.
    ///
    /// # Examples
    /// See [`StreamLoader`].
    pub fn iter(&self) -> StreamBatches<'_, B> {
        let mut progress = self.progress();
        let place = progress.start;
        progress.start = StreamPlace::start_of(place.epoch.saturating_add(1));
        progress.next = place;
        drop(progress);
        StreamBatches::new(self, place)
    }

    /// The loader at the start of its epoch: where it was means something else with other sizes.
    fn restarted(self) -> Self {
        let mut progress = self.progress();
        progress.start = StreamPlace::start_of(progress.start.epoch);
        progress.next = progress.start;
        drop(progress);
        self
    }

    /// What keeps the loop from beginning.
    fn check(&self) -> Result<()> {
        check_workers(self.n_workers, self.prefetch_factor)?;
        match (self.rules.batch_size, self.n_shards()) {
            (0, _) => Err(Error::ZeroStreamBatch),
            (_, 0) => Err(Error::EmptyDataset),
            (_, n) => check_most("n_shards", n, MOST_SHARDS, "put more samples into each, or give shares to processes"),
        }
    }

    /// How many shards are read here.
    fn n_shards(&self) -> usize {
        self.shards.n_shards().saturating_sub(self.rank).div_ceil(self.world_size)
    }

    fn shard_at(&self, place: usize) -> usize {
        self.rank + place * self.world_size
    }

    fn slot_memory(&self) -> Option<SlotMemory> {
        self.rules.pin.map(|_| self.slots.get_or_init(|| slot_memory(self.pin_budget.as_ref())).clone())
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }
}

impl<B: Send + 'static> Feed<B> for StreamLoader<B> {
    type Batches<'a> = StreamBatches<'a, B>;
    type Place = StreamPlace;

    fn start(&self) -> StreamBatches<'_, B> {
        self.iter()
    }

    fn number(batches: &StreamBatches<'_, B>) -> usize {
        batches.n_given()
    }

    fn place(&self) -> StreamPlace {
        self.progress().next
    }

    fn set_place(&self, place: StreamPlace) {
        self.progress().next = place;
    }

    fn add_transfer(&self, time: Duration) {
        self.progress().record.report.transfer += time;
    }
}

impl<'a, B: Send + 'static> IntoIterator for &'a StreamLoader<B> {
    type Item = Result<B>;
    type IntoIter = StreamBatches<'a, B>;

    fn into_iter(self) -> StreamBatches<'a, B> {
        self.iter()
    }
}
