//! The cost of a profile: small operations in a loop, without and with a profile.
//!
//! `cargo bench -p pagelock-tensor --bench profiler`

use std::time::Instant;

use pagelock_tensor::profiler::Profiler;
use pagelock_tensor::{Float, Result, Tensor};

const OPERATIONS: u32 = 200_000;
const ROUNDS: usize = 7;

fn main() -> Result<()> {
    let (x, y) = (Tensor::<Float>::ones([16])?, Tensor::<Float>::ones([16])?);
    let w = Tensor::<Float>::ones([16])?.set_requires_grad(true);
    let loops: [(&str, &dyn Fn() -> Result<()>); 2] =
        [("x + y", &|| x.add(&y).map(drop)), ("x · w, recorded for backward", &|| x.mul(&w).map(drop))];
    for (name, operation) in loops {
        let off = fastest(operation)?;
        let active = Profiler::new().max_events(2 * OPERATIONS as usize * ROUNDS).start()?;
        let on = fastest(operation)?;
        drop(active.stop()?);
        println!("{name}: {off:.1} ns an operation, {on:.1} ns while a profile is recorded");
    }
    Ok(())
}

/// Nanoseconds per operation in the fastest round.
fn fastest(operation: &dyn Fn() -> Result<()>) -> Result<f64> {
    let mut fastest = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..OPERATIONS {
            operation()?;
        }
        fastest = fastest.min(start.elapsed().as_nanos() as f64 / f64::from(OPERATIONS));
    }
    Ok(fastest)
}
