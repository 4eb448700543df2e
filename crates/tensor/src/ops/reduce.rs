//! Reductions over any axes: sums, means, variances, extremes and their indices.
//!
//! Sums run in a fixed order that depends on the shape alone, so they have the same bits on any number of threads.

use super::elementwise::formula;
use super::fused::mixed;
use crate::autograd::{Saved, is_grad_enabled};
use crate::cpu::{self, CpuView, Moments, Stored, StoredMut, fold, math};
use crate::cuda::{Accumulator, CudaDevice, CudaOut, CudaReduction, CudaView, Formula, constant};
use crate::device::Device;
use crate::element::{DType, Element, Num, Real};
use crate::error::{Error, Result};
use crate::inlined::{Array, Slice};
use crate::kind::{Int, Numeric};
use crate::layout::Layout;
use crate::op::{
    CpuKernel, Derivative, Inputs, Op, PerType, Precision, Saves, apply, apply_raw, on_cpu, on_cuda, per_type,
    run_unrecorded,
};
use crate::ops::{Channels, arg_extreme::ArgExtreme, cast};
use crate::scratch;
use crate::shape::{Axes, AxisSet, Shape};
use crate::tensor::{Raw, Tensor, by_real};

/// Which axes are reduced, and whether they are kept with size 1.
#[derive(Clone, Copy)]
pub(super) struct Reduced {
    pub(super) axes: AxisSet,
    pub(super) keepdim: bool,
}

impl Reduced {
    pub(super) fn shape(&self, input: &Shape) -> Shape {
        input.reduced(self.axes, self.keepdim)
    }

    /// The number of elements per result.
    pub(super) fn count(&self, input: &Shape) -> usize {
        input.iter().enumerate().filter(|&(dim, _)| self.axes.contains(dim)).map(|(_, &size)| size).product()
    }

    /// The input as `[outer, channels, inner]` with one result for each channel, if the axes permit that and the
    /// kernels for channels are fast: `inner` is long, or `outer` is long and `channels · inner` numbers fit in a cache.
    fn channels(&self, input: &Shape) -> Option<Channels> {
        let is_kept = |&dim: &usize| !self.axes.contains(dim);
        let first = (0..input.len()).find(is_kept).unwrap_or(0);
        let end = (0..input.len()).rfind(is_kept).map_or(0, |last| last + 1);
        let [outer, channels, inner] =
            [&input[..first], &input[first..end], &input[end..]].mapped(|sizes| sizes.iter().product());
        let is_plain =
            (first..end).all(|dim| is_kept(&dim)) && (inner >= 32 || outer >= 32 && channels * inner <= 4096);
        is_plain.then_some(Channels { outer, channels, inner })
    }

    /// A view of a result, or of its gradient, in the shape of the input.
    pub(super) fn expand_to_input(&self, result: &Tensor, input: &Shape) -> Result<Tensor> {
        result.reshape_to(input.reduced(self.axes, true))?.expand(input)
    }
}

/// `reduction! { docs; method, method_keepdim => function }` for a function of `(&Tensor, AxisSet, keepdim)`.
macro_rules! reduction {
    ([$($kind:tt)*] $tensor:ty, $(#[$doc:meta])* $method:ident, $keepdim:ident => $function:path) => {
        impl<$($kind)*> $tensor {
            $(#[$doc])*
            ///
            /// `axes`: `..` for all, `-1` for one, `[0, 2]` for several. They are removed.
            ///
            /// # Errors
            /// [`Error::Argument`](crate::Error::Argument) for axes out of range, or for no elements if one is needed.
            pub fn $method(&self, axes: impl Axes) -> Result<$tensor> {
                $function(self.raw(), Reduced { axes: axes.resolve(stringify!($method), self.shape())?, keepdim: false }).map(Raw::typed)
            }

            #[doc = concat!("As [`Tensor::", stringify!($method), "`], but the axes stay, with size 1.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($method), "`].")]
            pub fn $keepdim(&self, axes: impl Axes) -> Result<$tensor> {
                $function(self.raw(), Reduced { axes: axes.resolve(stringify!($method), self.shape())?, keepdim: true }).map(Raw::typed)
            }
        }
    };
}

pub(super) use reduction;

reduction! { [K: Numeric] Tensor<K>,
    /// The sum over `axes`; 0 over no elements. Floats keep their precision, and half types are summed in `f32`. As in
    /// PyTorch, integers are summed in `int64`, which wraps.
    ///
    /// ```
    /// # use pagelock_tensor::{DType, Tensor};
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?;
    /// assert_eq!(x.sum(..)?.item::<f32>()?, 10.0);
    /// assert_eq!(x.sum(0)?.to_vec::<f32>()?, [4.0, 6.0]);
    /// assert_eq!(x.sum_keepdim(-1)?.shape(), &[2, 1]);
    /// let bytes = Tensor::from_slice(&[200_u8, 100], 2)?.sum(..)?;
    /// assert_eq!((bytes.dtype(), bytes.item::<i64>()?), (DType::I64, 300));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    sum, sum_keepdim => sum
}
reduction! { [] Tensor,
    /// The mean over `axes`; NaN if there are no elements.
    mean, mean_keepdim => mean
}
reduction! { [K: Numeric] Tensor<K>,
    /// The largest element over `axes`; NaN wins. If several elements are largest, each gets an equal share of the
    /// gradient; if the largest is NaN, all gradients are NaN (both as in PyTorch's `amax`).
    max, max_keepdim => max
}
reduction! { [K: Numeric] Tensor<K>,
    /// The smallest element over `axes`; NaN wins. Gradients as for [`Tensor::max`].
    min, min_keepdim => min
}
reduction! { [] Tensor,
    /// The variance over `axes`, with n − 1 in the denominator (Bessel's correction), as PyTorch's default; NaN over
    /// fewer than two elements. Computed in `f64` for every precision, and rounded once.
    var, var_keepdim => var
}

pub(super) fn sum(x: &Raw, reduced: Reduced) -> Result<Raw> {
    if x.dtype().is_float() || x.storage.device().is_cpu() {
        return apply_raw(Sum(reduced), [x]);
    }
    apply_raw(Sum(reduced), [&x.converted(DType::I64)?]) // kernels of devices add in the type of the elements
}

fn mean(x: &Raw, reduced: Reduced) -> Result<Raw> {
    apply_raw(Mean { reduced, count: reduced.count(x.shape()) as f64 }, [x])
}

pub(super) fn max(x: &Raw, reduced: Reduced) -> Result<Raw> {
    apply_raw(Extreme::<true>(reduced), [x])
}

pub(super) fn min(x: &Raw, reduced: Reduced) -> Result<Raw> {
    apply_raw(Extreme::<false>(reduced), [x])
}

fn var(x: &Raw, reduced: Reduced) -> Result<Raw> {
    var_of(x, reduced, 1.0)
}

/// The variance with n − `correction` in the denominator.
pub(super) fn var_of(x: &Raw, reduced: Reduced, correction: f64) -> Result<Raw> {
    apply_raw(Variance(reduced, correction), [x])
}

/// The sum, from which other reductions are derived.
pub(super) const SUM_OF_ELEMENTS: CudaReduction = CudaReduction {
    name: "sum",
    accumulator: Accumulator::Computing,
    identity: "A(0)",
    lift: "x",
    combine: "plus(a, b)",
    finish: "total",
    constants: &[],
};

pub(crate) static SUM: CudaReduction = SUM_OF_ELEMENTS;

/// `reducing! { Struct: types, name, precision, |op| axes, [constants], kernel, <T: Num> Out, |x, out| on_cpu }`: a
/// reduction over these axes as an operation, with the values of the kernel's constants. What the CPU does may be
/// given as a [`CpuKernel`] instead.
macro_rules! reducing {
    ($name:ident: $types:tt, $op_name:literal, $precision:ident, |$op:ident| $reduced:expr, [$($value:expr),*], $kernel:expr
    $(, <$T:ident: $Bound:ident> $Out:ty, |$x:ident, $out:ident| $on_cpu:expr)?) => {
        per_type! { $name[1]: $types }

        impl Op<1> for $name {
            const NAME: &'static str = $op_name;
            const PRECISION: Precision = Precision::$precision;

            fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
                let $op = self;
                Ok($reduced.shape(x))
            }

            fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
                static KERNEL: &CudaReduction = $kernel;
                let $op = self;
                KERNEL.run(device, $op_name, x, $reduced.axes, &[$(constant(x.dtype(), $value.into())),*], out)
            }
        }

        $(impl<$T: $Bound> CpuKernel<$T, 1> for $name {
            type Out = $Out;

            fn cpu(&self, [$x]: [CpuView<'_, $T>; 1], $out: StoredMut<'_, $Out>) -> Result<()> {
                let $op = self;
                $on_cpu;
                Ok(())
            }
        })?
    };
}

pub(super) use reducing;

struct Sum(Reduced);
reducing! { Sum: Num, "sum", F32UnderAutocast, |op| op.0, [], &SUM, <T: Num> T::Total, |x, out| cpu::sum(x, op.0.axes.mask(), out) }

impl Derivative<1> for Sum {
    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(self.0.expand_to_input(grad, saved.shape(0))?)])
    }
}

/// A sum divided by the number of elements, rounded once: means of half types would overflow as sums.
struct Mean {
    reduced: Reduced,
    count: f64,
}

reducing! { Mean: Real, "mean", Same, |op| op.reduced, [op.count],
&CudaReduction { name: "mean", finish: "total / count", constants: &["count"], ..SUM_OF_ELEMENTS },
<R: Real> R, |x, out| cpu::mean(x, op.reduced.axes.mask(), op.count, out) } // of nothing: 0 / 0 is NaN

impl Derivative<1> for Mean {
    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(self.reduced.expand_to_input(&grad.div_scalar(self.count)?, saved.shape(0))?)])
    }
}

/// The variance over axes, with this number subtracted from the number of elements.
struct Variance(Reduced, f64);

impl Variance {
    /// n − correction. A negative one counts as 0 in the variance, but not in the gradient, as in PyTorch.
    fn freedom(&self, x: &[usize]) -> f64 {
        Shape::new(x).map_or(0.0, |x| self.0.count(&x) as f64 - self.1)
    }
}

reducing! { Variance: Real, "var", Same, |op| op.0, [op.1], &CudaReduction {
    name: "var",
    accumulator: Accumulator::Moments,
    identity: "A{0, 0, 0, 0}",
    lift: "",
    combine: "merged(a, b)",
    finish: "centered(total).squares / (total.n > correction ? total.n - correction : 0)",
    constants: &["correction"],
} }

impl Derivative<1> for Variance {
    const SAVES: Saves = Saves::Inputs;

    /// 2 / (n − correction) · g · (x − mean), as PyTorch has it, in the computing type.
    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let x = saved.input(0);
        if x.is_empty() {
            return Ok([Some(x.zeros_like()?)]); // where nothing was reduced, `grad` has elements
        }
        let factor = 2.0 / self.freedom(x.shape());
        if !is_grad_enabled() && x.device().is_cpu() {
            let grad = self.0.expand_to_input(&grad.to_dtype(x.dtype())?, x.shape())?;
            return Ok([Some(variance_grad([x.raw(), grad.raw()], self.0, factor)?.typed())]);
        }
        let x = x.widened()?;
        let mean: Tensor = mean(x.raw(), Reduced { keepdim: true, ..self.0 })?.typed();
        let grad = self.0.expand_to_input(&grad.widened()?.mul_scalar(factor)?, x.shape())?;
        if let (false, Device::Cuda(device)) = (is_grad_enabled(), x.device()) {
            static GRADIENT: Formula = Formula {
                name: "var's gradient",
                inputs: &["g", "x", "mean"],
                constants: &[],
                text: "g * (x - mean)",
                changes: false,
            };
            let mean = mean.expand(x.shape())?;
            let inputs = [&grad, &x, &mean].mapped(|input| Some(input.raw()));
            let out = on_cuda("var", &device, inputs, (*x.shape(), x.dtype()), &mut |inputs, out| {
                GRADIENT.run(&device, "var", &inputs.cuda_views(), &[], out)
            })?;
            return Ok([Some(out.typed())]);
        }
        Ok([Some(grad.mul(&x.sub(&mean)?)?)])
    }
}

impl<R: Real> CpuKernel<R, 1> for Variance {
    type Out = R;

    fn cpu(&self, [x]: [CpuView<'_, R>; 1], mut out: StoredMut<'_, R>) -> Result<()> {
        if let Some((outer, channels)) = cpu::columns(x, self.0.axes.mask()).filter(|_| self.1 == 1.0) {
            let computed = scratch::with(3 * channels, |statistics: &mut [R]| {
                cpu::channel_statistics(
                    Channels { outer, channels, inner: 1 },
                    x.data.part(0, outer * channels),
                    statistics,
                )?;
                out.each_piece(|first, out| out.copy_from(&statistics[2 * channels + first..][..out.len()]));
                Ok(())
            });
            return computed.map_err(Error::scratch("var"));
        }
        let freedom = self.freedom(x.shape).max(0.0);
        let is_half = matches!(out, StoredMut::Halves(..));
        let finish = |all: Moments| {
            let variance = all.squares / freedom;
            if is_half { R::from_f64(math::half::f64_to_f32_odd(variance).into()) } else { R::from_f64(variance) }
        };
        cpu::reduce(x, self.0.axes.mask(), out, Spread, finish);
        Ok(())
    }
}

/// `factor · g · (x − mean)` on the CPU, for a g of x's shape that is constant along the reduced dimensions.
fn variance_grad([x, grad]: [&Raw; 2], reduced: Reduced, factor: f64) -> Result<Raw> {
    on_cpu("var", [Some(x), Some(grad)], (*x.shape(), x.dtype()), &mut |inputs, out| {
        by_real!(inputs.dtype(), R => {
            let [x, grad] = inputs.views::<R>();
            variance_grad_of_reals(x, grad, reduced, R::from_f64(factor), out.stored())
        })
    })
}

fn variance_grad_of_reals<R: Real>(
    x: CpuView<'_, R>,
    grad: CpuView<'_, R>,
    reduced: Reduced,
    factor: R,
    out: StoredMut<'_, R>,
) -> Result<()> {
    let shape = Shape::new(x.shape)?;
    let kept = shape.reduced(reduced.axes, true);
    let grad = CpuView { data: grad.data, shape: &kept, strides: grad.strides };
    let layout = Layout::contiguous(kept).expand("var", &shape)?;
    let computed = scratch::with(2 * kept.elements(), |buffer: &mut [R]| {
        let (means, factors) = buffer.split_at_mut(kept.elements());
        cpu::mean(x, reduced.axes.mask(), reduced.count(&shape) as f64, (&mut *means).into());
        cpu::map1(grad, (&mut *factors).into(), inlined!(move |grad: R| grad * factor));
        if let (Some(geometry), true) = (reduced.channels(&shape), x.is_contiguous()) {
            return cpu::scaled_deviations(geometry, [means, factors], x.data.part(0, shape.elements()), out);
        }
        let per_line = |data| CpuView { data: Stored::Plain(data), shape: x.shape, strides: layout.strides() };
        cpu::map3(
            x,
            per_line(&*means),
            per_line(&*factors),
            out,
            inlined!(|x: R, mean: R, factor: R| factor * (x - mean)),
        );
        Ok(())
    });
    computed.map_err(Error::scratch("var"))
}

fold! {
    /// Folds elements to their number, their mean, and the sum of their squared deviations.
    Spread, R: Real => Moments, Moments::NONE, |x| Moments::one(x.cast()), |a, b| a.and(b), {
        const BY_ROWS: bool = true;

        #[inline(always)]
        fn row(self, row: &[R]) -> Moments {
            Moments::of_block(row)
        }
    }
}

impl Tensor {
    /// Sums over the dimensions along which a tensor of shape `shape` was broadcast to this tensor's shape.
    pub(crate) fn sum_to(&self, shape: &Shape) -> Result<Tensor> {
        self.raw().sum_to(shape).map(Raw::typed)
    }

    /// The tensor in its computing precision; for `f32` and `f64`, the tensor itself.
    pub(crate) fn widened(&self) -> Result<Tensor> {
        self.to_dtype(self.dtype().computing())
    }
}

/// The largest (`MAX`) or smallest element.
struct Extreme<const MAX: bool>(Reduced);

per_type! { Extreme<true>[1]: Num }
per_type! { Extreme<false>[1]: Num }

impl<const MAX: bool> Op<1> for Extreme<MAX>
where
    Self: PerType<1>,
{
    const NAME: &'static str = if MAX { "max" } else { "min" };

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        let out = self.0.shape(x);
        if self.0.count(x) == 0 && out.elements() > 0 {
            return Err(Error::empty(
                <Self as Op<1>>::NAME,
                "the reduced dimension",
                "reduce over at least one element",
            ));
        }
        Ok(out)
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        static MAXIMUM: CudaReduction =
            CudaReduction { name: "max", identity: "LOWEST", combine: "a > b || is_nan(a) ? a : b", ..SUM_OF_ELEMENTS };
        static MINIMUM: CudaReduction = CudaReduction {
            name: "min",
            identity: "HIGHEST",
            combine: "a < b || is_nan(a) ? a : b",
            ..SUM_OF_ELEMENTS
        };
        let extreme = if MAX { &MAXIMUM } else { &MINIMUM };
        extreme.run(device, <Self as Op<1>>::NAME, x, self.0.axes, &[], out)
    }
}

impl<const MAX: bool> Derivative<1> for Extreme<MAX>
where
    Self: PerType<1>,
{
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let x = saved.input(0);
        let kept = Reduced { keepdim: true, ..self.0 };
        let extreme = if MAX { max(x.raw(), kept) } else { min(x.raw(), kept) }?;
        let hits: Tensor = cast(&x.raw().eq(&extreme)?, x.dtype())?.typed();
        let shares: Tensor = sum(hits.raw(), kept)?.typed();
        Ok([Some(apply(Share, [&self.0.expand_to_input(grad, x.shape())?, &hits, &shares])?)])
    }
}

impl<T: Num, const MAX: bool> CpuKernel<T, 1> for Extreme<MAX> {
    type Out = T;

    fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: StoredMut<'_, T>) -> Result<()> {
        cpu::reduce(x, self.0.axes.mask(), out, cpu::Extreme::<MAX>, |x| x);
        Ok(())
    }
}

/// `grad · hit / shares`, divided in `f64`, since integers would truncate. If the extreme is NaN, no element equals it:
/// `shares` is 0, and the result is NaN.
struct Share;

// NaN for an infinite gradient and no hit, as in PyTorch.
mixed! { Share[3]: Num, "max", [grad, hit, shares], |_| [], |T| {
    let grad = grad.times(hit);
    if shares == T::ONE { grad } else { T::from_f64(to_f64(grad) / to_f64(shares)) }
}, map3, "shares == 1 ? times(grad, hit) : to<R>(f64(times(grad, hit)) / f64(shares))" }

impl Derivative<3> for Share {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let back = saved.grad_of(0, || apply(Share, [grad, saved.input(1), saved.input(2)]))?;
        Ok([back, None, None]) // piecewise constant in the operands
    }
}

fn to_f64<T: Element>(x: T) -> f64 {
    x.cast()
}

impl Raw {
    /// Sums over the dimensions along which a tensor of shape `shape` was broadcast to this tensor's shape.
    pub(crate) fn sum_to(&self, shape: &Shape) -> Result<Raw> {
        let lead = self.rank() - shape.rank();
        let mut axes = [0isize; crate::shape::MAX_RANK];
        let mut n_axes = 0;
        for dim in 0..self.rank() {
            if dim < lead || (shape[dim - lead] == 1 && self.shape()[dim] != 1) {
                axes[n_axes] = dim as isize;
                n_axes += 1;
            }
        }
        let axes = axes[..n_axes].resolve("sum", self.shape())?;
        apply_raw(Sum(Reduced { axes, keepdim: false }), [self])?.reshape_to(*shape)
    }
}

impl<K: Numeric> Tensor<K> {
    /// The index of the smallest element along `dim`, which is removed; the first of equals. NaN counts as smallest.
    ///
    /// # Errors
    /// As [`Tensor::argmax`].
    pub fn argmin(&self, dim: isize) -> Result<Tensor<Int>> {
        self.raw().place_of_extreme::<false>("argmin", dim, false).map(Raw::typed)
    }

    /// As [`Tensor::argmin`], but the dimension stays, with size 1.
    ///
    /// # Errors
    /// As [`Tensor::argmax`].
    pub fn argmin_keepdim(&self, dim: isize) -> Result<Tensor<Int>> {
        self.raw().argmin_keepdim(dim).map(Raw::typed)
    }

    /// The index of the largest element along `dim`, which is removed; the first of equals. NaN counts as largest.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or its size is 0.
    pub fn argmax(&self, dim: isize) -> Result<Tensor<Int>> {
        self.raw().argmax(dim).map(Raw::typed)
    }

    /// As [`Tensor::argmax`], but the dimension stays, with size 1.
    ///
    /// # Errors
    /// As [`Tensor::argmax`].
    pub fn argmax_keepdim(&self, dim: isize) -> Result<Tensor<Int>> {
        self.raw().argmax_keepdim(dim).map(Raw::typed)
    }
}

impl Raw {
    pub(crate) fn argmax(&self, dim: isize) -> Result<Raw> {
        self.place_of_extreme::<true>("argmax", dim, false)
    }

    pub(crate) fn argmin_keepdim(&self, dim: isize) -> Result<Raw> {
        self.place_of_extreme::<false>("argmin", dim, true)
    }

    pub(crate) fn argmax_keepdim(&self, dim: isize) -> Result<Raw> {
        self.place_of_extreme::<true>("argmax", dim, true)
    }

    fn place_of_extreme<const MAX: bool>(&self, op: &'static str, dim: isize, keepdim: bool) -> Result<Raw>
    where
        ArgExtreme<MAX>: PerType<1>,
    {
        let dim = self.shape().dim(op, dim)?;
        let places = run_unrecorded(&ArgExtreme::<MAX> { dim }, [self])?;
        if keepdim { places.unsqueeze(dim as isize) } else { Ok(places) }
    }
}
