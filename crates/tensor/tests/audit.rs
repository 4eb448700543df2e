//! What the audit says about parameters that no path from the loss reaches.

use pagelock_tensor::autograd::{Context, Cut, CutBy, Function, Reason, audit};
use pagelock_tensor::{DType, Result, Tensor, no_grad};

fn leaf(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len()).unwrap().set_requires_grad(true)
}

/// What the audit of a loss with the parameters `w` and `v` prints.
fn report(loss: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>) -> String {
    let (w, v) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 4.0]));
    audit(&[("fc1.weight", &w), ("fc2.weight", &v)], || loss(&w, &v)).unwrap().to_string()
}

#[test]
fn all_parameters_are_reached_through_any_operation() {
    let text = report(|w, v| {
        let joined = Tensor::cat(&[&w.unsqueeze(0)?, &v.reshape([1, 2])?], 0)?;
        joined.t()?.slice(0, .., 2)?.to_dtype(DType::F64)?.exp()?.to_dtype(DType::F32)?.max(..)
    });
    assert_eq!(text, "all 2 named tensors are reached from the loss");
}

#[test]
fn a_parameter_that_no_operation_took_was_never_used() {
    assert_eq!(report(|w, _| w.sum(..)), "`fc2.weight` is not reached from the loss: never used");
}

#[test]
fn a_detached_parameter_is_cut_by_detach() {
    let text = report(|w, v| (w * v.detach())?.sum(..));
    assert_eq!(text, "`fc2.weight` is not reached from the loss: cut by `detach`");
}

#[test]
fn what_was_computed_from_a_parameter_can_be_cut_too() {
    let text = report(|w, v| (w * (v * v)?.exp()?.set_requires_grad(false))?.sum(..));
    assert_eq!(text, "`fc2.weight` is not reached from the loss: cut by `set_requires_grad`");
}

#[test]
fn no_grad_is_named_with_the_operation_inside() {
    let text = report(|w, v| (w * no_grad(|| v.exp()?.log())?)?.sum(..));
    assert_eq!(text, "`fc2.weight` is not reached from the loss: cut by `no_grad` around `exp`");
}

#[test]
fn a_copy_in_place_under_no_grad_is_a_cut() {
    let text = report(|w, v| {
        let buffer = Tensor::zeros([2])?;
        no_grad(|| buffer.copy_(v))?;
        (w * buffer)?.sum(..)
    });
    assert_eq!(text, "`fc2.weight` is not reached from the loss: cut by `no_grad` around `copy_`");
}

#[test]
fn steps_to_types_without_gradients_are_cuts() {
    let text = report(|w, v| (w * v.to_int()?.to_float()?)?.sum(..));
    assert_eq!(text, "`fc2.weight` is not reached from the loss: cut by `to_dtype`, whose result is int64");
    let text = report(|w, v| w.index_select(0, &(v * 2.0)?.argmax(0)?.reshape([1])?)?.sum(..));
    assert_eq!(text, "`fc2.weight` is not reached from the loss: cut by `argmax`, whose result is int64");
    let text = report(|w, v| (w * v.gt(w)?.to_float()?)?.sum(..));
    assert_eq!(text, "`fc2.weight` is not reached from the loss: cut by `gt`, whose result is bool");
}

#[test]
fn all_cuts_are_named_once_in_the_order_of_the_program() {
    let text = report(|w, v| {
        let first = (v.detach() + v.detach())?;
        (w * (first + no_grad(|| v.exp())?)?)?.sum(..)
    });
    assert_eq!(text, "`fc2.weight` is not reached from the loss: cut by `detach`, and by `no_grad` around `exp`");
}

#[test]
fn a_result_that_was_left_out_of_the_loss_is_no_cut() {
    let text = report(|w, v| {
        let _penalty = (v * v)?.sum(..)?;
        w.sum(..)
    });
    assert_eq!(
        text,
        "`fc2.weight` is not reached from the loss: used, but nothing computed from it became part of the loss"
    );
}

#[test]
fn a_tensor_that_does_not_require_grad_is_reported_as_such() -> Result<()> {
    let (w, frozen) = (leaf(&[1.0]), Tensor::new([2.0])?);
    let report = audit(&[("w".to_string(), &w), ("frozen".to_string(), &frozen)], || &w * &frozen)?;
    assert_eq!(report.unreached[0].reason, Reason::Untracked);
    assert_eq!(report.to_string(), "`frozen` is not reached from the loss: it does not require grad");
    Ok(())
}

#[test]
fn a_loss_that_is_not_tracked_reaches_nothing() {
    let text = report(|w, v| (w.detach() * v.detach())?.sum(..));
    assert_eq!(
        text,
        "`fc1.weight` is not reached from the loss: cut by `detach`\n\
         `fc2.weight` is not reached from the loss: cut by `detach`"
    );
}

#[test]
fn metrics_and_backward_passes_inside_are_no_cuts() {
    let text = report(|w, v| {
        let loss = (w * v)?.tanh()?.sum(..)?;
        no_grad(|| (w + v)?.mean(..)?.item::<f32>())?;
        loss.backward()?;
        w.max(..)?.backward()?;
        w.sum(..)
    });
    assert_eq!(
        text, "`fc2.weight` is not reached from the loss: cut by `no_grad` around `add`",
        "the metric took it outside the graph, the derivatives of `mul` and `tanh` do not count"
    );
}

#[test]
fn the_inside_of_a_custom_function_is_no_cut_but_what_it_holds_is() -> Result<()> {
    struct Scale(Tensor);
    impl Function for Scale {
        fn forward(&self, _: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
            let doubled = (inputs[0] + inputs[0].detach())?;
            doubled.mul(&self.0)
        }
        fn backward(&self, _: &Context, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
            Ok(vec![Some(grad.mul(&self.0)?)])
        }
    }
    let (x, unused, held) = (leaf(&[1.0]), leaf(&[2.0]), leaf(&[3.0]));
    let report = audit(&[("x", &x), ("unused", &unused), ("held", &held)], || Scale(held.clone()).apply(&[&x]))?;
    assert_eq!(
        report.to_string(),
        "`unused` is not reached from the loss: never used\n\
         `held` is not reached from the loss: cut by `no_grad` around `mul`"
    );
    let report = audit(&[("x", &x)], || no_grad(|| Scale(held.clone()).apply(&[&x])))?;
    assert_eq!(report.to_string(), "`x` is not reached from the loss: cut by `no_grad` around `Scale`");
    Ok(())
}

#[test]
fn an_audit_inside_an_audit_hears_only_its_own_part() -> Result<()> {
    let (w, v) = (leaf(&[1.0]), leaf(&[2.0]));
    let outer = audit(&[("w", &w), ("v", &v)], || {
        let inner = audit(&[("w", &w)], || v.sum(..))?;
        assert_eq!(inner.to_string(), "`w` is not reached from the loss: never used");
        (w.detach() * &v)?.sum(..)
    })?;
    assert_eq!(outer.unreached.len(), 1);
    assert_eq!(outer.unreached[0].reason, Reason::Cut(vec![detach()]));
    Ok(())
}

fn detach() -> Cut {
    // `Cut` is non-exhaustive, so tests cannot make one, but they can read its fields and compare it with others.
    let w = leaf(&[1.0]);
    let report = audit(&[("w", &w)], || w.detach().sum(..)).unwrap();
    let Reason::Cut(cuts) = &report.unreached[0].reason else { panic!("{report}") };
    assert_eq!((cuts[0].op, cuts[0].by), ("detach", CutBy::Itself));
    cuts[0]
}

#[test]
fn errors_of_the_loss_pass_through_and_end_the_audit() -> Result<()> {
    let w = leaf(&[1.0, 2.0]);
    let failed = audit(&[("w", &w)], || w.detach().reshape([3]));
    assert!(failed.unwrap_err().to_string().starts_with("reshape: [2]"));
    let report = audit(&[("w", &w)], || Tensor::scalar(1.0))?;
    assert_eq!(report.unreached[0].reason, Reason::NeverUsed, "the cut of the failed audit is forgotten");
    Ok(())
}

#[test]
fn a_path_may_be_long() -> Result<()> {
    let (w, v) = (leaf(&[1.0]), leaf(&[2.0]));
    let report = audit(&[("w", &w), ("v", &v)], || {
        let mut y = w.clone();
        for _ in 0..100_000 {
            y = (&y + &w)?;
        }
        y.detach() + (&y + 1.0)
    })?;
    assert_eq!(report.to_string(), "`v` is not reached from the loss: never used");
    assert_eq!((report.n_named, report.unreached[0].name.as_str()), (2, "v"));
    Ok(())
}
