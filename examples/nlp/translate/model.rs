//! The encoder, a GRU, and the decoder, a GRU with attention to the encoder's states.

use anyhow::Result;
use pagelock::nn::{GRU, RNNOptions};
use pagelock::prelude::*;

use crate::text::SOS;

/// Maps words to states, one for each word.
#[derive(Module)]
pub(crate) struct Encoder {
    embedding: Embedding,
    gru: GRU,
    dropout: Dropout,
}

impl Encoder {
    pub(crate) fn new(n_words: usize, hidden_size: usize) -> Result<Self> {
        let gru = GRU::with(hidden_size, hidden_size, RNNOptions::new().batch_first(true))?;
        Ok(Self { embedding: Embedding::new(n_words, hidden_size)?, gru, dropout: Dropout::new(0.1) })
    }

    pub(crate) fn forward(&self, input: &Tensor<Int>) -> Result<(Tensor, Tensor)> {
        let embedded = self.dropout.forward(&self.embedding.forward(input)?)?;
        Ok(self.gru.forward(&embedded)?)
    }
}

/// Additive attention (Bahdanau et al., 2014, <https://arxiv.org/abs/1409.0473>).
#[derive(Module)]
struct BahdanauAttention {
    w: Linear,
    u: Linear,
    v: Linear,
}

impl BahdanauAttention {
    fn new(hidden_size: usize) -> Result<Self> {
        let square = || Linear::new(hidden_size, hidden_size);
        Ok(Self { w: square()?, u: square()?, v: Linear::new(hidden_size, 1)? })
    }

    /// `query` is `[batch, 1, hidden]`, and `keys` is `[batch, words, hidden]`. Keys get no weight where `padding`,
    /// `[batch, words]`, is true.
    fn forward(&self, query: &Tensor, keys: &Tensor, padding: &Tensor<Bool>) -> Result<(Tensor, Tensor)> {
        let scores = self.v.forward(&(self.w.forward(query)? + self.u.forward(keys)?)?.tanh()?)?;
        let scores = scores.squeeze(2)?.masked_fill(padding, f64::NEG_INFINITY)?;
        let weights = scores.unsqueeze(1)?.softmax(-1)?;
        Ok((weights.matmul(keys)?, weights))
    }
}

/// Generates words one by one from the encoder's states.
#[derive(Module)]
pub(crate) struct AttnDecoder {
    embedding: Embedding,
    attention: BahdanauAttention,
    gru: GRU,
    out: Linear,
    dropout: Dropout,
}

impl AttnDecoder {
    pub(crate) fn new(hidden_size: usize, n_words: usize) -> Result<Self> {
        Ok(Self {
            embedding: Embedding::new(n_words, hidden_size)?,
            attention: BahdanauAttention::new(hidden_size)?,
            gru: GRU::with(2 * hidden_size, hidden_size, RNNOptions::new().batch_first(true))?,
            out: Linear::new(hidden_size, n_words)?,
            dropout: Dropout::new(0.1),
        })
    }

    /// Returns `[batch, words, n_words]` log probabilities and the `[batch, words, words]` attention weights of the
    /// encoded words. The input of each step is the previous word of `target`, or without `target` the word that was
    /// most probable in the previous step.
    pub(crate) fn forward(
        &self,
        (encoded, hidden): (&Tensor, &Tensor),
        padding: &Tensor<Bool>,
        target: Option<&Tensor<Int>>,
        max_length: usize,
    ) -> Result<(Tensor, Tensor)> {
        let batch = encoded.dims()[0];
        let mut input = Tensor::on(&encoded.device()).full([batch, 1], SOS)?;
        let mut hidden = hidden.clone();
        let (mut outputs, mut attentions) = (Vec::new(), Vec::new());
        for i in 0..max_length {
            let embedded = self.dropout.forward(&self.embedding.forward(&input)?)?;
            let (context, weights) = self.attention.forward(&hidden.transpose(0, 1)?, encoded, padding)?;
            let output;
            (output, hidden) = self.gru.forward_with(&Tensor::cat(&[&embedded, &context], 2)?, &hidden)?;
            let output = self.out.forward(&output)?;
            input = match target {
                Some(target) => target.narrow(1, i, 1)?, // teacher forcing
                None => output.argmax(2)?,
            };
            outputs.push(output);
            attentions.push(weights);
        }
        let [outputs, attentions] = [outputs, attentions].map(|all| Tensor::cat(&all, 1));
        Ok((outputs?.log_softmax(2)?, attentions?))
    }
}
