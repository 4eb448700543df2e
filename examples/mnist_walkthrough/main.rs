//! "What is torch.nn really?" in Rust: the tutorial's stages in its order, each self-contained.
//!
//! Every stage prints the tutorial's figures, and beside them what PyTorch 2.15 printed for the same stage with seed
//! 0 (`reference.py` reproduces that). The random numbers differ, so the figures are similar but not equal.
//!
//! `cargo run --release --example mnist_walkthrough` (the tutorial: <https://docs.pytorch.org/tutorials/beginner/nn_tutorial.html>)

#[path = "../common/mod.rs"]
mod common;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use pagelock::nn::functional as F;
use pagelock::prelude::*;

const BS: usize = 64; // batch size
const EPOCHS: usize = 2;

/// 50,000 training images and 10,000 validation images; each is a row of 784 numbers from 0 to 1.
struct Data {
    x_train: Tensor,
    y_train: Tensor<Int>,
    x_valid: Tensor,
    y_valid: Tensor<Int>,
}

/// "What is torch.nn really?", stage by stage, with PyTorch's figures beside ours
#[derive(Parser)]
struct Args {
    /// Folder with the four MNIST files [default: $PAGELOCK_DATA/mnist, else the cache folder, downloaded once]
    #[arg(long)]
    data: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args: Args = common::arguments();
    let mnist = args.data.iter().fold(Mnist::new(), |mnist, folder| mnist.folder(folder));
    let digits = mnist.open_or_generate(42)?;
    println!("{digits:#}");
    let data = Data {
        x_train: digits.train.flat()?,
        y_train: digits.train.labels()?,
        x_valid: digits.valid.flat()?,
        y_valid: digits.valid.labels()?,
    };
    println!("x_train: {}", data.x_train.shape());
    println!("y_train: {}", data.y_train);

    bare_tensors(&data)?;
    module_and_parameter(&data)?;
    linear(&data)?;
    optimizer(&data)?;
    dataset(&data)?;
    data_loader(&data)?;
    validation(&data)?;
    fit_and_get_data(&data)?;
    cnn(&data)?;
    sequential(&data)?;
    wrapped_loader(&data)?;
    device(&data)?;
    Ok(())
}

/// Nothing but tensors: a linear model, softmax, loss and update written by hand. Then the same loss with
/// `F::cross_entropy`.
fn bare_tensors(Data { x_train, y_train, .. }: &Data) -> Result<()> {
    stage("Neural net from scratch (no nn)");
    manual_seed(42);
    let weights = (Tensor::randn([784, 10])? / 784f32.sqrt())?.set_requires_grad(true);
    let bias = Tensor::zeros(10)?.set_requires_grad(true);

    let log_softmax = |x: Tensor| &x - x.exp()?.sum(-1)?.log()?.unsqueeze(-1);
    let model = |xb: &Tensor| log_softmax((xb.matmul(&weights)? + &bias)?);
    let nll = |input: &Tensor, target: &Tensor<Int>| input.gather(1, &target.unsqueeze(1)?)?.mean(..)?.neg();

    let xb = x_train.narrow(0, 0, BS)?;
    let yb = y_train.narrow(0, 0, BS)?;
    let preds = model(&xb)?;
    println!("preds[0]: {}", preds.select(0, 0)?);
    println!("preds.shape: {}", preds.shape());
    print("loss and accuracy before training", &[nll(&preds, &yb)?.item()?, accuracy(&preds, &yb)?], "2.4608, 0.0469");

    let lr = 0.5; // learning rate
    for _epoch in 0..EPOCHS {
        for (xb, yb) in batches(x_train, y_train)? {
            let loss = nll(&model(&xb)?, &yb)?;
            loss.backward()?;
            no_grad(|| {
                for p in [&weights, &bias] {
                    p.sub_(&(p.grad().context("backward left no gradient")? * lr)?)?;
                    p.zero_grad();
                }
                anyhow::Ok(())
            })?;
        }
    }
    let (xb, yb) = batches(x_train, y_train)?.pop().context("there is no last batch")?;
    let preds = model(&xb)?;
    print("loss and accuracy after it", &[nll(&preds, &yb)?.item()?, accuracy(&preds, &yb)?], "0.0838, 1.0000");

    stage("Using nn::functional");
    let model = |xb: &Tensor| xb.matmul(&weights)? + &bias;
    let preds = model(&xb)?;
    print(
        "the same with F::cross_entropy",
        &[F::cross_entropy(&preds, &yb)?.item()?, accuracy(&preds, &yb)?],
        "0.0838, 1.0000",
    );
    Ok(())
}

/// Weights and bias in a struct that knows its parameters.
#[derive(Module)]
struct MnistLogistic {
    weights: Parameter,
    bias: Parameter,
}

impl MnistLogistic {
    fn new() -> Result<MnistLogistic> {
        let weights = (Tensor::randn([784, 10])? / 784f32.sqrt())?;
        Ok(MnistLogistic { weights: Parameter::new(weights), bias: Parameter::new(Tensor::zeros(10)?) })
    }
}

impl Forward for MnistLogistic {
    fn forward(&self, xb: &Tensor) -> pagelock::tensor::Result<Tensor> {
        xb.matmul(&self.weights)? + &self.bias
    }
}

fn module_and_parameter(Data { x_train, y_train, .. }: &Data) -> Result<()> {
    stage("Refactor using Module");
    manual_seed(42);
    let model = MnistLogistic::new()?;
    let before = last_loss(&model, x_train, y_train)?;

    let lr = 0.5;
    for _epoch in 0..EPOCHS {
        for (xb, yb) in batches(x_train, y_train)? {
            F::cross_entropy(&model.forward(&xb)?, &yb)?.backward()?;
            no_grad(|| {
                for p in model.parameters() {
                    p.sub_(&(p.grad().context("backward left no gradient")? * lr)?)?;
                }
                anyhow::Ok(())
            })?;
            model.zero_grad();
        }
    }
    print("loss before and after", &[before, last_loss(&model, x_train, y_train)?], "2.4097, 0.0838");
    Ok(())
}

fn linear(Data { x_train, y_train, .. }: &Data) -> Result<()> {
    stage("Refactor using Linear");
    manual_seed(42);
    let model = Linear::new(784, 10)?;
    let before = last_loss(&model, x_train, y_train)?;

    let lr = 0.5;
    for _epoch in 0..EPOCHS {
        for (xb, yb) in batches(x_train, y_train)? {
            F::cross_entropy(&model.forward(&xb)?, &yb)?.backward()?;
            no_grad(|| {
                for p in model.parameters() {
                    p.sub_(&(p.grad().context("backward left no gradient")? * lr)?)?;
                }
                anyhow::Ok(())
            })?;
            model.zero_grad();
        }
    }
    print("loss before and after", &[before, last_loss(&model, x_train, y_train)?], "2.3092, 0.0813");
    Ok(())
}

/// The model and the optimizer that the next stages train.
fn get_model() -> Result<(Linear, Sgd)> {
    manual_seed(42);
    let model = Linear::new(784, 10)?;
    let opt = Sgd::new(model.parameters(), 0.5);
    Ok((model, opt))
}

fn optimizer(Data { x_train, y_train, .. }: &Data) -> Result<()> {
    stage("Refactor using optim");
    let (model, mut opt) = get_model()?;
    let before = last_loss(&model, x_train, y_train)?;
    for _epoch in 0..EPOCHS {
        for (xb, yb) in batches(x_train, y_train)? {
            F::cross_entropy(&model.forward(&xb)?, &yb)?.backward()?;
            opt.step()?;
            opt.zero_grad();
        }
    }
    print("loss before and after", &[before, last_loss(&model, x_train, y_train)?], "2.3092, 0.0813");
    Ok(())
}

fn dataset(Data { x_train, y_train, .. }: &Data) -> Result<()> {
    stage("Refactor using Dataset");
    let train_ds = TensorDataset::new((x_train.clone(), y_train.clone()))?;
    let (model, mut opt) = get_model()?;
    let before = last_loss(&model, x_train, y_train)?;
    for _epoch in 0..EPOCHS {
        for i in (0..train_ds.len()).step_by(BS) {
            let (xb, yb) = train_ds.slice(i..i + BS)?;
            F::cross_entropy(&model.forward(&xb)?, &yb)?.backward()?;
            opt.step()?;
            opt.zero_grad();
        }
    }
    print("loss before and after", &[before, last_loss(&model, x_train, y_train)?], "2.3092, 0.0813");
    Ok(())
}

fn data_loader(Data { x_train, y_train, .. }: &Data) -> Result<()> {
    stage("Refactor using DataLoader");
    let train_dl = DataLoader::new(TensorDataset::new((x_train.clone(), y_train.clone()))?).batch_size(BS);
    let (model, mut opt) = get_model()?;
    let before = last_loss(&model, x_train, y_train)?;
    for _epoch in 0..EPOCHS {
        for batch in &train_dl {
            let (xb, yb) = batch?;
            F::cross_entropy(&model.forward(&xb)?, &yb)?.backward()?;
            opt.step()?;
            opt.zero_grad();
        }
    }
    print("loss before and after", &[before, last_loss(&model, x_train, y_train)?], "2.3092, 0.0813");
    Ok(())
}

fn validation(Data { x_train, y_train, x_valid, y_valid }: &Data) -> Result<()> {
    stage("Add validation");
    let train_ds = TensorDataset::new((x_train.clone(), y_train.clone()))?;
    let train_dl = DataLoader::new(train_ds).batch_size(BS).shuffle(0);
    let valid_ds = TensorDataset::new((x_valid.clone(), y_valid.clone()))?;
    let valid_dl = DataLoader::new(valid_ds).batch_size(BS * 2);

    let (model, mut opt) = get_model()?;
    for epoch in 0..EPOCHS {
        model.train();
        for batch in &train_dl {
            let (xb, yb) = batch?;
            F::cross_entropy(&model.forward(&xb)?, &yb)?.backward()?;
            opt.step()?;
            opt.zero_grad();
        }
        model.eval();
        let total = no_grad(|| {
            let mut total = 0.0;
            for batch in &valid_dl {
                let (xb, yb) = batch?;
                let loss: f32 = F::cross_entropy(&model.forward(&xb)?, &yb)?.item()?;
                total += loss;
            }
            anyhow::Ok(total)
        })?;
        let valid_loss = total / valid_dl.len()? as f32;
        print(&format!("epoch {epoch}: validation loss"), &[valid_loss], ["0.3001", "0.2907"][epoch]);
    }
    Ok(())
}

/// Does all of the above for any model, in three lines.
fn fit_and_get_data(data: &Data) -> Result<()> {
    stage("Create fit() and get_data()");
    let (train_dl, valid_dl) = loaders(data)?;
    let (model, mut opt) = get_model()?;
    print_epochs(&fit(EPOCHS, &model, F::cross_entropy, &mut opt, &train_dl, &valid_dl)?, ["0.3001", "0.2907"]);
    Ok(())
}

#[derive(Module)]
struct MnistCnn {
    conv1: Conv2d,
    conv2: Conv2d,
    conv3: Conv2d,
}

impl Forward for MnistCnn {
    fn forward(&self, xb: &Tensor) -> pagelock::tensor::Result<Tensor> {
        let xb = xb.view([-1, 1, 28, 28])?;
        let xb = self.conv1.forward(&xb)?.relu()?;
        let xb = self.conv2.forward(&xb)?.relu()?;
        let xb = self.conv3.forward(&xb)?.relu()?;
        xb.avg_pool2d(Pool2dOptions::new(4))?.flatten(1, -1)
    }
}

fn cnn(data: &Data) -> Result<()> {
    stage("Switch to CNN");
    manual_seed(42);
    let (train_dl, valid_dl) = loaders(data)?;
    let model = MnistCnn {
        conv1: Conv2d::new(1, 16, 3)?.stride(2).padding(1),
        conv2: Conv2d::new(16, 16, 3)?.stride(2).padding(1),
        conv3: Conv2d::new(16, 10, 3)?.stride(2).padding(1),
    };
    let mut opt = Sgd::new(model.parameters(), 0.1).momentum(0.9);
    print_epochs(&fit(EPOCHS, &model, F::cross_entropy, &mut opt, &train_dl, &valid_dl)?, ["0.3892", "0.2334"]);
    Ok(())
}

fn sequential(data: &Data) -> Result<()> {
    stage("Using Sequential");
    manual_seed(42);
    let (train_dl, valid_dl) = loaders(data)?;
    let model = Sequential::new((
        Lambda::new(|x: &Tensor| x.view([-1, 1, 28, 28])),
        Conv2d::new(1, 16, 3)?.stride(2).padding(1),
        ReLU,
        Conv2d::new(16, 16, 3)?.stride(2).padding(1),
        ReLU,
        Conv2d::new(16, 10, 3)?.stride(2).padding(1),
        ReLU,
        AvgPool2d::new(4),
        Lambda::new(|x: &Tensor| x.flatten(1, -1)),
    ));
    let mut opt = Sgd::new(model.parameters(), 0.1).momentum(0.9);
    print_epochs(&fit(EPOCHS, &model, F::cross_entropy, &mut opt, &train_dl, &valid_dl)?, ["0.3892", "0.2334"]);
    Ok(())
}

/// The model of the last two stages: any image size, any batch size.
fn pooled_cnn() -> Result<Sequential> {
    manual_seed(42);
    Ok(Sequential::new((
        Conv2d::new(1, 16, 3)?.stride(2).padding(1),
        ReLU,
        Conv2d::new(16, 16, 3)?.stride(2).padding(1),
        ReLU,
        Conv2d::new(16, 10, 3)?.stride(2).padding(1),
        ReLU,
        AdaptiveAvgPool2d::new(1),
        Flatten::new(),
    )))
}

/// The reshaping moves from the model into the loaders.
fn wrapped_loader(data: &Data) -> Result<()> {
    stage("Wrapping DataLoader");
    let (train_dl, valid_dl) = loaders(data)?;
    let train_dl = train_dl.map(|(x, y)| Ok((x.view([-1, 1, 28, 28])?, y)));
    let valid_dl = valid_dl.map(|(x, y)| Ok((x.view([-1, 1, 28, 28])?, y)));
    let model = pooled_cnn()?;
    let mut opt = Sgd::new(model.parameters(), 0.1).momentum(0.9);
    print_epochs(&fit(EPOCHS, &model, F::cross_entropy, &mut opt, &train_dl, &valid_dl)?, ["0.3778", "0.2469"]);
    Ok(())
}

/// Trains the same model on a GPU, if there is one.
fn device(data: &Data) -> Result<()> {
    let device = Device::best();
    stage(&format!("Using your device ({device})"));
    let (train_dl, valid_dl) = loaders(data)?;
    let model = pooled_cnn()?.to(&device)?;
    let preprocess = move |(x, y): (Tensor, Tensor<Int>)| Ok((x.view([-1, 1, 28, 28])?.to(&device)?, y.to(&device)?));
    let (train_dl, valid_dl) = (train_dl.map(preprocess.clone()), valid_dl.map(preprocess));
    let mut opt = Sgd::new(model.parameters(), 0.1).momentum(0.9);
    print_epochs(&fit(EPOCHS, &model, F::cross_entropy, &mut opt, &train_dl, &valid_dl)?, ["0.3778", "0.2469"]);
    Ok(())
}

type Batches = DataLoader<(Tensor, Tensor<Int>)>;

fn loaders(Data { x_train, y_train, x_valid, y_valid }: &Data) -> Result<(Batches, Batches)> {
    let train_ds = TensorDataset::new((x_train.clone(), y_train.clone()))?;
    let valid_ds = TensorDataset::new((x_valid.clone(), y_valid.clone()))?;
    Ok(get_data(train_ds, valid_ds, BS))
}

/// Consecutive batches as views, not copies. The last batch may be smaller.
fn batches(x: &Tensor, y: &Tensor<Int>) -> Result<Vec<(Tensor, Tensor<Int>)>> {
    let slice = |i: usize| {
        let range = i as isize..(i + BS) as isize;
        Ok((x.slice(0, range.clone(), 1)?, y.slice(0, range, 1)?))
    };
    (0..x.dims()[0]).step_by(BS).map(slice).collect()
}

/// The share of images whose largest output is at their label.
fn accuracy(out: &Tensor, yb: &Tensor<Int>) -> Result<f32> {
    Ok(out.argmax(1)?.eq(yb)?.to_float()?.mean(..)?.item()?)
}

/// The loss on the last batch, which the tutorial prints.
fn last_loss(model: &impl Forward, x: &Tensor, y: &Tensor<Int>) -> Result<f32> {
    let (xb, yb) = batches(x, y)?.pop().context("there is no last batch")?;
    Ok(no_grad(|| F::cross_entropy(&model.forward(&xb)?, &yb))?.item()?)
}

fn stage(title: &str) {
    println!("\n{title}");
}

fn print(what: &str, ours: &[f32], pytorch: &str) {
    let ours: Vec<String> = ours.iter().map(|number| format!("{number:.4}")).collect();
    println!("  {what:<36} {:<16} PyTorch: {pytorch}", ours.join(", "));
}

fn print_epochs(epochs: &[Epoch], pytorch: [&str; EPOCHS]) {
    for (epoch, pytorch) in epochs.iter().zip(pytorch) {
        print(&format!("epoch {}: validation loss", epoch.epoch), &[epoch.valid_loss as f32], pytorch);
    }
}
