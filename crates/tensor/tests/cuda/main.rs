//! Tensors on devices.
//!
//! `transfers.rs`, `maps.rs` and `errors.rs` run on a software device; `compiling.rs` compiles what a GPU would run.
//! `table.rs`, `agreement.rs`, `networks.rs`, `products.rs`, `recurrent.rs`, `sorting.rs` and `long_lines.rs` compare
//! a GPU, if there is one, with the CPU. `captured.rs` compares captured steps with eager ones, `autocast.rs` tests
//! halves with `f32`, and `libraries.rs` and `attention.rs` use NVIDIA's libraries instead of this project's kernels.
//! `masks.rs` changes masks while a GPU reads them.

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
mod masks;
mod networks;
mod products;
mod recurrent;
mod sorting;
mod table;
mod transfers;

/// `cargo xtask test-gpu` relies on this: with `REQUIRE_GPU=1`, a missing GPU is a failure.
#[test]
fn there_is_a_gpu() {
    common::gpu();
}
