//! [`Plan`]: how the bytes of one call are cut into pieces, each of which passes through one staging buffer (a slot).
//!
//! ```text
//!   host memory    aaaaaaaaaaaaaa     bb   cccc     dd
//!   host runs      aaaaaa  aaaaaaaa   bb   cccc     dd     bytes of a piece that are contiguous on the host
//!   pieces         [aaaaaa][aaaaaaaa  bb.cccc       dd]    the bytes that share one slot
//!   device runs    aaaaaa  aaaaaaaa   bb.cccc       dd     bytes of a piece that are contiguous on the device
//! ```
//! Threads copy host runs, the device copies device runs. Here `c` follows `b` on the device after an unused gap, so
//! both move in one copy, as many small slices do. Short slices far apart on the device may share a slot too.

use std::{
    fs::File,
    ops::Range,
    os::fd::{AsRawFd, RawFd},
};

use crate::{
    copy::packed,
    driver::Address,
    error::{Error, Result},
};

pub(in crate::copy) struct Plan {
    pub(super) pieces: Vec<Piece>,
    pub(super) host_runs: Vec<Run<Start>>,
    device_runs: Vec<Run<Address>>,
    pub(super) files: Vec<File>,
    handles: Vec<RawFd>, // the caller's handles of `files`
    pub(super) granule_bytes: usize,
    piece_bytes: usize,
}

pub(super) struct Piece {
    pub(super) buffers: Range<usize>, // the device buffers of its bytes: indices into the list of accesses
    pub(super) len_bytes: usize,
    pub(super) host_runs: Range<usize>,
    device_runs: Range<usize>,
    pub(super) first_granule: usize,
}

pub(super) struct Run<S> {
    pub(super) start: S,
    offset: u32, // in the piece
    len_bytes: u32,
}

/// The start of bytes on the host.
#[derive(Clone, Copy)]
pub(in crate::copy) enum Start {
    /// An address in memory that the caller has borrowed for longer than the call.
    Memory(*mut u8),
    /// The index of a file of the plan, and an offset in that file.
    File(u32, u64),
}

/// The most granules of a piece. Each has one bit in a word.
pub(super) const GRANULES: usize = 64;

impl Start {
    pub(super) fn offset(self, bytes: usize) -> Self {
        match self {
            Start::Memory(start) => Start::Memory(start.wrapping_add(bytes)),
            Start::File(file, start) => Start::File(file, start.saturating_add(bytes as u64)), // beyond any file
        }
    }
}

impl<S> Run<S> {
    fn new(start: S, offset: usize, len_bytes: usize) -> Self {
        Self { start, offset: offset as u32, len_bytes: len_bytes as u32 }
    }

    pub(super) fn range(&self) -> Range<usize> {
        let start = self.offset as usize;
        start..start + self.len_bytes as usize
    }

    pub(super) fn within(&self, range: &Range<usize>) -> Range<usize> {
        self.range().start.max(range.start)..self.range().end.min(range.end)
    }
}

impl Piece {
    /// Adds one host run, of this buffer, after which the piece ends at `end`.
    fn extend(&mut self, buffer: usize, end: usize) {
        (self.buffers.end, self.len_bytes) = (buffer + 1, end);
        self.host_runs.end += 1;
    }
}

impl Plan {
    /// An empty plan with pieces of at most `piece_bytes`, copied in granules of at least `min_granule_bytes`.
    pub(super) fn new(piece_bytes: usize, min_granule_bytes: usize) -> Self {
        debug_assert!(u32::try_from(piece_bytes).is_ok());
        let granule_bytes = piece_bytes.div_ceil(GRANULES).max(min_granule_bytes);
        let (pieces, host_runs, device_runs) = (Vec::new(), Vec::new(), Vec::new());
        Self { pieces, host_runs, device_runs, files: Vec::new(), handles: Vec::new(), granule_bytes, piece_bytes }
    }

    /// Adds bytes of buffer number `buffer`. With `joins`, they follow the previously added bytes on the device, and
    /// the gap between them is unused.
    #[inline] // for loops over many short slices
    pub(in crate::copy) fn add(
        &mut self,
        buffer: usize,
        start: Start,
        address: Address,
        len_bytes: usize,
        joins: bool,
    ) {
        let added = match joins {
            true => self.join_last_run(buffer, start, address, len_bytes),
            false => self.share_last_piece(buffer, start, address, len_bytes),
        };
        if added < len_bytes {
            self.add_pieces(buffer, start.offset(added), address.offset(added), len_bytes - added);
        }
    }

    fn add_pieces(&mut self, buffer: usize, start: Start, address: Address, len_bytes: usize) {
        for offset in (0..len_bytes).step_by(self.piece_bytes) {
            let len = self.piece_bytes.min(len_bytes - offset);
            let (host_run, device_run) = (self.host_runs.len(), self.device_runs.len());
            self.pieces.push(Piece {
                buffers: buffer..buffer + 1,
                len_bytes: len,
                host_runs: host_run..host_run + 1,
                device_runs: device_run..device_run + 1,
                first_granule: self.granules(),
            });
            self.host_runs.push(Run::new(start.offset(offset), 0, len));
            self.device_runs.push(Run::new(address.offset(offset), 0, len));
        }
    }

    /// Appends as many bytes to the last device run as fit in the last piece. Returns how many were added.
    #[inline]
    fn join_last_run(&mut self, buffer: usize, start: Start, address: Address, len_bytes: usize) -> usize {
        let (Some(piece), Some(run)) = (self.pieces.last_mut(), self.device_runs.last_mut()) else { return 0 };
        let offset = run.offset as usize + (address.0 - run.start.0) as usize;
        let len = len_bytes.min(self.piece_bytes.saturating_sub(offset));
        if len > 0 {
            run.len_bytes = (offset + len) as u32 - run.offset;
            self.host_runs.push(Run::new(start, offset, len));
            piece.extend(buffer, offset + len);
        }
        len
    }

    /// Adds the bytes to the last piece as a device run of their own, if all fit. Returns how many were added.
    fn share_last_piece(&mut self, buffer: usize, start: Start, address: Address, len_bytes: usize) -> usize {
        let Some(piece) = self.pieces.last_mut() else { return 0 };
        let offset = piece.len_bytes.next_multiple_of(packed::ALIGN);
        if len_bytes == 0 || offset + len_bytes > self.piece_bytes {
            return 0;
        }
        self.device_runs.push(Run::new(address, offset, len_bytes));
        self.host_runs.push(Run::new(start, offset, len_bytes));
        piece.device_runs.end += 1;
        piece.extend(buffer, offset + len_bytes);
        len_bytes
    }

    /// The device addresses of the bytes in this range of a piece, each with the part of the piece that goes there.
    pub(super) fn on_device(
        &self,
        piece: &Piece,
        range: Range<usize>,
    ) -> impl Iterator<Item = (Address, Range<usize>)> {
        let runs = self.device_runs[piece.device_runs.clone()].iter();
        let part = move |run: &Run<Address>| {
            let part = run.within(&range);
            (!part.is_empty()).then(|| (run.start.offset(part.start - run.range().start), part))
        };
        runs.filter_map(part)
    }

    pub(in crate::copy) fn reserve(&mut self, runs: usize) {
        self.host_runs.reserve_exact(runs);
    }

    /// Adds a file, unless the plan has it already, and returns its index.
    ///
    /// # Errors
    /// [`Error::File`] if the file's handle cannot be duplicated.
    pub(in crate::copy) fn add_file(&mut self, file: &File) -> Result<u32> {
        let handle = file.as_raw_fd();
        if let Some(known) = self.handles.iter().position(|&known| known == handle) {
            return Ok(known as u32);
        }
        self.files.push(file.try_clone().map_err(|source| Error::File { source })?);
        self.handles.push(handle);
        Ok(self.files.len() as u32 - 1)
    }

    pub(super) fn granules(&self) -> usize {
        self.pieces.last().map_or(0, |last| last.first_granule + last.len_bytes.div_ceil(self.granule_bytes))
    }
}
