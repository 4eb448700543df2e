//! Large matrix products on a device by cuBLASLt.

use pagelock_cuda::DeviceView;
use pagelock_cuda::library::{Matrices, Product};

use super::{batch_start, batch_stride, cuda};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Kernels, Work, data_type, kernels};
use crate::element::DType;
use crate::error::Result;
use crate::inlined::Array;
use crate::precision::exactness;
use crate::shape::Shape;
use crate::tensor::Raw;

/// From this many multiplications on, the library is faster (`cargo bench --bench large -- --limits`). `LARGE_SPLIT`
/// is the limit where our kernel splits k between groups of threads, `LARGE_VECTOR` the limit where one factor is a
/// vector.
const LARGE: usize = 5 << 20;
const LARGE_SPLIT: usize = 24 << 20;
const LARGE_VECTOR: usize = 2 << 20;

/// Whether products of these sizes, `[m, n, k, batches]`, are large enough for the library.
pub(crate) fn is_large(sizes: [usize; 4], dtype: DType) -> bool {
    let multiplications = sizes.iter().fold(1_usize, |product, &size| product.saturating_mul(size));
    let least = match sizes {
        [1, ..] | [_, 1, ..] => LARGE_VECTOR,
        _ if cuda::split_side(sizes, dtype).is_some() => LARGE_SPLIT,
        _ => LARGE,
    };
    multiplications >= least
}

/// Computes every element of `out`, `[batches…, m, n]`, and adds `bias` to each row. Returns false if the library is
/// missing or cannot compute this product.
pub(super) fn product(
    device: &CudaDevice,
    op: &'static str,
    batches: &Shape,
    [a, b]: [CudaView<'_>; 2],
    bias: Option<CudaView<'_>>,
    out: &mut CudaOut<'_>,
) -> Result<bool> {
    let (Some(factors), Some(results)) = (data_type(a.dtype()), data_type(out.dtype())) else { return Ok(false) };
    let (rank_a, rank_b) = (a.shape().rank(), b.shape().rank());
    let [m, k, n] = [a.shape()[rank_a - 2], a.shape()[rank_a - 1], b.shape()[rank_b - 1]];
    let count = batches.elements();
    if k == 0 || count == 0 || [m, n, k, count].iter().any(|&size| size > i32::MAX as usize) {
        return Ok(false);
    }
    let Some((calls, inner, [left, right])) = in_calls(batches, [a, b], m.saturating_mul(n).saturating_mul(k)) else {
        return Ok(false);
    };
    let sizes = || format!("{} · {} of {}", a.shape(), b.shape(), a.dtype());
    let work = Work { op, is_large: is_large([m, n, k, count], a.dtype()), sizes: &sizes };
    let Some(blas) = device.blas_for(&work)? else { return Ok(false) };
    let product = Product {
        sizes: [m, n, k],
        batches: inner,
        left: matrices(a, left),
        right: matrices(b, right),
        factors,
        results,
        exactness: exactness(),
        has_bias: bias.is_some(),
    };
    let (stream, len) = (device.stream(), inner * m * n * out.dtype().size());
    for call in 0..calls {
        let [a, b] = [a, b].mapped(|x| from(x, batch_start(batches, call * inner, x.shape(), x.strides())));
        let out = out.reborrow().into_bytes().slice(call * len..(call + 1) * len);
        let out = out.unwrap_or_else(|error| unreachable!("the result has a place for each product: {error}"));
        let bias = bias.map(|bias| bias.bytes());
        // The library can refuse only the first call: the others have the same sizes.
        if !work.is_done(blas.multiply(&stream, &product, [a, b], bias, out))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Copies a factor if its matrices are not evenly spaced in memory, so that one call of the library multiplies all of
/// them. This concerns the heads of attention, which are views of one tensor. Broadcast matrices are never copied.
pub(super) fn evenly_spaced(factors: [&Raw; 2]) -> Result<[Raw; 2]> {
    let [a, b] = factors.mapped(Raw::shape);
    let batches = Shape::broadcast("matmul", &super::batch(a), &super::batch(b))?;
    let sizes = [a[a.rank() - 2], b[b.rank() - 1], a[a.rank() - 1], batches.elements()];
    let is_for_library = match kernels() {
        Kernels::Own => false,
        Kernels::Library => true,
        Kernels::Fastest | Kernels::Measured => is_large(sizes, factors[0].dtype()),
    };
    let spaced = |x: &Raw| {
        let is_even = batch_distance(&batches, x.shape(), x.layout.strides()).is_some();
        if !is_for_library || is_even || x.layout.overlaps() || *super::batch(x.shape()) != *batches {
            return Ok(x.clone());
        }
        match x.layout.strides() {
            [.., row, column] if row < column => x.transpose(-2, -1)?.contiguous()?.transpose(-2, -1),
            _ => x.contiguous(),
        }
    };
    Ok([spaced(factors[0])?, spaced(factors[1])?])
}

fn matrices(x: CudaView<'_>, batch: usize) -> Matrices {
    let &[.., row, column] = x.strides() else { unreachable!("matrices have two dimensions") };
    Matrices { row, column, batch }
}

/// From this many multiplications on, a call of its own keeps a GPU busy for longer than the call takes to start. (On
/// an H200, GPT-2's heads gain by it, and smaller ones lose.)
const WORTH_A_CALL: usize = 256 << 20;

/// The number of calls that make the product, the number of matrices per call, and how far apart these are in each
/// operand. One call suffices if matrices are evenly spaced in both operands; else there is a call for each index of
/// the first batch dimensions. `work` is the number of multiplications for two matrices.
fn in_calls(batches: &Shape, operands: [CudaView<'_>; 2], work: usize) -> Option<(usize, usize, [usize; 2])> {
    (0..=batches.rank()).find_map(|outer| {
        let inner = Shape::new(&batches[outer..]).ok()?;
        let distance = |x: CudaView<'_>| batch_distance(&inner, x.shape(), x.strides());
        let distances = [distance(operands[0])?, distance(operands[1])?];
        let calls = batches[..outer].iter().product();
        let is_large = work.saturating_mul(inner.elements()) >= WORTH_A_CALL;
        let is_worth_it = calls == 1 || is_large || kernels() == Kernels::Library;
        Some((calls, inner.elements(), distances)).filter(|_| is_worth_it)
    })
}

/// The bytes of a view from element `start` on.
fn from(x: CudaView<'_>, start: usize) -> DeviceView<'_, u8> {
    let bytes = x.bytes();
    let behind = bytes.slice(start * x.dtype().size()..bytes.len());
    behind.unwrap_or_else(|error| unreachable!("a batch is inside its tensor: {error}"))
}

/// The distance between consecutive matrices of an operand, in the order of the batches, if it is always the same; 0
/// if one matrix serves all batches.
fn batch_distance(batches: &Shape, shape: &Shape, strides: &[usize]) -> Option<usize> {
    let mut distance = None; // between consecutive matrices
    let mut expected = 0; // the stride that keeps the distance in the next dimension
    for back in 0..batches.rank() {
        let size = batches[batches.rank() - 1 - back];
        if size == 1 {
            continue;
        }
        let stride = batch_stride(shape, strides, back);
        if distance.is_some() && stride != expected {
            return None;
        }
        distance = distance.or(Some(stride));
        expected = stride * size;
    }
    Some(distance.unwrap_or(0))
}
