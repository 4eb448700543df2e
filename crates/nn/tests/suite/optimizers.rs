//! Ten steps of each optimizer against PyTorch's, and what optimizers refuse.

use crate::pytorch;
use pagelock_nn::optim::{Adam, AdamW, Adamax, Asgd, NAdam, Optimizer, RAdam, Sgd};
use pagelock_nn::{Parameter, functional as F, load_safetensors};
use pagelock_tensor::{DType, Tensor};

type Make = fn(Vec<Parameter>) -> Box<dyn Optimizer>;

/// The optimizers of `OPTIMIZERS` in make.py.
fn optimizers() -> Vec<(&'static str, Make)> {
    vec![
        ("sgd", |p| Box::new(Sgd::new(p, 0.1))),
        ("sgd_decay", |p| Box::new(Sgd::new(p, 0.1).weight_decay(0.05))),
        ("sgd_momentum", |p| Box::new(Sgd::new(p, 0.1).momentum(0.9))),
        ("sgd_dampening", |p| Box::new(Sgd::new(p, 0.1).momentum(0.8).dampening(0.3).weight_decay(0.01))),
        ("sgd_nesterov", |p| Box::new(Sgd::new(p, 0.05).momentum(0.9).nesterov(true))),
        ("sgd_nesterov_decay", |p| Box::new(Sgd::new(p, 0.05).momentum(0.9).nesterov(true).weight_decay(0.02))),
        ("adam", |p| Box::new(Adam::new(p, 0.05))),
        ("adam_settings", |p| Box::new(Adam::new(p, 0.05).betas(0.8, 0.95).eps(1e-3).weight_decay(0.1))),
        ("adamw", |p| Box::new(AdamW::new(p, 0.05))),
        ("adamw_settings", |p| Box::new(AdamW::new(p, 0.05).betas(0.8, 0.95).eps(1e-3).weight_decay(0.2))),
    ]
}

/// Compares in one precision, which `suffix` selects among the two of the file.
fn ten_steps_agree(suffix: &str, bound: f64) {
    let golden = load_safetensors(pytorch::path("optimizers.safetensors")).unwrap();
    let stored = |name: &str| golden.get(&format!("{name}.{suffix}")).unwrap();
    assert_eq!(stored("x").dtype().name(), format!("float{}", &suffix[1..]));
    for (name, make) in optimizers() {
        let [weight, bias] = ["weight", "bias"].map(|part| Parameter::new(copy(&stored(part))));
        let mut opt = make(vec![weight.clone(), bias.clone()]);
        let expected = stored(name);
        for step in 0..10 {
            opt.zero_grad();
            let output = F::linear(&stored("x"), &weight, Some(&bias)).unwrap().tanh().unwrap();
            F::mse_loss(&output, &stored("y")).unwrap().backward().unwrap();
            opt.step().unwrap();
            let ours = Tensor::cat(&[&weight.detach().flatten(0, -1).unwrap(), &bias.detach()], 0).unwrap();
            let error = pytorch::difference(&ours, &expected.select(0, step).unwrap());
            assert!(error <= bound, "{name}.{suffix} step {step}: {error:.1e}");
        }
    }
}

fn copy(tensor: &Tensor) -> Tensor {
    let copy = tensor.zeros_like().unwrap();
    copy.copy_(tensor).unwrap();
    copy
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

#[test]
fn ten_steps_of_each_optimizer_agree_with_pytorch_in_f32() {
    ten_steps_agree("f32", 1e-5);
}

#[test]
fn ten_steps_of_each_optimizer_agree_with_pytorch_in_f64() {
    ten_steps_agree("f64", 1e-10);
}

fn parameter() -> Parameter {
    Parameter::new(Tensor::new([1.0, 2.0]).unwrap())
}

#[test]
fn a_parameter_without_a_gradient_stays() {
    let (with, without) = (parameter(), parameter());
    let mut opt = Sgd::new([with.clone(), without.clone()], 0.5).momentum(0.9).weight_decay(0.1);
    with.sum(..).unwrap().backward().unwrap();
    opt.step().unwrap();
    assert_ne!(values(&with), [1.0, 2.0]);
    assert_eq!(values(&without), [1.0, 2.0]);
}

/// Compares four parameters in two groups of one optimizer with four optimizers of one parameter each. In some steps,
/// one of the parameters has no gradient.
fn groups_step_as_optimizers_apart<O: Optimizer>(
    make: fn(Vec<Parameter>, f64) -> O,
    join: fn(O, Parameter, Parameter) -> O,
) {
    let parameters = || [parameter(), parameter(), parameter(), parameter()];
    let (together, apart) = (parameters(), parameters());
    let [a, b, c, d] = together.clone();
    let mut opt = join(make(vec![a, b], 0.1), c, d);
    let mut alone: Vec<O> = apart.iter().zip([0.1, 0.1, 0.02, 0.02]).map(|(p, lr)| make(vec![p.clone()], lr)).collect();
    for step in 0..9 {
        for p in together.iter().chain(&apart) {
            p.zero_grad();
        }
        for i in (0..4).filter(|i| step % 5 != i + 1) {
            for p in [&together[i], &apart[i]] {
                p.square().unwrap().sum(..).unwrap().backward().unwrap();
            }
        }
        if step == 6 {
            // By now, all parameters have made the same number of steps.
            opt.load_state_dict(&opt.state_dict().unwrap()).unwrap();
            opt.set_lrs(&[0.05, 0.3]).unwrap();
            alone.iter_mut().zip([0.05, 0.05, 0.3, 0.3]).for_each(|(opt, lr)| opt.set_lr(lr));
        }
        opt.step().unwrap();
        alone.iter_mut().for_each(|opt| opt.step().unwrap());
        for (i, (p, q)) in together.iter().zip(&apart).enumerate() {
            assert_eq!(values(p), values(q), "parameter {i} after step {step}");
        }
    }
}

#[test]
fn groups_step_as_separate_optimizers_even_if_parameters_lack_gradients() {
    groups_step_as_optimizers_apart(
        |p, lr| AdamW::new(p, lr).weight_decay(0.1),
        |opt, c, d| opt.group([c, d], |group| group.with_lr(0.02)),
    );
    groups_step_as_optimizers_apart(
        |p, lr| Asgd::new(p, lr).lambd(0.1).t0(1.0),
        |opt, c, d| opt.group([c, d], |group| group.with_lr(0.02)),
    );
}

#[test]
fn the_learning_rate_can_change_between_steps() {
    let p = parameter();
    let mut opt: Box<dyn Optimizer> = Box::new(Sgd::new([p.clone()], 0.5));
    p.sum(..).unwrap().backward().unwrap();
    opt.set_lr(0.25);
    assert_eq!(opt.lr(), 0.25);
    opt.step().unwrap();
    assert_eq!(values(&p), [0.75, 1.75]);
}

#[test]
fn settings_outside_their_range_are_refused_before_anything_changes() {
    let (p, q) = (parameter(), parameter());
    p.sum(..).unwrap().backward().unwrap();
    let expanded = Parameter::new(Tensor::ones([1]).unwrap().expand([4]).unwrap());
    let refused: Vec<(Box<dyn Optimizer>, &str)> = vec![
        (Box::new(Sgd::new([p.clone()], -0.1)), "Sgd: lr is -0.1; it must be at least 0"),
        (Box::new(Sgd::new([p.clone()], f64::NAN)), "Sgd: lr is NaN; it must be at least 0"),
        (Box::new(Sgd::new([p.clone()], 0.1).momentum(-1.0)), "Sgd: momentum is -1; it must be at least 0"),
        (Box::new(Sgd::new([p.clone()], 0.1).weight_decay(-1.0)), "Sgd: weight_decay is -1; it must be at least 0"),
        (Box::new(Sgd::new([p.clone()], 0.1).nesterov(true)), "Sgd: momentum is 0; it must be above 0 for nesterov"),
        (
            Box::new(Sgd::new([p.clone()], 0.1).momentum(0.9).dampening(0.1).nesterov(true)),
            "Sgd: dampening is 0.1; it must be 0 for nesterov",
        ),
        (
            Box::new(Adam::new([p.clone()], 0.1).betas(1.0, 0.9)),
            "Adam: the first beta is 1; it must be at least 0 and below 1",
        ),
        (
            Box::new(AdamW::new([p.clone()], 0.1).betas(0.9, -0.5)),
            "AdamW: the second beta is -0.5; it must be at least 0 and below 1",
        ),
        (Box::new(AdamW::new([p.clone()], 0.1).eps(-1.0)), "AdamW: eps is -1; it must be at least 0"),
        (
            Box::new(AdamW::new([p.clone()], 0.1).group([p.clone()], |group| group.weight_decay(0.0))),
            "AdamW: the parameter without a name, [2], occurs twice; give each parameter to one group",
        ),
        (
            Box::new(AdamW::new([p.clone()], 0.1).group([q.clone()], |group| group.eps(f64::NAN))),
            "AdamW: eps is NaN; it must be at least 0",
        ),
        (
            Box::new(Sgd::new([p.clone(), expanded], 0.1)),
            "Sgd: the parameter without a name, [4], is an expanded view, whose elements share memory; make it of a \
             `contiguous` tensor",
        ),
        (
            Box::new(AdamW::new(Vec::<Parameter>::new(), 0.1)),
            "AdamW: there are no parameters to train; pass `model.parameters()` of a model that has some",
        ),
    ];
    for (mut opt, expected) in refused {
        assert_eq!(opt.step().unwrap_err().to_string(), expected);
    }
    assert_eq!(values(&p), [1.0, 2.0]);
}

#[test]
fn a_handle_of_the_model_sees_the_step() {
    let p = parameter();
    let seen = p.detach();
    let mut opt = Sgd::new([p.clone()], 1.0);
    p.sum(..).unwrap().backward().unwrap();
    opt.step().unwrap();
    assert_eq!(values(&seen), [0.0, 1.0]);
}

#[test]
fn a_parameter_of_half_precision_is_trained_as_one_of_f32_and_rounded() {
    for dtype in [DType::F16, DType::BF16] {
        for (name, make) in optimizers() {
            let start = Tensor::new([1.0, -0.5, 0.25]).unwrap();
            let half = Parameter::new(start.to_dtype(dtype).unwrap());
            let whole = Parameter::new(start);
            let (mut of_half, mut of_whole) = (make(vec![half.clone()]), make(vec![whole.clone()]));
            for step in 0..10 {
                let grad = Tensor::new([0.5, -0.25, f64::from(step) / 8.0]).unwrap();
                half.set_grad(Some(grad.to_dtype(dtype).unwrap())).unwrap();
                whole.set_grad(Some(grad)).unwrap();
                of_half.step().unwrap();
                of_whole.step().unwrap();
                let rounded = whole.detach().to_dtype(dtype).unwrap();
                assert_eq!(values(&half), values(&rounded), "{name} in {dtype}, step {step}");
            }
        }
    }
}

/// The learning rate and the weight decay of each of the two groups below.
type Settings = [(f64, f64); 2];

/// A weight and a bias after three steps of the optimizers that `make` makes for two groups with these settings.
fn in_groups(make: impl Fn([Parameter; 2], Settings) -> Vec<Box<dyn Optimizer>>) -> Vec<f32> {
    let (weight, bias) = (Parameter::new(Tensor::new([[1.0, -2.0], [0.5, 3.0]]).unwrap()), parameter());
    let x = Tensor::new([[0.3, 1.1]]).unwrap();
    let mut optimizers = make([weight.clone(), bias.clone()], [(0.1, 0.2), (0.05, 0.0)]);
    for _ in 0..3 {
        let y = (x.matmul(&weight).unwrap() + &bias).unwrap();
        y.pow(2.0).unwrap().sum(..).unwrap().backward().unwrap();
        optimizers.iter_mut().for_each(|opt| opt.step().unwrap());
        optimizers.iter_mut().for_each(|opt| opt.zero_grad());
    }
    [values(&weight), values(&bias)].concat()
}

#[test]
fn groups_are_trained_as_by_an_optimizer_each() {
    macro_rules! agrees {
        ($name:ident) => {{
            let apart = in_groups(|[weight, bias], [(lr, decay), (less, none)]| {
                let one = |p, lr, decay| -> Box<dyn Optimizer> { Box::new($name::new([p], lr).weight_decay(decay)) };
                vec![one(weight, lr, decay), one(bias, less, none)]
            });
            let added = in_groups(|[weight, bias], [(lr, decay), (less, none)]| {
                let opt = $name::new([weight], lr).weight_decay(decay);
                vec![Box::new(opt.group([bias], |group| group.weight_decay(none).with_lr(less)))]
            });
            let named = in_groups(|[weight, bias], [(lr, decay), (less, none)]| {
                let opt = $name::new([("w".to_owned(), weight), ("b".to_owned(), bias)], lr).weight_decay(decay);
                vec![Box::new(opt.group_where(|name, _| name == "b", |group| group.weight_decay(none).with_lr(less)))]
            });
            assert_eq!(added, apart);
            assert_eq!(named, apart);
        }};
    }
    agrees!(Sgd);
    agrees!(Adam);
    agrees!(AdamW);
}

#[test]
fn moving_means_of_small_gradients_do_not_vanish_beside_larger_ones() {
    let weight = || Parameter::new(Tensor::ones([2]).unwrap());
    let check = |mut opt: Box<dyn Optimizer>, weight: Parameter| {
        for gradient in [1e4, 1e-4] {
            weight.set_grad(Some(Tensor::full([2], gradient).unwrap())).unwrap();
            opt.step().unwrap();
        }
        let state = opt.state_dict().unwrap();
        let mean: f32 = state.state.get("0.exp_avg").unwrap().max(..).unwrap().item().unwrap();
        assert!((mean - 1e-4).abs() < 1e-10, "{mean}");
    };
    let w = [weight(), weight(), weight(), weight()];
    check(Box::new(Adam::new([w[0].clone()], 0.1).betas(0.0, 0.9)), w[0].clone());
    check(Box::new(Adamax::new([w[1].clone()], 0.1).betas(0.0, 0.9)), w[1].clone());
    check(Box::new(NAdam::new([w[2].clone()], 0.1).betas(0.0, 0.9)), w[2].clone());
    check(Box::new(RAdam::new([w[3].clone()], 0.1).betas(0.0, 0.9)), w[3].clone());
}
