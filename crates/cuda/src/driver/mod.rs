//! The interface of a device: one trait, [`Driver`], implemented by `cuda/` and by the software device.
//!
//! A driver is one device. It counts nothing, orders nothing and keeps nothing alive: the layers above do that, and
//! are the same for both implementations. `call.rs` names the operations and their failures.

mod call;
pub(crate) mod cuda;
mod types;

use std::{
    ffi::{CStr, c_void},
    ptr::NonNull,
};

pub use self::{
    call::{Call, Failure, Result, Status},
    types::{
        Address, Copy2d, End, EventHandle, EventTiming, Family, FunctionHandle, GraphHandle, HostFunction, Launch,
        MemoryInfo, ModuleHandle, NodeHandle, Pattern, PreparedLaunch, Properties, RunnableGraphHandle, Start,
        StreamHandle,
    },
};
use crate::host_function;

/// The driver of one device.
///
/// Handles are plain numbers that are valid only for the driver that made them, and for its [`Family`]. Operations on
/// a stream return when the work is queued; all other operations are done when the call returns.
///
/// A driver refuses calls on a thread that is calling a host function: they have no effect and return
/// [`Status::NOT_PERMITTED`] ([`Status::NOT_SUPPORTED`] for what the driver never does). The layers above make such
/// calls and rely on the refusal.
///
/// # Safety
/// An implementation promises that
/// - work queued on one stream runs in order, and only after all events for which the stream was made to wait;
/// - `query_event` and `synchronize_event` report a recorded event as reached only after all work that was queued on
///   its stream before the recording is done, and the device no longer uses the memory of that work;
/// - `synchronize_stream` and `synchronize` return `Ok` only after all work queued before is done in this sense;
/// - addresses returned by `allocate` are valid for their length until `free`, and overlap no other allocation.
#[allow(missing_docs, reason = "named after the driver's own calls, which `Call` lists")]
pub unsafe trait Driver: Send + Sync + 'static {
    // The device.

    /// The properties of the device, read once when it is opened.
    fn properties(&self) -> &Properties;

    /// How much memory the device has, and how much of it is free.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Waits for all work that was queued on this device.
    fn synchronize(&self) -> Result<()>;

    /// Whether the device can get direct access to the memory of device `peer`.
    fn can_access_peer(&self, peer: u32) -> Result<bool>;

    /// Gives the device direct access to the memory of the device with this [`context`](Self::context), so that
    /// copies from that device need not go through the host. Does nothing if the device has access already.
    ///
    /// # Safety
    /// The context is that of another device of the same family of drivers.
    unsafe fn enable_peer(&self, peer: u64) -> Result<()>;

    /// The devices whose handles are valid for this driver: its streams can wait for their events, and it can copy
    /// from their contexts. By default a driver is a family of its own.
    fn family(&self) -> Family {
        Family::of(self)
    }

    /// A number that identifies this device's context, for [`copy_from_peer`](Self::copy_from_peer).
    fn context(&self) -> u64;

    /// Makes the device current on this thread, for libraries that use CUDA. Only for drivers whose stream handles
    /// are CUDA's.
    fn make_current(&self) -> Result<()> {
        Err(Failure::not_supported(Call::Open))
    }

    // Memory.

    /// Allocates exactly `len_bytes` bytes of device memory, aligned to at least 256 bytes and not cleared.
    fn allocate(&self, len_bytes: usize) -> Result<Address>;

    /// Frees memory that [`allocate`](Self::allocate) returned.
    ///
    /// # Safety
    /// No work that uses the memory is queued or running.
    unsafe fn free(&self, address: Address) -> Result<()>;

    /// Locks host pages, and maps them for every device.
    ///
    /// # Safety
    /// The range consists of whole pages that stay mapped and writable until [`unregister`](Self::unregister).
    unsafe fn register(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()>;

    /// Undoes one [`register`](Self::register), even one that failed: it may have registered the pages all the same.
    ///
    /// # Safety
    /// `register` was called for `start` and is not undone yet, and no work that uses the range is queued or running.
    unsafe fn unregister(&self, start: NonNull<u8>) -> Result<()>;

    // Streams.

    /// Creates a stream that runs concurrently with all others. Lower numbers are higher priorities.
    fn create_stream(&self, priority: i32) -> Result<StreamHandle>;

    /// # Safety
    /// The stream is not used afterwards. Work that is queued on it still runs.
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

    /// Makes all work that is queued on the stream from now on wait for the event's latest recording, on any device.
    ///
    /// # Safety
    /// Both exist.
    unsafe fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()>;

    // Events.

    /// Creates an event that is not recorded yet.
    fn create_event(&self, timing: EventTiming) -> Result<EventHandle>;

    /// # Safety
    /// The event is not used afterwards. Waits for it that are already queued remain valid.
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

    /// The milliseconds from the recording of `start` to that of `end`.
    ///
    /// # Safety
    /// Both exist, with timing, and are reached.
    unsafe fn elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32>;

    // Copies. The safety contract of all of them: the stream exists, and until the work is done both ranges are
    // valid, nobody else writes the source, and nobody else uses the target.

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

    /// Copies from the memory of the device whose [`context`](Self::context) is `peer`.
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

    /// Copies rows. Source and target may have different pitches.
    ///
    /// # Safety
    /// See above.
    unsafe fn copy_2d(&self, stream: StreamHandle, copy: &Copy2d) -> Result<()>;

    /// Writes `pattern` `count` times in a row.
    ///
    /// # Safety
    /// See above.
    unsafe fn fill(&self, stream: StreamHandle, to: Address, pattern: Pattern, count: usize) -> Result<()>;

    // Host functions.

    /// Calls `function(data)` on a thread of the driver, in the stream's order.
    ///
    /// # Safety
    /// The call is sound on any thread at any time. The function does not unwind and does not call a driver.
    unsafe fn call_host(&self, stream: StreamHandle, function: HostFunction, data: *mut c_void) -> Result<()>;

    // Kernels.

    /// Loads a compiled image: a cubin, a fatbin, or PTX text that ends with a zero byte.
    ///
    /// # Safety
    /// The image has one of these formats.
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

    /// The size of a kernel's parameter in bytes; `None` if there are fewer parameters. Not every driver supports it.
    ///
    /// # Safety
    /// The function's module is loaded.
    unsafe fn parameter_size(&self, _function: FunctionHandle, _index: usize) -> Result<Option<usize>> {
        Err(Failure::not_supported(Call::ParameterSize))
    }

    /// An attribute of a kernel, given by the driver's number of the attribute.
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

    /// The number of blocks of `_threads` threads that one multiprocessor runs concurrently.
    ///
    /// # Safety
    /// The function's module is loaded.
    unsafe fn occupancy(&self, _function: FunctionHandle, _threads: u32, _shared_bytes: usize) -> Result<u32> {
        Err(Failure::not_supported(Call::Occupancy))
    }

    /// Launches a kernel. `arguments` has one pointer to a value per parameter; the driver reads the values before it
    /// returns.
    ///
    /// # Safety
    /// The function's module stays loaded until the work is done; the number and types of the arguments are those of
    /// the parameters; and the kernel's use of them is sound. A kernel that starts early waits for the end of the
    /// kernel before it (`griddepcontrol.wait`) before it touches memory.
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

    /// Makes a graph of one kernel launch, which [`launch_again`](Self::launch_again) launches with other arguments.
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

    /// Launches a prepared kernel with these arguments. Launches that are already queued keep their own arguments.
    ///
    /// # Safety
    /// As [`launch`](Self::launch). The launch was prepared with the same function and size, and no other thread
    /// launches it at the same time.
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

    /// Makes the stream capture work instead of running it. Until the capture ends, only this thread may use the
    /// stream.
    ///
    /// # Safety
    /// The stream exists.
    unsafe fn begin_capture(&self, _stream: StreamHandle) -> Result<()> {
        Err(Failure::not_supported(Call::BeginCapture))
    }

    /// Ends the capture and returns its graph. After an error the stream runs work again, and the captured work is
    /// discarded.
    ///
    /// # Safety
    /// The stream exists.
    unsafe fn end_capture(&self, _stream: StreamHandle) -> Result<GraphHandle> {
        Err(Failure::not_supported(Call::EndCapture))
    }

    /// # Safety
    /// The graph is not used afterwards. Runnable graphs that were instantiated from it remain valid.
    unsafe fn destroy_graph(&self, _graph: GraphHandle) -> Result<()> {
        Err(Failure::not_supported(Call::DestroyGraph))
    }

    /// # Safety
    /// The graph exists.
    unsafe fn instantiate(&self, _graph: GraphHandle) -> Result<RunnableGraphHandle> {
        Err(Failure::not_supported(Call::Instantiate))
    }

    /// Replaces the work of `runnable` with that of `graph`. Returns false, and changes nothing, if their shapes
    /// differ too much.
    ///
    /// # Safety
    /// Both exist, and `runnable` is not running.
    unsafe fn update_graph(&self, _runnable: RunnableGraphHandle, _graph: GraphHandle) -> Result<bool> {
        Err(Failure::not_supported(Call::UpdateGraph))
    }

    /// Queues all of a graph's work on a stream.
    ///
    /// # Safety
    /// Both exist, and all memory and modules that the graph's work uses stay valid until it is done.
    unsafe fn launch_graph(&self, _runnable: RunnableGraphHandle, _stream: StreamHandle) -> Result<()> {
        Err(Failure::not_supported(Call::LaunchGraph))
    }

    /// # Safety
    /// The graph is not used afterwards. Launches of it that are already queued still run.
    unsafe fn destroy_runnable_graph(&self, _runnable: RunnableGraphHandle) -> Result<()> {
        Err(Failure::not_supported(Call::DestroyRunnableGraph))
    }
}

/// Fails inside a host function. The failure becomes [`Error::InsideHostFunction`](crate::Error::InsideHostFunction).
#[inline]
pub(crate) fn refuse_inside(call: Call) -> Result<()> {
    if host_function::is_inside() { Err(Failure { call, status: Status::NOT_PERMITTED }) } else { Ok(()) }
}
