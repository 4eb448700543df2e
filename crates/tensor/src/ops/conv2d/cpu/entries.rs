//! The entries of planes: single numbers, or those of two channels where `bf16` is multiplied in pairs.

use bytemuck::Pod;
use pagelock_memory::Result;
use pulp::Simd;

use super::tile::Tile;
#[cfg(target_arch = "x86_64")]
use crate::cpu::math::half::Half;
use crate::element::Real;
#[cfg(target_arch = "x86_64")]
use crate::inlined::{Slice, zip};
#[cfg(target_arch = "x86_64")]
use crate::lanes::{
    Bf16, PairsOfBf16,
    amx::{self, Amx, Shifted},
};
use crate::lanes::{Dots, Multiplier, Numbers, tile_rows};
#[cfg(target_arch = "x86_64")]
use crate::{lanes::StridedRows, ops::Packed, scratch};

/// How elements of tensors become factors in planes, and sums become elements.
pub(super) trait Entries: Multiplier {
    /// The stored type of tensors.
    type Element: Pod + Send + Sync;
    /// Channels per factor. If the second one is missing, its elements count as zero.
    const CHANNELS: usize;

    /// The element as a number.
    fn number(element: Self::Element) -> Self::Sum;
    /// The sizes of tiles, for a pass over `entries` entries to `channels` channels.
    fn tiling(_entries: usize, channels: usize) -> TileSizes {
        TileSizes::of_vectors::<Self>(channels)
    }
    /// Computes the sums of a tile.
    fn add_up(tile: Tile<'_, Self>) {
        tile.run();
    }
    /// Adds dot products. The rows of the right side belong to `channels`, which have equally many.
    fn add_dots(dots: Dots<'_, Self>, _channels: usize) -> Result<()> {
        dots.run();
        Ok(())
    }
    /// The factors of neighboring pixels, from one channel or two.
    fn join<const W: usize>(first: &[Self::Element; W], second: Option<&[Self::Element; W]>) -> [Self::Factor; W];
    /// The same, with the factors of even and of odd pixels separated.
    fn join_halves<const W: usize>(
        first: &[[Self::Element; 2]; W],
        second: Option<&[[Self::Element; 2]; W]>,
    ) -> [[Self::Factor; W]; 2];
    /// Calls `body` with the sums as elements: the sums themselves, or rounded ones.
    fn with_elements(sums: &[Self::Sum], body: impl FnOnce(&[Self::Element]) -> Result<()>) -> Result<()>;
}

/// The sizes of tiles.
#[derive(Clone, Copy)]
pub(super) struct TileSizes {
    /// Channels of the target.
    pub(super) rows: usize,
    /// Entries that are added up at once.
    pub(super) depth: usize,
    /// Pixels that are added up at once.
    pub(super) lanes: usize,
}

impl TileSizes {
    /// The sizes of tiles in vector registers.
    pub(super) fn of_vectors<M: Multiplier>(channels: usize) -> TileSizes {
        TileSizes { rows: tile_rows::<M::Simd>(channels), depth: 1, lanes: M::lanes() }
    }
}

impl<S: Simd, R: Real> Entries for Numbers<S, R> {
    type Element = R;
    const CHANNELS: usize = 1;

    #[inline(always)]
    fn number(element: R) -> R {
        element
    }
    #[inline(always)]
    fn join<const W: usize>(first: &[R; W], _: Option<&[R; W]>) -> [R; W] {
        *first
    }
    #[inline(always)]
    fn join_halves<const W: usize>(first: &[[R; 2]; W], _: Option<&[[R; 2]; W]>) -> [[R; W]; 2] {
        R::unzipped(first)
    }
    fn with_elements(sums: &[R], body: impl FnOnce(&[R]) -> Result<()>) -> Result<()> {
        body(sums)
    }
}

#[cfg(target_arch = "x86_64")]
impl Entries for Bf16 {
    type Element = u16;
    const CHANNELS: usize = 1;

    /// Uses matrix units if the processor has them and channels fill half of one. Each tap is a matrix product: its
    /// entries of all channels times the transposed left side.
    fn add_dots(dots: Dots<'_, Self>, channels: usize) -> Result<()> {
        let Dots { left, right, starts, len, .. } = dots;
        let n = dots.sums.len() / starts.len();
        if Amx::new().is_none() || channels.min(n) < amx::SIDE {
            dots.run();
            return Ok(());
        }
        let taps = starts.len() / channels;
        let distance = starts[taps] - starts[0];
        scratch::with(Packed::packed_len([len, n]), |pairs| {
            let packed = Packed::new([len, n], left.numbers, [1, left.distance], pairs);
            scratch::with(starts.len() * n, |products: &mut [f32]| {
                for (products, &start) in products.chunks_exact_mut(channels * n).zip(&starts[..taps]) {
                    packed.multiply(StridedRows { numbers: &right[start..], distance }, 0, products);
                }
                for (column, sums) in dots.sums.chunks_exact_mut(starts.len()).enumerate() {
                    for (channel, sums) in sums.chunks_exact_mut(taps).enumerate() {
                        let products = products[channel * n + column..].iter().step_by(channels * n);
                        zip(sums, products).for_each(|(sum, product)| *sum += product);
                    }
                }
                Ok(())
            })
        })
    }

    #[inline(always)]
    fn number(element: u16) -> f32 {
        f32::from_bits(u32::from(element) << 16)
    }
    #[inline(always)]
    fn join<const W: usize>(first: &[u16; W], _: Option<&[u16; W]>) -> [u16; W] {
        *first
    }
    #[inline(always)]
    fn join_halves<const W: usize>(first: &[[u16; 2]; W], _: Option<&[[u16; 2]; W]>) -> [[u16; W]; 2] {
        let mut halves = [[0; W]; 2];
        for (i, &pair) in first.iter().enumerate() {
            let pair: u32 = bytemuck::cast(pair);
            (halves[0][i], halves[1][i]) = (pair as u16, (pair >> 16) as u16);
        }
        halves
    }
    fn with_elements(sums: &[f32], body: impl FnOnce(&[u16]) -> Result<()>) -> Result<()> {
        scratch::with(sums.len(), |rounded: &mut [u16]| {
            Half::BF16.narrow(sums, rounded);
            body(rounded)
        })
    }
}

#[cfg(target_arch = "x86_64")]
impl Entries for PairsOfBf16 {
    type Element = u16;
    const CHANNELS: usize = 2;

    /// The sizes for matrix units, if the processor has them and a tile fills half of one.
    fn tiling(entries: usize, channels: usize) -> TileSizes {
        let depth = [amx::SIDE, amx::SIDE / 2].into_iter().find(|&depth| entries.is_multiple_of(depth));
        match depth.filter(|_| channels >= amx::SIDE && Amx::new().is_some()) {
            Some(depth) => TileSizes { rows: amx::ROWS, depth, lanes: amx::COLUMNS },
            None => TileSizes::of_vectors::<Self>(channels),
        }
    }
    fn add_up(tile: Tile<'_, Self>) {
        let Some(unit) = Amx::new().filter(|_| tile.depth > 1) else { return tile.run() };
        let Tile { start, offsets, weights, depth, distance, source, sums, .. } = tile;
        for (sums, &start) in sums.chunks_exact_mut(sums.len() / start.len()).zip(start) {
            sums.set_to(start);
        }
        unit.add_shifted(Shifted { left: weights, depth, right: source, starts: offsets, distance }, sums);
    }
    #[inline(always)]
    fn number(element: u16) -> f32 {
        Bf16::number(element)
    }
    #[inline(always)]
    fn join<const W: usize>(first: &[u16; W], second: Option<&[u16; W]>) -> [u32; W] {
        let mut joined = [0; W];
        zip(&mut joined[..], first).for_each(|(to, &first)| *to = u32::from(first));
        if let Some(second) = second {
            zip(&mut joined[..], second).for_each(|(to, &second)| *to |= u32::from(second) << 16);
        }
        joined
    }
    #[inline(always)]
    fn join_halves<const W: usize>(first: &[[u16; 2]; W], second: Option<&[[u16; 2]; W]>) -> [[u32; W]; 2] {
        let mut halves = [[0; W]; 2];
        for (i, &pair) in first.iter().enumerate() {
            let pair: u32 = bytemuck::cast(pair);
            (halves[0][i], halves[1][i]) = (pair & 0xffff, pair >> 16);
        }
        for (i, &pair) in second.into_iter().flatten().enumerate() {
            let pair: u32 = bytemuck::cast(pair);
            halves[0][i] |= pair << 16;
            halves[1][i] |= pair & 0xffff_0000;
        }
        halves
    }
    fn with_elements(sums: &[f32], body: impl FnOnce(&[u16]) -> Result<()>) -> Result<()> {
        Bf16::with_elements(sums, body)
    }
}
