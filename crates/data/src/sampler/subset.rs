//! [`SubsetRandomSampler`]: some samples, in random order.

use super::{Indices, NO_SAMPLE, Permutation, Place, Sampler};
use crate::Result;
use crate::identity::Hash;

/// The given indices once per epoch, in an order drawn anew for each epoch from one seed.
///
/// # Examples
/// ```
/// use pagelock_data::{Place, Sampler, SubsetRandomSampler};
///
/// let sampler = SubsetRandomSampler::new([10, 20, 30, 40], 7)?;
/// assert_eq!(sampler.epoch_len(100), 4);
/// let mut indices = [0; 4];
/// sampler.fill(Place { epoch: 2, position: 0, n_samples: 100 }, &mut indices);
/// indices.sort();
/// assert_eq!(indices, [10, 20, 30, 40]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsetRandomSampler {
    indices: Indices,
    seed: u64,
}

impl SubsetRandomSampler {
    /// Visits `indices` in orders drawn from `seed`. An index that the dataset does not have makes its batch an
    /// error.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) or [`Error::Tensor`](crate::Error::Tensor) if the budget refuses the list.
    pub fn new(indices: impl IntoIterator<Item = usize>, seed: u64) -> Result<Self> {
        let indices = Indices::new("SubsetRandomSampler", &mut indices.into_iter(), |_| ())?;
        Ok(Self { indices, seed })
    }
}

impl Sampler for SubsetRandomSampler {
    fn epoch_len(&self, _n_samples: usize) -> usize {
        self.indices.len()
    }

    fn fill(&self, place: Place, indices: &mut [usize]) {
        let permutation = Permutation::new(self.seed, place.epoch, self.indices.len());
        for (offset, index) in indices.iter_mut().enumerate() {
            let position = permutation.apply(place.position.saturating_add(offset));
            *index = self.indices.get(position).copied().unwrap_or(NO_SAMPLE);
        }
    }

    fn identity(&self) -> String {
        let hash = Hash::of_numbers(self.indices.iter().map(|&index| index as u64));
        format!("random among {} indices, seed {}, {hash}", self.indices.len(), self.seed)
    }
}
