//! Makes names of a language, letter by letter: PyTorch's "NLP from scratch: generating names with a character-level RNN".
//!
//! `cargo run --release --example generate_names`. Results go to `runs/generate_names`: the loss as `loss.svg`, names as `names.txt`.

#[path = "../../common/mod.rs"]
mod common;
#[path = "../shared.rs"]
mod shared;

use anyhow::{Result, ensure};
use clap::Parser;
use pagelock::nn::functional::one_hot;
use pagelock::prelude::*;

use shared::{Common, LETTERS, Names, numbers};

/// Generate names by language with a recurrent network
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    common: Common,
}

/// The letters and the end of a name.
const N_LETTERS: usize = LETTERS.len() + 1;
const END: i64 = LETTERS.len() as i64;
const MAX_LENGTH: usize = 20;

/// From the language, a letter and the state to how likely each next letter is, and the next state.
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

/// Numbers as rows with a 1 at their place.
fn one_hots(numbers: &[i64], width: usize, device: &Device) -> Result<Tensor> {
    Ok(one_hot(&Tensor::from_slice(numbers, [numbers.len()])?.to(device)?, width)?.to_float()?)
}

fn main() -> Result<()> {
    let args: Args = common::arguments();
    let (device, out) = args.common.begin("generate_names")?;
    let names = Names::open(args.common.data.as_deref(), args.common.seed)?;
    let (n_languages, hidden_size) = (names.languages.len(), 128);
    let random = Generator::new(args.common.seed);
    let model = Rnn::new(n_languages, hidden_size)?.to(&device)?;
    println!("{model}");

    let n_iters = if args.common.quick { 2_500 } else { 6_000 };
    let mut opt = Adam::new(model.parameters(), 2e-3);
    let mut losses = Vec::new();
    for iter in 1..=n_iters {
        let (name, language) = &names.all[random.below(names.all.len() as u64) as usize];
        let letters = numbers(name, LETTERS);
        let targets: Vec<i64> = letters[1..].iter().copied().chain([END]).collect();
        let language = one_hots(&[*language as i64], n_languages, &device)?;
        let input = one_hots(&letters, N_LETTERS, &device)?;
        let targets = Tensor::from_slice(&targets, [targets.len()])?.to(&device)?;
        let mut hidden = Tensor::on(&device).zeros([1, hidden_size])?;
        let mut outputs = Vec::new();
        for letter in 0..letters.len() {
            let output;
            (output, hidden) = model.forward(&language, &input.narrow(0, letter, 1)?, &hidden)?;
            outputs.push(output);
        }
        let outputs = Tensor::cat(&outputs.iter().collect::<Vec<_>>(), 0)?;
        let loss = pagelock::nn::NLLLoss::new().forward(&outputs, &targets)?;
        loss.backward()?;
        opt.step()?;
        opt.zero_grad();
        losses.push(loss.item::<f64>()?);
        if iter % (n_iters / 10) == 0 {
            let recent = &losses[losses.len() - n_iters / 10..];
            println!(
                "{iter:>6} ({:>3} %): loss {:.4}",
                100 * iter / n_iters,
                recent.iter().sum::<f64>() / recent.len() as f64
            );
        }
    }

    model.eval();
    let mut made = String::new();
    let mut known = 0;
    for (number, language) in names.languages.iter().enumerate() {
        let firsts: Vec<char> =
            names.all.iter().filter(|name| name.1 == number).filter_map(|name| name.0.chars().next()).collect();
        for _ in 0..3 {
            let first = firsts[random.below(firsts.len() as u64) as usize];
            let name = sample(&model, (number, n_languages, hidden_size), first, &device)?;
            let end: String = name.chars().skip(name.chars().count().saturating_sub(3)).collect();
            known += usize::from(names.all.iter().any(|other| other.1 == number && other.0.ends_with(&end)));
            made.push_str(&format!("{language}: {name}\n"));
        }
    }
    print!("{made}");
    std::fs::write(out.join("names.txt"), &made)?;
    shared::write_curve(&out.join("loss.svg"), "loss by letter, averaged", &shared::means(&losses, 60))?;
    println!("loss.svg and names.txt are in {}", out.display());
    let means = shared::means(&losses, 10);
    let [first, last] = [means[0], means[means.len() - 1]];
    println!(
        "loss: {first:.3} at first, {last:.3} at last; {known} of {} names end as one of their language",
        3 * n_languages
    );
    ensure!(last < 0.75 * first, "the loss went from {first:.3} to {last:.3} only");
    ensure!(
        2 * known >= 3 * n_languages || args.common.data.is_some(),
        "only {known} names end as those of their language"
    );
    Ok(())
}

/// The likeliest name of a language that begins with a letter.
fn sample(
    model: &Rnn,
    (language, n_languages, hidden_size): (usize, usize, usize),
    first: char,
    device: &Device,
) -> Result<String> {
    no_grad(|| {
        let language = one_hots(&[language as i64], n_languages, device)?;
        let mut hidden = Tensor::on(device).zeros([1, hidden_size])?;
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
