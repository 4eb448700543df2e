//! [`GuardedDriver`]: wraps a driver and refuses every call inside a host function.
//!
//! A driver calls host functions on a thread of its own, where a call of the driver may fail or deadlock. Every
//! device wraps its driver in a `GuardedDriver`, so that no code of this crate can reach the driver there.

use std::{
    ffi::{CStr, c_void},
    ptr::NonNull,
    sync::Arc,
};

use super::{
    Address, Call, Copy2d, Driver, EventHandle, EventTiming, Failure, Family, FunctionHandle, GraphHandle,
    HostFunction, Launch, MemoryInfo, ModuleHandle, Pattern, PreparedLaunch, Properties, Result, RunnableGraphHandle,
    Start, Status, StreamHandle,
};
use crate::host_function;

/// See the head of the file.
pub(crate) struct GuardedDriver(Arc<dyn Driver>);

impl GuardedDriver {
    pub(crate) fn wrap(inner: Arc<dyn Driver>) -> Arc<dyn Driver> {
        Arc::new(Self(inner))
    }
}

/// Fails inside a host function. The failure becomes [`Error::InsideHostFunction`](crate::Error::InsideHostFunction).
#[inline]
fn refuse(call: Call) -> Result<()> {
    if host_function::is_inside() { Err(Failure { call, status: Status::NOT_PERMITTED }) } else { Ok(()) }
}

/// Passes the methods of [`Driver`] that every wrapper only forwards, each with its [`Call`], to two macros: one for
/// the safe methods and one for the unsafe methods.
macro_rules! forwarded_methods {
    ($forward:ident, $forward_unsafe:ident) => {
        $forward! {
            MemoryInfo: fn memory_info() -> Result<MemoryInfo>;
            CanAccessPeer: fn can_access_peer(peer: u32) -> Result<bool>;
            Open: fn make_current() -> Result<()>;
            Allocate: fn allocate(len_bytes: usize) -> Result<Address>;
            CreateStream: fn create_stream(priority: i32) -> Result<StreamHandle>;
            CreateEvent: fn create_event(timing: EventTiming) -> Result<EventHandle>;
        }

        $forward_unsafe! {
            EnablePeer: fn enable_peer(peer: u64) -> Result<()>;
            Free: fn free(address: Address) -> Result<()>;
            Register: fn register(start: NonNull<u8>, len_bytes: usize) -> Result<()>;
            Unregister: fn unregister(start: NonNull<u8>) -> Result<()>;
            DestroyStream: fn destroy_stream(stream: StreamHandle) -> Result<()>;
            WaitEvent: fn wait_event(stream: StreamHandle, event: EventHandle) -> Result<()>;
            DestroyEvent: fn destroy_event(event: EventHandle) -> Result<()>;
            ElapsedMs: fn elapsed_ms(start: EventHandle, end: EventHandle) -> Result<f32>;
            CopyOnDevice: fn copy_on_device(
                stream: StreamHandle, to: Address, from: Address, len_bytes: usize
            ) -> Result<()>;
            CopyFromPeer: fn copy_from_peer(
                stream: StreamHandle, to: Address, peer: u64, from: Address, len_bytes: usize
            ) -> Result<()>;
            Fill: fn fill(stream: StreamHandle, to: Address, pattern: Pattern, count: usize) -> Result<()>;
            CallHost: fn call_host(stream: StreamHandle, function: HostFunction, data: *mut c_void) -> Result<()>;
            LoadModule: fn load_module(image: &[u8]) -> Result<ModuleHandle>;
            UnloadModule: fn unload_module(module: ModuleHandle) -> Result<()>;
            Function: fn function(module: ModuleHandle, name: &CStr) -> Result<FunctionHandle>;
            ParameterSize: fn parameter_size(function: FunctionHandle, index: usize) -> Result<Option<usize>>;
            FunctionAttribute: fn function_attribute(function: FunctionHandle, attribute: u32) -> Result<i32>;
            SetFunctionAttribute: fn set_function_attribute(
                function: FunctionHandle, attribute: u32, value: i32
            ) -> Result<()>;
            Occupancy: fn occupancy(function: FunctionHandle, threads: u32, shared_bytes: usize) -> Result<u32>;
            Launch: fn launch(
                stream: StreamHandle, function: FunctionHandle, launch: &Launch, start: Start,
                arguments: &mut [*mut c_void]
            ) -> Result<()>;
            AddKernelNode: fn prepare_launch(
                function: FunctionHandle, launch: &Launch, arguments: &mut [*mut c_void]
            ) -> Result<PreparedLaunch>;
            SetKernelNode: fn launch_again(
                prepared: &PreparedLaunch, stream: StreamHandle, function: FunctionHandle, launch: &Launch,
                arguments: &mut [*mut c_void]
            ) -> Result<()>;
            BeginCapture: fn begin_capture(stream: StreamHandle) -> Result<()>;
            EndCapture: fn end_capture(stream: StreamHandle) -> Result<GraphHandle>;
            DestroyGraph: fn destroy_graph(graph: GraphHandle) -> Result<()>;
            Instantiate: fn instantiate(graph: GraphHandle) -> Result<RunnableGraphHandle>;
            UpdateGraph: fn update_graph(runnable: RunnableGraphHandle, graph: GraphHandle) -> Result<bool>;
            LaunchGraph: fn launch_graph(runnable: RunnableGraphHandle, stream: StreamHandle) -> Result<()>;
            DestroyRunnableGraph: fn destroy_runnable_graph(runnable: RunnableGraphHandle) -> Result<()>;
        }
    };
}
pub(crate) use forwarded_methods;

/// Forwards methods outside of host functions.
macro_rules! guard {
    ($($call:ident: fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[inline]
        fn $name(&self, $($argument: $type),*) -> $result {
            refuse(Call::$call)?;
            self.0.$name($($argument),*)
        }
    )* };
}

/// Like `guard!`, for unsafe methods.
macro_rules! guard_unsafe {
    ($($call:ident: fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[inline]
        unsafe fn $name(&self, $($argument: $type),*) -> $result {
            refuse(Call::$call)?;
            // SAFETY: the inner driver has the same contract, which the caller upholds.
            unsafe { self.0.$name($($argument),*) }
        }
    )* };
}

// SAFETY: the inner driver keeps the promises of the trait; a refused call does nothing.
unsafe impl Driver for GuardedDriver {
    fn properties(&self) -> &Properties {
        self.0.properties()
    }

    fn family(&self) -> Family {
        self.0.family()
    }

    fn context(&self) -> u64 {
        self.0.context()
    }

    forwarded_methods!(guard, guard_unsafe);

    guard! {
        Synchronize: fn synchronize() -> Result<()>;
    }

    guard_unsafe! {
        QueryStream: fn query_stream(stream: StreamHandle) -> Result<bool>;
        SynchronizeStream: fn synchronize_stream(stream: StreamHandle) -> Result<()>;
        RecordEvent: fn record_event(event: EventHandle, stream: StreamHandle) -> Result<()>;
        QueryEvent: fn query_event(event: EventHandle) -> Result<bool>;
        SynchronizeEvent: fn synchronize_event(event: EventHandle) -> Result<()>;
        CopyToDevice: fn copy_to_device(
            stream: StreamHandle, to: Address, from: *const u8, len_bytes: usize
        ) -> Result<()>;
        CopyToHost: fn copy_to_host(stream: StreamHandle, to: *mut u8, from: Address, len_bytes: usize) -> Result<()>;
        Copy2d: fn copy_2d(stream: StreamHandle, copy: &Copy2d) -> Result<()>;
    }
}
