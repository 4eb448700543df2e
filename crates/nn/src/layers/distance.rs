//! [`CosineSimilarity`] and [`PairwiseDistance`]: how similar two inputs are.

use super::debug_is_display;
use crate::setters::{default_is_new, setters};
use crate::{Module, functional, module_scope};
use pagelock_tensor::{Result, Tensor};

/// The cosine of the angle between vectors along a dimension, as PyTorch's `nn.CosineSimilarity`.
///
/// ```
/// use pagelock_nn::CosineSimilarity;
/// # use pagelock_tensor::Tensor;
/// let (x, y) = (Tensor::new([[1.0, 0.0]])?, Tensor::new([[2.0, 0.0]])?);
/// assert_eq!(CosineSimilarity::new().forward(&x, &y)?.to_vec::<f32>()?, [1.0]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Module)]
pub struct CosineSimilarity {
    #[module(skip)]
    dim: isize,
    #[module(skip)]
    eps: f64,
}

impl CosineSimilarity {
    /// Along dimension 1; a norm below 1e-8 counts as 1e-8.
    pub fn new() -> Self {
        Self { dim: 1, eps: 1e-8 }
    }

    /// The cosines.
    ///
    /// # Errors
    /// As [`functional::cosine_similarity`].
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        functional::cosine_similarity(x1, x2, self.dim, self.eps)
    }
}

setters! { CosineSimilarity,
    /// Along this dimension.
    dim: isize;
    /// The smallest norm: a norm below `eps` counts as `eps`.
    eps: f64;
}

default_is_new!(CosineSimilarity);

debug_is_display!(CosineSimilarity);

/// The norm of the difference of vectors along the last dimension, as PyTorch's `nn.PairwiseDistance`.
///
/// ```
/// use pagelock_nn::PairwiseDistance;
/// # use pagelock_tensor::Tensor;
/// let (x, y) = (Tensor::new([[3.0, 0.0]])?, Tensor::new([[0.0, 4.0]])?);
/// assert!((PairwiseDistance::new().forward(&x, &y)?.item::<f32>()? - 5.0).abs() < 1e-5);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Module)]
pub struct PairwiseDistance {
    #[module(skip)]
    p: f64,
    #[module(skip)]
    eps: f64,
    #[module(skip)]
    keepdim: bool,
}

impl PairwiseDistance {
    /// The Euclidean norm; 1e-6 is added to differences.
    pub fn new() -> Self {
        Self { p: 2.0, eps: 1e-6, keepdim: false }
    }

    /// The distances.
    ///
    /// # Errors
    /// As [`functional::pairwise_distance`].
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        let distances = functional::pairwise_distance(x1, x2, self.p, self.eps)?;
        if self.keepdim { distances.unsqueeze(-1) } else { Ok(distances) }
    }
}

setters! { PairwiseDistance,
    /// The order of the norm.
    p: f64;
    /// What is added to differences.
    eps: f64;
    /// Whether the last dimension is kept, with size 1.
    keepdim: bool;
}

default_is_new!(PairwiseDistance);

debug_is_display!(PairwiseDistance);
