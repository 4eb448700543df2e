//! [`Transformed`]: a dataset whose samples go through a function, with random numbers of their own.

use pagelock_tensor::Generator;

use crate::Result;
use crate::dataset::Dataset;

/// Another dataset's samples, put through a function; made by [`Dataset::transform`].
///
/// # Examples
/// Every epoch sees each number with other noise, and every run the same:
/// ```
/// use pagelock_data::{Dataset, Result, TensorDataset};
/// use pagelock_tensor::Tensor;
///
/// let clean = TensorDataset::new(Tensor::arange(0.0, 10.0, 1.0)?)?;
/// let noisy = clean.transform(42, |x, random| Ok(x.item::<f32>()? + random.next_f64() as f32));
/// assert_eq!(noisy.get_in(3, 7)?, noisy.get_in(3, 7)?);
/// assert_ne!(noisy.get_in(3, 7)?, noisy.get_in(3, 8)?);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Transformed<D, F> {
    dataset: D,
    seed: u64,
    f: F,
}

impl<D, F> Transformed<D, F> {
    pub(crate) fn new(dataset: D, seed: u64, f: F) -> Self {
        Self { dataset, seed, f }
    }
}

impl<D, F, S> Dataset for Transformed<D, F>
where
    D: Dataset,
    F: Fn(D::Sample, &Generator) -> Result<S> + Send + Sync + 'static,
    S: Send + 'static,
{
    type Sample = S;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn get(&self, index: usize) -> Result<S> {
        self.get_in(index, 0)
    }

    fn get_in(&self, index: usize, epoch: u64) -> Result<S> {
        let of_epoch = Generator::new(self.seed).stream(epoch).next_u64();
        (self.f)(self.dataset.get_in(index, epoch)?, &Generator::new(of_epoch).stream(index as u64))
    }

    fn identity(&self) -> String {
        format!("{}, transformed with seed {}", self.dataset.identity(), self.seed)
    }
}
