//! State dicts of optimizers: PyTorch's layout, training that continues bit for bit after loading, and refusals.

use std::collections::BTreeSet;

use crate::pytorch::{self, devices};
use pagelock_nn::optim::lr_scheduler::{LrScheduler, StepLr};
use pagelock_nn::optim::{
    Adadelta, Adagrad, Adam, AdamW, Adamax, AdjustLr, Asgd, Lion, Muon, NAdam, Optimizer, OptimizerState, ParamGroup,
    RAdam, RmsProp, Setting, Sgd,
};
use pagelock_nn::{Parameter, StateDict, load_safetensors, save_safetensors};
use pagelock_tensor::{AnyTensor, CapturedStep, DType, Device, Result, Tensor};

type Make = fn(Vec<Parameter>) -> Box<dyn Optimizer>;

/// Optimizers with two groups of two parameters each.
fn optimizers() -> Vec<(&'static str, Make)> {
    macro_rules! grouped {
        ($make:expr) => {
            |p: Vec<Parameter>| {
                let rest = p[2..].to_vec();
                Box::new($make(p[..2].to_vec()).group(rest, |group| group.weight_decay(0.0).with_lr(0.01)))
            }
        };
    }
    vec![
        ("sgd", grouped!(|p: Vec<Parameter>| Sgd::new(p, 0.1))),
        ("sgd_momentum", grouped!(|p: Vec<Parameter>| Sgd::new(p, 0.1).momentum(0.9).dampening(0.2).weight_decay(0.1))),
        ("adam", grouped!(|p: Vec<Parameter>| Adam::new(p, 0.1).betas(0.8, 0.99).weight_decay(0.1))),
        ("adamw", grouped!(|p: Vec<Parameter>| AdamW::new(p, 0.1))),
        ("rmsprop", grouped!(|p: Vec<Parameter>| RmsProp::new(p, 0.1))),
        ("rmsprop_both", grouped!(|p: Vec<Parameter>| RmsProp::new(p, 0.1).momentum(0.7).centered(true))),
        ("adagrad", grouped!(|p: Vec<Parameter>| Adagrad::new(p, 0.1).lr_decay(0.1).initial_accumulator_value(0.2))),
        ("adadelta", grouped!(|p: Vec<Parameter>| Adadelta::new(p, 0.1))),
        ("adamax", grouped!(|p: Vec<Parameter>| Adamax::new(p, 0.1))),
        ("nadam", grouped!(|p: Vec<Parameter>| NAdam::new(p, 0.1).weight_decay(0.1).decoupled_weight_decay(true))),
        ("radam", grouped!(|p: Vec<Parameter>| RAdam::new(p, 0.1).betas(0.5, 0.7))),
        ("asgd", grouped!(|p: Vec<Parameter>| Asgd::new(p, 0.1).lambd(0.1).t0(1.0))),
        ("adamw_amsgrad", grouped!(|p: Vec<Parameter>| AdamW::new(p, 0.1).amsgrad(true).maximize(true))),
    ]
}

/// [`optimizers`], and Lion, which PyTorch's file lacks because PyTorch has no Lion.
fn more_optimizers() -> Vec<(&'static str, Make)> {
    let lion: Make = |p| {
        let rest = p[2..].to_vec();
        Box::new(Lion::new(p[..2].to_vec(), 0.1).weight_decay(0.1).group(rest, |group| group.with_lr(0.01)))
    };
    optimizers().into_iter().chain([("lion", lion)]).collect()
}

/// Four parameters. The third has no gradient in the first two steps, and the fourth has the precision `dtype`.
struct Training {
    parameters: Vec<Parameter>,
    opt: Box<dyn Optimizer>,
    count: usize,
}

impl Training {
    fn new(make: Make, device: &Device, dtype: DType) -> Self {
        let start = [[1.0, -2.0, 0.5], [0.1, 0.2, 0.3], [3.0, 1.0, -1.0], [0.7, -0.3, 1.1]];
        let dtypes = [DType::F32, DType::F64, DType::F32, dtype];
        let parameters = start.iter().zip(dtypes).map(|(start, dtype)| {
            let start = Tensor::new(*start).unwrap().to_dtype(dtype).unwrap();
            Parameter::new(start.to(device).unwrap())
        });
        let parameters: Vec<_> = parameters.collect();
        Self { opt: make(parameters.clone()), parameters, count: 0 }
    }

    fn step(&mut self) {
        for (i, parameter) in self.parameters.iter().enumerate() {
            let grad = Tensor::new([0.5, -0.25, (self.count + i) as f64 / 8.0]).unwrap();
            let grad = grad.to_dtype(parameter.dtype()).unwrap().to(&parameter.device()).unwrap();
            parameter.set_grad((i != 2 || self.count >= 2).then_some(grad)).unwrap();
        }
        self.opt.step().unwrap();
        self.count += 1;
    }

    fn bits(&self) -> Vec<Vec<u64>> {
        let bits = |p: &Parameter| p.to_vec::<f64>().unwrap().into_iter().map(f64::to_bits).collect();
        self.parameters.iter().map(bits).collect()
    }

    /// A new training with the weights of this one, and with its optimizer's state read from a file.
    fn resumed(&self, make: Make) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("optimizer.safetensors");
        save_safetensors(&self.opt.state_dict().unwrap().to_dict().unwrap(), &path).unwrap();
        let (device, dtype) = (self.parameters[3].device(), self.parameters[3].dtype());
        let mut resumed = Self::new(make, &device, dtype);
        resumed.count = self.count;
        self.copy_weights_into(&resumed);
        let state = OptimizerState::from_dict(&load_safetensors(&path).unwrap()).unwrap();
        resumed.opt.load_state_dict(&state).unwrap();
        resumed
    }

    fn copy_weights_into(&self, other: &Self) {
        for (to, from) in other.parameters.iter().zip(&self.parameters) {
            pagelock_tensor::no_grad(|| to.copy_(from)).unwrap();
        }
    }
}

#[test]
fn training_goes_on_after_loading_as_if_undisturbed_bit_for_bit() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for (name, make) in more_optimizers() {
                for before in [0, 1, 5] {
                    let mut undisturbed = Training::new(make, &device, dtype);
                    (0..before).for_each(|_| undisturbed.step());
                    let mut resumed = undisturbed.resumed(make);
                    for _ in 0..5 {
                        undisturbed.step();
                        resumed.step();
                        assert_eq!(
                            resumed.bits(),
                            undisturbed.bits(),
                            "{name}, {dtype}, after {before} steps on {device}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn loading_takes_a_trained_optimizer_back_bit_for_bit() {
    for (name, make) in more_optimizers() {
        let mut first = Training::new(make, &Device::Cpu, DType::BF16);
        (0..3).for_each(|_| first.step());
        let mut other = first.resumed(make);
        (0..4).for_each(|_| other.step());
        let state = first.opt.state_dict().unwrap();
        first.copy_weights_into(&other);
        other.count = first.count;
        other.opt.load_state_dict(&state).unwrap();
        for _ in 0..3 {
            first.step();
            other.step();
            assert_eq!(other.bits(), first.bits(), "{name}");
        }
    }
}

/// Checks that a captured step whose optimizer loads the state of another one continues with that state.
fn captured(make: Make, device: &Device) -> Result<()> {
    let parameters = |start: f32| -> Result<Vec<Parameter>> {
        (0..4).map(|i| Ok(Parameter::new(Tensor::full([3], start + i as f32)?.to(device)?))).collect()
    };
    let run = |parameters: &[Parameter], opt: &mut dyn Optimizer, step: &mut CapturedStep<Tensor, ()>, i: usize| {
        step.run(Tensor::full([3], 0.25 * i as f32)?, |x| -> pagelock_nn::Result<()> {
            for parameter in parameters {
                (parameter * x)?.pow(2.0)?.sum(..)?.backward()?;
            }
            opt.step()?;
            opt.zero_grad();
            Ok(())
        })
    };
    let (one, other) = (parameters(1.0)?, parameters(2.0)?);
    let (mut opt, mut loaded) = (make(one.clone()), make(other.clone()));
    let (mut step, mut step_of_loaded) = (CapturedStep::new(device), CapturedStep::new(device));
    for i in 0..6 {
        run(&one, &mut *opt, &mut step, i).unwrap();
        run(&other, &mut *loaded, &mut step_of_loaded, i + 3).unwrap();
    }
    run(&other, &mut *loaded, &mut step_of_loaded, 1).unwrap();
    for (to, from) in other.iter().zip(&one) {
        pagelock_tensor::no_grad(|| to.copy_(from))?;
    }
    loaded.load_state_dict(&opt.state_dict().unwrap()).unwrap();
    for i in 0..4 {
        run(&one, &mut *opt, &mut step, i).unwrap();
        run(&other, &mut *loaded, &mut step_of_loaded, i).unwrap();
        for (one, other) in one.iter().zip(&other) {
            assert_eq!(other.to_vec::<f32>()?, one.to_vec::<f32>()?, "on {device}");
        }
    }
    Ok(())
}

#[test]
fn a_captured_step_goes_on_with_what_is_loaded() {
    for device in devices() {
        for (_, make) in more_optimizers() {
            captured(make, &device).unwrap();
        }
    }
}

fn weight() -> Parameter {
    Parameter::new(Tensor::new([1.0, 2.0]).unwrap())
}

fn stepped(mut opt: impl Optimizer, parameters: &[Parameter]) -> OptimizerState {
    for parameter in parameters {
        parameter.set_grad(Some(parameter.ones_like().unwrap())).unwrap();
    }
    opt.step().unwrap();
    opt.state_dict().unwrap()
}

#[test]
fn a_schedule_is_noted_as_initial_lr() {
    let p = weight();
    let mut opt = Sgd::new([p.clone()], 0.5);
    let initial = |opt: &Sgd| opt.state_dict().unwrap().param_groups[0].settings.get("initial_lr").cloned();
    assert_eq!(initial(&opt), None);
    let mut scheduler = LrScheduler::new(&mut opt, StepLr::new(1)).unwrap();
    scheduler.step(&mut opt).unwrap();
    assert_eq!(initial(&opt), Some(Setting::Number(0.5)));

    let mut resumed = Sgd::new([p], 1.0);
    resumed.load_state_dict(&opt.state_dict().unwrap()).unwrap();
    assert_eq!((resumed.lr(), initial(&resumed)), (0.05, Some(Setting::Number(0.5))));
}

/// The error of loading a changed state into an Adam with two parameters. Checks that the optimizer stays unchanged.
fn refused(change: impl FnOnce(&mut OptimizerState)) -> String {
    let (p, q) = (weight(), Parameter::new(Tensor::zeros([2, 2]).unwrap()));
    let parameters = [p.clone(), q.clone()];
    let mut state = stepped(Adam::new(parameters.clone(), 0.1), &parameters);
    change(&mut state);
    let [mut undisturbed, mut opt] = [(); 2].map(|()| Adam::new([weight(), q.clone()], 0.3));
    stepped(&mut Borrowed(&mut undisturbed), &parameters);
    stepped(&mut Borrowed(&mut opt), &parameters);
    let before = format!("{:?}", contents(&undisturbed));
    let error = opt.load_state_dict(&state).unwrap_err().to_string();
    assert_eq!(format!("{:?}", contents(&opt)), before);
    error.strip_prefix("Adam: the state dict does not fit, and nothing was loaded: ").unwrap_or(&error).to_owned()
}

fn contents(opt: &Adam) -> (Vec<ParamGroup>, Vec<(String, Vec<f64>)>) {
    let state = opt.state_dict().unwrap();
    let values = |name: &str| (name.to_owned(), state.state.get(name).unwrap().to_vec::<f64>().unwrap());
    (state.param_groups.clone(), state.state.names().map(values).collect())
}

struct Borrowed<'a>(&'a mut dyn Optimizer);

impl Optimizer for &mut Borrowed<'_> {
    fn step(&mut self) -> pagelock_nn::Result<()> {
        self.0.step()
    }
    fn zero_grad(&mut self) {
        self.0.zero_grad();
    }
    fn lr(&self) -> f64 {
        self.0.lr()
    }
    fn set_lr(&mut self, lr: f64) {
        self.0.set_lr(lr);
    }
    fn scale_gradients(&mut self, factor: f64) -> pagelock_nn::Result<bool> {
        self.0.scale_gradients(factor)
    }
    fn state_dict(&self) -> pagelock_nn::Result<OptimizerState> {
        self.0.state_dict()
    }
}

#[test]
fn what_does_not_fit_is_named_and_changes_nothing() {
    assert_eq!(
        refused(|state| state.param_groups.push(ParamGroup::default())),
        "it has 2 groups of parameters, but the optimizer has 1; make the optimizer with the groups that it was saved \
         with"
    );
    assert_eq!(
        refused(|state| state.param_groups[0].params.truncate(1)),
        "group 0 has 1 parameters, but the optimizer's has 2; make the optimizer with the parameters that it was saved \
         with"
    );
    assert_eq!(
        refused(|state| state.param_groups[0].params.reverse()),
        "`1.exp_avg` is [2, 2], but its parameter is [2]; give the parameters in the order in which they were saved"
    );
    assert_eq!(
        refused(|state| drop(state.state.remove("1.exp_avg_sq"))),
        "it has no `1.exp_avg_sq`; give all entries of a parameter, or none"
    );
    assert_eq!(
        refused(|state| drop(state.state.remove("1.step"))),
        "it has no `1.step`; give all entries of a parameter, or none"
    );
    assert_eq!(
        refused(|state| state.state.insert("1.sum", Tensor::zeros([2, 2]).unwrap())),
        "the optimizer does not know `1.sum`; remove it, or load into the optimizer that it was saved from"
    );
    assert_eq!(
        refused(|state| state.state.insert("7.step", Tensor::zeros(()).unwrap())),
        "`7.step` belongs to no parameter, or its parameter is listed twice; remove it, or load into the optimizer that it \
         was saved from"
    );
    assert_eq!(
        refused(|state| state.state.insert("step", Tensor::zeros(()).unwrap())),
        "`step` (float32) is not an entry of a state; name entries as `0.exp_avg`, the parameter's number first, and \
         give floats"
    );
    let set = |name: &'static str, setting: Setting| {
        refused(move |state| drop(state.param_groups[0].settings.insert(name.to_owned(), setting)))
    };
    assert_eq!(
        set("momentum", Setting::Number(0.9)),
        "group 0 has the setting `momentum`, which the optimizer does not have; remove it, or load into the optimizer \
         that it was saved from"
    );
    assert_eq!(set("lr", Setting::Number(-1.0)), "Adam: lr is -1; it must be at least 0");
    assert_eq!(
        set("eps", Setting::Flag(true)),
        "in group 0, `eps` is Flag(true), which is not allowed for this optimizer"
    );
    assert_eq!(
        set("decoupled_weight_decay", Setting::Flag(true)),
        "in group 0, `decoupled_weight_decay` must be false for this optimizer"
    );
    assert_eq!(
        refused(|state| drop(state.param_groups[0].settings.remove("betas"))),
        "in group 0, the setting `betas` is missing; add it"
    );
}

#[test]
fn a_dict_that_is_not_of_an_optimizer_is_refused() {
    let refused = |name: &str, tensor: Tensor| {
        let mut dict = StateDict::new();
        dict.insert(name, tensor);
        OptimizerState::from_dict(&dict).unwrap_err().to_string()
    };
    let zero = || Tensor::zeros(()).unwrap();
    assert_eq!(
        refused("weight", zero()),
        "`weight` is not an entry of an optimizer's state; give the dict that `OptimizerState::to_dict` made"
    );
    assert_eq!(
        refused("param_groups.1.lr", zero()),
        "an optimizer's state lacks `param_groups.0`; give the dict that `OptimizerState::to_dict` made"
    );
    assert_eq!(
        refused("param_groups.0.params", zero()),
        "`param_groups.0.params` of an optimizer's state is float32; it must be integer"
    );
}

#[test]
fn the_state_of_muon_has_its_settings_and_goes_on() {
    let matrix = || Parameter::new(Tensor::new([[1.0, 2.0], [0.5, -1.0]]).unwrap());
    let grad = |p: &Parameter| p.set_grad(Some(Tensor::new([[0.5, -1.0], [2.0, 0.25]]).unwrap())).unwrap();
    let (p, q) = (matrix(), matrix());
    let mut opt = Muon::new([p.clone()], 0.1).ns_steps(3).adjust_lr(AdjustLr::SpectralUnclamped);
    grad(&p);
    opt.step().unwrap();
    let mut resumed = Muon::new([q.clone()], 0.5);
    pagelock_tensor::no_grad(|| q.copy_(&p)).unwrap();
    let dict = opt.state_dict().unwrap().to_dict().unwrap();
    resumed.load_state_dict(&OptimizerState::from_dict(&dict).unwrap()).unwrap();
    let settings = &resumed.state_dict().unwrap().param_groups[0].settings;
    assert_eq!(settings["ns_steps"], Setting::Integer(3));
    assert_eq!(settings["adjust_lr_fn"], Setting::Text("spectral_unclamped".to_owned()));
    grad(&p);
    grad(&q);
    opt.step().unwrap();
    resumed.step().unwrap();
    assert_eq!(q.to_vec::<f32>().unwrap(), p.to_vec::<f32>().unwrap());
}

#[test]
fn a_captured_step_of_muon_does_what_the_step_does() {
    for device in devices() {
        let start = Tensor::new([[1.0, 2.0, 0.25], [0.5, -1.0, 3.0]]).unwrap();
        let matrix = || Parameter::new(start.add_scalar(0).unwrap().to(&device).unwrap());
        let (eager, captured) = (matrix(), matrix());
        let [mut one, mut other] = [&eager, &captured].map(|p| Muon::new([p.clone()], 0.1));
        let mut step = CapturedStep::new(&device);
        let train = |p: &Parameter, opt: &mut Muon| -> pagelock_nn::Result<()> {
            p.pow(2.0)?.sum(..)?.backward()?;
            opt.step()?;
            opt.zero_grad();
            Ok(())
        };
        for i in 0..6 {
            let lr = 0.1 / f64::from(i + 1);
            one.set_lr(lr);
            other.set_lr(lr);
            train(&eager, &mut one).unwrap();
            step.run((), |()| train(&captured, &mut other)).unwrap();
            assert_eq!(captured.to_vec::<f32>().unwrap(), eager.to_vec::<f32>().unwrap(), "step {i} on {device}");
        }
    }
}

/// Compares with the settings and states that `../golden/optimizer_states.py` wrote after three steps of PyTorch's
/// optimizers.
#[test]
fn states_are_laid_out_and_numbered_as_pytorchs() {
    let golden = pytorch::json("optimizer_states.json");
    let numbers = |value: &serde_json::Value| -> Vec<f64> {
        let list = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        list.iter().map(|number| number.as_f64().unwrap()).collect()
    };
    for (name, make) in optimizers() {
        let mut training = Training::new(make, &Device::Cpu, DType::F64);
        (0..3).for_each(|_| training.step());
        let state = training.opt.state_dict().unwrap();
        let expected = &golden[name];
        let entries = expected["state"].as_object().unwrap();
        let mut names: Vec<_> = state.state.names().collect();
        names.sort_unstable();
        assert_eq!(names, entries.keys().collect::<Vec<_>>(), "{name}");
        for (entry, value) in entries {
            let found = state.state.get(entry).unwrap().to_vec::<f64>().unwrap();
            let wanted = numbers(value);
            assert_eq!(found.len(), wanted.len(), "{name} {entry}: {found:?} instead of {value}");
            let is_close = |(a, b): (&f64, f64)| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
            assert!(found.iter().zip(wanted).all(is_close), "{name} {entry}: {found:?} instead of {value}");
        }
        let groups = expected["param_groups"].as_array().unwrap();
        assert_eq!(state.param_groups.len(), groups.len(), "{name}");
        for (group, expected) in state.param_groups.iter().zip(groups) {
            let wanted = expected.as_object().unwrap();
            let ours: BTreeSet<&str> = group.settings.keys().map(String::as_str).chain(["params"]).collect();
            assert_eq!(ours, wanted.keys().map(String::as_str).collect::<BTreeSet<_>>(), "{name}");
            for (setting, value) in wanted {
                match group.settings.get(setting) {
                    None => assert_eq!(setting, "params", "{name}"),
                    Some(Setting::Flag(flag)) => assert_eq!(Some(*flag), value.as_bool(), "{name} {setting}"),
                    Some(Setting::Number(number)) => assert_eq!(vec![*number], numbers(value), "{name} {setting}"),
                    Some(Setting::Numbers(found)) => assert_eq!(*found, numbers(value), "{name} {setting}"),
                    Some(other) => panic!("{name} {setting}: {other:?}"),
                }
            }
            let params: Vec<f64> = group.params.iter().map(|&number| number as f64).collect();
            assert_eq!(params, numbers(&expected["params"]), "{name}");
        }
    }
}

#[test]
fn a_checkpoint_with_too_many_settings_is_refused() {
    for (name, tensor) in [
        ("param_groups.0.lr", AnyTensor::from(Tensor::ones([1]).unwrap().expand([1_usize << 40]).unwrap())),
        ("param_groups.0.params", AnyTensor::from(Tensor::full([(1 << 20) + 1], 0).unwrap())),
    ] {
        let error =
            OptimizerState::from_dict(&[(name.to_owned(), tensor)].into_iter().collect()).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "with `{name}`, the settings have more than 1048576 numbers in an optimizer's state; check where it \
                 comes from"
            )
        );
    }
}
