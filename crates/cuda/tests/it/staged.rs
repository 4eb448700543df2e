//! Staged copies, on software devices of all schedules and on a GPU: uploads and downloads of ordinary memory are
//! correct through few and tiny slots, on many threads and streams at once, and whichever call fails.

use std::{
    panic,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use pagelock_cuda::{
    Device, DeviceBuffer, Error, HostSource, StagingConfig, Stream,
    driver::{Call, Status},
    page_locked_budget,
    software::{Effect, Fault, Machine},
};
use pagelock_memory::{ByteSize, HostBuffer, Mapped};
use proptest::prelude::*;

use crate::tools::{gpu, lazy, moody, not_given_back, on_every_device, pattern, threaded};

/// A ring of five 8 KiB slots, so that a copy takes many pieces.
const TINY: StagingConfig = StagingConfig { ring: ByteSize::kib(40), slot: ByteSize::kib(8), threads: 3 };

pub(crate) fn with_tiny_ring(device: Device) -> Device {
    device.set_staging(TINY);
    device
}

pub(crate) fn with_tiny_rings(test: impl Fn(&Device)) {
    on_every_device(|device| {
        device.set_staging(TINY);
        test(device);
        device.release_staging();
    });
}

pub(crate) fn goes_up_and_comes_down(stream: &Stream, seed: u32, len: usize) {
    let mut numbers = pattern(seed, len);
    let mut on_device = stream.allocate::<u32>(len).unwrap();
    stream.upload_from(&numbers, &mut on_device).unwrap();
    numbers.fill(0); // at once: the source may be changed
    stream.download_to(&on_device, &mut numbers).unwrap();
    assert_eq!(numbers, pattern(seed, len));
}

#[test]
fn slices_of_all_sizes_go_up_and_come_down() {
    with_tiny_rings(|device| {
        let stream = device.stream().unwrap();
        for len in [0, 1, 255, 2_047, 2_048, 2_049, 16_384, 100_003, 1_000_000] {
            goes_up_and_comes_down(&stream, len as u32, len);
        }
    });
}

#[test]
fn short_uploads_share_slots_and_wait_for_nothing() {
    let machine = lazy(5);
    let device = machine.device(0).unwrap();
    let (one, other) = (device.stream().unwrap(), device.stream().unwrap());
    let mut targets: Vec<_> = (0..80).map(|_| one.allocate::<u32>(200).unwrap()).collect();
    for (round, target) in targets.iter_mut().enumerate() {
        let mut numbers = pattern(round as u32, 200);
        let stream = if round % 10 == 9 { &other } else { &one };
        stream.upload_from(&numbers, target).unwrap();
        numbers.fill(0); // at once
    }
    assert_eq!(device.staged(), ByteSize::kib(2 * 64), "one slot of each stream holds all of them");
    for (round, target) in targets.iter().enumerate() {
        assert_eq!(one.read(target).unwrap(), pattern(round as u32, 200));
    }
    assert_eq!(machine.violations(), [""; 0]);
}

#[test]
fn the_default_ring_carries_more_than_it_holds() {
    let device = moody(4).device(0).unwrap();
    let stream = device.stream().unwrap();
    goes_up_and_comes_down(&stream, 4, 24 << 20);
    assert!(device.staged() <= device.staging().ring);
    assert!(device.staged().0 > 0);
}

#[test]
fn both_directions_and_many_threads_share_a_ring() {
    with_tiny_rings(|device| {
        thread::scope(|scope| {
            for index in 0..6_u32 {
                scope.spawn(move || {
                    let stream = device.stream().unwrap();
                    for round in 0..8 {
                        goes_up_and_comes_down(&stream, 100 * index + round, 50_000 >> index);
                    }
                });
            }
        });
        assert!(device.staged() <= ByteSize(TINY.ring.0 + TINY.slot.0), "{}", device.staged());
    });
}

#[test]
fn many_slices_move_in_one_call() {
    with_tiny_rings(|device| {
        let stream = device.stream().unwrap();
        let sources: Vec<_> = (0..20).map(|i| pattern(i, 997 * i as usize)).collect();
        let mut buffers: Vec<_> = sources.iter().map(|source| stream.allocate(source.len()).unwrap()).collect();
        stream.upload_each(sources.iter().map(|s| &s[..]).zip(buffers.iter_mut().map(|b| b.view_mut()))).unwrap();
        let mut targets: Vec<_> = sources.iter().map(|source| vec![0; source.len()]).collect();
        let views = buffers.iter().map(|buffer| buffer.view());
        stream.download_each(views.zip(targets.iter_mut().map(|target| &mut target[..]))).unwrap();
        assert_eq!(targets, sources);
    });
}

/// A second copy fails, so a download that succeeds was made in one.
#[test]
fn a_gap_is_read_only_if_it_belongs_to_no_buffer() {
    let machine = lazy(0);
    let stream = machine.device(0).unwrap().stream().unwrap();
    let (whole, parts) = (stream.zeros::<u8>(64).unwrap(), stream.zeros::<u8>(64).unwrap().split([0..8, 16..24]));
    let (view, parts) = (|range| whole.slice(range).unwrap(), parts.unwrap());
    let cases = [
        ("next to each other in one buffer", [view(0..8), view(8..16)], true),
        ("apart in one buffer", [view(0..8), view(9..17)], false), // another view may have byte 8, and write it
        ("neighboring parts", [parts[0].view(), parts[1].view()], true),
    ];
    for (case, views, is_one_copy) in cases {
        let mut back = [[1_u8; 8]; 2];
        machine.fail(Fault::at(1).call(Call::CopyToHost));
        let downloaded = stream.download_each(views.into_iter().zip(&mut back));
        machine.heal();
        assert_eq!(downloaded.is_ok(), is_one_copy, "{case}: {downloaded:?}");
    }
}

#[test]
fn short_slices_of_one_call_share_a_slot_and_reach_their_own_buffers_only() {
    let device = lazy(3).device(0).unwrap();
    let stream = device.stream().unwrap();
    let sources: Vec<_> = (0..30).map(|i| pattern(i, 10_000 + i as usize)).collect();
    let mut buffers: Vec<_> = sources.iter().map(|source| stream.zeros::<u32>(source.len() + 2).unwrap()).collect();
    let inner = buffers.iter_mut().zip(&sources).map(|(buffer, source)| buffer.slice_mut(1..=source.len()).unwrap());
    stream.upload_each(sources.iter().zip(inner)).unwrap();
    assert_eq!(device.staged(), device.staging().slot);
    for (buffer, source) in buffers.iter().zip(&sources) {
        let arrived = stream.read(buffer).unwrap();
        assert_eq!(arrived[1..=source.len()], source[..]);
        assert_eq!((arrived[0], arrived[source.len() + 1]), (0, 0));
    }
}

#[test]
fn what_other_streams_do_with_the_buffer_comes_first() {
    with_tiny_rings(|device| {
        let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
        let numbers = pattern(9, 30_000);
        let mut buffer = first.zeros::<u32>(numbers.len()).unwrap();
        for _ in 0..10 {
            first.fill(&mut buffer, 7).unwrap();
            second.upload_from(&numbers, &mut buffer).unwrap();
            let mut back = vec![0; numbers.len()];
            first.download_to(&buffer, &mut back).unwrap();
            assert_eq!(back, numbers);
        }
    });
}

#[test]
fn a_mapped_file_goes_up() {
    let path = std::env::temp_dir().join(format!("pagelock-staged-{}", std::process::id()));
    let numbers = pattern(5, 100_000);
    std::fs::write(&path, numbers.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<u8>>()).unwrap();
    // SAFETY: nobody else knows the file.
    let file = unsafe { Mapped::open(&path) }.unwrap();
    let bytes = HostBuffer::from_block(file);
    with_tiny_rings(|device| {
        let stream = device.stream().unwrap();
        let mut buffer = stream.allocate::<u8>(bytes.len_bytes()).unwrap();
        stream.upload_from(bytes.bytes(), &mut buffer).unwrap();
        assert!(stream.read(&buffer).unwrap() == bytes.bytes());
    });
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn lengths_and_devices_are_checked_before_anything_moves() {
    let machine = Machine::new(pagelock_cuda::software::Config { devices: 2, ..Default::default() });
    let (stream, other) = (machine.device(0).unwrap().stream().unwrap(), machine.device(1).unwrap().stream().unwrap());
    let mut buffer = stream.allocate::<u32>(100_000).unwrap();
    let mut short = vec![0_u32; 99_999];
    let calls = machine.calls();
    assert!(matches!(stream.upload_from(&short, &mut buffer), Err(Error::Argument(_))));
    assert!(matches!(stream.download_to(&buffer, &mut short), Err(Error::Argument(_))));
    assert!(matches!(other.upload_from(&short, buffer.slice_mut(1..).unwrap()), Err(Error::OtherDevice { .. })));
    assert_eq!(machine.calls(), calls);
}

#[test]
fn without_any_page_locked_memory_the_error_says_what_to_do() {
    let machine = lazy(6);
    let device = with_tiny_ring(machine.device(0).unwrap());
    let stream = device.stream().unwrap();
    let mut buffer = stream.allocate::<u8>(100_000).unwrap();
    machine.fail(Fault::at(0).call(Call::Register).status(Status::OUT_OF_MEMORY));
    let refused = stream.upload_from(&vec![1; 100_000], &mut buffer).unwrap_err();
    assert!(matches!(refused, Error::Memory(_)), "{refused}");
    stream.upload_from(&vec![1; 100_000], &mut buffer).unwrap();
}

#[test]
fn without_any_page_locked_memory_all_who_copy_at_once_are_refused() {
    for seed in 0..50 {
        let machine = threaded(seed);
        let device = &with_tiny_ring(machine.device(0).unwrap());
        let buffers = [0; 4].map(|_| device.stream().unwrap().allocate::<u8>(100_000).unwrap());
        (0..64).for_each(|at| machine.fail(Fault::at(at).call(Call::Register).status(Status::OUT_OF_MEMORY)));
        thread::scope(|scope| {
            for mut buffer in buffers {
                scope.spawn(move || {
                    let refused = device.stream().unwrap().upload_from(&vec![1; 100_000], &mut buffer).unwrap_err();
                    assert!(matches!(refused, Error::Memory(_)), "{refused}");
                });
            }
        });
    }
}

#[test]
fn a_ring_that_may_not_grow_uses_the_slots_it_has_until_it_may() {
    let machine = moody(7);
    let device = with_tiny_ring(machine.device(0).unwrap());
    let stream = device.stream().unwrap();
    machine.fail(Fault::at(1).call(Call::Register).status(Status::OUT_OF_MEMORY));
    let mut buffer = stream.allocate(100_000).unwrap();
    stream.upload_from(&pattern(7, 100_000), &mut buffer).unwrap();
    assert_eq!(device.staged(), TINY.slot);
    assert_eq!(stream.read(&buffer).unwrap(), pattern(7, 100_000));
    goes_up_and_comes_down(&stream, 8, 100_000);
    assert!(device.staged() > TINY.slot, "{}", device.staged());
    assert!(page_locked_budget().used() <= page_locked_budget().limit());
}

#[test]
fn a_ring_is_given_back_and_made_again() {
    let machine = moody(8);
    let device = with_tiny_ring(machine.device(0).unwrap());
    let stream = device.stream().unwrap();
    goes_up_and_comes_down(&stream, 8, 100_000);
    device.release_staging();
    assert_eq!(device.staged(), ByteSize(0));
    goes_up_and_comes_down(&stream, 9, 100_000);
    drop((stream, device));
    assert_eq!(not_given_back(&machine), (0, 0));
}

#[test]
fn a_device_that_is_dropped_at_once_lets_its_uploads_finish() {
    for seed in 0..20 {
        let machine = lazy(seed);
        let device = with_tiny_ring(machine.device(0).unwrap());
        let stream = device.stream().unwrap();
        let mut buffer = stream.allocate::<u32>(10_000).unwrap();
        stream.upload_from(&pattern(1, 10_000), &mut buffer).unwrap();
        drop((buffer, stream, device));
        machine.run_all();
        assert_eq!(machine.violations(), [""; 0]);
        assert_eq!(not_given_back(&machine), (0, 0));
    }
}

#[test]
fn after_a_lost_device_what_it_may_still_use_is_leaked_and_counted() {
    let machine = lazy(9);
    let device = with_tiny_ring(machine.device(0).unwrap());
    let stream = device.stream().unwrap();
    let mut buffer = stream.allocate::<u32>(10_000).unwrap();
    machine.fail(Fault::at(20).status(Status::ILLEGAL_ADDRESS).lasting());
    let lost = (0..100).find_map(|_| stream.upload_from(&pattern(1, 10_000), &mut buffer).err());
    assert!(lost.is_some());
    let before = device.leaked();
    drop((buffer, stream));
    device.release_staging();
    drop(device);
    machine.heal();
    machine.run_all();
    assert_eq!(machine.violations(), [""; 0]);
    assert!(before.count > 0 || machine.page_locked().0 > 0, "something was still in flight");
}

/// Makes many copies while one driver call fails. Those that report success are correct, and nothing is touched after
/// it was freed.
fn survives(seed: u64, fault: Fault) {
    let machine = if seed.is_multiple_of(2) { moody(seed) } else { lazy(seed) };
    let device = with_tiny_ring(machine.device(0).unwrap());
    let stream = device.stream().unwrap();
    let numbers = pattern(seed as u32, 9_000);
    let mut buffer = stream.allocate::<u32>(numbers.len()).unwrap();
    machine.fail(fault);
    for _ in 0..3 {
        let mut source = numbers.clone();
        let uploaded = stream.upload_from(&source, &mut buffer).is_ok();
        source.fill(0);
        drop(source);
        let mut target = vec![1; numbers.len()];
        let downloaded = stream.download_to(&buffer, &mut target).is_ok();
        assert!(!(uploaded && downloaded) || target == numbers);
        let _ = stream.upload_packed(&[&numbers[..50], &numbers[..3_000]]);
        let sources = [vec![1; 5_000], vec![2; 40_000]];
        if let Ok(buffers) = stream.upload_all(&[(&sources[0]).into(), (&sources[1]).into()]) {
            let arrived = stream.read(&buffers[1]);
            assert!(arrived.is_err() || arrived.unwrap() == sources[1]);
        }
        for start in 0..6 {
            let (mut source, mut short) = (numbers[start..][..20].to_vec(), stream.allocate::<u32>(20).ok());
            let Some(short) = &mut short else { continue };
            let uploaded = stream.upload_from(&source, &mut *short).is_ok();
            source.fill(0);
            if let (true, Ok(found)) = (uploaded, stream.read(&*short)) {
                assert_eq!(found, numbers[start..][..20]);
            }
        }
    }
    machine.heal();
    machine.run_all();
    assert_eq!(machine.violations(), [""; 0]);
    assert_eq!(device.leaked().count, 0, "one failure can always be made good by waiting");
    drop((buffer, stream, device));
    assert_eq!(not_given_back(&machine), (0, 0));
}

const CALLS: &[Call] = &[
    Call::CopyToDevice,
    Call::CopyToHost,
    Call::RecordEvent,
    Call::CreateEvent,
    Call::WaitEvent,
    Call::QueryEvent,
    Call::SynchronizeEvent,
    Call::SynchronizeStream,
    Call::Register,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn one_call_that_fails_breaks_nothing_and_leaks_nothing(
        seed in any::<u64>(),
        skip in 0..60_u64,
        call in prop::sample::select(CALLS),
        done in any::<bool>(),
    ) {
        let effect = if done && call != Call::Register { Effect::Done } else { Effect::None };
        let fault = Fault::at(skip).call(call).effect(effect);
        panic::catch_unwind(|| survives(seed, fault)).map_err(|_| TestCaseError::fail("see above"))?;
    }

    #[test]
    fn copies_of_all_lengths_through_rings_of_all_shapes(
        seed in any::<u32>(),
        len in 0..200_000_usize,
        slot_kib in 1..64_u64,
        slots in 1..8_u64,
        threads in 0..5_usize,
    ) {
        let device = moody(seed.into()).device(0).unwrap();
        let slot = ByteSize::kib(slot_kib);
        let ring = ByteSize(slot.0 * slots);
        device.set_staging(StagingConfig { ring, slot, threads });
        goes_up_and_comes_down(&device.stream().unwrap(), seed, len);
    }
}

/// Pages are locked in chunks of 256 MiB, and CUDA refuses a copy that crosses from one to the next.
#[test]
fn page_locked_copies_cross_the_chunks_in_which_pages_are_locked() {
    let Some(device) = gpu() else { return };
    const LEN: usize = 150 << 20;
    let stream = device.stream().unwrap();
    let mut buffer = stream.allocate::<u32>(LEN).unwrap();
    let mut source = pagelock_cuda::Pinned::<u32>::zeroed(&device, LEN).unwrap();
    source.iter_mut().zip(0..).for_each(|(number, index)| *number = index);
    let source = stream.upload(source, &mut buffer).unwrap().wait().unwrap();
    let target = pagelock_cuda::Uninit::new(&device, LEN).unwrap();
    let target = stream.download(&buffer, target).unwrap().wait().unwrap();
    assert!(*source == *target);
}

#[test]
fn rings_that_are_replaced_all_the_time_carry_everything() {
    let device = &threaded(11).device(0).unwrap();
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let copying = [0; 4].map(|_| {
            scope.spawn(|| {
                let stream = device.stream().unwrap();
                (0..60).for_each(|round| goes_up_and_comes_down(&stream, round, 20_000));
            })
        });
        let replacing = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                device.set_staging(TINY);
            }
        });
        copying.into_iter().for_each(|thread| thread.join().unwrap());
        over.store(true, Ordering::Relaxed);
        replacing.join().unwrap();
    });
    assert_eq!(device.leaked().count, 0);
}

#[test]
fn long_and_short_copies_of_several_streams_all_arrive() {
    with_tiny_rings(|device| {
        thread::scope(|scope| {
            let long = scope.spawn(|| goes_up_and_comes_down(&device.stream().unwrap(), 1, 400_000));
            let stream = device.stream().unwrap();
            (0..50).for_each(|round| goes_up_and_comes_down(&stream, round, 500));
            long.join().unwrap();
        });
    });
}

/// Sources of many lengths in ordinary and in page-locked memory, each filled with a value of its own.
fn mixed(device: &Device) -> (Vec<Vec<u8>>, Vec<HostBuffer>) {
    let lens = [0, 1, 700, 1_024, 70_000, 3, 300_000];
    let slices = lens.iter().enumerate().map(|(at, &len)| vec![at as u8 + 1; len]).collect();
    let whole = HostBuffer::allocate(device.page_locked(), 1_000).unwrap();
    let mut buffers = whole.split([0..100, 128..300, 320..1_000]).unwrap();
    buffers.push(HostBuffer::allocate(device.page_locked(), 50_000).unwrap());
    for (at, buffer) in buffers.iter_mut().enumerate() {
        buffer.bytes_mut().unwrap().fill(at as u8 + 100);
    }
    (slices, buffers)
}

#[test]
fn many_copies_from_all_kinds_of_memory_arrive() {
    for threads in [0, 1, 3] {
        let machine = lazy(0);
        let device = machine.device(0).unwrap();
        device.set_staging(StagingConfig { threads, ..device.staging() });
        let stream = device.stream().unwrap();
        let (slices, mut buffers) = mixed(&device);
        let mut sources: Vec<HostSource<'_>> = slices.iter().map(|slice| slice.into()).collect();
        sources.extend(buffers.iter().map(HostSource::from));
        sources.push(HostSource::of(&buffers[3], 10..20).unwrap());
        let wanted: Vec<(u8, usize)> =
            (1..8).chain([100, 101, 102, 103, 103]).zip(sources.iter().map(|s| s.len_bytes())).collect();

        let there = stream.upload_all(&sources).unwrap();
        let mut again: Vec<_> = wanted.iter().map(|&(_, len)| stream.allocate::<u8>(len).unwrap()).collect();
        stream.upload_each(sources.iter().cloned().zip(&mut again)).unwrap();
        buffers.iter_mut().for_each(|buffer| buffer.bytes_mut().unwrap().fill(0)); // waits where it has to

        for there in [there, again] {
            let mut back: Vec<Vec<u8>> = wanted.iter().map(|&(_, len)| vec![0; len]).collect();
            stream.download_each(there.iter().zip(&mut back)).unwrap();
            let locked = |buffer: &DeviceBuffer<u8>| HostBuffer::allocate(device.page_locked(), buffer.len()).unwrap();
            let mut buffers: Vec<_> = there.iter().map(locked).collect();
            stream.download_each(there.iter().zip(&mut buffers)).unwrap();
            for ((&(value, len), back), buffer) in wanted.iter().zip(&back).zip(&buffers) {
                assert_eq!(*back, vec![value; len]);
                assert_eq!(*buffer.bytes(), vec![value; len]);
            }
        }
        assert_eq!(device.leaked().count, 0);
    }
}

#[test]
fn a_download_is_as_long_as_its_target() {
    let stream = lazy(0).device(0).unwrap().stream().unwrap();
    let source = stream.zeros::<u8>(10).unwrap();
    let refused = stream.download_to(&source, &mut [1; 9]).unwrap_err();
    assert!(matches!(&refused, Error::Argument(text) if text.contains("10 elements to 9")), "{refused}");
    assert!(stream.download_each([(&source, &mut [1; 9])]).is_err());
}
