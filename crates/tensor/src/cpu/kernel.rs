//! Formulas as loops over contiguous pieces: one over numbers, and one over halves, which are widened, computed and rounded
//! in registers.

use super::math::half::{BLOCK, Block, Half, Registers, Wide};
use super::{PIECE, Stored, StoredMut};
use crate::element::Computing;

/// A formula as functions that change a piece of the destination by pieces of the sources.
#[derive(Clone, Copy)]
pub(super) struct Kernel<'f, T, A, const N: usize> {
    pub(super) numbers: &'f (dyn Fn(&mut [T], &[&[A]; N]) + Sync),
    /// The same of halves, which only `f32` has; none if it is better computed of numbers, because registers are too few.
    pub(super) halves: Option<&'f (dyn Fn(Wide, &mut [Block], [&[Block]; N]) + Sync)>,
    /// Whether the formula reads the destination, too.
    pub(super) changes: bool,
}

impl<T: Computing, A: Computing, const N: usize> Kernel<'_, T, A, N> {
    pub(super) fn run(self, dst: StoredMut<'_, T>, sources: &[Stored<'_, A>; N]) {
        match dst {
            StoredMut::Plain(dst) if sources.iter().all(|source| matches!(source, Stored::Plain(_))) => {
                let mut numbers = [&[][..]; N];
                numbers.iter_mut().zip(sources).for_each(|(numbers, source)| *numbers = source.plain());
                (self.numbers)(dst, &numbers);
            }
            dst => self.run_halves(dst, *sources),
        }
    }

    /// Some are halves: all of one type, for which the machine has registers, or not.
    fn run_halves(self, dst: StoredMut<'_, T>, sources: [Stored<'_, A>; N]) {
        if let StoredMut::Halves(_, half) = dst
            && sources.iter().all(|source| matches!(source, Stored::Halves(_, of) if *of == half))
            && let (Some(halves), Some(wide)) = (self.halves, Wide::new(half))
        {
            return run_in_registers(
                |dst, sources| halves(wide, dst, sources),
                dst.halves(),
                sources.map(Stored::halves),
            );
        }
        self.run_in_rooms(dst, sources);
    }

    /// Halves become numbers in buffers first, and results are rounded afterwards.
    fn run_in_rooms(self, mut dst: StoredMut<'_, T>, sources: [Stored<'_, A>; N]) {
        let (mut to, mut from) = ([T::ZERO; PIECE], [[A::ZERO; PIECE]; N]);
        for start in (0..dst.len()).step_by(PIECE) {
            let len = PIECE.min(dst.len() - start);
            let mut widened = [&[][..]; N];
            for ((widened, room), source) in widened.iter_mut().zip(&mut from).zip(sources) {
                *widened = source.part(start, len).widened(room);
            }
            match dst.part(start, len) {
                StoredMut::Plain(dst) => (self.numbers)(dst, &widened),
                StoredMut::Halves(dst, half) => {
                    let to = &mut to[..len];
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

/// All are halves of one type, and the machine has registers for a block of them.
fn run_in_registers<const N: usize>(
    of_blocks: impl Fn(&mut [Block], [&[Block]; N]),
    dst: &mut [u16],
    sources: [&[u16]; N],
) {
    let in_blocks = dst.len() / BLOCK * BLOCK;
    let (blocks, last) = dst.as_chunks_mut();
    of_blocks(blocks, sources.map(|source| source.as_chunks().0));
    if !last.is_empty() {
        let (mut filled, mut last_of) = ([0; BLOCK], [[0; BLOCK]; N]);
        filled[..last.len()].copy_from_slice(last);
        for (filled, source) in last_of.iter_mut().zip(sources) {
            filled[..last.len()].copy_from_slice(&source[in_blocks..]);
        }
        of_blocks(std::slice::from_mut(&mut filled), last_of.each_ref().map(std::slice::from_ref));
        last.copy_from_slice(&filled[..last.len()]);
    }
}

/// The loop over numbers, to be compiled for an instruction set.
#[inline(always)]
pub(super) fn loop_over<T: Computing, A: Computing, const N: usize>(
    dst: &mut [T],
    sources: &[&[A]; N],
    f: impl Fn(&mut T, [A; N]),
) -> impl FnOnce() {
    // Iterators side by side, not an index, and no `for_each`, which would be compiled for the baseline.
    #[inline(always)]
    move || match &sources[..] {
        [] => {
            for dst in dst {
                f(dst, array([]));
            }
        }
        [a] => {
            for (dst, &a) in dst.iter_mut().zip(*a) {
                f(dst, array([a]));
            }
        }
        [a, b] => {
            for ((dst, &a), &b) in dst.iter_mut().zip(*a).zip(*b) {
                f(dst, array([a, b]));
            }
        }
        [a, b, c] => {
            for (((dst, &a), &b), &c) in dst.iter_mut().zip(*a).zip(*b).zip(*c) {
                f(dst, array([a, b, c]));
            }
        }
        _ => unreachable!("no formula has more sources"),
    }
}

/// The array, whose length is `N`.
#[inline(always)]
pub(super) fn array<A: Computing, const M: usize, const N: usize>(values: [A; M]) -> [A; N] {
    let mut all = [A::ZERO; N];
    all.copy_from_slice(&values);
    all
}

/// The loops over halves.
#[inline(always)]
pub(super) fn of_halves<T: Computing, A: Computing, const N: usize>(
    wide: Wide,
    dst: &mut [Block],
    sources: [&[Block]; N],
    f: impl Fn(&mut T, [A; N]),
) {
    if const { T::HAS_HALVES && A::HAS_HALVES } {
        match wide {
            Wide::F16(registers) => loop_over_halves(registers, dst, sources, f),
            Wide::BF16(registers) => loop_over_halves(registers, dst, sources, f),
        }
    } else {
        unreachable!("halves compute in f32")
    }
}

#[inline(always)]
fn loop_over_halves<T: Computing, A: Computing, const N: usize>(
    registers: impl Registers,
    dst: &mut [Block],
    sources: [&[Block]; N],
    f: impl Fn(&mut T, [A; N]),
) {
    registers.vectorized(
        #[inline(always)]
        || {
            let sources = sources.map(|source| &source[..dst.len()]);
            for (i, dst) in dst.iter_mut().enumerate() {
                let mut widened = [[A::ZERO; BLOCK]; N];
                for (widened, source) in widened.iter_mut().zip(&sources) {
                    *widened = A::widened(registers, &source[i]);
                }
                let (before, mut after) = (T::widened(registers, dst), [T::ZERO; BLOCK]);
                for lane in 0..BLOCK {
                    let (mut number, mut of_lane) = (before[lane], [A::ZERO; N]);
                    for (of_lane, widened) in of_lane.iter_mut().zip(&widened) {
                        *of_lane = widened[lane];
                    }
                    f(&mut number, of_lane);
                    after[lane] = number;
                }
                *dst = T::narrowed(registers, &after);
            }
        },
    );
}

/// `dst = f(x)`, rounded in registers.
#[inline(always)]
pub(super) fn to_halves<A: Computing>(
    registers: impl Registers,
    half: Half,
    x: &[A],
    dst: &mut [u16],
    f: impl Fn(A) -> f32,
) {
    let ((x, last_x), (dst, last)) = (x.as_chunks::<BLOCK>(), dst.as_chunks_mut());
    registers.vectorized(
        #[inline(always)]
        || {
            for (dst, x) in dst.iter_mut().zip(x) {
                let mut numbers = [0.0; BLOCK];
                for (number, &x) in numbers.iter_mut().zip(x) {
                    *number = f(x);
                }
                *dst = registers.narrow(&numbers);
            }
        },
    );
    last.iter_mut().zip(last_x).for_each(|(dst, &x)| [*dst] = half.bits_of([f(x)]));
}
