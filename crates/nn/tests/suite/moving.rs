//! Models that move between devices. A software device, which only holds and copies tensors, stands in for a GPU.

use pagelock_cuda::software;
use pagelock_nn::optim::{Adam, Optimizer, Sgd};
use pagelock_nn::{BatchNorm1d, Buffer, Conv2d, Forward, Linear, Module, Parameter, ReLU, Result, Sequential};
use pagelock_tensor::{Device, Generator, Tensor};

use super::{cnn, pytorch};

/// A new software device.
fn elsewhere() -> Device {
    let device = pagelock_cuda::Device::software(software::Config::default()).unwrap();
    Device::try_from(&device).unwrap()
}

/// One parameter in two fields, and a buffer.
#[derive(Module)]
struct Tied {
    one: Parameter,
    other: Parameter,
    seen: Buffer,
}

fn tied() -> Result<Tied> {
    let one = Parameter::new(Tensor::new([1.0, 2.0])?);
    Ok(Tied { other: one.clone(), one, seen: Buffer::new(Tensor::new([3.0])?) })
}

#[test]
fn everything_moves_and_keeps_its_values_and_names() -> Result<()> {
    let device = elsewhere();
    let model = cnn()?;
    let values = |model: &Sequential| -> Vec<(String, Vec<f32>)> {
        let dict = model.state_dict();
        dict.iter().map(|(name, tensor)| (name.to_owned(), tensor.float().unwrap().to_vec().unwrap())).collect()
    };
    let before = values(&model);
    let model = model.to(&device)?;
    assert!(model.parameters().iter().all(|parameter| parameter.device() == device && parameter.requires_grad()));
    assert_eq!(before, values(&model));
    Ok(())
}

#[test]
fn what_is_shared_stays_shared_and_buffers_come_along() -> Result<()> {
    let device = elsewhere();
    let model = tied()?.to(&device)?;
    assert!(model.one.is_same(&model.other));
    assert_eq!((model.parameters().len(), model.seen.device()), (1, device));
    assert_eq!(model.seen.to_vec::<f32>()?, [3.0]);
    Ok(())
}

#[test]
fn counters_move_with_their_model() -> Result<()> {
    let device = elsewhere();
    let layer = BatchNorm1d::new(1)?;
    layer.forward(&Tensor::new([[1.0], [2.0]])?)?;
    let layer = layer.to(&device)?;
    let count = layer.state_dict().get_int("num_batches_tracked").unwrap();
    assert_eq!((count.device(), count.to(&Device::Cpu)?.item::<i64>()?), (device, 1));
    Ok(())
}

#[test]
fn a_model_that_is_there_already_stays_the_same() -> Result<()> {
    let layer = Linear::new(3, 2)?;
    let weight = layer.weight.clone();
    assert!(layer.to(&Device::Cpu)?.weight.is_same(&weight));
    Ok(())
}

/// The values after three steps. If `moves`, the model moves to another device and back before the last step.
fn trained(opt: fn(Vec<Parameter>) -> Box<dyn Optimizer>, moves: bool) -> Result<Vec<f32>> {
    let mut model = tied()?;
    let mut opt = opt(model.parameters());
    for step in 0..3 {
        if moves && step == 2 {
            model.to_(&elsewhere())?;
            model.to_(&Device::Cpu)?;
        }
        (&model.one * &model.other)?.sum(..)?.backward()?;
        opt.step()?;
        opt.zero_grad();
    }
    Ok(model.one.to_vec()?)
}

#[test]
fn optimizers_follow_with_their_state() -> Result<()> {
    for opt in [
        (|parameters| Box::new(Sgd::new(parameters, 0.1).momentum(0.9)) as _) as fn(Vec<Parameter>) -> _,
        |parameters| Box::new(Adam::new(parameters, 0.1)) as _,
    ] {
        assert_eq!(trained(opt, true)?, trained(opt, false)?);
    }
    Ok(())
}

/// Weights and biases after three steps. If `turns`, weights are stored with channels last from the second step on.
fn trained_on_images(
    device: &Device,
    opt: fn(Vec<Parameter>) -> Box<dyn Optimizer>,
    turns: bool,
) -> Result<Vec<Tensor>> {
    let random = Generator::new(3);
    let (one, other) = (Conv2d::new_with(32, 32, 3, &random)?.padding(1), Conv2d::new_with(32, 8, 1, &random)?);
    let mut model = Sequential::new((one, ReLU, other)).to(device)?;
    let images = Tensor::randn_with([16, 32, 30, 30], &random)?.to(device)?.channels_last()?;
    let mut opt = opt(model.parameters());
    for step in 0..3 {
        if turns && step == 1 {
            model = model.channels_last()?;
            assert!(
                model.parameters().iter().all(|parameter| parameter.dims().len() == 1 || parameter.is_channels_last())
            );
        }
        let out = model.forward(&images)?;
        out.mul(&out)?.mean(..)?.backward()?;
        opt.step()?;
        opt.zero_grad();
    }
    model.state_dict().iter().map(|(_, tensor)| Ok(tensor.float()?.to(&Device::Cpu)?)).collect()
}

#[test]
fn channels_last_weights_are_trained_and_saved_like_contiguous_ones() -> Result<()> {
    let mut devices = vec![Device::Cpu];
    devices.extend(Some(Device::best()).filter(|device| !device.is_cpu()));
    for device in devices {
        for opt in [
            (|parameters| Box::new(Sgd::new(parameters, 0.1).momentum(0.9)) as _) as fn(Vec<Parameter>) -> _,
            |parameters| Box::new(Adam::new(parameters, 0.01)) as _,
        ] {
            let (plain, turned) = (trained_on_images(&device, opt, false)?, trained_on_images(&device, opt, true)?);
            assert_eq!((plain.len(), turned.len()), (4, 4));
            for (plain, turned) in plain.iter().zip(&turned) {
                assert_eq!(plain.dims(), turned.dims());
                let pairs = plain.to_vec::<f64>()?.into_iter().zip(turned.to_vec::<f64>()?);
                let apart = pytorch::largest(pairs.map(|(plain, turned)| (plain - turned).abs()));
                assert!(apart <= 1e-5, "{apart} apart on {device}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_device_that_is_full_leaves_the_model_where_it_is() -> Result<()> {
    let device = pagelock_cuda::Device::software(software::Config::default()).unwrap();
    device.memory_budget().set_limit(100_000_u64);
    let mut model = (Linear::new(10, 10)?, Linear::new(1_000, 1_000)?);
    let refused = model.to_(&Device::try_from(&device).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("budget `device 0`"), "{refused}");
    assert!(model.parameters().iter().all(|parameter| parameter.device() == Device::Cpu));
    Ok(())
}
