//! What this crate asks of a device: one trait, [`Driver`], implemented by `cuda/` and by the software device.
//!
//! A driver is one device. It counts nothing, orders nothing and keeps nothing alive: that is the business of the
//! layers above, which are the same for both implementations. `call.rs` names the operations and their failures.

mod call;
pub(crate) mod cuda;
mod outside;
mod types;

use std::{
    ffi::{CStr, c_void},
    ptr::NonNull,
};

pub(crate) use self::outside::Outside;
pub use self::{
    call::{Call, Failure, Result, Status},
    types::{
        Address, Copy2d, End, EventHandle, EventTiming, Family, FunctionHandle, GraphHandle, HostFunction, Launch,
        MemoryInfo, ModuleHandle, NodeHandle, Pattern, PreparedLaunch, Properties, RunnableGraphHandle, Start,
        StreamHandle,
    },
};

/// One device, as a driver offers it.
///
/// Handles are plain numbers that mean something only to the driver that made them, or to its [`Family`]. Operations on a stream return
/// when the work is queued; everything else is done when the call returns.
///
/// # Safety
/// An implementation promises that
/// - work queued on one stream runs in order, and only after the work that its event waits name;
/// - an event that was recorded is reached, by `query_event` or `synchronize_event`, only after everything that was
///   queued on its stream before the recording is done, and the device has no more use of the memory that it names;
/// - `synchronize_stream` and `synchronize` return `Ok` only after all work queued before is done in this sense;
/// - addresses returned by `allocate` are valid for their length until `free`, and overlap no other allocation.
#[allow(missing_docs, reason = "named after the driver's own calls, which `Call` lists")]
pub unsafe trait Driver: Send + Sync + 'static {
    // The device.

    /// What the device is; read once, when it is opened.
    fn properties(&self) -> &Properties;

    /// How much memory the device has and has left.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Waits for everything that was queued on this device.
    fn synchronize(&self) -> Result<()>;

    /// Whether the device can be given direct access to the memory of the one with that number.
    fn can_access_peer(&self, peer: u32) -> Result<bool>;

    /// Gives the device direct access to another's memory, by its [`context`](Self::context), so that copies from
    /// there need not go through the host. Harmless where it has it already.
    ///
    /// # Safety
    /// The context is another device's of this driver.
    unsafe fn enable_peer(&self, peer: u64) -> Result<()>;

    /// Which devices' handles mean something to this one: events that its streams can wait for, contexts that it can copy
    /// from. A driver that does not say is a family of its own.
    fn family(&self) -> Family {
        Family::of(self)
    }

    /// A number that tells this device's context from others, for [`copy_from_peer`](Self::copy_from_peer).
    fn context(&self) -> u64;

    /// Makes the device the thread's current one, for a library that works with CUDA, where a stream's handle is CUDA's.
    fn make_current(&self) -> Result<()> {
        Err(Failure::not_supported(Call::Open))
    }

    // Memory.

    /// Device memory of exactly `len_bytes` bytes, at least 256-byte aligned; not cleared.
    fn allocate(&self, len_bytes: usize) -> Result<Address>;

    /// Gives back what [`allocate`](Self::allocate) returned.
    ///
    /// # Safety
    /// No work that uses it is queued or running.
    unsafe fn free(&self, address: Address) -> Result<()>;

    /// Locks host pages and makes them known to every device.
    ///
    /// # Safety
    /// The range is whole pages that stay mapped and writable until [`unregister`](Self::unregister).
    unsafe fn register(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()>;

    /// Undoes one [`register`](Self::register).
    ///
    /// # Safety
    /// `start` was registered, and no work that uses the range is queued or running.
    unsafe fn unregister(&self, start: NonNull<u8>) -> Result<()>;

    // Streams.

    /// A stream that runs beside all others; the lower the number, the higher the priority.
    fn create_stream(&self, priority: i32) -> Result<StreamHandle>;

    /// # Safety
    /// The stream is not used afterwards. What is queued on it still runs.
    unsafe fn destroy_stream(&self, stream: StreamHandle) -> Result<()>;

    /// Whether everything queued on the stream is done.
    ///
    /// # Safety
    /// The stream exists.
    unsafe fn query_stream(&self, stream: StreamHandle) -> Result<bool>;

    /// Waits until everything queued on the stream is done.
    ///
    /// # Safety
    /// The stream exists.
    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> Result<()>;

    /// What is queued on the stream from now on waits for the event's latest recording, on any device.
    ///
    /// # Safety
    /// Both exist.
    unsafe fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()>;

    // Events.

    /// An event, not recorded yet.
    fn create_event(&self, timing: EventTiming) -> Result<EventHandle>;

    /// # Safety
    /// The event is not used afterwards. Waits for it that are queued still hold.
    unsafe fn destroy_event(&self, event: EventHandle) -> Result<()>;

    /// # Safety
    /// Both exist, on this device.
    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()>;

    /// Whether the latest recording is reached.
    ///
    /// # Safety
    /// The event exists and was recorded.
    unsafe fn query_event(&self, event: EventHandle) -> Result<bool>;

    /// Waits until the latest recording is reached.
    ///
    /// # Safety
    /// The event exists and was recorded.
    unsafe fn synchronize_event(&self, event: EventHandle) -> Result<()>;

    /// Milliseconds from one recording to the other.
    ///
    /// # Safety
    /// Both exist, with timing, and are reached.
    unsafe fn elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32>;

    // Copies. The safety of all of them: the stream exists, and until the work is done both ranges are valid, nobody
    // else writes what is read, and nobody else uses what is written.

    /// # Safety
    /// See above.
    unsafe fn copy_to_device(&self, stream: StreamHandle, to: Address, from: *const u8, len_bytes: usize)
    -> Result<()>;

    /// # Safety
    /// See above.
    unsafe fn copy_to_host(&self, stream: StreamHandle, to: *mut u8, from: Address, len_bytes: usize) -> Result<()>;

    /// # Safety
    /// See above.
    unsafe fn copy_on_device(&self, stream: StreamHandle, to: Address, from: Address, len_bytes: usize) -> Result<()>;

    /// From the memory of the device whose [`context`](Self::context) is `peer`.
    ///
    /// # Safety
    /// See above.
    unsafe fn copy_from_peer(
        &self,
        stream: StreamHandle,
        to: Address,
        peer: u64,
        from: Address,
        len_bytes: usize,
    ) -> Result<()>;

    /// Rows, each at a distance of its own from the next.
    ///
    /// # Safety
    /// See above.
    unsafe fn copy_2d(&self, stream: StreamHandle, copy: &Copy2d) -> Result<()>;

    /// Writes `count` times `pattern`.
    ///
    /// # Safety
    /// See above.
    unsafe fn fill(&self, stream: StreamHandle, to: Address, pattern: Pattern, count: usize) -> Result<()>;

    // Host functions.

    /// Calls `function(data)` on a thread of the driver's, in the stream's order.
    ///
    /// # Safety
    /// The call is sound on any thread until it has happened; it does not unwind and makes no call of a driver.
    unsafe fn call_host(&self, stream: StreamHandle, function: HostFunction, data: *mut c_void) -> Result<()>;

    // Kernels.

    /// Loads a compiled image (cubin, fatbin or PTX text that ends with a zero byte).
    ///
    /// # Safety
    /// The image is one of these.
    unsafe fn load_module(&self, _image: &[u8]) -> Result<ModuleHandle> {
        Err(Failure::not_supported(Call::LoadModule))
    }

    /// # Safety
    /// The module is not used afterwards, and no work that uses it is queued or running.
    unsafe fn unload_module(&self, _module: ModuleHandle) -> Result<()> {
        Err(Failure::not_supported(Call::UnloadModule))
    }

    /// A kernel of a module, valid while the module is loaded.
    ///
    /// # Safety
    /// The module is loaded.
    unsafe fn function(&self, _module: ModuleHandle, _name: &CStr) -> Result<FunctionHandle> {
        Err(Failure::not_supported(Call::Function))
    }

    /// Bytes of a kernel's parameter; none behind the last. Not every driver can say.
    ///
    /// # Safety
    /// The function's module is loaded.
    unsafe fn parameter_size(&self, _function: FunctionHandle, _index: usize) -> Result<Option<usize>> {
        Err(Failure::not_supported(Call::ParameterSize))
    }

    /// An attribute of a kernel, by the driver's number for it.
    ///
    /// # Safety
    /// The function's module is loaded.
    unsafe fn function_attribute(&self, _function: FunctionHandle, _attribute: u32) -> Result<i32> {
        Err(Failure::not_supported(Call::FunctionAttribute))
    }

    /// # Safety
    /// The function's module is loaded.
    unsafe fn set_function_attribute(&self, _function: FunctionHandle, _attribute: u32, _value: i32) -> Result<()> {
        Err(Failure::not_supported(Call::SetFunctionAttribute))
    }

    /// The number of blocks of `_threads` threads that one multiprocessor runs at once.
    ///
    /// # Safety
    /// The function's module is loaded.
    unsafe fn occupancy(&self, _function: FunctionHandle, _threads: u32, _shared_bytes: usize) -> Result<u32> {
        Err(Failure::not_supported(Call::Occupancy))
    }

    /// Launches a kernel. `arguments` points to one pointer per parameter; the driver reads them before it returns.
    ///
    /// # Safety
    /// The function's module stays loaded until the work is done; there are as many arguments as parameters, of their
    /// types; and what the kernel does with them is sound. A kernel that starts early waits for the end of the one before
    /// (`griddepcontrol.wait`) before it touches memory.
    unsafe fn launch(
        &self,
        _stream: StreamHandle,
        _function: FunctionHandle,
        _launch: &Launch,
        _start: Start,
        _arguments: &mut [*mut c_void],
    ) -> Result<()> {
        Err(Failure::not_supported(Call::Launch))
    }

    /// Makes a graph of a kernel's launch, which [`launch_again`](Self::launch_again) launches with other arguments.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn prepare_launch(
        &self,
        _function: FunctionHandle,
        _launch: &Launch,
        _arguments: &mut [*mut c_void],
    ) -> Result<PreparedLaunch> {
        Err(Failure::not_supported(Call::AddKernelNode))
    }

    /// Launches a kernel that was prepared, with these arguments. Launches that are queued keep theirs.
    ///
    /// # Safety
    /// As [`launch`](Self::launch); the launch was prepared of this function and in this size, and nobody else is launching
    /// it.
    unsafe fn launch_again(
        &self,
        _prepared: &PreparedLaunch,
        _stream: StreamHandle,
        _function: FunctionHandle,
        _launch: &Launch,
        _arguments: &mut [*mut c_void],
    ) -> Result<()> {
        Err(Failure::not_supported(Call::SetKernelNode))
    }

    // Graphs.

    /// From now on the stream captures work instead of running it; only this thread may go on using it.
    ///
    /// # Safety
    /// The stream exists.
    unsafe fn begin_capture(&self, _stream: StreamHandle) -> Result<()> {
        Err(Failure::not_supported(Call::BeginCapture))
    }

    /// What was captured. After an error the stream runs work again, and nothing of it is left.
    ///
    /// # Safety
    /// The stream exists.
    unsafe fn end_capture(&self, _stream: StreamHandle) -> Result<GraphHandle> {
        Err(Failure::not_supported(Call::EndCapture))
    }

    /// # Safety
    /// The graph is not used afterwards. What was instantiated from it stays.
    unsafe fn destroy_graph(&self, _graph: GraphHandle) -> Result<()> {
        Err(Failure::not_supported(Call::DestroyGraph))
    }

    /// # Safety
    /// The graph exists.
    unsafe fn instantiate(&self, _graph: GraphHandle) -> Result<RunnableGraphHandle> {
        Err(Failure::not_supported(Call::Instantiate))
    }

    /// Makes `runnable` do what `graph` says; false if their shapes differ too much, and nothing has changed.
    ///
    /// # Safety
    /// Both exist, and `runnable` is not running.
    unsafe fn update_graph(&self, _runnable: RunnableGraphHandle, _graph: GraphHandle) -> Result<bool> {
        Err(Failure::not_supported(Call::UpdateGraph))
    }

    /// Queues all of a graph's work on a stream.
    ///
    /// # Safety
    /// Both exist, and everything that the graph's work uses is valid until it is done.
    unsafe fn launch_graph(&self, _runnable: RunnableGraphHandle, _stream: StreamHandle) -> Result<()> {
        Err(Failure::not_supported(Call::LaunchGraph))
    }

    /// # Safety
    /// The graph is not used afterwards. Runs of it that are queued still happen.
    unsafe fn destroy_runnable_graph(&self, _runnable: RunnableGraphHandle) -> Result<()> {
        Err(Failure::not_supported(Call::DestroyRunnableGraph))
    }
}
