//! Large work on one GPU: matrix products and convolutions, beside PyTorch's times and what the device could do at most.
//!
//! ```text
//! python benches/torch_large.py > torch.json
//! cargo bench --bench large -- --torch torch.json
//! cargo bench --bench large -- --limits      # from which sizes on libraries are faster than this project's kernels
//! ```
//! Algorithms of convolutions are the fastest, measured before, as with PyTorch's `cudnn.benchmark`; `--first` takes those
//! that cuDNN proposes first, which is the default outside of this benchmark. Both programs time the same: some calls between two events of the device, the median of several rounds.

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
    /// What `torch_large.py` printed on this machine
    #[arg(long)]
    torch: Option<PathBuf>,
    /// Compare libraries with this project's own kernels over sizes instead
    #[arg(long)]
    limits: bool,
    /// Take the algorithms that cuDNN proposes first, not the fastest
    #[arg(long)]
    first: bool,
    /// Only rows that contain this
    #[arg(long, default_value = "")]
    only: String,
    /// What `cargo bench` passes
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
