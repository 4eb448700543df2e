//! Compiled kernels that are part of the crate: the walkthrough's networks and the operations of first programs need
//! no compiler on common GPUs.
//!
//! `cargo xtask kernels` runs this test with NVRTC to write the kernels. Otherwise the test checks that the written
//! kernels belong to the current sources.

mod networks;

use std::path::Path;
use std::{env, fs};

use pagelock_cuda::software::Config;
use pagelock_cuda::{KernelArchive, kernel_origins};
use pagelock_nn::Result;
use pagelock_nn::functional as F;
use pagelock_nn::optim::{Adam, Optimizer, Sgd};
use pagelock_nn::{Conv2d, Dropout, Flatten, Forward, Linear, MaxPool2d, Module, ReLU, Sequential};
use pagelock_tensor::{CapturedStep, DType, Device, Tensor, no_grad};

use networks::cnn;

/// Turing, Ampere (and Ada), Hopper, and two Blackwells. A kernel for one of them also runs on GPUs of the same major
/// version with a higher minor version.
const CAPABILITIES: [(u32, u32); 5] = [(7, 5), (8, 0), (9, 0), (10, 0), (12, 0)];

fn lenet() -> Result<Sequential> {
    Ok(Sequential::new((
        Conv2d::new(1, 16, 5)?.padding(2),
        ReLU,
        MaxPool2d::new(2),
        Conv2d::new(16, 32, 5)?,
        ReLU,
        MaxPool2d::new(2),
        Flatten::new(),
        Linear::new(32 * 5 * 5, 128)?,
        ReLU,
        Dropout::new(0.3),
        Linear::new(128, 10)?,
    )))
}

/// Training steps and an evaluation, as in the examples.
fn train<const N: usize>(
    device: &Device,
    model: &Sequential,
    opt: &mut impl Optimizer,
    shape: [isize; N],
) -> Result<()> {
    let total = Tensor::on(device).zeros(())?;
    let mut step = CapturedStep::new(device);
    for batch in [64, 64, 64, 64, 16] {
        let pixels = Tensor::of(DType::U8).full([batch, 1, 28, 28], 0)?;
        let labels = Tensor::full([batch], 0)?;
        step.run((pixels, labels), |(pixels, labels)| -> Result<()> {
            let images = pixels.scaled(1.0 / 256.0)?.reshape(shape)?;
            let loss = F::cross_entropy(&model.forward(&images)?, labels)?;
            loss.backward()?;
            opt.step()?;
            opt.zero_grad();
            Ok(total.add_scaled_(&loss.detach(), batch as f32)?)
        })?;
    }
    total.zero_()?;
    no_grad(|| {
        for batch in [64, 128, 16] {
            let pixels = Tensor::of(DType::U8).full([batch, 1, 28, 28], 0)?.to(device)?;
            let labels = Tensor::full([batch], 0)?.to(device)?;
            let out = model.forward(&pixels.scaled(1.0 / 256.0)?.reshape(shape)?)?;
            total.add_scaled_(&F::cross_entropy(&out, &labels)?, batch as f32)?;
            out.argmax(1)?.eq(&labels)?.to_float()?.sum(..)?.item::<f32>()?;
            out.softmax(1)?.max(1)?;
        }
        Ok(())
    })
}

/// The walkthrough's first stages.
fn bare_tensors(device: &Device) -> Result<()> {
    let weights = (Tensor::on(device).randn([784, 10])? / 784f32.sqrt())?.set_requires_grad(true);
    let bias = Tensor::on(device).zeros(10)?.set_requires_grad(true);
    let (x, y) = (Tensor::on(device).rand([64, 784])?, Tensor::full([64], 0)?.to(device)?);
    let out = (x.matmul(&weights)? + &bias)?;
    let log_softmax = (&out - out.exp()?.sum(-1)?.log()?.unsqueeze(-1)?)?;
    let loss = log_softmax.gather(1, &y.unsqueeze(1)?)?.mean(..)?.neg()?;
    loss.backward()?;
    no_grad(|| {
        for parameter in [&weights, &bias] {
            if let Some(grad) = parameter.grad() {
                parameter.sub_(&grad.mul_scalar(0.5)?)?;
                parameter.add_scaled_(&grad, -0.5)?;
            }
            parameter.zero_grad();
        }
        Ok(())
    })
}

/// Operations of first programs.
fn first_steps(device: &Device) -> Result<()> {
    let x = Tensor::on(device).rand([4, 6])?;
    let (z, row) = (Tensor::on(device).ones([4, 6])?, Tensor::on(device).ones([6])?);
    for y in [(&x + &z)?, (&x - &z)?, (&x * &z)?, (&x / &z)?, (&x + &row)?, (&x * &row)?, x.maximum(&z)?] {
        y.relu()?.exp()?.log()?.sqrt()?.tanh()?.sigmoid()?.abs()?.neg()?.pow(2.0)?;
    }
    x.add_scalar(1.0)?.mul_scalar(2.0)?;
    for y in [x.sum(..)?, x.sum(0)?, x.sum(1)?, x.mean(..)?, x.mean(0)?, x.mean(1)?, x.max(..)?, x.min(..)?] {
        y.to_vec::<f32>()?;
    }
    x.matmul(&x.t()?)?.t()?.contiguous()?.softmax(1)?.log_softmax(1)?;
    x.argmax(1)?;
    x.eq(&x)?.to_float()?;
    x.gt(&row)?;
    x.index_select(0, &Tensor::full([2], 0)?.to(device)?)?;
    // Batches that are picked on the device.
    let index = Tensor::full([64], 0)?.to(device)?;
    Tensor::on(device).of(DType::U8).full([100, 1, 28, 28], 0)?.index_select(0, &index)?;
    Tensor::on(device).full([100], 0)?.index_select(0, &index)?;
    x.to_dtype(DType::F64)?.to_dtype(DType::F32)?.to_int()?.to_float()?;
    Tensor::on(device).randn([3])?.fill_(1.0)?;
    x.add_(&x)?;
    Ok(x.mul_scalar_(2.0)?)
}

fn all(capability: (u32, u32)) -> Result<()> {
    let config = Config { kernels_for: Some(capability), ..Config::default() };
    let device = pagelock_cuda::Device::software(config).map_err(pagelock_tensor::Error::NoDevice)?;
    let device = Device::try_from(&device)?;
    first_steps(&device)?;
    bare_tensors(&device)?;
    let logistic = Sequential::new((Linear::new(784, 10)?,)).to(&device)?;
    train(&device, &logistic, &mut Sgd::new(logistic.parameters(), 0.5), [-1, 784])?;
    for model in [cnn()?.to(&device)?, lenet()?.to(&device)?] {
        train(&device, &model, &mut Sgd::new(model.parameters(), 0.1).momentum(0.9), [-1, 1, 28, 28])?;
        train(&device, &model, &mut Adam::new(model.parameters(), 1e-3), [-1, 1, 28, 28])?;
    }
    Ok(())
}

#[test]
fn the_walkthrough_needs_no_compiler() {
    if env::var_os("PAGELOCK_WRITE_KERNELS").is_some() {
        return write();
    }
    for capability in CAPABILITIES {
        let before = kernel_origins();
        let done = all(capability);
        let after = kernel_origins();
        let missing = (after.compiled - before.compiled) + (after.from_cache - before.from_cache);
        let all_from_archive = done.is_ok() && missing == 0 && after.from_archive > before.from_archive;
        let said =
            "kernels have other sources than when they were compiled: run `cargo xtask kernels`, which needs NVRTC";
        assert!(all_from_archive, "{said} ({missing} of {capability:?}; {done:?})");
    }
}

fn write() {
    let mut archive = KernelArchive::default();
    for capability in CAPABILITIES {
        archive.record(capability, || all(capability)).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tensor/src/cuda/kernels.bin");
    let bytes = archive.to_bytes();
    println!("{} kernels, {} bytes, in {}", archive.len(), bytes.len(), path.display());
    fs::write(path, bytes).unwrap();
}
