//! Clipping by the norm of all gradients together, and by value.

use super::cuda::{Kernel, MAX_BLOCKS, blocks_for};
use super::groups::{Batch, CHANGED, READ, Single};
use crate::autograd::no_grad;
use crate::cuda::{Code, CudaDevice, NULL};
use crate::device::Device;
use crate::element::DType;
use crate::error::Result;
use crate::shape::Shape;
use crate::storage::FreshCuda;
use crate::tensor::Tensor;
use std::cell::Cell;

static CODE: Code = Code { name: "clip", text: concat!(include_str!("../cuda/sums.cu"), include_str!("clip.cu")) };

/// Up to this many partial sums are added up in every block of `scale`; more are added up once, by a reduction.
const FEW: usize = 1024;

/// Scales gradients down in place, so that the norm of all of them together, as one vector, is at most `max_norm`.
/// Returns the norm that they had, as PyTorch's `clip_grad_norm_`.
///
/// Each gradient is multiplied by `max_norm / (norm + 1e-6)`, if that is below 1. On a GPU, each gradient is read
/// once and changed once, a few of them in each kernel, and nothing waits for the device.
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
    for grad in grads.into_iter().filter(|grad| !grad.is_empty()) {
        let device = grad.device();
        match by_device.iter_mut().find(|(known, _)| *known == device) {
            Some((_, grads)) => grads.push(grad),
            None => by_device.push((device, vec![grad])),
        }
    }
    let Some(((first, grads), others)) = by_device.split_first() else { return Tensor::zeros(()) };
    no_grad(|| {
        let mut squares = squares(first, grads)?;
        for (device, grads) in others {
            let more = self::squares(device, grads)?.sum(..)?.to(first)?;
            squares = squares.sum(..)?.add(&more)?.reshape([1])?;
        }
        let norm = scale(first, grads, &squares, max_norm)?;
        others.iter().try_for_each(|(device, grads)| scale(device, grads, &squares.to(device)?, max_norm).map(drop))?;
        Ok(norm)
    })
}

/// Clamps every element of gradients to `−clip_value` to `clip_value`, in place, as PyTorch's `clip_grad_value_`. NaN
/// stays NaN. On a GPU, one kernel changes a few gradients, and nothing waits for the device.
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
    in_batches(&mut grads.into_iter(), true, |groups| clamp(groups, clip_value))
}

fn clamp(groups: &[Option<Single>], max: f64) -> Result<()> {
    let Some(first) = groups.iter().flatten().next() else { return Ok(()) };
    let Device::Cuda(device) = first.tensor.device() else {
        return groups.iter().flatten().try_for_each(|group| group.tensor.clamp_(-max, max));
    };
    let kernel = Kernel { code: &CODE, name: "clamp", takes: CHANGED };
    kernel.launch(&device, groups, &[], None, &[max.to_bits()])
}

/// Partial sums of the squares of all elements, `[n]` of `f64`: a single one, or one for each block of a kernel.
fn squares(device: &Device, grads: &[Tensor]) -> Result<Tensor> {
    let Device::Cuda(cuda) = device else {
        let squares = |grad: &Tensor| {
            let x = grad.widened()?;
            x.mul(&x)?.sum(..)?.item::<f64>()
        };
        let sum = grads.iter().try_fold(0.0, |sum, grad| Ok(sum + squares(grad)?))?;
        return Tensor::of(DType::F64).full([1], sum);
    };
    let kernel = Kernel { code: &CODE, name: "squares", takes: READ };
    let partial = unset(device, cuda, [grads.len() * MAX_BLOCKS], DType::F64)?;
    let done = Cell::new(0);
    in_batches(&mut grads.iter().cloned(), false, |groups| {
        let first = done.replace(done.get() + groups.len() * blocks_for(groups));
        let mut locked = partial.storage().lock_mut();
        let to = locked.cuda(partial.layout(), DType::F64).into_argument();
        kernel.launch(cuda, groups, &[], Some(to), &[first as u64])
    })?;
    let found = partial.narrow(0, 0, done.get())?;
    if found.len() <= FEW { Ok(found) } else { found.sum(..)?.reshape([1]) }
}

/// Multiplies all gradients by the factor that limits the norm, the root of the sum of `squares`. Returns the norm,
/// in the computing type of the first gradient.
fn scale(device: &Device, grads: &[Tensor], squares: &Tensor, max_norm: f64) -> Result<Tensor> {
    let dtype = grads[0].dtype().computing();
    let Device::Cuda(cuda) = device else {
        let norm = squares.sum(..)?.sqrt()?;
        let by = max_norm / (norm.item::<f64>()? + 1e-6);
        let changed = if by > 1.0 { &[] } else { grads }; // all, if it is NaN
        changed.iter().try_for_each(|grad| grad.mul_scalar_(by))?;
        return norm.to_dtype(dtype);
    };
    let norm = unset(device, cuda, [], dtype)?;
    in_batches(&mut grads.iter().cloned(), true, |groups| scale_on(cuda, groups, squares, &norm, max_norm))?;
    Ok(norm)
}

/// Launches `scale`, which also writes the norm if it computes in the norm's type.
fn scale_on(
    device: &CudaDevice,
    groups: &[Option<Single>],
    squares: &Tensor,
    norm: &Tensor,
    max_norm: f64,
) -> Result<()> {
    let kernel = Kernel { code: &CODE, name: "scale", takes: CHANGED };
    let is_its_type = groups.iter().flatten().all(|group| group.tensor.dtype().computing() == norm.dtype());
    let mut locked = is_its_type.then(|| norm.storage().lock_mut());
    let to = locked.as_mut().map(|locked| locked.cuda(norm.layout(), norm.dtype()).into_argument());
    let to = to.unwrap_or(NULL);
    kernel.launch(device, groups, &[Some(squares)], Some(to), &[max_norm.to_bits(), squares.len() as u64])
}

/// A tensor whose elements have unspecified values.
fn unset<const N: usize>(device: &Device, cuda: &CudaDevice, dims: [usize; N], dtype: DType) -> Result<Tensor> {
    Ok(FreshCuda::allocate("clip_grad_norm_", Shape::new(&dims)?, dtype, device, cuda)?.share().typed())
}

/// Calls `launch` for a few gradients at a time.
fn in_batches(
    grads: &mut dyn Iterator<Item = Tensor>,
    is_changed: bool,
    launch: impl Fn(&[Option<Single>]) -> Result<()> + Copy,
) -> Result<()> {
    let mut batch = Batch::new();
    for tensor in grads {
        batch.add(Single { tensor, is_changed }, launch)?;
    }
    batch.finish(launch)
}
