//! `--jobs N` divides the inputs of every target among at most N processes of this program.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::report;
use crate::run::{Job, Outcome};

/// Divides the job's inputs among at most `n_jobs` processes, and returns how many inputs failed.
pub(crate) fn run(job: &Job, names: &[&'static str], n_jobs: u64) -> Result<u64> {
    let share = job.n_inputs.div_ceil(n_jobs);
    let firsts = (0..n_jobs).map(|at| at * share).take_while(|&first| first < job.n_inputs);
    let parts = firsts.map(|first| start(job, names, job.first + first, share.min(job.n_inputs - first)));
    let parts: Vec<Child> = parts.collect::<Result<_>>()?;
    let n_targets = names.len();
    let readers: Vec<_> = parts.into_iter().map(|part| thread::spawn(move || outcomes(part, n_targets))).collect();
    let mut totals: Vec<Outcome> = names.iter().map(|_| Outcome::none()).collect();
    for reader in readers {
        let outcomes = reader.join().ok().context("a thread that reads the output of a process panicked")??;
        for (name, outcome) in outcomes {
            if let Some(at) = names.iter().position(|known| *known == name) {
                totals[at].add(&outcome);
            }
        }
    }
    names.iter().zip(&totals).for_each(|(name, total)| report(name, total));
    Ok(totals.iter().map(|total| total.n_failures).sum())
}

fn start(job: &Job, names: &[&'static str], first: u64, n_inputs: u64) -> Result<Child> {
    let mut part = Command::new(env::current_exe()?);
    part.args(["--part", "--seed", &job.seed.to_string(), "--first", &first.to_string()]);
    part.args(["--inputs", &n_inputs.to_string()]).arg("--folder").arg(&job.folder);
    part.args(job.seconds.iter().flat_map(|seconds| ["--seconds".to_owned(), seconds.to_string()]));
    part.args(names.iter().flat_map(|name| ["--target", name]));
    part.stdout(Stdio::piped()).spawn().context("cannot start this program again")
}

/// Reads the outcomes of targets from a process's output, and prints the other lines. It is an error if the process
/// ends before its last target.
fn outcomes(mut part: Child, n_targets: usize) -> Result<Vec<(String, Outcome)>> {
    let output = part.stdout.take().context("a process was started without a pipe for its output")?;
    let mut outcomes = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        match line.strip_prefix(OUTCOME).and_then(parse) {
            Some(outcome) => outcomes.push(outcome),
            None => println!("{line}"),
        }
    }
    let status = part.wait()?;
    let n_failures: u64 = outcomes.iter().map(|(_, outcome)| outcome.n_failures).sum();
    let n_outcomes = outcomes.len();
    ensure!(n_outcomes == n_targets, "a process ended after {n_outcomes} of {n_targets} targets, with {status}");
    ensure!(status.success() || n_failures > 0, "a process ended with {status}");
    Ok(outcomes)
}

/// The prefix of a line with an outcome.
const OUTCOME: &str = "outcome ";

/// Prints an outcome for the process that started this one.
pub(crate) fn tell(name: &str, outcome: &Outcome) {
    let Outcome { n_inputs, n_accepted, n_failures, most_bytes, longest, took } = outcome;
    let (longest, took) = (longest.as_micros(), took.as_micros());
    println!("{OUTCOME}{name} {n_inputs} {n_accepted} {n_failures} {most_bytes} {longest} {took}");
}

fn parse(line: &str) -> Option<(String, Outcome)> {
    let (name, numbers) = line.split_once(' ')?;
    let numbers: Vec<u64> = numbers.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [n_inputs, n_accepted, n_failures, most_bytes, longest, took] = numbers[..] else { return None };
    let (longest, took) = (Duration::from_micros(longest), Duration::from_micros(took));
    let most_bytes = most_bytes as usize;
    Some((name.to_owned(), Outcome { n_inputs, n_accepted, n_failures, most_bytes, longest, took }))
}
