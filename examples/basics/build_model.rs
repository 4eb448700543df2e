//! "Build the Neural Network" of PyTorch's "Learn the Basics": a module, its layers one by one, its parameters.
//!
//! `cargo run --release --example basics_build_model` (the page:
//! <https://docs.pytorch.org/tutorials/beginner/basics/buildmodel_tutorial.html>)

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Result, ensure};
use common::options::Options;
use pagelock::prelude::*;

fn main() -> Result<()> {
    let options = Options::read("PyTorch's build_model: a module, its layers one by one, its parameters")?;
    println!("no data set: the images are random numbers (seed {})", options.seed);

    // Get device for training
    let device = options.device()?;
    println!("Using {device} device");

    // Define the class: below
    let model = NeuralNetwork::new()?.to(&device)?;
    println!("{model}");

    let x = Tensor::on(&device).rand([1, 28, 28])?;
    let logits = model.forward(&x)?;
    let pred_probab = logits.softmax(1)?;
    let y_pred = pred_probab.argmax(1)?;
    println!("Predicted class: {y_pred}"); // tensor([7], device='cuda:0'), by chance
    let total: f32 = pred_probab.sum(..)?.item()?;
    ensure!((total - 1.0).abs() < 1e-5, "the probabilities add up to {total}, not to 1");

    // Model layers
    let input_image = Tensor::rand([3, 28, 28])?;
    println!("{}", input_image.shape()); // torch.Size([3, 28, 28])

    let flatten = Flatten::new();
    let flat_image = flatten.forward(&input_image)?;
    println!("{}", flat_image.shape()); // torch.Size([3, 784])

    let layer1 = Linear::new(28 * 28, 20)?;
    let hidden1 = layer1.forward(&flat_image)?;
    println!("{}", hidden1.shape()); // torch.Size([3, 20])

    println!("Before ReLU: {hidden1}\n");
    let hidden1 = ReLU.forward(&hidden1)?;
    println!("After ReLU: {hidden1}");
    ensure!(hidden1.min(..)?.item::<f32>()? >= 0.0, "there are numbers below 0 after a ReLU: {hidden1}");

    let seq_modules = Sequential::new((flatten, layer1, ReLU, Linear::new(20, 10)?));
    let input_image = Tensor::rand([3, 28, 28])?;
    let logits = seq_modules.forward(&input_image)?;

    let softmax = Softmax::new(1);
    let pred_probab = softmax.forward(&logits)?;
    ensure!(pred_probab.dims() == [3, 10], "the shape is {}, not [3, 10]", pred_probab.shape());

    // Model parameters
    println!("Model structure: {model}\n");
    for (name, param) in model.named_parameters() {
        println!("Layer: {name} | Size: {} | Values : {}\n", param.shape(), param.slice(0, 0..2, 1)?);
    }
    let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
    ensure!(names[0] == "linear_relu_stack.0.weight" && names.len() == 6, "the names differ from PyTorch's: {names:?}");
    ensure!(
        model.num_parameters() == 669_706,
        "there are {} parameters, and in PyTorch 669706",
        model.num_parameters()
    );
    Ok(())
}

#[derive(Module)]
struct NeuralNetwork {
    flatten: Flatten,
    linear_relu_stack: Sequential,
}

impl NeuralNetwork {
    fn new() -> Result<Self> {
        Ok(Self {
            flatten: Flatten::new(),
            linear_relu_stack: Sequential::new((
                Linear::new(28 * 28, 512)?,
                ReLU,
                Linear::new(512, 512)?,
                ReLU,
                Linear::new(512, 10)?,
            )),
        })
    }
}

impl Forward for NeuralNetwork {
    fn forward(&self, x: &Tensor) -> pagelock::tensor::Result<Tensor> {
        let x = self.flatten.forward(x)?;
        self.linear_relu_stack.forward(&x)
    }
}
