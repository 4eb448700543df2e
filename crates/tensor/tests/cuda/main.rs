//! Tensors on devices.
//!
//! `transfers.rs`, `maps.rs` and `errors.rs` run on a device made of software; `compiling.rs` compiles what a GPU would run;
//! `table.rs`, `agreement.rs`, `networks.rs`, `products.rs`, `recurrent.rs`, `sorting.rs` and
//! `long_lines.rs` compare a GPU with the CPU, where there is one, and `captured.rs` steps that are
//! captured with steps that are not; `autocast.rs` has halves beside `f32`; `libraries.rs` and `attention.rs` have NVIDIA's libraries in place of this project's kernels.

#[path = "../common/mod.rs"]
mod common;

mod agreement;
mod attention;
mod autocast;
mod captured;
mod compiling;
mod errors;
mod libraries;
mod long_lines;
mod maps;
mod networks;
mod products;
mod recurrent;
mod sorting;
mod table;
mod transfers;

/// What `cargo xtask test-gpu` relies on: with `REQUIRE_GPU=1` a missing GPU is a failure.
#[test]
fn there_is_a_gpu() {
    common::gpu();
}
