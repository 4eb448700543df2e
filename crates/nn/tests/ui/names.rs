use pagelock_nn::{Linear, Module};

#[derive(Module)]
struct Dotted {
    #[module(rename = "a.b")]
    linear: Linear,
}

#[derive(Module)]
struct Empty {
    #[module(rename = "")]
    linear: Linear,
}

#[derive(Module)]
struct Twice {
    fc: Linear,
    #[module(rename = "fc")]
    other: Linear,
}

#[derive(Module)]
struct Skipped {
    #[module(skip, rename = "fc")]
    linear: Linear,
}

#[derive(Module)]
struct NotText {
    #[module(rename = fc)]
    linear: Linear,
}

fn main() {}
