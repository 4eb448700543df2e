use pagelock_nn::{Module, Parameter};
use pagelock_tensor::Tensor;

#[derive(Module)]
struct Net {
    labels: Parameter<i64>,
    plain: Tensor,
}

fn main() {}
