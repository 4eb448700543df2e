//! Loaders and file readers stay within `$PAGELOCK_HOST_LIMIT`, measured by resident memory.
//!
//! Each case runs in its own process with a limit of 64 MiB. The budget refuses what does not fit, and the case adds
//! at most the limit plus 32 MiB to resident memory. `readers.rs` has the cases of file readers; `files.rs` writes
//! their files, in the parent process.
#![cfg(target_os = "linux")]

#[path = "../content/mod.rs"]
mod content;
mod files;
#[cfg(feature = "parquet")]
#[path = "../parquet_bytes/mod.rs"]
mod parquet_bytes;
mod readers;
#[path = "../resident/mod.rs"]
mod resident;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pagelock_data::text::PaddedStack;
use pagelock_data::transforms::{Interpolation, functional as F};
use pagelock_data::{
    BucketSampler, DataLoader, Dataset, Error, FixedSampler, IterableDataset, Result, Samples, StoredRows,
    StreamLoader, Subset, SubsetRandomSampler, WeightedSampler, WhenFull, random_split,
};
use pagelock_memory::{Budget, ByteSize};
use pagelock_tensor::{DType, Device, Generator, Int, Tensor, TensorMap};

use resident::resident;

const MIB: usize = 1 << 20;
const LIMIT: usize = 64 * MIB;
/// For the code of the process, its stacks, memory that the allocator keeps, and buffers of fixed length.
const ALLOWANCE: usize = 32 * MIB;

/// In a child process, the name of the case to run.
const CASE: &str = "PAGELOCK_TEST_CASE";
/// The folder of the files that cases read.
const FILES: &str = "PAGELOCK_TEST_FILES";

const CASES: &[(&str, fn())] = &[
    ("batches far ahead", batches_far_ahead),
    ("batches far ahead under a budget of their own", batches_under_a_budget),
    ("batches that the program keeps", batches_that_are_kept),
    ("page-locked slots under a budget of their own", pinned_slots),
    ("page-locked slots that are waited for", pinned_slots_that_are_waited_for),
    ("an array that does not fit", a_large_array),
    ("an array that fits, again and again", an_array_again_and_again),
    ("an array of billions of rows", an_array_of_billions_of_rows),
    ("a file that is mostly header", a_long_header),
    ("many small tensors, opened again and again", many_small_tensors),
    ("many open files", many_open_files),
    ("a picture that becomes wide", a_wide_picture),
    ("a picture with a border", a_picture_with_a_border),
    ("a picture that is blurred", a_blurred_picture),
    ("a picture and its elements", a_picture_and_its_elements),
    ("a long sequence and its elements", a_long_sequence),
    ("weights that do not fit", many_weights),
    ("parts that do not fit", large_parts),
    ("lists of samples", lists_of_samples),
    ("batches of many samples", batches_of_many_samples),
    ("a stream in batches of many samples", a_stream_in_batches_of_many_samples),
    ("a million shards", a_million_shards),
];

#[test]
fn no_loader_and_no_reader_takes_more_memory_than_the_limit() {
    if let Ok(name) = std::env::var(CASE) {
        return run(&name);
    }
    let folder = tempfile::tempdir().unwrap();
    files::write(folder.path());
    let failures: Vec<_> = cases().filter_map(|(name, _)| in_a_process(name, folder.path()).err()).collect();
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n"));
}

fn cases() -> impl Iterator<Item = &'static (&'static str, fn())> {
    CASES.iter().chain(readers::CASES)
}

/// Runs a case in a child process. If it fails, the error is what the child printed.
fn in_a_process(case: &str, files: &Path) -> std::result::Result<(), String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "no_loader_and_no_reader_takes_more_memory_than_the_limit", "--nocapture"])
        .env(CASE, case)
        .env(FILES, files)
        .env("PAGELOCK_HOST_LIMIT", LIMIT.to_string())
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{case}: {}: {}", output.status, said.trim())) }
}

fn run(name: &str) {
    let case = cases().find(|(known, _)| *known == name);
    let (_, body) = case.unwrap_or_else(|| panic!("there is no case {name}"));
    let before = resident("VmRSS:");
    body();
    let grown = resident("VmHWM:").saturating_sub(before);
    assert!(grown <= LIMIT + ALLOWANCE, "took {} MiB under a limit of {} MiB", grown / MIB, LIMIT / MIB);
}

fn assert_refused(error: &impl std::fmt::Display) {
    assert!(error.to_string().contains(": budget `host` has "), "{error}");
}

/// Samples of a mebibyte, made on demand.
struct Mebibytes(usize);

impl Dataset for Mebibytes {
    type Sample = Tensor<Int>;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<Tensor<Int>> {
        Ok(Tensor::build(MIB, |bytes: &mut [u8]| bytes.fill(index as u8))?)
    }
}

fn loader(batches: usize) -> DataLoader<Tensor<Int>> {
    DataLoader::new(Mebibytes(4 * batches)).batch_size(4).num_workers(2)
}

/// A batch that does not fit is replaced by a refusal.
fn batches_far_ahead() {
    let mut n_batches = 0;
    for batch in &loader(100).prefetch_factor(50) {
        match batch {
            Ok(batch) => assert_eq!(batch.dims(), [4, MIB]),
            Err(error) => assert_refused(&error),
        }
        n_batches += 1;
    }
    assert_eq!(n_batches, 100);
}

/// Workers prefetch as many batches as the budget allows.
fn batches_under_a_budget() {
    let budget = Budget::new("ahead", ByteSize::mib(40));
    let mut n_batches = 0;
    for batch in &loader(256).prefetch_factor(128).prefetch_budget(budget.clone()) {
        assert_eq!(batch.unwrap().dims(), [4, MIB]);
        let start = Instant::now();
        // The program is slow at first, so that workers run ahead.
        while n_batches < 2 && budget.left() >= ByteSize::mib(4) && start.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        n_batches += 1;
    }
    assert_eq!(n_batches, 256);
    assert!(budget.peak() > ByteSize::mib(30), "workers went only {} ahead", budget.peak());
}

fn batches_that_are_kept() {
    let (kept, refused): (Vec<_>, Vec<_>) = loader(40).iter().partition(|batch| batch.is_ok());
    assert!(kept.len() >= 5 && refused.len() >= 20, "{} kept, {} refused", kept.len(), refused.len());
    refused.into_iter().filter_map(Result::err).for_each(|error| assert_refused(&error));
}

/// A budget outside of the host's budget does not lift the host's limit.
fn pinned_slots() {
    let budget = Budget::new("mine", ByteSize::gib(1));
    let loader = loader(40).pin_memory(true).pin_budget(budget).when_full(WhenFull::Error);
    let kept: Vec<Result<Tensor<Int>>> = loader.iter().collect();
    assert!(kept.iter().any(Result::is_err));
}

fn pinned_slots_that_are_waited_for() {
    let budget = Budget::new("mine", ByteSize::gib(1));
    let loader = loader(40).pin_memory(true).pin_budget(budget).when_full(WhenFull::Wait);
    let mut n_batches = 0;
    for batch in &loader {
        let batch = batch.unwrap();
        assert!(batch.is_pinned() && batch.dims() == [4, MIB]);
        n_batches += 1;
    }
    assert_eq!(n_batches, 40);
}

/// A `.npy` file with rows of one mebibyte.
fn array(rows: usize) -> (tempfile::TempDir, StoredRows<Int>) {
    let header = content::npy(&format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows}, {MIB}), }}"), &[]);
    let (folder, path) = content::file(&header);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len((header.len() + rows * MIB) as u64).unwrap();
    (folder, StoredRows::npy(&path).unwrap())
}

fn a_large_array() {
    let (_folder, rows) = array(100);
    assert_refused(&rows.read().unwrap_err());
    let loader = DataLoader::new(rows).batch_size(8).num_workers(2);
    assert_eq!(loader.iter().filter(Result::is_ok).count(), 100_usize.div_ceil(8));
}

fn an_array_again_and_again() {
    let (_folder, rows) = array(40);
    for _ in 0..5 {
        assert_eq!(rows.read().unwrap().dims(), [40, MIB]);
    }
}

/// Refused at once, without a loop over the rows.
fn an_array_of_billions_of_rows() {
    let header =
        content::npy(&format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({},), }}", 1_u64 << 36), &[]);
    let (_folder, path) = content::file(&header);
    fs::File::options().write(true).open(&path).unwrap().set_len((1 << 36) + header.len() as u64).unwrap();
    let rows = StoredRows::<Int>::npy(&path).unwrap();
    let start = Instant::now();
    assert_refused(&rows.read().unwrap_err());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// A header of 12 MiB, which takes more memory once it is parsed. It is read or refused.
fn a_long_header() {
    let opened: Result<_, Error> = TensorMap::open(readers::file("header.safetensors")).map_err(Error::from);
    if let Err(error) = opened {
        assert_refused(&error);
    }
}

/// Tensors of one element, which take more memory for their entries than for their elements.
fn many_small_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let mut map = TensorMap::new(()).unwrap();
    (0..5_000).for_each(|i| map.set(&format!("flat{i:05}"), Tensor::full([1], 1.0).unwrap()).unwrap());
    (0..5_000).for_each(|i| map.set(&format!("deep{i:05}.weight"), Tensor::full([1], 1.0).unwrap()).unwrap());
    map.save(&path).unwrap();
    drop(map);
    let mut opened = Vec::new();
    let refusal = loop {
        match TensorMap::open(&path).and_then(|file| file.to(&Device::Cpu)) {
            Ok(map) => opened.push(map),
            Err(error) => break error,
        }
        assert!(opened.len() < 100, "nothing is refused");
    };
    assert_refused(&refusal);
    // Clones share tensors, but have their own entries.
    opened.truncate(1);
    let mut clones = Vec::new();
    while let Ok(map) = opened[0].map_tensors(|_, tensor| Ok::<_, pagelock_tensor::Error>(tensor.clone())) {
        clones.push(map);
        assert!(clones.len() < 100, "nothing is refused");
    }
}

/// Headers of 200 KB each.
fn many_open_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let mut map = TensorMap::new(()).unwrap();
    (0..2_500).for_each(|i| map.set(&format!("tensor{i:05}"), Tensor::full([1], 1.0).unwrap()).unwrap());
    map.save(&path).unwrap();
    let mut opened = Vec::new();
    while let Ok(file) = TensorMap::open(&path) {
        opened.push(file);
        assert!(opened.len() < 900, "nothing is refused");
    }
}

fn picture(sizes: [usize; 3]) -> Tensor<Int> {
    Tensor::of(DType::U8).full(sizes, 7).unwrap()
}

/// Each new column has a list of weights.
fn a_wide_picture() {
    assert_refused(&F::resize(&picture([1, 1, 1]), [1, 8 * MIB], Interpolation::Bilinear, true).unwrap_err());
    let wide = F::resize(&picture([1, 1, 1]), [1, MIB], Interpolation::Bilinear, true).unwrap();
    assert_eq!(wide.dims(), [1, 1, MIB]);
}

/// Each column has an index, which is wider than a pixel.
fn a_picture_with_a_border() {
    assert_refused(&F::center_crop(&picture([1, 1, 1]), [1, 12 * MIB]).unwrap_err());
    assert_refused(&F::resize(&picture([1, 1, 1]), [1, 12 * MIB], Interpolation::Nearest, true).unwrap_err());
    assert_eq!(F::center_crop(&picture([1, 1, 1]), [1, 2 * MIB]).unwrap().dims(), [1, 1, 2 * MIB]);
}

/// A blur computes in floats, which are wider than bytes.
fn a_blurred_picture() {
    assert_refused(&F::gaussian_blur(&picture([1, 20, MIB]), [3, 3], 1.0).unwrap_err());
    assert!(F::gaussian_blur(&picture([1, 4, MIB]), [3, 3], 1.0).is_ok());
}

/// 24 MiB of a tensor, of its elements in a list, and of the result.
fn a_picture_and_its_elements() {
    let picture = Tensor::of(DType::U8).full([3, 2_048, 4_096], 7).unwrap();
    assert_refused(&F::invert(&picture).unwrap_err());
    assert_refused(&F::horizontal_flip(&picture).unwrap_err());
    let small = picture.narrow(1, 0, 100).unwrap().deep_clone().unwrap();
    drop(picture);
    assert_eq!(F::invert(&small).unwrap().dims(), [3, 100, 4_096]);
}

fn a_long_sequence() {
    let steps = Tensor::of(DType::U8).full([24 * MIB], 7).unwrap();
    assert_refused(&PaddedStack::new(0).stack(&[steps]).unwrap_err());
}

fn many_weights() {
    assert_refused(&WeightedSampler::new(std::iter::repeat_n(1.0, 10_000_000), 1, 0).unwrap_err());
    assert!(WeightedSampler::new(std::iter::repeat_n(1.0, 100_000), 1, 0).is_ok());
}

fn lists_of_samples() {
    let bucketed = |n_bytes: usize| BucketSampler::new(&vec![0; n_bytes / size_of::<usize>()], 1, 0);
    assert_refused(&bucketed(LIMIT).unwrap_err());
    assert!(bucketed(LIMIT / 4).is_ok());
    assert_refused(&FixedSampler::new(0..).unwrap_err());
    assert_refused(&SubsetRandomSampler::new(0.., 0).unwrap_err());
    let _half = FixedSampler::new(0..LIMIT / 4 / size_of::<usize>()).unwrap();
    assert_refused(&bucketed(LIMIT / 4).unwrap_err());
}

fn large_parts() {
    let half = 3_000_000;
    assert_refused(&random_split(Mebibytes(2 * half), [half; 2], &Generator::new(0)).err().unwrap());
    assert_refused(&Subset::new(Mebibytes(2 * half), 0..2 * half).err().unwrap());
    let parts = random_split(Mebibytes(200_000), [100_000; 2], &Generator::new(0)).unwrap();
    assert_eq!(parts.each_ref().map(Dataset::len), [100_000; 2]);
}

/// Samples that take no memory: as a dataset, and in endless shards.
struct Nothing(usize);

impl Dataset for Nothing {
    type Sample = ();

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, _index: usize) -> Result<()> {
        Ok(())
    }
}

impl IterableDataset for Nothing {
    type Sample = ();

    fn n_shards(&self) -> usize {
        self.0
    }

    fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<()>> {
        Ok(Box::new(std::iter::repeat_with(|| Ok(()))))
    }
}

fn count(samples: Vec<()>) -> Result<usize> {
    Ok(samples.len())
}

fn batches_of_many_samples() {
    for n_workers in [0, 2] {
        let loader = DataLoader::with_collate(Nothing(1 << 30), count).batch_size(1 << 28).num_workers(n_workers);
        loader.iter().for_each(|batch| assert_refused(&batch.unwrap_err()));
        assert_eq!(loader.batch_size(1 << 20).iter().next().unwrap().unwrap(), 1 << 20);
    }
}

/// The batches after a refused one begin where it ends.
fn a_stream_in_batches_of_many_samples() {
    let loader = || StreamLoader::with_collate(Nothing(1), count);
    assert!(loader().batch_size(usize::MAX).iter().next().unwrap().is_err());
    for n_workers in [0, 1] {
        let loader = loader().batch_size(1 << 23).num_workers(n_workers);
        loader.iter().take(2).for_each(|batch| assert_refused(&batch.unwrap_err()));
        assert_eq!(loader.state().batch, 2);
        assert_eq!(loader.batch_size(1 << 20).iter().next().unwrap().unwrap(), 1 << 20);
    }
}

/// 40 MiB of readers for each loop.
fn a_million_shards() {
    let loader = || StreamLoader::with_collate(Nothing(1 << 20), count);
    let (first, second) = (loader(), loader());
    let mut loop_of_first = first.iter();
    assert_eq!(loop_of_first.next().unwrap().unwrap(), 1);
    assert_refused(&second.iter().next().unwrap().unwrap_err());
    drop(loop_of_first);
    assert_eq!(second.iter().next().unwrap().unwrap(), 1);
}
