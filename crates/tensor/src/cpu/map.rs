//! Elementwise loops.
//!
//! [`map1`], [`map2`] and [`map3`] write every element of a contiguous output, by non-temporal stores if it is large.
//! [`update`] changes the elements of a destination that may be strided. All sources have the destination's shape
//! (broadcasting is stride 0).
//!
//! A formula becomes a [`Kernel`]: a loop over numbers, and one over halves, which are widened, computed and rounded in
//! registers. Closures longer than a few operations need `#[inline(always)]`, or the compiler may call them once per
//! element: `map1(x, out, #[inline(always)] |x: f32| x.tanh())`.

use bytemuck::{NoUninit, Pod};

use super::copy::chunk_of;
use super::kernel::{Halves, Kernel, loop_over, of_halves};
use super::mixed_orders::Blocks;
use super::narrowed::{common_rows, write_rows};
use super::source::{AlignedBuffer, Operand, Repeated, SEGMENT, Scratch, Source};
use super::walk::{Dims, Walk};
use super::{CHUNK, CpuView, PIECE, Stored, StoredMut, simd};
use crate::element::Computing;
use crate::inlined::{Array, Slice, zip};
use crate::non_temporal::{self, NonTemporal};

/// `maps! { docs; name = write(operands); }`: loops that set `out[i]` to a formula of the operands' elements `i`.
macro_rules! maps {
    ($($(#[$doc:meta])* $name:ident = $write:ident($($x:ident: $Element:ident),+);)+) => {$(
        $(#[$doc])*
        pub(crate) fn $name<A: Computing, T: Computing>(
            $($x: CpuView<'_, A>,)+
            out: StoredMut<'_, T>,
            f: impl Fn($($Element),+) -> T + Sync + Copy,
        ) {
            $write(out, [$($x),+], #[inline(always)] move |out, [$($x),+]| *out = f($($x),+));
        }
    )+};
}

maps! {
    /// `out[i] = f(x[i])`.
    map1 = write(x: A);
    /// `out[i] = f(a[i], b[i])`.
    map2 = write(a: A, b: A);
    /// `out[i] = f(a[i], b[i], c[i])`.
    map3 = write(a: A, b: A, c: A);
    /// [`map1`] for formulas with exponentials or logarithms.
    map1_long = write_long(x: A);
    /// [`map2`] for formulas with exponentials or logarithms.
    map2_long = write_long(a: A, b: A);
    /// [`map3`] for formulas with exponentials or logarithms.
    map3_long = write_long(a: A, b: A, c: A);
    /// [`map1_long`] for a formula that needs all registers for one vector.
    map1_longest = write_longest(x: A);
    /// [`map2_long`] for a formula that needs all registers for one vector.
    map2_longest = write_longest(a: A, b: A);
}

/// `out[i] = x[i]`, converted through the computing type: halves are widened, results rounded, or both.
pub(crate) fn convert<T: Computing>(x: CpuView<'_, T>, out: StoredMut<'_, T>) {
    contiguous(Way::to_write(&out), out, [x], &|dst, &[x]| match (dst, x) {
        (StoredMut::Plain(dst), Stored::Plain(x)) => dst.copy_from(x),
        (StoredMut::Plain(dst), Stored::Halves(x, half)) => half.widen(x, T::f32s(dst)),
        (StoredMut::Halves(dst, half), x) => {
            let mut buffer = [T::ZERO; PIECE];
            for (i, dst) in dst.chunks_mut(PIECE).enumerate() {
                let x = x.part(i * PIECE, dst.len()).widened(&mut buffer);
                half.narrow(T::as_f32s(x), dst);
            }
        }
    });
}

/// `kernel!(f, vectorized, LONG, changes)`: the loops of a formula, of halves also with [`of_halves`].
macro_rules! kernel {
    ($f:ident, $vectorized:ident, $LONG:literal, $changes:literal) => {
        Kernel {
            numbers: &|dst, x| simd::$vectorized(loop_over(dst, x, $f)),
            halves: Halves::Registers(&|wide, dst, x| of_halves::<$LONG, _, _, N>(wide, dst, x, $f)),
            changes: $changes,
        }
    };
}

/// `f(&mut dst[i], [a[i], b[i], …])`, where element `i` of `dst` is at offset `i · strides`. No two elements may have
/// the same offset.
pub(crate) fn update<T: Computing, A: Computing, const N: usize>(
    dst: StoredMut<'_, T>,
    shape: &[usize],
    strides: &[usize],
    sources: [CpuView<'_, A>; N],
    f: impl Fn(&mut T, [A; N]) + Sync + Copy,
) {
    updated(dst, (shape, strides), sources, kernel!(f, vectorized, false, true));
}

#[inline(always)]
fn write<T: Computing, A: Computing, const N: usize>(
    out: StoredMut<'_, T>,
    sources: [CpuView<'_, A>; N],
    f: impl Fn(&mut T, [A; N]) + Sync + Copy,
) {
    written(out, sources, kernel!(f, vectorized, false, false));
}

#[inline(always)]
fn write_long<T: Computing, A: Computing, const N: usize>(
    out: StoredMut<'_, T>,
    sources: [CpuView<'_, A>; N],
    f: impl Fn(&mut T, [A; N]) + Sync + Copy,
) {
    written(out, sources, kernel!(f, vectorized_widely, true, false));
}

#[inline(always)]
fn write_longest<T: Computing, A: Computing, const N: usize>(
    out: StoredMut<'_, T>,
    sources: [CpuView<'_, A>; N],
    f: impl Fn(&mut T, [A; N]) + Sync + Copy,
) {
    let numbers = &|dst: &mut [T], x: &[&[A]; N]| simd::vectorized_widely(loop_over(dst, x, f));
    written(out, sources, Kernel { numbers, halves: Halves::Numbers, changes: false });
}

/// The fewest elements for which looking for blocks pays off.
const MANY: usize = 4096;

// The code below iterates over memory. It takes a formula as a function of pieces of some hundred elements, so that
// it is compiled once per computing type, and not once per formula.

/// How the elements of a contiguous destination are written.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Way {
    /// They are overwritten. Their previous values are unspecified.
    Write,
    /// They are overwritten by non-temporal stores.
    NonTemporal,
    /// They are read and changed.
    Change,
}

impl Way {
    /// By non-temporal stores, if there are many.
    pub(super) fn to_write<T>(out: &StoredMut<'_, T>) -> Way {
        let is_large = match out {
            StoredMut::Plain(out) => non_temporal::is_large(out),
            StoredMut::Halves(out, _) => non_temporal::is_large(out),
        };
        if is_large { Way::NonTemporal } else { Way::Write }
    }

    /// Calls `work` for pieces, the first of at most `len` elements. `work` returns the limit for the next piece.
    fn each<T: Computing>(self, dst: StoredMut<'_, T>, len: usize, work: &mut dyn FnMut(StoredMut<'_, T>) -> usize) {
        match dst {
            StoredMut::Plain(dst) if self == Way::NonTemporal => {
                streamed(dst, len, &mut AlignedBuffer([T::ZERO; PIECE]).0, |piece| work(StoredMut::Plain(piece)));
            }
            StoredMut::Halves(dst, half) if self == Way::NonTemporal => {
                streamed(dst, len, &mut AlignedBuffer([0; PIECE]).0, |piece| work(StoredMut::Halves(piece, half)));
            }
            mut dst => {
                let (mut start, mut len) = (0, len);
                while start < dst.len() {
                    let end = dst.len().min(start + len);
                    len = work(dst.part(start, end - start));
                    start = end;
                }
            }
        }
    }
}

/// [`Way::each`] by non-temporal stores: pieces are written to `buffer`, which is as long as the longest, and copied to
/// `dst`.
fn streamed<B: NoUninit>(mut dst: &mut [B], mut len: usize, buffer: &mut [B], mut work: impl FnMut(&mut [B]) -> usize) {
    let stream = NonTemporal::new();
    while !dst.is_empty() {
        let (now, rest) = dst.split_at_mut(len.min(dst.len()));
        let piece = &mut buffer[..now.len()];
        len = work(piece);
        stream.copy(now, piece);
        dst = rest;
    }
}

pub(super) fn written<T: Computing, A: Computing, const N: usize>(
    out: StoredMut<'_, T>,
    sources: [CpuView<'_, A>; N],
    kernel: Kernel<'_, T, A, N>,
) {
    contiguous(Way::to_write(&out), out, sources, &|dst, sources| kernel.run(dst, sources));
}

/// `buffers!(name: Type, operands, condition)`: no, one or `N` buffers, depending on the number of operands for which
/// the condition holds. Always clearing `N` would take a twentieth of the time of adding a row to each row.
macro_rules! buffers {
    ($buffers:ident: $Buffer:ident, $operands:expr, $need_it:path) => {
        let (mut one, mut all);
        let $buffers: &mut [_] = match $operands.iter().filter(|operand| $need_it(operand)).count() {
            0 => &mut [],
            1 => {
                one = $Buffer::new();
                std::slice::from_mut(&mut one)
            }
            _ => {
                all = [const { $Buffer::new() }; N];
                &mut all
            }
        };
    };
}

pub(super) fn contiguous<T: Computing, A: Computing, const N: usize>(
    way: Way,
    dst: StoredMut<'_, T>,
    sources: [CpuView<'_, A>; N],
    work: &(dyn Fn(StoredMut<'_, T>, &[Stored<'_, A>; N]) + Sync),
) {
    if dst.len() == 0 {
        return;
    }
    let operands = sources.mapped(Operand::new);
    if dst.len() >= MANY
        && operands.iter().any(Operand::is_strided)
        && let Some(blocks) = Blocks::find(sources)
    {
        return blocks.run(dst, work);
    }
    if let (Way::Write, Some(rows)) = (way, common_rows(&operands)) {
        return write_rows(rows, dst, &operands, work);
    }
    let longest = if way == Way::NonTemporal { PIECE } else { CHUNK };
    let segment = operands.iter().map(Operand::segment).fold(longest, usize::min);
    buffers!(repeated: Repeated, operands, Operand::is_periodic);
    let operands = with_repeated(operands, segment.min(dst.len()), repeated);
    let chunk_len = chunk_of::<T>();
    dst.for_each_chunk(chunk_len, &|i, chunk| {
        buffers!(buffers: Scratch, operands, Operand::is_strided);
        let mut sources = opened(&operands, i * chunk_len, buffers);
        way.each(chunk, segment.min(longest_of(&sources)), &mut |piece| {
            let len = piece.len();
            work(piece, &next(&mut sources, len));
            segment.min(longest_of(&sources))
        });
    });
}

fn updated<T: Computing, A: Computing, const N: usize>(
    mut dst: StoredMut<'_, T>,
    (shape, strides): (&[usize], &[usize]),
    sources: [CpuView<'_, A>; N],
    kernel: Kernel<'_, T, A, N>,
) {
    if shape.contains(&0) {
        return;
    }
    let dims = Dims::of(shape, strides);
    if dims.is_contiguous() {
        let work = |dst: StoredMut<'_, T>, sources: &[Stored<'_, A>; N]| kernel.run(dst, sources);
        return contiguous(Way::Change, dst.part(0, dims.len()), sources, &work);
    }
    let operands = sources.mapped(Operand::new);
    let segment = operands.iter().map(Operand::segment).fold(SEGMENT, usize::min);
    buffers!(repeated: Repeated, operands, Operand::is_periodic);
    let operands = with_repeated(operands, segment, repeated);
    let update = |dst: StoredMut<'_, T>, dims: Dims, start: usize| {
        buffers!(buffers: Scratch, operands, Operand::is_strided);
        let mut sources = opened(&operands, start, buffers);
        let mut work = |piece: StoredMut<'_, T>| {
            let len = piece.len();
            kernel.run(piece, &next(&mut sources, len));
        };
        match dst {
            StoredMut::Plain(dst) => scattered(dst, dims, segment, &mut |piece| work(StoredMut::Plain(piece))),
            StoredMut::Halves(dst, half) => {
                scattered(dst, dims, segment, &mut |piece| work(StoredMut::Halves(piece, half)));
            }
        }
    };
    let Some((distance, len)) = dims.entries() else { return update(dst, dims, 0) };
    let n = (CHUNK / len).max(1);
    let span = dst.len().min(dims.shape()[0] * distance);
    dst.part(0, span).for_each_chunk(n * distance, &|i, part| {
        let entries = part.len().div_ceil(distance).min(dims.shape()[0] - i * n);
        update(part, dims.first(entries), i * n * len);
    });
}

/// The operands. Periodic ones are repeated in `buffers`, for pieces of `segment` elements.
fn with_repeated<'s, A: Computing, const N: usize>(
    operands: [Operand<'s, A>; N],
    segment: usize,
    buffers: &'s mut [Repeated],
) -> [Operand<'s, A>; N] {
    let mut buffers = buffers.iter_mut();
    operands.mapped(|operand| match operand.is_periodic() {
        true => operand.repeated(segment, buffers.next().expect("operands that repeat have a buffer")),
        false => operand,
    })
}

/// Sources that read the operands from element number `start` on.
fn opened<'s, A: Computing, const N: usize>(
    operands: &[Operand<'s, A>; N],
    start: usize,
    buffers: &'s mut [Scratch<A>],
) -> [Source<'s, A>; N] {
    let mut buffers = buffers.iter_mut();
    operands.each_ref().mapped(|operand| operand.open(start, if operand.is_strided() { buffers.next() } else { None }))
}

/// The longest next piece that stays within long lines of all sources.
#[inline]
fn longest_of<A: Computing, const N: usize>(sources: &[Source<'_, A>; N]) -> usize {
    let mut longest = usize::MAX;
    for source in sources {
        longest = longest.min(source.run());
    }
    longest
}

/// The next `len` elements of each source.
#[inline]
fn next<'s, A: Computing, const N: usize>(sources: &'s mut [Source<'_, A>; N], len: usize) -> [Stored<'s, A>; N] {
    let mut pieces = [Stored::Plain(&[][..]); N];
    for (piece, source) in zip(&mut pieces[..], sources) {
        source.next(len, piece);
    }
    pieces
}

/// Calls `work` to change the elements of a strided destination, `segment` at a time, in a contiguous buffer.
fn scattered<B: Pod>(dst: &mut [B], dims: Dims, segment: usize, work: &mut dyn FnMut(&mut [B])) {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::map1_by_bits;
    use super::super::math::half::Half;
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
        fn update_with_one_operand_changes_the_window_and_nothing_else([dst, x] in same_shape::<2>()) {
            let dst = dst.without_broadcasts();
            let (mut data, mut expected) = (dst.data.clone(), dst.data.clone());
            update(data.as_mut_slice().into(), &dst.shape, &dst.strides, [x.view()], |dst: &mut i32, [x]| *dst += 5 * x);
            for (offset, x) in dst.offsets().into_iter().zip(x.values()) {
                expected[offset] += 5 * x;
            }
            prop_assert_eq!(data, expected);
        }

        #[test]
        fn update_with_two_operands_changes_the_window_and_nothing_else([dst, a, b] in same_shape::<3>()) {
            let dst = dst.without_broadcasts();
            let (mut data, mut expected) = (dst.data.clone(), dst.data.clone());
            update(data.as_mut_slice().into(), &dst.shape, &dst.strides, [a.view(), b.view()], |dst: &mut i32, [a, b]| *dst += a * b);
            for ((offset, a), b) in dst.offsets().into_iter().zip(a.values()).zip(b.values()) {
                expected[offset] += a * b;
            }
            prop_assert_eq!(data, expected);
        }
    }

    #[test]
    fn rows_with_gaps_match_index_arithmetic() {
        for (rows, len, distance) in [(1_000, 63, 64), (3, 1_700, 2_040), (2_100, 8, 10), (700, 50, 64)] {
            let (x, shape, strides) = (Strided::contiguous(vec![rows, distance]), [rows, len], [distance, 1]);
            let view = |start: usize| CpuView { data: x.data[start..].into(), shape: &shape, strides: &strides };
            let mut out = vec![0; rows * len];
            map2(view(0), view(distance - len), out.as_mut_slice().into(), |a: i32, b| 3 * a - b);
            let at = |i: usize| i / len * distance + i % len;
            assert!((0..out.len()).all(|i| out[i] == 3 * x.data[at(i)] - x.data[at(i) + distance - len]));
        }
    }

    /// With lengths that do not fill a block, and with sources in every pattern.
    #[test]
    fn halves_are_computed_as_numbers_and_rounded_once() {
        for half in [Half::F16, Half::BF16] {
            for (rows, columns) in [(1, 1), (1, 31), (3, 32), (7, 70), (300, 61)] {
                let (len, shape) = (rows * columns, [rows, columns]);
                let numbers: Vec<f32> = (0..len).map(|i| (i % 997) as f32 * 0.37 - 90.0).collect();
                let mut bits = vec![0; len];
                half.narrow(&numbers, &mut bits);
                let number = |i: usize| Stored::<f32>::Halves(&bits, half).get(i);
                let view = |strides| CpuView { data: Stored::Halves(&bits, half), shape: &shape, strides };
                let (mut out, strides) = (vec![7; len], [[columns, 1], [0, 1], [1, 0]]);

                map3(
                    view(&strides[0]),
                    view(&strides[1]),
                    view(&strides[2]),
                    StoredMut::Halves(&mut out, half),
                    |a: f32, b, c| a * b - c,
                );
                let expected = |i: usize| number(i) * number(i % columns) - number(i / columns);
                assert!((0..len).all(|i| [out[i]] == half.bits_of([expected(i)])), "{half:?}, {rows}×{columns}");

                update(
                    StoredMut::Halves(&mut out, half),
                    &[columns, rows],
                    &[1, columns],
                    [],
                    |to: &mut f32, _: [f32; 0]| *to += 1.5,
                );
                let changed = |i: usize| Stored::<f32>::Halves(&half.bits_of([expected(i)]), half).get(0) + 1.5;
                assert!((0..len).all(|i| [out[i]] == half.bits_of([changed(i)])), "{half:?}, {rows}×{columns}");

                map1_by_bits(view(&strides[0]), StoredMut::Halves(&mut out, half), |x: f32| -x, |bits| bits ^ 0x8000);
                assert!((0..len).all(|i| [out[i]] == half.bits_of([-number(i)])), "{half:?}, {rows}×{columns}");
            }
        }
    }

    #[test]
    fn results_that_are_written_past_the_caches_match_index_arithmetic() {
        let (rows, columns) = (60_001, 70);
        let x = Strided::new(vec![rows, columns], vec![columns, 1]);
        let row = Strided::new(vec![rows, columns], vec![0, 1]);
        let mut out = vec![0_i64; rows * columns];
        assert!(non_temporal::is_large(&out));

        map1(x.view(), out.as_mut_slice().into(), |x| i64::from(x) - 7);
        assert!((0..out.len()).all(|i| out[i] == i64::from(x.data[i]) - 7));

        map2(x.view(), row.view(), out.as_mut_slice().into(), |x, row| i64::from(3 * x - row));
        assert!((0..out.len()).all(|i| out[i] == i64::from(3 * x.data[i] - row.data[i % columns])));
    }

    #[test]
    fn operands_with_long_lines_match_index_arithmetic() {
        for (planes, columns) in [(3, 700), (5, 4_096), (7, 5_003), (2, 30_000)] {
            let shape = [4, planes, columns];
            let views = [[planes * columns, columns, 1], [0, 1, 0], [columns, 0, 1], [0, columns, 1]]
                .map(|strides| Strided::new(shape.to_vec(), strides.to_vec()));
            let [x, channel, row, plane] = views.each_ref().map(|view| view.values());
            let expected = |i: usize| x[i] * channel[i] - row[i] + 7 * plane[i];
            let mut out = vec![0; x.len()];

            map3(views[0].view(), views[1].view(), views[2].view(), out.as_mut_slice().into(), |x, a, b| x * a - b);
            update(out.as_mut_slice().into(), &shape, views[0].view().strides, [views[3].view()], |to, [x]| {
                *to += 7 * x
            });
            assert!((0..out.len()).all(|i| out[i] == expected(i)), "{planes}×{columns}");

            let mut apart = vec![0; 4 * planes * (columns + 1)];
            let strides = [planes * (columns + 1), columns + 1, 1];
            update(apart.as_mut_slice().into(), &shape, &strides, [views[1].view(), views[2].view()], |to, [a, b]| {
                *to = a + 3 * b;
            });
            let at = |i: usize| i / columns * (columns + 1) + i % columns;
            assert!((0..out.len()).all(|i| apart[at(i)] == channel[i] + 3 * row[i]), "{planes}×{columns}");
        }
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
