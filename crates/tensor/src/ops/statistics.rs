//! Reductions made of sums, extremes and variances: standard deviations, norms, products, logsumexp, and extremes
//! with their indices.

use super::elementwise::{formula, scalar};
use super::product_of_others;
use super::reduce::{Reduced, SUM_OF_ELEMENTS, max, min, reducing, reduction, sum, var_of};
use super::scan::Lines;
use crate::autocast::{no_autocast, prepared_raw};
use crate::autograd::{Saved, is_grad_enabled, record};
use crate::cpu::{self, CpuView, StoredMut, fold};
use crate::create::filled;
use crate::cuda::{Accumulator, CudaDevice, CudaOut, CudaReduction, CudaView, Formula};
use crate::device::Device;
use crate::element::{DType, Num, Real, Scalar};
use crate::error::Result;
use crate::kind::{Bool, Float, Int, Kind, Numeric};
use crate::op::{CpuKernel, Derivative, Inputs, Op, Precision, Saves, apply_raw, on_cuda, per_type, run_unrecorded};
use crate::shape::{Axes, Shape};
use crate::tensor::{Raw, Tensor};

reduction! { [] Tensor,
    /// The standard deviation over `axes`: the square root of [`Tensor::var`]. Where it is 0, its gradient is 0.
    std, std_keepdim => std_of_sample
}
reduction! { [] Tensor,
    /// ln Σ eˣ over `axes`, without overflow.
    logsumexp, logsumexp_keepdim => logsumexp
}
reduction! { [K: Numeric] Tensor<K>,
    /// The product over `axes`, of integers in `int64`; 1 over no elements. The gradient is right for zeros too.
    prod, prod_keepdim => prod
}
reduction! { [K: Numeric] Tensor<K>,
    /// The largest element over `axes`: another name for [`Tensor::max`].
    amax, amax_keepdim => max
}
reduction! { [K: Numeric] Tensor<K>,
    /// The smallest element over `axes`: another name for [`Tensor::min`].
    amin, amin_keepdim => min
}

fn std_of_sample(x: &Raw, reduced: Reduced) -> Result<Raw> {
    std_of(x, reduced, 1.0)
}

/// Half types are computed in `f32`, which holds their squares.
fn std_of(x: &Raw, reduced: Reduced, correction: f64) -> Result<Raw> {
    let variance = var_of(&x.converted(x.dtype().computing())?, reduced, correction)?;
    apply_raw(Root, [&variance])?.converted(x.dtype())
}

/// The square root, with a gradient of 0 at 0.
struct Root;
scalar! { Root: Real, "sqrt", Output, Same, |_op| [], |x| x.sqrt(), "sqrt(x)",
|saved, grad| grad.div(&saved.output().mul_scalar(2.0)?)?.masked_fill(&saved.output().eq_scalar(0.0)?, 0.0) }

fn logsumexp(x: &Raw, reduced: Reduced) -> Result<Raw> {
    let out = no_autocast(|| match x.storage.device() {
        Device::Cpu => logsumexp_on_cpu(&x.without_node(), reduced),
        Device::Cuda(device) => {
            on_cuda("logsumexp", device, [Some(x)], (reduced.shape(x.shape()), x.dtype()), &mut |inputs, out| {
                LOG_SUM_EXP.run(device, "logsumexp", inputs.cuda_view(0), reduced.axes, &[], out)
            })
        }
    })?;
    Ok(record("logsumexp", LogSumExp(reduced), [Some(x), None], out))
}

/// The largest element is subtracted first, unless it is infinite, because ∞ − ∞ is NaN. Half types are
/// summed in `f32`: a sum of many exponentials may be too large for an `f16`, though its logarithm is not.
fn logsumexp_on_cpu(x: &Raw, reduced: Reduced) -> Result<Raw> {
    let (kept, computing) = (Reduced { keepdim: true, ..reduced }, x.dtype().computing());
    if x.shape().elements() == 0 {
        return filled(
            &Device::Cpu,
            "logsumexp",
            reduced.shape(x.shape()),
            x.dtype(),
            Scalar::Float(f64::NEG_INFINITY),
        );
    }
    let most: Tensor = max(x, kept)?.typed();
    let most = most.masked_fill(&most.isfinite()?.logical_not()?, 0.0)?;
    let powers = x.clone().typed::<Float>().sub(&most)?.exp()?.to_dtype(computing)?;
    let total: Tensor = sum(powers.raw(), kept)?.typed();
    let out = total.log()?.add(&most.to_dtype(computing)?)?.to_dtype(x.dtype())?;
    out.raw().reshape_to(reduced.shape(x.shape()))
}

static LOG_SUM_EXP: CudaReduction = CudaReduction {
    name: "logsumexp",
    accumulator: Accumulator::Powers,
    identity: "A{LOWEST, 0}",
    lift: "",
    combine: "merged(a, b)",
    finish: "total.most + log(total.sum)",
    constants: &[],
};

/// The derivative of `y = ln Σ eˣ`: g · eˣ⁻ʸ.
struct LogSumExp(Reduced);

impl Derivative<2> for LogSumExp {
    const SAVES: Saves = Saves::OutputForLast;

    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let x = saved.input(0);
        let (g, y) = (self.0.expand_to_input(grad, x.shape())?, self.0.expand_to_input(saved.output(), x.shape())?);
        let out = match is_grad_enabled() {
            true => g.mul(&x.sub(&y)?.exp()?)?,
            false => run_unrecorded(&ScaledPower, [g.raw(), x.raw(), y.raw()])?.typed(),
        };
        Ok([Some(out), None])
    }
}

/// `g · eˣ⁻ʸ`
struct ScaledPower;

per_type! { ScaledPower[3]: Real }

impl Op<3> for ScaledPower {
    const NAME: &'static str = "logsumexp's gradient";
    const INPUTS: Inputs = Inputs::Broadcast;
    const PRECISION: Precision = Precision::Widest;

    formula! { 3, "logsumexp's gradient", [g, x, y], |_| [], "g * exp_for<O>(x - y)" }
}

impl<R: Real> CpuKernel<R, 3> for ScaledPower {
    type Out = R;

    fn cpu(&self, [g, x, y]: [CpuView<'_, R>; 3], out: StoredMut<'_, R>) -> Result<()> {
        let is_one_number = |view: &CpuView<'_, R>| view.strides.iter().all(|&stride| stride == 0);
        if x.data.len() > 0 && is_one_number(&g) && is_one_number(&y) {
            let (g, y) = (g.data.get(0), y.data.get(0));
            cpu::map1_long(x, out, inlined!(move |x: R| g * (x - y).exp()));
            return Ok(());
        }
        cpu::map3_long(g, x, y, out, inlined!(|g: R, x: R, y: R| g * (x - y).exp()));
        Ok(())
    }
}

/// Converts integers and truth values to `i64`, in which they are multiplied.
fn in_sums(x: &Raw) -> Result<Raw> {
    if x.dtype().is_float() { Ok(x.clone()) } else { x.converted(DType::I64) }
}

fn prod(x: &Raw, reduced: Reduced) -> Result<Raw> {
    apply_raw(Product(reduced), [&in_sums(&prepared_raw(Precision::F32UnderAutocast, x)?)?])
}

/// The product of floats or 64-bit integers.
struct Product(Reduced);

impl Product {
    /// The sizes before, along and after the axes of the product, if these are adjacent.
    fn lines(&self, shape: &Shape) -> Option<Lines> {
        let is_reduced = |dim: &usize| self.0.axes.contains(*dim);
        let (first, last) = ((0..shape.len()).find(is_reduced)?, (0..shape.len()).rfind(is_reduced)?);
        let size = |sizes: &[usize]| sizes.iter().product();
        let lines =
            Lines { outer: size(&shape[..first]), n: size(&shape[first..=last]), inner: size(&shape[last + 1..]) };
        (lines.n == self.0.count(shape)).then_some(lines)
    }
}

reducing! { Product: [f32 F32, f64 F64, i64 I64], "prod", Same, |op| op.0, [],
&CudaReduction { name: "prod", identity: "A(1)", combine: "times(a, b)", ..SUM_OF_ELEMENTS },
<T: Num> T, |x, out| cpu::reduce(x, op.0.axes.mask(), out, Times, |product| product) }

impl Derivative<1> for Product {
    const SAVES: Saves = Saves::Inputs;

    /// The gradient of an element is the product of all others, made from products of halves of the row, without
    /// division.
    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let (x, dtype) = (saved.input(0), saved.input(0).dtype());
        if x.is_empty() {
            return Ok([Some(x.zeros_like()?)]);
        }
        if let (true, false, Some(lines)) = (x.device().is_cpu(), is_grad_enabled(), self.lines(x.shape())) {
            return Ok([Some(product_of_others::products_of_others(x.raw(), grad.raw(), lines)?.typed())]);
        }
        let rank = x.rank() as isize;
        let (mut order, axes): (Vec<isize>, Vec<isize>) =
            (0..rank).partition(|&dim| !self.0.axes.contains(dim as usize));
        order.extend(axes);
        let permuted: Tensor = x.widened()?.raw().permute(&order)?.typed();
        let count = self.0.count(x.shape());
        let rows = permuted.reshape_to(Shape::new(&[x.len() / count, count])?)?;
        let grad = grad.widened()?.reshape_to(Shape::new(&[x.len() / count, 1])?)?;
        let back = products_of_others(rows, grad)?.reshape_to(*permuted.shape())?;
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &dim)| places[dim as usize] = at as isize);
        Ok([Some(back.raw().permute(&places)?.typed::<Float>().to_dtype(dtype)?)])
    }
}

/// For each element of a row, the product of all others of the row, times that row's `grad`.
fn products_of_others(rows: Tensor, grad: Tensor) -> Result<Tensor> {
    let halves = |row: &Tensor| {
        let half = row.dims()[1] / 2;
        Ok::<_, crate::Error>([row.narrow(1, 0, half)?, row.narrow(1, half, half)?])
    };
    let mut levels = vec![rows];
    while let Some(row) = levels.last().filter(|row| row.dims()[1] > 1) {
        let ([left, right], n) = (halves(row)?, row.dims()[1]);
        let pairs = left.mul(&right)?;
        levels.push(if n % 2 == 0 { pairs } else { Tensor::cat(&[&pairs, &row.narrow(1, n - 1, 1)?], 1)? });
    }
    levels.pop();
    levels.iter().rev().try_fold(grad, |others, row| {
        let ([left, right], n) = (halves(row)?, row.dims()[1]);
        let of_pairs = others.narrow(1, 0, n / 2)?;
        let (of_left, of_right) = (of_pairs.mul(&right)?, of_pairs.mul(&left)?);
        match n % 2 {
            0 => Tensor::cat(&[&of_left, &of_right], 1),
            _ => Tensor::cat(&[&of_left, &of_right, &others.narrow(1, n / 2, 1)?], 1),
        }
    })
}

fold! {
    /// The product of all elements.
    pub(super) Times, T: Num => T, T::ONE, |x| x, |a, b| a.times(b)
}

/// The root of the sum of squares, in one pass.
struct Euclidean(Reduced);

reducing! { Euclidean: Real, "norm", Same, |op| op.0, [],
&CudaReduction { name: "norm", lift: "x * x", finish: "sqrt(total)", ..SUM_OF_ELEMENTS },
<R: Real> R, |x, out| cpu::reduce(x, op.0.axes.mask(), out, Squares, |sum: R| sum.sqrt()) }

impl Derivative<2> for Euclidean {
    const SAVES: Saves = Saves::OutputForLast;

    /// g · x / norm; 0 where the norm is 0, as in PyTorch.
    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (x, norm) = (saved.input(0), saved.output());
        let factor = grad.div(&norm.masked_fill(&norm.eq_scalar(0.0)?, f64::INFINITY)?)?;
        Ok([Some(x.mul(&self.0.expand_to_input(&factor, x.shape())?)?), None])
    }
}

fold! {
    /// The sum of all squares.
    Squares, R: Real => R, R::ZERO, |x| x * x, |a, b| a + b, { const AS_WIDENED: bool = true; }
}

impl Tensor {
    /// [`Tensor::var`] with the denominator max(n − `correction`, 0). A correction of 0 gives the variance of a
    /// population.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([1.0, 3.0])?.var_correction(.., 0.0)?.item::<f32>()?, 1.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::var`].
    pub fn var_correction(&self, axes: impl Axes, correction: f64) -> Result<Tensor> {
        let axes = axes.resolve("var", self.shape())?;
        var_of(self.raw(), Reduced { axes, keepdim: false }, correction).map(Raw::typed)
    }

    /// The square root of [`Tensor::var_correction`].
    ///
    /// # Errors
    /// As [`Tensor::var`].
    pub fn std_correction(&self, axes: impl Axes, correction: f64) -> Result<Tensor> {
        let axes = axes.resolve("std", self.shape())?;
        std_of(self.raw(), Reduced { axes, keepdim: false }, correction).map(Raw::typed)
    }

    /// The `p`-norm over `axes`: (Σ |x|ᵖ)^(1/p). For `p` = ∞ and −∞ it is the largest and the smallest magnitude, for
    /// 0 the number of elements that are not 0.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([3.0, 4.0])?.norm(2.0, ..)?.item::<f32>()?, 5.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for axes that do not exist, or for `p` = ±∞ over no elements.
    pub fn norm(&self, p: f64, axes: impl Axes) -> Result<Tensor> {
        norm(self.raw(), p, Reduced { axes: axes.resolve("norm", self.shape())?, keepdim: false })
    }

    /// As [`Tensor::norm`], but the axes stay, with size 1.
    ///
    /// # Errors
    /// As [`Tensor::norm`].
    pub fn norm_keepdim(&self, p: f64, axes: impl Axes) -> Result<Tensor> {
        norm(self.raw(), p, Reduced { axes: axes.resolve("norm", self.shape())?, keepdim: true })
    }
}

/// Half types are computed in `f32`, which holds their squares. The single pass of the 2-norm widens them itself. If
/// the norm is differentiated, the input is converted first, so that its gradient is rounded only once.
fn norm(x: &Raw, p: f64, reduced: Reduced) -> Result<Tensor> {
    let x = prepared_raw(Precision::F32UnderAutocast, x)?;
    let dtype = x.dtype();
    if p == 2.0 && x.node.is_none() {
        return run_unrecorded(&Euclidean(reduced), [&x]).map(Raw::typed);
    }
    let x: Tensor = x.converted(dtype.computing())?.typed();
    let total = |x: Tensor| sum(x.raw(), reduced).map(Raw::typed::<Float>);
    let norm = no_autocast(|| match p {
        0.0 => total(x.ne_scalar(0.0)?.to_float_of(x.dtype())?),
        1.0 => total(x.abs()?),
        2.0 => {
            let norm = run_unrecorded(&Euclidean(reduced), [x.raw()])?;
            Ok(record("norm", Euclidean(reduced), [Some(x.raw()), None], norm).typed())
        }
        f64::INFINITY => max(x.abs()?.raw(), reduced).map(Raw::typed),
        f64::NEG_INFINITY => min(x.abs()?.raw(), reduced).map(Raw::typed),
        p => {
            let magnitudes: Tensor = x.raw().without_node().typed::<Float>().abs()?;
            let norm = total(magnitudes.pow(p)?)?.pow(1.0 / p)?;
            Ok(record("norm", PowerNorm { p, reduced }, [Some(x.raw()), None], norm.into_raw()).typed())
        }
    })?;
    norm.to_dtype(dtype)
}

/// The derivative of the norm for `p` other than 0, 1, 2 and ±∞.
struct PowerNorm {
    p: f64,
    reduced: Reduced,
}

impl Derivative<2> for PowerNorm {
    const SAVES: Saves = Saves::OutputForLast;

    /// g · sign(x) · (|x| / norm)ᵖ⁻¹; 0 where x or the norm is 0, as in PyTorch. Zeros are replaced by 1 before the
    /// power, so that second derivatives are finite too.
    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (x, norm) = (saved.input(0), saved.output());
        let expanded = |of_rows: Tensor| self.reduced.expand_to_input(&of_rows, x.shape());
        let is_zero = norm.eq_scalar(0.0)?;
        let (grad, norm) = (expanded(grad.masked_fill(&is_zero, 0.0)?)?, expanded(norm.masked_fill(&is_zero, 1.0)?)?);
        let magnitudes = x.abs()?.masked_fill(&x.eq_scalar(0.0)?, 1.0)?;
        let slopes = magnitudes.div(&norm)?.pow(self.p - 1.0)?.mul(&x.sign()?)?;
        Ok([Some(grad.mul(&slopes)?), None])
    }
}

impl<K: Numeric> Tensor<K> {
    /// The largest element along `dim` and its index; `dim` is removed. NaN wins over numbers, and the first of equals
    /// wins. The gradient goes to that element alone; [`Tensor::max`] shares it among equals.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let (values, indices) = Tensor::new([[1, 5], [7, 2]])?.max_dim(1)?;
    /// assert_eq!((values.to_vec::<i64>()?, indices.to_vec::<i64>()?), (vec![5, 7], vec![1, 0]));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::argmax`].
    pub fn max_dim(&self, dim: isize) -> Result<(Tensor<K>, Tensor<Int>)> {
        with_indices(self.raw(), self.raw().argmax_keepdim(dim)?, dim)
    }

    /// The smallest element along `dim` and its index; `dim` is removed. See [`Tensor::max_dim`].
    ///
    /// # Errors
    /// As [`Tensor::argmax`].
    pub fn min_dim(&self, dim: isize) -> Result<(Tensor<K>, Tensor<Int>)> {
        with_indices(self.raw(), self.raw().argmin_keepdim(dim)?, dim)
    }
}

fn with_indices<K: Numeric>(x: &Raw, indices: Raw, dim: isize) -> Result<(Tensor<K>, Tensor<Int>)> {
    Ok((x.gather(dim, &indices)?.squeeze(dim)?.typed(), indices.squeeze(dim)?.typed()))
}

impl<K: Kind> Tensor<K> {
    /// Whether any element over `axes` is true (of numbers: not 0). Without elements: false.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for axes that do not exist.
    pub fn any(&self, axes: impl Axes) -> Result<Tensor<Bool>> {
        truth("any", self.raw(), axes.resolve("any", self.shape()).map(|axes| Reduced { axes, keepdim: false })?, true)
    }

    /// Whether all elements over `axes` are true (of numbers: not 0). Without elements: true.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for axes that do not exist.
    pub fn all(&self, axes: impl Axes) -> Result<Tensor<Bool>> {
        truth("all", self.raw(), axes.resolve("all", self.shape()).map(|axes| Reduced { axes, keepdim: false })?, false)
    }
}

/// *Any* is the largest truth value, *all* the smallest, computed as bytes.
fn truth(op: &'static str, x: &Raw, reduced: Reduced, any: bool) -> Result<Tensor<Bool>> {
    if reduced.count(x.shape()) == 0 {
        let value = Scalar::Int(i64::from(!any));
        return filled(x.storage.device(), op, reduced.shape(x.shape()), DType::Bool, value).map(Raw::typed);
    }
    let bytes = match x.dtype() {
        DType::U8 => x.without_node(),
        _ => x.without_node().converted(DType::Bool)?.converted(DType::U8)?,
    };
    let extreme = if any { max } else { min };
    extreme(&bytes, reduced)?.converted(DType::Bool).map(Raw::typed)
}
