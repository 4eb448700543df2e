//! Parameters of half precision with `f32` masters: steps against written-out formulas, a gradient scaler, and loaded
//! weights.

use pagelock_nn::optim::{Adam, AdamW, GradScaler, Optimizer, Sgd, clip_grad_norm_};
use pagelock_nn::{Module, Parameter, StateDict, load_safetensors, save_safetensors};
use pagelock_tensor::{DType, Tensor};

/// The half types, each with the distance between neighboring numbers around 1.
const HALVES: [(DType, f64); 2] = [(DType::F16, 1.0 / 1024.0), (DType::BF16, 1.0 / 128.0)];
const LR: f64 = 0.002;
const DECAY: f64 = 0.1;

#[derive(Module)]
struct Weights {
    weight: Parameter,
}

/// An optimizer's formula for one number, in `f64`.
type Formula = fn(&mut Number, f64);

/// A weight, and the optimizer's state for it.
#[derive(Clone, Copy)]
struct Number {
    weight: f64,
    kept: [f64; 2],
    steps: i32,
}

fn sgd(x: &mut Number, grad: f64) {
    let grad = grad + DECAY * x.weight;
    x.kept[0] = if x.steps == 1 { grad } else { 0.9 * x.kept[0] + grad };
    x.weight -= LR * x.kept[0];
}

fn nesterov(x: &mut Number, grad: f64) {
    let grad = grad + DECAY * x.weight;
    x.kept[0] = if x.steps == 1 { grad } else { 0.9 * x.kept[0] + grad };
    x.weight -= LR * (grad + 0.9 * x.kept[0]);
}

fn adam_step(x: &mut Number, grad: f64) {
    let [mean, square] = &mut x.kept;
    *mean = 0.9 * *mean + 0.1 * grad;
    *square = 0.999 * *square + 0.001 * grad * grad;
    let (mean, square) = (*mean / (1.0 - 0.9_f64.powi(x.steps)), *square / (1.0 - 0.999_f64.powi(x.steps)));
    x.weight -= LR * mean / (square.sqrt() + 1e-8);
}

fn adam(x: &mut Number, grad: f64) {
    adam_step(x, grad + DECAY * x.weight);
}

fn adamw(x: &mut Number, grad: f64) {
    x.weight *= 1.0 - LR * DECAY;
    adam_step(x, grad);
}

type Make = fn(Vec<Parameter>) -> Box<dyn Optimizer>;

fn optimizers() -> [(&'static str, Make, Formula); 4] {
    [
        ("sgd", |p| Box::new(Sgd::new(p, LR).momentum(0.9).weight_decay(DECAY)), sgd),
        ("nesterov", |p| Box::new(Sgd::new(p, LR).momentum(0.9).nesterov(true).weight_decay(DECAY)), nesterov),
        ("adam", |p| Box::new(Adam::new(p, LR).weight_decay(DECAY)), adam),
        ("adamw", |p| Box::new(AdamW::new(p, LR).weight_decay(DECAY)), adamw),
    ]
}

/// Gradients that the half types represent exactly, even when they are scaled.
fn grads(step: i32) -> [f64; 3] {
    [0.25, -0.125, f64::from(step % 4) / 8.0]
}

/// Checks that the weights are those of the formula, rounded once: steps too small for the half type are not lost.
#[track_caller]
fn follow(model: &Weights, numbers: &[Number], unit: f64, what: &str) {
    for (found, number) in model.weight.to_vec::<f64>().unwrap().into_iter().zip(numbers) {
        let bound = 0.5 * unit * number.weight.abs().max(1.0) + 1e-5;
        assert!((found - number.weight).abs() <= bound, "{what}: {found} instead of {}", number.weight);
    }
}

fn step(model: &Weights, opt: &mut Box<dyn Optimizer>, numbers: &mut [Number], formula: Formula, count: i32) {
    let grad = Tensor::new(grads(count)).unwrap().to_dtype(model.weight.dtype()).unwrap();
    model.weight.set_grad(Some(grad)).unwrap();
    opt.step().unwrap();
    for (number, grad) in numbers.iter_mut().zip(grads(count)) {
        number.steps += 1;
        formula(number, grad);
    }
}

fn start(dtype: DType) -> (Weights, [Number; 3]) {
    let weights = [1.0, -0.5, 0.75];
    let model = Weights { weight: Parameter::new(Tensor::of(dtype).new(weights).unwrap()) };
    (model, weights.map(|weight| Number { weight, kept: [0.0; 2], steps: 0 }))
}

#[test]
fn steps_are_those_of_the_formulas_and_what_is_loaded_between_them_is_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    for (dtype, unit) in HALVES {
        for (name, make, formula) in optimizers() {
            let (model, mut numbers) = start(dtype);
            let mut opt = make(model.parameters());
            for count in 0..40 {
                step(&model, &mut opt, &mut numbers, formula, count);
                follow(&model, &numbers, unit, name);
            }
            // Loading the model's own weights changes nothing. After other weights are loaded, the formula continues
            // from them.
            save_safetensors(&model.state_dict(), &path).unwrap();
            model.load_state_dict(&load_safetensors(&path).unwrap()).unwrap();
            step(&model, &mut opt, &mut numbers, formula, 40);
            follow(&model, &numbers, unit, name);
            let mut dict = StateDict::new();
            dict.insert("weight", Tensor::new([1.5, -0.25, 0.5]).unwrap());
            model.load_state_dict(&dict).unwrap();
            numbers.iter_mut().zip([1.5, -0.25, 0.5]).for_each(|(number, weight)| number.weight = weight);
            for count in 41..60 {
                step(&model, &mut opt, &mut numbers, formula, count);
                follow(&model, &numbers, unit, name);
            }
        }
    }
}

#[test]
fn a_grad_scaler_unscales_half_gradients_and_leaves_out_steps_that_are_not_finite() {
    for (dtype, unit) in HALVES {
        for (name, make, formula) in optimizers() {
            let (model, mut numbers) = start(dtype);
            let mut opt = make(model.parameters());
            let mut scaler = GradScaler::new().init_scale(1024.0).growth_interval(1_000);
            for count in 0..20 {
                let mut scaled = grads(count).map(|grad| grad * scaler.get_scale());
                if count == 7 {
                    scaled[1] = f64::INFINITY;
                }
                let grad = Tensor::new(scaled).unwrap().to_dtype(dtype).unwrap();
                model.weight.set_grad(Some(grad)).unwrap();
                let mut opt = Borrowed(opt.as_mut());
                assert_eq!(scaler.step(&mut opt).unwrap(), count != 7);
                scaler.update();
                if count != 7 {
                    for (number, grad) in numbers.iter_mut().zip(grads(count)) {
                        number.steps += 1;
                        formula(number, grad);
                    }
                }
                follow(&model, &numbers, unit, name);
            }
        }
    }
}

/// Wraps a `dyn Optimizer`, since the scaler takes a sized type.
struct Borrowed<'a>(&'a mut dyn Optimizer);

impl Optimizer for Borrowed<'_> {
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
}

#[test]
fn clipped_gradients_have_pytorchs_numbers() {
    // torch.nn.utils.clip_grad_norm_ clips the gradients [6, 8, 0] and [24], whose norm is 26, to a norm of
    // 12.99999951…, not 13.
    let [a, b] = [vec![6.0, 8.0, 0.0], vec![24.0]].map(|grad| {
        let parameter = Parameter::new(Tensor::zeros(grad.len()).unwrap());
        parameter.set_grad(Some(Tensor::from_slice(&grad, grad.len()).unwrap().to_dtype(DType::F32).unwrap())).unwrap();
        parameter
    });
    let frozen = Parameter::new(Tensor::zeros(2).unwrap()); // without a gradient

    let norm = clip_grad_norm_([a.clone(), frozen, b.clone()], 13.0).unwrap();

    assert_eq!(norm.item::<f32>().unwrap(), 26.0);
    assert_eq!(a.grad().unwrap().to_vec::<f32>().unwrap(), [2.999_999_8, 3.999_999_8, 0.0]);
    assert_eq!(b.grad().unwrap().to_vec::<f32>().unwrap(), [11.999_999]);
    let error = clip_grad_norm_([a], f64::NAN).unwrap_err();
    assert_eq!(error.to_string(), "clip_grad_norm_: max_norm is NaN; it must be at least 0");
}
