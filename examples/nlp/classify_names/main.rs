//! Predicts the language of a name: PyTorch's "NLP from scratch: classifying names with a character-level RNN".
//!
//! `cargo run --release --example classify_names`. Results go to `runs/classify_names`: the loss as `loss.svg`, and
//! the confusion matrix as `confusion.svg`.

#[path = "../../common/mod.rs"]
mod common;
#[path = "../shared.rs"]
mod shared;

use std::time::Instant;

use anyhow::{Result, ensure};
use pagelock::nn::functional as F;
use pagelock::nn::optim::clip_grad_norm_;
use pagelock::nn::rnn::{PackedSequence, pack_sequence};
use pagelock::nn::{NLLLoss, RNN};
use pagelock::prelude::*;

use common::options::Options;
use common::pictures;
use shared::{LETTERS, Names, numbers};

fn main() -> Result<()> {
    let options = Options::read("Classify names by language with a recurrent network")?;
    let (device, out) = (options.device_or(Device::Cpu)?, options.folder()?); // a network this small is faster on a CPU

    // Data
    let names = Names::open(options.data.as_deref(), options.seed)?;
    names.write(&out.join("names"))?;
    let random = Generator::new(options.seed);
    let mut examples = examples(&names, &device)?;
    random.shuffle(&mut examples);
    let (train_set, test_set) = examples.split_at(examples.len() * 85 / 100);
    println!("train examples = {}, test examples = {}", train_set.len(), test_set.len());

    // Model and training
    let model = CharRnn::new(N_LETTERS, 128, names.languages.len())?.to(&device)?;
    println!("{model}");
    let epochs = if options.quick { 12 } else { 27 };
    let losses = train(&model, train_set, epochs, &random, &device)?;

    // Evaluation
    let (accuracy, confusion) = evaluate(&model, test_set, names.languages.len(), &device)?;
    println!("{:.1} % of the test names are classified correctly", 100.0 * accuracy);
    pictures::lines(&out.join("loss.svg"), "training loss", "epoch", &[("loss", &losses)])?;
    let (rows, title) = (&names.languages, "language (left) and prediction (top)");
    shared::write_squares(&out.join("confusion.svg"), title, rows, rows, &confusion)?;
    println!("loss.svg, confusion.svg and the names are in {}", out.display());

    let [first, last] = [losses[0], losses[losses.len() - 1]];
    ensure!(last < 0.7 * first, "the loss fell from {first:.3} to {last:.3}, not to 70 % or less");
    let bound = if options.data.is_some() { 0.5 } else { 0.9 };
    let is_enough = options.data.is_some() && options.quick || accuracy >= bound;
    ensure!(is_enough, "the accuracy is {accuracy:.3}, less than {bound}");
    Ok(())
}

/// The letters, and one class for all other characters.
const N_LETTERS: usize = LETTERS.len() + 1;

/// A name, `[letters, N_LETTERS]`, and the number of its language.
type Example = (Tensor, i64);

fn examples(names: &Names, device: &Device) -> Result<Vec<Example>> {
    names.all.iter().map(|(name, language)| Ok((name_to_tensor(name, device)?, *language as i64))).collect()
}

/// A name as one-hot rows, `[letters, N_LETTERS]`.
fn name_to_tensor(name: &str, device: &Device) -> Result<Tensor> {
    let letters = numbers(name, LETTERS);
    let letters = Tensor::from_slice(&letters, [letters.len()])?.to(device)?;
    Ok(F::one_hot(&letters, N_LETTERS)?.to_float()?)
}

/// Names as a packed sequence, and their languages.
fn batch(names: &[Example], device: &Device) -> Result<(PackedSequence, Tensor<Int>)> {
    let tensors: Vec<&Tensor> = names.iter().map(|(name, _)| name).collect();
    let languages: Vec<i64> = names.iter().map(|(_, language)| *language).collect();
    Ok((pack_sequence(&tensors, false)?, Tensor::from_slice(&languages, [languages.len()])?.to(device)?))
}

/// A recurrent layer reads a name letter by letter. A linear layer predicts the language from its last state.
#[derive(Module)]
struct CharRnn {
    rnn: RNN,
    h2o: Linear,
}

impl CharRnn {
    fn new(input_size: usize, hidden_size: usize, output_size: usize) -> Result<Self> {
        Ok(Self { rnn: RNN::new(input_size, hidden_size)?, h2o: Linear::new(hidden_size, output_size)? })
    }

    fn forward(&self, names: &PackedSequence) -> Result<Tensor> {
        let (_, hidden) = self.rnn.forward_packed(names, None)?;
        Ok(self.h2o.forward(&hidden.select(0, 0)?)?.log_softmax(1)?)
    }
}

/// Trains the model and returns the average loss of each epoch.
fn train(
    model: &CharRnn,
    train_set: &[Example],
    epochs: usize,
    random: &Generator,
    device: &Device,
) -> Result<Vec<f64>> {
    let criterion = NLLLoss::new();
    let mut opt = Sgd::new(model.parameters(), 0.15);
    let mut train_set = train_set.to_vec();
    let mut losses = Vec::new();
    let start = Instant::now();
    for epoch in 1..=epochs {
        random.shuffle(&mut train_set);
        let mut sum = 0.0;
        for names in train_set.chunks(64) {
            let (x, languages) = batch(names, device)?;
            let loss = criterion.forward(&model.forward(&x)?, &languages)?;
            loss.backward()?;
            clip_grad_norm_(model.parameters(), 3.0)?;
            opt.step()?;
            opt.zero_grad();
            sum += loss.item::<f64>()?;
        }
        losses.push(sum / train_set.len().div_ceil(64) as f64);
        if epoch % 3 == 0 || epoch == 1 {
            println!("epoch {epoch:>3} of {epochs}: average batch loss = {:.4}", losses[epoch - 1]);
        }
    }
    println!("{:.1} ms an epoch", 1e3 * start.elapsed().as_secs_f64() / epochs as f64);
    Ok(losses)
}

/// The accuracy, and the confusion matrix, whose rows (true languages) sum to 1.
fn evaluate(model: &CharRnn, names: &[Example], languages: usize, device: &Device) -> Result<(f64, Vec<Vec<f64>>)> {
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
