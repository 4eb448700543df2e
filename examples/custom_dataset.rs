//! A custom dataset in two functions, loaded in default and in custom batches. Needs no files.
//!
//! `cargo run --example custom_dataset`

#[path = "common/mod.rs"]
mod common;

use std::f32::consts::TAU;

use clap::Parser;
use pagelock_data::{DataLoader, Dataset, Result, Stack, random_split};
use pagelock_tensor::{Generator, Int, Tensor};

const ARMS: usize = 3;

/// Points on the arms of a spiral, computed on demand; the label is the arm.
struct Spiral {
    points_per_arm: usize,
}

impl Dataset for Spiral {
    type Sample = ([f32; 2], i64);

    fn len(&self) -> usize {
        ARMS * self.points_per_arm
    }

    fn get(&self, index: usize) -> Result<Self::Sample> {
        let (arm, step) = (index / self.points_per_arm, index % self.points_per_arm);
        let outward = step as f32 / self.points_per_arm as f32; // 0 at the center, 1 at the tip
        let angle = TAU * (arm as f32 / ARMS as f32 + 0.75 * outward);
        Ok(([outward * angle.cos(), outward * angle.sin()], arm as i64))
    }
}

/// A custom batch: the tensors, and how many points of each arm are in it.
struct Batch {
    points: Tensor,
    labels: Tensor<Int>,
    per_arm: [usize; ARMS],
}

fn collate(samples: Vec<([f32; 2], i64)>) -> Result<Batch> {
    let mut per_arm = [0; ARMS];
    samples.iter().for_each(|&(_, arm)| per_arm[arm as usize] += 1);
    let (points, labels) = Stack::stack(samples)?;
    Ok(Batch { points, labels, per_arm })
}

/// A custom dataset in two functions, loaded in default and in custom batches
#[derive(Parser)]
struct Args {}

fn main() -> Result<()> {
    let Args {} = common::arguments();
    // Arrays and numbers stack by themselves: [n, 2] and [n].
    let [train_ds, valid_ds] = random_split(Spiral { points_per_arm: 100 }, [240, 60], &Generator::new(1))?;
    let train_dl = DataLoader::new(train_ds).batch_size(80).shuffle(42);
    for epoch in 0..2 {
        for batch in &train_dl {
            let (points, labels) = batch?;
            let first: Vec<i64> = labels.narrow(0, 0, 8)?.to_vec()?;
            println!("epoch {epoch}: points {:?}, labels {:?} starting {first:?}", points.dims(), labels.dims());
        }
    }

    // A collate function makes any other kind of batch.
    for batch in &DataLoader::with_collate(valid_ds, collate).batch_size(30) {
        let Batch { points, labels, per_arm } = batch?;
        println!("points {:?}, labels {:?}, per arm {per_arm:?}", points.dims(), labels.dims());
    }

    // Mistakes are errors that say what to do.
    let Err(error) = DataLoader::new(Spiral { points_per_arm: 10 }).batch_size(64).drop_last(true).len() else {
        unreachable!("30 samples do not fill a batch of 64");
    };
    println!("as expected: {error}");
    Ok(())
}
