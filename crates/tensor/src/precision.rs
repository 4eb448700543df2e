//! How exactly GPUs multiply `f32` numbers: exactly, unless a program says otherwise.

use std::sync::atomic::{AtomicU8, Ordering};

use pagelock_cuda::library::Exactness;

/// The precision in which GPUs take the factors of large `f32` matrix products and convolutions; sums are always
/// `f32`.
///
/// The names are those of PyTorch's `torch.set_float32_matmul_precision`. In PyTorch, convolutions have a switch of
/// their own that is on; here both are exact until a program chooses otherwise, for both at once. Small products,
/// other element types and the CPU are always exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Float32MatmulPrecision {
    /// Not rounded: 23 bits behind the point.
    #[default]
    Highest,
    /// Rounded to TensorFloat32, 10 bits behind the point, on tensor cores: about eight times as fast on an H200.
    High,
    /// Rounded to bfloat16, 7 bits behind the point, where cuBLASLt supports that; convolutions as
    /// [`High`](Self::High).
    Medium,
}

/// Sets the precision in which GPUs take the factors of large `f32` products from now on, in all threads, also in
/// backward. A captured step keeps the precision with which it was captured.
///
/// ```
/// use pagelock_tensor::{Float32MatmulPrecision, float32_matmul_precision, set_float32_matmul_precision};
///
/// assert_eq!(float32_matmul_precision(), Float32MatmulPrecision::Highest);
/// set_float32_matmul_precision(Float32MatmulPrecision::High);
/// assert_eq!(float32_matmul_precision(), Float32MatmulPrecision::High);
/// # set_float32_matmul_precision(Float32MatmulPrecision::Highest);
/// ```
pub fn set_float32_matmul_precision(precision: Float32MatmulPrecision) {
    CHOSEN.store(precision as u8, Ordering::Relaxed); // Relaxed: it guards no other memory
}

/// The precision in which GPUs take the factors of large `f32` products.
pub fn float32_matmul_precision() -> Float32MatmulPrecision {
    match CHOSEN.load(Ordering::Relaxed) {
        0 => Float32MatmulPrecision::Highest,
        1 => Float32MatmulPrecision::High,
        _ => Float32MatmulPrecision::Medium,
    }
}

static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// The same choice, as libraries name it.
pub(crate) fn exactness() -> Exactness {
    match float32_matmul_precision() {
        Float32MatmulPrecision::Highest => Exactness::Exact,
        Float32MatmulPrecision::High => Exactness::Tf32,
        Float32MatmulPrecision::Medium => Exactness::Bf16,
    }
}
