//! Translates sentences: PyTorch's "NLP from scratch: translation with a sequence to sequence network and attention".
//!
//! `cargo run --release --example translate`. Results go to `runs/translate`: the loss as `loss.svg`, and the
//! attention weights of one translation as `attention.svg`.

#[path = "../../common/mod.rs"]
mod common;
mod model;
#[path = "../shared.rs"]
mod shared;
mod text;

use std::path::Path;

use anyhow::{Result, ensure};
use pagelock::nn::NLLLoss;
use pagelock::prelude::*;

use common::options::Options;
use common::pictures;
use model::{AttnDecoder, Encoder};
use text::{EOS, Pairs, SOS};

/// The largest number of words in a sentence, including its end.
const MAX_LENGTH: usize = 10;

fn main() -> Result<()> {
    let options = Options::read("Translate sentences with a recurrent encoder, and a decoder with attention")?;
    let (device, out) = (options.device_or(Device::Cpu)?, options.folder()?); // a network this small is faster on a CPU
    let pairs = Pairs::open(options.data.as_deref(), options.seed, MAX_LENGTH)?;
    println!("{} pairs of sentences; vocabularies of {} and {}", pairs.all.len(), pairs.from.len(), pairs.to.len());

    let (hidden_size, epochs) = if options.quick { (64, 14) } else { (128, 40) };
    let encoder = Encoder::new(pairs.from.len(), hidden_size)?.to(&device)?;
    let decoder = AttnDecoder::new(hidden_size, pairs.to.len())?.to(&device)?;
    println!("{encoder}\n{decoder}");
    let random = Generator::new(options.seed);
    let losses = train(&encoder, &decoder, &pairs, epochs, &random)?;
    pictures::lines(&out.join("loss.svg"), "training loss", "epoch", &[("loss", &losses)])?;

    encoder.eval();
    decoder.eval();
    let seen: Vec<usize> = (0..50).map(|_| random.below(pairs.all.len() as u64) as usize).collect();
    let right = evaluate(&encoder, &decoder, &pairs, &seen)?;
    draw_attention(&encoder, &decoder, &pairs, seen[0], &out.join("attention.svg"))?;
    let n = seen.len();
    println!("{right} of {n} training sentences are translated correctly; pictures are in {}", out.display());

    let [first, last] = [losses[0], losses[losses.len() - 1]];
    ensure!(last < 0.3 * first, "the loss fell from {first:.3} to {last:.3}, not to 30 % or less");
    ensure!(options.data.is_some() || right * 10 >= n * 9, "only {right} of {n} sentences are translated correctly");
    Ok(())
}

/// Trains both networks and returns the loss of each epoch.
fn train(
    encoder: &Encoder,
    decoder: &AttnDecoder,
    pairs: &Pairs,
    epochs: usize,
    random: &Generator,
) -> Result<Vec<f64>> {
    let device = encoder.parameters()[0].device();
    let criterion = NLLLoss::new();
    let mut encoder_opt = Adam::new(encoder.parameters(), 4e-3);
    let mut decoder_opt = Adam::new(decoder.parameters(), 4e-3);
    let mut order: Vec<usize> = (0..pairs.all.len()).collect();
    let mut losses = Vec::new();
    for epoch in 1..=epochs {
        random.shuffle(&mut order);
        let mut sum = 0.0;
        for batch in order.chunks(32) {
            let (input, target) = (pairs.input(batch, MAX_LENGTH, &device)?, pairs.target(batch, MAX_LENGTH, &device)?);
            let (outputs, hidden) = encoder.forward(&input)?;
            let padding = text::padding(&input)?;
            let (scores, _) = decoder.forward((&outputs, &hidden), &padding, Some(&target), MAX_LENGTH)?;
            let loss = criterion.forward(&scores.flatten(0, 1)?, &target.flatten(0, 1)?)?;
            loss.backward()?;
            encoder_opt.step()?;
            decoder_opt.step()?;
            encoder_opt.zero_grad();
            decoder_opt.zero_grad();
            sum += loss.item::<f64>()?;
        }
        losses.push(sum / order.len().div_ceil(32) as f64);
        if epoch % 5 == 0 || epoch == 1 {
            println!("epoch {epoch:>3} of {epochs}: loss {:.4}", losses[epoch - 1]);
        }
    }
    Ok(losses)
}

/// Counts the sentences that are translated correctly, and prints the first three translations.
fn evaluate(encoder: &Encoder, decoder: &AttnDecoder, pairs: &Pairs, sentences: &[usize]) -> Result<usize> {
    let mut right = 0;
    for (shown, &at) in sentences.iter().enumerate() {
        let (words, _) = translate(encoder, decoder, pairs, at)?;
        right += usize::from(words == pairs.all[at].1);
        if shown < 3 {
            println!("> {}\n= {}\n< {words}\n", pairs.all[at].0, pairs.all[at].1);
        }
    }
    Ok(right)
}

/// Draws the decoder's attention: for each word of a translation, the weights of the words of the sentence.
fn draw_attention(encoder: &Encoder, decoder: &AttnDecoder, pairs: &Pairs, at: usize, path: &Path) -> Result<()> {
    let (words, attention) = translate(encoder, decoder, pairs, at)?;
    let with_end = |sentence: &str| sentence.split(' ').chain(["end"]).map(str::to_owned).collect::<Vec<_>>();
    let (mut rows, columns) = (with_end(&words), with_end(&pairs.all[at].0));
    rows.truncate(attention.len());
    let shares: Vec<Vec<f64>> = attention.iter().take(rows.len()).map(|row| row[..columns.len()].to_vec()).collect();
    shared::write_squares(path, "attention: translation (left), sentence (top)", &rows, &columns, &shares)
}

/// Translates a sentence. Returns the translation, and for each of its words the attention weights of the sentence's
/// words.
fn translate(encoder: &Encoder, decoder: &AttnDecoder, pairs: &Pairs, at: usize) -> Result<(String, Vec<Vec<f64>>)> {
    let device = encoder.parameters()[0].device();
    no_grad(|| {
        let input = pairs.input(&[at], MAX_LENGTH, &device)?;
        let (outputs, hidden) = encoder.forward(&input)?;
        let (scores, attention) = decoder.forward((&outputs, &hidden), &text::padding(&input)?, None, MAX_LENGTH)?;
        let words = scores.select(0, 0)?.argmax(1)?.to_vec::<i64>()?;
        let words = words.into_iter().take_while(|&word| word != EOS && word != SOS);
        let rows = attention.select(0, 0)?;
        let rows: pagelock::tensor::Result<Vec<Vec<f64>>> =
            (0..MAX_LENGTH).map(|i| rows.select(0, i as isize)?.to_vec::<f64>()).collect();
        Ok((pairs.to.text(words), rows?))
    })
}
