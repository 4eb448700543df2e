//! NVIDIA's libraries of operations, loaded when they are first asked for: cuBLASLt ([`Blas`]) and cuDNN ([`Dnn`]).
//!
//! A missing library is an answer, [`LibraryAbsence`](crate::LibraryAbsence), never a failure of something else. Work of a
//! library is queued like all other work, and its scratch memory comes from the pool, so that both can be part of a graph.
//! Which algorithm computes something is the library's first proposal for these sizes, the same in every run on one kind of
//! device, unless the fastest is asked for ([`Choice`]).
//!
//! - `find.rs`: where libraries are looked for; `load.rs`: loading one, and its functions;
//! - `blas/`: matrix products; `dnn/`: convolutions and attention.

pub(crate) mod find;

mod blas;
mod dnn;
mod load;
mod work;

pub use self::{
    blas::{Blas, Matrices, Product},
    dnn::{Attention, AttentionGrads, Choice, Convolution, ConvolutionKind, Dnn, Layout4},
};

/// The type of numbers that a library computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DataType {
    F16,
    Bf16,
    F32,
    F64,
}

impl DataType {
    /// What one takes.
    pub fn size_bytes(self) -> usize {
        match self {
            DataType::F16 | DataType::Bf16 => 2,
            DataType::F32 => 4,
            DataType::F64 => 8,
        }
    }
}

/// How exactly products of `f32` numbers are computed. Sums are `f32` always; other types are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Exactness {
    /// As `f32`.
    #[default]
    Exact,
    /// Of factors rounded to TF32, 10 bits behind the point, on tensor cores.
    Tf32,
    /// Of factors rounded to bfloat16, 7 bits behind the point, on tensor cores, where a library has that; else as TF32.
    Bf16,
}

/// The largest power of two, up to 256, of which an address is a multiple.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}
