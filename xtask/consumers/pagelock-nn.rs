//! A custom model, a step of training, and its weights in a file.
use pagelock_nn::optim::{Optimizer, Sgd};
use pagelock_nn::tensor::{Result, Tensor};
use pagelock_nn::{Forward, Linear, Module, functional as F, load_safetensors, save_safetensors};

#[derive(Module)]
struct Mlp {
    hidden: Linear,
    out: Linear,
}

impl Forward for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.out.forward(&self.hidden.forward(x)?.relu()?)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Mlp { hidden: Linear::new(4, 8)?, out: Linear::new(8, 2)? };
    let loss = F::cross_entropy(&model.forward(&Tensor::rand([3, 4])?)?, &Tensor::new([0, 1, 1])?)?;
    loss.backward()?;
    Sgd::new(model.parameters(), 0.1).step()?;
    save_safetensors(&model.state_dict(), "mlp.safetensors")?;
    model.load_state_dict(&load_safetensors("mlp.safetensors")?)?;
    println!("{model}\nloss {:.3}", loss.item::<f64>()?);
    Ok(())
}
