//! [`MultiheadAttention`], and [`TransformerEncoderLayer`] that is made of it.

use super::{Dropout, LayerNorm, Linear, debug_is_display};
use crate::functional::pieces::{choose, constant, signed, wrong_argument, wrong_shape};
use crate::functional::{AttentionMask, AttentionOptions, attention_weights};
use crate::parameter::charged;
use crate::{Forward, Mode, Module, Parameter, Visitor, VisitorMut, functional, init, module_scope};
use pagelock_tensor::{Bool, Generator, Result, Tensor, default_generator};

/// What a [`MultiheadAttention`] is told beside its inputs.
#[derive(Clone, Copy, Default)]
pub struct MultiheadOptions<'a> {
    key_padding_mask: Option<&'a Tensor<Bool>>,
    attn_mask: Option<AttentionMask<'a>>,
    is_causal: bool,
}

impl<'a> MultiheadOptions<'a> {
    /// Every query attends to every key.
    pub fn new() -> Self {
        Self::default()
    }

    /// Which keys are padding, `[batch, keys]`: nobody attends to those where it is true.
    #[must_use]
    pub fn key_padding_mask(self, mask: &'a Tensor<Bool>) -> Self {
        Self { key_padding_mask: Some(mask), ..self }
    }

    /// Which keys each query must not attend to (true, as in PyTorch), or what is added to scores; broadcast to
    /// `[batch, heads, queries, keys]`.
    #[must_use]
    pub fn attn_mask(self, mask: impl Into<AttentionMask<'a>>) -> Self {
        Self { attn_mask: Some(mask.into()), ..self }
    }

    /// Whether query `i` attends to keys up to `i` alone.
    #[must_use]
    pub fn is_causal(self, is_causal: bool) -> Self {
        Self { is_causal, ..self }
    }

    /// All masks as what is added to the scores of `[batch, heads, queries, keys]`, if there are any.
    fn added(&self, like: &Tensor, [batch, queries, keys]: [usize; 3]) -> Result<Option<Tensor>> {
        let (device, zero) = (like.device(), constant(like, 0.0)?);
        let forbid = |mask: &Tensor<Bool>| choose(mask, &constant(like, f64::NEG_INFINITY)?, &zero);
        let mut all: Vec<Tensor> = Vec::new();
        if let Some(mask) = self.key_padding_mask {
            if mask.dims() != [batch, keys] {
                let expected = format!("it must be [{batch}, {keys}], one for each key");
                return Err(wrong_shape("MultiheadAttention", "key_padding_mask", mask.shape(), &expected));
            }
            all.push(forbid(&mask.unsqueeze(1)?.unsqueeze(1)?)?);
        }
        match self.attn_mask {
            Some(AttentionMask::Allowed(mask)) => all.push(forbid(mask)?),
            Some(AttentionMask::Added(mask)) => all.push(mask.to_dtype(like.dtype())?),
            None => {}
        }
        if self.is_causal {
            let place = |count: usize| Tensor::on(&device).arange(0_i64, count as i64, 1);
            all.push(forbid(&place(queries)?.unsqueeze(1)?.lt(&place(keys)?)?)?);
        }
        let mut all = all.into_iter();
        let first = all.next().map(Ok);
        all.fold(first, |sum: Option<Result<Tensor>>, mask| sum.map(|sum| sum?.add(&mask))).transpose()
    }
}

/// Attention of several heads (Vaswani et al., 2017, <https://arxiv.org/abs/1706.03762>), as PyTorch's
/// `nn.MultiheadAttention`: each has its own part of the features.
///
/// - `query`: `[queries, batch, embed_dim]`; `key` and `value`: `[keys, batch, embed_dim]`; with
///   [`batch_first`](Self::batch_first) the batch comes first
/// - output: the shape of `query`, and the weights of keys
///
/// Projections of queries, keys and values are one parameter, whose rows begin with Glorot's uniform numbers.
///
/// # Examples
/// ```
/// use pagelock_nn::{MultiheadAttention, MultiheadOptions};
/// use pagelock_tensor::Tensor;
///
/// let attention = MultiheadAttention::new(16, 4)?.batch_first(true);
/// let x = Tensor::randn([2, 10, 16])?; // batch, words, features
/// let (y, weights) = attention.forward(&x, &x, &x, MultiheadOptions::new().is_causal(true))?;
/// assert_eq!((y.dims(), weights.dims()), (&[2, 10, 16][..], &[2, 10, 10][..]));
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct MultiheadAttention {
    /// `[3 · embed_dim, embed_dim]`: of queries, keys and values.
    pub in_proj_weight: Parameter,
    /// `[3 · embed_dim]`, if there is one; it begins as zeros.
    pub in_proj_bias: Option<Parameter>,
    /// From the heads to the output.
    pub out_proj: OutProjection,
    mode: Mode,
    #[module(skip)]
    num_heads: usize,
    #[module(skip)]
    dropout: f64,
    #[module(skip)]
    batch_first: bool,
}

/// The [`Linear`] behind the heads, which PyTorch prints under a name of its own.
pub struct OutProjection(Linear);

impl std::ops::Deref for OutProjection {
    type Target = Linear;

    fn deref(&self) -> &Linear {
        &self.0
    }
}

impl Module for OutProjection {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.0.visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.0.visit_mut(visitor);
    }

    fn title(&self) -> String {
        "NonDynamicallyQuantizableLinear".to_owned()
    }

    fn details(&self) -> String {
        self.0.details()
    }
}

impl MultiheadAttention {
    /// Attention with weights from the default generator.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if `num_heads` does not divide `embed_dim`; the weights do not fit
    /// the memory budget.
    pub fn new(embed_dim: usize, num_heads: usize) -> Result<Self> {
        Self::new_with(embed_dim, num_heads, default_generator())
    }

    /// Attention with weights from `generator`.
    ///
    /// # Errors
    /// As [`MultiheadAttention::new`].
    pub fn new_with(embed_dim: usize, num_heads: usize, generator: &Generator) -> Result<Self> {
        if embed_dim.checked_rem(num_heads) != Some(0) || embed_dim == 0 {
            let expected = format!("a divisor of embed_dim, which is {embed_dim}");
            return Err(wrong_argument("MultiheadAttention", "num_heads", num_heads, &expected));
        }
        let _charged = charged();
        let weight = Tensor::zeros([3 * embed_dim, embed_dim])?;
        init::xavier_uniform_(&weight, 1.0, generator)?;
        let out = Linear::new_with(embed_dim, embed_dim, generator)?;
        out.bias.as_deref().map_or(Ok(()), init::zeros_)?;
        Ok(Self {
            in_proj_weight: Parameter::new(weight),
            in_proj_bias: Some(Parameter::new(Tensor::zeros(3 * embed_dim)?)),
            out_proj: OutProjection(out),
            mode: Mode::default(),
            num_heads,
            dropout: 0.0,
            batch_first: false,
        })
    }

    /// The layer without biases.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.in_proj_bias = None;
        self.out_proj.0 = self.out_proj.0.without_bias();
        self
    }

    /// With which probability a weight of a key is dropped while training; 0 otherwise.
    #[must_use]
    pub fn dropout(mut self, p: f64) -> Self {
        self.dropout = p;
        self
    }

    /// Whether inputs and output are `[batch, words, embed_dim]`; they are `[words, batch, embed_dim]` otherwise.
    #[must_use]
    pub fn batch_first(mut self, batch_first: bool) -> Self {
        self.batch_first = batch_first;
        self
    }

    /// The output, and the weights of keys, averaged over heads: `[batch, queries, keys]`.
    ///
    /// One sample comes without the batch.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes do not fit each other.
    pub fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        options: MultiheadOptions<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let _scope = module_scope(self);
        if query.rank() == 2 {
            let batch_dim = if self.batch_first { 0 } else { 1 };
            let [query, key, value] = [query, key, value].map(|x| x.unsqueeze(batch_dim));
            let (y, weights) = self.of_batch([&query?, &key?, &value?], options)?;
            return Ok((y.squeeze(batch_dim)?, weights.squeeze(0)?));
        }
        self.of_batch([query, key, value], options)
    }

    fn of_batch(&self, inputs: [&Tensor; 3], options: MultiheadOptions<'_>) -> Result<(Tensor, Tensor)> {
        self.check(inputs)?;
        let [query, key, value] = self.heads(inputs)?;
        let (&[batch, _, queries, _], &[_, _, keys, _]) = (query.dims(), key.dims()) else {
            unreachable!("heads gave {} and {}", query.shape(), key.shape())
        };
        let added = options.added(&query, [batch, queries, keys])?;
        let dropout_p = if self.mode.is_training() { self.dropout } else { 0.0 };
        let attention = AttentionOptions::new().dropout_p(dropout_p);
        let attention = added.as_ref().map_or(attention, |added| attention.mask(added));
        let weights = attention_weights(&query, &key, attention)?;
        let width = [batch, queries, self.in_proj_weight.dims()[1]].map(signed);
        let joined = weights.matmul(&value)?.transpose(1, 2)?.reshape(width)?;
        let y = self.out_proj.forward(&joined)?;
        let y = if self.batch_first { y } else { y.transpose(0, 1)? };
        Ok((y, weights.mean(1)?))
    }

    fn check(&self, [query, key, value]: [&Tensor; 3]) -> Result<()> {
        let (width, batch_dim) = (self.in_proj_weight.dims()[1], if self.batch_first { 0 } else { 1 });
        for (operand, x) in [("the query", query), ("the key", key), ("the value", value)] {
            if x.rank() != 3 || x.dims()[2] != width || x.dims()[batch_dim] != query.dims()[batch_dim] {
                let order = if self.batch_first { "[batch, words" } else { "[words, batch" };
                let expected = format!("it must be {order}, {width}] with one batch for all; transpose or reshape it");
                return Err(wrong_shape("MultiheadAttention", operand, x.shape(), &expected));
            }
        }
        if key.shape() != value.shape() {
            let expected = format!("the key is {}, and both must have one shape", key.shape());
            return Err(wrong_shape("MultiheadAttention", "the value", value.shape(), &expected));
        }
        Ok(())
    }

    /// Queries, keys and values: `[batch, heads, words, features of a head]`.
    fn heads(&self, [query, key, value]: [&Tensor; 3]) -> Result<[Tensor; 3]> {
        let width = self.in_proj_weight.dims()[1];
        let apart = |x: Tensor| {
            let x = if self.batch_first { x } else { x.transpose(0, 1)? };
            x.unflatten(2, [self.num_heads, width / self.num_heads])?.transpose(1, 2)
        };
        let projected = |x: &Tensor, start: usize, count: usize| {
            let bias = self.in_proj_bias.as_ref().map(|bias| bias.narrow(0, start, count)).transpose()?;
            functional::linear(x, &self.in_proj_weight.narrow(0, start, count)?, bias.as_ref())
        };
        if std::ptr::eq(query, key) && std::ptr::eq(key, value) {
            let all = projected(query, 0, 3 * width)?; // one product
            let part = |place: usize| apart(all.narrow(2, place * width, width)?);
            return Ok([part(0)?, part(1)?, part(2)?]);
        }
        let part = |x: &Tensor, place: usize| apart(projected(x, place * width, width)?);
        Ok([part(query, 0)?, part(key, 1)?, part(value, 2)?])
    }
}

debug_is_display!(MultiheadAttention);

/// Attention of a sequence to itself and two linear layers, each added to its input and normalized, as PyTorch's
/// `nn.TransformerEncoderLayer` with ReLU.
///
/// - input: `[words, batch, d_model]`, or with [`batch_first`](Self::batch_first) `[batch, words, d_model]`
/// - output: the same
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, TransformerEncoderLayer};
/// use pagelock_tensor::Tensor;
///
/// let layer = TransformerEncoderLayer::new(16, 4, 32)?.batch_first(true);
/// assert_eq!(layer.forward(&Tensor::randn([2, 10, 16])?)?.dims(), [2, 10, 16]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct TransformerEncoderLayer {
    /// The attention.
    pub self_attn: MultiheadAttention,
    /// To the width between the linear layers.
    pub linear1: Linear,
    /// Between the linear layers.
    pub dropout: Dropout,
    /// Back.
    pub linear2: Linear,
    /// Of the attention.
    pub norm1: LayerNorm,
    /// Of the linear layers.
    pub norm2: LayerNorm,
    /// Behind the attention.
    pub dropout1: Dropout,
    /// Behind the linear layers.
    pub dropout2: Dropout,
    #[module(skip)]
    norm_first: bool,
}

impl TransformerEncoderLayer {
    /// A layer with weights from the default generator and dropout 0.1; PyTorch's default for `dim_feedforward` is 2048.
    ///
    /// # Errors
    /// As [`MultiheadAttention::new`].
    pub fn new(d_model: usize, num_heads: usize, dim_feedforward: usize) -> Result<Self> {
        Ok(Self {
            self_attn: MultiheadAttention::new(d_model, num_heads)?.dropout(0.1),
            linear1: Linear::new(d_model, dim_feedforward)?,
            dropout: Dropout::new(0.1),
            linear2: Linear::new(dim_feedforward, d_model)?,
            norm1: LayerNorm::new(d_model)?,
            norm2: LayerNorm::new(d_model)?,
            dropout1: Dropout::new(0.1),
            dropout2: Dropout::new(0.1),
            norm_first: false,
        })
    }

    /// With which probability weights and outputs are dropped while training.
    #[must_use]
    pub fn dropout(mut self, p: f64) -> Self {
        self.self_attn = self.self_attn.dropout(p);
        for layer in [&mut self.dropout, &mut self.dropout1, &mut self.dropout2] {
            *layer = Dropout::new(p);
        }
        self
    }

    /// Whether input and output are `[batch, words, d_model]`.
    #[must_use]
    pub fn batch_first(mut self, batch_first: bool) -> Self {
        self.self_attn = self.self_attn.batch_first(batch_first);
        self
    }

    /// Whether inputs are normalized, instead of the sums.
    #[must_use]
    pub fn norm_first(mut self, norm_first: bool) -> Self {
        self.norm_first = norm_first;
        self
    }

    /// The output where some keys must not be attended to.
    ///
    /// # Errors
    /// As [`MultiheadAttention::forward`].
    pub fn forward_masked(&self, x: &Tensor, options: MultiheadOptions<'_>) -> Result<Tensor> {
        let _scope = module_scope(self);
        let attended = |x: &Tensor| self.dropout1.forward(&self.self_attn.forward(x, x, x, options)?.0);
        let fed = |x: &Tensor| {
            let hidden = self.dropout.forward(&self.linear1.forward(x)?.relu()?)?;
            self.dropout2.forward(&self.linear2.forward(&hidden)?)
        };
        if self.norm_first {
            let x = x.add(&attended(&self.norm1.forward(x)?)?)?;
            return x.add(&fed(&self.norm2.forward(&x)?)?);
        }
        let x = self.norm1.forward(&x.add(&attended(x)?)?)?;
        self.norm2.forward(&x.add(&fed(&x)?)?)
    }
}

impl Forward for TransformerEncoderLayer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_masked(x, MultiheadOptions::new())
    }
}

debug_is_display!(TransformerEncoderLayer);
