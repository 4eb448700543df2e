//! `functional_call` and `stack_module_state`: a model computes with other tensors, and has its own again afterwards.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pagelock_nn::functional as F;
use pagelock_nn::*;
use pagelock_tensor::{DType, Tensor, func, no_grad};

fn model() -> Sequential {
    let layers = (Linear::new(3, 4).unwrap(), BatchNorm1d::new(4).unwrap(), Tanh, Linear::new(4, 2).unwrap());
    Sequential::new(layers).to_dtype(DType::F64).unwrap()
}

fn inputs() -> Tensor {
    Tensor::of(DType::F64).new([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75], [0.0, 1.0, -2.0], [-1.0, 0.5, 0.125]]).unwrap()
}

fn own_parameters(model: &impl Module) -> StateDict {
    model.named_parameters().into_iter().collect()
}

fn values(dict: &StateDict) -> Vec<Vec<f64>> {
    dict.iter().filter_map(|(_, tensor)| tensor.float().ok()).map(|tensor| tensor.to_vec().unwrap()).collect()
}

#[test]
fn gradients_of_a_state_are_those_that_backward_leaves_at_parameters() -> Result<()> {
    let mut model = model();
    model.eval();
    let loss = |model: &Sequential| model.forward(&inputs())?.pow(2.0)?.mean(..);
    loss(&model)?.backward()?;
    let left: Vec<Vec<f64>> = model.parameters().iter().map(|w| w.grad().unwrap().to_vec().unwrap()).collect();
    let state = own_parameters(&model);
    let grads = func::grad(|state| functional_call(&mut model, state, loss), &state)?;
    assert_eq!(grads.names().collect::<Vec<_>>(), state.names().collect::<Vec<_>>());
    assert_eq!(values(&grads), left);
    Ok(())
}

#[test]
fn second_derivatives_reach_a_state() -> Result<()> {
    let mut model = Linear::new(2, 1)?.to_dtype(DType::F64)?;
    let x = Tensor::of(DType::F64).new([[1.0, 2.0]])?;
    let weight = model.weight.detach();
    let square = |weight: &Tensor| {
        let state = StateDict::from_iter([("weight".to_owned(), weight)]);
        functional_call(&mut model, &state, |model| model.forward(&x)?.pow(2.0)?.sum(..))
    };
    assert_eq!(func::hessian(square, &weight)?.to_vec::<f64>()?, [2.0, 4.0, 4.0, 8.0]);
    Ok(())
}

#[test]
fn a_model_computes_with_the_tensors_it_is_given_and_keeps_its_own() -> Result<()> {
    let (mut model, other) = (model(), model());
    model.eval();
    other.eval();
    let (before, expected) = (values(&model.state_dict()), other.forward(&inputs())?.to_vec::<f64>()?);
    let ids: Vec<Parameter> = model.parameters();
    let found = functional_call(&mut model, &other.state_dict(), |model| model.forward(&inputs()))?;
    assert_eq!(found.to_vec::<f64>()?, expected);
    assert_eq!(values(&model.state_dict()), before);
    assert!(model.parameters().iter().zip(&ids).all(|(now, then)| now.is_same(then)), "optimizers would lose them");
    Ok(())
}

#[test]
fn buffers_that_are_given_change_and_those_of_the_model_do_not() -> Result<()> {
    let mut model = model();
    let state = model.state_dict().renamed(|name| name.contains("running").then(|| name.to_owned()));
    let state: StateDict =
        state.iter().map(|(name, t)| (name.to_owned(), t.float().unwrap().mul_scalar(1.0).unwrap())).collect();
    let (own, given) = (values(&model.state_dict()), values(&state));
    functional_call(&mut model, &state, |model| model.forward(&inputs()))?;
    assert_ne!(values(&state), given);
    assert_eq!(values(&model.state_dict()), own);
    Ok(())
}

#[test]
fn a_parameter_in_two_places_is_replaced_in_both() -> Result<()> {
    let first = Linear::new(2, 2)?;
    let mut tied = (Linear { weight: first.weight.clone(), bias: None }, first);
    let ones = StateDict::from_iter([("1.weight".to_owned(), Tensor::ones([2, 2])?)]);
    let y = functional_call(&mut tied, &ones, |(a, b)| a.weight.sum(..)? + b.weight.sum(..)?)?;
    assert_eq!(y.item::<f32>()?, 8.0);
    assert!(tied.0.weight.is_same(&tied.1.weight));
    Ok(())
}

#[test]
fn a_model_is_as_it_was_after_an_error_and_after_a_panic() -> Result<()> {
    let (mut model, other) = (model(), model());
    let before = values(&model.state_dict());
    let failed = functional_call(&mut model, &other.state_dict(), |model| model.forward(&Tensor::zeros([1, 7])?));
    assert!(failed.is_err());
    let state = other.state_dict();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _ = functional_call(&mut model, &state, |_| -> pagelock_tensor::Result<()> { panic!("in the function") });
    }));
    assert!(panicked.is_err());
    assert_eq!(values(&model.state_dict()), before);
    Ok(())
}

#[test]
fn a_state_that_does_not_fit_is_refused_before_the_call() -> Result<()> {
    let mut model = Linear::new(2, 2)?;
    let state = StateDict::from_iter([
        ("weight".to_owned(), pagelock_tensor::AnyTensor::from(Tensor::ones([3])?)),
        ("bias".to_owned(), Tensor::full([2], 1)?.into()),
        ("scale".to_owned(), Tensor::ones([2])?.into()),
    ]);
    let refused = functional_call(&mut model, &state, |_| -> pagelock_tensor::Result<()> { unreachable!() });
    assert_eq!(
        refused.unwrap_err().to_string(),
        "functional_call: the state does not fit the model, which was not called: the model has no `scale`; `weight` is [3], and \
         [2, 2] in the model; `bias` is int64, and float32 in the model; give tensors of the names, shapes and kinds of the \
         model's state_dict"
    );
    Ok(())
}

#[test]
fn stacked_models_compute_what_each_computes() -> Result<()> {
    let models = [(); 3].map(|()| model());
    models.iter().for_each(Module::eval);
    let (parameters, buffers) = stack_module_state(&models)?;
    assert_eq!(parameters.get("0.weight").unwrap().dims(), [3, 4, 3]);
    assert_eq!(buffers.get("1.running_mean").unwrap().dims(), [3, 4]);
    let mut one = model();
    one.eval();
    let call = |(own, state): &(StateDict, StateDict)| {
        let all: StateDict = own.iter().chain(state.iter()).map(|(name, t)| (name.to_owned(), t.clone())).collect();
        functional_call(&mut one, &all, |model| F::softmax(&model.forward(&inputs())?, 1))
    };
    let together = func::vmap(call, &(parameters, buffers))?;
    for (place, model) in models.iter().enumerate() {
        let alone = F::softmax(&model.forward(&inputs())?, 1)?;
        assert_eq!(together.select(0, place)?.to_vec::<f64>()?, alone.to_vec::<f64>()?);
    }
    Ok(())
}

#[test]
fn models_that_differ_are_not_stacked() -> Result<()> {
    let text = |result: Result<(StateDict, StateDict)>| result.err().unwrap().to_string();
    assert_eq!(text(stack_module_state::<Linear>(&[])), "stack_module_state: there are no models; give at least one");
    assert_eq!(
        text(stack_module_state(&[Linear::new(2, 2)?, Linear::new(2, 2)?.without_bias()])),
        "stack_module_state: model 1 has other names than the first; give models of one architecture"
    );
    assert!(text(stack_module_state(&[Linear::new(2, 2)?, Linear::new(2, 3)?])).contains("[3, 2]"));
    Ok(())
}

/// A parametrized layer reports its parameters in one order to `visit` and in another to `visit_mut`.
#[test]
fn parametrized_layers_compute_with_the_tensors_they_are_given() -> Result<()> {
    let x = Tensor::randn([5, 3])?;
    let norm = |layer| parametrizations::weight_norm(layer, 0);
    for layer in [Linear::new(3, 3)?, Linear::new(3, 3)?.without_bias()] {
        let mut model = norm(layer)?;
        no_grad(|| model.parameters().iter().try_for_each(|w| w.mul_scalar_(1.5)))?;
        let (expected, state) = (model.forward(&x)?.to_vec::<f32>()?, own_parameters(&model));
        let other: StateDict =
            state.iter().map(|(name, w)| Ok((name.to_owned(), w.float()?.mul_scalar(2.0)?))).collect::<Result<_>>()?;
        assert_eq!(functional_call(&mut model, &state, |model| model.forward(&x))?.to_vec::<f32>()?, expected);
        let found = functional_call(&mut model, &other, |model| model.forward(&x))?.to_vec::<f32>()?;
        model.load_state_dict(&other)?;
        assert_eq!(model.forward(&x)?.to_vec::<f32>()?, found);
    }
    let mut model = parametrizations::spectral_norm(Linear::new(3, 4)?, Default::default())?;
    model.eval();
    let (expected, state) = (model.forward(&x)?.to_vec::<f32>()?, model.state_dict());
    assert_eq!(functional_call(&mut model, &state, |model| model.forward(&x))?.to_vec::<f32>()?, expected);
    Ok(())
}

#[test]
fn two_names_of_one_parameter_must_have_one_tensor() -> Result<()> {
    let tied = Parameter::new(Tensor::ones(2)?);
    let mut pair = (tied.clone(), tied);
    let own = pair.state_dict();
    functional_call(&mut pair, &own, |pair| pair.0.add(&pair.1))?;
    let state = StateDict::from_iter([("0".to_owned(), Tensor::zeros(2)?), ("1".to_owned(), Tensor::ones(2)?)]);
    let refused = functional_call(&mut pair, &state, |_| -> tensor::Result<()> { unreachable!() }).unwrap_err();
    assert!(refused.to_string().contains("`0` and `1` are one parameter"), "{refused}");
    Ok(())
}
