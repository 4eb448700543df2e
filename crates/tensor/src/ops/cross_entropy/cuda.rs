//! Cross entropy on a device: one kernel of `cross_entropy.cu` for a loss, one for its gradient.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, Launch};

use crate::cuda::{Code, Constants, CudaDevice, CudaOut, CudaView, Indexed, count};
use crate::error::Result;

static CODE: Code = Code {
    name: "cross_entropy",
    text: concat!(
        include_str!("../../cuda/sums.cu"),
        include_str!("../../cuda/fault.cu"),
        include_str!("cross_entropy.cu")
    ),
};

const THREADS: u32 = 128;
/// Threads of the one block that adds up all losses.
const TOTAL_THREADS: usize = 1024;

/// `Rows` of `cross_entropy.cu`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Rows {
    rows: u64,
    classes: u64,
    factor: u64,
    grad_step: u64,
}

impl Rows {
    fn new(x: CudaView<'_>, factor: u64, grad_step: usize) -> Rows {
        let (rows, classes) = (x.shape()[0], x.shape()[1]);
        Rows { rows: rows as u64, classes: classes as u64, factor, grad_step: grad_step as u64 }
    }

    /// Threads of a row.
    fn lanes(&self) -> usize {
        self.classes.next_power_of_two().min(32) as usize
    }

    fn threads(&self) -> usize {
        self.rows as usize * self.lanes()
    }

    fn constants(&self) -> Constants {
        Constants::of(&[("LANES", self.lanes() as i32)])
    }

    /// Threads for each row.
    fn launch(&self, op: &'static str) -> Result<Launch> {
        count(op, self.threads().div_ceil(THREADS as usize))?;
        Ok(Launch::covering(self.threads(), THREADS))
    }
}

fn indexed(x: CudaView<'_>) -> Indexed {
    Indexed { op: "cross_entropy", dim: 1, shape: *x.shape() }
}

/// One loss for each row.
pub(super) fn losses(device: &CudaDevice, x: CudaView<'_>, target: CudaView<'_>, mut out: CudaOut<'_>) -> Result<()> {
    let (op, rows) = ("cross_entropy", Rows::new(x, 0, 0));
    if rows.rows == 0 {
        return Ok(());
    }
    let launch = rows.launch(op)?;
    let (constants, rows) = (rows.constants(), Argument::Value(bytemuck::bytes_of(&rows)));
    device.with_fault(indexed(x), |[fault, site]| {
        let arguments = [out.argument(), x.argument(), target.argument(), fault, site, rows];
        // SAFETY: the kernel takes these; x has rows · classes elements, target and out one for each row, and classes
        // are checked.
        unsafe { CODE.launch_for(device, op, ([x.dtype(); 2], "losses"), constants, launch, &arguments) }
    })
}

/// The sum of all losses, times a factor, and the gradient of that, if there is room for it.
pub(super) fn total(
    device: &CudaDevice,
    x: CudaView<'_>,
    target: CudaView<'_>,
    factor: u64,
    mut out: CudaOut<'_>,
    mut grad: Option<CudaOut<'_>>,
) -> Result<()> {
    let (op, rows) = ("cross_entropy", Rows::new(x, factor, 0));
    let threads = rows.threads().next_multiple_of(32).clamp(32, TOTAL_THREADS) as u32;
    let launch = Launch::covering(1, threads);
    let constants = rows.constants().and(&[("HAS_GRAD", grad.is_some().into())]);
    let rows = Argument::Value(bytemuck::bytes_of(&rows));
    device.with_fault(indexed(x), |[fault, site]| {
        let (loss, nothing) = (out.argument(), x.argument());
        let grad = grad.as_mut().map_or(nothing, |grad| grad.argument());
        let arguments = [loss, grad, x.argument(), target.argument(), fault, site, rows];
        // SAFETY: as in `losses`; out has one element, and grad as many as x, or it is not written.
        unsafe { CODE.launch_for(device, op, ([x.dtype(); 2], "total"), constants, launch, &arguments) }
    })
}

/// The gradient of `x`, from that of the loss or the losses, which is 1 if there is none.
pub(super) fn grad(
    device: &CudaDevice,
    x: CudaView<'_>,
    grad: Option<CudaView<'_>>,
    target: CudaView<'_>,
    factor: u64,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let (op, rows) = ("cross_entropy's gradient", Rows::new(x, factor, grad.map_or(0, |grad| grad.shape().rank())));
    if rows.rows * rows.classes == 0 {
        return Ok(());
    }
    let launch = rows.launch(op)?;
    let constants = rows.constants().and(&[("HAS_GRAD", grad.is_some().into())]);
    let rows = Argument::Value(bytemuck::bytes_of(&rows));
    let arguments = [out.argument(), x.argument(), grad.unwrap_or(x).argument(), target.argument(), rows];
    // SAFETY: the kernel takes these; x and out have rows · classes elements, target one for each row, grad, if there is
    // one, that too or, with a step of 0, one.
    unsafe { CODE.launch_for(device, op, ([x.dtype(); 2], "grad"), constants, launch, &arguments) }
}
