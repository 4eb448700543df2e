//! One training pass over a file of any length, and how much memory becomes resident meanwhile.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use pagelock_data::{DataLoader, StoredRows};
use pagelock_memory::{Budget, ByteSize};
use pagelock_tensor::{DType, Float, Tensor, no_grad};

pub(crate) type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

const COLUMNS: usize = 64 << 10;
const ROW_BYTES: u64 = 4 * COLUMNS as u64;
const BATCH: usize = 32; // 8 MiB
/// How many bytes of batches the loader may make ahead.
pub(crate) const AHEAD: ByteSize = ByteSize::mib(64);

/// The result of a pass.
pub(crate) struct Report {
    pub(crate) n_rows: u64,
    pub(crate) time: Duration,
    /// Bytes that became resident until a tenth of the pass was done.
    pub(crate) at_first: u64,
    /// Bytes that became resident after that.
    pub(crate) later: u64,
    /// The weight that was learned, and the right one.
    pub(crate) weights: [f32; 2],
}

/// Makes a file of that length. The first two floats of each row are an input and its target, the others are zeros that
/// take no disk space.
pub(crate) fn make(path: &Path, len: ByteSize) -> Result<()> {
    let n_rows = len.0 / ROW_BYTES;
    let file = File::create_new(path)?;
    file.set_len(n_rows * ROW_BYTES)?;
    for row in 0..n_rows {
        let input = ((row * 2_654_435_761) % 1_000) as f32 / 1_000.0 - 0.5;
        let pair = [input.to_ne_bytes(), (slope() * input).to_ne_bytes()].concat();
        file.write_all_at(&pair, row * ROW_BYTES)?;
    }
    Ok(())
}

fn slope() -> f32 {
    3.0
}

/// Trains one pass over the file in shuffled order. Two workers read the batches.
pub(crate) fn run(path: &Path) -> Result<Report> {
    let rows = StoredRows::<Float>::raw(path, DType::F32, &[COLUMNS])?;
    let n_rows = fs::metadata(path)?.len() / ROW_BYTES;
    let loader = DataLoader::new(rows).batch_size(BATCH).shuffle(1).num_workers(2).prefetch_factor(64);
    let loader = loader.prefetch_budget(Budget::new("ahead", AHEAD));
    let weight = Tensor::zeros([COLUMNS - 1, 1])?.set_requires_grad(true);
    let n_batches = n_rows.div_ceil(BATCH as u64);
    let (start, before) = (Instant::now(), resident()?);
    let (mut at_first, mut most) = (0, 0);
    for (at, batch) in (1..).zip(&loader) {
        step(&batch?, &weight)?;
        let grown = resident()?.saturating_sub(before);
        if at * 10 <= n_batches {
            at_first = grown.max(at_first);
        }
        most = grown.max(most);
    }
    let weights = [weight.detach().select(0, 0)?.item()?, slope()];
    Ok(Report { n_rows, time: start.elapsed(), at_first, later: most.saturating_sub(at_first), weights })
}

/// Learns to predict the second float of each row from the first. The zeros behind them have no effect.
fn step(batch: &Tensor, weight: &Tensor) -> Result<()> {
    let len = batch.size(0)? as isize;
    let (input, target) = (batch.narrow(1, 0, 1)?, batch.narrow(1, 1, 1)?);
    let rest = batch.narrow(1, 2, COLUMNS - 2)?;
    let inputs = Tensor::cat(&[&input, &rest], 1)?;
    let loss = inputs.matmul(weight)?.mse_loss(&target, pagelock_tensor::Reduction::Sum)?;
    loss.backward()?;
    if let Some(grad) = weight.grad() {
        no_grad(|| weight.add_scaled_(&grad, -2.0 / len as f32))?;
        weight.zero_grad();
    }
    Ok(())
}

fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("the system does not say what is resident")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}
