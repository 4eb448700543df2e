//! [`IterableDataset`]: samples that come one after another and have no indices. `loader/` makes batches of them;
//! read it next.

use std::sync::Arc;

use pagelock_tensor::text::type_name;

use crate::Result;
use crate::error::check_most;

/// The most samples that are read only to be dropped.
pub(crate) const MAX_READ: usize = 1 << 32;

/// The samples of a shard, in order.
pub type Samples<S> = Box<dyn Iterator<Item = Result<S>> + Send>;

/// Samples that come in streams: lines of a log, records of files too large for an index, the output of a generator.
///
/// A dataset has shards, files for example. Several threads read them in parallel, each shard by one thread. The same
/// shard and epoch must give the same samples in the same order.
///
/// # Examples
/// Lines of files:
/// ```
/// use std::fs::File;
/// use std::io::{BufRead, BufReader};
/// use std::path::PathBuf;
///
/// use pagelock_data::{Error, IterableDataset, Result, Samples, StreamLoader};
///
/// struct Lines(Vec<PathBuf>);
///
/// impl IterableDataset for Lines {
///     type Sample = String;
///
///     fn n_shards(&self) -> usize {
///         self.0.len()
///     }
///
///     fn shard(&self, shard: usize, _epoch: u64) -> Result<Samples<String>> {
///         let file = File::open(&self.0[shard]).map_err(Error::other)?;
///         Ok(Box::new(BufReader::new(file).lines().map(|line| line.map_err(Error::other))))
///     }
/// }
///
/// let folder = tempfile::tempdir().map_err(Error::other)?;
/// let paths = ["a", "b"].map(|name| folder.path().join(name));
/// std::fs::write(&paths[0], "to be\nor not\nto be\n").map_err(Error::other)?;
/// std::fs::write(&paths[1], "that is").map_err(Error::other)?;
///
/// let loader = StreamLoader::new(Lines(paths.into())).batch_size(2).num_workers(2);
/// let batches = loader.iter().collect::<Result<Vec<Vec<String>>>>()?;
/// assert_eq!(batches, [vec!["to be", "or not"], vec!["that is"], vec!["to be"]]);
/// # Ok::<(), Error>(())
/// ```
pub trait IterableDataset: Send + Sync + 'static {
    /// One sample: often a pair of an input and a target.
    type Sample: Send + 'static;

    /// How many shards there are; one unless overridden.
    fn n_shards(&self) -> usize {
        1
    }

    /// The samples of shard `shard`, counted from 0, in epoch `epoch`.
    ///
    /// # Errors
    /// Whatever makes the shard unavailable; [`Error::other`](crate::Error::other) wraps any error or text. The iterator
    /// gives an error in the place of a sample that is unavailable, and may go on with the next.
    fn shard(&self, shard: usize, epoch: u64) -> Result<Samples<Self::Sample>>;

    /// The samples of the shard from sample `start` on, for a loader that resumes. By default, earlier samples are read
    /// and dropped; override this if the dataset can seek.
    ///
    /// # Errors
    /// As [`shard`](Self::shard). By default, also [`Error::Argument`](crate::Error::Argument) for a start above 2^32,
    /// since an endless stream would be read for years.
    fn shard_from(&self, shard: usize, epoch: u64, start: u64) -> Result<Samples<Self::Sample>> {
        let how = "samples before it are read and dropped; override `IterableDataset::shard_from` to seek";
        check_most("the first sample", start as usize, MAX_READ, how)?;
        let mut samples = self.shard(shard, epoch)?;
        for _ in 0..start {
            if samples.next().is_none() {
                break;
            }
        }
        Ok(samples)
    }

    /// Identifies the dataset in one line that is the same in every run, for example by its files. The line is part of a
    /// loader's state, which a loader of another dataset refuses. By default the name of the type.
    ///
    /// # Examples
    /// See [`Dataset::identity`](crate::Dataset::identity).
    fn identity(&self) -> String {
        type_name::<Self>().to_owned()
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
