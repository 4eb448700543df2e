//! The model: GPT-2's layers, the same as in `torch_gpt.py`.

use pagelock::nn::functional as F;
use pagelock::nn::{Buffer, init};
use pagelock::prelude::*;
use pagelock::tensor::{Result, default_generator};

/// The hyperparameters of a model.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) vocabulary: usize,
    pub(crate) context: usize,
    layers: usize,
    heads: usize,
    width: usize,
    has_bias: bool,
    dropout: f64,
    /// Whether attention is one call of `scaled_dot_product_attention`.
    is_fused: bool,
}

impl Sizes {
    pub(crate) fn character() -> Self {
        Sizes {
            vocabulary: 65,
            context: 256,
            layers: 6,
            heads: 6,
            width: 384,
            has_bias: false,
            dropout: 0.2,
            is_fused: false,
        }
    }

    pub(crate) fn gpt2() -> Self {
        Sizes {
            vocabulary: 50_304,
            context: 1024,
            layers: 12,
            heads: 12,
            width: 768,
            has_bias: true,
            dropout: 0.0,
            is_fused: false,
        }
    }

    pub(crate) fn tiny() -> Self {
        Sizes {
            vocabulary: 65,
            context: 16,
            layers: 2,
            heads: 2,
            width: 32,
            has_bias: true,
            dropout: 0.0,
            is_fused: false,
        }
    }

    /// Chooses between fused attention and attention that is written out.
    pub(crate) fn fused(self, is_fused: bool) -> Self {
        Sizes { is_fused, ..self }
    }

    /// Counts forward and backward: six for each weight of a product, plus those of attention.
    pub(crate) fn flops_per_token(&self) -> f64 {
        let weights = 12 * self.layers * self.width * self.width + self.vocabulary * self.width;
        (6 * weights + 12 * self.layers * self.width * self.context) as f64
    }
}

#[derive(Module)]
pub(crate) struct Gpt {
    te: Parameter,
    pe: Parameter,
    blocks: Vec<Block>,
    ln: LayerNorm,
    mask: Buffer,
    dropout: Option<Dropout>,
}

impl Gpt {
    pub(crate) fn new(sizes: Sizes) -> Result<Self> {
        let embedding = |n: usize| Ok(Parameter::new((Tensor::randn([n, sizes.width])? * 0.02)?));
        Ok(Self {
            te: embedding(sizes.vocabulary)?,
            pe: embedding(sizes.context)?,
            blocks: (0..sizes.layers).map(|_| Block::new(sizes)).collect::<Result<_>>()?,
            ln: layer_norm(sizes)?,
            mask: Buffer::new(causal_mask(sizes.context)?),
            dropout: dropout(sizes),
        })
    }

    /// The mean cross entropy of the next tokens. Both are `[batch, context]`.
    pub(crate) fn loss(&self, tokens: &Tensor<Int>, targets: &Tensor<Int>) -> Result<Tensor> {
        let tokens_of = [tokens.dims()[0] as isize, tokens.dims()[1] as isize, -1];
        let embedded = self.te.index_select(0, &tokens.flatten(0, 1)?)?.view(tokens_of)?;
        let mut x = drop_some(&self.dropout, (embedded + &self.pe)?)?;
        for block in &self.blocks {
            x = block.forward(&x, &self.mask)?;
        }
        let scores = self.ln.forward(&x)?.linear(&self.te, None)?; // the output head shares the embedding's weight
        scores.flatten(0, 1)?.cross_entropy(&targets.flatten(0, 1)?, Reduction::Mean)
    }
}

/// Attention and an MLP of two layers, each with a residual connection.
#[derive(Module)]
struct Block {
    ln1: LayerNorm,
    ln2: LayerNorm,
    qkv: Linear,
    proj: Linear,
    up: Linear,
    down: Linear,
    dropout: Option<Dropout>,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    is_fused: bool,
}

impl Block {
    fn new(sizes: Sizes) -> Result<Self> {
        let c = sizes.width;
        Ok(Self {
            ln1: layer_norm(sizes)?,
            ln2: layer_norm(sizes)?,
            qkv: linear(c, 3 * c, sizes)?,
            proj: linear(c, c, sizes)?,
            up: linear(c, 4 * c, sizes)?,
            down: linear(4 * c, c, sizes)?,
            dropout: dropout(sizes),
            heads: sizes.heads,
            is_fused: sizes.is_fused,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let y = self.proj.forward(&self.attention(&self.ln1.forward(x)?, mask)?)?;
        let x = (x + drop_some(&self.dropout, y)?)?;
        let y = self.down.forward(&self.up.forward(&self.ln2.forward(&x)?)?.gelu_tanh()?)?;
        &x + drop_some(&self.dropout, y)?
    }

    /// softmax(q / √d · kᵀ + mask) · v, for each head. `x`: `[batch, context, width]`. Products and mask are in the precision
    /// that autocast chooses; the softmax is in `f32`.
    fn attention(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let [batch, context, width] = [0, 1, 2].map(|dim| x.dims()[dim]);
        let depth = width / self.heads;
        let shape = [batch, context, self.heads, depth].map(|size| size as isize);
        let qkv = self.qkv.forward(x)?;
        let part = |i: usize| qkv.narrow(2, i * width, width)?.view(shape)?.transpose(1, 2);
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let joined = |heads: Tensor| heads.transpose(1, 2)?.reshape([shape[0], shape[1], -1]);
        if self.is_fused {
            return joined(F::scaled_dot_product_attention(&q, &k, &v, F::AttentionOptions::new().is_causal(true))?);
        }
        let q = (q * (depth as f64).powf(-0.5))?;
        let scores = (q.matmul(&k.transpose(-2, -1)?)? + mask.to_dtype(q.dtype())?)?;
        joined(scores.softmax(-1)?.matmul(&v)?)
    }
}

/// 0 where a token may attend, and −∞ for later tokens.
fn causal_mask(context: usize) -> Result<Tensor> {
    Tensor::build([context, context], |out: &mut [f32]| {
        for (row, mask) in out.chunks_mut(context).enumerate() {
            mask[..=row].fill(0.0);
            mask[row + 1..].fill(f32::NEG_INFINITY);
        }
    })
}

fn linear(from: usize, to: usize, sizes: Sizes) -> Result<Linear> {
    let layer = Linear::new(from, to)?;
    init::normal_(&layer.weight, 0.0, 0.02, default_generator())?;
    Ok(if sizes.has_bias { layer } else { layer.without_bias() })
}

fn layer_norm(sizes: Sizes) -> Result<LayerNorm> {
    let layer = LayerNorm::new(sizes.width)?;
    Ok(if sizes.has_bias { layer } else { layer.without_bias() })
}

fn dropout(sizes: Sizes) -> Option<Dropout> {
    (sizes.dropout > 0.0).then(|| Dropout::new(sizes.dropout))
}

fn drop_some(dropout: &Option<Dropout>, x: Tensor) -> Result<Tensor> {
    match dropout {
        Some(dropout) => dropout.forward(&x),
        None => Ok(x),
    }
}
