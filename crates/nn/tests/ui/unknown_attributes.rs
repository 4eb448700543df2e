use pagelock_nn::{Linear, Module};

#[derive(Module)]
#[module(skip)]
struct OnTheStruct {
    linear: Linear,
}

#[derive(Module)]
struct OnTheField {
    #[module(ignore)]
    linear: Linear,
}

fn main() {}
