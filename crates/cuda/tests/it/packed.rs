//! Packed copies: many slices in one copy.

use pagelock_cuda::{
    Error, HostSource, Packed,
    software::{Config, Execution, Machine},
};
use pagelock_memory::{ByteSize, HostBuffer};

use crate::staged::with_tiny_rings;
use crate::tools::{lazy, pattern};

#[test]
fn packed_slices_are_where_their_ranges_say_and_come_back() {
    with_tiny_rings(|device| {
        let stream = device.stream().unwrap();
        let sources: Vec<_> = (0..100).map(|i| pattern(i, (i as usize * 37) % 5_000)).collect();
        let slices: Vec<_> = sources.iter().map(|source| &source[..]).collect();
        let Packed { buffer, ranges } = stream.upload_packed(&slices).unwrap();
        let views = || ranges.iter().map(|range| buffer.slice(range.clone()).unwrap());
        for (view, source) in views().zip(&sources) {
            assert_eq!(&stream.read(view).unwrap(), source);
        }
        assert!(ranges.iter().all(|range| range.start.is_multiple_of(64)));
        let mut targets: Vec<_> = sources.iter().map(|source| vec![0; source.len()]).collect();
        stream.download_each(views().zip(&mut targets)).unwrap();
        assert_eq!(targets, sources);
    });
}

#[test]
fn packed_slices_become_buffers_of_their_own_which_keep_the_memory_while_there_is_one() {
    with_tiny_rings(|device| {
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let sources: Vec<_> = (0..100).map(|i| pattern(i, (i as usize * 37) % 5_000)).collect();
        let slices: Vec<_> = sources.iter().map(|source| &source[..]).collect();
        let Packed { buffer, ranges } = stream.upload_packed(&slices).unwrap();
        let parts = buffer.split_when_taken(ranges).unwrap();
        let last = sources.iter().enumerate().fold(None, |_, (at, source)| {
            let part = parts.take(at).unwrap();
            assert_eq!(&other.read(&part).unwrap(), source);
            Some(part)
        });
        drop(parts);
        assert!(device.pool_stats().live.0 > 0);
        drop(last);
        assert_eq!(device.pool_stats().live.0, 0);
    });
}

#[test]
fn packed_slices_are_taken_in_any_order_once() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let Packed { buffer, ranges } = stream.upload_packed(&[&[1][..], &[], &[2, 3]]).unwrap();
    let parts = buffer.split_when_taken(ranges).unwrap();
    let [last, first, none] = [2, 0, 1].map(|index| parts.take(index).unwrap());
    assert_eq!([2, 0, 1, 3].map(|index| parts.take(index).is_none()), [true; 4]);
    drop(parts);
    let all = [&first, &none, &last].map(|part| stream.read(part).unwrap());
    assert_eq!(all, [vec![1], vec![], vec![2, 3]]);
    drop((first, last));
    assert_eq!(device.pool_stats().live.0, 0);
}

#[test]
fn packed_slices_that_a_graph_has_too_do_not_become_buffers() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let Packed { mut buffer, ranges } = stream.upload_packed(&[&[1_u32, 2][..], &[3]]).unwrap();
    let recording = device.capture(|stream| stream.fill(&mut buffer, 7)).unwrap();
    let graph = recording.shared().unwrap();
    assert!(matches!(buffer.split_when_taken(ranges), Err(Error::Shared)));
    drop(graph);
}

#[test]
fn what_is_packed_shares_blocks_that_are_not_too_long_and_comes_back_as_it_was() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let slices: Vec<Vec<u8>> = (0..120).map(|value| vec![value; 1_000_000]).collect();
    let sources: Vec<HostSource<'_>> = slices.iter().map(|slice| slice.into()).collect();

    let there = stream.upload_all(&sources).unwrap();

    let apart: Vec<_> = (1..120).filter(|&at| !there[at - 1].is_followed_by(&there[at])).collect();
    assert_eq!(apart, [67], "67 fit into 64 MiB");
    let mut back: Vec<Vec<u8>> = (0..120).map(|_| vec![0; 1_000_000]).collect();
    stream.download_each(there.iter().zip(&mut back)).unwrap();
    assert!(back == slices);
    let live = device.pool_stats().live;
    drop(there);
    assert!(live >= ByteSize(120_000_000) && device.pool_stats().live == ByteSize(0));
}

/// The neighbor's bytes would be copied too, although its owner may change them without waiting.
#[test]
fn parts_are_not_copied_together_over_a_neighbor_that_is_not_among_them() {
    let execution = Execution::Stepped { haste: 0 };
    let machine = Machine::new(Config { execution, sanitize: true, ..Config::default() });
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    for with in [0, 1] {
        let whole = HostBuffer::allocate(device.page_locked(), 1_024).unwrap();
        let mut parts = whole.split([0..256, 256..512, 512..1_024]).unwrap();
        let mut inner = parts.remove(0).split([0..64, 64..128, 128..256]).unwrap();
        let (neighbor, sources) = (inner.len() - 1, [&inner[with], &parts[with]]);
        let start = |part: &HostBuffer| part.as_ptr().addr().get() - sources[0].as_ptr().addr().get();
        let ranges = sources.map(|part| start(part)..start(part) + part.len_bytes());
        let mut targets = stream.zeros::<u8>(ranges[1].end).unwrap().split(ranges).unwrap();
        stream.upload_each(sources.into_iter().zip(&mut targets)).unwrap();
        drop(stream.upload_all(&sources.map(HostSource::from)).unwrap());
        inner[neighbor].bytes_mut().unwrap().fill(9); // a race if the neighbor is copied too
        stream.synchronize().unwrap();
    }
}
