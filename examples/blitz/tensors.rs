//! "Tensors" of PyTorch's "60 minute blitz": the parts that "Learn the Basics" does not have, and devices.
//!
//! `cargo run --release --example blitz_tensors` (the page:
//! <https://docs.pytorch.org/tutorials/beginner/blitz/tensor_tutorial.html>). The example `basics_tensors` makes,
//! joins and multiplies tensors.

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Result, ensure};
use common::options::Options;
use pagelock::prelude::*;

fn main() -> Result<()> {
    let options = Options::read("PyTorch's blitz, tensors: attributes, devices, views, arrays")?;
    let device = options.device()?;
    println!("no data set: the tensors are made here (seed {})", options.seed);

    println!("\nTensor Initialization");
    let x_data: Tensor<Int> = Tensor::new([[1, 2], [3, 4]])?;
    let x_rand = x_data.to_float()?.rand_like()?; // overrides the datatype of x_data
    println!("Random Tensor:\n {x_rand}");
    ensure!(x_rand.shape() == x_data.shape(), "the shape is {}, not that of x_data", x_rand.shape());

    println!("\nTensor Attributes");
    let tensor = Tensor::rand([3, 4])?;
    println!("Shape of tensor: {}", tensor.shape()); // torch.Size([3, 4])
    println!("Datatype of tensor: {}", tensor.dtype()); // torch.float32
    println!("Device tensor is stored on: {}", tensor.device()); // cpu

    println!("\nTensor Operations");
    let tensor = tensor.to(&device)?; // if torch.cuda.is_available(): tensor = tensor.to('cuda')
    println!("Device tensor is stored on: {}", tensor.device());
    let tensor = Tensor::ones([4, 4])?;
    tensor.select(1, 1)?.zero_()?; // tensor[:,1] = 0
    println!("{tensor}"); // tensor([[1., 0., 1., 1.],
    //         [1., 0., 1., 1.],
    //         [1., 0., 1., 1.],
    //         [1., 0., 1., 1.]])
    println!("tensor.mul(tensor) \n {}", tensor.mul(&tensor)?);
    let product = tensor.matmul(&tensor.t()?)?;
    println!("tensor.matmul(tensor.T) \n {product}"); // tensor([[3., 3., 3., 3.], …
    ensure!(product.to_vec::<f32>()? == [3.0; 16], "the product of the matrix and its transpose is {product}");
    tensor.add_scalar_(5)?;
    println!("{tensor}"); // tensor([[6., 5., 6., 6.], …

    println!("\nViews share memory, where PyTorch's tensors share that of a NumPy array");
    let t = Tensor::ones(5)?;
    let n = t.view([5, 1])?;
    t.add_scalar_(1)?;
    println!("t: {t}"); // t: tensor([2., 2., 2., 2., 2.])
    println!("n: {:?}", n.to_vec::<f32>()?); // n: [2. 2. 2. 2. 2.]
    ensure!(n.to_vec::<f32>()? == [2.0; 5], "the view does not show the change of its tensor: {n}");
    Ok(())
}
