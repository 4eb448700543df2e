//! Recordings that use the same buffers do not affect each other, whatever is recorded, dropped, launched or split in
//! between.

use std::thread;

use pagelock_cuda::{
    Device, DeviceBuffer, Error, Graph, Pinned, Recording, Shared, Stream, Uninit,
    driver::{Call, Status},
    software::{Effect, Fault, Machine},
};

use crate::tools::{Delay, lazy, moody, on_every_device, threaded};

const LEN: usize = 5_000;

fn fills(device: &Device, target: &mut DeviceBuffer<u32>, value: u32) -> Recording {
    device.capture(|stream| stream.fill(target, value)).unwrap()
}

fn copies(device: &Device, source: &DeviceBuffer<u32>, target: &mut DeviceBuffer<u32>) -> Recording {
    device.capture(|stream| stream.copy(source, target)).unwrap()
}

/// Allocates whatever the pool has free in this size, and fills it.
fn grabbed(stream: &Stream, value: u32) -> Vec<DeviceBuffer<u32>> {
    let grab = |_| {
        let mut buffer = stream.allocate::<u32>(LEN).unwrap();
        stream.fill(&mut buffer, value).unwrap();
        buffer
    };
    (0..8).map(grab).collect()
}

#[test]
fn a_graph_keeps_buffers_that_a_later_recording_uses_too_until_its_launches_are_done() {
    for seed in 0..30 {
        for machine in [lazy(seed), moody(seed), threaded(seed)] {
            let device = machine.device(0).unwrap();
            let [one, two] = [0; 2].map(|_| device.stream().unwrap());
            let mut buffer = one.zeros::<u32>(LEN).unwrap();
            let first = fills(&device, &mut buffer, 1);
            let second = fills(&device, &mut buffer, 2);
            let graph = first.shared().unwrap();
            drop((second, buffer));
            let kept = grabbed(&one, 8);
            let mut delay = Delay::new(&two);
            (0..100).for_each(|_| delay.queue(&two));
            graph.launch(&two).unwrap();
            drop(graph);
            let others = grabbed(&one, 9);
            kept.iter().for_each(|kept| assert_eq!(one.read(kept).unwrap(), [8; LEN], "seed {seed}"));
            others.iter().for_each(|other| assert_eq!(one.read(other).unwrap(), [9; LEN], "seed {seed}"));
        }
    }
}

#[test]
fn launches_are_ordered_though_a_later_recording_uses_the_same_buffers() {
    for seed in 0..30 {
        for machine in [lazy(seed), moody(seed), threaded(seed)] {
            let device = machine.device(0).unwrap();
            let [one, two] = [0; 2].map(|_| device.stream().unwrap());
            let (mut source, mut target) = (one.zeros::<u32>(LEN).unwrap(), one.zeros::<u32>(LEN).unwrap());
            let first = copies(&device, &source, &mut target);
            let _second = copies(&device, &source, &mut target);
            let graph = first.shared().unwrap();
            for value in 1..5 {
                one.fill(&mut source, value).unwrap();
                graph.launch(&two).unwrap();
                assert_eq!(one.read(&target).unwrap(), [value; LEN], "seed {seed}");
            }
        }
    }
}

/// Records copies from the first buffer to the second and from the second to the third. In between, another recording
/// reads the second.
fn nested(device: &Device, [first, second, third]: &mut [DeviceBuffer<u32>; 3]) -> Recording {
    let recording = device.capture(|outer| {
        outer.copy(&*first, &mut *second)?;
        drop(device.capture(|inner| inner.copy(&*second, &mut *third))?);
        outer.copy(&*second, third)
    });
    recording.unwrap()
}

fn zeros<const N: usize>(stream: &Stream) -> [DeviceBuffer<u32>; N] {
    std::array::from_fn(|_| stream.zeros(LEN).unwrap())
}

#[test]
fn a_recording_inside_another_makes_no_reads_of_its_writes() {
    for seed in 0..30 {
        for machine in [lazy(seed), moody(seed), threaded(seed)] {
            let device = machine.device(0).unwrap();
            let [one, two] = [0; 2].map(|_| device.stream().unwrap());
            let mut buffers = zeros(&one);
            let graph = nested(&device, &mut buffers).shared().unwrap();
            for value in 1..5 {
                one.fill(&mut buffers[0], value).unwrap();
                graph.launch(&two).unwrap();
                assert_eq!(one.read(&buffers[1]).unwrap(), [value; LEN], "seed {seed}");
            }
        }
    }
}

#[test]
fn a_recording_inside_another_leaves_it_the_same_buffers() {
    on_every_device(|device| {
        let mut buffers = zeros(&device.stream().unwrap());
        let recording = nested(device, &mut buffers);
        let [first, second, third] = buffers;
        recording.with((first, second, third)).unwrap();
    });
}

#[test]
fn recordings_on_two_threads_each_know_what_they_use() {
    for seed in 0..10 {
        let device = threaded(seed).device(0).unwrap();
        let stream = device.stream().unwrap();
        let mut source = stream.zeros::<u32>(LEN).unwrap();
        let copier = |source: &DeviceBuffer<u32>| {
            let stream = device.stream().unwrap();
            let mut target = stream.zeros::<u32>(LEN).unwrap();
            let recordings: Vec<_> = (0..20).map(|_| copies(&device, source, &mut target)).collect();
            let graphs: Vec<_> = recordings.into_iter().map(|recording| recording.shared().unwrap()).collect();
            (graphs, target)
        };
        let copiers = thread::scope(|scope| {
            let threads = [0; 2].map(|_| scope.spawn(|| copier(&source)));
            threads.map(|thread| thread.join().unwrap())
        });
        for (round, (graphs, target)) in (1..).zip(copiers.iter().cycle().take(10)) {
            stream.fill(&mut source, round).unwrap();
            graphs[round as usize].launch(&device.stream().unwrap()).unwrap();
            assert_eq!(stream.read(target).unwrap(), [round; LEN]);
        }
        drop(source);
        let others = grabbed(&stream, 9);
        let mut reads = copiers.iter().flat_map(|(graphs, _)| graphs);
        reads.try_for_each(|graph| graph.launch(&stream)).unwrap();
        assert_eq!(stream.read(&copiers[0].1).unwrap(), [10; LEN]);
        others.iter().for_each(|other| assert_eq!(stream.read(other).unwrap(), [9; LEN]));
    }
}

#[test]
fn a_buffer_that_is_given_twice_does_not_stand_for_another() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        let [mut one, mut other] = zeros(&stream);
        let also_one: Shared = fills(device, &mut one, 1).shared().unwrap().into_buffers();
        let recording = device.capture(|stream| {
            stream.fill(&mut one, 2)?;
            stream.fill(&mut other, 3)
        });
        let refused = recording.unwrap().with((also_one, one)).unwrap_err();
        assert!(matches!(refused, Error::NotOwned { used: 2, given: 1 }), "{refused}");
    });
}

#[test]
fn an_update_is_refused_a_buffer_for_which_another_is_there_twice() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        let [mut one, mut other] = zeros(&stream);
        let first = fills(device, &mut one, 1);
        let also_one: Shared = fills(device, &mut one, 1).shared().unwrap().into_buffers();
        let both = device.capture(|stream| {
            stream.fill(&mut one, 2)?;
            stream.fill(&mut other, 3)
        });
        let mut graph: Graph<(Shared, DeviceBuffer<u32>)> = first.with((also_one, one)).unwrap();
        assert!(matches!(graph.update(both.unwrap()), Err(Error::NotOwned { used: 2, given: 1 })));
    });
}

/// The buffer was allocated during the capture. The graph waits for what another stream still does with its memory.
#[test]
fn a_launch_comes_after_uses_of_buffers_that_are_gone_when_the_graph_is_made() {
    for seed in 0..30 {
        for machine in [lazy(seed), moody(seed), threaded(seed)] {
            let device = machine.device(0).unwrap();
            let [one, two] = [0; 2].map(|_| device.stream().unwrap());
            let mut own = None;
            let recording = device.capture(|stream| stream.fill(own.insert(stream.allocate::<u32>(LEN)?), 1)).unwrap();
            let mut own = own.unwrap();
            one.fill(&mut own, 7).unwrap();
            let ticket = one.download(&own, Uninit::new(&device, LEN).unwrap()).unwrap();
            drop(own);
            recording.shared().unwrap().launch(&two).unwrap();
            assert_eq!(*ticket.wait().unwrap(), [7; LEN], "seed {seed}");
        }
    }
}

#[test]
fn a_buffer_is_not_cut_while_any_recording_or_graph_may_use_it() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        let ranges = || [0..LEN / 2, LEN / 2..LEN];
        let refused = |buffer: DeviceBuffer<u32>| assert!(matches!(buffer.split(ranges()), Err(Error::Shared)));
        let mut whole = stream.zeros::<u32>(LEN).unwrap();
        let (first, second) = (fills(device, &mut whole, 1), fills(device, &mut whole, 2));
        drop(second);
        refused(whole);
        drop(first);
        let mut parts = stream.zeros::<u32>(LEN).unwrap().split(ranges()).unwrap().into_iter();
        let (mut part, other) = (parts.next().unwrap(), parts.next().unwrap());
        let graph = fills(device, &mut part, 3).shared().unwrap();
        let quarters = |buffer: DeviceBuffer<u32>| buffer.split([0..LEN / 4, LEN / 4..LEN / 2]);
        assert!(quarters(other).is_ok(), "the other part is nobody else's");
        assert!(matches!(quarters(part), Err(Error::Shared)));
        graph.launch(&stream).unwrap();
        let others = grabbed(&stream, 9);
        graph.launch(&stream).unwrap();
        others.iter().for_each(|other| assert_eq!(stream.read(other).unwrap(), [9; LEN]));
    });
}

#[test]
fn ranges_to_cut_may_use_the_stream_that_is_captured() {
    let device = lazy(0).device(0).unwrap();
    let mut beside = device.stream().unwrap().zeros::<u32>(LEN).unwrap();
    let recording = device.capture(|stream| {
        let whole = stream.allocate::<u32>(LEN)?;
        let parts = whole.split([0..10, 20..LEN].into_iter().inspect(|_| stream.fill(&mut beside, 1).unwrap()))?;
        assert_eq!(parts.len(), 2);
        Ok(())
    });
    assert!(recording.is_ok());
}

/// The driver may have applied the update although it reports a failure.
#[test]
fn a_launch_after_an_update_that_failed_is_ordered_as_either_would_be() {
    for seed in 0..30 {
        for machine in [lazy(seed), moody(seed), threaded(seed)] {
            let device = machine.device(0).unwrap();
            let [one, two] = [0; 2].map(|_| device.stream().unwrap());
            let [mut first, mut second] = zeros(&one);
            let forth = copies(&device, &first, &mut second);
            let back = copies(&device, &second, &mut first);
            let mut graph = forth.with((first, second)).unwrap();
            machine.fail(Fault::at(0).call(Call::UpdateGraph).effect(Effect::Done));
            assert!(matches!(graph.update(back), Err(Error::Driver(_))));
            for value in 1..5 {
                one.fill(graph.views_mut().1, value).unwrap();
                graph.launch(&two).unwrap();
                assert_eq!(one.read(&graph.0).unwrap(), [value; LEN], "seed {seed}");
            }
        }
    }
}

/// Also for launches on the stream that captured the work, of which the user may have kept a handle.
#[test]
fn an_update_waits_for_launches_on_every_stream() {
    let machine: Machine = lazy(0);
    let device = machine.device(0).unwrap();
    let mut buffer = device.stream().unwrap().zeros::<u32>(LEN).unwrap();
    let mut captured_on = None;
    let recording = device.capture(|stream| captured_on.insert(stream.clone()).fill(&mut buffer, 1)).unwrap();
    let next = fills(&device, &mut buffer, 2);
    let mut graph = recording.with(buffer).unwrap();
    let captured_on = captured_on.unwrap();
    graph.launch(&captured_on).unwrap();
    graph.update(next).unwrap();
    assert!(captured_on.is_idle().unwrap(), "nothing runs what is changed");
}

/// A stream on which a capture ended although the driver reported that it was invalid.
fn stream_of_an_invalid_capture(machine: &Machine) -> Stream {
    let mut captured_on = None;
    let is_invalid = Fault::at(0).call(Call::EndCapture).status(Status::STREAM_CAPTURE_INVALIDATED);
    machine.fail(is_invalid.effect(Effect::Done));
    let invalid = machine.device(0).unwrap().capture(|stream| {
        captured_on = Some(stream.clone());
        Ok(())
    });
    assert!(matches!(invalid, Err(Error::Driver(_))));
    captured_on.unwrap()
}

#[test]
fn the_stream_of_an_invalid_capture_is_waited_for_again() {
    for machine in [lazy(0), moody(0), threaded(0)] {
        let (device, stream) = (machine.device(0).unwrap(), stream_of_an_invalid_capture(&machine));
        let mut target = stream.zeros::<u32>(LEN).unwrap();
        let ticket = stream.upload(Pinned::from_slice(&device, &[7; LEN]).unwrap(), &mut target).unwrap();
        device.synchronize().unwrap();
        assert!(stream.is_idle().unwrap());
        ticket.wait().unwrap();
        assert_eq!(stream.read(&target).unwrap(), [7; LEN]);
    }
}

#[test]
fn waiting_for_the_context_is_refused_while_a_stream_captures_and_spoils_no_capture() {
    on_every_device(|device| {
        let mut buffer = device.stream().unwrap().zeros::<u32>(LEN).unwrap();
        let recording = device.capture(|stream| {
            let refused = thread::scope(|scope| scope.spawn(|| device.synchronize_context()).join().unwrap());
            assert!(matches!(refused, Err(Error::Capturing)));
            stream.fill(&mut buffer, 7)
        });
        let graph = recording.unwrap().with(buffer).unwrap();
        device.synchronize_context().unwrap();
        let stream = device.stream().unwrap();
        graph.launch(&stream).unwrap();
        assert_eq!(stream.read(&*graph).unwrap(), [7; LEN]);
    });
}

#[test]
fn a_device_ends_after_the_work_on_the_stream_of_an_invalid_capture() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let stream = stream_of_an_invalid_capture(&machine);
    let mut target = stream.zeros::<u32>(LEN).unwrap();
    drop(stream.upload(Pinned::from_slice(&device, &[7; LEN]).unwrap(), &mut target).unwrap());
    (0..50).for_each(|value| stream.fill(&mut target, value).unwrap());
    drop((target, stream, device));
    machine.run_all();
    assert_eq!(machine.violations(), [""; 0]);
}

#[test]
fn a_stream_that_may_still_capture_refuses_work_and_hinders_no_other_stream() {
    let machine = lazy(0);
    let device = machine.device(0).unwrap();
    let mut captured_on = None;
    machine.fail(Fault::at(0).call(Call::EndCapture));
    let failed = device.capture(|stream| {
        let stream = captured_on.insert(stream.clone());
        stream.fill(&mut stream.allocate::<u32>(LEN)?, 1)
    });
    assert!(matches!(failed, Err(Error::Driver(_))));
    let captured_on = captured_on.unwrap();
    let mut buffer = captured_on.allocate::<u32>(LEN).unwrap();
    assert!(matches!(captured_on.fill(&mut buffer, 9), Err(Error::Capturing)));
    drop((buffer, captured_on));
    for value in 0..3 {
        let stream = device.stream().unwrap();
        let mut buffer = stream.allocate::<u32>(LEN).unwrap();
        stream.fill(&mut buffer, value).unwrap();
        assert_eq!(stream.read(&buffer).unwrap(), [value; LEN]);
    }
    device.synchronize().unwrap();
    device.trim().unwrap();
    assert_eq!(device.leaked().count, 0);
}
