//! Datasets: where samples come from. `loader/` makes batches of them; read it next.

use std::ops::Range;
use std::sync::Arc;

use pagelock_tensor::text::type_name;
use pagelock_tensor::{AnyTensor, Generator, Int, Kind, Tensor};

use crate::collate::Stack;
use crate::error::listed;
use crate::identity::{Hash, probes};
use crate::{Error, Result};

/// Samples that are accessed by index.
///
/// Several threads may call [`get`](Self::get) at the same time, in any order, so a dataset shares its open files
/// between threads. The same index must give the same sample.
///
/// # Examples
/// ```
/// use pagelock_data::{DataLoader, Dataset, Result};
/// use pagelock_tensor::Tensor;
///
/// /// Points on a parabola.
/// struct Parabola;
///
/// impl Dataset for Parabola {
///     type Sample = (f32, f32);
///
///     fn len(&self) -> usize {
///         100
///     }
///
///     fn get(&self, index: usize) -> Result<(f32, f32)> {
///         let x = index as f32 / 100.0;
///         Ok((x, x * x))
///     }
/// }
///
/// for batch in &DataLoader::new(Parabola).batch_size(25) {
///     let (x, y): (Tensor, Tensor) = batch?;
///     assert_eq!((x.dims(), y.dims()), (&[25][..], &[25][..]));
/// }
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub trait Dataset: Send + Sync + 'static {
    /// One sample: often a pair of an input and a target.
    type Sample: Send + 'static;

    /// How many samples there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sample at `index`, which is from 0 to below [`len`](Self::len).
    ///
    /// # Errors
    /// Whatever makes the sample unavailable; [`Error::other`] wraps any error or text.
    fn get(&self, index: usize) -> Result<Self::Sample>;

    /// The sample at `index` in epoch `epoch`, counted from 0. A [`DataLoader`](crate::DataLoader) calls this
    /// function. A dataset overrides it if its random changes differ from epoch to epoch.
    ///
    /// The same index and epoch must give the same sample. By default, this is [`get`](Self::get) in every epoch.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn get_in(&self, index: usize, epoch: u64) -> Result<Self::Sample> {
        let _ = epoch;
        self.get(index)
    }

    /// Applies `f` to every sample. The random numbers that `f` gets depend only on `seed`, the epoch and the
    /// sample's index, so they are the same for any number of workers and after a restart.
    fn transform<S, F>(self, seed: u64, f: F) -> Transformed<Self, F>
    where
        Self: Sized,
        S: Send + 'static,
        F: Fn(Self::Sample, &Generator) -> Result<S> + Send + Sync + 'static,
    {
        Transformed { dataset: self, seed, f }
    }

    /// The batch of the samples at `indices`, for datasets that can make it faster than sample by sample; `None`, the
    /// default, for all others.
    ///
    /// The batch must equal what [`Stack::stack`] makes of the single samples. A [`DataLoader`](crate::DataLoader)
    /// with its own collating function does not call this.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn gather(&self, indices: &[usize]) -> Result<Option<<Self::Sample as Stack>::Batch>>
    where
        Self::Sample: Stack,
    {
        let _ = indices;
        Ok(None)
    }

    /// Identifies the dataset in one line that is the same in every run: the origin of its samples, seeds, a hash.
    /// The line is part of a loader's state, which a loader of another dataset refuses. By default the name of the
    /// type.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::{Dataset, TensorDataset};
    /// use pagelock_tensor::Tensor;
    ///
    /// let ones = TensorDataset::new(Tensor::ones([3])?)?;
    /// let zeros = TensorDataset::new(Tensor::zeros([3])?)?;
    /// assert_ne!(ones.identity(), zeros.identity());
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    fn identity(&self) -> String {
        type_name::<Self>().to_owned()
    }
}

macro_rules! through_pointer {
    ($($pointer:ident)+) => {$(
        impl<D: Dataset + ?Sized> Dataset for $pointer<D> {
            type Sample = D::Sample;

            fn len(&self) -> usize {
                (**self).len()
            }

            fn get(&self, index: usize) -> Result<Self::Sample> {
                (**self).get(index)
            }

            fn get_in(&self, index: usize, epoch: u64) -> Result<Self::Sample> {
                (**self).get_in(index, epoch)
            }

            fn gather(&self, indices: &[usize]) -> Result<Option<<Self::Sample as Stack>::Batch>>
            where
                Self::Sample: Stack,
            {
                (**self).gather(indices)
            }

            fn identity(&self) -> String {
                (**self).identity()
            }
        }
    )+};
}

through_pointer! { Arc Box }

/// Applies a function to another dataset's samples; made by [`Dataset::transform`].
///
/// # Examples
/// The noise differs from epoch to epoch, and is the same in every run:
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

/// Tensors whose rows belong together: row `i` of each is sample `i`.
///
/// Made of one tensor or a tuple of up to four, of any kinds and precisions. A loader takes a whole batch with one
/// `index_select` per tensor. Cloning is cheap: the tensors are shared. Its identity in a loader's state is a hash of
/// element types, shapes and elements: all elements of a tensor of at most 64 KiB, and 16 rows, from the first to the
/// last, of a larger one.
///
/// # Examples
/// ```
/// use pagelock_data::{Dataset, TensorDataset};
/// use pagelock_tensor::Tensor;
///
/// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])?;
/// let y = Tensor::new([0, 1, 0])?;
/// let train_ds = TensorDataset::new((x, y))?;
///
/// let (x1, y1) = train_ds.get(1)?;
/// assert_eq!((x1.to_vec::<f32>()?, y1.item::<i64>()?), (vec![3.0, 4.0], 1));
/// assert_eq!(train_ds.tensors().0.dims(), [3, 2]);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone)]
pub struct TensorDataset<T> {
    tensors: T,
    n_samples: usize,
}

impl<T: Rows> TensorDataset<T> {
    /// A dataset of the rows of `tensors`.
    ///
    /// # Errors
    /// [`Error::Argument`] if they have different numbers of rows, or one has no dimensions.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::TensorDataset;
    /// use pagelock_tensor::Tensor;
    ///
    /// let error = TensorDataset::new((Tensor::zeros([5, 2])?, Tensor::zeros([4])?)).err().unwrap();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "the tensors of a TensorDataset have 5 and 4 rows; each needs one row per sample, \
    ///      so slice them to one length",
    /// );
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn new(tensors: T) -> Result<Self> {
        let mut lens = Vec::new();
        tensors.map_parts(&mut |part| add_len(part, &mut lens))?;
        let n_samples = common_len(&lens, |lens| {
            format!(
                "the tensors of a TensorDataset have {lens} rows; each needs one row per sample, so slice them to one \
                 length"
            )
        })?;
        Ok(Self { tensors, n_samples })
    }

    /// The tensors.
    pub fn tensors(&self) -> &T {
        &self.tensors
    }

    /// The samples in `range` as one batch, without a copy: the tutorial's `train_ds[i * bs : i * bs + bs]`. A range
    /// that ends beyond the last sample is cut there.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range starts beyond the last sample or ends before it starts.
    ///
    /// # Examples
    /// ```
    /// use pagelock_data::TensorDataset;
    /// use pagelock_tensor::Tensor;
    ///
    /// let dataset = TensorDataset::new((Tensor::zeros([100, 784])?, Tensor::zeros([100])?))?;
    /// let (i, bs) = (1, 64);
    /// let (xb, yb) = dataset.slice(i * bs..i * bs + bs)?;
    /// assert_eq!((xb.dims(), yb.dims()), (&[36, 784][..], &[36][..]));
    /// # Ok::<(), pagelock_data::Error>(())
    /// ```
    pub fn slice(&self, range: Range<usize>) -> Result<T> {
        self.tensors.map_parts(&mut |part| narrow(&part, &range, self.n_samples))
    }
}

impl<T: Rows> Dataset for TensorDataset<T> {
    type Sample = T;

    fn len(&self) -> usize {
        self.n_samples
    }

    fn get(&self, index: usize) -> Result<T> {
        self.tensors.map_parts(&mut |part| row(&part, index, self.n_samples))
    }

    fn gather(&self, indices: &[usize]) -> Result<Option<T>> {
        let indices = index_tensor(indices, self.n_samples)?;
        self.tensors.map_parts(&mut |part| Ok(part.index_select(0, &indices)?)).map(Some)
    }

    fn identity(&self) -> String {
        let mut hash = Hash::EMPTY;
        let seen = self.tensors.map_parts(&mut |part| add_part(part, &mut hash));
        identity_of(hash, seen.is_ok()) // if a device fails here, loading reports the error
    }
}

/// A tensor, or a tuple of tensors, whose first dimension counts samples. [`TensorDataset`] is generic over it;
/// programs do not implement it.
///
/// # Examples
/// ```
/// use pagelock_data::{Result, Rows, TensorDataset};
///
/// /// Works for one tensor and for pairs alike.
/// fn first_half<T: Rows>(dataset: &TensorDataset<T>) -> Result<TensorDataset<T>> {
///     use pagelock_data::Dataset;
///     TensorDataset::new(dataset.slice(0..dataset.len() / 2)?)
/// }
/// # use pagelock_tensor::Tensor;
/// # use pagelock_data::Dataset;
/// # assert_eq!(first_half(&TensorDataset::new(Tensor::zeros([10, 2])?)?)?.len(), 5);
/// # Ok::<(), pagelock_data::Error>(())
/// ```
pub trait Rows: Stack<Batch = Self> + Clone + Send + Sync + private::Sealed + 'static {
    /// Applies `f` to each tensor. `f` takes tensors of any kind, so it is compiled once for all tuples.
    #[doc(hidden)]
    fn map_parts(&self, f: &mut dyn FnMut(AnyTensor) -> Result<AnyTensor>) -> Result<Self>;
}

mod private {
    pub trait Sealed {}
}

impl<K: Kind> private::Sealed for Tensor<K> {}

impl<K: Kind> Rows for Tensor<K> {
    fn map_parts(&self, f: &mut dyn FnMut(AnyTensor) -> Result<AnyTensor>) -> Result<Self> {
        Ok(f(self.into())?.kind()?)
    }
}

/// Appends the number of rows of a tensor to `lens`.
fn add_len(part: AnyTensor, lens: &mut Vec<usize>) -> Result<AnyTensor> {
    let position = lens.len();
    let Some(&n_rows) = part.dims().first() else {
        return Err(Error::Argument(format!(
            "tensor {position} of a TensorDataset has no dimensions; the first dimension counts the samples: use \
             unsqueeze(0) for one sample"
        )));
    };
    lens.push(n_rows);
    Ok(part)
}

/// The length that all `lens` have, or else an error with the text that `problem` makes of them.
pub(crate) fn common_len(lens: &[usize], problem: impl FnOnce(String) -> String) -> Result<usize> {
    match lens.iter().all(|&len| len == lens[0]) {
        true => Ok(lens[0]),
        false => Err(Error::Argument(problem(listed(lens)))),
    }
}

fn row(part: &AnyTensor, index: usize, n_samples: usize) -> Result<AnyTensor> {
    check_index(index, n_samples)?;
    Ok(part.select(0, index as isize)?)
}

fn narrow(part: &AnyTensor, range: &Range<usize>, n_samples: usize) -> Result<AnyTensor> {
    let end = range.end.min(n_samples);
    check_range(&(range.start..end), n_samples)?;
    Ok(part.narrow(0, range.start, end - range.start)?)
}

/// Adds a tensor to the hash of its dataset.
fn add_part(part: AnyTensor, hash: &mut Hash) -> Result<AnyTensor> {
    add_tensor(&part, &mut |bytes| hash.add(bytes))?;
    Ok(part)
}

fn identity_of(hash: Hash, is_whole: bool) -> String {
    if is_whole { format!("TensorDataset {hash}") } else { "TensorDataset".to_owned() }
}

/// A tensor of at most this many bytes is hashed whole.
const WHOLE_BYTES: usize = 64 << 10;

/// Adds the element type, the shape and all elements; of a larger tensor, only some rows from the first to the last.
fn add_tensor(tensor: &AnyTensor, add: &mut dyn FnMut(&[u8])) -> Result<()> {
    add(tensor.dtype().name().as_bytes());
    tensor.dims().iter().for_each(|&size| add(&(size as u64).to_le_bytes()));
    let mut add_numbers = |part: &AnyTensor| -> Result<()> {
        numbers(part)?.into_iter().for_each(|number| add(&number.to_le_bytes()));
        Ok(())
    };
    if tensor.len_bytes() <= WHOLE_BYTES {
        return add_numbers(tensor);
    }
    probes(tensor.dims()[0]).try_for_each(|row| add_numbers(&tensor.select(0, row as isize)?))
}

/// The elements as `f64`.
fn numbers(tensor: &AnyTensor) -> Result<Vec<f64>> {
    match tensor.dtype() {
        dtype if dtype.is_float() => Ok(tensor.float()?.to_vec()?),
        dtype if dtype.is_int() => Ok(tensor.int()?.to_vec::<i64>()?.into_iter().map(|number| number as f64).collect()),
        _ => Ok(tensor.bool()?.to_vec::<bool>()?.into_iter().map(f64::from).collect()),
    }
}

macro_rules! rows_of_tuples {
    ($(($($type:ident $position:tt),+))*) => {$(
        impl<$($type: Rows),+> private::Sealed for ($($type,)+) {}

        impl<$($type: Rows),+> Rows for ($($type,)+) {
            fn map_parts(&self, f: &mut dyn FnMut(AnyTensor) -> Result<AnyTensor>) -> Result<Self> {
                Ok(($(self.$position.map_parts(f)?,)+))
            }
        }
    )*};
}

rows_of_tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
}

/// Refuses an index that a dataset of `n_samples` does not have.
pub(crate) fn check_index(index: usize, n_samples: usize) -> Result<()> {
    match index < n_samples {
        true => Ok(()),
        false => Err(Error::Argument(format!(
            "there is no sample {index}: the dataset has {n_samples} samples, counted from 0; check the sampler or the range"
        ))),
    }
}

/// Refuses a range that does not lie within `n_samples` samples.
pub(crate) fn check_range(range: &Range<usize>, n_samples: usize) -> Result<()> {
    let Range { start, end } = *range;
    match start <= end && end <= n_samples {
        true => Ok(()),
        false => Err(Error::Argument(format!(
            "samples {start}..{end} do not lie within the dataset's {n_samples}; keep start <= end <= {n_samples}"
        ))),
    }
}

/// The indices as a tensor, checked against the number of samples.
fn index_tensor(indices: &[usize], n_samples: usize) -> Result<Tensor<Int>> {
    indices.iter().try_for_each(|&index| check_index(index, n_samples))?;
    Ok(Tensor::build(indices.len(), |out: &mut [i64]| {
        for (out, &index) in out.iter_mut().zip(indices) {
            *out = index as i64;
        }
    })?)
}
