//! Steps of optimizers and clipping of gradients: halves with their masters, and norms. The tests of `pagelock-nn`
//! compare the formulas with PyTorch.

mod common;

use common::devices;
use pagelock_tensor::optimizer_steps::{
    AdagradRule, AdamRule, AverageRule, Rate, RmsPropRule, SgdRule, StepTensors, clip_grad_norm_, clip_grad_value_,
};
use pagelock_tensor::{DType, Device, Error, Generator, Result, Tensor};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];
const SGD: SgdRule = SgdRule {
    momentum: 0.9,
    dampening: 0.1,
    nesterov: false,
    weight_decay: 0.05,
    is_decoupled: false,
    maximize: false,
};
const ADAM: AdamRule =
    AdamRule { betas: [0.9, 0.99], eps: 1e-6, weight_decay: 0.1, is_decoupled: true, amsgrad: false, maximize: false };

fn random(device: &Device, dtype: DType, shape: &[usize], seed: u64) -> Result<Tensor> {
    Tensor::randn_with(shape, &Generator::new(seed))?.to_dtype(dtype)?.to(device)
}

fn copy(x: &Tensor) -> Result<Tensor> {
    let copy = x.zeros_like()?;
    copy.copy_(x)?;
    Ok(copy)
}

fn bits(x: &Tensor) -> Vec<u64> {
    x.to_vec::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
}

/// A parameter of half precision, its master, the state of its optimizer, and its gradient.
struct Trained {
    master: Tensor,
    half: Tensor,
    state: [Tensor; 3],
    grad: Tensor,
}

impl Trained {
    fn new(device: &Device, half: DType, shape: &[usize], seed: u64) -> Result<Self> {
        let master = random(device, DType::F32, shape, seed)?;
        let state = |more| random(device, DType::F32, shape, seed + more);
        let state = [state(1)?, state(2)?.abs()?, state(4)?.abs()?];
        Ok(Self { half: master.to_dtype(half)?, master, state, grad: random(device, half, shape, seed + 3)? })
    }

    /// A copy for a step in `f32` alone.
    fn in_f32(&self) -> Result<Self> {
        let [a, b, c] = &self.state;
        let (master, grad) = (copy(&self.master)?, self.grad.to_dtype(DType::F32)?);
        Ok(Self { half: self.half.clone(), master, state: [copy(a)?, copy(b)?, copy(c)?], grad })
    }

    /// The tensors of a step, with the first `n_state` tensors of the state.
    fn tensors(&self, n_state: usize, half: Option<Tensor>, clock: Option<&Tensor>) -> StepTensors {
        let mut state = self.state.each_ref().map(|state| Some(state.clone()));
        state[n_state..].fill(None);
        let (parameter, grad, clock) = (self.master.clone(), self.grad.clone(), clock.cloned());
        StepTensors { parameter, grad, half_copy: half, state, clock, is_first: false }
    }
}

/// More parameters than one launch takes: long ones, one without elements, images with channels last, and views with
/// gaps.
fn all(device: &Device, half: DType) -> Result<Vec<Trained>> {
    let shapes: [&[usize]; 8] = [&[3], &[40_000], &[5, 7], &[0], &[1], &[300_001], &[17], &[2, 3]];
    let mut all = Vec::new();
    for (seed, shape) in (0..).step_by(10).zip(shapes) {
        all.push(Trained::new(device, half, shape, seed)?);
    }
    let mut image = Trained::new(device, half, &[4, 3, 5, 5], 100)?;
    let Trained { master, half: rounded, state: [a, b, c], grad } = &mut image;
    for x in [master, rounded, a, b, c, grad] {
        *x = x.channels_last()?;
    }
    let mut gaps = Trained::new(device, half, &[6, 8], 110)?;
    gaps.half = random(device, half, &[6, 8, 2], 111)?.select(2, 0)?;
    gaps.half.copy_(&gaps.master)?;
    all.extend([image, gaps]);
    Ok(all)
}

/// Checks that a step of halves has the bits of a step in `f32` with converted gradients, rounded to the half type.
fn same_bits(device: &Device, half: DType, step: &dyn Fn(&[Trained], bool) -> Result<()>) -> Result<()> {
    let fused = all(device, half)?;
    let apart = fused.iter().map(Trained::in_f32).collect::<Result<Vec<_>>>()?;
    for _ in 0..3 {
        step(&fused, true)?;
        step(&apart, false)?;
        for (fused, apart) in fused.iter().zip(&apart) {
            assert_eq!(bits(&fused.master), bits(&apart.master), "{half} on {device}");
            assert_eq!(bits(&fused.half), bits(&apart.master.to_dtype(half)?), "{half} on {device}");
            assert_eq!(fused.state.each_ref().map(bits), apart.state.each_ref().map(bits));
        }
    }
    Ok(())
}

#[test]
fn a_step_of_halves_has_the_bits_of_one_in_f32_that_is_rounded_behind_it() -> Result<()> {
    for device in devices() {
        let lr = Rate::new(0.05);
        let clock = Tensor::on(&device).of(DType::F64).full([1], 3.0)?;
        for half in HALVES {
            let of = |all: &[Trained], with_half: bool, n_state: usize, clock: Option<&Tensor>| -> Vec<StepTensors> {
                all.iter().map(|x| x.tensors(n_state, with_half.then(|| x.half.clone()), clock)).collect()
            };
            let ahead = SgdRule { nesterov: true, dampening: 0.0, ..SGD };
            for rule in [SGD, ahead, SgdRule { weight_decay: 0.0, is_decoupled: false, maximize: true, ..SGD }] {
                same_bits(&device, half, &|all, with_half| rule.step(of(all, with_half, 1, None), &lr))?;
            }
            let plain = SgdRule { momentum: 0.0, dampening: 0.0, ..SGD };
            same_bits(&device, half, &|all, with_half| plain.step(of(all, with_half, 0, None), &lr))?;
            for rule in [ADAM, AdamRule { is_decoupled: false, maximize: true, ..ADAM }] {
                same_bits(&device, half, &|all, with_half| rule.step(of(all, with_half, 2, Some(&clock)), &lr))?;
            }
            let amsgrad = AdamRule { amsgrad: true, ..ADAM };
            same_bits(&device, half, &|all, with_half| amsgrad.step(of(all, with_half, 3, Some(&clock)), &lr))?;
            let (alpha, eps, weight_decay, maximize) = (0.9, 1e-2, 0.1, false);
            let rule = RmsPropRule { alpha, eps, weight_decay, momentum: 0.5, centered: false, maximize };
            same_bits(&device, half, &|all, with_half| {
                let apart = |x: StepTensors| {
                    let [square, _, direction] = x.state;
                    StepTensors { state: [square, None, direction], ..x }
                };
                rule.step(of(all, with_half, 3, None).into_iter().map(apart), &lr)
            })?;
            let rule = AdagradRule { lr_decay: 0.1, eps, weight_decay, maximize };
            let positive = |all: &[Trained]| all.iter().try_for_each(|x| x.state[0].mul_(&copy(&x.state[0])?));
            same_bits(&device, half, &|all, with_half| {
                positive(all)?;
                rule.step(of(all, with_half, 1, Some(&clock)), &lr)
            })?;
            let (rule, averaged) = (AverageRule { decay: None }, clock.to_int()?.reshape(())?);
            same_bits(&device, half, &|all, with_half| rule.step(of(all, with_half, 0, None), &averaged, &lr))?;
        }
    }
    Ok(())
}

/// Checks that one step of two groups with different rules and rates has the bits of separate steps, also after the
/// rates change.
fn groups_as_apart<R>(
    device: &Device,
    rules: [R; 2],
    (n_state, clock): (usize, Option<&Tensor>),
    groups: &dyn Fn(Vec<(&R, StepTensors, &Rate)>) -> Result<()>,
    apart: &dyn Fn(&R, StepTensors, &Rate) -> Result<()>,
) -> Result<()> {
    let both = [all(device, DType::BF16)?, all(device, DType::BF16)?];
    let mut joined = [0.05, 0.2].map(Rate::new);
    Rate::join(&mut joined);
    let alone = [0.05, 0.2].map(Rate::new);
    for lr in [0.1, 0.02, 0.3] {
        let tensors = |i: usize| {
            let group =
                |(k, x): (usize, &Trained)| (usize::from(k % 3 == 1), x.tensors(n_state, Some(x.half.clone()), clock));
            both[i].iter().enumerate().map(group).collect::<Vec<_>>()
        };
        groups(tensors(0).into_iter().map(|(group, x)| (&rules[group], x, &joined[group])).collect())?;
        tensors(1).into_iter().try_for_each(|(group, x)| apart(&rules[group], x, &alone[group]))?;
        for (x, y) in both[0].iter().zip(&both[1]) {
            assert_eq!(bits(&x.master), bits(&y.master), "{device}");
            assert_eq!(bits(&x.half), bits(&y.half), "{device}");
            assert_eq!(x.state.each_ref().map(bits), y.state.each_ref().map(bits), "{device}");
        }
        Rate::set_all(&[(&joined[0], lr), (&joined[1], lr / 2.0)]);
        alone[0].set(lr);
        alone[1].set(lr / 2.0);
    }
    Ok(())
}

#[test]
fn a_step_of_groups_has_the_bits_of_steps_apart() -> Result<()> {
    for device in devices() {
        let clock = Tensor::on(&device).of(DType::F64).full([1], 3.0)?;
        let other = SgdRule { weight_decay: 0.0, maximize: true, ..SGD };
        for rules in
            [[SGD, other], [SGD, SgdRule { momentum: 0.5, ..SGD }], [SGD, SgdRule { is_decoupled: true, ..SGD }]]
        {
            groups_as_apart(&device, rules, (1, None), &|all| SgdRule::step_groups(all), &|rule, x, lr| {
                rule.step([x], lr)
            })?;
        }
        for other in [AdamRule { weight_decay: 0.0, ..ADAM }, AdamRule { eps: 1e-3, ..ADAM }] {
            let state = (2, Some(&clock));
            groups_as_apart(&device, [ADAM, other], state, &|all| AdamRule::step_groups(all), &|rule, x, lr| {
                rule.step([x], lr)
            })?;
        }
    }
    Ok(())
}

#[test]
fn elements_of_a_half_that_were_changed_are_trained_on_and_others_keep_all_their_bits() -> Result<()> {
    for device in devices() {
        for half in HALVES {
            let on = |dtype| Tensor::on(&device).of(dtype);
            let master = on(DType::F32).new([1.000_01, 2.000_01, -3.0, 0.1])?;
            let parameter = master.to_dtype(half)?;
            parameter.copy_(&(&parameter * on(half).new([1.0, 2.0, 1.0, 1.0])?)?)?;
            let grad = on(half).zeros(4)?;
            let rule = SgdRule { momentum: 0.0, dampening: 0.0, weight_decay: 0.0, ..SGD };
            let (half_of, state) = (Some(parameter.clone()), [None, None, None]);
            let tensors =
                StepTensors { parameter: master.clone(), grad, half_copy: half_of, state, clock: None, is_first: true };
            rule.step([tensors], &Rate::new(0.1))?;
            assert_eq!(master.to_vec::<f32>()?, [1.000_01, 4.0, -3.0, 0.1]);
            assert_eq!(bits(&parameter), bits(&master.to_dtype(half)?));
        }
    }
    Ok(())
}

#[test]
fn a_half_has_the_gradients_precision_and_an_f32_master() -> Result<()> {
    let x = Trained::new(&Device::Cpu, DType::BF16, &[3], 1)?;
    let refused = |tensors: StepTensors| {
        let before = bits(&x.master);
        let error = SGD.step([tensors], &Rate::new(0.1)).unwrap_err();
        assert!(matches!(error, Error::MixedTypes { .. }), "{error}");
        assert_eq!(bits(&x.master), before);
    };
    refused(StepTensors { grad: x.grad.to_dtype(DType::F32)?, ..x.tensors(1, Some(x.half.clone()), None) });
    refused(StepTensors { grad: x.grad.to_dtype(DType::F16)?, ..x.tensors(1, Some(x.half.clone()), None) });
    refused(x.tensors(1, None, None));
    let of = |state: Tensor| [Some(state), None, None];
    refused(StepTensors { state: of(x.state[0].to_dtype(DType::F64)?), ..x.tensors(1, Some(x.half.clone()), None) });
    let [parameter, state] = [&x.master, &x.state[0]].map(|x| x.to_dtype(DType::F64).unwrap());
    refused(StepTensors { parameter, state: of(state), ..x.tensors(1, Some(x.half.clone()), None) });
    let wide = x.in_f32()?;
    let error = SGD.step([wide.tensors(1, Some(copy(&wide.master)?), None)], &Rate::new(0.1)).unwrap_err().to_string();
    assert_eq!(error, "optimizer_step: the half-precision copy is float32; give one of float16 or bfloat16, or none");
    Ok(())
}

#[test]
fn a_clock_that_a_rule_cannot_read_and_tensors_that_it_does_not_keep_are_refused() -> Result<()> {
    let x = Trained::new(&Device::Cpu, DType::BF16, &[3], 1)?.in_f32()?;
    let refused = |clock: Option<&Tensor>| ADAM.step([x.tensors(2, None, clock)], &Rate::new(0.1)).unwrap_err();
    assert_eq!(refused(None).to_string(), "optimizer_step: there is no clock; give a tensor of 1 numbers of float64");
    assert!(matches!(refused(Some(&Tensor::of(DType::F32).ones(1)?)), Error::MixedTypes { .. }));
    let error = refused(Some(&Tensor::of(DType::F64).ones(0)?)).to_string();
    assert!(error.contains("it must have 1 elements in one dimension, without gaps"), "{error}");
    let clock = Tensor::of(DType::F64).ones(1)?;
    let error = ADAM.step([x.tensors(1, None, Some(&clock))], &Rate::new(0.1)).unwrap_err().to_string();
    assert!(error.starts_with("optimizer_step: this rule has the state tensors [0, 1]; give tensors"), "{error}");
    Ok(())
}

/// The second group keeps as many tensors as the first, but its rule needs one more.
#[test]
fn each_group_of_a_step_is_checked() -> Result<()> {
    for device in devices() {
        let (rate, clock) = (Rate::new(0.1), Tensor::on(&device).of(DType::F64).ones(1)?);
        let (x, y) =
            (Trained::new(&device, DType::BF16, &[3], 1)?.in_f32()?, Trained::new(&device, DType::BF16, &[3], 2)?);
        let (y, before) = (y.in_f32()?, bits(&y.master));
        let amsgrad = AdamRule { amsgrad: true, ..ADAM };
        let groups =
            [(&ADAM, x.tensors(2, None, Some(&clock)), &rate), (&amsgrad, y.tensors(2, None, Some(&clock)), &rate)];
        let error = AdamRule::step_groups(groups).unwrap_err().to_string();
        assert!(error.starts_with("optimizer_step: this rule has the state tensors [0, 1, 2]"), "{error}");
        assert_eq!(bits(&y.master), before);
        // A rule without a clock does not read one, wherever it is.
        SGD.step([x.tensors(1, None, Some(&Tensor::of(DType::F64).ones(1)?))], &rate)?;
    }
    Ok(())
}

/// Gradients of several types, sizes and layouts, more than one launch takes.
fn gradients(device: &Device) -> Result<Vec<Tensor>> {
    let shapes: [&[usize]; 9] = [&[3], &[4_001], &[5, 7], &[0], &[1], &[200_003], &[17], &[2, 3], &[64, 3]];
    let mut all = Vec::new();
    for (seed, shape) in (0..).zip(shapes) {
        all.push(random(device, DType::F32, shape, seed)?);
        all.push(random(device, HALVES[seed as usize % 2], shape, seed + 50)?);
    }
    all.push(random(device, DType::F64, &[33], 99)?);
    all.push(random(device, DType::F32, &[4, 3, 5, 5], 100)?.channels_last()?);
    all.push(random(device, DType::F32, &[6, 8, 2], 101)?.select(2, 0)?);
    Ok(all)
}

fn norm_of(all: &[Tensor]) -> f64 {
    let squares = all.iter().flat_map(|x| x.to_vec::<f64>().unwrap()).map(|x| x * x);
    squares.sum::<f64>().sqrt()
}

#[test]
fn clipped_gradients_have_the_norm_and_the_direction() -> Result<()> {
    for device in devices() {
        let (grads, before) = (gradients(&device)?, gradients(&device)?);
        let expected = norm_of(&before);

        let norm = clip_grad_norm_(grads.iter().cloned(), 2.0)?;

        assert_eq!((norm.dtype(), norm.device()), (DType::F32, device.clone()));
        assert!((norm.item::<f64>()? - expected).abs() < 1e-5 * expected, "{norm} instead of {expected}");
        assert!((norm_of(&grads) - 2.0).abs() < 1e-2, "{} on {device}", norm_of(&grads));
        for (clipped, before) in grads.iter().zip(&before) {
            let scaled = before.to_dtype(DType::F64)?.mul_scalar(2.0 / (expected + 1e-6))?.to_dtype(before.dtype())?;
            let unit = match before.dtype() {
                DType::BF16 => 1.0 / 128.0,
                DType::F16 => 1.0 / 1024.0,
                _ => 1e-5,
            };
            for (clipped, scaled) in clipped.to_vec::<f64>()?.iter().zip(scaled.to_vec::<f64>()?) {
                assert!((clipped - scaled).abs() <= unit * scaled.abs() + 1e-7, "{clipped} instead of {scaled}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_few_small_gradients_are_clipped_as_many_are() -> Result<()> {
    for device in devices() {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let random =
                |shape: &[usize], seed| Tensor::randn_with(shape, &Generator::new(seed))?.to_dtype(dtype)?.to(&device);
            let make = || [[3, 5000], [2, 7], [1, 1]].iter().map(|shape| random(shape, 4)).collect::<Result<Vec<_>>>();
            let (together, beside) = (make()?, make()?);
            let zeros: Vec<_> = (0..6).map(|_| Tensor::on(&device).of(dtype).zeros([9000])).collect::<Result<_>>()?;
            for most in [1e9, 3.0] {
                let norm = clip_grad_norm_(together.iter().cloned(), most)?.item::<f64>()?;
                // Zeros do not change the norm, but make the gradients too many for one block.
                let expected = clip_grad_norm_(beside.iter().chain(&zeros).cloned(), most)?.item::<f64>()?;
                assert!((norm - expected).abs() <= 1e-6 * expected, "{norm}, not {expected}");
            }
            for (x, y) in together.iter().zip(&beside) {
                let unit = if dtype.size() == 2 { 0.01 } else { 1e-6 };
                let (x, y) = (x.to_vec::<f64>()?, y.to_vec::<f64>()?);
                assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() <= unit * y.abs()), "{dtype} on {device}");
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_are_clipped_by_value_and_nan_stays() -> Result<()> {
    for device in devices() {
        let (grads, before) = (gradients(&device)?, gradients(&device)?);
        clip_grad_value_(grads.iter().cloned(), 0.75)?;
        for (clipped, before) in grads.iter().zip(&before) {
            let expected: Vec<f64> = before.to_vec::<f64>()?.into_iter().map(|x| x.clamp(-0.75, 0.75)).collect();
            assert_eq!(clipped.to_vec::<f64>()?, expected, "{} on {device}", before.shape());
        }
        let odd = Tensor::new([f32::NAN, f32::INFINITY, f32::NEG_INFINITY])?.to(&device)?;
        clip_grad_value_([odd.clone()], 2.0)?;
        let odd = odd.to_vec::<f32>()?;
        assert!(odd[0].is_nan() && odd[1..] == [2.0, -2.0], "{odd:?} on {device}");
    }
    Ok(())
}

#[test]
fn gradients_whose_norm_is_small_enough_stay_bit_for_bit() -> Result<()> {
    for device in devices() {
        let (grads, before) = (gradients(&device)?, gradients(&device)?);
        for most in [1e4, f64::INFINITY] {
            clip_grad_norm_(grads.iter().cloned(), most)?;
            assert!(grads.iter().zip(&before).all(|(grad, before)| bits(grad) == bits(before)));
        }
        assert_eq!(clip_grad_norm_([], 1.0)?.item::<f32>()?, 0.0);
    }
    Ok(())
}

#[test]
fn half_gradients_whose_squares_overflow_are_clipped() -> Result<()> {
    for device in devices() {
        let grad = Tensor::on(&device).of(DType::F16).full([4], 30_000.0)?;
        let norm = clip_grad_norm_([grad.clone()], 2.0)?;
        assert_eq!((norm.dtype(), norm.item::<f32>()?), (DType::F32, 60_000.0));
        assert_eq!(grad.to_vec::<f32>()?, [1.0; 4]);
    }
    Ok(())
}

#[test]
fn a_norm_that_is_not_finite_reaches_the_gradients_as_in_pytorch() -> Result<()> {
    for device in devices() {
        let clipped = |values: [f32; 2]| -> Result<Vec<f32>> {
            let grad = Tensor::from_slice(&values, 2)?.to(&device)?;
            clip_grad_norm_([grad.clone()], 1.0)?;
            grad.to_vec()
        };
        let infinite = clipped([1.0, f32::INFINITY])?;
        assert!(infinite[0] == 0.0 && infinite[1].is_nan(), "{infinite:?}");
        assert!(clipped([1.0, f32::NAN])?.iter().all(|x| x.is_nan()));
    }
    Ok(())
}
