//! Cross entropy on a device: one kernel for the loss and one for its gradient, in `cross_entropy.cu` or, for many
//! classes, in `long_rows.cu`.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, Launch};

use super::ONE_BLOCK;
use crate::cuda::{self, Code, Constants, CudaDevice, CudaOut, CudaView, Indexed, count};
use crate::error::Result;
use crate::inlined::Array;

static CODE: Code = Code {
    name: "cross_entropy",
    text: concat!(
        include_str!("../../cuda/sums.cu"),
        include_str!("../../cuda/fault.cu"),
        include_str!("cross_entropy.cu")
    ),
};

static LONG_ROWS: Code = Code {
    name: "cross_entropy",
    text: concat!(
        include_str!("../../cuda/sums.cu"),
        include_str!("../../cuda/packs.cu"),
        include_str!("../../cuda/rows.cu"),
        include_str!("../../cuda/fault.cu"),
        include_str!("long_rows.cu")
    ),
};

/// The fewest classes for which more than a warp may share a row.
const LONG: usize = 1024;

const THREADS: u32 = 128;
/// The longest packs.
const PACK_BYTES: usize = 16;
/// The most threads of the block that adds up all losses.
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

    /// Whether more than a warp shares a row. A batch whose loss and gradient one block computes always uses
    /// `cross_entropy.cu`, so that its gradient has the same bits whether it is computed with the loss or later.
    fn are_long(&self) -> bool {
        self.classes as usize >= LONG && (self.rows * self.classes) as usize > ONE_BLOCK
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

    /// A launch with [`lanes`](Self::lanes) threads for each row.
    fn launch(&self, op: &'static str) -> Result<Launch> {
        count(op, self.threads().div_ceil(THREADS as usize))?;
        Ok(Launch::covering(self.threads(), THREADS))
    }
}

fn indexed(x: CudaView<'_>) -> Indexed {
    Indexed { op: "cross_entropy", dim: 1, shape: *x.shape() }
}

/// Whether rows are too long for registers, so that a kernel reads them more than once.
pub(super) fn reads_rows_again(x: CudaView<'_>) -> bool {
    Rows::new(x, 0, 0).are_long()
        && !cuda::RowPlan::new(x.shape()[1], x.dtype(), 1, |bytes| x.is_aligned(bytes)).is_kept()
}

/// One loss for each row and, if `scales` is given, the row's scale: its largest element, and Σ exp(x − largest).
pub(super) fn losses(
    device: &CudaDevice,
    x: CudaView<'_>,
    target: CudaView<'_>,
    scales: Option<CudaOut<'_>>,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let (op, rows) = ("cross_entropy", Rows::new(x, 0, 0));
    if rows.rows == 0 {
        return Ok(());
    }
    if rows.are_long() {
        return long_losses(device, x, target, scales, out);
    }
    let launch = rows.launch(op)?;
    let (constants, rows) = (rows.constants(), Argument::Value(bytemuck::bytes_of(&rows)));
    let kernel = ([x.dtype(), out.dtype()], "losses");
    device.with_fault(indexed(x), |[fault, site]| {
        let arguments = [out.argument(), x.argument(), target.argument(), fault, site, rows];
        // SAFETY: the kernel takes these; x has rows · classes elements, target and out one for each row, and classes
        // are checked.
        unsafe { CODE.launch_for(device, op, kernel, constants, launch, &arguments) }
    })
}

/// The plan and launch for long rows, then the arguments: the number of rows and their length.
fn long_rows(
    op: &'static str,
    x: CudaView<'_>,
    arrays: usize,
    is_aligned: bool,
) -> Result<(cuda::RowPlan, Launch, [u8; 8], [u8; 4])> {
    let (rows, n) = (x.shape()[0], x.shape()[1]);
    let plan = cuda::RowPlan::new(n, x.dtype(), arrays, |bytes| is_aligned && x.is_aligned(bytes));
    let launch = plan.launch(op, rows.div_ceil(plan.of_block()), 0)?;
    Ok((plan, launch, (rows as u64).to_ne_bytes(), count(op, n)?.to_ne_bytes()))
}

/// [`losses`] for many classes.
fn long_losses(
    device: &CudaDevice,
    x: CudaView<'_>,
    target: CudaView<'_>,
    scales: Option<CudaOut<'_>>,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let op = "cross_entropy";
    let (plan, launch, rows, n) = long_rows(op, x, 1, true)?;
    let kernel = ([x.dtype(), out.dtype()], "losses");
    device.with_fault(indexed(x), |[fault, site]| {
        let [rows, n] = [&rows[..], &n].mapped(Argument::Value);
        let constants = plan.constants().and(&[("HAS_SCALES", scales.is_some().into())]);
        let scales = scales.map_or(x.argument(), CudaOut::into_argument);
        let arguments = [out.argument(), scales, x.argument(), target.argument(), fault, site, rows, n];
        // SAFETY: as in `losses`; packs are aligned; scales, if there are any, are two for each row.
        unsafe { LONG_ROWS.launch_for(device, op, kernel, constants, launch, &arguments) }
    })
}

/// The sum of all losses times a factor and, if `grad` is given, its gradient.
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
    let kernel = ([x.dtype(), out.dtype()], "total");
    device.with_fault(indexed(x), |[fault, site]| {
        let (loss, unused) = (out.argument(), x.argument());
        let grad = grad.as_mut().map_or(unused, |grad| grad.argument());
        let arguments = [loss, grad, x.argument(), target.argument(), fault, site, rows];
        // SAFETY: as in `losses`; out has one element, and grad as many as x, or it is not written.
        unsafe { CODE.launch_for(device, op, kernel, constants, launch, &arguments) }
    })
}

/// The gradient of `x`, from that of the loss or the losses, which is 1 if it is `None`. Scales of long rows may be
/// given.
pub(super) fn grad(
    device: &CudaDevice,
    (x, scales): (CudaView<'_>, Option<CudaView<'_>>),
    grad: Option<CudaView<'_>>,
    target: CudaView<'_>,
    factor: u64,
    mut out: CudaOut<'_>,
) -> Result<()> {
    let (op, rows) = ("cross_entropy's gradient", Rows::new(x, factor, grad.map_or(0, |grad| grad.shape().rank())));
    if rows.rows * rows.classes == 0 {
        return Ok(());
    }
    let is_aligned = out.is_aligned(PACK_BYTES);
    let has_grad = [("HAS_GRAD", grad.is_some().into())];
    let kernel = ([x.dtype(), grad.map_or(x.dtype(), |grad| grad.dtype())], "grad");
    let tensors = [out.argument(), x.argument(), grad.unwrap_or(x).argument(), target.argument()];
    if rows.are_long() {
        let (plan, launch, n_rows, n) = long_rows(op, x, 1, is_aligned)?;
        let (step, factor) = (rows.grad_step.to_ne_bytes(), factor.to_ne_bytes());
        let sizes = [&n_rows[..], &n, &step, &factor].mapped(Argument::Value);
        let constants = plan.constants().and(&has_grad).and(&[("HAS_SCALES", scales.is_some().into())]);
        let scales = scales.unwrap_or(x).argument();
        let arguments: cuda::Arguments<'_> = tensors.into_iter().chain([scales]).chain(sizes).collect();
        // SAFETY: as below; packs are aligned; scales, if there are any, are two for each row.
        return unsafe { LONG_ROWS.launch_for(device, op, kernel, constants, launch, &arguments) };
    }
    let (launch, constants) = (rows.launch(op)?, rows.constants().and(&has_grad));
    let [dx, x, dy, target] = tensors;
    let arguments = [dx, x, dy, target, Argument::Value(bytemuck::bytes_of(&rows))];
    // SAFETY: the kernel takes these; x and out have rows · classes elements, target one for each row, and grad, if
    // it is given, one for each row or, with a step of 0, one.
    unsafe { CODE.launch_for(device, op, kernel, constants, launch, &arguments) }
}
