//! [`Table`]: one row for each piece of work, printed as soon as it is measured.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};
use pagelock::tensor::Device;

const ROUNDS: usize = 12;
const CALLS: usize = 5;

/// The amount of computation in a piece of work, which bounds its speed.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// The number of floating-point operations, and the device's peak rate of them.
    Flops { count: f64, most_per_second: f64 },
}

/// The peak FLOP/s of an H200, by its datasheet; a multiply-add counts as two.
pub(crate) const F32: f64 = 67e12;
pub(crate) const TF32: f64 = 494e12;
pub(crate) const BF16: f64 = 989e12;

pub(crate) struct Table<'a> {
    pub(crate) device: &'a Device,
    torch: BTreeMap<String, f64>, // milliseconds
    only: String,
}

impl<'a> Table<'a> {
    /// `torch` is a file with one JSON object that maps names to milliseconds.
    pub(crate) fn new(device: &'a Device, torch: Option<&Path>, only: String) -> Result<Table<'a>> {
        let torch = match torch {
            Some(path) => {
                let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
                serde_json::from_reader(file)
                    .with_context(|| format!("{} is not the output of torch_large.py", path.display()))?
            }
            None => BTreeMap::new(),
        };
        println!("{:44} {:>9} {:>9} {:>9} {:>9} {:>9}", "work", "ms", "TFLOP/s", "of limit", "torch ms", "speed");
        Ok(Table { device, torch, only })
    }

    /// Whether a row of that name is to be measured.
    pub(crate) fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    /// Measures one row.
    pub(crate) fn row(&self, name: &str, work: Work, mut call: impl FnMut() -> Result<()>) -> Result<()> {
        if !self.wants(name) {
            return Ok(());
        }
        let ms = milliseconds(self.device, &mut call).with_context(|| name.to_owned())?;
        let Work::Flops { count, most_per_second } = work;
        let per_second = count / ms * 1e3;
        let share = 100.0 * per_second / most_per_second;
        print!("{name:44} {ms:9.4} {:9.1} {share:8.0}%", per_second / 1e12);
        match self.torch.get(name) {
            Some(theirs) => println!(" {theirs:9.4} {:9.2}", theirs / ms),
            None => println!(),
        }
        Ok(())
    }
}

/// Milliseconds per call by the device's clock, the median over [`ROUNDS`] rounds.
pub(crate) fn milliseconds(device: &Device, call: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let Device::Cuda(cuda) = device else { bail!("only GPUs are measured") };
    let mut rounds = Vec::new();
    for round in 0..ROUNDS + 3 {
        let start = cuda.stream().record_timed()?;
        for _ in 0..CALLS {
            call()?;
        }
        let elapsed = cuda.stream().record_timed()?.elapsed_since(&start)?;
        if round >= 3 {
            rounds.push(elapsed.as_secs_f64() * 1e3 / CALLS as f64);
        }
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[rounds.len() / 2])
}
