//! Compares one training step of a model, from weights that a formula gives, with PyTorch's losses and gradients.
//!
//! `examples/models/reference.py` computes the same numbers with PyTorch, and writes them to `examples/models/golden.json`.

use anyhow::{Context, Result, ensure};
use pagelock::prelude::*;
use serde_json::Value;

const GOLDEN: &str = include_str!("../models/golden.json");

/// The largest relative difference from PyTorch's numbers that is allowed.
const BOUND: f64 = 1e-4;

/// Numbers from -1 to 1 that are the same here and in `reference.py`: each is a multiple of 2⁻²³.
pub(crate) fn numbers(shape: &[usize], stream: u64, device: &Device) -> Result<Tensor> {
    let number = |i: usize| {
        let bits = (i as u64).wrapping_mul(2_654_435_761).wrapping_add(stream.wrapping_mul(40_503)) as u32 >> 8;
        bits as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    Ok(Tensor::from_vec(values, Shape::new(shape)?)?.to(device)?)
}

/// Fills every parameter: matrices and kernels as a usual initialization does, scales near 1, and biases near 0.
pub(crate) fn fill(parameters: &[(String, Parameter)]) -> Result<()> {
    for (position, (name, parameter)) in parameters.iter().enumerate() {
        let numbers = numbers(parameter.dims(), position as u64, &parameter.device())?;
        let fan_in: usize = parameter.dims().iter().skip(1).product();
        let values = match parameter.rank() {
            0 | 1 if name.ends_with("weight") => ((numbers * 0.1)? + 1.0)?,
            0 | 1 => (numbers * 0.1)?,
            _ => (numbers * (3.0 / fan_in as f64).sqrt())?,
        };
        no_grad(|| parameter.copy_(&values))?;
    }
    Ok(())
}

/// Takes one step of `opt` on `loss`, and compares the losses before and after it and all gradients with PyTorch's.
pub(crate) fn one_step(
    model: &str,
    parameters: &[(String, Parameter)],
    opt: &mut dyn Optimizer,
    loss: &dyn Fn() -> Result<Tensor>,
) -> Result<()> {
    let golden: Value = serde_json::from_str(GOLDEN)?;
    let golden = golden.get(model).with_context(|| format!("golden.json has no model `{model}`"))?;
    let number = |value: &Value| value.as_f64().context("golden.json has something else than a number");
    let gradients = golden["gradients"].as_object().context("golden.json has no gradients")?;
    let trained: Vec<_> = parameters.iter().filter(|(_, parameter)| parameter.requires_grad()).collect();
    ensure!(trained.len() == gradients.len(), "{} gradients, and PyTorch has {}", trained.len(), gradients.len());

    let before = loss()?;
    before.backward()?;
    let mut largest: f64 = 0.0;
    let mut compare = |what: &str, ours: f64, theirs: f64, size: f64| {
        let difference = (ours - theirs).abs() / size;
        largest = largest.max(difference);
        ensure!(difference <= BOUND, "{model}: {what} is {ours}, and PyTorch's {theirs}");
        Ok(())
    };
    let theirs = number(&golden["loss"])?;
    compare("the loss", before.item()?, theirs, theirs.abs())?;
    let mut norms = Vec::new();
    for (_, values) in gradients {
        norms.push(number(&values[0])?);
    }
    let least = 1e-3 * norms.into_iter().fold(0.0, f64::max); // a gradient near zero is mostly rounding error
    for (name, parameter) in trained {
        let gradient = parameter.grad().with_context(|| format!("{name} has no gradient"))?;
        let [norm, dot] = [number(&gradients[name][0])?, number(&gradients[name][1])?];
        let direction = numbers(gradient.dims(), 7, &gradient.device())?;
        compare(&format!("the gradient's norm of {name}"), gradient.norm(2.0, ..)?.item()?, norm, norm.max(least))?;
        let ours = (&gradient * &direction)?.sum(..)?.item()?;
        compare(&format!("the gradient of {name} in a direction"), ours, dot, norm.max(least))?;
    }
    opt.step()?;
    opt.zero_grad();
    let theirs = number(&golden["loss_after"])?;
    let after = loss()?.item()?;
    compare("the loss after the step", after, theirs, theirs.abs())?;
    println!(
        "one step from PyTorch's weights: loss {:.6}, then {after:.6}; {largest:.0e} from PyTorch",
        before.item::<f64>()?
    );
    Ok(())
}
