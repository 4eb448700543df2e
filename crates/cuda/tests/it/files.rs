//! Uploads of files through the ring: all bytes arrive in order, and ranges beyond the end of the file are refused.

use std::{
    fs::{self, File},
    ops::Range,
    path::PathBuf,
    process,
};

use pagelock_cuda::{Device, DeviceBuffer, Error, HostSource, Result, StagingConfig, Stream};
use pagelock_memory::ByteSize;
use proptest::prelude::*;

use crate::tools::{lazy, on_every_device};

/// A file that is removed when this is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn with(name: &str, contents: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("pagelock file {name} {}", process::id()));
        fs::write(&path, contents).unwrap();
        Self(path)
    }

    fn open(&self) -> File {
        File::open(&self.0).unwrap()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn upload_ranges(stream: &Stream, file: &File, ranges: &[Range<u64>]) -> Result<Vec<DeviceBuffer<u8>>> {
    let sources = ranges.iter().map(|range| HostSource::of_file(file, range.clone()));
    stream.upload_all(&sources.collect::<Result<Vec<_>>>()?)
}

/// A few slots of 64 KiB.
const TINY: StagingConfig = StagingConfig { ring: ByteSize::kib(512), slot: ByteSize::kib(64), threads: 3 };

#[test]
fn ranges_of_a_file_arrive_on_every_device() {
    let contents = pattern(5_000_000);
    let file = Temporary::with("ranges", &contents);
    on_every_device(|device| {
        for config in [TINY, StagingConfig { threads: 0, ..TINY }, StagingConfig::default()] {
            device.set_staging(config);
            let stream = device.stream().unwrap();
            let ranges = [0..10, 3..3_000_000, 2_000_000..2_000_001, 7..7, 100..70_000, 4_000_000..5_000_000];
            let buffers = upload_ranges(&stream, &file.open(), &ranges).unwrap();
            for (range, buffer) in ranges.iter().zip(&buffers) {
                let wanted = &contents[range.start as usize..range.end as usize];
                assert!(stream.read(buffer).unwrap() == wanted, "{range:?} with {config:?}");
            }
            let mut one = stream.allocate::<u8>(1_000_000).unwrap();
            stream.upload_from(HostSource::of_file(&file.open(), 123..1_000_123).unwrap(), &mut one).unwrap();
            assert!(stream.read(&one).unwrap() == contents[123..1_000_123]);
            assert!(device.staged() <= config.ring);
        }
    });
}

#[test]
fn a_file_that_ends_too_early_is_an_error_and_the_next_copy_is_not() {
    let contents = pattern(1_000_000);
    let file = Temporary::with("short", &contents);
    for threads in [0, 3] {
        let device = lazy(0).device(0).unwrap();
        device.set_staging(StagingConfig { threads, ..TINY });
        let stream = device.stream().unwrap();
        for (start, end) in [(0, 1_000_001), (0, 2_000_000), (5_000_000, 5_000_010), (u64::MAX - 10, u64::MAX)] {
            let ranges = [start..end, 0..10];
            let error = upload_ranges(&stream, &file.open(), &ranges).unwrap_err();
            assert!(matches!(error, Error::File { .. }), "{error}");
        }
        let error = upload_ranges(&stream, &file.open(), &[999_999..1_000_010, 0..1]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read the file: it ends before the requested bytes and may be truncated: check the range, or get the \
             file again"
        );
        let whole = upload_ranges(&stream, &file.open(), &[0..1_000_000, 0..1]).unwrap();
        assert!(stream.read(&whole[0]).unwrap() == contents);
        assert_eq!((device.leaked().count, device.in_flight().tickets), (0, 0));
    }
}

#[test]
fn what_is_no_file_and_no_range_is_an_error() {
    let stream = lazy(0).device(0).unwrap().stream().unwrap();
    let folder = File::open(std::env::temp_dir()).unwrap();
    assert!(matches!(upload_ranges(&stream, &folder, &[0..10, 0..20]), Err(Error::File { .. })));
    let backwards = Range { start: 10, end: 5 };
    assert!(matches!(upload_ranges(&stream, &folder, &[backwards, 0..1]), Err(Error::Argument(_))));
    assert!(upload_ranges(&stream, &folder, &[]).unwrap().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn any_ranges_arrive(ranges in prop::collection::vec((0_u64..300_000, 0_u64..200_000), 0..12), threads in 0_usize..4) {
        let contents = pattern(500_000);
        let file = Temporary::with(&format!("any {threads} {}", ranges.len()), &contents);
        let device: Device = lazy(0).device(0).unwrap();
        device.set_staging(StagingConfig { threads, ..TINY });
        let stream = device.stream().unwrap();
        let ranges: Vec<_> = ranges.into_iter().map(|(start, len)| start..start + len).collect();
        let buffers = upload_ranges(&stream, &file.open(), &ranges).unwrap();
        for (range, buffer) in ranges.iter().zip(&buffers) {
            prop_assert!(stream.read(buffer).unwrap() == contents[range.start as usize..range.end as usize]);
        }
    }
}
