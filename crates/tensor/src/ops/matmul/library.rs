//! Large matrix products on a device by cuBLASLt.

use pagelock_cuda::library::{Matrices, Product};

use crate::cuda::{CudaDevice, CudaOut, CudaView, Work, number};
use crate::error::Result;
use crate::precision::exactness;
use crate::shape::Shape;

/// From as many multiplications on the library is faster (`cargo bench --bench large -- --limits`).
const LARGE: usize = 5 << 20;

/// Whether so many results of so many products each are enough for the library, `[m, n, k, batches]`.
pub(super) fn is_large(sizes: [usize; 4]) -> bool {
    sizes.iter().fold(1_usize, |product, &size| product.saturating_mul(size)) >= LARGE
}

/// Computes every element of `out`, `[batches…, m, n]`, and of a row that is added to each of its rows; false if the
/// library is not there or not for that.
pub(super) fn product(
    device: &CudaDevice,
    op: &'static str,
    batches: &Shape,
    [a, b]: [CudaView<'_>; 2],
    bias: Option<CudaView<'_>>,
    out: &mut CudaOut<'_>,
) -> Result<bool> {
    let (Some(factors), Some(results)) = (number(a.dtype()), number(out.dtype())) else { return Ok(false) };
    let (rank_a, rank_b) = (a.shape().rank(), b.shape().rank());
    let [m, k, n] = [a.shape()[rank_a - 2], a.shape()[rank_a - 1], b.shape()[rank_b - 1]];
    let (Some(left), Some(right)) = (batch_distance(batches, a), batch_distance(batches, b)) else {
        return Ok(false);
    };
    let count = batches.elements();
    if k == 0 || count == 0 || [m, n, k, count].iter().any(|&size| size > i32::MAX as usize) {
        return Ok(false);
    }
    let sizes = || format!("{} · {} of {}", a.shape(), b.shape(), a.dtype());
    let work = Work { op, is_large: is_large([m, n, k, count]), sizes: &sizes };
    let Some(blas) = device.blas_for(&work)? else { return Ok(false) };
    let matrices = |x: CudaView<'_>, rank: usize, batch| Matrices {
        row: x.strides()[rank - 2],
        column: x.strides()[rank - 1],
        batch,
    };
    let product = Product {
        sizes: [m, n, k],
        batches: count,
        left: matrices(a, rank_a, left),
        right: matrices(b, rank_b, right),
        factors,
        results,
        exactness: exactness(),
        has_bias: bias.is_some(),
    };
    let (stream, out) = (device.stream(), out.reborrow().into_bytes());
    let bias = bias.map(|bias| bias.bytes());
    work.is_done(blas.multiply(&stream, &product, [a.bytes(), b.bytes()], bias, out))
}

/// From one matrix of an operand to the next, in the order of the batches, if that is always the same; 0 if there is one
/// for all.
fn batch_distance(batches: &Shape, operand: CudaView<'_>) -> Option<usize> {
    let own_rank = operand.shape().rank() - 2;
    let mut distance = None; // from one to the next
    let mut expected = 0; // at the dimension that is looked at
    for back in 1..=batches.rank() {
        let size = batches[batches.rank() - back];
        if size == 1 {
            continue;
        }
        let stride = match own_rank.checked_sub(back) {
            Some(dim) if operand.shape()[dim] != 1 => operand.strides()[dim],
            _ => 0,
        };
        if distance.is_some() && stride != expected {
            return None;
        }
        distance = distance.or(Some(stride));
        expected = stride * size;
    }
    Some(distance.unwrap_or(0))
}
