//! Code that the examples share: it reads and checks arguments, ends the program without a panic when its output is
//! closed, checks before the work begins that results can be written, and asks for the link to the GPU.

#![allow(dead_code)] // not every example uses all of it

pub(crate) mod clothes;
pub(crate) mod options;
pub(crate) mod photos;
pub(crate) mod pictures;

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Parser;

/// Parses the arguments. The program may end quietly from then on if its output is closed.
pub(crate) fn arguments<A: Parser>() -> A {
    end_quietly_when_output_closes();
    A::parse()
}

/// Makes `| head -1` end the program quietly. Without this, `println!` panics when the output is closed.
fn end_quietly_when_output_closes() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if text.starts_with("failed printing to stdout") && text.contains("Broken pipe") {
            std::process::exit(0);
        }
        usual(panic);
    }));
}

/// Creates the folder for results, and checks that files can be written there.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder `{}` for the results", folder.display()))?;
    let probe = tempfile::tempfile_in(folder);
    probe.with_context(|| format!("cannot write into `{}`, where the results go", folder.display())).map(drop)
}

/// Checks that the file can be written, without changing its contents. Creates it if it does not exist.
pub(crate) fn try_file(path: &Path) -> Result<()> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.with_context(|| format!("cannot write `{}`", path.display())).map(drop)
}

/// The fastest mode of the link between host and GPU, from `nvidia-smi` if it is installed.
pub(crate) fn link() -> Option<String> {
    let fields = "--query-gpu=pcie.link.gen.max,pcie.link.width.max";
    let answer = Command::new("nvidia-smi").args([fields, "--format=csv,noheader", "--id=0"]).output().ok()?;
    let text = String::from_utf8(answer.stdout).ok().filter(|_| answer.status.success())?;
    let (generation, lanes) = text.trim().split_once(", ")?;
    Some(format!("PCI Express {generation}.0 x{lanes}"))
}
