//! Sizes, lengths and numbers as large as their types allow: each is an error or works, and none overflows.
//!
//! Tests are built with overflow checks, so an overflow panics.

use std::{fs::File, time::Duration};

use pagelock_cuda::{
    Error, HostSource, Launch, Pinned, RowLayout, StagingConfig, Stream, Uninit,
    software::{Config, Machine},
};
use pagelock_memory::{
    Budget, ByteSize, Counted, HostBuffer, HugePages, Limited, Mlock, PageLocked, Pageable, Pooled, Resource,
    SizeClasses, default_host,
};

use crate::tools::gpu;

/// Numbers around `usize::MAX` and around powers of two.
fn extremes() -> impl Iterator<Item = usize> {
    let powers = (0..usize::BITS).map(|bits| 1 << bits);
    powers.flat_map(|power: usize| [power.wrapping_sub(1), power, power + 1]).chain([usize::MAX - 1, usize::MAX])
}

/// Numbers beyond the address space of a process, which no system grants as a length, not even one that overcommits.
fn impossible() -> impl Iterator<Item = usize> {
    extremes().filter(|&number| number > 1 << 47)
}

/// A stream of a device that claims to have `ByteSize::MAX` of memory.
fn stream() -> Stream {
    let machine = Machine::new(Config { memory: ByteSize::MAX, kernels_for: Some((9, 0)), ..Config::default() });
    machine.device(0).unwrap().stream().unwrap()
}

#[track_caller]
fn is_refused<X>(result: Result<X, impl Into<Error>>) {
    let Err(error) = result else { panic!("an impossible size was accepted") };
    let error = error.into();
    assert!(
        matches!(error, Error::Argument(_) | Error::OutOfMemory { .. } | Error::Memory(_) | Error::Driver(_)),
        "{error}"
    );
}

#[test]
fn no_length_of_a_device_buffer_overflows() {
    let stream = stream();
    for len in impossible() {
        is_refused(stream.allocate::<u8>(len));
        is_refused(stream.allocate::<[u8; 3]>(len));
        is_refused(stream.zeros::<f64>(len));
        is_refused(stream.allocate::<[u64; 512]>(len));
    }
}

#[test]
fn no_length_of_page_locked_memory_overflows() {
    let stream = stream();
    for len in impossible() {
        is_refused(Pinned::<u8>::zeroed(stream.device(), len));
        is_refused(Uninit::<[f64; 3]>::new(stream.device(), len));
        is_refused(HostBuffer::allocate(stream.device().page_locked(), len));
    }
}

#[test]
fn no_length_of_host_memory_overflows() {
    let without_limit = || Budget::new("no limit", ByteSize::MAX);
    let huge = PageLocked::new().locked_by(std::sync::Arc::new(Mlock)).huge_pages(HugePages::WhereGranted);
    let huge = Counted::new("huge", Pooled::new(Limited::new(huge, without_limit())));
    let pooled = Counted::new("pooled", Pooled::new(Limited::new(Pageable, without_limit())));
    for len in impossible() {
        is_refused(HostBuffer::allocate(&Pageable, len));
        is_refused(HostBuffer::allocate(&pooled, len));
        is_refused(HostBuffer::allocate(&huge, len));
        is_refused(HostBuffer::allocate(default_host(), len));
        is_refused(HostBuffer::placed(len));
        assert!(pooled.footprint(len) >= len && huge.footprint(len) >= len);
    }
}

#[test]
fn no_number_of_a_budget_overflows() {
    let budget = Budget::new("all", ByteSize::MAX);
    let child = budget.child("part", ByteSize::MAX);
    let held = child.reserve(u64::MAX - 1).unwrap();
    assert!(budget.reserve(2).is_err() && child.reserve_timeout(u64::MAX, Duration::from_millis(1)).is_err());
    budget.set_limit(0);
    assert_eq!((budget.left(), budget.used()), (ByteSize(0), ByteSize(u64::MAX - 1)));
    assert!(!budget.holders().is_empty());
    drop(held);
    for number in extremes() {
        let _ = (ByteSize::gib(number as u64), ByteSize::kib(number as u64).to_string());
    }
    for text in ["18446744073709551615", "18446744073709551616", "99999999999999999999 TiB", "16777216 TiB"] {
        let _ = text.parse::<ByteSize>();
    }
}

#[test]
fn no_size_class_overflows() {
    for classes in [SizeClasses::new(1, 8), SizeClasses::new(512, 16 << 20), SizeClasses::new(1 << 20, 1 << 63)] {
        for number in extremes() {
            let _ = classes.class_of(number);
            assert!(number < classes.count() || classes.len_bytes(number) >= classes.longest());
        }
    }
}

#[test]
fn no_range_overflows() {
    let stream = stream();
    let numbers = stream.zeros::<u64>(4).unwrap();
    let host = HostBuffer::allocate(stream.device().page_locked(), 128).unwrap();
    for number in extremes().filter(|&number| number > 128) {
        assert!(
            numbers.slice(number..).is_err() && numbers.slice(..=number).is_err() && numbers.slice(..number).is_err()
        );
        assert!(numbers.view().split_at(number).is_err());
        let of = |range| HostSource::<u8>::of(&host, range);
        assert!(of(0..number).is_err() && of(number..number).is_err());
        let split = |range| stream.allocate::<u64>(4).and_then(|buffer| buffer.split([range]));
        assert!(split(number..number).is_err() && split(0..number).is_err());
        let split = |range| HostBuffer::allocate(&Pageable, 128).and_then(|buffer| buffer.split([range]));
        assert!(split(number..number).is_err() && split(0..number).is_err());
    }
}

#[test]
fn no_rows_overflow() {
    let stream = stream();
    let (source, mut target) = (stream.zeros::<u64>(8).unwrap(), stream.zeros::<u64>(8).unwrap());
    let any = |rows, width, stride| RowLayout { rows, width, stride };
    for number in extremes() {
        for rows in [any(number, 2, 2), any(2, number, 2), any(2, 2, number), any(number, number, number)] {
            let fits = rows.rows == 0 || (rows.rows - 1).saturating_mul(rows.stride).saturating_add(rows.width) <= 8;
            let fits = fits && (rows.width <= rows.stride || rows.rows <= 1);
            let copied = stream.copy_rows(&source, rows, &mut target, rows);
            assert_eq!(copied.is_ok(), fits, "{rows:?}");
            let pinned = Pinned::<u64>::zeroed(stream.device(), 8).unwrap();
            assert_eq!(stream.upload(pinned, target.view_mut().in_rows(rows, rows)).is_ok(), fits, "{rows:?}");
            let uninit = Uninit::<u64>::new(stream.device(), 8).unwrap();
            assert_eq!(stream.download(source.view().in_rows(rows, rows), uninit).is_ok(), fits, "{rows:?}");
        }
        let one = any(1, 8, number);
        stream.copy_rows(&source, one, &mut target, one).unwrap(); // a single row does not use its stride
        let _ = stream.copy_rows(&source, RowLayout::dense(number, number), &mut target, RowLayout::dense(number, 0));
    }
    stream.synchronize().unwrap();
}

/// Page-locked memory is registered in chunks of 256 MiB, and CUDA refuses a copy from two of them in one call.
#[test]
fn a_row_may_cross_from_one_chunk_of_page_locked_memory_to_the_next() {
    let Some(gpu) = gpu() else { return };
    let stream = gpu.stream().unwrap();
    let (width, stride) = (20 << 20, 120 << 20); // the last of three rows begins at 240 MiB
    let [host, dense] = [RowLayout { rows: 3, width, stride }, RowLayout::dense(3, width)];
    let mut source = Pinned::<u8>::zeroed(&gpu, 2 * stride + width).unwrap();
    source.chunks_mut(stride).zip(1..).for_each(|(row, number)| row[..width].fill(number));
    let mut on_device = stream.allocate(3 * width).unwrap();

    drop(stream.upload(source, on_device.view_mut().in_rows(dense, host)).unwrap());
    let target = Uninit::new(&gpu, 2 * stride + width).unwrap();
    let back = stream.download(on_device.view().in_rows(dense, host), target).unwrap().wait().unwrap();

    for (row, number) in back.chunks(stride).zip(1..) {
        assert!(row[..width].iter().all(|&byte| byte == number), "row {number}");
    }
}

#[test]
fn no_length_or_place_of_a_staged_copy_overflows() {
    let stream = stream();
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let mut target = stream.zeros::<u8>(200_000).unwrap();
    for number in impossible().map(|number| number as u64) {
        if let Some(end) = number.checked_add(200_000) {
            let source = HostSource::of_file(&file, number..end).unwrap();
            assert!(matches!(stream.upload_from(source, &mut target), Err(Error::File { .. })));
        }
        for range in [number - 10..number, number..number, 0..number, 5..number] {
            let is_empty = range.is_empty();
            let sources = [range.clone(), range].map(|range| HostSource::of_file(&file, range).unwrap());
            assert_eq!(stream.upload_all(&sources).is_ok(), is_empty);
        }
    }
}

#[test]
fn no_shape_of_the_ring_overflows_or_takes_more_than_it_may() {
    let stream = stream();
    let mut target = stream.zeros::<u8>(100_000).unwrap();
    for number in [0, 1, 1 << 20, 1 << 40, 1 << 62, u64::MAX] {
        let size = ByteSize(number);
        let threads = number.min(2) as usize;
        stream.device().set_staging(StagingConfig { ring: size, slot: size, threads });
        stream.upload_from(&[7; 100_000], &mut target).unwrap();
        assert!(stream.device().staged() <= ByteSize::mib(257));
    }
    let usual = stream.device().staging();
    stream.device().set_staging(StagingConfig { threads: usize::MAX, ..usual });
    assert_eq!(stream.device().staging().threads, 1_024);
    assert_eq!(stream.read(&target).unwrap(), [7; 100_000]);
}

#[test]
fn no_size_of_a_launch_overflows() {
    for number in extremes() {
        let launch = Launch::covering(number, number as u32).shared_bytes(number as u32);
        assert!(launch.grid[0] <= i32::MAX as u32);
    }
    let stream = stream();
    // SAFETY: nothing runs it.
    let function = unsafe { stream.device().load("image", vec![1, 2, 3]) }.unwrap().function("any").unwrap();
    // SAFETY: as above.
    let function = unsafe { function.with_dependent_launch() };
    let largest = Launch { grid: [u32::MAX; 3], ..Launch::covering(1, 32) };
    // SAFETY: as above.
    unsafe { function.launch(&stream, largest, &[]) }.unwrap();
}
