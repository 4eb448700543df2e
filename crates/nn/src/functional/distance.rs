//! Distances and similarities of vectors.

use pagelock_tensor::{Error, Result, Tensor, no_grad};

use super::shared::{computed, wrong_shape};

/// The `p`-norm along `dim`, which is kept with size 1.
pub(crate) fn norm(x: &Tensor, p: f64, dim: isize) -> Result<Tensor> {
    if p.is_nan() || p <= 0.0 {
        return Err(Error::Argument(format!(
            "norm: p is {p}, but it must be above 0; f64::INFINITY is the largest magnitude"
        )));
    }
    x.norm_keepdim(p, dim)
}

/// The `p`-norm of `x1 − x2 + eps` along the last dimension.
///
/// - `x1`, `x2`: `[.., features]`, broadcast
/// - result: `[..]`
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// let distance = F::pairwise_distance(&Tensor::new([[3.0, 4.0]])?, &Tensor::zeros([1, 2])?, 2.0, 1e-6)?;
/// assert!((distance.item::<f32>()? - 5.0).abs() < 1e-5);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// The shapes do not broadcast, or `p` is not above 0.
pub fn pairwise_distance(x1: &Tensor, x2: &Tensor, p: f64, eps: f64) -> Result<Tensor> {
    computed(&x1.sub(x2)?, |difference| norm(&difference.add_scalar(eps)?, p, -1)?.squeeze(-1))
}

/// The `p`-norms of the differences of all pairs of rows, as PyTorch's `F.pdist`, whose `p` is 2 by default.
///
/// - `x`: `[rows, features]`
/// - result: `[rows · (rows − 1) / 2]`: row 0 with rows 1, 2, .., then row 1 with rows 2, 3, ..
///
/// The differences of all pairs are in memory at once. As in PyTorch, the gradient of the distance of equal rows is 0,
/// and with `p` = ∞ each of several largest differences gets the whole gradient.
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::new([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])?;
/// assert_eq!(F::pdist(&x, 1.0)?.to_vec::<f32>()?, [7.0, 1.0, 6.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`] if `x` is not `[rows, features]`, or `p` is not above 0; the differences do not fit the memory budget.
pub fn pdist(x: &Tensor, p: f64) -> Result<Tensor> {
    let &[rows, _] = x.dims() else {
        return Err(wrong_shape("pdist", "the input", x.shape(), "it must be [rows, features]; reshape it"));
    };
    let pairs = Tensor::triu_indices(rows, rows, 1)?.to(&x.device())?;
    computed(x, |x| {
        let row = |which: usize| x.index_select(0, &pairs.narrow(0, which, 1)?.squeeze(0)?);
        if p == f64::INFINITY {
            // Unlike `norm`, `cdist` does not share the gradient among equal differences.
            return row(0)?.unsqueeze(1)?.cdist(&row(1)?.unsqueeze(1)?, p)?.flatten(0, -1);
        }
        norm(&row(0)?.sub(&row(1)?)?, p, -1)?.squeeze(-1)
    })
}

/// The cosine of the angle between vectors along `dim`. A norm below `eps` counts as `eps`.
///
/// - `x1`, `x2`: of shapes that broadcast
/// - result: their common shape without `dim`
///
/// ```
/// use pagelock_nn::functional as F;
/// # use pagelock_tensor::Tensor;
/// let (x, y) = (Tensor::new([[1.0, 0.0]])?, Tensor::new([[1.0, 1.0]])?);
/// assert!((F::cosine_similarity(&x, &y, 1, 1e-8)?.item::<f32>()? - 0.5f32.sqrt()).abs() < 1e-6);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
///
/// # Errors
/// The shapes do not broadcast, or there is no such dimension.
pub fn cosine_similarity(x1: &Tensor, x2: &Tensor, dim: isize, eps: f64) -> Result<Tensor> {
    let unit = |x: &Tensor| x.div(&raised(&norm(x, 2.0, dim)?, eps)?);
    computed(x1, |x1| {
        if x1.rank() == x2.rank() && x1.size(dim)? == x2.size(dim)? {
            return unit(x1)?.mul(&unit(x2)?)?.sum(dim);
        }
        // A vector of one element is one of many equal ones: the norms are those after broadcasting.
        let shape = *no_grad(|| x1.add(x2))?.shape();
        unit(&x1.expand(shape)?)?.mul(&unit(&x2.expand(shape)?)?)?.sum(dim)
    })
}

/// `max(x, min)`, with the gradient of `x` also where `x` is below `min`.
pub(crate) fn raised(x: &Tensor, min: f64) -> Result<Tensor> {
    let by = no_grad(|| x.clamp_min(min)?.sub(x))?;
    x.add(&by)
}

/// `x1ᵀ · weight · x2 + bias`, for each output.
///
/// - `x1`: `[.., in1]`, `x2`: `[.., in2]`
/// - `weight`: `[out, in1, in2]`, `bias`: `[out]`
/// - result: `[.., out]`
///
/// The intermediate product has `out · in2` elements per sample.
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if the shapes do not fit.
pub fn bilinear(x1: &Tensor, x2: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let lead = |x: &Tensor| x.dims().split_last().map(|(_, lead)| lead.to_vec());
    let fits = |out: usize, in1: usize, in2: usize| {
        lead(x1) == lead(x2)
            && x1.dims().last() == Some(&in1)
            && x2.dims().last() == Some(&in2)
            && bias.is_none_or(|bias| *bias.dims() == [out])
    };
    let &[out, in1, in2] = weight.dims() else {
        return Err(wrong_shape("bilinear", "the weight", weight.shape(), "it must be [out, in1, in2]"));
    };
    if !fits(out, in1, in2) {
        let expected =
            format!("for the inputs {} and {} it must be [out, in1, in2], and a bias [out]", x1.shape(), x2.shape());
        return Err(wrong_shape("bilinear", "the weight", weight.shape(), &expected));
    }
    let left = x1.matmul(&weight.permute([1, 0, 2])?.flatten(1, 2)?)?.unflatten(-1, [out, in2])?;
    let y = left.matmul(&x2.unsqueeze(-1)?)?.squeeze(-1)?;
    match bias {
        Some(bias) => y.add(&bias.to_dtype(y.dtype())?),
        None => Ok(y),
    }
}
