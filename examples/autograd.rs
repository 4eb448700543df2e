//! Gradients: what is recorded, second derivatives, and errors in place of wrong gradients.
//!
//! Run with `cargo run --release --example autograd`. Read it from top to bottom: each part prints what it shows.

#[path = "common/mod.rs"]
mod common;

use anyhow::Result;
use clap::Parser;
use pagelock::prelude::*;
use pagelock::tensor::autograd::{Backward, Tolerance, grad, gradcheck};

/// Gradients: what is recorded, second derivatives, and errors in place of wrong gradients
#[derive(Parser)]
struct Args {}

fn main() -> Result<()> {
    let Args {} = common::arguments();
    println!("1. Operations on a leaf that requires a gradient are recorded; backward() computes its gradient.\n");
    let x = Tensor::new([1.0, 2.0, 3.0])?.set_requires_grad(true);
    let y = x.pow(2.0)?.sum(..)?;
    y.backward()?;
    println!("   y = Σ x², x = {:.0}: dy/dx = {:.0}", x.detach(), x.grad().expect("backward stores a gradient"));

    println!("\n2. Derivatives are made of tensor operations, so they can be differentiated again.\n");
    let x = Tensor::new([0.5])?.set_requires_grad(true);
    let mut derivative = x.tanh()?;
    for order in 1..=3 {
        let create_graph = Backward { create_graph: true, ..Backward::default() };
        derivative = grad(&[&derivative], &[&x], create_graph)?.remove(0).expect("tanh depends on x");
        let value: f64 = derivative.item()?;
        println!("   derivative {order} of tanh at 0.5: {value:.6}");
    }

    println!("\n3. Gradient descent by hand: fit a line to noisy points, in ten lines.\n");
    manual_seed(1);
    let input = Tensor::rand([200])?;
    let noise = (Tensor::randn([200])? * 0.05)?;
    let target = ((&input * 3.0)? + 0.5 + noise)?;
    let (slope, offset) = (Tensor::zeros(())?.set_requires_grad(true), Tensor::zeros(())?.set_requires_grad(true));
    for step in 0..=300 {
        let loss = (&input * &slope + &offset - &target)?.pow(2.0)?.mean(..)?;
        loss.backward()?;
        for parameter in [&slope, &offset] {
            let grad = parameter.grad().expect("the loss depends on it");
            no_grad(|| parameter.add_scaled_(&grad, -0.5))?;
            parameter.zero_grad();
        }
        if step % 100 == 0 {
            let [loss, slope, offset]: [f64; 3] = [loss.item()?, slope.item()?, offset.item()?];
            println!("   step {step:>3}: loss {loss:.5}, y = {slope:.3}·x + {offset:.3}");
        }
    }

    println!("\n4. If a tensor that backward() needs was changed, that is an error, not a wrong gradient.\n");
    let w = Tensor::new([1.0, 2.0])?.set_requires_grad(true);
    let hidden = w.exp()?;
    let loss = hidden.mul(&hidden)?.sum(..)?;
    hidden.detach().fill_(0)?;
    println!("   {}", loss.backward().expect_err("`hidden` was saved, then filled"));

    println!("\n5. Any function can be checked against finite differences, in f64.\n");
    let point = Tensor::of(DType::F64).new([[0.3, -1.2], [0.7, 2.0]])?;
    let f = |inputs: &[Tensor]| inputs[0].softmax(-1)?.log()?.pow(2.0)?.sum(..);
    gradcheck(f, &[&point], Tolerance::default())?;
    println!("   the derivative of Σ log(softmax(x))² agrees within {:.0e}", Tolerance::default().relative);
    Ok(())
}
