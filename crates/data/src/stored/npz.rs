//! NumPy's `.npz`: a zip archive of `.npy` files.
//!
//! At the end of the file is a record that says where the directory is; the directory names each member, its sizes, how it
//! is packed, and where its own header is, behind which it begins. Archives beyond 4 GiB have these numbers in longer records.

use std::io::{BufReader, Read};
use std::path::Path;

use flate2::CrcReader;
use flate2::read::DeflateDecoder;
use pagelock_memory::{HostBuffer, default_host};
use pagelock_tensor::Element;

use super::bytes::Bytes;
use super::{StoredRows, open, wrong};
use crate::{Error, Result};

const END: [u8; 4] = *b"PK\x05\x06";
const LONG_END: [u8; 4] = *b"PK\x06\x06";
const LONG_END_LOCATOR: [u8; 4] = *b"PK\x06\x07";
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const MEMBER: [u8; 4] = *b"PK\x03\x04";
const END_BYTES: u64 = 22;
const LONGEST_COMMENT: u64 = 65_535;
/// Of a directory: names of a million arrays.
const LONGEST_DIRECTORY: u64 = 256 << 20;
/// A number that is in the longer record.
const ELSEWHERE: u64 = 0xffff_ffff;
/// Deflate packs at most so well; a member that claims more is none.
const MOST_PACKED: u64 = 1_040;

impl<T: Element> StoredRows<T> {
    /// The rows of the array `name` of a `.npz` file, as `numpy.savez` writes it: read at their place. From one that
    /// `numpy.savez_compressed` wrote, the array is unpacked into memory first.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Content`] if it is no such file, has no array of that name, or the array is not one that
    /// [`npy`](Self::npy) reads; [`Error::Memory`] if there is no room to unpack it.
    ///
    /// # Examples
    /// ```no_run
    /// use pagelock_data::{DataLoader, StoredRows};
    ///
    /// // numpy.savez("train.npz", images=images, labels=labels)
    /// let images = StoredRows::<u8>::npz("train.npz", "images")?;
    /// for batch in &DataLoader::new(images).batch_size(64).shuffle(0).num_workers(2) {
    ///     println!("{:?}", batch?.dims());
    /// }
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn npz(path: impl AsRef<Path>, name: &str) -> Result<Self> {
        let path = path.as_ref();
        let archive = open(path)?;
        let member = find(path, &archive, name)?;
        Self::npy_in(path, member.open(path, &archive, name)?)
    }
}

/// What the directory says of a member.
#[derive(Clone, Copy, Debug)]
struct Member {
    is_packed: bool,
    crc: u32,
    packed_bytes: u64,
    len_bytes: u64,
    header_at: u64,
}

/// What an archive's records lack, said in one way.
fn damaged(path: &Path, what: &str) -> Error {
    wrong(path, format!("it is no whole .npz file: {what}; get it again, or write it with numpy.savez"))
}

fn find(path: &Path, archive: &Bytes, name: &str) -> Result<Member> {
    let directory = read_directory(path, archive)?;
    let mut rest = &directory[..];
    let mut names = Vec::new();
    while let Some((found, entry, after)) = next_entry(rest) {
        rest = after;
        let found = String::from_utf8_lossy(found);
        let found = found.strip_suffix(".npy").unwrap_or(&found);
        if found == name {
            return entry.ok_or_else(|| {
                wrong(path, format!("`{name}` is packed in a way that is not known; write it with numpy.savez"))
            });
        }
        names.push(found.to_owned());
    }
    if names.is_empty() {
        return Err(damaged(path, "its directory is empty"));
    }
    names.truncate(10);
    Err(wrong(path, format!("it has no array `{name}`; it has {}", names.join(", "))))
}

fn read_directory(path: &Path, archive: &Bytes) -> Result<Vec<u8>> {
    let failed = |source| Error::io("read", path, source);
    let n_last = archive.len().min(END_BYTES + LONGEST_COMMENT);
    let mut last = vec![0; n_last as usize];
    archive.read_exact_at(&mut last, archive.len() - n_last).map_err(failed)?;
    let is_end = |at: &usize| last[*at..].starts_with(&END) && last.len() - at >= END_BYTES as usize;
    let end = (0..last.len()).rev().find(is_end).ok_or_else(|| damaged(path, "it has no directory"))?;
    let (mut len, mut start) = (u32_at(&last, end + 12), u32_at(&last, end + 16));
    if len == Some(ELSEWHERE) || start == Some(ELSEWHERE) {
        let locator = end.checked_sub(20).filter(|&at| last[at..].starts_with(&LONG_END_LOCATOR));
        let at = locator.and_then(|at| u64_at(&last, at + 8)).unwrap_or(u64::MAX);
        let mut record = [0; 56];
        let is_there = archive.read_exact_at(&mut record, at).is_ok() && record.starts_with(&LONG_END);
        (len, start) = if is_there { (u64_at(&record, 40), u64_at(&record, 48)) } else { (None, None) };
    }
    let (Some(len), Some(start)) = (len, start) else { return Err(damaged(path, "its directory is nowhere")) };
    let directory = archive.part(start, len).filter(|_| len <= LONGEST_DIRECTORY);
    let directory = directory.ok_or_else(|| damaged(path, "its directory is not within it"))?;
    let mut bytes = vec![0; len as usize];
    directory.read_exact_at(&mut bytes, 0).map_err(failed)?;
    Ok(bytes)
}

/// The first entry of a directory: its name, the member, if it can be read, and what comes behind.
fn next_entry(directory: &[u8]) -> Option<(&[u8], Option<Member>, &[u8])> {
    let (entry, rest) = directory.split_at_checked(46).filter(|(entry, _)| entry.starts_with(&ENTRY))?;
    let (name, rest) = rest.split_at_checked(u16_at(entry, 28)?)?;
    let (extra, rest) = rest.split_at_checked(u16_at(entry, 30)?)?;
    let (_comment, rest) = rest.split_at_checked(u16_at(entry, 32)?)?;
    let long = long_numbers(extra);
    let mut long = long.chunks_exact(8).map(|bytes| u64_at(bytes, 0));
    let mut number = |at| match u32_at(entry, at) {
        Some(ELSEWHERE) => long.next().flatten(),
        number => number,
    };
    let (len_bytes, packed_bytes, header_at) = (number(24)?, number(20)?, number(42)?); // in this order in `long`
    let is_packed = match u16_at(entry, 10)? {
        0 => false,
        8 => true,
        _ => return Some((name, None, rest)),
    };
    let crc = u32_at(entry, 16)? as u32;
    Some((name, Some(Member { is_packed, crc, packed_bytes, len_bytes, header_at }), rest))
}

/// The numbers that have no room in an entry.
fn long_numbers(mut extra: &[u8]) -> &[u8] {
    while let (Some(kind), Some(len)) = (u16_at(extra, 0), u16_at(extra, 2)) {
        let Some((field, rest)) = extra[4..].split_at_checked(len) else { break };
        if kind == 1 {
            return field;
        }
        extra = rest;
    }
    &[]
}

impl Member {
    /// The member's bytes: a part of the archive, or unpacked.
    fn open(self, path: &Path, archive: &Bytes, name: &str) -> Result<Bytes> {
        let mut header = [0; 30];
        let is_there = archive.read_exact_at(&mut header, self.header_at).is_ok() && header.starts_with(&MEMBER);
        let lens = u16_at(&header, 26).zip(u16_at(&header, 28)).filter(|_| is_there);
        let start = lens.and_then(|(name, extra)| self.header_at.checked_add(30 + (name + extra) as u64));
        let member = start.and_then(|start| archive.part(start, self.packed_bytes));
        let member = member.ok_or_else(|| damaged(path, &format!("`{name}` is not within it")))?;
        match self.is_packed {
            false => Ok(member),
            true => self.unpack(path, member, name),
        }
    }

    fn unpack(self, path: &Path, member: Bytes, name: &str) -> Result<Bytes> {
        if self.len_bytes > (self.packed_bytes + 1).saturating_mul(MOST_PACKED) {
            return Err(damaged(path, &format!("`{name}` claims to be {} bytes", self.len_bytes)));
        }
        let mut memory = HostBuffer::allocate(default_host(), self.len_bytes as usize)?;
        let mut unpacked = CrcReader::new(DeflateDecoder::new(BufReader::new(member.reader())));
        let is_whole = unpacked.read_exact(memory.bytes_mut()?).is_ok() && unpacked.crc().sum() == self.crc;
        match is_whole {
            true => Ok(Bytes::of_memory(memory)),
            false => Err(damaged(path, &format!("`{name}` does not unpack to what was packed"))),
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(usize::from(u16::from_le_bytes(bytes.try_into().ok()?)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?)))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
