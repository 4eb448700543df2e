//! Elementwise loops.
//!
//! [`map1`], [`map2`] and [`map3`] write every element of a contiguous output, past the caches if it is large; [`update1`] and [`update2`] change the elements of a destination that may be strided. All sources have the
//! destination's shape (broadcasting is stride 0).
//!
//! Closures longer than a few operations need `#[inline(always)]`, or the compiler may call them once per element:
//! `map1(x, out, #[inline(always)] |x: f32| x.tanh())`.

use super::source::{Operand, SEGMENT, Scratch};
use super::walk::{Dims, Walk};
use super::{CHUNK, CpuView, PIECE, StoredMut, Value, simd};
use crate::element::Computing;
use crate::stream::{self, Stream};

/// `out[i] = f(x[i])`.
pub(crate) fn map1<A: Computing, T: Computing>(
    x: CpuView<'_, A>,
    out: StoredMut<'_, T>,
    f: impl Fn(A) -> T + Sync + Copy,
) {
    written1(out, x, &|out, x| {
        kernel1(
            out,
            x,
            #[inline(always)]
            move |out, x| *out = f(x),
        );
    });
}

/// [`map1`] of exponentials, logarithms and what is made of them.
pub(crate) fn map1_long<A: Computing, T: Computing>(
    x: CpuView<'_, A>,
    out: StoredMut<'_, T>,
    f: impl Fn(A) -> T + Sync + Copy,
) {
    written1(out, x, &|out, x| {
        simd::vectorized_widely(
            #[inline(always)]
            || out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(x)),
        );
    });
}

/// `out[i] = f(a[i], b[i])`.
pub(crate) fn map2<A: Computing, B: Computing, T: Computing>(
    a: CpuView<'_, A>,
    b: CpuView<'_, B>,
    out: StoredMut<'_, T>,
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
pub(crate) fn map3<A: Computing, B: Computing, C: Computing, T: Computing>(
    a: CpuView<'_, A>,
    b: CpuView<'_, B>,
    c: CpuView<'_, C>,
    out: StoredMut<'_, T>,
    f: impl Fn(A, B, C) -> T + Sync + Copy,
) {
    written3(out, (a, b, c), &|out, a, b, c| kernel3(out, a, b, c, f));
}

/// `f(&mut dst[i], x[i])`, where the element `i` of `dst` lies at `i · dst_strides`. No two elements may share a place.
pub(crate) fn update1<T: Computing, A: Computing>(
    dst: StoredMut<'_, T>,
    dst_shape: &[usize],
    dst_strides: &[usize],
    x: CpuView<'_, A>,
    f: impl Fn(&mut T, A) + Sync + Copy,
) {
    updated1(dst, (dst_shape, dst_strides), x, &|dst, x| kernel1(dst, x, f));
}

/// `f(&mut dst[i], a[i], b[i])`; see [`update1`].
pub(crate) fn update2<T: Computing, A: Computing, B: Computing>(
    dst: StoredMut<'_, T>,
    dst_shape: &[usize],
    dst_strides: &[usize],
    a: CpuView<'_, A>,
    b: CpuView<'_, B>,
    f: impl Fn(&mut T, A, B) + Sync + Copy,
) {
    updated2(dst, (dst_shape, dst_strides), (a, b), &|dst, a, b| kernel2(dst, a, b, f));
}

// What follows walks through memory. It knows a formula as a function of pieces of some hundred elements, so that it is
// compiled for computing types, and not once more for every formula.

/// Changes a piece of the destination by one of a source.
type Kernel1<'f, T, A> = &'f (dyn Fn(&mut [T], &[A]) + Sync);
/// The same by pieces of two sources.
type Kernel2<'f, T, A, B> = &'f (dyn Fn(&mut [T], &[A], &[B]) + Sync);
/// The same by pieces of three sources.
type Kernel3<'f, T, A, B, C> = &'f (dyn Fn(&mut [T], &[A], &[B], &[C]) + Sync);

/// What becomes of the elements of a contiguous destination.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// They are written, with unspecified values before.
    Write,
    /// The same, past the caches.
    Stream,
    /// They are changed.
    Change,
}

impl Way {
    /// Written past the caches, if there are many.
    fn to_write<T>(out: &StoredMut<'_, T>) -> Way {
        let is_large = match out {
            StoredMut::Plain(out) => stream::is_large(out),
            StoredMut::Halves(out, _) => stream::is_large(out),
        };
        if is_large { Way::Stream } else { Way::Write }
    }

    /// The longest piece of the destination.
    fn segment<T>(self, dst: &StoredMut<'_, T>) -> usize {
        match dst {
            StoredMut::Halves(..) => SEGMENT,
            StoredMut::Plain(_) if self == Way::Stream => PIECE,
            StoredMut::Plain(_) => usize::MAX,
        }
    }

    /// Calls `work` for pieces of `segment` elements, in the type that they compute in.
    fn each<T: Computing>(self, dst: StoredMut<'_, T>, segment: usize, work: &mut dyn FnMut(&mut [T])) {
        match dst {
            StoredMut::Plain(dst) if self == Way::Stream => {
                let (stream, mut room) = (Stream::new(), [T::ZERO; PIECE]);
                for dst in dst.chunks_mut(segment) {
                    let piece = &mut room[..dst.len()];
                    work(piece);
                    stream.copy(dst, piece);
                }
            }
            StoredMut::Plain(dst) => dst.chunks_mut(segment).for_each(work),
            StoredMut::Halves(dst, half) => {
                let stream = (self == Way::Stream).then(Stream::new);
                let (mut room, mut rounded) = ([T::ZERO; SEGMENT], [0; SEGMENT]);
                for dst in dst.chunks_mut(segment) {
                    let piece = &mut room[..dst.len()];
                    if self == Way::Change {
                        half.widen(dst, T::f32s(piece));
                    }
                    work(piece);
                    match &stream {
                        Some(stream) => {
                            half.narrow(T::f32s(piece), &mut rounded);
                            stream.copy(dst, &rounded[..dst.len()]);
                        }
                        None => half.narrow(T::f32s(piece), dst),
                    }
                }
            }
        }
    }
}

fn written1<T: Computing, A: Computing>(out: StoredMut<'_, T>, x: CpuView<'_, A>, kernel: Kernel1<'_, T, A>) {
    contiguous1(Way::to_write(&out), out, x, kernel);
}

fn written2<T: Computing, A: Computing, B: Computing>(
    out: StoredMut<'_, T>,
    sources: (CpuView<'_, A>, CpuView<'_, B>),
    kernel: Kernel2<'_, T, A, B>,
) {
    contiguous2(Way::to_write(&out), out, sources, kernel);
}

fn contiguous1<T: Computing, A: Computing>(
    way: Way,
    dst: StoredMut<'_, T>,
    x: CpuView<'_, A>,
    kernel: Kernel1<'_, T, A>,
) {
    if dst.len() == 0 {
        return;
    }
    let x = Operand::new(x);
    let segment = x.segment().min(way.segment(&dst));
    dst.for_each_chunk(CHUNK, &|i, chunk| {
        let mut x_room = Scratch::new();
        let mut x = x.open(i * CHUNK, segment, &mut x_room);
        way.each(chunk, segment, &mut |piece| kernel(piece, x.next(piece.len())));
    });
}

fn contiguous2<T: Computing, A: Computing, B: Computing>(
    way: Way,
    dst: StoredMut<'_, T>,
    (a, b): (CpuView<'_, A>, CpuView<'_, B>),
    kernel: Kernel2<'_, T, A, B>,
) {
    if dst.len() == 0 {
        return;
    }
    let (a, b) = (Operand::new(a), Operand::new(b));
    let segment = a.segment().min(b.segment()).min(way.segment(&dst));
    dst.for_each_chunk(CHUNK, &|i, chunk| {
        let (mut a_room, mut b_room) = (Scratch::new(), Scratch::new());
        let mut a = a.open(i * CHUNK, segment, &mut a_room);
        let mut b = b.open(i * CHUNK, segment, &mut b_room);
        way.each(chunk, segment, &mut |piece| kernel(piece, a.next(piece.len()), b.next(piece.len())));
    });
}

fn written3<T: Computing, A: Computing, B: Computing, C: Computing>(
    out: StoredMut<'_, T>,
    (a, b, c): (CpuView<'_, A>, CpuView<'_, B>, CpuView<'_, C>),
    kernel: Kernel3<'_, T, A, B, C>,
) {
    if out.len() == 0 {
        return;
    }
    let way = Way::to_write(&out);
    let (a, b, c) = (Operand::new(a), Operand::new(b), Operand::new(c));
    let segment = a.segment().min(b.segment()).min(c.segment()).min(way.segment(&out));
    out.for_each_chunk(CHUNK, &|i, chunk| {
        let (mut a_room, mut b_room, mut c_room) = (Scratch::new(), Scratch::new(), Scratch::new());
        let mut a = a.open(i * CHUNK, segment, &mut a_room);
        let mut b = b.open(i * CHUNK, segment, &mut b_room);
        let mut c = c.open(i * CHUNK, segment, &mut c_room);
        way.each(chunk, segment, &mut |piece| {
            let len = piece.len();
            kernel(piece, a.next(len), b.next(len), c.next(len));
        });
    });
}

fn updated1<T: Computing, A: Computing>(
    mut dst: StoredMut<'_, T>,
    (shape, strides): (&[usize], &[usize]),
    x: CpuView<'_, A>,
    kernel: Kernel1<'_, T, A>,
) {
    if shape.contains(&0) {
        return;
    }
    let dims = Dims::of(shape, strides);
    if dims.is_contiguous() {
        return contiguous1(Way::Change, dst.part(0, dims.len()), x, kernel);
    }
    let (x, mut x_room) = (Operand::new(x), Scratch::new());
    let segment = x.segment().min(SEGMENT);
    let mut x = x.open(0, segment, &mut x_room);
    scattered(dst, dims, segment, &mut |piece| kernel(piece, x.next(piece.len())));
}

fn updated2<T: Computing, A: Computing, B: Computing>(
    mut dst: StoredMut<'_, T>,
    (shape, strides): (&[usize], &[usize]),
    (a, b): (CpuView<'_, A>, CpuView<'_, B>),
    kernel: Kernel2<'_, T, A, B>,
) {
    if shape.contains(&0) {
        return;
    }
    let dims = Dims::of(shape, strides);
    if dims.is_contiguous() {
        return contiguous2(Way::Change, dst.part(0, dims.len()), (a, b), kernel);
    }
    let (a, b) = (Operand::new(a), Operand::new(b));
    let (mut a_room, mut b_room) = (Scratch::new(), Scratch::new());
    let segment = a.segment().min(b.segment()).min(SEGMENT);
    let (mut a, mut b) = (a.open(0, segment, &mut a_room), b.open(0, segment, &mut b_room));
    scattered(dst, dims, segment, &mut |piece| kernel(piece, a.next(piece.len()), b.next(piece.len())));
}

/// Lets `work` change the elements of a strided destination, `segment` at a time, in a contiguous buffer.
fn scattered<T: Computing>(dst: StoredMut<'_, T>, dims: Dims, segment: usize, work: &mut dyn FnMut(&mut [T])) {
    match dst {
        StoredMut::Plain(dst) => pieces(dst, dims, segment, work),
        StoredMut::Halves(dst, half) => pieces(dst, dims, segment, &mut |bits| {
            Way::Change.each(StoredMut::Halves(bits, half), segment, work);
        }),
    }
}

fn pieces<B: Value>(dst: &mut [B], dims: Dims, segment: usize, work: &mut dyn FnMut(&mut [B])) {
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
            map1(x.view(), out.as_mut_slice().into(), |x: i32| f64::from(x) * 2.0);
            let expected: Vec<f64> = x.values().iter().map(|&x| f64::from(x) * 2.0).collect();
            prop_assert_eq!(out, expected);
        }

        #[test]
        fn map2_matches_index_arithmetic([a, b] in same_shape::<2>()) {
            let mut out = vec![0; a.len()];
            map2(a.view(), b.view(), out.as_mut_slice().into(), |a, b| 3 * a - b);
            let expected: Vec<i32> = a.values().iter().zip(b.values()).map(|(&a, b)| 3 * a - b).collect();
            prop_assert_eq!(out, expected);
        }

        #[test]
        fn map3_matches_index_arithmetic([a, b, c] in same_shape::<3>()) {
            let mut out = vec![0; a.len()];
            map3(a.view(), b.view(), c.view(), out.as_mut_slice().into(), |a, b, c| if a > 0 { b } else { c - 1 });
            let (a, b, c) = (a.values(), b.values(), c.values());
            let expected: Vec<i32> = (0..a.len()).map(|i| if a[i] > 0 { b[i] } else { c[i] - 1 }).collect();
            prop_assert_eq!(out, expected);
        }

        #[test]
        fn update1_changes_the_window_and_nothing_else([dst, x] in same_shape::<2>()) {
            let dst = dst.without_broadcasts();
            let (mut data, mut expected) = (dst.data.clone(), dst.data.clone());
            update1(data.as_mut_slice().into(), &dst.shape, &dst.strides, x.view(), |dst: &mut i32, x| *dst += 5 * x);
            for (offset, x) in dst.offsets().into_iter().zip(x.values()) {
                expected[offset] += 5 * x;
            }
            prop_assert_eq!(data, expected);
        }

        #[test]
        fn update2_changes_the_window_and_nothing_else([dst, a, b] in same_shape::<3>()) {
            let dst = dst.without_broadcasts();
            let (mut data, mut expected) = (dst.data.clone(), dst.data.clone());
            update2(data.as_mut_slice().into(), &dst.shape, &dst.strides, a.view(), b.view(), |dst: &mut i32, a, b| *dst += a * b);
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

        map1(x.view(), out.as_mut_slice().into(), |x| i64::from(x) - 7);
        assert!((0..out.len()).all(|i| out[i] == i64::from(x.data[i]) - 7));

        map2(x.view(), row.view(), out.as_mut_slice().into(), |x, row| i64::from(3 * x - row));
        assert!((0..out.len()).all(|i| out[i] == i64::from(3 * x.data[i] - row.data[i % columns])));
    }

    #[test]
    fn operands_with_different_periods_and_many_chunks_match_index_arithmetic() {
        let (rows, columns) = (1_500, 70);
        let row = Strided::new(vec![rows, columns], vec![0, 1]);
        let scalar = Strided::new(vec![rows, columns], vec![0, 0]);
        let column = Strided::new(vec![rows, columns], vec![1, 0]);
        let mut out = vec![0; rows * columns];

        map3(row.view(), scalar.view(), column.view(), out.as_mut_slice().into(), |a, b, c| a + 10 * b + 100 * c);

        let expected = |i: usize| row.data[i % columns] + 10 * scalar.data[0] + 100 * column.data[i / columns];
        assert!((0..out.len()).all(|i| out[i] == expected(i)));
    }
}
