//! [`Driver`] for one CUDA device.
//!
//! Every call first makes the device's primary context current on its thread, unless it is already, since other
//! libraries may have changed the current context.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    mem,
    ops::Range,
    ptr::{self, NonNull},
};

use bytemuck::Zeroable;
use pagelock_memory::ByteSize;

use super::{
    api::{
        self, Api, GraphUpdate, KernelNode, LaunchAttribute, LaunchConfig, Memcpy2d, MemcpyEnd,
        PROGRAMMATIC_STREAM_SERIALIZATION, attribute,
    },
    library::library,
    registered,
};
use crate::{
    driver::{
        Address, Call, Copy2d, Driver, End, EventHandle, EventTiming, Failure, Family, FunctionHandle, GraphHandle,
        HostFunction, Launch, MemoryInfo, ModuleHandle, NodeHandle, Pattern, PreparedLaunch, Properties, Result,
        RunnableGraphHandle, Start, Status, StreamHandle, refuse_inside,
    },
    error::Error,
};

const NON_BLOCKING: c_uint = 1; // CU_STREAM_NON_BLOCKING
const DISABLE_TIMING: c_uint = 2; // CU_EVENT_DISABLE_TIMING
const PORTABLE: c_uint = 1; // CU_MEMHOSTREGISTER_PORTABLE
const CAPTURE_RELAXED: c_uint = 2; // CU_STREAM_CAPTURE_MODE_RELAXED: the layers above protect the stream
const MEMORY_HOST: c_uint = 1; // CU_MEMORYTYPE_HOST
const MEMORY_DEVICE: c_uint = 2; // CU_MEMORYTYPE_DEVICE
const GRAPH_UPDATE_FAILURE: u32 = 910; // CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE

/// The primary context of one device, held until the process exits.
pub(crate) struct PrimaryContext {
    api: &'static Api,
    device: c_int,
    handle: u64, // of the context; a number, so that the struct is Send and Sync
    properties: Properties,
}

impl PrimaryContext {
    /// Opens a device.
    pub(crate) fn open(ordinal: u32) -> Result<Self, Error> {
        refuse_inside(Call::Open)?;
        let library = library()?;
        let api = &library.api;
        if ordinal >= library.device_count {
            return Err(Error::NoSuchDevice { ordinal, count: library.device_count });
        }
        let device = out(Call::Open, |device| {
            // SAFETY: writes one number; the driver is started.
            unsafe { (api.device)(device, ordinal as c_int) }
        })?;
        let handle: *mut c_void = out(Call::Open, |context| {
            // SAFETY: writes one handle, which is never released.
            unsafe { (api.retain_context)(context, device) }
        })?;
        let properties = Properties { ordinal, driver_version: library.version, ..Properties::default() };
        let mut context = Self { api, device, handle: handle.addr() as u64, properties };
        context.properties = context.read_properties(device)?;
        Ok(context)
    }

    fn read_properties(&self, device: c_int) -> Result<Properties> {
        let number = |attribute: c_uint| {
            let value = out(Call::Open, |value| {
                // SAFETY: writes one number; the device exists.
                unsafe { (self.api.device_attribute)(value, attribute, device) }
            });
            value.map(c_int::unsigned_abs)
        };
        let memory: usize = out(Call::Open, |bytes| {
            // SAFETY: writes one number; the device exists.
            unsafe { (self.api.device_memory)(bytes, device) }
        })?;
        Ok(Properties {
            name: self.read_name(device)?,
            compute_capability: (
                number(attribute::COMPUTE_CAPABILITY_MAJOR)?,
                number(attribute::COMPUTE_CAPABILITY_MINOR)?,
            ),
            memory: ByteSize(memory as u64),
            multiprocessors: number(attribute::MULTIPROCESSOR_COUNT)?,
            l2_cache: ByteSize(number(attribute::L2_CACHE_SIZE)?.into()),
            copy_engines: number(attribute::ASYNC_ENGINE_COUNT)?,
            warp_threads: number(attribute::WARP_SIZE)?,
            max_threads_per_block: number(attribute::MAX_THREADS_PER_BLOCK)?,
            max_shared_memory_per_block: ByteSize(number(attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?.into()),
            stream_priorities: self.read_priorities()?,
            ..self.properties.clone()
        })
    }

    fn read_name(&self, device: c_int) -> Result<String> {
        let mut name = [0_u8; 256];
        // SAFETY: writes at most the given number of bytes, with a zero at the end, into the array.
        let status = unsafe { (self.api.device_name)(name.as_mut_ptr().cast::<c_char>(), 255, device) };
        check_status(Call::Open, status)?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    fn read_priorities(&self) -> Result<(i32, i32)> {
        self.bind(Call::Open)?;
        let mut greatest = 0;
        let least = out(Call::Open, |least| {
            // SAFETY: writes two numbers; the context is current.
            unsafe { (self.api.stream_priorities)(least, &mut greatest) }
        })?;
        Ok((least, greatest))
    }

    /// Makes the context current on this thread. Fails inside a host function, so every call of CUDA comes after this.
    fn bind(&self, call: Call) -> Result<()> {
        refuse_inside(call)?;
        let mut current: *mut c_void = ptr::null_mut();
        // SAFETY: writes one handle.
        let status = unsafe { (self.api.current_context)(&mut current) };
        if status == 0 && current.addr() as u64 == self.handle {
            return Ok(());
        }
        // SAFETY: the context is never released.
        check_status(call, unsafe { (self.api.set_context)(pointer(self.handle)) })
    }

    /// The result of a query: false if the status is `NOT_READY`.
    fn query_result(&self, call: Call, status: u32) -> Result<bool> {
        match Status(status) {
            Status::NOT_READY => Ok(false),
            _ => check_status(call, status).map(|()| true),
        }
    }
}

fn check_status(call: Call, status: u32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Failure::new(call, status)) }
}

/// Calls a function that writes its result through a pointer, and returns that result.
fn out<T: Zeroable>(call: Call, write: impl FnOnce(&mut T) -> u32) -> Result<T> {
    let mut value = T::zeroed();
    check_status(call, write(&mut value))?;
    Ok(value)
}

/// A driver's handle as a C pointer.
fn pointer(handle: u64) -> *mut c_void {
    ptr::without_provenance_mut(handle as usize)
}

fn number(handle: *mut c_void) -> u64 {
    handle.addr() as u64
}

impl From<End> for MemcpyEnd {
    fn from(end: End) -> Self {
        let (kind, host, device) = match end {
            End::Host(host) => (MEMORY_HOST, host.cast(), 0),
            End::Device(Address(device)) => (MEMORY_DEVICE, ptr::null_mut(), device),
        };
        Self { x_bytes: 0, y: 0, kind, host, device, array: ptr::null_mut(), pitch: 0 }
    }
}

/// Binds the context, calls a function of the table, and checks its status.
macro_rules! call {
    ($self:ident, $call:ident, $function:ident($($argument:expr),* $(,)?)) => {{
        $self.bind(Call::$call)?;
        // SAFETY: this method's caller upholds the trait's contract, and the context is current.
        let status = unsafe { ($self.api.$function)($($argument),*) };
        check_status(Call::$call, status)
    }};
}

/// Like `call!`, for a function that writes its result through its first argument.
macro_rules! call_out {
    ($self:ident, $call:ident, $function:ident($($argument:expr),* $(,)?)) => {{
        $self.bind(Call::$call)?;
        // SAFETY: this method's caller upholds the trait's contract; the result is written to a local variable; the
        // context is current.
        out(Call::$call, |result| unsafe { ($self.api.$function)(result, $($argument),*) })
    }};
}

// SAFETY: CUDA documents the guarantees that the trait requires; every handle comes from this context, which is never
// released.
unsafe impl Driver for PrimaryContext {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let mut total = 0;
        let free: usize = call_out!(self, MemoryInfo, memory_info(&mut total))?;
        Ok(MemoryInfo { free: ByteSize(free as u64), total: ByteSize(total as u64) })
    }

    fn synchronize(&self) -> Result<()> {
        call!(self, Synchronize, synchronize())
    }

    fn can_access_peer(&self, peer: u32) -> Result<bool> {
        let peer = call_out!(self, CanAccessPeer, device(peer as c_int))?;
        let can: c_int = call_out!(self, CanAccessPeer, can_access_peer(self.device, peer))?;
        Ok(can != 0)
    }

    unsafe fn enable_peer(&self, peer: u64) -> Result<()> {
        match call!(self, EnablePeer, enable_peer(pointer(peer), 0)) {
            Err(Failure { status: Status::PEER_ACCESS_ALREADY_ENABLED, .. }) => Ok(()),
            enabled => enabled,
        }
    }

    fn family(&self) -> Family {
        Family::of(self.api) // one library, loaded once
    }

    fn context(&self) -> u64 {
        self.handle
    }

    fn make_current(&self) -> Result<()> {
        self.bind(Call::Open)
    }

    fn allocate(&self, len_bytes: usize) -> Result<Address> {
        call_out!(self, Allocate, allocate(len_bytes)).map(Address)
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        call!(self, Free, free(address.0))
    }

    unsafe fn register(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        call!(self, Register, register(start.as_ptr().cast(), len_bytes, PORTABLE))?;
        registered::insert(start, len_bytes);
        Ok(())
    }

    unsafe fn unregister(&self, start: NonNull<u8>) -> Result<()> {
        call!(self, Unregister, unregister(start.as_ptr().cast()))?;
        registered::remove(start);
        Ok(())
    }

    fn create_stream(&self, priority: i32) -> Result<StreamHandle> {
        call_out!(self, CreateStream, create_stream(NON_BLOCKING, priority)).map(|stream| StreamHandle(number(stream)))
    }

    unsafe fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        call!(self, DestroyStream, destroy_stream(pointer(stream.0)))
    }

    unsafe fn query_stream(&self, stream: StreamHandle) -> Result<bool> {
        self.bind(Call::QueryStream)?;
        // SAFETY: the caller's stream exists.
        let status = unsafe { (self.api.query_stream)(pointer(stream.0)) };
        self.query_result(Call::QueryStream, status)
    }

    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        call!(self, SynchronizeStream, synchronize_stream(pointer(stream.0)))
    }

    unsafe fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        call!(self, WaitEvent, wait_event(pointer(stream.0), pointer(event.0), 0))
    }

    fn create_event(&self, timing: EventTiming) -> Result<EventHandle> {
        let flags = match timing {
            EventTiming::Untimed => DISABLE_TIMING,
            EventTiming::Timed => 0,
        };
        call_out!(self, CreateEvent, create_event(flags)).map(|event| EventHandle(number(event)))
    }

    unsafe fn destroy_event(&self, event: EventHandle) -> Result<()> {
        call!(self, DestroyEvent, destroy_event(pointer(event.0)))
    }

    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        call!(self, RecordEvent, record_event(pointer(event.0), pointer(stream.0)))
    }

    unsafe fn query_event(&self, event: EventHandle) -> Result<bool> {
        self.bind(Call::QueryEvent)?;
        // SAFETY: the caller's event exists.
        let status = unsafe { (self.api.query_event)(pointer(event.0)) };
        self.query_result(Call::QueryEvent, status)
    }

    unsafe fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        call!(self, SynchronizeEvent, synchronize_event(pointer(event.0)))
    }

    unsafe fn elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        call_out!(self, ElapsedMs, elapsed_ms(pointer(start.0), pointer(end.0)))
    }

    unsafe fn copy_to_device(&self, stream: StreamHandle, to: Address, from: *const u8, len: usize) -> Result<()> {
        let copy = |part: Range<usize>| {
            let (to, from) = (to.offset(part.start), from.wrapping_add(part.start));
            call!(self, CopyToDevice, copy_to_device(to.0, from.cast(), part.len(), pointer(stream.0)))
        };
        registered::in_parts(from.addr(), len, copy)
    }

    unsafe fn copy_to_host(&self, stream: StreamHandle, to: *mut u8, from: Address, len: usize) -> Result<()> {
        let copy = |part: Range<usize>| {
            let (to, from) = (to.wrapping_add(part.start), from.offset(part.start));
            call!(self, CopyToHost, copy_to_host(to.cast(), from.0, part.len(), pointer(stream.0)))
        };
        registered::in_parts(to.addr(), len, copy)
    }

    unsafe fn copy_on_device(&self, stream: StreamHandle, to: Address, from: Address, len: usize) -> Result<()> {
        call!(self, CopyOnDevice, copy_on_device(to.0, from.0, len, pointer(stream.0)))
    }

    unsafe fn copy_from_peer(
        &self,
        stream: StreamHandle,
        to: Address,
        peer: u64,
        from: Address,
        len: usize,
    ) -> Result<()> {
        let (own, peer, stream) = (pointer(self.handle), pointer(peer), pointer(stream.0));
        call!(self, CopyFromPeer, copy_from_peer(to.0, own, from.0, peer, len, stream))
    }

    unsafe fn copy_2d(&self, stream: StreamHandle, copy: &Copy2d) -> Result<()> {
        let descriptor = Memcpy2d {
            from: MemcpyEnd { pitch: copy.from_pitch, ..copy.from.into() },
            to: MemcpyEnd { pitch: copy.to_pitch, ..copy.to.into() },
            row_bytes: copy.row_bytes,
            rows: copy.rows,
        };
        match call!(self, Copy2d, copy_2d(&descriptor, pointer(stream.0))) {
            // Perhaps the range crosses from one registration of host memory to another.
            Err(Failure { status: Status::INVALID_VALUE, .. }) => {}
            other => return other,
        }
        (0..copy.rows).try_for_each(|row| {
            let (from, to, len) = (row * copy.from_pitch, row * copy.to_pitch, copy.row_bytes);
            match (copy.from, copy.to) {
                // SAFETY: a row of a copy for which the caller upholds the trait's contract.
                (End::Host(host), End::Device(device)) => unsafe {
                    self.copy_to_device(stream, device.offset(to), host.wrapping_add(from), len)
                },
                // SAFETY: as above.
                (End::Device(device), End::Host(host)) => unsafe {
                    self.copy_to_host(stream, host.wrapping_add(to), device.offset(from), len)
                },
                // SAFETY: as above.
                (End::Device(source), End::Device(target)) => unsafe {
                    self.copy_on_device(stream, target.offset(to), source.offset(from), len)
                },
                (End::Host(_), End::Host(_)) => Err(Failure { call: Call::Copy2d, status: Status::INVALID_VALUE }),
            }
        })
    }

    unsafe fn fill(&self, stream: StreamHandle, to: Address, pattern: Pattern, count: usize) -> Result<()> {
        let stream = pointer(stream.0);
        match pattern {
            Pattern::One(value) => call!(self, Fill, fill_one(to.0, value, count, stream)),
            Pattern::Two(value) => call!(self, Fill, fill_two(to.0, value, count, stream)),
            Pattern::Four(value) => call!(self, Fill, fill_four(to.0, value, count, stream)),
        }
    }

    unsafe fn call_host(&self, stream: StreamHandle, function: HostFunction, data: *mut c_void) -> Result<()> {
        call!(self, CallHost, call_host(pointer(stream.0), function, data))
    }

    unsafe fn load_module(&self, image: &[u8]) -> Result<ModuleHandle> {
        let (no_options, no_values) = (ptr::null_mut(), ptr::null_mut());
        call_out!(self, LoadModule, load_module(image.as_ptr().cast(), 0, no_options, no_values))
            .map(|module| ModuleHandle(number(module)))
    }

    unsafe fn unload_module(&self, module: ModuleHandle) -> Result<()> {
        call!(self, UnloadModule, unload_module(pointer(module.0)))
    }

    unsafe fn function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle> {
        call_out!(self, Function, function(pointer(module.0), name.as_ptr()))
            .map(|function| FunctionHandle(number(function)))
    }

    unsafe fn parameter_size(&self, function: FunctionHandle, index: usize) -> Result<Option<usize>> {
        self.bind(Call::ParameterSize)?;
        let Some(parameter_info) = api::parameter_info() else {
            return Err(Failure::not_supported(Call::ParameterSize));
        };
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the caller's function exists; the call writes two local numbers.
        match Status(unsafe { parameter_info(pointer(function.0), index, &mut offset, &mut size) }) {
            Status::INVALID_VALUE => Ok(None),
            Status(status) => check_status(Call::ParameterSize, status).map(|()| Some(size)),
        }
    }

    unsafe fn function_attribute(&self, function: FunctionHandle, attribute: u32) -> Result<i32> {
        call_out!(self, FunctionAttribute, function_attribute(attribute, pointer(function.0)))
    }

    unsafe fn set_function_attribute(&self, function: FunctionHandle, attribute: u32, value: i32) -> Result<()> {
        call!(self, SetFunctionAttribute, set_function_attribute(pointer(function.0), attribute, value))
    }

    unsafe fn occupancy(&self, function: FunctionHandle, threads: u32, shared_bytes: usize) -> Result<u32> {
        call_out!(self, Occupancy, occupancy(pointer(function.0), threads as c_int, shared_bytes))
            .map(c_int::unsigned_abs)
    }

    unsafe fn launch(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        launch: &Launch,
        start: Start,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let (stream, shared_bytes) = (pointer(stream.0), launch.shared_bytes);
        let (arguments, no_extras) = (arguments.as_mut_ptr(), ptr::null_mut());
        if start == Start::Early {
            let early = LaunchAttribute { id: PROGRAMMATIC_STREAM_SERIALIZATION, padding: 0, value: [1; 16] };
            let config = LaunchConfig {
                grid: launch.grid,
                block: launch.block,
                shared_bytes,
                stream,
                attributes: &early,
                n_attributes: 1,
            };
            return call!(self, LaunchEarly, launch_early(&config, pointer(function.0), arguments, no_extras));
        }
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (launch.grid, launch.block);
        call!(
            self,
            Launch,
            launch(
                pointer(function.0),
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                shared_bytes,
                stream,
                arguments,
                no_extras,
            )
        )
    }

    unsafe fn prepare_launch(
        &self,
        function: FunctionHandle,
        launch: &Launch,
        arguments: &mut [*mut c_void],
    ) -> Result<PreparedLaunch> {
        let graph = call_out!(self, CreateGraph, create_graph(0)).map(|graph| GraphHandle(number(graph)))?;
        let (none, kernel) = (ptr::null(), kernel_node(function, launch, arguments));
        let node = call_out!(self, AddKernelNode, add_kernel_node(pointer(graph.0), none, 0, &kernel));
        let ready = node.and_then(|node| {
            // SAFETY: made above.
            Ok((NodeHandle(number(node)), unsafe { self.instantiate(graph) }?))
        });
        ready.map(|(node, runnable)| PreparedLaunch { graph, node, runnable }).inspect_err(|_| {
            // SAFETY: made above, and no other handle to it exists.
            let _ = unsafe { self.destroy_graph(graph) };
        })
    }

    unsafe fn launch_again(
        &self,
        prepared: &PreparedLaunch,
        stream: StreamHandle,
        function: FunctionHandle,
        launch: &Launch,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let (runnable, node) = (pointer(prepared.runnable.0), pointer(prepared.node.0));
        let kernel = kernel_node(function, launch, arguments);
        call!(self, SetKernelNode, set_kernel_node(runnable, node, &kernel))?;
        // SAFETY: the caller upholds the trait's contract; the context is current.
        check_status(Call::LaunchGraph, unsafe { (self.api.launch_graph)(runnable, pointer(stream.0)) })
    }

    unsafe fn begin_capture(&self, stream: StreamHandle) -> Result<()> {
        call!(self, BeginCapture, begin_capture(pointer(stream.0), CAPTURE_RELAXED))
    }

    unsafe fn end_capture(&self, stream: StreamHandle) -> Result<GraphHandle> {
        let mut graph = ptr::null_mut();
        call!(self, EndCapture, end_capture(pointer(stream.0), &mut graph))?;
        Ok(GraphHandle(number(graph)))
    }

    unsafe fn destroy_graph(&self, graph: GraphHandle) -> Result<()> {
        call!(self, DestroyGraph, destroy_graph(pointer(graph.0)))
    }

    unsafe fn instantiate(&self, graph: GraphHandle) -> Result<RunnableGraphHandle> {
        call_out!(self, Instantiate, instantiate(pointer(graph.0), 0)).map(|graph| RunnableGraphHandle(number(graph)))
    }

    unsafe fn update_graph(&self, runnable: RunnableGraphHandle, graph: GraphHandle) -> Result<bool> {
        let mut update = GraphUpdate { result: 0, error_node: ptr::null_mut(), error_from_node: ptr::null_mut() };
        match call!(self, UpdateGraph, update_graph(pointer(runnable.0), pointer(graph.0), &mut update)) {
            Ok(()) => Ok(true),
            Err(Failure { status: Status(GRAPH_UPDATE_FAILURE), .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    unsafe fn launch_graph(&self, runnable: RunnableGraphHandle, stream: StreamHandle) -> Result<()> {
        call!(self, LaunchGraph, launch_graph(pointer(runnable.0), pointer(stream.0)))
    }

    unsafe fn destroy_runnable_graph(&self, runnable: RunnableGraphHandle) -> Result<()> {
        call!(self, DestroyRunnableGraph, destroy_runnable_graph(pointer(runnable.0)))
    }
}

/// The parameters of a launch as a graph's kernel node.
fn kernel_node(function: FunctionHandle, launch: &Launch, arguments: &mut [*mut c_void]) -> KernelNode {
    KernelNode {
        function: pointer(function.0),
        grid: launch.grid,
        block: launch.block,
        shared_bytes: launch.shared_bytes,
        arguments: arguments.as_mut_ptr(),
        extras: ptr::null_mut(),
        kernel: ptr::null_mut(),
        context: ptr::null_mut(),
    }
}

const _: () = assert!(mem::size_of::<Memcpy2d>() == 128 && mem::size_of::<GraphUpdate>() == 24);
const _: () = assert!(mem::size_of::<KernelNode>() == 72);
const _: () = assert!(mem::size_of::<LaunchConfig>() == 56 && mem::size_of::<LaunchAttribute>() == 72);
