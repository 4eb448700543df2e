//! Packed copies: many slices as one, given at once or while others are copied already.

use std::panic;

use pagelock_cuda::{
    Error, HostBytes, How, Packed, Route, Stream,
    software::{Config, Machine, Schedule},
};
use pagelock_memory::{ByteSize, HostBuffer};
use proptest::prelude::*;

use crate::staged::{goes_up_and_comes_down, with_tiny_ring, with_tiny_rings};
use crate::tools::{lazy, moody, pattern, threaded};

#[test]
fn packed_slices_are_where_their_ranges_say_and_come_back() {
    with_tiny_rings(|device| {
        let stream = device.stream().unwrap();
        let sources: Vec<_> = (0..100).map(|i| pattern(i, (i as usize * 37) % 5_000)).collect();
        let slices: Vec<_> = sources.iter().map(|source| &source[..]).collect();
        let packed = stream.upload_packed(&slices).unwrap();
        for (i, source) in sources.iter().enumerate() {
            assert_eq!(&stream.read(packed.get(i).unwrap()).unwrap(), source);
            assert_eq!(packed.ranges()[i].start % 64, 0);
        }
        let mut targets: Vec<_> = sources.iter().map(|source| vec![0; source.len()]).collect();
        let mut slices: Vec<_> = targets.iter_mut().map(|target| &mut target[..]).collect();
        stream.download_packed(&packed, &mut slices).unwrap();
        assert_eq!(targets, sources);
        assert!(packed.get(100).is_none());
    });
}

#[test]
fn packed_slices_become_buffers_of_their_own_which_keep_the_memory_while_there_is_one() {
    with_tiny_rings(|device| {
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let sources: Vec<_> = (0..100).map(|i| pattern(i, (i as usize * 37) % 5_000)).collect();
        let slices: Vec<_> = sources.iter().map(|source| &source[..]).collect();
        let mut parts = stream.upload_packed(&slices).unwrap().split().unwrap();
        assert_eq!(parts.len(), 100);
        let last = parts.by_ref().zip(&sources).fold(None, |_, (part, source)| {
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
    let parts = stream.upload_packed(&[&[1][..], &[], &[2, 3]]).unwrap().split_when_taken().unwrap();
    let [last, first, none] = [2, 0, 1].map(|index| parts.take(index).unwrap());
    assert_eq!([2, 0, 1, 3].map(|index| parts.take(index).is_none()), [true; 4]);
    drop(parts);
    let all = [&first, &none, &last].map(|part| stream.read(part).unwrap());
    assert_eq!(all, [vec![1], vec![], vec![2, 3]]);
    drop((first, last));
    assert_eq!(device.pool_stats().live.0, 0);
}

/// Packs slices that are given one after another, and lets them go on after so many.
pub(crate) fn given(
    stream: &Stream,
    sources: &[Vec<u8>],
    pace: usize,
) -> pagelock_cuda::Result<Option<(Vec<Packed<u8>>, ())>> {
    let lens: Vec<_> = sources.iter().map(Vec::len).collect();
    stream.upload_all_packed(&lens, PACKED, |packing| {
        assert_eq!(packing.block_lens().iter().sum::<usize>(), sources.len());
        for some in sources.chunks(pace) {
            some.iter().for_each(|source| packing.add(source));
            packing.go_on();
        }
        Some(())
    })
}

const PACKED: How = How { route: Some(Route::Packed), threads: None, memory: None };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn slices_that_are_given_at_any_pace_arrive(
        seed in any::<u64>(),
        lens in prop::collection::vec(prop_oneof![0..300_usize, 0..30_000_usize], 0..60),
        pace in 1..9_usize,
    ) {
        let machine = if seed % 2 == 0 { moody(seed) } else { threaded(2) };
        let device = with_tiny_ring(machine.device(0).unwrap());
        let stream = device.stream().unwrap();
        let mut sources: Vec<Vec<u8>> =
            lens.iter().enumerate().map(|(at, &len)| (0..len).map(|i| (i * 7 + at) as u8).collect()).collect();
        let wanted = sources.clone();

        let (blocks, ()) = given(&stream, &sources, pace).unwrap().unwrap();
        sources.iter_mut().for_each(|source| source.fill(0)); // at once: they may be changed

        let parts = blocks.into_iter().flat_map(|block| block.split().unwrap());
        let arrived: Vec<_> = parts.map(|part| stream.read(&part).unwrap()).collect();
        prop_assert_eq!(arrived, wanted);
    }
}

#[test]
fn slices_that_are_not_as_was_said_are_refused_and_leave_nothing_in_use() {
    with_tiny_rings(|device| {
        let stream = device.stream().unwrap();
        let long = vec![1; 50_000];
        let refused = |lens: &[usize], slices: &[&[u8]]| {
            let uploaded = stream.upload_all_packed(lens, PACKED, |packing| {
                for slice in slices {
                    packing.add(slice);
                    packing.go_on();
                }
                Some(())
            });
            uploaded.err().unwrap().to_string()
        };
        let said = |source_len, target_len| Error::Length { source_len, target_len }.to_string();
        assert_eq!(refused(&[50_000, 3], &[&long, &[1; 4]]), said(4, 3));
        assert_eq!(refused(&[50_000, 3], &[&long, &[1; 2], &[1; 3]]), said(2, 3));
        assert_eq!(refused(&[50_000], &[&long, &[1; 2]]), said(2, 0));
        assert_eq!(refused(&[50_000, 3], &[&long]), said(0, 3));
        assert_eq!((device.pool_stats().live.0, device.leaked().count), (0, 0));
    });
}

#[test]
fn who_gives_up_or_panics_in_the_middle_leaves_nothing_in_use() {
    with_tiny_rings(|device| {
        let stream = device.stream().unwrap();
        for panics in [false, true] {
            let source = vec![1; 100_000]; // more than the ring holds
            let begun = panic::AssertUnwindSafe(|| {
                stream.upload_all_packed(&[source.len(), 10], PACKED, |packing| {
                    packing.add(&source);
                    packing.go_on();
                    assert!(!panics, "on purpose");
                    None::<()>
                })
            });
            match panic::catch_unwind(begun) {
                Ok(given_up) => assert!(!panics && given_up.unwrap().is_none()),
                Err(_) => assert!(panics),
            }
            drop(source); // nobody reads it any more
            assert_eq!((device.pool_stats().live.0, device.leaked().count), (0, 0));
            goes_up_and_comes_down(&stream, 1, 50_000);
        }
    });
}

#[test]
fn packed_slices_that_a_graph_has_too_do_not_become_buffers() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let mut packed = stream.upload_packed(&[&[1_u32, 2][..], &[3]]).unwrap();
    let recording = device.capture(|stream| stream.fill(packed.get_mut(0).unwrap(), 7)).unwrap();
    let graph = recording.shared().unwrap();
    assert_eq!(packed.split().err().unwrap().to_string(), pagelock_cuda::Error::Shared.to_string());
    drop(graph);
}

#[test]
fn what_is_packed_shares_blocks_that_are_not_too_long_and_comes_back_as_it_was() {
    let device = lazy(0).device(0).unwrap();
    let stream = device.stream().unwrap();
    let how = How { route: Some(Route::Packed), ..How::default() };
    let slices: Vec<Vec<u8>> = (1..=4).map(|value| vec![value; 30 << 20]).collect();
    let sources: Vec<HostBytes<'_>> = slices.iter().map(|slice| slice[..].into()).collect();

    let there = stream.upload_all(&sources, how).unwrap();

    let follow: Vec<bool> = there.windows(2).map(|pair| pair[0].is_followed_by(&pair[1])).collect();
    assert_eq!(follow, [true, false, true], "two fit into 64 MiB");
    let mut back: Vec<Vec<u8>> = (0..4).map(|_| vec![0; 30 << 20]).collect();
    let from: Vec<_> = there.iter().collect();
    stream.download_all(&from, &mut back.iter_mut().map(|back| &mut back[..]).collect::<Vec<_>>(), how).unwrap();
    assert!(back == slices);
    let live = device.pool_stats().live;
    drop(there);
    assert!(live >= ByteSize::mib(120) && device.pool_stats().live == ByteSize(0));
}

/// Its bytes would be copied too, though nobody waits before they are changed.
#[test]
fn parts_are_not_copied_together_over_a_neighbor_that_is_not_among_them() {
    let schedule = Schedule::Stepped { haste: 0 };
    let machine = Machine::new(Config { schedule, sanitize: true, ..Config::default() });
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    for with in [0, 1] {
        let whole = HostBuffer::allocate(device.page_locked(), 1_024).unwrap();
        let mut parts = whole.split([0..256, 256..512, 512..1_024]).unwrap();
        let mut inner = parts.remove(0).split([0..64, 64..128, 128..256]).unwrap();
        let (neighbor, sources) = (inner.len() - 1, [&inner[with], &parts[with]]);
        let len = parts[with].as_ptr().addr().get() + parts[with].len_bytes() - inner[with].as_ptr().addr().get();
        let mut target = stream.zeros::<u8>(len).unwrap();
        let refused = stream.upload_parts(&sources, &mut target);
        assert!(matches!(refused, Err(Error::Apart { part: 1 })), "{refused:?}");
        let all = sources.map(|part| HostBytes::of(part, 0..part.len_bytes()).unwrap());
        drop(stream.upload_all(&all, How::default()).unwrap());
        inner[neighbor].bytes_mut().unwrap().fill(9); // a race, if that was copied too
        stream.synchronize().unwrap();
    }
}
