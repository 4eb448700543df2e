//! [`Packed`]: right sides of `bf16`, packed once for many products with few rows.

use crate::cpu::math::half::f32_to_bf16;
use crate::cpu::vectorized_widely;
use crate::inlined::zip;
use crate::parallel::for_each_chunk_mut;

#[cfg(target_arch = "x86_64")]
use super::{Matrix, Sizes, bf16};

/// Columns of a panel.
const COLUMNS: usize = 32;

/// Right sides `[k, n]`, one behind the other, in panels of columns. In each of them pairs of numbers that follow each other along
/// `k` lie side by side.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    sizes: [usize; 2],
    pairs: &'a [[u32; COLUMNS]],
}

impl<'a> Packed<'a> {
    /// Whether the processor multiplies such.
    pub(crate) fn can_multiply(k: usize) -> bool {
        #[cfg(target_arch = "x86_64")]
        let has_instruction = crate::lanes::Bf16::new().is_some();
        #[cfg(not(target_arch = "x86_64"))]
        let has_instruction = false;
        has_instruction && k.is_multiple_of(2)
    }

    /// The room that one takes.
    pub(crate) fn room([k, n]: [usize; 2]) -> usize {
        k / 2 * n.div_ceil(COLUMNS)
    }

    /// Packs numbers, rounded. There is [`room`](Self::room) for each.
    pub(crate) fn new([k, n]: [usize; 2], numbers: &[f32], pairs: &'a mut [[u32; COLUMNS]]) -> Self {
        for_each_chunk_mut(pairs, Self::room([k, n]), |i, pairs| {
            let numbers = &numbers[i * k * n..][..k * n];
            vectorized_widely(
                #[inline(always)]
                || pack([k, n], numbers, pairs),
            );
        });
        Packed { sizes: [k, n], pairs }
    }

    /// The sums of the products of rows of `k` numbers, given as their bits, with right side number `i`.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "there is no instruction"))]
    pub(crate) fn multiply(&self, left: &[u16], i: usize, sums: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        {
            let ([k, n], room) = (self.sizes, Self::room(self.sizes));
            let left = Matrix { numbers: left, strides: [k, 1] };
            let sizes = Sizes { m: left.numbers.len() / k, k, n };
            bf16::product_of_packed(sizes, left, &self.pairs[i * room..][..room], sums);
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("the processor does not multiply `bf16`")
    }
}

#[inline(always)]
fn pack([k, n]: [usize; 2], numbers: &[f32], pairs: &mut [[u32; COLUMNS]]) {
    for (panel, pairs) in pairs.chunks_exact_mut(k / 2).enumerate() {
        let (first, width) = (panel * COLUMNS, COLUMNS.min(n - panel * COLUMNS));
        for (rows, pairs) in zip(numbers.chunks_exact(2 * n), pairs) {
            let (low, high) = rows.split_at(n);
            *pairs = [0; COLUMNS];
            for ((pair, &low), &high) in zip(zip(&mut pairs[..], &low[first..][..width]), &high[first..]) {
                let bits = |x: f32| u32::from(f32_to_bf16(x).to_bits());
                *pair = bits(low) | bits(high) << 16;
            }
        }
    }
}
