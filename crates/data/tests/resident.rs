//! A loader that wants gigabytes ahead and may have megabytes: what the process really takes. One test, since it measures
//! the whole process.

use std::time::{Duration, Instant};

use pagelock_data::{DataLoader, Dataset, Result};
use pagelock_memory::{Budget, ByteSize};
use pagelock_tensor::{Int, Tensor};

const MIB: usize = 1 << 20;
const LIMIT: ByteSize = ByteSize::mib(256);

/// Samples of a mebibyte, made when they are asked for.
struct Mebibytes(usize);

impl Dataset for Mebibytes {
    type Sample = Tensor<Int>;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<Tensor<Int>> {
        Ok(Tensor::build(MIB, |bytes: &mut [u8]| bytes.fill(index as u8))?)
    }

    fn gather(&self, indices: &[usize]) -> Result<Option<Tensor<Int>>> {
        let batch = Tensor::build([indices.len(), MIB], |bytes: &mut [u8]| {
            for (row, &index) in bytes.chunks_mut(MIB).zip(indices) {
                row.fill(index as u8);
            }
        })?;
        Ok(Some(batch))
    }
}

/// The most that the process had in RAM.
fn peak_resident() -> ByteSize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    ByteSize::kib(line.trim().trim_end_matches(" kB").parse().unwrap())
}

#[test]
fn four_gibibytes_wanted_ahead_stay_within_a_budget_of_256_mebibytes() {
    let before = peak_resident();
    let budget = Budget::new("ahead", LIMIT);
    // 16 MiB a batch, 256 batches ahead: 4 GiB.
    let loader = DataLoader::new(Mebibytes(4_096)).batch_size(16).num_workers(2).prefetch_factor(128);
    let loader = loader.prefetch_budget(budget.clone());
    let mut n_batches = 0;
    for batch in &loader {
        let batch = batch.unwrap();
        assert_eq!(batch.dims(), [16, MIB]);
        let start = Instant::now();
        // The program is slow at first, so that workers run as far ahead as they may.
        while n_batches < 2 && budget.left() >= ByteSize::mib(16) && start.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        n_batches += 1;
    }
    assert_eq!(n_batches, 256);
    assert!(budget.peak() > ByteSize::mib(200), "workers went only {} ahead", budget.peak());
    let taken = ByteSize(peak_resident().0 - before.0);
    assert!(taken <= ByteSize(LIMIT.0 + 64 * MIB as u64), "{taken} more in RAM than at the start");
}
