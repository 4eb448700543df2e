//! Regression on a table: a CSV file with numbers and categories, embeddings, normalization, and what a mean would do.
//!
//! `cargo run --release --example models_tabular`. It writes `flats.csv` itself: rents that follow a rule, with noise.

#[path = "../common/beside.rs"]
mod beside;
#[path = "../common/mod.rs"]
mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use common::options::Options;
use common::pictures;
use pagelock::data::CsvTable;
use pagelock::nn::functional as F;
use pagelock::prelude::*;

const DISTRICTS: usize = 12;
const KINDS: usize = 4;

/// Each category has an embedding; numbers and embeddings go through two hidden layers.
#[derive(Module)]
struct Model {
    district: Embedding,
    kind: Embedding,
    layers: Sequential,
}

impl Model {
    fn new() -> Result<Self> {
        Ok(Self {
            district: Embedding::new(DISTRICTS, 4)?,
            kind: Embedding::new(KINDS, 2)?,
            layers: Sequential::new((Linear::new(9, 64)?, ReLU, Linear::new(64, 32)?, ReLU, Linear::new(32, 1)?)),
        })
    }

    fn forward(&self, numbers: &Tensor, categories: &Tensor<Int>) -> Result<Tensor> {
        let district = self.district.forward(&categories.select(1, 0)?)?;
        let kind = self.kind.forward(&categories.select(1, 1)?)?;
        Ok(self.layers.forward(&Tensor::cat(&[numbers, &district, &kind], 1)?)?.squeeze(1)?)
    }
}

fn main() -> Result<()> {
    let options = Options::read("Regression on a table of numbers and categories")?;
    let (device, out) = (options.device()?, options.folder()?);
    let n = options.pick(2_000, 20_000);
    println!("no data set: {n} flats are made up (seed {}) and written as CSV", options.seed);
    beside_pytorch(&device)?;

    let path = out.join("flats.csv");
    write_table(&path, n, options.seed)?;
    let table = CsvTable::open(&path)?;
    println!("{} has {} rows of {:?}", path.display(), table.n_rows(), table.names());
    let numbers: Tensor = table.numbers(&["area", "floor", "age"])?;
    let categories: Tensor<Int> = table.numbers(&["district", "kind"])?;
    let rents: Tensor = table.column("rent")?;

    // The first four fifths are to train with; means and deviations are theirs.
    let n_train = n / 5 * 4;
    let normal = |x: &Tensor| {
        let train = x.narrow(0, 0, n_train)?;
        (x - train.mean_keepdim(0)?)? / train.std_keepdim(0)?
    };
    let (numbers, targets) = (normal(&numbers)?, normal(&rents)?);
    let part = |from, len| -> Result<_> {
        let parts = (numbers.narrow(0, from, len)?, categories.narrow(0, from, len)?, targets.narrow(0, from, len)?);
        Ok(TensorDataset::new(parts)?)
    };
    let train_dl = DataLoader::new(part(0, n_train)?).batch_size(64).shuffle(options.seed);
    let test_dl = DataLoader::new(part(n_train, n - n_train)?).batch_size(256);

    let model = Model::new()?.to(&device)?;
    let mut opt = AdamW::new(model.parameters(), 3e-3).weight_decay(1e-4);
    let epochs = options.pick(15, 20);
    let mut losses = Vec::new();
    for epoch in 1..=epochs {
        let mut total = 0.0;
        for batch in &train_dl {
            let (numbers, categories, target) = batch?;
            let (numbers, categories) = (numbers.to(&device)?, categories.to(&device)?);
            let loss = F::mse_loss(&model.forward(&numbers, &categories)?, &target.to(&device)?)?;
            loss.backward()?;
            opt.step()?;
            opt.zero_grad();
            total += loss.item::<f64>()?;
        }
        losses.push(total / train_dl.len()? as f64);
        if epoch % 5 == 0 {
            println!("epoch {epoch}/{epochs}: loss {:.4}", losses[epoch - 1]);
        }
    }
    let (squares, error) = assess(&model, &test_dl, &device)?;
    let deviation: f64 = rents.narrow(0, 0, n_train)?.std(..)?.item()?;
    println!("on {} other flats: R² {:.3}, mean error {:.0} a month", n - n_train, 1.0 - squares, error * deviation);
    pictures::lines(&out.join("loss.svg"), "training loss", "epoch", &[("loss", &losses)])?;
    ensure!(squares < 0.3, "a mean alone has the squared error 1, and the model {squares:.3}");
    Ok(())
}

type Batches = DataLoader<(Tensor, Tensor<Int>, Tensor)>;

/// The mean of squared and of absolute errors, in deviations.
fn assess(model: &Model, test_dl: &Batches, device: &Device) -> Result<(f64, f64)> {
    no_grad(|| {
        let (mut squares, mut errors) = (0.0, 0.0);
        for batch in test_dl {
            let (numbers, categories, target) = batch?;
            let error = (model.forward(&numbers.to(device)?, &categories.to(device)?)? - target.to(device)?)?;
            squares += error.pow(2.0)?.sum(..)?.item::<f64>()?;
            errors += error.abs()?.sum(..)?.item::<f64>()?;
        }
        let n = test_dl.n_samples() as f64;
        Ok((squares / n, errors / n))
    })
}

/// Rents by area, district, kind, floor and age, with a tenth of noise.
fn write_table(path: &Path, n: usize, seed: u64) -> Result<()> {
    let dice = Generator::new(seed);
    let mut text = "area,floor,age,district,kind,rent\n".to_owned();
    for _ in 0..n {
        let (area, floor, age) = (20 + dice.below(100), dice.below(8), dice.below(90));
        let (district, kind) = (dice.below(DISTRICTS as u64), dice.below(KINDS as u64));
        let per_area = 9.0 + (district * 7 % 12) as f64 * 0.8 + [0.0, 2.5, -1.5, 4.0][kind as usize];
        let rent = area as f64 * (per_area - 0.03 * age as f64) + 15.0 * floor as f64;
        let rent = rent * (0.9 + 0.2 * dice.next_f64());
        writeln!(text, "{area},{floor},{age},{district},{kind},{rent:.2}")?;
    }
    Ok(fs::write(path, text)?)
}

/// One step on eight rows of numbers.
fn beside_pytorch(device: &Device) -> Result<()> {
    let model = Model::new()?.to(device)?;
    beside::fill(&model.named_parameters())?;
    let (numbers, target) = (beside::numbers(&[8, 3], 1000, device)?, beside::numbers(&[8], 1001, device)?);
    let categories = Tensor::on(device).new([[0, 0], [11, 1], [3, 2], [3, 3], [5, 0], [6, 1], [10, 2], [1, 3]])?;
    let mut opt = AdamW::new(model.parameters(), 1e-3).weight_decay(1e-4);
    beside::one_step("tabular", &model.named_parameters(), &mut opt, &|| {
        Ok(F::mse_loss(&model.forward(&numbers, &categories)?, &target)?)
    })
}
