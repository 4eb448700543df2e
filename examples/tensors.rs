//! Tensors: making them, views that copy nothing, broadcasting, and errors that say what to do.
//!
//! Run with `cargo run --release --example tensors`. Read it down: each part prints what it shows.

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
    println!("1. The element type is part of the Rust type, f32 unless another is named; the shape is a value.\n");
    let x = Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    let labels = Tensor::from_slice(&[7_i64, 2, 1], [3])?;
    println!("{x}\n{labels}\n");

    println!("2. Views share the elements; only the shape and the strides are their own.\n");
    let grid = Tensor::<f32>::arange(0.0, 24.0, 1.0)?.view([2, 3, 4])?;
    let every_other = grid.select(0, 1)?.slice(1, [0, -1], 2)?;
    println!("{every_other}");
    println!("shape {}, strides {:?} in a storage of {}\n", every_other.shape(), every_other.strides(), grid.len());

    println!("3. Shapes broadcast as in PyTorch, and one question mark serves a whole expression.\n");
    let rows = x.sum_keepdim(-1)?;
    let shares = (&x / &rows)?;
    println!("{shares:.2}");
    println!("each row sums to {:.1}\n", shares.sum(-1)?);

    println!("4. What does not fit is an error that names the numbers and the way out.\n");
    for error in [x.matmul(&x).map(drop), (&x + &Tensor::zeros([4])?).map(drop), x.reshape([4, -1]).map(drop)] {
        println!("   {}", error.expect_err("none of these fits"));
    }

    println!("\n5. Types never mix silently: a cast says that one is meant.\n");
    let right = x.argmax(-1)?.eq(&Tensor::from_slice(&[2_i64, 0], [2])?)?;
    println!("{right}, so {:.0} % are right\n", 100.0 * right.cast::<f32>()?.mean(..)?.item()?);

    println!("6. Random numbers depend on the seed alone, not on the machine or its number of threads.\n");
    manual_seed(42);
    let one = Tensor::randn([1_000_000])?;
    set_num_threads(1);
    manual_seed(42);
    let other = Tensor::randn([1_000_000])?;
    println!("a million normal numbers, twice: equal = {}", one.to_vec()? == other.to_vec()?);
    println!("mean {:.4}, variance {:.4}\n", one.mean(..)?.item()?, one.var(..)?.item()?);

    println!("7. Every byte is counted.\n\n{}", ledger());
    Ok(())
}
