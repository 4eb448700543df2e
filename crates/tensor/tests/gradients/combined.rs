//! Derivatives of composed operations, and of operations where not every input has a gradient.

use pagelock_tensor::{BatchNormOptions, Conv2dOptions, Generator, Pool2dOptions, Result, Tensor};

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
