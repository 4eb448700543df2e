//! What the autograd graph promises.

use pagelock_tensor::autograd::{self, Backward};
use pagelock_tensor::{Error, Tensor, no_grad};

type Result<T = (), E = Error> = std::result::Result<T, E>;

fn leaf(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len()).unwrap().set_requires_grad(true)
}

#[test]
fn gradients_of_a_product_are_the_other_factors() -> Result {
    let (a, b) = (leaf(&[2.0, 3.0]), leaf(&[5.0, 7.0]));
    (&a * &b)?.sum(..)?.backward()?;
    assert_eq!(a.grad().unwrap().to_vec::<f32>()?, [5.0, 7.0]);
    assert_eq!(b.grad().unwrap().to_vec::<f32>()?, [2.0, 3.0]);
    Ok(())
}

#[test]
fn a_tensor_used_twice_gets_both_gradients() -> Result {
    let x = leaf(&[3.0]);
    (&x * &x)?.backward()?;
    assert_eq!(x.grad().unwrap().item::<f32>()?, 6.0);
    Ok(())
}

#[test]
fn gradients_accumulate_until_they_are_zeroed() -> Result {
    let x = leaf(&[1.0]);
    (&x * 2.0)?.backward()?;
    (&x * 3.0)?.backward()?;
    assert_eq!(x.grad().unwrap().item::<f32>()?, 5.0);
    x.zero_grad();
    assert!(x.grad().is_none());
    Ok(())
}

#[test]
fn gradients_of_broadcast_operands_are_summed_down() -> Result {
    let matrix = Tensor::ones([3, 2])?.set_requires_grad(true);
    let row = leaf(&[1.0, 2.0]);
    let scalar = Tensor::scalar(4.0)?.set_requires_grad(true);
    ((&matrix * &row)? * &scalar)?.sum(..)?.backward()?;
    assert_eq!(row.grad().unwrap().to_vec::<f32>()?, [12.0, 12.0]);
    assert_eq!(scalar.grad().unwrap().item::<f32>()?, 9.0);
    assert_eq!(matrix.grad().unwrap().shape(), &[3, 2]);
    Ok(())
}

#[test]
fn second_and_third_derivatives_of_a_power() -> Result {
    let x = leaf(&[2.0]);
    let again = || Backward { create_graph: true, ..Backward::default() };
    let mut y = x.pow(4.0)?;
    for expected in [32.0, 48.0, 48.0] {
        y = autograd::grad(&[&y], &[&x], again())?.remove(0).unwrap();
        assert_eq!(y.item::<f32>()?, expected);
    }
    Ok(())
}

#[test]
fn nothing_is_recorded_under_no_grad() -> Result {
    let x = leaf(&[1.0]);
    let y = no_grad(|| x.exp())?;
    assert!(!y.requires_grad());
    assert!(matches!(y.backward(), Err(Error::NoGraph { .. })));
    Ok(())
}

#[test]
fn a_second_backward_says_that_the_graph_was_freed() -> Result {
    let x = leaf(&[1.0]);
    let y = x.exp()?;
    y.backward()?;
    let error = y.backward().unwrap_err().to_string();
    assert_eq!(
        error,
        "backward: the saved tensors of `exp` were freed by an earlier backward; pass retain_graph the first time, or compute the loss again"
    );
    Ok(())
}

#[test]
fn a_retained_graph_can_be_walked_again() -> Result {
    let x = leaf(&[0.0]);
    let y = x.exp()?;
    y.backward_with(Backward { retain_graph: true, ..Backward::default() })?;
    y.backward()?;
    assert_eq!(x.grad().unwrap().item::<f32>()?, 2.0);
    Ok(())
}

#[test]
fn a_saved_tensor_changed_in_place_is_an_error_and_leaves_gradients_alone() -> Result {
    let x = leaf(&[1.0, 2.0]);
    let factor = Tensor::new([3.0, 4.0])?;
    let y = (&x * &factor)?.sum(..)?;
    factor.zero_()?;
    let error = y.backward().unwrap_err().to_string();
    assert_eq!(
        error,
        "backward: a tensor saved by `mul` ([2]) was changed in place: it is at version 1, saved at version 0; change it after backward, or change a `deep_clone` of it"
    );
    assert!(x.grad().is_none());
    Ok(())
}

#[test]
fn changing_a_view_in_place_changes_what_it_views() -> Result {
    let x = Tensor::zeros([2, 3])?;
    x.select(1, 1)?.fill_(5.0)?;
    assert_eq!(x.to_vec::<f32>()?, [0.0, 5.0, 0.0, 0.0, 5.0, 0.0]);
    assert_eq!(x.version(), 1);
    Ok(())
}

#[test]
fn tracked_tensors_are_not_changed_in_place_while_recording() -> Result {
    let x = leaf(&[1.0]);
    assert!(matches!(x.add_scalar_(1.0), Err(Error::InPlaceTracked { .. })));
    no_grad(|| x.add_scalar_(1.0))?;
    assert_eq!(x.item::<f32>()?, 2.0);
    Ok(())
}

#[test]
fn an_operand_that_shares_the_destination_is_read_before_it_is_written() -> Result {
    let x = Tensor::new([1.0, 2.0, 3.0, 4.0])?;
    x.narrow(0, 1, 3)?.copy_(&x.narrow(0, 0, 3)?)?;
    assert_eq!(x.to_vec::<f32>()?, [1.0, 1.0, 2.0, 3.0]);
    x.add_(&x)?;
    assert_eq!(x.to_vec::<f32>()?, [2.0, 2.0, 4.0, 6.0]);
    Ok(())
}

#[test]
fn gradients_of_different_leaves_do_not_share_memory() -> Result {
    let (a, b) = (leaf(&[1.0]), leaf(&[1.0]));
    (&a + &b)?.backward()?;
    a.grad().unwrap().zero_()?;
    assert_eq!(b.grad().unwrap().item::<f32>()?, 1.0);
    Ok(())
}

#[test]
fn hooks_see_and_replace_gradients() -> Result {
    let x = leaf(&[1.0]);
    let y = (&x * 3.0)?;
    let handle = y.register_hook(|grad| Ok(Some((grad * 10.0)?)))?;
    y.backward_with(Backward { retain_graph: true, ..Backward::default() })?;
    assert_eq!(x.grad().unwrap().item::<f32>()?, 30.0);
    handle.remove();
    x.zero_grad();
    y.backward()?;
    assert_eq!(x.grad().unwrap().item::<f32>()?, 3.0);
    Ok(())
}

#[test]
fn a_result_can_be_asked_to_retain_its_gradient() -> Result {
    let x = leaf(&[1.0]);
    let y = (&x * 3.0)?;
    y.retain_grad();
    (&y * &y)?.backward()?;
    assert_eq!(y.grad().unwrap().item::<f32>()?, 6.0);
    Ok(())
}

#[test]
fn a_chain_of_a_million_operations_goes_backward_and_is_freed() -> Result {
    let x = leaf(&[1.0]);
    let mut y = x.clone();
    for _ in 0..1_000_000 {
        y = (&y * 1.0)?;
    }
    y.backward()?;
    assert_eq!(x.grad().unwrap().item::<f32>()?, 1.0);
    drop(y);
    let mut y = x.clone();
    for _ in 0..1_000_000 {
        y = (&y * &y)?; // saves its inputs
    }
    drop(y);
    Ok(())
}

#[test]
fn concatenated_parts_get_their_part_of_the_gradient() -> Result {
    let (a, b) = (leaf(&[1.0, 2.0]), leaf(&[3.0]));
    let weights = Tensor::new([10.0, 20.0, 30.0])?;
    (Tensor::cat(&[&a, &b], 0)? * &weights)?.sum(..)?.backward()?;
    assert_eq!(a.grad().unwrap().to_vec::<f32>()?, [10.0, 20.0]);
    assert_eq!(b.grad().unwrap().to_vec::<f32>()?, [30.0]);
    Ok(())
}

#[test]
fn gathered_rows_send_their_gradients_back_to_where_they_came_from() -> Result {
    let x = leaf(&[1.0, 2.0, 3.0]);
    let index = Tensor::new([2, 2, 0])?;
    x.index_select(0, &index)?.sum(..)?.backward()?;
    assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [1.0, 0.0, 2.0]);
    Ok(())
}

#[test]
fn gradients_of_parts_meet_in_the_whole() -> Result {
    let x = Tensor::rand([4, 6])?.set_requires_grad(true);
    let weights = Tensor::rand([4, 6])?;
    // Overlapping parts, strided parts, parts of parts, and the whole.
    let sum = |x: &Tensor| -> Result<Tensor> {
        let columns = x.narrow(1, 1, 4)?.mul(&weights.narrow(1, 0, 4)?)?.sum(..)?;
        let steps = x.slice(1, 0..6, 2)?.narrow(0, 1, 2)?.mul(&weights.narrow(1, 3, 3)?.narrow(0, 0, 2)?)?.sum(..)?;
        let row = x.select(0, 2)?.mul(&weights.select(0, 3)?)?.sum(..)?;
        columns.add(&steps)?.add(&row)?.add(&x.mul(x)?.mul(&weights)?.sum(..)?)
    };
    sum(&x)?.backward()?;
    let recorded = autograd::grad(&[&sum(&x)?], &[&x], Backward { create_graph: true, ..Default::default() })?;
    let found = x.grad().unwrap();
    assert_eq!(found.to_vec::<f32>()?, recorded[0].as_ref().unwrap().to_vec::<f32>()?, "added in place or recorded");
    let expected = |row: usize, column: usize| -> Result<f32> {
        let (x, w) = (x.detach().to_vec::<f32>()?, weights.to_vec::<f32>()?);
        let at = |row: usize, column: usize| w[row * 6 + column];
        let mut sum = 2.0 * x[row * 6 + column] * at(row, column);
        sum += if (1..5).contains(&column) { at(row, column - 1) } else { 0.0 };
        sum += if column.is_multiple_of(2) && (1..3).contains(&row) { at(row - 1, 3 + column / 2) } else { 0.0 };
        Ok(sum + if row == 2 { at(3, column) } else { 0.0 })
    };
    for (i, found) in found.to_vec::<f32>()?.into_iter().enumerate() {
        let expected = expected(i / 6, i % 6)?;
        assert!((found - expected).abs() < 1e-6, "{i}: {found} instead of {expected}");
    }
    Ok(())
}

#[test]
fn a_gradient_that_a_hook_keeps_is_not_added_to() -> Result {
    let kept = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let x = leaf(&[1.0, 2.0, 3.0, 4.0]);
    let y = (&x * 1.0)?;
    let parts = [y.narrow(0, 0, 2)?, y.narrow(0, 2, 2)?];
    let seen = kept.clone();
    let _hook = y.register_hook(move |grad| {
        seen.lock().unwrap().push(grad.clone());
        Ok(None)
    })?;
    let loss = (parts[0].sum(..)? + (parts[1].sum(..)? * 2.0)?)?;
    loss.backward_with(Backward { retain_graph: true, ..Default::default() })?;
    loss.backward()?;
    let kept = kept.lock().unwrap();
    for grad in kept.iter() {
        assert_eq!(grad.to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
    }
    assert_eq!((kept.len(), x.grad().unwrap().to_vec::<f32>()?), (2, vec![2.0, 2.0, 4.0, 4.0]));
    Ok(())
}

/// The gradients of a sum are one tensor for both inputs.
#[test]
fn recorded_gradients_of_two_leaves_share_no_memory() -> Result {
    let (a, b) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 4.0]));
    let z = (&a + &b)?;
    (&z * &z)?.sum(..)?.backward_with(Backward { create_graph: true, ..Backward::default() })?;
    no_grad(|| a.grad().unwrap().mul_scalar_(0.0))?;
    assert_eq!(b.grad().unwrap().to_vec::<f32>()?, [8.0, 12.0]);
    b.grad().unwrap().sum(..)?.backward()?; // still recorded
    assert_eq!(a.grad().unwrap().to_vec::<f32>()?, [2.0, 2.0]);
    Ok(())
}

#[test]
fn gradients_of_a_result_leave_the_graph_behind_it_alone() -> Result {
    let x = leaf(&[2.0]);
    let h = x.exp()?;
    for factor in [2.0, 3.0] {
        let y = (&h * factor)?;
        let gradients = autograd::grad(&[&y], &[&h], Backward::default())?;
        assert_eq!(gradients[0].as_ref().unwrap().item::<f32>()?, factor);
    }
    h.backward()?;
    assert_eq!(x.grad().unwrap().item::<f32>()?, 2_f32.exp());
    Ok(())
}

#[test]
fn gradients_of_some_leaves_run_no_hook_of_others() -> Result {
    let (x, w) = (leaf(&[2.0]), leaf(&[5.0]));
    let _never = w.register_hook(|_| panic!("nobody asked for this gradient"))?;
    let y = (&x * &w.exp()?)?;
    let gradients = autograd::grad(&[&y], &[&x], Backward::default())?;
    assert_eq!(gradients[0].as_ref().unwrap().item::<f32>()?, 5_f32.exp());
    Ok(())
}

#[test]
fn a_second_gradient_with_a_changed_index_is_an_error() -> Result {
    let (x, w, index) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 4.0]), Tensor::new([1, 0])?);
    let z = (x.index_select(0, &index)? * &w)?.sum(..)?;
    let first =
        autograd::grad(&[&z], &[&x], Backward { create_graph: true, ..Backward::default() })?.remove(0).unwrap();
    index.fill_(0)?;
    let again = autograd::grad(&[&(first * Tensor::new([10.0, 20.0])?)?.sum(..)?], &[&w], Backward::default());
    assert!(matches!(again, Err(Error::StaleSaved { .. })), "{again:?}");
    Ok(())
}

#[test]
fn a_product_saves_only_what_a_gradient_needs() {
    let (x, constant) = (leaf(&[2.0, 3.0]), Tensor::new([5.0, 7.0]).unwrap());
    let changed = (&x + 0.0).unwrap();
    let product = (&changed * &constant).unwrap();
    no_grad(|| changed.fill_(0.0)).unwrap(); // only the gradient of the constant would need it
    product.sum(..).unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [5.0, 7.0]);
    let product = (&x * &constant).unwrap();
    no_grad(|| constant.fill_(0.0)).unwrap();
    assert!(matches!(product.sum(..).unwrap().backward(), Err(Error::StaleSaved { .. })));
}

#[test]
fn views_that_change_nothing_have_their_own_gradients() -> Result {
    let views: [fn(&Tensor) -> Result<Tensor>; 5] =
        [|x| x.expand([3]), |x| x.squeeze(0), Tensor::t, |x| x.reshape([3]), |x| x.transpose(0, 0)];
    for (i, view) in views.into_iter().enumerate() {
        let x = leaf(&[1.0, 2.0, 3.0]);
        let y = view(&x)?;
        y.retain_grad();
        (y.sum(..)? + (&x * 2.0)?.sum(..)?)?.backward()?;
        assert_eq!(y.grad().unwrap().to_vec::<f32>()?, [1.0; 3], "view {i}");
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [3.0; 3], "view {i}");
    }
    Ok(())
}
