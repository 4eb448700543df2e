//! "Tensors" of PyTorch's "Learn the Basics", cell by cell.
//!
//! `cargo run --release --example basics_tensors` (the page:
//! <https://docs.pytorch.org/tutorials/beginner/basics/tensorqs_tutorial.html>). The example `tensors` shows what
//! differs from PyTorch: kinds of elements as types, errors, seeds.

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Result, ensure};
use common::options::Options;
use pagelock::prelude::*;

fn main() -> Result<()> {
    let options = Options::read("PyTorch's tensors: making them, attributes, operations, arrays")?;
    let device = options.device()?;
    println!("no data set: the tensors are made here (seed {})", options.seed);

    println!("\nInitializing a Tensor");
    let data = [[1, 2], [3, 4]];
    let x_data: Tensor<Int> = Tensor::new(data)?;
    let array = vec![1_i64, 2, 3, 4]; // np.array(data)
    let x_np: Tensor<Int> = Tensor::from_slice(&array, [2, 2])?;
    ensure!(x_np.equal(&x_data)?, "the tensors differ: {x_np} and {x_data}");

    let x_ones = x_data.ones_like()?; // retains the properties of x_data
    println!("Ones Tensor:\n {x_ones}\n"); // tensor([[1, 1],
    //         [1, 1]])
    let x_rand = x_data.to_float()?.rand_like()?; // in PyTorch dtype=torch.float; here the kind is a type
    println!("Random Tensor:\n {x_rand}\n");

    let shape = [2, 3];
    let (rand_tensor, ones_tensor, zeros_tensor) = (Tensor::rand(shape)?, Tensor::ones(shape)?, Tensor::zeros(shape)?);
    println!("Random Tensor:\n {rand_tensor}\n");
    println!("Ones Tensor:\n {ones_tensor}\n"); // tensor([[1., 1., 1.],
    //         [1., 1., 1.]])
    println!("Zeros Tensor:\n {zeros_tensor}"); // tensor([[0., 0., 0.],
    //         [0., 0., 0.]])

    println!("\nAttributes of a Tensor");
    let tensor = Tensor::rand([3, 4])?;
    println!("Shape of tensor: {}", tensor.shape()); // torch.Size([3, 4])
    println!("Datatype of tensor: {}", tensor.dtype()); // torch.float32
    println!("Device tensor is stored on: {}", tensor.device()); // cpu

    println!("\nOperations on Tensors");
    let tensor = tensor.to(&device)?;
    println!("Device tensor is stored on: {}", tensor.device());
    let tensor = tensor.ones_like()?;
    println!("First row: {}", tensor.select(0, 0)?); // tensor([1., 1., 1., 1.])
    println!("First column: {}", tensor.select(1, 0)?); // tensor([1., 1., 1.])
    println!("Last column: {}", tensor.select(-1, -1)?); // tensor([1., 1., 1.])
    tensor.select(1, 1)?.zero_()?; // tensor[:, 1] = 0
    println!("{tensor}"); // tensor([[1., 0., 1., 1.],
    //         [1., 0., 1., 1.],
    //         [1., 0., 1., 1.]])
    ensure!(
        tensor.to_vec::<f32>()? == [1.0, 0.0, 1.0, 1.0].repeat(3),
        "the column was not set to 0 through its view: {tensor}"
    );

    println!("\nJoining tensors");
    let t1 = Tensor::cat(&[&tensor, &tensor, &tensor], 1)?;
    println!("{t1}"); // tensor([[1., 0., 1., 1., 1., 0., 1., 1., 1., 0., 1., 1.], ...
    ensure!(t1.dims() == [3, 12], "the shape is {}, not [3, 12]", t1.shape());

    println!("\nArithmetic operations");
    let y1 = tensor.matmul(&tensor.t()?)?; // tensor @ tensor.T
    let y2 = tensor.matmul(&tensor.transpose(0, 1)?)?;
    println!("{y1}"); // tensor([[3., 3., 3.],
    //         [3., 3., 3.],
    //         [3., 3., 3.]])
    ensure!(y1.equal(&y2)? && y1.to_vec::<f32>()? == [3.0; 9], "the matrix product is {y1}, and {y2} by the method");
    let z1 = (&tensor * &tensor)?;
    let z2 = tensor.mul(&tensor)?;
    println!("{z1}"); // the same as tensor: ones and zeros
    ensure!(z1.equal(&z2)? && z1.equal(&tensor)?, "the product of the elements is {z1}, and {z2} by the method");

    println!("\nSingle-element tensors");
    let agg = tensor.sum(..)?;
    let agg_item: f32 = agg.item()?;
    println!("{agg_item:.1} f32"); // 12.0 <class 'float'> on the page, whose tensor has four rows
    ensure!(agg_item == 9.0, "the sum of nine ones is {agg_item}");

    println!("\nIn-place operations");
    println!("{tensor}\n");
    tensor.add_scalar_(5)?;
    println!("{tensor}"); // tensor([[6., 5., 6., 6.],
    //         [6., 5., 6., 6.],
    //         [6., 5., 6., 6.]])
    ensure!(tensor.sum(..)?.item::<f32>()? == 69.0, "the elements do not add up to 69: {tensor}");

    println!("\nBridge with arrays");
    let t = Tensor::ones(5)?;
    println!("t: {t}"); // t: tensor([1., 1., 1., 1., 1.])
    let n: Vec<f32> = t.to_vec()?;
    println!("n: {n:?}"); // n: [1. 1. 1. 1. 1.]
    t.add_scalar_(1)?;
    println!("t: {t}"); // t: tensor([2., 2., 2., 2., 2.])
    // In PyTorch `n` is 2 now, too. Here a `Vec` is a copy, because two owners never share mutable memory.
    println!("n: {n:?}");
    ensure!(n == [1.0; 5] && t.to_vec::<f32>()? == [2.0; 5], "the Vec is no copy: the Vec is {n:?}, the tensor {t}");
    Ok(())
}
