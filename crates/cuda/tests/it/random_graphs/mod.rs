//! Random programs of graphs, captures, parts, tickets and threads, which may be dropped at any time.
//!
//! `world.rs` is a program of one thread and the model (`model.rs`) that says what it must find; `hosts.rs` and
//! `captures.rs` have its steps with buffers of the host and with graphs. Threads that share graphs (`crowd.rs`) cannot be
//! told what they must find, only that no launch is seen in its middle.
//!
//! `OPERATIONS` says how many operations each test does, `SEED` which program alone is run. A failure prints both. A program
//! of one thread on a software device that has none is the same each time.

mod captures;
mod crowd;
mod hosts;
mod model;
mod world;

use std::{sync::Barrier, thread};

use pagelock_cuda::{Device, software::Machine};

use self::{crowd::Crowd, world::World};
use crate::tools::{gpu, lazy, moody, threaded};

const PROGRAM: usize = 250; // operations of one program
const THREADS: usize = 3;
const OF_A_THREAD: usize = 1_000; // operations: so many that threads meet

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

/// Nothing is violated, and nothing is left but what was forgotten.
fn check_end(machine: &Machine, device: Device, seed: u64, has_forgotten: bool) {
    assert_eq!(device.leaked().count, 0, "seed {seed}");
    drop(device);
    machine.run_all();
    assert_eq!(machine.violations(), [""; 0], "seed {seed}");
    let left = (machine.allocated().0, machine.page_locked().0);
    assert!(has_forgotten || left == (0, 0), "seed {seed}: {left:?} bytes were not given back");
}

/// Whether the program forgot something.
fn run_alone(device: &Device, seed: u64, fails: Option<Machine>) -> bool {
    let mut world = World::new(device, seed, fails.clone(), false);
    (0..PROGRAM).for_each(|_| world.step());
    fails.iter().for_each(Machine::heal);
    world.check();
    world.has_forgotten
}

/// Threads that use what they share, and half of the time have programs of their own too.
fn run_together(device: &Device, seed: u64, fails: Option<&Machine>) -> bool {
    let (crowd, start) = (Crowd::new(device), Barrier::new(THREADS));
    let worlds: Vec<World> = thread::scope(|scope| {
        let threads = (0..THREADS).map(|index| {
            scope.spawn({
                let (crowd, start) = (&crowd, &start);
                move || {
                    let failing = fails.filter(|_| index == 0).cloned();
                    let world = World::new(device, seed * THREADS as u64 + index as u64, failing, fails.is_some());
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
