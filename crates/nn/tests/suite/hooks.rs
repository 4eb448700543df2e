//! Hooks of layers, and what copies of models share.

use pagelock_nn::optim::{Optimizer, Sgd};
use pagelock_nn::*;
use pagelock_tensor::Tensor;
use std::sync::{Arc, Mutex};

fn values(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap()
}

/// A layer whose output is twice its input.
fn doubling() -> Hooked<Linear> {
    let layer = Linear::new(1, 1).unwrap().without_bias();
    layer.weight.detach().fill_(2.0).unwrap();
    Hooked::new(layer)
}

fn input() -> Tensor {
    Tensor::new([[3.0]]).unwrap().set_requires_grad(true)
}

#[test]
fn forward_hooks_replace_inputs_and_outputs_in_order() {
    let layer = doubling();
    let _first = layer.register_forward_pre_hook(|_, x| x.add_scalar(1.0).map(Some));
    let second = layer.register_forward_pre_hook(|_, x| x.mul_scalar(10.0).map(Some));
    let _after = layer.register_forward_hook(|_, x, y| y.sub(x).map(Some));

    assert_eq!(values(&layer.forward(&input()).unwrap()), [40.0]); // 2 · (3 + 1) · 10 − 40

    second.remove();
    assert_eq!(values(&layer.forward(&input()).unwrap()), [4.0]);
}

#[test]
fn backward_hooks_see_both_gradients_and_replace_them() {
    let layer = doubling();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let _before = layer.register_full_backward_pre_hook(|grad| grad.mul_scalar(5.0).map(Some));
    let handle = layer.register_full_backward_hook(move |grad_input, grad_output| {
        log.lock().unwrap().push((grad_input.map(values), values(grad_output)));
        grad_input.map(|grad| grad.neg()).transpose()
    });

    let x = input();
    layer.forward(&x).unwrap().sum(..).unwrap().backward().unwrap();

    assert_eq!(*seen.lock().unwrap(), [(Some(vec![10.0]), vec![5.0])]);
    assert_eq!(values(&x.grad().unwrap()), [-10.0]);
    assert_eq!(values(&layer.layer().weight.grad().unwrap()), [15.0]);

    layer.forward(&Tensor::new([[3.0]]).unwrap()).unwrap().sum(..).unwrap().backward().unwrap();
    assert_eq!(seen.lock().unwrap()[1], (None, vec![5.0]));

    handle.remove();
    layer.forward(&input()).unwrap().sum(..).unwrap().backward().unwrap();
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[test]
fn a_gradient_of_another_shape_is_refused() {
    let layer = doubling();
    let _handle = layer.register_full_backward_hook(|_, _| Tensor::ones([2, 2]).map(Some));

    let error = layer.forward(&input()).unwrap().sum(..).unwrap().backward().unwrap_err();

    assert!(error.to_string().contains("the tensor that a hook returned is [2, 2]"), "{error}");
}

#[test]
fn hooks_change_no_names_and_no_print() {
    let (plain, hooked) = (Linear::new(2, 3).unwrap(), Hooked::new(Linear::new(2, 3).unwrap()));
    let model = Sequential::new((hooked, ReLU));
    assert_eq!(model.named_parameters()[0].0, "0.weight");
    assert_eq!(model.to_string(), Sequential::new((plain, ReLU)).to_string());
}

#[test]
fn training_a_copy_leaves_the_model_as_it_is() {
    let build = || Sequential::new((Linear::new(2, 3).unwrap(), BatchNorm1d::new(3).unwrap()));
    let model = build();
    let copy = build();
    copy.load_state_dict(&model.state_dict()).unwrap();
    let all = |model: &Sequential| {
        let of = |tensor: &pagelock_tensor::AnyTensor| tensor.float().map(|x| x.to_vec::<f32>().unwrap());
        model.state_dict().iter().filter_map(|(_, tensor)| of(tensor).ok()).collect::<Vec<_>>()
    };
    let before = all(&model);
    assert_eq!(all(&copy), before);

    let mut optimizer = Sgd::new(copy.parameters(), 0.5);
    copy.forward(&Tensor::rand([4, 2]).unwrap()).unwrap().pow(2.0).unwrap().sum(..).unwrap().backward().unwrap();
    optimizer.step().unwrap();

    assert_eq!(all(&model), before);
    assert_ne!(all(&copy), before);
}

#[test]
fn a_clone_of_a_parameter_is_the_parameter_and_comes_once() {
    #[derive(Module)]
    struct Tied {
        first: Linear,
        second: Linear,
    }
    let first = Linear::new(2, 2).unwrap();
    let second = Linear { weight: first.weight.clone(), bias: None };
    let tied = Tied { first, second };

    let names: Vec<String> = tied.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["first.weight", "first.bias"]);
    let saved: Vec<String> = tied.state_dict().iter().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(saved, ["first.weight", "first.bias", "second.weight"]); // as PyTorch's
}
