//! [`Source`]: where a loader's batches come from, a dataset and a way to collate, without their types; [`Recipe`]: that
//! and an order; [`Parcel`]: a batch without its type, so that all else is compiled once for all types of batches.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pagelock_memory::Holder;

use super::slots::{Goal, PinnedSlots, Slots};
use crate::collate::Stack;
use crate::dataset::{Dataset, check_index};
use crate::phrases::{sample_of, who};
use crate::pin::PinMemory;
use crate::sampler::{BatchSampler, Sampler};
use crate::{Error, Result};

/// Room for a batch of a type that only its maker and the program know. It is used again and again.
pub(super) struct Parcel(Mutex<Box<dyn Any + Send>>); // an `Option<B>`, never locked: so several threads may see a parcel

impl Parcel {
    pub(super) fn empty<B: Send + 'static>() -> Self {
        Self(Mutex::new(Box::new(None::<B>)))
    }

    pub(super) fn put<B: Send + 'static>(&mut self, batch: B) {
        *self.room() = Some(batch);
    }

    /// The batch that was put in.
    pub(super) fn take<B: Send + 'static>(&mut self) -> B {
        let Some(batch) = self.room().take() else { unreachable!("a batch is taken where one was put") };
        batch
    }

    /// Whether the batch that was put in is so.
    fn holds<B: Send + 'static>(&mut self, is_so: fn(&B) -> bool) -> bool {
        self.room().as_ref().is_some_and(is_so)
    }

    fn room<B: Send + 'static>(&mut self) -> &mut Option<B> {
        let Some(room) = self.any().downcast_mut() else { unreachable!("a source makes batches of one type") };
        room
    }

    fn any(&mut self) -> &mut (dyn Any + Send) {
        &mut **self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the head of the file.
pub(super) trait Source: Send + Sync + 'static {
    fn n_samples(&self) -> usize;

    /// What the dataset is.
    fn identity(&self) -> String;

    /// Room for a batch.
    fn parcel(&self) -> Parcel;

    /// Puts the batch of these samples, of which there is at least one, as they are in that epoch, into `to`.
    fn batch(&self, epoch: u64, indices: &[usize], watch: &mut Watch<'_>, to: &mut Parcel) -> Result<()>;
}

/// How a batch is made.
#[derive(Clone)]
pub(super) struct Recipe {
    pub(super) source: Arc<dyn Source>,
    pub(super) batches: BatchSampler<Arc<dyn Sampler>>,
    pub(super) holder: Holder,
}

impl Recipe {
    /// Puts batch number `batch` of `epoch` into `to`, or gives the refusal in its place; `indices` is only room that is used again
    /// and again. Errors name the samples, and who was to make the batch; so do panics, which are errors too.
    pub(super) fn make(
        &self,
        place: (u64, usize),
        indices: &mut Vec<usize>,
        watch: &mut Watch<'_>,
        refusal: Option<Error>,
        to: &mut Parcel,
    ) -> Result<()> {
        indices.clear();
        let made = catch_unwind(AssertUnwindSafe(|| self.make_or_panic(place, indices, watch, refusal, to)));
        made.unwrap_or_else(|panic| {
            if watch.at.first().is_none() {
                indices.clear(); // their order was not known yet
            }
            watch.slots.map(PinnedSlots::finish);
            Err(watch.at.panicked(watch.maker.worker, indices, panic))
        })
    }

    fn make_or_panic(
        &self,
        (epoch, batch): (u64, usize),
        indices: &mut Vec<usize>,
        watch: &mut Watch<'_>,
        refusal: Option<Error>,
        to: &mut Parcel,
    ) -> Result<()> {
        let n_samples = self.source.n_samples();
        self.batches.fill(epoch, batch, n_samples, indices);
        watch.at.begin(indices.first().copied());
        let _charged = self.holder.enter();
        let exist = || indices.iter().try_for_each(|&index| check_index(index, n_samples));
        let made = refusal.map_or_else(exist, Err).and_then(|()| self.source.batch(epoch, indices, watch, to));
        made.map_err(|error| match error {
            error @ (Error::Sample { .. } | Error::AllSkipped { .. }) => error,
            error => error.locate(&watch.kept(indices)).of_batch(indices, None, watch.maker.worker),
        })
    }
}

/// Sees where the making of a batch is, and how long each part took.
pub(super) struct Watch<'a> {
    at: &'a At,
    slots: Option<&'a PinnedSlots>,
    /// Batches are being made in slots.
    pinning: bool,
    maker: Maker,
    pub(super) times: Times,
    pub(super) skipped: Vec<Skipped>,
}

/// Who makes batches, and how.
#[derive(Clone, Copy)]
pub(super) struct Maker {
    /// None: the calling thread.
    pub(super) worker: Option<usize>,
    /// Samples that fail are left out of their batches.
    pub(super) skips: bool,
}

/// A sample that could not be had, and was left out of its batch; see [`DataLoader::skipped`](super::DataLoader::skipped).
///
/// # Examples
/// See [`DataLoader::skip_bad_samples`](super::DataLoader::skip_bad_samples).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// In which epoch.
    pub epoch: u64,
    /// Its index in the dataset, or in its shard.
    pub index: usize,
    /// Its shard, if it comes from a stream.
    pub shard: Option<usize>,
    /// The worker that was to get it, counted from 0; none if that was the calling thread.
    pub worker: Option<usize>,
    /// What the dataset ran into.
    pub error: String,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, index, shard, worker, error } = self;
        write!(f, "{} left out {} in epoch {epoch}: {error}", who(*worker), sample_of(*index, *shard))
    }
}

/// Where the making of a batch is, for whoever has to say where a worker is stuck.
#[derive(Default)]
pub(super) struct At {
    // Both are an index plus one, 0 for none. Relaxed: they guard nothing.
    first: AtomicUsize,
    sample: AtomicUsize,
}

/// How long the parts of a batch took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) fetch: Duration,
    pub(super) collate: Duration,
    pub(super) map: Duration,
    pub(super) pin: Duration,
    pub(super) wait_for_memory: Duration,
    /// A part of the batch is in ordinary memory, for want of a slot.
    pub(super) pageable: bool,
}

impl At {
    /// At a batch that starts with this sample, or at none.
    pub(super) fn begin(&self, first: Option<usize>) {
        self.first.store(first.map_or(0, |index| index.saturating_add(1)), Ordering::Relaxed);
        self.get(None);
    }

    /// Getting this sample, or none.
    pub(super) fn get(&self, sample: Option<usize>) {
        self.sample.store(sample.map_or(0, |index| index.saturating_add(1)), Ordering::Relaxed);
    }

    /// The first sample of the batch that is being made.
    pub(super) fn first(&self) -> Option<usize> {
        self.first.load(Ordering::Relaxed).checked_sub(1)
    }

    /// What a panic said, and where it was: at a sample, or at a batch of these.
    fn panicked(&self, worker: Option<usize>, indices: &[usize], panic: Box<dyn Any + Send>) -> Error {
        let sample = self.sample();
        let error = Error::panicked(worker, sample, None, panic);
        if sample.is_some() { error } else { error.of_batch(indices, None, worker) }
    }

    /// The sample that is being fetched.
    pub(super) fn sample(&self) -> Option<usize> {
        self.sample.load(Ordering::Relaxed).checked_sub(1)
    }
}

impl<'a> Watch<'a> {
    pub(super) fn new(at: &'a At, slots: Option<&'a PinnedSlots>, maker: Maker) -> Self {
        at.begin(None);
        Self { at, slots, pinning: false, maker, times: Times::default(), skipped: Vec::new() }
    }

    /// Makes a batch of these samples, of which there is at least one.
    fn make(&mut self, epoch: u64, indices: &[usize], steps: &mut dyn Steps) -> Result<()> {
        let refusal = match self.placed(|times| &mut times.fetch, || steps.gather(indices)) {
            Ok(true) => return Ok(()),
            Ok(false) => None,
            Err(error) if error.is_out_of_memory() => return Err(error),
            Err(error) => Some(error), // sample by sample shows which one it is
        };
        self.get_all(epoch, indices, steps)?;
        match refusal.filter(|_| !self.maker.skips) {
            Some(error) => Err(error),
            None => self.placed(|times| &mut times.collate, || steps.collate()),
        }
    }

    /// Sample by sample; an error names the one that failed. With those left out that fail, at least one.
    fn get_all(&mut self, epoch: u64, indices: &[usize], steps: &mut dyn Steps) -> Result<()> {
        let start = Instant::now();
        steps.expect(indices.len().min(MOST_AT_ONCE));
        let mut n_kept = 0;
        for &index in indices {
            n_kept += usize::from(self.get(epoch, index, steps)?);
        }
        self.at.get(None);
        self.times.fetch += start.elapsed();
        match (n_kept, self.skipped.last()) {
            (0, Some(last)) => {
                let Skipped { index, shard, worker, .. } = *last;
                Err(Error::AllSkipped { n_samples: indices.len(), index, shard, worker, error: last.error.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Gets one sample; false if it failed and is to be left out.
    fn get(&mut self, epoch: u64, index: usize, steps: &mut dyn Steps) -> Result<bool> {
        self.at.get(Some(index));
        let Maker { worker, skips } = self.maker;
        if !skips {
            let got = steps.get(index);
            return got.map(|()| true).map_err(|error| Error::Sample {
                index,
                shard: None,
                worker,
                source: error.into(),
            });
        }
        let got = catch_unwind(AssertUnwindSafe(|| steps.get(index)));
        let got = got.unwrap_or_else(|panic| Err(Error::panicked(worker, Some(index), None, panic)));
        Ok(got
            .map_err(|error| {
                self.skipped.push(Skipped { epoch, index, shard: None, worker, error: error.to_string() });
            })
            .is_ok())
    }

    /// The samples of a batch without those that were left out.
    fn kept(&self, indices: &[usize]) -> Vec<usize> {
        let is_kept = |index: &usize| self.skipped.iter().all(|skipped| skipped.index != *index);
        indices.iter().copied().filter(is_kept).collect()
    }

    /// Copies what a batch has elsewhere into slots: nothing, if it was collated there, and nothing more, if there was
    /// none left.
    fn pin(&mut self, is_pinned: bool, copy: &mut dyn FnMut(&Slots<'_>) -> Result<()>) -> Result<()> {
        match self.slots.filter(|_| !self.times.pageable && !is_pinned) {
            Some(slots) => self.placed(|times| &mut times.pin, || copy(&Slots(Goal::PageLocked(slots)))),
            None => Ok(()),
        }
    }

    /// Puts a batch through a function.
    fn map(&mut self, f: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.placed(|times| &mut times.map, f)
    }

    /// Times what makes batches: in slots, if they are wanted there. Not for callers that are generic, which would compile it
    /// in every program.
    fn placed<R>(&mut self, part: impl FnOnce(&mut Times) -> &mut Duration, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let Some(slots) = self.slots.filter(|_| self.pinning) else {
            let done = work();
            *part(&mut self.times) += start.elapsed();
            return done;
        };
        let scope = slots.enter();
        let done = work();
        drop(scope);
        let (waited, fell_back) = slots.finish();
        *part(&mut self.times) += start.elapsed().saturating_sub(waited);
        self.times.wait_for_memory += waited;
        self.times.pageable |= fell_back;
        done
    }
}

/// What only the types of a dataset and its batches can do; [`Watch::make`] is the rest, compiled once.
trait Steps {
    /// Makes the batch at once, if the dataset can.
    fn gather(&mut self, _indices: &[usize]) -> Result<bool> {
        Ok(false)
    }

    /// Makes room for the samples of a batch, before the first.
    fn expect(&mut self, n_samples: usize);

    /// Gets one more sample.
    fn get(&mut self, index: usize) -> Result<()>;

    /// Makes the batch of those samples.
    fn collate(&mut self) -> Result<()>;
}

/// Samples that know how to stack; or the dataset's own shortcut.
pub(super) struct Stacked<D>(pub(super) D);

impl<D: Dataset<Sample: Stack<Batch: Send + 'static>>> Source for Stacked<D> {
    fn n_samples(&self) -> usize {
        self.0.len()
    }

    fn identity(&self) -> String {
        self.0.identity()
    }

    fn parcel(&self) -> Parcel {
        Parcel::empty::<<D::Sample as Stack>::Batch>()
    }

    fn batch(&self, epoch: u64, indices: &[usize], watch: &mut Watch<'_>, to: &mut Parcel) -> Result<()> {
        watch.make(epoch, indices, &mut Stacking { dataset: &self.0, epoch, samples: Vec::new(), to })
    }
}

/// One batch of [`Stacked`].
struct Stacking<'a, D: Dataset> {
    dataset: &'a D,
    epoch: u64,
    samples: Vec<D::Sample>,
    to: &'a mut Parcel,
}

impl<D: Dataset<Sample: Stack<Batch: Send + 'static>>> Steps for Stacking<'_, D> {
    fn gather(&mut self, indices: &[usize]) -> Result<bool> {
        let Some(batch) = self.dataset.gather(indices)? else { return Ok(false) };
        self.to.put(batch);
        Ok(true)
    }

    fn expect(&mut self, n_samples: usize) {
        self.samples = Vec::with_capacity(n_samples);
    }

    fn get(&mut self, index: usize) -> Result<()> {
        self.samples.push(self.dataset.get_in(index, self.epoch)?);
        Ok(())
    }

    fn collate(&mut self) -> Result<()> {
        self.to.put(Stack::stack(mem::take(&mut self.samples))?);
        Ok(())
    }
}

/// Samples and a function.
pub(super) struct Collated<B, D, C> {
    pub(super) dataset: D,
    pub(super) collate: C,
    pub(super) batches: PhantomData<fn() -> B>,
}

impl<B, D, C> Source for Collated<B, D, C>
where
    B: Send + 'static,
    D: Dataset,
    C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
{
    fn n_samples(&self) -> usize {
        self.dataset.len()
    }

    fn identity(&self) -> String {
        self.dataset.identity()
    }

    fn parcel(&self) -> Parcel {
        Parcel::empty::<B>()
    }

    fn batch(&self, epoch: u64, indices: &[usize], watch: &mut Watch<'_>, to: &mut Parcel) -> Result<()> {
        watch.make(epoch, indices, &mut Collating { source: self, epoch, samples: Vec::new(), to })
    }
}

/// One batch of [`Collated`].
struct Collating<'a, B, D: Dataset, C> {
    source: &'a Collated<B, D, C>,
    epoch: u64,
    samples: Vec<D::Sample>,
    to: &'a mut Parcel,
}

impl<B: Send + 'static, D: Dataset, C: Fn(Vec<D::Sample>) -> Result<B>> Steps for Collating<'_, B, D, C> {
    fn expect(&mut self, n_samples: usize) {
        self.samples = Vec::with_capacity(n_samples);
    }

    fn get(&mut self, index: usize) -> Result<()> {
        self.samples.push(self.source.dataset.get_in(index, self.epoch)?);
        Ok(())
    }

    fn collate(&mut self) -> Result<()> {
        self.to.put((self.source.collate)(mem::take(&mut self.samples))?);
        Ok(())
    }
}

/// Another source's batches, put through a function.
pub(super) struct Mapped<A, B, F> {
    pub(super) source: Arc<dyn Source>,
    pub(super) f: F,
    pub(super) batches: PhantomData<fn(A) -> B>,
}

impl<A: Send + 'static, B: Send + 'static, F> Source for Mapped<A, B, F>
where
    F: Fn(A) -> Result<B> + Send + Sync + 'static,
{
    fn n_samples(&self) -> usize {
        self.source.n_samples()
    }

    fn identity(&self) -> String {
        self.source.identity()
    }

    fn parcel(&self) -> Parcel {
        Parcel::empty::<B>()
    }

    fn batch(&self, epoch: u64, indices: &[usize], watch: &mut Watch<'_>, to: &mut Parcel) -> Result<()> {
        let mut inner = self.source.parcel();
        self.source.batch(epoch, indices, watch, &mut inner)?;
        watch.map(&mut || {
            to.put((self.f)(inner.take::<A>())?);
            Ok(())
        })
    }
}

/// Another source's batches, made in page-locked memory.
pub(super) struct Pinned<B> {
    pub(super) source: Arc<dyn Source>,
    pub(super) batches: PhantomData<fn() -> B>,
}

impl<B: PinMemory + Send + 'static> Source for Pinned<B> {
    fn n_samples(&self) -> usize {
        self.source.n_samples()
    }

    fn identity(&self) -> String {
        self.source.identity()
    }

    fn parcel(&self) -> Parcel {
        self.source.parcel()
    }

    fn batch(&self, epoch: u64, indices: &[usize], watch: &mut Watch<'_>, to: &mut Parcel) -> Result<()> {
        let outer = mem::replace(&mut watch.pinning, true);
        let made = self.source.batch(epoch, indices, watch, to);
        let pinned = made.and_then(|()| {
            let is_pinned = to.holds(B::is_pinned);
            watch.pin(is_pinned, &mut |slots| {
                let pinned = to.take::<B>().move_into(slots)?;
                to.put(pinned);
                Ok(())
            })
        });
        watch.pinning = outer;
        pinned
    }
}

/// Room for more samples than this is made when they are there: a batch may be as long as an order says.
const MOST_AT_ONCE: usize = 1 << 16;
