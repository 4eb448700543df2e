//! Formulas as loops over contiguous pieces: a loop over numbers, and one over halves, which are widened, computed
//! and rounded in registers.

use super::elements::rows_in;
use super::math::half::{BLOCK, Block, Half, InAnyOrder, Registers, Wide, by_half};
use super::source::AlignedBuffer;
use super::{PIECE, Stored, StoredMut};
use crate::element::Computing;
use crate::inlined::{Array, Slice, zip, zip_all};

/// A formula, as functions that compute or change a piece of the destination from pieces of the sources.
#[derive(Clone, Copy)]
pub(super) struct Kernel<'f, T, A, const N: usize> {
    pub(super) numbers: &'f (dyn Fn(&mut [T], &[&[A]; N]) + Sync),
    /// The function for halves, which only `f32` has.
    pub(super) halves: Halves<'f, N>,
    /// Whether the formula reads the destination, too.
    pub(super) changes: bool,
}

/// How halves of one type are computed.
#[derive(Clone, Copy)]
pub(super) enum Halves<'f, const N: usize> {
    /// As numbers in buffers, because the formula needs too many registers.
    Numbers,
    /// In registers, if the processor has instructions for it.
    Registers(&'f (dyn Fn(Wide, &mut [Block], [&[Block]; N]) + Sync)),
    /// As their bits.
    Bits(&'f (dyn Fn(&mut [u16], [&[u16]; N]) + Sync)),
}

impl<T: Computing, A: Computing, const N: usize> Kernel<'_, T, A, N> {
    pub(super) fn run(self, dst: StoredMut<'_, T>, sources: &[Stored<'_, A>; N]) {
        match dst {
            StoredMut::Plain(dst) if sources.iter().all(|source| matches!(source, Stored::Plain(_))) => {
                let mut numbers = [&[][..]; N];
                zip(&mut numbers[..], sources).for_each(|(numbers, source)| *numbers = source.plain());
                (self.numbers)(dst, &numbers);
            }
            dst => self.run_halves(dst, *sources),
        }
    }

    /// Runs the formula where some operands are halves, of the same type or not.
    fn run_halves(self, dst: StoredMut<'_, T>, sources: [Stored<'_, A>; N]) {
        let StoredMut::Halves(_, half) = dst else { return self.run_in_buffers(dst, sources) };
        let are_alike = are_halves(&sources, half);
        match (self.halves, Wide::new(half)) {
            (Halves::Bits(of_bits), _) if are_alike => of_bits(dst.halves(), bits_of(&sources)),
            (Halves::Registers(of_blocks), Some(wide)) if are_alike => {
                run_in_registers(|dst, sources| of_blocks(wide, dst, sources), dst.halves(), bits_of(&sources));
            }
            _ => self.run_in_buffers(dst, sources),
        }
    }

    /// Widens halves to numbers in buffers first, and rounds the results afterwards.
    fn run_in_buffers(self, mut dst: StoredMut<'_, T>, sources: [Stored<'_, A>; N]) {
        let (mut to, mut from) = (AlignedBuffer([T::ZERO; PIECE]), [AlignedBuffer([A::ZERO; PIECE]); N]);
        for start in (0..dst.len()).step_by(PIECE) {
            let len = PIECE.min(dst.len() - start);
            let mut widened = [&[][..]; N];
            for ((widened, buffer), source) in zip(zip(&mut widened[..], &mut from), sources) {
                *widened = source.part(start, len).widened(&mut buffer.0);
            }
            match dst.part(start, len) {
                StoredMut::Plain(dst) => (self.numbers)(dst, &widened),
                StoredMut::Halves(dst, half) => {
                    let to = &mut to.0[..len];
                    if self.changes {
                        half.widen(dst, T::f32s(to));
                    }
                    (self.numbers)(to, &widened);
                    half.narrow(T::f32s(to), dst);
                }
            }
        }
    }
}

/// Computes halves of one type block by block, in registers. A last, partial block is padded.
fn run_in_registers<const N: usize>(
    of_blocks: impl Fn(&mut [Block], [&[Block]; N]),
    dst: &mut [u16],
    sources: [&[u16]; N],
) {
    let in_blocks = dst.len() / BLOCK * BLOCK;
    let (blocks, last) = dst.as_chunks_mut();
    of_blocks(blocks, blocks_of(&sources));
    if !last.is_empty() {
        let (mut filled, mut last_of) = ([0; BLOCK], [[0; BLOCK]; N]);
        filled[..last.len()].copy_from(last);
        for (filled, source) in zip(&mut last_of[..], sources) {
            filled[..last.len()].copy_from(&source[in_blocks..]);
        }
        let mut lasts = [&[][..]; N];
        zip(&mut lasts[..], &last_of).for_each(|(last, filled)| *last = std::slice::from_ref(filled));
        of_blocks(std::slice::from_mut(&mut filled), lasts);
        last.copy_from(&filled[..last.len()]);
    }
}

// Without `array::map`: each use gives the compiler 400 lines, and there are many kernels.

/// The first `len` elements of each slice.
#[inline(always)]
pub(super) fn shorten<T, const N: usize>(slices: &mut [&[T]; N], len: usize) {
    for slice in slices {
        *slice = &slice[..len];
    }
}

/// The whole blocks of each slice.
#[inline(always)]
fn blocks_of<'a, const N: usize>(slices: &[&'a [u16]; N]) -> [&'a [Block]; N] {
    let mut blocks = [&[][..]; N];
    for i in 0..N {
        blocks[i] = slices[i].as_chunks().0;
    }
    blocks
}

/// Whether all operands are halves of this type.
fn are_halves<A: Computing, const N: usize>(operands: &[Stored<'_, A>; N], half: Half) -> bool {
    operands.iter().all(|operand| matches!(operand, Stored::Halves(_, of) if *of == half))
}

/// The bits of elements that are halves.
#[inline(always)]
fn bits_of<'a, A: Computing, const N: usize>(elements: &[Stored<'a, A>; N]) -> [&'a [u16]; N] {
    let mut bits = [&[][..]; N];
    for i in 0..N {
        bits[i] = elements[i].halves();
    }
    bits
}

/// The loop over numbers, as a closure that is compiled for an instruction set.
#[inline(always)]
pub(super) fn loop_over<T: Computing, A: Computing, const N: usize>(
    dst: &mut [T],
    sources: &[&[A]; N],
    f: impl Fn(&mut T, [A; N]),
) -> impl FnOnce() {
    inlined!(move || {
        zip(dst, zip_all(sources)).for_each(inlined!(|(dst, elements)| f(dst, elements)));
    })
}

/// The loops over halves. For `LONG` formulas they are also compiled for AVX-512.
#[inline(always)]
pub(super) fn of_halves<const LONG: bool, T: Computing, A: Computing, const N: usize>(
    wide: Wide,
    dst: &mut [Block],
    sources: [&[Block]; N],
    f: impl Fn(&mut T, [A; N]),
) {
    by_half!(
        if T::HAS_HALVES && A::HAS_HALVES,
        wide,
        registers => loop_over_halves::<LONG, _, _, N>(registers, dst, sources, f)
    );
}

#[inline(always)]
fn loop_over_halves<const LONG: bool, T: Computing, A: Computing, const N: usize>(
    registers: impl Registers,
    dst: &mut [Block],
    sources: [&[Block]; N],
    f: impl Fn(&mut T, [A; N]),
) {
    match LONG {
        true => registers.vectorized_widely(inlined!(|| change_in_registers(registers, dst, sources, f))),
        false => registers.vectorized(inlined!(|| change_in_registers(registers, dst, sources, f))),
    }
}

/// The loop over halves, to be inlined into code that is compiled for these registers.
#[inline(always)]
fn change_in_registers<T: Computing, A: Computing, const N: usize>(
    registers: impl Registers,
    dst: &mut [Block],
    mut sources: [&[Block]; N],
    f: impl Fn(&mut T, [A; N]),
) {
    let registers = InAnyOrder(registers);
    shorten(&mut sources, dst.len());
    let mut i = 0;
    while i < dst.len() {
        let (mut widened, mut n) = ([[A::ZERO; BLOCK]; N], 0);
        while n < N {
            widened[n] = A::widened(registers, &sources[n][i]);
            n += 1;
        }
        let (before, mut after) = (T::widened(registers, &dst[i]), [T::ZERO; BLOCK]);
        let mut lane = 0;
        while lane < BLOCK {
            let (mut of_lane, mut n) = ([A::ZERO; N], 0);
            while n < N {
                of_lane[n] = widened[n][lane];
                n += 1;
            }
            after[lane] = before[lane];
            f(&mut after[lane], of_lane);
            lane += 1;
        }
        dst[i] = T::narrowed(registers, &after);
        i += 1;
    }
}

/// `out[i] = f(inputs[..][i])`, to be inlined into code that is compiled for these registers.
#[inline(always)]
pub(super) fn map_in_registers<R: Computing, const N: usize>(
    registers: impl Registers,
    inputs: [&[Block]; N],
    out: &mut [Block],
    f: impl Fn([R; N]) -> R,
) {
    change_in_registers(registers, out, inputs, inlined!(|out: &mut R, x| *out = f(x)));
}

/// The inputs as blocks, if all are halves of one type that is computed in registers here, and fill whole blocks.
pub(super) fn in_blocks_of_halves<'a, R: Computing, const N: usize>(
    inputs: [Stored<'a, R>; N],
) -> Option<(Wide, [&'a [Block]; N])> {
    let Stored::Halves(bits, half) = inputs[0] else { return None };
    let are_alike = are_halves(&inputs, half);
    let wide = Wide::new(half).filter(|_| are_alike && bits.len().is_multiple_of(BLOCK))?;
    Some((wide, blocks_of(&bits_of(&inputs))))
}

/// An operation on rows of halves that is computed in registers.
pub(super) trait RowOfHalves<const N: usize>: Sync {
    /// Computes row number `i`, inlined into code that is compiled for these registers.
    fn compute(&self, registers: impl Registers, i: usize, inputs: [&[Block]; N], out: &mut [Block]);
}

/// Computes rows of `row_len` elements, on several threads if there are more than `chunk` elements. Returns `false`,
/// having done nothing, unless all are halves of one type that is computed in registers here, and rows consist of
/// whole blocks.
pub(super) fn by_rows_of_halves<R: Computing, const N: usize>(
    inputs: [Stored<'_, R>; N],
    (row_len, chunk): (usize, usize),
    out: &mut StoredMut<'_, R>,
    op: &impl RowOfHalves<N>,
) -> bool {
    let StoredMut::Halves(_, half) = *out else { return false };
    let are_alike = are_halves(&inputs, half);
    let Some(wide) = Wide::new(half).filter(|_| are_alike && row_len.is_multiple_of(BLOCK)) else { return false };
    let rows = rows_in(chunk, row_len);
    out.all().for_each_chunk(rows * row_len, &|i, out| {
        let first = i * rows;
        let inputs = inputs.mapped(|input| input.part(first * row_len, out.len()).halves().as_chunks().0);
        let (out, row_len) = (out.halves().as_chunks_mut().0, row_len / BLOCK);
        by_half!(if R::HAS_HALVES, wide, registers => rows_in_registers(registers, inputs, (first, row_len), out, op));
    });
    true
}

/// Computes rows from number `first` on, of `row_len` blocks each.
fn rows_in_registers<const N: usize>(
    registers: impl Registers,
    inputs: [&[Block]; N],
    (first, row_len): (usize, usize),
    out: &mut [Block],
    op: &impl RowOfHalves<N>,
) {
    registers.vectorized_where_faster(inlined!(|| compute_rows(registers, inputs, (first, row_len), out, op)));
}

/// The loop over the rows, to be inlined into code that is compiled for these registers.
#[inline(always)]
fn compute_rows<const N: usize>(
    registers: impl Registers,
    inputs: [&[Block]; N],
    (first, row_len): (usize, usize),
    out: &mut [Block],
    op: &impl RowOfHalves<N>,
) {
    for (i, out) in out.chunks_exact_mut(row_len).enumerate() {
        op.compute(registers, first + i, inputs.mapped(|input| &input[i * row_len..][..row_len]), out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::softmax::softmax_grad;
    use super::super::{CpuView, sum};
    use super::*;

    /// The bits of halves, and their values as numbers.
    fn numbers(n: usize, half: Half) -> (Vec<u16>, Vec<f32>) {
        let mut bits = vec![0; n];
        half.narrow(&(0..n).map(|i| (i % 97) as f32 * 0.013 - 0.5).collect::<Vec<f32>>(), &mut bits);
        let mut widened = vec![0.0; n];
        half.widen(&bits, &mut widened);
        (bits, widened)
    }

    /// Where halves are not computed in registers, they are computed as numbers, in pieces.
    #[test]
    fn what_is_computed_in_registers_has_the_bits_of_numbers_that_are_rounded_once() {
        for half in [Half::F16, Half::BF16] {
            for (rows, len) in [(5, 64), (3, 1_024), (2, 4_128)] {
                let ((bits, x), mut out, mut computed) =
                    (numbers(rows * len, half), vec![0; rows * len], vec![0.0; rows * len]);
                for grad in [softmax_grad::<f32, false>, softmax_grad::<f32, true>] {
                    let (y, g) = (Stored::Halves(&bits, half), Stored::Halves(&bits, half));
                    grad(y, g, [len, 1], StoredMut::Halves(&mut out, half)).unwrap();
                    grad(x[..].into(), x[..].into(), [len, 1], (&mut computed[..]).into()).unwrap();
                    assert!((0..rows * len).all(|i| [out[i]] == half.bits_of([computed[i]])), "{half:?}, {rows}×{len}");
                }

                let (mut of_halves, mut of_numbers) = (vec![0.0_f32; len], vec![0.0_f32; len]);
                let (shape, strides) = ([rows, len], [len, 1]);
                let view = |data| CpuView { data, shape: &shape, strides: &strides };
                sum(view(Stored::Halves(&bits, half)), 1, (&mut of_halves[..]).into());
                sum(view(x[..].into()), 1, (&mut of_numbers[..]).into());
                assert_eq!(of_halves, of_numbers, "{half:?}, {rows}×{len}");
            }
        }
    }
}
