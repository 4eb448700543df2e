use pagelock_nn::{Linear, Module, ReLU};

#[derive(Module)]
enum Either {
    Linear(Linear),
    Nothing(ReLU),
}

fn main() {}
