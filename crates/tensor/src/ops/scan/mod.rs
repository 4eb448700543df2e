//! Running sums and products along a dimension.

mod cuda;
mod product;

use self::product::Cumprod;
pub(super) use self::product::recurrence_from_end;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::element::{Computing, Num};
use crate::error::{Error, Result};
use crate::kind::Numeric;
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, apply, apply_raw, per_type};
use crate::scratch;
use crate::tensor::{Raw, Tensor};

impl<K: Numeric> Tensor<K> {
    /// The sums of the elements up to each along a dimension: of integers in `int64`, of half types added in `f32`.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([1, 2, 3])?.cumsum(0)?.to_vec::<i64>()?, [1, 3, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension; [`Error::Memory`] if the result does not fit the budget.
    pub fn cumsum(&self, dim: isize) -> Result<Tensor<K>> {
        let dim = self.shape().dim("cumsum", dim)?;
        apply_raw(Cumsum { dim, reverse: false }, [self.raw()]).map(Raw::typed)
    }

    /// The products of the elements up to each along a dimension: of integers in `int64`.
    ///
    /// # Errors
    /// As [`Tensor::cumsum`].
    pub fn cumprod(&self, dim: isize) -> Result<Tensor<K>> {
        let dim = self.shape().dim("cumprod", dim)?;
        apply_raw(Cumprod { dim }, [self.raw()]).map(Raw::typed)
    }
}

/// Running sums from the start, or from the end.
struct Cumsum {
    dim: usize,
    reverse: bool,
}

per_type! { Cumsum[1]: Num }

/// How a contiguous tensor lies around a dimension: `[outer, n, inner]`.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub(super) outer: usize,
    pub(super) n: usize,
    pub(super) inner: usize,
}

impl Lines {
    pub(super) fn along(dim: usize, shape: &[usize]) -> Lines {
        let [outer, inner] = [&shape[..dim], &shape[dim + 1..]].map(|sizes| sizes.iter().product());
        Lines { outer, n: shape[dim], inner }
    }

    /// Elements of a slab, `[n, inner]`, and of the pieces, each of some whole slabs, that threads take; `None` if there are no
    /// elements.
    pub(super) fn pieces(&self) -> Option<[usize; 2]> {
        let slab = self.n * self.inner;
        (self.outer * slab != 0).then(|| [slab, slab * (cpu::PIECE / slab).max(1)])
    }
}

impl Op<1> for Cumsum {
    const NAME: &'static str = "cumsum";
    const INPUTS: Inputs = Inputs::WithoutGaps;
    const PRECISION: Precision = Precision::F32UnderAutocast;

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        cuda::run(
            device,
            (Self::NAME, ["cumsum_rows", "cumsum_lines"]),
            [x],
            Lines::along(self.dim, x.shape()),
            self.reverse,
            out,
        )
    }
}

impl Derivative<1> for Cumsum {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(apply(Cumsum { reverse: !self.reverse, ..*self }, [grad])?)])
    }
}

impl<T: Num> CpuKernel<T, 1> for Cumsum {
    type Out = T::Total;

    fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: StoredMut<'_, T::Total>) -> Result<()> {
        let lines = Lines::along(self.dim, x.shape);
        running("cumsum", lines, x, out, |x, out| combine(x, out, lines.inner, self.reverse, T::Total::plus))
    }
}

/// Calls `scan` with pieces of some whole slabs of `[n, inner]`, in parallel.
fn running<T: Num>(
    op: &'static str,
    lines: Lines,
    x: CpuView<'_, T>,
    out: StoredMut<'_, T::Total>,
    scan: impl Fn(&[T], &mut [T::Total]) + Sync,
) -> Result<()> {
    let Some([slab, piece]) = lines.pieces() else { return Ok(()) };
    let scanned = |i: usize, out: StoredMut<'_, T::Total>| {
        scratch::reals_mut(out, |out| {
            let x = x.data.part(i * piece, out.len());
            scratch::reals(x, |x| {
                x.chunks_exact(slab).zip(out.chunks_exact_mut(slab)).for_each(|(x, out)| scan(x, out));
                Ok(())
            })
        })
    };
    out.try_for_each_chunk(piece, &scanned).map_err(Error::scratch(op))
}

/// `x`, which is `[n, inner]`, combined along its first dimension.
fn combine<T: Num>(
    x: &[T],
    out: &mut [T::Total],
    inner: usize,
    reverse: bool,
    with: fn(T::Total, T::Total) -> T::Total,
) {
    let n = x.len() / inner;
    for step in 0..n {
        let row = if reverse { n - 1 - step } else { step };
        for column in 0..inner {
            let at = row * inner + column;
            let before = match (step, reverse) {
                (0, _) => None,
                (_, false) => Some(out[at - inner]),
                (_, true) => Some(out[at + inner]),
            };
            let value = x[at].to_total();
            out[at] = before.map_or(value, |before| with(before, value));
        }
    }
}
