//! Operations that users define: what they may save, what they must return, and how they fit into the graph.

use std::sync::Arc;

use pagelock_tensor::autograd::{self, Backward, Context, Function, Tolerance, gradcheck, gradgradcheck};
use pagelock_tensor::{DType, Error, Result, Tensor, is_grad_enabled, no_grad};

type Gradients = Vec<Option<Tensor>>;

/// A function whose forward and backward are given as closures.
struct Custom {
    forward: fn(&mut Context, &[&Tensor]) -> Result<Tensor>,
    backward: fn(&Context, &Tensor) -> Result<Gradients>,
}

impl Function for Custom {
    fn forward(&self, context: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
        (self.forward)(context, inputs)
    }

    fn backward(&self, context: &Context, grad: &Tensor) -> Result<Gradients> {
        (self.backward)(context, grad)
    }
}

/// eˣ, whose derivative is the result.
fn exponential() -> Custom {
    Custom {
        forward: |context, inputs| {
            let y = inputs[0].exp()?;
            context.save(&y);
            Ok(y)
        },
        backward: |context, grad| Ok(vec![Some(grad.mul(&context.saved(0)?)?)]),
    }
}

/// a · b², for which both inputs are saved.
fn a_times_b_squared() -> Custom {
    Custom {
        forward: |context, inputs| {
            context.save(inputs[0]);
            context.save(inputs[1]);
            inputs[0].mul(&inputs[1].pow(2.0)?)
        },
        backward: |context, grad| {
            let (a, b) = (context.saved(0)?, context.saved(1)?);
            let by_a = context.needs_input_grad(0).then(|| grad.mul(&b.pow(2.0)?)).transpose()?;
            let by_b = context.needs_input_grad(1).then(|| grad.mul(&((&a * &b)? * 2.0)?)).transpose()?;
            Ok(vec![by_a, by_b])
        },
    }
}

fn leaf(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len()).unwrap().set_requires_grad(true)
}

fn identity_with(backward: fn(&Context, &Tensor) -> Result<Gradients>) -> Custom {
    Custom { forward: |_, inputs| inputs[0].add_scalar(0.0), backward }
}

#[test]
fn a_function_runs_forward_and_its_backward_gives_the_gradients() -> Result<()> {
    let (a, b) = (leaf(&[2.0, 3.0]), leaf(&[5.0, 7.0]));
    let y = a_times_b_squared().apply(&[&a, &b])?;
    assert_eq!(y.to_vec::<f32>()?, [50.0, 147.0]);
    y.sum(..)?.backward()?;
    assert_eq!(a.grad().unwrap().to_vec::<f32>()?, [25.0, 49.0]);
    assert_eq!(b.grad().unwrap().to_vec::<f32>()?, [20.0, 42.0]);
    Ok(())
}

#[test]
fn first_and_second_derivatives_agree_with_differences() -> Result<()> {
    let a = Tensor::of(DType::F64).new([0.3, -1.2])?;
    let b = Tensor::of(DType::F64).new([0.7, 0.9])?;
    gradgradcheck(|x| exponential().apply(&[&x[0]]), &[&a], Tolerance::default())?;
    gradcheck(|x| a_times_b_squared().apply(&[&x[0], &x[1]]), &[&a, &b], Tolerance::default())?;
    gradgradcheck(|x| a_times_b_squared().apply(&[&x[0], &x[1]]), &[&a, &b], Tolerance::default())?;
    gradgradcheck(|x| a_times_b_squared().apply(&[&x[0].tanh()?, &x[0]])?.exp(), &[&a], Tolerance::default())
}

#[test]
fn the_same_tensor_may_be_given_twice() -> Result<()> {
    let x = leaf(&[2.0]);
    a_times_b_squared().apply(&[&x, &x])?.backward()?;
    assert_eq!(x.grad().unwrap().item::<f32>()?, 12.0);
    Ok(())
}

#[test]
fn only_wanted_gradients_need_computing() -> Result<()> {
    let constant = Tensor::new([2.0])?;
    let x = leaf(&[3.0]);
    let only_second = Custom {
        forward: |context, inputs| {
            assert!(!context.needs_input_grad(0) && context.needs_input_grad(1) && !context.needs_input_grad(2));
            inputs[0].mul(inputs[1])
        },
        backward: |context, grad| {
            assert!(!context.needs_input_grad(0) && context.needs_input_grad(1) && !context.needs_input_grad(2));
            Ok(vec![None, Some(grad.mul_scalar(2.0)?)])
        },
    };
    only_second.apply(&[&constant, &x])?.backward()?;
    assert_eq!(x.grad().unwrap().item::<f32>()?, 2.0);
    Ok(())
}

#[test]
fn forward_records_nothing_and_backward_only_on_request() -> Result<()> {
    let x = leaf(&[1.0]);
    let function = || Custom {
        forward: |_, inputs| {
            assert!(!is_grad_enabled());
            let y = inputs[0].exp()?;
            assert!(!y.requires_grad());
            Ok(y)
        },
        backward: |_, grad| Ok(vec![Some(if is_grad_enabled() { grad.neg()? } else { grad.clone() })]),
    };
    let y = function().apply(&[&x])?;
    assert!(y.requires_grad() && !y.is_leaf());
    let with_graph = Backward { create_graph: true, ..Backward::default() };
    assert_eq!(autograd::grad(&[&y], &[&x], with_graph)?.remove(0).unwrap().item::<f32>()?, -1.0);
    assert_eq!(autograd::grad(&[&y], &[&x], Backward::default())?.remove(0).unwrap().item::<f32>()?, 1.0);
    Ok(())
}

#[test]
fn nothing_is_recorded_without_tracked_inputs_or_under_no_grad() -> Result<()> {
    let x = Tensor::new([1.0])?;
    assert!(!exponential().apply(&[&x])?.requires_grad());
    let x = x.set_requires_grad(true);
    assert!(!no_grad(|| exponential().apply(&[&x]))?.requires_grad());
    let passed_on = Custom { forward: |_, inputs| Ok(inputs[0].clone()), backward: |_, _| unreachable!() };
    assert!(!no_grad(|| passed_on.apply(&[&x]))?.requires_grad());
    Ok(())
}

#[test]
fn an_input_may_be_the_result() -> Result<()> {
    let x = leaf(&[1.0, 2.0]);
    let reversed =
        Custom { forward: |_, inputs| Ok(inputs[0].clone()), backward: |_, grad| Ok(vec![Some(grad.neg()?)]) };
    let y = reversed.apply(&[&(&x * 3.0)?])?;
    y.sum(..)?.backward()?;
    assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [-3.0, -3.0]);
    Ok(())
}

#[test]
fn the_name_is_the_type_s_unless_another_is_given() -> Result<()> {
    struct Squash;
    impl Function for Squash {
        fn forward(&self, _: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
            inputs[0].tanh()
        }
        fn backward(&self, _: &Context, grad: &Tensor) -> Result<Gradients> {
            Ok(vec![Some(grad.clone())])
        }
        fn name(&self) -> &'static str {
            "squash"
        }
    }
    assert_eq!(Squash.apply(&[&leaf(&[1.0])])?.grad_fn(), Some("squash"));
    assert_eq!(exponential().apply(&[&leaf(&[1.0])])?.grad_fn(), Some("Custom"));
    Ok(())
}

#[test]
fn too_few_gradients_are_refused() -> Result<()> {
    let (x, y) = (leaf(&[1.0]), leaf(&[1.0]));
    let forgetful =
        Custom { forward: |_, inputs| inputs[0].add(inputs[1]), backward: |_, grad| Ok(vec![Some(grad.clone())]) };
    let error = forgetful.apply(&[&x, &y])?.backward().unwrap_err();
    assert_eq!(
        error.to_string(),
        "Custom: backward returned 1 gradients for 2 inputs; return one per input, None where there is none"
    );
    assert!(x.grad().is_none());
    Ok(())
}

#[test]
fn gradients_of_another_shape_are_refused_even_if_they_would_broadcast() -> Result<()> {
    let x = leaf(&[1.0, 2.0]);
    let scalar = identity_with(|_, grad| Ok(vec![Some(grad.sum(..)?)]));
    let error = scalar.apply(&[&x])?.sum(..)?.backward().unwrap_err();
    assert_eq!(
        error.to_string(),
        "Custom: the gradient is float32 [], but float32 [2] was expected; a gradient is shaped like its tensor"
    );
    let wide = identity_with(|_, grad| Ok(vec![Some(grad.expand([3, 2])?)]));
    let error = wide.apply(&[&x])?.sum(..)?.backward().unwrap_err();
    assert!(error.to_string().starts_with("Custom: the gradient is float32 [3, 2]"), "{error}");
    Ok(())
}

#[test]
fn errors_of_the_function_pass_through() -> Result<()> {
    let x = leaf(&[1.0, 2.0]);
    let fails = Custom { forward: |_, inputs| inputs[0].reshape([3]), backward: |_, _| unreachable!() };
    assert!(fails.apply(&[&x]).unwrap_err().to_string().starts_with("reshape: [2]"));
    let fails_later = identity_with(|_, grad| Ok(vec![Some(grad.reshape([3])?)]));
    assert!(fails_later.apply(&[&x])?.sum(..)?.backward().unwrap_err().to_string().starts_with("reshape: [2]"));
    assert!(x.grad().is_none());
    Ok(())
}

#[test]
fn a_saved_tensor_that_was_changed_since_is_refused() -> Result<()> {
    let (a, b) = (Tensor::new([2.0])?, leaf(&[3.0]));
    let y = a_times_b_squared().apply(&[&a, &b])?;
    a.zero_()?;
    assert_eq!(
        y.backward().unwrap_err().to_string(),
        "backward: a tensor saved by `Custom` ([1]) was changed in place: it is at version 1, saved at version 0; change it after backward, or change a `deep_clone` of it"
    );
    Ok(())
}

#[test]
fn a_changed_input_is_refused_if_its_gradient_is_wanted() -> Result<()> {
    let in_place = || Custom {
        forward: |_, inputs| {
            inputs[0].add_scalar_(1.0)?;
            Ok(inputs[0].clone())
        },
        backward: |_, grad| Ok(vec![Some(grad.clone())]),
    };
    assert_eq!(in_place().apply(&[&Tensor::new([1.0])?])?.item::<f32>()?, 2.0);
    assert_eq!(
        in_place().apply(&[&leaf(&[1.0])]).unwrap_err().to_string(),
        "Custom: an input of shape [1] requires grad, and in-place changes are not recorded; make the change inside no_grad, which does not record it either, or compute another tensor, for example with `where_cond`, `slice_scatter` or `stack`"
    );
    Ok(())
}

#[test]
fn saved_tensors_are_freed_by_backward_unless_the_graph_is_retained() -> Result<()> {
    let x = leaf(&[0.0]);
    let y = exponential().apply(&[&x])?;
    y.backward_with(Backward { retain_graph: true, ..Backward::default() })?;
    y.backward()?;
    assert_eq!(x.grad().unwrap().item::<f32>()?, 2.0);
    assert_eq!(
        y.backward().unwrap_err().to_string(),
        "backward: the saved tensors of `Custom` were freed by an earlier backward; pass retain_graph the first time, or compute the loss again"
    );
    Ok(())
}

#[test]
fn a_function_that_saves_nothing_goes_backward_again() -> Result<()> {
    let x = leaf(&[0.0]);
    let y = identity_with(|_, grad| Ok(vec![Some(grad.clone())])).apply(&[&x])?;
    y.backward()?;
    y.backward()?;
    assert_eq!(x.grad().unwrap().item::<f32>()?, 2.0);
    Ok(())
}

#[test]
fn asking_for_what_was_not_saved_is_refused() -> Result<()> {
    let x = leaf(&[1.0]);
    let third = Custom {
        forward: |context, inputs| {
            context.save(inputs[0]);
            context.save_constant(&inputs[0].gt(inputs[0])?);
            inputs[0].exp()
        },
        backward: |context, _| Ok(vec![Some(context.saved(2)?)]),
    };
    assert_eq!(
        third.apply(&[&x])?.backward().unwrap_err().to_string(),
        "Custom: there is no saved float tensor 2: forward saved float32, bool; count the calls of save from 0"
    );
    let nothing = identity_with(|context, _| context.saved(0).map(|saved| vec![Some(saved)]));
    assert_eq!(
        nothing.apply(&[&x])?.backward().unwrap_err().to_string(),
        "Custom: there is no saved float tensor 0: forward saved none; count the calls of save from 0"
    );
    Ok(())
}

/// |x|, whose sign is computed in forward and saved by `save`.
fn magnitude(save: fn(&mut Context, &Tensor)) -> impl Function {
    struct Magnitude(fn(&mut Context, &Tensor));
    impl Function for Magnitude {
        fn forward(&self, context: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
            let sign = inputs[0].sign()?;
            (self.0)(context, &sign);
            sign.mul(inputs[0])
        }
        fn backward(&self, context: &Context, grad: &Tensor) -> Result<Gradients> {
            Ok(vec![Some(grad.mul(&context.saved(0)?)?)])
        }
    }
    Magnitude(save)
}

#[test]
fn a_tensor_made_in_forward_serves_first_derivatives_only() -> Result<()> {
    let x = leaf(&[-2.0]);
    let y = magnitude(|context, sign| context.save(sign)).apply(&[&x])?;
    let with_graph = Backward { create_graph: true, ..Backward::default() };
    assert_eq!(
        y.backward_with(with_graph).unwrap_err().to_string(),
        "Magnitude: saved tensor 0 ([1]) was made inside forward, where nothing is recorded, so it has no derivative of its own; save the inputs or the result instead, or use save_constant if it does not depend on the inputs"
    );
    y.backward()?;
    assert_eq!(x.grad().unwrap().item::<f32>()?, -1.0);
    Ok(())
}

#[test]
fn a_tensor_saved_as_a_constant_serves_second_derivatives() -> Result<()> {
    let x = leaf(&[-2.0]);
    let y = magnitude(|context, sign| context.save_constant(sign)).apply(&[&x])?;
    let with_graph = || Backward { create_graph: true, ..Backward::default() };
    let first = autograd::grad(&[&(&y * &y)?], &[&x], with_graph())?.remove(0).unwrap();
    let second = autograd::grad(&[&first], &[&x], with_graph())?.remove(0).unwrap();
    assert_eq!((first.item::<f32>()?, second.item::<f32>()?), (-4.0, 2.0));
    Ok(())
}

/// Copies its input, and is dropped with the graph.
struct Witness {
    _alive: Arc<()>,
    _tensor: Option<Tensor>,
    save_result: bool,
}

impl Function for Witness {
    fn forward(&self, context: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
        let y = inputs[0].add_scalar(0.0)?;
        if self.save_result {
            context.save(&y);
        }
        Ok(y)
    }

    fn backward(&self, _: &Context, grad: &Tensor) -> Result<Gradients> {
        Ok(vec![Some(grad.clone())])
    }
}

#[test]
fn a_saved_result_does_not_keep_its_own_graph_alive() -> Result<()> {
    let alive = Arc::new(());
    let x = leaf(&[1.0]);
    let y = Witness { _alive: Arc::clone(&alive), _tensor: None, save_result: true }.apply(&[&x])?;
    assert_eq!(Arc::strong_count(&alive), 2);
    drop(y);
    assert_eq!(Arc::strong_count(&alive), 1);
    Ok(())
}

#[test]
fn a_long_chain_of_functions_that_hold_tensors_is_freed() -> Result<()> {
    let alive = Arc::new(());
    let mut y = leaf(&[1.0]);
    for _ in 0..200_000 {
        y = Witness { _alive: Arc::clone(&alive), _tensor: Some(y.clone()), save_result: false }.apply(&[&y])?;
    }
    let first_value = y.item::<f32>()?;
    drop(y);
    assert_eq!((first_value, Arc::strong_count(&alive)), (1.0, 1));
    Ok(())
}

#[test]
fn half_types_have_functions_too() -> Result<()> {
    let x = Tensor::from_slice(&[half::f16::from_f32(2.0)], 1)?.set_requires_grad(true);
    a_times_b_squared().apply(&[&x, &x])?.backward()?;
    assert_eq!(x.grad().unwrap().item::<half::f16>()?, half::f16::from_f32(12.0));
    Ok(())
}

#[test]
fn a_check_with_a_negative_tolerance_is_refused() -> Result<()> {
    let (a, empty) = (Tensor::rand([2])?, |x: &[Tensor]| x[0].narrow(0, 0, 0));
    for wrong in [-1.0, f64::NAN] {
        for tolerance in [
            Tolerance { absolute: wrong, ..Tolerance::default() },
            Tolerance { relative: wrong, ..Tolerance::default() },
        ] {
            assert!(matches!(gradcheck(empty, &[&a], tolerance), Err(Error::Argument(_))));
        }
    }
    gradcheck(empty, &[&a], Tolerance::default())
}

#[test]
fn a_wrong_gradient_of_an_empty_result_is_an_error() -> Result<()> {
    let wrong = || Custom {
        forward: |_, inputs| inputs[0].narrow(0, 0, 0),
        backward: |_, _| Ok(vec![Some(Tensor::ones([2])?.to_dtype(DType::F64)?)]),
    };
    let checked = gradcheck(|x| wrong().apply(&[&x[0]]), &[&Tensor::rand([2])?], Tolerance::default());
    assert!(matches!(checked, Err(Error::Argument(_))), "{checked:?}");
    Ok(())
}
