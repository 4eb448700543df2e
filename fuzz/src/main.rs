//! `cargo xtask fuzz`: feeds damaged files to every reader of the workspace. README.md says what the readers promise.
//!
//! Read `targets.rs` first, then `corpus/`, `mutate.rs` and `run.rs`.
//!
//! # Files with `unsafe`
//! `heap.rs` (the program's global allocator, which counts allocated bytes).

mod corpus;
mod heap;
mod jobs;
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

/// Reads the command line and runs the job.
fn fuzz() -> Result<()> {
    let mut job = Job { seed: 1, first: 0, n_inputs: 20_000, seconds: None, folder: PathBuf::from("target/fuzz") };
    let (mut wanted, mut n_jobs, mut is_part): (Vec<String>, u64, bool) = (Vec::new(), 1, false);
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("inputs") => job.n_inputs = parser.value()?.parse()?,
            Long("seed") => job.seed = parser.value()?.parse()?,
            Long("first") => job.first = parser.value()?.parse()?,
            Long("only") => (job.first, job.n_inputs) = (parser.value()?.parse()?, 1),
            Long("seconds") => job.seconds = Some(parser.value()?.parse()?),
            Long("target") => wanted.push(parser.value()?.string()?),
            Long("folder") => job.folder = parser.value()?.into(),
            Long("jobs") => n_jobs = parser.value()?.parse()?,
            Long("part") => is_part = true, // a child process of `jobs.rs`
            other => return Err(other.unexpected().into()),
        }
    }
    ensure!(n_jobs > 0, "--jobs is a number of processes, 1 or more");
    if let Some(unknown) = wanted.iter().find(|name| !targets::NAMES.contains(&name.as_str())) {
        bail!("there is no target `{unknown}`; there are {}", targets::NAMES.join(", "));
    }
    let is_wanted = |name: &&str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let names: Vec<&'static str> = targets::NAMES.into_iter().filter(is_wanted).collect();
    if !is_part {
        println!("target        inputs   accepted  failures  most bytes    longest   total time");
    }
    let n_failures = if n_jobs > 1 { jobs::run(&job, &names, n_jobs)? } else { run_here(&job, &names, is_part)? };
    ensure!(n_failures == 0, "{n_failures} inputs failed, seed {}", job.seed);
    Ok(())
}

/// Runs the job in this process; returns how many inputs failed.
fn run_here(job: &Job, names: &[&'static str], is_part: bool) -> Result<u64> {
    pagelock_tensor::set_num_threads(1);
    host_budget().set_limit(ByteSize(BUDGET));
    std::panic::set_hook(Box::new(|_| {})); // a panic is caught and reported with its input
    run::watch(job.folder.clone());
    let folder = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    let folder = tempfile::tempdir_in(folder)?;
    let mut n_failures = 0;
    for name in names {
        let outcome = run::run(&mut Target::new(name, folder.path())?, job)?;
        n_failures += outcome.n_failures;
        if is_part { jobs::tell(name, &outcome) } else { report(name, &outcome) }
    }
    Ok(n_failures)
}

/// Prints one line of the table.
fn report(name: &str, outcome: &Outcome) {
    let Outcome { n_inputs, n_accepted, n_failures, most_bytes, longest, took } = outcome;
    println!(
        "{name:<12}{n_inputs:>9} {n_accepted:>10} {n_failures:>9} {most_bytes:>11} {longest:>10.1?} {took:>11.1?}"
    );
}
