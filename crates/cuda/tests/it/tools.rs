//! Devices to test, and small helpers.

use std::{
    ops::Deref,
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use pagelock_cuda::{
    Device, DeviceBuffer, Stream,
    software::{Config, Execution, Machine},
};

/// The GPU, for one test at a time: some tests block its queues on purpose, others count all memory that it holds.
pub(crate) struct Gpu {
    device: Device,
    _alone: MutexGuard<'static, ()>,
}

impl Deref for Gpu {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

/// The GPU, or `None` after printing why there is none. Panics without a GPU if `REQUIRE_GPU=1`.
pub(crate) fn gpu() -> Option<Gpu> {
    static ALONE: Mutex<()> = Mutex::new(());
    match Device::cuda(0) {
        Ok(device) => Some(Gpu { device, _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner) }),
        Err(missing) => {
            let required = std::env::var_os("REQUIRE_GPU").is_some_and(|value| value == "1");
            assert!(!required, "REQUIRE_GPU=1, but {missing}");
            eprintln!("SKIPPED: {missing}");
            None
        }
    }
}

/// Software devices of all schedules, and the GPU, where there is one. Nothing may leak.
pub(crate) fn on_every_device(test: impl Fn(&Device)) {
    let check = |device: &Device| {
        test(device);
        assert_eq!(device.leaked().count, 0);
    };
    [lazy(1), moody(2), threaded(3)].into_iter().for_each(|machine| check(&machine.device(0).unwrap()));
    if let Some(gpu) = gpu() {
        check(&gpu);
    }
}

/// `cargo xtask test-gpu` runs this test first.
#[test]
fn there_is_a_gpu() {
    gpu();
}

/// A machine that does nothing before a thread waits for it.
pub(crate) fn lazy(seed: u64) -> Machine {
    Machine::new(Config { execution: Execution::Stepped { haste: 0 }, seed, ..Config::default() })
}

/// A machine that does its work at random moments.
pub(crate) fn moody(seed: u64) -> Machine {
    Machine::new(Config { execution: Execution::Stepped { haste: 100 }, seed, ..Config::default() })
}

/// A machine that does its work on threads.
pub(crate) fn threaded(seed: u64) -> Machine {
    Machine::new(Config { execution: Execution::Threads(3), seed, ..Config::default() })
}

/// How many bytes of device and page-locked memory are still allocated after a machine's devices were dropped.
///
/// Another test's thread may hold a device for a moment, since a thread that is refused page-locked memory trims every
/// device of the process. So this waits up to five seconds.
pub(crate) fn not_given_back(machine: &Machine) -> (u64, u64) {
    let given_out = || (machine.allocated().0, machine.page_locked().0);
    let end = Instant::now() + Duration::from_secs(5);
    while given_out() != (0, 0) && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    given_out()
}

/// Runs `test` on a thread of its own, and fails if it does not end.
pub(crate) fn ends(test: impl FnOnce() + Send + 'static) {
    let (send, receive) = mpsc::channel();
    let running = thread::spawn(move || {
        test();
        let _ = send.send(());
    });
    let ended = receive.recv_timeout(Duration::from_secs(60));
    assert!(ended != Err(mpsc::RecvTimeoutError::Timeout), "it waits for ever");
    running.join().unwrap();
}

/// `len` numbers that differ from those of other seeds.
pub(crate) fn pattern(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| seed.wrapping_mul(0x9E37_79B9) ^ i).collect()
}

/// How often a race is provoked: `$TRIES`, or 50 times.
pub(crate) fn tries() -> u32 {
    std::env::var("TRIES").ok().and_then(|tries| tries.parse().ok()).unwrap_or(50)
}

/// Work that keeps a stream busy for a while, so that what is queued behind it is not done at once.
pub(crate) struct Delay(DeviceBuffer<u8>);

impl Delay {
    pub(crate) fn new(stream: &Stream) -> Self {
        let is_software = stream.device().properties().name == "software device";
        Self(stream.allocate(if is_software { 1 << 10 } else { 128 << 20 }).unwrap())
    }

    pub(crate) fn queue(&mut self, stream: &Stream) {
        stream.fill(&mut self.0, 0).unwrap();
    }
}

/// Like `std::mem::forget`, but in a list where a leak checker finds it.
pub(crate) fn forget(forgotten: impl Send + 'static) {
    static FORGOTTEN: Mutex<Vec<Box<dyn Send>>> = Mutex::new(Vec::new());
    FORGOTTEN.lock().unwrap().push(Box::new(forgotten));
}
