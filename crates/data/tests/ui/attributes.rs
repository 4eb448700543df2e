use pagelock_data::PinMemory;
use pagelock_tensor::Tensor;

#[derive(PinMemory)]
struct Batch {
    #[pin(leave)]
    input: Tensor,
}

#[derive(PinMemory)]
#[pin(skip)]
struct Other(Tensor);

fn main() {}
