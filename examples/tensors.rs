//! Tensors: making them, views that copy nothing, broadcasting, and errors that say what to do.
//!
//! Run with `cargo run --release --example tensors`. Read it from top to bottom: each part prints what it shows.

#[path = "common/mod.rs"]
mod common;

use anyhow::Result;
use clap::Parser;
use pagelock::prelude::*;

/// Tensors: making them, views that copy nothing, broadcasting, and errors that say what to do
#[derive(Parser)]
struct Args {}

fn main() -> Result<()> {
    let Args {} = common::arguments();
    println!("1. The kind of numbers is part of the Rust type; their precision, shape and device are values.\n");
    let x = Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    let labels: Tensor<Int> = Tensor::new([7, 2, 1])?;
    println!("{x}\n{labels}");
    let half = x.to_dtype(DType::BF16)?;
    println!("precisions: {} and {}; with half the bytes: {}\n", x.dtype(), labels.dtype(), half.dtype());

    println!("2. Views share the elements; only the shape and the strides are their own.\n");
    let grid = Tensor::arange(0, 24, 1)?.view([2, 3, 4])?;
    let every_other = grid.select(0, 1)?.slice(1, [0, -1], 2)?;
    println!("{every_other}");
    println!("shape {}, strides {:?} in a storage of {}\n", every_other.shape(), every_other.strides(), grid.len());

    println!("3. Shapes broadcast as in PyTorch, and one question mark is enough for an expression.\n");
    let rows = x.sum_keepdim(-1)?;
    let shares = (&x / &rows)?;
    println!("{shares:.2}");
    println!("each row sums to {:.1}\n", shares.sum(-1)?);

    println!("4. Shapes that do not fit are an error with the shapes and the fix.\n");
    for error in [x.matmul(&x).map(drop), (&x + &Tensor::zeros([4])?).map(drop), x.reshape([4, -1]).map(drop)] {
        println!("   {}", error.expect_err("none of these fits"));
    }

    println!("\n5. Kinds never mix implicitly: a method converts one to another.\n");
    let right: Tensor<Bool> = x.argmax(-1)?.eq(&Tensor::new([2, 0])?)?;
    let share: f32 = right.to_float()?.mean(..)?.item()?;
    println!("{right}, so {:.0} % are correct\n", 100.0 * share);

    println!("6. Random numbers depend on the seed alone, not on the machine or its number of threads.\n");
    manual_seed(42);
    let one = Tensor::randn([1_000_000])?;
    set_num_threads(1);
    manual_seed(42);
    let other = Tensor::randn([1_000_000])?;
    let [once, again]: [Vec<f32>; 2] = [one.to_vec()?, other.to_vec()?];
    println!("a million normal numbers, twice: equal = {}", once == again);
    let [mean, variance]: [f64; 2] = [one.mean(..)?.item()?, one.var(..)?.item()?];
    println!("mean {mean:.4}, variance {variance:.4}\n");

    println!("7. Every byte is counted.\n\n{}", ledger());
    Ok(())
}
