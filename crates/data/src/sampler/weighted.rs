//! [`WeightedSampler`]: samples drawn with given weights.

use std::sync::Arc;

use pagelock_memory::HeapReservation;
use pagelock_memory::text::number;
use pagelock_tensor::Generator;

use super::{Place, Sampler};
use crate::identity::Hash;
use crate::text::lines::GrowingReservation;
use crate::{Error, Result};

/// Draws samples with replacement, each as often as its weight says: for example to balance classes of unequal size.
///
/// A draw takes the same time however many samples there are: A. J. Walker's alias method (1977), with the table of
/// M. D. Vose, "A linear algorithm for generating random numbers with a given distribution", IEEE Transactions on
/// Software Engineering 17 (1991), <https://doi.org/10.1109/32.92917>.
///
/// # Examples
/// Both classes are drawn equally often, though one has nine tenths of the samples:
/// ```
/// use pagelock_data::{Place, Sampler, WeightedSampler};
///
/// let labels = [0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// let sampler = WeightedSampler::new(labels.map(|label| [1.0 / 9.0, 1.0][label]), 1_000, 7)?;
/// let mut indices = [0; 1_000];
/// sampler.fill(Place { epoch: 0, position: 0, n_samples: 10 }, &mut indices);
/// let ones = indices.iter().filter(|&&index| labels[index] == 1).count();
/// assert!((450..550).contains(&ones));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WeightedSampler {
    columns: Arc<[Column]>,
    n_draws: usize,
    seed: u64,
    _counted: Arc<HeapReservation>, // budget for the columns
}

/// A column of the alias table: a draw below `threshold` gives the column's sample, any other draw gives `alias`.
#[derive(Clone, Copy, Debug)]
struct Column {
    threshold: f64,
    alias: usize,
}

impl WeightedSampler {
    /// `n_draws` samples in each epoch, sample `i` with a probability proportional to `weights[i]`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a weight that is negative or not finite, and for weights that add up to 0 or overflow;
    /// [`Error::Memory`] if the budget refuses.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::WeightedSampler;
    ///
    /// assert_eq!(
    ///     WeightedSampler::new([1.0, -2.0], 10, 0).unwrap_err().to_string(),
    ///     "weight 1 is -2; a weight must be finite and at least 0",
    /// );
    /// assert_eq!(
    ///     WeightedSampler::new([0.0, 0.0], 10, 0).unwrap_err().to_string(),
    ///     "the 2 weights add up to 0, so no sample can be drawn; give at least one above 0, and none huge",
    /// );
    /// ```
    pub fn new(weights: impl IntoIterator<Item = f64>, n_draws: usize, seed: u64) -> Result<Self> {
        Self::of(&mut weights.into_iter(), n_draws, seed)
    }

    fn of(given: &mut dyn Iterator<Item = f64>, n_draws: usize, seed: u64) -> Result<Self> {
        let (mut weights, _listed) = GrowingReservation::list(&mut given.map(Ok))?;
        let is_bad = |weight: &f64| !(weight.is_finite() && *weight >= 0.0);
        if let Some(index) = weights.iter().position(is_bad) {
            let weight = number(weights[index]);
            let text = format!("weight {index} is {weight}; a weight must be finite and at least 0");
            return Err(Error::Argument(text));
        }
        let mut sum: f64 = weights.iter().sum();
        if !(sum.is_finite() && sum > 0.0) {
            let (n_weights, sum) = (weights.len(), number(sum));
            return Err(Error::Argument(format!(
                "the {n_weights} weights add up to {sum}, so no sample can be drawn; give at least one above 0, and none huge"
            )));
        }
        if !(sum / weights.len() as f64).is_normal() {
            // The mean would lose digits, or be 0. A power of two changes no digit of the weights.
            weights.iter_mut().for_each(|weight| *weight *= 2_f64.powi(600));
            sum = weights.iter().sum();
        }
        let counted = HeapReservation::new((weights.len() * size_of::<Column>()) as u64)?;
        let _working = HeapReservation::new((weights.len() * (size_of::<Column>() + 4 * size_of::<usize>())) as u64)?;
        let columns = columns(&weights, sum).into();
        Ok(Self { columns, n_draws, seed, _counted: Arc::new(counted) })
    }

    fn draw(&self, generator: &Generator, position: usize) -> usize {
        generator.set_position(position as u64);
        let product = u128::from(generator.next_u64()) * self.columns.len() as u128;
        let (index, rest) = ((product >> 64) as usize, product as u64);
        let Column { threshold, alias } = self.columns[index];
        if (rest as f64) < threshold * 2_f64.powi(64) { index } else { alias }
    }
}

/// Vose's table, with a column for each sample. The part of a column that a sample below the mean leaves free goes to
/// one sample above the mean.
fn columns(weights: &[f64], sum: f64) -> Vec<Column> {
    let mean = sum / weights.len() as f64;
    let mut columns: Vec<Column> =
        weights.iter().enumerate().map(|(alias, weight)| Column { threshold: weight / mean, alias }).collect();
    let is_small = |index: &usize| columns[*index].threshold < 1.0;
    let (mut small, mut large): (Vec<_>, Vec<_>) = (0..weights.len()).partition(is_small);
    while let (Some(&under), Some(&over)) = (small.last(), large.last()) {
        small.pop();
        columns[under].alias = over;
        columns[over].threshold -= 1.0 - columns[under].threshold;
        if columns[over].threshold < 1.0 {
            large.pop();
            small.push(over);
        }
    }
    // The remaining columns differ from 1 by rounding only; the column of a sample without weight is never among
    // them.
    small.into_iter().chain(large).for_each(|index| columns[index].threshold = 1.0);
    columns
}

impl Sampler for WeightedSampler {
    fn epoch_len(&self, _n_samples: usize) -> usize {
        self.n_draws
    }

    fn fill(&self, place: Place, indices: &mut [usize]) {
        let generator = Generator::new(self.seed).stream(place.epoch);
        for (offset, index) in indices.iter_mut().enumerate() {
            *index = self.draw(&generator, place.position.saturating_add(offset));
        }
    }

    fn identity(&self) -> String {
        let Self { columns, n_draws, seed, .. } = self;
        let numbers = columns.iter().flat_map(|column| [column.threshold.to_bits(), column.alias as u64]);
        let hash = Hash::of_numbers(numbers);
        format!("{n_draws} draws of {} weights, seed {seed}, {hash}", columns.len())
    }
}
