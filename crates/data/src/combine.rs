//! Datasets made of datasets: [`ConcatDataset`] and [`ChainDataset`] append them, [`StackDataset`] makes tuples of
//! their samples.

use crate::collate::Stack;
use crate::dataset::{Dataset, check_index, common_len};
use crate::error::listed;
use crate::identity::Hash;
use crate::iterable::{IterableDataset, Samples};
use crate::{Error, Result};

/// Several datasets, one after another: `torch.utils.data.ConcatDataset`.
///
/// A batch whose samples all come from one dataset is made by that dataset's [`gather`](Dataset::gather). Datasets of
/// different types with the same sample type can be combined as `Box<dyn Dataset<Sample = S>>`.
///
/// # Examples
/// ```
/// use pagelock_data::{ConcatDataset, Dataset, TensorDataset};
/// use pagelock_tensor::Tensor;
///
/// let parts = [Tensor::arange(0, 3, 1)?, Tensor::arange(10, 12, 1)?];
/// let both = ConcatDataset::new(parts.into_iter().map(TensorDataset::new).collect::<Result<Vec<_>, _>>()?)?;
/// assert_eq!((both.len(), both.get(3)?.item::<i64>()?), (5, 10));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConcatDataset<D> {
    datasets: Vec<D>,
    ends: Vec<usize>, // for each dataset, the number of samples up to its end
}

impl<D: Dataset> ConcatDataset<D> {
    /// All samples of the first dataset, then all of the second, and so on.
    ///
    /// # Errors
    /// [`Error::Argument`] without datasets, and if there are more samples than fit into a `usize`.
    pub fn new(datasets: impl IntoIterator<Item = D>) -> Result<Self> {
        let datasets: Vec<D> = datasets.into_iter().collect();
        let lens: Vec<usize> = datasets.iter().map(Dataset::len).collect();
        Ok(Self { datasets, ends: ends(&lens)? })
    }

    /// The datasets.
    pub fn datasets(&self) -> &[D] {
        &self.datasets
    }
}

/// How many samples there are up to the end of each dataset.
fn ends(lens: &[usize]) -> Result<Vec<usize>> {
    if lens.is_empty() {
        return Err(Error::Argument("there are no datasets to concatenate; give at least one".into()));
    }
    let mut sum = 0_usize;
    let end = |&len: &usize| {
        sum = sum.checked_add(len)?;
        Some(sum)
    };
    let too_many =
        || Error::Argument(format!("datasets of {} samples are too many together; give fewer", listed(lens)));
    lens.iter().map(end).collect::<Option<_>>().ok_or_else(too_many)
}

/// Which dataset has a sample, and at which index.
fn locate(ends: &[usize], index: usize) -> Result<(usize, usize)> {
    check_index(index, ends.last().copied().unwrap_or(0))?;
    let dataset = ends.partition_point(|&end| end <= index);
    Ok((dataset, index - dataset.checked_sub(1).map_or(0, |before| ends[before])))
}

/// The dataset that has all of these samples, and their indices there.
fn common_dataset(ends: &[usize], indices: &[usize]) -> Result<Option<(usize, Vec<usize>)>> {
    let locations = indices.iter().map(|&index| locate(ends, index)).collect::<Result<Vec<_>>>()?;
    let Some(&(first, _)) = locations.first() else { return Ok(None) };
    let is_common = locations.iter().all(|&(dataset, _)| dataset == first);
    Ok(is_common.then(|| (first, locations.into_iter().map(|(_, index)| index).collect())))
}

/// One identity for several datasets.
fn joined(what: &str, names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    let all = names.join(" + ");
    format!("{what} of {}, {}: {all}", names.len(), Hash::of(all.as_bytes()))
}

impl<D: Dataset> Dataset for ConcatDataset<D> {
    type Sample = D::Sample;

    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn get(&self, index: usize) -> Result<Self::Sample> {
        let (dataset, index) = locate(&self.ends, index)?;
        self.datasets[dataset].get(index)
    }

    fn get_in(&self, index: usize, epoch: u64) -> Result<Self::Sample> {
        let (dataset, index) = locate(&self.ends, index)?;
        self.datasets[dataset].get_in(index, epoch)
    }

    fn gather(&self, indices: &[usize]) -> Result<Option<<Self::Sample as Stack>::Batch>>
    where
        Self::Sample: Stack,
    {
        match common_dataset(&self.ends, indices)? {
            Some((dataset, indices)) => self.datasets[dataset].gather(&indices),
            None => Ok(None),
        }
    }

    fn identity(&self) -> String {
        let lens = Hash::of_numbers(self.ends.iter().map(|&end| end as u64));
        format!("{}, {lens}", joined("ConcatDataset", self.datasets.iter().map(Dataset::identity)))
    }
}

/// Several streams, one after another: `torch.utils.data.ChainDataset`.
///
/// Shard `s` consists of shard `s` of the first dataset, then shard `s` of the second, and so on. With datasets of
/// one shard, the order of samples is PyTorch's. With more shards, the loader's threads read them in parallel.
///
/// # Examples
/// ```
/// use pagelock_data::{ChainDataset, IterableDataset, Result, Samples, StreamLoader};
///
/// struct Numbers(std::ops::Range<i64>);
///
/// impl IterableDataset for Numbers {
///     type Sample = i64;
///
///     fn shard(&self, _shard: usize, _epoch: u64) -> Result<Samples<i64>> {
///         Ok(Box::new(self.0.clone().map(Ok)))
///     }
/// }
///
/// let loader = StreamLoader::new(ChainDataset::new([Numbers(0..2), Numbers(7..10)])).batch_size(3);
/// let batches: Vec<_> = loader.iter().map(|batch| Ok(batch?.to_vec::<i64>()?)).collect::<Result<_>>()?;
/// assert_eq!(batches, [vec![0, 1, 7], vec![8, 9]]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChainDataset<D> {
    datasets: std::sync::Arc<[D]>,
}

impl<D: IterableDataset> ChainDataset<D> {
    /// The samples of the first dataset, then those of the second, and so on.
    pub fn new(datasets: impl IntoIterator<Item = D>) -> Self {
        Self { datasets: datasets.into_iter().collect() }
    }
}

impl<D: IterableDataset> IterableDataset for ChainDataset<D> {
    type Sample = D::Sample;

    fn n_shards(&self) -> usize {
        self.datasets.iter().map(IterableDataset::n_shards).max().unwrap_or(0)
    }

    fn shard(&self, shard: usize, epoch: u64) -> Result<Samples<D::Sample>> {
        let datasets = self.datasets.clone();
        let with_it = (0..datasets.len()).filter(move |&at| shard < datasets[at].n_shards());
        let datasets = self.datasets.clone();
        let open = move |at: usize| match datasets[at].shard(shard, epoch) {
            Ok(samples) => samples,
            Err(error) => Box::new(std::iter::once(Err(error))), // in the place of its samples
        };
        Ok(Box::new(with_it.flat_map(open)))
    }

    fn identity(&self) -> String {
        joined("ChainDataset", self.datasets.iter().map(IterableDataset::identity))
    }
}

/// Two or three datasets of the same length: sample `i` is the tuple of their samples `i`, as in
/// `torch.utils.data.StackDataset`.
///
/// # Examples
/// ```
/// use pagelock_data::{DataLoader, StackDataset, TensorDataset};
/// use pagelock_tensor::Tensor;
///
/// let pictures = TensorDataset::new(Tensor::zeros([10, 4])?)?;
/// let labels = TensorDataset::new(Tensor::arange(0, 10, 1)?)?;
/// let loader = DataLoader::new(StackDataset::new((pictures, labels))?).batch_size(5);
/// let (xb, yb) = loader.iter().next().unwrap()?;
/// assert_eq!((xb.dims(), yb.to_vec::<i64>()?), (&[5, 4][..], vec![0, 1, 2, 3, 4]));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StackDataset<T> {
    datasets: T,
    n_samples: usize,
}

impl<T: DatasetTuple> StackDataset<T> {
    /// Combines a tuple of two or three datasets.
    ///
    /// # Errors
    /// [`Error::Argument`] if they have different numbers of samples.
    pub fn new(datasets: T) -> Result<Self> {
        let n_samples = common_len(&datasets.lens(), |lens| {
            format!("the datasets of a StackDataset have {lens} samples; all need the same number, so take a Subset")
        })?;
        Ok(Self { datasets, n_samples })
    }
}

impl<T: DatasetTuple> Dataset for StackDataset<T> {
    type Sample = T::Sample;

    fn len(&self) -> usize {
        self.n_samples
    }

    fn get(&self, index: usize) -> Result<T::Sample> {
        self.datasets.get_all(index, None)
    }

    fn get_in(&self, index: usize, epoch: u64) -> Result<T::Sample> {
        self.datasets.get_all(index, Some(epoch))
    }

    fn identity(&self) -> String {
        joined("StackDataset", self.datasets.identities().into_iter())
    }
}

/// A tuple of datasets, over which [`StackDataset`] is generic. Programs do not implement it.
pub trait DatasetTuple: Send + Sync + 'static {
    /// The tuple of their samples.
    type Sample: Send + 'static;

    #[doc(hidden)]
    fn lens(&self) -> Vec<usize>;

    #[doc(hidden)]
    fn get_all(&self, index: usize, epoch: Option<u64>) -> Result<Self::Sample>;

    #[doc(hidden)]
    fn identities(&self) -> Vec<String>;
}

/// A sample, in an epoch if one is given.
fn sample<D: Dataset>(dataset: &D, index: usize, epoch: Option<u64>) -> Result<D::Sample> {
    match epoch {
        Some(epoch) => dataset.get_in(index, epoch),
        None => dataset.get(index),
    }
}

macro_rules! tuples {
    ($(($($type:ident $position:tt),+))*) => {$(
        impl<$($type: Dataset),+> DatasetTuple for ($($type,)+) {
            type Sample = ($($type::Sample,)+);

            fn lens(&self) -> Vec<usize> {
                vec![$(self.$position.len()),+]
            }

            fn get_all(&self, index: usize, epoch: Option<u64>) -> Result<Self::Sample> {
                Ok(($(sample(&self.$position, index, epoch)?,)+))
            }

            fn identities(&self) -> Vec<String> {
                vec![$(self.$position.identity()),+]
            }
        }
    )*};
}

tuples! {
    (A 0, B 1)
    (A 0, B 1, C 2)
}
