//! Generates names of a language, letter by letter: PyTorch's "NLP from scratch: generating names with a
//! character-level RNN".
//!
//! `cargo run --release --example generate_names`. Results go to `runs/generate_names`: the loss as `loss.svg`, names as `names.txt`.

#[path = "../../common/mod.rs"]
mod common;
#[path = "../shared.rs"]
mod shared;

use anyhow::{Result, ensure};
use pagelock::nn::{NLLLoss, functional as F};
use pagelock::prelude::*;

use common::options::Options;
use common::pictures;
use shared::{LETTERS, Names, numbers};

const HIDDEN_SIZE: usize = 128;
/// The number of classes: all letters, and the end of a name.
const N_LETTERS: usize = LETTERS.len() + 1;
const END: i64 = LETTERS.len() as i64;
const MAX_LENGTH: usize = 20;

fn main() -> Result<()> {
    let options = Options::read("Generate names by language with a recurrent network")?;
    let (device, out) = (options.device_or(Device::Cpu)?, options.folder()?); // a network this small is faster on a CPU
    let names = Names::open(options.data.as_deref(), options.seed)?;
    let random = Generator::new(options.seed);

    let model = Rnn::new(names.languages.len(), HIDDEN_SIZE)?.to(&device)?;
    println!("{model}");
    let losses = train(&model, &names, if options.quick { 2_500 } else { 6_000 }, &random, &device)?;

    let (made, known) = sample_names(&model, &names, &random, &device)?;
    print!("{made}");
    std::fs::write(out.join("names.txt"), &made)?;
    let averaged = shared::means(&losses, 60);
    pictures::lines(&out.join("loss.svg"), "loss per letter", "group of steps", &[("mean loss", &averaged)])?;
    println!("loss.svg and names.txt are in {}", out.display());

    let (means, n_made) = (shared::means(&losses, 10), made.lines().count());
    let [first, last] = [means[0], means[means.len() - 1]];
    println!("loss: {first:.3} at the start, {last:.3} at the end");
    println!("{known} of {n_made} names end like a name of their language");
    ensure!(last < 0.75 * first, "the loss fell from {first:.3} to {last:.3}, not to 75 % or less");
    let is_enough = 2 * known >= n_made || options.data.is_some();
    ensure!(is_enough, "only {known} of {n_made} names end like a name of their language");
    Ok(())
}

/// Numbers as one-hot rows.
fn one_hots(numbers: &[i64], width: usize, device: &Device) -> Result<Tensor> {
    Ok(F::one_hot(&Tensor::from_slice(numbers, [numbers.len()])?.to(device)?, width)?.to_float()?)
}

/// A random name to learn: its language `[1, languages]`, its letters `[letters, N_LETTERS]`, and the letter after
/// each, `[letters]`.
fn training_example(names: &Names, random: &Generator, device: &Device) -> Result<(Tensor, Tensor, Tensor<Int>)> {
    let (name, language) = &names.all[random.below(names.all.len() as u64) as usize];
    let letters = numbers(name, LETTERS);
    let targets: Vec<i64> = letters[1..].iter().copied().chain([END]).collect();
    let language = one_hots(&[*language as i64], names.languages.len(), device)?;
    let targets = Tensor::from_slice(&targets, [targets.len()])?.to(device)?;
    Ok((language, one_hots(&letters, N_LETTERS, device)?, targets))
}

/// Maps the language, a letter and the state to the log-probabilities of the next letter, and to the next state.
#[derive(Module)]
struct Rnn {
    i2h: Linear,
    i2o: Linear,
    o2o: Linear,
    dropout: Dropout,
}

impl Rnn {
    fn new(n_languages: usize, hidden_size: usize) -> Result<Self> {
        let inputs = n_languages + N_LETTERS + hidden_size;
        Ok(Self {
            i2h: Linear::new(inputs, hidden_size)?,
            i2o: Linear::new(inputs, N_LETTERS)?,
            o2o: Linear::new(hidden_size + N_LETTERS, N_LETTERS)?,
            dropout: Dropout::new(0.1),
        })
    }

    fn forward(&self, language: &Tensor, letter: &Tensor, hidden: &Tensor) -> Result<(Tensor, Tensor)> {
        let input = Tensor::cat(&[language, letter, hidden], 1)?;
        let hidden = self.i2h.forward(&input)?.tanh()?;
        let output = self.i2o.forward(&input)?;
        let output = self.o2o.forward(&Tensor::cat(&[&hidden, &output], 1)?)?;
        Ok((self.dropout.forward(&output)?.log_softmax(1)?, hidden))
    }
}

/// Trains on one name a step, and returns the loss of each step.
fn train(model: &Rnn, names: &Names, n_iters: usize, random: &Generator, device: &Device) -> Result<Vec<f64>> {
    let criterion = NLLLoss::new();
    let mut opt = Adam::new(model.parameters(), 2e-3);
    let mut losses = Vec::new();
    let print_every = n_iters / 10;
    for iter in 1..=n_iters {
        let (language, input, targets) = training_example(names, random, device)?;
        let mut hidden = Tensor::on(device).zeros([1, HIDDEN_SIZE])?;
        let mut outputs = Vec::new();
        for letter in input.split(1, 0)? {
            let output;
            (output, hidden) = model.forward(&language, &letter, &hidden)?;
            outputs.push(output);
        }
        let outputs = Tensor::cat(&outputs, 0)?;
        let loss = criterion.forward(&outputs, &targets)?;
        loss.backward()?;
        opt.step()?;
        opt.zero_grad();
        losses.push(loss.item::<f64>()?);
        if iter % print_every == 0 {
            let recent = losses[iter - print_every..].iter().sum::<f64>() / print_every as f64;
            println!("{iter:>6} ({:>3} %): loss {recent:.4}", 100 * iter / n_iters);
        }
    }
    Ok(losses)
}

/// Generates three names of each language, and counts those whose last three letters end a name of the data.
fn sample_names(model: &Rnn, names: &Names, random: &Generator, device: &Device) -> Result<(String, usize)> {
    model.eval();
    let (mut made, mut known) = (String::new(), 0);
    for (number, language) in names.languages.iter().enumerate() {
        let learned: Vec<&str> = names.all.iter().filter(|name| name.1 == number).map(|name| &*name.0).collect();
        for _ in 0..3 {
            let first = learned[random.below(learned.len() as u64) as usize].chars().next().unwrap_or('A');
            let name = sample(model, (number, names.languages.len()), first, device)?;
            let end: String = name.chars().skip(name.chars().count().saturating_sub(3)).collect();
            known += usize::from(learned.iter().any(|other| other.ends_with(&end)));
            made.push_str(&format!("{language}: {name}\n"));
        }
    }
    Ok((made, known))
}

/// Extends a first letter to a name of a language; each next letter is the most probable one.
fn sample(model: &Rnn, (language, n_languages): (usize, usize), first: char, device: &Device) -> Result<String> {
    no_grad(|| {
        let language = one_hots(&[language as i64], n_languages, device)?;
        let mut hidden = Tensor::on(device).zeros([1, HIDDEN_SIZE])?;
        let mut name = first.to_string();
        let mut letter = numbers(&name, LETTERS)[0];
        for _ in 0..MAX_LENGTH {
            let output;
            (output, hidden) = model.forward(&language, &one_hots(&[letter], N_LETTERS, device)?, &hidden)?;
            letter = output.argmax(1)?.to_vec::<i64>()?[0];
            match LETTERS.chars().nth(letter as usize) {
                Some(next) => name.push(next),
                None => break, // the end
            }
        }
        Ok(name)
    })
}
