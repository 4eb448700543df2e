//! Losses of binary and multi-label classification, and margin losses of classes.

use super::{check_same, in_precision, reduced};
use crate::functional::shared::{computed, constant, wrong_argument, wrong_shape};
use crate::functional::{class_mask, one_hot_unchecked};
use crate::setters::{default_is_new, setters};
use crate::{Buffer, Module, module_scope};
use pagelock_tensor::autograd::{Context, Function};
use pagelock_tensor::{DType, Int, Reduction, Result, Tensor};

/// `weighted_loss! { docs; Name { docs; setting: type = default, .. } }`: a loss with a buffer `weight`, without its
/// `forward`.
macro_rules! weighted_loss {
    (
        $(#[$docs:meta])* $name:ident { $($(#[$of_setting:meta])* $setting:ident: $type:ty = $default:expr),* $(,)? },
        weight: $of_weight:literal $(, $(#[$of_buffer:meta])* buffer: $buffer:ident)?
    ) => {
        $(#[$docs])*
        #[derive(Debug, Module)]
        pub struct $name {
            #[doc = $of_weight]
            pub weight: Option<Buffer>,
            $($(#[$of_buffer])* pub $buffer: Option<Buffer>,)?
            #[module(skip)]
            reduction: Reduction,
            $(#[module(skip)] $setting: $type,)*
        }

        impl $name {
            /// The mean, with PyTorch's default settings.
            pub fn new() -> Self {
                Self { weight: None, $($buffer: None,)? reduction: Reduction::Mean, $($setting: $default),* }
            }
        }

        setters! { $name,
            #[doc = $of_weight]
            weight: Tensor => weight = Some(Buffer::new(weight));
            $($(#[$of_buffer])* $buffer: Tensor => $buffer = Some(Buffer::new($buffer));)?
            $($(#[$of_setting])* $setting: $type;)*
            /// Sets the reduction: the mean (the default), the sum, or none.
            reduction: Reduction;
        }

        default_is_new!($name);
    };
}

/// Each loss times its weight.
fn weighted(losses: Tensor, weight: Option<&Buffer>) -> Result<Tensor> {
    match weight {
        Some(weight) => losses.mul(weight),
        None => Ok(losses),
    }
}

weighted_loss! {
    /// Binary cross entropy of probabilities, as PyTorch's `nn.BCELoss`. Logarithms are clamped to at least −100.
    ///
    /// - `input`: probabilities; `target`: 0 to 1, of the same shape
    /// - result: one number, or that shape with [`Reduction::None`]
    ///
    /// [`BCEWithLogitsLoss`], which takes scores, is numerically more accurate. An input outside 0 to 1 is an error on
    /// the CPU; on a GPU its loss is NaN.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::BCELoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let loss = BCELoss::new().forward(&Tensor::new([0.5, 1.0])?, &Tensor::new([1.0, 1.0])?)?;
    /// assert!((loss.item::<f32>()? - 2f32.ln() / 2.0).abs() < 1e-6);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    BCELoss {},
    weight: "The weight of each element, broadcast to the input; 1 without it."
}

impl BCELoss {
    /// The loss.
    ///
    /// # Errors
    /// The shapes differ, there is no element to take the mean of, or on the CPU an input is NaN or outside 0 to 1.
    pub fn forward(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        check_same("BCELoss", input, target)?;
        let losses = computed(&in_precision(input)?, |input| {
            BinaryCrossEntropy.apply(&[input, &target.to_dtype(input.dtype())?])
        })?;
        let loss = reduced("BCELoss", weighted(losses, self.weight.as_ref())?, self.reduction)?;
        check_probabilities(input, &loss)?;
        Ok(loss)
    }
}

/// On the CPU, looks for an input outside 0 to 1 if the loss is NaN, as it is then.
fn check_probabilities(input: &Tensor, loss: &Tensor) -> Result<()> {
    let total = || if loss.rank() == 0 { Ok(loss.clone()) } else { loss.detach().sum(..) };
    if !loss.device().is_cpu() || !total()?.item::<f32>()?.is_nan() {
        return Ok(());
    }
    let input = input.clone().into_elements::<f64>()?;
    let outside = input.iter().find(|p| !(0.0..=1.0).contains(*p));
    let fix = "a probability, 0 to 1; apply sigmoid, or use BCEWithLogitsLoss, which takes scores";
    outside.map_or(Ok(()), |p| Err(wrong_argument("BCELoss", "an element of the input", p, fix)))
}

/// −y · log(x) − (1 − y) · log(1 − x). Its derivative stays finite where a logarithm does not.
struct BinaryCrossEntropy;

impl BinaryCrossEntropy {
    fn logarithms(x: &Tensor) -> Result<[Tensor; 2]> {
        const MIN_LOG: f64 = -100.0;
        Ok([x.log()?.clamp_min(MIN_LOG)?, x.neg()?.log1p()?.clamp_min(MIN_LOG)?])
    }
}

impl Function for BinaryCrossEntropy {
    fn forward(&self, context: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
        let (x, y) = (inputs[0], inputs[1]);
        context.save(x);
        context.save(y);
        let [of_one, of_zero] = Self::logarithms(x)?;
        y.add_scalar(-1.0)?.mul(&of_zero)?.sub(&y.mul(&of_one)?)
    }

    fn backward(&self, context: &Context, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        const MIN_SLOPE: f64 = 1e-12_f32 as f64; // PyTorch's constant, also for f64
        let (x, y): (Tensor, Tensor) = (context.saved(0)?, context.saved(1)?);
        let for_x = || {
            let slope = x.neg()?.add_scalar(1.0)?.mul(&x)?.clamp_min(MIN_SLOPE)?;
            grad.mul(&x.sub(&y)?.div(&slope)?)
        };
        let for_y = || {
            let [of_one, of_zero] = Self::logarithms(&x)?;
            grad.mul(&of_zero.sub(&of_one)?)
        };
        Ok(vec![Some(for_x()?), if context.needs_input_grad(1) { Some(for_y()?) } else { None }])
    }

    fn name(&self) -> &'static str {
        "binary_cross_entropy"
    }
}

weighted_loss! {
    /// Binary cross entropy of scores before the sigmoid, as PyTorch's `nn.BCEWithLogitsLoss`.
    ///
    /// - `input`: scores; `target`: 0 to 1, of the same shape
    /// - result: one number, or that shape with [`Reduction::None`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::BCEWithLogitsLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let rare = BCEWithLogitsLoss::new().pos_weight(Tensor::new([3.0])?);
    /// let loss = rare.forward(&Tensor::new([[0.0], [0.0]])?, &Tensor::new([[1.0], [0.0]])?)?;
    /// assert!((loss.item::<f32>()? - 2.0 * 2f32.ln()).abs() < 1e-6);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    BCEWithLogitsLoss {},
    weight: "The weight of each element, broadcast to the input; 1 without it.",
    /// The weight of targets of 1 relative to targets of 0, broadcast to the input; 1 without it.
    buffer: pos_weight
}

impl BCEWithLogitsLoss {
    /// The loss.
    ///
    /// # Errors
    /// The shapes differ, or there is no element to take the mean of.
    pub fn forward(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        check_same("BCEWithLogitsLoss", input, target)?;
        let losses = computed(&in_precision(input)?, |input| {
            let target = target.to_dtype(input.dtype())?;
            let mut likelihood = input.log_sigmoid()?;
            if let Some(pos_weight) = &self.pos_weight {
                likelihood = likelihood.mul(&pos_weight.add_scalar(-1.0)?.mul(&target)?.add_scalar(1.0)?)?;
            }
            target.neg()?.add_scalar(1.0)?.mul(input)?.sub(&likelihood)
        })?;
        reduced("BCEWithLogitsLoss", weighted(losses, self.weight.as_ref())?, self.reduction)
    }
}

weighted_loss! {
    /// The mean over classes of the binary cross entropies of scores, as PyTorch's `nn.MultiLabelSoftMarginLoss`.
    ///
    /// - `input`: scores `[batch, classes]`; `target`: 0 or 1, of the same shape
    /// - result: one number, or `[batch]` with [`Reduction::None`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::MultiLabelSoftMarginLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let loss = MultiLabelSoftMarginLoss::new().forward(&Tensor::zeros([2, 3])?, &Tensor::ones([2, 3])?)?;
    /// assert!((loss.item::<f32>()? - 2f32.ln()).abs() < 1e-6);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    MultiLabelSoftMarginLoss {},
    weight: "The weight of each class, `[classes]`; 1 without it."
}

impl MultiLabelSoftMarginLoss {
    /// The loss.
    ///
    /// # Errors
    /// The shapes differ, or there is no element to take the mean of.
    pub fn forward(&self, input: &Tensor, target: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        check_same("MultiLabelSoftMarginLoss", input, target)?;
        let losses = computed(&in_precision(input)?, |input| {
            let target = target.to_dtype(input.dtype())?;
            let of_one = target.mul(&input.log_sigmoid()?)?;
            of_one.add(&target.neg()?.add_scalar(1.0)?.mul(&input.neg()?.log_sigmoid()?)?)?.neg()
        })?;
        let losses = weighted(losses, self.weight.as_ref())?.mean(-1)?;
        reduced("MultiLabelSoftMarginLoss", losses, self.reduction)
    }
}

weighted_loss! {
    /// How far the score of each wrong class exceeds the right class's score minus `margin`, to the power `p`, averaged over
    /// classes; PyTorch's `nn.MultiMarginLoss`.
    ///
    /// - `input`: scores `[batch, classes]`; `target`: classes `[batch]`
    /// - result: one number, or `[batch]` with [`Reduction::None`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::MultiMarginLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let loss = MultiMarginLoss::new().forward(&Tensor::new([[0.5, 0.0]])?, &Tensor::new([0])?)?;
    /// assert_eq!(loss.item::<f32>()?, 0.25);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    MultiMarginLoss {
        /// The power, 1 or 2; 1 by default.
        p: u32 = 1,
        /// By how much the right class should exceed the others; 1 by default.
        margin: f64 = 1.0,
    },
    weight: "The weight of each class, `[classes]`; 1 without it."
}

impl MultiMarginLoss {
    /// The loss.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes do not match, or `p` is neither 1 nor 2;
    /// [`Error::IndexOutOfRange`](pagelock_tensor::Error::IndexOutOfRange) for a class that does not exist.
    pub fn forward(&self, input: &Tensor, target: &Tensor<Int>) -> Result<Tensor> {
        const OP: &str = "MultiMarginLoss";
        let _scope = module_scope(self);
        if !matches!(self.p, 1 | 2) {
            return Err(wrong_argument(OP, "p", self.p, "1 or 2"));
        }
        let &[batch, classes] = input.dims() else {
            return Err(wrong_shape(OP, "the input", input.shape(), "it must be [batch, classes]; reshape it"));
        };
        if target.dims() != [batch] {
            let expected = format!("for the input {} it must be [{batch}]", input.shape());
            return Err(wrong_shape(OP, "the target", target.shape(), &expected));
        }
        if let Some(weight) = self.weight.as_ref().filter(|weight| weight.dims() != [classes]) {
            let expected = format!("for the input {} it must be [{classes}]", input.shape());
            return Err(wrong_shape(OP, "the weight", weight.shape(), &expected));
        }
        let input = in_precision(input)?;
        let right = input.gather(1, &target.unsqueeze(1)?)?;
        let is_right = class_mask(target, classes)?;
        let short = input.sub(&right)?.add_scalar(self.margin)?;
        let mut short = short.masked_fill(&is_right, 0.0)?.clamp_min(0.0)?;
        if self.p == 2 {
            short = short.mul(&short)?;
        }
        if let Some(weight) = &self.weight {
            short = short.mul(&weight.index_select(0, target)?.unsqueeze(1)?)?;
        }
        reduced(OP, short.sum(1)?.div_scalar(classes as f64)?, self.reduction)
    }
}

/// How far the score of each class that is no label exceeds each label's score minus 1, summed and divided by the
/// number of classes; PyTorch's `nn.MultiLabelMarginLoss`.
///
/// - `input`: scores `[batch, classes]`; `target`: of the same shape, the labels of each sample followed by −1
/// - result: one number, or `[batch]` with [`Reduction::None`]
///
/// # Examples
/// ```
/// use pagelock_nn::MultiLabelMarginLoss;
/// use pagelock_tensor::Tensor;
///
/// let scores = Tensor::new([[0.1, 0.2, 0.4, 0.8]])?;
/// let loss = MultiLabelMarginLoss::new().forward(&scores, &Tensor::new([[3, 0, -1, 1]])?)?;
/// assert!((loss.item::<f32>()? - 0.85).abs() < 1e-6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct MultiLabelMarginLoss {
    #[module(skip)]
    reduction: Reduction,
}

impl MultiLabelMarginLoss {
    /// A loss that is averaged over the batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// The loss.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes differ;
    /// [`Error::IndexOutOfRange`](pagelock_tensor::Error::IndexOutOfRange) for a class that does not exist.
    pub fn forward(&self, input: &Tensor, target: &Tensor<Int>) -> Result<Tensor> {
        const OP: &str = "MultiLabelMarginLoss";
        let _scope = module_scope(self);
        let (&[_, classes], true) = (input.dims(), input.shape() == target.shape()) else {
            let expected = format!("the input is {}, and both must be [batch, classes]", input.shape());
            return Err(wrong_shape(OP, "the target", target.shape(), &expected));
        };
        let (input, target) = (in_precision(input)?, target.to_dtype(DType::I64)?);
        let is_label = before_the_first_negative(&target, &input)?;
        let index = target.mul(&is_label.to_int()?)?;
        let label_of = one_hot_unchecked(&index, classes)?.to_float_of(input.dtype())?.mul(&is_label.unsqueeze(2)?)?;
        let others = label_of.sum(1)?.sign()?.neg()?.add_scalar(1.0)?; // 1 where a class is no label
        let scores = input.gather(1, &index)?;
        let short = input.unsqueeze(1)?.sub(&scores.unsqueeze(2)?)?.add_scalar(1.0)?.clamp_min(0.0)?;
        let counted = short.mul(&is_label.unsqueeze(2)?)?.mul(&others.unsqueeze(1)?)?;
        reduced(OP, counted.sum([1, 2])?.div_scalar(classes as f64)?, self.reduction)
    }
}

setters! { MultiLabelMarginLoss,
    /// Sets the reduction: the mean (the default), the sum, or none.
    reduction: Reduction;
}

/// 1 at the elements of each row that come before its first negative element, in the precision of `like`.
fn before_the_first_negative(rows: &Tensor<Int>, like: &Tensor) -> Result<Tensor> {
    let columns = rows.dims()[1];
    let columns = Tensor::on(&rows.device()).arange(0_i64, columns as i64, 1)?;
    let is_seen = columns.unsqueeze(1)?.le(&columns)?.to_float_of(DType::F32)?; // [from, to]: 1 where from ≤ to
    let is_negative = rows.lt(&Tensor::on(&rows.device()).full((), 0_i64)?)?.to_float_of(DType::F32)?;
    let n_negative = is_negative.matmul(&is_seen)?;
    n_negative.eq(&constant(&n_negative, 0.0)?)?.to_float_of(like.dtype())
}
