//! The project's development commands: `cargo xtask COMMAND`.
//!
//! [`COMMANDS`] is the list; each command is in the file of its name. A command gets the rest of the command line and
//! a shell in the workspace root. If it fails, it prints one line that says what to do.

mod bench;
mod ci;
mod consumers;
mod features;
mod from_pytorch;
mod fuzz;
mod help;
mod kernels;
mod programs;
mod reproduce;
mod sanitize;
mod steps;
mod test_gpu;
mod tidy;

use std::env;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{self, ExitCode};

use anyhow::{Context, Result, bail};
use lexopt::Parser;
use xshell::Shell;

/// A command: the word after `cargo xtask`.
pub(crate) struct Command {
    name: &'static str,
    arguments: &'static str,
    summary: &'static str,
    run: fn(&Shell, Parser) -> Result<()>,
}

/// Every command, in the order in which `help` lists them.
pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "ci",
        arguments: "",
        summary: "all checks besides the tests: format, lints, docs, optional features, tidy, consumers, fuzz",
        run: ci::run,
    },
    Command {
        name: "consumers",
        arguments: "[CRATE ...]",
        summary: "builds and runs a ten-line program outside the workspace against each crate alone",
        run: consumers::run,
    },
    Command {
        name: "programs",
        arguments: "",
        summary: "counts the lines of LLVM IR that three user programs compile to, and runs them",
        run: programs::run,
    },
    Command {
        name: "features",
        arguments: "",
        summary: "checks that tests, examples and other commands build crates with the same features",
        run: features::run,
    },
    Command {
        name: "sanitize",
        arguments: "[--only SANITIZER] [-p PACKAGE]",
        summary: "runs the tests of `unsafe` code and threads under Address- and ThreadSanitizer (needs a nightly compiler)",
        run: sanitize::run,
    },
    Command {
        name: "fuzz",
        arguments: "[--inputs N] [--seed S] [--target T]",
        summary: "feeds damaged files to every file reader: it must not panic, hang or take too much memory",
        run: fuzz::run,
    },
    Command {
        name: "test-gpu",
        arguments: "[--bundle DIR] [--sanitize]",
        summary: "runs the tests that use a GPU; --bundle makes a folder to run on another machine",
        run: test_gpu::run,
    },
    Command {
        name: "kernels",
        arguments: "",
        summary: "rebuilds the precompiled kernels of pagelock-tensor after their sources change (needs NVRTC)",
        run: kernels::run,
    },
    Command {
        name: "from-pytorch",
        arguments: "",
        summary: "writes docs/from-pytorch.md from docs/pytorch and the public names in the sources",
        run: from_pytorch::run,
    },
    Command {
        name: "tidy",
        arguments: "",
        summary: "checks rules that the compiler does not: files with `unsafe` are listed, links exist, no leftovers",
        run: tidy::run,
    },
    Command {
        name: "bench",
        arguments: "[--json DIR] [NAME ...]",
        summary: "runs the workspace's benchmarks; --json writes DIR/NAME.json for each that has JSON",
        run: bench::run,
    },
    Command {
        name: "reproduce",
        arguments: "NAME [ARGUMENT ...]",
        summary: "repeats a measurement of the documentation on this machine: pinmem",
        run: reproduce::run,
    },
    Command { name: "help", arguments: "", summary: "this list", run: help::run },
];

fn main() -> ExitCode {
    let code = match run_without_package_variables() {
        Ok(None) => dispatch(Parser::from_env()).map(|()| ExitCode::SUCCESS),
        Ok(Some(code)) => Ok(code),
        Err(error) => Err(error),
    };
    match code {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs this program again without the environment variables with which `cargo run` describes a package, and returns
/// its exit code, or `None` if no such variable is set. Some build scripts (`ring`'s) run again when these variables
/// change. With them, every cargo that a command calls would rebuild the crates that depend on such scripts.
fn run_without_package_variables() -> Result<Option<ExitCode>> {
    let names: Vec<_> = env::vars_os().map(|(name, _)| name).filter(|name| describes_package(name)).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let mut again = process::Command::new(env::current_exe()?);
    again.args(env::args_os().skip(1));
    names.iter().for_each(|name| _ = again.env_remove(name));
    let code = again.status().context("xtask cannot start itself again")?.code();
    // There is no code if a signal ended the process.
    Ok(Some(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)))
}

fn describes_package(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix))
}

/// Finds the command that the first word names, and runs it from the workspace root.
fn dispatch(mut parser: Parser) -> Result<()> {
    let name = match parser.next()? {
        None => "help".to_owned(),
        Some(lexopt::Arg::Value(word)) => word.to_string_lossy().into_owned(),
        Some(lexopt::Arg::Short('h') | lexopt::Arg::Long("help")) => "help".to_owned(),
        Some(other) => bail!("{}; try `cargo xtask help`", other.unexpected()),
    };
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        bail!("there is no command `{name}`; `cargo xtask help` lists them");
    };

    let sh = Shell::new()?;
    sh.change_dir(workspace_root()?);
    (command.run)(&sh, parser)
}

fn workspace_root() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the folder of xtask has no parent folder, which is the workspace")
}

/// Fails if anything is left on the command line.
pub(crate) fn no_more_arguments(mut parser: Parser) -> Result<()> {
    match parser.next()? {
        None => Ok(()),
        Some(argument) => Err(argument.unexpected().into()),
    }
}

/// The rest of the command line as plain words; an option is an error.
pub(crate) fn remaining_words(mut parser: Parser) -> Result<Vec<String>> {
    let mut words = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            lexopt::Arg::Value(word) => words.push(word.to_string_lossy().into_owned()),
            option => return Err(option.unexpected().into()),
        }
    }
    Ok(words)
}
