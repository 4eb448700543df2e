//! [`Pages`]: gives the crate `parquet` the pages of a column, which it decodes.
//!
//! A page's buffer counts in the host's budget until the last value that was read from it is dropped, since texts are
//! parts of their pages. A dictionary counts until its column is read.

use std::io::BufReader;

use bytes::Bytes;
use pagelock_memory::{HeapReservation, HostBuffer, default_host};
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use snap::raw::Decoder;

use super::thrift::{FALSE, I32, STRUCT, Thrift};
use crate::Error;
use crate::file_bytes::FileBytes;

/// The best ratio of Snappy: a copy of 64 bytes takes three bytes.
const MAX_SNAPPY_RATIO: u64 = 22;
/// The fewest bytes of a value of a dictionary.
const MIN_VALUE_BYTES: u64 = 4;
/// The memory of a value of a dictionary: texts have the largest handles.
const HANDLE_BYTES: u64 = 48;

/// See the head of the file.
pub(super) struct Pages {
    chunk: FileBytes,
    at: u64,
    is_snappy: bool,
    dictionary: Option<HeapReservation>,
}

/// The header of a page. Field numbers are those of `parquet.thrift`.
#[derive(Default)]
struct Header {
    kind: i64,
    unpacked: i64,
    packed: i64,
    details: [i64; 7],
    is_stored: bool, // not compressed
}

/// Kinds of pages.
const DATA: i64 = 0;
const INDEX: i64 = 1;
const DICTIONARY: i64 = 2;
const DATA_V2: i64 = 3;

impl Pages {
    pub(super) fn new(chunk: FileBytes, is_snappy: bool) -> Self {
        Self { chunk, at: 0, is_snappy, dictionary: None }
    }

    /// Reads the header of the next page, and passes it.
    fn header(&mut self) -> Result<Header> {
        let left = self.chunk.len() - self.at;
        let Some(rest) = self.chunk.part(self.at, left) else { unreachable!("{left} bytes are left") };
        let mut thrift = Thrift::new(BufReader::new(rest.reader()), left);
        let mut header = Header { kind: -1, unpacked: -1, packed: -1, details: [-1; 7], is_stored: false };
        thrift.fields(|thrift, field, kind| match (field, kind) {
            (1, I32) => thrift.number().map(|n| header.kind = n),
            (2, I32) => thrift.number().map(|n| header.unpacked = n),
            (3, I32) => thrift.number().map(|n| header.packed = n),
            (5 | 7 | 8, STRUCT) if field == header.details_at() => {
                thrift.fields(|thrift, field, kind| match (field, kind) {
                    (1..=6, I32) => thrift.number().map(|n| header.details[field as usize] = n),
                    (7, FALSE) => {
                        header.is_stored = true;
                        Ok(())
                    }
                    (_, kind) => thrift.skip(kind),
                })
            }
            (_, kind) => thrift.skip(kind),
        })?;
        self.at = self.chunk.len() - thrift.left();
        Ok(header)
    }

    /// Reads the bytes of a page, and unpacks them.
    fn bytes(&self, header: &Header, at: u64) -> Result<Bytes> {
        let [unpacked, packed] = [number(header.unpacked)?, number(header.packed)?];
        let read = |out: &mut [u8]| Ok(self.chunk.read_exact_at(out, at)?);
        if !self.is_snappy || header.is_stored {
            return filled(packed, read);
        }
        let n_levels = if header.kind == DATA_V2 { number(header.details[5])? + number(header.details[6])? } else { 0 };
        if unpacked / MAX_SNAPPY_RATIO > packed + 8 || n_levels > packed.min(unpacked) {
            return Err(ParquetError::General(format!("a page claims to unpack from {packed} to {unpacked} bytes")));
        }
        let packed = filled(packed, read)?;
        filled(unpacked, |out| {
            let (levels, values) = out.split_at_mut(n_levels as usize);
            levels.copy_from_slice(&packed[..levels.len()]);
            let n_bytes = match values.len() {
                0 => 0, // a page without values has no bytes to unpack
                _ => Decoder::new()
                    .decompress(&packed[levels.len()..], values)
                    .map_err(|error| ParquetError::General(error.to_string()))?,
            };
            if n_bytes != values.len() {
                let (claimed, n_bytes) = (unpacked, n_levels + n_bytes as u64);
                return Err(ParquetError::General(format!("a page has {n_bytes} bytes, but claims {claimed}")));
            }
            Ok(())
        })
    }

    fn page(&mut self, header: &Header, at: u64) -> Result<Page> {
        let buf = self.bytes(header, at)?;
        let detail = |at: usize| number(header.details[at]).map(|n| n as u32);
        let num_values = detail(1)?;
        if header.kind == DICTIONARY {
            if u64::from(num_values) > buf.len() as u64 / MIN_VALUE_BYTES {
                let problem = format!("a dictionary of {} bytes claims {num_values} values", buf.len());
                return Err(ParquetError::General(problem));
            }
            let handles = HeapReservation::new(u64::from(num_values) * HANDLE_BYTES).map_err(Error::from)?;
            self.dictionary = Some(handles);
            let encoding = encoding(header.details[2])?;
            return Ok(Page::DictionaryPage { buf, num_values, encoding, is_sorted: false });
        }
        let is_v2 = header.kind == DATA_V2;
        let values = encoding(header.details[if is_v2 { 4 } else { 2 }])?;
        if matches!(values, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY) && self.dictionary.is_none() {
            return Err(ParquetError::General("a page lacks its dictionary".into()));
        }
        if !is_v2 {
            return Ok(Page::DataPage {
                buf,
                num_values,
                encoding: values,
                def_level_encoding: encoding(header.details[3])?,
                rep_level_encoding: encoding(header.details[4])?,
                statistics: None,
            });
        }
        let [def_levels_byte_len, rep_levels_byte_len] = [detail(5)?, detail(6)?];
        if u64::from(def_levels_byte_len) + u64::from(rep_levels_byte_len) > buf.len() as u64 {
            return Err(ParquetError::General("the levels of a page are longer than the page".into()));
        }
        Ok(Page::DataPageV2 {
            buf,
            num_values,
            encoding: values,
            num_nulls: detail(2)?,
            num_rows: detail(3)?,
            def_levels_byte_len,
            rep_levels_byte_len,
            is_compressed: false, // any more
            statistics: None,
        })
    }
}

impl Header {
    /// The field of the struct for pages of this kind.
    fn details_at(&self) -> i64 {
        match self.kind {
            DATA => 5,
            DICTIONARY => 7,
            DATA_V2 => 8,
            _ => -1,
        }
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        while self.at < self.chunk.len() {
            let header = self.header()?;
            let (at, packed) = (self.at, number(header.packed)?);
            if self.chunk.part(at, packed).is_none() {
                return Err(ParquetError::General(format!("a page of {packed} bytes reaches beyond its column")));
            }
            self.at += packed;
            if header.kind != INDEX {
                return self.page(&header, at).map(Some);
            }
        }
        Ok(None)
    }

    // These two are for columns with lists, and for rows that are passed over.
    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        Err(ParquetError::NYI("pages are read in order".into()))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.peek_next_page().map(drop)
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// Memory from the host's budget.
struct Buffer(HostBuffer);

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

fn filled(len: u64, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Bytes> {
    let mut buffer = HostBuffer::allocate(default_host(), len as usize).map_err(Error::from)?;
    fill(buffer.bytes_mut().map_err(Error::from)?)?;
    Ok(Bytes::from_owner(Buffer(buffer)))
}

/// A number of a header, which cannot be negative.
fn number(n: i64) -> Result<u64> {
    let number = i32::try_from(n).ok().and_then(|n| u64::try_from(n).ok());
    number.ok_or_else(|| ParquetError::General("a page header lacks a number".into()))
}

fn encoding(n: i64) -> Result<Encoding> {
    Ok(match n {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        #[expect(deprecated)] // only for values; levels may have it
        4 => Encoding::BIT_PACKED,
        5 => Encoding::DELTA_BINARY_PACKED,
        // The decoders of these encodings allocate as many lengths as the packed data claim.
        6 | 7 => {
            let text = "its texts are encoded as DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY, which is not supported; \
                        write it with plain or dictionary encoding";
            return Err(ParquetError::General(text.into()));
        }
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        10 => Encoding::ALP,
        _ => return Err(ParquetError::General(format!("a page has the unknown encoding {n}"))),
    })
}
