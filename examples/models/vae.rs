//! A variational autoencoder (Kingma and Welling, 2013), with the layers, the loss and the settings of PyTorch's example.
//!
//! `cargo run --release --example models_vae` (the original: <https://github.com/pytorch/examples/tree/main/vae>)

#[path = "../common/beside.rs"]
mod beside;
#[path = "../common/mod.rs"]
mod common;

use anyhow::{Result, ensure};
use common::options::Options;
use common::{clothes, pictures};
use pagelock::nn::BCELoss;
use pagelock::nn::functional as F;
use pagelock::prelude::*;

#[derive(Module)]
struct Vae {
    fc1: Linear,
    fc21: Linear,
    fc22: Linear,
    fc3: Linear,
    fc4: Linear,
}

/// The results of `forward`, which are a tuple in PyTorch.
struct Output {
    recon: Tensor,
    mu: Tensor,
    logvar: Tensor,
}

impl Vae {
    fn new() -> Result<Self> {
        Ok(Self {
            fc1: Linear::new(784, 400)?,
            fc21: Linear::new(400, 20)?,
            fc22: Linear::new(400, 20)?,
            fc3: Linear::new(20, 400)?,
            fc4: Linear::new(400, 784)?,
        })
    }

    fn encode(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let h1 = F::relu(&self.fc1.forward(x)?)?;
        Ok((self.fc21.forward(&h1)?, self.fc22.forward(&h1)?))
    }

    fn decode(&self, z: &Tensor) -> Result<Tensor> {
        let h3 = F::relu(&self.fc3.forward(z)?)?;
        Ok(F::sigmoid(&self.fc4.forward(&h3)?)?)
    }

    /// `eps` is `[batch, 20]` of normally distributed numbers, which PyTorch's `reparameterize` draws itself.
    fn forward(&self, x: &Tensor, eps: &Tensor) -> Result<Output> {
        let (mu, logvar) = self.encode(&x.reshape([-1, 784])?)?;
        let std = (&logvar * 0.5)?.exp()?;
        let z = (&mu + eps * std)?;
        Ok(Output { recon: self.decode(&z)?, mu, logvar })
    }
}

/// Reconstruction and KL divergence, summed over all elements and the batch.
fn loss_function(Output { recon, mu, logvar }: &Output, x: &Tensor) -> Result<Tensor> {
    let bce = BCELoss::new().reduction(Reduction::Sum).forward(recon, &x.reshape([-1, 784])?)?;
    let kld = (((logvar + 1.0)? - mu.pow(2.0)? - logvar.exp()?)?.sum(..)? * -0.5)?;
    Ok((bce + kld)?)
}

fn main() -> Result<()> {
    let options = Options::read("A variational autoencoder, as in PyTorch's examples")?;
    let (device, out) = (options.device()?, options.folder()?);
    let (set, _) = clothes::open(&options)?;
    beside_pytorch(&device)?;

    let train_loader = DataLoader::new(set.train).batch_size(128).shuffle(options.seed);
    let model = Vae::new()?.to(&device)?;
    let mut optimizer = Adam::new(model.parameters(), 1e-3);
    let epochs = options.pick(3, 10);
    let mut losses = Vec::new();
    for epoch in 1..=epochs {
        model.train();
        let mut train_loss = 0.0;
        for (batch_idx, batch) in train_loader.iter().enumerate() {
            let data = batch?.0.to(&device)?;
            let eps = Tensor::on(&device).randn([data.dims()[0], 20])?;
            let loss = loss_function(&model.forward(&data, &eps)?, &data)?;
            loss.backward()?;
            optimizer.step()?;
            optimizer.zero_grad();
            train_loss += loss.item::<f64>()?;
            if batch_idx % 100 == 0 {
                println!(
                    "Train Epoch: {epoch} [{batch_idx}/{}] Loss: {:.2}",
                    train_loader.len()?,
                    loss.item::<f64>()? / data.dims()[0] as f64
                );
            }
        }
        losses.push(train_loss / train_loader.n_samples() as f64);
        println!("====> Epoch: {epoch} Average loss: {:.4}", losses[epoch - 1]);
    }

    // Draw the first test images above their reconstructions, and images of random codes.
    let (data, _) = DataLoader::new(set.test).batch_size(8).iter().next().expect("there are test images")?;
    let (recon, sample) = no_grad(|| {
        let output = model.forward(&data.to(&device)?, &Tensor::on(&device).zeros([8, 20])?)?;
        let sample = model.decode(&Tensor::on(&device).randn([32, 20])?)?;
        anyhow::Ok((output.recon.view([8, 1, 28, 28])?, sample.view([32, 1, 28, 28])?))
    })?;
    let captions = |names: &[(&str, usize)]| -> Vec<(String, bool)> {
        names.iter().flat_map(|&(name, n)| (0..n).map(move |_| (name.to_owned(), true))).collect()
    };
    let both = Tensor::cat(&[&data, &recon.to(&Device::Cpu)?], 0)?;
    let names = captions(&[("image", 8), ("reconstruction", 8)]);
    pictures::grid(&out.join("reconstruction.svg"), "test images and their reconstructions", 8, &both, &names)?;
    pictures::grid(&out.join("sample.svg"), "images of random codes", 8, &sample, &captions(&[("", 32)]))?;
    println!("reconstruction.svg and sample.svg are in {}", out.display());
    ensure!(losses[epochs - 1] < 0.95 * losses[0], "the loss did not fall by a twentieth: {losses:?}");
    Ok(())
}

/// Compares one step on eight images with PyTorch's.
fn beside_pytorch(device: &Device) -> Result<()> {
    let model = Vae::new()?.to(device)?;
    beside::fill(&model.named_parameters())?;
    let images = beside::numbers(&[8, 1, 28, 28], 1000, device)?.abs()?;
    let eps = beside::numbers(&[8, 20], 1001, device)?;
    let mut opt = Adam::new(model.parameters(), 1e-3);
    beside::one_step("vae", &model.named_parameters(), &mut opt, &|| {
        loss_function(&model.forward(&images, &eps)?, &images)
    })
}
