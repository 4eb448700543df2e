//! Devices to test, and small helpers.

use pagelock_cuda::{
    Device,
    software::{Config, Machine, Schedule},
};

/// The GPU, or none after saying so; an error if there has to be one.
pub(crate) fn gpu() -> Option<Device> {
    match Device::cuda(0) {
        Ok(device) => Some(device),
        Err(missing) => {
            let required = std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1");
            assert!(!required, "REQUIRE_GPU=1, but {missing}");
            eprintln!("SKIPPED: {missing}");
            None
        }
    }
}

/// A machine on which nothing is done before somebody waits.
pub(crate) fn lazy(seed: u64) -> Machine {
    Machine::new(Config { schedule: Schedule::Stepped { haste: 0 }, seed, ..Config::default() })
}

/// A machine on which work is done at random moments.
pub(crate) fn moody(seed: u64) -> Machine {
    Machine::new(Config { schedule: Schedule::Stepped { haste: 100 }, seed, ..Config::default() })
}

/// A machine with threads of its own.
pub(crate) fn threaded(seed: u64) -> Machine {
    Machine::new(Config { schedule: Schedule::Threads(3), seed, ..Config::default() })
}

/// `len` numbers that differ from those of other seeds.
pub(crate) fn pattern(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| seed.wrapping_mul(0x9E37_79B9) ^ i).collect()
}
