//! [`DistributedSampler`]: one process's share of an order.

use super::{Place, Sampler};
use crate::Result;
use crate::error::check_rank;

/// Every `world_size`-th index of another sampler's order, from `rank` on: the share of one of several processes that
/// train together. All processes get the same number of indices. If the length of the order is not a multiple of
/// `world_size`, the last indices repeat the first ones of the order.
///
/// # Examples
/// ```
/// use pagelock_data::{DistributedSampler, Place, RandomSampler, Sampler};
///
/// let order = RandomSampler::new(42); // the same seed everywhere
/// let mut shares = Vec::new();
/// for rank in 0..4 {
///     let mut share = [0; 25];
///     DistributedSampler::new(order, rank, 4)?.fill(Place { epoch: 3, position: 0, n_samples: 100 }, &mut share);
///     shares.extend(share);
/// }
/// shares.sort();
/// assert!(shares.into_iter().eq(0..100), "together they visit everything once");
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistributedSampler<S> {
    order: S,
    rank: usize,
    world_size: usize,
}

impl<S: Sampler> DistributedSampler<S> {
    /// The share of process `rank` of `world_size`.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if `rank` is not below `world_size`.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{DistributedSampler, SequentialSampler};
    ///
    /// assert_eq!(
    ///     DistributedSampler::new(SequentialSampler, 4, 4).unwrap_err().to_string(),
    ///     "there is no rank 4 among 4 processes; ranks count from 0",
    /// );
    /// ```
    pub fn new(order: S, rank: usize, world_size: usize) -> Result<Self> {
        check_rank(rank, world_size)?;
        Ok(Self { order, rank, world_size })
    }
}

impl<S: Sampler> Sampler for DistributedSampler<S> {
    fn epoch_len(&self, n_samples: usize) -> usize {
        self.order.epoch_len(n_samples).div_ceil(self.world_size)
    }

    fn fill(&self, place: Place, indices: &mut [usize]) {
        let whole = self.order.epoch_len(place.n_samples).max(1) as u128;
        for (offset, index) in indices.iter_mut().enumerate() {
            // The products may have more bits than a `usize`.
            let of_all = place.position.saturating_add(offset) as u128 * self.world_size as u128 + self.rank as u128;
            let position = (of_all % whole) as usize;
            self.order.fill(Place { position, ..place }, std::slice::from_mut(index));
        }
    }

    fn identity(&self) -> String {
        format!("rank {} of {} of: {}", self.rank, self.world_size, self.order.identity())
    }
}
