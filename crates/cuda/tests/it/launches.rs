//! Launches through a shared reference: other threads use the same buffers and never see the middle of a launch.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use pagelock_cuda::{Device, DeviceBuffer, Graph, GraphBuffers, Recording, Stream};

use crate::tools::{threaded, tries};

const LEN: usize = 300;
const BESIDES: usize = 300;

fn zeros(stream: &Stream) -> DeviceBuffer<u32> {
    stream.zeros(LEN).unwrap()
}

/// Calls each racer repeatedly on a thread of its own while this thread launches the graph.
fn race_launches<B: GraphBuffers>(graph: &Graph<B>, stream: &Stream, racers: &[&(dyn Fn() + Sync)]) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for race in racers {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    race();
                }
            });
        }
        for _ in 0..8 * tries() {
            graph.launch(stream).unwrap();
        }
        over.store(true, Relaxed);
    });
}

/// After a launch all elements are 7; in the middle of one they are not. The graph uses many more buffers, so that
/// queueing a launch takes a while.
fn blinks(device: &Device, buffer: &mut DeviceBuffer<u32>, besides: &mut [DeviceBuffer<u32>]) -> Recording {
    let recording = device.capture(|stream| {
        stream.fill(&mut *buffer, 0)?;
        besides.iter_mut().try_for_each(|buffer| stream.fill(buffer, 1))?;
        stream.fill(buffer, 7)
    });
    recording.unwrap()
}

/// Queues many copies before it reads any, since each may fall into the middle of a launch.
fn reads_sevens<'a>(device: &Device, buffer: &'a DeviceBuffer<u32>) -> impl Fn() + Sync + 'a {
    let stream = device.stream().unwrap();
    move || {
        let read = |_| {
            let mut copy = stream.allocate::<u32>(LEN).unwrap();
            stream.copy(buffer, &mut copy).unwrap();
            copy
        };
        let copies: Vec<_> = (0..20).map(read).collect();
        copies.iter().for_each(|copy| assert_eq!(stream.read(copy).unwrap(), [7; LEN]));
    }
}

#[test]
fn readers_on_other_threads_see_no_middle_of_a_launch_of_a_shared_graph() {
    for seed in 0..3 {
        let device = threaded(seed).device(0).unwrap();
        let stream = device.stream().unwrap();
        let mut buffer = zeros(&stream);
        let mut besides: Vec<_> = (0..BESIDES).map(|_| zeros(&stream)).collect();
        let graph = blinks(&device, &mut buffer, &mut besides).shared().unwrap();
        graph.launch(&stream).unwrap();
        let (one, two) = (reads_sevens(&device, &buffer), reads_sevens(&device, &buffer));
        race_launches(&graph, &stream, &[&one, &two]);
    }
}

#[test]
fn readers_on_other_threads_see_no_middle_of_a_launch_of_a_graph_that_owns_the_buffer() {
    for seed in 0..3 {
        let device = threaded(seed).device(0).unwrap();
        let stream = device.stream().unwrap();
        let mut buffer = zeros(&stream);
        let mut besides: Vec<_> = (0..BESIDES).map(|_| zeros(&stream)).collect();
        let recording = blinks(&device, &mut buffer, &mut besides);
        let graph = recording.with((buffer, besides)).unwrap();
        graph.launch(&stream).unwrap();
        let (one, two) = (reads_sevens(&device, &graph.0), reads_sevens(&device, &graph.0));
        race_launches(&graph, &stream, &[&one, &two]);
    }
}

#[test]
fn launches_of_one_graph_on_two_threads_run_one_after_the_other() {
    for seed in 0..3 {
        let device = threaded(seed).device(0).unwrap();
        let stream = device.stream().unwrap();
        let [mut buffer, mut copy] = [0; 2].map(|_| zeros(&stream));
        let mut besides: Vec<_> = (0..BESIDES).map(|_| zeros(&stream)).collect();
        let recording = device.capture(|stream| {
            stream.fill(&mut buffer, 0)?;
            besides.iter_mut().try_for_each(|buffer| stream.fill(buffer, 1))?;
            stream.fill(&mut buffer, 7)?;
            stream.copy(&buffer, &mut copy)
        });
        let graph = recording.unwrap().with((buffer, copy, besides)).unwrap();
        graph.launch(&stream).unwrap();
        let other = device.stream().unwrap();
        let launches = || graph.launch(&other).unwrap();
        let reads = reads_sevens(&device, &graph.1);
        race_launches(&graph, &stream, &[&launches, &reads]);
    }
}

#[test]
fn graphs_that_share_buffers_run_one_after_the_other_on_any_threads() {
    for seed in 0..3 {
        let device = threaded(seed).device(0).unwrap();
        let stream = device.stream().unwrap();
        let [mut buffer, mut copy] = [0; 2].map(|_| zeros(&stream));
        let mut besides: Vec<_> = (0..BESIDES).map(|_| zeros(&stream)).collect();
        let writer = blinks(&device, &mut buffer, &mut besides).shared().unwrap();
        let copier = device.capture(|stream| stream.copy(&buffer, &mut copy)).unwrap().shared().unwrap();
        writer.launch(&stream).unwrap();
        copier.launch(&stream).unwrap();
        let other = device.stream().unwrap();
        let copies = || copier.launch(&other).unwrap();
        let reads = reads_sevens(&device, &copy);
        race_launches(&writer, &stream, &[&copies, &reads]);
    }
}

/// A writer has the buffer to itself, except for the graphs that read it.
#[test]
fn launches_that_read_see_no_middle_of_what_another_thread_writes() {
    for seed in 0..3 {
        let device = threaded(seed).device(0).unwrap();
        let stream = device.stream().unwrap();
        let [mut buffer, mut copy] = [0; 2].map(|_| zeros(&stream));
        stream.fill(&mut buffer, 7).unwrap();
        let mut besides: Vec<_> = (0..BESIDES).map(|_| zeros(&stream)).collect();
        let recording = device.capture(|stream| {
            stream.copy(&buffer, &mut copy)?;
            besides.iter_mut().try_for_each(|other| stream.copy(&buffer, other))?;
            stream.copy(&buffer, copy.slice_mut(..)?)
        });
        let graph = recording.unwrap().shared().unwrap();
        let [first, second] = [0; 2].map(|_| device.stream().unwrap());
        let written = std::sync::Mutex::new((buffer, true));
        let writes = || {
            let mut written = written.lock().unwrap();
            let (buffer, is_seven) = &mut *written;
            *is_seven = !*is_seven;
            first.fill(buffer, if *is_seven { 7 } else { 8 }).unwrap();
        };
        graph.launch(&stream).unwrap();
        let reads = || {
            let found = second.read(&copy).unwrap();
            assert!(found == [7; LEN] || found == [8; LEN], "{found:?}");
        };
        race_launches(&graph, &stream, &[&writes, &reads]);
    }
}

/// Graphs use the same buffers in different orders, and other work uses some of them: nothing deadlocks.
#[test]
fn launches_in_every_order_never_wait_for_each_other_in_a_circle() {
    let machine = threaded(0);
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    let mut buffers: Vec<_> = (0..6).map(|_| zeros(&stream)).collect();
    let cycle = |buffers: &mut [DeviceBuffer<u32>], from: usize| {
        let recording = device.capture(|stream| {
            for at in 0..5 {
                let [one, other] = buffers.get_disjoint_mut([(from + at) % 6, (from + at + 1) % 6]).unwrap();
                stream.copy(&*one, other)?;
            }
            Ok(())
        });
        recording.unwrap().shared().unwrap()
    };
    let graphs: Vec<_> = [0, 2, 4, 5].map(|from| cycle(&mut buffers, from)).into();
    let streams: Vec<_> = graphs.iter().map(|_| device.stream().unwrap()).collect();
    let launches = |at: usize| graphs[at].launch(&streams[at]).unwrap();
    let reads = || {
        let ([one, other], mut to) = ([&buffers[5], &buffers[1]], zeros(&streams[0]));
        streams[0].copy(one, &mut to).unwrap();
        streams[0].copy(other, &mut to).unwrap();
    };
    race_launches(&graphs[0], &stream, &[&|| launches(1), &|| launches(2), &|| launches(3), &reads]);
    device.synchronize().unwrap();
    assert_eq!(machine.violations(), [""; 0]);
}
