//! What a call of `add_scalar` costs the calling thread, compared with PyTorch's.
//!
//! ```sh
//! PYTHON=path/to/python/with/torch cargo bench -p pagelock-board --bench add_scalar
//! ```
//! Prints nanoseconds per call: the least and the most of five runs. With `--json`, prints the least as a JSON object.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use pagelock_board::{Result, SummaryWriter};

const RUNS: usize = 5;
const CALLS: usize = 200_000;
const CALLS_OF_TORCH: usize = 20_000;

fn main() -> Result<()> {
    let mut figures = vec![("pagelock-board", (0..RUNS).map(|_| ours()).collect::<Result<Vec<f64>>>()?)];
    if let Some(python) = std::env::var_os("PYTHON") {
        figures.push(("PyTorch", (0..RUNS).map(|_| torch(&python)).collect()));
    }
    let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    if std::env::args().any(|argument| argument == "--json") {
        let field = |(name, times): &(&str, Vec<f64>)| format!("\"{name}\": {:.1}", least(times));
        println!("{{\"unit\": \"ns per add_scalar\", {}}}", figures.iter().map(field).collect::<Vec<_>>().join(", "));
        return Ok(());
    }
    for (name, times) in &figures {
        println!("{name}: {:.0} to {:.0} ns for each add_scalar", least(times), most(times));
    }
    match &figures[..] {
        [(_, ours), (_, torch)] => println!("PyTorch takes {:.0} times as long", least(torch) / least(ours)),
        _ => println!("PyTorch: skipped; set PYTHON to a Python that has torch"),
    }
    Ok(())
}

/// Nanoseconds per call of PyTorch's `add_scalar`.
fn torch(python: &OsStr) -> f64 {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/torch_board.py");
    let output = Command::new(python).arg(script).args(["time", &CALLS_OF_TORCH.to_string()]).output();
    let output = output.expect("PYTHON runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let last = printed.lines().last().unwrap_or_default();
    last.parse().unwrap_or_else(|_| panic!("no time came back: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Nanoseconds per call of our `add_scalar`.
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
