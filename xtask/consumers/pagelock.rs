//! The whole stack through one dependency: data, a derived module, training, the ledger.
use pagelock::data::{SyntheticDigits, TensorDataset, get_data};
use pagelock::nn::{Linear, fit, functional as F, optim::Sgd};
use pagelock::prelude::*;

#[derive(Module)]
struct Logistic {
    linear: Linear,
}

impl Forward for Logistic {
    fn forward(&self, x: &Tensor) -> pagelock::tensor::Result<Tensor> {
        self.linear.forward(x)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let digits = SyntheticDigits::new(42).train_len(600).test_len(100).generate()?;
    let train_ds = TensorDataset::new((digits.train.flat()?, digits.train.labels()?))?;
    let valid_ds = TensorDataset::new((digits.valid.flat()?, digits.valid.labels()?))?;
    let (train_dl, valid_dl) = get_data(train_ds, valid_ds, 64);
    let model = Logistic { linear: Linear::new(784, 10)? };
    let mut opt = Sgd::new(model.parameters(), 0.1);
    let epochs = fit(2, &model, F::cross_entropy, &mut opt, &train_dl, &valid_dl)?;
    println!("{}; {} bytes held", epochs[1], pagelock::memory::ledger().live_bytes());
    Ok(())
}
