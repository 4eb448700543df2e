//! Averages of weights against PyTorch's `AveragedModel`, whose values `../golden/averaged_models.py` wrote.

use crate::pytorch::{self, devices};
use pagelock_nn::optim::AveragedModel;
use pagelock_nn::{Buffer, Module, Parameter};
use pagelock_tensor::{CapturedStep, DType, Device, Tensor, no_grad};

#[derive(Module)]
struct Weights {
    weight: Parameter,
    running: Buffer,
}

fn weights(dtype: DType, device: &Device) -> Weights {
    let weights = Weights {
        weight: Parameter::new(Tensor::zeros([2, 3]).unwrap()),
        running: Buffer::new(Tensor::zeros(2).unwrap()),
    };
    weights.to_dtype(dtype).unwrap().to(device).unwrap()
}

/// Sets the values of step `step`, as the script does.
fn set(model: &Weights, step: usize) {
    let numbers = |n: usize| (0..n).map(|i| ((3 * i + 5 * step) % 7) as f64 / 4.0).collect::<Vec<_>>();
    for (tensor, n) in [(model.weight.as_tensor(), 6), (&model.running, 2)] {
        let numbers = Tensor::from_vec(numbers(n), *tensor.shape()).unwrap();
        let numbers = numbers.to_dtype(tensor.dtype()).unwrap().to(&tensor.device()).unwrap();
        no_grad(|| tensor.copy_(&numbers)).unwrap();
    }
}

type Make = fn(AveragedModel<Weights>) -> AveragedModel<Weights>;

/// The averages, under the script's names.
fn averages() -> [(&'static str, Make); 4] {
    [
        ("swa", |model| model),
        ("ema", |model| model.ema(0.9)),
        ("swa_buffers", |model| model.use_buffers(true)),
        ("ema_buffers", |model| model.ema(0.6).use_buffers(true)),
    ]
}

#[test]
fn averages_of_six_updates_are_pytorchs() {
    let golden = pytorch::json("averaged_models.json");
    for device in devices() {
        for (dtype, key, bound) in [(DType::F32, "f32", 1e-6), (DType::F64, "f64", 1e-14)] {
            for (name, make) in averages() {
                let model = weights(dtype, &device);
                let averaged = AveragedModel::new(weights(dtype, &device)).unwrap().to(&device).unwrap();
                let averaged = make(averaged);
                for step in 0..6 {
                    set(&model, step);
                    averaged.update_parameters(&model).unwrap();
                    let found = [averaged.module.weight.to_vec::<f64>(), averaged.module.running.to_vec::<f64>()];
                    for (i, found) in found.into_iter().flat_map(Result::unwrap).enumerate() {
                        let expected = golden[name][key][step][i].as_f64().unwrap();
                        let error = (found - expected).abs();
                        assert!(error <= bound, "{name} {key} step {step}: {found} instead of {expected} on {device}");
                    }
                }
                assert_eq!(averaged.n_averaged.item::<i64>().unwrap(), 6);
            }
        }
    }
}

#[test]
fn an_update_can_be_part_of_a_captured_step() {
    for device in devices() {
        for (name, make) in averages() {
            let averaged = || make(AveragedModel::new(weights(DType::F32, &device)).unwrap().to(&device).unwrap());
            let (model, eager, captured) = (weights(DType::F32, &device), averaged(), averaged());
            let mut step = CapturedStep::new(&device);
            for i in 0..8 {
                set(&model, i);
                eager.update_parameters(&model).unwrap();
                step.run((), |()| captured.update_parameters(&model)).unwrap();
                let values = |of: &AveragedModel<Weights>| of.module.weight.to_vec::<f32>().unwrap();
                assert_eq!(values(&captured), values(&eager), "{name} on {device}");
            }
        }
    }
}

#[test]
fn names_are_pytorchs_and_an_average_goes_on_after_loading() {
    let averaged = || AveragedModel::new(weights(DType::F32, &Device::Cpu)).unwrap();
    let (model, first, second) = (weights(DType::F32, &Device::Cpu), averaged(), averaged());
    (0..3).for_each(|step| {
        set(&model, step);
        first.update_parameters(&model).unwrap();
    });
    let dict = first.state_dict();
    assert_eq!(dict.names().collect::<Vec<_>>(), ["module.weight", "module.running", "n_averaged"]);
    second.load_state_dict(&dict).unwrap();
    set(&model, 3);
    first.update_parameters(&model).unwrap();
    second.update_parameters(&model).unwrap();
    assert_eq!(second.module.weight.to_vec::<f32>().unwrap(), first.module.weight.to_vec::<f32>().unwrap());
}

#[test]
fn another_model_and_a_decay_outside_its_range_are_refused() {
    let averaged = AveragedModel::new(weights(DType::F32, &Device::Cpu)).unwrap();
    let refused = |model: Weights| averaged.update_parameters(&model).unwrap_err().to_string();
    let (weight, running) = (Parameter::new(Tensor::zeros([3, 2]).unwrap()), Buffer::new(Tensor::zeros(2).unwrap()));
    assert_eq!(
        refused(Weights { weight, running }),
        "AveragedModel: `weight` is [2, 3], but the model's `weight` is [3, 2]; average a model of the same structure"
    );
    let error = averaged.update_parameters(&(weights(DType::F32, &Device::Cpu), weights(DType::F32, &Device::Cpu)));
    assert_eq!(
        error.unwrap_err().to_string(),
        "AveragedModel: the averaged model has 1 parameters, but the model has 2; average a model of the same structure"
    );
    let error = averaged.ema(1.5).update_parameters(&weights(DType::F32, &Device::Cpu)).unwrap_err();
    assert_eq!(error.to_string(), "AveragedModel: decay is 1.5; it must be from 0 to 1");
}
