//! The loop over the inputs of a target, and what is a failure.

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
/// One that takes more memory beside the file is, too.
pub(crate) const MOST_BYTES: usize = 64 << 20;
/// What is left of that for buffers and tensors; the decoders' own memory has the rest.
pub(crate) const BUDGET: u64 = 40 << 20;
/// A target that fails as often is given up.
const MOST_FAILURES: u64 = 10;
/// Inputs between two looks at the clock, for the time that a run may take.
const BETWEEN_LOOKS: u64 = 256;

/// What is asked for.
pub(crate) struct Job {
    pub(crate) seed: u64,
    pub(crate) first: u64,
    pub(crate) n_inputs: u64,
    pub(crate) seconds: Option<u64>,
    pub(crate) folder: PathBuf, // of inputs that failed
}

/// What came of it.
pub(crate) struct Outcome {
    pub(crate) n_inputs: u64,
    pub(crate) n_accepted: u64,
    pub(crate) n_failures: u64,
    pub(crate) most_bytes: usize,
    pub(crate) longest: Duration,
    pub(crate) took: Duration,
}

/// What is being read: since when, in milliseconds after the start of the program; none if nothing is.
static SINCE: AtomicU64 = AtomicU64::new(u64::MAX);
static INPUT: Mutex<(&str, u64, Vec<u8>)> = Mutex::new(("", 0, Vec::new()));

pub(crate) fn run(target: &mut Target, job: &Job) -> Result<Outcome> {
    let start = Instant::now();
    let baseline = heap::live();
    let mut outcome = Outcome::none();
    for index in job.first..job.first + job.n_inputs {
        let is_late = || job.seconds.is_some_and(|seconds| start.elapsed().as_secs() >= seconds);
        if outcome.n_failures >= MOST_FAILURES || index.is_multiple_of(BETWEEN_LOOKS) && is_late() {
            break;
        }
        let input = target.input(&mut Random::of(job.seed, target.name, index));
        begin(target.name, index, &input);
        let began = Instant::now();
        heap::take_peak();
        let read = catch_unwind(AssertUnwindSafe(|| target.read(&input)));
        let (mut took, taken) = (began.elapsed(), heap::take_peak().saturating_sub(baseline));
        if took > LONGEST && read.is_ok() {
            took = took.min(time_again(target, &input));
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
            println!("   input {index} of {} (seed {}): {problem}; it is {}", target.name, job.seed, path.display());
        }
    }
    outcome.took = start.elapsed();
    Ok(outcome)
}

/// What is wrong with how an input was read, if anything is.
fn problem(panics: bool, took: Duration, taken: usize, len_bytes: usize) -> Option<String> {
    match () {
        () if panics => Some("it panics".to_owned()),
        () if took > LONGEST => Some(format!("it takes {took:.1?}")),
        () if taken > MOST_BYTES + len_bytes => Some(format!("it takes {taken} bytes, for a file of {len_bytes}")),
        () => None,
    }
}

/// How long an input takes that took too long: the machine may have been busy.
fn time_again(target: &mut Target, input: &[u8]) -> Duration {
    let again = Instant::now();
    target.read(input);
    again.elapsed()
}

impl Outcome {
    /// What another process did too.
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

/// Ends the program when an input takes five times as long as it may: it would not end by itself. Counts looks, not time, which
/// goes on while the program is stopped.
pub(crate) fn watch(folder: PathBuf) {
    const PAUSE: Duration = Duration::from_millis(200);
    thread::spawn(move || {
        let (mut last, mut n_looks) = (u64::MAX, 0);
        loop {
            thread::sleep(PAUSE);
            let since = SINCE.load(Relaxed);
            n_looks = if since == last && since != u64::MAX { n_looks + 1 } else { 0 };
            last = since;
            if n_looks * PAUSE > 5 * LONGEST {
                if let Ok(now) = INPUT.lock() {
                    let kept = keep(&folder, now.0, now.1, &now.2);
                    println!("   input {} of {} does not end; it is kept: {kept:?}", now.1, now.0);
                }
                process::exit(1);
            }
        }
    });
}

fn keep(folder: &Path, target: &str, index: u64, input: &[u8]) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("{target}-{index}.bin"));
    fs::write(&path, input).with_context(|| format!("cannot keep {}", path.display()))?;
    Ok(path)
}
