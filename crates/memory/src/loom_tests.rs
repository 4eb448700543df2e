//! All interleavings of this crate's locks and atomics, tried by loom. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p pagelock-memory --lib loom`.

use std::{sync::Arc, time::Duration};

use loom::{
    model::Builder,
    sync::{Condvar, Mutex},
    thread,
};

use crate::{Budget, Completion, HostBuffer, Limited, Pageable, Pooled, Resource};

/// Tries every schedule with at most three preemptions: more preemptions find nothing new here and take minutes.
fn every_schedule(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

// Loom has no clock: a wait ends only when it is woken, and a wake-up that gets lost is a deadlock, which it reports.
const EVER: Duration = Duration::MAX;

#[test]
fn loom_two_reservations_that_do_not_fit_together_never_both_succeed() {
    every_schedule(|| {
        let host = Budget::new("host", 100);
        let children = [host.child("a", 100), host.child("b", 100)];
        let threads = children.map(|child| thread::spawn(move || child.reserve(60).ok()));
        let taken: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(taken.len(), 1, "one fits, and the other must not spoil it");
        drop(taken);
        assert_eq!(host.used().0, 0);
    });
}

#[test]
fn loom_a_waiter_never_misses_what_is_given_back() {
    every_schedule(|| {
        let budget = Budget::new("queue", 100);
        let held = budget.reserve(60).unwrap();
        let waiter = {
            let budget = budget.clone();
            thread::spawn(move || drop(budget.reserve_timeout(50, EVER).unwrap()))
        };
        drop(held);
        waiter.join().unwrap();
        assert_eq!(budget.used().0, 0);
    });
}

#[test]
fn loom_a_waiter_never_misses_a_block_that_drops_into_a_pool() {
    every_schedule(|| {
        let budget = Budget::new("host", 64);
        let pool = Pooled::new(Limited::new(Pageable, budget.clone()));
        let block = pool.allocate(64).unwrap();
        let waiter = {
            let budget = budget.clone();
            thread::spawn(move || drop(budget.reserve_timeout(64, EVER).unwrap()))
        };
        drop(block);
        waiter.join().unwrap();
    });
}

#[test]
fn loom_a_reservation_is_not_refused_while_another_thread_frees_idle_blocks() {
    every_schedule(|| {
        let budget = Budget::new("host", 128);
        let pool = Pooled::new(Limited::new(Pageable, budget.clone()));
        drop([0, 1].map(|_| pool.allocate(64).unwrap()));
        let threads = [0, 1].map(|_| {
            let budget = budget.clone();
            thread::spawn(move || budget.reserve(64).ok())
        });
        let taken: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(taken.len(), 2, "both fit");
    });
}

/// An access that is done when another thread opens the gate.
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Completion for Gate {
    fn is_done(&self) -> bool {
        *self.open.lock().unwrap()
    }

    fn wait(&self) {
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.changed.wait(open).unwrap();
        }
    }
}

#[test]
fn loom_nobody_reads_before_the_writer_is_done() {
    every_schedule(|| {
        let gate = Arc::new(Gate { open: Mutex::new(false), changed: Condvar::new() });
        let mut buffer = HostBuffer::allocate(&Pageable, 8).unwrap();
        buffer.add_writer(gate.clone());
        let buffer = Arc::new(buffer);
        let readers = [0, 1].map(|_| {
            let (buffer, gate) = (buffer.clone(), gate.clone());
            thread::spawn(move || {
                buffer.bytes();
                assert!(gate.is_done());
            })
        });
        *gate.open.lock().unwrap() = true;
        gate.changed.notify_all();
        for reader in readers {
            reader.join().unwrap();
        }
    });
}
