//! The CUDA driver. Only this folder uses cudarc.
//!
//! `library.rs` finds the driver or says why there is none, `api.rs` is the table of its functions, and `context.rs`
//! implements [`Driver`](super::Driver) with them. `registered.rs` records the page-locked ranges.

mod api;
mod context;
mod library;
mod registered;

pub(crate) use self::{context::PrimaryContext, library::device_count};
