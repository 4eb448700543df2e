//! [`StreamBatches`]: one epoch of a loader of streams.
//!
//! The program goes through the shards in turn, and so does each worker through those that are its own: what a worker sends
//! is what the program will ask it for, in the same order. So nothing has to be put in order, and nothing is shared.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::StreamLoader;
use super::desk::{Desk, Item, Part};
use super::state::StreamState;
use crate::loader::crew::Account;
use crate::loader::slots::{AtMost, PATIENCE, PinnedSlots};
use crate::{Error, Result};

/// How long the end of an epoch waits for workers in the middle of a sample before it leaves them to end alone.
const GRACE: Duration = Duration::from_secs(5);

/// One epoch of a [`StreamLoader`]. After an error the next batch follows.
///
/// # Examples
/// See [`StreamLoader`].
pub struct StreamBatches<'a, B: Send + 'static> {
    loader: &'a StreamLoader<B>,
    state: StreamState,
    /// Whether the shard at each place may have more.
    live: Vec<bool>,
    makers: Makers<B>,
    /// Why there is no batch at all; given once.
    refusal: Option<Error>,
    /// Nothing was given yet, and the epoch was begun at its start.
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
    items: Receiver<Item<B>>,
    ended: Receiver<()>, // nobody sends anything: the sender goes with the thread
    thread: JoinHandle<()>,
}

impl<B: Send + 'static> Worker<B> {
    fn start(mut desk: Desk<B>, worker: usize, room: usize, slots: Option<PinnedSlots>) -> Result<Self> {
        let ((send, items), (end, ended)) = (sync_channel(room), sync_channel::<()>(0));
        let thread = thread::Builder::new().name(format!("loader {worker}")).spawn(move || {
            let _ended_when_dropped = end;
            while let Some(item) = desk.next(slots.as_ref()) {
                if send.send(item).is_err() {
                    break; // the program has left the epoch
                }
            }
        });
        let thread = thread.map_err(|source| Error::NoWorker { worker, source })?;
        Ok(Self { items, ended, thread })
    }
}

impl<'a, B: Send + 'static> StreamBatches<'a, B> {
    pub(super) fn new(loader: &'a StreamLoader<B>, state: StreamState) -> Self {
        let n_workers = loader.n_workers.min(state.n_shards);
        let is_empty = (state.round, state.turn) == (0, 0);
        let (makers, refusal) = match loader.check().and_then(|()| makers(loader, state, n_workers)) {
            Ok(makers) => (makers, None),
            Err(error) => (Makers::Workers(Vec::new()), Some(error)),
        };
        let live = vec![refusal.is_none(); state.n_shards];
        let is_empty = is_empty && refusal.is_none();
        Self { loader, state, live, makers, refusal, is_empty, n_given: 0, given: None }
    }

    /// What comes of asking the shard at a place; an error if it took too long, or its worker is gone.
    fn ask(&mut self, place: usize) -> Result<Item<B>> {
        let workers = match &mut self.makers {
            Makers::Workers(workers) => workers,
            Makers::Program(desk, slots) => {
                return Ok(desk.next(slots.as_ref()).unwrap_or(Item { place, made: None }));
            }
        };
        let worker = place % workers.len();
        let (start, items) = (Instant::now(), &workers[worker].items);
        let item = match self.loader.timeout {
            Some(timeout) => items.recv_timeout(timeout),
            None => items.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        item.map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                Error::Timeout { worker: Some(worker), batch: self.n_given, sample: None, waited: start.elapsed() }
            }
            RecvTimeoutError::Disconnected => Error::WorkerGone { worker },
        })
    }

    /// Makes it the turn of the next shard.
    fn advance(&mut self) {
        self.state.turn += 1;
        if self.state.turn == self.live.len() {
            (self.state.turn, self.state.round) = (0, self.state.round + 1);
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
                    // Nothing more comes from a worker that is gone; one that is late may still send.
                    self.live[place] = !matches!(error, Error::WorkerGone { .. });
                    account.add(Default::default(), 0, Vec::new(), true);
                    return Some(Err(error));
                }
            };
            debug_assert_eq!(item.place, place, "workers and the program take turns alike");
            self.advance();
            match item.made {
                None => self.live[place] = false,
                Some(made) => {
                    account.add(made.times, made.n_samples, made.skipped, made.batch.is_err());
                    return Some(made.batch);
                }
            }
        }
        None
    }
}

fn makers<B: Send + 'static>(loader: &StreamLoader<B>, state: StreamState, n_workers: usize) -> Result<Makers<B>> {
    let patience = || AtMost(loader.timeout.unwrap_or(PATIENCE));
    let slots = || loader.slot_memory().map(|memory| PinnedSlots::new(memory, loader.when_full, patience()));
    let desk = |worker: Option<usize>| {
        let places = (worker.unwrap_or(0)..state.n_shards).step_by(n_workers.max(1));
        let round = |place| state.round + u64::from(place < state.turn);
        let start = |place| round(place).saturating_mul(state.batch_size as u64);
        let parts: Vec<_> = places.map(|place| Part::new(place, loader.shard_at(place), start(place))).collect();
        let at = parts.iter().position(|part| part.place() >= state.turn).unwrap_or(0);
        let (shards, rules, holder) = (loader.shards.clone(), loader.rules.clone(), loader.holder);
        Desk { shards, rules, epoch: state.epoch, parts, at, worker, holder }
    };
    if n_workers == 0 {
        return Ok(Makers::Program(desk(None), slots()));
    }
    let room = loader.prefetch_factor;
    let start = |worker| Worker::start(desk(Some(worker)), worker, room, slots());
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
            let over = StreamState { epoch: self.state.epoch + 1, round: 0, turn: 0, ..self.state };
            self.loader.progress().next = over;
            let nothing = std::mem::take(&mut self.is_empty) && !self.live.is_empty();
            return nothing.then_some(Err(Error::EmptyDataset));
        };
        let end = Instant::now();
        account.report.program_waited = end - start;
        account.report.program_worked = self.given.map_or(Duration::ZERO, |given| start - given);
        (self.given, self.is_empty) = (Some(end), false);
        self.n_given += 1;
        let mut progress = self.loader.progress();
        progress.next = self.state;
        progress.add(account);
        Some(batch)
    }
}

impl<B: Send + 'static> Drop for StreamBatches<'_, B> {
    fn drop(&mut self) {
        let Makers::Workers(workers) = &mut self.makers else { return };
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
