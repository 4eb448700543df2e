//! [`Desk`]: makes the batches of some shards, in turn, whoever works at it: the program or a worker.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use pagelock_memory::{Holder, taken_by_thread};

use super::turns::{Share, Turns};
use crate::iterable::{IterableDataset, Samples};
use crate::loader::slots::PinnedSlots;
use crate::loader::source::{At, Skipped, Times};
use crate::{Error, Result};

/// Shards and a way to collate, without their types.
pub(super) trait Shards<B>: Send + Sync + 'static {
    fn n_shards(&self) -> usize;

    /// What the dataset is.
    fn identity(&self) -> String;

    /// Whether a shard of that epoch has that sample, or something goes wrong with it.
    fn has_sample(&self, shard: usize, epoch: u64, sample: u64) -> bool;

    /// How many samples a shard of that epoch has before one that it does not have.
    fn n_samples(&self, shard: usize, epoch: u64, before: u64) -> u64;

    /// A shard of that epoch from a sample on.
    fn open(&self, shard: usize, epoch: u64, start: u64) -> Result<Box<dyn Reader<B>>>;
}

/// What batches are to be like.
pub(super) struct Rules<B> {
    pub(super) batch_size: usize,
    pub(super) drop_last: bool,
    pub(super) skips: bool,
    pub(super) pin: Option<Pin<B>>,
}

/// Copies what is not page-locked yet into slots.
pub(super) type Pin<B> = fn(B, &PinnedSlots) -> Result<B>;

impl<B> Clone for Rules<B> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

/// Reads one shard.
pub(super) trait Reader<B>: Send {
    /// The next batch; none if there is no more.
    fn next(&mut self, means: &Means<'_, B>) -> Option<Made<B>>;

    /// Reads over the next batch, sample by sample; none if there is no more.
    fn pass(&mut self, means: &Means<'_, B>, why: Error) -> Option<Made<B>>;

    /// Which samples the batch has so far that is being made.
    fn kept(&self) -> &[usize];
}

/// What batches are made with.
pub(super) struct Means<'a, B> {
    rules: &'a Rules<B>,
    slots: Option<&'a PinnedSlots>,
    at: &'a At,
    worker: Option<usize>,
}

/// A batch and what it was like to make.
pub(super) struct Made<B> {
    pub(super) batch: Result<B>,
    pub(super) n_samples: usize, // those that failed among them
    pub(super) times: Times,
    pub(super) skipped: Vec<Skipped>,
    pub(super) share: Option<Share>, // until the program takes the batch
}

/// What comes of asking the shard at one place in the order of shards.
pub(super) struct Item<B> {
    pub(super) place: usize,
    pub(super) made: Option<Made<B>>, // none: the shard has no more
}

/// See the head of the file.
pub(super) struct Desk<B> {
    pub(super) shards: Arc<dyn Shards<B>>,
    pub(super) rules: Rules<B>,
    pub(super) epoch: u64,
    pub(super) parts: Vec<Part<B>>, // in the order of their places
    /// Which of them is next.
    pub(super) at: usize,
    pub(super) worker: Option<usize>,
    pub(super) here: Arc<At>,
    pub(super) turns: Option<Arc<Turns>>, // of a worker
    pub(super) holder: Holder,
}

/// A shard, and how far it is.
pub(super) struct Part<B> {
    place: usize,
    shard: usize,
    state: State<B>,
}

enum State<B> {
    /// Not opened yet; from that sample on.
    Closed(u64),
    Open(Box<dyn Reader<B>>),
    /// It broke; nobody was told yet that nothing more comes.
    Broken,
    Over,
}

impl<B> Part<B> {
    pub(super) fn new(place: usize, shard: usize, start: u64) -> Self {
        Self { place, shard, state: State::Closed(start) }
    }

    pub(super) fn place(&self) -> usize {
        self.place
    }
}

impl<B: 'static> Desk<B> {
    /// Asks the next shard; none if all are over.
    pub(super) fn next(&mut self, slots: Option<&PinnedSlots>) -> Option<Item<B>> {
        let n_parts = self.parts.len();
        let in_turn = (0..n_parts).map(|i| (self.at + i) % n_parts);
        let at = { in_turn }.find(|&at| !matches!(self.parts[at].state, State::Over))?;
        self.at = (at + 1) % n_parts;
        let place = self.parts[at].place;
        let made = match self.turns.clone() {
            Some(turns) => self.make_within(&turns, at, slots)?,
            None => self.make_safely(at, slots, None),
        };
        Some(Item { place, made })
    }

    /// With memory from the budget; none if nobody wants it.
    fn make_within(&mut self, turns: &Arc<Turns>, at: usize, slots: Option<&PinnedSlots>) -> Option<Option<Made<B>>> {
        let place = self.parts[at].place;
        let (share, waited) = turns.reserve(place)?;
        let before = taken_by_thread();
        let (share, refusal) = match share {
            Ok(share) => (Some(share), None),
            Err(refusal) => (None, Some(refusal)),
        };
        let made = self.make_safely(at, slots, refusal);
        if share.is_some() {
            turns.note_size((taken_by_thread() - before).max(1) as u64);
        }
        if matches!(self.parts[at].state, State::Over) {
            turns.end(place);
        }
        Some(made.map(|mut made| {
            made.times.wait_for_memory += waited;
            Made { share, ..made }
        }))
    }

    /// What goes wrong, a panic too, is an error.
    fn make_safely(&mut self, at: usize, slots: Option<&PinnedSlots>, refusal: Option<Error>) -> Option<Made<B>> {
        self.here.begin(None);
        let worker = self.worker;
        catch_unwind(AssertUnwindSafe(|| self.make(at, slots, refusal))).unwrap_or_else(|panic| {
            let Part { shard, state, .. } = &mut self.parts[at];
            let (shard, sample) = (*shard, self.here.sample());
            let error = Error::panicked(worker, sample, Some(shard), panic);
            let error = match state {
                _ if sample.is_some() => error,
                State::Open(reader) => error.of_batch(reader.kept(), Some(shard), worker),
                _ => Error::Shard { shard, worker, source: error.into() },
            };
            let broken = std::mem::replace(state, State::Broken);
            match worker {
                Some(_) => drop(broken), // a second panic ends the worker, which the program is told
                None => {
                    let dropped = catch_unwind(AssertUnwindSafe(|| drop(broken)));
                    let _ = dropped.map_err(|panic| Error::panicked(worker, None, None, panic));
                }
            }
            Some(Made::failed(error))
        })
    }

    /// The next batch of a shard, or the refusal in its place.
    fn make(&mut self, at: usize, slots: Option<&PinnedSlots>, refusal: Option<Error>) -> Option<Made<B>> {
        let _charged = self.holder.enter();
        let worker = self.worker;
        let Part { shard, state, .. } = &mut self.parts[at];
        if let State::Closed(start) = *state {
            match self.shards.open(*shard, self.epoch, start) {
                Ok(reader) => *state = State::Open(reader),
                Err(error) => {
                    *state = State::Broken;
                    return Some(Made::failed(Error::Shard { shard: *shard, worker, source: error.into() }));
                }
            }
        }
        let means = Means { rules: &self.rules, slots, at: &self.here, worker };
        let made = match state {
            State::Open(reader) => match refusal {
                Some(refusal) => reader.pass(&means, refusal),
                None => reader.next(&means),
            },
            _ => None,
        };
        if made.is_none() {
            *state = State::Over;
        }
        made
    }
}

impl<B> Made<B> {
    fn failed(error: Error) -> Self {
        Self { batch: Err(error), n_samples: 0, times: Times::default(), skipped: Vec::new(), share: None }
    }
}

/// A dataset and a function.
pub(super) struct Collated<D, C> {
    pub(super) dataset: D,
    pub(super) collate: Arc<C>,
}

impl<B, D, C> Shards<B> for Collated<D, C>
where
    D: IterableDataset,
    C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
{
    fn n_shards(&self) -> usize {
        self.dataset.n_shards()
    }

    fn identity(&self) -> String {
        self.dataset.identity()
    }

    fn has_sample(&self, shard: usize, epoch: u64, sample: u64) -> bool {
        let first = || self.dataset.shard_from(shard, epoch, sample).map(|mut samples| samples.next().is_some());
        catch_unwind(AssertUnwindSafe(first)).unwrap_or(Ok(true)).unwrap_or(true)
    }

    fn n_samples(&self, shard: usize, epoch: u64, before: u64) -> u64 {
        let count = || self.dataset.shard(shard, epoch).map(|samples| (0..before).zip(samples).count() as u64);
        catch_unwind(AssertUnwindSafe(count)).unwrap_or(Ok(0)).unwrap_or(0)
    }

    fn open(&self, shard: usize, epoch: u64, start: u64) -> Result<Box<dyn Reader<B>>> {
        let samples = self.dataset.shard_from(shard, epoch, start)?;
        let (collate, first) = (self.collate.clone(), start as usize);
        Ok(Box::new(Reading { samples, collate, epoch, shard, passed: first, kept: Vec::new() }))
    }
}

struct Reading<S, C> {
    samples: Samples<S>,
    collate: Arc<C>,
    epoch: u64,
    shard: usize,
    /// How many samples came before the next.
    passed: usize,
    /// Which samples the batch has that is being made.
    kept: Vec<usize>,
}

/// What was read for one batch.
struct Read<S> {
    samples: Vec<S>,
    skipped: Vec<Skipped>,
    failed: Option<Error>,
    n_samples: usize,
}

impl<B, S, C> Reader<B> for Reading<S, C>
where
    S: Send,
    C: Fn(Vec<S>) -> Result<B> + Send + Sync,
{
    fn next(&mut self, means: &Means<'_, B>) -> Option<Made<B>> {
        let start = Instant::now();
        let Read { samples, skipped, failed, n_samples } = self.read(means);
        let mut times = Times { fetch: start.elapsed(), ..Times::default() };
        let batch = match failed.or_else(|| all_skipped(n_samples, &skipped)) {
            _ if n_samples == 0 => return None,
            Some(error) => Err(error),
            None if means.rules.drop_last && n_samples < means.rules.batch_size => return None,
            None => self.collate(samples, means, &mut times),
        };
        Some(Made { batch, n_samples, times, skipped, share: None })
    }

    fn pass(&mut self, means: &Means<'_, B>, why: Error) -> Option<Made<B>> {
        let rules = means.rules;
        self.kept.clear();
        for _ in self.samples.by_ref().take(rules.batch_size) {
            self.kept.push(self.passed);
            self.passed = self.passed.saturating_add(1);
        }
        let n_samples = self.kept.len();
        let is_wanted = n_samples == rules.batch_size || (n_samples > 0 && !rules.drop_last);
        let error = why.of_batch(&self.kept, Some(self.shard), means.worker);
        is_wanted.then(|| Made { n_samples, ..Made::failed(error) })
    }

    fn kept(&self) -> &[usize] {
        &self.kept
    }
}

/// That nothing is left of a batch.
fn all_skipped(n_samples: usize, skipped: &[Skipped]) -> Option<Error> {
    let last = skipped.last().filter(|_| skipped.len() == n_samples)?;
    let Skipped { index, shard, worker, .. } = *last;
    Some(Error::AllSkipped { n_samples, index, shard, worker, error: last.error.clone() })
}

impl<S, C> Reading<S, C> {
    /// As many samples as make a batch, or as there are.
    fn read<B>(&mut self, means: &Means<'_, B>) -> Read<S> {
        let (rules, worker, shard) = (means.rules, means.worker, Some(self.shard));
        let mut read = Read { samples: Vec::new(), skipped: Vec::new(), failed: None, n_samples: 0 };
        self.kept.clear();
        means.at.begin(Some(self.passed));
        while read.n_samples < rules.batch_size {
            let index = self.passed;
            means.at.get(Some(index));
            let Some(sample) = self.samples.next() else { break };
            self.passed = self.passed.saturating_add(1);
            read.n_samples += 1;
            match sample {
                Ok(sample) => {
                    self.kept.push(index);
                    read.samples.push(sample);
                }
                Err(error) if rules.skips => {
                    read.skipped.push(Skipped { epoch: self.epoch, index, shard, worker, error: error.to_string() });
                }
                Err(error) => {
                    read.failed.get_or_insert(Error::Sample { index, shard, worker, source: error.into() });
                }
            }
        }
        means.at.get(None);
        read
    }

    fn collate<B>(&self, samples: Vec<S>, means: &Means<'_, B>, times: &mut Times) -> Result<B>
    where
        C: Fn(Vec<S>) -> Result<B>,
    {
        let (start, slots) = (Instant::now(), means.slots);
        let scope = slots.map(PinnedSlots::enter);
        let batch = (self.collate)(samples);
        drop(scope);
        let (waited, fell_back) = slots.map(PinnedSlots::finish).unwrap_or_default();
        times.collate = start.elapsed().saturating_sub(waited);
        (times.wait_for_memory, times.pageable) = (waited, fell_back);
        let pinned = batch.and_then(|batch| match (means.rules.pin, slots) {
            (Some(pin), Some(slots)) if !times.pageable => pin(batch, slots),
            _ => Ok(batch),
        });
        let (waited, fell_back) = slots.map(PinnedSlots::finish).unwrap_or_default();
        times.wait_for_memory += waited;
        times.pageable |= fell_back;
        pinned.map_err(|error| error.locate(&self.kept).of_batch(&self.kept, Some(self.shard), means.worker))
    }
}
