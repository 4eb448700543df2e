//! Layers whose weights are computed: what stays, what moves, what is saved.

use pagelock_nn::optim::{Optimizer, Sgd};
use pagelock_nn::parametrizations::{SpectralNormOptions, spectral_norm, weight_norm};
use pagelock_nn::*;
use pagelock_tensor::{DType, Tensor};

fn largest_difference(a: &Tensor, b: &Tensor) -> f32 {
    a.sub(b).unwrap().abs().unwrap().max(..).unwrap().item().unwrap()
}

#[test]
fn weight_norm_keeps_the_weight_until_it_is_trained() {
    let layer = Linear::new(5, 3).unwrap();
    let (x, plain) = (Tensor::rand([4, 5]).unwrap(), layer.weight.contiguous().unwrap().detach());
    let before = layer.forward(&x).unwrap();

    let layer = weight_norm(layer, 0).unwrap();

    assert!(largest_difference(&layer.forward(&x).unwrap(), &before) < 1e-6);
    let mut optimizer = Sgd::new(layer.parameters(), 0.1);
    layer.forward(&x).unwrap().sum(..).unwrap().backward().unwrap();
    optimizer.step().unwrap();
    assert!(largest_difference(&layer.weight().unwrap(), &plain) > 1e-4);
}

#[test]
fn the_layer_comes_back_with_its_computed_weight() {
    let layer = spectral_norm(Conv2d::new(2, 3, 2).unwrap(), SpectralNormOptions::default()).unwrap();
    layer.eval();
    let x = Tensor::rand([1, 2, 4, 4]).unwrap();
    let before = layer.forward(&x).unwrap();

    let plain: Conv2d = layer.remove().unwrap();

    assert!(largest_difference(&plain.forward(&x).unwrap(), &before) < 1e-6);
    assert_eq!(plain.named_parameters()[0].0, "weight");
}

#[test]
fn the_largest_singular_value_becomes_one() {
    let options = SpectralNormOptions { n_power_iterations: 50, ..SpectralNormOptions::default() };
    let weight = spectral_norm(Linear::new(6, 4).unwrap(), options).unwrap().weight().unwrap();
    let mut vector = Tensor::ones([6, 1]).unwrap();
    for _ in 0..100 {
        let next = weight.t().unwrap().matmul(&weight.matmul(&vector).unwrap()).unwrap();
        vector = next.div(&next.norm_keepdim(2.0, ..).unwrap()).unwrap();
    }
    let largest: f32 = weight.matmul(&vector).unwrap().norm(2.0, ..).unwrap().item().unwrap();
    assert!((largest - 1.0).abs() < 1e-4, "{largest}");
}

#[test]
fn parametrized_layers_change_precision_and_load_as_wholes() {
    let make = || Sequential::new((weight_norm(Linear::new(3, 2).unwrap(), 0).unwrap(), ReLU));
    let model = make().to_dtype(DType::F64).unwrap();
    assert!(model.named_parameters().iter().all(|(_, parameter)| parameter.dtype() == DType::F64));

    let other = make();
    other.load_state_dict(&model.state_dict()).unwrap();
    let x = Tensor::rand([4, 3]).unwrap();
    let y = model.forward(&x.to_dtype(DType::F64).unwrap()).unwrap().to_dtype(DType::F32).unwrap();
    assert!(largest_difference(&other.forward(&x).unwrap(), &y) < 1e-6);
}

#[test]
fn a_state_of_pytorchs_older_weight_norm_is_loaded_once_it_is_renamed() {
    let old: StateDict = [
        ("bias".to_owned(), Tensor::new([0.5, -0.5]).unwrap()),
        ("weight_g".to_owned(), Tensor::new([[10.0], [2.0]]).unwrap()),
        ("weight_v".to_owned(), Tensor::new([[3.0, 4.0], [0.0, 4.0]]).unwrap()),
    ]
    .into_iter()
    .collect();
    let new = old.renamed(|name| {
        Some(
            name.replace("weight_g", "parametrizations.weight.original0")
                .replace("weight_v", "parametrizations.weight.original1"),
        )
    });
    let layer = weight_norm(Linear::new(2, 2).unwrap(), 0).unwrap();

    layer.load_state_dict(&new).unwrap();

    let weight = Tensor::new([[6.0, 8.0], [0.0, 2.0]]).unwrap();
    assert!(largest_difference(&layer.weight().unwrap(), &weight) < 1e-6);
    let y = layer.forward(&Tensor::ones([1, 2]).unwrap()).unwrap();
    assert!(largest_difference(&y, &Tensor::new([[14.5, 1.5]]).unwrap()) < 1e-5);
}

#[test]
fn vectors_have_no_spectral_norm() {
    struct Vector(Parameter);
    impl Module for Vector {
        fn visit(&self, visitor: &mut Visitor<'_>) {
            visitor.child("weight", &self.0);
        }
        fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
            visitor.child(&mut self.0);
        }
    }
    impl Forward for Vector {
        fn forward(&self, x: &Tensor) -> pagelock_tensor::Result<Tensor> {
            x.mul(&self.0)
        }
    }
    impl parametrizations::Weighted for Vector {
        fn weight(&self) -> &Parameter {
            &self.0
        }
        fn forward_with_weight(&self, x: &Tensor, weight: &Tensor) -> pagelock_tensor::Result<Tensor> {
            x.mul(weight)
        }
    }
    let vector = || Vector(Parameter::new(Tensor::ones(3).unwrap()));
    let error = spectral_norm(vector(), SpectralNormOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "spectral_norm: the weight is [3], but it must be of two dimensions or more");
    assert!(weight_norm(vector(), 1).is_err());
}

/// As with `dim=-1` and `dim=None` in PyTorch 2.15, whose `original0` has no dimensions.
#[test]
fn a_weight_norm_of_dimension_minus_one_has_one_length() {
    let layer = Linear::new(3, 2).unwrap();
    let before: Vec<f32> = layer.weight.to_vec().unwrap();
    let length = before.iter().map(|x| x * x).sum::<f32>().sqrt();
    let layer = weight_norm(layer, -1).unwrap();
    let original0 = layer.state_dict().get("parametrizations.weight.original0").unwrap();
    assert_eq!(original0.rank(), 0);
    assert!((original0.item::<f32>().unwrap() - length).abs() < 1e-5);
    let after: Vec<f32> = layer.weight().unwrap().to_vec().unwrap();
    assert!(before.iter().zip(&after).all(|(before, after)| (before - after).abs() < 1e-6), "{before:?} {after:?}");
}
