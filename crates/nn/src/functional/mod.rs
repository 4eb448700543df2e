//! Layers and losses as functions of tensors, as PyTorch's `torch.nn.functional`.
//!
//! ```
//! use pagelock_nn::functional as F;
//! use pagelock_tensor::Tensor;
//!
//! let (xb, weight, bias) = (Tensor::ones([2, 3])?, Tensor::zeros([4, 3])?, Tensor::ones(4)?);
//! let scores = F::relu(&F::linear(&xb, &weight, Some(&bias))?)?;
//! assert_eq!(scores.to_vec::<f32>()?, [1.0; 8]);
//! # Ok::<(), pagelock_tensor::Error>(())
//! ```
//!
//! The functions defined in this file are also methods of [`Tensor`], and return the same errors. As functions they
//! have PyTorch's names and can be passed as values (`fit(.., F::cross_entropy, ..)`). All other functions are
//! composed of tensor operations, so gradients, second gradients, autocast and captured steps work for them too.

mod activation;
mod attention;
mod convolution;
mod distance;
mod embedding;
mod embedding_bag;
mod folding;
pub(crate) mod fractional;
mod grid;
mod interpolation;
mod loss;
mod normalization;
mod pooling;
pub(crate) mod shared;
mod shuffle;

pub use activation::{
    Approximate, celu, elu, gelu, glu, gumbel_softmax, hardshrink, hardsigmoid, hardswish, hardtanh, leaky_relu,
    logsigmoid, mish, normalize, prelu, relu6, rrelu, selu, silu, softmin, softplus, softshrink, softsign, tanhshrink,
    threshold,
};
pub(crate) use activation::{SELU_ALPHA, SELU_SCALE};
pub(crate) use attention::attention_weights;
pub use attention::{AttentionMask, AttentionOptions, scaled_dot_product_attention};
pub use convolution::{
    Conv1dOptions, Conv3dOptions, ConvTranspose1dOptions, ConvTranspose3dOptions, conv_transpose1d, conv_transpose2d,
    conv_transpose3d, conv1d, conv2d, conv3d,
};
pub(crate) use distance::raised;
pub use distance::{bilinear, cosine_similarity, pairwise_distance, pdist};
pub use embedding::{EmbeddingOptions, embedding, embedding_with, one_hot};
pub(crate) use embedding::{check_table, class_mask, one_hot_unchecked};
pub use embedding_bag::{EmbeddingBagMode, EmbeddingBagOptions, embedding_bag};
pub use folding::{FoldOptions, fold, unfold};
pub use fractional::{fractional_max_pool2d, fractional_max_pool2d_with_indices};
pub use grid::{GridPadding, GridSampleMode, GridSampleOptions, affine_grid, grid_sample};
pub use interpolation::{InterpolateOptions, InterpolationMode, Scale, interpolate};
pub use loss::{
    binary_cross_entropy, binary_cross_entropy_with_logits, cosine_embedding_loss, gaussian_nll_loss,
    hinge_embedding_loss, huber_loss, kl_div, l1_loss, margin_ranking_loss, multi_margin_loss, multilabel_margin_loss,
    multilabel_soft_margin_loss, poisson_nll_loss, smooth_l1_loss, soft_margin_loss, triplet_margin_loss,
};
pub(crate) use normalization::affine;
pub use normalization::{
    alpha_dropout, feature_alpha_dropout, feature_dropout, group_norm, instance_norm, local_response_norm, rms_norm,
};
pub use pooling::{
    AvgPoolOptions, MaxPoolOptions, adaptive_avg_pool1d, adaptive_avg_pool3d, adaptive_max_pool1d,
    adaptive_max_pool1d_with_indices, adaptive_max_pool2d, adaptive_max_pool2d_with_indices, adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices, avg_pool1d, avg_pool2d, avg_pool3d, lp_pool1d, lp_pool2d, lp_pool3d, max_pool1d,
    max_pool1d_with_indices, max_pool2d, max_pool2d_with_indices, max_pool3d, max_pool3d_with_indices, max_unpool1d,
    max_unpool2d, max_unpool3d,
};
pub use shuffle::{channel_shuffle, pixel_shuffle, pixel_unshuffle};

use pagelock_tensor::{BatchNormOptions, Generator, Int, IntoShape, PadMode, Reduction, Result, Tensor};

/// Adds elements at the ends of the last dimensions, as [`Tensor::pad`]; `sizes` is `[left, right, top, bottom, …]`.
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::{PadMode, Tensor};
/// let x = Tensor::new([[1.0, 2.0, 3.0]])?;
/// assert_eq!(F::pad(&x, &[2, 0], PadMode::Reflect)?.to_vec::<f32>()?, [3.0, 2.0, 1.0, 2.0, 3.0]);
/// assert_eq!(F::pad(&x, &[0, 1, 1, 0], PadMode::Constant(0.0))?.dims(), [2, 4]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// As [`Tensor::pad`].
pub fn pad(x: &Tensor, sizes: &[isize], mode: PadMode) -> Result<Tensor> {
    x.pad(sizes, mode)
}

/// `x · weightᵀ + bias`. `x`: `[.., in_features]`, `weight`: `[out_features, in_features]`, `bias`: `[out_features]`.
///
/// # Errors
/// The numbers of features differ.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    x.linear(weight, bias)
}

/// The means of `size[0] × size[1]` windows that cover the image evenly.
///
/// # Errors
/// `x` is not `[batch, channels, height, width]`, or a size is 0.
pub fn adaptive_avg_pool2d(x: &Tensor, size: [usize; 2]) -> Result<Tensor> {
    x.adaptive_avg_pool2d(size)
}

/// `max(x, 0)`, element by element.
///
/// # Errors
/// The result does not fit the memory budget.
pub fn relu(x: &Tensor) -> Result<Tensor> {
    x.relu()
}

/// The hyperbolic tangent, element by element.
///
/// # Errors
/// The result does not fit the memory budget.
pub fn tanh(x: &Tensor) -> Result<Tensor> {
    x.tanh()
}

/// `1 / (1 + exp(−x))`, element by element.
///
/// # Errors
/// The result does not fit the memory budget.
pub fn sigmoid(x: &Tensor) -> Result<Tensor> {
    x.sigmoid()
}

/// Exponentials along `dim`, scaled to the sum 1.
///
/// # Errors
/// `x` has no such dimension.
pub fn softmax(x: &Tensor, dim: isize) -> Result<Tensor> {
    x.softmax(dim)
}

/// The logarithm of [`softmax`], computed without overflow.
///
/// # Errors
/// `x` has no such dimension.
pub fn log_softmax(x: &Tensor, dim: isize) -> Result<Tensor> {
    x.log_softmax(dim)
}

/// Normalizes the last dimensions to mean 0 and variance 1; see [`Tensor::layer_norm`].
///
/// # Errors
/// The last dimensions are not `normalized`, or weight or bias do not have this shape.
pub fn layer_norm(
    x: &Tensor,
    normalized: impl IntoShape,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    x.layer_norm(normalized, weight, bias, eps)
}

/// Normalizes each channel to mean 0 and variance 1; `running` holds the running mean and variance. See
/// [`Tensor::batch_norm`].
///
/// # Errors
/// `x` has no channels, another tensor does not have one element per channel, or a channel has a single value while
/// training.
pub fn batch_norm(
    x: &Tensor,
    running: Option<[&Tensor; 2]>,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    options: BatchNormOptions,
) -> Result<Tensor> {
    x.batch_norm(running, weight, bias, options)
}

/// Sets each element to 0 with probability `p` and scales the others by `1 / (1 − p)`; `x` itself if not `training`.
///
/// # Errors
/// `p` is not in `0..=1`.
pub fn dropout(x: &Tensor, p: f64, training: bool, generator: &Generator) -> Result<Tensor> {
    normalization::check_probability("dropout", p)?;
    if training { x.dropout(p, generator) } else { Ok(x.clone()) }
}

/// The mean cross entropy of scores `[batch, classes]` and classes `[batch]`.
///
/// Other reductions: [`CrossEntropyLoss`](crate::CrossEntropyLoss), or [`Tensor::cross_entropy`]. To ignore a class, as
/// PyTorch does −100 by default: `CrossEntropyLoss::new().ignore_index(-100)`.
///
/// # Errors
/// The shapes do not fit, or a class is out of range.
pub fn cross_entropy(scores: &Tensor, classes: &Tensor<Int>) -> Result<Tensor> {
    scores.cross_entropy(classes, Reduction::Mean)
}

/// The mean negative log likelihood of log probabilities `[batch, classes]` and classes `[batch]`.
///
/// # Errors
/// As [`cross_entropy`].
pub fn nll_loss(log_probabilities: &Tensor, classes: &Tensor<Int>) -> Result<Tensor> {
    log_probabilities.nll_loss(classes, Reduction::Mean)
}

/// The mean squared difference of two tensors of one shape.
///
/// # Errors
/// The shapes differ.
pub fn mse_loss(input: &Tensor, target: &Tensor) -> Result<Tensor> {
    input.mse_loss(target, Reduction::Mean)
}
