//! What somebody who comes from PyTorch types first, and what the compiler says to write instead.

use pagelock_nn::tensor::{Int, Result, Tensor};

fn integers_where_floats_are_wanted() -> Result<Tensor> {
    Tensor::new([1, 2, 3])
}

fn a_forgotten_question_mark(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.add(b).mul(b)
}

fn labels_beside_floats(x: &Tensor, labels: &Tensor<Int>) -> Result<Tensor> {
    x * labels
}

fn half_a_label(labels: &Tensor<Int>) -> Result<Tensor<Int>> {
    labels * 0.5
}

fn one_bound(x: &Tensor) -> Result<Tensor> {
    x.clamp(None, 1.0)
}

fn sizes_that_are_floats(x: &Tensor) -> Result<Tensor> {
    x.reshape([2.0, 3.0])
}

fn a_shape_that_is_a_float() -> Result<Tensor> {
    Tensor::zeros(2.0)
}

fn what_is_integers_and_compiles(x: &Tensor) -> Result<Tensor> {
    let [batch, _features] = x.sizes()?;
    let y = (x * 2)?.reshape((batch, -1))?;
    2.0 * (y + x)? - x
}

fn main() {}
