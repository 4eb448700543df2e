//! Samplers: in which order an epoch visits the samples, and how that order is cut into batches.
//!
//! A sampler is a pure function from (epoch, position) to an index. It keeps no state, so any worker can compute any
//! batch, an epoch can be resumed at any position at no cost, and the order depends on the seed alone.

mod bucket;
mod distributed;
mod subset;
mod weighted;

use std::ops::Deref;
use std::sync::Arc;

use pagelock_tensor::{CountedHeap, Generator, text::type_name};

pub use self::{
    bucket::BucketSampler, distributed::DistributedSampler, subset::SubsetRandomSampler, weighted::WeightedSampler,
};

use crate::error::check_most;
use crate::identity::{Hash, probes};
use crate::text::lines::GrowingReservation;
use crate::{Error, Result};

/// A position in the order of an epoch, from which on indices are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which pass over the dataset, from 0.
    pub epoch: u64,
    /// How many indices of this epoch come before.
    pub position: usize,
    /// How many samples the dataset has.
    pub n_samples: usize,
}

/// An order in which to visit samples.
///
/// # Examples
/// ```
/// use pagelock_data::{Place, Sampler};
///
/// /// Last sample first.
/// struct Backward;
///
/// impl Sampler for Backward {
///     fn fill(&self, place: Place, indices: &mut [usize]) {
///         for (offset, index) in indices.iter_mut().enumerate() {
///             *index = place.n_samples - 1 - (place.position + offset);
///         }
///     }
/// }
///
/// let mut indices = [0; 3];
/// Backward.fill(Place { epoch: 0, position: 1, n_samples: 5 }, &mut indices);
/// assert_eq!(indices, [3, 2, 1]);
/// ```
pub trait Sampler: Send + Sync + 'static {
    /// How many indices one epoch has over `n_samples` samples: all of them unless the sampler says otherwise.
    fn epoch_len(&self, n_samples: usize) -> usize {
        n_samples
    }

    /// Writes the indices at `place.position` and after it into `indices`, which does not reach past
    /// [`epoch_len`](Self::epoch_len). The same place must always give the same indices.
    fn fill(&self, place: Place, indices: &mut [usize]);

    /// Identifies the order in one line that is the same in every run: kind, seed, lengths. The line is part of a
    /// loader's state, which a loader of another order refuses; some indices of the order are compared as well. By
    /// default the name of the type.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{RandomSampler, Sampler};
    ///
    /// assert_eq!(RandomSampler::new(42).identity(), "random, seed 42");
    /// ```
    fn identity(&self) -> String {
        type_name::<Self>().to_owned()
    }
}

/// The index past the end of an order: no dataset has it, so reading it is an error.
const NO_SAMPLE: usize = usize::MAX;

/// First to last.
///
/// # Examples
/// ```
/// use pagelock_data::{Place, Sampler, SequentialSampler};
///
/// let mut indices = [0; 3];
/// SequentialSampler.fill(Place { epoch: 7, position: 4, n_samples: 10 }, &mut indices);
/// assert_eq!(indices, [4, 5, 6]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequentialSampler;

impl Sampler for SequentialSampler {
    fn fill(&self, place: Place, indices: &mut [usize]) {
        for (offset, index) in indices.iter_mut().enumerate() {
            *index = place.position.saturating_add(offset);
        }
    }

    fn identity(&self) -> String {
        "sequential".to_owned()
    }
}

/// Every sample once per epoch, in an order drawn anew for each epoch from one seed.
///
/// The order is a keyed permutation that is computed index by index, so it takes no memory however large the dataset
/// is, and starting in mid-epoch costs nothing.
///
/// # Examples
/// ```
/// use pagelock_data::{Place, RandomSampler, Sampler};
///
/// let sampler = RandomSampler::new(42);
/// let mut epoch = [0; 10];
/// sampler.fill(Place { epoch: 0, position: 0, n_samples: 10 }, &mut epoch);
///
/// // Resumed after 6 indices: the same order goes on.
/// let mut rest = [0; 4];
/// sampler.fill(Place { epoch: 0, position: 6, n_samples: 10 }, &mut rest);
/// assert_eq!(rest, epoch[6..]);
///
/// epoch.sort();
/// assert_eq!(epoch, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomSampler {
    seed: u64,
}

impl RandomSampler {
    /// Orders drawn from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }
}

impl Sampler for RandomSampler {
    fn fill(&self, place: Place, indices: &mut [usize]) {
        let permutation = Permutation::new(self.seed, place.epoch, place.n_samples);
        for (offset, index) in indices.iter_mut().enumerate() {
            *index = permutation.apply(place.position.saturating_add(offset));
        }
    }

    fn identity(&self) -> String {
        format!("random, seed {}", self.seed)
    }
}

/// The given indices, in the given order, in every epoch: a subset, or an order recorded elsewhere.
///
/// # Examples
/// ```
/// use pagelock_data::{FixedSampler, Place, Sampler};
///
/// let sampler = FixedSampler::new([5, 3, 5])?;
/// assert_eq!(sampler.epoch_len(100), 3);
/// let mut indices = [0; 2];
/// sampler.fill(Place { epoch: 0, position: 1, n_samples: 100 }, &mut indices);
/// assert_eq!(indices, [3, 5]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedSampler {
    indices: Indices,
}

impl FixedSampler {
    /// Visits `indices`. An index that the dataset does not have makes its batch an error.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Tensor`] if the budget refuses the list.
    pub fn new(indices: impl IntoIterator<Item = usize>) -> Result<Self> {
        Ok(Self { indices: Indices::new("FixedSampler", &mut indices.into_iter(), |_| ())? })
    }
}

/// A list that counts in the budget, and that clones share.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Indices(Arc<(Vec<usize>, CountedHeap)>);

impl Indices {
    /// These indices, after `order` has put them in order.
    fn new(
        op: &'static str,
        indices: &mut dyn Iterator<Item = usize>,
        order: impl FnOnce(&mut [usize]),
    ) -> Result<Self> {
        let (mut list, _listed) = GrowingReservation::list(&mut indices.map(Ok))?;
        let counted = CountedHeap::granted(op, "the list of samples", list.capacity() * size_of::<usize>())?;
        order(&mut list);
        Ok(Self(Arc::new((list, counted))))
    }
}

impl Deref for Indices {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0.0
    }
}

impl Sampler for FixedSampler {
    fn epoch_len(&self, _n_samples: usize) -> usize {
        self.indices.len()
    }

    fn fill(&self, place: Place, indices: &mut [usize]) {
        for (offset, index) in indices.iter_mut().enumerate() {
            *index = self.indices.get(place.position.saturating_add(offset)).copied().unwrap_or(NO_SAMPLE);
        }
    }

    fn identity(&self) -> String {
        let hash = Hash::of_numbers(self.indices.iter().map(|&index| index as u64));
        format!("a list of {} indices, {hash}", self.indices.len())
    }
}

impl Sampler for Arc<dyn Sampler> {
    fn epoch_len(&self, n_samples: usize) -> usize {
        (**self).epoch_len(n_samples)
    }

    fn fill(&self, place: Place, indices: &mut [usize]) {
        (**self).fill(place, indices);
    }

    fn identity(&self) -> String {
        (**self).identity()
    }
}

/// The most samples of a batch, since their indices are kept in memory.
pub(crate) const MAX_SAMPLES: usize = 1 << 28;

/// A sampler's order cut into batches.
///
/// # Examples
/// ```
/// use pagelock_data::{BatchSampler, SequentialSampler};
///
/// let batches = BatchSampler::new(SequentialSampler, 4);
/// assert_eq!(batches.n_batches(10)?, 3);
/// let mut indices = Vec::new();
/// batches.fill(0, 2, 10, &mut indices);
/// assert_eq!(indices, [8, 9]);
///
/// assert_eq!(batches.drop_last(true).n_batches(10)?, 2);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSampler<S> {
    sampler: S,
    batch_size: usize,
    drop_last: bool,
}

impl<S: Sampler> BatchSampler<S> {
    /// Batches of `batch_size` indices; the last one of an epoch may be smaller.
    pub fn new(sampler: S, batch_size: usize) -> Self {
        Self { sampler, batch_size, drop_last: false }
    }

    /// Whether a last batch that is smaller than the others is left out.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// How many batches an epoch over `n_samples` samples has; never zero.
    ///
    /// # Errors
    /// [`Error::Argument`] for a batch size of zero, if there is nothing to visit, and if dropping the last batch drops the
    /// only one.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{BatchSampler, SequentialSampler};
    ///
    /// let error = BatchSampler::new(SequentialSampler, 64).drop_last(true).n_batches(60).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "60 samples do not fill one batch of 64, and drop_last leaves incomplete batches out; \
    ///      use a batch size of at most 60 or keep the last batch",
    /// );
    /// ```
    pub fn n_batches(&self, n_samples: usize) -> Result<usize> {
        let (n_indices, batch_size) = (self.sampler.epoch_len(n_samples), self.batch_size);
        if batch_size == 0 {
            return Err(Error::Argument(format!(
                "the batch size is 0, so an epoch over {n_samples} samples would never end; give at least 1 (64 is usual)"
            )));
        }
        if n_samples == 0 {
            return Err(Error::empty_dataset());
        }
        if n_indices == 0 {
            return Err(Error::Argument(format!(
                "the sampler visits none of the dataset's {n_samples} samples; check what it was made from"
            )));
        }
        if n_indices > MAX_SAMPLES {
            check_most("the batch size", batch_size, MAX_SAMPLES, "64 is usual")?;
        }
        match self.drop_last {
            false => Ok(n_indices.div_ceil(batch_size)),
            true if n_indices < batch_size => Err(Error::Argument(format!(
                "{n_indices} samples do not fill one batch of {batch_size}, and drop_last leaves incomplete batches out; use a \
                 batch size of at most {n_indices} or keep the last batch"
            ))),
            true => Ok(n_indices / batch_size),
        }
    }

    /// Fills `indices` with those of batch number `batch` of `epoch`, over `n_samples` samples. They stay empty if
    /// there is no such batch.
    pub fn fill(&self, epoch: u64, batch: usize, n_samples: usize, indices: &mut Vec<usize>) {
        let n_indices = self.sampler.epoch_len(n_samples);
        let position = batch.saturating_mul(self.batch_size).min(n_indices);
        let len = self.batch_size.min(n_indices - position);
        indices.clear();
        if len == 0 || len > MAX_SAMPLES || (self.drop_last && len < self.batch_size) {
            return;
        }
        indices.resize(len, 0);
        self.sampler.fill(Place { epoch, position, n_samples }, indices);
    }

    /// How many indices the largest batch has.
    pub(crate) fn largest(&self, n_samples: usize) -> usize {
        self.batch_size.min(self.sampler.epoch_len(n_samples)).min(MAX_SAMPLES)
    }

    /// The identity of the order, with a hash of some of its indices, because a sampler's own identity may say too
    /// little.
    pub(crate) fn order(&self, n_samples: usize) -> String {
        let place = |position| {
            let mut index = [0];
            self.sampler.fill(Place { epoch: 0, position, n_samples }, &mut index);
            index[0] as u64
        };
        let n_indices = if n_samples == 0 { 0 } else { self.sampler.epoch_len(n_samples) };
        format!("{}, {}", self.sampler.identity(), Hash::of_numbers(probes(n_indices).map(place)))
    }
}

/// Makes space for `n` indices in `list`, whose memory `counted` counts in the budget.
pub(crate) fn make_space(list: &mut Vec<usize>, n: usize, counted: &mut Option<CountedHeap>) -> Result<()> {
    if n > list.capacity() {
        let n = n.max(2 * list.capacity());
        let granted = CountedHeap::granted("loader", "the indices of a batch", n * size_of::<usize>())?;
        list.reserve_exact(n - list.len());
        *counted = Some(granted);
    }
    Ok(())
}

/// Half-rounds of the permutation below. With 8, none of the tests of positions, pairs and neighbors could tell the
/// orders from random ones, except over domains of 4 bits, hence `MIN_BITS`.
const HALF_ROUNDS: usize = 8;
/// The smallest domain has this many bits: with halves of a few bits, their keyed functions have too few choices.
const MIN_BITS: u32 = 8;

/// A keyed permutation of `0..n`, computed index by index.
///
/// It is a Feistel network over the smallest power of two that is at least `n`, and at least 256. The bits of an
/// index are split into two halves, and each half in turn is changed by a keyed function of the other. Such a step
/// can be undone, so no two indices map to the same one. Results that are not below `n` are mapped again until they
/// are ("cycle walking"). For large `n`, that takes less than one more step per index on average, because the power
/// of two is below `2n`.
struct Permutation {
    n: u64,
    /// Bits of the lower half; the upper half has as many or one more.
    low_bits: u32,
    low_mask: u64,
    high_mask: u64,
    keys: [u64; HALF_ROUNDS],
}

impl Permutation {
    fn new(seed: u64, epoch: u64, n: usize) -> Self {
        Self::keyed(&Generator::new(seed).stream(epoch), n)
    }

    /// Permutation `number` of several in an epoch.
    fn of(seed: u64, epoch: u64, number: u64, n: usize) -> Self {
        let of_epoch = Generator::new(seed).stream(epoch).next_u64();
        Self::keyed(&Generator::new(of_epoch).stream(number), n)
    }

    fn keyed(generator: &Generator, n: usize) -> Self {
        let bits = (usize::BITS - n.saturating_sub(1).leading_zeros()).max(MIN_BITS);
        let low_bits = bits / 2;
        Self {
            n: n as u64,
            low_bits,
            low_mask: (1 << low_bits) - 1,
            high_mask: (1 << (bits - low_bits)) - 1,
            keys: std::array::from_fn(|_| generator.next_u64()),
        }
    }

    /// The index at `position`; the position itself if it is not below `n`, since the walk would not end.
    fn apply(&self, position: usize) -> usize {
        if position as u64 >= self.n {
            return position;
        }
        let mut index = self.feistel(position as u64);
        while index >= self.n {
            index = self.feistel(index);
        }
        index as usize
    }

    fn feistel(&self, index: u64) -> u64 {
        let (mut high, mut low) = (index >> self.low_bits, index & self.low_mask);
        for keys in self.keys.chunks_exact(2) {
            high ^= scramble(low, keys[0]) & self.high_mask;
            low ^= scramble(high, keys[1]) & self.low_mask;
        }
        high << self.low_bits | low
    }
}

/// A keyed function of `half`: the upper half of a product, which depends on all bits of `half`.
fn scramble(half: u64, key: u64) -> u64 {
    (half ^ (key >> 32)).wrapping_mul(key | 1) >> 32
}
