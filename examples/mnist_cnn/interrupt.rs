//! Ctrl-C: the first asks the training to stop after its batch, the second ends the program.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Whether Ctrl-C was pressed, or the system asked the program to end.
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub(crate) fn watch() -> Result<Self> {
        let came = Arc::new(AtomicBool::new(false));
        let noted = came.clone();
        let note = move || {
            if noted.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
            // The error is ignored, because standard error may be closed.
            let _ = writeln!(io::stderr(), "\nstopping after this batch, then saving; Ctrl-C again ends at once");
        };
        ctrlc::set_handler(note).context("cannot watch for Ctrl-C")?;
        Ok(Self(came))
    }

    pub(crate) fn came(&self) -> bool {
        // Relaxed: the flag guards no other memory.
        self.0.load(Ordering::Relaxed)
    }
}
