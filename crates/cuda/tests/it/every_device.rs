//! One suite, run on software devices of all schedules and on a GPU.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use pagelock_cuda::{Device, Pinned, Priority, RowLayout, Uninit};
use pagelock_memory::{HostBuffer, Pageable};

use crate::tools::{Delay, forget, gpu, lazy, moody, pattern, threaded, tries};

macro_rules! on_every_device {
    ($($test:ident)*) => {
        on_every_device! { lazy: Some(lazy(1).device(0).unwrap()); $($test)* }
        on_every_device! { moody: Some(moody(2).device(0).unwrap()); $($test)* }
        on_every_device! { threaded: Some(threaded(3).device(0).unwrap()); $($test)* }
        on_every_device! { cuda: gpu(); $($test)* }
    };
    ($device:ident: $make:expr; $($test:ident)*) => { mod $device {
        use super::*;

        $(#[test]
        fn $test() {
            if let Some(device) = $make {
                super::$test(&device);
                assert_eq!(device.leaked().count, 0);
            }
        })*
    } };
}

on_every_device! {
    what_goes_up_comes_down
    a_source_that_is_dropped_at_once_arrives_whole
    a_source_that_is_forgotten_arrives_whole
    a_source_whose_owner_unwinds_arrives_whole
    a_source_of_a_thread_that_ends_arrives_whole
    a_target_that_is_dropped_at_once_is_nobody_else_s_too_early
    a_dropped_stream_does_its_work
    whoever_waits_for_a_device_waits_for_all_of_its_streams
    a_scope_that_unwinds_waits_first
    a_scope_copies_pageable_memory_both_ways
    a_host_buffer_waits_for_its_copies
    streams_wait_for_each_other_s_writes
    streams_read_one_buffer_at_once
    halves_of_a_buffer_are_written_on_two_streams_at_once
    a_buffer_dropped_on_one_stream_is_not_reused_while_another_reads_it
    threads_share_a_stream
    an_event_orders_host_work
    time_passes_between_timed_events
    rows_are_copied_to_rows
    every_kind_of_value_can_be_filled_in
    empty_buffers_can_be_copied
    a_large_copy_arrives
}

const LEN: usize = 10_000;

fn what_goes_up_comes_down(device: &Device) {
    let stream = device.stream_with_priority(Priority::High).unwrap();
    let numbers = pattern(1, LEN);
    let mut on_device = stream.allocate::<u32>(LEN).unwrap();
    let up = stream.upload(Pinned::from_slice(device, &numbers).unwrap(), &mut on_device).unwrap();
    let down = stream.download(&on_device, Uninit::new(device, LEN).unwrap()).unwrap();
    assert_eq!(*down.wait().unwrap(), *numbers);
    assert_eq!(*up.wait().unwrap(), *numbers);
    assert_eq!(stream.read(&on_device).unwrap(), numbers);
}

/// Starts an upload, passes its ticket to `end`, reuses the page-locked memory at once, and checks what arrived.
fn arrives_whole(device: &Device, end: impl Fn(pagelock_cuda::Ticket<Pinned<u32>>)) {
    let stream = device.stream().unwrap();
    let mut delay = Delay::new(&stream);
    for round in 0..tries() {
        let numbers = pattern(round, LEN);
        let mut on_device = stream.allocate::<u32>(LEN).unwrap();
        delay.queue(&stream);
        end(stream.upload(Pinned::from_slice(device, &numbers).unwrap(), &mut on_device).unwrap());
        let _overwrites = Pinned::from_slice(device, &vec![u32::MAX; LEN]).unwrap();
        assert_eq!(stream.read(&on_device).unwrap(), numbers);
    }
}

fn a_source_that_is_dropped_at_once_arrives_whole(device: &Device) {
    arrives_whole(device, drop);
}

fn a_source_that_is_forgotten_arrives_whole(device: &Device) {
    arrives_whole(device, forget);
    assert!(device.in_flight().tickets >= tries().into(), "what is forgotten is counted");
}

fn a_source_whose_owner_unwinds_arrives_whole(device: &Device) {
    arrives_whole(device, |ticket| {
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let _owned = ticket;
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        assert!(unwound.is_err());
    });
}

fn a_source_of_a_thread_that_ends_arrives_whole(device: &Device) {
    arrives_whole(device, |ticket| thread::spawn(move || drop(ticket)).join().unwrap());
}

fn a_target_that_is_dropped_at_once_is_nobody_else_s_too_early(device: &Device) {
    let stream = device.stream().unwrap();
    let on_device = stream.allocate_from(&vec![u32::MAX; LEN]).unwrap();
    let mut delay = Delay::new(&stream);
    for round in 0..tries() {
        delay.queue(&stream);
        drop(stream.download(&on_device, Uninit::new(device, LEN).unwrap()).unwrap());
        let numbers = pattern(round, LEN);
        let next_owner = Pinned::from_slice(device, &numbers).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(*next_owner, *numbers, "the dropped download wrote to memory of a new owner");
    }
}

fn a_dropped_stream_does_its_work(device: &Device) {
    for round in 0..tries() {
        let numbers = pattern(round, LEN);
        let stream = device.stream().unwrap();
        let mut on_device = stream.allocate::<u32>(LEN).unwrap();
        let up = stream.upload(Pinned::from_slice(device, &numbers).unwrap(), &mut on_device).unwrap();
        let down = stream.download(&on_device, Uninit::new(device, LEN).unwrap()).unwrap();
        drop((stream, on_device, up));
        assert_eq!(*down.wait().unwrap(), *numbers);
    }
}

fn whoever_waits_for_a_device_waits_for_all_of_its_streams(device: &Device) {
    for round in 0..20 {
        let streams = [(); 3].map(|()| device.stream().unwrap());
        let filled = streams.each_ref().map(|stream| {
            let mut buffer = stream.allocate::<u32>(LEN).unwrap();
            stream.fill(&mut buffer, round).unwrap();
            (buffer, stream.record().unwrap())
        });
        drop(streams);
        device.synchronize().unwrap();
        assert!(filled.iter().all(|(_, end)| end.is_reached().unwrap()));
    }
}

fn a_scope_that_unwinds_waits_first(device: &Device) {
    let stream = device.stream().unwrap();
    let on_device = stream.allocate_from(&pattern(1, LEN)).unwrap();
    let mut target = vec![0; LEN];
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        stream.scope(|scope| {
            scope.download(&on_device, &mut target).unwrap();
            std::panic::resume_unwind(Box::new("on purpose"))
        })
    }));
    assert!(unwound.is_err());
    assert_eq!(target, pattern(1, LEN));
}

fn a_scope_copies_pageable_memory_both_ways(device: &Device) {
    let stream = device.stream().unwrap();
    for round in 0..tries() {
        let source = pattern(round, LEN);
        let (mut target, mut on_device) = (vec![0; LEN], stream.allocate(LEN).unwrap());
        stream
            .scope(|scope| {
                scope.upload(&source, &mut on_device)?;
                scope.download(&on_device, &mut target)
            })
            .unwrap();
        assert_eq!(target, source);
    }
}

fn a_host_buffer_waits_for_its_copies(device: &Device) {
    let stream = device.stream().unwrap();
    let mut delay = Delay::new(&stream);
    let locked = HostBuffer::allocate(device.page_locked(), LEN).unwrap();
    for mut host in [locked, HostBuffer::allocate(&Pageable, LEN).unwrap()] {
        for round in (0..tries()).map(|round| round as u8) {
            host.bytes_mut().unwrap().fill(round);
            let mut on_device = stream.allocate::<u8>(LEN).unwrap();
            delay.queue(&stream);
            stream.upload_from(&host, &mut on_device).unwrap();
            host.bytes_mut().unwrap().fill(!round);
            delay.queue(&stream);
            stream.download_to(&on_device, &mut host).unwrap();
            assert!(host.bytes().iter().all(|&byte| byte == round));
        }
    }
}

fn streams_wait_for_each_other_s_writes(device: &Device) {
    let streams = [device.stream().unwrap(), device.stream().unwrap(), device.stream().unwrap()];
    let mut buffers = [streams[0].zeros::<u32>(LEN).unwrap(), streams[1].zeros::<u32>(LEN).unwrap()];
    for round in 0..2 * tries() {
        let [left, right] = &mut buffers;
        streams[round as usize % 3].fill(&mut *left, round).unwrap();
        streams[(round as usize + 1) % 3].copy(&*left, &mut *right).unwrap();
        streams[(round as usize + 2) % 3].fill(&mut *left, u32::MAX).unwrap();
        assert_eq!(streams[round as usize % 3].read(right.slice(..10).unwrap()).unwrap(), [round; 10]);
    }
}

fn streams_read_one_buffer_at_once(device: &Device) {
    let writer = device.stream().unwrap();
    let mut shared = Arc::new(writer.allocate::<u32>(LEN).unwrap());
    for round in 0..20 {
        writer.fill(Arc::get_mut(&mut shared).unwrap(), round).unwrap();
        let readers = [0; 4].map(|_| {
            let (device, shared) = (device.clone(), shared.clone());
            thread::spawn(move || device.stream().unwrap().read(&*shared).unwrap())
        });
        for reader in readers {
            assert_eq!(reader.join().unwrap(), vec![round; LEN]);
        }
    }
}

fn halves_of_a_buffer_are_written_on_two_streams_at_once(device: &Device) {
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let mut buffer = streams[0].zeros::<u32>(2 * LEN).unwrap();
    for round in 0..tries() {
        let (low, high) = buffer.view_mut().split_at(LEN).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| streams[0].fill(low, round).unwrap());
            scope.spawn(|| streams[1].fill(high, round + 1).unwrap());
        });
        let found = device.stream().unwrap().read(&buffer).unwrap();
        assert_eq!((&found[..LEN], &found[LEN..]), (&*vec![round; LEN], &*vec![round + 1; LEN]));
    }
}

fn a_buffer_dropped_on_one_stream_is_not_reused_while_another_reads_it(device: &Device) {
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut delay = Delay::new(&other);
    for round in 0..tries() {
        let mut buffer = home.allocate::<u32>(LEN).unwrap();
        home.fill(&mut buffer, round).unwrap();
        delay.queue(&other);
        let reading = other.download(&buffer, Uninit::new(device, LEN).unwrap()).unwrap();
        drop(buffer);
        let mut reused = home.allocate::<u32>(LEN).unwrap();
        home.fill(&mut reused, u32::MAX).unwrap();
        assert_eq!(*reading.wait().unwrap(), vec![round; LEN]);
    }
}

fn threads_share_a_stream(device: &Device) {
    let stream = device.stream().unwrap();
    thread::scope(|scope| {
        for seed in 0..4 {
            let stream = &stream;
            scope.spawn(move || {
                for round in 0..25 {
                    let numbers = pattern(seed * 100 + round, LEN);
                    let on_device = stream.allocate_from(&numbers).unwrap();
                    assert_eq!(stream.read(&on_device).unwrap(), numbers);
                }
            });
        }
    });
}

fn an_event_orders_host_work(device: &Device) {
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let (send, receive) = mpsc::channel();
    for round in 0..20 {
        let (one, two) = (send.clone(), send.clone());
        first.call(move || one.send((round, 1)).unwrap()).unwrap();
        let after_first = first.record().unwrap();
        second.wait_for(&after_first).unwrap();
        let last = second.call(move || two.send((round, 2)).unwrap()).unwrap();
        last.wait().unwrap();
        assert!(after_first.is_reached().unwrap());
        assert_eq!((receive.recv().unwrap(), receive.recv().unwrap()), ((round, 1), (round, 2)));
    }
}

fn time_passes_between_timed_events(device: &Device) {
    let stream = device.stream().unwrap();
    let start = stream.record_timed().unwrap();
    let mut buffer = stream.zeros::<u8>(16 << 20).unwrap();
    stream.fill(&mut buffer, 1).unwrap();
    let end = stream.record_timed().unwrap();
    let elapsed = end.elapsed_since(&start).unwrap();
    assert!(elapsed > Duration::ZERO && elapsed < Duration::from_secs(60), "{elapsed:?}");
    assert!(stream.record().unwrap().elapsed_since(&start).is_err(), "it was not recorded with its time");
}

fn rows_are_copied_to_rows(device: &Device) {
    let stream = device.stream().unwrap();
    let matrix = pattern(9, 7 * 11); // 7 rows of 11
    let part = RowLayout { rows: 7, width: 4, stride: 11 };
    let mut on_device = stream.zeros::<u32>(7 * 5).unwrap();
    let padded = RowLayout { rows: 7, width: 4, stride: 5 };

    let source = Pinned::from_slice(device, &matrix).unwrap();
    let up = stream.upload(source, on_device.view_mut().in_rows(padded, part)).unwrap();
    let mut dense = stream.allocate::<u32>(7 * 4).unwrap();
    stream.copy_rows(&on_device, padded, &mut dense, RowLayout::dense(7, 4)).unwrap();
    let target = Uninit::new(device, 7 * 4).unwrap();
    let down = stream.download(dense.view().in_rows(RowLayout::dense(7, 4), RowLayout::dense(7, 4)), target).unwrap();

    let expected: Vec<_> = matrix.chunks(11).flat_map(|row| &row[..4]).copied().collect();
    assert_eq!(*down.wait().unwrap(), *expected);
    drop(up);
    assert_eq!(stream.read(&on_device).unwrap()[4], 0, "what lies between rows is left alone");
}

fn every_kind_of_value_can_be_filled_in(device: &Device) {
    let stream = device.stream().unwrap();
    let mut bytes = stream.allocate::<u8>(1_001).unwrap();
    stream.fill(&mut bytes, 3).unwrap();
    let mut shorts = stream.allocate::<u16>(1_001).unwrap();
    stream.fill(&mut shorts, 0x1234).unwrap();
    let mut floats = stream.allocate::<f32>(1_001).unwrap();
    stream.fill(&mut floats, 1.5).unwrap();
    let mut doubles = stream.allocate::<f64>(1_001).unwrap();
    stream.fill(&mut doubles, 1.1).unwrap();
    let mut triples = stream.allocate::<[u8; 3]>(1_001).unwrap();
    stream.fill(&mut triples, [1, 2, 3]).unwrap();

    assert_eq!(stream.read(&bytes).unwrap(), [3; 1_001]);
    assert_eq!(stream.read(&shorts).unwrap(), [0x1234; 1_001]);
    assert_eq!(stream.read(&floats).unwrap(), [1.5; 1_001]);
    assert_eq!(stream.read(&doubles).unwrap(), [1.1; 1_001]);
    assert_eq!(stream.read(&triples).unwrap(), [[1, 2, 3]; 1_001]);
}

fn empty_buffers_can_be_copied(device: &Device) {
    let stream = device.stream().unwrap();
    let mut empty = stream.zeros::<u64>(0).unwrap();
    let up = stream.upload(Pinned::zeroed(device, 0).unwrap(), &mut empty).unwrap();
    let down = stream.download(&empty, Uninit::new(device, 0).unwrap()).unwrap();
    assert!(up.wait().unwrap().is_empty() && down.wait().unwrap().is_empty());
    assert!(stream.read(&empty).unwrap().is_empty());
}

fn a_large_copy_arrives(device: &Device) {
    const LARGE: usize = 5 << 20; // 20 MiB
    let stream = device.stream().unwrap();
    let numbers = pattern(4, LARGE);
    let mut on_device = stream.allocate::<u32>(LARGE).unwrap();
    let up = stream.upload(Pinned::from_slice(device, &numbers).unwrap(), &mut on_device).unwrap();
    let down = stream.download(&on_device, Uninit::new(device, LARGE).unwrap()).unwrap();
    assert_eq!(*down.wait().unwrap(), *numbers);
    drop(up);
}
