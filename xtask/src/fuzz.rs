//! `cargo xtask fuzz`: feeds damaged files to every reader of files. The arguments go to the program in `fuzz/`.

use std::ffi::OsString;

use anyhow::Result;
use lexopt::Parser;
use xshell::{Shell, cmd};

pub(crate) fn run(sh: &Shell, mut parser: Parser) -> Result<()> {
    let arguments: Vec<OsString> = parser.raw_args()?.collect();
    with(sh, &arguments)
}

/// Runs a few inputs of every target.
pub(crate) fn briefly(sh: &Shell) -> Result<()> {
    with(sh, &["--inputs", "2000"].map(OsString::from))
}

fn with(sh: &Shell, arguments: &[OsString]) -> Result<()> {
    let fuzz = cmd!(sh, "cargo run --release --quiet --package pagelock-fuzz --features readers -- {arguments...}");
    Ok(fuzz.quiet().run()?)
}
