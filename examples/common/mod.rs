//! What the examples share: they read their arguments, refuse what they do not know, end without a panic when their output
//! is closed, and find out before they work whether their results can be written.

#![allow(dead_code)] // not every example uses all of it

pub(crate) mod clothes;
pub(crate) mod options;
pub(crate) mod photos;
pub(crate) mod pictures;

use std::fs::{self, OpenOptions};
use std::path::Path;

use anyhow::{Context, Result};
use clap::Parser;

/// The arguments, for a program whose output may be closed before it ends.
pub(crate) fn arguments<A: Parser>() -> A {
    end_quietly_when_output_closes();
    A::parse()
}

/// Makes `| head -1` end the program instead of a panic in `println!`, which is what Rust does with a closed output.
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

/// Makes the folder for results, and tries whether files can be written there.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder `{}` for the results", folder.display()))?;
    let probe = tempfile::tempfile_in(folder);
    probe.with_context(|| format!("cannot write into `{}`, where the results go", folder.display())).map(drop)
}

/// Tries whether the file can be written; what it holds stays.
pub(crate) fn try_file(path: &Path) -> Result<()> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.with_context(|| format!("cannot write `{}`", path.display())).map(drop)
}
