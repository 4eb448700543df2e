//! A linear system, and the gradient with respect to its matrix.
use pagelock_linalg::{self as linalg, pagelock_tensor::Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let a = Tensor::new([[2.0, 1.0], [1.0, 3.0]])?.set_requires_grad(true);
    let x = linalg::solve(&a, &Tensor::new([3.0, 5.0])?)?;
    x.sum(..)?.backward()?;
    println!("x = {x}, d sum(x) / d a = {}", a.grad().expect("backward reached it"));
    Ok(())
}
