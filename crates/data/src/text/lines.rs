//! Files of lines whose first line names the format: how vocabularies and byte pairs are stored.

use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use pagelock_files::NewFile;
use pagelock_memory::{HeapReservation, open_regular};

use crate::{Error, Result};

/// Replaces a file as a whole by what `write` writes.
pub(super) fn save(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let saved = || {
        let mut file = BufWriter::new(NewFile::create(path)?);
        write(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.commit()
    };
    saved().map_err(|source| Error::io("write", path, source))
}

/// The text of a file after its first line, which has to be `head`, and the reservation of its memory in the budget.
pub(super) fn load(path: &Path, head: &str) -> Result<(String, HeapReservation)> {
    let (file, len_bytes) = open_regular(path).map_err(|source| Error::io("open", path, source))?;
    let counted = HeapReservation::new(len_bytes)?;
    let mut bytes = Vec::with_capacity(len_bytes as usize);
    file.take(len_bytes).read_to_end(&mut bytes).map_err(|source| Error::io("read", path, source))?;
    let not_text = |_| Error::content(path, "it is not UTF-8; give a file that save() wrote");
    let mut text = String::from_utf8(bytes).map_err(not_text)?;
    if !text.strip_prefix(head).is_some_and(|rest| rest.starts_with('\n')) {
        let problem = format!("it does not begin with the line `{head}`; give a file that save() wrote");
        return Err(Error::content(path, problem));
    }
    if !text.ends_with('\n') {
        return Err(Error::content(path, "its last line has no end: it is cut off; write it again"));
    }
    text.drain(..=head.len());
    Ok((text, counted))
}

/// A reservation that grows step by step, in blocks.
#[derive(Debug, Default)]
pub(crate) struct GrowingReservation {
    blocks: Vec<HeapReservation>,
    left: u64,
}

impl GrowingReservation {
    const BLOCK_BYTES: u64 = 64 << 10;

    /// A reservation of a known length.
    pub(crate) fn of(len_bytes: u64) -> Result<Self> {
        Ok(Self { blocks: vec![HeapReservation::new(len_bytes)?], left: 0 })
    }

    /// A list of items, and the memory for it, which is reserved while it grows.
    pub(crate) fn list<T>(items: &mut dyn Iterator<Item = Result<T>>) -> Result<(Vec<T>, Self)> {
        let (mut list, mut counted) = (Vec::new(), Self::default());
        for item in items {
            counted.reserve(2 * size_of::<T>() as u64)?; // a list that grows may be twice as long
            list.push(item?);
        }
        Ok((list, counted))
    }

    pub(crate) fn reserve(&mut self, len_bytes: u64) -> Result<()> {
        if len_bytes > self.left {
            let block = Self::BLOCK_BYTES.max(len_bytes);
            self.blocks.push(HeapReservation::new(block)?);
            self.left += block;
        }
        self.left -= len_bytes;
        Ok(())
    }
}
