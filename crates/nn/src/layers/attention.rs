//! [`MultiheadAttention`], and [`TransformerEncoderLayer`], which contains it.

use super::{Dropout, LayerNorm, Linear, debug_is_display};
use crate::functional::shared::{constant, signed, size, wrong_argument, wrong_shape};
use crate::functional::{AttentionMask, AttentionOptions, attention_weights};
use crate::parameter::charged;
use crate::setters::setters;
use crate::{Forward, Mode, Module, Parameter, Visitor, VisitorMut, functional, init, module_scope};
use pagelock_tensor::{Bool, Generator, Result, Tensor, default_generator};

/// The masks of a call of [`MultiheadAttention`].
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

    fn has_no_masks(&self) -> bool {
        self.key_padding_mask.is_none() && self.attn_mask.is_none()
    }

    /// The sum of all masks, to be added to scores of `[batch, heads, queries, keys]`, if there are any.
    fn summed(&self, like: &Tensor, [batch, queries, keys]: [usize; 3]) -> Result<Option<Tensor>> {
        let (device, zero) = (like.device(), constant(like, 0.0)?);
        let forbid = |mask: &Tensor<Bool>| constant(like, f64::NEG_INFINITY)?.where_cond(mask, &zero);
        let mut all: Vec<Tensor> = Vec::new();
        if let Some(mask) = self.key_padding_mask {
            if mask.dims() != [batch, keys] {
                let expected = format!("it must be [{batch}, {keys}], one for each key");
                return Err(wrong_shape("MultiheadAttention", "key_padding_mask", mask.shape(), &expected));
            }
            all.push(forbid(&mask.unsqueeze(1)?.unsqueeze(1)?)?);
        }
        match self.attn_mask {
            Some(AttentionMask::Bool(mask)) => all.push(forbid(mask)?),
            Some(AttentionMask::Float(mask)) => all.push(mask.to_dtype(like.dtype())?),
            None => {}
        }
        if self.is_causal {
            let positions = |count: usize| Tensor::on(&device).arange(0_i64, count as i64, 1);
            all.push(forbid(&positions(queries)?.unsqueeze(1)?.lt(&positions(keys)?)?)?);
        }
        let mut all = all.into_iter();
        let first = all.next().map(Ok);
        all.fold(first, |sum: Option<Result<Tensor>>, mask| sum.map(|sum| sum?.add(&mask))).transpose()
    }
}

setters! { MultiheadOptions<'a>,
    /// Which keys are padding, `[batch, keys]`: no query attends to a key where the mask is true.
    key_padding_mask: &'a Tensor<Bool> => key_padding_mask = Some(key_padding_mask);
    /// A boolean mask that is true where a query must not attend to a key, as in PyTorch (the opposite of
    /// [`AttentionOptions::mask`]), or a float mask that is added to the scores; broadcast to
    /// `[batch, heads, queries, keys]`.
    attn_mask: impl Into<AttentionMask<'a>> => attn_mask = Some(attn_mask.into());
    /// Whether query `i` attends only to keys 0 to `i`.
    is_causal: bool;
}

/// The attention of all heads: from query, key and value, `[batch, heads, words, features of a head]`, to the result.
type Attend<'a> = dyn FnMut([&Tensor; 3], AttentionOptions<'_>) -> Result<Tensor> + 'a;

/// Multi-head attention (Vaswani et al., 2017, <https://arxiv.org/abs/1706.03762>), as PyTorch's
/// `nn.MultiheadAttention`: each head has its own part of the features.
///
/// - `query`: `[queries, batch, embed_dim]`; `key` and `value`: `[keys, batch, embed_dim]`; with
///   [`batch_first`](Self::batch_first) the batch comes first
/// - output: a tensor of the shape of `query`, and the attention weights
///
/// The projections of queries, keys and values are one parameter, initialized with Glorot's uniform numbers. If keys
/// or values have another width ([`with_kdim_vdim`](Self::with_kdim_vdim)), they are three parameters.
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
    /// `[3 · embed_dim, embed_dim]`: the projections of queries, keys and values, if these have the same width.
    pub in_proj_weight: Option<Parameter>,
    /// `[embed_dim, embed_dim]`: the projection of queries, if there is no `in_proj_weight`.
    pub q_proj_weight: Option<Parameter>,
    /// `[embed_dim, kdim]`: the projection of keys, if there is no `in_proj_weight`.
    pub k_proj_weight: Option<Parameter>,
    /// `[embed_dim, vdim]`: the projection of values, if there is no `in_proj_weight`.
    pub v_proj_weight: Option<Parameter>,
    /// `[3 · embed_dim]`, if there is one; initialized to zeros.
    pub in_proj_bias: Option<Parameter>,
    /// `[1, 1, embed_dim]`: a learned key after those of each sample, if there is one
    /// ([`add_bias_kv`](Self::add_bias_kv)).
    pub bias_k: Option<Parameter>,
    /// `[1, 1, embed_dim]`: the value of `bias_k`.
    pub bias_v: Option<Parameter>,
    /// The projection from the heads to the output.
    pub out_proj: OutProjection,
    mode: Mode,
    #[module(skip)]
    num_heads: usize,
    #[module(skip)]
    dropout: f64,
    #[module(skip)]
    batch_first: bool,
    #[module(skip)]
    add_zero_attn: bool,
}

/// The [`Linear`] after the heads, which PyTorch prints under a name of its own.
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

setters! { MultiheadAttention,
    /// Whether a key and a value of zeros follow all others; off by default. Every query may attend to the key, which
    /// has its own column in the attention weights.
    add_zero_attn: bool;
    /// The probability that an attention weight is dropped while training; 0 by default.
    dropout: f64;
    /// Whether inputs and output are `[batch, words, embed_dim]`; `[words, batch, embed_dim]` by default.
    batch_first: bool;
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
        Self::with_kdim_vdim_with(embed_dim, num_heads, [embed_dim; 2], generator)
    }

    /// Attention to keys of `kdim` features and values of `vdim`, with weights from the default generator.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{MultiheadAttention, MultiheadOptions};
    /// use pagelock_tensor::Tensor;
    ///
    /// let attention = MultiheadAttention::with_kdim_vdim(16, 4, 6, 10)?.batch_first(true);
    /// let (query, key, value) = (Tensor::randn([2, 5, 16])?, Tensor::randn([2, 7, 6])?, Tensor::randn([2, 7, 10])?);
    /// let (y, weights) = attention.forward(&query, &key, &value, MultiheadOptions::new())?;
    /// assert_eq!((y.dims(), weights.dims()), (&[2, 5, 16][..], &[2, 5, 7][..]));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`MultiheadAttention::new`].
    pub fn with_kdim_vdim(embed_dim: usize, num_heads: usize, kdim: usize, vdim: usize) -> Result<Self> {
        Self::with_kdim_vdim_with(embed_dim, num_heads, [kdim, vdim], default_generator())
    }

    /// As [`with_kdim_vdim`](Self::with_kdim_vdim), with weights from `generator`.
    ///
    /// # Errors
    /// As [`MultiheadAttention::new`].
    pub fn with_kdim_vdim_with(
        embed_dim: usize,
        num_heads: usize,
        [kdim, vdim]: [usize; 2],
        generator: &Generator,
    ) -> Result<Self> {
        if embed_dim.checked_rem(num_heads) != Some(0) || embed_dim == 0 {
            let expected = format!("a divisor of embed_dim, which is {embed_dim}");
            return Err(wrong_argument("MultiheadAttention", "num_heads", num_heads, &expected));
        }
        let _charged = charged();
        let weight = |rows: usize, width: usize| -> Result<Option<Parameter>> {
            let weight = Tensor::zeros([rows, width])?;
            init::xavier_uniform_(&weight, 1.0, generator)?;
            Ok(Some(Parameter::new(weight)))
        };
        let (packed, separate) = if [kdim, vdim] == [embed_dim; 2] {
            (weight(embed_dim.saturating_mul(3), embed_dim)?, [None, None, None])
        } else {
            (None, [weight(embed_dim, embed_dim)?, weight(embed_dim, kdim)?, weight(embed_dim, vdim)?])
        };
        let [q_proj_weight, k_proj_weight, v_proj_weight] = separate;
        let out = Linear::new_with(embed_dim, embed_dim, generator)?;
        out.bias.as_deref().map_or(Ok(()), init::zeros_)?;
        Ok(Self {
            in_proj_weight: packed,
            q_proj_weight,
            k_proj_weight,
            v_proj_weight,
            in_proj_bias: Some(Parameter::new(Tensor::zeros(embed_dim.saturating_mul(3))?)),
            bias_k: None,
            bias_v: None,
            out_proj: OutProjection(out),
            mode: Mode::default(),
            num_heads,
            dropout: 0.0,
            batch_first: false,
            add_zero_attn: false,
        })
    }

    /// The layer with a learned key and value after those of each sample, initialized with Glorot's normal numbers
    /// from the default generator. Every query may attend to the key, which has its own column in the attention
    /// weights.
    ///
    /// # Errors
    /// They do not fit the memory budget.
    pub fn add_bias_kv(self) -> Result<Self> {
        self.add_bias_kv_with(default_generator())
    }

    /// [`add_bias_kv`](Self::add_bias_kv) with numbers from `generator`.
    ///
    /// # Errors
    /// They do not fit the memory budget.
    pub fn add_bias_kv_with(mut self, generator: &Generator) -> Result<Self> {
        let _charged = charged();
        for bias in [&mut self.bias_k, &mut self.bias_v] {
            let numbers = Tensor::zeros([1, 1, size(&self.out_proj.weight, 0)])?;
            init::xavier_normal_(&numbers, 1.0, generator)?;
            *bias = Some(Parameter::new(numbers));
        }
        Ok(self)
    }

    /// The layer without the biases of its projections; those of [`add_bias_kv`](Self::add_bias_kv) stay.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.in_proj_bias = None;
        self.out_proj.0 = self.out_proj.0.without_bias();
        self
    }

    /// The output, and the attention weights averaged over heads: `[batch, queries, keys]`. The keys of
    /// [`add_bias_kv`](Self::add_bias_kv) and [`add_zero_attn`](Self::add_zero_attn) come last; masks do not include
    /// them. A query that may attend to no key has weights of 0, where PyTorch's are NaN.
    ///
    /// One sample may come without `batch`.
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
        let mut of_keys = None;
        let y = self.run([query, key, value], options, &mut |[query, key, value], attention| {
            let weights = attention_weights(query, key, attention)?;
            of_keys = Some(weights.mean(1)?);
            weights.matmul(value)
        })?;
        let weights = of_keys.unwrap_or_else(|| unreachable!("`attend` sets the weights"));
        Ok((y, if query.rank() == 2 { weights.squeeze(0)? } else { weights }))
    }

    /// The output alone, which is faster: PyTorch's `need_weights = False`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    ///
    /// ```
    /// use pagelock_nn::{MultiheadAttention, MultiheadOptions};
    /// use pagelock_tensor::Tensor;
    ///
    /// let attention = MultiheadAttention::new(16, 4)?.batch_first(true);
    /// let x = Tensor::randn([2, 10, 16])?;
    /// assert_eq!(attention.attend(&x, &x, &x, MultiheadOptions::new())?.dims(), [2, 10, 16]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn attend(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        options: MultiheadOptions<'_>,
    ) -> Result<Tensor> {
        let _scope = module_scope(self);
        self.run([query, key, value], options, &mut |[query, key, value], attention| {
            functional::scaled_dot_product_attention(query, key, value, attention)
        })
    }

    fn run(&self, inputs: [&Tensor; 3], options: MultiheadOptions<'_>, attend: &mut Attend<'_>) -> Result<Tensor> {
        if inputs[0].rank() != 2 {
            return self.run_batch(inputs, options, attend);
        }
        let batch_dim = if self.batch_first { 0 } else { 1 };
        let [query, key, value] = inputs.map(|x| x.unsqueeze(batch_dim));
        self.run_batch([&query?, &key?, &value?], options, attend)?.squeeze(batch_dim)
    }

    fn run_batch(
        &self,
        inputs: [&Tensor; 3],
        options: MultiheadOptions<'_>,
        attend: &mut Attend<'_>,
    ) -> Result<Tensor> {
        self.check(inputs)?;
        let [query, key, value] = self.heads(inputs)?;
        let (&[batch, _, queries, _], &[_, _, keys, _]) = (query.dims(), key.dims()) else {
            unreachable!("heads gave {} and {}", query.shape(), key.shape())
        };
        let dropout_p = if self.mode.is_training() { self.dropout } else { 0.0 };
        let attention = AttentionOptions::new().dropout_p(dropout_p);
        let is_plain = self.bias_k.is_none() && !self.add_zero_attn && options.has_no_masks();
        if is_plain {
            return self.merge_heads(attend([&query, &key, &value], attention.is_causal(options.is_causal))?);
        }
        let mask = options.summed(&query, [batch, queries, keys])?;
        let key = self.with_extra(&key, self.bias_k.as_ref())?;
        let value = self.with_extra(&value, self.bias_v.as_ref())?;
        let n_extra = key.dims()[2] - keys;
        let mask = mask.map(|mask| if n_extra == 0 { Ok(mask) } else { extended(&mask, keys, n_extra) }).transpose()?;
        let attention = mask.as_ref().map_or(attention, |mask| attention.mask(mask));
        self.merge_heads(attend([&query, &key, &value], attention)?)
    }

    /// The output for the results of the heads, `[batch, heads, queries, features of a head]`.
    fn merge_heads(&self, heads: Tensor) -> Result<Tensor> {
        let &[batch, _, queries, _] = heads.dims() else { unreachable!("heads gave {}", heads.shape()) };
        let width = [batch, queries, size(&self.out_proj.weight, 0)].map(signed);
        let y = self.out_proj.forward(&heads.transpose(1, 2)?.reshape(width)?)?;
        if self.batch_first { Ok(y) } else { y.transpose(0, 1) }
    }

    /// How many features queries, keys and values have.
    fn widths(&self) -> [usize; 3] {
        let embed_dim = size(&self.out_proj.weight, 0);
        [&self.q_proj_weight, &self.k_proj_weight, &self.v_proj_weight]
            .map(|weight| weight.as_ref().map_or(embed_dim, |weight| size(weight, 1)))
    }

    fn check(&self, [query, key, value]: [&Tensor; 3]) -> Result<()> {
        let batch_dim = if self.batch_first { 0 } else { 1 };
        let inputs = [("the query", query), ("the key", key), ("the value", value)];
        for ((operand, x), width) in inputs.into_iter().zip(self.widths()) {
            if x.rank() != 3 || x.dims()[2] != width || x.dims()[batch_dim] != query.dims()[batch_dim] {
                let order = if self.batch_first { "[batch, words" } else { "[words, batch" };
                let expected = format!("it must be {order}, {width}] with one batch size; transpose or reshape it");
                return Err(wrong_shape("MultiheadAttention", operand, x.shape(), &expected));
            }
        }
        if key.dims()[..2] != value.dims()[..2] {
            let expected = format!("the key is {}, and both need the same number of words", key.shape());
            return Err(wrong_shape("MultiheadAttention", "the value", value.shape(), &expected));
        }
        Ok(())
    }

    /// The projected queries, keys and values: `[batch, heads, words, features of a head]`.
    fn heads(&self, [query, key, value]: [&Tensor; 3]) -> Result<[Tensor; 3]> {
        let width = size(&self.out_proj.weight, 0);
        let split_heads = |x: Tensor| {
            let x = if self.batch_first { x } else { x.transpose(0, 1)? };
            x.unflatten(2, [self.num_heads, width / self.num_heads])?.transpose(1, 2)
        };
        let bias = |start: usize, count: usize| {
            self.in_proj_bias.as_ref().map(|bias| bias.narrow(0, start, count)).transpose()
        };
        let Some(packed) = &self.in_proj_weight else {
            let part = |x: &Tensor, weight: &Option<Parameter>, index: usize| {
                let weight = weight.as_deref().ok_or_else(|| {
                    let expected = "replaced by three weights: set q_proj_weight, k_proj_weight and v_proj_weight";
                    wrong_argument("MultiheadAttention", "in_proj_weight", "None", expected)
                })?;
                split_heads(functional::linear(x, weight, bias(index * width, width)?.as_ref())?)
            };
            let query = part(query, &self.q_proj_weight, 0)?;
            return Ok([query, part(key, &self.k_proj_weight, 1)?, part(value, &self.v_proj_weight, 2)?]);
        };
        let projected = |x: &Tensor, start: usize, count: usize| {
            functional::linear(x, &packed.narrow(0, start, count)?, bias(start, count)?.as_ref())
        };
        if std::ptr::eq(query, key) && std::ptr::eq(key, value) {
            let all = projected(query, 0, 3 * width)?; // one product
            let part = |index: usize| split_heads(all.narrow(2, index * width, width)?);
            return Ok([part(0)?, part(1)?, part(2)?]);
        }
        let part = |x: &Tensor, index: usize| split_heads(projected(x, index * width, width)?);
        Ok([part(query, 0)?, part(key, 1)?, part(value, 2)?])
    }

    /// Keys or values, `[batch, heads, words, features of a head]`, followed by `bias` and the zeros of
    /// `add_zero_attn`.
    fn with_extra(&self, x: &Tensor, bias: Option<&Parameter>) -> Result<Tensor> {
        let &[batch, heads, _, features] = x.dims() else { unreachable!("heads gave {}", x.shape()) };
        let mut parts = vec![x.clone()];
        if let Some(bias) = bias {
            let bias = bias.as_tensor().to_dtype(x.dtype())?.reshape([1, signed(heads), 1, signed(features)])?;
            parts.push(bias.expand([batch, heads, 1, features])?);
        }
        if self.add_zero_attn {
            parts.push(Tensor::on(&x.device()).of(x.dtype()).zeros([batch, heads, 1, features])?);
        }
        if parts.len() == 1 { Ok(x.clone()) } else { Tensor::cat(&parts, 2) }
    }
}

/// The mask that is added to scores of `keys` keys, extended by 0 for `n_extra` keys after them.
fn extended(mask: &Tensor, keys: usize, n_extra: usize) -> Result<Tensor> {
    let zeros = |size: &[usize]| Tensor::on(&mask.device()).of(mask.dtype()).zeros(size);
    let mask = mask.add(&zeros(&[keys])?)?; // a mask may have one column for all keys
    let mut dims = mask.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = n_extra;
    }
    Tensor::cat(&[&mask, &zeros(&dims)?], -1)
}

debug_is_display!(MultiheadAttention);

/// Self-attention, then two linear layers with ReLU, each with a residual connection and a layer norm, as PyTorch's
/// `nn.TransformerEncoderLayer`.
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
    /// The self-attention.
    pub self_attn: MultiheadAttention,
    /// The first linear layer, to `dim_feedforward` features.
    pub linear1: Linear,
    /// The dropout between the linear layers.
    pub dropout: Dropout,
    /// The second linear layer, back to `d_model` features.
    pub linear2: Linear,
    /// The norm of the attention.
    pub norm1: LayerNorm,
    /// The norm of the linear layers.
    pub norm2: LayerNorm,
    /// The dropout after the attention.
    pub dropout1: Dropout,
    /// The dropout after the linear layers.
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

    /// The probability that attention weights and outputs are dropped while training.
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

    /// The output with masks for the attention.
    ///
    /// # Errors
    /// As [`MultiheadAttention::forward`].
    pub fn forward_masked(&self, x: &Tensor, options: MultiheadOptions<'_>) -> Result<Tensor> {
        let _scope = module_scope(self);
        let attend = |x: &Tensor| self.dropout1.forward(&self.self_attn.attend(x, x, x, options)?);
        let feed = |x: &Tensor| feed_forward(x, [&self.linear1, &self.linear2], [&self.dropout, &self.dropout2]);
        if self.norm_first {
            let x = x.add(&attend(&self.norm1.forward(x)?)?)?;
            return x.add(&feed(&self.norm2.forward(&x)?)?);
        }
        let x = self.norm1.forward(&x.add(&attend(x)?)?)?;
        self.norm2.forward(&x.add(&feed(&x)?)?)
    }
}

setters! { TransformerEncoderLayer,
    /// Whether the norms apply to the inputs of attention and linear layers, instead of the residual sums.
    norm_first: bool;
}

/// Two linear layers with a ReLU between them and a dropout after each.
pub(super) fn feed_forward(x: &Tensor, linear: [&Linear; 2], dropout: [&Dropout; 2]) -> Result<Tensor> {
    let hidden = dropout[0].forward(&linear[0].forward(x)?.relu()?)?;
    dropout[1].forward(&linear[1].forward(&hidden)?)
}

impl Forward for TransformerEncoderLayer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_masked(x, MultiheadOptions::new())
    }
}

debug_is_display!(TransformerEncoderLayer);
