//! Derivatives of composed operations, and of operations where not every input has a gradient.

use pagelock_tensor::autograd::{self, Backward};
use pagelock_tensor::{BatchNormOptions, Conv2dOptions, DType, Generator, Pool2dOptions, Result, Tensor};

use super::{checked_twice, positive, signed};

#[test]
fn one_tensor_as_both_operands() {
    let x = positive(&[2, 2], 3);
    let both = |f: fn(&Tensor, &Tensor) -> Result<Tensor>| {
        checked_twice(|x| f(&x[0], &x[0]), std::slice::from_ref(&x));
        checked_twice(|x| f(&x[0], &x[0].t()?), std::slice::from_ref(&x));
    };
    both(Tensor::add);
    both(Tensor::sub);
    both(Tensor::mul);
    both(Tensor::div);
    both(Tensor::matmul);
}

#[test]
fn where_operands_are_equal_each_gets_half_of_the_gradient() -> Result<()> {
    let a = Tensor::from_slice(&[1.0f64, 2.0, 5.0], 3)?.set_requires_grad(true);
    let b = Tensor::from_slice(&[1.0f64, 3.0, 4.0], 3)?.set_requires_grad(true);
    a.maximum(&b)?.sum(..)?.backward()?;
    assert_eq!(a.grad().unwrap().to_vec::<f64>()?, [0.5, 0.0, 1.0]);
    assert_eq!(b.grad().unwrap().to_vec::<f64>()?, [0.5, 1.0, 0.0]);
    Ok(())
}

#[test]
fn where_several_are_largest_they_share_the_gradient() -> Result<()> {
    let x = Tensor::from_slice(&[2.0f64, 5.0, 5.0, 5.0, 1.0, 1.0], [2, 3])?.set_requires_grad(true);
    x.max(-1)?.sum(..)?.backward()?;
    assert_eq!(x.grad().unwrap().to_vec::<f64>()?, [0.0, 0.5, 0.5, 1.0, 0.0, 0.0]);
    Ok(())
}

/// `f(x)` in `f64`, and the gradient of its sum.
fn with_gradient(x: &[f64], shape: &[usize], f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<[Vec<f64>; 2]> {
    let x = Tensor::from_slice(x, shape)?.set_requires_grad(true);
    let y = f(&x)?;
    y.sum(..)?.backward()?;
    Ok([y.to_vec()?, x.grad().unwrap().to_vec()?])
}

/// The numbers are those of PyTorch 2.15.
#[test]
fn norms_and_distances_have_pytorchs_gradients_at_zeros() -> Result<()> {
    assert_eq!(with_gradient(&[0.0; 2], &[2], |x| x.norm(3.0, ..))?, [vec![0.0], vec![0.0; 2]]);
    assert_eq!(with_gradient(&[0.0, 4.0], &[2], |x| x.norm(0.5, ..))?, [vec![4.0], vec![0.0, 1.0]]);
    assert_eq!(with_gradient(&[0.0, 4.0], &[2], |x| x.norm(1.5, ..))?[1], [0.0, 1.0]);
    assert_eq!(with_gradient(&[0.0, 4.0], &[2], |x| x.norm(-1.0, ..))?, [vec![0.0], vec![0.0; 2]]);
    let equal = Tensor::from_slice(&[1.0, 2.0], 2)?;
    assert_eq!(with_gradient(&[1.0, 2.0], &[2], |x| x.dist(&equal, 3.0))?, [vec![0.0], vec![0.0; 2]]);
    let [_, grad] = with_gradient(&[0.0, 0.0, 3.0, 4.0], &[2, 2], |x| x.renorm(3.0, 0, 1.0))?;
    assert_eq!(grad[..2], [1.0; 2]);
    assert!((grad[2] - 0.068_407).abs() < 1e-6 && (grad[3] + 0.051_306).abs() < 1e-6, "{grad:?}");

    let x = [0.0, 0.0, 1.0, 2.0, 3.0, 1.0];
    let [_, grad] = with_gradient(&x, &[3, 2], |x| x.cdist(x, 3.0))?;
    let expected = [-2.4143, -2.0659, -1.3867, 2.3112, 3.8011, -0.2453];
    assert!(grad.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-4), "{grad:?}");
    Ok(())
}

#[test]
fn second_derivatives_of_norms_are_right_beside_zeros_and_finite_at_them() -> Result<()> {
    for p in [0.5, 1.5, 2.0, 3.0, 4.5] {
        checked_twice(|x| x[0].norm(p, 1), &[signed(&[3, 4], 0)]);
        let x = Tensor::from_slice(&[0.0, 0.0, 0.0, 2.0, 3.0, 4.0], [3, 2])?.set_requires_grad(true);
        let by = Tensor::ones([3])?.to_dtype(DType::F64)?.set_requires_grad(true);
        let total = x.norm(p, 1)?.mul(&by)?.sum(..)?;
        let recorded = Backward { create_graph: true, ..Backward::default() };
        let first = autograd::grad(&[&total], &[&x], recorded)?.remove(0).unwrap();
        for grad in autograd::grad(&[&first.mul(&first)?.sum(..)?], &[&x, &by], Backward::default())? {
            let grad: Vec<f64> = grad.unwrap().to_vec()?;
            assert!(grad.iter().all(|grad| grad.is_finite()), "p = {p}: {grad:?}");
        }
    }
    Ok(())
}

/// The numbers are those of PyTorch 2.15.
#[test]
fn each_largest_difference_has_the_whole_gradient_of_its_distance() -> Result<()> {
    let y = Tensor::from_slice(&[1.0, 1.0], [1, 2])?;
    let largest = with_gradient(&[0.0; 2], &[1, 2], |x| x.cdist(&y, f64::INFINITY))?;
    assert_eq!(largest, [vec![1.0], vec![-1.0; 2]]);
    assert_eq!(with_gradient(&[1.0; 2], &[2], |x| x.norm(f64::INFINITY, ..))?, [vec![1.0], vec![0.5; 2]]);
    checked_twice(|x| x[0].cdist(&x[1], f64::INFINITY), &[signed(&[3, 4], 0), positive(&[2, 4], 2)]);
    Ok(())
}

#[test]
fn dropout_scales_the_gradients_of_what_it_kept() {
    checked_twice(|x| x[0].dropout(0.4, &Generator::new(5)), &[signed(&[4, 5], 0)]);
}

#[test]
fn an_input_without_a_gradient_leaves_those_of_the_others() {
    let image = [signed(&[2, 2, 3, 3], 0), signed(&[3, 2, 2, 2], 1), signed(&[3], 2)];
    let geometry = Conv2dOptions::new().padding(1).stride(2);
    checked_twice(|x| image[0].to(&x[0].device())?.conv2d_relu(&x[0], Some(&x[1]), geometry), &image[1..]);
    let rows = [signed(&[3, 4], 0), signed(&[4], 3)];
    checked_twice(|x| rows[0].to(&x[0].device())?.layer_norm([4], Some(&x[0]), None, 1e-2), &rows[1..]);
}

#[test]
fn a_norm_with_a_bias_alone() {
    let inputs = [signed(&[4, 3], 0), signed(&[3], 3)];
    let options = BatchNormOptions { eps: 1e-2, ..BatchNormOptions::default() };
    checked_twice(|x| x[0].batch_norm(None, None, Some(&x[1]), options), &inputs);
    checked_twice(|x| x[0].layer_norm([3], None, Some(&x[1]), 1e-2), &inputs);
}

#[test]
fn chains_of_views() {
    let view = |f: fn(&Tensor) -> Result<Tensor>, shape: &[usize]| {
        checked_twice(|x| f(&x[0])?.pow(2.0), &[signed(shape, 1)]);
    };
    view(|x| x.permute([1, 2, 0])?.slice(0, .., 2)?.flatten(0, 1)?.t()?.select(0, 1), &[3, 4, 2]);
    view(|x| x.expand([3, 2, 2])?.transpose(0, 2)?.reshape([4, 3])?.narrow(1, 1, 2), &[2, 1]);
    view(|x| Tensor::cat(&[x, &x.t()?, x], 0), &[2, 2]);
}

#[test]
fn chains_of_everything() {
    let inputs = [signed(&[4, 3], 0), signed(&[3, 5], 1), signed(&[5], 2)];
    checked_twice(|x| (x[0].matmul(&x[1])? + &x[2])?.tanh()?.softmax(-1)?.log()?.mean(0)?.exp()?.var(..), &inputs);
}

#[test]
fn a_small_network_of_images() {
    let inputs = [positive(&[2, 1, 6, 6], 0), signed(&[2, 1, 3, 3], 1), signed(&[2], 2), signed(&[3, 2], 3)];
    checked_twice(
        |x| {
            let features = x[0].conv2d(&x[1], Some(&x[2]), Conv2dOptions::new().stride(2).padding(1))?.tanh()?;
            let pooled = features.avg_pool2d(Pool2dOptions::new(3))?.flatten(1, -1)?;
            pooled.matmul(&x[3].t()?)?.log_softmax(-1)
        },
        &inputs,
    );
}
