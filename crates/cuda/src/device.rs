//! [`Device`]: one GPU, or one software device.

use std::{
    fmt, mem,
    sync::{
        Arc, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use pagelock_memory::{Budget, ByteSize, PageLocker, Resource, Trim};

use crate::{
    copy::staging::DeviceStaging,
    deferred_drops::{DeferredDrops, Scan},
    device_shared::DeviceShared,
    driver::{self, Driver, MemoryInfo, Properties, cuda},
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
/// Open a GPU, or print what is missing:
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

/// The state that a device's handles, streams and buffers share.
pub(crate) struct DeviceCore {
    shared: Arc<DeviceShared>,
    pub(crate) deferred: DeferredDrops,
    pub(crate) dropped_buffers: DeferredDrops, // host buffers that were dropped without waiting
    pub(crate) staging: DeviceStaging,
    modules: Modules,
    page_locked: PageLockedMemory,
    streams: Mutex<Vec<Weak<StreamCore>>>,        // guards the list of streams
    idle_queues: Mutex<Vec<(Queue, BlockCache)>>, // guards the queues without a stream
    pub(crate) handles: Handles,
    pub(crate) pool_growth: Mutex<()>, // guards the change of the pool's memory; an outer lock (ARCHITECTURE.md), the first
}

impl Device {
    /// The GPU of that number, opened at the first call and kept open until the process exits.
    ///
    /// # Errors
    /// [`Error::Absent`](crate::Error::Absent) says what is missing where there is no CUDA;
    /// [`Error::NoSuchDevice`](crate::Error::NoSuchDevice); [`Error::Driver`](crate::Error::Driver).
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

    /// The number of GPUs.
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

    /// A device with a custom driver. Two devices that are made with the same driver cannot use each other's streams
    /// and buffers.
    pub fn with_driver(driver: Arc<dyn Driver>) -> Self {
        if sanitize::is_enabled() { Self::watched(driver) } else { Self::of(driver, None) }
    }

    /// Like [`with_driver`](Self::with_driver), but always detects races of `unsafe` code, whatever the environment
    /// says.
    pub(crate) fn watched(driver: Arc<dyn Driver>) -> Self {
        let (driver, watch) = sanitize::watched(driver);
        Self::of(driver, Some(watch))
    }

    fn of(driver: Arc<dyn Driver>, watch: Option<Arc<Watch>>) -> Self {
        let shared = Arc::new(DeviceShared::new(driver.clone(), watch));
        let page_locked = page_locked::memory_for(driver, shared.leaked.clone());
        let core = DeviceCore {
            shared,
            deferred: DeferredDrops::default(),
            dropped_buffers: DeferredDrops::default(),
            staging: DeviceStaging::default(),
            modules: Modules::default(),
            page_locked,
            streams: Mutex::new(Vec::new()),
            idle_queues: Mutex::new(Vec::new()),
            handles: Handles::default(),
            pool_growth: Mutex::default(),
        };
        let core = Arc::new(core);
        let pool: Weak<DeviceCore> = Arc::downgrade(&core);
        page_locked_budget().add_pool(pool);
        let reported: Weak<DeviceCore> = Arc::downgrade(&core);
        pagelock_memory::register_device(reported);
        Self { core }
    }

    pub(crate) fn from_core(core: Arc<DeviceCore>) -> Self {
        Self { core }
    }

    pub(crate) fn core(&self) -> &Arc<DeviceCore> {
        &self.core
    }

    /// The properties of the device.
    pub fn properties(&self) -> &Properties {
        self.core.shared.driver.properties()
    }

    /// How much memory the device has, and how much of it is free, over all processes.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(self.core.shared.driver.memory_info()?)
    }

    /// The budget for this program's use of the device's memory. Its limit is at first all of the memory. Buffers and
    /// the pool's free memory count.
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

    /// Page-locked host memory for copies from and to this device. It is pooled, and limited by
    /// [`page_locked_ceiling`](pagelock_memory::page_locked_ceiling).
    pub fn page_locked(&self) -> &PageLockedMemory {
        &self.core.page_locked
    }

    /// Locks pages so that this device, and all others of its driver, can copy from and to them. Use it for
    /// page-locked memory with a separate budget.
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
        page_locked::locker_for(self.core.shared.driver.clone(), self.core.shared.leaked.clone())
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

    /// A stream that captures. It is registered only after the capture has begun.
    pub(crate) fn capturing_stream(&self) -> Result<Stream> {
        let core = self.new_stream_core(Priority::Normal)?;
        core.begin_capture()?;
        self.add_stream(&core);
        Ok(Stream::from_core(core))
    }

    fn new_stream_core(&self, priority: Priority) -> Result<Arc<StreamCore>> {
        host_function::refuse_inside()?;
        let (queue, cache) = match self.take_idle_queue(priority) {
            Some(idle) => idle,
            None => (self.new_queue(priority)?, BlockCache::default()),
        };
        Ok(Arc::new(StreamCore::new(self.clone(), queue, cache)))
    }

    fn add_stream(&self, core: &Arc<StreamCore>) {
        let mut streams = lock(&self.core.streams);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(core));
    }

    /// Waits, on the host, until all work that was queued on any stream of this device is done. Does not wait for
    /// streams that capture, whose work is not executed yet.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver), also for work that failed.
    pub fn synchronize(&self) -> Result<()> {
        host_function::refuse_inside()?;
        self.core.handles.synchronize(&self.core.shared)?;
        self.core.release_finished_buffers_too();
        self.core.shared.check_races()
    }

    /// Waits, on the host, until all work in this device's context is done, including work that other libraries of
    /// this process queued.
    ///
    /// # Errors
    /// [`Error::Capturing`] while a stream of this device captures, since the wait would invalidate the capture;
    /// [`Error::Driver`].
    ///
    /// # Examples
    /// ```
    /// use pagelock_cuda::{Device, software::Config};
    ///
    /// let device = Device::software(Config::default())?;
    /// let zeros = device.stream()?.zeros::<u8>(100)?;
    /// device.synchronize_context()?; // `zeros` is filled now
    /// # Ok::<(), pagelock_cuda::Error>(())
    /// ```
    pub fn synchronize_context(&self) -> Result<()> {
        host_function::refuse_inside()?;
        self.core.handles.synchronize_context(&*self.core.shared.driver)
    }

    /// Lets copies from `peer` to this device take the direct path between the devices. Returns whether the hardware
    /// has such a path.
    ///
    /// Without it, copies go through the host.
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
        if !self.core.shared.is_same_family(peer) {
            return Err(Error::OtherDriver { what: OnDevice::Peer });
        }
        if !driver.can_access_peer(peer.ordinal)? {
            return Ok(false);
        }
        // SAFETY: the context of a device that exists. A driver returns an error for its own context.
        unsafe { driver.enable_peer(peer.driver.context()) }?;
        Ok(true)
    }

    /// The memory that was leaked because the driver could not say whether the device was done with it. Zero unless a
    /// call of the driver failed.
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
        Leaked { count: leaked.count(), memory: leaked.bytes() }
    }

    /// How many copies and dropped buffers hold host memory at the moment.
    pub fn in_flight(&self) -> InFlight {
        let deferred = (self.core.deferred.len() + self.core.dropped_buffers.len()) as u64;
        InFlight { tickets: self.core.shared.in_flight.load(Relaxed), deferred }
    }

    /// Frees the memory of dropped tickets and dropped host buffers with which the device is done. New copies do the
    /// same for a few at a time.
    pub fn release_finished(&self) {
        self.core.deferred.release_finished(&self.core.shared, Scan::All);
        self.core.dropped_buffers.release_finished(&self.core.shared, Scan::All);
    }

    /// All streams, including one for each idle queue that certainly does not capture.
    pub(crate) fn streams(&self) -> Vec<Arc<StreamCore>> {
        let mut streams: Vec<_> = lock(&self.core.streams).iter().filter_map(Weak::upgrade).collect();
        let mut usable: Vec<_> = lock(&self.core.idle_queues).iter().map(|(queue, _)| queue.handle).collect();
        usable.retain(|handle| !self.core.handles.is_capturing(*handle)); // without the lock, as below
        let is_usable = |(queue, _): &mut (Queue, BlockCache)| usable.contains(&queue.handle);
        let idle: Vec<_> = lock(&self.core.idle_queues).extract_if(.., is_usable).collect();
        // Temporary streams: when they are dropped, the device gets their queues back.
        streams.extend(idle.into_iter().map(|(queue, cache)| Arc::new(StreamCore::new(self.clone(), queue, cache))));
        streams
    }

    fn new_queue(&self, priority: Priority) -> driver::Result<Queue> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1); // for all devices: streams wait for streams of other devices
        let driver = &self.core.shared.driver;
        let (least, greatest) = driver.properties().stream_priorities;
        let handle = driver.create_stream(match priority {
            Priority::Normal => least,
            Priority::High => greatest,
        })?;
        self.core.handles.add(handle);
        Ok(Queue::new(handle, priority, NEXT_ID.fetch_add(1, Relaxed)))
    }

    /// Removes a queue of that priority that has no stream and no unfinished work.
    fn take_idle_queue(&self, priority: Priority) -> Option<(Queue, BlockCache)> {
        let candidates: Vec<_> = {
            let queues = lock(&self.core.idle_queues);
            let of_priority = queues.iter().filter(|(queue, _)| queue.priority == priority);
            of_priority.map(|(queue, _)| queue.handle).collect()
        };
        // Queried without the lock, since host functions take it. Meanwhile other threads find the queues and their caches.
        candidates.into_iter().find_map(|handle| {
            if !self.core.handles.is_idle(&*self.core.shared.driver, handle) {
                return None;
            }
            let mut queues = lock(&self.core.idle_queues);
            let at = queues.iter().position(|(queue, _)| queue.handle == handle)?; // another thread may have taken it
            Some(queues.swap_remove(at))
        })
    }
}

/// The number of copies, finished or not, whose host memory a device still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlight {
    /// Tickets that were neither waited for nor dropped. A forgotten ticket counts forever.
    pub tickets: u64,
    /// Dropped tickets and host buffers whose memory is not freed yet.
    pub deferred: u64,
}

/// Memory that had to be leaked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leaked {
    /// The number of buffers.
    pub count: u64,
    /// Their size.
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

    pub(crate) fn modules(&self) -> &Modules {
        &self.modules
    }

    /// Frees the memory of a few dropped tickets with which the device is done.
    pub(crate) fn release_finished(&self) {
        self.deferred.release_finished(&self.shared, Scan::Few);
    }

    /// Frees the memory of a few dropped tickets and of a few host buffers that were dropped without waiting.
    /// Launches do not call this: some of these buffers stay in use for long, and each call would query their events.
    pub(crate) fn release_finished_buffers_too(&self) {
        self.release_finished();
        self.dropped_buffers.release_finished(&self.shared, Scan::Few);
    }

    /// Calls `visit` with the cache of every stream, including the streams whose last handle was dropped.
    pub(crate) fn each_cache(&self, visit: &mut dyn FnMut(&BlockCache)) {
        let streams: Vec<_> = lock(&self.streams).iter().filter_map(Weak::upgrade).collect();
        streams.iter().for_each(|stream| visit(&lock(&stream.cache)));
        lock(&self.idle_queues).iter().for_each(|(_, cache)| visit(cache));
    }

    pub(crate) fn recycle_queue(&self, queue: Queue, cache: BlockCache) {
        lock(&self.idle_queues).push((queue, cache));
    }
}

/// How long a reservation that finds the budget full waits for copies out of dropped buffers. The copies may be queued
/// behind long kernels. Without a limit, it would wait for ever if it is made under a lock that a host function needs.
const TRIM_WAITS_AT_MOST: Duration = Duration::from_secs(10);

/// Frees page-locked memory when it is short.
impl Trim for DeviceCore {
    fn trim(&self) -> usize {
        if host_function::is_inside() {
            return 0;
        }
        self.deferred.release_finished(&self.shared, Scan::All);
        self.dropped_buffers.wait_at_most(&self.shared, TRIM_WAITS_AT_MOST);
        self.staging.trim(&self.shared);
        self.page_locked.trim()
    }
}

/// The state that is left when all streams, buffers and tickets of a device are dropped.
struct Teardown {
    shared: Arc<DeviceShared>,
    deferred: DeferredDrops,
    dropped_buffers: DeferredDrops,
    staging: DeviceStaging,
    modules: Modules,
    handles: Handles,
    queues: Vec<(Queue, BlockCache)>,
    _page_locked: PageLockedMemory, // its free memory is released after everything else
}

impl Drop for DeviceCore {
    fn drop(&mut self) {
        let teardown = Teardown {
            shared: self.shared.clone(),
            deferred: mem::take(&mut self.deferred),
            dropped_buffers: mem::take(&mut self.dropped_buffers),
            staging: mem::take(&mut self.staging),
            modules: mem::take(&mut self.modules),
            handles: mem::take(&mut self.handles),
            queues: mem::take(&mut *lock(&self.idle_queues)),
            _page_locked: self.page_locked.clone(),
        };
        host_function::run_or_defer(|| drop(teardown));
    }
}

impl Drop for Teardown {
    /// Frees all deferred and cached memory if the driver can say that the device is done with everything, else leaks
    /// it.
    fn drop(&mut self) {
        let Self { shared, deferred, dropped_buffers, .. } = self;
        self.staging.release(deferred);
        let nothing_is_left = self.queues.is_empty() && deferred.len() + dropped_buffers.len() == 0;
        let is_synchronized = || self.handles.synchronize(shared).is_ok() || shared.driver.synchronize().is_ok();
        let done = nothing_is_left || is_synchronized();
        deferred.clear(shared, done);
        dropped_buffers.clear(shared, done);
        self.modules.clear(shared, done);
        for (queue, mut cache) in mem::take(&mut self.queues) {
            if !done {
                cache.leak_all();
            }
            // SAFETY: made by this driver, and no other handle to it exists.
            let _ = unsafe { shared.driver.destroy_stream(queue.handle) };
        }
    }
}
