//! [`Watched`]: wraps a driver, and reports to a [`Watch`] every copy from and to the host, and every call that shows
//! that copies are done.

use std::{
    ffi::{CStr, c_void},
    mem,
    ptr::NonNull,
    sync::Arc,
};

use super::watch::{Flight, Memory, Watch};
use crate::driver::{
    Address, Call, Copy2d, Driver, End, EventHandle, EventTiming, Family, FunctionHandle, GraphHandle, HostFunction,
    Launch, MemoryInfo, ModuleHandle, Pattern, PreparedLaunch, Properties, Result, RunnableGraphHandle, Start,
    StreamHandle, refuse_inside,
};

/// See the head of the file.
pub(super) struct Watched {
    inner: Arc<dyn Driver>,
    watch: Arc<Watch>,
}

impl Watched {
    pub(super) fn new(inner: Arc<dyn Driver>, watch: Arc<Watch>) -> Self {
        Self { inner, watch }
    }

    /// Queues a copy that writes `memory`, and a second copy of the same bytes to spare memory.
    ///
    /// # Safety
    /// As [`Driver::copy_to_host`]. `copy` queues the copy to rows with the given start and pitch.
    unsafe fn copy_twice(
        &self,
        stream: StreamHandle,
        memory: Memory,
        copy: impl Fn(*mut u8, usize) -> Result<()>,
    ) -> Result<()> {
        refuse_inside(Call::CopyToHost)?; // before the target is changed
        let mut spare = self.watch.spare(memory.row_bytes * memory.rows);
        let spare_start = spare.as_ref().map(|spare| spare.as_ptr().as_ptr()); // early, since the watcher may panic
        // SAFETY: the caller's memory.
        let mut flight = unsafe { Flight::of_target(memory) };
        copy(memory.start, memory.pitch)?;
        if spare_start.is_some_and(|start| copy(start, memory.row_bytes).is_err()) {
            mem::forget(spare.take()); // the copy may be queued all the same
        }
        flight.expect(spare);
        self.watch.add(stream, flight);
        Ok(())
    }
}

/// Forwards calls that neither copy from or to the host nor show that copies are done.
macro_rules! forward {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        fn $name(&self, $($argument: $type),*) -> $result {
            self.inner.$name($($argument),*)
        }
    )* };
}

/// Like `forward!`, for unsafe methods.
macro_rules! forward_unsafe {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        unsafe fn $name(&self, $($argument: $type),*) -> $result {
            // SAFETY: the inner driver has the same contract, which the caller upholds.
            unsafe { self.inner.$name($($argument),*) }
        }
    )* };
}

// SAFETY: the inner driver keeps the promises of the trait.
unsafe impl Driver for Watched {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    fn family(&self) -> Family {
        self.inner.family()
    }

    fn context(&self) -> u64 {
        self.inner.context()
    }

    forward! {
        fn memory_info() -> Result<MemoryInfo>;
        fn can_access_peer(peer: u32) -> Result<bool>;
        fn make_current() -> Result<()>;
        fn allocate(len_bytes: usize) -> Result<Address>;
        fn create_stream(priority: i32) -> Result<StreamHandle>;
        fn create_event(timing: EventTiming) -> Result<EventHandle>;
    }

    forward_unsafe! {
        fn enable_peer(peer: u64) -> Result<()>;
        fn free(address: Address) -> Result<()>;
        fn register(start: NonNull<u8>, len_bytes: usize) -> Result<()>;
        fn unregister(start: NonNull<u8>) -> Result<()>;
        fn destroy_stream(stream: StreamHandle) -> Result<()>;
        fn wait_event(stream: StreamHandle, event: EventHandle) -> Result<()>;
        fn destroy_event(event: EventHandle) -> Result<()>;
        fn elapsed_ms(start: EventHandle, end: EventHandle) -> Result<f32>;
        fn copy_on_device(stream: StreamHandle, to: Address, from: Address, len_bytes: usize) -> Result<()>;
        fn copy_from_peer(
            stream: StreamHandle, to: Address, peer: u64, from: Address, len_bytes: usize
        ) -> Result<()>;
        fn fill(stream: StreamHandle, to: Address, pattern: Pattern, count: usize) -> Result<()>;
        fn call_host(stream: StreamHandle, function: HostFunction, data: *mut c_void) -> Result<()>;
        fn load_module(image: &[u8]) -> Result<ModuleHandle>;
        fn unload_module(module: ModuleHandle) -> Result<()>;
        fn function(module: ModuleHandle, name: &CStr) -> Result<FunctionHandle>;
        fn parameter_size(function: FunctionHandle, index: usize) -> Result<Option<usize>>;
        fn function_attribute(function: FunctionHandle, attribute: u32) -> Result<i32>;
        fn set_function_attribute(function: FunctionHandle, attribute: u32, value: i32) -> Result<()>;
        fn occupancy(function: FunctionHandle, threads: u32, shared_bytes: usize) -> Result<u32>;
        fn launch(
            stream: StreamHandle, function: FunctionHandle, launch: &Launch, start: Start,
            arguments: &mut [*mut c_void]
        ) -> Result<()>;
        fn prepare_launch(
            function: FunctionHandle, launch: &Launch, arguments: &mut [*mut c_void]
        ) -> Result<PreparedLaunch>;
        fn launch_again(
            prepared: &PreparedLaunch, stream: StreamHandle, function: FunctionHandle, launch: &Launch,
            arguments: &mut [*mut c_void]
        ) -> Result<()>;
        fn begin_capture(stream: StreamHandle) -> Result<()>;
        fn end_capture(stream: StreamHandle) -> Result<GraphHandle>;
        fn destroy_graph(graph: GraphHandle) -> Result<()>;
        fn instantiate(graph: GraphHandle) -> Result<RunnableGraphHandle>;
        fn update_graph(runnable: RunnableGraphHandle, graph: GraphHandle) -> Result<bool>;
        fn launch_graph(runnable: RunnableGraphHandle, stream: StreamHandle) -> Result<()>;
        fn destroy_runnable_graph(runnable: RunnableGraphHandle) -> Result<()>;
    }

    fn synchronize(&self) -> Result<()> {
        let before = self.watch.all_queued();
        self.inner.synchronize()?;
        before.into_iter().for_each(|(stream, queued)| self.watch.done(stream, queued));
        Ok(())
    }

    unsafe fn query_stream(&self, stream: StreamHandle) -> Result<bool> {
        let queued = self.watch.queued(stream);
        // SAFETY: the caller's stream.
        let is_idle = unsafe { self.inner.query_stream(stream) }?;
        if is_idle {
            self.watch.done(stream, queued);
        }
        Ok(is_idle)
    }

    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        let queued = self.watch.queued(stream);
        // SAFETY: the caller's stream.
        unsafe { self.inner.synchronize_stream(stream) }?;
        self.watch.done(stream, queued);
        Ok(())
    }

    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        refuse_inside(Call::RecordEvent)?; // before the mark is dropped
        let queued = self.watch.queued(stream);
        self.watch.unmark(event);
        // SAFETY: the caller's event and stream.
        unsafe { self.inner.record_event(event, stream) }?;
        self.watch.mark(event, stream, queued);
        Ok(())
    }

    unsafe fn query_event(&self, event: EventHandle) -> Result<bool> {
        let mark = self.watch.mark_of(event);
        // SAFETY: the caller's event.
        let is_reached = unsafe { self.inner.query_event(event) }?;
        if is_reached {
            self.watch.reached(event, mark);
        }
        Ok(is_reached)
    }

    unsafe fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        let mark = self.watch.mark_of(event);
        // SAFETY: the caller's event.
        unsafe { self.inner.synchronize_event(event) }?;
        self.watch.reached(event, mark);
        Ok(())
    }

    unsafe fn copy_to_device(
        &self,
        stream: StreamHandle,
        to: Address,
        from: *const u8,
        len_bytes: usize,
    ) -> Result<()> {
        // SAFETY: the caller's source, which nobody writes until the device is done.
        let flight = unsafe { Flight::of_source(Memory::of(from.cast_mut(), len_bytes)) };
        // SAFETY: the caller's copy.
        unsafe { self.inner.copy_to_device(stream, to, from, len_bytes) }?;
        self.watch.add(stream, flight);
        Ok(())
    }

    unsafe fn copy_to_host(&self, stream: StreamHandle, to: *mut u8, from: Address, len_bytes: usize) -> Result<()> {
        let copy = |to, _pitch| {
            // SAFETY: the caller's copy, or the same copy to spare memory that is as long and that nobody else uses.
            unsafe { self.inner.copy_to_host(stream, to, from, len_bytes) }
        };
        // SAFETY: the caller's target, and the copy to it.
        unsafe { self.copy_twice(stream, Memory::of(to, len_bytes), copy) }
    }

    unsafe fn copy_2d(&self, stream: StreamHandle, copy: &Copy2d) -> Result<()> {
        let rows = |start, pitch| Memory { start, row_bytes: copy.row_bytes, pitch, rows: copy.rows };
        match (copy.from, copy.to) {
            (End::Host(from), _) => {
                // SAFETY: the caller's source, which nobody writes until the device is done.
                let flight = unsafe { Flight::of_source(rows(from, copy.from_pitch)) };
                // SAFETY: the caller's copy.
                unsafe { self.inner.copy_2d(stream, copy) }?;
                self.watch.add(stream, flight);
                Ok(())
            }
            (_, End::Host(to)) => {
                let same = |to, to_pitch| {
                    // SAFETY: the caller's copy, or the same copy to spare memory that is long enough and that nobody
                    // else uses.
                    unsafe { self.inner.copy_2d(stream, &Copy2d { to: End::Host(to), to_pitch, ..*copy }) }
                };
                // SAFETY: the caller's target, and the copy to it.
                unsafe { self.copy_twice(stream, rows(to, copy.to_pitch), same) }
            }
            // SAFETY: the caller's copy.
            _ => unsafe { self.inner.copy_2d(stream, copy) },
        }
    }
}
