//! "A Gentle Introduction to torch.autograd" of PyTorch's "60 minute blitz": one step of a network, a derivative by hand,
//! frozen layers.
//!
//! `cargo run --release --example blitz_autograd` (the page:
//! <https://docs.pytorch.org/tutorials/beginner/blitz/autograd_tutorial.html>). The page downloads a ResNet-18. This
//! example uses a small network with random weights, since the steps are the same.

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Context, Result, ensure};
use common::options::Options;
use pagelock::prelude::*;
use pagelock::tensor::autograd::Backward;

fn main() -> Result<()> {
    let options = Options::read("PyTorch's blitz, autograd: one step, a derivative by hand, frozen layers")?;
    let device = options.device()?;
    println!("no data set: an image and its labels are random numbers (seed {})", options.seed);

    // Usage in PyTorch
    let mut model = Pretrained::new()?.to(&device)?;
    let data = Tensor::on(&device).rand([1, 3, 64, 64])?;
    let labels = Tensor::on(&device).rand([1, 1000])?;
    let prediction = model.forward(&data)?; // forward pass
    let loss = (prediction - labels)?.sum(..)?;
    loss.backward()?; // backward pass
    let mut optim = Sgd::new(model.parameters(), 1e-2).momentum(0.9);
    let bias = model.fc.bias.clone().context("the last layer has no bias")?;
    let before = bias.to_vec::<f32>()?;
    optim.step()?; // gradient descent
    let moved = before.iter().zip(bias.to_vec::<f32>()?).map(|(before, after)| before - after);
    // The loss is a sum, so each bias has the gradient 1 and goes down by the learning rate.
    ensure!(moved.into_iter().all(|by| (by - 1e-2).abs() < 1e-6), "a bias did not go down by 0.01");
    println!("one step: every bias of the last layer went down by the learning rate, 0.01");

    // Differentiation in Autograd
    let a = Tensor::on(&device).new([2.0, 3.0])?.set_requires_grad(true);
    let b = Tensor::on(&device).new([6.0, 4.0])?.set_requires_grad(true);
    let q = ((a.pow(3.0)? * 3.0)? - b.pow(2.0)?)?;
    let external_grad = Tensor::on(&device).new([1.0, 1.0])?;
    q.backward_with(Backward { gradient: Some(external_grad), ..Backward::default() })?;
    let (a_grad, b_grad) = (a.grad().context("a has no gradient")?, b.grad().context("b has no gradient")?);
    println!("9a² == a.grad: {}", (a.detach().pow(2.0)? * 9.0)?.eq(&a_grad)?); // tensor([True, True])
    println!("-2b == b.grad: {}", (b.detach() * -2.0)?.eq(&b_grad)?); // tensor([True, True])
    ensure!(
        a_grad.to_vec::<f32>()? == [36.0, 81.0] && b_grad.to_vec::<f32>()? == [-12.0, -8.0],
        "the gradients are {a_grad} and {b_grad}, not 9a² and -2b"
    );

    // Exclusion from the DAG
    let (x, y) = (Tensor::rand([5, 5])?, Tensor::rand([5, 5])?);
    let z = Tensor::rand([5, 5])?.set_requires_grad(true);
    let (a, b) = ((&x + &y)?, (&x + &z)?);
    println!("Does `a` require gradients?: {}", a.requires_grad()); // False
    println!("Does `b` require gradients?: {}", b.requires_grad()); // True
    ensure!(!a.requires_grad() && b.requires_grad(), "only b, which depends on z, should require a gradient");

    // Freeze all the parameters in the network, then replace the last layer by a new one, which is not frozen
    model.requires_grad_(false);
    model.fc = Linear::new(32, 10)?.to(&device)?;
    let mut optimizer = Sgd::new(model.parameters(), 1e-2).momentum(0.9);
    let weights = |layers: &Sequential| -> Result<Vec<Vec<f32>>> {
        layers.parameters().iter().map(|p| Ok(p.to_vec()?)).collect()
    };
    let before = weights(&model.features)?;
    model.forward(&data)?.pow(2.0)?.sum(..)?.backward()?;
    optimizer.step()?;
    ensure!(weights(&model.features)? == before, "the step changed frozen layers");
    ensure!(model.features.parameters().iter().all(|p| p.grad().is_none()), "a frozen layer has a gradient");
    let trained: Vec<String> =
        model.named_parameters().into_iter().filter(|(_, p)| p.requires_grad()).map(|(name, _)| name).collect();
    println!("trained after freezing: {trained:?}");
    ensure!(trained == ["fc.weight", "fc.bias"], "more than the new layer is trained: {trained:?}");
    Ok(())
}

/// Convolutions and a linear layer called `fc`, as in PyTorch's ResNet.
#[derive(Module)]
struct Pretrained {
    features: Sequential,
    fc: Linear,
}

impl Pretrained {
    fn new() -> Result<Self> {
        let features = Sequential::new((
            Conv2d::new(3, 16, 3)?.stride(2).padding(1),
            BatchNorm2d::new(16)?,
            ReLU,
            Conv2d::new(16, 32, 3)?.stride(2).padding(1),
            BatchNorm2d::new(32)?,
            ReLU,
            AdaptiveAvgPool2d::new(1),
            Flatten::new(),
        ));
        Ok(Self { features, fc: Linear::new(32, 1000)? })
    }
}

impl Forward for Pretrained {
    fn forward(&self, x: &Tensor) -> pagelock::tensor::Result<Tensor> {
        self.fc.forward(&self.features.forward(x)?)
    }
}
