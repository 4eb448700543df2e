//! [`LoaderReport`]: how long each part of making batches took, and what to change.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::error::{sample_of, who};
use crate::{Error, Result};

/// What a loader has done so far, and how long each part took.
///
/// The first six times are summed over workers, which work at the same time; the last two are the program's own time.
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
    /// Batches given, those with errors among them.
    pub batches: u64,
    /// Batches that were errors.
    pub errors: u64,
    /// Batches that are not in page-locked memory altogether, because there was no more ([`WhenFull::Pageable`](crate::WhenFull)).
    pub pageable: u64,
    /// Samples in them.
    pub samples: u64,
    /// Samples that failed and were left out.
    pub skipped: u64,
    /// Getting samples from the dataset, decoding and transforming them.
    pub fetch: Duration,
    /// Making a batch of them.
    pub collate: Duration,
    /// In functions given to `map`.
    pub map: Duration,
    /// Copying into page-locked memory what was not collated there.
    pub pin: Duration,
    /// Handing batches to a device ([`DataLoader::to`](crate::DataLoader::to)): the program's own time.
    pub transfer: Duration,
    /// Workers that had nothing to do: the window was full of batches that the program had not taken yet.
    pub wait_for_program: Duration,
    /// Waiting for the budget: of batches that are ahead, or of page-locked memory.
    pub wait_for_budget: Duration,
    /// The program waited for its next batch.
    pub program_waited: Duration,
    /// The program did something with its last batch.
    pub program_worked: Duration,
}

/// A sample that could not be had, and was left out of its batch; see [`DataLoader::skipped`](crate::DataLoader::skipped).
///
/// # Examples
/// See [`DataLoader::skip_bad_samples`](crate::DataLoader::skip_bad_samples).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// In which epoch.
    pub epoch: u64,
    /// Its index in the dataset, or in its shard.
    pub index: usize,
    /// Its shard, if it comes from a stream.
    pub shard: Option<usize>,
    /// The worker that was to get it, counted from 0; none if that was the calling thread.
    pub worker: Option<usize>,
    /// What the dataset ran into.
    pub error: String,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, index, shard, worker, error } = self;
        write!(f, "{} left out {} in epoch {epoch}: {error}", who(*worker), sample_of(*index, *shard))
    }
}

/// What became of a batch, and what that took.
pub(super) struct Made {
    pub(super) result: Result<bool>, // false: its shard has no more
    pub(super) report: LoaderReport, // of this batch alone
    pub(super) skipped: Vec<Skipped>,
}

impl Made {
    pub(super) fn failed(error: Error) -> Self {
        Self { result: Err(error), report: LoaderReport::default(), skipped: Vec::new() }
    }
}

/// What a loader did so far.
#[derive(Default)]
pub(super) struct Record {
    pub(super) report: LoaderReport,
    /// The latest samples that were left out.
    pub(super) skipped: VecDeque<Skipped>,
}

/// How many of the samples that were left out are remembered.
const KEPT_SKIPPED: usize = 1_000;

impl Record {
    /// Adds a batch.
    pub(super) fn add(&mut self, made: &mut Made) {
        let (total, batch) = (&mut self.report, &made.report);
        total.batches += 1;
        total.errors += u64::from(made.result.is_err());
        total.pageable += batch.pageable;
        total.samples += batch.samples;
        total.skipped += made.skipped.len() as u64;
        total.fetch += batch.fetch;
        total.collate += batch.collate;
        total.map += batch.map;
        total.pin += batch.pin;
        total.wait_for_program += batch.wait_for_program;
        total.wait_for_budget += batch.wait_for_budget;
        total.program_waited += batch.program_waited;
        total.program_worked += batch.program_worked;
        self.skipped.extend(made.skipped.drain(..));
        let surplus = self.skipped.len().saturating_sub(KEPT_SKIPPED);
        self.skipped.drain(..surplus);
    }
}

impl LoaderReport {
    /// Making batches, all of it.
    pub(super) fn making(&self) -> Duration {
        self.fetch + self.collate + self.map + self.pin
    }

    /// Whether the program hardly ever waits.
    pub(super) fn keeps_up(&self) -> bool {
        self.program_waited * 20 <= self.program_waited + self.program_worked
    }

    /// What the figures say, and what to do about it.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([100, 4])?)?);
    /// assert_eq!(loader.report().advice(), "no batch was loaded yet");
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
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
            "the program makes its batches itself: num_workers(1) or more lets it go on meanwhile"
        } else if self.wait_for_program * 4 > self.making() {
            "batches are made in bursts: a larger prefetch_factor evens them out"
        } else if self.pin * 2 > self.making() {
            "copying batches into page-locked memory takes most of the time: make new tensors when collating, which are there at \
             once, instead of handing on the dataset's own"
        } else if self.map * 2 > self.making() {
            "functions given to map take most of the time: more workers, or less work there"
        } else if self.collate > self.fetch {
            "making batches of samples takes most of the time: more workers, or a dataset with a gather of its own"
        } else {
            "getting samples takes most of the time: more workers, or samples that are cheaper to decode"
        }
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
            writeln!(f, "  {pageable} batches were not page-locked, for want of page-locked memory")?;
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

    /// A hundred batches by two workers, for which the program waits half of the time.
    fn waiting() -> LoaderReport {
        let (batches, samples) = (100, 6_400);
        let (program_waited, program_worked) = (50 * MS, 50 * MS);
        LoaderReport { workers: 2, batches, samples, program_waited, program_worked, ..LoaderReport::default() }
    }

    #[test]
    fn the_advice_names_what_takes_the_time_and_what_to_do() {
        let fetching = LoaderReport { fetch: 90 * MS, collate: 10 * MS, ..waiting() };
        for (report, advice) in [
            (LoaderReport::default(), "no batch was loaded yet"),
            (
                LoaderReport { pageable: 11, ..fetching },
                "page-locked memory is short: raise pin_budget, prefetch fewer batches, or drop batches earlier",
            ),
            (LoaderReport { program_waited: 2 * MS, ..fetching }, "the loader keeps up: the program hardly ever waits"),
            (
                LoaderReport { wait_for_budget: 30 * MS, ..fetching },
                "the budget holds the workers back: raise it, or make batches smaller",
            ),
            (
                LoaderReport { workers: 0, ..fetching },
                "the program makes its batches itself: num_workers(1) or more lets it go on meanwhile",
            ),
            (
                LoaderReport { wait_for_program: 30 * MS, ..fetching },
                "batches are made in bursts: a larger prefetch_factor evens them out",
            ),
            (
                LoaderReport { pin: 110 * MS, ..fetching },
                "copying batches into page-locked memory takes most of the time: make new tensors when collating, which are \
                 there at once, instead of handing on the dataset's own",
            ),
            (
                LoaderReport { map: 110 * MS, ..fetching },
                "functions given to map take most of the time: more workers, or less work there",
            ),
            (
                LoaderReport { collate: 100 * MS, ..fetching },
                "making batches of samples takes most of the time: more workers, or a dataset with a gather of its own",
            ),
            (fetching, "getting samples takes most of the time: more workers, or samples that are cheaper to decode"),
        ] {
            assert_eq!(report.advice(), advice);
        }
    }

    #[test]
    fn a_report_prints_every_time_per_batch() {
        let report = LoaderReport { fetch: 90 * MS, collate: 10 * MS, transfer: 3 * MS, pageable: 1, ..waiting() };
        let expected = "\
100 batches of 6400 samples, 0 with errors, 2 workers; per batch:
  1 batches were not page-locked, for want of page-locked memory
  fetch                               900.0 µs
  collate                             100.0 µs
  map                                   0.0 µs
  pin                                   0.0 µs
  transfer                             30.0 µs
  workers waited for the program        0.0 µs
  waited for the budget                 0.0 µs
  the program waited                  500.0 µs
  the program worked                  500.0 µs
getting samples takes most of the time: more workers, or samples that are cheaper to decode";
        assert_eq!(report.to_string(), expected);
    }
}
