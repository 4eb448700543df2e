//! Transformers (Vaswani et al., 2017, <https://arxiv.org/abs/1706.03762>): [`TransformerEncoder`],
//! [`TransformerDecoder`] and [`Transformer`].

use super::attention::feed_forward;
use super::sequential::in_layer;
use super::{
    Dropout, LayerNorm, Linear, MultiheadAttention, MultiheadOptions, TransformerEncoderLayer, debug_is_display,
};
use crate::setters::setters;
use crate::{Forward, Module, module_scope};
use pagelock_tensor::{Device, Result, Tensor};

/// Encoder layers one after the other, as PyTorch's `nn.TransformerEncoder`.
///
/// - input: `[words, batch, d_model]`, or `[batch, words, d_model]` with layers that are `batch_first`
/// - output: the same
///
/// ```
/// use pagelock_nn::{Forward, TransformerEncoder, TransformerEncoderLayer};
/// # use pagelock_tensor::Tensor;
/// let encoder = TransformerEncoder::new(2, || TransformerEncoderLayer::new(16, 4, 32))?;
/// assert_eq!(encoder.forward(&Tensor::randn([10, 2, 16])?)?.dims(), [10, 2, 16]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct TransformerEncoder {
    /// The layers.
    pub layers: Vec<TransformerEncoderLayer>,
    /// The norm of the output, if there is one.
    pub norm: Option<LayerNorm>,
}

impl TransformerEncoder {
    /// `num_layers` layers, each created by a call of `layer`. PyTorch copies one layer instead, so all its layers
    /// start with the same weights.
    ///
    /// # Errors
    /// Those of `layer`.
    pub fn new(num_layers: usize, mut layer: impl FnMut() -> Result<TransformerEncoderLayer>) -> Result<Self> {
        Ok(Self { layers: layers(num_layers, &mut layer)?, norm: None })
    }

    /// The output with masks for the attention.
    ///
    /// # Errors
    /// As [`MultiheadAttention::forward`].
    pub fn forward_masked(&self, x: &Tensor, options: MultiheadOptions<'_>) -> Result<Tensor> {
        let _scope = module_scope(self);
        let y = folded(&self.layers, x, |layer, x| layer.forward_masked(x, options))?;
        normalized(y, self.norm.as_ref())
    }
}

setters! { TransformerEncoder,
    /// With a norm of the output.
    norm: LayerNorm => norm = Some(norm);
}

fn layers<L>(count: usize, layer: &mut dyn FnMut() -> Result<L>) -> Result<Vec<L>> {
    (0..count).map(|_| layer()).collect()
}

/// The output of layers one after the other. An error names its layer.
fn folded<L: Module>(layers: &[L], x: &Tensor, forward: impl Fn(&L, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    layers.iter().enumerate().try_fold(x.clone(), |x, (position, layer)| {
        forward(layer, &x).map_err(|error| in_layer(error, format_args!("layers.{position}"), layer))
    })
}

fn normalized(y: Tensor, norm: Option<&LayerNorm>) -> Result<Tensor> {
    norm.map_or(Ok(y.clone()), |norm| norm.forward(&y))
}

impl Forward for TransformerEncoder {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_masked(x, MultiheadOptions::new())
    }
}

debug_is_display!(TransformerEncoder);

/// The masks of a decoder: for its own words (`target`), and for the words of the encoder (`memory`).
#[derive(Clone, Copy, Default)]
pub struct DecoderMasks<'a> {
    /// `tgt_mask`, `tgt_key_padding_mask` and `tgt_is_causal` of PyTorch.
    pub target: MultiheadOptions<'a>,
    /// `memory_mask`, `memory_key_padding_mask` and `memory_is_causal` of PyTorch.
    pub memory: MultiheadOptions<'a>,
}

/// Self-attention, attention to the output of an encoder, then two linear layers with ReLU, each with a residual
/// connection and a layer norm, as PyTorch's `nn.TransformerDecoderLayer`.
///
/// - inputs: target and memory, `[words, batch, d_model]`, or with [`batch_first`](Self::batch_first) `[batch, words, d_model]`
/// - output: of the shape of the target
///
/// ```
/// use pagelock_nn::{DecoderMasks, TransformerDecoderLayer};
/// # use pagelock_tensor::Tensor;
/// let layer = TransformerDecoderLayer::new(16, 4, 32)?;
/// let (target, memory) = (Tensor::randn([5, 2, 16])?, Tensor::randn([10, 2, 16])?);
/// assert_eq!(layer.forward(&target, &memory, DecoderMasks::default())?.dims(), [5, 2, 16]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct TransformerDecoderLayer {
    /// The self-attention.
    pub self_attn: MultiheadAttention,
    /// The attention to the memory.
    pub multihead_attn: MultiheadAttention,
    /// The first linear layer, to `dim_feedforward` features.
    pub linear1: Linear,
    /// The dropout between the linear layers.
    pub dropout: Dropout,
    /// The second linear layer, back to `d_model` features.
    pub linear2: Linear,
    /// The norm of the self-attention.
    pub norm1: LayerNorm,
    /// The norm of the attention to the memory.
    pub norm2: LayerNorm,
    /// The norm of the linear layers.
    pub norm3: LayerNorm,
    /// The dropout after the self-attention.
    pub dropout1: Dropout,
    /// The dropout after the attention to the memory.
    pub dropout2: Dropout,
    /// The dropout after the linear layers.
    pub dropout3: Dropout,
    #[module(skip)]
    norm_first: bool,
}

impl TransformerDecoderLayer {
    /// A layer with weights from the default generator and dropout 0.1; PyTorch's default for `dim_feedforward` is 2048.
    ///
    /// # Errors
    /// As [`MultiheadAttention::new`].
    pub fn new(d_model: usize, num_heads: usize, dim_feedforward: usize) -> Result<Self> {
        let [dropout, dropout1, dropout2, dropout3] = [0.1; 4].map(Dropout::new);
        Ok(Self {
            self_attn: MultiheadAttention::new(d_model, num_heads)?.dropout(0.1),
            multihead_attn: MultiheadAttention::new(d_model, num_heads)?.dropout(0.1),
            linear1: Linear::new(d_model, dim_feedforward)?,
            dropout,
            linear2: Linear::new(dim_feedforward, d_model)?,
            norm1: LayerNorm::new(d_model)?,
            norm2: LayerNorm::new(d_model)?,
            norm3: LayerNorm::new(d_model)?,
            dropout1,
            dropout2,
            dropout3,
            norm_first: false,
        })
    }

    /// The probability that attention weights and outputs are dropped while training.
    #[must_use]
    pub fn dropout(mut self, p: f64) -> Self {
        self.self_attn = self.self_attn.dropout(p);
        self.multihead_attn = self.multihead_attn.dropout(p);
        for layer in [&mut self.dropout, &mut self.dropout1, &mut self.dropout2, &mut self.dropout3] {
            *layer = Dropout::new(p);
        }
        self
    }

    /// Whether inputs and output are `[batch, words, d_model]`.
    #[must_use]
    pub fn batch_first(mut self, batch_first: bool) -> Self {
        self.self_attn = self.self_attn.batch_first(batch_first);
        self.multihead_attn = self.multihead_attn.batch_first(batch_first);
        self
    }

    /// The output for a target and the output of an encoder.
    ///
    /// # Errors
    /// As [`MultiheadAttention::forward`].
    pub fn forward(&self, target: &Tensor, memory: &Tensor, masks: DecoderMasks<'_>) -> Result<Tensor> {
        let _scope = module_scope(self);
        let self_attention = |x: &Tensor| self.dropout1.forward(&self.self_attn.attend(x, x, x, masks.target)?);
        let cross_attention =
            |x: &Tensor| self.dropout2.forward(&self.multihead_attn.attend(x, memory, memory, masks.memory)?);
        let feed = |x: &Tensor| feed_forward(x, [&self.linear1, &self.linear2], [&self.dropout, &self.dropout3]);
        let steps: [(&dyn Fn(&Tensor) -> Result<Tensor>, &LayerNorm); 3] =
            [(&self_attention, &self.norm1), (&cross_attention, &self.norm2), (&feed, &self.norm3)];
        steps.iter().try_fold(target.clone(), |x, (step, norm)| match self.norm_first {
            true => x.add(&step(&norm.forward(&x)?)?),
            false => norm.forward(&x.add(&step(&x)?)?),
        })
    }
}

setters! { TransformerDecoderLayer,
    /// Whether the norms apply to the inputs of attention and linear layers, instead of the residual sums.
    norm_first: bool;
}

debug_is_display!(TransformerDecoderLayer);

/// Decoder layers one after the other, as PyTorch's `nn.TransformerDecoder`.
///
/// - inputs and output: as those of the layers
///
/// ```
/// use pagelock_nn::{DecoderMasks, TransformerDecoder, TransformerDecoderLayer};
/// # use pagelock_tensor::Tensor;
/// let decoder = TransformerDecoder::new(2, || TransformerDecoderLayer::new(16, 4, 32))?;
/// let (target, memory) = (Tensor::randn([5, 2, 16])?, Tensor::randn([10, 2, 16])?);
/// assert_eq!(decoder.forward(&target, &memory, DecoderMasks::default())?.dims(), [5, 2, 16]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct TransformerDecoder {
    /// The layers.
    pub layers: Vec<TransformerDecoderLayer>,
    /// The norm of the output, if there is one.
    pub norm: Option<LayerNorm>,
}

impl TransformerDecoder {
    /// `num_layers` layers, each created by a call of `layer`.
    ///
    /// # Errors
    /// Those of `layer`.
    pub fn new(num_layers: usize, mut layer: impl FnMut() -> Result<TransformerDecoderLayer>) -> Result<Self> {
        Ok(Self { layers: layers(num_layers, &mut layer)?, norm: None })
    }

    /// The output for a target and the output of an encoder.
    ///
    /// # Errors
    /// As [`MultiheadAttention::forward`].
    pub fn forward(&self, target: &Tensor, memory: &Tensor, masks: DecoderMasks<'_>) -> Result<Tensor> {
        let _scope = module_scope(self);
        let y = folded(&self.layers, target, |layer, x| layer.forward(x, memory, masks))?;
        normalized(y, self.norm.as_ref())
    }
}

setters! { TransformerDecoder,
    /// With a norm of the output.
    norm: LayerNorm => norm = Some(norm);
}

debug_is_display!(TransformerDecoder);

/// An encoder and a decoder, each with a norm of its output, as PyTorch's `nn.Transformer`. Parameters of more than
/// one dimension are initialized with Glorot's uniform numbers
/// ([`init::xavier_uniform_`](crate::init::xavier_uniform_)), as in PyTorch.
///
/// - inputs: source and target, `[words, batch, d_model]`
/// - output: of the shape of the target
///
/// ```
/// use pagelock_nn::{DecoderMasks, MultiheadOptions, Transformer};
/// # use pagelock_tensor::{Device, Tensor};
/// let model = Transformer::new(16, 4, [1, 1], 32)?;
/// let (source, target) = (Tensor::randn([10, 2, 16])?, Tensor::randn([5, 2, 16])?);
/// let causal = DecoderMasks { target: MultiheadOptions::new().is_causal(true), ..DecoderMasks::default() };
/// assert_eq!(model.forward(&source, &target, MultiheadOptions::new(), causal)?.dims(), [5, 2, 16]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct Transformer {
    /// The encoder of the source.
    pub encoder: TransformerEncoder,
    /// The decoder of the target.
    pub decoder: TransformerDecoder,
}

impl Transformer {
    /// A transformer with `num_layers[0]` encoder layers and `num_layers[1]` decoder layers. PyTorch's defaults are
    /// 512 features, 8 heads, 6 and 6 layers, and 2048 features between the linear layers.
    ///
    /// # Errors
    /// As [`MultiheadAttention::new`].
    pub fn new(d_model: usize, num_heads: usize, num_layers: [usize; 2], dim_feedforward: usize) -> Result<Self> {
        let [encoders, decoders] = num_layers;
        let encoder =
            TransformerEncoder::new(encoders, || TransformerEncoderLayer::new(d_model, num_heads, dim_feedforward))?;
        let decoder =
            TransformerDecoder::new(decoders, || TransformerDecoderLayer::new(d_model, num_heads, dim_feedforward))?;
        Self { encoder: encoder.norm(LayerNorm::new(d_model)?), decoder: decoder.norm(LayerNorm::new(d_model)?) }
            .initialized()
    }

    fn initialized(self) -> Result<Self> {
        let generator = pagelock_tensor::default_generator();
        for parameter in self.parameters().iter().filter(|parameter| parameter.rank() > 1) {
            crate::init::xavier_uniform_(parameter, 1.0, generator)?;
        }
        Ok(self)
    }

    /// The probability that attention weights and outputs are dropped while training.
    #[must_use]
    pub fn dropout(mut self, p: f64) -> Self {
        self.encoder.layers = self.encoder.layers.into_iter().map(|layer| layer.dropout(p)).collect();
        self.decoder.layers = self.decoder.layers.into_iter().map(|layer| layer.dropout(p)).collect();
        self
    }

    /// Whether inputs and output are `[batch, words, d_model]`.
    #[must_use]
    pub fn batch_first(mut self, batch_first: bool) -> Self {
        self.encoder.layers = self.encoder.layers.into_iter().map(|layer| layer.batch_first(batch_first)).collect();
        self.decoder.layers = self.decoder.layers.into_iter().map(|layer| layer.batch_first(batch_first)).collect();
        self
    }

    /// The output for source and target.
    ///
    /// # Errors
    /// As [`MultiheadAttention::forward`].
    pub fn forward(
        &self,
        source: &Tensor,
        target: &Tensor,
        source_mask: MultiheadOptions<'_>,
        masks: DecoderMasks<'_>,
    ) -> Result<Tensor> {
        let _scope = module_scope(self);
        self.decoder.forward(target, &self.encoder.forward_masked(source, source_mask)?, masks)
    }

    /// A mask that is added to scores so that word `i` attends only to words 0 to `i`: `[size, size]`, each element 0
    /// or −∞.
    ///
    /// # Errors
    /// The mask does not fit the memory budget.
    pub fn generate_square_subsequent_mask(size: usize, device: &Device) -> Result<Tensor> {
        let positions = Tensor::on(device).arange(0_i64, size as i64, 1)?;
        let later = positions.unsqueeze(1)?.lt(&positions)?;
        Tensor::on(device).zeros([size, size])?.masked_fill(&later, f64::NEG_INFINITY)
    }
}

debug_is_display!(Transformer);
