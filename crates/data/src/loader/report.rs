//! [`LoaderReport`]: how long each part of making batches took, and what to change. [`Loader::tune`] chooses the number
//! of workers and the prefetch factor from it.

use std::fmt;
use std::num::NonZero;
use std::thread;
use std::time::Duration;

use super::loaders::Loader;
use crate::error::{sample_of, worker_name};
use crate::{Error, Result};

/// What a loader has done so far, and how long each part took.
///
/// `transfer`, `program_waited` and `program_worked` are the program's own time. The other times are summed over the
/// workers, which work in parallel.
///
/// # Examples
/// ```
/// use pagelock_data::{DataLoader, TensorDataset};
/// use pagelock_tensor::Tensor;
///
/// let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([100, 4])?)?).batch_size(32);
/// loader.iter().for_each(drop);
/// let report = loader.report();
/// assert_eq!((report.batches, report.samples), (4, 100));
/// println!("{report}");
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoaderReport {
    /// How many threads make batches besides the program's own.
    pub workers: usize,
    /// Batches given, including errors.
    pub batches: u64,
    /// Batches that were errors.
    pub errors: u64,
    /// Batches that are at least partly in ordinary memory, because page-locked memory ran out
    /// ([`WhenFull::Pageable`](crate::WhenFull)).
    pub pageable: u64,
    /// Samples in the batches that were given.
    pub samples: u64,
    /// Samples that failed and were left out.
    pub skipped: u64,
    /// Getting samples from the dataset, decoding and transforming them.
    pub fetch: Duration,
    /// Collating samples into a batch.
    pub collate: Duration,
    /// In functions given to `map`.
    pub map: Duration,
    /// Copying tensors into page-locked memory, if they were not collated in it.
    pub pin: Duration,
    /// Handing batches to a device ([`DataLoader::to`](crate::DataLoader::to)): the program's own time.
    pub transfer: Duration,
    /// How long workers were idle, because the program had not taken the batches that they may make ahead.
    pub wait_for_program: Duration,
    /// How long workers waited for a budget: that of batches ahead of the program, or that of page-locked memory.
    pub wait_for_budget: Duration,
    /// How long the program waited for its next batch.
    pub program_waited: Duration,
    /// How long the program worked between two batches.
    pub program_worked: Duration,
}

/// A sample that failed and was left out of its batch; see [`DataLoader::skipped`](crate::DataLoader::skipped).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// The epoch.
    pub epoch: u64,
    /// Its index in the dataset, or in its shard.
    pub index: usize,
    /// Its shard, if it comes from a stream.
    pub shard: Option<usize>,
    /// The worker that tried to fetch it, counted from 0; `None` for the calling thread.
    pub worker: Option<usize>,
    /// The error of the dataset.
    pub error: String,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, index, shard, worker, error } = self;
        write!(f, "{} left out {} in epoch {epoch}: {error}", worker_name(*worker), sample_of(*index, *shard))
    }
}

pub(super) struct Outcome {
    pub(super) result: Result<bool>, // false: the shard has no more batches
    pub(super) report: LoaderReport, // of this batch alone
    pub(super) skipped: Vec<Skipped>,
}

impl Outcome {
    pub(super) fn failed(error: Error) -> Self {
        Self { result: Err(error), report: LoaderReport::default(), skipped: Vec::new() }
    }
}

impl LoaderReport {
    pub(super) fn add(&mut self, Outcome { result, report: batch, skipped }: &Outcome) {
        self.batches += 1;
        self.errors += u64::from(result.is_err());
        self.pageable += batch.pageable;
        self.samples += batch.samples;
        self.skipped += skipped.len() as u64;
        self.fetch += batch.fetch;
        self.collate += batch.collate;
        self.map += batch.map;
        self.pin += batch.pin;
        self.wait_for_program += batch.wait_for_program;
        self.wait_for_budget += batch.wait_for_budget;
        self.program_waited += batch.program_waited;
        self.program_worked += batch.program_worked;
    }

    fn making(&self) -> Duration {
        self.fetch + self.collate + self.map + self.pin
    }

    fn keeps_up(&self) -> bool {
        self.program_waited * 20 <= self.program_waited + self.program_worked
    }

    /// Whether workers and program wait for each other in turn.
    fn comes_in_bursts(&self) -> bool {
        self.workers > 0 && self.wait_for_program * 4 > self.making() && !self.keeps_up()
    }

    fn best_num_workers(&self, most: usize) -> usize {
        /// Below this, handing a batch over costs as much as making it.
        const HARDLY_ANY: Duration = Duration::from_micros(10);
        let n_batches = u32::try_from(self.batches.max(1)).unwrap_or(u32::MAX);
        let (making, working) = (self.making() / n_batches, self.program_worked / n_batches);
        if self.batches == 0 {
            return most.min(1);
        }
        if making <= HARDLY_ANY {
            return 0;
        }
        let wanted = 1.25 * making.as_secs_f64() / working.as_secs_f64().max(1e-9);
        (wanted.ceil().max(1.0) as usize).min(most)
    }

    /// What the figures say, and what to do about it.
    pub fn advice(&self) -> &'static str {
        if self.batches == 0 {
            "no batch was loaded yet"
        } else if self.pageable * 10 > self.batches {
            "page-locked memory is short: raise pin_budget, prefetch fewer batches, or drop batches earlier"
        } else if self.keeps_up() {
            "the loader keeps up: the program hardly ever waits"
        } else if self.wait_for_budget * 4 > self.making() {
            "the budget holds the workers back: raise it, or make batches smaller"
        } else if self.workers == 0 {
            "the program makes its batches itself: num_workers(1) or more makes them in the background"
        } else if self.comes_in_bursts() {
            "batches are made in bursts: a larger prefetch_factor evens them out"
        } else if self.pin * 2 > self.making() {
            "copying batches into page-locked memory takes most of the time: let the collating function make new \
             tensors; those are page-locked from the start"
        } else if self.map * 2 > self.making() {
            "functions given to map take most of the time: use more workers, or do less work there"
        } else if self.collate > self.fetch {
            "collating samples takes most of the time: use more workers, or a dataset with its own gather"
        } else {
            "getting samples takes most of the time: use more workers, or samples that are cheaper to decode"
        }
    }
}

impl<B: Send + 'static, K> Loader<B, K> {
    /// The same loader with the number of workers that its [`report`](Self::report) suggests, at most one per
    /// processor. Order and content of batches stay the same.
    ///
    /// The workers make batches a quarter faster than the program uses them. There are no workers if a batch takes at
    /// most 10 µs to make. A program that only waits for batches gets one worker per processor. If batches come in
    /// bursts, more of them are made ahead. A loader that has given no batch yet gets one worker.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([1_000, 4])?)?).batch_size(10);
    /// loader.iter().take(20).for_each(drop); // part of an epoch, to measure it
    /// let loader = loader.tune();
    /// assert_eq!(loader.state().batch, 20);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn tune(self) -> Self {
        let most = thread::available_parallelism().map_or(1, NonZero::get);
        let report = self.report();
        let prefetch_factor = if report.comes_in_bursts() { 8 } else { 2 };
        self.num_workers(report.best_num_workers(most)).prefetch_factor(prefetch_factor)
    }
}

impl fmt::Display for LoaderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workers, batches, errors, pageable, samples, .. } = self;
        writeln!(f, "{batches} batches of {samples} samples, {errors} with errors, {workers} workers; per batch:")?;
        if self.skipped > 0 {
            writeln!(f, "  {} samples failed and were left out", self.skipped)?;
        }
        if *pageable > 0 {
            writeln!(f, "  {pageable} batches were not page-locked, for lack of page-locked memory")?;
        }
        let per_batch = |time: Duration| time.as_secs_f64() * 1e6 / (*batches).max(1) as f64;
        for (what, time) in [
            ("fetch", self.fetch),
            ("collate", self.collate),
            ("map", self.map),
            ("pin", self.pin),
            ("transfer", self.transfer),
            ("workers waited for the program", self.wait_for_program),
            ("waited for the budget", self.wait_for_budget),
            ("the program waited", self.program_waited),
            ("the program worked", self.program_worked),
        ] {
            writeln!(f, "  {what:<30} {:>10.1} µs", per_batch(time))?;
        }
        f.write_str(self.advice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The report of ten batches: `making` is the time to make one, `working` the time that the program used it.
    fn report(making: Duration, working: Duration) -> LoaderReport {
        LoaderReport { batches: 10, fetch: 10 * making, program_worked: 10 * working, ..LoaderReport::default() }
    }

    #[test]
    fn as_many_workers_as_make_batches_a_quarter_faster_than_they_are_used() {
        for (making, working, num_workers) in [(3, 4, 1), (4, 4, 2), (8, 4, 3), (30, 4, 8), (3, 0, 8)] {
            let chosen = report(making * MS, working * MS).best_num_workers(8);
            assert_eq!(chosen, num_workers, "{making} ms to make, {working} ms to use");
        }
        assert_eq!(report(Duration::from_micros(9), MS).best_num_workers(8), 0);
        assert_eq!(LoaderReport::default().best_num_workers(8), 1);
        assert_eq!(report(MS, MS).best_num_workers(0), 0);
    }
}
