//! Named steps with their times: what `bench`, `ci` and `sanitize` print.
//!
//! A failing step does not stop the ones after it, so that one run shows all failures.

use std::time::Instant;

use anyhow::{Result, bail};

/// The steps of one command, run one after the other.
pub(crate) struct Steps {
    command: &'static str,
    began: Instant,
    n_run: usize,
    failed: Vec<String>,
}

impl Steps {
    pub(crate) fn new(command: &'static str) -> Self {
        Steps { command, began: Instant::now(), n_run: 0, failed: Vec::new() }
    }

    /// Runs `work`, prints its name before and its outcome and time after it.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce() -> Result<()>) {
        println!("── {name}");
        let began = Instant::now();
        let outcome = work();
        let seconds = began.elapsed().as_secs_f64();
        self.n_run += 1;
        match outcome {
            Ok(()) => println!("   ok, {seconds:.1} s"),
            Err(error) => {
                println!("   FAILED after {seconds:.1} s: {error:#}");
                self.failed.push(name.to_owned());
            }
        }
    }

    /// Prints that all steps passed, or returns an error that names the failed ones.
    pub(crate) fn finish(self) -> Result<()> {
        let (command, n_run) = (self.command, self.n_run);
        if !self.failed.is_empty() {
            let failed = self.failed.join(", ");
            bail!("{command}: {} of {n_run} steps failed: {failed}", self.failed.len());
        }
        let seconds = self.began.elapsed().as_secs_f64();
        println!("{command}: all {n_run} steps passed in {seconds:.0} s");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_runs_and_the_last_line_names_those_that_failed() {
        let mut steps = Steps::new("ci");
        let mut two_ran = false;

        steps.step("one", || bail!("broken"));
        steps.step("two", || {
            two_ran = true;
            Ok(())
        });
        steps.step("three", || bail!("broken too"));

        assert!(two_ran);
        let error = steps.finish().unwrap_err();
        assert_eq!(error.to_string(), "ci: 2 of 3 steps failed: one, three");
    }
}
