//! The state of a machine, and the threads that execute its work.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use super::{
    faults::{Effect, Faults},
    machine::Execution,
    memory::Memory,
    queue::{Mark, Queue, Stamp, Work},
};
use crate::driver::{Call, Failure, Result, refuse_inside};

/// The state that a machine's devices share.
pub(super) struct Core {
    state: Mutex<State>,
    pub(super) changed: Condvar, // signaled after every piece of work, and when one is queued
    memory: Mutex<Memory>,       // locked after `state` or alone
    pub(super) execution: Execution,
}

pub(super) struct State {
    pub(super) queues: BTreeMap<u64, Queue>,
    pub(super) events: HashMap<u64, Event>,
    pub(super) graphs: HashMap<u64, Arc<[Work]>>,
    pub(super) registered: BTreeMap<usize, usize>, // start and length of page-locked ranges
    pub(super) faults: Faults,
    pub(super) violations: Vec<String>,
    pub(super) calls: u64,
    pub(super) random: Random,
    pub(super) running: usize, // pieces of work that are being executed
    pub(super) is_over: bool,
    next_handle: u64,
}

/// An event: its latest recording, if there was one.
pub(super) struct Event {
    pub(super) device: u32,
    pub(super) timed: bool,
    pub(super) recorded: Option<(Mark, Arc<Stamp>)>,
}

/// A small generator of random numbers (SplitMix64).
pub(super) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

impl Core {
    fn new(execution: Execution, seed: u64) -> Self {
        let state = State {
            queues: BTreeMap::new(),
            events: HashMap::new(),
            graphs: HashMap::new(),
            registered: BTreeMap::new(),
            faults: Faults::default(),
            violations: Vec::new(),
            calls: 0,
            random: Random(seed),
            running: 0,
            is_over: false,
            next_handle: 1,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), memory: Mutex::new(Memory::new()), execution }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one call of a driver. It fails inside a host function or if a fault is due, and pieces of work may be
    /// executed after it.
    pub(super) fn call<T>(&self, call: Call, effect: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        refuse_inside(call)?;
        let mut state = self.lock();
        state.calls += 1;
        let result = match state.faults.next_failure(call) {
            None => effect(&mut state),
            Some((status, Effect::None)) => Err(Failure { call, status }),
            Some((status, Effect::Done)) => effect(&mut state).and(Err(Failure { call, status })),
        };
        drop(state);
        self.changed.notify_all();
        self.step_at_random();
        result
    }
}

impl State {
    pub(super) fn handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle
    }

    pub(super) fn queue(&mut self, call: Call, stream: u64) -> Result<&mut Queue> {
        self.queues.get_mut(&stream).filter(|queue| !queue.destroyed).ok_or(Failure::new(call, 400))
    }

    pub(super) fn event(&mut self, call: Call, event: u64) -> Result<&mut Event> {
        self.events.get_mut(&event).ok_or(Failure::new(call, 400))
    }

    /// The start of the page-locked range that contains all of these bytes, if there is one.
    pub(super) fn registration(&self, start: usize, len_bytes: usize) -> Option<usize> {
        let (&from, &len) = self.registered.range(..=start).next_back()?;
        (start + len_bytes <= from + len).then_some(from)
    }
}

/// A machine's core and the threads that execute its work. The threads end when this is dropped.
pub(super) struct Engines {
    core: Arc<Core>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>, // guards the threads until `drop`
}

impl Engines {
    pub(super) fn start(execution: Execution, seed: u64) -> Arc<Self> {
        let core = Arc::new(Core::new(execution, seed));
        let count = match execution {
            Execution::Stepped { .. } => 0,
            Execution::Threads(count) => count.max(1),
        };
        let start = |index| {
            let core = core.clone();
            let named = thread::Builder::new().name(format!("software device {index}"));
            named.spawn(move || core.run_until_over())
        };
        let threads: Vec<_> = (0..count).filter_map(|index| start(index).ok()).collect();
        assert!(threads.len() == count as usize, "cannot start the threads of a software device");
        Arc::new(Self { core, threads: Mutex::new(threads) })
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.core.lock().is_over = true;
        self.core.changed.notify_all();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // The last handle may be dropped inside a host function, which runs on one of these threads. That thread
            // ends by itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
