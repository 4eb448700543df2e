//! [`Machine`]: what users see of software devices.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use pagelock_memory::ByteSize;

use super::{
    core::{Core, Engines},
    driver::SoftwareDriver,
    faults::Fault,
};
use crate::{
    device::{Device, DeviceCore},
    error::{Error, Result},
};

/// How a [`Machine`] is made.
///
/// # Examples
/// ```
/// use pagelock_cuda::software::{Config, Execution, Machine};
///
/// let two_devices = Machine::new(Config { devices: 2, ..Config::default() });
/// let threaded = Machine::new(Config { execution: Execution::Threads(2), seed: 7, ..Config::default() });
/// assert!(two_devices.device(1).is_ok());
/// assert!(threaded.device(1).is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// How many devices it has.
    pub devices: u32,
    /// How much memory each has.
    pub memory: ByteSize,
    /// When work is done.
    pub execution: Execution,
    /// The version of the instruction set for which kernels are accepted: they are compiled, loaded and launched, and do
    /// nothing. None: there are no kernels.
    pub kernels_for: Option<(u32, u32)>,
    /// Whether races of `unsafe` code with copies are found, as `PAGELOCK_SANITIZE=1` does on every device.
    pub sanitize: bool,
    /// What decides wherever the execution has a choice: the same seed and the same calls give the same run, unless
    /// there are threads.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 1,
            memory: ByteSize::gib(1),
            execution: Execution::Stepped { haste: 64 },
            kernels_for: None,
            sanitize: false,
            seed: 0,
        }
    }
}

/// When work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// By whoever calls, in the middle of calls: after each call, pieces of work chosen at random, each with a chance
    /// of `haste` in 256 that another follows; and what a wait needs. With a haste of 0 nothing is done before
    /// somebody waits for it.
    Stepped {
        /// 0 to 255.
        haste: u8,
    },
    /// By this many threads, which choose at random.
    Threads(u32),
}

/// Software devices of one host, and the strings they hang on. Cheap to clone: all clones are the same machine.
///
/// # Examples
/// ```
/// use pagelock_cuda::software::{Config, Machine};
///
/// let machine = Machine::new(Config::default());
/// let stream = machine.device(0)?.stream()?;
/// let numbers = stream.allocate_from(&[1.0_f32, 2.0, 3.0])?;
/// assert_eq!(stream.read(&numbers)?, [1.0, 2.0, 3.0]);
/// assert!(machine.violations().is_empty());
/// # Ok::<(), pagelock_cuda::Error>(())
/// ```
#[derive(Clone)]
pub struct Machine {
    shared: Arc<Shared>,
}

struct Shared {
    engines: Arc<Engines>,
    memory: ByteSize,
    kernels_for: Option<(u32, u32)>,
    sanitize: bool,
    devices: Mutex<Vec<Weak<DeviceCore>>>, // guards that a device is made once
}

impl Machine {
    /// A machine of its own.
    pub fn new(config: Config) -> Self {
        let engines = Engines::start(config.execution, config.seed);
        let devices = (0..config.devices).map(|_| Weak::new()).collect();
        let Config { memory, kernels_for, sanitize, .. } = config;
        Self { shared: Arc::new(Shared { engines, memory, kernels_for, sanitize, devices: Mutex::new(devices) }) }
    }

    /// One of its devices; the same one for the same number, while any handle to it lives.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`].
    pub fn device(&self, ordinal: u32) -> Result<Device> {
        let mut devices = self.shared.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let count = devices.len() as u32;
        let place = devices.get_mut(ordinal as usize).ok_or(Error::NoSuchDevice { ordinal, count })?;
        if let Some(known) = place.upgrade() {
            return Ok(Device::from_core(known));
        }
        let Shared { engines, memory, kernels_for, sanitize, .. } = &*self.shared;
        let driver = SoftwareDriver::new(engines.clone(), ordinal, *memory, *kernels_for);
        let make = if *sanitize { Device::watched } else { Device::with_driver };
        let device = make(Arc::new(driver));
        *place = Arc::downgrade(device.core());
        Ok(device)
    }

    /// Makes a call fail.
    pub fn fail(&self, fault: Fault) {
        self.core().lock().faults.add(fault);
    }

    /// Forgets the faults that have not happened yet, and revives a device that was lost.
    pub fn heal(&self) {
        self.core().lock().faults.clear();
    }

    /// How many calls of the driver there were.
    pub fn calls(&self) -> u64 {
        self.core().lock().calls
    }

    /// Does everything that can be done.
    pub fn run_all(&self) {
        self.core().run_all();
    }

    /// What a device found that must never happen, as texts: a copy that touches memory after it was freed, say.
    pub fn violations(&self) -> Vec<String> {
        self.core().lock().violations.clone()
    }

    /// Device memory that is allocated, of all devices.
    pub fn allocated(&self) -> ByteSize {
        ByteSize(self.core().memory().allocated_bytes() as u64)
    }

    /// Host memory that is page-locked.
    pub fn page_locked(&self) -> ByteSize {
        ByteSize(self.core().lock().registered.values().map(|&len_bytes| len_bytes as u64).sum())
    }

    fn core(&self) -> &Core {
        self.shared.engines.core()
    }
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("calls", &self.calls()).finish_non_exhaustive()
    }
}
