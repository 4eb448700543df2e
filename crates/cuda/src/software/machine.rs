//! [`Machine`]: the public interface of software devices.

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

/// The configuration of a [`Machine`].
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
    /// The number of devices.
    pub devices: u32,
    /// The memory of each device.
    pub memory: ByteSize,
    /// When work is executed.
    pub execution: Execution,
    /// The compute capability for which kernels are compiled. They are loaded and launched, but do nothing. With
    /// `None`, kernels are not supported.
    pub kernels_for: Option<(u32, u32)>,
    /// Whether races of `unsafe` code with copies are found, as `PAGELOCK_SANITIZE=1` does on every device.
    pub sanitize: bool,
    /// The seed of the random choices in the execution. Without threads, the same seed and the same calls give the
    /// same run.
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

/// When work is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// On the calling thread. After each call, random pieces of work are executed: another piece follows with a
    /// probability of `haste` in 256. A wait executes pieces until its condition is met. With a haste of 0, work is
    /// executed only by waits and queries.
    Stepped {
        /// 0 to 255.
        haste: u8,
    },
    /// On this many threads, in random order.
    Threads(u32),
}

/// The software devices of one host, with functions to control them. Cheap to clone: all clones are the same machine.
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
    devices: Mutex<Vec<Weak<DeviceCore>>>, // guards the devices, so that there is one per number
}

impl Machine {
    /// A new machine, which shares nothing with others.
    pub fn new(config: Config) -> Self {
        let engines = Engines::start(config.execution, config.seed);
        let devices = (0..config.devices).map(|_| Weak::new()).collect();
        let Config { memory, kernels_for, sanitize, .. } = config;
        Self { shared: Arc::new(Shared { engines, memory, kernels_for, sanitize, devices: Mutex::new(devices) }) }
    }

    /// The device of that number. Returns the same device as long as there is a handle to it.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`].
    pub fn device(&self, ordinal: u32) -> Result<Device> {
        let mut devices = self.shared.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let count = devices.len() as u32;
        let slot = devices.get_mut(ordinal as usize).ok_or(Error::NoSuchDevice { ordinal, count })?;
        if let Some(known) = slot.upgrade() {
            return Ok(Device::from_core(known));
        }
        let Shared { engines, memory, kernels_for, sanitize, .. } = &*self.shared;
        let driver = SoftwareDriver::new(engines.clone(), ordinal, *memory, *kernels_for);
        let make = if *sanitize { Device::watched } else { Device::with_driver };
        let device = make(Arc::new(driver));
        *slot = Arc::downgrade(device.core());
        Ok(device)
    }

    /// Makes a call fail.
    pub fn fail(&self, fault: Fault) {
        self.core().lock().faults.add(fault);
    }

    /// Removes the pending faults, and makes lost devices work again.
    pub fn heal(&self) {
        self.core().lock().faults.clear();
    }

    /// The number of calls of the driver so far.
    pub fn calls(&self) -> u64 {
        self.core().lock().calls
    }

    /// Executes all work that can be executed.
    pub fn run_all(&self) {
        self.core().run_all();
    }

    /// Descriptions of invalid operations that devices found, for example a copy that uses freed memory.
    pub fn violations(&self) -> Vec<String> {
        self.core().lock().violations.clone()
    }

    /// The size of the allocated memory of all devices.
    pub fn allocated(&self) -> ByteSize {
        ByteSize(self.core().memory().allocated_bytes() as u64)
    }

    /// The size of the page-locked host memory.
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
