//! [`Pages`]: a file for the crate `parquet`, which checks page headers before the crate reads the pages.
//!
//! The crate allocates what a page header claims, up to gigabytes, before it unpacks a page. So a header that claims
//! more than its page can hold is refused here. Headers are Thrift structs in the compact protocol. They start with
//! numbers: the kind of the page, its unpacked and packed length, perhaps a checksum. A struct for the kind follows,
//! which starts with numbers too.
//!
//! The memory of a page is reserved in the host's budget before the page is read. Texts are parts of their pages, so
//! the unpacked bytes stay reserved until the values that were read from the page are released
//! ([`PageReservations::release`]). Packed bytes stay reserved until the page after the next is read, and a dictionary
//! until its column is read.
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

/// The best ratio of Snappy: a copy of 64 bytes takes three bytes.
const MAX_SNAPPY_RATIO: i64 = 22;
/// The fewest bytes of a value of a dictionary.
const MIN_VALUE_BYTES: i64 = 4;
/// How many bytes of a header are checked.
const START_BYTES: usize = 64;

/// See the head of the file.
#[derive(Clone)]
pub(super) struct Pages {
    pub(super) file: FileBytes,
    /// The reservations for pages, while pages are read; `None` while the footer is read.
    pub(super) reservations: Option<Arc<Mutex<PageReservations>>>,
}

/// What the pages of one column reserve in the host's budget.
#[derive(Default)]
pub(super) struct PageReservations {
    dictionary: Option<[HeapReservation; 2]>,
    /// The packed bytes of the last page, and of the one before.
    packed: [Option<HeapReservation>; 2],
    /// The unpacked bytes of the pages that are in use, the oldest first.
    unpacked: Vec<HeapReservation>,
    /// The offset of the last page, whose header may be read twice.
    last: Option<u64>,
    /// Why the budget refused.
    pub(super) refusal: Option<pagelock_memory::Error>,
}

impl PageReservations {
    /// Reserves memory for a page before it is read.
    fn reserve(&mut self, start: u64, page: &Page) -> std::result::Result<(), String> {
        if self.last == Some(start) {
            return Ok(());
        }
        let mut reserve = |len_bytes| {
            HeapReservation::new(len_bytes).map_err(|refusal| {
                let text = refusal.to_string();
                self.refusal = Some(refusal);
                text
            })
        };
        let (unpacked, packed) = (reserve(page.unpacked_bytes())?, reserve(page.packed as u64)?);
        match page.kind {
            DICTIONARY => self.dictionary = Some([unpacked, packed]),
            _ => {
                self.packed = [Some(packed), self.packed[0].take()];
                self.unpacked.push(unpacked);
            }
        }
        self.last = Some(start);
        Ok(())
    }

    /// Ends the reservations of all pages but the last two; the last may only have been announced. To be called when no
    /// values of earlier reads are left.
    pub(super) fn release(&mut self) {
        let n_done = self.unpacked.len().saturating_sub(2);
        self.unpacked.drain(..n_done);
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
        if let Some(reservations) = &self.reservations {
            let start_bytes = self.file.len().saturating_sub(start).min(START_BYTES as u64);
            let page = check(&self.get_bytes(start, start_bytes as usize)?).map_err(ParquetError::General)?;
            lock(reservations).reserve(start, &page).map_err(ParquetError::General)?;
        }
        let mut reader = self.file.clone().reader();
        reader.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(reader))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if self.file.part(start, length as u64).is_none() {
            return Err(ParquetError::EOF(format!("{length} bytes from byte {start} on reach beyond its end")));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

const NUMBER: u8 = 5; // the compact protocol's I32
const STRUCT: u8 = 12;
const DATA: i64 = 5; // field numbers of the structs for kinds of pages
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
    /// The memory that a page takes besides its packed bytes: its unpacked bytes, and a handle for each value of a
    /// dictionary, since the values may be texts.
    fn unpacked_bytes(&self) -> u64 {
        const HANDLE_BYTES: u64 = 48;
        let of_values = if self.kind == DICTIONARY { self.n_values as u64 * HANDLE_BYTES } else { 0 };
        self.unpacked as u64 + of_values
    }
}

/// Parses a page header; an error if it claims more than its page can hold.
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
    if unpacked < 0 || packed < 0 || unpacked / MAX_SNAPPY_RATIO > packed + 8 {
        return Err(format!("a page claims to unpack from {packed} to {unpacked} bytes"));
    }
    let mut details = [0; 5];
    let mut field = 0;
    while let Some(NUMBER) = next_field(&mut header, &mut field).filter(|_| field < 5) {
        details[field as usize] = number(&mut header).ok_or_else(unknown)?;
    }
    let (n_values, encoding) = (details[1], if kind == DATA_V2 { details[4] } else { details[2] });
    match kind {
        DICTIONARY if !(0..=unpacked / MIN_VALUE_BYTES).contains(&n_values) => {
            Err(format!("a dictionary of {unpacked} bytes claims {n_values} values"))
        }
        // The decoders of these encodings allocate as many lengths as the packed data claim.
        DATA | DATA_V2 if [6, 7].contains(&encoding) => Err(
            "its texts are encoded as DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY, which is not supported; write it \
                 with plain or dictionary encoding"
                .into(),
        ),
        _ => Ok(Page { kind, unpacked, packed, n_values }),
    }
}

/// Reads the type of the next field and advances `field` to its number.
fn next_field(rest: &mut &[u8], field: &mut i64) -> Option<u8> {
    let (&first, after) = rest.split_first()?;
    *rest = after;
    let step = i64::from(first >> 4);
    *field += step;
    (step > 0).then_some(first & 15)
}

/// A zigzag varint: seven bits in each byte, the lowest first, with the sign in the lowest bit.
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
