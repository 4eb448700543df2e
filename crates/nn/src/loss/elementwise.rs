//! Losses between a tensor of predictions and a target of the same shape.

use super::{check_same, in_precision, loss};
use crate::functional::raised;
use crate::functional::shared::{computed, constant, wrong_argument, wrong_shape};
use crate::setters::setters;
use crate::{Module, module_scope};
use pagelock_tensor::{Reduction, Result, Tensor};

/// `input − target`, which must have the same shape.
fn difference(op: &str, input: &Tensor, target: &Tensor) -> Result<Tensor> {
    check_same(op, input, target)?;
    input.sub(target)
}

/// The squared differences, averaged over all elements, as PyTorch's `nn.MSELoss`.
///
/// - `input`, `target`: of the same shape
/// - result: one number, or that shape with [`Reduction::None`]
///
/// # Examples
/// ```
/// use pagelock_nn::MSELoss;
/// use pagelock_tensor::Tensor;
///
/// let loss = MSELoss::new().forward(&Tensor::new([1.0, 2.0])?, &Tensor::new([1.0, 5.0])?)?;
/// assert_eq!(loss.item::<f32>()?, 4.5);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct MSELoss {
    #[module(skip)]
    reduction: Reduction,
}

impl MSELoss {
    /// A loss that is averaged over all elements.
    pub fn new() -> Self {
        Self::default()
    }

    /// The loss.
    ///
    /// # Errors
    /// The shapes differ, or there is no element to take the mean of.
    pub fn forward(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        input.mse_loss(target, self.reduction)
    }
}

setters! { MSELoss,
    /// Sets the reduction: the mean (the default), the sum, or none.
    reduction: Reduction;
}

loss! {
    /// The magnitudes of the differences, as PyTorch's `nn.L1Loss`.
    ///
    /// - `input`, `target`: of the same shape
    /// - result: one number, or that shape with [`Reduction::None`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::L1Loss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let loss = L1Loss::new().forward(&Tensor::new([1.0, 2.0])?, &Tensor::new([1.0, 5.0])?)?;
    /// assert_eq!(loss.item::<f32>()?, 1.5);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    L1Loss {},
    |_loss, input, target| difference("L1Loss", input, target)?.abs()
}

loss! {
    /// `d² / (2 · beta)` for a difference d whose magnitude is below `beta`, else `|d| − beta / 2`, as PyTorch's
    /// `nn.SmoothL1Loss`.
    ///
    /// - `input`, `target`: of the same shape
    /// - result: one number, or that shape with [`Reduction::None`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::SmoothL1Loss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let loss = SmoothL1Loss::new().forward(&Tensor::new([1.0, 2.0])?, &Tensor::new([0.5, 5.0])?)?;
    /// assert_eq!(loss.item::<f32>()?, (0.125 + 2.5) / 2.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    SmoothL1Loss {
        /// Where the two parts meet; 1 by default. 0 gives [`L1Loss`].
        beta: f64 = 1.0,
    },
    |loss, input, target| input.smooth_l1_loss(target, loss.beta, Reduction::None)
}

loss! {
    /// `d² / 2` for a difference d whose magnitude is below `delta`, else `delta · (|d| − delta / 2)`, as PyTorch's
    /// `nn.HuberLoss`.
    ///
    /// - `input`, `target`: of the same shape
    /// - result: one number, or that shape with [`Reduction::None`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::HuberLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let loss = HuberLoss::new().forward(&Tensor::new([1.0, 2.0])?, &Tensor::new([0.5, 5.0])?)?;
    /// assert_eq!(loss.item::<f32>()?, (0.125 + 2.5) / 2.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    HuberLoss {
        /// Where the two parts meet; 1 by default.
        delta: f64 = 1.0,
    },
    |loss, input, target| input.huber_loss(target, loss.delta, Reduction::None)
}

loss! {
    /// `log(1 + exp(−target · input))` for targets of −1 and 1, as PyTorch's `nn.SoftMarginLoss`, but without overflow:
    /// in `f32` PyTorch's loss is infinite where `−target · input` is above 89.
    ///
    /// - `input`, `target`: of the same shape
    /// - result: one number, or that shape with [`Reduction::None`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::SoftMarginLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let loss = SoftMarginLoss::new().forward(&Tensor::new([0.0])?, &Tensor::new([-1.0])?)?;
    /// assert!((loss.item::<f32>()? - 2f32.ln()).abs() < 1e-6);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    SoftMarginLoss {},
    |_loss, input, target| {
        check_same("SoftMarginLoss", input, target)?;
        computed(&input.mul(target)?.neg()?, |x| x.softplus(1.0, f64::INFINITY))
    }
}

loss! {
    /// The negative log likelihood of counts `target` under Poisson distributions, without the term log(`target`!),
    /// as PyTorch's `nn.PoissonNLLLoss`.
    ///
    /// - `input`: logarithms of rates, `target`: of that shape
    /// - result: one number, or that shape with [`Reduction::None`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::PoissonNLLLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let loss = PoissonNLLLoss::new().forward(&Tensor::new([0.0])?, &Tensor::new([3.0])?)?;
    /// assert_eq!(loss.item::<f32>()?, 1.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    PoissonNLLLoss {
        /// Whether `input` is the logarithm of the rate (the default) or the rate itself.
        log_input: bool = true,
        /// Whether log(`target`!) is added, by Stirling's approximation; not by default.
        full: bool = false,
        /// What is added to rates before the logarithm; 1e-8 by default.
        eps: f64 = 1e-8,
    },
    |loss, input, target| {
        check_same("PoissonNLLLoss", input, target)?;
        let losses = match loss.log_input {
            true => input.exp()?.sub(&target.mul(input)?)?,
            false => input.sub(&target.mul(&input.add_scalar(loss.eps)?.log()?)?)?,
        };
        if loss.full { losses.add(&stirling(target)?) } else { Ok(losses) }
    }
}

/// log(n!) by Stirling's approximation; 0 for n up to 1.
fn stirling(n: &Tensor) -> Result<Tensor> {
    let is_large = n.gt_scalar(1.0)?;
    let safe = n.where_cond(&is_large, &constant(n, 1.0)?)?;
    let root = safe.mul_scalar(2.0 * std::f64::consts::PI)?.log()?.mul_scalar(0.5)?;
    safe.mul(&safe.log()?)?.sub(&safe)?.add(&root)?.where_cond(&is_large, &constant(n, 0.0)?)
}

/// The Kullback-Leibler divergence of distributions `target` from distributions whose logarithms are `input`, as PyTorch's
/// `nn.KLDivLoss`.
///
/// - `input`: log probabilities, `target`: probabilities, of the same shape
/// - result: one number, or that shape with [`Reduction::None`]
///
/// By default the result is the mean over all elements. The divergence itself is [`batchmean`](Self::batchmean). Where
/// a target is 0, `target · log(target)` counts as 0.
///
/// # Examples
/// ```
/// use pagelock_nn::KLDivLoss;
/// use pagelock_tensor::Tensor;
///
/// let (input, target) = (Tensor::new([[0.5, 0.5]])?.log()?, Tensor::new([[1.0, 0.0]])?);
/// let loss = KLDivLoss::new().batchmean().forward(&input, &target)?;
/// assert!((loss.item::<f32>()? - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct KLDivLoss {
    #[module(skip)]
    reduction: Reduction,
    #[module(skip)]
    batchmean: bool,
    #[module(skip)]
    log_target: bool,
}

impl KLDivLoss {
    /// The mean over all elements.
    pub fn new() -> Self {
        Self::default()
    }

    /// The loss.
    ///
    /// # Errors
    /// The shapes differ, or there is no element to take the mean of.
    pub fn forward(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        check_same("KLDivLoss", input, target)?;
        let [input, target] = [&in_precision(input)?, &in_precision(target)?];
        let losses = if self.log_target {
            target.exp()?.mul(&target.sub(input)?)?
        } else {
            // 0 · log(0) is 0.
            let safe = target.masked_fill(&target.eq_scalar(0.0)?, 1.0)?;
            target.mul(&safe.log()?)?.sub(&target.mul(input)?)?
        };
        let batch = input.dims().first().copied().unwrap_or(1);
        let reduced = super::reduced("KLDivLoss", losses, self.reduction)?;
        if self.batchmean { reduced.div_scalar(batch as f64) } else { Ok(reduced) }
    }
}

setters! { KLDivLoss,
    /// Sets the reduction: the mean (the default), the sum, or none.
    reduction: Reduction => reduction = reduction, batchmean = false;
    /// The sum divided by the size of the batch.
    batchmean => reduction = Reduction::Sum, batchmean = true;
    /// Whether `target` has log probabilities too; not by default.
    log_target: bool;
}

loss! {
    /// The negative log likelihood of `target` under normal distributions with means `input` and variances `var`,
    /// without the constant log(2π) / 2, as PyTorch's `nn.GaussianNLLLoss`.
    ///
    /// - `input`, `target`: of the same shape
    /// - `var`: of that shape, or with sizes of 1 that broadcast, or without the last dimension; at least 0, which is
    ///   checked on the host alone, since the check would wait for a device
    /// - result: one number, or that shape with [`Reduction::None`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::GaussianNLLLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let (mean, x) = (Tensor::new([0.0])?, Tensor::new([2.0])?);
    /// assert_eq!(GaussianNLLLoss::new().forward(&mean, &x, &Tensor::new([1.0])?)?.item::<f32>()?, 2.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    GaussianNLLLoss {
        /// Whether log(2π) / 2 is added; not by default.
        full: bool = false,
        /// The smallest variance, to which smaller ones are raised; 1e-6 by default.
        eps: f64 = 1e-6,
    },
    |loss, input, target, var| {
        let difference = difference("GaussianNLLLoss", input, target)?;
        let is_of_rows = input.dims().split_last().is_some_and(|(_, rows)| *rows == *var.dims());
        let var = if is_of_rows { &var.unsqueeze(-1)? } else { var };
        if var.expand(input.shape()).is_err() {
            let expected = format!("for the input {} it must have that shape, or sizes of 1", input.shape());
            return Err(wrong_shape("GaussianNLLLoss", "the variance", var.shape(), &expected));
        }
        if var.device().is_cpu() && var.lt_scalar(0.0)?.any(..)?.item::<bool>()? {
            return Err(wrong_argument("GaussianNLLLoss", "a variance", "negative", "at least 0"));
        }
        let var = raised(var, loss.eps)?;
        let losses = var.log()?.add(&difference.mul(&difference)?.div(&var)?)?.mul_scalar(0.5)?;
        let constant = if loss.full { 0.5 * (2.0 * std::f64::consts::PI).ln() } else { 0.0 };
        if loss.full { losses.add_scalar(constant) } else { Ok(losses) }
    }
}
