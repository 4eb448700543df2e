use std::sync::Arc;

use pagelock_data::PinMemory;
use pagelock_tensor::Tensor;

#[derive(PinMemory)]
struct Batch {
    inp: Tensor,
    names: Arc<str>,
}

fn main() {}
