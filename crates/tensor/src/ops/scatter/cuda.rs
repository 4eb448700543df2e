//! Scattering on a device: the kernels of `scatter.cu`.

use pagelock_cuda::{Argument, Launch};

use super::How;
use crate::cuda::{COPY, Code, CudaDevice, CudaOut, CudaView, Indexed, count};
use crate::error::Result;
use crate::ops::index::cuda::{Index, Lines};

static CODE: Code =
    Code { name: "scatter", text: concat!(include_str!("../../cuda/fault.cu"), include_str!("scatter.cu")) };

const THREADS: u32 = 128;
const WARP: usize = 32;

/// `x` with the elements of `source` combined with those at their indices along `dim`.
pub(super) fn scatter(
    device: &CudaDevice,
    (op, how, dim): (&'static str, How, usize),
    [x, index, source]: [CudaView<'_>; 3],
    mut out: CudaOut<'_>,
) -> Result<()> {
    COPY.run(device, op, &[x], &[], out.reborrow())?;
    let shape = *out.shape();
    if source.shape().elements() == 0 {
        return Ok(());
    }
    let lines = Lines::new(&shape, source, Index::of_elements(index, dim));
    let blocks = count(op, (lines.lines as usize).div_ceil(THREADS as usize / WARP))?;
    let launch = Launch { grid: [blocks as u32, 1, 1], ..Launch::covering(1, THREADS) };
    let types = [source.dtype(); 2];
    let kernel = match how {
        How::Last => "scatter_last",
        How::Prod => "scatter_prod",
        How::Amax => "scatter_amax",
        How::Amin => "scatter_amin",
    };
    device.with_fault(Indexed { op, dim, shape }, |[fault, site]| {
        let lines = Argument::Value(bytemuck::bytes_of(&lines));
        let arguments = [out.argument(), source.argument(), index.argument(), fault, site, lines];
        // SAFETY: the kernels take these; lines and steps lead to elements of the source, of the index and, with an index that
        // they check, of `out`; no two lines have the same elements of `out`.
        unsafe { CODE.launch(device, op, (types, kernel), launch, &arguments) }
    })
}
