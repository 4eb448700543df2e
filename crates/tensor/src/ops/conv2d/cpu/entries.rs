//! What planes hold: numbers, or those of two channels in one entry where `bf16` is multiplied in pairs.

use bytemuck::Pod;
use pulp::Simd;

#[cfg(target_arch = "x86_64")]
use crate::cpu::math::half::Half;
use crate::element::Real;
#[cfg(target_arch = "x86_64")]
use crate::inlined::zip;
#[cfg(target_arch = "x86_64")]
use crate::lanes::{Bf16, PairsOfBf16};
use crate::lanes::{Multiplier, Numbers};

/// How elements of tensors become factors in planes, and sums become elements.
pub(super) trait Entries: Multiplier {
    /// What tensors store.
    type Element: Pod + Send + Sync;
    /// Channels per factor. The second one may be missing: then its elements count as zero.
    const CHANNELS: usize;

    /// The element as a number.
    fn number(element: Self::Element) -> Self::Sum;
    /// The factors of neighbors.
    fn join<const W: usize>(first: &[Self::Element; W], second: Option<&[Self::Element; W]>) -> [Self::Factor; W];
    /// The factors of the even and of the odd ones of neighbors.
    fn join_halves<const W: usize>(
        first: &[[Self::Element; 2]; W],
        second: Option<&[[Self::Element; 2]; W]>,
    ) -> [[Self::Factor; W]; 2];
    /// How many elements [`rounded`](Self::rounded) needs room for.
    fn room(sums: usize) -> usize;
    /// The sums as elements: themselves, or in `room`.
    fn rounded<'a>(sums: &'a [Self::Sum], room: &'a mut [Self::Element]) -> &'a [Self::Element];
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
    fn room(_: usize) -> usize {
        0
    }
    fn rounded<'a>(sums: &'a [R], _: &'a mut [R]) -> &'a [R] {
        sums
    }
}

#[cfg(target_arch = "x86_64")]
impl Entries for Bf16 {
    type Element = u16;
    const CHANNELS: usize = 1;

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
    fn room(sums: usize) -> usize {
        sums
    }
    fn rounded<'a>(sums: &'a [f32], room: &'a mut [u16]) -> &'a [u16] {
        let room = &mut room[..sums.len()];
        Half::BF16.narrow(sums, room);
        room
    }
}

#[cfg(target_arch = "x86_64")]
impl Entries for PairsOfBf16 {
    type Element = u16;
    const CHANNELS: usize = 2;

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
    fn room(sums: usize) -> usize {
        sums
    }
    fn rounded<'a>(sums: &'a [f32], room: &'a mut [u16]) -> &'a [u16] {
        Bf16::rounded(sums, room)
    }
}
