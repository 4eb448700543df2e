//! Pieces that several functions here are made of.

use pagelock_tensor::{Bool, DType, Error, Result, Shape, Tensor};

/// A shape that a function does not take; `expected`: what it should be, and how to get there.
pub(crate) fn wrong_shape(op: &str, operand: &str, shape: &Shape, expected: &str) -> Error {
    Error::Argument(format!("{op}: {operand} is {shape}, but {expected}"))
}

/// An argument outside its range; `expected`: what it must be.
pub(crate) fn wrong_argument(op: &str, argument: &str, value: impl std::fmt::Display, expected: &str) -> Error {
    Error::Argument(format!("{op}: {argument} is {value}, but it must be {expected}"))
}

/// Runs `f` on an input in the precision that it computes in: halves as `f32`, rounded once at the end, as PyTorch's kernels do.
pub(crate) fn computed(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match x.dtype() {
        DType::F16 | DType::BF16 => f(&x.to_dtype(DType::F32)?)?.to_dtype(x.dtype()),
        _ => f(x),
    }
}

/// One number where `like` is, in its precision.
pub(crate) fn constant(like: &Tensor, value: f64) -> Result<Tensor> {
    Tensor::on(&like.device()).of(like.dtype()).full((), value)
}

/// `yes` where `condition` holds, else `no`: neither the values nor the gradients of the other side matter.
pub(crate) fn choose(condition: &Tensor<Bool>, yes: &Tensor, no: &Tensor) -> Result<Tensor> {
    let sizes = [condition.dims(), yes.dims(), no.dims()];
    let rank = sizes.iter().map(|sizes| sizes.len()).max().unwrap_or(0);
    let mut shape = vec![1; rank];
    for sizes in sizes {
        let skipped = rank - sizes.len();
        shape[skipped..].iter_mut().zip(sizes).filter(|(_, size)| **size != 1).for_each(|(to, &size)| *to = size);
    }
    let shape = Shape::new(&shape)?;
    let sides = Tensor::stack(&[&no.expand(shape)?, &yes.expand(shape)?], 0)?;
    sides.gather(0, &condition.to_int()?.expand(shape)?.unsqueeze(0)?)?.squeeze(0)
}

/// log(1 + x), exact near 0.
pub(crate) fn log1p(x: &Tensor) -> Result<Tensor> {
    let sum = x.add_scalar(1.0)?;
    sum.log()?.sub(&sum.add_scalar(-1.0)?.sub(x)?.div(&sum)?)
}

/// eˣ − 1, exact near 0, for x up to 0.
pub(crate) fn expm1(x: &Tensor) -> Result<Tensor> {
    let half = x.mul_scalar(0.5)?.tanh()?;
    half.mul_scalar(2.0)?.div(&half.neg()?.add_scalar(1.0)?)
}

/// The smaller of each pair.
pub(crate) fn minimum(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.neg()?.maximum(&b.neg()?)?.neg()
}

/// Where `x > value`.
pub(crate) fn is_above(x: &Tensor, value: f64) -> Result<Tensor<Bool>> {
    x.gt(&constant(x, value)?)
}

/// Where `x < value`.
pub(crate) fn is_below(x: &Tensor, value: f64) -> Result<Tensor<Bool>> {
    x.lt(&constant(x, value)?)
}

/// `max(x, min)` with the whole gradient where both are equal, as PyTorch's `clamp_min`; NaN stays NaN.
pub(crate) fn at_least(x: &Tensor, min: f64) -> Result<Tensor> {
    choose(&is_below(x, min)?, &constant(x, min)?, x)
}

/// log(1 + eˣ) without overflow.
pub(crate) fn log_one_plus_exp(x: &Tensor) -> Result<Tensor> {
    const LINEAR: f64 = 40.0; // e⁻⁴⁰ is below what `f64` adds to 40
    let is_large = is_above(x, LINEAR)?;
    let bounded = choose(&is_large, &constant(x, 0.0)?, x)?;
    choose(&is_large, x, &log1p(&bounded.exp()?)?)
}

/// log(1 / (1 + e⁻ˣ)).
pub(crate) fn log_sigmoid(x: &Tensor) -> Result<Tensor> {
    log_one_plus_exp(&x.neg()?)?.neg()
}

/// The square root with a gradient of 0 at 0, as norms have it.
pub(crate) fn root(x: &Tensor) -> Result<Tensor> {
    let is_positive = is_above(x, 0.0)?;
    let safe = choose(&is_positive, x, &constant(x, 1.0)?)?;
    choose(&is_positive, &safe.sqrt()?, &x.mul_scalar(0.0)?)
}

/// The elements in order, in another shape of as many.
pub(crate) fn shaped(x: &Tensor, shape: &Shape) -> Result<Tensor> {
    x.reshape([-1])?.unflatten(0, shape)
}

/// A size as reshapes take it.
pub(crate) fn signed(size: usize) -> isize {
    size as isize // sizes of tensors fit
}

/// `[channels]` as `[channels, 1, ..]`, to go along dimension 1 of a tensor of `rank` dimensions.
pub(crate) fn along_channels(per_channel: &Tensor, rank: usize) -> Result<Tensor> {
    (2..rank).try_fold(per_channel.clone(), |tensor, _| tensor.unsqueeze(-1))
}

/// The error function: 2 / √π · e^(−x²) · Σ 2ⁿ · x^(2n + 1) / (2n + 1)!!, whose terms have one sign.
pub(crate) fn erf(x: &Tensor) -> Result<Tensor> {
    const TERMS: usize = 130; // enough for 6, from where on it is 1 in `f64`
    let lowest = choose(&is_below(x, -6.0)?, &constant(x, -6.0)?, x)?;
    let bounded = choose(&is_above(x, 6.0)?, &constant(x, 6.0)?, &lowest)?;
    let square = bounded.mul(&bounded)?;
    let mut sum = constant(x, 1.0)?.expand(x.shape())?;
    for n in (1..TERMS).rev() {
        sum = sum.mul(&square)?.mul_scalar(2.0 / (2 * n + 1) as f64)?.add_scalar(1.0)?;
    }
    sum.mul(&bounded)?.mul(&square.neg()?.exp()?)?.mul_scalar(std::f64::consts::FRAC_2_SQRT_PI)
}
