//! The gate: how helpers get into a job that lives on its caller's stack, and how the caller knows that all are out.
//!
//! One word holds the job's number, whether the gate is open, and how many helpers are inside. Entering adds one *if the
//! gate is open*, in one atomic step; so once the caller has closed the gate and seen nobody inside, no helper can
//! touch the job any more, and the job may go. A helper that wakes too late finds the gate closed and stays out: the
//! caller never waits for it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bit 0: open. Bits 1 to 31: helpers inside. Bits 32 to 63: the number of the job.
pub(super) struct Gate(AtomicU64);

const OPEN: u64 = 1;
const ONE_INSIDE: u64 = 2;
const INSIDE: u64 = (1 << 32) - ONE_INSIDE;
const ONE_JOB: u64 = 1 << 32;

impl Gate {
    pub(super) const fn new() -> Gate {
        Gate(AtomicU64::new(0))
    }

    /// Opens the gate for the next job. Only one thread at a time may open and close.
    pub(super) fn open(&self) {
        // Relaxed: only this thread changes a closed, empty gate.
        let job = (self.0.load(Ordering::Relaxed) & !(OPEN | INSIDE)).wrapping_add(ONE_JOB);
        // Release: every helper that enters sees what the caller wrote about the job. SeqCst: either this thread sees
        // a helper that is about to sleep, or that helper sees the open gate (see `Pool::wait_for_job`).
        self.0.store(job | OPEN, Ordering::SeqCst);
    }

    /// Closes the gate; helpers that are inside stay.
    pub(super) fn close(&self) {
        // Relaxed: closing tells helpers nothing but to stay out.
        self.0.fetch_and(!OPEN, Ordering::Relaxed);
    }

    /// Whether nobody is inside. If so, all that helpers did inside is seen by this thread.
    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) & INSIDE == 0
    }

    /// The number of the job that could be entered now, unless it is `last`.
    pub(super) fn job_after(&self, last: Option<u32>) -> Option<u32> {
        let state = self.0.load(Ordering::SeqCst);
        let job = (state >> 32) as u32;
        (state & OPEN != 0 && last != Some(job)).then_some(job)
    }

    /// Enters the job, if the gate is still open for it. A helper that enters must leave.
    pub(super) fn enter(&self, job: u32) -> bool {
        let mut state = self.0.load(Ordering::Relaxed);
        while state & OPEN != 0 && (state >> 32) as u32 == job {
            // Acquire: pairs with `open`.
            match self.0.compare_exchange_weak(state, state + ONE_INSIDE, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Leaves the job.
    pub(super) fn leave(&self) {
        // Release: pairs with `is_empty`.
        self.0.fetch_sub(ONE_INSIDE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_gate_lets_nobody_in() {
        let gate = Gate::new();
        gate.open();
        let job = gate.job_after(None).unwrap();
        assert!(gate.enter(job));

        gate.close();

        assert!(!gate.enter(job));
        assert!(!gate.is_empty());
        gate.leave();
        assert!(gate.is_empty());
    }

    #[test]
    fn a_job_is_offered_once_to_who_has_done_it() {
        let gate = Gate::new();
        assert_eq!(gate.job_after(None), None);

        gate.open();
        let job = gate.job_after(None);
        assert!(job.is_some());
        assert_eq!(gate.job_after(job), None);

        gate.close();
        gate.open();
        assert!(gate.job_after(job).is_some());
        assert!(!gate.enter(job.unwrap()), "the first job is over");
    }
}
