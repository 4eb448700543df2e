use pagelock_nn::{Linear, Module};

#[derive(Module)]
struct Net {
    linear: Linear,
    name: String,
}

fn main() {}
