//! [`EmbeddingBag`]: sums, means or elementwise maxima of vectors that are read by index.

use super::debug_is_display;
use super::embedding::{padding_row, table};
use crate::functional::shared::size;
use crate::functional::{self as F, EmbeddingBagMode, EmbeddingBagOptions};
use crate::setters::setters;
use crate::{Module, Parameter, module_scope};
use pagelock_tensor::{Generator, Int, Result, Tensor, default_generator, no_grad};

/// One vector for each bag of indices, as PyTorch's `nn.EmbeddingBag`: the mean of the vectors at these indices,
/// unless another [`mode`](Self::mode) is chosen. The vectors are initialized with normally distributed numbers of
/// mean 0 and standard deviation 1.
///
/// - input: integers `[bags, words]`, or `[words]` with the offsets at which bags begin
/// - output: `[bags, embedding_dim]`
///
/// ```
/// use pagelock_nn::EmbeddingBag;
/// # use pagelock_tensor::Tensor;
/// let bags = EmbeddingBag::new(10, 3)?;
/// assert_eq!(bags.forward(&Tensor::new([[1, 2, 4], [4, 3, 9]])?)?.dims(), [2, 3]);
/// let (words, offsets) = (Tensor::new([1, 2, 4, 5, 4, 3, 2, 9])?, Tensor::new([0, 4])?);
/// assert_eq!(bags.forward_offsets(&words, &offsets)?.dims(), [2, 3]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(details = Self::describe)]
pub struct EmbeddingBag {
    /// `[num_embeddings, embedding_dim]`
    pub weight: Parameter,
    #[module(skip)]
    mode: EmbeddingBagMode,
    #[module(skip)]
    include_last_offset: bool,
    #[module(skip)]
    padding_idx: Option<usize>,
}

setters! { EmbeddingBag,
    /// How the vectors of a bag are combined.
    mode: EmbeddingBagMode;
    /// Whether offsets have one more element, the end of the last bag.
    include_last_offset: bool;
}

impl EmbeddingBag {
    /// A table with vectors from the default generator.
    ///
    /// # Errors
    /// The vectors do not fit the memory budget.
    pub fn new(num_embeddings: usize, embedding_dim: usize) -> Result<Self> {
        Self::new_with(num_embeddings, embedding_dim, default_generator())
    }

    /// A table with vectors from `generator`.
    ///
    /// # Errors
    /// The vectors do not fit the memory budget.
    pub fn new_with(num_embeddings: usize, embedding_dim: usize, generator: &Generator) -> Result<Self> {
        let weight = table(num_embeddings, embedding_dim, generator)?;
        Ok(Self { weight, mode: EmbeddingBagMode::default(), include_last_offset: false, padding_idx: None })
    }

    /// The index that marks padding, which is left out of its bag; its vector is set to zeros. A negative index counts
    /// from the end.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if there is no such index.
    pub fn padding_idx(mut self, padding_idx: isize) -> Result<Self> {
        let index = padding_row("EmbeddingBag", &self.weight, padding_idx)?;
        no_grad(|| self.weight.narrow(0, index, 1)?.zero_())?;
        self.padding_idx = Some(index);
        Ok(self)
    }

    fn options(&self) -> EmbeddingBagOptions<'_> {
        let Self { mode, include_last_offset, padding_idx, .. } = *self;
        EmbeddingBagOptions { mode, include_last_offset, padding_idx, ..EmbeddingBagOptions::default() }
    }

    /// One vector for each row of `index`.
    ///
    /// # Errors
    /// As [`functional::embedding_bag`](F::embedding_bag).
    pub fn forward(&self, index: &Tensor<Int>) -> Result<Tensor> {
        self.forward_with(index, self.options())
    }

    /// One vector for each bag of `index`; bags begin at `offsets`.
    ///
    /// # Errors
    /// As [`functional::embedding_bag`](F::embedding_bag).
    pub fn forward_offsets(&self, index: &Tensor<Int>, offsets: &Tensor<Int>) -> Result<Tensor> {
        self.forward_with(index, EmbeddingBagOptions { offsets: Some(offsets), ..self.options() })
    }

    /// Sums of vectors times `per_sample_weights`, which have the shape of `index`.
    ///
    /// # Errors
    /// As [`functional::embedding_bag`](F::embedding_bag).
    pub fn forward_weighted(
        &self,
        index: &Tensor<Int>,
        offsets: Option<&Tensor<Int>>,
        per_sample_weights: &Tensor,
    ) -> Result<Tensor> {
        let per_sample_weights = Some(per_sample_weights);
        self.forward_with(index, EmbeddingBagOptions { offsets, per_sample_weights, ..self.options() })
    }

    fn forward_with(&self, index: &Tensor<Int>, options: EmbeddingBagOptions<'_>) -> Result<Tensor> {
        let _scope = module_scope(self);
        F::embedding_bag(index, &self.weight, options)
    }

    fn describe(&self) -> String {
        let (sizes, mode) = ([0, 1].map(|dim| size(&self.weight, dim)), format!("{:?}", self.mode).to_lowercase());
        let padding = self.padding_idx.map_or(String::new(), |index| format!(", padding_idx={index}"));
        format!("{}, {}, mode='{mode}'{padding}", sizes[0], sizes[1])
    }
}

debug_is_display!(EmbeddingBag);
