//! [`Packed`]: right sides of `bf16`, packed once for many products with few rows.

#[cfg(target_arch = "x86_64")]
use super::{Matrix, Sizes, bf16};
use crate::lanes::StridedRows;
#[cfg(target_arch = "x86_64")]
use crate::parallel::for_each_chunk_mut;

/// Columns of a panel.
const COLUMNS: usize = 32;

/// Packed right sides `[k, n]`, one after another, each cut into panels of columns. Two numbers that are neighbors
/// along `k` are packed as one pair, a `u32`.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    sizes: [usize; 2],
    pairs: &'a [[u32; COLUMNS]],
}

impl<'a> Packed<'a> {
    /// Whether the processor can multiply by packed right sides with `k` rows.
    pub(crate) fn can_multiply(k: usize) -> bool {
        #[cfg(target_arch = "x86_64")]
        let has_instruction = crate::lanes::Bf16::new().is_some();
        #[cfg(not(target_arch = "x86_64"))]
        let has_instruction = false;
        has_instruction && k.is_multiple_of(2)
    }

    /// The length of one packed right side, in rows of `COLUMNS` pairs.
    pub(crate) fn packed_len([k, n]: [usize; 2]) -> usize {
        k / 2 * n.div_ceil(COLUMNS)
    }

    /// Packs right sides into `pairs`, which has [`packed_len`](Self::packed_len) rows for each. Their numbers are given
    /// as bits, `strides` apart along `k` and `n`.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "only x86 has the instruction"))]
    pub(crate) fn new([k, n]: [usize; 2], bits: &[u16], strides: [usize; 2], pairs: &'a mut [[u32; COLUMNS]]) -> Self {
        #[cfg(target_arch = "x86_64")]
        for_each_chunk_mut(pairs, Self::packed_len([k, n]), |i, pairs| {
            bf16::pack_right(Matrix { numbers: &bits[i * k * n..], strides }, [k, n], pairs);
        });
        Packed { sizes: [k, n], pairs }
    }

    /// Multiplies rows of `k` numbers, given as their bits, by right side number `i`: as many rows as `sums` has room
    /// for.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "only x86 has the instruction"))]
    pub(crate) fn multiply(&self, left: StridedRows<'_, u16>, i: usize, sums: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        {
            let ([k, n], len) = (self.sizes, Self::packed_len(self.sizes));
            let left = Matrix { numbers: left.numbers, strides: [left.distance, 1] };
            bf16::product_of_packed(Sizes { m: sums.len() / n, k, n }, left, &self.pairs[i * len..][..len], sums);
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("the processor does not multiply `bf16`")
    }
}
