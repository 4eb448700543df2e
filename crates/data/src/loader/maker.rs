//! [`Recipe`]: how the batch at a position is made. [`Maker`]: makes batches on one thread, whatever their type. It
//! reuses its memory, times every part, and adds the sample and the worker to errors. A panic becomes an error.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagelock_memory::Holder;
use pagelock_tensor::{CountedHeap, Generator, with_seed};

use super::order::{Order, OrderKind, Position};
use super::pinned::PinnedAllocator;
use super::pool::Worker;
use super::report::{LoaderReport, Outcome, Skipped};
use super::settings::Settings;
use super::source::{AnyBatch, BatchSource, Step};
use crate::dataset::check_index;
use crate::panics::{drop_quietly, lock};
use crate::pin::{Slots, WithoutGaps};
use crate::sampler::make_space;
use crate::{Error, Result};

/// How batches are made: all settings of a loader.
#[derive(Clone)]
pub(super) struct Recipe {
    pub(super) source: Arc<dyn BatchSource>,
    pub(super) steps: Vec<Arc<Step>>,
    /// How many of the steps, and the collation before them, make tensors in page-locked memory; 0 if none does.
    pub(super) n_pinned_steps: usize,
    pub(super) order: Order,
    pub(super) settings: Settings,
    pub(super) holder: Holder,
}

/// The readers of an epoch's shards, by turn. Each is locked by the one thread that makes the shard's batches. A dataset
/// with indices has none.
pub(super) type Readers = Vec<Mutex<ShardReader>>;

impl Recipe {
    pub(super) fn readers(&self, start: Position, n_turns: usize) -> Readers {
        let Some(share) = self.order.share() else { return Vec::new() };
        let reader = |turn| {
            // Shards before `start.turn` had their turn in this round: their next batch is that of the next round.
            let round = start.round.saturating_add(u64::from(turn < start.turn));
            let next = self.order.first_sample(Position { round, ..start });
            Mutex::new(ShardReader { shard: share.shard_at(turn), next, state: ReaderState::Closed })
        };
        (0..n_turns).map(reader).collect()
    }

    /// Makes the batch at `position` in `to`; false if its shard has no more. A `refusal` becomes the error of the
    /// batch. Errors name the samples and the worker. A panic becomes such an error.
    pub(super) fn make(
        &self,
        readers: &Readers,
        position: Position,
        refusal: Option<Error>,
        maker: &mut Maker,
        to: &mut AnyBatch,
    ) -> Result<bool> {
        let mut reader = readers.get(position.turn).map(lock);
        let (epoch, order, shard) = (position.epoch, &self.order, reader.as_deref_mut());
        let request = Request { epoch, order, indices: Vec::new(), shard, refusal };
        maker.run(request, |maker, request| {
            let _charged = self.holder.enter();
            if let OrderKind::Sampler(sampler) = &order.kind {
                let n_samples = self.source.len();
                let batches = order.batches(sampler);
                make_space(&mut request.indices, batches.largest(n_samples), &mut maker.counted)?;
                batches.fill(epoch, position.round as usize, n_samples, &mut request.indices);
                maker.progress.begin(request.indices.first().copied());
                request.refusal.take().map_or(Ok(()), Err)?;
                request.indices.iter().try_for_each(|&index| check_index(index, n_samples))?;
            }
            (maker.position, maker.is_pinning) = (position, self.n_pinned_steps > 0);
            // What is drawn from the default generator does not depend on which worker makes which batch when.
            with_seed(maker.generator(position.seed.unwrap_or_default()).next_u64(), || {
                if !self.source.make(request, maker, to)? {
                    return Ok(false);
                }
                for (number, step) in self.steps.iter().enumerate() {
                    maker.is_pinning = number < self.n_pinned_steps;
                    step(to, maker)?;
                }
                Ok(true)
            })
        })
    }
}

/// Which sample a thread is fetching, for the error of a time-out.
#[derive(Default)]
pub(super) struct SampleProgress {
    // Both are an index plus one, 0 for none. Relaxed: they guard nothing.
    first: AtomicUsize,
    sample: AtomicUsize,
}

impl SampleProgress {
    /// Notes the first sample of the batch that is being made; `None` if no batch is.
    pub(super) fn begin(&self, first: Option<usize>) {
        self.first.store(first.map_or(0, |index| index.saturating_add(1)), Relaxed);
        self.fetch(None);
    }

    /// Notes the sample that is being fetched; `None` if no sample is.
    fn fetch(&self, sample: Option<usize>) {
        self.sample.store(sample.map_or(0, |index| index.saturating_add(1)), Relaxed);
    }

    pub(super) fn first(&self) -> Option<usize> {
        self.first.load(Relaxed).checked_sub(1)
    }

    pub(super) fn sample(&self) -> Option<usize> {
        self.sample.load(Relaxed).checked_sub(1)
    }
}

pub(super) struct Request<'a> {
    pub(super) epoch: u64,
    pub(super) order: &'a Order,
    /// The samples: given by the sampler, or noted here as they are read from the shard.
    pub(super) indices: Vec<usize>,
    /// The shard to read; `None` for a dataset with indices.
    pub(super) shard: Option<&'a mut ShardReader>,
    /// Why the batch is not to be made. A shard is read past the samples of the batch all the same.
    pub(super) refusal: Option<Error>,
}

pub(super) struct ShardReader {
    shard: usize,
    next: u64, // sample
    state: ReaderState,
}

enum ReaderState {
    Closed,
    /// A [`Samples`](crate::Samples) of the type that the source knows.
    Open(Box<dyn Any + Send>),
    /// Nothing more comes: it ended, or panicked.
    Over,
}

/// Opens a shard, for an epoch, from a sample on.
type Open<'a> = dyn FnMut(usize, u64, u64) -> Result<Box<dyn Any + Send>> + 'a;

impl ShardReader {
    fn end(&mut self) {
        drop_quietly(mem::replace(&mut self.state, ReaderState::Over));
    }
}

impl Drop for ShardReader {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Default)]
pub(super) struct Maker {
    worker: Option<usize>, // none: the calling thread
    progress: Arc<SampleProgress>,
    pinned: Option<Arc<PinnedAllocator>>,
    /// Whether failing samples are left out of their batches.
    skips: bool,
    indices: Vec<usize>,          // allocated once
    counted: Option<CountedHeap>, // for `indices`
    // Of the batch that is being made:
    position: Position,
    shard: Option<usize>,
    is_pinning: bool, // its tensors are made in page-locked memory
    report: LoaderReport,
    skipped: Vec<Skipped>,
    gather_error: Option<Error>, // why not all samples could be fetched at once
}

impl Maker {
    pub(super) fn new(worker: Option<&Worker>, pinned: Option<Arc<PinnedAllocator>>, skips: bool) -> Self {
        let (worker, progress) = worker.map_or((None, Arc::default()), |it| (Some(it.number), it.progress.clone()));
        Self { worker, progress, pinned, skips, ..Self::default() }
    }

    /// Runs `make` for a request, whose samples it may fill in; false if the shard has no more.
    fn run(
        &mut self,
        mut request: Request<'_>,
        make: impl FnOnce(&mut Self, &mut Request<'_>) -> Result<bool>,
    ) -> Result<bool> {
        self.progress.begin(None);
        self.report = LoaderReport::default();
        self.skipped.clear();
        self.gather_error = None;
        self.shard = request.shard.as_ref().map(|reader| reader.shard);
        request.indices = mem::take(&mut self.indices);
        request.indices.clear();
        let result = catch_unwind(AssertUnwindSafe(|| make(self, &mut request)));
        let result = match result {
            Ok(result) => result.map_err(|error| self.locate(error, &request.indices)),
            Err(panic) => Err(self.panicked(panic, &mut request)),
        };
        self.report.samples = request.indices.len().saturating_sub(self.skipped.len()) as u64;
        self.indices = request.indices;
        result
    }

    /// The result, the report and the skipped samples of the batch that was made last.
    pub(super) fn outcome(&mut self, result: Result<bool>) -> Outcome {
        Outcome { result, report: self.report, skipped: mem::take(&mut self.skipped) }
    }

    fn locate(&self, error: Error, indices: &[usize]) -> Error {
        let was_fetched = |index: &usize| self.skipped.iter().all(|skipped| skipped.index != *index);
        // A user's function may have stacked more elements than the batch has samples.
        let sample = |position| indices.iter().copied().filter(was_fetched).nth(position).unwrap_or(position);
        match error {
            error @ (Error::Sample { .. } | Error::Shard { .. } | Error::AllSkipped { .. }) => error,
            error => error.locate(sample).of_batch(indices, self.shard, self.worker),
        }
    }

    /// The error for a panic, which names the sample or the batch. The batch's shard ends.
    fn panicked(&mut self, panic: Box<dyn Any + Send>, request: &mut Request<'_>) -> Error {
        match &mut request.shard {
            Some(reader) => reader.end(),
            None if self.progress.first().is_none() => request.indices.clear(), // the sampler panicked
            None => {}
        }
        self.pinned.as_ref().map(|pinned| pinned.finish());
        let sample = self.progress.sample();
        let error = Error::panicked(self.worker, sample, self.shard, panic);
        if sample.is_some() { error } else { error.of_batch(&request.indices, self.shard, self.worker) }
    }

    /// Makes a whole batch at once, if the dataset can. If that fails, the samples are fetched one by one to find the
    /// bad one.
    pub(super) fn gather(&mut self, gather: &mut dyn FnMut() -> Result<bool>) -> Result<bool> {
        match self.time(|report| &mut report.fetch, gather) {
            Err(error) if !error.is_out_of_memory() => {
                self.gather_error = Some(error);
                Ok(false)
            }
            gathered => gathered,
        }
    }

    /// Fetches the samples of a request one by one. There is at least one.
    pub(super) fn fetch(
        &mut self,
        request: &Request<'_>,
        fetch: &mut dyn FnMut(usize, u64) -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        for &index in &request.indices {
            self.progress.fetch(Some(index));
            if !self.skips {
                fetch(index, request.epoch).map_err(|error| self.sample_error(index, error))?;
                continue;
            }
            let fetched = Error::catch(self.worker, Some(index), None, || fetch(index, request.epoch));
            fetched.unwrap_or_else(|error| self.skip(request.epoch, index, &error));
        }
        self.progress.fetch(None);
        self.report.fetch += start.elapsed();
        self.check_not_all_skipped(request.indices.len())
    }

    /// Reads the samples of one batch from the shard of a request, or fewer at its end; false if they are no batch.
    /// An error does not change where the next batch starts.
    pub(super) fn read(
        &mut self,
        request: &mut Request<'_>,
        open: &mut Open<'_>,
        read: &mut dyn FnMut(&mut dyn Any, bool) -> Option<Result<()>>,
    ) -> Result<bool> {
        let start = Instant::now();
        let Request { epoch, order: Order { batch_size: n_max, drop_last, .. }, indices, shard, refusal } = request;
        let Some(reader) = shard else { unreachable!("a dataset of shards is read by shard") };
        self.open(reader, *epoch, open)?;
        let ShardReader { next, state: ReaderState::Open(samples), .. } = &mut **reader else { return Ok(false) };
        let mut failure = refusal.take();
        let (is_wanted, mut n_read) = (failure.is_none(), 0);
        self.progress.begin(Some(*next as usize));
        while n_read < *n_max {
            let index = *next as usize;
            self.progress.fetch(Some(index));
            let Some(sample) = read(&mut **samples, failure.is_none()) else { break };
            if indices.len() == n_read {
                match make_space(indices, n_read + 1, &mut self.counted) {
                    Ok(()) => indices.push(index),
                    Err(error) => failure = failure.or(Some(error)), // and no further index is listed
                }
            }
            (*next, n_read) = (next.saturating_add(1), n_read + 1);
            match sample {
                Err(error) if is_wanted && self.skips => self.skip(*epoch, index, &error),
                Err(error) if failure.is_none() => failure = Some(self.sample_error(index, error)),
                _ => {}
            }
        }
        self.progress.fetch(None);
        self.report.fetch += start.elapsed();
        if n_read < *n_max {
            reader.end(); // an iterator may go on after its end
        }
        let is_left_out = n_read == 0 || (*drop_last && n_read < *n_max);
        match failure {
            Some(error) if is_wanted || !is_left_out => return Err(error),
            None if !indices.is_empty() => self.check_not_all_skipped(indices.len())?,
            _ => {}
        }
        Ok(!is_left_out)
    }

    fn open(&mut self, reader: &mut ShardReader, epoch: u64, open: &mut Open<'_>) -> Result<()> {
        if !matches!(reader.state, ReaderState::Closed) {
            return Ok(());
        }
        let (shard, worker) = (reader.shard, self.worker);
        let opened = Error::catch(worker, None, Some(shard), || open(shard, epoch, reader.next));
        reader.state = ReaderState::Over;
        reader.state =
            ReaderState::Open(opened.map_err(|error| Error::Shard { shard, worker, source: error.into() })?);
        Ok(())
    }

    fn sample_error(&self, index: usize, error: Error) -> Error {
        Error::Sample { index, shard: self.shard, worker: self.worker, source: error.into() }
    }

    fn skip(&mut self, epoch: u64, index: usize, error: &Error) {
        let (shard, worker, error) = (self.shard, self.worker, error.to_string());
        self.skipped.push(Skipped { epoch, index, shard, worker, error });
    }

    fn check_not_all_skipped(&self, n_samples: usize) -> Result<()> {
        let Some(last) = self.skipped.last().filter(|_| self.skipped.len() == n_samples) else { return Ok(()) };
        let Skipped { index, shard, worker, .. } = *last;
        Err(Error::AllSkipped { n_samples, index, shard, worker, error: last.error.clone() })
    }

    pub(super) fn collate(&mut self, collate: &mut dyn FnMut() -> Result<()>) -> Result<bool> {
        match self.gather_error.take().filter(|_| !self.skips) {
            Some(error) => Err(error),
            None => self.time(|report| &mut report.collate, collate).map(|()| true),
        }
    }

    /// Copies the tensors of a batch that are elsewhere into page-locked memory. If that has run out during this batch,
    /// the tensors get the strides that they would have there.
    pub(super) fn pin(&mut self, copy: &mut dyn FnMut(&Slots<'_>) -> Result<()>) -> Result<()> {
        match self.pinned.clone().filter(|_| self.report.pageable == 0) {
            Some(pinned) => self.time(|report| &mut report.pin, || copy(&Slots::new(&pinned))),
            None => copy(&Slots::new(&WithoutGaps)),
        }
    }

    pub(super) fn map(&mut self, f: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.time(|report| &mut report.map, f)
    }

    /// Random numbers for the batch that is being made: a function of the seed, the epoch and the batch's position in
    /// it.
    pub(super) fn generator(&self, seed: u64) -> Generator {
        let Position { epoch, round, turn, .. } = self.position;
        let of_epoch = Generator::new(seed).stream(epoch).next_u64();
        Generator::new(Generator::new(of_epoch).stream(turn as u64).next_u64()).stream(round)
    }

    /// Runs and times `work`, with new tensors in page-locked memory if the batch is to be page-locked. Generic
    /// callers must not use it, because every program would compile it.
    fn time<R>(&mut self, part: impl FnOnce(&mut LoaderReport) -> &mut Duration, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let pinned = self.pinned.as_ref().filter(|_| self.is_pinning);
        let scope = pinned.map(|pinned| pinned.enter());
        let done = work();
        drop(scope);
        let (waited, pageable) = pinned.map(|pinned| pinned.finish()).unwrap_or_default();
        *part(&mut self.report) += start.elapsed().saturating_sub(waited);
        self.report.wait_for_budget += waited;
        self.report.pageable |= u64::from(pageable);
        done
    }
}
