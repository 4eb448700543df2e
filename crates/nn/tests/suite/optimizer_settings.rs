//! Ten steps of optimizers with settings that `optimizers.rs` has not, against PyTorch's, which `../golden/optimizers.py` wrote.

use crate::pytorch;
use pagelock_nn::Parameter;
use pagelock_nn::optim::{Adam, AdamW, Optimizer, Sgd};
use pagelock_tensor::{DType, Device, Tensor};

const LR: f64 = 0.05;

type Make = fn(Vec<Parameter>) -> Box<dyn Optimizer>;

/// Under the script's names.
fn optimizers() -> Vec<(&'static str, Make)> {
    vec![
        ("sgd_maximize", |p| Box::new(Sgd::new(p, LR).momentum(0.9).weight_decay(0.1).maximize(true))),
        ("adam_amsgrad", |p| Box::new(Adam::new(p, LR).betas(0.8, 0.9).weight_decay(0.1).amsgrad(true))),
        ("adam_maximize", |p| Box::new(Adam::new(p, LR).weight_decay(0.1).maximize(true))),
        ("adamw_amsgrad", |p| Box::new(AdamW::new(p, LR).betas(0.8, 0.9).amsgrad(true))),
        ("adamw_both", |p| Box::new(AdamW::new(p, LR).betas(0.5, 0.7).weight_decay(0.2).amsgrad(true).maximize(true))),
    ]
}

fn grad(step: usize, parameter: &Parameter) -> Tensor {
    let number = |i: usize| ((7 * i + 5 * step) % 11) as f64 - 5.0;
    let numbers: Vec<f64> = (0..parameter.len()).map(|i| number(i) / (4 + 3 * (step % 4)) as f64).collect();
    let grad = Tensor::from_vec(numbers, *parameter.shape()).unwrap();
    grad.to_dtype(parameter.dtype()).unwrap().to(&parameter.device()).unwrap()
}

fn ten_steps_agree(device: &Device, dtype: DType, key: &str, bound: f64) {
    let golden = pytorch::json("optimizers.json");
    for (name, make) in optimizers() {
        let on = |start: Tensor| Parameter::new(start.to_dtype(dtype).unwrap().to(device).unwrap());
        let weight = on(Tensor::new([[0.5, -1.0, 0.25], [2.0, -0.125, 1.5]]).unwrap());
        let parameters = vec![weight, on(Tensor::new([0.75, -0.5]).unwrap())];
        let mut opt = make(parameters.clone());
        for step in 0..10 {
            if step == 5 {
                opt.set_lr(0.02);
            }
            parameters.iter().for_each(|p| p.set_grad(Some(grad(step, p))).unwrap());
            opt.step().unwrap();
            let found = parameters.iter().flat_map(|p| p.to_vec::<f64>().unwrap());
            for (i, found) in found.enumerate() {
                let expected = golden[name][key][step][i].as_f64().unwrap();
                let error = (found - expected).abs() / expected.abs().max(1.0);
                assert!(
                    error <= bound,
                    "{name} {key} step {step} element {i}: {found} instead of {expected} on {device}"
                );
            }
        }
    }
}

fn devices() -> Vec<Device> {
    let gpu = Device::cuda(0).inspect_err(|missing| eprintln!("SKIPPED: {missing}"));
    [Device::Cpu].into_iter().chain(gpu.ok()).collect()
}

#[test]
fn ten_steps_with_each_setting_agree_with_pytorch_in_f32() {
    devices().iter().for_each(|device| ten_steps_agree(device, DType::F32, "f32", 1e-6));
}

#[test]
fn ten_steps_with_each_setting_agree_with_pytorch_in_f64() {
    devices().iter().for_each(|device| ten_steps_agree(device, DType::F64, "f64", 1e-12));
}
