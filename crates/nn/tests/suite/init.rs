//! Initial weights: PyTorch's bounds and spreads, and the published formulas.

use crate::pytorch;
use pagelock_nn::init::{self, Fan, Nonlinearity};
use pagelock_nn::{Conv2d, Linear};
use pagelock_tensor::{Generator, Tensor};

struct Spread {
    largest: f64,
    deviation: f64,
}

fn spread(tensors: &[Tensor]) -> Spread {
    let numbers: Vec<f64> = tensors.iter().flat_map(|tensor| tensor.to_vec().unwrap()).collect();
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    Spread { largest: numbers.iter().fold(0.0, |largest, x| largest.max(x.abs())), deviation: variance.sqrt() }
}

/// Weight and bias of a layer that `name` describes: "linear in out", "conv in out kernel groups".
fn draw(name: &str, generator: &Generator) -> [Tensor; 2] {
    let mut words = name.split(' ');
    let kind = words.next().unwrap();
    let sizes: Vec<usize> = words.map(|word| word.parse().unwrap()).collect();
    let (weight, bias) = if kind == "linear" {
        let layer = Linear::new_with(sizes[0], sizes[1], generator).unwrap();
        (layer.weight, layer.bias)
    } else {
        let layer = Conv2d::grouped_with(sizes[0], sizes[1], sizes[2], sizes[3], generator).unwrap();
        (layer.weight, layer.bias)
    };
    [weight.detach(), bias.unwrap().detach()]
}

#[test]
fn default_weights_spread_as_those_of_pytorch() {
    let generator = Generator::new(5);
    for (name, golden) in pytorch::json("init.json").as_object().unwrap() {
        let layers: Vec<[Tensor; 2]> = (0..200).map(|_| draw(name, &generator)).collect();
        for (i, part) in ["weight", "bias"].into_iter().enumerate() {
            let ours = spread(&layers.iter().map(|layer| layer[i].clone()).collect::<Vec<_>>());
            let theirs = |key: &str| golden[part][key].as_f64().unwrap();
            // The largest of at least 1,000 draws: within 2 % of the bound; deviations of as many: within 5 %.
            assert!((ours.largest / theirs("largest") - 1.0).abs() < 0.02, "{name} {part}: {}", ours.largest);
            assert!((ours.deviation / theirs("deviation") - 1.0).abs() < 0.05, "{name} {part}: {}", ours.deviation);
        }
    }
}

#[test]
fn initializers_follow_the_published_formulas() {
    let (weight, generator) = (Tensor::zeros([300, 50, 2, 2]).unwrap(), Generator::new(2));
    let (fan_in, fan_out) = (200.0f64, 1200.0f64);
    let check = |expected: f64| {
        let found = spread(std::slice::from_ref(&weight)).deviation;
        assert!((found / expected - 1.0).abs() < 0.02, "{found}, expected {expected}");
    };
    init::kaiming_uniform_(&weight, Fan::In, Nonlinearity::Relu, &generator).unwrap();
    check((2.0 / fan_in).sqrt());
    init::kaiming_normal_(&weight, Fan::Out, Nonlinearity::LeakyRelu(0.5), &generator).unwrap();
    check((2.0 / 1.25 / fan_out).sqrt());
    init::xavier_uniform_(&weight, Nonlinearity::Tanh.gain(), &generator).unwrap();
    check(5.0 / 3.0 * (2.0 / (fan_in + fan_out)).sqrt());
    init::xavier_normal_(&weight, 1.0, &generator).unwrap();
    check((2.0 / (fan_in + fan_out)).sqrt());
    init::normal_(&weight, 3.0, 0.25, &generator).unwrap();
    check(0.25);
}

#[test]
fn constants_fill_in_place() {
    let weight = Tensor::zeros(3).unwrap();
    init::ones_(&weight).unwrap();
    assert_eq!(weight.to_vec::<f32>().unwrap(), [1.0; 3]);
    init::constant_(&weight, 0.5).unwrap();
    assert_eq!(weight.to_vec::<f32>().unwrap(), [0.5; 3]);
    init::zeros_(&weight).unwrap();
    assert_eq!(weight.to_vec::<f32>().unwrap(), [0.0; 3]);
}

#[test]
fn equal_generators_give_equal_layers() {
    let draw = || Linear::new_with(5, 3, &Generator::new(9)).unwrap().weight.to_vec::<f32>().unwrap();
    assert_eq!(draw(), draw());
}

#[test]
fn a_vector_has_no_fans() {
    let error = init::fans(&Tensor::zeros(3).unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "init: weight is [3], but it must have a dimension of outputs and one of inputs; use uniform_ or normal_ for others"
    );
}
