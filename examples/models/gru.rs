//! A forecaster: a GRU (Cho et al., 2014) reads a series and predicts its next value at every step.
//!
//! `cargo run --release --example models_gru`. The series are sums of two waves of random periods, with noise.

#[path = "../common/beside.rs"]
mod beside;
#[path = "../common/mod.rs"]
mod common;

use std::f64::consts::TAU;

use anyhow::{Result, ensure};
use common::options::Options;
use common::pictures;
use pagelock::nn::functional as F;
use pagelock::nn::optim::clip_grad_norm_;
use pagelock::nn::{GRU, RNNOptions};
use pagelock::prelude::*;

/// The length of a series.
const STEPS: usize = 60;

#[derive(Module)]
struct Forecaster {
    gru: GRU,
    out: Linear,
}

impl Forecaster {
    fn new(hidden_size: usize) -> Result<Self> {
        let gru = GRU::with(1, hidden_size, RNNOptions::new().batch_first(true))?;
        Ok(Self { gru, out: Linear::new(hidden_size, 1)? })
    }

    /// Maps values `[batch, steps, 1]` to predictions of the next value after each.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (states, _) = self.gru.forward(x)?;
        Ok(self.out.forward(&states)?)
    }

    /// Continues a series `[1, steps, 1]` by `n` values. Each predicted value is the next input.
    fn continued(&self, series: &Tensor, n: usize) -> Result<Vec<f64>> {
        no_grad(|| {
            let (mut states, mut hidden) = self.gru.forward(series)?;
            let mut values = Vec::new();
            for _ in 0..n {
                let value = self.out.forward(&states.narrow(1, states.dims()[1] - 1, 1)?)?;
                values.push(value.item()?);
                (states, hidden) = self.gru.forward_with(&value, &hidden)?;
            }
            Ok(values)
        })
    }
}

fn main() -> Result<()> {
    let options = Options::read("A GRU that forecasts series")?;
    let (device, out) = (options.device()?, options.folder()?);
    let (n_train, n_test) = (options.pick(1_000, 5_000), 200);
    println!("no data set: {n_train} series to train and {n_test} to test are made up (seed {})", options.seed);
    beside_pytorch(&device)?;

    let train_set = TensorDataset::new(series(options.seed, 0, n_train)?)?;
    let train_dl = DataLoader::new(train_set).batch_size(50).shuffle(options.seed);
    let (x, y) = series(options.seed, 1 << 32, n_test)?;
    let (x, y) = (x.to(&device)?, y.to(&device)?);

    let model = Forecaster::new(32)?.to(&device)?;
    train(&model, &train_dl, options.pick(10, 20), &device)?;
    // The error counts from the twentieth value on, because earlier values do not determine the periods
    let late = |values: &Tensor| values.narrow(1, 20, STEPS - 20);
    let error = F::mse_loss(&late(&no_grad(|| model.forward(&x))?)?, &late(&y)?)?.item::<f64>()?;
    let repeated = F::mse_loss(&late(&x)?, &late(&y)?)?.item::<f64>()?;
    println!("mean squared error of the next value: {error:.4}, and {repeated:.4} of repeating the last one");

    let known = x.narrow(0, 0, 1)?;
    let forecast = model.continued(&known.narrow(1, 0, STEPS / 2)?, STEPS / 2)?;
    let truth = known.flatten(0, -1)?.to_vec::<f64>()?;
    let lines = [&truth[..STEPS / 2], &forecast].concat();
    pictures::lines(
        &out.join("forecast.svg"),
        "30 values and a forecast of 30",
        "step",
        &[("what came", &truth), ("forecast from step 31", &lines)],
    )?;
    println!("forecast.svg is in {}", out.display());
    ensure!(
        error < 0.3 * repeated,
        "the error is {error:.4}, not below 0.3 of {repeated:.4}, that of repeating the last value"
    );
    Ok(())
}

/// `n` series from number `first`, `[n, STEPS, 1]`, and the same series one step later.
fn series(seed: u64, first: u64, n: usize) -> Result<(Tensor, Tensor)> {
    let mut values = Vec::with_capacity(n * (STEPS + 1));
    for number in 0..n as u64 {
        let dice = Generator::new(seed).stream(first + number);
        let wave = |shortest: f64| (TAU / (shortest * (1.0 + dice.next_f64())), TAU * dice.next_f64());
        let ((fast, early), (slow, late)) = (wave(8.0), wave(20.0));
        values.extend((0..=STEPS).map(|step| {
            let t = step as f64;
            (0.4 * (fast * t + early).sin() + 0.6 * (slow * t + late).sin() + 0.02 * (dice.next_f64() - 0.5)) as f32
        }));
    }
    let all = Tensor::from_vec(values, [n, STEPS + 1, 1])?;
    Ok((all.narrow(1, 0, STEPS)?.contiguous()?, all.narrow(1, 1, STEPS)?.contiguous()?))
}

fn train(model: &Forecaster, train_dl: &DataLoader<(Tensor, Tensor)>, epochs: usize, device: &Device) -> Result<()> {
    let mut opt = Adam::new(model.parameters(), 1e-2);
    for epoch in 1..=epochs {
        let mut total = 0.0;
        for batch in train_dl {
            let (x, y) = batch?;
            let loss = F::mse_loss(&model.forward(&x.to(device)?)?, &y.to(device)?)?;
            loss.backward()?;
            clip_grad_norm_(model.parameters(), 1.0)?;
            opt.step()?;
            opt.zero_grad();
            total += loss.item::<f64>()?;
        }
        if epoch % 5 == 0 {
            println!("epoch {epoch}/{epochs}: loss {:.4}", total / train_dl.len()? as f64);
        }
    }
    Ok(())
}

/// Compares one step on eight series with PyTorch's.
fn beside_pytorch(device: &Device) -> Result<()> {
    let model = Forecaster::new(32)?.to(device)?;
    beside::fill(&model.named_parameters())?;
    let (x, y) = (beside::numbers(&[8, 20, 1], 1000, device)?, beside::numbers(&[8, 20, 1], 1001, device)?);
    let mut opt = Adam::new(model.parameters(), 1e-3);
    beside::one_step("gru", &model.named_parameters(), &mut opt, &|| Ok(F::mse_loss(&model.forward(&x)?, &y)?))
}
