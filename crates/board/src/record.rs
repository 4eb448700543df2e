//! An event file is a sequence of records. Each record holds one event, its length and two checksums.
//!
//! ```text
//! length: u64 │ masked CRC of length: u32 │ event: length bytes │ masked CRC of event: u32        all little-endian
//! ```
//!
//! A file that was cut off is read up to its last whole record.

use prost::Message;

use crate::error::{Result, ensure, reserve};
use crate::proto::Event;

/// Bytes of a record before and after its event.
const HEADER_BYTES: usize = 12;
const FOOTER_BYTES: usize = 4;

/// The largest message that readers of protocol buffers accept.
const MAX_EVENT: usize = i32::MAX as usize;

/// The event as a record.
pub(crate) fn record(event: &Event) -> Result<Vec<u8>> {
    let len = event.encoded_len();
    ensure!(len <= MAX_EVENT, "an event of {len} bytes is too big: protocol buffers allow {MAX_EVENT} bytes");
    let mut record = Vec::new();
    reserve("an event", &mut record, HEADER_BYTES + len + FOOTER_BYTES)?;
    record.extend((len as u64).to_le_bytes());
    record.extend(masked_crc(&record).to_le_bytes());
    event.encode_raw(&mut record);
    let crc = masked_crc(&record[HEADER_BYTES..]);
    record.extend(crc.to_le_bytes());
    Ok(record)
}

/// CRC-32C, masked because the CRC of data that contains its own CRC is a weak check.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The events of whole records at the beginning of a file, as TensorBoard reads them.
#[cfg(test)]
pub(crate) fn events(mut file: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some((event, rest)) = first_event(file) {
        events.push(Event::decode(event).expect("the checksum matches"));
        file = rest;
    }
    events
}

#[cfg(test)]
fn first_event(file: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = checked(file, 8)?;
    checked(rest, usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?)
}

/// The first `len` bytes, if the CRC behind them matches, and the rest. None if the file is cut off or damaged.
#[cfg(test)]
fn checked(bytes: &[u8], len: usize) -> Option<(&[u8], &[u8])> {
    let (checked, rest) = bytes.split_at_checked(len)?;
    let (crc, rest) = rest.split_at_checked(4)?;
    (crc == masked_crc(checked).to_le_bytes()).then_some((checked, rest))
}
