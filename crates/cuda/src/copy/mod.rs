//! Copies between host and device, on a device and between devices. None of them can race.
//!
//! - `owned.rs`: a copy owns its host memory until it is done, and gives it back through a [`Ticket`](crate::Ticket);
//! - `scoped.rs`: a copy borrows ordinary slices inside [`Stream::scope`], which waits before they are anybody else's;
//! - `buffers.rs`: a copy is noted in a [`HostBuffer`](pagelock_memory::HostBuffer), which waits before it is used;
//! - `rows.rs`: rows at a distance from each other; `on_device.rs`: on a device and between two; `fill.rs`: one value.
//! - `staged/`: ordinary memory of any size, through a page-locked ring and several threads;
//! - `choice/`: whichever of these is fastest.
//!
//! Device memory needs neither owner nor scope: a view is borrowed while the copy is queued, and after that the order
//! of the streams (`stream/order.rs`) keeps everybody else away until the copy is done.

mod buffers;
pub(crate) mod choice;
mod fill;
mod on_device;
mod owned;
mod rows;
mod scoped;
pub(crate) mod staged;

pub use self::{
    choice::{Choice, CopyModel, Direction, HostBytes, How, Load, Reason, Route},
    owned::Source,
    rows::Rows,
    scoped::Scope,
    staged::{Packed, PackedParts, Packing, StagingConfig},
};
use crate::{
    error::{Error, Result},
    stream::StreamCore,
};

/// Asks long downloads of other streams to let this one's go first.
fn note_download(stream: &StreamCore) {
    stream.base().downloads.note(stream.id());
}

fn same_length(source_len: usize, target_len: usize) -> Result<()> {
    if source_len == target_len { Ok(()) } else { Err(Error::Length { source_len, target_len }) }
}
