//! The CUDA side of operations: kernels compiled from source, launched over strided views, on the stream of a device.
//!
//! An operation's `cuda` decides *what* is computed: a formula in CUDA C++ beside the one in Rust, or kernels of its
//! own in a `.cu` file. This module decides *how*:
//! - `device.rs`: [`CudaDevice`], a device with the stream on which operations run and the kernels compiled so far;
//! - `view.rs`: [`CudaView`] and [`CudaOut`], what a kernel reads and writes;
//! - `code.rs`: compiles sources to kernels at their first use; `header.cu`: what every source may use;
//! - `walk.rs`, `count.rs`: shapes, strides and sizes as kernels take them;
//! - `libraries.rs`: NVIDIA's libraries, which compute large products and convolutions;
//! - `fault.rs`, `fault.cu`: indices out of range, which only the device sees;
//! - `sums.cu`: sums over the threads of a warp or a block; `packs.cu`: reads and writes several neighbors at once;
//! - `rows.rs`, `rows.cu`: kernels that work on rows, which they keep in registers;
//! - `elementwise.rs`, `elementwise.cu`: elementwise formulas; `reduce.rs`, `reduce.cu`: reductions over any axes.
//!
//! Element types are values here ([`DType`](crate::DType)), so that no Rust code is compiled once per type.
//!
//! Promises, as on the CPU: no allocation in the steady state, no float atomics, and the same bits in every run.

mod arguments;
mod code;
mod count;
mod device;
mod elementwise;
mod fault;
mod libraries;
mod reduce;
mod rows;
#[cfg(test)]
mod tests;
mod view;
mod walk;

pub(crate) use arguments::{Arguments, NULL, optional};
pub(crate) use code::{Code, Constants};
pub(crate) use count::{MAX_BLOCKS, count};
pub use device::CudaDevice;
pub(crate) use elementwise::{COPY, Formula, constant};
pub(crate) use fault::Indexed;
pub use libraries::{Kernels, Libraries, kernels, with_kernels};
pub(crate) use libraries::{Work, check, choice, data_type};
pub(crate) use reduce::{Accumulator, CudaReduction};
pub(crate) use rows::RowPlan;
pub(crate) use view::{CudaOut, CudaView};
pub(crate) use walk::{Dims, Divisor};
