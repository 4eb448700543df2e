//! Random programs of graphs, captures, parts and tickets on one or more threads. All of these may be dropped at any
//! time.
//!
//! `world.rs` is a program of one thread, which compares what it finds with a model (`model.rs`). Its steps with host
//! buffers are in `hosts.rs`, those with graphs in `captures.rs`. What threads that share graphs find (`crowd.rs`)
//! depends on timing, so they only check that nobody sees the middle of a launch.
//!
//! The variable `OPERATIONS` sets how many operations each test does. With `SEED`, a test runs the program of that seed
//! alone. A failure prints the seed and the operation. A program of one thread on a software device without threads is
//! the same each time.

mod captures;
mod crowd;
mod hosts;
mod model;
mod world;

use std::{sync::Barrier, thread};

use pagelock_cuda::{Device, software::Machine};

use self::{crowd::Crowd, model::Dice, world::World};
use crate::tools::{gpu, lazy, moody, not_given_back, threaded};

const PROGRAM: usize = 250; // operations of one program
const THREADS: usize = 3;
const OF_A_THREAD: usize = 1_000; // operations, enough for threads to meet

fn number(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Runs programs of `each` operations, every one with a seed of its own.
fn programs(default_operations: usize, each: usize, run: impl Fn(u64)) {
    if let Some(seed) = number("SEED") {
        return run(seed as u64);
    }
    let count = number("OPERATIONS").unwrap_or(default_operations).div_ceil(each);
    (0..count as u64).for_each(run);
}

fn machine(seed: u64) -> Machine {
    match seed % 4 {
        0 => lazy(seed),
        1 | 2 => moody(seed),
        _ => threaded(seed),
    }
}

/// Checks that nothing is violated, and that nothing is left but what was forgotten.
fn check_end(machine: &Machine, device: Device, seed: u64, has_forgotten: bool) {
    assert_eq!(device.leaked().count, 0, "seed {seed}");
    drop(device);
    machine.run_all();
    assert_eq!(machine.violations(), [""; 0], "seed {seed}");
    if !has_forgotten {
        assert_eq!(not_given_back(machine), (0, 0), "seed {seed}: something was not given back");
    }
}

/// Runs a program, and returns whether it forgot something.
fn run_alone(device: &Device, seed: u64, fails: Option<Machine>) -> bool {
    let mut world = World::new(device, seed, Dice::new(seed), fails.clone(), false);
    (0..PROGRAM).for_each(|_| world.step());
    fails.iter().for_each(Machine::heal);
    world.check();
    world.has_forgotten
}

/// Runs threads that share buffers and graphs. With every second seed, each thread also runs a program of its own.
fn run_together(device: &Device, seed: u64, fails: Option<&Machine>) -> bool {
    let (crowd, start) = (Crowd::new(device), Barrier::new(THREADS));
    let worlds: Vec<World> = thread::scope(|scope| {
        let threads = (0..THREADS).map(|index| {
            scope.spawn({
                let (crowd, start) = (&crowd, &start);
                move || {
                    let failing = fails.filter(|_| index == 0).cloned();
                    let dice = Dice::new(seed * THREADS as u64 + index as u64);
                    let world = World::new(device, seed, dice, failing, fails.is_some());
                    start.wait();
                    run_among_others(world, crowd, seed)
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    fails.iter().for_each(|machine| machine.heal());
    crowd.check();
    worlds.into_iter().fold(false, |has_forgotten, mut world| {
        world.check();
        has_forgotten || world.has_forgotten
    })
}

fn run_among_others(mut world: World, crowd: &Crowd, seed: u64) -> World {
    let has_own = seed.is_multiple_of(2);
    let mut observer = None;
    for at in 0..OF_A_THREAD {
        if has_own && at % 2 == 0 {
            world.step();
        } else {
            crowd.step(&mut world, &mut observer).unwrap_or_else(|error| world.allow(error));
        }
    }
    world
}

#[test]
fn what_a_program_of_graphs_and_parts_finds_is_what_it_did() {
    programs(20_000, PROGRAM, |seed| {
        let machine = machine(seed);
        let device = machine.device(0).unwrap();
        let has_forgotten = run_alone(&device, seed, None);
        check_end(&machine, device, seed, has_forgotten);
    });
}

#[test]
fn what_a_program_of_graphs_and_parts_finds_is_what_it_did_if_calls_fail() {
    programs(20_000, PROGRAM, |seed| {
        let machine = machine(seed);
        let device = machine.device(0).unwrap();
        let has_forgotten = run_alone(&device, seed, Some(machine.clone()));
        check_end(&machine, device, seed, has_forgotten);
    });
}

#[test]
fn launches_are_seen_whole_or_not_at_all_by_other_threads() {
    programs(60_000, THREADS * OF_A_THREAD, |seed| {
        let machine = machine(seed);
        let device = machine.device(0).unwrap();
        let has_forgotten = run_together(&device, seed, None);
        check_end(&machine, device, seed, has_forgotten);
    });
}

#[test]
fn launches_are_seen_whole_or_not_at_all_by_other_threads_if_calls_fail() {
    programs(60_000, THREADS * OF_A_THREAD, |seed| {
        let machine = machine(seed);
        let device = machine.device(0).unwrap();
        let has_forgotten = run_together(&device, seed, Some(&machine));
        check_end(&machine, device, seed, has_forgotten);
    });
}

mod cuda {
    use super::*;

    #[test]
    fn what_a_program_of_graphs_and_parts_finds_on_a_gpu_is_what_it_did() {
        let Some(device) = gpu() else { return };
        programs(20_000, PROGRAM, |seed| {
            run_alone(&device, seed, None);
        });
        assert_eq!(device.leaked().count, 0);
    }

    #[test]
    fn launches_on_a_gpu_are_seen_whole_or_not_at_all_by_other_threads() {
        let Some(device) = gpu() else { return };
        programs(60_000, THREADS * OF_A_THREAD, |seed| {
            run_together(&device, seed, None);
        });
        assert_eq!(device.leaked().count, 0);
    }
}
