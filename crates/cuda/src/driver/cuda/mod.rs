//! CUDA itself: the one folder that names cudarc.
//!
//! `library.rs` finds the driver and says why there is none, `api.rs` is the table of its functions, `context.rs`
//! implements [`Driver`](super::Driver) with them.

mod api;
mod context;
mod library;

pub(crate) use self::{context::Context, library::device_count};
