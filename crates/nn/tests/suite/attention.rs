//! Attention against PyTorch: cases of `layers.rs`.

use crate::layers::{Case, Cases, called, function, layer};
use pagelock_nn::functional::{self as F, AttentionOptions};
use pagelock_nn::*;
use pagelock_tensor::{Bool, DType, Result, Tensor};

pub(crate) fn attention() -> Result<Cases> {
    let heads = |options: for<'a> fn(&'a Masks) -> AttentionOptions<'a>| {
        function(move |x| {
            let masks = Masks::new(x.float(0));
            F::scaled_dot_product_attention(x.float(0), x.float(1), x.float(2), options(&masks))
        })
    };
    Ok(vec![
        ("attention", heads(|_| AttentionOptions::new())),
        ("attention causal", heads(|_| AttentionOptions::new().is_causal(true).scale(0.25))),
        ("attention allowed", heads(|masks| AttentionOptions::new().mask(&masks.allowed))),
        ("attention added", heads(|masks| AttentionOptions::new().mask(&masks.added))),
        ("multihead", multihead(MultiheadAttention::new(4, 2)?, |_| MultiheadOptions::new())),
        (
            "multihead cross",
            multihead(MultiheadAttention::new(4, 2)?.batch_first(true), |masks| {
                MultiheadOptions::new().key_padding_mask(&masks.padded)
            }),
        ),
        (
            "multihead plain",
            multihead(MultiheadAttention::new(4, 2)?.without_bias(), |masks| {
                MultiheadOptions::new().attn_mask(&masks.later)
            }),
        ),
        ("multihead unbatched", multihead(MultiheadAttention::new(4, 1)?, |_| MultiheadOptions::new())),
        (
            "multihead kdim vdim",
            multihead(MultiheadAttention::with_kdim_vdim(4, 2, 3, 5)?, |_| MultiheadOptions::new()),
        ),
        (
            "multihead kdim plain",
            multihead(MultiheadAttention::with_kdim_vdim(4, 2, 3, 4)?.without_bias().batch_first(true), |_| {
                MultiheadOptions::new()
            }),
        ),
        (
            "multihead bias_kv",
            multihead(MultiheadAttention::new(4, 2)?.add_bias_kv()?.batch_first(true), |masks| {
                MultiheadOptions::new().key_padding_mask(&masks.padded)
            }),
        ),
        (
            "multihead zero_attn",
            multihead(MultiheadAttention::new(4, 2)?.add_zero_attn(true), |_| MultiheadOptions::new()),
        ),
        (
            "multihead all",
            multihead(
                MultiheadAttention::with_kdim_vdim(4, 2, 3, 5)?.add_bias_kv()?.add_zero_attn(true).batch_first(true),
                |masks| MultiheadOptions::new().key_padding_mask(&masks.padded).attn_mask(&masks.later),
            ),
        ),
        ("encoder_layer", layer(TransformerEncoderLayer::new(4, 2, 6)?.dropout(0.0).batch_first(true))),
        ("encoder_layer norm_first", layer(TransformerEncoderLayer::new(4, 2, 6)?.dropout(0.0).norm_first(true))),
    ])
}

fn multihead(attention: MultiheadAttention, options: for<'a> fn(&'a Masks) -> MultiheadOptions<'a>) -> Box<dyn Case> {
    called(attention, move |attention, x| {
        let (masks, query) = (Masks::new(x.float(0)), x.float(0));
        let (key, value) = if x.0.len() == 1 { (query, query) } else { (x.float(1), x.float(2)) };
        let (y, weights) = attention.forward(query, key, value, options(&masks))?;
        Tensor::cat(&[&y.reshape([-1])?, &weights.reshape([-1])?], 0)
    })
}

struct Masks {
    allowed: Tensor<Bool>,
    added: Tensor,
    padded: Tensor<Bool>,
    later: Tensor<Bool>,
}

impl Masks {
    fn new(like: &Tensor) -> Self {
        let here = |mask: Tensor<Bool>| mask.to(&like.device()).unwrap();
        let (no, yes, never) = (false, true, f64::NEG_INFINITY);
        let allowed = [[yes, no, yes, yes, no], [no; 5], [yes; 5]];
        let added = Tensor::of(DType::F64).new([[0.5, -1.0, 0.0, 2.0, never], [0.0; 5], [-0.25; 5]]).unwrap();
        Self {
            allowed: here(Tensor::new(allowed).unwrap()),
            added: added.to_dtype(like.dtype()).unwrap().to(&like.device()).unwrap(),
            padded: here(Tensor::new([[no, no, yes], [no; 3]]).unwrap()),
            later: here(Tensor::new([[no, yes, yes], [no, no, yes], [no; 3]]).unwrap()),
        }
    }
}
