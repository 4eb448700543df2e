//! [`Thrift`]: reads the compact protocol of Apache Thrift, in which footers and page headers are written.
//!
//! Invariants: no length is larger than the number of bytes that are left, each element of a list takes at least one
//! byte, and nothing recurses deeper than [`MAX_DEPTH`]. So the work is proportional to the bytes.

use std::io::{self, Read};

use parquet::errors::{ParquetError, Result};

// Types of values.
pub(super) const TRUE: u8 = 1;
pub(super) const FALSE: u8 = 2;
pub(super) const I8: u8 = 3;
const I16: u8 = 4;
pub(super) const I32: u8 = 5;
pub(super) const I64: u8 = 6;
const F64: u8 = 7;
pub(super) const BYTES: u8 = 8;
pub(super) const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
pub(super) const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// How deep values may be nested.
pub(super) const MAX_DEPTH: usize = 64;

/// Reads values one after another.
pub(super) struct Thrift<R> {
    input: R,
    left: u64,
}

impl<R: Read> Thrift<R> {
    /// Reads at most `len` bytes of `input`.
    pub(super) fn new(input: R, len: u64) -> Self {
        Self { input, left: len }
    }

    /// How many of the bytes were not read yet.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Calls `read` with the number and the type of each field of a struct. It has to read the value, or to skip it.
    pub(super) fn fields(&mut self, mut read: impl FnMut(&mut Self, i64, u8) -> Result<()>) -> Result<()> {
        let mut field = 0;
        loop {
            let first = self.byte()?;
            match (first >> 4, first & 15) {
                (_, 0) => return Ok(()),
                (0, _) => field = i64::from(self.number()? as i16),
                (step, _) => field += i64::from(step),
            }
            read(self, field, first & 15)?;
        }
    }

    /// Calls `read` for each element of a list of structs.
    pub(super) fn structs(&mut self, mut read: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        match self.list()? {
            (0, _) => Ok(()),
            (n, STRUCT) => (0..n).try_for_each(|_| read(self)),
            _ => Err(ParquetError::General("a list has elements of another type".into())),
        }
    }

    /// A number of 16, 32 or 64 bits.
    pub(super) fn number(&mut self) -> Result<i64> {
        let value = self.unsigned()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The length of bytes, which [`fill`](Self::fill) reads.
    pub(super) fn len(&mut self) -> Result<u64> {
        let len = self.unsigned()?;
        if len > self.left { Err(cut_off()) } else { Ok(len) }
    }

    pub(super) fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        self.take(out.len() as u64)?;
        Ok(self.input.read_exact(out)?)
    }

    /// Skips a value.
    pub(super) fn skip(&mut self, kind: u8) -> Result<()> {
        self.skip_within(kind, MAX_DEPTH)
    }

    fn skip_within(&mut self, kind: u8, depth: usize) -> Result<()> {
        let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
        match kind {
            TRUE | FALSE => Ok(()), // the type is the value
            I8 => self.pass(1),
            I16 | I32 | I64 => self.unsigned().map(drop),
            F64 => self.pass(8),
            UUID => self.pass(16),
            BYTES => self.len().and_then(|len| self.pass(len)),
            STRUCT => self.fields(|thrift, _, kind| thrift.skip_within(kind, depth)),
            LIST | SET => {
                let (n, kind) = self.list()?;
                (0..n).try_for_each(|_| self.skip_element(kind, depth))
            }
            MAP => {
                let n = self.len()?;
                let kinds = if n > 0 { self.byte()? } else { 0 };
                (0..n).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 15, depth)
                })
            }
            other => Err(ParquetError::General(format!("a value has the unknown type {other}"))),
        }
    }

    fn skip_element(&mut self, kind: u8, depth: usize) -> Result<()> {
        if [TRUE, FALSE].contains(&kind) { self.pass(1) } else { self.skip_within(kind, depth) }
    }

    /// The number and the type of a list's elements.
    fn list(&mut self) -> Result<(u64, u8)> {
        let first = self.byte()?;
        let n = if first >> 4 == 15 { self.len()? } else { u64::from(first >> 4) };
        Ok((n, first & 15))
    }

    /// A varint: seven bits in each byte, the lowest first.
    fn unsigned(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ParquetError::General("a number has more than 64 bits".into()))
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.fill(&mut byte)?;
        Ok(byte[0])
    }

    fn pass(&mut self, len: u64) -> Result<()> {
        self.take(len)?;
        io::copy(&mut self.input.by_ref().take(len), &mut io::sink())?;
        Ok(())
    }

    fn take(&mut self, len: u64) -> Result<()> {
        self.left = self.left.checked_sub(len).ok_or_else(cut_off)?;
        Ok(())
    }
}

fn cut_off() -> ParquetError {
    ParquetError::General("a value is cut off".into())
}

pub(super) fn too_deep() -> ParquetError {
    ParquetError::General(format!("values are nested deeper than {MAX_DEPTH} levels"))
}
