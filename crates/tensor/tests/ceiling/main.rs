//! The resident memory of a process stays under `$PAGELOCK_HOST_LIMIT`, whatever the program asks for.
//!
//! Every case is a process of its own with a limit of 64 MiB. It runs an operation on small tensors, which has to
//! succeed, then on tensors that do not all fit. The operation either succeeds or is refused by the budget, and the
//! peak resident memory is at most the limit and 32 MiB above that at the start.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
mod entries;
mod handles;
mod pinned;

use std::process::Command;
use std::sync::Mutex;
use std::thread;

use pagelock_tensor::{Error, Result};

const MIB: usize = 1 << 20;
const LIMIT: usize = 64 * MIB;
/// For the code of the process, its stacks, memory that the allocator keeps, and buffers of fixed length.
const ALLOWANCE: usize = 32 * MIB;

/// The environment variable that is set in a process that runs a case, to the case's name.
const CASE: &str = "PAGELOCK_TEST_CASE";

/// The name and the body of a case that captures nothing.
type Body = (&'static str, fn() -> Result<()>);

/// A name, and what the process does.
struct Case {
    name: &'static str,
    body: Box<dyn Fn() -> Result<()>>,
}

impl Case {
    fn new(name: &'static str, body: impl Fn() -> Result<()> + 'static) -> Case {
        Case { name, body: Box::new(body) }
    }
}

fn cases() -> Vec<Case> {
    let others = [handles::CASES, pinned::CASES].concat();
    entries::cases().into_iter().chain(others.into_iter().map(|(name, body)| Case::new(name, body))).collect()
}

#[test]
fn no_operation_takes_more_memory_than_the_limit() {
    if let Ok(name) = std::env::var(CASE) {
        return run(&name);
    }
    let names: Vec<_> = cases().iter().map(|case| case.name).collect();
    let (names, failures) = (Mutex::new(names), Mutex::new(Vec::new()));
    let cores = thread::available_parallelism().map_or(1, usize::from).min(4);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(name) = { names.lock().unwrap().pop() } {
                    if let Err(failure) = in_a_process(name) {
                        failures.lock().unwrap().push(format!("{name}: {failure}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n"));
}

/// Runs a case in a child process. The error is what that process printed.
fn in_a_process(case: &str) -> std::result::Result<(), String> {
    let this_program = std::env::current_exe().unwrap();
    let output = Command::new(this_program)
        .args(["--exact", "no_operation_takes_more_memory_than_the_limit", "--nocapture"])
        .env(CASE, case)
        .env("PAGELOCK_HOST_LIMIT", format!("{LIMIT}"))
        .env("PAGELOCK_NUM_THREADS", "2")
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().filter(|line| !line.is_empty() && !line.starts_with("note:")).collect::<Vec<_>>();
    if output.status.success() { Ok(()) } else { Err(format!("{}: {}", output.status, why.join(" "))) }
}

fn run(name: &str) {
    let case = cases().into_iter().find(|case| case.name == name);
    let case = case.unwrap_or_else(|| panic!("there is no case {name}"));
    let before = resident("VmRSS:");
    (case.body)().unwrap();
    let grown = resident("VmHWM:").saturating_sub(before);
    assert!(grown <= LIMIT + ALLOWANCE, "took {} MiB under a limit of {} MiB", grown / MIB, LIMIT / MIB);
}

/// Resident memory in bytes: `VmRSS:` is the current value, `VmHWM:` the peak.
fn resident(what: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Whether the error is a refusal by the host budget, as its text says.
fn is_refusal(error: &Error) -> bool {
    error.is_out_of_memory() && error.to_string().contains(": budget `host` has ")
}

/// The result, or `None` if the budget refused.
fn unless_refused<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_refusal(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
