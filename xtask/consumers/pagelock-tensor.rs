//! A least-squares step by hand: a gradient, and an update that is not recorded.
use pagelock_tensor::{Tensor, no_grad};

fn main() -> pagelock_tensor::Result<()> {
    let x = Tensor::new([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])?;
    let y = Tensor::new([[1.0], [2.0], [3.0]])?;
    let w = Tensor::zeros([2, 1])?.set_requires_grad(true);
    let loss = (x.matmul(&w)? - &y)?.pow(2.0)?.mean(..)?;
    loss.backward()?;
    no_grad(|| w.add_scaled_(&w.grad().expect("backward reached it"), -0.01))?;
    println!("loss {:.3}, then w = {w}", loss.item::<f64>()?);
    Ok(())
}
