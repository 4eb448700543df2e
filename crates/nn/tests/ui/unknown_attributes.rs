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

#[derive(Module)]
#[module(element = f64)]
struct OfAnElement {
    linear: Linear,
}

fn main() {}
