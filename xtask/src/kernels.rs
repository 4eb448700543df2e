//! `cargo xtask kernels`: writes `crates/tensor/src/cuda/kernels.bin`, the compiled kernels that come with the crate.
//!
//! A test of `pagelock-nn` fails where they are not those of today's sources; the same test writes them.

use anyhow::{Context, Result};
use lexopt::Parser;
use xshell::{Shell, cmd};

pub(crate) fn run(sh: &Shell, mut parser: Parser) -> Result<()> {
    if let Some(argument) = parser.next()? {
        return Err(argument.unexpected().into());
    }
    cmd!(sh, "cargo test --release --package pagelock-nn --test brought_kernels -- --nocapture")
        .env("PAGELOCK_WRITE_KERNELS", "1")
        .quiet()
        .run()
        .context("kernels were not written; without NVRTC, `pip install nvidia-cuda-nvrtc` and name its folder in PAGELOCK_NVRTC")
}
