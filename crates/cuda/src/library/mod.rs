//! NVIDIA's libraries of operations, loaded at their first use: cuBLASLt ([`Blas`]) and cuDNN ([`Dnn`]).
//!
//! If a library is missing, the error is [`LibraryAbsence`](crate::LibraryAbsence), and nothing else fails. Work of a
//! library is queued like all other work, and its scratch memory comes from the pool, so it can be part of a graph.
//! The algorithm is the library's first proposal for these sizes, which is the same in every run on one kind of
//! device, unless the fastest is requested ([`Choice`]).
//!
//! - `find.rs`: the folders that are searched for libraries; `load.rs`: loads a library and its functions, also NVRTC;
//! - `work.rs`: handles, cached plans, and how work is queued;
//! - `blas/`: matrix products; `dnn/`: convolutions and attention.

mod blas;
mod dnn;
mod find;
pub(crate) mod load;
mod work;

pub use self::{
    blas::{Blas, Matrices, Product},
    dnn::{Attention, AttentionGrads, Choice, Convolution, ConvolutionKind, Dnn, Layout4},
};

/// The type of numbers that a library computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names explain themselves")]
pub enum DataType {
    F16,
    Bf16,
    F32,
    F64,
}

impl DataType {
    /// The size of a number in bytes.
    pub fn size_bytes(self) -> usize {
        match self {
            DataType::F16 | DataType::Bf16 => 2,
            DataType::F32 => 4,
            DataType::F64 => 8,
        }
    }
}

/// How factors of type `f32` are rounded in products. Their sums are `f32`. Factors of other types are not rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Exactness {
    /// Not at all.
    #[default]
    Exact,
    /// To TF32, which has a mantissa of 10 bits, for tensor cores.
    Tf32,
    /// To bfloat16, which has a mantissa of 7 bits, for tensor cores; to TF32 if the library does not support
    /// bfloat16.
    Bf16,
}

/// The alignment of an address: the largest power of two, up to 256, that divides it.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}
