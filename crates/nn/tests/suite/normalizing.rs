//! A network of batch and layer normalizations, trained from PyTorch's weights: losses, running statistics,
//! evaluation.
//!
//! `../golden/make.py` trained the same network in PyTorch: `model` is its `normalizing`, and `Residual` has the same
//! name there.

use crate::pytorch::{self, devices};
use pagelock_nn::optim::{Optimizer, Sgd};
use pagelock_nn::{
    BatchNorm1d, BatchNorm2d, Conv2d, Flatten, Forward, LayerNorm, Linear, Module, ReLU, Sequential, functional as F,
    load_safetensors, save_safetensors,
};
use pagelock_tensor::{DType, Device, Error, Generator, Half, Result, Tensor, autocast, no_grad};

#[derive(Module)]
struct Residual {
    conv: Conv2d,
    bn: BatchNorm2d,
}

impl Forward for Residual {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        (self.bn.forward(&self.conv.forward(x)?)? + x)?.relu()
    }
}

pub(crate) fn model() -> Result<Sequential> {
    let conv = Conv2d::new(3, 3, 3)?.padding(1).without_bias();
    Ok(Sequential::new((
        Conv2d::new(2, 3, 3)?,
        BatchNorm2d::new(3)?,
        ReLU,
        Residual { conv, bn: BatchNorm2d::new(3)?.momentum(0.3) },
        Flatten::new(),
        LayerNorm::new(48)?,
        Linear::new(48, 5)?,
        BatchNorm1d::new(5)?.momentum(None),
        ReLU,
        LayerNorm::new(5)?.without_bias(),
        BatchNorm1d::new(5)?.without_affine(),
    )))
}

fn trains_as_in_pytorch(device: &Device) {
    let golden = load_safetensors(pytorch::path("normalized.safetensors")).unwrap();
    let model = model().unwrap();
    model.load_state_dict(&pytorch::under(&golden, "before.")).unwrap();
    let model = model.to(device).unwrap();
    let x = golden.get("x").unwrap().to(device).unwrap();
    let labels = Tensor::from_slice(&[0_i64, 1, 2, 3, 4, 0], 6).unwrap().to(device).unwrap();
    let mut opt = Sgd::new(model.parameters(), 0.1).momentum(0.9);
    for expected in golden.get("losses").unwrap().to_vec::<f32>().unwrap() {
        let loss = F::cross_entropy(&model.forward(&x).unwrap(), &labels).unwrap();
        loss.backward().unwrap();
        opt.step().unwrap();
        opt.zero_grad();
        let loss: f32 = loss.item().unwrap();
        assert!((loss - expected).abs() < 1e-5, "{loss} instead of {expected}");
    }
    for (name, theirs) in pytorch::under(&golden, "after.").iter() {
        if let Ok(theirs) = theirs.float() {
            let ours = model.state_dict().get(name).unwrap_or_else(|| panic!("there is no {name}"));
            let difference = pytorch::difference(&ours, &theirs);
            assert!(difference < 2e-5, "{name} differs by {difference}");
        } else {
            let ours = model.state_dict().get_int(name).unwrap_or_else(|| panic!("there is no {name}"));
            assert_eq!(ours.item::<i64>().unwrap(), theirs.int().unwrap().item::<i64>().unwrap(), "{name}");
        }
    }
    model.eval();
    let evaluated = model.forward(&x).unwrap().detach().to(&Device::Cpu).unwrap();
    assert!(pytorch::difference(&evaluated, &golden.get("evaluated").unwrap()) < 1e-4);
    let running_mean = || model.state_dict().get("1.running_mean").unwrap().to_vec::<f32>().unwrap();
    let before = running_mean();
    model.forward(&x).unwrap();
    assert_eq!(running_mean(), before, "evaluation changes nothing");
}

#[test]
fn three_steps_and_the_evaluation_after_them_are_pytorchs() {
    trains_as_in_pytorch(&Device::Cpu);
}

#[test]
fn three_steps_on_a_gpu_are_pytorchs() {
    match Device::cuda(0) {
        Ok(gpu) => trains_as_in_pytorch(&gpu),
        Err(missing) => eprintln!("SKIPPED: {missing}"),
    }
}

#[test]
fn counts_of_batches_are_read_as_pytorch_and_as_this_crate_writes_them() {
    let golden = load_safetensors(pytorch::path("normalized.safetensors")).unwrap();
    assert_eq!(golden.get_int("after.1.num_batches_tracked").unwrap().item::<i64>().unwrap(), 3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let layer = BatchNorm2d::new(2).unwrap();
    layer.forward(&Tensor::randn([2, 2, 3, 3]).unwrap()).unwrap();
    save_safetensors(&layer.state_dict(), &path).unwrap();
    let read = load_safetensors(&path).unwrap();
    assert_eq!(read.get_int("num_batches_tracked").unwrap().item::<i64>().unwrap(), 1);
    BatchNorm2d::new(2).unwrap().load_state_dict(&read).unwrap();
}

#[test]
fn a_batch_norm_followed_by_relu_is_one_operation_with_the_same_result() {
    let x = Tensor::randn([4, 3, 5, 5]).unwrap();
    let layer = || BatchNorm2d::new(3).unwrap();
    let fused = Sequential::new((layer(), ReLU)).forward(&x).unwrap();
    let apart = layer().forward(&x).unwrap().relu().unwrap();
    assert_eq!([&fused, &apart].map(|y| y.grad_fn().unwrap()), ["batch_norm", "relu"]);
    assert_eq!(fused.to_vec::<f32>().unwrap(), apart.to_vec::<f32>().unwrap());
}

#[test]
fn layers_without_running_statistics_use_those_of_the_batch_in_evaluation_too() {
    let x = Tensor::randn([6, 3]).unwrap();
    let layer = BatchNorm1d::new(3).unwrap().without_running_stats();
    let trained: Vec<f32> = layer.forward(&x).unwrap().to_vec().unwrap();
    layer.eval();
    assert_eq!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), trained);
    assert!(layer.named_buffers().is_empty());
}

#[test]
fn an_input_of_another_rank_is_refused_by_name() {
    let x = Tensor::zeros([2, 3, 4, 5]).unwrap();
    assert_eq!(
        BatchNorm1d::new(3).unwrap().forward(&x).unwrap_err().to_string(),
        "BatchNorm1d: the input is [2, 3, 4, 5], but it must be [batch, channels] or [batch, channels, length]; reshape it"
    );
    assert_eq!(
        BatchNorm2d::new(3).unwrap().forward(&x.select(3, 0).unwrap()).unwrap_err().to_string(),
        "BatchNorm2d: the input is [2, 3, 4], but it must be [batch, channels, height, width]; reshape it"
    );
}

/// A convolution, its normalization and relu, twice.
struct Chain {
    convs: [Conv2d; 2],
    norms: [BatchNorm2d; 2],
}

impl Chain {
    fn new(device: &Device) -> pagelock_nn::Result<Self> {
        let conv = |from, to| Conv2d::new_with(from, to, 3, &Generator::new(1))?.without_bias().to(device);
        let norm = |channels| BatchNorm2d::new(channels)?.to(device);
        Ok(Self { convs: [conv(2, 4)?, conv(4, 3)?], norms: [norm(4)?, norm(3)?] })
    }

    /// The outputs of all layers, from the first convolution to the last normalization.
    fn activations(&self, x: &Tensor) -> Result<[Tensor; 4]> {
        let first = self.convs[0].forward(x)?;
        let second = self.norms[0].forward_relu(&first)?;
        let third = self.convs[1].forward(&second)?;
        let last = self.norms[1].forward_relu(&third)?;
        Ok([first, second, third, last])
    }
}

fn under_autocast(device: &Device) -> (Chain, [Tensor; 4]) {
    let chain = Chain::new(device).unwrap();
    let x = Tensor::randn_with([4, 2, 8, 8], &Generator::new(2)).unwrap().to(device).unwrap();
    let activations = autocast(Half::BF16, || chain.activations(&x)).unwrap();
    (chain, activations)
}

#[test]
fn under_autocast_batch_norms_take_and_give_half_activations_with_f32_parameters_and_statistics() {
    for device in devices() {
        let (chain, activations) = under_autocast(&device);
        assert_eq!(activations.each_ref().map(Tensor::dtype), [DType::BF16; 4]);
        // A conversion after a normalization would be the result's last operation.
        let last = activations.each_ref().map(|y| y.grad_fn().unwrap());
        assert_eq!(last, ["conv2d", "batch_norm", "conv2d", "batch_norm"]);
        activations[3].to_dtype(DType::F32).unwrap().sum(..).unwrap().backward().unwrap();
        for norm in &chain.norms {
            let [weight, mean] = [norm.weight.as_deref().unwrap(), norm.running_mean.as_deref().unwrap()];
            assert_eq!([weight, mean, &weight.grad().unwrap()].map(Tensor::dtype), [DType::F32; 3]);
            assert!(mean.to_vec::<f32>().unwrap().iter().all(|&mean| mean != 0.0));
        }
        assert_eq!(chain.convs[0].weight.grad().unwrap().dtype(), DType::F32);
    }
}

#[test]
fn under_autocast_batch_norms_keep_the_half_activations_themselves_and_no_converted_copy() {
    for device in devices() {
        let (_, activations) = under_autocast(&device);
        no_grad(|| activations[2].zero_()).unwrap();
        let error = activations[3].to_dtype(DType::F32).unwrap().sum(..).unwrap().backward().unwrap_err();
        assert!(matches!(error, Error::StaleSaved { op: "batch_norm", .. }), "{error}");
    }
}
