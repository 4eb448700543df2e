//! [`Subset`]: some samples of a dataset. [`random_split`]: a dataset in parts.

use std::sync::Arc;

use pagelock_memory::HeapReservation;
use pagelock_tensor::Generator;

use crate::collate::Stack;
use crate::dataset::{Dataset, check_index};
use crate::error::listed;
use crate::identity::Hash;
use crate::text::lines::GrowingReservation;
use crate::{Error, Result};

/// Some of another dataset's samples, in a given order.
///
/// # Examples
/// ```
/// use pagelock_data::{Dataset, Subset, TensorDataset};
/// use pagelock_tensor::Tensor;
///
/// let dataset = TensorDataset::new(Tensor::arange(0.0, 10.0, 1.0)?)?;
/// let odd = Subset::new(dataset, [1, 3, 5, 7, 9])?;
/// assert_eq!((odd.len(), odd.indices()), (5, &[1, 3, 5, 7, 9][..]));
/// assert_eq!(odd.get(2)?.item::<f32>()?, 5.0);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Subset<D> {
    dataset: Arc<D>,
    indices: Arc<[usize]>,
    _counted: Arc<GrowingReservation>, // budget for the indices
}

impl<D: Dataset> Subset<D> {
    /// The samples of `dataset` at `indices`. Several subsets share one dataset through an [`Arc`].
    ///
    /// # Errors
    /// [`Error::Argument`] if the dataset does not have one of the indices; [`Error::Memory`] if the budget refuses.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{Subset, TensorDataset};
    /// use pagelock_tensor::Tensor;
    ///
    /// let dataset = TensorDataset::new(Tensor::zeros([60, 2])?)?;
    /// assert_eq!(
    ///     Subset::new(dataset, [10, 70]).err().unwrap().to_string(),
    ///     "there is no sample 70: the dataset has 60 samples, counted from 0; check the sampler or the range",
    /// );
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn new(dataset: impl Into<Arc<D>>, indices: impl IntoIterator<Item = usize>) -> Result<Self> {
        let dataset = dataset.into();
        let (indices, counted) = checked(&mut indices.into_iter(), dataset.len())?;
        Ok(Self { dataset, indices, _counted: Arc::new(counted) })
    }

    /// A subset of indices that are known to be valid. `counted` is the memory of all subsets that are made together.
    pub(crate) fn of_known(dataset: &Arc<D>, indices: &[usize], counted: &Arc<GrowingReservation>) -> Self {
        Self { dataset: Arc::clone(dataset), indices: indices.into(), _counted: Arc::clone(counted) }
    }

    /// Which samples of the whole dataset these are.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }
}

/// Indices below `n_samples`, and the reservation of their memory in the budget.
fn checked(given: &mut dyn Iterator<Item = usize>, n_samples: usize) -> Result<(Arc<[usize]>, GrowingReservation)> {
    let mut known = given.map(|index| check_index(index, n_samples).map(|()| index));
    let (indices, _listed) = GrowingReservation::list(&mut known)?;
    let counted = GrowingReservation::of(size_of_val(&indices[..]) as u64)?;
    Ok((indices.into(), counted))
}

impl<D: Dataset> Dataset for Subset<D> {
    type Sample = D::Sample;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, index: usize) -> Result<Self::Sample> {
        check_index(index, self.indices.len())?;
        self.dataset.get(self.indices[index])
    }

    fn get_in(&self, index: usize, epoch: u64) -> Result<Self::Sample> {
        check_index(index, self.indices.len())?;
        self.dataset.get_in(self.indices[index], epoch)
    }

    fn gather(&self, indices: &[usize]) -> Result<Option<<Self::Sample as Stack>::Batch>>
    where
        Self::Sample: Stack,
    {
        let whole = indices.iter().map(|&index| {
            check_index(index, self.indices.len())?;
            Ok(self.indices[index])
        });
        self.dataset.gather(&whole.collect::<Result<Vec<usize>>>()?)
    }

    fn identity(&self) -> String {
        let hash = Hash::of_numbers(self.indices.iter().map(|&index| index as u64));
        format!("{} of {}, {hash}", self.indices.len(), self.dataset.identity())
    }
}

/// Splits `dataset` at random into parts of the given sizes, which together are the whole. The same generator state
/// gives the same parts.
///
/// # Errors
/// [`Error::Argument`] if the sizes do not add up to the number of samples.
///
/// # Examples
/// ```
/// use pagelock_data::{Dataset, TensorDataset, random_split};
/// use pagelock_tensor::{Generator, Tensor};
///
/// let dataset = TensorDataset::new(Tensor::arange(0.0, 100.0, 1.0)?)?;
/// let [train, valid] = random_split(dataset, [80, 20], &Generator::new(42))?;
/// assert_eq!((train.len(), valid.len()), (80, 20));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub fn random_split<D: Dataset, const N: usize>(
    dataset: impl Into<Arc<D>>,
    lens: [usize; N],
    generator: &Generator,
) -> Result<[Subset<D>; N]> {
    let dataset = dataset.into();
    let n_samples = dataset.len();
    let sum: u128 = lens.iter().map(|&len| len as u128).sum();
    if sum != n_samples as u128 {
        return Err(Error::Argument(format!(
            "a split into {} is {sum} samples, but the dataset has {n_samples}; make the parts add up to {n_samples}",
            listed(&lens)
        )));
    }
    let len_bytes = (n_samples as u64).saturating_mul(size_of::<usize>() as u64);
    let _working = HeapReservation::new(len_bytes)?;
    let counted = Arc::new(GrowingReservation::of(len_bytes)?);
    let mut order: Vec<usize> = (0..n_samples).collect();
    generator.shuffle(&mut order);
    let mut rest = &order[..];
    Ok(lens.map(|len| {
        let (part, after) = rest.split_at(len);
        rest = after;
        Subset::of_known(&dataset, part, &counted)
    }))
}
