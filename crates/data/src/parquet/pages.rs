//! [`Pages`]: a file as the crate `parquet` reads it, whose page headers are looked at first.
//!
//! The crate allocates what a page header claims, up to gigabytes, before it unpacks a page; so a header that claims more
//! than its page can hold is refused here. Headers are Thrift structs in the compact protocol, and start with
//! numbers: the kind of the page, its bytes unpacked and packed, perhaps a checksum; then a struct for the kind, which starts
//! with numbers too.
//!
//! What pages take is reserved in the host's budget before they are read, and kept until the page after the next: values that
//! were given may still be in the one before. A dictionary keeps its room until its column is read.
//!
//! Reads state their offset, so several threads may read one table.

use std::io::{BufReader, Seek, SeekFrom};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pagelock_memory::HeapReservation;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use crate::file_bytes::{FileBytes, Reader};
use crate::panics::lock;

/// The best ratio of Snappy: a copy of 64 bytes takes three.
const MOST_PACKED: i64 = 22;
/// The fewest bytes of a value of a dictionary.
const LEAST_VALUE: i64 = 4;
/// What of a header is looked at.
const START_BYTES: usize = 64;

/// See the head of the file.
#[derive(Clone)]
pub(super) struct Pages {
    pub(super) file: FileBytes,
    /// What pages take, where it is read page by page; else its footer is.
    pub(super) room: Option<Arc<Mutex<Room>>>,
}

/// What the pages of one column take of the host's budget.
#[derive(Default)]
pub(super) struct Room {
    dictionary: Option<HeapReservation>,
    /// Of the last page, and of the one before.
    pages: [Option<HeapReservation>; 2],
    /// Where the last page starts: its header may be read twice.
    last: Option<u64>,
    /// Why there was no room.
    pub(super) refusal: Option<pagelock_memory::Error>,
}

impl Room {
    /// Before a page is read.
    fn take(&mut self, start: u64, page: &Page) -> std::result::Result<(), String> {
        if self.last == Some(start) {
            return Ok(());
        }
        let taken = HeapReservation::new(page.len_bytes()).map_err(|refusal| {
            let text = refusal.to_string();
            self.refusal = Some(refusal);
            text
        })?;
        match page.kind {
            DICTIONARY => self.dictionary = Some(taken),
            _ => self.pages = [Some(taken), self.pages[0].take()],
        }
        self.last = Some(start);
        Ok(())
    }
}

impl Length for Pages {
    fn len(&self) -> u64 {
        self.file.len()
    }
}

impl ChunkReader for Pages {
    type T = BufReader<Reader>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        if let Some(room) = &self.room {
            let start_bytes = self.file.len().saturating_sub(start).min(START_BYTES as u64);
            let page = check(&self.get_bytes(start, start_bytes as usize)?).map_err(ParquetError::General)?;
            lock(room).take(start, &page).map_err(ParquetError::General)?;
        }
        let mut reader = self.file.clone().reader();
        reader.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(reader))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if self.file.part(start, length as u64).is_none() {
            return Err(ParquetError::EOF(format!("{length} bytes from byte {start} on are not within it")));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

const NUMBER: u8 = 5; // of 32 bits; also what 64 bits fit
const STRUCT: u8 = 12;
const DATA: i64 = 5; // the fields of kinds of pages
const DICTIONARY: i64 = 7;
const DATA_V2: i64 = 8;

/// What a page header says.
struct Page {
    kind: i64,
    unpacked: i64,
    packed: i64,
    n_values: i64,
}

impl Page {
    /// What the page takes: packed, unpacked, and the values of a dictionary, of which each is a handle where they are texts.
    fn len_bytes(&self) -> u64 {
        const HANDLE_BYTES: u64 = 48;
        let of_values = if self.kind == DICTIONARY { self.n_values as u64 * HANDLE_BYTES } else { 0 };
        self.unpacked as u64 + self.packed as u64 + of_values
    }
}

/// What a page header says; refused if it claims what its page cannot hold.
fn check(mut header: &[u8]) -> Result<Page, String> {
    let unknown = || "a page header does not start with its sizes".to_owned();
    let mut sizes = [0; 5];
    let mut field = 0;
    let kind = loop {
        match next_field(&mut header, &mut field).ok_or_else(unknown)? {
            NUMBER if (1..5).contains(&field) => sizes[field as usize] = number(&mut header).ok_or_else(unknown)?,
            STRUCT if field >= DATA => break field,
            _ => return Err(unknown()),
        }
    };
    let [_, _, unpacked, packed, _] = sizes;
    if unpacked < 0 || packed < 0 || unpacked / MOST_PACKED > packed + 8 {
        return Err(format!("a page claims to unpack from {packed} to {unpacked} bytes"));
    }
    let mut details = [0; 5];
    let mut field = 0;
    while let Some(NUMBER) = next_field(&mut header, &mut field).filter(|_| field < 5) {
        details[field as usize] = number(&mut header).ok_or_else(unknown)?;
    }
    let (n_values, encoding) = (details[1], if kind == DATA_V2 { details[4] } else { details[2] });
    match kind {
        DICTIONARY if !(0..=unpacked / LEAST_VALUE).contains(&n_values) => {
            Err(format!("a dictionary of {unpacked} bytes claims {n_values} values"))
        }
        // Their decoders allocate as many lengths as the packed data claim.
        DATA | DATA_V2 if [6, 7].contains(&encoding) => Err(
            "its texts are packed as DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY, which is not supported; write it \
                 with plain or dictionary encoding"
                .into(),
        ),
        _ => Ok(Page { kind, unpacked, packed, n_values }),
    }
}

/// The type of the next field, and its number, which only grows.
fn next_field(rest: &mut &[u8], field: &mut i64) -> Option<u8> {
    let (&first, after) = rest.split_first()?;
    *rest = after;
    let step = i64::from(first >> 4);
    *field += step;
    (step > 0).then_some(first & 15)
}

/// A number: seven bits in each byte, the lowest first, its sign in the lowest of all.
fn number(rest: &mut &[u8]) -> Option<i64> {
    let mut value = 0_u64;
    for shift in (0..35).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    None
}
