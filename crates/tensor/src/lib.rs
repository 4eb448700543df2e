//! Tensors with autograd on budgeted host memory.

pub mod autograd;
mod cpu;
mod create;
mod device;
mod element;
mod error;
mod format;
mod layout;
mod op;
mod ops;
mod parallel;
mod random;
mod shape;
mod storage;
mod tensor;

pub use autograd::{enable_grad, is_grad_enabled, no_grad};
pub use create::{Create, NestedArray};
pub use device::Device;
pub use element::{DType, Element, Float, Num, Real, Scalar};
pub use error::{Error, Result};
pub use ops::{Conv2d, Pool2d, Reduction};
pub use parallel::{num_threads, set_num_threads};
pub use random::{Generator, manual_seed};
pub use shape::{Axes, AxisSet, IntoShape, MAX_RANK, Shape};
pub use tensor::Tensor;
