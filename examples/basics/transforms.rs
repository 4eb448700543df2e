//! "Transforms" of PyTorch's "Learn the Basics": images become floats, labels become one-hot vectors.
//!
//! `cargo run --release --example basics_transforms` (the page:
//! <https://docs.pytorch.org/tutorials/beginner/basics/transforms_tutorial.html>)

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Context, Result, ensure};
use common::clothes;
use common::options::Options;
use pagelock::data::transforms::{ToFloat, Transform};
use pagelock::prelude::*;

fn main() -> Result<()> {
    let options = Options::read("PyTorch's transforms: images become floats, labels become one-hot vectors")?;
    let (set, classes) = clothes::open(&options)?;

    // transform=ToTensor(): these bytes are channels-first already, so ToFloat is enough
    let transform = ToFloat;
    // target_transform=Lambda(lambda y: torch.zeros(10).scatter_(0, torch.tensor(y), value=1))
    let target_transform = |y: &Tensor<Int>| y.one_hot(10)?.to_float();
    let ds = set.train.bytes().transform(options.seed, move |(image, y), random| {
        Ok((transform.apply(image, random)?, target_transform(&y)?))
    });

    let (raw, label) = set.train.bytes().get(0)?;
    let (image, target) = ds.get(0)?;
    println!("before: {} of {}, label {label}", raw.shape(), raw.dtype());
    println!("after:  {} of {} from {:.1} to {:.1}", image.shape(), image.dtype(), image.min(..)?, image.max(..)?);
    println!("label {} ({}): {target:.0}", label.item::<i64>()?, classes[label.item::<i64>()? as usize]);
    ensure!(target.sum(..)?.item::<f32>()? == 1.0, "the target is not one 1 among zeros: {target}");
    ensure!(
        target.argmax(0)?.item::<i64>()? == label.item::<i64>()?,
        "the largest number of the target is not at the label: {target}"
    );
    ensure!(
        image.max(..)?.item::<f32>()? <= 1.0 && image.min(..)?.item::<f32>()? >= 0.0,
        "the image has numbers outside of 0 to 1"
    );

    let batch = DataLoader::new(ds).batch_size(64).iter().next().context("there is no batch")??;
    println!("a batch: {} and {}", batch.0.shape(), batch.1.shape()); // [64, 1, 28, 28] and [64, 10]
    ensure!(batch.1.dims() == [64, 10], "the shape of the targets is {}, not [64, 10]", batch.1.shape());
    Ok(())
}
