//! The loop over the inputs of a target, and what counts as a failure.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::heap;
use crate::mutate::Random;
use crate::targets::Target;

/// An input that takes longer is a failure.
pub(crate) const LONGEST: Duration = Duration::from_secs(2);
/// An input that takes more memory than this plus the size of its file is a failure, too.
pub(crate) const MAX_BYTES: usize = 64 << 20;
/// The part of [`MAX_BYTES`] for buffers and tensors. The rest is for the decoders' own memory.
pub(crate) const BUDGET: u64 = 40 << 20;
/// The run of a target ends after this many failures.
const MAX_FAILURES: u64 = 10;
/// The number of inputs between checks of the time limit.
const INPUTS_PER_CHECK: u64 = 256;

/// The inputs to run.
pub(crate) struct Job {
    pub(crate) seed: u64,
    pub(crate) first: u64,
    pub(crate) n_inputs: u64,
    pub(crate) seconds: Option<u64>,
    pub(crate) folder: PathBuf, // for inputs that fail
}

/// The results of a run.
pub(crate) struct Outcome {
    pub(crate) n_inputs: u64,
    pub(crate) n_accepted: u64,
    pub(crate) n_failures: u64,
    pub(crate) most_bytes: usize,
    pub(crate) longest: Duration,
    pub(crate) took: Duration,
}

/// When reading the current input began, in [`millis`]; `u64::MAX` if no input is being read.
static SINCE: AtomicU64 = AtomicU64::new(u64::MAX);
static INPUT: Mutex<(&str, u64, Vec<u8>)> = Mutex::new(("", 0, Vec::new()));

pub(crate) fn run(target: &mut Target, job: &Job) -> Result<Outcome> {
    let start = Instant::now();
    let baseline = heap::live();
    let mut outcome = Outcome::none();
    for index in job.first..job.first + job.n_inputs {
        let is_late = || job.seconds.is_some_and(|seconds| start.elapsed().as_secs() >= seconds);
        if outcome.n_failures >= MAX_FAILURES || index.is_multiple_of(INPUTS_PER_CHECK) && is_late() {
            break;
        }
        let input = target.input(&mut Random::of(job.seed, target.name, index));
        begin(target.name, index, &input);
        heap::take_peak();
        let (mut read, mut took) = timed(target, &input);
        let taken = heap::take_peak().saturating_sub(baseline);
        if took > LONGEST && read.is_ok() {
            let again = timed(target, &input); // the machine may have been busy
            (read, took) = (again.0, took.min(again.1));
        }
        SINCE.store(u64::MAX, Relaxed);
        outcome.n_inputs += 1;
        outcome.n_accepted += u64::from(matches!(read, Ok(true)));
        outcome.most_bytes = outcome.most_bytes.max(taken.saturating_sub(input.len()));
        outcome.longest = outcome.longest.max(took);
        let problem = problem(read.is_err(), took, taken, input.len());
        if let Some(problem) = problem {
            outcome.n_failures += 1;
            let path = keep(&job.folder, target.name, index, &input)?;
            let (name, seed, path) = (target.name, job.seed, path.display());
            println!("   input {index} of {name} (seed {seed}): {problem}; saved as {path}");
        }
    }
    outcome.took = start.elapsed();
    Ok(outcome)
}

/// Why an input counts as a failure, if it does.
fn problem(panics: bool, took: Duration, taken: usize, len_bytes: usize) -> Option<String> {
    match () {
        () if panics => Some("the reader panicked".to_owned()),
        () if took > LONGEST => Some(format!("the reader took {took:.1?}")),
        () if taken > MAX_BYTES + len_bytes => {
            Some(format!("the reader allocated {taken} bytes, for a file of {len_bytes}"))
        }
        () => None,
    }
}

/// Reads an input. Returns whether it was accepted, or an error if the reader panicked, and how long reading took.
fn timed(target: &mut Target, input: &[u8]) -> (thread::Result<bool>, Duration) {
    let began = Instant::now();
    let read = catch_unwind(AssertUnwindSafe(|| target.read(input)));
    (read, began.elapsed())
}

impl Outcome {
    /// Adds the results of another process.
    pub(crate) fn add(&mut self, other: &Self) {
        self.n_inputs += other.n_inputs;
        self.n_accepted += other.n_accepted;
        self.n_failures += other.n_failures;
        self.most_bytes = self.most_bytes.max(other.most_bytes);
        self.longest = self.longest.max(other.longest);
        self.took += other.took;
    }

    pub(crate) fn none() -> Self {
        let zero = Duration::ZERO;
        Outcome { n_inputs: 0, n_accepted: 0, n_failures: 0, most_bytes: 0, longest: zero, took: zero }
    }
}

fn begin(target: &'static str, index: u64, input: &[u8]) {
    if let Ok(mut now) = INPUT.lock() {
        (now.0, now.1) = (target, index);
        now.2.clear();
        now.2.extend_from_slice(input);
    }
    SINCE.store(millis(), Relaxed);
}

fn millis() -> u64 {
    static START: Mutex<Option<Instant>> = Mutex::new(None);
    let start = START.lock().map_or_else(|_| Instant::now(), |mut start| *start.get_or_insert_with(Instant::now));
    start.elapsed().as_millis() as u64
}

/// Ends the program when an input takes five times [`LONGEST`], since the reader may never return. Counts polls
/// instead of time, because time passes while the program is stopped.
pub(crate) fn watch(folder: PathBuf) {
    const PAUSE: Duration = Duration::from_millis(200);
    thread::spawn(move || {
        let (mut last, mut n_polls) = (u64::MAX, 0);
        loop {
            thread::sleep(PAUSE);
            let since = SINCE.load(Relaxed);
            n_polls = if since == last && since != u64::MAX { n_polls + 1 } else { 0 };
            last = since;
            if n_polls * PAUSE > 5 * LONGEST {
                if let Ok(now) = INPUT.lock() {
                    let kept = keep(&folder, now.0, now.1, &now.2);
                    let kept =
                        kept.map_or_else(|error| format!("{error:#}"), |path| format!("saved as {}", path.display()));
                    println!("   input {} of {}: the reader does not return; {kept}", now.1, now.0);
                }
                process::exit(1);
            }
        }
    });
}

fn keep(folder: &Path, target: &str, index: u64, input: &[u8]) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("{target}-{index}.bin"));
    fs::write(&path, input).with_context(|| format!("cannot save the input as {}", path.display()))?;
    Ok(path)
}
