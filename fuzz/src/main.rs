//! `cargo xtask fuzz`: damaged files for every reader of the workspace. README.md says what is promised.
//!
//! Read `targets.rs` first, then `corpus/`, `mutate.rs` and `run.rs`.
//!
//! # Files with `unsafe`
//! `heap.rs` (the program's allocator, which counts).

mod corpus;
mod heap;
mod mutate;
mod run;
mod targets;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use lexopt::Arg::Long;
use lexopt::ValueExt;
use pagelock_memory::{ByteSize, host_budget};

use crate::run::{BUDGET, Job, Outcome};
use crate::targets::Target;

fn main() -> ExitCode {
    match fuzz() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuzz: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what the command line asks for.
fn fuzz() -> Result<()> {
    let mut job = Job { seed: 1, first: 0, n_inputs: 20_000, seconds: None, folder: PathBuf::from("target/fuzz") };
    let mut names: Vec<String> = Vec::new();
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("inputs") => job.n_inputs = parser.value()?.parse()?,
            Long("seed") => job.seed = parser.value()?.parse()?,
            Long("first") => job.first = parser.value()?.parse()?,
            Long("only") => (job.first, job.n_inputs) = (parser.value()?.parse()?, 1),
            Long("seconds") => job.seconds = Some(parser.value()?.parse()?),
            Long("target") => names.push(parser.value()?.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    pagelock_tensor::set_num_threads(1);
    host_budget().set_limit(ByteSize(BUDGET));
    std::panic::set_hook(Box::new(|_| {})); // a panic that gets out is reported with its input
    run::watch(job.folder.clone());
    let folder = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    let folder = tempfile::tempdir_in(folder)?;
    let known: Vec<&str> = targets::NAMES.to_vec();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no target `{unknown}`; there are {}", known.join(", "));
    }
    println!("target        inputs   accepted  failures  most bytes    longest       took");
    let mut n_failures = 0;
    for name in known.into_iter().filter(|known| names.is_empty() || names.iter().any(|name| name == known)) {
        let outcome = run::run(&mut Target::new(name, folder.path())?, &job)?;
        n_failures += outcome.n_failures;
        report(name, &outcome);
    }
    ensure!(n_failures == 0, "{n_failures} inputs failed, seed {}", job.seed);
    Ok(())
}

fn report(name: &str, outcome: &Outcome) {
    let Outcome { n_inputs, n_accepted, n_failures, most_bytes, longest, took } = outcome;
    println!(
        "{name:<12}{n_inputs:>8} {n_accepted:>10} {n_failures:>9} {most_bytes:>11} {longest:>10.1?} {took:>10.1?}"
    );
}
