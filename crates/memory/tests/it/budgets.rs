//! Budgets: their error texts, many threads, and a comparison with a naive model.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use pagelock_memory::{Budget, ByteSize, HostBuffer, Limited, Pageable, Pooled, Reservation, Resource, holder};
use proptest::prelude::*;

use crate::tools::random;

const LONG: Duration = Duration::from_secs(600);

#[test]
fn refused_reservation_leaves_the_budget_unchanged() {
    let budget = Budget::new("host", 1_000);
    let _held = budget.reserve(900).unwrap();

    let error = budget.reserve(200).unwrap_err();

    assert_eq!((budget.used().0, budget.peak().0, budget.left().0), (900, 900, 100));
    assert_eq!(
        error.to_string(),
        "cannot take 200 B: budget `host` has 100 B left of 1000 B; raise the limit or drop buffers first"
    );
}

#[test]
fn a_refusal_names_the_tight_ancestor_its_largest_holders_and_its_advice() {
    let host = Budget::new("host", ByteSize::mib(100)).with_advice("set `--ram` higher");
    let train = host.child("train", ByteSize::MAX);
    let small = ["a", "b", "c"].map(|name| {
        let _scope = holder(name);
        host.reserve(10 << 20).unwrap()
    });
    let _large = train.child("loader", ByteSize::MAX).reserve(60 << 20).unwrap();

    let error = train.reserve(20 << 20).unwrap_err();

    assert_eq!(
        error.to_string(),
        "cannot take 20 MiB for `train`: budget `host` has 10 MiB left of 100 MiB; largest holders: `train` 60 MiB, \
         `a` 10 MiB, `b` 10 MiB, `c` 10 MiB; set `--ram` higher"
    );
    let refusal = error.over_budget().unwrap();
    assert_eq!((refusal.asked, refusal.left), (ByteSize::mib(20), ByteSize::mib(10)));
    drop(small);
}

#[test]
fn a_refusal_by_a_parent_charges_no_budget() {
    let host = Budget::new("host", 100);
    let (left, right) = (host.child("left", 1_000), host.child("right", 1_000));
    let _held = left.reserve(80).unwrap();
    right.reserve(30).unwrap_err();
    assert_eq!((host.used().0, left.used().0, right.used().0), (80, 80, 0));
}

#[test]
fn a_budget_without_a_limit_only_counts() {
    let budget = Budget::new("all", ByteSize::MAX);
    let _held = budget.reserve(1 << 60).unwrap();
    assert_eq!(format!("{budget:?}"), "Budget(`all`, 1 EiB of no limit used)");
}

#[test]
fn a_reservation_outlives_the_handle_of_its_budget() {
    let host = Budget::new("host", 100);
    let held = host.child("short-lived", 50).reserve(40).unwrap();
    assert_eq!(host.holders()[0].to_string(), "`short-lived` 40 B");
    drop(held);
    assert_eq!(host.used().0, 0);
    assert!(host.holders().is_empty());
}

#[test]
fn a_lowered_limit_refuses_until_enough_is_freed() {
    let budget = Budget::new("host", 100);
    let held = budget.reserve(80).unwrap();
    budget.set_limit(50);
    assert_eq!(budget.left().0, 0);
    assert!(budget.reserve(1).is_err());
    drop(held);
    assert!(budget.reserve(50).is_ok());
}

#[test]
fn a_wait_that_times_out_says_so() {
    let budget = Budget::new("queue", 100).with_advice("lower `DataLoader::prefetch`");
    let _held = budget.reserve(70).unwrap();
    let error = budget.reserve_timeout(40, Duration::from_millis(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot take 40 B within 1ms: budget `queue` has 30 B left of 100 B; lower `DataLoader::prefetch`"
    );
    assert_eq!(budget.used().0, 70);
}

#[test]
fn a_reservation_above_the_limit_is_refused_at_once() {
    let budget = Budget::new("queue", 100);
    let asked_at = Instant::now();
    let error = budget.reserve_timeout(101, LONG).unwrap_err();
    assert!(asked_at.elapsed() < LONG / 2);
    assert!(error.over_budget().unwrap().waited.is_none());
}

#[test]
fn a_full_child_does_not_wait_for_more_than_its_parent_can_give() {
    let child = Budget::new("small", 100).child("full", 500);
    let _held = child.reserve(90).unwrap();
    child.set_limit(160);
    let error = child.reserve_timeout(150, LONG).unwrap_err();
    assert_eq!(error.over_budget().unwrap().budget, "small");
}

#[test]
fn a_waiter_gets_what_others_give_back() {
    for _ in 0..200 {
        let budget = Budget::new("queue", 100);
        let held = [budget.reserve(60).unwrap(), budget.reserve(40).unwrap()];
        thread::scope(|scope| {
            let waiters = [60, 40].map(|len_bytes| {
                let budget = &budget;
                scope.spawn(move || budget.reserve_timeout(len_bytes, LONG).unwrap())
            });
            drop(held);
            let got: Vec<Reservation> = waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect();
            assert_eq!(got.iter().map(Reservation::len_bytes).sum::<u64>(), 100);
        });
        assert_eq!(budget.used().0, 0);
    }
}

#[test]
fn a_waiter_wakes_when_the_limit_rises() {
    let budget = Budget::new("queue", 100);
    let _held = budget.reserve(100).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| budget.reserve_timeout(50, LONG).map(drop));
        budget.set_limit(150);
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn a_pool_frees_idle_bytes_for_a_reservation() {
    let budget = Budget::new("host", 1_000);
    let pool = Pooled::new(Limited::new(Pageable, budget.clone()));
    drop(pool.allocate(900).unwrap());
    assert!(budget.left().0 < 200);
    let _needed = budget.reserve(800).unwrap();
    assert_eq!(pool.stats().idle_bytes, 0);
}

#[test]
fn two_pools_of_one_budget_do_not_starve_each_other() {
    let budget = Budget::new("host", 1_000);
    let pools = ["a", "b"].map(|name| Pooled::new(Limited::new(Pageable, budget.child(name, 1_000))));
    drop(pools[0].allocate(900).unwrap());
    assert!(pools[1].allocate(900).is_ok());
}

#[test]
fn reservations_that_fit_are_not_refused_while_one_of_them_frees_idle_blocks() {
    for _ in 0..50 {
        let budget = Budget::new("host", ByteSize::mib(16));
        let pool = Pooled::new(Limited::new(Pageable, budget.clone()));
        drop([0; 16].map(|_| {
            let mut buffer = HostBuffer::allocate(&pool, 1 << 20).unwrap();
            buffer.bytes_mut().unwrap().fill(1);
            buffer
        }));
        let together = Barrier::new(4);
        thread::scope(|scope| {
            let reserve = || {
                together.wait();
                budget.reserve(4 << 20).unwrap()
            };
            let threads = [0; 4].map(|_| scope.spawn(reserve));
            drop(threads.map(|thread| thread.join().unwrap()));
        });
    }
}

#[test]
fn a_block_dropped_into_a_pool_goes_to_the_waiter() {
    for _ in 0..200 {
        let budget = Budget::new("host", 1_024);
        let pool = Pooled::new(Limited::new(Pageable, budget.clone()));
        let buffer = HostBuffer::allocate(&pool, 1_024).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.reserve_timeout(1_000, LONG).map(drop));
            drop(buffer);
            waiter.join().unwrap().unwrap();
        });
    }
}

#[test]
fn many_threads_never_exceed_any_limit() {
    let root = Budget::new("root", 1_000);
    let leaves: Vec<_> = (0..4).map(|i| root.child(format!("leaf {i}"), 400)).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (1..=6_u64)
            .map(|seed| {
                scope.spawn({
                    let leaves = &leaves;
                    move || reserve_at_random(leaves, seed)
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(SeqCst) {
                assert!(root.used().0 <= 1_000 && leaves.iter().all(|leaf| leaf.used().0 <= 400));
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, SeqCst);
    });
    assert!(root.peak().0 <= 1_000 && leaves.iter().all(|leaf| leaf.peak().0 <= 400));
    assert!(root.used().0 == 0 && leaves.iter().all(|leaf| leaf.used().0 == 0));
}

fn reserve_at_random(leaves: &[Budget], seed: u64) {
    let (mut state, mut held) = (seed, Vec::new());
    for _ in 0..3_000 {
        let leaf = &leaves[random(&mut state) as usize % leaves.len()];
        match leaf.reserve(random(&mut state) % 200) {
            Ok(reservation) => held.push(reservation),
            Err(_) => held.truncate(held.len() / 2),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    AddChild { parent: usize, limit: u64 },
    Reserve { budget: usize, len_bytes: u64 },
    Release { which: usize },
    SetLimit { budget: usize, limit: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let (which, bytes) = (any::<usize>(), 0..300_u64);
    prop_oneof![
        1 => (which, 50..1_000_u64).prop_map(|(parent, limit)| Step::AddChild { parent, limit }),
        6 => (which, bytes).prop_map(|(budget, len_bytes)| Step::Reserve { budget, len_bytes }),
        3 => which.prop_map(|which| Step::Release { which }),
        1 => (which, 50..1_000_u64).prop_map(|(budget, limit)| Step::SetLimit { budget, limit }),
    ]
}

/// The same rules, done naively: every sum is computed anew.
#[derive(Default)]
struct Model {
    parents: Vec<Option<usize>>,
    limits: Vec<u64>,
    peaks: Vec<u64>,
    held: Vec<(usize, u64)>,
}

impl Model {
    fn add(&mut self, parent: Option<usize>, limit: u64) {
        self.parents.push(parent);
        self.limits.push(limit);
        self.peaks.push(0);
    }

    fn is_inside(&self, budget: usize, ancestor: usize) -> bool {
        budget == ancestor || self.parents[budget].is_some_and(|parent| self.is_inside(parent, ancestor))
    }

    fn used(&self, ancestor: usize) -> u64 {
        self.held.iter().filter(|(budget, _)| self.is_inside(*budget, ancestor)).map(|(_, len_bytes)| len_bytes).sum()
    }

    fn reserve(&mut self, budget: usize, len_bytes: u64) -> bool {
        let fits = |ancestor: usize| self.used(ancestor) + len_bytes <= self.limits[ancestor] || len_bytes == 0;
        let all_fit = (0..self.limits.len()).filter(|&ancestor| self.is_inside(budget, ancestor)).all(fits);
        if all_fit {
            self.held.push((budget, len_bytes));
            for ancestor in 0..self.limits.len() {
                self.peaks[ancestor] = self.peaks[ancestor].max(self.used(ancestor));
            }
        }
        all_fit
    }
}

proptest! {
    #[test]
    fn a_tree_of_budgets_does_what_the_naive_model_does(steps in prop::collection::vec(step(), 1..120)) {
        let (mut model, mut held) = (Model::default(), Vec::new());
        let mut budgets = vec![Budget::new("root", 1_000)];
        model.add(None, 1_000);
        for step in steps {
            match step {
                Step::AddChild { parent, limit } => {
                    let parent = parent % budgets.len();
                    budgets.push(budgets[parent].child("child", limit));
                    model.add(Some(parent), limit);
                }
                Step::Reserve { budget, len_bytes } => {
                    let budget = budget % budgets.len();
                    let taken = budgets[budget].reserve(len_bytes);
                    prop_assert_eq!(taken.is_ok(), model.reserve(budget, len_bytes));
                    held.extend(taken);
                }
                Step::Release { which } if !held.is_empty() => {
                    let which = which % held.len();
                    drop(held.swap_remove(which));
                    model.held.swap_remove(which);
                }
                Step::Release { .. } => {}
                Step::SetLimit { budget, limit } => {
                    let budget = budget % budgets.len();
                    budgets[budget].set_limit(limit);
                    model.limits[budget] = limit;
                }
            }
            for (i, budget) in budgets.iter().enumerate() {
                prop_assert_eq!((budget.used().0, budget.peak().0), (model.used(i), model.peaks[i]));
            }
        }
        drop(held);
        prop_assert!(budgets.iter().all(|budget| budget.used().0 == 0));
    }
}

#[test]
fn a_long_chain_of_budgets_is_dropped_on_a_small_stack() {
    let chain = || {
        let root = Budget::new("root", 10);
        let mut inner = root.child("inner", 10);
        for _ in 0..10_000 {
            inner = inner.child("inner", 10);
        }
        let held = inner.reserve(7).unwrap();
        drop(inner);
        assert_eq!(root.used().0, 7);
        drop(held);
        root.used().0
    };
    let small_stack = thread::Builder::new().stack_size(256 << 10).spawn(chain).unwrap();
    assert_eq!(small_stack.join().unwrap(), 0);
}
