use pagelock_nn::{Module, Parameter};

#[derive(Module)]
struct Net {
    weight: Parameter<f64>,
}

fn main() {}
