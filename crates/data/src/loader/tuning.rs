//! [`Tuning`]: how many workers to use, and how many batches ahead, computed from a report.

use std::num::NonZero;
use std::thread;
use std::time::Duration;

use super::loaders::Loader;
use super::report::LoaderReport;

/// A choice of workers; see [`LoaderReport::tune`].
///
/// # Examples
/// See [`LoaderReport::tune`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// For [`Loader::num_workers`].
    pub num_workers: usize,
    /// For [`Loader::prefetch_factor`].
    pub prefetch_factor: usize,
}

/// Below this, handing a batch over costs as much as making it.
const HARDLY_ANY: Duration = Duration::from_micros(10);

impl LoaderReport {
    /// How many workers the figures ask for, at most `most`, and how far ahead they should be.
    ///
    /// As many as make batches a quarter faster than the program works through them; none where a batch takes hardly
    /// any time. A program that does nothing but wait gets all. Where batches come in bursts, they are to be further
    /// ahead. Without a batch there is nothing to go by, and the choice is one worker.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([100, 4])?)?).batch_size(10);
    /// loader.iter().for_each(drop);
    /// let mut report = loader.report();
    /// report.fetch = Duration::from_millis(30); // of 10 batches
    /// report.program_worked = Duration::from_millis(20);
    /// assert_eq!(report.tune(8).num_workers, 2);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn tune(&self, most: usize) -> Tuning {
        let n_batches = u32::try_from(self.batches.max(1)).unwrap_or(u32::MAX);
        let (making, working) = (self.making() / n_batches, self.program_worked / n_batches);
        let num_workers = if self.batches == 0 {
            1
        } else if making <= HARDLY_ANY {
            0
        } else {
            let wanted = 1.25 * making.as_secs_f64() / working.as_secs_f64().max(1e-9);
            wanted.ceil().clamp(1.0, most.max(1) as f64) as usize
        };
        let bursts = self.workers > 0 && self.wait_for_program * 4 > self.making() && !self.keeps_up();
        Tuning { num_workers: num_workers.min(most), prefetch_factor: if bursts { 8 } else { 2 } }
    }
}

impl<B: Send + 'static, K> Loader<B, K> {
    /// The same loader with as many workers as its report asks for, at most one per processor; see
    /// [`LoaderReport::tune`]. Order and content of batches stay the same.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::zeros([1_000, 4])?)?).batch_size(10);
    /// loader.iter().take(20).for_each(drop); // a part of an epoch, as the program uses it
    /// let loader = loader.tune();
    /// assert_eq!(loader.state().batch, 20);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn tune(self) -> Self {
        let most = thread::available_parallelism().map_or(1, NonZero::get);
        let Tuning { num_workers, prefetch_factor } = self.report().tune(most);
        self.num_workers(num_workers).prefetch_factor(prefetch_factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Ten batches: how long making one took, and what the program then did with it.
    fn report(making: Duration, working: Duration) -> LoaderReport {
        LoaderReport { batches: 10, fetch: 10 * making, program_worked: 10 * working, ..LoaderReport::default() }
    }

    #[test]
    fn as_many_workers_as_make_batches_a_quarter_faster_than_they_are_used() {
        for (making, working, num_workers) in [(3, 4, 1), (4, 4, 2), (8, 4, 3), (30, 4, 8), (3, 0, 8)] {
            let chosen = report(making * MS, working * MS).tune(8).num_workers;
            assert_eq!(chosen, num_workers, "{making} ms to make, {working} ms to use");
        }
    }

    #[test]
    fn batches_that_take_hardly_any_time_want_no_worker_and_none_made_want_one() {
        assert_eq!(report(Duration::from_micros(9), MS).tune(8).num_workers, 0);
        assert_eq!(LoaderReport::default().tune(8), Tuning { num_workers: 1, prefetch_factor: 2 });
        assert_eq!(report(MS, MS).tune(0).num_workers, 0);
    }

    #[test]
    fn batches_that_come_in_bursts_are_to_be_further_ahead() {
        let even = LoaderReport { workers: 2, program_waited: 5 * MS, ..report(4 * MS, 4 * MS) };
        assert_eq!(even.tune(8).prefetch_factor, 2);
        assert_eq!(LoaderReport { wait_for_program: 20 * MS, ..even }.tune(8).prefetch_factor, 8);
    }
}
