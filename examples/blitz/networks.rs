//! "Neural Networks" of PyTorch's "60 minute blitz": LeNet, a loss, backward, an update by hand and by an optimizer.
//!
//! `cargo run --release --example blitz_networks` (the page:
//! <https://docs.pytorch.org/tutorials/beginner/blitz/neural_networks_tutorial.html>)

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Context, Result, ensure};
use common::options::Options;
use pagelock::nn::MSELoss;
use pagelock::nn::functional as F;
use pagelock::prelude::*;
use pagelock::tensor::autograd::Backward;

fn main() -> Result<()> {
    let options = Options::read("PyTorch's blitz, networks: LeNet, a loss, backward, updates")?;
    let device = options.device()?;
    println!("no data set: the input and the target are random numbers (seed {})", options.seed);

    // Define the network: below
    let net = Net::new()?.to(&device)?;
    println!("{net}"); // the same text as PyTorch's
    let params = net.parameters();
    println!("{}", params.len()); // 10
    println!("{}", params[0].shape()); // conv1's .weight: torch.Size([6, 1, 5, 5])
    ensure!(
        params.len() == 10 && params[0].dims() == [6, 1, 5, 5],
        "there are {} parameters, the first of shape {}",
        params.len(),
        params[0].shape()
    );

    let input = Tensor::on(&device).randn([1, 1, 32, 32])?;
    let out = net.forward(&input)?;
    println!("{out}"); // ten numbers near 0
    net.zero_grad();
    let gradient = Some(Tensor::on(&device).randn([1, 10])?);
    out.backward_with(Backward { gradient, ..Backward::default() })?;

    // Loss Function
    let output = net.forward(&input)?;
    let target = Tensor::on(&device).randn(10)?.view([1, -1])?; // a dummy target, of the shape of the output
    let criterion = MSELoss::new();
    let loss = criterion.forward(&output, &target)?;
    println!("{loss}"); // tensor(1.3389, grad_fn=<MseLossBackward0>), by chance
    println!("{:?}", loss.grad_fn()); // <MseLossBackward0 object at 0x7f…>; next_functions are not public here

    // Backprop
    net.zero_grad(); // zeroes the gradient buffers of all parameters
    let bias = net.conv1.bias.clone().context("conv1 has no bias")?;
    println!("conv1.bias.grad before backward\n{:?}", bias.grad()); // None
    ensure!(bias.grad().is_none(), "there is a gradient before backward");
    loss.backward()?;
    let grad = bias.grad().context("backward left no gradient")?;
    println!("conv1.bias.grad after backward\n{grad}"); // six small numbers

    // Update the weights by hand: weight = weight - learning_rate * gradient
    let learning_rate = 0.01;
    let before = loss.item::<f32>()?;
    for f in net.parameters() {
        let grad = f.grad().context("a parameter has no gradient")?;
        no_grad(|| f.sub_(&(grad * learning_rate)?))?;
    }
    let by_hand: f32 = criterion.forward(&net.forward(&input)?, &target)?.item()?;
    println!("loss {before:.4}, after a step by hand {by_hand:.4}");
    ensure!(by_hand < before, "the step by hand did not lower the loss: {before} before, {by_hand} after");

    // By an optimizer, in the training loop:
    let mut optimizer = Sgd::new(net.parameters(), 0.01);
    optimizer.zero_grad(); // zero the gradient buffers
    let output = net.forward(&input)?;
    let loss = criterion.forward(&output, &target)?;
    loss.backward()?;
    optimizer.step()?; // does the update
    let after: f32 = criterion.forward(&net.forward(&input)?, &target)?.item()?;
    println!("after another step, by the optimizer, {after:.4}");
    ensure!(after < by_hand, "the optimizer's step did not lower the loss: {by_hand} before, {after} after");
    Ok(())
}

/// LeNet: two convolutions with pooling, three linear layers.
#[derive(Module)]
struct Net {
    conv1: Conv2d,
    conv2: Conv2d,
    fc1: Linear,
    fc2: Linear,
    fc3: Linear,
}

impl Net {
    fn new() -> Result<Self> {
        Ok(Self {
            // 1 input image channel, 6 output channels, 5x5 square convolution
            conv1: Conv2d::new(1, 6, 5)?,
            conv2: Conv2d::new(6, 16, 5)?,
            // an affine operation: y = Wx + b
            fc1: Linear::new(16 * 5 * 5, 120)?, // 5*5 from image dimension
            fc2: Linear::new(120, 84)?,
            fc3: Linear::new(84, 10)?,
        })
    }
}

impl Forward for Net {
    fn forward(&self, input: &Tensor) -> pagelock::tensor::Result<Tensor> {
        let c1 = F::relu(&self.conv1.forward(input)?)?; // (N, 6, 28, 28)
        let s2 = F::max_pool2d(&c1, Pool2dOptions::new(2))?; // (N, 6, 14, 14)
        let c3 = F::relu(&self.conv2.forward(&s2)?)?; // (N, 16, 10, 10)
        let s4 = F::max_pool2d(&c3, Pool2dOptions::new(2))?; // (N, 16, 5, 5)
        let s4 = s4.flatten(1, -1)?; // (N, 400)
        let f5 = F::relu(&self.fc1.forward(&s4)?)?; // (N, 120)
        let f6 = F::relu(&self.fc2.forward(&f5)?)?; // (N, 84)
        self.fc3.forward(&f6) // (N, 10)
    }
}
