//! Tests of all interleavings of this crate's locks and atomics with loom. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p pagelock-cuda --lib --release loom`.
//!
//! The driver of these tests executes nothing. It records the order of the work of all streams, and whether the
//! device is done.

use std::{collections::BTreeMap, ffi::c_void, ptr::NonNull, sync::Arc};

use loom::{
    model::Builder,
    sync::{Mutex, MutexGuard},
    thread,
};
use pagelock_memory::ByteSize;

use crate::{
    Device, Stream,
    deferred_drops::DeferredDrop,
    driver::{
        Address, Call, Copy2d, Driver, EventHandle, EventTiming, Failure, HostFunction, MemoryInfo, Pattern,
        Properties, Result, StreamHandle,
    },
    event::Recorded,
    stream::{Access, Uses, Writes},
    sync::lock,
};

/// Tries every schedule with at most three preemptions.
fn every_schedule(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

/// A vector clock: for each stream, how much of its work comes before something.
type Clock = BTreeMap<u64, u64>;

/// A driver that records the order of work. Its calls are atomic, like those of a real driver.
struct Ordered {
    state: Mutex<State>,
    properties: Properties,
}

#[derive(Default)]
struct State {
    streams: BTreeMap<u64, Clock>, // with each stream's own work
    events: BTreeMap<u64, Clock>,
    handles: u64,
    done: bool, // whether the device has executed all work
}

impl Ordered {
    fn device() -> (Arc<Self>, Device) {
        let properties = Properties {
            name: "loom".to_owned(),
            memory: ByteSize::mib(64),
            multiprocessors: 1,
            copy_engines: 1,
            warp_threads: 32,
            max_threads_per_block: 1,
            ..Properties::default()
        };
        let driver = Arc::new(Self { state: Mutex::new(State::default()), properties });
        (driver.clone(), Device::with_driver(driver))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// How much work of `other` comes before the next work of `stream`.
    fn comes_after(&self, stream: &Stream, other: &Stream) -> u64 {
        let state = self.state();
        state.streams[&stream.core().handle().0].get(&other.core().handle().0).copied().unwrap_or(0)
    }

    fn finish(&self) {
        self.state().done = true;
    }

    fn is_done(&self) -> bool {
        self.state().done
    }

    fn handle(&self) -> u64 {
        let mut state = self.state();
        state.handles += 1;
        state.handles
    }

    fn work(&self, stream: StreamHandle) -> Result<()> {
        let mut state = self.state();
        *state.streams.entry(stream.0).or_default().entry(stream.0).or_default() += 1;
        Ok(())
    }
}

// SAFETY: no work is executed and no memory is touched; events are reached only when all work counts as done.
unsafe impl Driver for Ordered {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Ok(MemoryInfo { free: ByteSize(0), total: ByteSize(0) })
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn can_access_peer(&self, _peer: u32) -> Result<bool> {
        Ok(false)
    }

    unsafe fn enable_peer(&self, _peer: u64) -> Result<()> {
        Err(Failure::not_supported(Call::EnablePeer))
    }

    fn context(&self) -> u64 {
        0
    }

    fn allocate(&self, _len_bytes: usize) -> Result<Address> {
        Ok(Address(self.handle() << 32))
    }

    unsafe fn free(&self, _address: Address) -> Result<()> {
        Ok(())
    }

    unsafe fn register(&self, _start: NonNull<u8>, _len_bytes: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn unregister(&self, _start: NonNull<u8>) -> Result<()> {
        Ok(())
    }

    fn create_stream(&self, _priority: i32) -> Result<StreamHandle> {
        let stream = self.handle();
        self.state().streams.insert(stream, Clock::new());
        Ok(StreamHandle(stream))
    }

    unsafe fn destroy_stream(&self, _stream: StreamHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn query_stream(&self, _stream: StreamHandle) -> Result<bool> {
        Ok(self.is_done())
    }

    unsafe fn synchronize_stream(&self, _stream: StreamHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<()> {
        let mut state = self.state();
        let recorded = state.events[&event.0].clone();
        let clock = state.streams.entry(stream.0).or_default();
        for (other, at) in recorded {
            let known = clock.entry(other).or_default();
            *known = at.max(*known);
        }
        Ok(())
    }

    fn create_event(&self, _timing: EventTiming) -> Result<EventHandle> {
        Ok(EventHandle(self.handle()))
    }

    unsafe fn destroy_event(&self, _event: EventHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<()> {
        let mut state = self.state();
        let clock = state.streams[&stream.0].clone();
        state.events.insert(event.0, clock);
        Ok(())
    }

    unsafe fn query_event(&self, _event: EventHandle) -> Result<bool> {
        Ok(self.is_done())
    }

    unsafe fn synchronize_event(&self, _event: EventHandle) -> Result<()> {
        Ok(())
    }

    unsafe fn elapsed_ms(&self, _start: EventHandle, _end: EventHandle) -> Result<f32> {
        Ok(0.0)
    }

    unsafe fn copy_to_device(&self, stream: StreamHandle, _to: Address, _from: *const u8, _len: usize) -> Result<()> {
        self.work(stream)
    }

    unsafe fn copy_to_host(&self, stream: StreamHandle, _to: *mut u8, _from: Address, _len: usize) -> Result<()> {
        self.work(stream)
    }

    unsafe fn copy_on_device(&self, stream: StreamHandle, _to: Address, _from: Address, _len: usize) -> Result<()> {
        self.work(stream)
    }

    unsafe fn copy_from_peer(
        &self,
        stream: StreamHandle,
        _to: Address,
        _peer: u64,
        _from: Address,
        _len: usize,
    ) -> Result<()> {
        self.work(stream)
    }

    unsafe fn copy_2d(&self, stream: StreamHandle, _copy: &Copy2d) -> Result<()> {
        self.work(stream)
    }

    unsafe fn fill(&self, stream: StreamHandle, _to: Address, _pattern: Pattern, _count: usize) -> Result<()> {
        self.work(stream)
    }

    unsafe fn call_host(&self, stream: StreamHandle, _function: HostFunction, _data: *mut c_void) -> Result<()> {
        self.work(stream)
    }
}

/// Queues one piece of work with this access to a buffer.
fn work(driver: &Ordered, stream: &Stream, access: Access<'_>) {
    let queued = stream.core().enqueue(&[access], |_, handle| driver.work(handle));
    assert!(queued.is_ok());
}

#[test]
fn loom_a_reader_comes_after_both_of_two_threads_that_wrote() {
    every_schedule(|| {
        let (driver, device) = Ordered::device();
        let [home, one, two, reader] = [0; 4].map(|_| device.stream().unwrap());
        let uses = Arc::new(Uses::new(home.core().clone(), 0));
        let writers = [one.clone(), two.clone()].map(|stream| {
            let (driver, uses) = (driver.clone(), uses.clone());
            thread::spawn(move || work(&driver, &stream, uses.write()))
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());

        work(&driver, &reader, uses.read());

        assert_eq!((driver.comes_after(&reader, &one), driver.comes_after(&reader, &two)), (1, 1));
    });
}

/// Like the test above, where the reader has waited for the first writer before that has waited for the second.
#[test]
fn loom_a_reader_comes_after_a_write_that_another_hides() {
    every_schedule(|| {
        let (driver, device) = Ordered::device();
        let [home, one, two, reader] = [0; 4].map(|_| device.stream().unwrap());
        let uses = Arc::new(Uses::new(home.core().clone(), 0));
        let writer = {
            let (driver, one, uses) = (driver.clone(), one.clone(), uses.clone());
            thread::spawn(move || work(&driver, &one, uses.write()))
        };
        reader.wait_for(&one.record().unwrap()).unwrap();
        work(&driver, &two, uses.write());
        one.wait_for(&two.record().unwrap()).unwrap();
        writer.join().unwrap();

        work(&driver, &reader, uses.read());

        assert_eq!((driver.comes_after(&reader, &one), driver.comes_after(&reader, &two)), (1, 1));
    });
}

/// Whether work of one stream comes before the latest work of the other.
fn are_ordered(driver: &Ordered, one: &Stream, other: &Stream) -> bool {
    driver.comes_after(one, other) > 0 || driver.comes_after(other, one) > 0
}

/// One thread launches a graph while another thread uses the graph's buffers. The borrow checker allows that thread
/// to read buffers that the launch writes, to write buffers that the launch reads, and to launch another graph with
/// the same buffers.
fn a_launch_and_work_beside_it_are_ordered(launched: Writes, beside: for<'a> fn(&'a Uses) -> Access<'a>) {
    every_schedule(move || {
        let (driver, device) = Ordered::device();
        let [home, one, two] = [0; 3].map(|_| device.stream().unwrap());
        let both = Arc::new([0; 2].map(|_| Uses::new(home.core().clone(), 0)));
        both.iter().for_each(|uses| uses.note_captured(launched));
        let launcher = {
            let (driver, one, both) = (driver.clone(), one.clone(), both.clone());
            thread::spawn(move || {
                let accesses = [both[1].launch(launched), both[0].launch(launched)];
                assert!(one.core().enqueue(&accesses, |_, handle| driver.work(handle)).is_ok());
            })
        };

        let accesses = [beside(&both[0]), beside(&both[1]), beside(&both[0])];
        assert!(two.core().enqueue(&accesses, |_, handle| driver.work(handle)).is_ok());

        launcher.join().unwrap();
        assert!(are_ordered(&driver, &one, &two));
    });
}

#[test]
fn loom_a_reader_beside_a_launch_that_writes_is_ordered() {
    a_launch_and_work_beside_it_are_ordered(Writes(true), Uses::read);
}

#[test]
fn loom_a_writer_beside_a_launch_that_reads_is_ordered() {
    a_launch_and_work_beside_it_are_ordered(Writes(false), Uses::write);
}

#[test]
fn loom_launches_that_write_the_same_are_ordered() {
    a_launch_and_work_beside_it_are_ordered(Writes(true), |uses| uses.launch(Writes(true)));
}

#[test]
fn loom_an_event_covers_the_work_that_its_number_says() {
    every_schedule(|| {
        let (driver, device) = Ordered::device();
        let [busy, waiting] = [0; 2].map(|_| device.stream().unwrap());
        let uses = Arc::new(Uses::new(busy.core().clone(), 0));
        let worker = {
            let (driver, busy, uses) = (driver.clone(), busy.clone(), uses.clone());
            thread::spawn(move || work(&driver, &busy, uses.write()))
        };
        waiting.wait_for(&busy.record().unwrap()).unwrap(); // before, between or after the worker's steps
        worker.join().unwrap();

        work(&driver, &waiting, uses.write()); // must wait again for work that the event does not cover

        assert_eq!(driver.comes_after(&waiting, &busy), 1);
    });
}

#[test]
fn loom_a_block_goes_to_another_stream_only_in_order() {
    every_schedule(|| {
        let (driver, device) = Ordered::device();
        device.memory_budget().set_limit(ByteSize::mib(4));
        let [home, other] = [0; 2].map(|_| device.stream().unwrap());
        let buffer = home.zeros::<u8>(4 << 20).unwrap();
        let address = buffer.address();
        let dropper = thread::spawn(move || drop(buffer));
        let finisher = {
            let driver = driver.clone();
            thread::spawn(move || driver.finish())
        };
        if let Ok(taken) = other.allocate::<u8>(4 << 20) {
            let in_order = driver.comes_after(&other, &home) >= 1;
            assert!(taken.address() != address || in_order || driver.is_done());
        }
        dropper.join().unwrap();
        finisher.join().unwrap();
    });
}

#[test]
fn loom_what_is_parked_is_given_back_once_and_not_too_early() {
    every_schedule(|| {
        let (driver, device) = Ordered::device();
        let stream = device.stream().unwrap();
        let times = Arc::new(Mutex::new(0));
        let recorded = Recorded::new(stream.core(), EventTiming::Untimed).unwrap();
        let parker = {
            let (driver, device, times) = (driver.clone(), device.clone(), times.clone());
            let free = Box::new(move || {
                assert!(driver.is_done(), "given back too early");
                *times.lock().unwrap() += 1;
            });
            let cargo = DeferredDrop { len_bytes: 1, free };
            thread::spawn(move || device.core().deferred.defer(recorded, cargo))
        };
        let reaper = {
            let device = device.clone();
            thread::spawn(move || device.release_finished())
        };
        driver.finish();
        device.release_finished();
        parker.join().unwrap();
        reaper.join().unwrap();
        device.release_finished();
        assert_eq!(*times.lock().unwrap(), 1);
    });
}
