//! How much of this process is in RAM.

use std::fs;

/// Bytes in RAM: now (`VmRSS:`), or the most so far (`VmHWM:`).
pub(crate) fn resident(field: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}
