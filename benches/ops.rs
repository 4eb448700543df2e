//! Single operations on the CPU: our half of `compare_torch.py ops`, under the same names.
//!
//! ```text
//! cargo bench --bench ops -- [--threads N] [--repeats N] [--json]
//! ```

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use pagelock::prelude::*;
use pagelock::tensor::Conv2dOptions;

const N: usize = 10_000_000;

/// Times single operations
#[derive(Parser)]
struct Args {
    /// Threads to compute with
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Calls of each operation
    #[arg(long, default_value_t = 20)]
    repeats: usize,
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

type Operation = Box<dyn Fn() -> Result<()>>;

fn main() -> Result<()> {
    let args = Args::parse();
    set_num_threads(args.threads);
    let mut seconds = BTreeMap::new();
    for (name, operation) in operations()? {
        seconds.insert(name, seconds_of(&operation, args.repeats)?);
    }
    if args.json {
        println!("{}", serde_json::json!({ "program": "Pagelock", "threads": args.threads, "seconds": seconds }));
        return Ok(());
    }
    println!("{:44} {:>10} {:>10}   ({} threads)", "operation", "least, ms", "median, ms", args.threads);
    for (name, mut calls) in seconds {
        calls.sort_by(f64::total_cmp);
        println!("{name:44} {:10.3} {:10.3}", 1e3 * calls[0], 1e3 * calls[calls.len() / 2]);
    }
    Ok(())
}

/// The operations by name; inputs are made here, outside the time.
fn operations() -> Result<Vec<(&'static str, Operation)>> {
    let [a, b, out] = [Tensor::randn(N)?, Tensor::randn(N)?, Tensor::zeros(N)?];
    let rows = a.view([1000, 10_000])?;
    let [small, large] = [Tensor::randn([512, 512])?, Tensor::randn([1024, 1024])?];
    let [batch, classes] = [Tensor::randn([64, 784])?, Tensor::randn([10, 784])?];
    let [image, kernel] = [Tensor::randn([64, 16, 14, 14])?, Tensor::randn([16, 16, 3, 3])?];
    let geometry = Conv2dOptions::new().stride(2).padding(1);

    let mut list: Vec<(&str, Operation)> = Vec::new();
    macro_rules! operation {
        ($name:literal, [$($tensor:ident),+], $run:expr) => {{
            $(let $tensor = $tensor.clone();)+
            list.push(($name, Box::new(move || { black_box($run?); Ok(()) })));
        }};
    }
    operation!("matmul 512", [small], small.matmul(&small));
    operation!("matmul 1024", [large], large.matmul(&large));
    operation!("linear 64x784 to 10", [batch, classes], batch.matmul(&classes.t()?));
    operation!("conv2d 16 to 16, 14x14, stride 2, batch 64", [image, kernel], image.conv2d(&kernel, None, geometry));
    operation!("add 10 M", [a, b], a.add(&b));
    operation!("relu 10 M", [a], a.relu());
    operation!("exp 10 M", [a], a.exp());
    operation!("sum 10 M", [a], a.sum(..));
    operation!("sum of 1000 rows of 10,000", [rows], rows.sum(-1));
    operation!("sum of 10,000 columns of 1000", [rows], rows.sum(0));
    operation!("copy 10 M", [a, out], out.copy_(&a));
    Ok(list)
}

/// Seconds of each call, after some that warm up.
fn seconds_of(operation: &Operation, repeats: usize) -> Result<Vec<f64>> {
    for _ in 0..3 {
        operation()?;
    }
    let mut seconds = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let begin = Instant::now();
        operation()?;
        seconds.push(begin.elapsed().as_secs_f64());
    }
    Ok(seconds)
}
