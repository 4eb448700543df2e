//! Products of integer matrices, which wrap.
//!
//! The columns of the right side are copied to panels, some at a time, which all rows share. AVX2 has no
//! multiplication of 64 bits: if all numbers are short (fit in 32 bits), as they mostly are, one instruction replaces
//! the eight that emulate it.

use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::Pod;
use pagelock_memory::Result;

use super::{Matrix, Sizes};
use crate::cpu::{vectorized, vectorized_widely};
use crate::element::{DType, Num};
use crate::inlined::{Flat, Slice, from_fn, zip};
use crate::parallel::for_each_chunk_mut;
use crate::processor;
use crate::scratch;

/// Multiply-adds that make a task worth handing out.
const TASK_WORK: usize = 1 << 17;
/// Rows of a tile, whose sums stay in registers.
const ROWS: usize = 2;
/// Columns of a panel. With fewer, the compiler puts elements of different sums into one vector.
const COLUMNS: usize = 64;
/// The fewest rows of a task, so that a panel is read several times while it is in a cache.
const MIN_ROWS: usize = 16;
/// Bytes of the panels that are packed at a time.
const PANELS_BYTES: usize = 4 << 20;
/// Elements of panels that make a task of packing worth handing out.
const PACKED: usize = 32 << 10;

/// An integer type, and the type in which its products are summed. Sums wrap; their lowest bits are those of the
/// exact sum.
trait Factor: Num {
    type Sum: Pod + Send + Sync;

    fn wide(self) -> Self::Sum;
    fn lowest(sum: Self::Sum) -> Self;
    fn plus_product(sum: Self::Sum, a: Self::Sum, b: Self::Sum) -> Self::Sum;

    /// Whether products of short numbers take less time.
    const CAN_BE_SHORT: bool = false;
    /// Zero if the number is short.
    #[inline(always)]
    fn excess(_number: Self::Sum) -> u64 {
        0
    }
    /// [`plus_product`](Factor::plus_product) of short numbers.
    #[inline(always)]
    fn plus_short_product(sum: Self::Sum, a: Self::Sum, b: Self::Sum) -> Self::Sum {
        Self::plus_product(sum, a, b)
    }
}

macro_rules! factors {
    ($($factor:ty: $sum:ty $({ $($short:item)* })?),*) => {$(
        impl Factor for $factor {
            type Sum = $sum;

            #[inline(always)]
            fn wide(self) -> $sum {
                self.into()
            }
            #[inline(always)]
            fn lowest(sum: $sum) -> $factor {
                sum as $factor
            }
            #[inline(always)]
            fn plus_product(sum: $sum, a: $sum, b: $sum) -> $sum {
                sum.wrapping_add(a.wrapping_mul(b))
            }
            $($($short)*)?
        }
    )*};
}

factors! {
    u8: u16, // no processor multiplies vectors of bytes
    i32: i32,
    i64: i64 {
        const CAN_BE_SHORT: bool = true;
        #[inline(always)]
        fn excess(number: i64) -> u64 {
            number.wrapping_add(1 << 31) as u64 >> 32
        }
        #[inline(always)]
        fn plus_short_product(sum: i64, a: i64, b: i64) -> i64 {
            sum.wrapping_add(i64::from(a as i32) * i64::from(b as i32))
        }
    }
}

pub(super) fn product<T: Num>(sizes: Sizes, a: Matrix<'_, T>, b: Matrix<'_, T>, c: &mut [T]) -> Result<()> {
    match T::DTYPE {
        DType::U8 => of_factors::<u8>(sizes, a.cast(), b.cast(), bytemuck::cast_slice_mut(c)),
        DType::I32 => of_factors::<i32>(sizes, a.cast(), b.cast(), bytemuck::cast_slice_mut(c)),
        _ => of_factors::<i64>(sizes, a.cast(), b.cast(), bytemuck::cast_slice_mut(c)),
    }
}

fn of_factors<T: Factor>(sizes: Sizes, a: Matrix<'_, T>, b: Matrix<'_, T>, c: &mut [T]) -> Result<()> {
    let Sizes { m, k, n } = sizes;
    if n == 1 && a.strides[1] == 1 && b.strides[0] == 1 && k > 0 {
        return dots(k, a, &b.numbers[..k], c);
    }
    if m < 2 * ROWS {
        let by_row = c.chunks_exact_mut(n).enumerate();
        by_row.for_each(|(i, c)| row((k, &a.numbers[i * a.strides[0]..], a.strides[1]), b, c));
        return Ok(());
    }
    let n_panels = (PANELS_BYTES / (k * COLUMNS * size_of::<T::Sum>())).clamp(1, n.div_ceil(COLUMNS));
    let rows = TASK_WORK.div_ceil(k * n).next_multiple_of(MIN_ROWS).min(m);
    scratch::with(n_panels * k, |panels: &mut [[T::Sum; COLUMNS]]| {
        for first in (0..n).step_by(n_panels * COLUMNS) {
            let panels = &mut panels[..(n - first).div_ceil(COLUMNS).min(n_panels) * k];
            let packed = (PACKED / (k * COLUMNS)).max(1);
            let may_be_short = T::CAN_BE_SHORT && processor::wide_vectors().is_none();
            let are_short = AtomicBool::new(may_be_short);
            for_each_chunk_mut(panels, packed * k, |i, panels| {
                let firsts = (first + i * packed * COLUMNS..).step_by(COLUMNS);
                zip(panels.chunks_exact_mut(k), firsts).for_each(|(panel, first)| pack(b, (first, n), panel));
                if may_be_short && !all_short::<T, _>(panels.flattened(), |number| number) {
                    are_short.store(false, Ordering::Relaxed);
                }
            });
            let are_short = are_short.into_inner();
            for_each_chunk_mut(c, rows * n, |task, c| {
                let a = Matrix { numbers: &a.numbers[task * rows * a.strides[0]..], ..a };
                let multiply = if are_short && has_short_rows(a, c.len() / n, k) {
                    multiply::<T, true>
                } else {
                    multiply::<T, false>
                };
                for (panel, first) in zip(panels.chunks_exact(k), (first..).step_by(COLUMNS)) {
                    multiply(a, panel, c, (first, n));
                }
            });
        }
        Ok(())
    })
}

/// The dot products of rows of `a` with one column.
fn dots<T: Factor>(k: usize, a: Matrix<'_, T>, b: &[T], c: &mut [T]) -> Result<()> {
    let of =
        |row: usize, from: usize, len: usize| dot(&a.numbers[row * a.strides[0] + from..][..len], &b[from..][..len]);
    if c.len() > 1 || k <= TASK_WORK {
        let rows = (TASK_WORK / k).max(1);
        for_each_chunk_mut(c, rows, |i, c| {
            c.iter_mut().enumerate().for_each(|(row, c)| *c = of(i * rows + row, 0, k));
        });
        return Ok(());
    }
    scratch::with(k.div_ceil(TASK_WORK), |parts: &mut [T]| {
        for_each_chunk_mut(parts, 1, |i, part| part[0] = of(0, i * TASK_WORK, TASK_WORK.min(k - i * TASK_WORK)));
        c[0] = parts.iter().fold(T::ZERO, |sum, &part| sum.plus(part));
        Ok(())
    })
}

fn dot<T: Factor>(a: &[T], b: &[T]) -> T {
    let mut sum = <T::Sum as bytemuck::Zeroable>::zeroed();
    vectorized(inlined!(|| {
        for (a, b) in zip(a, b) {
            sum = T::plus_product(sum, a.wide(), b.wide());
        }
    }));
    T::lowest(sum)
}

/// Copies the columns of `b` from index `first` on, out of `n`, to a panel. If columns are contiguous, as in a
/// transposed matrix, `ROWS_AT_ONCE` rows of them are copied at a time.
fn pack<T: Factor>(b: Matrix<'_, T>, (first, n): (usize, usize), panel: &mut [[T::Sum; COLUMNS]]) {
    const ROWS_AT_ONCE: usize = 16;
    let width = COLUMNS.min(n - first);
    for (i, rows) in panel.chunks_mut(ROWS_AT_ONCE).enumerate() {
        let from = &b.numbers[i * ROWS_AT_ONCE * b.strides[0] + first * b.strides[1]..];
        // The padding must be short numbers; the buffer may hold others.
        rows.iter_mut().for_each(|row| row[width..].set_to(<T::Sum as bytemuck::Zeroable>::zeroed()));
        if b.strides[1] == 1 {
            for (p, row) in rows.iter_mut().enumerate() {
                zip(&mut row[..width], &from[p * b.strides[0]..]).for_each(|(to, from)| *to = from.wide());
            }
        } else {
            for j in 0..width {
                let column = &from[j * b.strides[1]..];
                rows.iter_mut().enumerate().for_each(|(p, row)| row[j] = column[p * b.strides[0]].wide());
            }
        }
    }
}

/// Whether all numbers of `m` rows are short.
fn has_short_rows<T: Factor>(a: Matrix<'_, T>, m: usize, k: usize) -> bool {
    let [row, column] = a.strides;
    if column == 1 {
        return (0..m).all(|i| all_short::<T, _>(&a.numbers[i * row..][..k], T::wide));
    }
    (0..m).all(|i| (0..k).all(|p| T::excess(a.numbers[i * row + p * column].wide()) == 0))
}

fn all_short<T: Factor, N: Copy>(numbers: &[N], wide: impl Fn(N) -> T::Sum) -> bool {
    let mut excess = 0;
    vectorized(inlined!(|| {
        for &number in numbers {
            excess |= T::excess(wide(number));
        }
    }));
    excess == 0
}

/// Computes the columns of one panel, from index `first` on, for rows of `c` with `n` elements each.
fn multiply<T: Factor, const SHORT: bool>(
    a: Matrix<'_, T>,
    panel: &[[T::Sum; COLUMNS]],
    c: &mut [T],
    (first, n): (usize, usize),
) {
    let width = COLUMNS.min(n - first);
    for (i, c) in c.chunks_mut(ROWS * n).enumerate() {
        let m = c.len() / n;
        // An incomplete tile repeats its last row; the sums of repeated rows are not used.
        let starts: [usize; ROWS] = from_fn(|row| (i * ROWS + row.min(m - 1)) * a.strides[0]);
        let mut sums = [[<T::Sum as bytemuck::Zeroable>::zeroed(); COLUMNS]; ROWS];
        vectorized_widely(inlined!(|| add_products::<T, SHORT>(a, starts, panel, &mut sums)));
        for (c, sums) in zip(c.chunks_exact_mut(n), sums) {
            zip(&mut c[first..][..width], sums).for_each(|(c, sum)| *c = T::lowest(sum));
        }
    }
}

/// Adds to each sum the dot product of its row of `a` and its column of the panel.
#[inline(always)]
fn add_products<T: Factor, const SHORT: bool>(
    a: Matrix<'_, T>,
    starts: [usize; ROWS],
    panel: &[[T::Sum; COLUMNS]],
    sums: &mut [[T::Sum; COLUMNS]; ROWS],
) {
    let mut local = *sums; // stays in registers
    for (p, b) in panel.iter().enumerate() {
        for (row, start) in zip(&mut local[..], starts) {
            let factor = a.numbers[start + p * a.strides[1]].wide();
            for (sum, &b) in zip(&mut row[..], b) {
                *sum = if SHORT { T::plus_short_product(*sum, factor, b) } else { T::plus_product(*sum, factor, b) };
            }
        }
    }
    *sums = local;
}

/// `c = a · b` for one row of `a`, whose numbers are `a_step` apart.
fn row<T: Num>((k, a, a_step): (usize, &[T], usize), b: Matrix<'_, T>, c: &mut [T]) {
    c.set_to(T::ZERO);
    vectorized(inlined!(|| {
        for p in 0..k {
            let factor = a[p * a_step];
            let b_row = &b.numbers[p * b.strides[0]..];
            if b.strides[1] == 1 {
                zip(&mut c[..], b_row).for_each(|(c, &b)| *c = c.plus(factor.times(b)));
            } else {
                c.iter_mut().enumerate().for_each(|(j, c)| *c = c.plus(factor.times(b_row[j * b.strides[1]])));
            }
        }
    }));
}
