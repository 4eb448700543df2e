//! [`BucketSampler`]: batches of samples of similar length.
//!
//! ```text
//! by length    a b c d e f g h i j k      buckets of 2 batches of 2: (a b c d) (e f g h) (i j k)
//! per epoch    c a d b f e h g j k i      each bucket is shuffled
//!              hg ca ej … fe, i           whole batches are shuffled; the rest of the last bucket comes last
//! ```

use super::{Indices, NO_SAMPLE, Permutation, Place, Sampler};
use crate::identity::Hash;
use crate::{Error, Result};

/// Cuts an epoch into batches of samples of similar length, so that little padding is needed, in a new random order
/// for each epoch.
///
/// Samples are sorted by length once and cut into buckets of 100 batches. In each epoch the samples within every
/// bucket are shuffled, and then the full batches of all buckets. An incomplete last batch has samples of the last
/// bucket, the one with the longest samples, and comes last. The order is computed index by index, so resuming takes
/// no time.
///
/// The loader's batch size must be the one given here; otherwise its batches mix those of the sampler.
///
/// # Examples
/// ```
/// use pagelock_data::text::PaddedStack;
/// use pagelock_data::{BucketSampler, DataLoader, Dataset, TensorDataset};
/// use pagelock_tensor::{Int, Tensor};
///
/// let lengths: Vec<usize> = (0..100).map(|i| 1 + i * 37 % 50).collect();
/// let sampler = BucketSampler::new(&lengths, 4, 7)?.batches_per_bucket(3);
/// let texts = TensorDataset::new(Tensor::arange(0, 100, 1)?)?
///     .transform(0, move |i, _| Ok(Tensor::full([lengths[i.item::<i64>()? as usize]], 1)?));
/// let loader = DataLoader::with_collate(texts, |texts: Vec<Tensor<Int>>| PaddedStack::new(0).stack(&texts));
/// for batch in &loader.batch_size(4).sampler(sampler) {
///     let (_, lengths) = batch?;
///     let lengths: Vec<i64> = lengths.to_vec()?;
///     assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() < 7);
/// }
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketSampler {
    by_length: Indices,
    batch_size: usize,
    batches_per_bucket: usize,
    seed: u64,
}

impl BucketSampler {
    /// Batches of `batch_size` samples, in orders drawn from `seed`. Sample `i` has length `lengths[i]`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a batch size of zero; [`Error::Memory`] or [`Error::Tensor`] if the budget refuses
    /// the list of samples.
    pub fn new(lengths: &[usize], batch_size: usize, seed: u64) -> Result<Self> {
        if batch_size == 0 {
            return Err(Error::Argument("the batch size is 0; give at least 1 (64 is usual)".into()));
        }
        let by_length = Indices::new("BucketSampler", &mut (0..lengths.len()), |indices| {
            indices.sort_unstable_by_key(|&index| (lengths[index], index));
        })?;
        Ok(Self { by_length, batch_size, batches_per_bucket: 100, seed })
    }

    /// How many batches are shuffled together; 100 unless set, at least 1. More batches mix better and need more
    /// padding.
    pub fn batches_per_bucket(mut self, batches_per_bucket: usize) -> Self {
        self.batches_per_bucket = batches_per_bucket.max(1);
        self
    }

    /// The sample at position `at` of the order in which batches are not shuffled yet.
    fn within_bucket(&self, epoch: u64, at: usize, bucket: &mut Option<(usize, Permutation)>) -> usize {
        if at >= self.by_length.len() {
            return NO_SAMPLE;
        }
        let len = self.batch_size.saturating_mul(self.batches_per_bucket);
        let (number, offset) = (at / len, at % len);
        let start = number * len;
        if bucket.as_ref().is_none_or(|(known, _)| *known != number) {
            let n = len.min(self.by_length.len() - start);
            *bucket = Some((number, Permutation::of(self.seed, epoch, number as u64 + 1, n)));
        }
        let permuted = bucket.as_ref().map_or(offset, |(_, permutation)| permutation.apply(offset));
        self.by_length[start + permuted]
    }
}

impl Sampler for BucketSampler {
    fn epoch_len(&self, _n_samples: usize) -> usize {
        self.by_length.len()
    }

    fn fill(&self, place: Place, indices: &mut [usize]) {
        let n_full = self.by_length.len() / self.batch_size;
        let batches = Permutation::of(self.seed, place.epoch, 0, n_full);
        let mut bucket = None;
        for (offset, index) in indices.iter_mut().enumerate() {
            let position = place.position.saturating_add(offset);
            let (batch, within) = (position / self.batch_size, position % self.batch_size);
            let batch = if batch < n_full { batches.apply(batch) } else { batch };
            *index = self.within_bucket(place.epoch, batch * self.batch_size + within, &mut bucket);
        }
    }

    fn identity(&self) -> String {
        let Self { by_length, batch_size, batches_per_bucket, seed } = self;
        let hash = Hash::of_numbers(by_length.iter().map(|&index| index as u64));
        format!(
            "{} samples by length in buckets of {batches_per_bucket} batches of {batch_size}, seed {seed}, {hash}",
            by_length.len()
        )
    }
}
