//! CUDA itself: the one folder that names cudarc.
//!
//! `registered.rs` knows page-locked ranges; `library.rs` finds the driver and says why there is none, `api.rs` is the table of its functions, `context.rs`
//! implements [`Driver`](super::Driver) with them.

mod api;
mod context;
mod library;
mod registered;

pub(crate) use self::{context::PrimaryContext, library::device_count};
