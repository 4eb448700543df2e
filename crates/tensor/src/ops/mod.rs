//! The operations, by what they do. Each is written down once: shape rule, kernel per device, derivative, documented method.
//!
//! `elementwise.rs` is the file to read first, `conv2d` one with kernels of its own, and `loss.rs` shows what can be built
//! from the others.

mod arg_extreme;
mod at;
mod batch_norm;
mod bits;
mod choose;
mod clamp;
mod combined;
mod compare;
mod conv2d;
mod correct;
mod counts;
mod cross;
mod cross_entropy;
mod diagonals;
mod differences;
mod dropout;
mod einsum;
mod elementwise;
mod flip;
mod functions;
mod fused;
mod gamma;
mod gelu;
mod host;
mod in_place;
mod index;
mod join;
mod layer_norm;
mod logical;
mod loss;
mod matmul;
mod matrices;
mod mse_loss;
mod operators;
mod pairs;
mod parts;
mod pool2d;
mod quantile;
mod rearrange;
mod reciprocal;
mod recurrent;
mod reduce;
mod running;
mod scan;
mod scatter;
mod slice_range;
mod softmax;
mod softplus;
mod sort;
mod statistics;
mod triangle;
mod values;
mod vectors;
mod views;
mod written;

pub use at::{Ellipsis, IndexItem, Indices, NewAxis};
pub use batch_norm::BatchNormOptions;
pub(crate) use batch_norm::Channels;
pub(crate) use choose::{choose, number_like};
pub(crate) use compare::cast;
pub use conv2d::{Conv2dOptions, ConvTranspose2dOptions};
pub use correct::add_correct_;
pub(crate) use join::{cat, stack};
pub use loss::Reduction;
pub(crate) use matmul::{gemm, product_on_cuda};
pub use pool2d::Pool2dOptions;
pub use rearrange::PadMode;
pub use recurrent::{Recurrence, RecurrentLayer, Steps};
#[cfg(test)]
pub(crate) use reduce::SUM;
pub use scatter::ScatterReduce;
pub use slice_range::SliceRange;
pub(crate) use views::transposed;
