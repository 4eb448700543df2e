//! A training pass over a file of any length, larger than memory too, with flat resident memory.
//!
//! ```sh
//! cargo bench -p pagelock-data --bench large_file                              # 4 GiB
//! cargo bench -p pagelock-data --bench large_file -- --gib 100 --dir /data     # nearly all zeros: it takes little disk
//! ```
//! Fails if more than 256 MiB became resident, or more than 32 MiB after the first tenth of the pass.

mod pass;

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs, process};

use pagelock_memory::ByteSize;

use crate::pass::{Report, Result};

fn main() -> ExitCode {
    let folder = argument("--dir").map_or_else(env::temp_dir, PathBuf::from);
    let path = folder.join(format!("pagelock-stored-pass-{}", process::id()));
    let measured = measure(&path);
    let _ = fs::remove_file(&path);
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn argument(name: &str) -> Option<String> {
    env::args().skip_while(|argument| argument != name).nth(1)
}

fn measure(path: &std::path::Path) -> Result<()> {
    let gib: u64 = argument("--gib").map_or(Ok(4), |gib| gib.parse())?;
    pass::make(path, ByteSize::gib(gib))?;
    let Report { n_rows, time, at_first, later, weights: [learned, right] } = pass::run(path)?;
    let rate = (gib << 30) as f64 / time.as_secs_f64() / 1e9;
    println!(
        "{gib} GiB, {n_rows} rows, in {:.1} s: {rate:.2} GB/s; learned {learned:.3} for {right}",
        time.as_secs_f64()
    );
    println!("resident: {} more at first, {} more later", ByteSize(at_first), ByteSize(later));
    match at_first + later <= 256 << 20 && later <= 32 << 20 {
        true => Ok(()),
        false => Err("resident memory is not flat".into()),
    }
}
