//! Kernels that work on rows: how many threads a row has, and what they keep in registers. `rows.cu` has their
//! building blocks.

use pagelock_cuda::Launch;

use super::{Constants, count};
use crate::element::DType;
use crate::error::Result;

/// Threads of a block, unless a row has more.
const BLOCK_THREADS: usize = 128;
const MAX_LANES: usize = 1024;
/// The most bytes of columns that a thread keeps.
const MAX_COLUMN_BYTES: usize = 256;

/// How a kernel divides rows of some length among threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowPlan {
    lanes: usize,
    packs: usize,
    pack: usize,
}

impl RowPlan {
    /// A plan for rows of `n` elements. A kernel keeps `arrays` of them in registers, in the computing type of
    /// `dtype`. `is_aligned` says whether all tensors begin at a multiple of a number of bytes.
    pub(crate) fn new(n: usize, dtype: DType, arrays: usize, is_aligned: impl Fn(usize) -> bool) -> RowPlan {
        let fits = |&pack: &usize| n.is_multiple_of(pack) && is_aligned(pack * dtype.size());
        let pack = [16, 8, 4, 2, 1].into_iter().filter(|pack| pack * dtype.size() <= 16).find(fits).unwrap_or(1);
        let packs = n.div_ceil(pack).max(1);
        let narrow = packs.next_power_of_two().min(32);
        let candidates = [narrow, 64, 128, 256, 512, MAX_LANES].into_iter();
        let kept = |lanes: usize| packs.div_ceil(lanes) * pack <= most_values(lanes, dtype, arrays);
        match candidates.filter(|&lanes| lanes >= narrow).find(|&lanes| kept(lanes)) {
            Some(lanes) => RowPlan { lanes, packs: packs.div_ceil(lanes), pack },
            None => RowPlan { lanes: MAX_LANES, packs: 0, pack },
        }
    }

    /// A plan for columns of `n` elements, each of which one thread computes.
    pub(crate) fn of_columns(n: usize, dtype: DType, arrays: usize) -> RowPlan {
        let most = MAX_COLUMN_BYTES / dtype.computing().size() / arrays;
        RowPlan { lanes: 1, packs: if n <= most { n } else { 0 }, pack: 1 }
    }

    /// Whether threads keep all of a row in registers.
    pub(crate) fn is_kept(&self) -> bool {
        self.packs > 0
    }

    /// Rows of a block.
    pub(crate) fn of_block(&self) -> usize {
        (BLOCK_THREADS / self.lanes).max(1)
    }

    /// Threads of a block.
    pub(crate) fn threads(&self) -> usize {
        self.lanes * self.of_block()
    }

    pub(crate) fn constants(&self) -> Constants {
        Constants::of(&[("LANES", self.lanes as i32), ("PACKS", self.packs as i32), ("V", self.pack as i32)])
    }

    /// A launch of `blocks` blocks.
    pub(crate) fn launch(&self, op: &'static str, blocks: usize, shared_bytes: usize) -> Result<Launch> {
        Ok(Launch {
            grid: [count(op, blocks)? as u32, 1, 1],
            block: [self.lanes as u32, self.of_block() as u32, 1],
            shared_bytes: shared_bytes as u32,
        })
    }
}

/// The most elements of an array that a thread keeps, so that enough threads run at once (measured on an H200).
fn most_values(lanes: usize, dtype: DType, arrays: usize) -> usize {
    let values = match dtype.size() {
        2 if arrays == 1 => 32,
        8 => 8,
        _ => 16,
    };
    if lanes == MAX_LANES && arrays > 2 { values / 2 } else { values }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n: usize, dtype: DType, arrays: usize) -> (usize, usize, usize) {
        let RowPlan { lanes, packs, pack } = RowPlan::new(n, dtype, arrays, |_| true);
        (lanes, packs, pack)
    }

    #[test]
    fn threads_of_a_row_keep_all_of_it_unless_it_is_long() {
        assert_eq!(rows(10, DType::F32, 1), (8, 1, 2));
        assert_eq!(rows(768, DType::BF16, 1), (32, 3, 8));
        assert_eq!(rows(8192, DType::F32, 1), (512, 4, 4));
        assert_eq!(rows(16_384, DType::F32, 4), (1024, 0, 4));
        for n in [1, 7, 33, 100, 1000, 1001, 4096, 5000] {
            for dtype in [DType::F32, DType::F64, DType::BF16] {
                for arrays in [1, 2, 4] {
                    let (lanes, packs, pack) = rows(n, dtype, arrays);
                    assert!(packs == 0 || lanes * packs * pack >= n, "{n} of {dtype}");
                    assert!(lanes.is_power_of_two() && n.is_multiple_of(pack), "{n} of {dtype}");
                }
            }
        }
    }

    #[test]
    fn packs_begin_where_their_length_allows() {
        assert_eq!(RowPlan::new(64, DType::F32, 1, |bytes| bytes <= 4).pack, 1);
        assert_eq!(RowPlan::new(64, DType::F32, 1, |bytes| bytes <= 8).pack, 2);
    }
}
