use pagelock_nn::{Module, Parameter};
use pagelock_tensor::{Int, Tensor};

#[derive(Module)]
struct Net {
    labels: Tensor<Int>,
    plain: Tensor,
}

fn labels(net: &Net) -> Parameter {
    Parameter::new(net.labels.clone())
}

fn main() {}
