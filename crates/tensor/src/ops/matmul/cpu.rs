//! The matrix product of two matrices with any strides, into a contiguous one.
//!
//! - Large products are computed by the `gemm` crate, in blocks of the result whose size depends on sizes only, so
//!   that any number of threads computes the same bits. A right side whose rows are not contiguous is transposed once
//!   for all blocks.
//! - With few rows and a large right side, each task copies the columns that it multiplies with (`few_rows.rs`); with
//!   a long inner dimension and a small result, each task takes a piece of that dimension (`long.rs`).
//! - Narrow and small products have loops of their own (`narrow.rs`), which allocate and pack nothing. With ten
//!   columns, as in the last layer of a classifier of digits, they are several times faster.
//! - `bf16` has a loop of its own on processors with an instruction for it (`bf16.rs`); for steps of recurrent
//!   layers, the right side is packed once (`packed.rs`). Otherwise the half types are computed in `f32`. Integers
//!   have plain loops that wrap.
//!
//! Unsafe: one call of `gemm`, in `large.rs`.

#[cfg(target_arch = "x86_64")]
mod bf16;
mod few_rows;
mod integers;
mod large;
mod long;
mod narrow;
mod packed;
#[cfg(test)]
mod tests;

use std::ops::Range;

use pagelock_memory::Result;

use self::few_rows::Side;
pub(crate) use self::narrow::chained;
pub(crate) use self::packed::Packed;

#[cfg(target_arch = "x86_64")]
use crate::cpu::math::half::Half;
use crate::cpu::{self, CpuView, Stored, StoredMut, total, vectorized};
use crate::element::{DType, Num, Real};
use crate::inlined::{Array, zip};
use crate::scratch;

/// A matrix inside a slice: element `[i, j]` is `numbers[i * strides[0] + j * strides[1]]`.
#[derive(Clone, Copy)]
struct Matrix<'a, R> {
    numbers: &'a [R],
    strides: [usize; 2],
}

/// The sizes of a product `[m, k] · [k, n]`.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    m: usize,
    k: usize,
    n: usize,
}

/// With fewer columns than this, the left side is read about once.
const FEW_COLUMNS: usize = 8;
/// If all tasks read the whole right side, each widens about this many halves of the left side and of the result.
const HALVES: usize = 8 << 10;
/// The rows of such a task are a multiple of this, if there are at least [`FEW_COLUMNS`] columns.
const TILE_ROWS: usize = 8;

/// `c = a · b`, for `a`: `[m, k]` and `b`: `[k, n]` with these strides, and `c`: `[m, n]`, contiguous.
#[allow(clippy::too_many_arguments)] // the usual signature of this function
pub(crate) fn gemm<T: Num>(
    m: usize,
    k: usize,
    n: usize,
    a: Stored<'_, T>,
    a_strides: [usize; 2],
    b: Stored<'_, T>,
    b_strides: [usize; 2],
    mut c: StoredMut<'_, T>,
) -> Result<()> {
    if m == 0 || n == 0 {
        return Ok(());
    }
    if k == 0 {
        c.fill(T::ZERO);
        return Ok(());
    }
    let (a, b) = (spanned(a, [m, k], a_strides), spanned(b, [k, n], b_strides));
    #[cfg(target_arch = "x86_64")]
    if let Some(computed) = of_bf16(Sizes { m, k, n }, (a, a_strides), (b, b_strides), &mut c) {
        return computed;
    }
    let is_read_whole = n < FEW_COLUMNS || k * n <= narrow::MAX_RIGHT && m * n > HALVES;
    if matches!(a, Stored::Halves(..)) && is_read_whole && m * k > HALVES && a_strides == [k, 1] {
        if let (Stored::Halves(bits, half), true) = (b, n >= FEW_COLUMNS && b_strides[1] != 1) {
            return scratch::with(k * n, |rows: &mut [u16]| {
                cpu::copy(CpuView { data: bits.into(), shape: &[k, n], strides: &b_strides }, rows);
                gemm(m, k, n, a, a_strides, Stored::Halves(rows, half), [n, 1], c)
            });
        }
        // Each task widens its own rows, which are then in its cache.
        let rows =
            if n < FEW_COLUMNS { (HALVES / k).max(1) } else { (HALVES / k.max(n)).max(1).next_multiple_of(TILE_ROWS) };
        return scratch::reals(b, |b| {
            c.try_for_each_chunk(rows * n, &|task, c| {
                let m = c.len() / n;
                scratch::reals(a.part(task * rows * k, m * k), |a| {
                    scratch::reals_mut(c, |c| {
                        let (a, b) =
                            (Matrix { numbers: a, strides: a_strides }, Matrix { numbers: b, strides: b_strides });
                        product(Sizes { m, k, n }, a, b, c)
                    })
                })
            })
        });
    }
    let sides = [Side { numbers: a, strides: [a_strides[1], a_strides[0]] }, Side { numbers: b, strides: b_strides }];
    let sizes = Sizes { m, k, n };
    if T::DTYPE.is_float() && (long::suits(sizes, sides) || few_rows::suits(sizes, sides[1])) {
        return scratch::reals_mut(c, |c| match T::DTYPE {
            DType::F64 => cut::<f64>(sizes, sides.mapped(Side::cast), bytemuck::cast_slice_mut(c)),
            _ => cut::<f32>(sizes, sides.mapped(Side::cast), bytemuck::cast_slice_mut(c)),
        });
    }
    scratch::reals(a, |a| {
        scratch::reals(b, |b| {
            scratch::reals_mut(c, |c| {
                let (a, b) = (Matrix { numbers: a, strides: a_strides }, Matrix { numbers: b, strides: b_strides });
                product(Sizes { m, k, n }, a, b, c)
            })
        })
    })
}

/// The product by `long.rs` or by `few_rows.rs`, for sides `[k, m]` and `[k, n]`.
fn cut<R: Real>(sizes: Sizes, [left, right]: [Side<'_, R>; 2], c: &mut [R]) -> Result<()> {
    if long::suits(sizes, [left, right]) {
        return long::product(sizes, left, right, c);
    }
    scratch::reals(left.numbers, |numbers| {
        few_rows::product(sizes, Matrix { numbers, strides: [left.strides[1], left.strides[0]] }, right, c)
    })
}

/// Divides an inner dimension into pieces of at most `depth` numbers, and adds up their products in `sums`. `product`
/// gets the start of a piece, its length, and the slice to write to.
fn in_pieces<R: Real>(
    (inner, depth): (Range<usize>, usize),
    [sums, more]: [&mut [R]; 2],
    mut product: impl FnMut(usize, usize, &mut [R]) -> Result<()>,
) -> Result<()> {
    for start in inner.clone().step_by(depth) {
        let k = depth.min(inner.end - start);
        if start == inner.start {
            product(start, k, sums)?;
        } else {
            product(start, k, more)?;
            scratch::add(sums, more);
        }
    }
    Ok(())
}

/// The product by [`bf16::product`], if both sides and the result are `bf16` and it takes these sizes.
#[cfg(target_arch = "x86_64")]
fn of_bf16<T: Num>(
    sizes: Sizes,
    (a, a_strides): (Stored<'_, T>, [usize; 2]),
    (b, b_strides): (Stored<'_, T>, [usize; 2]),
    c: &mut StoredMut<'_, T>,
) -> Option<Result<()>> {
    match (a, b, c) {
        (Stored::Halves(a, Half::BF16), Stored::Halves(b, Half::BF16), StoredMut::Halves(c, Half::BF16)) => {
            let (a, b) = (Matrix { numbers: a, strides: a_strides }, Matrix { numbers: b, strides: b_strides });
            bf16::product(sizes, [a, b], c)
        }
        _ => None,
    }
}

/// `out[i]` is the inner product of row `i` of `a` and of `b`, whose rows of `k` elements lie one after another.
pub(crate) fn dots<T: Num>(k: usize, a: Stored<'_, T>, b: Stored<'_, T>, out: StoredMut<'_, T>) -> Result<()> {
    scratch::reals(a, |a| {
        scratch::reals(b, |b| {
            scratch::reals_mut(out, |out| {
                vectorized(inlined!(|| {
                    let rows = zip(a.chunks_exact(k), b.chunks_exact(k));
                    for (out, (a, b)) in zip(&mut out[..], rows) {
                        *out = dot(a, b);
                    }
                }));
                Ok(())
            })
        })
    })
}

/// The inner product of two long vectors of floats, by several threads; `None` for integers.
pub(crate) fn long_dot<T: Num>(a: Stored<'_, T>, b: Stored<'_, T>, out: StoredMut<'_, T>) -> Option<Result<()>> {
    let total = match T::DTYPE {
        DType::F32 => total([a.cast(), b.cast()], |[a, b]: [f32; 2]| a * b),
        DType::F64 => total([a.cast(), b.cast()], |[a, b]: [f64; 2]| a * b),
        _ => return None,
    };
    Some(total.and_then(|total| {
        scratch::reals_mut(out, |out| {
            out[0] = T::from_f64(total);
            Ok(())
        })
    }))
}

/// An inner product, by independent partial sums that the compiler can vectorize.
#[inline(always)]
fn dot<T: Num>(a: &[T], b: &[T]) -> T {
    const LANES: usize = 16;
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [T::ZERO; LANES];
    for (a, b) in zip(a, b) {
        for ((sum, &a), &b) in zip(zip(&mut sums[..], a), b) {
            *sum = sum.plus(a.times(b));
        }
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            sums[i] = sums[i].plus(sums[i + width]);
        }
    }
    for (&a, &b) in zip(a_rest, b_rest) {
        sums[0] = sums[0].plus(a.times(b));
    }
    sums[0]
}

/// The part of a slice from a matrix's first element to its last.
fn spanned<T: Num>(numbers: Stored<'_, T>, [rows, columns]: [usize; 2], strides: [usize; 2]) -> Stored<'_, T> {
    numbers.part(0, (rows - 1) * strides[0] + (columns - 1) * strides[1] + 1)
}

fn product<T: Num>(sizes: Sizes, a: Matrix<'_, T>, b: Matrix<'_, T>, c: &mut [T]) -> Result<()> {
    match T::DTYPE {
        DType::F32 => real::<f32>(sizes, a.cast(), b.cast(), bytemuck::cast_slice_mut(c)),
        DType::F64 => real::<f64>(sizes, a.cast(), b.cast(), bytemuck::cast_slice_mut(c)),
        _ => integers::product(sizes, a, b, c),
    }
}

impl<'a, T: Num> Matrix<'a, T> {
    /// The same matrix with `T` named as `U`, which must be the same type.
    fn cast<U: Num>(self) -> Matrix<'a, U> {
        Matrix { numbers: bytemuck::cast_slice(self.numbers), strides: self.strides }
    }
}

fn real<R: Real>(sizes: Sizes, a: Matrix<'_, R>, b: Matrix<'_, R>, c: &mut [R]) -> Result<()> {
    match narrow::product(sizes, a, b, c) {
        Some(computed) => computed,
        None => large::product(sizes, a, b, c),
    }
}
