//! Tables that are read by index.

use pagelock_tensor::{DType, Int, Result, Tensor};

use super::pieces::{choose, wrong_argument, wrong_shape};

/// The rows of `weight` that `index` names.
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
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if `weight` has not two dimensions; [`Error::IndexOutOfRange`](pagelock_tensor::Error::IndexOutOfRange).
pub fn embedding(index: &Tensor<Int>, weight: &Tensor, padding_idx: Option<usize>) -> Result<Tensor> {
    check_table("embedding", weight)?;
    let flat = index.reshape([-1])?;
    let rows = weight.index_select(0, &flat).map_err(|error| error.of_index_in("embedding"))?;
    let rows = match padding_idx {
        None => rows,
        Some(padding) => {
            let is_padding = flat.eq(&Tensor::on(&flat.device()).of(flat.dtype()).full((), padding as i64)?)?;
            choose(&is_padding.unsqueeze(1)?, &rows.detach(), &rows)?
        }
    };
    if index.rank() == 1 { Ok(rows) } else { rows.unflatten(0, index.shape()) }
}

/// The table has rows and columns.
pub(crate) fn check_table(op: &str, weight: &Tensor) -> Result<()> {
    if weight.rank() == 2 {
        return Ok(());
    }
    Err(wrong_shape(op, "the weight", weight.shape(), "it must be [num_embeddings, embedding_dim]; reshape it"))
}

/// 1 at each index and 0 elsewhere.
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
/// [`Error::Argument`](pagelock_tensor::Error::Argument) without classes; as [`Tensor::one_hot`].
pub fn one_hot(index: &Tensor<Int>, num_classes: usize) -> Result<Tensor<Int>> {
    if num_classes == 0 {
        return Err(wrong_argument("one_hot", "num_classes", 0, "at least 1"));
    }
    index.one_hot(num_classes)
}

/// [`one_hot`] of classes that were checked: does not wait for a device.
pub(crate) fn one_hot_unchecked(index: &Tensor<Int>, num_classes: usize) -> Result<Tensor<Int>> {
    let classes = Tensor::on(&index.device()).arange(0_i64, num_classes as i64, 1)?;
    index.unsqueeze(-1)?.to_dtype(DType::I64)?.eq(&classes)?.to_int()
}
