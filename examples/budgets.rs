//! Budgets: where a program's memory goes, and what happens when there is not enough.
//!
//! Run with `cargo run --release --example budgets`; it needs neither data nor network. Read it from top to bottom: a
//! budget for all memory, a share of it, a pool, a refusal, a wait, and the ledger.

#[path = "common/mod.rs"]
mod common;

use std::{thread, time::Duration};

use anyhow::Result;
use clap::Parser;
use pagelock_memory::{Budget, ByteSize, Counted, HostBuffer, Limited, Pageable, Pooled, holder, ledger};

const MIB: usize = 1 << 20;

/// Budgets: where a program's memory goes, and what happens when there is not enough
#[derive(Parser)]
struct Args {}

fn main() -> Result<()> {
    let Args {} = common::arguments();
    // 64 MiB for everything. The loader may have at most 24 MiB of them.
    let ram = Budget::new("ram", "64 MiB".parse::<ByteSize>()?).with_advice("raise `ram` or lower the batch size");
    let loader = ram.child("loader", ByteSize::mib(24));

    // The limit is the layer below the pool, so it bounds real memory, including idle blocks of the pool.
    let host = Counted::new("host", Pooled::new(Limited::new(Pageable, ram.clone())));

    println!("1. A holder is a name; the memory that this thread allocates is charged to it.\n");
    let model = {
        let _scope = holder("model");
        HostBuffer::allocate(&host, 20 * MIB)?
    };
    println!("   allocated {model:?}; ram: {} used of {}", ram.used(), ram.limit());

    println!("\n2. Dropped buffers stay in the pool: a request of the same size is a hit, and allocates nothing.\n");
    let _scope = holder("batches");
    for step in 0..1_000 {
        let mut batch = HostBuffer::allocate(&host, 10 * MIB)?;
        batch.bytes_mut()?[0] = step as u8;
    }
    let pool = host.inner().stats();
    println!("   1000 batches: {} hits in the pool, {} idle", pool.hits, ByteSize(pool.idle_bytes));

    println!(
        "\n3. A request that does not fit is refused; the error has the numbers, the holders and what to change.\n"
    );
    let batches = [HostBuffer::allocate(&host, 10 * MIB)?, HostBuffer::allocate(&host, 10 * MIB)?];
    let refusal = HostBuffer::allocate(&host, 30 * MIB).expect_err("only 24 MiB are left");
    println!("   {refusal}");

    println!("\n4. A child budget counts at its parents too, and a reservation can wait for memory.\n");
    let prefetched = loader.reserve(20 << 20)?;
    println!("   loader: {} of {}; ram: {} left", loader.used(), loader.limit(), ram.left());
    println!("   {}", loader.reserve_timeout(8 << 20, Duration::from_millis(10)).expect_err("only 4 MiB are left"));
    let consumer = thread::spawn(move || drop(prefetched)); // another thread releases its bytes ...
    let next = loader.reserve_timeout(8 << 20, Duration::from_secs(10))?; // ... and this call waits for them
    consumer.join().expect("dropping does not panic");
    println!("   after waiting: {} reserved", ByteSize(next.len_bytes()));

    println!("\n5. The ledger lists all memory.\n\n{}", ledger());

    drop((model, batches, next));
    println!("6. Dropped: {} in use, {} idle.", ByteSize(ledger().live_bytes()), ByteSize(ledger().idle_bytes()));
    Ok(())
}
