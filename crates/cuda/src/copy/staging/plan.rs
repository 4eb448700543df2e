//! [`Plan`]: how the bytes of one call are cut into pieces, each of which passes through one staging buffer.
//!
//! ```text
//!   host memory    aaaaaaaaaaaaa    bb   cccc          (three slices)
//!   pieces         [aaaaaa][aaaaaaa.bb.cccc]           (a piece fits a slot)
//!   runs            a       a       b  c               (bytes that lie together on the host)
//! ```
//! The device copies a piece at once. A slice that lies right behind another one on the device joins its piece, with the gap
//! between them, which nobody uses; so many small slices move in one copy.

use std::{
    fs::File,
    ops::Range,
    os::fd::{AsRawFd, RawFd},
};

use crate::{
    driver::Address,
    error::{Error, Result},
};

/// See the head of the file.
pub(in crate::copy) struct Plan {
    pub(super) pieces: Vec<Piece>,
    pub(super) runs: Vec<Run>,
    pub(super) files: Vec<File>,
    handles: Vec<RawFd>, // of the same files, as the caller has them
    pub(super) granule_bytes: usize,
    piece_bytes: usize,
}

/// What passes through one slot at once.
pub(super) struct Piece {
    pub(super) buffers: Range<usize>, // on the device, whose parts it holds: places in the list of accesses
    pub(super) address: Address,
    pub(super) len_bytes: usize,
    pub(super) runs: Range<usize>,
    pub(super) first_granule: usize,
}

/// Bytes that lie together on the host.
pub(super) struct Run {
    pub(super) start: Start,
    offset: u32, // in the piece
    len_bytes: u32,
}

/// Where bytes begin.
#[derive(Clone, Copy)]
pub(in crate::copy) enum Start {
    /// In memory that the caller has borrowed for longer than the call.
    Memory(*mut u8),
    /// In the plan's file of that number.
    File(u32, u64),
}

/// A piece has at most so many granules: one bit each in a word.
pub(super) const GRANULES: usize = 64;

impl Start {
    /// So many bytes further on.
    pub(super) fn offset(self, bytes: usize) -> Self {
        match self {
            Start::Memory(start) => Start::Memory(start.wrapping_add(bytes)),
            Start::File(file, start) => Start::File(file, start.saturating_add(bytes as u64)), // where no file has anything
        }
    }
}

impl Run {
    /// The part of the piece that it fills.
    pub(super) fn range(&self) -> Range<usize> {
        let start = self.offset as usize;
        start..start + self.len_bytes as usize
    }
}

impl Plan {
    /// For pieces of at most `piece_bytes`, which threads copy in granules of at least `least_granule_bytes`.
    pub(super) fn new(piece_bytes: usize, least_granule_bytes: usize) -> Self {
        debug_assert!(u32::try_from(piece_bytes).is_ok());
        let granule_bytes = piece_bytes.div_ceil(GRANULES).max(least_granule_bytes);
        Self {
            pieces: Vec::new(),
            runs: Vec::new(),
            files: Vec::new(),
            handles: Vec::new(),
            granule_bytes,
            piece_bytes,
        }
    }

    /// Adds bytes of the buffer of that number. With `joins` they lie behind the bytes that were added before, and nobody uses
    /// what is between: they go on in the same piece.
    pub(in crate::copy) fn add(
        &mut self,
        buffer: usize,
        start: Start,
        address: Address,
        len_bytes: usize,
        joins: bool,
    ) {
        let mut done = if joins { self.extend_last(buffer, start, address, len_bytes) } else { 0 };
        while done < len_bytes {
            let len = self.piece_bytes.min(len_bytes - done);
            let run = self.runs.len();
            self.pieces.push(Piece {
                buffers: buffer..buffer + 1,
                address: address.offset(done),
                len_bytes: len,
                runs: run..run + 1,
                first_granule: self.granules(),
            });
            self.runs.push(Run { start: start.offset(done), offset: 0, len_bytes: len as u32 });
            done += len;
        }
    }

    /// Adds as many bytes to the last piece as fit; how many.
    fn extend_last(&mut self, buffer: usize, start: Start, address: Address, len_bytes: usize) -> usize {
        let Some(last) = self.pieces.last_mut() else { return 0 };
        let offset = (address.0 - last.address.0) as usize;
        let len = len_bytes.min(self.piece_bytes.saturating_sub(offset));
        if len > 0 {
            last.buffers.end = buffer + 1;
            last.len_bytes = offset + len;
            last.runs.end += 1;
            self.runs.push(Run { start, offset: offset as u32, len_bytes: len as u32 });
        }
        len
    }

    /// Room for so many runs more.
    pub(in crate::copy) fn reserve(&mut self, runs: usize) {
        self.runs.reserve_exact(runs);
    }

    /// The number of a file whose bytes are added next.
    ///
    /// # Errors
    /// [`Error::File`] if the system has no handle left.
    pub(in crate::copy) fn add_file(&mut self, file: &File) -> Result<u32> {
        let handle = file.as_raw_fd();
        if let Some(known) = self.handles.iter().position(|&known| known == handle) {
            return Ok(known as u32);
        }
        self.files.push(file.try_clone().map_err(|source| Error::File { source })?);
        self.handles.push(handle);
        Ok(self.files.len() as u32 - 1)
    }

    /// How many granules all pieces have.
    pub(super) fn granules(&self) -> usize {
        self.pieces.last().map_or(0, |last| last.first_granule + last.len_bytes.div_ceil(self.granule_bytes))
    }
}
