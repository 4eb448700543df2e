//! Running sums and products along a dimension.

mod cuda;
mod product;

use bytemuck::Pod;

use self::product::Cumprod;
pub(super) use self::product::recurrence_from_end;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::element::{Computing, Element, Num};
use crate::error::{Error, Result};
use crate::inlined::{Array, from_fn, zip};
use crate::kind::Numeric;
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, apply, apply_raw, per_type};
use crate::scratch;
use crate::tensor::{Raw, Tensor};

impl<K: Numeric> Tensor<K> {
    /// For each element, the sum of the elements up to it along a dimension: of integers in `int64`, of half types
    /// added in `f32`.
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

    /// For each element, the product of the elements up to it along a dimension: of integers in `int64`.
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

/// Rows that are computed side by side, because within a row every step waits for the one before it.
const ROWS_AT_ONCE: usize = 4;

/// The sizes of a contiguous tensor around a dimension: `[outer, n, inner]`.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub(super) outer: usize,
    pub(super) n: usize,
    pub(super) inner: usize,
}

impl Lines {
    pub(super) fn along(dim: usize, shape: &[usize]) -> Lines {
        let [outer, inner] = [&shape[..dim], &shape[dim + 1..]].mapped(|sizes| sizes.iter().product());
        Lines { outer, n: shape[dim], inner }
    }

    /// The elements of a slab, `[n, inner]`, and of a piece, some whole slabs that a thread takes at a time; `None`
    /// if there are no elements. If slabs are rows (`inner` is 1), a piece has at least [`ROWS_AT_ONCE`] of them.
    pub(super) fn pieces(&self) -> Option<[usize; 2]> {
        let slab = self.n * self.inner;
        let least = if self.inner == 1 { ROWS_AT_ONCE } else { 1 };
        (self.outer * slab != 0).then(|| [slab, slab * (cpu::PIECE / slab).max(least)])
    }
}

impl Op<1> for Cumsum {
    const NAME: &'static str = "cumsum";
    const INPUTS: Inputs = Inputs::WithoutGaps;
    const PRECISION: Precision = Precision::F32UnderAutocast;

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        cuda::run(device, (Self::NAME, &cuda::CUMSUM), (x, None), Lines::along(self.dim, x.shape()), self.reverse, out)
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
        running("cumsum", lines, x, out, |x, out| combine(x, out, lines, self.reverse, Wide::<T>::plus))
    }
}

/// The type in which elements of `T` are combined.
type Wide<T> = <T as Computing>::Wide;

/// Calls `scan` with pieces of some whole slabs of `[n, inner]`, in parallel.
fn running<T: Num>(
    op: &'static str,
    lines: Lines,
    x: CpuView<'_, T>,
    out: StoredMut<'_, T::Total>,
    scan: impl Fn(&[T], &mut [T::Total]) -> pagelock_memory::Result<()> + Sync,
) -> Result<()> {
    let Some([_, piece]) = lines.pieces() else { return Ok(()) };
    let scanned = |i: usize, out: StoredMut<'_, T::Total>| {
        scratch::reals_mut(out, |out| scratch::reals(x.data.part(i * piece, out.len()), |x| scan(x, out)))
    };
    out.try_for_each_chunk(piece, &scanned).map_err(Error::scratch(op))
}

/// Combines the elements of slabs of `x`, each `[n, inner]`, along their first dimension.
fn combine<T: Num>(
    x: &[T],
    out: &mut [T::Total],
    lines: Lines,
    reverse: bool,
    with: impl Fn(Wide<T>, Wide<T>) -> Wide<T> + Copy,
) -> pagelock_memory::Result<()> {
    if lines.inner > 1 {
        return combine_columns(x, out, lines, reverse, with);
    }
    let group_len = ROWS_AT_ONCE * lines.n;
    for (x, out) in zip(x.chunks(group_len), out.chunks_mut(group_len)) {
        match out.len() == group_len && T::DTYPE.is_float() {
            true => combine_rows::<T, ROWS_AT_ONCE>(x, out, reverse, with),
            // Integers are added within a cycle: nothing is gained by several rows at once.
            false => zip(x.chunks_exact(lines.n), out.chunks_exact_mut(lines.n)).for_each(|(x, out)| match reverse {
                true => combine_row(zip(x.iter().rev(), out.iter_mut().rev()), with),
                false => combine_row(zip(x, out), with),
            }),
        }
    }
    Ok(())
}

/// [`combine`] for slabs with several columns: a row of them at a time.
fn combine_columns<T: Num>(
    x: &[T],
    out: &mut [T::Total],
    Lines { n, inner, .. }: Lines,
    reverse: bool,
    with: impl Fn(Wide<T>, Wide<T>) -> Wide<T>,
) -> pagelock_memory::Result<()> {
    scratch::with(inner, |all: &mut [Wide<T>]| {
        for (x, out) in zip(x.chunks_exact(n * inner), out.chunks_exact_mut(n * inner)) {
            for step in 0..n {
                let row = if reverse { n - 1 - step } else { step };
                let (x, out) = (&x[row * inner..][..inner], &mut out[row * inner..][..inner]);
                for ((all, &x), out) in zip(zip(&mut all[..], x), out) {
                    *all = if step == 0 { x.cast() } else { with(*all, x.cast()) };
                    *out = all.cast();
                }
            }
        }
        Ok(())
    })
}

/// Combines one row, in the order of the pairs.
#[inline(always)]
fn combine_row<'a, T: Num>(
    row: impl Iterator<Item = (&'a T, &'a mut T::Total)>,
    with: impl Fn(Wide<T>, Wide<T>) -> Wide<T>,
) {
    let mut before = None;
    for (&x, out) in row {
        let now = before.map_or(x.cast(), |before| with(before, x.cast()));
        *out = now.cast();
        before = Some(now);
    }
}

/// Combines each of `ROWS` rows.
#[inline(always)]
fn combine_rows<T: Num, const ROWS: usize>(
    x: &[T],
    out: &mut [T::Total],
    reverse: bool,
    with: impl Fn(Wide<T>, Wide<T>) -> Wide<T> + Copy,
) {
    let n = out.len() / ROWS;
    let x: [&[T]; ROWS] = from_fn(|row| &x[row * n..][..n]);
    let mut rest = out;
    let mut out: [&mut [T::Total]; ROWS] = from_fn(|_| {
        let (row, others) = std::mem::take(&mut rest).split_at_mut(n);
        rest = others;
        row
    });
    let mut last: Option<[Wide<T>; ROWS]> = None;
    let mut step = |at: usize| {
        let now: [Wide<T>; ROWS] = from_fn(|row| {
            let x = x[row][at].cast();
            last.map_or(x, |last| with(last[row], x))
        });
        zip(&mut out[..], now).for_each(|(out, now)| out[at] = now.cast());
        last = Some(now);
    };
    match reverse {
        false => (0..n).for_each(&mut step),
        true => (0..n).rev().for_each(&mut step),
    }
}

/// Computes the elements of slabs, each `[n, inner]`, along their first dimension: the first ones are `first(at)`,
/// the others `next(at, place of the one before, result at that place)`.
fn follow<T: Pod>(
    out: &mut [T],
    lines: Lines,
    reverse: bool,
    first: impl Fn(usize) -> T + Copy,
    next: impl Fn(usize, usize, T) -> T + Copy,
) {
    let Lines { n, inner, .. } = lines;
    if inner == 1 {
        let group_len = ROWS_AT_ONCE * n;
        for (i, rows) in out.chunks_mut(group_len).enumerate() {
            match rows.len() == group_len {
                true => follow_rows::<T, ROWS_AT_ONCE>(rows, i * group_len, reverse, first, next),
                false => rows.chunks_exact_mut(n).enumerate().for_each(|(row, out)| {
                    follow_rows::<T, 1>(out, i * group_len + row * n, reverse, first, next);
                }),
            }
        }
        return;
    }
    for (i, slab) in out.chunks_exact_mut(n * inner).enumerate() {
        let start = i * n * inner;
        for step in 0..n {
            let (row, before) = if reverse { (n - 1 - step, n - step) } else { (step, step.wrapping_sub(1)) };
            for column in 0..inner {
                let at = row * inner + column;
                slab[at] = match step {
                    0 => first(start + at),
                    _ => {
                        let before = before * inner + column;
                        next(start + at, start + before, slab[before])
                    }
                };
            }
        }
    }
}

/// [`follow`] for `ROWS` rows, the first of which begins at `start`.
fn follow_rows<T: Pod, const ROWS: usize>(
    out: &mut [T],
    start: usize,
    reverse: bool,
    first: impl Fn(usize) -> T,
    next: impl Fn(usize, usize, T) -> T,
) {
    let n = out.len() / ROWS;
    let mut before = 0;
    let mut last = [T::zeroed(); ROWS];
    for step in 0..n {
        let at = if reverse { n - 1 - step } else { step };
        for (row, last) in last.iter_mut().enumerate() {
            let row = start + row * n;
            *last = if step == 0 { first(row + at) } else { next(row + at, row + before, *last) };
        }
        for (row, &last) in last.iter().enumerate() {
            out[row * n + at] = last;
        }
        before = at;
    }
}
