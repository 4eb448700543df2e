//! Functions that streams call on the host.

use std::{
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use pagelock_cuda::{
    Device, DeviceBuffer, Error, Event, Graph, HostSource, Pinned, Priority, Recording, Refused, RowLayout, Stream,
    Timeline, Uninit,
    driver::Call,
    page_locked_budget,
    software::{Effect, Fault, Machine},
};
use pagelock_memory::{HostBuffer, Trim};

use crate::tools::{lazy, moody, threaded};

#[test]
fn a_panic_ends_in_the_call_and_comes_out_of_waiting() {
    let stream = lazy(0).device(0).unwrap().stream().unwrap();
    let call = stream.call(|| -> u32 { std::panic::resume_unwind(Box::new("on purpose")) }).unwrap();
    assert_eq!(call.wait().unwrap_err().to_string(), "a host function panicked: on purpose");
    assert_eq!(stream.call(|| 7).unwrap().wait().unwrap(), 7);
}

#[test]
fn a_host_function_cannot_use_devices() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let (inside, buffer) = (stream.clone(), stream.zeros::<u8>(10).unwrap());
    let call = stream.call(move || {
        let refused = inside.read(&buffer).is_err_and(|error| matches!(error, Error::InsideHostFunction));
        let ticketless = matches!(inside.synchronize(), Err(Error::InsideHostFunction));
        drop(buffer); // makes no driver call
        refused && ticketless
    });
    assert!(call.unwrap().wait().unwrap());
    assert_eq!(device.leaked().count, 0);
}

#[test]
fn a_short_upload_is_refused_there_and_leaves_those_before_it_alone() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let [mut first, mut second] = [0; 2].map(|_| stream.zeros::<u32>(10).unwrap());
    stream.upload_from(&[1; 10], &mut first).unwrap(); // its slot has space left
    let inside = stream.clone();
    let call = stream.call(move || inside.upload_from(&[2; 10], &mut second).unwrap_err());
    assert!(matches!(call.unwrap().wait().unwrap(), Error::InsideHostFunction));
    assert_eq!((device.leaked().count, stream.read(&first).unwrap()), (0, vec![1; 10]));
}

#[test]
fn a_call_that_is_refused_drops_its_function_and_one_that_may_happen_happens_once() {
    for effect in [Effect::None, Effect::Done] {
        let machine = lazy(0);
        let stream = machine.device(0).unwrap().stream().unwrap();
        let (send, receive) = mpsc::channel();
        machine.fail(Fault::at(0).call(Call::CallHost).effect(effect));
        assert!(stream.call(move || send.send(()).unwrap()).is_err());
        machine.run_all();
        let calls = receive.iter().count(); // ends only when the function, and its sender, is dropped
        assert_eq!(calls, usize::from(effect == Effect::Done));
    }
}

#[test]
fn nobody_has_to_wait_for_a_call() {
    let machine = lazy(0);
    let stream = machine.device(0).unwrap().stream().unwrap();
    let (send, receive) = mpsc::channel();
    drop(stream.call(move || send.send(7).unwrap()).unwrap());
    stream.synchronize().unwrap();
    assert_eq!(receive.recv(), Ok(7));
}

/// Runs `function` as a host function of a stream, with more work queued behind it. Fails if that does not end.
fn inside<R: Send + 'static>(stream: &Stream, function: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, receive) = mpsc::channel();
    let stream = stream.clone();
    let waits = move || {
        let mut behind = stream.zeros::<u8>(100)?;
        let call = stream.call(function)?;
        stream.fill(&mut behind, 1)?;
        let result = call.wait();
        let _ = send.send(());
        result
    };
    let waiting = thread::spawn(waits);
    assert!(receive.recv_timeout(Duration::from_secs(20)).is_ok(), "a host function waits for its own device");
    waiting.join().unwrap().unwrap()
}

fn is_refused<X, E: Into<Error>>(what: &str, result: Result<X, E>) {
    match result.map_err(E::into) {
        Ok(_) => panic!("{what} answers Ok"),
        Err(Error::InsideHostFunction) => {}
        Err(other) => panic!("{what}: {other:?}"),
    }
}

/// What tests use inside host functions: two streams of a device, and memory, graphs and an event.
struct Things {
    device: Device,
    stream: Stream,
    other: Stream,
    buffer: DeviceBuffer<u8>,
    target: DeviceBuffer<u8>,
    host: HostBuffer,
    graph: Graph<DeviceBuffer<u8>>,
    recordings: Vec<Recording>,
    event: Event,
}

impl Things {
    fn new(device: &Device) -> Self {
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let (buffer, target) = (stream.zeros(64).unwrap(), other.zeros(64).unwrap());
        let mut owned = stream.zeros::<u8>(64).unwrap();
        let recording = device.capture(|stream| stream.fill(&mut owned, 1)).unwrap();
        let graph = recording.with(owned).unwrap();
        graph.launch(&other).unwrap();
        let mut written = stream.zeros::<u8>(64).unwrap();
        let record = |_| device.capture(|stream| stream.fill(&mut written, 1)).unwrap();
        let recordings = (0..3).map(record).collect();
        let host = HostBuffer::allocate(device.page_locked(), 64).unwrap();
        let event = stream.record_timed().unwrap();
        Self { device: device.clone(), stream, other, buffer, target, host, graph, recordings, event }
    }

    fn refuse_of_devices(&mut self) {
        let (device, peer) = (&self.device, self.device.clone());
        is_refused("memory_info", device.memory_info());
        is_refused("stream", device.stream());
        is_refused("stream_with_priority", device.stream_with_priority(Priority::High));
        is_refused("synchronize", device.synchronize());
        is_refused("enable_peer", device.enable_peer(&peer));
        is_refused("trim", device.trim());
        is_refused("capture", device.capture(|_| Ok(())));
        is_refused("Pinned::zeroed", Pinned::<u8>::zeroed(device, 64));
        is_refused("Pinned::from_slice", Pinned::from_slice(device, &[1_u8; 64]));
        is_refused("Uninit::new", Uninit::<u8>::new(device, 64));
        device.release_finished();
        device.release_staging();
        let _ = (device.leaked(), device.in_flight(), device.pool_stats(), device.staging(), device.staged());
    }

    fn refuse_of_streams(&mut self) {
        let Self { stream, event, .. } = self;
        is_refused("allocate", stream.allocate::<u8>(64));
        is_refused("zeros", stream.zeros::<u8>(64));
        is_refused("allocate_from", stream.allocate_from(&[1_u8; 64]));
        is_refused("record", stream.record());
        is_refused("record_timed", stream.record_timed());
        is_refused("wait_for", stream.wait_for(event));
        is_refused("is_idle", stream.is_idle());
        is_refused("Stream::synchronize", stream.synchronize());
        is_refused("call", stream.call(|| ()));
        is_refused("is_reached", event.is_reached());
        is_refused("Event::wait", event.wait());
        is_refused("elapsed_since", event.elapsed_since(event));
        is_refused("on_stream", Timeline::new().on_stream("work", stream, || ()));
    }

    fn refuse_of_copies(&mut self) {
        let Self { stream, buffer, target, host, .. } = self;
        let (slice, mut place, rows) = ([1_u8; 64], [0_u8; 64], RowLayout::dense(1, 64));
        is_refused("fill", stream.fill(&mut *target, 1));
        is_refused("copy", stream.copy(&*buffer, &mut *target));
        is_refused("copy_rows", stream.copy_rows(&*buffer, rows, &mut *target, rows));
        is_refused("read", stream.read(&*buffer));
        is_refused("scope", stream.scope(|scope| scope.upload(&slice, &mut *target)));
        is_refused("upload_from a buffer", stream.upload_from(&*host, &mut *target));
        is_refused("download_to a buffer", stream.download_to(&*buffer, host));
        is_refused("upload_from a slice", stream.upload_from(&slice, &mut *target));
        is_refused("download_to a slice", stream.download_to(&*buffer, &mut place));
        is_refused("upload_each", stream.upload_each([(&slice, &mut *target)]));
        is_refused("upload_all", stream.upload_all(&[(&slice).into()]));
        is_refused("download_each", stream.download_each([(&*buffer, &mut place)]));
        is_refused("upload_packed", stream.upload_packed(&[&slice[..]]));
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let source = || HostSource::of_file(&file, 0..64).unwrap();
        is_refused("upload_from a file", stream.upload_from(source(), &mut *target));
        is_refused("upload_all of a file", stream.upload_all(&[source()]));
    }

    fn refuse_of_graphs(&mut self) {
        let Self { stream, graph, recordings, .. } = self;
        is_refused("launch", graph.launch(stream));
        is_refused("update", recordings.pop().map_or(Ok(()), |recording| graph.update(recording)));
        is_refused("shared", recordings.pop().map_or_else(|| panic!("there are three"), Recording::shared).map(drop));
    }
}

fn devices() -> [Machine; 3] {
    [lazy(1), moody(2), threaded(3)]
}

/// Waits until all memory that host functions left behind is freed.
#[track_caller]
fn is_all_given_back(machine: &Machine) {
    let is_left = || (machine.allocated().0, machine.page_locked().0);
    let start = Instant::now();
    while is_left() != (0, 0) && start.elapsed() < Duration::from_secs(20) {
        machine.run_all();
        thread::yield_now();
    }
    assert_eq!((is_left(), machine.violations()), ((0, 0), Vec::new()));
}

#[test]
fn every_function_that_could_reach_the_driver_is_refused_inside() {
    for machine in devices() {
        let device = machine.device(0).unwrap();
        let mut things = Things::new(&device);
        let stream = things.stream.clone();
        inside(&stream, move || {
            things.refuse_of_devices();
            things.refuse_of_streams();
            things.refuse_of_copies();
            things.refuse_of_graphs();
        });
        assert_eq!(device.leaked().count, 0);
        drop((stream, device));
        is_all_given_back(&machine);
    }
}

#[test]
fn copies_that_own_their_memory_are_refused_inside_and_give_it_back() {
    for machine in devices() {
        let device = machine.device(0).unwrap();
        let Things { stream, buffer, mut target, .. } = Things::new(&device);
        let pinned = Pinned::from_slice(&device, &[7_u8; 64]).unwrap();
        let uninit = Uninit::<u8>::new(&device, 64).unwrap();
        let ticket = stream.upload(Pinned::from_slice(&device, &[1_u8; 64]).unwrap(), &mut target).unwrap();
        let (here, rows) = (stream.clone(), RowLayout::dense(1, 64));
        inside(&stream, move || {
            let is_back = |refused: Refused<Pinned<u8>>| {
                let (pinned, error) = refused.into_parts();
                assert!(matches!(error, Error::InsideHostFunction), "{error}");
                pinned.unwrap()
            };
            let pinned = is_back(here.upload(pinned, &mut target).unwrap_err());
            assert_eq!(*is_back(here.upload(pinned, target.view_mut().in_rows(rows, rows)).unwrap_err()), [7; 64]);
            let (uninit, error) = here.download(&buffer, uninit).unwrap_err().into_parts();
            assert!(matches!(error, Error::InsideHostFunction), "{error}");
            let refused = here.download(buffer.view().in_rows(rows, rows), uninit.unwrap());
            assert!(matches!(refused.unwrap_err().into_parts(), (Some(_), Error::InsideHostFunction)));
            assert!(!ticket.is_done());
            is_refused("Ticket::wait", ticket.try_wait().unwrap_err().wait());
        });
        assert_eq!(device.leaked().count, 0);
        drop((stream, device));
        is_all_given_back(&machine);
    }
}

/// Drops one of everything while the device uses it, and then the last handles.
#[test]
fn what_is_dropped_inside_neither_waits_nor_is_lost() {
    for machine in devices() {
        let device = machine.device(0).unwrap();
        let Things { stream, other, mut buffer, target, host, graph, recordings, event, .. } = Things::new(&device);
        let slot = || HostBuffer::allocate(device.page_locked(), 64).unwrap();
        let (mut written, left) = (slot(), slot());
        other.upload_from(&host, &mut buffer).unwrap();
        stream.upload_from(&host, &mut buffer).unwrap(); // two copies read `host`
        other.download_to(&buffer, &mut written).unwrap();
        other.upload_from(&left, &mut buffer).unwrap();
        let ticket = other.download(&buffer, Uninit::<u8>::new(&device, 64).unwrap()).unwrap();
        let mut parts = stream.zeros::<u8>(64).unwrap().split([0..10, 20..64]).unwrap();
        parts.iter_mut().for_each(|part| other.fill(part, 1).unwrap());
        let mut shared = stream.zeros::<u8>(64).unwrap();
        let through = device.capture(|stream| {
            let mut between = stream.allocate(64)?;
            stream.copy(&target, &mut between)?;
            stream.copy(&between, &mut shared)
        });
        let shared_graph = through.unwrap().shared().unwrap();
        shared_graph.launch(&other).unwrap();
        let pinned = Pinned::from_slice(&device, &[1_u8; 64]).unwrap();
        let end = stream.clone();
        drop(left.drop_without_waiting());
        let last = (device, stream, other, event, recordings, pinned.freeze());
        let first = (buffer, target, host, written, graph, ticket, parts, shared, shared_graph);
        inside(&end, move || drop((first, last)));
        drop(end);
        is_all_given_back(&machine);
    }
}

#[test]
fn the_last_handle_of_a_device_may_be_dropped_inside() {
    for machine in devices() {
        let device = machine.device(0).unwrap();
        let stream = device.stream().unwrap();
        let mut buffer = stream.zeros::<u8>(1_000).unwrap();
        let ticket = stream.upload(Pinned::from_slice(&device, &[1_u8; 1_000]).unwrap(), &mut buffer).unwrap();
        let call = stream.call({
            let (device, stream) = (device.clone(), stream.clone());
            move || drop((buffer, ticket, stream, device))
        });
        drop((call.unwrap(), stream, device));
        is_all_given_back(&machine);
    }
}

#[test]
fn a_host_buffer_that_a_device_uses_says_that_it_cannot_be_waited_for_inside() {
    for machine in devices() {
        let device = machine.device(0).unwrap();
        let Things { stream, other, mut buffer, mut host, .. } = Things::new(&device);
        other.upload_from(&host, &mut buffer).unwrap();
        stream.fill(&mut buffer, 9).unwrap();
        other.download_to(&buffer, &mut host).unwrap();
        let (send, receive) = mpsc::channel();
        let call = stream.call(move || {
            let read = catch_unwind(AssertUnwindSafe(|| host.bytes().len()));
            drop(send.send((read, host)));
        });
        call.unwrap().wait().unwrap();
        let (read, host) = receive.recv().unwrap();
        let refusal = "a device still uses this buffer, and this thread may not wait for it: let another thread use \
                       the buffer";
        assert_eq!(read.unwrap_err().downcast_ref::<&str>(), Some(&refusal));
        assert_eq!((host.bytes(), device.leaked().count), (&[9; 64][..], 0), "it can be read outside");
    }
}

/// Drops page-locked memory when it is trimmed for the second time, while a thread waits for the budget.
struct DropsLate {
    n_asked: AtomicUsize,
    memory: Mutex<Option<Pinned<u8>>>,
}

impl Trim for DropsLate {
    fn trim(&self) -> usize {
        if self.n_asked.fetch_add(1, Relaxed) == 1 {
            drop(self.memory.lock().unwrap().take());
        }
        0
    }
}

#[test]
fn a_budget_that_is_short_inside_loses_no_page_locked_memory() {
    for machine in devices() {
        let device = machine.device(0).unwrap();
        let stream = device.stream().unwrap();
        let [idle, kept] = [0; 2].map(|_| Pinned::from_slice(&device, &[1_u8; 64]).unwrap());
        let outlives = HostBuffer::allocate(device.page_locked(), 1 << 20).unwrap();
        drop(idle);
        let late = Arc::new(DropsLate { n_asked: AtomicUsize::new(0), memory: Mutex::new(Some(kept)) });
        let pool: Arc<dyn Trim> = late.clone();
        page_locked_budget().add_pool(Arc::downgrade(&pool));
        drop(device);
        inside(&stream, move || {
            let (budget, timeout) = (page_locked_budget(), Duration::from_millis(1));
            assert!(budget.reserve_timeout(budget.limit().0, timeout).is_err());
            drop((late, pool));
            drop(outlives);
        });
        drop(stream);
        is_all_given_back(&machine);
    }
}
