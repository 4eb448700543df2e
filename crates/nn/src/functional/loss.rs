//! Losses with PyTorch's default settings. For other settings, use a loss value:
//! `CrossEntropyLoss::new().label_smoothing(0.1)`.

use crate::loss;
use pagelock_tensor::{Int, Result, Tensor};

/// `mean! { docs; name(inputs) = Loss }`
macro_rules! mean {
    ($($(#[$docs:meta])* $name:ident($($input:ident: $type:ty),+) = $loss:ident;)+) => {$(
        $(#[$docs])*
        #[doc = concat!("Other settings: [`", stringify!($loss), "`](crate::", stringify!($loss), ").")]
        ///
        /// # Errors
        /// The shapes do not fit each other, or there is no element to take the mean of.
        pub fn $name($($input: &$type),+) -> Result<Tensor> {
            loss::$loss::new().forward($($input),+)
        }
    )+};
}

mean! {
    /// The mean of the magnitudes of differences.
    l1_loss(input: Tensor, target: Tensor) = L1Loss;
    /// The mean over differences d of `d² / 2` where `|d|` is below 1, and of `|d| − 1/2` elsewhere.
    smooth_l1_loss(input: Tensor, target: Tensor) = SmoothL1Loss;
    /// The mean over differences d of `d² / 2` where `|d|` is below 1, and of `|d| − 1/2` elsewhere.
    huber_loss(input: Tensor, target: Tensor) = HuberLoss;
    /// The mean binary cross entropy of probabilities.
    binary_cross_entropy(input: Tensor, target: Tensor) = BCELoss;
    /// The mean binary cross entropy of scores.
    binary_cross_entropy_with_logits(input: Tensor, target: Tensor) = BCEWithLogitsLoss;
    /// The mean over all elements of `target · (log(target) − input)`.
    kl_div(input: Tensor, target: Tensor) = KLDivLoss;
    /// The mean negative log likelihood of counts, given logarithms of rates.
    poisson_nll_loss(input: Tensor, target: Tensor) = PoissonNLLLoss;
    /// The mean negative log likelihood under normal distributions.
    gaussian_nll_loss(input: Tensor, target: Tensor, var: Tensor) = GaussianNLLLoss;
    /// The mean of `log(1 + exp(−target · input))`.
    soft_margin_loss(input: Tensor, target: Tensor) = SoftMarginLoss;
    /// The mean of `max(0, −target · (input1 − input2))`.
    margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor) = MarginRankingLoss;
    /// The mean of `input`, a distance, where `target` is 1, and of `max(0, 1 − input)` where it is −1.
    hinge_embedding_loss(input: Tensor, target: Tensor) = HingeEmbeddingLoss;
    /// The mean of `1 − cos` where `target` is 1, and of `max(0, cos)` where it is −1.
    cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor) = CosineEmbeddingLoss;
    /// The mean of `max(0, d(anchor, positive) − d(anchor, negative) + 1)`.
    triplet_margin_loss(anchor: Tensor, positive: Tensor, negative: Tensor) = TripletMarginLoss;
    /// The mean of how far the scores of other classes exceed the right class's score minus 1.
    multi_margin_loss(input: Tensor, target: Tensor<Int>) = MultiMarginLoss;
    /// The mean of how far the scores of other classes exceed each label's score minus 1.
    multilabel_margin_loss(input: Tensor, target: Tensor<Int>) = MultiLabelMarginLoss;
    /// The mean of binary cross entropies of scores.
    multilabel_soft_margin_loss(input: Tensor, target: Tensor) = MultiLabelSoftMarginLoss;
}
