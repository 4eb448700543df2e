//! Panics as errors: of decoders, and of what users give to loaders.

use std::any::Any;
#[cfg(any(feature = "images", feature = "parquet"))]
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `work` gives; where it panics, what it said. For decoders that keep nothing between calls.
#[cfg(any(feature = "images", feature = "parquet"))]
pub(crate) fn unpanicked<R>(work: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(format!("its decoder gave up with \"{}\"", panic_message(&*panic))))
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}
