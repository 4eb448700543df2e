//! Regression on a table: a CSV file with numbers and categories, embeddings, normalization, and a comparison with
//! predicting the mean.
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
use pagelock::data::{CsvTable, Standardize};
use pagelock::nn::functional as F;
use pagelock::prelude::*;

const DISTRICTS: [&str; 12] = [
    "Altona",
    "Bergedorf",
    "Eimsbuettel",
    "Eppendorf",
    "Hafen",
    "Hamm",
    "Harburg",
    "Horn",
    "Mitte",
    "Nord",
    "Ottensen",
    "Wandsbek",
];
const KINDS: [&str; 4] = ["attic", "loft", "plain", "studio"];

/// Each category has an embedding; numbers and embeddings go through two hidden layers.
#[derive(Module)]
struct Model {
    district: Embedding,
    kind: Embedding,
    layers: Sequential,
}

impl Model {
    fn new(n_districts: usize, n_kinds: usize) -> Result<Self> {
        Ok(Self {
            district: Embedding::new(n_districts, 4)?,
            kind: Embedding::new(n_kinds, 2)?,
            layers: Sequential::new((Linear::new(9, 64)?, ReLU, Linear::new(64, 32)?, ReLU, Linear::new(32, 1)?)),
        })
    }

    fn forward(&self, numbers: &Tensor, district: &Tensor<Int>, kind: &Tensor<Int>) -> Result<Tensor> {
        let (district, kind) = (self.district.forward(district)?, self.kind.forward(kind)?);
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
    let data = Flats::open(&path)?;
    let train_dl = DataLoader::new(data.train).batch_size(64).shuffle(options.seed);
    let test_dl = DataLoader::new(data.test).batch_size(256);

    let model = Model::new(data.n_districts, data.n_kinds)?.to(&device)?;
    let losses = train(&model, &train_dl, options.pick(15, 20), &device)?;
    let (squares, error) = assess(&model, &test_dl, &device)?;
    let error = error * data.rents.std[0];
    println!("on {} other flats: R² {:.3}, mean error {error:.0} a month", test_dl.n_samples(), 1.0 - squares);
    pictures::lines(&out.join("loss.svg"), "training loss", "epoch", &[("loss", &losses)])?;
    ensure!(squares < 0.3, "the squared error is {squares:.3}, not below 0.3; that of the mean is 1");
    Ok(())
}

/// Numbers `[rows, 3]`, districts, kinds and rents, `[rows]` each.
type FlatDataset = TensorDataset<(Tensor, Tensor<Int>, Tensor<Int>, Tensor)>;
type Batches = DataLoader<(Tensor, Tensor<Int>, Tensor<Int>, Tensor)>;

/// A table, ready for training: categories as codes, numbers and rents with mean 0 and standard deviation 1.
struct Flats {
    train: FlatDataset,
    test: FlatDataset,
    n_districts: usize,
    n_kinds: usize,
    rents: Standardize,
}

impl Flats {
    /// The first four fifths of the rows are for training. Means and standard deviations are computed from them
    /// alone.
    fn open(path: &Path) -> Result<Self> {
        let table = CsvTable::open(path)?;
        println!("{} has {} rows of {:?}", path.display(), table.n_rows(), table.names());
        let (districts, kinds) = (table.categories("district")?, table.categories("kind")?);
        let (district, kind) = (table.codes("district", &districts)?, table.codes("kind", &kinds)?);
        let (numbers, rent) = (table.numbers(&["area", "floor", "age"])?, table.column("rent")?);

        let n_train = table.n_rows() / 5 * 4;
        let scale = Standardize::fit(&numbers.narrow(0, 0, n_train)?)?;
        let rents = Standardize::fit(&rent.narrow(0, 0, n_train)?)?;
        let (numbers, rent) = (scale.apply(&numbers)?, rents.apply(&rent)?);
        let part = |from, len| -> Result<FlatDataset> {
            let [district, kind] = [district.narrow(0, from, len)?, kind.narrow(0, from, len)?];
            Ok(TensorDataset::new((numbers.narrow(0, from, len)?, district, kind, rent.narrow(0, from, len)?))?)
        };
        let (train, test) = (part(0, n_train)?, part(n_train, table.n_rows() - n_train)?);
        Ok(Self { train, test, n_districts: districts.len(), n_kinds: kinds.len(), rents })
    }
}

/// Trains the model and returns the loss of each epoch.
fn train(model: &Model, train_dl: &Batches, epochs: usize, device: &Device) -> Result<Vec<f64>> {
    let mut opt = AdamW::new(model.parameters(), 3e-3).weight_decay(1e-4);
    let mut losses = Vec::new();
    for epoch in 1..=epochs {
        let mut total = 0.0;
        for batch in train_dl {
            let (numbers, district, kind, rent) = batch?;
            let predicted = model.forward(&numbers.to(device)?, &district.to(device)?, &kind.to(device)?)?;
            let loss = F::mse_loss(&predicted, &rent.to(device)?)?;
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
    Ok(losses)
}

/// The mean squared error and the mean absolute error of normalized rents.
fn assess(model: &Model, test_dl: &Batches, device: &Device) -> Result<(f64, f64)> {
    no_grad(|| {
        let (mut squares, mut errors) = (0.0, 0.0);
        for batch in test_dl {
            let (numbers, district, kind, rent) = batch?;
            let predicted = model.forward(&numbers.to(device)?, &district.to(device)?, &kind.to(device)?)?;
            let error = (predicted - rent.to(device)?)?;
            squares += error.pow(2.0)?.sum(..)?.item::<f64>()?;
            errors += error.abs()?.sum(..)?.item::<f64>()?;
        }
        let n = test_dl.n_samples() as f64;
        Ok((squares / n, errors / n))
    })
}

/// Writes rents that depend on area, district, kind, floor and age, with up to 10 % of noise.
fn write_table(path: &Path, n: usize, seed: u64) -> Result<()> {
    let dice = Generator::new(seed);
    let mut text = "area,floor,age,district,kind,rent\n".to_owned();
    for _ in 0..n {
        let (area, floor, age) = (20 + dice.below(100), dice.below(8), dice.below(90));
        let (district, kind) = (dice.below(12) as usize, dice.below(4) as usize);
        let per_area = 9.0 + (district * 7 % 12) as f64 * 0.8 + [0.0, 2.5, -1.5, 4.0][kind];
        let rent = area as f64 * (per_area - 0.03 * age as f64) + 15.0 * floor as f64;
        let rent = rent * (0.9 + 0.2 * dice.next_f64());
        let (district, kind) = (DISTRICTS[district], KINDS[kind]);
        writeln!(text, "{area},{floor},{age},{district},{kind},{rent:.2}")?;
    }
    Ok(fs::write(path, text)?)
}

/// Compares one step on eight rows with PyTorch's.
fn beside_pytorch(device: &Device) -> Result<()> {
    let model = Model::new(12, 4)?.to(device)?;
    beside::fill(&model.named_parameters())?;
    let (numbers, target) = (beside::numbers(&[8, 3], 1000, device)?, beside::numbers(&[8], 1001, device)?);
    let district = Tensor::on(device).new([0, 11, 3, 3, 5, 6, 10, 1])?;
    let kind = Tensor::on(device).new([0, 1, 2, 3, 0, 1, 2, 3])?;
    let mut opt = AdamW::new(model.parameters(), 1e-3).weight_decay(1e-4);
    beside::one_step("tabular", &model.named_parameters(), &mut opt, &|| {
        Ok(F::mse_loss(&model.forward(&numbers, &district, &kind)?, &target)?)
    })
}
