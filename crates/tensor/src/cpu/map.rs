//! Elementwise loops.
//!
//! [`map1`], [`map2`] and [`map3`] write every element of a contiguous output, the first two past the caches if it is
//! large; [`update1`] and [`update2`] change the elements of a destination that may be strided. All sources have the
//! destination's shape (broadcasting is stride 0).
//!
//! Closures longer than a few operations need `#[inline(always)]`, or the compiler may call them once per element:
//! `map1(x, out, #[inline(always)] |x: f32| x.tanh())`.

use bytemuck::NoUninit;

use super::source::{Operand, SEGMENT, Scratch};
use super::walk::{Dims, Walk};
use super::{CpuView, Value, in_chunks, simd};
use crate::stream::{self, Stream};

/// `out[i] = f(x[i])`.
pub(crate) fn map1<A: Value, T: Value + NoUninit>(x: CpuView<'_, A>, out: &mut [T], f: impl Fn(A) -> T + Sync + Copy) {
    written1(out, x, &|out, x| {
        kernel1(
            out,
            x,
            #[inline(always)]
            move |out, x| *out = f(x),
        );
    });
}

/// `out[i] = f(a[i], b[i])`.
pub(crate) fn map2<A: Value, B: Value, T: Value + NoUninit>(
    a: CpuView<'_, A>,
    b: CpuView<'_, B>,
    out: &mut [T],
    f: impl Fn(A, B) -> T + Sync + Copy,
) {
    written2(out, (a, b), &|out, a, b| {
        kernel2(
            out,
            a,
            b,
            #[inline(always)]
            move |out, a, b| *out = f(a, b),
        );
    });
}

/// `out[i] = f(a[i], b[i], c[i])`.
pub(crate) fn map3<A: Value, B: Value, C: Value, T: Value>(
    a: CpuView<'_, A>,
    b: CpuView<'_, B>,
    c: CpuView<'_, C>,
    out: &mut [T],
    f: impl Fn(A, B, C) -> T + Sync + Copy,
) {
    changed3(out, (a, b, c), &|out, a, b, c| kernel3(out, a, b, c, f));
}

/// `f(&mut dst[i], x[i])`, where the element `i` of `dst` lies at `i · dst_strides`. No two elements may share a place.
pub(crate) fn update1<T: Value, A: Value>(
    dst: &mut [T],
    dst_shape: &[usize],
    dst_strides: &[usize],
    x: CpuView<'_, A>,
    f: impl Fn(&mut T, A) + Sync + Copy,
) {
    updated1(dst, (dst_shape, dst_strides), x, &|dst, x| kernel1(dst, x, f));
}

/// `f(&mut dst[i], a[i], b[i])`; see [`update1`].
pub(crate) fn update2<T: Value, A: Value, B: Value>(
    dst: &mut [T],
    dst_shape: &[usize],
    dst_strides: &[usize],
    a: CpuView<'_, A>,
    b: CpuView<'_, B>,
    f: impl Fn(&mut T, A, B) + Sync + Copy,
) {
    updated2(dst, (dst_shape, dst_strides), (a, b), &|dst, a, b| kernel2(dst, a, b, f));
}

// What follows walks through memory. It knows a formula as a function of pieces of some thousand elements, so that it is
// compiled for element types, and not once more for every formula.

/// Changes a piece of the destination by one of a source.
type Kernel1<'f, T, A> = &'f (dyn Fn(&mut [T], &[A]) + Sync);
/// The same by pieces of two sources.
type Kernel2<'f, T, A, B> = &'f (dyn Fn(&mut [T], &[A], &[B]) + Sync);
/// The same by pieces of three sources.
type Kernel3<'f, T, A, B, C> = &'f (dyn Fn(&mut [T], &[A], &[B], &[C]) + Sync);

/// Elements that are computed in the first-level cache before they are written past the caches.
const PIECE: usize = 1024;

/// Writes every element; past the caches, if there are many.
fn written1<T: Value + NoUninit, A: Value>(out: &mut [T], x: CpuView<'_, A>, kernel: Kernel1<'_, T, A>) {
    if !stream::is_large(out) {
        return changed1(out, x, kernel);
    }
    let x = Operand::new(x);
    let segment = x.segment().min(PIECE);
    in_chunks(out, |start, chunk| {
        let (mut x_room, mut piece) = (Scratch::new(), [chunk[0]; PIECE]);
        let (mut x, stream) = (x.open(start, segment, &mut x_room), Stream::new());
        for out in chunk.chunks_mut(segment) {
            let piece = &mut piece[..out.len()];
            kernel(piece, x.next(out.len()));
            stream.copy(out, piece);
        }
    });
}

fn written2<T: Value + NoUninit, A: Value, B: Value>(
    out: &mut [T],
    (a, b): (CpuView<'_, A>, CpuView<'_, B>),
    kernel: Kernel2<'_, T, A, B>,
) {
    if !stream::is_large(out) {
        return changed2(out, (a, b), kernel);
    }
    let (a, b) = (Operand::new(a), Operand::new(b));
    let segment = a.segment().min(b.segment()).min(PIECE);
    in_chunks(out, |start, chunk| {
        let (mut a_room, mut b_room, mut piece) = (Scratch::new(), Scratch::new(), [chunk[0]; PIECE]);
        let (mut a, mut b) = (a.open(start, segment, &mut a_room), b.open(start, segment, &mut b_room));
        let stream = Stream::new();
        for out in chunk.chunks_mut(segment) {
            let piece = &mut piece[..out.len()];
            kernel(piece, a.next(out.len()), b.next(out.len()));
            stream.copy(out, piece);
        }
    });
}

fn changed1<T: Value, A: Value>(dst: &mut [T], x: CpuView<'_, A>, kernel: Kernel1<'_, T, A>) {
    if dst.is_empty() {
        return;
    }
    let x = Operand::new(x);
    let segment = x.segment();
    in_chunks(dst, |start, chunk| {
        let mut x_room = Scratch::new();
        let mut x = x.open(start, segment, &mut x_room);
        chunk.chunks_mut(segment).for_each(|piece| kernel(piece, x.next(piece.len())));
    });
}

fn changed2<T: Value, A: Value, B: Value>(
    dst: &mut [T],
    (a, b): (CpuView<'_, A>, CpuView<'_, B>),
    kernel: Kernel2<'_, T, A, B>,
) {
    if dst.is_empty() {
        return;
    }
    let (a, b) = (Operand::new(a), Operand::new(b));
    let segment = a.segment().min(b.segment());
    in_chunks(dst, |start, chunk| {
        let (mut a_room, mut b_room) = (Scratch::new(), Scratch::new());
        let mut a = a.open(start, segment, &mut a_room);
        let mut b = b.open(start, segment, &mut b_room);
        for piece in chunk.chunks_mut(segment) {
            let len = piece.len();
            kernel(piece, a.next(len), b.next(len));
        }
    });
}

fn changed3<T: Value, A: Value, B: Value, C: Value>(
    dst: &mut [T],
    (a, b, c): (CpuView<'_, A>, CpuView<'_, B>, CpuView<'_, C>),
    kernel: Kernel3<'_, T, A, B, C>,
) {
    if dst.is_empty() {
        return;
    }
    let (a, b, c) = (Operand::new(a), Operand::new(b), Operand::new(c));
    let segment = a.segment().min(b.segment()).min(c.segment());
    in_chunks(dst, |start, chunk| {
        let (mut a_room, mut b_room) = (Scratch::new(), Scratch::new());
        let mut c_room = Scratch::new();
        let mut a = a.open(start, segment, &mut a_room);
        let mut b = b.open(start, segment, &mut b_room);
        let mut c = c.open(start, segment, &mut c_room);
        for piece in chunk.chunks_mut(segment) {
            let len = piece.len();
            kernel(piece, a.next(len), b.next(len), c.next(len));
        }
    });
}

fn updated1<T: Value, A: Value>(
    dst: &mut [T],
    (shape, strides): (&[usize], &[usize]),
    x: CpuView<'_, A>,
    kernel: Kernel1<'_, T, A>,
) {
    if shape.contains(&0) {
        return;
    }
    let dims = Dims::of(shape, strides);
    if dims.is_contiguous() {
        return changed1(&mut dst[..dims.len()], x, kernel);
    }
    let (x, mut x_room) = (Operand::new(x), Scratch::new());
    let segment = x.segment().min(SEGMENT);
    let mut x = x.open(0, segment, &mut x_room);
    scattered(dst, dims, segment, &mut |piece| kernel(piece, x.next(piece.len())));
}

fn updated2<T: Value, A: Value, B: Value>(
    dst: &mut [T],
    (shape, strides): (&[usize], &[usize]),
    (a, b): (CpuView<'_, A>, CpuView<'_, B>),
    kernel: Kernel2<'_, T, A, B>,
) {
    if shape.contains(&0) {
        return;
    }
    let dims = Dims::of(shape, strides);
    if dims.is_contiguous() {
        return changed2(&mut dst[..dims.len()], (a, b), kernel);
    }
    let (a, b) = (Operand::new(a), Operand::new(b));
    let (mut a_room, mut b_room) = (Scratch::new(), Scratch::new());
    let segment = a.segment().min(b.segment()).min(SEGMENT);
    let (mut a, mut b) = (a.open(0, segment, &mut a_room), b.open(0, segment, &mut b_room));
    scattered(dst, dims, segment, &mut |piece| kernel(piece, a.next(piece.len()), b.next(piece.len())));
}

/// Lets `work` change the elements of a strided destination, `segment` at a time, in a contiguous buffer.
fn scattered<T: Value>(dst: &mut [T], dims: Dims, segment: usize, work: &mut dyn FnMut(&mut [T])) {
    let mut buffer = [dst[0]; SEGMENT];
    let (mut from, mut to) = (Walk::starting_at(dims, 0), Walk::starting_at(dims, 0));
    let mut left = dims.len();
    while left > 0 {
        let piece = &mut buffer[..segment.min(left)];
        from.read(dst, piece);
        work(piece);
        to.write(dst, piece);
        left -= piece.len();
    }
}

#[inline]
fn kernel1<T, A: Value>(dst: &mut [T], x: &[A], f: impl Fn(&mut T, A)) {
    simd::vectorized(
        #[inline(always)]
        move || {
            for (dst, &x) in dst.iter_mut().zip(x) {
                f(dst, x);
            }
        },
    );
}

#[inline]
fn kernel2<T, A: Value, B: Value>(dst: &mut [T], a: &[A], b: &[B], f: impl Fn(&mut T, A, B)) {
    simd::vectorized(
        #[inline(always)]
        move || {
            for ((dst, &a), &b) in dst.iter_mut().zip(a).zip(b) {
                f(dst, a, b);
            }
        },
    );
}

#[inline]
fn kernel3<T, A: Value, B: Value, C: Value>(dst: &mut [T], a: &[A], b: &[B], c: &[C], f: impl Fn(A, B, C) -> T) {
    simd::vectorized(
        #[inline(always)]
        move || {
            for (((dst, &a), &b), &c) in dst.iter_mut().zip(a).zip(b).zip(c) {
                *dst = f(a, b, c);
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{Strided, same_shape, shape, strided};
    use super::*;

    proptest! {
        #[test]
        fn map1_matches_index_arithmetic(x in shape().prop_flat_map(strided)) {
            let mut out = vec![0.0; x.len()];
            map1(x.view(), &mut out, |x: i32| f64::from(x) * 2.0);
            let expected: Vec<f64> = x.values().iter().map(|&x| f64::from(x) * 2.0).collect();
            prop_assert_eq!(out, expected);
        }

        #[test]
        fn map2_matches_index_arithmetic([a, b] in same_shape::<2>()) {
            let mut out = vec![0; a.len()];
            map2(a.view(), b.view(), &mut out, |a, b| 3 * a - b);
            let expected: Vec<i32> = a.values().iter().zip(b.values()).map(|(&a, b)| 3 * a - b).collect();
            prop_assert_eq!(out, expected);
        }

        #[test]
        fn map3_matches_index_arithmetic([a, b, c] in same_shape::<3>()) {
            let mut out = vec![0; a.len()];
            map3(a.view(), b.view(), c.view(), &mut out, |a, b, c| if a > 0 { b } else { c - 1 });
            let (a, b, c) = (a.values(), b.values(), c.values());
            let expected: Vec<i32> = (0..a.len()).map(|i| if a[i] > 0 { b[i] } else { c[i] - 1 }).collect();
            prop_assert_eq!(out, expected);
        }

        #[test]
        fn update1_changes_the_window_and_nothing_else([dst, x] in same_shape::<2>()) {
            let dst = dst.without_broadcasts();
            let (mut data, mut expected) = (dst.data.clone(), dst.data.clone());
            update1(&mut data, &dst.shape, &dst.strides, x.view(), |dst: &mut i32, x| *dst += 5 * x);
            for (offset, x) in dst.offsets().into_iter().zip(x.values()) {
                expected[offset] += 5 * x;
            }
            prop_assert_eq!(data, expected);
        }

        #[test]
        fn update2_changes_the_window_and_nothing_else([dst, a, b] in same_shape::<3>()) {
            let dst = dst.without_broadcasts();
            let (mut data, mut expected) = (dst.data.clone(), dst.data.clone());
            update2(&mut data, &dst.shape, &dst.strides, a.view(), b.view(), |dst: &mut i32, a, b| *dst += a * b);
            for ((offset, a), b) in dst.offsets().into_iter().zip(a.values()).zip(b.values()) {
                expected[offset] += a * b;
            }
            prop_assert_eq!(data, expected);
        }
    }

    #[test]
    fn results_that_are_written_past_the_caches_match_index_arithmetic() {
        let (rows, columns) = (60_001, 70);
        let x = Strided::new(vec![rows, columns], vec![columns, 1]);
        let row = Strided::new(vec![rows, columns], vec![0, 1]);
        let mut out = vec![0_i64; rows * columns];
        assert!(stream::is_large(&out));

        map1(x.view(), &mut out, |x| i64::from(x) - 7);
        assert!((0..out.len()).all(|i| out[i] == i64::from(x.data[i]) - 7));

        map2(x.view(), row.view(), &mut out, |x, row| i64::from(3 * x - row));
        assert!((0..out.len()).all(|i| out[i] == i64::from(3 * x.data[i] - row.data[i % columns])));
    }

    #[test]
    fn operands_with_different_periods_and_many_chunks_match_index_arithmetic() {
        let (rows, columns) = (1_500, 70);
        let row = Strided::new(vec![rows, columns], vec![0, 1]);
        let scalar = Strided::new(vec![rows, columns], vec![0, 0]);
        let column = Strided::new(vec![rows, columns], vec![1, 0]);
        let mut out = vec![0; rows * columns];

        map3(row.view(), scalar.view(), column.view(), &mut out, |a, b, c| a + 10 * b + 100 * c);

        let expected = |i: usize| row.data[i % columns] + 10 * scalar.data[0] + 100 * column.data[i / columns];
        assert!((0..out.len()).all(|i| out[i] == expected(i)));
    }
}
