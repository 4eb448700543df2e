//! Tensors with automatic differentiation, on host memory that is counted and limited, and on NVIDIA GPUs.
//!
//! A [`Tensor`] is an n-dimensional array used as in PyTorch: same names, broadcasting, gradients and printing. What
//! differs: a fallible call returns a [`Result`], whose error names the numbers and the fix; the kind of a tensor (floats,
//! integers, truth values) is part of its Rust type, its precision a value; the same seed gives the same bits on any number of
//! threads; and all bytes come from `pagelock-memory`.
//!
//! ```
//! use pagelock_tensor::{Result, Tensor, no_grad};
//!
//! fn main() -> Result<()> {
//!     let x = Tensor::randn([100, 2])?;
//!     let y = (x.matmul(&Tensor::new([2.0, -1.0])?)? + 3.0)?; // to be found: w = [2, -1] and b = 3
//!     let w = Tensor::zeros([2])?.set_requires_grad(true);
//!     let b = Tensor::zeros(())?.set_requires_grad(true);
//!     for _ in 0..100 {
//!         let loss = (x.matmul(&w)? + &b - &y)?.pow(2.0)?.mean(..)?;
//!         loss.backward()?;
//!         for parameter in [&w, &b] {
//!             let grad = parameter.grad().expect("backward stores a gradient");
//!             no_grad(|| parameter.add_scaled_(&grad, -0.1))?;
//!             parameter.zero_grad();
//!         }
//!     }
//!     assert_eq!(format!("{:.2}", w.detach()), "tensor([ 2.00, -1.00])");
//!     assert_eq!(format!("{:.2}", b.detach()), "tensor(3.00)");
//!     Ok(())
//! }
//! ```
//!
//! # What there is
//! - **Making tensors:** [`Tensor::new`] from nested arrays, `zeros`, `ones`, `full`, `arange`, `eye`, `rand`, `randn`,
//!   [`Tensor::from_slice`]. The kind is that of the numbers: `Tensor::full([3], 0)` holds integers.
//!   [`Tensor::of`] chooses the precision: `Tensor::of(DType::F64).zeros([3])`.
//! - **Views without copies:** [`reshape`](Tensor::reshape), [`permute`](Tensor::permute), [`slice`](Tensor::slice),
//!   [`select`](Tensor::select), [`expand`](Tensor::expand) and similar methods.
//! - **Arithmetic that broadcasts:** `+ - * /` between tensors, references to tensors, and numbers. The other operand
//!   of a tensor may also be a `Result`, so one question mark at the end is often enough: `(&a * &b + &c)?`. A result
//!   needs its own question mark if the other operand is a number or another result: `((&a - &b)? * 0.5)?`.
//! - **Functions of every element:** [`exp`](Tensor::exp), [`sin`](Tensor::sin), [`erf`](Tensor::erf),
//!   [`clamp`](Tensor::clamp), [`floor`](Tensor::floor); comparisons, also with numbers
//!   ([`gt_scalar`](Tensor::gt_scalar)), and selection by a mask: [`where_cond`](Tensor::where_cond),
//!   [`masked_fill`](Tensor::masked_fill), [`masked_select`](Tensor::masked_select).
//! - **Reductions** over any [`Axes`]: `x.sum(..)`, `x.mean(-1)`, `x.max([0, 2])`; `sum_keepdim` and similar methods
//!   keep the dimensions. Along one dimension: [`argmax`](Tensor::argmax), [`max_dim`](Tensor::max_dim),
//!   [`cumsum`](Tensor::cumsum), [`sort`](Tensor::sort), [`topk`](Tensor::topk).
//! - **Copies** in another order or size: [`cat`](Tensor::cat), [`flip`](Tensor::flip), [`roll`](Tensor::roll), [`pad`](Tensor::pad),
//!   [`tril`](Tensor::tril), [`gather`](Tensor::gather), [`scatter_add`](Tensor::scatter_add).
//! - **Indexing** as in Python: [`x.i((0, 1..3))`](Tensor::i), with numbers, ranges, tensors and masks, and
//!   [`x.put_((.., 1), &y)`](Tensor::put_); [`scatter`](Tensor::scatter), [`index_put`](Tensor::index_put) and similar methods.
//! - **Sums of products** by Einstein notation: [`einsum`](Tensor::einsum).
//! - **Networks:** [`matmul`](Tensor::matmul), [`conv2d`](Tensor::conv2d), pooling, softmax, losses, dropout.
//! - **Changes in place:** methods that end in an underscore, for data and optimizers. They are never recorded.
//! - **Optimizer steps** for many parameters in one kernel: [`optimizer_steps`].
//! - **Gradients:** [`backward`](Tensor::backward), [`grad`](Tensor::grad), [`no_grad`]; the rest is in [`autograd`]. Derivatives of
//!   functions: [`func`].
//! - **GPUs:** [`Device::best`], [`x.to(&device)`](Tensor::to), [`Tensor::on`]; operations run where their inputs
//!   are. [`CapturedStep`] repeats a training step with a single launch.
//! - **Precision**: [`x.to_dtype(DType::BF16)`](Tensor::to_dtype); an elementwise operation on two precisions gives
//!   the wider one; [`autocast`] chooses as PyTorch does.
//! - **Other libraries** of the process, without files: [`Dlpack`], [`AnyTensor::from_buffer`], [`HostElements`].
//! - **Named tensors** that are moved, sliced and stored together: [`TensorMap`].
//! - **Tensor cores**: products of `f32` are exact, until [`set_float32_matmul_precision`] chooses otherwise.
//! - **Random numbers** that can be reproduced: [`manual_seed`], [`Generator`].
//! - **Profiles**: where time and memory go, as a table, a trace and a picture: [`profiler`].

// # Reading order
// 1. `tensor.rs`, the handle; `shape.rs`, `layout.rs` and `storage.rs`, its parts; `all_locked.rs`, locks of several
//    storages at once; `sizes.rs`, how sizes are given.
// 2. `op.rs`: how operations run, and `apply`, the one function that runs and records them.
// 3. `ops/elementwise.rs`, the simplest operations; `ops/matmul/` and `ops/conv2d/`, with kernels of their own.
// 4. `autograd/`: what `apply` records, and how `backward` traverses it; `func/`, derivatives of functions.
// 5. `cpu/`, the loops that CPU kernels consist of; `inlined.rs`, which they use instead of parts of `std`;
//    `parallel.rs`, which runs them on several threads; `non_temporal.rs`, which stores large results.
// 6. `device.rs`, `transfer/` and `copy_stream.rs`, then `cuda/` and `capture/`: the same on GPUs; `precision.rs` and
//    `autocast.rs`: the precision of computations.
// 7. `free_lists.rs` and `scratch.rs`: why only the first training steps allocate on the heap; `heap.rs`: the cost
//    of handles.
// 8. `profiler/`: profiles, and graphs of models.
// 9. `map/`: named tensors that are moved, sliced and stored together.
// 10. `kind.rs`, `element.rs`: kinds and element types; `create.rs`, `random.rs`, `format.rs`: making and printing tensors.
//
// # Files with `unsafe`
// `inlined.rs` (elements of slices without bounds checks), `non_temporal.rs` (stores past the caches),
// `dlpack/managed.rs`, `dlpack/mod.rs` and `dlpack/tests.rs` (the structs of DLPack), `map/file/mod.rs` (mapping a
// file), `ops/matmul/cpu/large.rs` (calls of the `gemm` crate), `lanes/multiplier.rs`, `lanes/amx.rs` and
// `lanes/f16c.rs` (instructions whose presence was checked), `parallel.rs` (disjoint parts of a slice for several
// threads), `parallel/pool.rs` (a job that lives on its caller's stack); launches of CUDA kernels: `cuda/code.rs`,
// `cuda/elementwise.rs`, `cuda/reduce.rs`, `optimizer_steps/cuda.rs` and `optimizer_steps/rate.rs`, and of kernels of
// single operations: `create/range.rs`, `ops/batch_norm/cuda.rs`, `ops/where_cond/cuda.rs`, `ops/conv2d/cuda.rs`,
// `ops/conv2d/small.rs`, `ops/count_correct/cuda.rs`, `ops/cross/cuda.rs`, `ops/cross_entropy/cuda.rs`,
// `ops/dropout/cuda.rs`, `ops/flip/cuda.rs`, `ops/histogram/cuda.rs`, `ops/index/cuda.rs`, `ops/layer_norm/cuda.rs`,
// `ops/matmul/cuda.rs`, `ops/pool2d/cuda.rs`, `ops/pair_sums/mod.rs`, `ops/nonzero/cuda.rs`, `ops/recurrent/cuda.rs`,
// `ops/recurrent/persistent.rs`, `ops/scan/cuda.rs`, `ops/scatter/cuda.rs`, `ops/scatter/entries.rs`,
// `ops/scatter/sorted.rs`, `ops/searchsorted/mod.rs`, `ops/softmax/cuda.rs`, `ops/sort/cuda.rs`, `ops/sort/radix.rs`,
// `ops/triangle/cuda.rs` and `random/cuda.rs`.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))] // see clippy.toml

/// A closure that is always inlined, as an argument of a call.
macro_rules! inlined {
    ($($closure:tt)*) => {
        #[inline(always)]
        $($closure)*
    };
}

mod all_locked;
mod autocast;
pub mod autograd;
mod capture;
mod copy_stream;
mod cpu;
mod create;
mod cuda;
mod deterministic;
mod device;
mod dlpack;
mod element;
mod error;
mod format;
mod free_lists;
pub mod func;
mod heap;
mod host_elements;
mod inlined;
mod kind;
mod lanes;
mod layout;
mod map;
mod memory_order;
mod non_temporal;
mod op;
mod ops;
pub mod optimizer_steps;
mod parallel;
mod precision;
mod processor;
pub mod profiler;
mod random;
mod scratch;
mod shape;
mod sizes;
mod storage;
mod tensor;
mod thread_value;
mod transfer;

pub use autocast::{Half, autocast, autocast_type, no_autocast};
pub use autograd::{enable_grad, is_grad_enabled, no_grad};
pub use capture::{CapturedStep, Tensors};
pub use copy_stream::CopyStream;
pub use create::{NestedArray, TensorOptions};
pub use cuda::{CudaDevice, Kernels, Libraries, kernels, with_kernels};
pub use deterministic::{are_deterministic_algorithms_enabled, with_deterministic_algorithms};
pub use device::{Device, Operand};
pub use dlpack::Dlpack;
pub use element::{DType, Element, Scalar};
pub use error::{Error, Result};
pub use half::{bf16, f16};
#[doc(hidden)]
pub use heap::CountedHeap;
pub use host_elements::HostElements;
pub use kind::{Bool, ElementOf, Float, Int, Kind, Number, Numeric, PlainNumber, default_dtype, set_default_dtype};
pub use map::{AnyTensor, FileElements, TensorFile, TensorMap, copy_all_, snapshot_all};
pub use ops::{
    BatchNormOptions, Conv2dOptions, ConvTranspose2dOptions, Ellipsis, IndexItem, Indices, NewAxis, PadMode,
    Pool2dOptions, Recurrence, RecurrentLayer, Reduction, ScatterReduce, SliceRange, Steps, add_correct_,
};
#[doc(hidden)]
pub use pagelock_memory::{debug_is_the_message, text};
pub use parallel::{num_threads, set_num_threads};
pub use precision::{Float32MatmulPrecision, float32_matmul_precision, set_float32_matmul_precision};
pub use random::{Generator, GeneratorState, default_generator, manual_seed, with_seed};
pub use shape::{Axes, AxisSet, Integer, IntoShape, MAX_RANK, Shape};
#[doc(hidden)]
pub use sizes::Sizes;
pub use tensor::Tensor;
pub use transfer::{page_locked, page_locked_source};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
