//! A U-Net (Ronneberger et al., 2015) that predicts for each pixel whether it belongs to the shape in the picture.
//!
//! `cargo run --release --example models_unet`. Transposed convolutions upsample, as in the paper.

#[path = "../common/beside.rs"]
mod beside;
#[path = "../common/mod.rs"]
mod common;

use anyhow::{Context, Result, ensure};
use common::options::Options;
use common::{photos, pictures};
use pagelock::nn::{ConvTranspose2d, functional as F};
use pagelock::prelude::*;

/// Two convolutions, each with normalization and ReLU.
fn double_conv(from: usize, to: usize) -> Result<Sequential> {
    Ok(Sequential::new((
        Conv2d::new(from, to, 3)?.padding(1).without_bias(),
        BatchNorm2d::new(to)?,
        ReLU,
        Conv2d::new(to, to, 3)?.padding(1).without_bias(),
        BatchNorm2d::new(to)?,
        ReLU,
    )))
}

#[derive(Module)]
struct UNet {
    down1: Sequential,
    down2: Sequential,
    bottom: Sequential,
    pool: MaxPool2d,
    up2: ConvTranspose2d,
    conv2: Sequential,
    up1: ConvTranspose2d,
    conv1: Sequential,
    out: Conv2d,
}

impl UNet {
    fn new(width: usize) -> Result<Self> {
        Ok(Self {
            down1: double_conv(3, width)?,
            down2: double_conv(width, 2 * width)?,
            bottom: double_conv(2 * width, 4 * width)?,
            pool: MaxPool2d::new(2),
            up2: ConvTranspose2d::new(4 * width, 2 * width, 2)?.stride(2),
            conv2: double_conv(4 * width, 2 * width)?,
            up1: ConvTranspose2d::new(2 * width, width, 2)?.stride(2),
            conv1: double_conv(2 * width, width)?,
            out: Conv2d::new(width, 1, 1)?,
        })
    }
}

impl Forward for UNet {
    fn forward(&self, x: &Tensor) -> pagelock::tensor::Result<Tensor> {
        let d1 = self.down1.forward(x)?; // [batch, width, 32, 32]
        let d2 = self.down2.forward(&self.pool.forward(&d1)?)?; // [batch, 2 width, 16, 16]
        let x = self.bottom.forward(&self.pool.forward(&d2)?)?; // [batch, 4 width, 8, 8]
        let x = self.conv2.forward(&Tensor::cat(&[&self.up2.forward(&x)?, &d2], 1)?)?;
        let x = self.conv1.forward(&Tensor::cat(&[&self.up1.forward(&x)?, &d1], 1)?)?;
        self.out.forward(&x)
    }
}

fn main() -> Result<()> {
    let options = Options::read("A U-Net that finds the pixels of shapes")?;
    let (device, out) = (options.device()?, options.folder()?);
    let (n_train, n_test) = (options.pick(384, 4_000), options.pick(64, 500));
    println!("drawn shapes (seed {}) and where they are: {n_train} to train, {n_test} to test", options.seed);
    beside_pytorch(&device)?;

    let (images, _, masks) = photos::draw(options.seed, 0, n_train)?;
    let train_dl = DataLoader::new(TensorDataset::new((images, masks))?).batch_size(16).shuffle(options.seed);
    let (images, _, masks) = photos::draw(options.seed, 1 << 40, n_test)?;
    let test_dl = DataLoader::new(TensorDataset::new((images, masks))?).batch_size(16);

    let model = UNet::new(options.pick(8, 16))?.to(&device)?;
    let mut opt = Adam::new(model.parameters(), 3e-3);
    let epochs = options.pick(3, 10);
    let (mut losses, mut overlap) = (Vec::new(), 0.0);
    for epoch in 0..epochs {
        model.train();
        let mut total = 0.0;
        for batch in &train_dl {
            let (images, masks) = batch?;
            let (images, masks) = (images.to(&device)?.scaled(1.0 / 255.0)?, masks.to(&device)?);
            let loss = F::binary_cross_entropy_with_logits(&model.forward(&images)?, &masks)?;
            loss.backward()?;
            opt.step()?;
            opt.zero_grad();
            total += loss.item::<f64>()?;
        }
        losses.push(total / train_dl.len()? as f64);
        overlap = intersection_over_union(&model, &test_dl, &device)?;
        println!("epoch {}/{epochs}: loss {:.3}, intersection over union {overlap:.3}", epoch + 1, losses[epoch]);
    }
    pictures::lines(&out.join("loss.svg"), "training loss", "epoch", &[("loss", &losses)])?;
    draw(&model, &test_dl, &device, &out.join("masks.svg"))?;
    println!("loss.svg and masks.svg are in {}", out.display());
    ensure!(
        losses[epochs - 1] < losses[0] && overlap > 0.4,
        "the network learned little: losses {losses:?}, overlap {overlap}"
    );
    Ok(())
}

type Batches = DataLoader<(Tensor<Int>, Tensor)>;

/// The intersection over union of predicted and true masks, over all test pictures.
fn intersection_over_union(model: &UNet, test_dl: &Batches, device: &Device) -> Result<f64> {
    model.eval();
    no_grad(|| {
        let (mut both, mut either) = (0.0, 0.0);
        for batch in test_dl {
            let (images, masks) = batch?;
            let masks = masks.to(device)?;
            let found = model.forward(&images.to(device)?.scaled(1.0 / 255.0)?)?.gt_scalar(0.0)?.to_float()?;
            both += (&found * &masks)?.sum(..)?.item::<f64>()?;
            either += found.maximum(&masks)?.sum(..)?.item::<f64>()?;
        }
        Ok(both / either)
    })
}

/// Draws pictures, their masks and the predicted masks, in three rows.
fn draw(model: &UNet, test_dl: &Batches, device: &Device, path: &std::path::Path) -> Result<()> {
    let (images, masks) = test_dl.iter().next().context("there are no test pictures")??;
    let (images, masks) = (images.narrow(0, 0, 8)?.scaled(1.0 / 255.0)?, masks.narrow(0, 0, 8)?);
    let found = no_grad(|| model.forward(&images.to(device)?)?.sigmoid()?.to(&Device::Cpu))?;
    let gray = |mask: &Tensor| mask.expand([8, 3, 32, 32])?.contiguous();
    let all = Tensor::cat(&[&images, &gray(&masks)?, &gray(&found)?], 0)?;
    let names =
        ["picture", "mask", "found"].into_iter().flat_map(|name| std::iter::repeat_n((name.to_owned(), true), 8));
    pictures::grid(path, "test pictures, their masks and what the network found", 8, &all, &names.collect::<Vec<_>>())
}

/// Compares one step on two pictures with PyTorch's.
fn beside_pytorch(device: &Device) -> Result<()> {
    let model = UNet::new(4)?.to(device)?;
    beside::fill(&model.named_parameters())?;
    let images = beside::numbers(&[2, 3, 32, 32], 1000, device)?;
    let masks = beside::numbers(&[2, 1, 32, 32], 1001, device)?.gt_scalar(0.0)?.to_float()?;
    let mut opt = Adam::new(model.parameters(), 1e-3);
    beside::one_step("unet", &model.named_parameters(), &mut opt, &|| {
        Ok(F::binary_cross_entropy_with_logits(&model.forward(&images)?, &masks)?)
    })
}
