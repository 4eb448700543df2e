//! Parameters that are not trained, and all parameters as one vector.

use pagelock_memory::{holder, ledger};
use pagelock_nn::optim::{Optimizer, Sgd};
use pagelock_nn::{Forward, Linear, Module, Parameter, ReLU, Sequential, parameters_to_vector, vector_to_parameters};
use pagelock_tensor::{DType, Generator, Tensor, no_grad};

/// The same weights in every run, since with some no unit of the first layer is active.
fn model(seed: u64) -> Sequential {
    let generator = Generator::new(seed);
    let linear = |from, to| Linear::new_with(from, to, &generator).unwrap();
    Sequential::new((linear(3, 4), ReLU, linear(4, 2)))
}

fn values(parameters: &[Parameter]) -> Vec<Vec<f32>> {
    parameters.iter().map(|parameter| parameter.to_vec().unwrap()).collect()
}

#[test]
fn frozen_parameters_stay_and_others_are_trained_by_an_optimizer_that_was_made_before() {
    let mut model = model(0);
    let mut opt = Sgd::new(model.parameters(), 0.5);
    model.freeze(|name| name.starts_with("0."));
    let before = values(&model.parameters());
    for _ in 0..2 {
        model.forward(&Tensor::ones([5, 3]).unwrap()).unwrap().sum(..).unwrap().backward().unwrap();
        opt.step().unwrap();
        opt.zero_grad();
    }
    let after = values(&model.parameters());
    assert_eq!(after[..2], before[..2]);
    assert_ne!(after[3], before[3]);

    model.requires_grad_(true);
    model.forward(&Tensor::ones([5, 3]).unwrap()).unwrap().sum(..).unwrap().backward().unwrap();
    assert!(model.parameters().iter().all(|parameter| parameter.grad().is_some()));
    opt.step().unwrap();
    assert!(values(&model.parameters())[1] != before[1] || values(&model.parameters())[0] != before[0]);
}

#[test]
fn a_frozen_model_records_nothing_and_keeps_its_names_and_values() {
    let mut model = model(0);
    let before = values(&model.parameters());
    model.requires_grad_(false);
    assert!(!model.forward(&Tensor::ones([1, 3]).unwrap()).unwrap().requires_grad());
    assert_eq!(values(&model.parameters()), before);
    assert_eq!(model.named_parameters()[2].0, "2.weight");
    let wide = model.to_dtype(DType::F64).unwrap();
    assert!(wide.parameters().iter().all(|parameter| !parameter.requires_grad()));
}

#[test]
fn a_parameter_in_two_places_is_frozen_as_one() {
    let tied = Parameter::new(Tensor::ones(2).unwrap());
    let mut pair = (tied.clone(), tied);
    pair.freeze(|name| name == "0");
    assert!(pair.0.is_same(&pair.1) && !pair.1.requires_grad());
    assert_eq!(pair.parameters().len(), 1);
}

#[test]
fn apply_meets_each_module_once_and_no_parameters() {
    let (model, mut titles) = (Sequential::new((model(0), ReLU)), Vec::new());
    model.apply(|module| titles.push(module.title()));
    assert_eq!(titles, ["Sequential", "Sequential", "Linear", "ReLU", "Linear", "ReLU"]);
}

#[test]
fn a_vector_of_parameters_carries_values_there_and_gradients_back() {
    let (from, to) = (model(0), model(1));
    let vector = parameters_to_vector(&from.parameters()).unwrap();
    vector_to_parameters(&vector, &to.parameters()).unwrap();
    assert_eq!(values(&to.parameters()), values(&from.parameters()));
    vector.sum(..).unwrap().backward().unwrap();
    assert_eq!(from.parameters()[3].grad().unwrap().to_vec::<f32>().unwrap(), [1.0; 2]);

    let error = vector_to_parameters(&Tensor::zeros(25).unwrap(), &to.parameters()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "vector_to_parameters: the vector is [25], but the parameters have 26 elements together; give a vector of [26]"
    );
    assert_eq!(values(&to.parameters()), values(&from.parameters()));
    let error = parameters_to_vector(&[]).unwrap_err();
    assert_eq!(error.to_string(), "parameters_to_vector: there are no parameters; give at least one");
}

#[test]
fn every_handle_of_a_parameter_sees_that_it_is_frozen_and_moved() {
    let model = Linear::new(2, 1).unwrap();
    let handles = model.parameters();
    let mut opt = Sgd::new(model.parameters(), 0.1);
    let mut train = |model: &Linear| {
        let before = model.weight.to_vec::<f64>().unwrap();
        model.forward(&Tensor::ones([1, 2]).unwrap().to_dtype(model.weight.dtype()).unwrap()).unwrap();
        let loss = model.forward(&Tensor::ones([1, 2]).unwrap().to_dtype(model.weight.dtype()).unwrap()).unwrap();
        let is_trained = loss.requires_grad();
        if is_trained {
            loss.sum(..).unwrap().backward().unwrap();
            opt.step().unwrap();
            opt.zero_grad();
        }
        (is_trained, before != model.weight.to_vec::<f64>().unwrap())
    };
    for wanted in [false, true, false, true] {
        for mut handle in model.parameters() {
            handle.requires_grad_(wanted);
        }
        assert_eq!(train(&model), (wanted, wanted));
        assert!(handles.iter().all(|handle| handle.requires_grad() == wanted));
        assert!(handles[0].is_same(&model.weight));
    }
    let model = model.double().unwrap();
    assert_eq!(train(&model), (true, true));
    assert_eq!((handles[0].dtype(), handles[0].is_same(&model.weight)), (DType::F64, true));
    no_grad(|| handles[0].fill_(3.0)).unwrap();
    assert_eq!(model.weight.to_vec::<f64>().unwrap(), [3.0, 3.0]);
}

/// The idiom of GANs: the discriminator is frozen in every second half step. It keeps one tensor and one gradient.
#[test]
fn freezing_in_every_step_keeps_one_tensor_and_its_gradient() {
    let model = Linear::new(2, 1).unwrap();
    model.forward(&Tensor::ones([1, 2]).unwrap()).unwrap().sum(..).unwrap().backward().unwrap();
    for step in 0..200_000 {
        for mut handle in model.parameters() {
            handle.requires_grad_(step % 2 == 1);
        }
    }
    assert_eq!(model.weight.grad().unwrap().to_vec::<f32>().unwrap(), [1.0; 2], "as in PyTorch");

    model.parameters().iter_mut().for_each(|handle| handle.requires_grad_(false));
    assert!(model.weight.grad().is_none());
    model.zero_grad();
    model.parameters().iter_mut().for_each(|handle| handle.requires_grad_(true));
    assert!(model.weight.grad().is_none(), "zero_grad clears frozen parameters, too");
}

#[test]
fn gradients_move_and_are_converted_with_their_parameters() {
    let model = Linear::new(2, 1).unwrap();
    model.forward(&Tensor::ones([1, 2]).unwrap()).unwrap().sum(..).unwrap().backward().unwrap();
    let old = model.weight.as_tensor().clone();
    let model = model.double().unwrap();
    assert_eq!(model.weight.grad().unwrap().dtype(), DType::F64);
    assert_eq!(model.weight.grad().unwrap().to_vec::<f64>().unwrap(), [1.0; 2]);
    assert!(old.grad().is_none(), "the replaced tensor does not keep it");
}

/// A handle outside of the model keeps only the tensors that it gave out.
#[test]
fn a_handle_that_is_not_used_keeps_one_of_the_tensors_that_were_replaced() {
    let _holder = holder("converted again and again");
    let mut model = Linear::new(64, 64).unwrap();
    let handles = model.parameters();
    for _ in 0..50 {
        model = model.double().unwrap().float().unwrap();
    }
    let all = ledger().resources.into_iter().flat_map(|resource| resource.holders);
    let held: u64 = all.filter(|held| held.name == "converted again and again").map(|held| held.bytes.0).sum();
    assert!(held <= 3 * 4 * 65 * 64, "{held} bytes, but there are two of 65 × 64 numbers");
    assert!(handles[0].is_same(&model.weight));
}

#[test]
fn a_handle_that_gave_out_many_tensors_is_dropped_without_recursion() {
    let mut model = Linear::new(1, 1).unwrap();
    let handles = model.parameters();
    for _ in 0..20_000 {
        model = model.double().unwrap().float().unwrap();
        assert_eq!(handles[1].dtype(), DType::F32);
    }
}
