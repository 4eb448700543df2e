//! Copies between host and device, on a device and between devices. None of them can race.
//!
//! The kind of host memory decides how bytes move between the host and a device:
//!
//! | memory on the host | how | in |
//! |---|---|---|
//! | page-locked | the device copies directly, asynchronously to the host | `owned.rs`, `page_locked.rs` |
//! | ordinary, up to 64 KiB | the caller copies to a page-locked slot, the device from there | `staging/small.rs` |
//! | ordinary, or a file | threads fill a ring of page-locked slots, which the device empties | `staging/` |
//!
//! The functions differ in what keeps the host memory alive and unchanged until the copy is done:
//!
//! - `owned.rs`: the copy owns the memory and returns it through a [`Ticket`](crate::Ticket);
//! - `borrowed.rs`: the call borrows the memory and returns when the copy no longer needs it. For a
//!   [`HostBuffer`](pagelock_memory::HostBuffer) in page-locked memory it returns at once, and the buffer waits for
//!   the copy before its next conflicting access (`page_locked.rs`);
//! - `scoped.rs`: a [`Stream::scope`](crate::Stream::scope) borrows the memory and waits at its end.
//!
//! Device memory needs neither an owner nor a scope: a view is borrowed while the copy is queued, and after that the
//! order of the streams (`stream/order.rs`) prevents conflicting uses until the copy is done. `packed.rs` copies many
//! slices to one buffer of the device; `rows.rs`, `on_device.rs` and `fill.rs` copy and fill on a device.

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

fn check_same_length(source_len: usize, target_len: usize) -> Result<()> {
    if source_len == target_len { Ok(()) } else { Err(Error::lengths(source_len, target_len)) }
}
