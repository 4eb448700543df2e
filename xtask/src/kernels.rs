//! `cargo xtask kernels`: writes `crates/tensor/src/cuda/kernels.bin`, the compiled kernels that come with the crate.
//!
//! A test of `pagelock-nn` fails if they do not match the current sources; the same test writes them.

use anyhow::{Context, Result};
use lexopt::Parser;
use xshell::{Shell, cmd};

use crate::no_more_arguments;

pub(crate) fn run(sh: &Shell, parser: Parser) -> Result<()> {
    no_more_arguments(parser)?;
    cmd!(sh, "cargo test --release --package pagelock-nn --test brought_kernels -- --nocapture")
        .env("PAGELOCK_WRITE_KERNELS", "1")
        .quiet()
        .run()
        .context(
            "the kernels were not written; if NVRTC is missing, `pip install nvidia-cuda-nvrtc` and set PAGELOCK_NVRTC \
             to its folder",
        )
}
