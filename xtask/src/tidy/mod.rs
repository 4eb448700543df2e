//! `cargo xtask tidy`: the project's rules that no compiler checks.
//!
//! Rules of one kind share a file, whose `check` takes the project's files and returns a list of [`Complaint`]s.
//! `sources.rs` has the rules for single files, `unsafe_list.rs` for crates, `documents.rs` for Markdown and folders,
//! and `from_pytorch` for the table of PyTorch's names.
//! `code.rs` separates code from comments and strings for these rules.

mod code;
mod documents;
mod sources;
mod unsafe_list;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use lexopt::Parser;
use xshell::{Shell, cmd};

use crate::{from_pytorch, no_more_arguments};

/// A text file of the project: its path from the root, with `/`, and its text.
pub(crate) struct TextFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A broken rule, as `path:line: the problem and what to do`.
pub(crate) type Complaint = String;

pub(crate) fn run(sh: &Shell, parser: Parser) -> Result<()> {
    no_more_arguments(parser)?;
    check(sh)?;
    println!("tidy: no complaint");
    Ok(())
}

/// Checks every rule and prints the complaints; the error counts them.
pub(crate) fn check(sh: &Shell) -> Result<()> {
    let files = text_files(sh)?;
    let mut complaints = sources::check(&files);
    complaints.extend(unsafe_list::check(&files));
    complaints.extend(documents::check(&files));
    complaints.extend(from_pytorch::check(&files));

    for complaint in &complaints {
        println!("{complaint}");
    }
    match complaints.len() {
        0 => Ok(()),
        n => bail!("tidy has {n} complaint(s), listed above"),
    }
}

/// Every text file that git tracks, or would track after `git add`.
pub(crate) fn text_files(sh: &Shell) -> Result<Vec<TextFile>> {
    let listed = cmd!(sh, "git ls-files -z --cached --others --exclude-standard").quiet().read()?;
    let root = sh.current_dir();
    let paths = listed.split('\0').filter(|path| !path.is_empty());
    Ok(paths.filter_map(|path| read_text(&root, path)).collect())
}

/// `None` for a file that is not UTF-8 text, or whose deletion is not committed yet.
fn read_text(root: &Path, path: &str) -> Option<TextFile> {
    let bytes = std::fs::read(root.join(path)).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    Some(TextFile { path: path.to_owned(), text })
}

/// Folders with a `Cargo.toml` that describes a package, from the root (`""` is the root itself).
fn package_folders(files: &[TextFile]) -> Vec<&str> {
    let manifests = files.iter().filter(|file| file.text.contains("[package]"));
    manifests.filter_map(|file| file.path.strip_suffix("Cargo.toml")).collect()
}

/// `folder` joined with `relative`, with `.` and `..` resolved; `None` if the path leaves the project.
fn resolve(folder: &str, relative: &str) -> Option<String> {
    let mut path = PathBuf::from(folder);
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." if !path.pop() => return None,
            ".." => {}
            name => path.push(name),
        }
    }
    Some(path.to_string_lossy().into_owned())
}
