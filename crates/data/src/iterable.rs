//! [`IterableDataset`]: samples that come one after another, and cannot be asked for by number. Read `loader/` next:
//! how they become batches.

use std::sync::Arc;

use crate::{Result, identity};

/// The samples of a shard, in order.
pub type Samples<S> = Box<dyn Iterator<Item = Result<S>> + Send>;

/// Samples that come in streams: lines of a log, records of files too large for an index, what a generator makes.
///
/// A dataset has shards, files for example, that several threads read beside each other, one thread a shard. The same shard
/// and epoch must give the same samples in the same order.
///
/// # Examples
/// ```
/// use pagelock_data::{IterableDataset, Result, Samples, StreamLoader};
///
/// /// Three counters.
/// struct Counters;
///
/// impl IterableDataset for Counters {
///     type Sample = i64;
///
///     fn n_shards(&self) -> usize {
///         3
///     }
///
///     fn shard(&self, shard: usize, _epoch: u64) -> Result<Samples<i64>> {
///         let first = 100 * shard as i64;
///         Ok(Box::new((first..first + 4).map(Ok)))
///     }
/// }
///
/// let loader = StreamLoader::new(Counters).batch_size(2).num_workers(2);
/// let batches: Vec<_> = loader.iter().map(|batch| Ok(batch?.to_vec::<i64>()?)).collect::<Result<_>>()?;
/// assert_eq!(batches, [[0, 1], [100, 101], [200, 201], [2, 3], [102, 103], [202, 203]]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub trait IterableDataset: Send + Sync + 'static {
    /// One sample: often a pair of an input and a target.
    type Sample: Send + 'static;

    /// How many shards there are; one unless overridden.
    fn n_shards(&self) -> usize {
        1
    }

    /// The samples of shard `shard`, counted from 0, as they are in that epoch.
    ///
    /// # Errors
    /// Whatever makes the shard unavailable; [`Error::other`](crate::Error::other) wraps any error or text. The iterator
    /// gives an error in the place of a sample that is unavailable, and may go on with the next.
    fn shard(&self, shard: usize, epoch: u64) -> Result<Samples<Self::Sample>>;

    /// The same from sample `start` of the shard on: where a loader goes on that was stopped. This one reads what comes
    /// before and drops it; a dataset that can jump there overrides it.
    ///
    /// # Errors
    /// As [`shard`](Self::shard).
    fn shard_from(&self, shard: usize, epoch: u64, start: u64) -> Result<Samples<Self::Sample>> {
        let mut samples = self.shard(shard, epoch)?;
        for _ in 0..start {
            if samples.next().is_none() {
                break;
            }
        }
        Ok(samples)
    }

    /// What the dataset is, in one line that is the same in every run: its files say. It is part of a loader's state, which
    /// a loader of another dataset refuses. By default the name of the type.
    ///
    /// # Examples
    /// See [`Dataset::identity`](crate::Dataset::identity).
    fn identity(&self) -> String {
        identity::type_name::<Self>()
    }
}

impl<D: IterableDataset> IterableDataset for Arc<D> {
    type Sample = D::Sample;

    fn n_shards(&self) -> usize {
        (**self).n_shards()
    }

    fn shard(&self, shard: usize, epoch: u64) -> Result<Samples<Self::Sample>> {
        (**self).shard(shard, epoch)
    }

    fn shard_from(&self, shard: usize, epoch: u64, start: u64) -> Result<Samples<Self::Sample>> {
        (**self).shard_from(shard, epoch, start)
    }

    fn identity(&self) -> String {
        (**self).identity()
    }
}
