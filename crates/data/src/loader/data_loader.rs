//! What only a [`DataLoader`] has: an order of indices, and a length.

use std::sync::Arc;

use super::loaders::DataLoader;
use super::order::OrderKind;
use super::source::Indexed;
use crate::Result;
use crate::collate::Stack;
use crate::dataset::Dataset;
use crate::sampler::{RandomSampler, Sampler, SequentialSampler};

impl<B: Send + 'static> DataLoader<B> {
    /// Loads `dataset`, whose samples [`Stack`] into batches.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{DataLoader, TensorDataset};
    /// use pagelock_tensor::Tensor;
    ///
    /// let loader = DataLoader::new(TensorDataset::new(Tensor::arange(0.0, 6.0, 1.0)?)?).batch_size(4);
    /// let batches: Vec<_> = loader.iter().map(|batch| Ok(batch?.to_vec::<f32>()?)).collect::<pagelock_data::Result<_>>()?;
    /// assert_eq!(batches, [vec![0.0, 1.0, 2.0, 3.0], vec![4.0, 5.0]]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn new<D>(dataset: D) -> Self
    where
        D: Dataset,
        D::Sample: Stack<Batch = B>,
    {
        Self::of(Indexed { dataset, collate: Stack::stack, gather: D::gather })
    }

    /// Loads `dataset` and makes each batch with `collate`, which gets the samples in order and at least one.
    ///
    /// # Examples
    /// Texts of different lengths, padded to the longest of each batch:
    /// ```
    /// use pagelock_data::{DataLoader, Dataset, Result, Stack};
    /// use pagelock_tensor::{Int, Tensor};
    ///
    /// struct Texts(Vec<&'static str>);
    ///
    /// impl Dataset for Texts {
    ///     type Sample = Vec<u8>;
    ///     fn len(&self) -> usize {
    ///         self.0.len()
    ///     }
    ///     fn get(&self, index: usize) -> Result<Vec<u8>> {
    ///         Ok(self.0[index].into())
    ///     }
    /// }
    ///
    /// let loader = DataLoader::with_collate(Texts(vec!["to", "be", "or", "not"]), |texts| {
    ///     let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    ///     let n_texts = texts.len();
    ///     let padded = texts.into_iter().flat_map(|mut text| {
    ///         text.resize(longest, b' ');
    ///         text
    ///     });
    ///     Ok(Tensor::from_vec(padded.collect(), [n_texts, longest])?)
    /// });
    /// let batch: Tensor<Int> = loader.batch_size(4).iter().next().unwrap()?;
    /// assert_eq!(batch.to_vec::<u8>()?, b"to be or not");
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn with_collate<D, C>(dataset: D, collate: C) -> Self
    where
        D: Dataset,
        C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
    {
        Self::of(Indexed { dataset, collate, gather: |_, _| Ok(None) })
    }

    fn of<D, C>(source: Indexed<D, C, B>) -> Self
    where
        D: Dataset,
        C: Fn(Vec<D::Sample>) -> Result<B> + Send + Sync + 'static,
    {
        let source = Arc::new(source);
        Self::from_parts(source.clone(), source, OrderKind::Sampler(Arc::new(SequentialSampler)))
    }

    /// A new random order in every epoch, all of them drawn from `seed`.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// # let dataset = TensorDataset::new(Tensor::arange(0.0, 100.0, 1.0)?)?;
    /// let loader = DataLoader::new(dataset).batch_size(100).shuffle(7);
    /// let first = loader.iter().next().unwrap()?.to_vec::<f32>()?;
    /// let second = loader.iter().next().unwrap()?.to_vec::<f32>()?;
    /// assert_ne!(first, second);
    ///
    /// loader.set_epoch(0);
    /// assert_eq!(loader.iter().next().unwrap()?.to_vec::<f32>()?, first);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.core.set_order(OrderKind::Sampler(Arc::new(RandomSampler::new(seed))));
        self
    }

    /// The order that `sampler` gives.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, FixedSampler, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// # let dataset = TensorDataset::new(Tensor::arange(0.0, 100.0, 1.0)?)?;
    /// let loader = DataLoader::new(dataset).batch_size(3).sampler(FixedSampler::new([30, 10, 20]));
    /// assert_eq!(loader.iter().next().unwrap()?.to_vec::<f32>()?, [30.0, 10.0, 20.0]);
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.core.set_order(OrderKind::Sampler(Arc::new(sampler)));
        self
    }

    /// How many batches an epoch has; never zero.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument), which the loop would give instead of its first batch: the dataset or the
    /// order is empty, or a setting is out of range.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_data::{DataLoader, TensorDataset};
    /// # use pagelock_tensor::Tensor;
    /// let empty = TensorDataset::new(Tensor::zeros([0, 2])?)?;
    /// assert_eq!(
    ///     DataLoader::new(empty).len().unwrap_err().to_string(),
    ///     "the dataset is empty, so there is no batch to load; check the path, filter or split that it came from",
    /// );
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    #[allow(clippy::len_without_is_empty)] // an empty loader is an error
    pub fn len(&self) -> Result<usize> {
        self.core.n_batches()
    }

    /// How many samples the dataset has.
    pub fn n_samples(&self) -> usize {
        self.core.recipe.data.len()
    }
}

/// The two loaders of the tutorial: `train_ds` shuffled in batches of `bs`, `valid_ds` in order and in batches of
/// `2 * bs`, which fit because validation keeps no gradients.
///
/// The shuffling seed is 0; `train_dl.shuffle(seed)` changes it.
///
/// # Examples
/// ```
/// use pagelock_data::{TensorDataset, get_data};
/// use pagelock_tensor::Tensor;
///
/// let train_ds = TensorDataset::new((Tensor::zeros([500, 784])?, Tensor::zeros([500])?))?;
/// let valid_ds = TensorDataset::new((Tensor::zeros([100, 784])?, Tensor::zeros([100])?))?;
/// let (train_dl, valid_dl) = get_data(train_ds, valid_ds, 50);
/// assert_eq!((train_dl.len()?, valid_dl.len()?), (10, 1));
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub fn get_data<B, T, V>(train_ds: T, valid_ds: V, bs: usize) -> (DataLoader<B>, DataLoader<B>)
where
    B: Send + 'static,
    T: Dataset<Sample: Stack<Batch = B>>,
    V: Dataset<Sample: Stack<Batch = B>>,
{
    (DataLoader::new(train_ds).batch_size(bs).shuffle(0), DataLoader::new(valid_ds).batch_size(bs.saturating_mul(2)))
}
