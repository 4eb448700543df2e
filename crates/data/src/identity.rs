//! Names of datasets and orders in the states of loaders: a loader refuses a state with other names.
//! `state.rs` puts the names into lines.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, ThreadId};

use flate2::Crc;

use crate::panics::lock;

/// The longest name; longer ones are cut and end in their hash.
const MAX_LINE_BYTES: usize = 160;

/// How many samples of a dataset, positions of an order, or blocks of a file are hashed.
const PROBES: usize = 16;

/// The length of a block of a file.
const BLOCK_BYTES: usize = 4_096;

/// FNV-1a, which stays the same from version to version and from machine to machine. Prints as sixteen digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash(u64);

impl Hash {
    pub(crate) const EMPTY: Self = Self(0xCBF2_9CE4_8422_2325);

    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut hash = Self::EMPTY;
        hash.add(bytes);
        hash
    }

    pub(crate) fn of_numbers(numbers: impl IntoIterator<Item = u64>) -> Self {
        let mut hash = Self::EMPTY;
        numbers.into_iter().for_each(|number| hash.add(&number.to_le_bytes()));
        hash
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
        self.0 = bytes.iter().fold(self.0, step);
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A name as a state has it: on one line, not too long, and without semicolons, since a semicolon ends the name
/// there.
pub(crate) fn one_line(name: &str) -> String {
    let letter = |letter: char| if letter.is_control() { ' ' } else { letter };
    let line = name.trim().replace(';', ",").chars().map(letter).collect::<String>();
    if line.len() <= MAX_LINE_BYTES {
        return line;
    }
    let start: String = line.chars().take(MAX_LINE_BYTES / 2).collect();
    format!("{start}… {}", Hash::of(line.as_bytes()))
}

/// The names of a loader's order and dataset, which the program's code gives once. It runs without a lock, since it
/// may ask the same loader for its state.
#[derive(Default)]
pub(crate) struct Names {
    known: OnceLock<(String, String)>,
    naming: Mutex<Vec<ThreadId>>, // threads that run that code
}

impl Names {
    /// The names. They are empty for a thread that is in the middle of `names`, which would never end otherwise.
    pub(crate) fn get_or(&self, names: impl FnOnce() -> (String, String)) -> (String, String) {
        let this_thread = thread::current().id();
        if self.known.get().is_none() {
            if lock(&self.naming).contains(&this_thread) {
                return Default::default();
            }
            lock(&self.naming).push(this_thread);
            let names = catch_unwind(AssertUnwindSafe(names));
            lock(&self.naming).retain(|thread| *thread != this_thread);
            let _ = self.known.set(names.unwrap_or_else(|panic| resume_unwind(panic))); // or another thread was faster
        }
        self.known.get().cloned().unwrap_or_default()
    }
}

/// Some of `n` positions, from the first to the last.
pub(crate) fn probes(n: usize) -> impl Iterator<Item = usize> {
    let n_probes = n.min(PROBES);
    (0..n_probes).map(move |i| (i as u128 * (n - 1) as u128 / (n_probes - 1).max(1) as u128) as usize)
}

/// A hash of `len` bytes, which `read` reads from any offset on. It covers all of them if they are at most [`PROBES`]
/// blocks, else that many blocks from the first bytes to the last.
pub(crate) fn hash_of_blocks(len: u64, mut read: impl FnMut(&mut [u8], u64) -> io::Result<()>) -> io::Result<Hash> {
    let mut block = [0; BLOCK_BYTES];
    let mut hash = Hash::of_numbers([len]);
    let is_short = len <= (PROBES * BLOCK_BYTES) as u64;
    let last = len.saturating_sub(BLOCK_BYTES as u64); // where the last block starts
    let starts = if is_short { len.div_ceil(BLOCK_BYTES as u64) } else { last + 1 };
    for start in probes(usize::try_from(starts).unwrap_or(usize::MAX)) {
        let at = if is_short { start * BLOCK_BYTES } else { start } as u64;
        let bytes = &mut block[..(len - at).min(BLOCK_BYTES as u64) as usize];
        read(bytes, at)?;
        hash.add(bytes);
    }
    Ok(hash)
}

/// A hash for a name, or why it could not be computed.
pub(crate) fn hash_or_error(hash: io::Result<Hash>) -> String {
    hash.map_or_else(|error| format!("unreadable: {error}"), |hash| hash.to_string())
}

/// The checksum of bytes in one or more parts, gzip's CRC-32, at gigabytes per second.
pub(crate) fn checksum<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Checksum {
    let mut crc = Crc::new();
    parts.into_iter().for_each(|bytes| crc.update(bytes));
    Checksum(crc.sum())
}

/// Prints as eight digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksum(pub(crate) u32);

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checksum {:08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_different_places_from_the_first_to_the_last() {
        assert_eq!(probes(0).count(), 0);
        assert_eq!(probes(3).collect::<Vec<_>>(), [0, 1, 2]);
        for n in [1, 16, 17, 1_000, usize::MAX] {
            let probed: Vec<usize> = probes(n).collect();
            assert!(probed.is_sorted_by(|a, b| a < b) && probed[0] == 0, "{probed:?}");
            assert_eq!(*probed.last().unwrap(), n - 1);
        }
    }

    #[test]
    fn every_byte_of_a_short_file_is_seen_and_blocks_of_a_long_one_from_the_first_to_the_last() {
        let hash = |bytes: &[u8]| {
            let mut n_read = 0;
            let hash = hash_of_blocks(bytes.len() as u64, |out, at| {
                n_read += out.len();
                out.copy_from_slice(&bytes[at as usize..][..out.len()]);
                Ok(())
            });
            (hash.unwrap(), n_read)
        };
        assert_eq!(hash(&[]).1, 0);
        let short = vec![7; PROBES * BLOCK_BYTES - 5];
        for at in [0, 1, BLOCK_BYTES, short.len() / 2, short.len() - 1] {
            let mut other = short.clone();
            other[at] = 8;
            assert_ne!(hash(&short), hash(&other), "byte {at}");
        }
        assert_ne!(hash(&short).0, hash(&short[1..]).0);
        let long = vec![7; 100 * PROBES * BLOCK_BYTES + 5];
        let (whole, n_read) = hash(&long);
        assert_eq!(n_read, PROBES * BLOCK_BYTES);
        for at in [0, BLOCK_BYTES - 1, long.len() - BLOCK_BYTES, long.len() - 1] {
            let mut other = long.clone();
            other[at] = 8;
            assert_ne!(whole, hash(&other).0, "byte {at}");
        }
        assert!(hash_of_blocks(1, |_, _| Err(io::ErrorKind::UnexpectedEof.into())).is_err());
    }

    #[test]
    fn a_name_is_one_short_line() {
        assert_eq!(one_line(" a;\nb "), "a, b");
        let (long, other) = (one_line(&"ä".repeat(1_000)), one_line(&"ä".repeat(1_001)));
        assert!(long.chars().count() < MAX_LINE_BYTES && long != other, "{long}");
    }
}
