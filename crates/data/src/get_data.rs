//! [`get_data`]: the loaders for training and validation in one call.

use crate::collate::Stack;
use crate::dataset::Dataset;
use crate::loader::DataLoader;

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
