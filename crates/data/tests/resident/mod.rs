//! How much of this process is in RAM, and how many threads it has.
#![allow(dead_code, reason = "every test program uses some of it")]

use std::fs;

/// Bytes in RAM: now (`VmRSS:`), or the most so far (`VmHWM:`).
pub(crate) fn resident(field: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// How many threads this process has. One that was joined may count for a moment longer.
pub(crate) fn threads() -> usize {
    entries("/proc/self/task")
}

/// How many entries a folder has.
pub(crate) fn entries(folder: &str) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}
