//! What a call of `add_scalar` costs the thread that makes it, beside PyTorch's.
//!
//! ```sh
//! PYTHON=path/to/python/with/torch cargo bench -p pagelock-board --bench add_scalar
//! ```
//! Prints nanoseconds for each call: the least and the most of five runs.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use pagelock_board::{Result, SummaryWriter};

const RUNS: usize = 5;
const CALLS: usize = 200_000;
const CALLS_OF_TORCH: usize = 20_000;

fn main() -> Result<()> {
    let ours: Vec<f64> = (0..RUNS).map(|_| ours()).collect::<Result<_>>()?;
    print("pagelock-board", &ours);
    let Some(python) = std::env::var_os("PYTHON") else {
        println!("PyTorch: skipped; set PYTHON to a Python that has torch and tensorboard");
        return Ok(());
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/torch_board.py");
    let torch = || {
        let output = Command::new(&python).arg(&script).args(["time", &CALLS_OF_TORCH.to_string()]).output();
        let output = output.expect("PYTHON runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        let last = printed.lines().last().unwrap_or_default();
        last.parse().unwrap_or_else(|_| panic!("no time came back: {}", String::from_utf8_lossy(&output.stderr)))
    };
    let torch: Vec<f64> = (0..RUNS).map(|_| torch()).collect();
    print("PyTorch", &torch);
    println!("PyTorch takes {:.0} times as long", least(&torch) / least(&ours));
    Ok(())
}

/// Nanoseconds for each call.
fn ours() -> Result<f64> {
    let folder = std::env::temp_dir().join(format!("pagelock-add-scalar-{}", std::process::id()));
    let writer = SummaryWriter::new(&folder)?;
    let begin = Instant::now();
    for step in 0..CALLS {
        writer.add_scalar("loss/train", 0.5, step)?;
    }
    let took = begin.elapsed().as_nanos() as f64 / CALLS as f64;
    writer.close()?;
    std::fs::remove_dir_all(&folder).expect("the folder was made above");
    Ok(took)
}

fn least(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

fn print(name: &str, times: &[f64]) {
    let most = times.iter().copied().fold(0.0, f64::max);
    println!("{name}: {:.0} to {most:.0} ns for each add_scalar", least(times));
}
