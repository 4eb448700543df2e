//! "Automatic Differentiation with torch.autograd" of PyTorch's "Learn the Basics", cell by cell.
//!
//! `cargo run --release --example basics_autograd` (the page:
//! <https://docs.pytorch.org/tutorials/beginner/basics/autogradqs_tutorial.html>). The example `autograd` shows what
//! differs from PyTorch, and higher derivatives.

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Context, Result, ensure};
use common::options::Options;
use pagelock::nn::functional as F;
use pagelock::prelude::*;
use pagelock::tensor::autograd::Backward;

fn main() -> Result<()> {
    let options = Options::read("PyTorch's autograd: one layer, its gradients, switching them off, Jacobian products")?;
    let device = options.device()?;
    println!("no data set: the tensors are made here (seed {})", options.seed);

    let on = Tensor::on(&device);
    let x = on.ones(5)?; // input tensor
    let y = on.zeros(3)?; // expected output
    let w = on.randn([5, 3])?.set_requires_grad(true);
    let b = on.randn(3)?.set_requires_grad(true);
    let z = (x.unsqueeze(0)?.matmul(&w)?.squeeze(0)? + &b)?;
    let loss = F::binary_cross_entropy_with_logits(&z, &y)?;

    println!("\nTensors, Functions and Computational graph");
    println!("Gradient function for z = {:?}", z.grad_fn()); // <AddBackward0 object at 0x7f…>
    println!("Gradient function for loss = {:?}", loss.grad_fn()); // <BinaryCrossEntropyWithLogitsBackward0 object at …>

    println!("\nComputing Gradients");
    loss.backward()?;
    let (w_grad, b_grad) = (w.grad().context("w has no gradient")?, b.grad().context("b has no gradient")?);
    println!("{w_grad}"); // five equal rows, as every x is 1
    println!("{b_grad}"); // one of these rows
    let by_hand = (z.detach().sigmoid()? / 3.0)?; // d loss / d z = (sigmoid(z) - y) / 3
    ensure!(b_grad.allclose(&by_hand, 1e-5, 1e-7)?, "the gradient of b is {b_grad}, but by hand it is {by_hand}");
    ensure!(
        w_grad.allclose(&by_hand.expand([5, 3])?, 1e-5, 1e-7)?,
        "the rows of w's gradient differ from b's gradient: {w_grad}"
    );

    println!("\nDisabling Gradient Tracking");
    let z = (x.unsqueeze(0)?.matmul(&w)? + &b)?;
    println!("{}", z.requires_grad()); // True
    let z = no_grad(|| x.unsqueeze(0)?.matmul(&w)? + &b)?;
    println!("{}", z.requires_grad()); // False
    ensure!(!z.requires_grad(), "z was recorded in spite of no_grad");
    let z_det = (x.unsqueeze(0)?.matmul(&w)? + &b)?.detach();
    println!("{}", z_det.requires_grad()); // False
    ensure!(!z_det.requires_grad(), "z was recorded in spite of detach");

    println!("\nTensor Gradients and Jacobian Products");
    let inp = on.eye(5)?.narrow(0, 0, 4)?.contiguous()?.set_requires_grad(true); // torch.eye(4, 5)
    let out = (&inp + 1.0)?.pow(2.0)?.t()?;
    let product = || Backward { gradient: out.ones_like().ok(), retain_graph: true, ..Backward::default() };
    out.backward_with(product())?;
    let first = inp.grad().context("the first call left no gradient")?;
    println!("First call\n{first}"); // tensor([[4., 2., 2., 2., 2.],
    //         [2., 4., 2., 2., 2.],
    //         [2., 2., 4., 2., 2.],
    //         [2., 2., 2., 4., 2.]])
    let expected = ((on.eye(5)?.narrow(0, 0, 4)? + 1.0)? * 2.0)?;
    ensure!(first.equal(&expected)?, "the gradient is {first}, but 2 (inp + 1) is {expected}");
    let first = first.to_vec::<f32>()?;
    out.backward_with(product())?;
    let second = inp.grad().context("the second call left no gradient")?;
    println!("\nSecond call\n{second}"); // tensor([[8., 4., 4., 4., 4.], …: gradients add up
    ensure!(
        second.to_vec::<f32>()? == first.iter().map(|value| 2.0 * value).collect::<Vec<_>>(),
        "the second call did not add its gradient to the first: {second}"
    );
    inp.zero_grad();
    out.backward_with(product())?;
    let third = inp.grad().context("the third call left no gradient")?;
    println!("\nCall after zeroing gradients\n{third}"); // tensor([[4., 2., 2., 2., 2.], …
    ensure!(third.to_vec::<f32>()? == first, "zero_grad did not reset the gradient: {third}");
    Ok(())
}
