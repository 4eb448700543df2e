//! A custom batch type with page-locked tensors, made by a collate wrapper: the example of "Memory Pinning" in the
//! docs of PyTorch's `torch.utils.data`.
//!
//! `cargo run --example custom_batch`

#[path = "common/mod.rs"]
mod common;

use anyhow::Result;
use clap::Parser;
use pagelock::prelude::*;

/// Without `PinMemory`, `pin_memory(true)` below does not compile, and the compiler says what to write.
#[derive(PinMemory)]
struct SimpleCustomBatch {
    inp: Tensor,
    tgt: Tensor,
}

fn collate_wrapper(batch: Vec<(Tensor, Tensor)>) -> Result<SimpleCustomBatch, pagelock::data::Error> {
    let (inp, tgt) = Stack::stack(batch)?;
    Ok(SimpleCustomBatch { inp, tgt })
}

/// A custom batch type with page-locked tensors, made by a collate wrapper
#[derive(Parser)]
struct Args {}

fn main() -> Result<()> {
    let Args {} = common::arguments();
    let inps = Tensor::arange(0.0, 50.0, 1.0)?.reshape([10, 5])?;
    let tgts = Tensor::arange(0.0, 50.0, 1.0)?.reshape([10, 5])?;
    let dataset = TensorDataset::new((inps, tgts))?;

    let loader = DataLoader::with_collate(dataset, collate_wrapper).batch_size(2).num_workers(1).pin_memory(true);
    for (batch_ndx, sample) in loader.iter().enumerate() {
        let sample = sample?;
        println!("{batch_ndx}: inp {}, tgt {}", sample.inp.is_pinned(), sample.tgt.is_pinned());
        assert!(sample.inp.is_pinned() && sample.tgt.is_pinned());
    }

    println!("{}", loader.report());
    Ok(())
}
