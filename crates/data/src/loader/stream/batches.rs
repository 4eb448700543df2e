//! [`StreamBatches`]: one epoch of a loader of streams.
//!
//! The program goes through the shards in turn, and so does each worker through those that are its own: what a worker sends
//! is what the program will ask it for, in the same order. So nothing has to be put in order, and nothing is shared.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::StreamLoader;
use super::desk::{Desk, Item, Part};
use super::state::StreamPlace;
use super::turns::Turns;
use crate::loader::crew::{Account, GRACE, begin_work};
use crate::loader::slots::{AtMost, PATIENCE, PinnedSlots};
use crate::loader::source::At;
use crate::{Error, Result};

/// One epoch of a [`StreamLoader`]. After an error the next batch follows.
///
/// # Examples
/// See [`StreamLoader`].
pub struct StreamBatches<'a, B: Send + 'static> {
    loader: &'a StreamLoader<B>,
    state: StreamPlace,
    /// Where the epoch was begun.
    began: StreamPlace,
    /// Whether the shard at each place may have more.
    live: Vec<bool>,
    makers: Makers<B>,
    turns: Option<Arc<Turns>>, // of workers with a budget
    /// Why there is no batch at all; given once.
    refusal: Option<Error>,
    /// Nothing was given yet.
    is_empty: bool,
    n_given: usize,
    given: Option<Instant>,
}

enum Makers<B> {
    Program(Desk<B>, Option<PinnedSlots>),
    Workers(Vec<Worker<B>>),
}

/// A thread that makes the batches of some shards.
struct Worker<B> {
    ready: Option<Receiver<Result<()>>>, // whether it could start; until that was asked
    items: Receiver<Item<B>>,
    ended: Receiver<()>, // nobody sends anything: the sender goes with the thread
    here: Arc<At>,
    thread: JoinHandle<()>,
}

impl<B: Send + 'static> Worker<B> {
    fn start(loader: &StreamLoader<B>, mut desk: Desk<B>, worker: usize, slots: Option<PinnedSlots>) -> Result<Self> {
        let ((send, items), (end, ended)) = (sync_channel(loader.prefetch_factor), sync_channel::<()>(0));
        let ((started, ready), init, here) = (sync_channel(1), loader.init.clone(), desk.here.clone());
        let thread = thread::Builder::new().name(format!("loader {worker}")).spawn(move || {
            let _ended_when_dropped = end;
            let places = desk.parts.iter().map(Part::place).collect();
            let _ends = Ends { turns: desk.turns.clone(), places };
            let start = begin_work(init.as_deref(), worker);
            let is_ready = start.is_ok();
            if started.send(start).is_err() || !is_ready {
                return;
            }
            while let Some(item) = desk.next(slots.as_ref()) {
                if send.send(item).is_err() {
                    break; // the program has left the epoch
                }
            }
        });
        let thread = thread.map_err(|source| Error::NoWorker { worker, source })?;
        Ok(Self { ready: Some(ready), items, ended, here, thread })
    }
}

/// Says that nothing more comes of a worker's shards, however it ends.
struct Ends {
    turns: Option<Arc<Turns>>,
    places: Vec<usize>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.turns.iter().for_each(|turns| self.places.iter().for_each(|&place| turns.end(place)));
    }
}

/// What comes through a channel, in time if there is one.
fn receive<T>(from: &Receiver<T>, timeout: Option<Duration>) -> Result<T, RecvTimeoutError> {
    match timeout {
        Some(timeout) => from.recv_timeout(timeout),
        None => from.recv().map_err(|_| RecvTimeoutError::Disconnected),
    }
}

impl<'a, B: Send + 'static> StreamBatches<'a, B> {
    pub(super) fn new(loader: &'a StreamLoader<B>, state: StreamPlace) -> Self {
        let n_shards = loader.check().map(|()| loader.n_shards());
        // Of one shard, a first batch says so too.
        let n_shards = n_shards.and_then(|n_shards| match n_shards {
            0 | 1 => Ok(n_shards),
            _ => check_place(loader, state, n_shards).map(|()| n_shards),
        });
        let n_workers = loader.n_workers.min(*n_shards.as_ref().unwrap_or(&0));
        let turns = match (&loader.prefetch_budget, &n_shards) {
            (Some(budget), Ok(n_shards)) if n_workers > 0 => {
                Some(Arc::new(Turns::new(budget.clone(), *n_shards, state.turn)))
            }
            _ => None,
        };
        let makers = n_shards.and_then(|n_shards| Ok((makers(loader, state, n_shards, n_workers, &turns)?, n_shards)));
        let (makers, live, refusal) = match makers {
            Ok((makers, n_shards)) => (makers, vec![true; n_shards], None),
            Err(error) => (Makers::Workers(Vec::new()), Vec::new(), Some(error)),
        };
        let is_empty = refusal.is_none();
        Self { loader, state, began: state, live, makers, turns, refusal, is_empty, n_given: 0, given: None }
    }

    /// What it means that nothing came: from the start on, that the dataset is empty; from somewhere else, that the last
    /// batch before that was the last, or that there was none.
    fn nothing(&self) -> Option<Error> {
        match self.began.before(self.live.len()) {
            None => Some(Error::EmptyDataset),
            Some(_) => check_place(self.loader, self.began, self.live.len()).err(),
        }
    }

    pub(in crate::loader) fn n_given(&self) -> usize {
        self.n_given
    }

    /// What comes of asking the shard at a place; an error if it took too long, or its worker is gone.
    fn ask(&mut self, place: usize) -> Result<Item<B>> {
        let workers = match &mut self.makers {
            Makers::Workers(workers) => workers,
            Makers::Program(desk, slots) => {
                return Ok(desk.next(slots.as_ref()).unwrap_or(Item { place, made: None }));
            }
        };
        let (start, timeout) = (Instant::now(), self.loader.timeout);
        let (batch, shard) = (self.n_given, self.loader.shard_at(place));
        let sample = self.state.round.saturating_mul(self.loader.rules.batch_size as u64);
        let failed = |worker, here: &At, error| match error {
            RecvTimeoutError::Timeout => {
                let (sample, first, waited) = (here.sample(), here.first(), start.elapsed());
                Error::Timeout { worker: Some(worker), batch, sample, first, shard: Some(shard), waited }
            }
            RecvTimeoutError::Disconnected => Error::WorkerGone { worker, shard, sample },
        };
        for (number, worker) in workers.iter_mut().enumerate() {
            if let Some(ready) = &worker.ready {
                receive(ready, timeout).map_err(|error| failed(number, &worker.here, error))??;
                worker.ready = None;
            }
        }
        let number = place % workers.len();
        let worker = &workers[number];
        receive(&worker.items, timeout).map_err(|error| failed(number, &worker.here, error))
    }

    /// Makes it the turn of the next shard.
    fn advance(&mut self) {
        self.state.turn += 1;
        if self.state.turn == self.live.len() {
            (self.state.turn, self.state.round) = (0, self.state.round.saturating_add(1));
        }
    }

    fn load(&mut self, account: &mut Account) -> Option<Result<B>> {
        while self.live.contains(&true) {
            let place = self.state.turn;
            if !self.live[place] {
                self.advance();
                continue;
            }
            let item = match self.ask(place) {
                Ok(item) => item,
                Err(error) => {
                    match error {
                        Error::WorkerGone { .. } => self.live[place] = false, // nothing more comes from it
                        Error::WorkerInit { .. } => self.live.fill(false),
                        _ => {} // one that is late may still send
                    }
                    account.add(Default::default(), 0, Vec::new(), true);
                    return Some(Err(error));
                }
            };
            debug_assert_eq!(item.place, place, "workers and the program take turns alike");
            self.advance();
            match item.made {
                None => self.live[place] = false,
                Some(made) => {
                    drop(made.share);
                    account.add(made.times, made.n_samples, made.skipped, made.batch.is_err());
                    return Some(made.batch);
                }
            }
        }
        None
    }
}

/// That a batch came before a place, unless it is the start: else the state is not of these shards.
fn check_place<B: Send + 'static>(loader: &StreamLoader<B>, place: StreamPlace, n_shards: usize) -> Result<()> {
    let Some(before) = place.before(n_shards) else { return Ok(()) };
    let (StreamPlace { epoch, round, turn }, shard) = (place, loader.shard_at(before.turn));
    let sample = before.round.saturating_mul(loader.rules.batch_size as u64);
    if loader.shards.has_sample(shard, epoch, sample) {
        return Ok(());
    }
    let n_samples = loader.shards.n_samples(shard, epoch, sample);
    Err(Error::BehindStream { epoch, round, turn, shard, sample, n_samples })
}

fn makers<B: Send + 'static>(
    loader: &StreamLoader<B>,
    state: StreamPlace,
    n_shards: usize,
    n_workers: usize,
    turns: &Option<Arc<Turns>>,
) -> Result<Makers<B>> {
    let patience = || AtMost(loader.timeout.unwrap_or(PATIENCE));
    let slots = || loader.slot_memory().map(|memory| PinnedSlots::new(memory, loader.when_full, patience()));
    let desk = |worker: Option<usize>| {
        let places = (worker.unwrap_or(0)..n_shards).step_by(n_workers.max(1));
        let round = |place| state.round.saturating_add(u64::from(place < state.turn));
        let start = |place| round(place).saturating_mul(loader.rules.batch_size as u64);
        let parts: Vec<_> = places.map(|place| Part::new(place, loader.shard_at(place), start(place))).collect();
        let at = parts.iter().position(|part| part.place() >= state.turn).unwrap_or(0);
        let (shards, rules, holder) = (loader.shards.clone(), loader.rules.clone(), loader.holder);
        let (here, turns) = (Arc::default(), turns.clone());
        Desk { shards, rules, epoch: state.epoch, parts, at, worker, here, turns, holder }
    };
    if n_workers == 0 {
        return Ok(Makers::Program(desk(None), slots()));
    }
    let start = |worker| Worker::start(loader, desk(Some(worker)), worker, slots());
    Ok(Makers::Workers((0..n_workers).map(start).collect::<Result<_>>()?))
}

impl<B: Send + 'static> Iterator for StreamBatches<'_, B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        if let Some(error) = self.refusal.take() {
            return Some(Err(error));
        }
        let mut account = Account::default();
        let start = Instant::now();
        let Some(batch) = self.load(&mut account) else {
            self.loader.progress().next = StreamPlace::start_of(self.state.epoch.saturating_add(1));
            let is_empty = std::mem::take(&mut self.is_empty);
            return is_empty.then(|| self.nothing()).flatten().map(Err);
        };
        let end = Instant::now();
        account.report.program_waited = end - start;
        account.report.program_worked = self.given.map_or(Duration::ZERO, |given| start - given);
        (self.given, self.is_empty) = (Some(end), false);
        self.n_given += 1;
        let mut progress = self.loader.progress();
        progress.next = self.state;
        progress.record.add(account);
        Some(batch)
    }
}

impl<B: Send + 'static> Drop for StreamBatches<'_, B> {
    fn drop(&mut self) {
        let Makers::Workers(workers) = &mut self.makers else { return };
        self.turns.iter().for_each(|turns| turns.stop());
        // All are told before the first is waited for.
        let leaving: Vec<_> = workers.drain(..).map(|Worker { ended, thread, .. }| (ended, thread)).collect();
        let until = Instant::now() + GRACE;
        for (ended, thread) in leaving {
            let left = until.saturating_duration_since(Instant::now());
            if ended.recv_timeout(left) == Err(RecvTimeoutError::Disconnected) {
                let _ = thread.join(); // a worker's panics are caught where they happen
            }
        }
    }
}
