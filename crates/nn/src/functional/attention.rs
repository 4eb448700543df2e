//! Attention: means of values, weighted by how well their keys match a query.

use crate::setters::setters;
use pagelock_tensor::{Bool, Error, Generator, Result, Tensor, default_generator};

use super::shared::{constant, wrong_shape};

/// Which keys each query may attend to; broadcast to `[.., queries, keys]`.
///
/// As in PyTorch, true means the opposite in the two places that take a boolean mask: in [`AttentionOptions::mask`] a
/// query *may* attend to the key, in [`MultiheadOptions::attn_mask`](crate::MultiheadOptions::attn_mask) it *must not*.
#[derive(Clone, Copy)]
pub enum AttentionMask<'a> {
    /// Allows or forbids keys; the method that takes the mask says which of them true means.
    Bool(&'a Tensor<Bool>),
    /// Is added to the scores of the keys; −∞ forbids a key.
    Float(&'a Tensor),
}

impl<'a> From<&'a Tensor<Bool>> for AttentionMask<'a> {
    fn from(mask: &'a Tensor<Bool>) -> Self {
        Self::Bool(mask)
    }
}

impl<'a> From<&'a Tensor> for AttentionMask<'a> {
    fn from(mask: &'a Tensor) -> Self {
        Self::Float(mask)
    }
}

/// The settings of [`scaled_dot_product_attention`].
#[derive(Clone, Copy, Default)]
pub struct AttentionOptions<'a> {
    mask: Option<AttentionMask<'a>>,
    is_causal: bool,
    dropout_p: f64,
    scale: Option<f64>,
    generator: Option<&'a Generator>,
}

impl<'a> AttentionOptions<'a> {
    /// Every query attends to every key, without dropout.
    pub fn new() -> Self {
        Self::default()
    }

    fn scale_for(&self, features: usize) -> f64 {
        self.scale.unwrap_or(1.0 / (features.max(1) as f64).sqrt())
    }
}

setters! { AttentionOptions<'a>,
    /// Restricts attention: a `&Tensor<Bool>` is true where a query may attend to a key (the opposite of
    /// [`MultiheadOptions::attn_mask`](crate::MultiheadOptions::attn_mask)), a `&Tensor` is added to the scores.
    mask: impl Into<AttentionMask<'a>> => mask = Some(mask.into());
    /// Whether query `i` attends only to keys 0 to `i`.
    is_causal: bool;
    /// The probability that an attention weight is dropped.
    dropout_p: f64;
    /// The factor of the scores; 1 / √features by default.
    scale: f64 => scale = Some(scale);
    /// The generator that dropout draws from, instead of the default generator.
    generator: &'a Generator => generator = Some(generator);
}

/// softmax(`query` · `key`ᵀ · scale) · `value`.
///
/// - `query`: `[.., queries, features]`
/// - `key`: `[.., keys, features]`
/// - `value`: `[.., keys, value_features]`
/// - result: `[.., queries, value_features]`
///
/// The result is zero for a query that may not attend to any key. Without a mask and dropout, GPUs that support it
/// compute long inputs of half precision in one fused kernel ([`Tensor::fused_attention`]).
///
/// ```
/// use pagelock_nn::functional::{self as F, AttentionOptions};
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::randn([2, 4, 10, 16])?; // batch, heads, words, features
/// let y = F::scaled_dot_product_attention(&x, &x, &x, AttentionOptions::new().is_causal(true))?;
/// assert_eq!(y.dims(), [2, 4, 10, 16]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`] if the shapes do not fit each other, or both a mask and `is_causal` are set.
pub fn scaled_dot_product_attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: AttentionOptions<'_>,
) -> Result<Tensor> {
    if let (None, 0.0, Some(&features)) = (options.mask, options.dropout_p, query.dims().last()) {
        let scale = options.scale_for(features);
        if let Some(result) = query.fused_attention(key, value, options.is_causal, scale)? {
            return Ok(result);
        }
    }
    attention_weights(query, key, options)?.matmul(value)
}

/// The attention weights, `[.., queries, keys]`.
pub(crate) fn attention_weights(query: &Tensor, key: &Tensor, options: AttentionOptions<'_>) -> Result<Tensor> {
    const OP: &str = "scaled_dot_product_attention";
    let (&[.., queries, features], &[.., keys, key_features]) = (query.dims(), key.dims()) else {
        return Err(wrong_shape(OP, "the query", query.shape(), "query and key must be [.., words, features]"));
    };
    if features != key_features {
        let expected = format!("the query is {}, and both need the same number of features", query.shape());
        return Err(wrong_shape(OP, "the key", key.shape(), &expected));
    }
    if options.is_causal && options.mask.is_some() {
        return Err(Error::Argument(format!("{OP}: both a mask and is_causal are given; give one of them")));
    }
    let scale = options.scale_for(features);
    let scores = query.mul_scalar(scale)?.matmul(&key.transpose(-2, -1)?)?;
    let weights = match (options.is_causal, options.mask) {
        (true, _) => {
            let device = scores.device();
            let positions = |count: usize| Tensor::on(&device).arange(0_i64, count as i64, 1);
            let allowed = positions(queries)?.unsqueeze(1)?.ge(&positions(keys)?)?;
            scores.where_cond(&allowed, &constant(&scores, f64::NEG_INFINITY)?)?.softmax(-1)?
        }
        (false, Some(AttentionMask::Bool(mask))) => {
            masked_softmax(&scores.where_cond(mask, &constant(&scores, f64::NEG_INFINITY)?)?)?
        }
        (false, Some(AttentionMask::Float(mask))) => masked_softmax(&scores.add(&mask.to_dtype(scores.dtype())?)?)?,
        (false, None) => scores.softmax(-1)?,
    };
    match options.dropout_p {
        0.0 => Ok(weights),
        p => weights.dropout(p, options.generator.unwrap_or(default_generator())),
    }
}

/// Softmax over the keys; 0 for a query whose keys are all masked out.
fn masked_softmax(scores: &Tensor) -> Result<Tensor> {
    if scores.is_empty() {
        return scores.softmax(-1);
    }
    let largest = scores.detach().max_keepdim(-1)?;
    let has_no_key = largest.eq(&constant(&largest, f64::NEG_INFINITY)?)?;
    let zero = constant(scores, 0.0)?;
    let weights = zero.where_cond(&has_no_key, scores)?.softmax(-1)?;
    constant(&weights, 0.0)?.where_cond(&has_no_key, &weights)
}
