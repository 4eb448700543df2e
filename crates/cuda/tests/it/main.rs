//! What the crate promises. Start with `every_device.rs`, a suite that runs on software devices of all schedules and on
//! a GPU.
//!
//! `program.rs` defines random programs and their model. `random_programs.rs` runs them, and `failures.rs` runs them
//! while driver calls fail. Tests that need a GPU print that they are skipped without one; with `REQUIRE_GPU=1` they fail.

#![allow(clippy::single_range_in_vec_init, clippy::reversed_empty_ranges, reason = "ranges of buffers, bad ones too")]

mod captures;
mod completions;
mod deferred_drops;
mod device_memory;
mod errors;
mod every_device;
mod extremes;
mod failures;
mod files;
mod graphs;
mod host_calls;
mod host_calls_anywhere;
mod kernels;
mod launches;
mod libraries;
mod packed;
mod page_locked;
mod peers;
mod processes;
mod program;
mod random_graphs;
mod random_programs;
mod sanitize;
mod staged;
mod strangers;
mod tools;
