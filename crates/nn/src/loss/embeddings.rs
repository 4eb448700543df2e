//! Losses of pairs and triplets, which compare values or distances.

use std::fmt;

use super::{check_same, loss, reduced};
use crate::functional::pairwise_distance;
use crate::functional::shared::{constant, wrong_argument, wrong_shape};
use crate::setters::{default_is_new, setters};
use crate::{Module, PairwiseDistance, module_scope};
use pagelock_tensor::{Bool, Reduction, Result, Tensor};

loss! {
    /// `max(0, −target · (input1 − input2) + margin)`: `target` is 1 where `input1` should be the larger, else −1.
    /// PyTorch's `nn.MarginRankingLoss`.
    ///
    /// - `input1`, `input2`, `target`: of one shape
    /// - result: one number, or that shape with [`Reduction::None`](pagelock_tensor::Reduction::None)
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::MarginRankingLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let (better, worse, sign) = (Tensor::new([1.0])?, Tensor::new([3.0])?, Tensor::new([1.0])?);
    /// assert_eq!(MarginRankingLoss::new().forward(&better, &worse, &sign)?.item::<f32>()?, 2.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    MarginRankingLoss {
        /// By how much the larger input should exceed the other one; 0 by default.
        margin: f64 = 0.0,
    },
    |loss, input1, input2, target| {
        check_same("MarginRankingLoss", input1, target)?;
        input1.sub(input2)?.mul(target)?.neg()?.add_scalar(loss.margin)?.clamp_min(0.0)
    }
}

loss! {
    /// The distance `input` where `target` is 1, and `max(0, margin − input)` where it is −1, as PyTorch's
    /// `nn.HingeEmbeddingLoss`.
    ///
    /// - `input`, `target`: of one shape
    /// - result: one number, or that shape with [`Reduction::None`](pagelock_tensor::Reduction::None)
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::HingeEmbeddingLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let loss = HingeEmbeddingLoss::new().forward(&Tensor::new([0.5, 0.25])?, &Tensor::new([1.0, -1.0])?)?;
    /// assert_eq!(loss.item::<f32>()?, (0.5 + 0.75) / 2.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    HingeEmbeddingLoss {
        /// The least distance that dissimilar pairs should have; 1 by default.
        margin: f64 = 1.0,
    },
    |loss, input, target| {
        check_same("HingeEmbeddingLoss", input, target)?;
        let zero = constant(input, 0.0)?;
        let hinge = input.neg()?.add_scalar(loss.margin)?.clamp_min(0.0)?;
        let of_differing = zero.where_cond(&is(target, 1.0)?, &hinge)?;
        of_differing.add(&zero.where_cond(&is(target, -1.0)?, input)?)
    }
}

/// Which elements are equal to `value`.
fn is(x: &Tensor, value: f64) -> Result<Tensor<Bool>> {
    x.eq(&constant(x, value)?)
}

loss! {
    /// `1 − cos` where `target` is 1, and `max(0, cos − margin)` where it is −1, with the cosine of the angle between
    /// two vectors, as PyTorch's `nn.CosineEmbeddingLoss`.
    ///
    /// - `input1`, `input2`: `[batch, features]`; `target`: `[batch]`
    /// - result: one number, or `[batch]` with [`Reduction::None`](pagelock_tensor::Reduction::None)
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::CosineEmbeddingLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let (x, y) = (Tensor::new([[1.0, 0.0]])?, Tensor::new([[0.0, 2.0]])?);
    /// assert_eq!(CosineEmbeddingLoss::new().forward(&x, &y, &Tensor::new([1.0])?)?.item::<f32>()?, 1.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    CosineEmbeddingLoss {
        /// The cosine up to which dissimilar pairs have no loss; 0 by default.
        margin: f64 = 0.0,
    },
    |loss, input1, input2, target| {
        check_same("CosineEmbeddingLoss", input1, input2)?;
        if input1.rank() != 2 || target.dims() != &input1.dims()[..1] {
            let expected =
                format!("the inputs are {} and must be [batch, features], the target [batch]", input1.shape());
            return Err(wrong_shape("CosineEmbeddingLoss", "the target", target.shape(), &expected));
        }
        let squares = |x: &Tensor| x.mul(x)?.sum(1)?.add_scalar(1e-12);
        let cosine = input1.mul(input2)?.sum(1)?.div(&squares(input1)?.mul(&squares(input2)?)?.sqrt()?)?;
        let zero = constant(&cosine, 0.0)?;
        let of_equal = cosine.neg()?.add_scalar(1.0)?.where_cond(&is(target, 1.0)?, &zero)?;
        let of_differing = cosine.add_scalar(-loss.margin)?.clamp_min(0.0)?;
        of_equal.add(&of_differing.where_cond(&is(target, -1.0)?, &zero)?)
    }
}

loss! {
    /// `max(0, d(anchor, positive) − d(anchor, negative) + margin)` with `p`-norm distances d, as PyTorch's
    /// `nn.TripletMarginLoss`.
    ///
    /// - `anchor`, `positive`, `negative`: `[batch, features]`
    /// - result: one number, or `[batch]` with [`Reduction::None`](pagelock_tensor::Reduction::None)
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::TripletMarginLoss;
    /// use pagelock_tensor::Tensor;
    ///
    /// let (anchor, near, far) = (Tensor::zeros([1, 2])?, Tensor::zeros([1, 2])?, Tensor::ones([1, 2])?);
    /// assert_eq!(TripletMarginLoss::new().forward(&anchor, &near, &far)?.item::<f32>()?, 0.0);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    TripletMarginLoss {
        /// By how much the negative should be farther away than the positive; 1 by default.
        margin: f64 = 1.0,
        /// The norm of the distances; 2 by default.
        p: f64 = 2.0,
        /// Added to the differences of elements; 1e-6 by default.
        eps: f64 = 1e-6,
        /// Whether d(positive, negative) replaces d(anchor, negative) where it is smaller; false by default.
        swap: bool = false,
    },
    |loss, anchor, positive, negative| {
        let distance = |a: &Tensor, b: &Tensor| pairwise_distance(a, b, loss.p, loss.eps);
        triplet_losses("TripletMarginLoss", [anchor, positive, negative], &distance, loss.margin, loss.swap)
    }
}

/// `max(0, d(anchor, positive) − d(anchor, negative) + margin)`. With `swap`, d(positive, negative) replaces
/// d(anchor, negative) where it is smaller.
fn triplet_losses(
    op: &str,
    [anchor, positive, negative]: [&Tensor; 3],
    distance: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>,
    margin: f64,
    swap: bool,
) -> Result<Tensor> {
    check_same(op, anchor, positive)?;
    check_same(op, anchor, negative)?;
    let positive_distance = distance(anchor, positive)?;
    let mut negative_distance = distance(anchor, negative)?;
    if swap {
        negative_distance = negative_distance.minimum(&distance(positive, negative)?)?;
    }
    positive_distance.sub(&negative_distance)?.add_scalar(margin)?.clamp_min(0.0)
}

type Distance = Box<dyn Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync>;

/// `max(0, d(anchor, positive) − d(anchor, negative) + margin)` with any distance d, as PyTorch's
/// `nn.TripletMarginWithDistanceLoss`.
///
/// - `anchor`, `positive`, `negative`: of one shape, `[batch, ..]`
/// - result: one number, or one for each distance with [`Reduction::None`](pagelock_tensor::Reduction::None)
///
/// # Examples
/// ```
/// use pagelock_nn::TripletMarginWithDistanceLoss;
/// use pagelock_tensor::Tensor;
///
/// let squares = |a: &Tensor, b: &Tensor| a.sub(b)?.square()?.sum(-1);
/// let loss = TripletMarginWithDistanceLoss::new().distance_function(squares).margin(3.0);
/// let (anchor, near, far) = (Tensor::zeros([1, 2])?, Tensor::zeros([1, 2])?, Tensor::ones([1, 2])?);
/// assert_eq!(loss.forward(&anchor, &near, &far)?.item::<f32>()?, 1.0);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct TripletMarginWithDistanceLoss {
    distance_function: Option<PairwiseDistance>,
    /// The user's distance, used in place of `distance_function`.
    #[module(skip)]
    custom_distance: Option<Distance>,
    #[module(skip)]
    margin: f64,
    #[module(skip)]
    swap: bool,
    #[module(skip)]
    reduction: Reduction,
}

impl TripletMarginWithDistanceLoss {
    /// The mean, with [`PairwiseDistance`], a margin of 1 and no swap.
    pub fn new() -> Self {
        Self {
            distance_function: Some(PairwiseDistance::new()),
            custom_distance: None,
            margin: 1.0,
            swap: false,
            reduction: Reduction::Mean,
        }
    }

    /// Sets the distance function, which takes two tensors `[batch, ..]` and returns one number for each sample.
    #[must_use]
    pub fn distance_function(
        mut self,
        distance: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        self.distance_function = None;
        self.custom_distance = Some(Box::new(distance));
        self
    }

    /// The losses of the triplets, reduced.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes differ, the margin is not above 0, or
    /// there is no element to take the mean of; any error of the distance.
    pub fn forward(&self, anchor: &Tensor, positive: &Tensor, negative: &Tensor) -> Result<Tensor> {
        const OP: &str = "TripletMarginWithDistanceLoss";
        let _scope = module_scope(self);
        if self.margin.is_nan() || self.margin <= 0.0 {
            return Err(wrong_argument(OP, "margin", self.margin, "above 0"));
        }
        let distance = |a: &Tensor, b: &Tensor| match &self.custom_distance {
            Some(distance) => distance(a, b),
            None => self.distance_function.unwrap_or_default().forward(a, b),
        };
        let losses = triplet_losses(OP, [anchor, positive, negative], &distance, self.margin, self.swap)?;
        reduced(OP, losses, self.reduction)
    }
}

setters! { TripletMarginWithDistanceLoss,
    /// By how much the negative should be farther away than the positive, above 0; 1 by default.
    margin: f64;
    /// Whether d(positive, negative) replaces d(anchor, negative) where it is smaller; false by default.
    swap: bool;
    /// Sets the reduction: the mean (the default), the sum, or none.
    reduction: Reduction;
}

default_is_new!(TripletMarginWithDistanceLoss);

impl fmt::Debug for TripletMarginWithDistanceLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("TripletMarginWithDistanceLoss");
        debug.field("margin", &self.margin).field("swap", &self.swap).field("reduction", &self.reduction);
        debug.finish_non_exhaustive()
    }
}
