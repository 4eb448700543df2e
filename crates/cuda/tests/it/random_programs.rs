//! Random programs on devices that work, under every schedule.

use std::thread;

use pagelock_cuda::{Device, software::Machine};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestRunner},
};

use crate::{
    program::{Kind, Step, World, programs},
    tools::{gpu, lazy, moody, not_given_back, threaded},
};

fn run(device: &Device, steps: &[Step]) {
    let mut world = World::new(device).unwrap();
    world.run(steps, |error| panic!("{error}"));
    world.check();
    assert_eq!(device.leaked().count, 0);
}

/// Runs the steps, and checks that no memory is left.
fn run_and_count(machine: &Machine, steps: &[Step]) {
    let device = machine.device(0).unwrap();
    run(&device, steps);
    drop(device);
    machine.run_all();
    assert_eq!(machine.violations(), [""; 0]);
    assert_eq!(not_given_back(machine), (0, 0), "something was not given back");
}

proptest! {
    #[test]
    fn nothing_is_wrong_or_lost_if_work_is_done_at_the_last_moment(
        seed in any::<u64>(), steps in programs(Kind::Tidy),
    ) {
        run_and_count(&lazy(seed), &steps);
    }

    #[test]
    fn nothing_is_wrong_or_lost_if_work_is_done_at_any_moment(seed in any::<u64>(), steps in programs(Kind::Tidy)) {
        run_and_count(&moody(seed), &steps);
    }

    #[test]
    fn nothing_is_wrong_if_tickets_are_forgotten(seed in any::<u64>(), steps in programs(Kind::Forgetful)) {
        let machine = moody(seed);
        run(&machine.device(0).unwrap(), &steps);
        machine.run_all();
        prop_assert_eq!(machine.violations(), [""; 0]);
    }
}

#[test]
fn nothing_is_wrong_or_lost_if_threads_do_the_work() {
    let ran = few(64).run(&(any::<u64>(), programs(Kind::Tidy)), |(seed, steps)| {
        run_and_count(&threaded(seed), &steps);
        Ok(())
    });
    ran.unwrap();
}

/// Runs each program on a thread of its own. They share the device's pool, its queues and its deferred drops.
fn run_on_threads(device: &Device, programs: &[Vec<Step>]) {
    thread::scope(|scope| {
        for steps in programs {
            scope.spawn(|| {
                let mut world = World::new(device).unwrap();
                world.run(steps, |error| panic!("{error}"));
                world.check();
            });
        }
    });
    assert_eq!(device.leaked().count, 0);
}

fn few(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

#[test]
fn nothing_is_wrong_or_lost_if_programs_share_a_device() {
    for make in [moody, threaded] {
        let ran = few(48).run(&(any::<u64>(), vec(programs(Kind::Tidy), 3)), |(seed, programs)| {
            let machine = make(seed);
            let device = machine.device(0).unwrap();
            run_on_threads(&device, &programs);
            drop(device);
            machine.run_all();
            prop_assert_eq!(machine.violations(), [""; 0]);
            prop_assert_eq!(not_given_back(&machine), (0, 0), "something was not given back");
            Ok(())
        });
        ran.unwrap();
    }
}

mod cuda {
    use super::*;

    #[test]
    fn nothing_is_wrong_if_programs_share_a_gpu() {
        let Some(device) = gpu() else { return };
        let ran = few(300).run(&vec(programs(Kind::Tidy), 6), |programs| {
            run_on_threads(&device, &programs);
            Ok(())
        });
        ran.unwrap();
    }

    #[test]
    fn nothing_is_wrong_if_a_gpu_does_the_work() {
        let Some(device) = gpu() else { return };
        let ran = few(2_000).run(&programs(Kind::Forgetful), |steps| {
            run(&device, &steps);
            Ok(())
        });
        ran.unwrap();
    }
}
