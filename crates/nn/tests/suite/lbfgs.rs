//! LBFGS: steps against PyTorch's, which `../golden/lbfgs.py` wrote, the state dict, and refusals.

use crate::pytorch::{self, devices};
use pagelock_nn::optim::lr_scheduler::{LrScheduler, StepLr};
use pagelock_nn::optim::{Lbfgs, Optimizer, OptimizerState, Setting};
use pagelock_nn::{Error, Parameter, Result, TorchValue};
use pagelock_tensor::{AnyTensor, DType, Device, Tensor};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn parameters(device: &Device) -> Vec<Parameter> {
    let made = [
        Tensor::from_slice(&[0.5_f64, -1.0, 0.25, 1.5], [2, 2]).unwrap(),
        Tensor::from_slice(&[0.75_f64, -0.5], [2]).unwrap(),
    ];
    made.into_iter().map(|start| Parameter::new(start.to(device).unwrap())).collect()
}

/// The script's loss, a Rosenbrock function.
fn loss(parameters: &[Parameter], maximize: bool) -> Result<Tensor> {
    parameters.iter().for_each(|parameter| parameter.zero_grad());
    let all = pagelock_nn::parameters_to_vector(parameters)?;
    let (x, y) = (all.narrow(0, 0, 5)?, all.narrow(0, 1, 5)?);
    let bend = y.sub(&x.pow(2.0)?)?.pow(2.0)?.mul_scalar(10.0)?;
    let loss = bend.add(&x.add_scalar(-1.0)?.pow(2.0)?)?.mean(..)?;
    let loss = if maximize { loss.neg()? } else { loss };
    loss.backward()?;
    Ok(loss)
}

fn make(name: &str, parameters: &[Parameter]) -> Lbfgs {
    let new = |lr| Lbfgs::new(parameters.to_vec(), lr);
    match name {
        "fixed" => new(0.3).max_iter(3),
        "fixed_short_history" => new(0.3).max_iter(4).history_size(2),
        "wolfe" => new(1.0).max_iter(2).strong_wolfe(true),
        "wolfe_long" => new(5.0).max_iter(3).max_eval(6).history_size(3).strong_wolfe(true),
        "wolfe_maximize" => new(0.8).max_iter(2).strong_wolfe(true).maximize(true),
        other => panic!("the script has {other}, and the test has not"),
    }
}

/// The loss before each step and the parameters after it, in the script's format.
fn steps(opt: &mut Lbfgs, parameters: &[Parameter], n_steps: usize, maximize: bool) -> Vec<Vec<f64>> {
    let mut history = Vec::new();
    for _ in 0..n_steps {
        let before = opt.step(|| loss(parameters, maximize)).unwrap();
        let mut row = vec![before.item::<f64>().unwrap()];
        parameters.iter().for_each(|parameter| row.extend(parameter.to_vec::<f64>().unwrap()));
        history.push(row);
    }
    history
}

fn expected(name: &str) -> Vec<Vec<f64>> {
    serde_json::from_value(pytorch::json("lbfgs.json")[name].clone()).unwrap()
}

fn assert_near(ours: &[Vec<f64>], theirs: &[Vec<f64>], what: &str) {
    assert!(ours.iter().map(Vec::len).eq(theirs.iter().map(Vec::len)), "{what}: {ours:?} instead of {theirs:?}");
    let pairs = ours.iter().flatten().zip(theirs.iter().flatten());
    let worst = pytorch::largest(pairs.map(|(a, b)| (a - b).abs()));
    assert!(worst < 1e-10, "{what}: {worst:e}");
}

#[test]
fn steps_are_pytorchs() {
    let golden = pytorch::json("lbfgs.json");
    for device in devices() {
        for name in golden.as_object().unwrap().keys() {
            let parameters = parameters(&device);
            let mut opt = make(name, &parameters);
            let ours = steps(&mut opt, &parameters, 12, name.contains("maximize"));
            assert_near(&ours, &expected(name), &format!("{name} on {device}"));
        }
    }
}

fn set(parameters: &[Parameter], values: [&Tensor; 2]) {
    for (parameter, value) in parameters.iter().zip(values) {
        pagelock_tensor::no_grad(|| parameter.copy_(value)).unwrap();
    }
}

#[test]
fn a_state_of_pytorch_goes_on_as_there() {
    let saved = TorchValue::load(pytorch::path("lbfgs.pt")).unwrap();
    let parameters = parameters(&Device::Cpu);
    let weights = ["weight", "bias"].map(|name| saved.at(name).unwrap().as_tensor().unwrap().float().unwrap());
    set(&parameters, [&weights[0], &weights[1]]);
    let mut opt = Lbfgs::new(parameters.clone(), 7.0);
    opt.load_state_dict(&saved.at("optimizer").unwrap().to_optimizer_state().unwrap()).unwrap();
    assert_eq!(opt.lr(), 1.0);
    assert_near(&steps(&mut opt, &parameters, 6, false), &expected("wolfe")[6..], "wolfe");
}

#[test]
fn pytorch_goes_on_with_a_state_of_ours() {
    let parameters = parameters(&Device::Cpu);
    let mut opt = make("wolfe", &parameters);
    steps(&mut opt, &parameters, 6, false);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lbfgs.pt");
    let weights = ["weight", "bias"].into_iter().zip(&parameters);
    let weights = weights.map(|(name, parameter)| (name, TorchValue::from(AnyTensor::from(parameter.as_tensor()))));
    let state = [("optimizer", opt.state_dict().unwrap().to_torch().unwrap())];
    TorchValue::dict(weights.chain(state)).save(&path).unwrap();
    pytorch::script("lbfgs.py", "continue", &path);
}

#[test]
fn training_goes_on_after_loading_as_if_undisturbed_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lbfgs.pt");
    for name in ["fixed_short_history", "wolfe"] {
        for before in [0, 1, 5] {
            let one = parameters(&Device::Cpu);
            let mut opt = make(name, &one);
            steps(&mut opt, &one, before, false);
            let by_dict = OptimizerState::from_dict(&opt.state_dict().unwrap().to_dict().unwrap()).unwrap();
            opt.state_dict().unwrap().to_torch().unwrap().save(&path).unwrap();
            let by_file = TorchValue::load(&path).unwrap().to_optimizer_state().unwrap();
            let at: Vec<Tensor> =
                one.iter().map(|p| p.to_dtype(DType::F64).unwrap().mul_scalar(1.0).unwrap().detach()).collect();
            let undisturbed = steps(&mut opt, &one, 3, false);
            for state in [by_dict, by_file] {
                let other = parameters(&Device::Cpu);
                set(&other, [&at[0], &at[1]]);
                let mut resumed = Lbfgs::new(other.clone(), 0.0);
                resumed.load_state_dict(&state).unwrap();
                assert_eq!(steps(&mut resumed, &other, 3, false), undisturbed, "{name} after {before} steps");
            }
        }
    }
}

#[test]
fn a_schedule_changes_its_learning_rate() {
    let parameters = parameters(&Device::Cpu);
    let mut opt = make("fixed", &parameters);
    let mut schedule = LrScheduler::new(&mut opt, StepLr::new(1)).unwrap();
    schedule.step(&mut opt).unwrap();
    assert!((opt.lr() - 0.03).abs() < 1e-12);
    assert_eq!(opt.state_dict().unwrap().param_groups[0].settings["initial_lr"], Setting::Number(0.3));
}

#[test]
fn a_closure_that_fails_or_panics_leaves_parameters_and_history_as_they_were() {
    for name in ["fixed", "wolfe"] {
        for panics in [false, true] {
            let (one, other) = (parameters(&Device::Cpu), parameters(&Device::Cpu));
            let (mut opt, mut undisturbed) = (make(name, &one), make(name, &other));
            steps(&mut opt, &one, 2, false);
            steps(&mut undisturbed, &other, 2, false);
            let mut n_calls = 0;
            let failed = catch_unwind(AssertUnwindSafe(|| {
                opt.step(|| {
                    n_calls += 1;
                    match n_calls {
                        2 if panics => panic!("no data"),
                        2 => Err(Error::Argument("no data".to_owned())),
                        _ => loss(&one, false),
                    }
                })
            }));
            match failed {
                Ok(failed) => assert_eq!(failed.unwrap_err().to_string(), "no data"),
                Err(panic) => assert_eq!(panic.downcast_ref(), Some(&"no data")),
            }
            assert_eq!(steps(&mut opt, &one, 2, false), steps(&mut undisturbed, &other, 2, false));
        }
    }
}

#[test]
fn parameters_and_settings_that_it_cannot_use_are_refused_with_the_fix() {
    let refused = |opt: Lbfgs| {
        let mut opt = opt;
        opt.step(|| unreachable!("it is refused before")).unwrap_err().to_string()
    };
    let p = || Parameter::new(Tensor::new([1.0, 2.0]).unwrap());
    assert_eq!(
        refused(Lbfgs::new(Vec::<Parameter>::new(), 1.0)),
        "LBFGS: there are no parameters to train; pass `model.parameters()` of a model that has some"
    );
    assert_eq!(refused(Lbfgs::new([p()], -1.0)), "LBFGS: lr is -1; it must be at least 0");
    assert_eq!(refused(Lbfgs::new([p()], 1.0).history_size(0)), "LBFGS: history_size is 0; it must be at least 1");
    let half = Parameter::new(p().to_dtype(DType::BF16).unwrap());
    assert_eq!(
        refused(Lbfgs::new([p(), half], 1.0)),
        "LBFGS: a parameter is bfloat16, which would round each step; train in `f32`, with `model.float()`"
    );
    let twice = p();
    assert_eq!(
        refused(Lbfgs::new([twice.clone(), twice], 1.0)),
        "LBFGS: the parameter [2] occurs twice; give each parameter once"
    );
    let mut opt = Lbfgs::new([p()], 1.0);
    assert_eq!(
        Optimizer::step(&mut opt).unwrap_err().to_string(),
        "LBFGS evaluates the loss several times in a step; call `Lbfgs::step` with a closure that computes it and its \
         gradients"
    );
}

#[test]
fn a_state_that_does_not_fit_is_named_and_changes_nothing() {
    let refused = |change: &dyn Fn(&mut OptimizerState)| {
        let parameters = parameters(&Device::Cpu);
        let mut opt = make("wolfe", &parameters);
        steps(&mut opt, &parameters, 6, false);
        let mut state = opt.state_dict().unwrap();
        change(&mut state);
        let mut fresh = make("fixed", &parameters);
        let error = fresh.load_state_dict(&state).unwrap_err().to_string();
        assert!(fresh.state_dict().unwrap().state.iter().next().is_none());
        error.strip_prefix("LBFGS: the state dict does not fit, and nothing was loaded: ").unwrap_or(&error).to_owned()
    };
    assert_eq!(
        refused(&|state| drop(state.state.remove("0.ro.1"))),
        "it has no floats `0.ro.1`; give a state dict of `Lbfgs` or of PyTorch's LBFGS"
    );
    assert_eq!(
        refused(&|state| state.state.insert("0.d", Tensor::zeros([7]).unwrap())),
        "`0.d` is [7], but must be [6] for these parameters; give a state dict of `Lbfgs` or of PyTorch's LBFGS"
    );
    assert_eq!(
        refused(&|state| state.state.insert("0.exp_avg", Tensor::zeros([7]).unwrap())),
        "the optimizer does not know `0.exp_avg`; give a state dict of `Lbfgs` or of PyTorch's LBFGS"
    );
    assert_eq!(
        refused(&|state| drop(state.param_groups[0].settings.insert("betas".to_owned(), Setting::Number(0.9)))),
        "it has the setting `betas`, which the optimizer does not have; give a state dict of `Lbfgs` or of PyTorch's LBFGS"
    );
    assert_eq!(
        refused(&|state| state.param_groups[0].params.truncate(1)),
        "it has 1 parameters, but the optimizer has 2; make the optimizer with the parameters that it was saved with"
    );
}
