//! Tells the language of a name: PyTorch's "NLP from scratch: classifying names with a character-level RNN".
//!
//! `cargo run --release --example classify_names`. Results go to `runs/classify_names`: the loss as `loss.svg`, and which languages
//! are taken for which as `confusion.svg`.

#[path = "../../common/mod.rs"]
mod common;
#[path = "../shared.rs"]
mod shared;

use anyhow::{Result, ensure};
use clap::Parser;
use pagelock::nn::optim::clip_grad_norm_;
use pagelock::nn::{RNN, rnn};
use pagelock::prelude::*;

use shared::{Common, LETTERS, Names, numbers};

/// Classify names by language with a recurrent network
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    common: Common,
}

/// A name, letter by letter, through a recurrent layer, whose last state says the language.
#[derive(Module)]
struct CharRnn {
    rnn: RNN,
    h2o: Linear,
}

impl CharRnn {
    fn new(input_size: usize, hidden_size: usize, output_size: usize) -> Result<Self> {
        Ok(Self { rnn: RNN::new(input_size, hidden_size)?, h2o: Linear::new(hidden_size, output_size)? })
    }

    fn forward(&self, names: &rnn::PackedSequence) -> Result<Tensor> {
        let (_, hidden) = self.rnn.forward_packed(names, None)?;
        Ok(self.h2o.forward(&hidden.select(0, 0)?)?.log_softmax(1)?)
    }
}

/// A name as `[letters, N_LETTERS + 1]`: for each letter a 1 at its place.
fn name_to_tensor(name: &str, device: &Device) -> Result<Tensor> {
    let letters = numbers(name, LETTERS);
    let letters = Tensor::from_slice(&letters, [letters.len()])?.to(device)?;
    Ok(pagelock::nn::functional::one_hot(&letters, LETTERS.len() + 1)?.to_float()?)
}

/// Names as a packed sequence, and their languages.
fn batch(names: &[(Tensor, i64)], device: &Device) -> Result<(rnn::PackedSequence, Tensor<Int>)> {
    let tensors: Vec<&Tensor> = names.iter().map(|(name, _)| name).collect();
    let languages: Vec<i64> = names.iter().map(|(_, language)| *language).collect();
    Ok((rnn::pack_sequence(&tensors, false)?, Tensor::from_slice(&languages, [languages.len()])?.to(device)?))
}

fn main() -> Result<()> {
    let args: Args = common::arguments();
    let (device, out) = args.common.begin("classify_names")?;
    let names = Names::open(args.common.data.as_deref(), args.common.seed)?;
    let mut data = Vec::new();
    for (name, language) in &names.all {
        data.push((name_to_tensor(name, &device)?, *language as i64));
    }
    let random = Generator::new(args.common.seed);
    random.shuffle(&mut data);
    let (train, test) = data.split_at(data.len() * 85 / 100);
    let mut train = train.to_vec();
    println!("train examples = {}, test examples = {}", train.len(), test.len());

    let model = CharRnn::new(LETTERS.len() + 1, 128, names.languages.len())?.to(&device)?;
    println!("{model}");
    let epochs = if args.common.quick { 12 } else { 27 };
    let mut opt = Sgd::new(model.parameters(), 0.15);
    let mut losses = Vec::new();
    for epoch in 1..=epochs {
        random.shuffle(&mut train);
        let (mut sum, mut batches) = (0.0, 0);
        for names in train.chunks(64) {
            let (x, languages) = batch(names, &device)?;
            let loss = pagelock::nn::NLLLoss::new().forward(&model.forward(&x)?, &languages)?;
            loss.backward()?;
            clip_grad_norm_(model.parameters(), 3.0)?;
            opt.step()?;
            opt.zero_grad();
            (sum, batches) = (sum + loss.item::<f64>()?, batches + 1);
        }
        losses.push(sum / f64::from(batches));
        if epoch % 3 == 0 || epoch == 1 {
            println!("epoch {epoch:>3} of {epochs}: average batch loss = {:.4}", sum / f64::from(batches));
        }
    }

    let (accuracy, confusion) = evaluate(&model, test, names.languages.len(), &device)?;
    println!("{:.1} % of the test's names are told right", 100.0 * accuracy);
    shared::write_curve(&out.join("loss.svg"), "loss by epoch", &losses)?;
    let (rows, title) = (&names.languages, "language (left) and what it is taken for");
    shared::write_squares(&out.join("confusion.svg"), title, rows, rows, &confusion)?;
    println!("loss.svg and confusion.svg are in {}", out.display());
    let [first, last] = [losses[0], losses[losses.len() - 1]];
    ensure!(last < 0.7 * first, "the loss went from {first:.3} to {last:.3} only");
    let bound = if args.common.data.is_some() { 0.5 } else { 0.9 };
    ensure!(args.common.data.is_some() && args.common.quick || accuracy >= bound, "{accuracy:.3} is less than {bound}");
    Ok(())
}

/// The share of names that are told right, and for each language what it is taken for.
fn evaluate(
    model: &CharRnn,
    names: &[(Tensor, i64)],
    languages: usize,
    device: &Device,
) -> Result<(f64, Vec<Vec<f64>>)> {
    let mut counts = vec![vec![0.0; languages]; languages];
    let (x, _) = batch(names, device)?;
    let guesses = no_grad(|| model.forward(&x))?.argmax(1)?.to_vec::<i64>()?;
    for ((_, language), guess) in names.iter().zip(&guesses) {
        counts[*language as usize][*guess as usize] += 1.0;
    }
    let right: f64 = (0..languages).map(|language| counts[language][language]).sum();
    for row in &mut counts {
        let all = row.iter().sum::<f64>().max(1.0);
        row.iter_mut().for_each(|count| *count /= all);
    }
    Ok((right / names.len().max(1) as f64, counts))
}
