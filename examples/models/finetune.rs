//! Fine-tuning: a network that knows five classes learns five others from few pictures, with its first layer frozen
//! and a larger learning rate for its new head.
//!
//! `cargo run --release --example models_finetune`

#[path = "../common/beside.rs"]
mod beside;
#[path = "../common/mod.rs"]
mod common;

use anyhow::{Result, ensure};
use common::options::Options;
use common::photos;
use pagelock::nn::functional as F;
use pagelock::prelude::*;

#[derive(Module)]
struct Net {
    features: Sequential,
    fc: Linear,
}

impl Net {
    fn new() -> Result<Self> {
        let features = Sequential::new((
            Conv2d::new(3, 8, 3)?.padding(1),
            ReLU,
            MaxPool2d::new(2),
            Conv2d::new(8, 16, 3)?.padding(1),
            ReLU,
            MaxPool2d::new(2),
            Conv2d::new(16, 32, 3)?.padding(1),
            ReLU,
            AdaptiveAvgPool2d::new(2),
            Flatten::new(),
        ));
        Ok(Self { features, fc: Linear::new(128, 5)? })
    }

    /// Freezes the first convolution, and trains the other features with a smaller learning rate than the head.
    fn prepared(mut self) -> (Self, Sgd) {
        self.freeze(|name| name.starts_with("features.0."));
        let rest: Vec<Parameter> = self.features.parameters().into_iter().filter(|p| p.requires_grad()).collect();
        let opt = Sgd::new(rest, 0.01).momentum(0.9).group(self.fc.parameters(), |head| head.with_lr(0.05));
        (self, opt)
    }
}

impl Forward for Net {
    fn forward(&self, x: &Tensor) -> pagelock::tensor::Result<Tensor> {
        self.fc.forward(&self.features.forward(x)?)
    }
}

fn main() -> Result<()> {
    let options = Options::read("Fine-tuning: new classes from few pictures, with frozen layers and groups of rates")?;
    let (device, out) = (options.device()?, options.folder()?);
    println!("drawn shapes (seed {}): five classes with many pictures, five others with few", options.seed);
    beside_pytorch(&device)?;

    let (many, few) = (options.pick(1_500, 10_000), 200);
    let known = shapes(options.seed, 0, many, false)?;
    let new = shapes(options.seed, 1 << 32, few, true)?;
    let test = shapes(options.seed, 1 << 40, options.pick(600, 4_000), true)?;

    // The pretrained network
    let net = Net::new()?.to(&device)?;
    let mut opt = Sgd::new(net.parameters(), 0.05).momentum(0.9);
    train(&net, &mut opt, &known, options.pick(6, 10), options.seed)?;
    let path = out.join("pretrained.safetensors");
    save_safetensors(&net.state_dict(), &path)?;

    // Load the features only: the new head keeps its random weights
    let net = Net::new()?.to(&device)?;
    let weights = load_safetensors(&path)?.renamed(|name| name.starts_with("features.").then(|| name.to_owned()));
    let misfit = net.load_state_dict_partly(&weights)?;
    println!("loaded {} tensors; {} are new", weights.len(), misfit.missing.join(" and "));
    let (net, mut opt) = net.prepared();
    let frozen = |net: &Net| Ok::<_, anyhow::Error>(net.features.parameters()[0].to_vec::<f32>()?);
    let before = frozen(&net)?;
    let epochs = 15;
    train(&net, &mut opt, &new, epochs, options.seed)?;
    ensure!(frozen(&net)? == before, "the frozen layer changed");
    let tuned = accuracy(&net, &test)?;

    // Train on the same few pictures, from random weights
    let scratch = Net::new()?.to(&device)?;
    let mut opt = Sgd::new(scratch.parameters(), 0.05).momentum(0.9);
    train(&scratch, &mut opt, &new, epochs, options.seed)?;
    let from_scratch = accuracy(&scratch, &test)?;
    println!("of {} test pictures of the new classes, {tuned:.1} % are right after fine-tuning,", test.1.len());
    println!("and {from_scratch:.1} % after the same training from random weights");
    ensure!(tuned > from_scratch, "fine-tuning was no better than training from scratch");
    Ok(())
}

type Data = (Tensor, Tensor<Int>);

/// Draws `n` pictures and keeps those of the first five classes, or of the other five. Labels are 0 to 4 in both
/// cases.
fn shapes(seed: u64, first: u64, n: usize, others: bool) -> Result<Data> {
    let (images, labels, _) = photos::draw(seed, first, n)?;
    let mask = if others { labels.ge_scalar(5)? } else { labels.lt_scalar(5)? };
    let rows = mask.nonzero()?.squeeze(1)?;
    let labels = labels.index_select(0, &rows)?.add_scalar(if others { -5 } else { 0 })?;
    let images = (images.index_select(0, &rows)?.scaled(2.0 / 255.0)? - 1.0)?;
    Ok((images, labels))
}

fn train(net: &Net, opt: &mut Sgd, (images, labels): &Data, epochs: usize, seed: u64) -> Result<()> {
    let train_dl = DataLoader::new(TensorDataset::new((images.clone(), labels.clone()))?).batch_size(25).shuffle(seed);
    let device = net.parameters()[0].device();
    for epoch in 1..=epochs {
        let mut total = 0.0;
        for batch in &train_dl {
            let (xb, yb) = batch?;
            let loss = F::cross_entropy(&net.forward(&xb.to(&device)?)?, &yb.to(&device)?)?;
            loss.backward()?;
            opt.step()?;
            opt.zero_grad();
            total += loss.item::<f64>()?;
        }
        if epoch % 5 == 0 || epoch == epochs {
            println!("  epoch {epoch}/{epochs}: loss {:.3}", total / train_dl.len()? as f64);
        }
    }
    Ok(())
}

/// The accuracy in percent.
fn accuracy(net: &Net, (images, labels): &Data) -> Result<f64> {
    let device = net.parameters()[0].device();
    let right =
        no_grad(|| net.forward(&images.to(&device)?)?.argmax(1)?.eq(&labels.to(&device)?)?.to_float()?.mean(..))?;
    Ok(100.0 * right.item::<f64>()?)
}

/// Compares one step on eight pictures with PyTorch's.
fn beside_pytorch(device: &Device) -> Result<()> {
    let net = Net::new()?.to(device)?;
    beside::fill(&net.named_parameters())?;
    let (net, mut opt) = net.prepared();
    let images = beside::numbers(&[8, 3, 32, 32], 1000, device)?;
    let labels = Tensor::on(device).new([0, 1, 2, 3, 4, 0, 1, 2])?;
    beside::one_step("finetune", &net.named_parameters(), &mut opt, &|| {
        Ok(F::cross_entropy(&net.forward(&images)?, &labels)?)
    })
}
