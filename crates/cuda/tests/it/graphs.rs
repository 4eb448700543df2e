//! Graphs, on software devices of all schedules and on a GPU.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use pagelock_cuda::{
    Device, DeviceBuffer, Error, Graph, Pinned, Stream,
    driver::Call,
    software::{Fault, Machine},
};

use crate::tools::{moody, not_given_back, on_every_device, pattern, threaded};

const LEN: usize = 5_000;

type Copier = Graph<(DeviceBuffer<u32>, DeviceBuffer<u32>)>;

/// Copies its first buffer to its second.
fn copier(device: &Device, stream: &Stream) -> Copier {
    let (source, mut target) = (stream.zeros(LEN).unwrap(), stream.zeros(LEN).unwrap());
    let recording = device.capture(|stream| stream.copy(&source, &mut target)).unwrap();
    recording.with((source, target)).unwrap()
}

#[test]
fn a_graph_does_its_work_at_each_launch_and_not_before() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        let mut graph = copier(device, &stream);
        assert_eq!(stream.read(&graph.1).unwrap(), [0; LEN]);
        for round in 1..20 {
            let (source, _) = graph.views_mut();
            stream.upload_from(&pattern(round, LEN), source).unwrap();
            graph.launch(&stream).unwrap();
            assert_eq!(stream.read(&graph.1).unwrap(), pattern(round, LEN));
        }
    });
}

#[test]
fn launches_are_ordered_against_what_other_streams_do_with_the_buffers() {
    on_every_device(|device| {
        let (first, second, third) = (device.stream().unwrap(), device.stream().unwrap(), device.stream().unwrap());
        let mut graph = copier(device, &first);
        for round in 0..20 {
            first.fill(graph.views_mut().0, round).unwrap();
            graph.launch(&second).unwrap();
            let found = third.read(&graph.1).unwrap();
            assert_eq!(found, [round; LEN]);
            graph.launch(&third).unwrap();
        }
    });
}

#[test]
fn a_graph_that_is_dropped_while_it_runs_lets_go_of_nothing_too_early() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        for round in 0..20 {
            let graph = copier(device, &stream);
            graph.launch(&stream).unwrap();
            let (_, target) = graph.into_buffers();
            let other = device.stream().unwrap();
            let mut reused = other.allocate::<u32>(LEN).unwrap();
            other.fill(&mut reused, round).unwrap();
            assert_eq!(stream.read(&target).unwrap(), [0; LEN]);
            assert_eq!(other.read(&reused).unwrap(), [round; LEN]);
            let running = copier(device, &stream);
            running.launch(&other).unwrap();
            drop(running); // its blocks go back to `stream`, while `other` may still use them
            let mut again = [0; 2].map(|_| stream.allocate::<u32>(LEN).unwrap());
            for (buffer, value) in again.iter_mut().zip(1..) {
                stream.fill(buffer, value).unwrap();
            }
            device.synchronize().unwrap();
            for (buffer, value) in again.iter().zip(1..) {
                assert_eq!(stream.read(buffer).unwrap(), [value; LEN], "the graph wrote to memory of a new owner");
            }
        }
    });
}

#[test]
fn an_update_changes_later_launches_only() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        let mut buffer = stream.zeros::<u32>(LEN).unwrap();
        let mut graph = device.capture(|stream| stream.fill(&mut buffer, 1)).unwrap().with(buffer).unwrap();
        for value in 2..10 {
            graph.launch(&stream).unwrap();
            let next = device.capture(|stream| stream.fill(graph.views_mut(), value)).unwrap();
            graph.update(next).unwrap();
            assert_eq!(stream.read(&*graph).unwrap(), [value - 1; LEN]);
        }
    });
}

#[test]
fn a_capture_goes_on_while_others_wait_for_the_device_or_trim_its_pool() {
    on_every_device(|device| {
        let (stream, mut beside) = (device.stream().unwrap(), device.stream().unwrap().zeros::<u32>(LEN).unwrap());
        let (source, mut target) = (stream.zeros::<u32>(LEN).unwrap(), stream.zeros::<u32>(LEN).unwrap());
        let mut others = || {
            let other = device.stream().unwrap();
            other.fill(&mut beside, 3).unwrap();
            drop(other.allocate::<u32>(LEN).unwrap());
            device.synchronize().unwrap();
            device.trim().unwrap();
            assert_eq!(other.read(&beside).unwrap(), [3; LEN]);
        };
        let recording = device.capture(|capturing| {
            others();
            capturing.copy(&source, &mut target)?;
            thread::scope(|scope| scope.spawn(others).join().unwrap());
            Ok(())
        });
        let mut graph = recording.unwrap().with((source, target)).unwrap();
        stream.fill(graph.views_mut().0, 7).unwrap();
        graph.launch(&stream).unwrap();
        assert_eq!(stream.read(&graph.1).unwrap(), [7; LEN]);
    });
}

#[test]
fn buffers_that_a_graph_is_not_given_are_refused() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        let (source, mut target) = (stream.zeros::<u32>(LEN).unwrap(), stream.zeros::<u32>(LEN).unwrap());
        let recording = device.capture(|stream| stream.copy(&source, &mut target)).unwrap();
        let refused = recording.with((target,)).unwrap_err();
        let expected = "the graph uses 2 buffers, but got 1 of them: pass all of them to `Recording::with`";
        assert_eq!(refused.to_string(), expected);
        let mut graph = copier(device, &stream);
        let mut foreign = stream.zeros::<u32>(LEN).unwrap();
        let recording = device.capture(|stream| stream.fill(&mut foreign, 1)).unwrap();
        assert!(matches!(graph.update(recording), Err(Error::NotOwned { .. })));
    });
}

#[test]
fn a_buffer_that_is_gone_when_the_capture_ends_is_refused() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        let recording = device.capture(|stream| stream.fill(&mut stream.allocate::<u32>(LEN)?, 1)).unwrap();
        let look_alike = stream.zeros::<u32>(LEN).unwrap();
        assert!(matches!(recording.with(look_alike), Err(Error::NotOwned { used: 1, given: 0 })));
    });
}

#[test]
fn what_cannot_be_part_of_a_graph_is_refused_and_spoils_nothing() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        let mut buffer = stream.zeros::<u32>(LEN).unwrap();
        let numbers = pattern(1, LEN);
        let recording = device.capture(|capturing| {
            let is_refused = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Capturing)), "{result:?}");
            is_refused(capturing.upload_from(&numbers, &mut buffer));
            is_refused(
                capturing.upload(Pinned::from_slice(device, &numbers)?, &mut buffer).map(drop).map_err(Error::from),
            );
            is_refused(capturing.scope(|scope| scope.upload(&numbers, &mut buffer)));
            is_refused(capturing.read(&buffer).map(drop));
            is_refused(capturing.call(|| ()).map(drop));
            is_refused(capturing.record().map(drop));
            is_refused(capturing.wait_for(&stream.record()?));
            is_refused(capturing.synchronize());
            is_refused(capturing.is_idle().map(drop));
            is_refused(thread::scope(|scope| scope.spawn(|| capturing.fill(&mut buffer, 1)).join().unwrap()));
            is_refused(device.capture(|_| capturing.synchronize()).map(drop));
            stream.fill(&mut buffer, 3)?; // other streams go on
            capturing.fill(&mut buffer, 2)
        });
        let graph = recording.unwrap().with(buffer).unwrap();
        assert_eq!(stream.read(&*graph).unwrap(), [3; LEN]);
        graph.launch(&stream).unwrap();
        assert_eq!(stream.read(&*graph).unwrap(), [2; LEN]);
    });
}

#[test]
fn a_short_upload_is_refused_while_a_queue_is_captured_that_had_some_before() {
    on_every_device(|device| {
        let mut buffer = device.stream().unwrap().zeros::<u32>(10).unwrap();
        let leaked = device.leaked().count;
        device.stream().unwrap().upload_from(&[1; 10], &mut buffer).unwrap(); // the next stream reuses its queue
        let recording = device.capture(|capturing| {
            assert!(matches!(capturing.upload_from(&[2; 10], &mut buffer), Err(Error::Capturing)));
            capturing.fill(&mut buffer, 3)
        });
        drop(recording.unwrap());
        assert_eq!(device.leaked().count, leaked);
        assert_eq!(device.stream().unwrap().read(&buffer).unwrap(), [1; 10]);
    });
}

#[test]
fn a_capture_that_fails_or_unwinds_leaves_streams_that_work() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        let mut buffer = stream.zeros::<u32>(LEN).unwrap();
        for round in 0..5 {
            let failed = device.capture(|capturing| capturing.synchronize());
            assert!(matches!(failed, Err(Error::Capturing)));
            let unwound = catch_unwind(AssertUnwindSafe(|| {
                let _ = device.capture(|capturing| {
                    capturing.fill(&mut buffer, 9).unwrap();
                    panic!("in the middle")
                });
            }));
            assert!(unwound.is_err());
            let again = device.stream().unwrap();
            again.fill(&mut buffer, round).unwrap();
            assert_eq!(again.read(&buffer).unwrap(), [round; LEN]);
        }
    });
}

/// Copies `source → first → second → target` three times. The memory of both temporaries belongs to the capture.
fn through_temporaries(
    stream: &Stream,
    source: &DeviceBuffer<u32>,
    target: &mut DeviceBuffer<u32>,
) -> Result<(), Error> {
    for _ in 0..3 {
        let (mut first, mut second) = (stream.allocate(LEN)?, stream.allocate(LEN)?);
        stream.copy(source, &mut first)?;
        stream.copy(&first, &mut second)?;
        drop(first);
        stream.copy(&second, target.view_mut())?;
    }
    Ok(())
}

#[test]
fn a_shared_graph_changes_buffers_that_others_have() {
    on_every_device(|device| {
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let (mut source, mut target) = (stream.zeros::<u32>(LEN).unwrap(), stream.zeros::<u32>(LEN).unwrap());
        let recording = device.capture(|stream| through_temporaries(stream, &source, &mut target)).unwrap();
        let graph = recording.shared().unwrap();
        for round in 1..20 {
            other.fill(&mut source, round).unwrap();
            graph.launch(&stream).unwrap();
            assert_eq!(other.read(&target).unwrap(), [round; LEN]);
        }
    });
}

#[test]
fn a_shared_graph_keeps_what_it_uses_until_its_launches_are_done() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        for round in 1..10 {
            let (mut source, mut target) = (stream.zeros::<u32>(LEN).unwrap(), stream.zeros::<u32>(LEN).unwrap());
            stream.fill(&mut source, round).unwrap();
            let recording = device.capture(|stream| through_temporaries(stream, &source, &mut target)).unwrap();
            let graph = recording.shared().unwrap();
            drop(source);
            let mut grabbed: Vec<_> = (0..8).map(|_| stream.allocate::<u32>(LEN).unwrap()).collect();
            graph.launch(&stream).unwrap();
            drop(graph);
            let other = device.stream().unwrap();
            grabbed.extend((0..8).map(|_| other.allocate::<u32>(LEN).unwrap()));
            for (value, buffer) in (100..).zip(&mut grabbed) {
                other.fill(buffer, value).unwrap();
            }
            assert_eq!(stream.read(&target).unwrap(), [round; LEN]);
            for (value, buffer) in (100..).zip(&grabbed) {
                assert_eq!(stream.read(buffer).unwrap(), [value; LEN]);
            }
        }
        device.synchronize().unwrap();
        assert_eq!(device.leaked().count, 0);
    });
}

#[test]
fn nobody_gets_the_memory_that_a_shared_graph_has_to_itself() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        let (source, mut target) = (stream.zeros::<u32>(LEN).unwrap(), stream.zeros::<u32>(LEN).unwrap());
        let mut captured_on = None;
        let recording = device.capture(|stream| {
            captured_on = Some(stream.clone());
            through_temporaries(stream, &source, &mut target)
        });
        let graph = recording.unwrap().shared().unwrap();
        let captured_on = captured_on.unwrap();
        device.trim().unwrap();
        for from in [&stream, &captured_on] {
            let mut buffers: Vec<_> = (0..6).map(|_| from.allocate::<u32>(LEN).unwrap()).collect();
            for (value, buffer) in (1..).zip(&mut buffers) {
                stream.fill(buffer, value).unwrap();
            }
            graph.launch(&stream).unwrap();
            for (value, buffer) in (1..).zip(&buffers) {
                assert_eq!(stream.read(buffer).unwrap(), [value; LEN]);
            }
        }
    });
}

#[test]
fn a_buffer_of_a_capture_that_is_still_there_is_written_at_each_launch() {
    on_every_device(|device| {
        let stream = device.stream().unwrap();
        let mut source = stream.zeros::<u32>(LEN).unwrap();
        let mut result = None;
        let recording = device.capture(|stream| {
            let result = result.insert(stream.allocate(LEN)?);
            stream.copy(&source, result)
        });
        let (graph, result) = (recording.unwrap().shared().unwrap(), result.unwrap());
        for round in 1..10 {
            stream.fill(&mut source, round).unwrap();
            graph.launch(&stream).unwrap();
            let other = device.stream().unwrap();
            assert_eq!(other.read(&result).unwrap(), [round; LEN]);
        }
        drop(graph);
        assert_eq!(stream.read(&result).unwrap(), [9; LEN]);
    });
}

#[test]
fn a_buffer_of_a_capture_with_memory_of_a_dropped_one_is_used_after_each_launch() {
    on_every_device(|device| {
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let (source, mut target) = (stream.zeros::<u32>(LEN).unwrap(), stream.zeros::<u32>(LEN).unwrap());
        let mut kept = None;
        let recording = device.capture(|stream| {
            through_temporaries(stream, &source, &mut target)?;
            kept = Some([stream.allocate::<u32>(LEN)?, stream.allocate(LEN)?]);
            Ok(())
        });
        let (graph, mut kept) = (recording.unwrap().shared().unwrap(), kept.unwrap());
        for round in 1..20 {
            graph.launch(&stream).unwrap();
            for buffer in &mut kept {
                other.fill(&mut *buffer, round).unwrap();
                assert_eq!(other.read(&*buffer).unwrap(), [round; LEN]);
            }
        }
    });
}

#[test]
fn memory_of_a_graph_that_was_dropped_is_used_after_its_launches() {
    on_every_device(|device| {
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let (source, mut target) = (stream.zeros::<u32>(LEN).unwrap(), stream.zeros::<u32>(LEN).unwrap());
        for round in 1..20 {
            let mut captured_on = None;
            let recording = device.capture(|stream| {
                captured_on = Some(stream.clone());
                through_temporaries(stream, &source, &mut target)
            });
            let (graph, captured_on) = (recording.unwrap().shared().unwrap(), captured_on.unwrap());
            graph.launch(&stream).unwrap();
            drop(graph);
            for mut buffer in [0; 2].map(|_| captured_on.allocate::<u32>(LEN).unwrap()) {
                other.fill(&mut buffer, round).unwrap();
                assert_eq!(other.read(&buffer).unwrap(), [round; LEN]);
            }
        }
    });
}

#[test]
fn a_graph_of_a_device_runs_on_its_streams_only() {
    let machine = Machine::new(pagelock_cuda::software::Config { devices: 2, ..Default::default() });
    let (device, other) = (machine.device(0).unwrap(), machine.device(1).unwrap());
    let graph = copier(&device, &device.stream().unwrap());
    assert_eq!(
        graph.launch(&other.stream().unwrap()).unwrap_err().to_string(),
        "the graph is on device 0, the stream on device 1: launch it on a stream of its device, or capture its work on \
         the other device"
    );
}

#[test]
fn calls_that_fail_break_no_graph_and_leak_nothing() {
    let calls = [
        Call::BeginCapture,
        Call::EndCapture,
        Call::Instantiate,
        Call::LaunchGraph,
        Call::UpdateGraph,
        Call::CopyOnDevice,
        Call::RecordEvent,
        Call::WaitEvent,
    ];
    for (call, skip) in calls.into_iter().flat_map(|call| (0..3).map(move |skip| (call, skip))) {
        let machine = moody(skip);
        let device = machine.device(0).unwrap();
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        machine.fail(Fault::at(skip).call(call));
        let run = || -> Result<(), Error> {
            for _ in 0..3 {
                let (source, mut target) = (stream.zeros::<u32>(LEN)?, stream.zeros::<u32>(LEN)?);
                let recording = device.capture(|stream| stream.copy(&source, &mut target))?;
                let mut graph = recording.with((source, target))?;
                other.fill(graph.views_mut().0, 5)?;
                graph.launch(&stream)?;
                let same = device.capture(|stream| {
                    let (source, target) = graph.views_mut();
                    stream.copy(source, target)
                })?;
                graph.update(same)?;
                graph.launch(&other)?;
                assert_eq!(stream.read(&graph.1)?, [5; LEN]);
            }
            Ok(())
        };
        let _ = run();
        machine.heal();
        run().unwrap();
        machine.run_all();
        assert_eq!(machine.violations(), [""; 0]);
        assert_eq!(device.leaked().count, 0, "{call:?}, {skip}");
        drop((stream, other, device));
        assert_eq!(not_given_back(&machine), (0, 0));
    }
}

/// The graph writes one of the parts only before the split, as a range of the whole.
#[test]
fn parts_of_what_was_cut_in_a_capture_are_there_after_a_launch() {
    for seed in 0..20 {
        let device = threaded(seed).device(0).unwrap();
        let (one, other) = (device.stream().unwrap(), device.stream().unwrap());
        let mut parts = Vec::new();
        let recording = device.capture(|stream| {
            let mut whole = stream.allocate::<u32>(1_000)?;
            stream.fill(&mut whole, 7)?;
            parts = whole.split([0..400, 400..1_000])?;
            stream.fill(&mut parts[0], 8)
        });
        let graph = recording.unwrap().shared().unwrap();
        for _ in 0..3 {
            graph.launch(&one).unwrap();
            assert_eq!(other.read(&parts[1]).unwrap(), [7; 600]);
            assert_eq!(other.read(&parts[0]).unwrap(), [8; 400]);
            other.fill(&mut parts[1], 0).unwrap();
        }
    }
}
