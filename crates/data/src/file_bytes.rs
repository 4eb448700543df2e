//! [`FileBytes`]: a range of a file, or data unpacked into memory. All readers of files use it.

use std::fs::File;
use std::io::{self, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use pagelock_memory::{HostBuffer, open_regular};

use crate::{Error, Result};

/// The best compression ratio of Deflate. Data that claim a better one are damaged.
pub(crate) const MAX_DEFLATE_RATIO: u64 = 1_040;

/// Bytes that are read at any offset. Clones share the file or the memory.
#[derive(Clone, Debug)]
pub(crate) struct FileBytes {
    source: Source,
    start: u64,
    len: u64,
}

#[derive(Clone, Debug)]
enum Source {
    File(Arc<File>),
    Memory(Arc<HostBuffer>),
}

impl FileBytes {
    /// All of a file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        open_regular(path).and_then(|(file, _)| Self::of_file(file)).map_err(|source| Error::io("open", path, source))
    }

    /// All of a file that is open.
    pub(crate) fn of_file(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { source: Source::File(Arc::new(file)), start: 0, len })
    }

    pub(crate) fn of_memory(memory: HostBuffer) -> Self {
        let len = memory.len_bytes() as u64;
        Self { source: Source::Memory(Arc::new(memory)), start: 0, len }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// A range of these bytes; `None` if it is not within them.
    pub(crate) fn part(&self, start: u64, len: u64) -> Option<Self> {
        let is_within = start.checked_add(len).is_some_and(|end| end <= self.len);
        is_within.then(|| Self { source: self.source.clone(), start: self.start + start, len })
    }

    /// The file and the offset of these bytes in it; `None` if they are in memory.
    pub(crate) fn in_file(&self) -> Option<(&File, u64)> {
        match &self.source {
            Source::File(file) => Some((file, self.start)),
            Source::Memory(_) => None,
        }
    }

    /// Fills `out` with the bytes from offset `at` on; [`io::ErrorKind::UnexpectedEof`] if there are fewer.
    pub(crate) fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        let Some(Self { source, start, len }) = self.part(at, out.len() as u64) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match source {
            Source::File(file) => file.read_exact_at(out, start),
            Source::Memory(memory) => {
                out.copy_from_slice(&memory.bytes()[start as usize..][..len as usize]);
                Ok(())
            }
        }
    }
}

/// Reads [`FileBytes`] from the start, one part after another.
pub(crate) struct Reader {
    bytes: FileBytes,
    at: u64,
}

impl FileBytes {
    pub(crate) fn reader(self) -> Reader {
        Reader { bytes: self, at: 0 }
    }
}

impl io::Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n_bytes = self.bytes.len.saturating_sub(self.at).min(out.len() as u64) as usize;
        if n_bytes == 0 {
            return Ok(0); // also behind the end
        }
        self.bytes.read_exact_at(&mut out[..n_bytes], self.at)?;
        self.at += n_bytes as u64;
        Ok(n_bytes)
    }
}

impl io::Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(offset) => self.at.checked_add_signed(offset),
            SeekFrom::End(offset) => self.bytes.len.checked_add_signed(offset),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
