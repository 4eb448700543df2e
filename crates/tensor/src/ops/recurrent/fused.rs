//! Decides when one kernel of `recurrent.cu` computes both a step and its product with the state, on tensor cores.
//!
//! If steps are queued one by one, the host takes longer to queue cuBLASLt's product and the kernel of the step than
//! the device takes to run both. Decision 0093 has the measurements.

use pagelock_cuda::Launch;
use pagelock_cuda::library::Exactness;

use super::Recurrence;
use crate::cuda::{CudaDevice, CudaOut, CudaView, Kernels, kernels};
use crate::element::DType;
use crate::inlined::Array;
use crate::ops::is_large_product;
use crate::precision::exactness;

// The constants of `recurrent.cu`.
const ROWS: usize = 64;
const UNITS: usize = 8;
const THREADS: u32 = 256;
const COPIED_BYTES: usize = 16;
/// The size of a state must be a multiple of this, so that all lanes of a warp get the same number of elements along k.
const DIVISOR: usize = 32;
/// Three stages hide the latency of memory; the kernel needs at least two.
const MAX_STAGES: u32 = 3;

/// How the kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fused {
    pub(super) stages: u32,
    pub(super) launch: Launch,
}

impl Fused {
    /// The launch for a step of `rows` sequences, of which `n_started` have a state before the step; `None` where
    /// cuBLASLt's product and a kernel for the rest are faster, or where the kernel cannot run.
    pub(super) fn of(
        device: &CudaDevice,
        kind: Recurrence,
        (rows, n_started): (usize, usize),
        (weight, h0): (CudaView<'_>, Option<CudaView<'_>>),
        out: &CudaOut<'_>,
    ) -> Option<Fused> {
        let (properties, dtype, hidden) = (device.cuda().properties(), out.dtype(), weight.shape()[1]);
        let has_tensor_cores = match dtype {
            DType::F16 | DType::BF16 => true,
            DType::F32 => exactness() != Exactness::Exact,
            _ => false,
        };
        let is_wanted = matches!(kernels(), Kernels::Fastest | Kernels::Measured)
            && properties.compute_capability >= (8, 0)
            && is_large_product([n_started, weight.shape()[0], hidden, 1], dtype);
        let are_aligned = out.is_aligned(COPIED_BYTES)
            && weight.is_aligned(COPIED_BYTES)
            && h0.is_none_or(|h0| h0.is_aligned(COPIED_BYTES));
        let fused = Fused::new(kind, rows, hidden, properties.max_shared_memory_per_block.0)?;
        let [across, down, _] = fused.launch.grid;
        let is_one_wave = across * down <= properties.multiprocessors;
        (has_tensor_cores && is_wanted && are_aligned && is_one_wave).then_some(fused)
    }

    /// A launch with as many stages as fit into shared memory.
    fn new(kind: Recurrence, rows: usize, hidden: usize, shared_bytes: u64) -> Option<Fused> {
        let stage_bytes = (ROWS / 8 + kind.gates()) as u32 * THREADS * COPIED_BYTES as u32;
        let stages = u32::try_from(shared_bytes).unwrap_or(u32::MAX).min(MAX_STAGES * stage_bytes) / stage_bytes;
        let [across, down] = [hidden / UNITS, rows.div_ceil(ROWS)].mapped(|blocks| u16::try_from(blocks).ok());
        let grid = [across?.into(), down?.into(), 1];
        let launch = Launch { grid, block: [THREADS, 1, 1], shared_bytes: stages * stage_bytes };
        (hidden.is_multiple_of(DIVISOR) && stages >= 2).then_some(Fused { stages, launch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: u64 = 227 << 10;

    #[test]
    fn stages_are_as_many_as_there_is_room_for() {
        let stages = |kind, shared_kib: u64| Fused::new(kind, 64, 1024, shared_kib << 10).map(|fused| fused.stages);
        assert_eq!(stages(Recurrence::Lstm, 227), Some(3));
        assert_eq!(stages(Recurrence::Lstm, 99), Some(2));
        assert_eq!(stages(Recurrence::Tanh, 99), Some(2));
        assert_eq!(stages(Recurrence::Lstm, 64), None);
    }

    #[test]
    fn a_block_computes_eight_numbers_of_64_sequences() {
        let grid = |rows, hidden| Fused::new(Recurrence::Gru, rows, hidden, H200).map(|fused| fused.launch.grid);
        assert_eq!(grid(64, 1024), Some([128, 1, 1]));
        assert_eq!(grid(65, 352), Some([44, 2, 1]));
        assert_eq!(grid(64, 360), None);
        assert_eq!(grid(usize::MAX, 1024), None);
    }
}
