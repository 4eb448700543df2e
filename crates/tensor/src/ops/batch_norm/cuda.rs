//! Batch normalization on a device: the kernels of `batch_norm.cu`, and how their work is divided.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, Launch};

use super::{Channels, GRAD, Normalization};
use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, count, optional};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::Array;

static CODE: Code = Code {
    name: "batch_norm",
    text: concat!(
        include_str!("../../cuda/sums.cu"),
        include_str!("../../cuda/packs.cu"),
        include_str!("batch_norm.cu")
    ),
};

/// `THREADS` and the largest `UNROLL` of `batch_norm.cu`.
const THREADS: usize = 256;
const UNROLL: usize = 4;
/// As many blocks as today's largest GPU runs at once. A constant, since results must not depend on the device.
const ENOUGH_BLOCKS: usize = 512;
const MAX_SEGMENTS: usize = 512;

/// `Geometry` of `batch_norm.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Geometry {
    outer: u64,
    channels: u64,
    inner: u64,
}

/// How the work of a kernel is divided.
struct Plan {
    geometry: Geometry,
    /// Whether a block handles one channel; otherwise a thread handles `pack` channels.
    planes: bool,
    across: usize,
    pack: usize,
    blocks: usize,
    segments: usize,
}

impl Plan {
    fn new(channels: Channels, dtype: DType, is_aligned: impl Fn(usize) -> bool) -> Plan {
        let Channels { outer, channels, inner } = channels;
        let outer = if inner == 0 { 0 } else { outer }; // without planes, kernels take `inner` as 1
        let planes = inner > 1;
        let neighbors = if planes { inner } else { channels };
        // Without planes, a thread keeps sums for each channel of its pack, so packs of halves are shorter.
        let most_bytes = if planes || dtype.size() > 2 { 16 } else { 8 };
        let fits = |&pack: &usize| neighbors.is_multiple_of(pack) && is_aligned(pack * dtype.size());
        let pack = [8, 4, 2, 1].into_iter().filter(|pack| pack * dtype.size() <= most_bytes).find(fits).unwrap_or(1);
        let across = (channels / pack).next_power_of_two().min(32);
        let blocks = if planes { channels } else { channels.div_ceil(across * pack) };
        let of_block = if planes { THREADS * UNROLL * pack / inner } else { THREADS * UNROLL / across };
        let most = outer.div_ceil(of_block.max(1)).min(MAX_SEGMENTS);
        let segments = (ENOUGH_BLOCKS / blocks).clamp(1, most.max(1));
        let geometry = Geometry { outer: outer as u64, channels: channels as u64, inner: inner as u64 };
        Plan { geometry, planes, across, pack, blocks, segments }
    }

    fn constants(&self, relu: bool, training: bool) -> Constants {
        Constants::of(&[
            ("PLANES", self.planes.into()),
            ("ACROSS", self.across as i32),
            ("V", self.pack as i32),
            ("RELU", relu.into()),
            ("TRAINING", training.into()),
        ])
    }

    fn launch(&self, op: &'static str) -> Result<Launch> {
        count(op, self.geometry.inner as usize / self.pack)?; // packs of a plane, which a thread counts with 32 bits
        let grid = [count(op, self.blocks)? as u32, self.segments as u32, 1];
        Ok(Launch { grid, ..Launch::covering(1, THREADS as u32) })
    }

    /// A warp for each of `n` results.
    fn combining(op: &'static str, n: usize) -> Result<Launch> {
        count(op, n * 32)?;
        Ok(Launch::covering(n * 32, THREADS as u32))
    }

    fn geometry(&self) -> Argument<'_> {
        Argument::Value(bytemuck::bytes_of(&self.geometry))
    }

    fn segments(&self) -> [u8; 4] {
        (self.segments as u32).to_ne_bytes()
    }
}

/// Means, variances and unbiased variances of all channels.
pub(super) fn statistics(device: &CudaDevice, channels: Channels, x: CudaView<'_>, mut out: CudaOut<'_>) -> Result<()> {
    let (op, dtype) = ("batch_norm", x.dtype());
    let failed = |source| Error::cuda(op, source);
    let plan = Plan::new(channels, dtype, |bytes| x.is_aligned(bytes));
    let n_moments = channels.channels * plan.segments;
    let mut partial = device.stream().allocate::<u8>(n_moments * 3 * size_of::<f64>()).map_err(failed)?;
    let constants = plan.constants(false, true);
    let arguments = [Argument::Write(partial.view_mut()), x.argument(), plan.geometry()];
    let kernel = ([dtype; 2], "statistics");
    // SAFETY: the kernel takes these; x has outer · channels · inner elements, `partial` three numbers for each channel
    // and segment.
    unsafe { CODE.launch_for(device, op, kernel, constants, plan.launch(op)?, &arguments) }?;
    let (n, segments) = ((channels.channels as u64).to_ne_bytes(), plan.segments());
    let [n, segments] = [&n[..], &segments].mapped(Argument::Value);
    let arguments = [out.argument(), Argument::Read(partial.view()), n, segments];
    let (kernel, launch) = (([dtype; 2], "combine_statistics"), Plan::combining(op, channels.channels)?);
    // SAFETY: the kernel takes these; `out` has three numbers for each channel.
    unsafe { CODE.launch_for(device, op, kernel, constants, launch, &arguments) }
}

/// The types that kernels with weight and bias are compiled for: that of `x`, and that of the parameters.
fn types(x: CudaView<'_>, [weight, bias]: [Option<CudaView<'_>>; 2]) -> [DType; 2] {
    [x.dtype(), weight.or(bias).unwrap_or(x).dtype()]
}

/// The result, from statistics, `x`, and weight and bias if there are any.
pub(super) fn forward(
    device: &CudaDevice,
    rule: Normalization,
    [statistics, x]: [CudaView<'_>; 2],
    parameters: [Option<CudaView<'_>>; 2],
    mut out: CudaOut<'_>,
) -> Result<()> {
    let op = "batch_norm";
    let plan = Plan::new(rule.channels, x.dtype(), |bytes| x.is_aligned(bytes) && out.is_aligned(bytes));
    let kernel = (types(x, parameters), "batch_norm");
    let (eps, [weight, bias]) = (rule.eps.to_ne_bytes(), parameters.mapped(optional));
    let eps = Argument::Value(&eps);
    let arguments = [out.argument(), x.argument(), weight, bias, statistics.argument(), plan.geometry(), eps];
    let constants = plan.constants(rule.relu, rule.training);
    // SAFETY: the kernel takes these; x and out have outer · channels · inner elements, weight and bias one for each
    // channel, the statistics at least two.
    unsafe { CODE.launch_for(device, op, kernel, constants, plan.launch(op)?, &arguments) }
}

/// Σ g·x̂ and Σ g of each channel, from statistics, `x`, the gradient of the result, and weight and bias if there are
/// any.
pub(super) fn sums(
    device: &CudaDevice,
    rule: Normalization,
    [statistics, x, grad]: [CudaView<'_>; 3],
    parameters: [Option<CudaView<'_>>; 2],
    mut out: CudaOut<'_>,
) -> Result<()> {
    let op = GRAD;
    let failed = |source| Error::cuda(op, source);
    let plan = Plan::new(rule.channels, x.dtype(), |bytes| x.is_aligned(bytes) && grad.is_aligned(bytes));
    let n_sums = 2 * rule.channels.channels;
    let mut partial = device.stream().allocate::<u8>(n_sums * plan.segments * size_of::<f64>()).map_err(failed)?;
    let kernel = (types(x, parameters), "sums");
    let (eps, [weight, bias]) = (rule.eps.to_ne_bytes(), parameters.mapped(optional));
    let (to, eps) = (Argument::Write(partial.view_mut()), Argument::Value(&eps));
    let arguments = [to, x.argument(), grad.argument(), weight, bias, statistics.argument(), plan.geometry(), eps];
    let constants = plan.constants(rule.relu, rule.training);
    // SAFETY: as in `forward`; the gradient is as large as x, `partial` has two numbers for each channel and segment.
    unsafe { CODE.launch_for(device, op, kernel, constants, plan.launch(op)?, &arguments) }?;
    let (n, segments) = ((n_sums as u64).to_ne_bytes(), plan.segments());
    let [n, segments] = [&n[..], &segments].mapped(Argument::Value);
    let arguments = [out.argument(), Argument::Read(partial.view()), n, segments];
    let (kernel, launch) = (([x.dtype(); 2], "combine_sums"), Plan::combining(op, n_sums)?);
    // SAFETY: the kernel takes these; `out` has two numbers for each channel.
    unsafe { CODE.launch_for(device, op, kernel, constants, launch, &arguments) }
}

/// The gradient of `x`, from the inputs of [`sums`] and, while training, its results.
pub(super) fn grad(
    device: &CudaDevice,
    rule: Normalization,
    [statistics, x, grad]: [CudaView<'_>; 3],
    [weight, bias, sums]: [Option<CudaView<'_>>; 3],
    mut out: CudaOut<'_>,
) -> Result<()> {
    let (op, parameters) = (GRAD, [weight, bias]);
    let all_aligned = |bytes| out.is_aligned(bytes) && x.is_aligned(bytes) && grad.is_aligned(bytes);
    let plan = Plan::new(rule.channels, x.dtype(), all_aligned);
    let kernel = (types(x, parameters), "batch_norm_grad");
    let (eps, [weight, bias]) = (rule.eps.to_ne_bytes(), parameters.mapped(optional));
    let (geometry, eps) = (plan.geometry(), Argument::Value(&eps));
    let [statistics, sums] = [statistics, sums.unwrap_or(statistics)].mapped(|numbers| numbers.argument());
    let arguments = [out.argument(), x.argument(), grad.argument(), weight, bias, statistics, sums, geometry, eps];
    let constants = plan.constants(rule.relu, rule.training);
    // SAFETY: as in `sums`; `out` is as large as x.
    unsafe { CODE.launch_for(device, op, kernel, constants, plan.launch(op)?, &arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before the fix, the kernel took the number of packs modulo 2³².
    #[test]
    fn planes_of_too_many_packs_are_refused() {
        let launch = |inner, is_aligned: bool| {
            Plan::new(Channels { outer: 1, channels: 1, inner }, DType::F32, |_| is_aligned).launch("batch_norm")
        };
        let refused = launch(1 << 32, false).unwrap_err().to_string();
        assert!(refused.contains("GPU kernels count to at most 2147483647"), "{refused}");
        launch(1 << 32, true).unwrap(); // in packs of 4
        launch((1 << 31) - 1, false).unwrap();
    }
}
