//! [`CountedReader`]: reads a file for a parser, and reserves memory for what the parser keeps.

use std::{
    io::{self, Read, Seek, SeekFrom},
    sync::{Arc, Mutex, MutexGuard},
};

use crate::{Error, HeapReservation, sync::lock_std};

/// For how many bytes of a file memory is reserved at a time.
const RESERVATION_STEP: u64 = 64 << 10;

/// A reader for a parser that keeps what it reads, such as the directory of a zip archive.
///
/// It reserves memory in the host's budget while the parser reads, and fails to read on if the budget has none left.
/// So no file can make a parser allocate more than the budget allows.
///
/// # Examples
/// ```
/// use std::io::{Cursor, Read};
/// use pagelock_memory::CountedReader;
///
/// let (mut reader, memory) = CountedReader::new(Cursor::new(vec![0; 1 << 20]), 2);
/// reader.read_to_end(&mut Vec::new())?; // 2 MiB are reserved from here on
/// memory.mark_read();
/// assert!(memory.take_refusal().is_none());
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct CountedReader<R> {
    reader: R,
    memory: ParsedMemory,
}

/// The memory reserved for a [`CountedReader`], until both the reader and this are dropped.
#[derive(Clone)]
pub struct ParsedMemory {
    state: Arc<Mutex<State>>, // guards that a step is reserved once
    bytes_per_byte: u64,      // reserved for each byte that is read
}

#[derive(Default)]
struct State {
    unreserved: u64, // bytes that were read, without a reservation yet
    reserved: Vec<HeapReservation>,
    refusal: Option<Error>,
    is_read: bool,
}

impl<R> CountedReader<R> {
    /// For a parser that keeps at most `bytes_per_byte` bytes for each byte of the file.
    pub fn new(reader: R, bytes_per_byte: u64) -> (Self, ParsedMemory) {
        let memory = ParsedMemory { state: Arc::default(), bytes_per_byte };
        (Self { reader, memory: memory.clone() }, memory)
    }
}

impl ParsedMemory {
    /// Call it when the parser has read all that it keeps: later reads reserve nothing.
    pub fn mark_read(&self) {
        self.lock().is_read = true;
    }

    /// Why the reader refused to read on, if the budget did not have the memory.
    pub fn take_refusal(&self) -> Option<Error> {
        self.lock().refusal.take()
    }

    fn reserve_for(&self, n_bytes: usize) -> io::Result<()> {
        let mut state = self.lock();
        state.unreserved += if state.is_read { 0 } else { n_bytes as u64 };
        while state.unreserved >= RESERVATION_STEP {
            match HeapReservation::new(RESERVATION_STEP.saturating_mul(self.bytes_per_byte)) {
                Ok(reserved) => state.reserved.push(reserved),
                Err(refusal) => return Err(io::Error::other(state.refusal.insert(refusal).to_string())),
            }
            state.unreserved -= RESERVATION_STEP;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock_std(&self.state)
    }
}

impl<R: Read> Read for CountedReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n_bytes = self.reader.read(out)?;
        self.memory.reserve_for(n_bytes)?;
        Ok(n_bytes)
    }
}

impl<R: Seek> Seek for CountedReader<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.reader.seek(to)
    }
}
