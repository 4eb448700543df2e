//! Handles of one driver are refused by another, whatever their numbers are.

use pagelock_cuda::{
    Device, Error, OnDevice, Pinned, Stream, Timeline, Uninit,
    software::{Config, Machine},
};

/// Streams of two machines, whose handles are the same small numbers.
struct Two {
    here: Stream,
    there: Stream,
}

impl Two {
    fn new() -> Self {
        let stream = || Device::software(Config::default()).unwrap().stream().unwrap();
        Self { here: stream(), there: stream() }
    }
}

#[track_caller]
fn is_stranger<T>(result: Result<T, Error>, what: OnDevice) {
    match result.map(drop) {
        Err(Error::OtherDriver { what: found }) if found == what => {}
        other => panic!("not refused as {what}: {other:?}"),
    }
}

#[test]
fn a_copy_from_a_device_of_another_driver_is_refused() {
    let Two { here, there } = Two::new();
    let (source, mut target) = (there.allocate::<u32>(4).unwrap(), here.zeros::<u32>(4).unwrap());
    is_stranger(here.copy(&source, &mut target), OnDevice::Buffer); // no work is pending on `source`
    let used = there.allocate_from(&[1; 4]).unwrap();
    is_stranger(here.copy(&used, &mut target), OnDevice::Buffer);
    is_stranger(here.copy(there.allocate::<u32>(0).unwrap().view(), target.slice_mut(..0).unwrap()), OnDevice::Buffer);
    let captured = here.device().capture(|stream| stream.copy(&source, &mut target));
    is_stranger(captured, OnDevice::Buffer);
    assert_eq!(here.read(&target).unwrap(), [0; 4]);
}

#[test]
fn work_on_a_buffer_of_another_driver_is_refused_as_that() {
    let Two { here, there } = Two::new();
    let mut buffer = there.zeros::<u32>(4).unwrap();
    is_stranger(here.read(&buffer), OnDevice::Buffer);
    is_stranger(here.fill(&mut buffer, 1), OnDevice::Buffer);
    assert_eq!(
        here.fill(&mut buffer, 1).unwrap_err().to_string(),
        "the buffer belongs to another driver than the stream: copy it through the host, with `Stream::read` on a \
         stream of its own device"
    );
}

#[test]
fn an_event_of_another_driver_is_refused() {
    let Two { here, there } = Two::new();
    is_stranger(here.wait_for(&there.record().unwrap()), OnDevice::Event);
    let (start, end) = (there.record_timed().unwrap(), here.record_timed().unwrap());
    let refused = end.elapsed_since(&start).unwrap_err();
    assert!(matches!(&refused, Error::Argument(text) if text.contains("their clocks differ")), "{refused}");
    assert!(here.is_idle().unwrap() || here.synchronize().is_ok());
}

#[test]
fn an_event_of_another_device_of_the_driver_is_waited_for() {
    let machine = Machine::new(Config { devices: 2, ..Config::default() });
    let [here, there] = [0, 1].map(|ordinal| machine.device(ordinal).unwrap().stream().unwrap());
    here.wait_for(&there.record().unwrap()).unwrap();
    here.synchronize().unwrap();
}

#[test]
fn a_peer_of_another_driver_is_refused() {
    let Two { here, there } = Two::new();
    is_stranger(here.device().enable_peer(there.device()), OnDevice::Peer);
}

#[test]
fn a_graph_or_a_recording_of_another_driver_is_refused() {
    let Two { here, there } = Two::new();
    let graph = |stream: &Stream| {
        let mut buffer = stream.zeros::<u32>(4).unwrap();
        stream.device().capture(|stream| stream.fill(&mut buffer, 1)).unwrap().with(buffer).unwrap()
    };
    let (mut ours, theirs) = (graph(&here), graph(&there));
    is_stranger(theirs.launch(&here), OnDevice::Graph);
    let nothing = there.device().capture(|_| Ok(())).unwrap();
    is_stranger(ours.update(nothing), OnDevice::Recording);
    ours.launch(&here).unwrap();
}

#[test]
fn a_recording_of_another_device_of_the_driver_is_refused() {
    let machine = Machine::new(Config { devices: 2, ..Config::default() });
    let [here, there] = [0, 1].map(|ordinal| machine.device(ordinal).unwrap());
    let mut graph = here.capture(|_| Ok(())).unwrap().shared().unwrap();
    assert_eq!(
        graph.update(there.capture(|_| Ok(())).unwrap()).unwrap_err().to_string(),
        "the recording is on device 1, the graph on device 0: capture the work on the graph's device"
    );
}

/// Page-locked memory can be a source or a target, whichever driver locked it.
#[test]
fn page_locked_memory_of_another_driver_is_copied() {
    let Two { here, there } = Two::new();
    let mut target = here.allocate::<u32>(3).unwrap();
    let source = Pinned::from_slice(there.device(), &[1, 2, 3]).unwrap();
    drop(here.upload(source, &mut target).unwrap());
    let back = here.download(&target, Uninit::new(there.device(), 3).unwrap()).unwrap();
    assert_eq!(*back.wait().unwrap(), [1, 2, 3]);
}

#[test]
fn a_timeline_has_spans_of_devices_of_several_drivers() {
    let Two { here, there } = Two::new();
    let timeline = Timeline::new();
    for stream in [&here, &there] {
        timeline.on_stream("nothing", stream, || ()).unwrap();
    }
    assert_eq!(timeline.spans().unwrap().len(), 2);
}
