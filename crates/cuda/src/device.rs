//! [`Device`]: one GPU, or one software device.

use std::{
    fmt, mem,
    sync::{
        Arc, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use pagelock_memory::{Budget, ByteSize, PageLocker, Resource, Trim};

use crate::{
    copy::staging::DeviceStaging,
    deferred_drops::{DeferredDrops, Scan},
    device_shared::DeviceShared,
    driver::{self, Driver, MemoryInfo, Outside, Properties, cuda},
    error::{Error, OnDevice, Result},
    host_function,
    kernel::Modules,
    page_locked::{self, PageLockedMemory, page_locked_budget},
    pool::BlockCache,
    sanitize::{self, Watch},
    software,
    stream::{Handles, Priority, Queue, Stream, StreamCore},
    sync::{Mutex, lock},
};

/// One device. Cheap to clone: all clones are the same device.
///
/// # Examples
/// Asking for a GPU, and saying what is missing:
/// ```
/// use pagelock_cuda::Device;
///
/// match Device::cuda(0) {
///     Ok(device) => println!("{} with {}", device.properties().name, device.properties().memory),
///     Err(missing) => println!("{missing}"),
/// }
/// ```
#[derive(Clone)]
pub struct Device {
    core: Arc<DeviceCore>,
}

/// What a device's handles, streams and buffers share.
pub(crate) struct DeviceCore {
    shared: Arc<DeviceShared>,
    deferred: DeferredDrops,
    dropped: DeferredDrops, // host buffers
    staging: DeviceStaging,
    modules: Modules,
    page_locked: PageLockedMemory,
    streams: Mutex<Vec<Weak<StreamCore>>>,        // guards which streams there are
    idle_queues: Mutex<Vec<(Queue, BlockCache)>>, // guards those without a stream
    pub(crate) handles: Handles,
}

impl Device {
    /// The GPU of that number, opened at the first call and kept for the life of the process.
    ///
    /// # Errors
    /// [`Error::Absent`](crate::Error::Absent) says what is missing where there is no CUDA;
    /// [`Error::NoSuchDevice`](crate::Error::NoSuchDevice).
    pub fn cuda(ordinal: u32) -> Result<Self> {
        static DEVICES: std::sync::Mutex<Vec<(u32, Device)>> = std::sync::Mutex::new(Vec::new());
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, device)) = devices.iter().find(|(known, _)| *known == ordinal) {
            return Ok(device.clone());
        }
        let device = Self::with_driver(Arc::new(cuda::PrimaryContext::open(ordinal)?));
        devices.push((ordinal, device.clone()));
        Ok(device)
    }

    /// How many GPUs there are.
    ///
    /// # Errors
    /// [`Error::Absent`](crate::Error::Absent) says what is missing where there is no CUDA.
    pub fn cuda_count() -> Result<u32> {
        Ok(cuda::device_count()?)
    }

    /// The first device of a new software [`Machine`](software::Machine).
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`](crate::Error::NoSuchDevice) if the machine has none.
    pub fn software(config: software::Config) -> Result<Self> {
        software::Machine::new(config).device(0)
    }

    /// A device behind a driver of one's own. Two devices of one driver do not know each other.
    pub fn with_driver(driver: Arc<dyn Driver>) -> Self {
        if sanitize::is_wanted() { Self::watched(driver) } else { Self::of(driver, None) }
    }

    /// The same, which finds races of `unsafe` code whatever the environment says.
    pub(crate) fn watched(driver: Arc<dyn Driver>) -> Self {
        let (driver, watch) = sanitize::watched(driver);
        Self::of(driver, Some(watch))
    }

    fn of(driver: Arc<dyn Driver>, watch: Option<Arc<Watch>>) -> Self {
        let driver = Outside::around(driver);
        let page_locked = page_locked::memory_for(driver.clone());
        let core = DeviceCore {
            shared: Arc::new(DeviceShared::new(driver, watch)),
            deferred: DeferredDrops::default(),
            dropped: DeferredDrops::default(),
            staging: DeviceStaging::default(),
            modules: Modules::default(),
            page_locked,
            streams: Mutex::new(Vec::new()),
            idle_queues: Mutex::new(Vec::new()),
            handles: Handles::default(),
        };
        let core = Arc::new(core);
        let pool: Weak<DeviceCore> = Arc::downgrade(&core);
        page_locked_budget().add_pool(pool);
        let shown: Weak<DeviceCore> = Arc::downgrade(&core);
        pagelock_memory::register_device(shown);
        Self { core }
    }

    pub(crate) fn from_core(core: Arc<DeviceCore>) -> Self {
        Self { core }
    }

    pub(crate) fn core(&self) -> &Arc<DeviceCore> {
        &self.core
    }

    /// What it is.
    pub fn properties(&self) -> &Properties {
        self.core.shared.driver.properties()
    }

    /// How much memory it has and has left, for all processes together.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(self.core.shared.driver.memory_info()?)
    }

    /// What this program may take of the device's memory, at first all of it; buffers and what the pool keeps for
    /// later count.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    /// use pagelock_memory::ByteSize;
    ///
    /// let device = Device::software(Config::default())?;
    /// device.memory_budget().set_limit(ByteSize::mib(8));
    /// let refused = device.stream()?.allocate::<u8>(9 << 20).unwrap_err();
    /// assert_eq!(
    ///     refused.to_string(),
    ///     "cannot take 9 MiB: budget `device 0` has 8 MiB left of 8 MiB; drop device buffers, use smaller batches, \
    ///      or raise the device's limit"
    /// );
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn memory_budget(&self) -> &Budget {
        &self.core.shared.memory
    }

    /// Page-locked host memory that this device copies from and to: pooled, and limited by
    /// [`page_locked_ceiling`](pagelock_memory::page_locked_ceiling).
    pub fn page_locked(&self) -> &PageLockedMemory {
        &self.core.page_locked
    }

    /// Locks pages so that this device, and all others of its driver, can copy from and to them: for page-locked memory
    /// under a budget of one's own.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, Pinned, software::Config};
    /// use pagelock_memory::{Budget, ByteSize, HostBuffer, HugePages, Limited, PageLocked, Pooled};
    ///
    /// let device = Device::software(Config::default())?;
    /// let source = PageLocked::new().locked_by(device.page_locker()).huge_pages(HugePages::WhereGranted);
    /// let slots = Pooled::new(Limited::new(source, Budget::new("loader", ByteSize::mib(8))));
    /// let slot = Pinned::<f32>::from_buffer(HostBuffer::allocate(&slots, 4_000)?)?;
    /// assert_eq!(slot.len(), 1_000);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn page_locker(&self) -> Arc<dyn PageLocker> {
        page_locked::locker_for(self.core.shared.driver.clone())
    }

    /// A stream of normal priority.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn stream(&self) -> Result<Stream> {
        self.stream_with_priority(Priority::Normal)
    }

    /// A stream of that priority.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn stream_with_priority(&self, priority: Priority) -> Result<Stream> {
        let core = self.new_stream_core(priority)?;
        self.add_stream(&core);
        Ok(Stream::from_core(core))
    }

    /// A stream that captures. It is registered only when the capture has begun.
    pub(crate) fn capturing_stream(&self) -> Result<Stream> {
        let core = self.new_stream_core(Priority::Normal)?;
        core.begin_capture()?;
        self.add_stream(&core);
        Ok(Stream::from_core(core))
    }

    fn new_stream_core(&self, priority: Priority) -> Result<Arc<StreamCore>> {
        let (queue, cache) = match self.take_idle_queue(priority) {
            Some(kept) => kept,
            None => (self.new_queue(priority)?, BlockCache::default()),
        };
        Ok(Arc::new(StreamCore::new(self.clone(), queue, cache)))
    }

    fn add_stream(&self, core: &Arc<StreamCore>) {
        let mut streams = lock(&self.core.streams);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(core));
    }

    /// Waits, on the host, until everything that was queued on any stream of this device is done. Captures that are
    /// going on, which do nothing yet, are left alone.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver), also for work that failed.
    pub fn synchronize(&self) -> Result<()> {
        host_function::refuse_inside()?;
        self.core.handles.synchronize(&self.core.shared)?;
        self.core.release_finished_buffers_too();
        self.core.shared.check_races()
    }

    /// Waits, on the host, until everything is done that anything of the process queued in this device's context, other libraries too.
    ///
    /// # Errors
    /// [`Error::Driver`], also while work is captured, which it spoils.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let device = Device::software(Config::default())?;
    /// let zeros = device.stream()?.zeros::<u8>(100)?;
    /// device.synchronize_context()?; // now it has them
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn synchronize_context(&self) -> Result<()> {
        host_function::refuse_inside()?;
        Ok(self.core.shared.driver.synchronize()?)
    }

    /// Lets copies from `peer` to this device go the direct way, where the hardware has one; true if it has.
    ///
    /// Copies work without it, through the host.
    ///
    /// # Errors
    /// [`Error::OtherDriver`]; [`Error::Driver`].
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::software::{Config, Machine};
    ///
    /// let machine = Machine::new(Config { devices: 2, ..Config::default() });
    /// assert!(machine.device(0)?.enable_peer(&machine.device(1)?)?);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn enable_peer(&self, peer: &Device) -> Result<bool> {
        host_function::refuse_inside()?;
        let (driver, peer) = (&self.core.shared.driver, &peer.core.shared);
        if !self.core.shared.knows(peer) {
            return Err(Error::OtherDriver { what: OnDevice::Peer });
        }
        if !driver.can_access_peer(peer.ordinal)? {
            return Ok(false);
        }
        // SAFETY: the context of a device that exists; a driver refuses its own.
        unsafe { driver.enable_peer(peer.driver.context()) }?;
        Ok(true)
    }

    /// What was leaked because the device could not say whether it was done with it; nothing, unless the driver
    /// failed.
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let device = Device::software(Config::default())?;
    /// assert_eq!(device.leaked().count, 0);
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn leaked(&self) -> Leaked {
        let leaked = &self.core.shared.leaked;
        Leaked { count: leaked.times(), memory: leaked.bytes() }
    }

    /// What copies hold at the moment.
    pub fn in_flight(&self) -> InFlight {
        let deferred = (self.core.deferred.len() + self.core.dropped.len()) as u64;
        InFlight { tickets: self.core.shared.in_flight.load(Relaxed), deferred }
    }

    /// Gives back what dropped tickets held, and dropped buffers, where the device is done with it. New copies do that too,
    /// a few at a time.
    pub fn release_finished(&self) {
        self.core.deferred.release_finished(&self.core.shared, Scan::All);
        self.core.dropped.release_finished(&self.core.shared, Scan::All);
    }

    /// All streams, also those that nobody has a handle of.
    pub(crate) fn streams(&self) -> Vec<Arc<StreamCore>> {
        let mut streams: Vec<_> = lock(&self.core.streams).iter().filter_map(Weak::upgrade).collect();
        let idle = std::mem::take(&mut *lock(&self.core.idle_queues));
        // Streams for a moment: when they are dropped, the device keeps their queues again.
        streams.extend(idle.into_iter().map(|(queue, cache)| Arc::new(StreamCore::new(self.clone(), queue, cache))));
        streams
    }

    fn new_queue(&self, priority: Priority) -> driver::Result<Queue> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1); // over all devices: streams wait for streams of others
        let driver = &self.core.shared.driver;
        let (least, greatest) = driver.properties().stream_priorities;
        let handle = driver.create_stream(match priority {
            Priority::Normal => least,
            Priority::High => greatest,
        })?;
        self.core.handles.add(handle);
        Ok(Queue::new(handle, priority, NEXT_ID.fetch_add(1, Relaxed)))
    }

    /// A queue of that priority that nobody uses and in which nothing is going on.
    fn take_idle_queue(&self, priority: Priority) -> Option<(Queue, BlockCache)> {
        let mut idle = lock(&self.core.idle_queues);
        let at = idle.iter().position(|(queue, _)| {
            // SAFETY: the device destroys its queues only when it is dropped.
            let asked = || unsafe { self.core.shared.driver.query_stream(queue.handle) };
            queue.priority == priority && !self.core.handles.is_capturing(queue.handle) && asked() == Ok(true)
        })?;
        Some(idle.swap_remove(at))
    }
}

/// What a device's copies hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlight {
    /// Tickets that were neither waited for nor dropped; a forgotten one counts for ever.
    pub tickets: u64,
    /// What dropped tickets left to be given back.
    pub deferred: u64,
}

/// What had to be leaked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leaked {
    /// How many buffers.
    pub count: u64,
    /// How much memory.
    pub memory: ByteSize,
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let properties = self.properties();
        write!(f, "Device({}: {})", properties.ordinal, properties.name)
    }
}

impl DeviceCore {
    pub(crate) fn shared(&self) -> &Arc<DeviceShared> {
        &self.shared
    }

    pub(crate) fn deferred(&self) -> &DeferredDrops {
        &self.deferred
    }

    /// Where host buffers go that are dropped without waiting.
    pub(crate) fn dropped(&self) -> &DeferredDrops {
        &self.dropped
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.modules
    }

    pub(crate) fn staging(&self) -> &DeviceStaging {
        &self.staging
    }

    /// Gives back what a few dropped tickets held.
    pub(crate) fn release_finished(&self) {
        self.deferred.release_finished(&self.shared, Scan::Few);
    }

    /// The same, and a few buffers that were dropped without waiting. Some may stay for long, so that launches do not ask the
    /// driver about them.
    pub(crate) fn release_finished_buffers_too(&self) {
        self.release_finished();
        self.dropped.release_finished(&self.shared, Scan::Few);
    }

    /// Shows `look` the cached blocks of every stream: of those in use, and of those whose last handle was dropped.
    pub(crate) fn each_cache(&self, look: &mut dyn FnMut(&BlockCache)) {
        let streams: Vec<_> = lock(&self.streams).iter().filter_map(Weak::upgrade).collect();
        streams.iter().for_each(|stream| look(&lock(&stream.cache)));
        lock(&self.idle_queues).iter().for_each(|(_, cache)| look(cache));
    }

    pub(crate) fn keep_queue(&self, queue: Queue, cache: BlockCache) {
        lock(&self.idle_queues).push((queue, cache));
    }
}

/// Of page-locked memory, when it is short.
impl Trim for DeviceCore {
    fn trim(&self) -> usize {
        if host_function::is_inside() {
            return 0;
        }
        self.deferred.release_finished(&self.shared, Scan::All);
        self.dropped.wait_down_to(&self.shared, 0);
        self.staging.trim(&self.shared);
        self.page_locked.trim()
    }
}

/// What is left of a device whose streams, buffers and tickets are all gone.
struct Remains {
    shared: Arc<DeviceShared>,
    deferred: DeferredDrops,
    dropped: DeferredDrops,
    staging: DeviceStaging,
    modules: Modules,
    handles: Handles,
    queues: Vec<(Queue, BlockCache)>,
    _page_locked: PageLockedMemory, // what it keeps is given back behind the rest
}

impl Drop for DeviceCore {
    fn drop(&mut self) {
        let remains = Remains {
            shared: self.shared.clone(),
            deferred: mem::take(&mut self.deferred),
            dropped: mem::take(&mut self.dropped),
            staging: mem::take(&mut self.staging),
            modules: mem::take(&mut self.modules),
            handles: mem::take(&mut self.handles),
            queues: mem::take(&mut *lock(&self.idle_queues)),
            _page_locked: self.page_locked.clone(),
        };
        host_function::outside(|| drop(remains));
    }
}

impl Drop for Remains {
    /// What is deferred or kept is given back if the device can say that it is done with everything, and leaked if not.
    fn drop(&mut self) {
        let Self { shared, deferred, dropped, .. } = self;
        self.staging.release(deferred);
        let nothing_is_left = self.queues.is_empty() && deferred.len() + dropped.len() == 0;
        let can_say = || self.handles.synchronize(shared).is_ok() || shared.driver.synchronize().is_ok();
        let done = nothing_is_left || can_say();
        deferred.clear(shared, done);
        dropped.clear(shared, done);
        self.modules.clear(shared, done);
        for (queue, mut cache) in mem::take(&mut self.queues) {
            if !done {
                cache.leak_all();
            }
            // SAFETY: made by this driver; nobody has it any more.
            let _ = unsafe { shared.driver.destroy_stream(queue.handle) };
        }
    }
}
