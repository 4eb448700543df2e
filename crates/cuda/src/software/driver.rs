//! [`Driver`] for one software device.

use std::{
    ffi::{CStr, c_void},
    ptr::NonNull,
    sync::Arc,
};

use pagelock_memory::ByteSize;

use super::{
    core::{Core, Engines, Event, State},
    queue::{Mark, Queue, Stamp, Work},
};
use crate::driver::{
    Address, Call, Copy2d, Driver, EventHandle, EventTiming, Failure, Family, FunctionHandle, GraphHandle,
    HostFunction, Launch, MemoryInfo, ModuleHandle, NodeHandle, Pattern, PreparedLaunch, Properties, Result,
    RunnableGraphHandle, Start, Status, StreamHandle,
};

pub(super) struct SoftwareDriver {
    engines: Arc<Engines>,
    properties: Properties,
    has_kernels: bool,
}

impl SoftwareDriver {
    pub(super) fn new(engines: Arc<Engines>, ordinal: u32, memory: ByteSize, kernels_for: Option<(u32, u32)>) -> Self {
        let properties = Properties {
            name: "software device".to_owned(),
            ordinal,
            compute_capability: kernels_for.unwrap_or((0, 0)),
            memory,
            multiprocessors: 1,
            copy_engines: 2,
            warp_threads: 32,
            max_threads_per_block: 1024,
            max_shared_memory_per_block: ByteSize::kib(48),
            stream_priorities: (0, -5),
            ..Properties::default()
        };
        Self { engines, properties, has_kernels: kernels_for.is_some() }
    }

    fn core(&self) -> &Core {
        self.engines.core()
    }

    /// The result of a call that needs kernels: `value`, or an error if kernels are not supported.
    fn kernel_call<T>(&self, call: Call, value: T) -> Result<T> {
        if self.has_kernels { self.core().call(call, |_| Ok(value)) } else { Err(Failure::not_supported(call)) }
    }

    fn push(&self, call: Call, stream: StreamHandle, work: Work) -> Result<()> {
        self.push_with(call, stream, |_| work)
    }

    fn push_with(&self, call: Call, stream: StreamHandle, work: impl FnOnce(&State) -> Work) -> Result<()> {
        self.core().call(call, |state| {
            let work = work(state);
            state.queue(call, stream.0).map(|queue| queue.push(work))
        })
    }

    /// Waits until all marks that `marks` returns are reached. Fails if a fault is due.
    fn wait(&self, call: Call, marks: impl FnOnce(&mut State) -> Result<Vec<Mark>>) -> Result<()> {
        for mark in self.core().call(call, marks)? {
            self.core().wait_for(&mark);
        }
        Ok(())
    }

    fn query(&self, call: Call, answer: impl FnOnce(&mut State) -> Result<bool>) -> Result<bool> {
        let answer = self.core().call(call, answer)?;
        if !answer {
            self.core().step_once();
        }
        Ok(answer)
    }
}

// SAFETY: each queue executes its pieces of work in order, one at a time (`run.rs`). A mark counts the pieces queued
// before it, and a piece counts as progress only after it is done. Each allocation is a separate box.
unsafe impl Driver for SoftwareDriver {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let allocated = self.core().call(Call::MemoryInfo, |_| Ok(self.core().memory().allocated_bytes() as u64))?;
        let total = self.properties.memory;
        Ok(MemoryInfo { free: ByteSize(total.0.saturating_sub(allocated)), total })
    }

    fn synchronize(&self) -> Result<()> {
        self.wait(Call::Synchronize, |state| {
            let mut own: Vec<_> =
                state.queues.values_mut().filter(|queue| queue.device == self.properties.ordinal).collect();
            if own.iter_mut().map(|queue| queue.invalidate_capture()).filter(|invalidated| *invalidated).count() > 0 {
                return Err(Failure { call: Call::Synchronize, status: Status::STREAM_CAPTURE_UNSUPPORTED });
            }
            Ok(own.iter().map(|queue| queue.mark()).collect())
        })
    }

    fn can_access_peer(&self, _peer: u32) -> Result<bool> {
        self.core().call(Call::CanAccessPeer, |_| Ok(true))
    }

    unsafe fn enable_peer(&self, _peer: u64) -> Result<()> {
        self.core().call(Call::EnablePeer, |_| Ok(()))
    }

    fn family(&self) -> Family {
        Family::of(&*self.engines)
    }

    fn context(&self) -> u64 {
        self.properties.ordinal.into()
    }

    fn allocate(&self, len_bytes: usize) -> Result<Address> {
        self.core().call(Call::Allocate, |_| {
            let mut memory = self.core().memory();
            let free = self.properties.memory.0.saturating_sub(memory.allocated_bytes() as u64);
            let address = if len_bytes as u64 > free { None } else { memory.allocate(len_bytes) };
            address.map(Address).ok_or(Failure { call: Call::Allocate, status: Status::OUT_OF_MEMORY })
        })
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.core().call(Call::Free, |_| {
            let freed = self.core().memory().free(address.0);
            freed.map(drop).ok_or(Failure { call: Call::Free, status: Status::INVALID_VALUE })
        })
    }

    unsafe fn register(&self, start: NonNull<u8>, len_bytes: usize) -> Result<()> {
        self.core().call(Call::Register, |state| {
            state.registered.insert(start.addr().get(), len_bytes);
            Ok(())
        })
    }

    unsafe fn unregister(&self, start: NonNull<u8>) -> Result<()> {
        self.core().call(Call::Unregister, |state| {
            let known = state.registered.remove(&start.addr().get());
            let unknown = Failure { call: Call::Unregister, status: Status::HOST_MEMORY_NOT_REGISTERED };
            known.map(drop).ok_or(unknown)
        })
    }

    fn create_stream(&self, _priority: i32) -> Result<StreamHandle> {
        self.core().call(Call::CreateStream, |state| {
            let stream = state.handle();
            state.queues.insert(stream, Queue::new(self.properties.ordinal));
            Ok(StreamHandle(stream))
        })
    }

    unsafe fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        self.core().call(Call::DestroyStream, |state| {
            state.queue(Call::DestroyStream, stream.0)?.destroyed = true;
            state.queues.retain(|_, queue| !queue.is_over());
            Ok(())
        })
    }

    unsafe fn query_stream(&self, stream: StreamHandle) -> Result<bool> {
        self.query(Call::QueryStream, |state| Ok(state.idle_queue(Call::QueryStream, stream.0)?.is_reached()))
    }

    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        self.wait(Call::SynchronizeStream, |state| Ok(vec![state.idle_queue(Call::SynchronizeStream, stream.0)?]))
    }

    unsafe fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        self.core().call(Call::WaitEvent, |state| {
            let recorded = state.event(Call::WaitEvent, event.0)?.recorded.clone();
            let queue = state.queue(Call::WaitEvent, stream.0)?;
            match recorded {
                Some(_) if queue.is_capturing() => {
                    Err(Failure { call: Call::WaitEvent, status: Status::STREAM_CAPTURE_ISOLATION })
                }
                Some((mark, _)) => {
                    queue.push(Work::Wait(mark));
                    Ok(())
                }
                None => Ok(()),
            }
        })
    }

    fn create_event(&self, timing: EventTiming) -> Result<EventHandle> {
        self.core().call(Call::CreateEvent, |state| {
            let event = state.handle();
            let timed = timing == EventTiming::Timed;
            state.events.insert(event, Event { device: self.properties.ordinal, timed, recorded: None });
            Ok(EventHandle(event))
        })
    }

    unsafe fn destroy_event(&self, event: EventHandle) -> Result<()> {
        self.core().call(Call::DestroyEvent, |state| {
            state.event(Call::DestroyEvent, event.0)?;
            state.events.remove(&event.0);
            Ok(())
        })
    }

    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        self.core().call(Call::RecordEvent, |state| {
            let queue = state.queue(Call::RecordEvent, stream.0)?;
            let device = queue.device;
            let stamp = Arc::<Stamp>::default();
            queue.push(Work::Stamp(stamp.clone()));
            let mark = queue.mark();
            let event = state.event(Call::RecordEvent, event.0)?;
            if event.device != device {
                return Err(Failure { call: Call::RecordEvent, status: Status::INVALID_HANDLE });
            }
            event.recorded = Some((mark, stamp));
            Ok(())
        })
    }

    unsafe fn query_event(&self, event: EventHandle) -> Result<bool> {
        self.query(Call::QueryEvent, |state| {
            let event = state.event(Call::QueryEvent, event.0)?;
            Ok(event.recorded.as_ref().is_none_or(|(mark, _)| mark.is_reached()))
        })
    }

    unsafe fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        self.wait(Call::SynchronizeEvent, |state| {
            let event = state.event(Call::SynchronizeEvent, event.0)?;
            Ok(event.recorded.iter().map(|(mark, _)| mark.clone()).collect())
        })
    }

    unsafe fn elapsed_ms(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        self.core().call(Call::ElapsedMs, |state| {
            let start = state.event(Call::ElapsedMs, start.0)?.reached_at()?;
            let end = state.event(Call::ElapsedMs, end.0)?.reached_at()?;
            let forward = end.saturating_duration_since(start).as_secs_f32();
            let backward = start.saturating_duration_since(end).as_secs_f32();
            Ok((forward - backward) * 1000.0)
        })
    }

    unsafe fn copy_to_device(&self, stream: StreamHandle, to: Address, from: *const u8, len: usize) -> Result<()> {
        self.push_with(Call::CopyToDevice, stream, |state| {
            let locked = state.registration(from.addr(), len);
            Work::ToDevice { to, from, len_bytes: len, locked }
        })
    }

    unsafe fn copy_to_host(&self, stream: StreamHandle, to: *mut u8, from: Address, len: usize) -> Result<()> {
        self.push_with(Call::CopyToHost, stream, |state| {
            let locked = state.registration(to.addr(), len);
            Work::ToHost { to, from, len_bytes: len, locked }
        })
    }

    unsafe fn copy_on_device(&self, stream: StreamHandle, to: Address, from: Address, len: usize) -> Result<()> {
        self.push(Call::CopyOnDevice, stream, Work::OnDevice { to, from, len_bytes: len })
    }

    unsafe fn copy_from_peer(
        &self,
        stream: StreamHandle,
        to: Address,
        _peer: u64,
        from: Address,
        len: usize,
    ) -> Result<()> {
        self.push(Call::CopyFromPeer, stream, Work::OnDevice { to, from, len_bytes: len })
    }

    unsafe fn copy_2d(&self, stream: StreamHandle, copy: &Copy2d) -> Result<()> {
        self.push(Call::Copy2d, stream, Work::Rows(*copy))
    }

    unsafe fn fill(&self, stream: StreamHandle, to: Address, pattern: Pattern, count: usize) -> Result<()> {
        self.push(Call::Fill, stream, Work::Fill { to, pattern, count })
    }

    unsafe fn call_host(&self, stream: StreamHandle, function: HostFunction, data: *mut c_void) -> Result<()> {
        self.push(Call::CallHost, stream, Work::CallHost { function, data })
    }

    unsafe fn load_module(&self, _: &[u8]) -> Result<ModuleHandle> {
        self.kernel_call(Call::LoadModule, ModuleHandle(1))
    }

    unsafe fn unload_module(&self, _: ModuleHandle) -> Result<()> {
        self.kernel_call(Call::UnloadModule, ())
    }

    unsafe fn function(&self, _: ModuleHandle, _: &CStr) -> Result<FunctionHandle> {
        self.kernel_call(Call::Function, FunctionHandle(1))
    }

    unsafe fn set_function_attribute(&self, _: FunctionHandle, _: u32, _: i32) -> Result<()> {
        self.kernel_call(Call::SetFunctionAttribute, ())
    }

    unsafe fn occupancy(&self, _: FunctionHandle, _: u32, _: usize) -> Result<u32> {
        self.kernel_call(Call::Occupancy, 1)
    }

    unsafe fn launch(
        &self,
        stream: StreamHandle,
        _: FunctionHandle,
        _: &Launch,
        _: Start,
        _: &mut [*mut c_void],
    ) -> Result<()> {
        self.kernel_call(Call::Launch, ())?;
        self.push(Call::Launch, stream, Work::All([].into()))
    }

    unsafe fn prepare_launch(&self, _: FunctionHandle, _: &Launch, _: &mut [*mut c_void]) -> Result<PreparedLaunch> {
        self.kernel_call(Call::AddKernelNode, ())?;
        self.core().call(Call::AddKernelNode, |state| {
            let [graph, runnable] = [0; 2].map(|_| state.add_graph([].into()));
            let (graph, runnable) = (GraphHandle(graph), RunnableGraphHandle(runnable));
            Ok(PreparedLaunch { graph, node: NodeHandle(0), runnable })
        })
    }

    unsafe fn launch_again(
        &self,
        prepared: &PreparedLaunch,
        stream: StreamHandle,
        _: FunctionHandle,
        _: &Launch,
        _: &mut [*mut c_void],
    ) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { self.launch_graph(prepared.runnable, stream) }
    }

    unsafe fn begin_capture(&self, stream: StreamHandle) -> Result<()> {
        self.core().call(Call::BeginCapture, |state| {
            let begun = state.queue(Call::BeginCapture, stream.0)?.begin_capture();
            let already_capturing = Failure { call: Call::BeginCapture, status: Status::ILLEGAL_STATE };
            if begun { Ok(()) } else { Err(already_capturing) }
        })
    }

    unsafe fn end_capture(&self, stream: StreamHandle) -> Result<GraphHandle> {
        self.core().call(Call::EndCapture, |state| {
            let captured = state.queue(Call::EndCapture, stream.0)?.end_capture();
            let captured = captured.ok_or(Failure { call: Call::EndCapture, status: Status::ILLEGAL_STATE })?;
            let invalidated = Failure { call: Call::EndCapture, status: Status::STREAM_CAPTURE_INVALIDATED };
            if captured.invalid { Err(invalidated) } else { Ok(GraphHandle(state.add_graph(captured.work.into()))) }
        })
    }

    unsafe fn destroy_graph(&self, graph: GraphHandle) -> Result<()> {
        self.core().call(Call::DestroyGraph, |state| state.remove_graph(Call::DestroyGraph, graph.0))
    }

    unsafe fn instantiate(&self, graph: GraphHandle) -> Result<RunnableGraphHandle> {
        self.core().call(Call::Instantiate, |state| {
            let work = state.graph(Call::Instantiate, graph.0)?;
            Ok(RunnableGraphHandle(state.add_graph(work)))
        })
    }

    unsafe fn update_graph(&self, runnable: RunnableGraphHandle, graph: GraphHandle) -> Result<bool> {
        self.core().call(Call::UpdateGraph, |state| {
            let new = state.graph(Call::UpdateGraph, graph.0)?;
            let old = state.graph(Call::UpdateGraph, runnable.0)?;
            let same_shape = new.len() == old.len();
            if same_shape {
                state.graphs.insert(runnable.0, new);
            }
            Ok(same_shape)
        })
    }

    unsafe fn launch_graph(&self, runnable: RunnableGraphHandle, stream: StreamHandle) -> Result<()> {
        self.core().call(Call::LaunchGraph, |state| {
            let work = state.graph(Call::LaunchGraph, runnable.0)?;
            let queue = state.queue(Call::LaunchGraph, stream.0)?;
            work.iter().for_each(|work| queue.push(work.clone())); // so that other streams may run in between
            Ok(())
        })
    }

    unsafe fn destroy_runnable_graph(&self, runnable: RunnableGraphHandle) -> Result<()> {
        let call = Call::DestroyRunnableGraph;
        self.core().call(call, |state| state.remove_graph(call, runnable.0))
    }
}

impl Event {
    fn reached_at(&self) -> Result<std::time::Instant> {
        let stamp = self
            .recorded
            .as_ref()
            .filter(|_| self.timed)
            .and_then(|(_, stamp)| *stamp.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        stamp.ok_or(Failure { call: Call::ElapsedMs, status: Status::NOT_READY })
    }
}

impl State {
    /// The end of a stream's queue, for a call that waits for the stream or queries it. If the stream captures, this
    /// fails and invalidates the capture.
    fn idle_queue(&mut self, call: Call, stream: u64) -> Result<Mark> {
        let queue = self.queue(call, stream)?;
        let capturing = Failure { call, status: Status::STREAM_CAPTURE_UNSUPPORTED };
        if queue.invalidate_capture() { Err(capturing) } else { Ok(queue.mark()) }
    }

    fn add_graph(&mut self, work: Arc<[Work]>) -> u64 {
        let graph = self.handle();
        self.graphs.insert(graph, work);
        graph
    }

    fn graph(&self, call: Call, graph: u64) -> Result<Arc<[Work]>> {
        self.graphs.get(&graph).cloned().ok_or(Failure { call, status: Status::INVALID_HANDLE })
    }

    fn remove_graph(&mut self, call: Call, graph: u64) -> Result<()> {
        self.graphs.remove(&graph).map(drop).ok_or(Failure { call, status: Status::INVALID_HANDLE })
    }
}
