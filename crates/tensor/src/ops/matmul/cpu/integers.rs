//! Products of integer matrices, which wrap.

use super::{Matrix, Sizes};
use crate::element::Num;
use crate::parallel::for_each_chunk_mut;

/// Multiply-adds that make a task worth handing out.
const TASK_WORK: usize = 1 << 17;

pub(super) fn product<T: Num>(Sizes { m, k, n }: Sizes, a: Matrix<'_, T>, b: Matrix<'_, T>, c: &mut [T]) {
    let rows = TASK_WORK.div_ceil(k * n).min(m);
    for_each_chunk_mut(c, rows * n, |task, c| {
        for (i, c) in c.chunks_exact_mut(n).enumerate() {
            row((k, &a.numbers[(task * rows + i) * a.strides[0]..], a.strides[1]), b, c);
        }
    });
}

/// `c = a · b` for one row of `a`, whose numbers are `a_step` apart.
fn row<T: Num>((k, a, a_step): (usize, &[T], usize), b: Matrix<'_, T>, c: &mut [T]) {
    c.fill(T::ZERO);
    for p in 0..k {
        let factor = a[p * a_step];
        let b_row = &b.numbers[p * b.strides[0]..];
        if b.strides[1] == 1 {
            c.iter_mut().zip(b_row).for_each(|(c, &b)| *c = c.plus(factor.times(b)));
        } else {
            c.iter_mut().enumerate().for_each(|(j, c)| *c = c.plus(factor.times(b_row[j * b.strides[1]])));
        }
    }
}
