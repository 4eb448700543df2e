//! Random programs on devices that work, under every schedule.

use pagelock_cuda::{Device, software::Machine};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use crate::{
    program::{Kind, Step, World, programs},
    tools::{gpu, lazy, moody, threaded},
};

fn run(device: &Device, steps: &[Step]) {
    let mut world = World::new(device).unwrap();
    world.run(steps, |error| panic!("{error}"));
    world.check();
    assert_eq!(device.leaked().count, 0);
}

/// Everything is as it must be, and nothing is left.
fn run_and_count(machine: &Machine, steps: &[Step]) {
    let device = machine.device(0).unwrap();
    run(&device, steps);
    drop(device);
    machine.run_all();
    assert_eq!(machine.violations(), [""; 0]);
    assert_eq!((machine.allocated().0, machine.page_locked().0), (0, 0), "something was not given back");
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
    let cases = Config { cases: 64, ..Config::default() };
    let ran = TestRunner::new(cases).run(&(any::<u64>(), programs(Kind::Tidy)), |(seed, steps)| {
        run_and_count(&threaded(seed), &steps);
        Ok(())
    });
    ran.unwrap();
}

mod cuda {
    use super::*;

    #[test]
    fn nothing_is_wrong_if_a_gpu_does_the_work() {
        let Some(device) = gpu() else { return };
        let cases = Config { cases: 2_000, failure_persistence: None, ..Config::default() };
        let ran = TestRunner::new(cases).run(&programs(Kind::Forgetful), |steps| {
            run(&device, &steps);
            Ok(())
        });
        ran.unwrap();
    }
}
