//! Ten steps of optimizers with settings that `optimizers.rs` does not test, against PyTorch's, which
//! `../golden/optimizers.py` wrote.

use crate::pytorch::{self, devices};
use pagelock_nn::Parameter;
use pagelock_nn::optim::{
    Adadelta, Adagrad, Adam, AdamW, Adamax, AdjustLr, Asgd, Lion, Muon, NAdam, Optimizer, RAdam, RmsProp, Sgd,
    clip_grad_value_,
};
use pagelock_tensor::{DType, Device, Tensor};

const LR: f64 = 0.05;

type Make = fn(Vec<Parameter>) -> Box<dyn Optimizer>;

/// The optimizers, under the script's names.
fn optimizers() -> Vec<(&'static str, Make)> {
    vec![
        ("sgd_maximize", |p| Box::new(Sgd::new(p, LR).momentum(0.9).weight_decay(0.1).maximize(true))),
        ("adam_amsgrad", |p| Box::new(Adam::new(p, LR).betas(0.8, 0.9).weight_decay(0.1).amsgrad(true))),
        ("adam_maximize", |p| Box::new(Adam::new(p, LR).weight_decay(0.1).maximize(true))),
        ("adamw_amsgrad", |p| Box::new(AdamW::new(p, LR).betas(0.8, 0.9).amsgrad(true))),
        ("rmsprop", |p| Box::new(RmsProp::new(p, LR))),
        ("rmsprop_momentum", |p| Box::new(RmsProp::new(p, LR).alpha(0.8).eps(1e-3).weight_decay(0.1).momentum(0.7))),
        ("rmsprop_centered", |p| Box::new(RmsProp::new(p, LR).alpha(0.8).centered(true).maximize(true))),
        ("rmsprop_both", |p| Box::new(RmsProp::new(p, LR).alpha(0.8).momentum(0.7).centered(true))),
        ("adagrad", |p| Box::new(Adagrad::new(p, LR))),
        ("adagrad_settings", |p| {
            let opt = Adagrad::new(p, LR).lr_decay(0.1).weight_decay(0.1);
            Box::new(opt.initial_accumulator_value(0.3).eps(1e-3))
        }),
        ("adagrad_maximize", |p| Box::new(Adagrad::new(p, LR).maximize(true))),
        ("adadelta", |p| Box::new(Adadelta::new(p, 1.0))),
        ("adadelta_settings", |p| Box::new(Adadelta::new(p, LR).rho(0.7).eps(1e-2).weight_decay(0.1).maximize(true))),
        ("adamax", |p| Box::new(Adamax::new(p, LR))),
        ("adamax_settings", |p| {
            Box::new(Adamax::new(p, LR).betas(0.7, 0.8).eps(1e-2).weight_decay(0.1).maximize(true))
        }),
        ("nadam", |p| Box::new(NAdam::new(p, LR))),
        ("nadam_settings", |p| {
            let opt = NAdam::new(p, LR).betas(0.7, 0.8).eps(1e-2).weight_decay(0.1);
            Box::new(opt.momentum_decay(0.2).maximize(true))
        }),
        ("nadam_decoupled", |p| {
            Box::new(NAdam::new(p, LR).weight_decay(0.1).momentum_decay(0.2).decoupled_weight_decay(true))
        }),
        ("radam", |p| Box::new(RAdam::new(p, LR))),
        ("radam_settings", |p| Box::new(RAdam::new(p, LR).betas(0.7, 0.9).eps(1e-2).weight_decay(0.1).maximize(true))),
        ("radam_decoupled", |p| {
            Box::new(RAdam::new(p, LR).betas(0.8, 0.95).weight_decay(0.1).decoupled_weight_decay(true))
        }),
        ("asgd", |p| Box::new(Asgd::new(p, LR))),
        ("asgd_settings", |p| {
            Box::new(Asgd::new(p, LR).lambd(0.1).alpha(0.6).t0(2.0).weight_decay(0.1).maximize(true))
        }),
        ("lion", |p| Box::new(Lion::new(p, LR))),
        ("lion_settings", |p| Box::new(Lion::new(p, LR).betas(0.7, 0.8).weight_decay(0.1))),
        ("adamw_both", |p| Box::new(AdamW::new(p, LR).betas(0.5, 0.7).weight_decay(0.2).amsgrad(true).maximize(true))),
    ]
}

/// The optimizers that take only matrices.
fn muons() -> Vec<(&'static str, Make)> {
    vec![
        ("muon", |p| Box::new(Muon::new(p, LR))),
        ("muon_settings", |p| {
            let opt = Muon::new(p, LR).weight_decay(0.3).momentum(0.8).nesterov(false);
            Box::new(opt.ns_coefficients([2.0, -1.5, 0.5]).ns_steps(9))
        }),
        ("muon_rms", |p| Box::new(Muon::new(p, LR).adjust_lr(AdjustLr::MatchRmsAdamW))),
        ("muon_spectral", |p| Box::new(Muon::new(p, LR).adjust_lr(AdjustLr::SpectralUnclamped))),
    ]
}

fn grad(step: usize, parameter: &Parameter) -> Tensor {
    let number = |i: usize| ((7 * i + 5 * step) % 11) as f64 - 5.0;
    let numbers: Vec<f64> = (0..parameter.len()).map(|i| number(i) / (4 + 3 * (step % 4)) as f64).collect();
    let grad = Tensor::from_vec(numbers, *parameter.shape()).unwrap();
    grad.to_dtype(parameter.dtype()).unwrap().to(&parameter.device()).unwrap()
}

/// Initial values: a matrix, and a vector or, for Muon, a column.
fn starts(is_vector: bool) -> [Tensor; 2] {
    let weight = Tensor::new([[0.5, -1.0, 0.25], [2.0, -0.125, 1.5]]).unwrap();
    let bias = Tensor::new([0.75, -0.5]).unwrap();
    [weight, if is_vector { bias } else { Tensor::new([[0.75], [-0.5], [1.0]]).unwrap() }]
}

fn ten_steps_agree(device: &Device, optimizers: &[(&str, Make)], starts: &[Tensor; 2], key: &str, bound: f64) {
    let golden = pytorch::json("optimizers.json");
    let dtype = if key == "f64" { DType::F64 } else { DType::F32 };
    for (name, make) in optimizers {
        let on =
            |start: &Tensor| Parameter::new(start.to_dtype(dtype).unwrap().add_scalar(0).unwrap().to(device).unwrap());
        let parameters: Vec<Parameter> = starts.iter().map(on).collect();
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

#[test]
fn ten_steps_with_each_setting_agree_with_pytorch_in_f32() {
    devices().iter().for_each(|device| ten_steps_agree(device, &optimizers(), &starts(true), "f32", 2e-6));
}

#[test]
fn ten_steps_with_each_setting_agree_with_pytorch_in_f64() {
    devices().iter().for_each(|device| ten_steps_agree(device, &optimizers(), &starts(true), "f64", 1e-12));
}

/// The bound is wide because Muon computes in `bf16`, where PyTorch rounds other intermediate results.
#[test]
fn ten_steps_of_muon_agree_with_pytorch() {
    devices().iter().for_each(|device| ten_steps_agree(device, &muons(), &starts(false), "f32", 5e-3));
}

#[test]
fn muon_refuses_parameters_that_are_not_matrices() {
    let vector = Parameter::new(Tensor::zeros(3).unwrap());
    vector.set_grad(Some(Tensor::ones(3).unwrap())).unwrap();
    let error = Muon::new([vector], LR).step().unwrap_err().to_string();
    assert_eq!(error, "Muon: a parameter is [3], not a matrix; give it to another optimizer, such as AdamW");
}

#[test]
fn settings_outside_their_range_are_refused() {
    let refused: Vec<(Make, &str)> = vec![
        (|p| Box::new(RmsProp::new(p, LR).alpha(-1.0)), "RmsProp: alpha is -1; it must be at least 0"),
        (|p| Box::new(RmsProp::new(p, LR).momentum(f64::NAN)), "RmsProp: momentum is NaN; it must be at least 0"),
        (|p| Box::new(Adagrad::new(p, LR).lr_decay(-0.5)), "Adagrad: lr_decay is -0.5; it must be at least 0"),
        (|p| Box::new(Adadelta::new(p, LR).rho(1.5)), "Adadelta: rho is 1.5; it must be from 0 to 1"),
        (
            |p| Box::new(Adamax::new(p, LR).betas(1.0, 0.5)),
            "Adamax: the first beta is 1; it must be at least 0 and below 1",
        ),
        (|p| Box::new(NAdam::new(p, LR).momentum_decay(-1.0)), "NAdam: momentum_decay is -1; it must be at least 0"),
        (|p| Box::new(RAdam::new(p, LR).eps(-1.0)), "RAdam: eps is -1; it must be at least 0"),
        (|p| Box::new(Asgd::new(p, LR).weight_decay(-1.0)), "Asgd: weight_decay is -1; it must be at least 0"),
        (|p| Box::new(Lion::new(p, -1.0)), "Lion: lr is -1; it must be at least 0"),
        (|p| Box::new(Muon::new(p, LR).ns_steps(100)), "Muon: ns_steps is 100; it must be below 100"),
    ];
    for (make, expected) in refused {
        let parameter = Parameter::new(Tensor::ones([2, 2]).unwrap());
        parameter.set_grad(Some(Tensor::ones([2, 2]).unwrap())).unwrap();
        assert_eq!(make(vec![parameter.clone()]).step().unwrap_err().to_string(), expected);
        assert_eq!(parameter.to_vec::<f32>().unwrap(), [1.0; 4]);
    }
    let error = clip_grad_value_(Vec::<Parameter>::new(), -1.0).unwrap_err().to_string();
    assert_eq!(error, "clip_grad_value_: clip_value is -1; it must be at least 0");
}

#[test]
fn a_group_by_name_of_parameters_without_names_is_refused_instead_of_being_empty() {
    let weight = Parameter::new(Tensor::ones([2]).unwrap());
    let by_name = |opt: Sgd| opt.group_where(|name, _| name == "bias", |group| group.with_lr(0.0));
    let refused = by_name(Sgd::new([weight.clone()], LR)).step().unwrap_err().to_string();
    assert!(refused.contains("found no parameters, and some have no names"), "{refused}");
    by_name(Sgd::new([("weight".to_owned(), weight)], LR)).step().unwrap();
}
