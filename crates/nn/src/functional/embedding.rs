//! Embedding tables, and one-hot vectors.

use pagelock_tensor::{Bool, DType, Int, Result, Tensor, no_grad};

use super::shared::{constant, wrong_argument, wrong_shape};

/// The rows of `weight` at `index`.
///
/// - `index`: `[..]`, each at least 0 and below `num_embeddings`
/// - `weight`: `[num_embeddings, embedding_dim]`
/// - result: `[.., embedding_dim]`
///
/// The row `padding_idx` gets no gradient.
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// let table = Tensor::new([[0.0, 0.0], [1.0, 2.0]])?;
/// assert_eq!(F::embedding(&Tensor::new([1, 1])?, &table, None)?.to_vec::<f32>()?, [1.0, 2.0, 1.0, 2.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `weight` does not have two dimensions, or no row
/// `padding_idx`; [`Error::IndexOutOfRange`](pagelock_tensor::Error::IndexOutOfRange).
pub fn embedding(index: &Tensor<Int>, weight: &Tensor, padding_idx: Option<usize>) -> Result<Tensor> {
    embedding_with(index, weight, EmbeddingOptions { padding_idx, ..EmbeddingOptions::default() })
}

/// How [`embedding_with`] reads a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingOptions {
    /// The row that gets no gradient.
    pub padding_idx: Option<usize>,
    /// The largest norm of a row. A longer row that is read is first scaled down to it, in the table itself.
    pub max_norm: Option<f64>,
    /// The order of the norm; 2 is the Euclidean norm.
    pub norm_type: f64,
    /// Whether the gradient of a row is divided by the number of times that the index contains it.
    pub scale_grad_by_freq: bool,
}

impl Default for EmbeddingOptions {
    fn default() -> Self {
        Self { padding_idx: None, max_norm: None, norm_type: 2.0, scale_grad_by_freq: false }
    }
}

/// As [`embedding`], with all of PyTorch's options but `sparse`. `max_norm` and `scale_grad_by_freq` cost time
/// proportional to the size of the table.
///
/// # Errors
/// As [`embedding`].
pub fn embedding_with(index: &Tensor<Int>, weight: &Tensor, options: EmbeddingOptions) -> Result<Tensor> {
    check_table("embedding", weight, options.padding_idx)?;
    let flat = index.reshape([-1])?;
    let needs_counts = options.max_norm.is_some() || options.scale_grad_by_freq;
    let counts = if needs_counts { Some(counts(&flat, weight)?) } else { None };
    if let (Some(max_norm), Some(counts)) = (options.max_norm, &counts) {
        no_grad(|| shorten(weight, counts, max_norm, options.norm_type))?;
    }
    let mut rows = weight.index_select(0, &flat).map_err(|error| error.of_index_in("embedding"))?;
    if let (true, Some(counts)) = (options.scale_grad_by_freq, &counts) {
        // The added difference is 0, but carries the scaled gradient. An infinite number stays infinite if it is scaled.
        let (constant, scaled) = (rows.detach(), rows.div(&counts.index_select(0, &flat)?)?);
        rows = constant.add(&scaled.sub(&scaled.detach())?)?.where_cond(&constant.isfinite()?, &scaled)?;
    }
    if let Some(padding) = options.padding_idx {
        let is_padding = flat.eq(&Tensor::on(&flat.device()).of(flat.dtype()).full((), padding as i64)?)?;
        rows = rows.detach().where_cond(&is_padding.unsqueeze(1)?, &rows)?;
    }
    if index.rank() == 1 { Ok(rows) } else { rows.unflatten(0, index.shape()) }
}

/// How often the index contains each row: `[num_embeddings, 1]`.
fn counts(flat: &Tensor<Int>, weight: &Tensor) -> Result<Tensor> {
    let device = &weight.device();
    let on = Tensor::on(device).of(weight.dtype().computing()); // a half type counts no further than 256 or 2,048
    let counts = on.zeros([weight.dims()[0], 1])?.index_add(0, flat, &on.ones([flat.len(), 1])?);
    counts.map_err(|error| error.of_index_in("embedding"))?.to_dtype(weight.dtype())
}

/// Scales down the rows that the index contains and whose norm is above `max_norm`.
fn shorten(weight: &Tensor, counts: &Tensor, max_norm: f64, norm_type: f64) -> Result<()> {
    let norms = weight.norm_keepdim(norm_type, 1)?;
    let is_long = norms.gt_scalar(max_norm)?.logical_and(&counts.gt_scalar(0.0)?)?;
    let factors = constant(weight, max_norm)?.div(&norms.add_scalar(1e-7)?)?;
    weight.mul_(&factors.where_cond(&is_long, &factors.ones_like()?)?)
}

/// Checks that the table is a matrix and has the row `padding_idx`.
pub(crate) fn check_table(op: &str, weight: &Tensor, padding_idx: Option<usize>) -> Result<()> {
    let &[rows, _] = weight.dims() else {
        let expected = "it must be [num_embeddings, embedding_dim]; reshape it";
        return Err(wrong_shape(op, "the weight", weight.shape(), expected));
    };
    match padding_idx.filter(|&padding| padding >= rows) {
        Some(padding) => Err(wrong_argument(op, "padding_idx", padding, &format!("below {rows}, the number of rows"))),
        None => Ok(()),
    }
}

/// A vector for each index, with 1 at the index and 0 elsewhere.
///
/// - `index`: `[..]`, each at least 0 and below `num_classes`
/// - result: `[.., num_classes]`
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// assert_eq!(F::one_hot(&Tensor::new([2, 0])?, 3)?.to_vec::<i64>()?, [0, 0, 1, 1, 0, 0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `num_classes` is 0; as [`Tensor::one_hot`].
pub fn one_hot(index: &Tensor<Int>, num_classes: usize) -> Result<Tensor<Int>> {
    if num_classes == 0 {
        return Err(wrong_argument("one_hot", "num_classes", 0, "at least 1"));
    }
    index.one_hot(num_classes)
}

/// [`one_hot`] without the range check, which would wait for a device.
pub(crate) fn one_hot_unchecked(index: &Tensor<Int>, num_classes: usize) -> Result<Tensor<Int>> {
    class_mask(index, num_classes)?.to_int()
}

/// Whether the class is the index's, for each index and class: `[.., num_classes]`.
pub(crate) fn class_mask(index: &Tensor<Int>, num_classes: usize) -> Result<Tensor<Bool>> {
    let classes = Tensor::on(&index.device()).arange(0_i64, num_classes as i64, 1)?;
    index.unsqueeze(-1)?.to_dtype(DType::I64)?.eq(&classes)
}
