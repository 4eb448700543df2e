use pagelock_nn::{Linear, Module, Sequential};

#[derive(Module)]
struct Half {
    linear: Linear,
}

fn main() {
    let half = Half { linear: Linear::new(1, 1).unwrap() };
    let _ = Sequential::new((Linear::new(1, 1).unwrap(), half));
}
