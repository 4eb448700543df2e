//! Losses of classes: [`CrossEntropyLoss`], [`NLLLoss`].

use crate::functional::shared::{constant, wrong_argument, wrong_shape};
use crate::setters::setters;
use crate::{Buffer, Module, module_scope};
use pagelock_tensor::{Bool, DType, Int, Reduction, Result, Tensor};

/// The target of a [`CrossEntropyLoss`]: classes (`Tensor<Int>`) or probabilities (`Tensor`).
pub trait Targets {
    /// Calls the function for this kind of target.
    #[doc(hidden)]
    fn visit(
        &self,
        classes: &dyn Fn(&Tensor<Int>) -> Result<Tensor>,
        probabilities: &dyn Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor>;
}

impl Targets for Tensor<Int> {
    fn visit(
        &self,
        classes: &dyn Fn(&Tensor<Int>) -> Result<Tensor>,
        _: &dyn Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        classes(self)
    }
}

impl Targets for Tensor {
    fn visit(
        &self,
        _: &dyn Fn(&Tensor<Int>) -> Result<Tensor>,
        probabilities: &dyn Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        probabilities(self)
    }
}

/// The settings that both losses share.
struct Settings<'a> {
    op: &'static str,
    weight: Option<&'a Tensor>,
    ignore_index: Option<i64>,
    reduction: Reduction,
}

impl Settings<'_> {
    /// Checks that the input has a class dimension, and the weight one element for each class.
    fn check(&self, input: &Tensor) -> Result<()> {
        let [_, classes, ..] = **input.shape() else {
            let expected = "it must be [batch, classes, ..]; unsqueeze a batch dimension";
            return Err(wrong_shape(self.op, "the input", input.shape(), expected));
        };
        match self.weight {
            Some(weight) if *weight.shape() != [classes] => {
                let expected = format!("for the input {} it must be [{classes}], one for each class", input.shape());
                Err(wrong_shape(self.op, "the weight", weight.shape(), &expected))
            }
            _ => Ok(()),
        }
    }

    /// The negative log likelihood of each target class times the weight of that class, and these weights. Both are 0
    /// where the class is ignored.
    fn weighted(&self, log_probabilities: &Tensor, target: &Tensor<Int>) -> Result<Chosen> {
        self.check(log_probabilities)?;
        check_classes(self.op, log_probabilities, target)?;
        let target = target.to_dtype(DType::I64)?;
        let ignored = match self.ignore_index {
            Some(index) => Some(target.eq(&Tensor::on(&target.device()).full((), index)?)?),
            None => None,
        };
        let zero = constant(log_probabilities, 0.0)?;
        let target = match &ignored {
            Some(ignored) => target.mul(&ignored.to_int()?.neg()?.add_scalar(1)?)?,
            None => target,
        };
        let mut weights = match self.weight {
            Some(weight) => {
                let flat =
                    weight.index_select(0, &target.reshape([-1])?).map_err(|error| error.of_index_in(self.op))?;
                if target.rank() == 1 { flat } else { flat.unflatten(0, target.shape())? }
            }
            None => constant(log_probabilities, 1.0)?.expand(target.shape())?,
        };
        let picked = log_probabilities.gather(1, &target.unsqueeze(1)?).map_err(|error| error.of_index_in(self.op))?;
        let mut picked = picked.squeeze(1)?;
        if let Some(ignored) = &ignored {
            (weights, picked) = (zero.where_cond(ignored, &weights)?, zero.where_cond(ignored, &picked)?);
        }
        Ok(Chosen { losses: picked.mul(&weights)?.neg()?, weights, ignored })
    }

    /// Reduces the losses of the samples. The mean divides by the sum of the weights.
    fn reduce(&self, losses: Tensor, weights: &Tensor) -> Result<Tensor> {
        match self.reduction {
            Reduction::Mean if losses.is_empty() => super::reduced(self.op, losses, Reduction::Mean),
            Reduction::Mean => losses.sum(..)?.div(&weights.sum(..)?),
            reduction => super::reduced(self.op, losses, reduction),
        }
    }
}

/// The result of [`Settings::weighted`].
struct Chosen {
    losses: Tensor,
    weights: Tensor,
    ignored: Option<Tensor<Bool>>,
}

/// Checks that `target` has the input's shape without the class dimension.
fn check_classes(op: &str, input: &Tensor, target: &Tensor<Int>) -> Result<()> {
    let (dims, classless) = (input.dims(), [&input.dims()[..1], &input.dims()[2..]].concat());
    if target.dims() == classless {
        return Ok(());
    }
    let expected = format!("for the input {dims:?} it must be {classless:?}, without the class dimension");
    Err(wrong_shape(op, "the target", target.shape(), &expected))
}

/// Cross entropy of scores (before any softmax) and classes, or probabilities of classes, as PyTorch's `nn.CrossEntropyLoss`.
///
/// - `input`: `[batch, classes, ..]`
/// - `target`: classes `[batch, ..]`, each at least 0 and below `classes`; or probabilities, of the input's shape
/// - result: one number, or `[batch, ..]` with [`Reduction::None`]
///
/// # Examples
/// ```
/// use pagelock_nn::CrossEntropyLoss;
/// use pagelock_tensor::Tensor;
///
/// let undecided = Tensor::zeros([4, 10])?;
/// let loss = CrossEntropyLoss::new().forward(&undecided, &Tensor::new([3, 1, 4, 1])?)?;
/// assert!((loss.item::<f32>()? - 10f32.ln()).abs() < 1e-6);
///
/// let of_words = CrossEntropyLoss::new().ignore_index(-100).label_smoothing(0.1)?;
/// let loss = of_words.forward(&undecided, &Tensor::new([3, -100, 4, -100])?)?;
/// assert!((loss.item::<f32>()? - 10f32.ln()).abs() < 1e-6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Debug, Default, Module)]
pub struct CrossEntropyLoss {
    /// The weight of each class, `[classes]`; 1 for all without it.
    pub weight: Option<Buffer>,
    #[module(skip)]
    ignore_index: Option<i64>,
    #[module(skip)]
    label_smoothing: f64,
    #[module(skip)]
    reduction: Reduction,
}

setters! { CrossEntropyLoss,
    /// Sets the weight of each class, `[classes]`. The mean is then a weighted mean.
    weight: Tensor => weight = Some(Buffer::new(weight));
    /// Ignores targets of this class. PyTorch ignores −100 by default; here −100 is an error unless it is set.
    ignore_index: i64 => ignore_index = Some(ignore_index);
    /// Sets the reduction: the mean (the default), the sum, or none.
    reduction: Reduction;
}

impl CrossEntropyLoss {
    /// A loss that is averaged over the batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// The share of the target that is spread evenly over all classes; 0 by default.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) outside `0..=1`.
    pub fn label_smoothing(self, label_smoothing: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&label_smoothing) {
            return Err(wrong_argument("CrossEntropyLoss", "label_smoothing", label_smoothing, "0 to 1"));
        }
        Ok(Self { label_smoothing, ..self })
    }

    /// The loss of `input` given `target`.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes do not match;
    /// [`Error::IndexOutOfRange`](pagelock_tensor::Error::IndexOutOfRange) for a class that does not exist.
    pub fn forward(&self, input: &Tensor, target: &impl Targets) -> Result<Tensor> {
        let _scope = module_scope(self);
        target.visit(&|classes| self.of_classes(input, classes), &|shares| self.of_probabilities(input, shares))
    }

    fn settings(&self) -> Settings<'_> {
        let op = "CrossEntropyLoss";
        Settings { op, weight: self.weight.as_deref(), ignore_index: self.ignore_index, reduction: self.reduction }
    }

    fn of_classes(&self, input: &Tensor, target: &Tensor<Int>) -> Result<Tensor> {
        if self.weight.is_none() && self.ignore_index.is_none() && self.label_smoothing == 0.0 {
            return input.cross_entropy(target, self.reduction); // one kernel
        }
        let settings = self.settings();
        settings.check(input)?;
        let log_probabilities = input.log_softmax(1)?;
        let Chosen { losses, weights, ignored } = settings.weighted(&log_probabilities, target)?;
        let loss = settings.reduce(losses, &weights)?;
        if self.label_smoothing == 0.0 {
            return Ok(loss);
        }
        let mut even = weighted_sum(&log_probabilities, settings.weight)?.neg()?;
        if let Some(ignored) = &ignored {
            even = constant(&even, 0.0)?.where_cond(ignored, &even)?;
        }
        let share = self.label_smoothing / input.dims()[1] as f64;
        loss.mul_scalar(1.0 - self.label_smoothing)?.add(&settings.reduce(even, &weights)?.mul_scalar(share)?)
    }

    fn of_probabilities(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
        let settings = self.settings();
        settings.check(input)?;
        super::check_same(settings.op, input, target)?;
        let (classes, smoothing) = (input.dims()[1] as f64, self.label_smoothing);
        let target = match smoothing {
            0.0 => target.clone(),
            _ => target.mul_scalar(1.0 - smoothing)?.add_scalar(smoothing / classes)?,
        };
        let losses = weighted_sum(&input.log_softmax(1)?.mul(&target)?, settings.weight)?.neg()?;
        super::reduced(settings.op, losses, self.reduction)
    }
}

/// The weighted sum over classes.
fn weighted_sum(x: &Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
    match weight {
        Some(weight) => x.mul(&crate::functional::shared::along_channels(weight, x.rank())?)?.sum(1),
        None => x.sum(1),
    }
}

/// Negative log likelihood of log probabilities and classes, as PyTorch's `nn.NLLLoss`.
///
/// - `input`: `[batch, classes, ..]`, as `log_softmax(1)` gives them
/// - `target`: `[batch, ..]`, each at least 0 and below `classes`
/// - result: one number, or `[batch, ..]` with [`Reduction::None`]
///
/// # Examples
/// ```
/// use pagelock_nn::NLLLoss;
/// use pagelock_tensor::Tensor;
///
/// let log_probabilities = Tensor::new([[-0.5, -2.0], [-1.0, -0.25]])?;
/// let loss = NLLLoss::new().forward(&log_probabilities, &Tensor::new([0, 1])?)?;
/// assert_eq!(loss.item::<f32>()?, (0.5 + 0.25) / 2.0);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Debug, Default, Module)]
pub struct NLLLoss {
    /// The weight of each class, `[classes]`; 1 for all without it.
    pub weight: Option<Buffer>,
    #[module(skip)]
    ignore_index: Option<i64>,
    #[module(skip)]
    reduction: Reduction,
}

impl NLLLoss {
    /// A loss that is averaged over the batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// The loss of `input` given `target`.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes do not match;
    /// [`Error::IndexOutOfRange`](pagelock_tensor::Error::IndexOutOfRange) for a class that does not exist.
    pub fn forward(&self, input: &Tensor, target: &Tensor<Int>) -> Result<Tensor> {
        let _scope = module_scope(self);
        if self.weight.is_none() && self.ignore_index.is_none() {
            return input.nll_loss(target, self.reduction);
        }
        let weight = self.weight.as_deref();
        let settings = Settings { op: "NLLLoss", weight, ignore_index: self.ignore_index, reduction: self.reduction };
        let Chosen { losses, weights, .. } = settings.weighted(&super::in_precision(input)?, target)?;
        settings.reduce(losses, &weights)
    }
}

setters! { NLLLoss,
    /// Sets the weight of each class, `[classes]`. The mean is then a weighted mean.
    weight: Tensor => weight = Some(Buffer::new(weight));
    /// Ignores targets of this class. PyTorch ignores −100 by default; here −100 is an error unless it is set.
    ignore_index: i64 => ignore_index = Some(ignore_index);
    /// Sets the reduction: the mean (the default), the sum, or none.
    reduction: Reduction;
}
