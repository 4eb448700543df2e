//! Cross entropy of a batch and its gradient, each an operation. On a device, a small batch takes one kernel, which also
//! computes the gradient if it will be needed; a large batch takes several.

mod cuda;

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::autocast;
use crate::autograd::{Saved, is_grad_enabled};
use crate::cpu::{self, CpuView, Stored, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, constant};
use crate::device::{Device, common_device};
use crate::element::{DType, Real};
use crate::error::{Error, Result};
use crate::inlined::Slice;
use crate::kind::Int;
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply, on_cuda, per_type};
use crate::ops::Reduction;
use crate::ops::index::check_range;
use crate::scratch;
use crate::shape::Shape;
use crate::storage::FreshCuda;
use crate::tensor::{Raw, Tensor};

/// The most logits whose loss one block of threads computes on a device. More logits take several blocks, and so two
/// kernels.
const ONE_BLOCK: usize = 1 << 16;

const GRADIENT: &str = "cross_entropy's gradient";

/// The loss of logits `[batch, classes]`, given the labels, `[batch]`. Under autocast, CUDA kernels read
/// halves and write `f32`; on the CPU the logits are converted.
pub(super) fn cross_entropy(logits: &Tensor, target: &Tensor<Int>, reduction: Reduction) -> Result<Tensor> {
    let precision = Precision::F32UnderAutocast;
    let to = autocast::wanted(precision, &[logits.raw()]).unwrap_or(logits.dtype());
    match logits.device().is_cpu() {
        true => loss_in(to, &autocast::prepared(precision, logits)?, target, reduction),
        false => loss_in(to, logits, target, reduction),
    }
}

fn loss_in(to: DType, logits: &Tensor, target: &Tensor<Int>, reduction: Reduction) -> Result<Tensor> {
    let device = common_device("cross_entropy", &[logits.raw(), target.raw()])?;
    if !device.is_cpu() && logits.len() > ONE_BLOCK && reduction != Reduction::None {
        let losses = loss_in(to, logits, target, Reduction::None)?;
        return if reduction == Reduction::Mean { losses.mean(..) } else { losses.sum(..) };
    }
    let target: Tensor<Int> = target.to_dtype(DType::I64)?.raw().gap_free()?.typed();
    let version = target.storage().version();
    let labels = Labels { target, version, reduction };
    let wants_grad = reduction != Reduction::None && logits.requires_grad() && is_grad_enabled();
    let keeps_scales = logits.requires_grad() && is_grad_enabled();
    apply(CrossEntropy { labels, to, wants_grad, keeps_scales, outputs: Mutex::default() }, [logits])
}

/// The right classes, which must not change until the gradient is computed.
#[derive(Clone)]
struct Labels {
    target: Tensor<Int>,
    version: u64,
    reduction: Reduction,
}

impl Labels {
    /// The factor of the sum of all losses, and of each gradient.
    fn factor(&self) -> f64 {
        match self.reduction {
            Reduction::Mean => 1.0 / self.target.len() as f64,
            Reduction::Sum | Reduction::None => 1.0,
        }
    }

    fn check_unchanged(&self) -> Result<()> {
        let (saved, now) = (self.version, self.target.storage().version());
        match saved == now {
            true => Ok(()),
            false => Err(Error::StaleSaved { op: "cross_entropy", shape: *self.target.shape(), saved, now }),
        }
    }

    /// The classes on the CPU, each below `classes`.
    fn checked<R>(&self, shape: &[usize], f: impl FnOnce(&[i64]) -> R) -> Result<R> {
        let reading = self.target.raw().read::<i64>("cross_entropy")?;
        let target = reading.of(self.target.layout());
        check_range("cross_entropy", target, 1, &Shape::new(shape)?)?;
        Ok(f(target))
    }

    /// The classes on a device.
    fn with_view<R>(&self, f: impl FnOnce(CudaView<'_>) -> R) -> R {
        f(self.target.storage().lock().cuda(self.target.layout(), DType::I64))
    }
}

/// log Σ exp(x) − x[target], for each row, or their mean or sum.
struct CrossEntropy {
    labels: Labels,
    /// The precision of the loss.
    to: DType,
    /// Whether a device computes the gradient along with the loss.
    wants_grad: bool,
    /// Whether a device saves the scales of long rows for their gradient.
    keeps_scales: bool,
    outputs: Mutex<ForwardOutputs>, // guards nothing else
}

/// The tensors that a device computes along with the loss.
#[derive(Default)]
struct ForwardOutputs {
    /// The gradient of `x` for a loss whose own gradient is 1, until `backward_of_one` takes it.
    grad: Option<Raw>,
    /// The largest element of each row, and Σ exp(x − largest).
    scales: Option<Raw>,
}

impl CrossEntropy {
    fn outputs(&self) -> MutexGuard<'_, ForwardOutputs> {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

per_type! { CrossEntropy[1]: Real }

impl Op<1> for CrossEntropy {
    const NAME: &'static str = "cross_entropy";
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, _: [&Shape; 1]) -> Result<Shape> {
        match self.labels.reduction {
            Reduction::None => Ok(*self.labels.target.shape()),
            Reduction::Mean | Reduction::Sum => Shape::new(&[]),
        }
    }

    fn cuda_dtype(&self, _: DType) -> DType {
        self.to
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        let factor = constant(x.dtype(), self.labels.factor().into());
        let on = Device::Cuda(device.clone());
        let allocate = |shape, dtype| FreshCuda::allocate(<Self as Op<1>>::NAME, shape, dtype, &on, device);
        let mut grad = self.wants_grad.then(|| allocate(*x.shape(), x.dtype())).transpose()?;
        let of_rows = || allocate(Shape::new(&[x.shape()[0], 2])?, x.dtype().computing());
        let mut scales = (self.keeps_scales && cuda::reads_rows_again(x)).then(of_rows).transpose()?;
        self.labels.with_view(|target| match self.labels.reduction {
            Reduction::None => cuda::losses(device, x, target, scales.as_mut().map(FreshCuda::out), out),
            Reduction::Mean | Reduction::Sum => {
                cuda::total(device, x, target, factor, out, grad.as_mut().map(FreshCuda::out))
            }
        })?;
        *self.outputs() = ForwardOutputs { grad: grad.map(FreshCuda::share), scales: scales.map(FreshCuda::share) };
        Ok(())
    }
}

impl Derivative<1> for CrossEntropy {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        self.labels.check_unchanged()?;
        let gradient = CrossEntropyGrad { labels: self.labels.clone(), scales: self.outputs().scales.clone() };
        Ok([Some(apply(gradient, [saved.input(0), grad])?)])
    }
    fn backward_of_one(&self, saved: &Saved<'_, 1>) -> Option<Result<[Option<Tensor>; 1]>> {
        let Device::Cuda(device) = saved.input(0).storage().device() else { return None };
        let take_grad = || self.outputs().grad.take(); // taken, since the caller may change it
        let grad = |()| match take_grad() {
            Some(grad) => Ok([Some(grad.typed())]),
            None => Ok([Some(self.gradient_of_one(device, saved.input(0).raw())?)]),
        };
        Some(self.labels.check_unchanged().and_then(grad))
    }
}

impl<R: Real> CpuKernel<R, 1> for CrossEntropy {
    type Out = R;

    fn cpu(&self, [x]: [CpuView<'_, R>; 1], mut out: StoredMut<'_, R>) -> Result<()> {
        let (rows, classes) = (x.shape[0], x.shape[1]);
        let computed = self.labels.checked(x.shape, |target| {
            scratch::with(rows, |losses: &mut [R]| {
                cpu::cross_entropy(x.data, target, classes, losses)?;
                let row = CpuView { data: Stored::Plain(&*losses), shape: &[rows], strides: &[1] };
                match self.labels.reduction {
                    Reduction::None => out.each_piece(|start, out| out.copy_from(&losses[start..][..out.len()])),
                    Reduction::Mean => cpu::mean(row, 1, rows as f64, out),
                    Reduction::Sum => cpu::sum(row, 1, out),
                }
                Ok(())
            })
        })?;
        computed.map_err(Error::scratch(<Self as Op<1>>::NAME))
    }
}

/// The gradient of [`CrossEntropy`], from its input and its output's gradient: (softmax(x) − [class = target]) · g.
struct CrossEntropyGrad {
    labels: Labels,
    /// As in [`ForwardOutputs`].
    scales: Option<Raw>,
}

per_type! { CrossEntropyGrad[2]: Real }

impl Op<2> for CrossEntropyGrad {
    const NAME: &'static str = GRADIENT;
    const INPUTS: Inputs = Inputs::WithoutGaps;
    const PRECISION: Precision = Precision::Computing;

    fn cuda(&self, device: &CudaDevice, [x, grad]: [CudaView<'_>; 2], out: CudaOut<'_>) -> Result<()> {
        let factor = constant(x.dtype(), self.labels.factor().into());
        let scales = self.scales.as_ref();
        self.labels.with_view(|target| {
            with_view(scales, |scales| cuda::grad(device, (x, scales), Some(grad), target, factor, out))
        })
    }
}

impl Derivative<2> for CrossEntropyGrad {
    const SAVES: Saves = Saves::Inputs;

    /// With `h` the gradient that arrives and `p` = softmax(x): g · p · (h − Σ h·p) for `x`, Σ h·p − h[target] for `g`.
    fn backward(&self, saved: &Saved<'_, 2>, h: &Tensor) -> Result<[Option<Tensor>; 2]> {
        self.labels.check_unchanged()?;
        let (x, grad) = (saved.input(0), saved.input(1));
        let p = x.softmax(1)?;
        let sums = h.mul(&p)?.sum_keepdim(1)?;
        let for_x = || {
            let grad = if grad.rank() == 0 { grad.clone() } else { grad.unsqueeze(1)? };
            p.mul(&h.sub(&sums)?)?.mul(&grad.mul_scalar(self.labels.factor())?)
        };
        let for_grad = || {
            let of_rows = sums.sub(&h.gather(1, &self.labels.target.unsqueeze(1)?)?)?.squeeze(1)?;
            if grad.rank() == 0 { of_rows.sum(..)?.mul_scalar(self.labels.factor()) } else { Ok(of_rows) }
        };
        Ok([saved.grad_of(0, for_x)?, saved.grad_of(1, for_grad)?])
    }
}

impl<R: Real> CpuKernel<R, 2> for CrossEntropyGrad {
    type Out = R;

    fn cpu(&self, [x, grad]: [CpuView<'_, R>; 2], out: StoredMut<'_, R>) -> Result<()> {
        let classes = x.shape[1];
        let scale = R::from_f64(self.labels.factor());
        let grad = grad.data;
        let grad_of = |row| grad.get(if grad.len() == 1 { 0 } else { row }) * scale;
        let computed =
            self.labels.checked(x.shape, |target| cpu::cross_entropy_grad(x.data, target, grad_of, classes, out))?;
        computed.map_err(Error::scratch(<Self as Op<2>>::NAME))
    }
}

impl CrossEntropy {
    /// The gradient of `x` on a device where the output's gradient is 1; not recorded.
    fn gradient_of_one(&self, device: &CudaDevice, x: &Raw) -> Result<Tensor> {
        let factor = constant(x.dtype(), self.labels.factor().into());
        let (x, scales) = (&x.gap_free()?, self.outputs().scales.clone());
        let out = on_cuda(GRADIENT, device, [Some(x)], (*x.shape(), x.dtype()), &mut |inputs, out| {
            let [x] = inputs.cuda_views();
            self.labels.with_view(|target| {
                with_view(scales.as_ref(), |scales| cuda::grad(device, (x, scales), None, target, factor, out))
            })
        })?;
        Ok(out.typed())
    }
}

/// Calls `f` with a kernel's view of the tensor, or with `None`.
fn with_view<R>(tensor: Option<&Raw>, f: impl FnOnce(Option<CudaView<'_>>) -> R) -> R {
    match tensor {
        Some(tensor) => f(Some(tensor.storage.lock().cuda(&tensor.layout, tensor.dtype()))),
        None => f(None),
    }
}
