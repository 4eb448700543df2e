//! Clipping by the norm of all gradients together, and by value.

use super::cuda::Kernel;
use super::groups::{Batch, Group, MOST, PLACES, Places};
use crate::autograd::no_grad;
use crate::cuda::{Code, CudaDevice};
use crate::device::Device;
use crate::element::DType;
use crate::error::Result;
use crate::tensor::Tensor;
use std::cell::Cell;

static CODE: Code = Code { name: "clip", text: concat!(include_str!("../cuda/sums.cu"), include_str!("clip.cu")) };

/// Blocks that add up one gradient, at most: a constant, since sums must not depend on the device.
const BLOCKS: usize = 1024;

/// Scales gradients down in place, so that the norm of all of them together, as if they were one vector, is at most
/// `max_norm`; gives the norm that they had, as PyTorch's `clip_grad_norm_`.
///
/// Each is multiplied by `max_norm / (norm + 1e-6)`, if that is below 1. On a GPU they are read once and changed once, a few
/// at a time, and nothing waits for the device.
///
/// # Errors
/// As [`SgdRule::step`](super::SgdRule::step).
///
/// # Examples
/// ```
/// use pagelock_tensor::{Tensor, optimizer_steps::clip_grad_norm_};
///
/// let (a, b) = (Tensor::new([3.0, 0.0])?, Tensor::new([4.0])?);
/// let norm = clip_grad_norm_([a.clone(), b], 1.0)?;
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// assert!((a.to_vec::<f32>()?[0] - 0.6).abs() < 1e-6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn clip_grad_norm_(grads: impl IntoIterator<Item = Tensor>, max_norm: f64) -> Result<Tensor> {
    let mut by_device: Vec<(Device, Vec<Tensor>)> = Vec::new();
    for grad in grads {
        let device = grad.device();
        match by_device.iter_mut().find(|(known, _)| *known == device) {
            Some((_, grads)) => grads.push(grad),
            None => by_device.push((device, vec![grad])),
        }
    }
    let Some((first, grads)) = by_device.first() else { return Tensor::zeros(()) };
    let dtype = grads[0].dtype().computing();
    no_grad(|| {
        let mut squares = squares(first, grads)?;
        for (device, grads) in &by_device[1..] {
            squares = squares.add(&self::squares(device, grads)?.to(first)?)?;
        }
        let norm = squares.sqrt()?;
        by_device.iter().try_for_each(|(device, grads)| scale(device, grads, &norm.to(device)?, max_norm))?;
        norm.to_dtype(dtype)
    })
}

/// Brings every element of gradients that is above `clip_value` or below `−clip_value` to there, in place, as PyTorch's
/// `clip_grad_value_`. NaN stays. On a GPU a few gradients are changed by one kernel, and nothing waits for the device.
///
/// # Errors
/// As [`SgdRule::step`](super::SgdRule::step).
///
/// # Examples
/// ```
/// use pagelock_tensor::{Tensor, optimizer_steps::clip_grad_value_};
///
/// let grad = Tensor::new([3.0, -0.5, -2.0])?;
/// clip_grad_value_([grad.clone()], 1.0)?;
/// assert_eq!(grad.to_vec::<f32>()?, [1.0, -0.5, -1.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn clip_grad_value_(grads: impl IntoIterator<Item = Tensor>, clip_value: f64) -> Result<()> {
    let clamp = |groups: &[Option<Gradient>]| clamp(groups, clip_value);
    let mut batch = Batch::new();
    grads.into_iter().try_for_each(|grad| batch.add(Gradient { grad, is_changed: true }, clamp))?;
    batch.finish(clamp)
}

fn clamp(groups: &[Option<Gradient>], most: f64) -> Result<()> {
    let Some(first) = groups.iter().flatten().next() else { return Ok(()) };
    let Device::Cuda(device) = first.grad.device() else {
        return groups.iter().flatten().try_for_each(|group| group.grad.clamp_(-most, most));
    };
    let kernel = Kernel { code: &CODE, name: "clamp", places: CHANGED, blocks: BLOCKS };
    kernel.launch(&device, groups, &[], None, &[most.to_bits()])
}

/// The sum of the squares of all elements, one `f64`.
fn squares(device: &Device, grads: &[Tensor]) -> Result<Tensor> {
    let Device::Cuda(cuda) = device else {
        let squares = |grad: &Tensor| {
            let x = grad.widened()?;
            x.mul(&x)?.sum(..)?.item::<f64>()
        };
        let sum = grads.iter().try_fold(0.0, |sum, grad| Ok(sum + squares(grad)?))?;
        return Tensor::of(DType::F64).full((), sum);
    };
    let partial = Tensor::on(device).of(DType::F64).zeros([grads.len(), BLOCKS])?;
    let done = Cell::new(0);
    in_batches(grads, false, |groups| {
        let first = done.replace(done.get() + groups.len());
        let mut locked = partial.storage().lock_mut();
        let to = locked.cuda(partial.layout(), DType::F64).into_argument();
        let kernel = Kernel { code: &CODE, name: "squares", places: READ, blocks: BLOCKS };
        kernel.launch(cuda, groups, &[], Some(to), &[first as u64, BLOCKS as u64])
    })?;
    partial.sum(..)
}

/// Multiplies all by what brings the norm down.
fn scale(device: &Device, grads: &[Tensor], norm: &Tensor, max_norm: f64) -> Result<()> {
    let Device::Cuda(cuda) = device else {
        let by = max_norm / (norm.item::<f64>()? + 1e-6);
        return if by > 1.0 { Ok(()) } else { grads.iter().try_for_each(|grad| grad.mul_scalar_(by)) };
    };
    in_batches(grads, true, |groups| scale_on(cuda, groups, norm, max_norm))
}

fn scale_on(device: &CudaDevice, groups: &[Option<Gradient>], norm: &Tensor, max_norm: f64) -> Result<()> {
    let kernel = Kernel { code: &CODE, name: "scale", places: CHANGED, blocks: BLOCKS };
    kernel.launch(device, groups, &[Some(norm)], None, &[max_norm.to_bits()])
}

/// Launches for a few gradients at a time.
fn in_batches(
    grads: &[Tensor],
    is_changed: bool,
    launch: impl Fn(&[Option<Gradient>]) -> Result<()> + Copy,
) -> Result<()> {
    let mut batch = Batch::new();
    grads.iter().try_for_each(|grad| batch.add(Gradient { grad: grad.clone(), is_changed }, launch))?;
    batch.finish(launch)
}

/// A gradient that a launch reads or changes.
#[derive(Clone)]
struct Gradient {
    grad: Tensor,
    is_changed: bool,
}

/// Where a [`Gradient`] is among the places of a group.
const CHANGED: [bool; PLACES] = [true, false, false, false, false, false];
const READ: [bool; PLACES] = [false, false, false, false, false, true];

impl Group for Gradient {
    fn most(&self) -> usize {
        MOST
    }

    fn tensors(&self) -> Places<'_> {
        let places = if self.is_changed { CHANGED } else { READ };
        places.map(|is_here| is_here.then_some(&self.grad))
    }

    fn with(&self, mut tensors: [Option<Tensor>; PLACES]) -> Self {
        let copy = tensors.iter_mut().find_map(Option::take);
        Self { grad: copy.unwrap_or_else(|| self.grad.clone()), is_changed: self.is_changed }
    }

    fn fits(&self, _: &Self) -> bool {
        true
    }
}
