//! Products in which all elements of a line are multiplied by the same number: outer products, and scaled rows.
//!
//! [`map2`] would first copy the number into a buffer, once for each element of the line. That takes as long as the
//! product.

use super::map::{map2, map3};
use super::math::half::{BLOCK, Block, InAnyOrder, Registers, Wide, by_half};
use super::strided_zip::{Lines, StridedZip};
use super::walk::contiguous_strides;
use super::{CHUNK, CpuView, Stored, StoredMut, simd};
use crate::element::Num;
use crate::inlined::{Array, Slice, zip};
use crate::non_temporal;

/// How many elements are multiplied at a time. Shorter lines are left to [`map2`] and [`map3`].
const GROUP: usize = 16;
/// A common length of lines. Their loop is compiled for this length, which halves its time.
const COMMON_LEN: usize = 64;

/// [`map2`] for a commutative product.
pub(crate) fn map2_product<T: Num>(
    a: CpuView<'_, T>,
    b: CpuView<'_, T>,
    mut out: StoredMut<'_, T>,
    multiply: impl Fn(T, T) -> T + Sync + Copy,
) {
    if !scale_lines(a, b, &mut out, multiply) && !scale_lines(b, a, &mut out, multiply) {
        map2(a, b, out, multiply);
    }
}

/// `out[i] = multiply(a[i], b[i])`, if `a` repeats one number along each line and `b` is contiguous along lines.
/// Otherwise does nothing and returns `false`.
fn scale_lines<T: Num>(
    a: CpuView<'_, T>,
    b: CpuView<'_, T>,
    out: &mut StoredMut<'_, T>,
    multiply: impl Fn(T, T) -> T + Sync + Copy,
) -> bool {
    if a.shape.contains(&0) {
        return false;
    }
    let sides = StridedZip::of(a.shape, [&contiguous_strides(a.shape), a.strides, b.strides]);
    let (len, steps) = sides.line();
    if steps != [1, 0, 1] || len < GROUP || len == out.len() {
        return false;
    }
    match (a.data, b.data, out) {
        (Stored::Plain(a), Stored::Plain(b), StoredMut::Plain(out)) if !non_temporal::is_large(out) => {
            sides.in_parts(out, CHUNK, |out, [_, a_start, b_start], sides| {
                sides.each(|lines| scale(out, (&a[a_start..], &b[b_start..]), lines, multiply));
            });
            true
        }
        (Stored::Halves(a, of_a), Stored::Halves(b, of_b), StoredMut::Halves(out, half))
            if T::HAS_HALVES && [of_a, of_b] == [*half; 2] && len >= BLOCK && !non_temporal::is_large(out) =>
        {
            let Some(wide) = Wide::new(*half) else { return false };
            by_half!(if T::HAS_HALVES, wide, registers => scale_halves(registers, out, (a, b), &sides, multiply));
            true
        }
        _ => false,
    }
}

/// [`scale_lines`] for halves. Lines longer than a task are split, and the last part of a line may be shorter than a
/// block.
fn scale_halves<T: Num>(
    registers: impl Registers + Sync,
    out: &mut [u16],
    (a, b): (&[u16], &[u16]),
    sides: &StridedZip<3>,
    multiply: impl Fn(T, T) -> T + Sync + Copy,
) {
    sides.in_parts(out, CHUNK, |out, [_, a_start, b_start], sides| {
        let (a, b) = (&a[a_start..], &b[b_start..]);
        sides.each(|lines| {
            registers.vectorized(inlined!(|| {
                for line in 0..lines.count {
                    let [to, number, from] = lines.beginnings(line);
                    let numbers = T::widened(InAnyOrder(registers), &[a[number]; BLOCK]);
                    let (out, b) = (&mut out[to..][..lines.len], &b[from..][..lines.len]);
                    for (out, b) in zip(out.as_chunks_mut().0, b.as_chunks().0) {
                        *out = scaled_block(registers, &numbers, b, multiply);
                    }
                    // The elements after the last whole block are computed with a block that ends where the line
                    // ends, and overlaps the last whole block.
                    match (out.last_chunk_mut(), b.last_chunk()) {
                        _ if lines.len.is_multiple_of(BLOCK) => {}
                        (Some(out), Some(b)) => *out = scaled_block(registers, &numbers, b, multiply),
                        _ => {
                            let mut padded = [0; BLOCK];
                            padded[..lines.len].copy_from(b);
                            out.copy_from(&scaled_block(registers, &numbers, &padded, multiply)[..lines.len]);
                        }
                    }
                }
            }));
        });
    });
}

#[inline(always)]
fn scaled_block<T: Num>(
    registers: impl Registers,
    numbers: &[T; BLOCK],
    block: &Block,
    multiply: impl Fn(T, T) -> T,
) -> Block {
    let registers = InAnyOrder(registers);
    let mut product = T::widened(registers, block);
    for (x, &number) in zip(&mut product[..], numbers) {
        *x = multiply(number, *x);
    }
    T::narrowed(registers, &product)
}

/// [`map3`] for a sum of the first operand and a product of the other two.
pub(crate) fn map3_product<T: Num>(
    x: CpuView<'_, T>,
    a: CpuView<'_, T>,
    b: CpuView<'_, T>,
    mut out: StoredMut<'_, T>,
    f: impl Fn(T, T, T) -> T + Sync + Copy,
) {
    if !add_scaled_lines([x, a, b], &mut out, f) {
        map3(x, a, b, out, f);
    }
}

/// `out[i] = f(x[i], a[i], b[i])`, if `a` repeats one number along each line and the others are contiguous along
/// lines. Otherwise, and for halves, does nothing and returns `false`.
fn add_scaled_lines<T: Num>(
    [x, a, b]: [CpuView<'_, T>; 3],
    out: &mut StoredMut<'_, T>,
    f: impl Fn(T, T, T) -> T + Sync + Copy,
) -> bool {
    let ([Stored::Plain(x_data), Stored::Plain(a_data), Stored::Plain(b_data)], StoredMut::Plain(out)) =
        ([x, a, b].mapped(|view| view.data), out)
    else {
        return false;
    };
    if out.is_empty() || non_temporal::is_large(out) {
        return false;
    }
    let sides = StridedZip::of(x.shape, [&contiguous_strides(x.shape), x.strides, a.strides, b.strides]);
    let (len, steps) = sides.line();
    if steps != [1, 1, 0, 1] || len < GROUP || len == out.len() {
        return false;
    }
    sides.in_parts(out, CHUNK, |out, [_, x_start, a_start, b_start], sides| {
        let (x, a, b) = (&x_data[x_start..], &a_data[a_start..], &b_data[b_start..]);
        sides.each(|lines| add_scaled(out, (x, a, b), lines, f));
    });
    true
}

fn add_scaled<T: Num>(out: &mut [T], (x, a, b): (&[T], &[T], &[T]), lines: Lines<4>, f: impl Fn(T, T, T) -> T) {
    if lines.len == COMMON_LEN {
        return simd::vectorized_widely(inlined!(|| add_scaled_common(out, (x, a, b), lines, f)));
    }
    simd::vectorized(inlined!(|| {
        for line in 0..lines.count {
            let [to, from, number, other] = lines.beginnings(line);
            let (number, out) = (a[number], &mut out[to..][..lines.len]);
            let (x, b) = (&x[from..][..lines.len], &b[other..][..lines.len]);
            let (blocks, rest) = out.as_chunks_mut::<GROUP>();
            let (x_blocks, x_rest) = x.as_chunks::<GROUP>();
            let (b_blocks, b_rest) = b.as_chunks::<GROUP>();
            for ((out, x), b) in zip(zip(&mut blocks[..], x_blocks), b_blocks) {
                // Computes on a copy, since the compiler does not know that `out` and `b` do not overlap.
                let mut sum = *x;
                for (sum, &b) in zip(&mut sum[..], b) {
                    *sum = f(*sum, number, b);
                }
                *out = sum;
            }
            for ((out, &x), &b) in zip(zip(&mut rest[..], x_rest), b_rest) {
                *out = f(x, number, b);
            }
        }
    }));
}

/// [`add_scaled`] for lines of [`COMMON_LEN`] elements.
#[inline(always)]
fn add_scaled_common<T: Num>(out: &mut [T], (x, a, b): (&[T], &[T], &[T]), lines: Lines<4>, f: impl Fn(T, T, T) -> T) {
    for line in 0..lines.count {
        let [to, from, number, other] = lines.beginnings(line);
        let (Some(out), Some(x), Some(b)) = (
            out[to..].first_chunk_mut::<COMMON_LEN>(),
            x[from..].first_chunk::<COMMON_LEN>(),
            b[other..].first_chunk::<COMMON_LEN>(),
        ) else {
            unreachable!("each line is inside its tensor");
        };
        let (number, mut sum) = (a[number], *x);
        for (sum, &b) in zip(&mut sum[..], b) {
            *sum = f(*sum, number, b);
        }
        *out = sum;
    }
}

fn scale<T: Num>(out: &mut [T], (a, b): (&[T], &[T]), lines: Lines<3>, multiply: impl Fn(T, T) -> T) {
    if lines.len == COMMON_LEN {
        return simd::vectorized_widely(inlined!(|| scale_common(out, (a, b), lines, multiply)));
    }
    simd::vectorized(inlined!(|| {
        for line in 0..lines.count {
            let [to, number, from] = lines.beginnings(line);
            let (number, out, b) = (a[number], &mut out[to..][..lines.len], &b[from..][..lines.len]);
            let (blocks, rest) = out.as_chunks_mut::<GROUP>();
            for (out, b) in zip(&mut blocks[..], b.as_chunks::<GROUP>().0) {
                // Computes on a copy, since the compiler does not know that `out` and `b` do not overlap.
                let mut product = *b;
                for x in &mut product {
                    *x = multiply(number, *x);
                }
                *out = product;
            }
            let start = b.len() - rest.len();
            for (out, &b) in zip(&mut rest[..], &b[start..]) {
                *out = multiply(number, b);
            }
        }
    }));
}

/// [`scale`] for lines of [`COMMON_LEN`] elements.
#[inline(always)]
fn scale_common<T: Num>(out: &mut [T], (a, b): (&[T], &[T]), lines: Lines<3>, multiply: impl Fn(T, T) -> T) {
    for line in 0..lines.count {
        let [to, number, from] = lines.beginnings(line);
        let (Some(out), Some(b)) = (out[to..].first_chunk_mut::<COMMON_LEN>(), b[from..].first_chunk::<COMMON_LEN>())
        else {
            unreachable!("each line is inside its tensor");
        };
        let (number, mut product) = (a[number], *b);
        for x in &mut product {
            *x = multiply(number, *x);
        }
        *out = product;
    }
}
