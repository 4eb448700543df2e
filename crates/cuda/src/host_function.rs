//! Functions that a stream calls on the host.
//!
//! The driver calls them on a thread of its own, where no call of the driver is allowed: everything in this crate that
//! would make one asks [`refuse_inside`] first.

use std::cell::Cell;

use crate::error::{Error, Result};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is calling a host function.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// An error inside a host function.
pub(crate) fn refuse_inside() -> Result<()> {
    if is_inside() { Err(Error::InsideHostFunction) } else { Ok(()) }
}
