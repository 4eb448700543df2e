//! Times large matrix products and convolutions on one GPU, beside PyTorch's times and the device's peak FLOP/s.
//!
//! ```text
//! python benches/torch_large.py > torch.json
//! cargo bench --bench large -- --torch torch.json
//! cargo bench --bench large -- --limits      # from which sizes on libraries are faster than this project's kernels
//! ```
//! Convolutions use the fastest algorithm, which is found by timing all of them beforehand, as with PyTorch's
//! `cudnn.benchmark`. With `--first` they use the algorithm that cuDNN proposes first, which is the default outside
//! of this benchmark. Both programs time in the same way: several calls between two events of the device, and the
//! median of several rounds.

mod convolutions;
mod gemm;
mod limits;
mod table;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use pagelock::tensor::{Device, Kernels, with_kernels};

use self::table::Table;

/// Times large matrix products and convolutions on a GPU
#[derive(Parser)]
struct Args {
    /// File with the output of `torch_large.py` on this machine
    #[arg(long)]
    torch: Option<PathBuf>,
    /// Instead compare libraries with this project's own kernels over sizes
    #[arg(long)]
    limits: bool,
    /// Take the algorithms that cuDNN proposes first, not the fastest
    #[arg(long)]
    first: bool,
    /// Only rows whose names contain this text
    #[arg(long, default_value = "")]
    only: String,
    /// `cargo bench` passes this
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(missing) => {
            println!("nothing to measure: {missing}");
            return Ok(());
        }
    };
    if let Device::Cuda(cuda) = &device {
        println!("{}\n{}\n", cuda.cuda().properties().name, cuda.libraries());
    }
    if args.limits {
        return limits::measure(&device);
    }
    let kernels = if args.first { Kernels::Fastest } else { Kernels::Measured };
    let table = Table::new(&device, args.torch.as_deref(), args.only)?;
    with_kernels(kernels, || {
        gemm::measure(&table)?;
        convolutions::measure(&table)
    })
}
