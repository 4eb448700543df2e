//! "Save and Load the Model" of PyTorch's "Learn the Basics": weights, also in PyTorch's format, and all that
//! training needs.
//!
//! `cargo run --release --example basics_save_load` (the page:
//! <https://docs.pytorch.org/tutorials/beginner/basics/saveloadrun_tutorial.html>). The page downloads a VGG-16. This
//! example uses a small network of the same kind with random weights, since saving is the same.

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Context, Result, ensure};
use common::options::Options;
use pagelock::nn::{load_torch, save_torch};
use pagelock::prelude::*;

fn main() -> Result<()> {
    let options = Options::read("PyTorch's save and load: weights, for PyTorch too, and all that training needs")?;
    let (device, out) = (options.device()?, options.folder()?);
    println!("no data set: the images and weights are random numbers (seed {})", options.seed);

    // Saving and loading model weights
    let model = vgg()?.to(&device)?;
    model.eval();
    let images = Tensor::on(&device).randn([2, 3, 32, 32])?;
    let expected = no_grad(|| model.forward(&images))?.to_vec::<f32>()?;
    let safetensors = out.join("model_weights.safetensors");
    let torch = out.join("model_weights.pth");
    save_safetensors(&model.state_dict(), &safetensors)?;
    save_torch(&model.state_dict(), &torch)?; // torch.save(model.state_dict(), 'model_weights.pth')
    println!("weights are in {} and, for torch.load, in {}", safetensors.display(), torch.display());

    for (name, weights) in [("safetensors", load_safetensors(&safetensors)?), ("pth", load_torch(&torch)?)] {
        let model = vgg()?.to(&device)?; // we do not load the weights, i.e. create an untrained model
        ensure!(
            no_grad(|| model.forward(&images))?.to_vec::<f32>()? != expected,
            "the new model has the outputs of the saved one before the weights are loaded"
        );
        model.load_state_dict(&weights)?; // torch.load(…, weights_only=True): nothing in a file is executed
        model.eval();
        let answers = no_grad(|| model.forward(&images))?.to_vec::<f32>()?;
        ensure!(answers == expected, "with the weights from {name}, the outputs differ");
        println!("{name}: {} tensors loaded, the answers are the same bits", weights.len());
    }

    // Saving and loading models with shapes: PyTorch pickles the class. In Rust the program defines the struct, and a
    // checkpoint holds the weights, the optimizer's state and that of the random generator.
    let mut opt = Sgd::new(model.parameters(), 1e-3).momentum(0.9);
    let step = |model: &Sequential, opt: &mut Sgd| {
        model.forward(&images)?.pow(2.0)?.mean(..)?.backward()?;
        opt.step()?;
        opt.zero_grad();
        anyhow::Ok(())
    };
    step(&model, &mut opt)?;
    let mut checkpoints = Checkpoints::open(out.join("checkpoints"))?.keep_last(1);
    checkpoints.save(1, Checkpoint::new().model(&model)?.optimizer(&opt)?.random()?)?; // returns at once
    step(&model, &mut opt)?;
    let went_on = no_grad(|| model.forward(&images))?.to_vec::<f32>()?;

    let resumed = vgg()?.to(&device)?;
    let mut opt = Sgd::new(resumed.parameters(), 1e-3).momentum(0.9);
    checkpoints.wait()?;
    let saved = checkpoints.latest()?.context("no checkpoint was saved")?;
    saved.load_model(&resumed)?;
    saved.load_optimizer(&mut opt)?;
    saved.load_random()?;
    resumed.eval();
    step(&resumed, &mut opt)?;
    let answers = no_grad(|| resumed.forward(&images))?.to_vec::<f32>()?;
    ensure!(answers == went_on, "training from the checkpoint gave other outputs than training without a stop");
    println!("checkpoint: training goes on from it with the same bits");
    Ok(())
}

/// Blocks of convolutions, each with pooling, and a head, as in VGG (Simonyan and Zisserman, 2014), but small.
fn vgg() -> Result<Sequential> {
    Ok(Sequential::new((
        Sequential::new((Conv2d::new(3, 16, 3)?.padding(1), ReLU, MaxPool2d::new(2))),
        Sequential::new((Conv2d::new(16, 32, 3)?.padding(1), ReLU, MaxPool2d::new(2))),
        Flatten::new(),
        Sequential::new((Linear::new(32 * 8 * 8, 64)?, ReLU, Dropout::new(0.5), Linear::new(64, 10)?)),
    )))
}
