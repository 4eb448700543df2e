//! What the crate promises. `every_device.rs` first: one suite, run on software devices of all schedules and on a GPU.
//!
//! `program.rs` runs random programs and knows what must come out; `failures.rs` lets calls fail under them.
//! Without a GPU the tests under `cuda` say so and do nothing, unless `REQUIRE_GPU=1`.

#![allow(clippy::single_range_in_vec_init, clippy::reversed_empty_ranges, reason = "ranges of buffers, bad ones too")]

mod captures;
mod deferred_drops;
mod device_memory;
mod errors;
mod every_device;
mod extremes;
mod failures;
mod files;
mod graphs;
mod host_calls;
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
