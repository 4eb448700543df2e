//! Sums, means and elementwise maxima of bags of rows of an embedding table.

use pagelock_tensor::{Error, HostElements, Int, Result, Tensor};

use super::embedding::check_table;
use super::shared::{constant, wrong_argument, wrong_shape};

/// How [`embedding_bag`] combines the rows of a bag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EmbeddingBagMode {
    /// Their sum.
    Sum,
    /// Their mean.
    #[default]
    Mean,
    /// Their elementwise maximum.
    Max,
}

/// The settings of [`embedding_bag`].
#[derive(Clone, Copy, Default)]
pub struct EmbeddingBagOptions<'a> {
    /// How the rows of a bag are combined; the mean by default.
    pub mode: EmbeddingBagMode,
    /// The positions in a one-dimensional index at which bags begin: `[bags]`; the first is 0.
    pub offsets: Option<&'a Tensor<Int>>,
    /// Whether `offsets` has one more element, the end of the last bag.
    pub include_last_offset: bool,
    /// The factors of the rows, in the shape of the index; only for sums.
    pub per_sample_weights: Option<&'a Tensor>,
    /// The index that marks padding, which is left out of its bag.
    pub padding_idx: Option<usize>,
}

/// One row for each bag: the sum, mean or elementwise maximum of the rows at its indices, as PyTorch's
/// `F.embedding_bag`.
///
/// - `index`: `[bags, words]`, or `[words]` with `offsets`, each at least 0 and below `num_embeddings`
/// - `weight`: `[num_embeddings, embedding_dim]`
/// - result: `[bags, embedding_dim]`; zeros for a bag without words
///
/// The host reads the offsets, and for maxima with a `padding_idx` also the indices, which waits for a device.
///
/// ```
/// use pagelock_nn::functional::{self as F, EmbeddingBagOptions};
/// # use pagelock_tensor::Tensor;
/// let table = Tensor::new([[1.0], [2.0], [6.0]])?;
/// let (words, offsets) = (Tensor::new([0, 2, 1])?, Tensor::new([0, 2])?);
/// let options = EmbeddingBagOptions { offsets: Some(&offsets), ..EmbeddingBagOptions::default() };
/// assert_eq!(F::embedding_bag(&words, &table, options)?.to_vec::<f32>()?, [3.5, 2.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes do not fit, the offsets decrease or are out of
/// range, there is no row `padding_idx`, or weights are given in another mode than the sum;
/// [`Error::IndexOutOfRange`](pagelock_tensor::Error::IndexOutOfRange).
pub fn embedding_bag(index: &Tensor<Int>, weight: &Tensor, options: EmbeddingBagOptions<'_>) -> Result<Tensor> {
    check_table("embedding_bag", weight, options.padding_idx)?;
    let bounds = bounds(index, options)?;
    let n_bags = bounds.len() - 1;
    let flat = index.reshape([-1])?;
    let rows = weight.index_select(0, &flat).map_err(|error| error.of_index_in("embedding_bag"))?;
    if options.mode == EmbeddingBagMode::Max {
        return largest(&rows, &flat, &bounds, options);
    }
    let is_counted = match options.padding_idx {
        None => Tensor::on(&flat.device()).full([flat.len(), 1], true)?,
        Some(padding) => {
            flat.ne(&Tensor::on(&flat.device()).of(flat.dtype()).full((), padding as i64)?)?.unsqueeze(1)?
        }
    };
    let rows = match options.per_sample_weights {
        None => rows,
        Some(factors) => rows.mul(&factors.reshape([-1])?.unsqueeze(1)?)?,
    };
    let dtype = rows.dtype();
    let rows = rows.to_dtype(dtype.computing())?;
    let rows = rows.where_cond(&is_counted, &constant(&rows, 0.0)?)?; // not multiplied by 0: padding may be infinite
    let bags = Tensor::build(flat.len(), |bags: &mut [i64]| {
        (0..n_bags).for_each(|bag| bags[range(&bounds, bag)].fill(bag as i64));
    })?;
    let bags = bags.to(&rows.device())?;
    let zeros = |width: usize| Tensor::on(&rows.device()).of(rows.dtype()).zeros([n_bags, width]);
    let sums = zeros(weight.dims()[1])?.index_add(0, &bags, &rows)?;
    let bags = match options.mode {
        EmbeddingBagMode::Mean => {
            let counts = zeros(1)?.index_add(0, &bags, &is_counted.to_float_of(rows.dtype())?)?;
            sums.div(&counts.clamp_min(1.0)?)?
        }
        _ => sums,
    };
    bags.to_dtype(dtype)
}

/// Where the bags begin in the flat index, and where the last one ends. All shapes but that of the table are checked
/// here.
fn bounds(index: &Tensor<Int>, options: EmbeddingBagOptions<'_>) -> Result<HostElements<i64>> {
    let op = "embedding_bag";
    if let Some(weights) = options.per_sample_weights {
        if options.mode != EmbeddingBagMode::Sum {
            return Err(wrong_argument(op, "per_sample_weights", "given", "absent unless the mode is the sum"));
        }
        if weights.shape() != index.shape() {
            let expected = format!("it must have the index's shape {}", index.shape());
            return Err(wrong_shape(op, "the tensor of weights", weights.shape(), &expected));
        }
    }
    match (index.dims(), options.offsets) {
        (&[bags, words], None) => Tensor::build(bags.saturating_add(1), |bounds: &mut [i64]| {
            bounds.iter_mut().enumerate().for_each(|(bag, bound)| *bound = (bag * words) as i64);
        })?
        .into_elements(),
        (&[words], Some(offsets)) if offsets.rank() == 1 => {
            let offsets = offsets.to_dtype(pagelock_tensor::DType::I64)?;
            let end = Tensor::on(&offsets.device()).full([1], words as i64)?;
            let bounds = if options.include_last_offset { offsets } else { Tensor::cat(&[&offsets, &end], 0)? };
            let bounds = bounds.into_elements::<i64>()?;
            let rises = bounds.is_sorted();
            if bounds.first() != Some(&0) || !rises || bounds.last() != Some(&(words as i64)) {
                let end = if options.include_last_offset { "at" } else { "at most at" };
                return Err(Error::Argument(format!(
                    "{op}: the offsets must start at 0, never decrease, and end {end} {words}, the number of words"
                )));
            }
            Ok(bounds)
        }
        _ => {
            let expected = "it must be [bags, words], or [words] with offsets [bags]";
            Err(wrong_shape(op, "the index", index.shape(), expected))
        }
    }
}

/// The positions of a bag in the flat index.
fn range(bounds: &[i64], bag: usize) -> std::ops::Range<usize> {
    bounds[bag] as usize..bounds[bag + 1] as usize
}

/// The elementwise maximum of each bag. Bags are padded to the length of the longest: with their first row, or with a
/// row of zeros if they are empty.
fn largest(rows: &Tensor, flat: &Tensor<Int>, bounds: &[i64], options: EmbeddingBagOptions<'_>) -> Result<Tensor> {
    let words = options.padding_idx.map(|_| flat.clone().into_elements::<i64>()).transpose()?;
    let is_counted = |index: &usize| match (&words, options.padding_idx) {
        (Some(words), Some(padding)) => words[*index] != padding as i64,
        _ => true,
    };
    let n_bags = bounds.len() - 1;
    let longest = (0..n_bags).map(|bag| range(bounds, bag).len()).max().unwrap_or(0).max(1);
    let zero_row = rows.dims()[0];
    let indices = Tensor::build(longest.saturating_mul(n_bags), |indices: &mut [i64]| {
        for (bag, indices) in indices.chunks_exact_mut(longest).enumerate() {
            let mut of_bag = range(bounds, bag).filter(is_counted);
            let first = of_bag.next().unwrap_or(zero_row);
            let all = [first].into_iter().chain(of_bag).chain(std::iter::repeat(first));
            std::iter::zip(indices, all).for_each(|(index, row)| *index = row as i64);
        }
    })?;
    let zeros = Tensor::on(&rows.device()).of(rows.dtype()).zeros([1, rows.dims()[1]])?;
    let indices = indices.to(&rows.device())?;
    let gathered = Tensor::cat(&[rows, &zeros], 0)?.index_select(0, &indices)?.unflatten(0, [n_bags, longest])?;
    Ok(gathered.max_dim(1)?.0)
}
