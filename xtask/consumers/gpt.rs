//! A GPT on characters: trains on the text of this file for some steps, then continues a line of it.
use pagelock::data::Result as DataResult;
use pagelock::nn::{Buffer, init, save_safetensors};
use pagelock::prelude::*;
use pagelock::tensor::{Result, default_generator};

const TEXT: &str = include_str!("gpt.rs");
const N_CHARACTERS: usize = 128;
const CONTEXT: usize = 32;
const WIDTH: usize = 32;
const HEADS: usize = 4;

/// All pieces of a text, each with the piece that begins one character later.
struct Pieces(Vec<u8>);

impl Dataset for Pieces {
    type Sample = (Tensor<Int>, Tensor<Int>);

    fn len(&self) -> usize {
        self.0.len() - CONTEXT
    }

    fn get(&self, index: usize) -> DataResult<Self::Sample> {
        let piece = |start: usize| Tensor::from_slice(&self.0[start..start + CONTEXT], [CONTEXT]);
        Ok((piece(index)?, piece(index + 1)?))
    }
}

#[derive(Module)]
struct Mlp {
    up: Linear,
    down: Linear,
}

impl Mlp {
    fn new() -> Result<Self> {
        Ok(Self { up: linear(WIDTH, 4 * WIDTH)?, down: linear(4 * WIDTH, WIDTH)? })
    }
}

impl Forward for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&gelu(&self.up.forward(x)?)?)
    }
}

/// Causal attention, written out. `x`: `[batch, context, width]`.
#[derive(Module)]
struct Attention {
    qkv: Linear,
    proj: Linear,
    mask: Buffer,
}

impl Attention {
    fn new() -> Result<Self> {
        let mask = Tensor::build([CONTEXT, CONTEXT], |out: &mut [f32]| {
            for (row, mask) in out.chunks_mut(CONTEXT).enumerate() {
                mask[row + 1..].fill(f32::NEG_INFINITY);
            }
        })?;
        Ok(Self { qkv: linear(WIDTH, 3 * WIDTH)?, proj: linear(WIDTH, WIDTH)?, mask: Buffer::new(mask) })
    }
}

impl Forward for Attention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, context) = (x.size(0)?, x.size(1)?);
        let depth = WIDTH / HEADS;
        let shape = [batch, context, HEADS, depth].map(|size| size as isize);
        let qkv = self.qkv.forward(x)?;
        let part = |i: usize| qkv.narrow(2, i * WIDTH, WIDTH)?.view(shape)?.transpose(1, 2);
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let mask = self.mask.narrow(0, 0, context)?.narrow(1, 0, context)?;
        let scores = (q.matmul(&k.transpose(-2, -1)?)? * (depth as f64).powf(-0.5) + &mask)?;
        let heads = scores.softmax(-1)?.matmul(&v)?.transpose(1, 2)?;
        self.proj.forward(&heads.reshape([shape[0], shape[1], -1])?)
    }
}

#[derive(Module)]
struct Block {
    ln1: LayerNorm,
    attention: Attention,
    ln2: LayerNorm,
    mlp: Mlp,
    dropout: Dropout,
}

impl Block {
    fn new() -> Result<Self> {
        let (ln1, ln2) = (LayerNorm::new(WIDTH)?, LayerNorm::new(WIDTH)?);
        Ok(Self { ln1, attention: Attention::new()?, ln2, mlp: Mlp::new()?, dropout: Dropout::new(0.1) })
    }
}

impl Forward for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = (x + self.dropout.forward(&self.attention.forward(&self.ln1.forward(x)?)?)?)?;
        &x + self.dropout.forward(&self.mlp.forward(&self.ln2.forward(&x)?)?)?
    }
}

#[derive(Module)]
struct Gpt {
    tokens: Parameter,
    positions: Parameter,
    blocks: Vec<Block>,
    ln: LayerNorm,
}

impl Gpt {
    fn new(layers: usize) -> Result<Self> {
        let embedding = |n: usize| Ok(Parameter::new((Tensor::randn([n, WIDTH])? * 0.02)?));
        let blocks = (0..layers).map(|_| Block::new()).collect::<Result<_>>()?;
        Ok(Self {
            tokens: embedding(N_CHARACTERS)?,
            positions: embedding(CONTEXT)?,
            blocks,
            ln: LayerNorm::new(WIDTH)?,
        })
    }

    /// Scores of the next character after each. `text`: `[batch, context]`.
    fn forward(&self, text: &Tensor<Int>) -> Result<Tensor> {
        let shape = [text.size(0)? as isize, text.size(1)? as isize, -1];
        let embedded = self.tokens.index_select(0, &text.flatten(0, 1)?)?.view(shape)?;
        let mut x = (embedded + &self.positions.narrow(0, 0, text.size(1)?)?)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.ln.forward(&x)?.linear(&self.tokens, None)
    }

    /// Appends the most probable characters to `text`.
    fn continued(&self, text: &str, n: usize) -> Result<String> {
        let mut text: Vec<u8> = text.into();
        for _ in 0..n {
            let end = &text[text.len().saturating_sub(CONTEXT)..];
            let scores = self.forward(&Tensor::from_slice(end, [1, end.len()])?)?;
            text.push(scores.select(1, -1)?.argmax(1)?.item::<i64>()? as u8);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn linear(from: usize, to: usize) -> Result<Linear> {
    let layer = Linear::new(from, to)?;
    init::normal_(&layer.weight, 0.0, 0.02, default_generator())?;
    Ok(layer)
}

/// x · sigmoid(1.702 · x)
fn gelu(x: &Tensor) -> Result<Tensor> {
    x * (x * 1.702)?.sigmoid()?
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    manual_seed(0);
    let model = Gpt::new(2)?;
    let pieces = DataLoader::new(Pieces(TEXT.bytes().filter(u8::is_ascii).collect())).batch_size(16).shuffle(0);
    let mut opt = AdamW::new(model.parameters(), 3e-3).weight_decay(0.1);
    for (step, batch) in pieces.iter().take(40).enumerate() {
        let (text, next) = batch?;
        let loss = autocast(Half::BF16, || {
            model.forward(&text)?.flatten(0, 1)?.cross_entropy(&next.flatten(0, 1)?, Reduction::Mean)
        })?;
        loss.backward()?;
        opt.step()?;
        opt.zero_grad();
        if step % 10 == 9 {
            println!("step {step}: loss {:.3}", loss.item::<f64>()?);
        }
    }
    model.eval();
    println!("{}", no_grad(|| model.continued("impl ", 20))?);
    save_safetensors(&model.state_dict(), "gpt.safetensors")?;
    Ok(())
}
