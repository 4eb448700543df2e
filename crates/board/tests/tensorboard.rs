//! TensorBoard reads and serves the same from our files as from PyTorch's: `tests/golden/torch_board.py` compares every
//! value.
//!
//! Runs only where `PAGELOCK_PYTHON` names a Python that has torch. The crate's other tests compare with the files in
//! `tests/golden/torch`.

#[path = "../src/tests/calls.rs"]
mod calls;

use std::env;
use std::path::Path;
use std::process::Command;

use pagelock_board::{Result, SummaryWriter};

/// Runs the script with the folder that `write` filled.
fn check(command: &str, write: impl FnOnce(&Path) -> Result<()>) {
    let Some(python) = env::var_os("PAGELOCK_PYTHON") else {
        return println!("skipped: set PAGELOCK_PYTHON to a Python that has torch");
    };
    let folder = tempfile::tempdir().unwrap();
    write(folder.path()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/torch_board.py");
    let status = Command::new(python).arg(script).arg(command).arg(folder.path()).status();
    assert!(status.expect("PAGELOCK_PYTHON runs").success(), "the script says above what is wrong");
}

#[test]
fn tensorboard_shows_the_same_as_of_pytorchs_files() {
    check("compare", |folder| {
        let writer = SummaryWriter::new(folder)?;
        calls::all(&writer)?;
        writer.close()
    });
}

#[test]
fn tensorboard_shows_no_step_of_a_resumed_run_twice() {
    let steps = |writer: &SummaryWriter, steps: std::ops::Range<i32>, value: f32| {
        for step in steps {
            writer.add_scalar("loss", value, step)?;
            writer.add_scalars("both/of", &[("a", value)], step)?;
        }
        writer.flush()
    };
    check("resumed", |folder| {
        steps(&SummaryWriter::new(folder)?, 0..6, 1.0)?;
        steps(&SummaryWriter::options().log_dir(folder).purge_step(4).open()?, 4..8, 2.0)
    });
}
