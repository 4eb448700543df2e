//! Gradients.

use pagelock_tensor::autograd::{self, Backward};
use pagelock_tensor::{Result, Tensor, no_grad};

use super::{alone, refuses, zeros};

fn leaf() -> Tensor {
    zeros([2]).set_requires_grad(true)
}

#[test]
fn gradients_of_what_was_not_recorded() {
    let _alone = alone();
    let text = |op: &str| {
        format!(
            "{op}: the tensor of shape [2] does not require grad; mark it, or what it is computed from, with set_requires_grad(true), and compute it outside no_grad"
        )
    };
    refuses(|| zeros([2]).backward(), &text("backward"));
    refuses(|| no_grad(|| leaf().exp())?.backward(), &text("backward"));
    refuses(|| zeros([2]).set_grad(None), &text("set_grad"));
    refuses(|| zeros([2]).register_hook(|_| Ok(None)).map(drop), &text("register_hook"));
    refuses(|| autograd::grad(&[&zeros([2])], &[&leaf()], Backward::default()), &text("grad"));
    refuses(|| autograd::grad(&[&leaf().sum(..)?], &[&zeros([2])], Backward::default()), &text("grad"));
}

#[test]
fn gradients_to_start_from_that_do_not_fit() {
    let _alone = alone();
    refuses(
        || leaf().exp()?.backward(),
        "backward: [2] is not one number; reduce it (sum, mean) or give Backward::gradient of that shape",
    );
    let text =
        "backward: the gradient is float32 [3], but float32 [2] was expected; a gradient is shaped like its tensor";
    let given = || Backward { gradient: Some(zeros([3])), ..Backward::default() };
    refuses(|| leaf().exp()?.backward_with(given()), text);
    let x = leaf();
    refuses(|| autograd::grad(&[&x.exp()?], &[&x], given()), text);
    refuses(
        || x.set_grad(Some(zeros([3]))),
        "set_grad: the gradient is float32 [3], but float32 [2] was expected; a gradient is shaped like its tensor",
    );
}

#[test]
fn backward_twice_and_backward_after_a_change() {
    let _alone = alone();
    refuses(
        || {
            let y = leaf().exp()?.sum(..)?;
            y.backward()?;
            y.backward()
        },
        "backward: the saved tensors of `exp` were freed by an earlier backward; pass retain_graph the first time, or compute the loss again",
    );
    refuses(
        || {
            let (x, factor) = (leaf(), zeros([2]));
            let y = (&x * &factor)?.sum(..)?;
            factor.zero_()?;
            y.backward()
        },
        "backward: a tensor saved by `mul` ([2]) was changed in place: it is at version 1, saved at version 0; change it after backward, or change a `deep_clone` of it",
    );
}

#[test]
fn in_place_changes_that_would_lose_a_gradient() {
    let _alone = alone();
    let fix = "requires grad, and in-place changes are not recorded; make the change inside no_grad, which does not record it either, or compute another tensor, for example with `where_cond`, `slice_scatter` or `stack`";
    type Change = fn(&Tensor) -> Result<()>;
    let changes: [(&str, Change); 4] = [
        ("zero_", Tensor::zero_),
        ("fill_", |x| x.fill_(1.0)),
        ("mul_scalar_", |x| x.mul_scalar_(1.0)),
        ("copy_", |x| x.copy_(&zeros([2]))),
    ];
    for (op, change) in changes {
        refuses(|| change(&leaf()), &format!("{op}: the tensor of shape [2] {fix}"));
        refuses(|| change(&leaf().exp()?), &format!("{op}: the tensor of shape [2] {fix}"));
    }
    refuses(|| zeros([2]).add_(&leaf().sum(..)?), &format!("add_: an operand of shape [] {fix}"));
    refuses(|| zeros([2]).addcmul_(&zeros([2]), &leaf(), 1.0), &format!("addcmul_: an operand of shape [2] {fix}"));
}

#[test]
fn a_graph_leaves_no_bytes_when_it_is_dropped() -> Result<()> {
    let _alone = alone();
    let before = pagelock_memory::ledger().live_bytes();
    {
        let (x, w) = (zeros([4, 3]), zeros([3, 2]).set_requires_grad(true));
        let y = x.matmul(&w)?.tanh()?.softmax(-1)?.mean(..)?;
        y.backward_with(Backward { retain_graph: true, ..Backward::default() })?;
        let first = autograd::grad(&[&y], &[&w], Backward { create_graph: true, ..Backward::default() })?;
        first[0].as_ref().map(|first| first.pow(2.0)?.sum(..)?.backward()).transpose()?;
    }
    assert_eq!(pagelock_memory::ledger().live_bytes(), before);
    Ok(())
}
