//! Copies between host and device, on a device and between devices. None of them can race.
//!
//! One policy decides how bytes move between the host and a device:
//!
//! | memory on the host | how | in |
//! |---|---|---|
//! | page-locked | the device copies directly, while the program goes on | `owned.rs`, `page_locked.rs` |
//! | ordinary, up to 64 KiB | the caller copies to a page-locked slot, the device from there | `staging/small.rs` |
//! | ordinary, or of a file | threads fill a ring of page-locked slots, which the device empties | `staging/` |
//!
//! What differs is who keeps the host memory alive and unchanged until the copy is done:
//!
//! - `owned.rs`: the copy owns it and gives it back through a [`Ticket`](crate::Ticket);
//! - `borrowed.rs`: the call borrows it and returns when it is done with it, or, for a
//!   [`HostBuffer`](pagelock_memory::HostBuffer) in page-locked memory, notes itself in the buffer, which waits before it
//!   is used (`page_locked.rs`);
//! - `scoped.rs`: a [`Stream::scope`](crate::Stream::scope) borrows it, and waits at its end.
//!
//! `packed.rs` puts many slices in one buffer of the device. Device memory needs neither owner nor scope: a view is borrowed while the copy is
//! queued, and after that the order of the streams (`stream/order.rs`) keeps everybody else away until the copy is done.
//! `rows.rs`, `on_device.rs` and `fill.rs` copy and fill on a device.

mod borrowed;
mod fill;
mod on_device;
mod owned;
mod packed;
mod page_locked;
mod rows;
mod scoped;
pub(crate) mod staging;

pub use self::{
    borrowed::{HostSource, HostTarget},
    owned::Source,
    packed::Packed,
    rows::{InRows, RowLayout},
    scoped::Scope,
    staging::StagingConfig,
};
use crate::error::{Error, Result};

fn same_length(source_len: usize, target_len: usize) -> Result<()> {
    if source_len == target_len { Ok(()) } else { Err(Error::Length { source_len, target_len }) }
}
