//! Reductions, softmax, losses and matrix products.

use pagelock_tensor::{Reduction, Result, Tensor};

use super::{checked_twice, signed};

/// A reduction over all, one, and several axes, dropped and kept.
macro_rules! over_axes {
    ($method:ident, $keepdim:ident) => {
        for shape in [&[4][..], &[2, 3], &[3, 1, 4], &[2, 3, 2, 2]] {
            let x = [signed(shape, 1)];
            checked_twice(|x| x[0].$method(..), &x);
            checked_twice(|x| x[0].$method(-1), &x);
            checked_twice(|x| x[0].$keepdim(0), &x);
            if shape.len() > 2 {
                checked_twice(|x| x[0].$method([0, -1]), &x);
                checked_twice(|x| x[0].$keepdim([2, 1]), &x);
            }
        }
        checked_twice(|x| x[0].$method(..), &[signed(&[], 0)]);
        checked_twice(|x| x[0].$method([]), &[signed(&[2, 2], 0)]);
    };
}

#[test]
fn sum() {
    over_axes!(sum, sum_keepdim);
}

#[test]
fn mean() {
    over_axes!(mean, mean_keepdim);
}

#[test]
fn max() {
    over_axes!(max, max_keepdim);
}

#[test]
fn min() {
    over_axes!(min, min_keepdim);
}

#[test]
fn var() {
    for shape in [&[4][..], &[2, 3], &[3, 2, 4]] {
        let x = [signed(shape, 1)];
        checked_twice(|x| x[0].var(..), &x);
        checked_twice(|x| x[0].var(-1), &x);
        checked_twice(|x| x[0].var_keepdim(0), &x);
    }
    checked_twice(|x| x[0].var([0, 2]), &[signed(&[3, 2, 4], 1)]);
}

#[test]
fn where_several_are_largest_they_share_the_gradient() -> Result<()> {
    let x = Tensor::from_slice(&[2.0f64, 5.0, 5.0, 5.0, 1.0, 1.0], [2, 3])?.set_requires_grad(true);
    x.max(-1)?.sum(..)?.backward()?;
    assert_eq!(x.grad().unwrap().to_vec::<f64>()?, [0.0, 0.5, 0.5, 1.0, 0.0, 0.0]);
    Ok(())
}

#[test]
fn softmax() {
    for shape in [&[4][..], &[2, 3], &[2, 3, 2]] {
        for dim in 0..shape.len() as isize {
            checked_twice(|x| x[0].softmax(dim), &[signed(shape, 2)]);
        }
    }
    checked_twice(|x| x[0].softmax(-1), &[signed(&[], 2)]);
}

#[test]
fn log_softmax() {
    for shape in [&[4][..], &[2, 3], &[2, 3, 2]] {
        for dim in 0..shape.len() as isize {
            checked_twice(|x| x[0].log_softmax(dim), &[signed(shape, 2)]);
        }
    }
}

#[test]
fn losses_of_classes() -> Result<()> {
    let flat = Tensor::new([2, 0, 1, 2])?;
    let per_pixel = Tensor::new([[[0, 1]], [[1, 1]]])?;
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        checked_twice(|x| x[0].nll_loss(&flat.to(&x[0].device())?, reduction), &[signed(&[4, 3], 0)]);
        checked_twice(|x| x[0].cross_entropy(&flat.to(&x[0].device())?, reduction), &[signed(&[4, 3], 0)]);
        checked_twice(|x| x[0].cross_entropy(&per_pixel.to(&x[0].device())?, reduction), &[signed(&[2, 2, 1, 2], 0)]);
    }
    Ok(())
}

#[test]
fn mse_loss() {
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        checked_twice(|x| x[0].mse_loss(&x[1], reduction), &[signed(&[2, 3], 0), signed(&[2, 3], 5)]);
    }
}

#[test]
fn matmul_of_vectors_matrices_and_batches() {
    let cases: [(&[usize], &[usize]); 11] = [
        (&[3], &[3]),
        (&[3], &[3, 2]),
        (&[2, 3], &[3]),
        (&[2, 3], &[3, 4]),
        (&[1, 1], &[1, 2]),
        (&[2, 2, 3], &[3, 2]),
        (&[2, 3], &[2, 3, 1]),
        (&[2, 2, 3], &[2, 3, 1]),
        (&[2, 1, 2, 3], &[3, 3, 1]),
        (&[3], &[2, 3, 2]),
        (&[2, 2, 3], &[3]),
    ];
    for (left, right) in cases {
        checked_twice(|x| x[0].matmul(&x[1]), &[signed(left, 0), signed(right, 4)]);
    }
}

#[test]
fn chains_of_everything() {
    let inputs = [signed(&[4, 3], 0), signed(&[3, 5], 1), signed(&[5], 2)];
    checked_twice(|x| (x[0].matmul(&x[1])? + &x[2])?.tanh()?.softmax(-1)?.log()?.mean(0)?.exp()?.var(..), &inputs);
}
