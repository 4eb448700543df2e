//! Initial weights: PyTorch's bounds and spreads, and the published formulas.

use crate::pytorch;
use pagelock_nn::init::{self, Fan, Nonlinearity};
use pagelock_nn::{Conv2d, Forward, Linear};
use pagelock_tensor::{DType, Generator, Tensor};

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
            // Of at least 1,000 draws, the largest is within 2 % of the bound, and the deviation within 5 % of the
            // golden one.
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

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_vec().unwrap()
}

#[test]
fn truncated_normal_numbers_stay_in_their_bounds_and_follow_the_distribution() {
    let (tensor, generator) = (Tensor::zeros(20_000).unwrap(), Generator::new(4));
    init::trunc_normal_(&tensor, (1.0, 2.0), (-1.0, 4.0), &generator).unwrap();
    let all = numbers(&tensor);
    assert!(all.iter().all(|x| (-1.0..=4.0).contains(x)));
    // The normal distribution cut to −1 to 1.5 deviations has a mean of 0.1452, here 1 + 2 · 0.1452. Its share below
    // 0 is 0.3413 / 0.7745: the probability of −1 to 0 deviations divided by that of −1 to 1.5.
    let mean = all.iter().sum::<f64>() / 20_000.0;
    assert!((mean - 1.29).abs() < 0.03, "{mean}");
    let below = all.iter().filter(|&&x| x < 1.0).count() as f64 / 20_000.0;
    assert!((below - 0.3413 / 0.7745).abs() < 0.015, "{below}");
    let far = Tensor::of(DType::F64).zeros(100).unwrap();
    init::trunc_normal_(&far, (0.0, 1.0), (3.0, 5.0), &generator).unwrap();
    assert!(numbers(&far).iter().all(|x| (3.0..=5.0).contains(x)));
    // Far out, the density falls like e^(−bound · x), so the mean excess is nearly 1 / bound.
    for (low, high) in [(9.5, 10.0), (-10.0, -9.5), (30.0, f64::INFINITY)] {
        let far = Tensor::of(DType::F64).zeros(20_000).unwrap();
        init::trunc_normal_(&far, (0.0, 1.0), (low, high), &generator).unwrap();
        let (all, bound) = (numbers(&far), low.abs().min(high.abs()));
        let excess = all.iter().map(|x| x.abs() - bound).sum::<f64>() / 20_000.0;
        assert!(all.iter().all(|x| (low..=high).contains(x)) && (excess * bound - 0.97).abs() < 0.05, "{low} {excess}");
    }
}

#[test]
fn orthogonal_weights_have_perpendicular_rows_or_columns() {
    for shape in [&[4, 7][..], &[7, 4], &[3, 2, 2, 2], &[5, 5], &[33, 40], &[50, 48], &[64, 64], &[0, 3]] {
        let tensor = Tensor::of(DType::F64).zeros(shape).unwrap();
        init::orthogonal_(&tensor, 2.0, &Generator::new(3)).unwrap();
        let matrix = tensor.flatten(1, -1).unwrap();
        let tall = matrix.dims()[0] > matrix.dims()[1];
        let rows = if tall { matrix.t().unwrap() } else { matrix };
        let products = rows.matmul(&rows.t().unwrap()).unwrap();
        let expected = Tensor::of(DType::F64).eye(rows.dims()[0]).unwrap().mul_scalar(4.0).unwrap();
        assert!(pytorch::difference(&products, &expected) < 1e-12, "{shape:?}: {products}");
    }
}

#[test]
fn identities_pass_their_input_on() {
    let eye = Tensor::zeros([2, 3]).unwrap();
    init::eye_(&eye).unwrap();
    assert_eq!(numbers(&eye), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    let conv = Conv2d::grouped(4, 4, 3, 2).unwrap().padding(1).without_bias();
    init::dirac_(&conv.weight, 2).unwrap();
    let x = Tensor::randn([2, 4, 5, 5]).unwrap();
    assert_eq!(numbers(&conv.forward(&x).unwrap()), numbers(&x));
}

#[test]
fn sparse_columns_have_their_part_of_zeros() {
    let tensor = Tensor::ones([10, 6]).unwrap();
    init::sparse_(&tensor, 0.25, 0.5, &Generator::new(1)).unwrap();
    for column in 0..6 {
        let zeros = numbers(&tensor.select(1, column).unwrap()).iter().filter(|&&x| x == 0.0).count();
        assert_eq!(zeros, 3);
    }
}

#[test]
fn initializers_refuse_other_shapes_and_settings_with_the_numbers() {
    let (vector, generator) = (Tensor::zeros(3).unwrap(), Generator::new(1));
    let refusals = [
        init::eye_(&vector),
        init::orthogonal_(&vector, 1.0, &generator),
        init::dirac_(&vector, 1),
        init::dirac_(&Tensor::zeros([4, 2, 3]).unwrap(), 3),
        init::sparse_(&Tensor::zeros([4, 2]).unwrap(), 1.5, 1.0, &generator),
        init::trunc_normal_(&vector, (0.0, 0.0), (-1.0, 1.0), &generator),
        init::trunc_normal_(&vector, (0.0, 1.0), (2.0, 1.0), &generator),
    ];
    let texts = refusals.map(|refusal| refusal.unwrap_err().to_string());
    let expected = [
        "eye_: the tensor is [3], but it must be a matrix; reshape it",
        "orthogonal_: the tensor is [3], but it must have at least two dimensions; reshape it",
        "dirac_: the weight is [3], but it must be [out_channels, in_channels, ..kernel] with three to five dimensions",
        "dirac_: groups is 3, but it must be a divisor of 4 output channels",
        "sparse_: sparsity is 1.5, but it must be 0 to 1",
        "trunc_normal_: the deviation is 0, but it must be above 0",
        "trunc_normal_: low is 2, but it must be below high, which is 1",
    ];
    assert_eq!(texts, expected);
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
