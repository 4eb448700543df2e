//! [`Embedding`]: a table of vectors that is read by index.

use super::debug_is_display;
use crate::functional::pieces::wrong_argument;
use crate::{Module, Parameter, functional, init, module_scope};
use pagelock_tensor::{Generator, Int, Result, Tensor, default_generator, no_grad};

/// A vector for each index, as PyTorch's `nn.Embedding`.
///
/// - input: integers of any shape `[..]`, each at least 0 and below `num_embeddings`
/// - output: `[.., embedding_dim]`
///
/// The vectors begin normally distributed with mean 0 and deviation 1. Gradients of rows that are read several times are added
/// in a fixed order, so that they have the same bits in each run.
///
/// # Examples
/// ```
/// use pagelock_nn::Embedding;
/// use pagelock_tensor::Tensor;
///
/// let words = Embedding::new(10_000, 64)?.padding_idx(0)?;
/// let sentences = Tensor::new([[17, 4, 0], [256, 8, 9]])?;
/// let vectors = words.forward(&sentences)?;
/// assert_eq!(vectors.dims(), [2, 3, 64]);
/// vectors.sum(..)?.backward()?;
/// assert_eq!(words.weight.grad().unwrap().select(0, 0)?.to_vec::<f32>()?, [0.0; 64]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(details = Self::describe)]
pub struct Embedding {
    /// `[num_embeddings, embedding_dim]`
    pub weight: Parameter,
    #[module(skip)]
    padding_idx: Option<usize>,
}

impl Embedding {
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
        let weight = Tensor::zeros([num_embeddings, embedding_dim])?;
        init::normal_(&weight, 0.0, 1.0, generator)?;
        Ok(Self { weight: Parameter::new(weight), padding_idx: None })
    }

    /// A table of these vectors, `[num_embeddings, embedding_dim]`, which share their memory. They are trained; PyTorch's
    /// default is [`requires_grad_(false)`](Module::requires_grad_).
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if there are not two dimensions.
    pub fn from_pretrained(vectors: Tensor) -> Result<Self> {
        functional::check_table("Embedding", &vectors)?;
        Ok(Self { weight: Parameter::new(vectors), padding_idx: None })
    }

    /// The index of what is no word: its vector becomes zeros, and gets no gradient. Negative ones count from the end.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if there is no such index.
    pub fn padding_idx(mut self, padding_idx: isize) -> Result<Self> {
        let count = self.weight.dims()[0];
        let from_start = if padding_idx < 0 { padding_idx.checked_add_unsigned(count) } else { Some(padding_idx) };
        let from_start = from_start.and_then(|index| usize::try_from(index).ok()).filter(|&index| index < count);
        let Some(index) = from_start else {
            return Err(wrong_argument(
                "Embedding",
                "padding_idx",
                padding_idx,
                &format!("an index of {count} vectors"),
            ));
        };
        no_grad(|| self.weight.narrow(0, index, 1)?.zero_())?;
        self.padding_idx = Some(index);
        Ok(self)
    }

    /// The vectors of `index`.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`](pagelock_tensor::Error::IndexOutOfRange) for an index that there is not.
    pub fn forward(&self, index: &Tensor<Int>) -> Result<Tensor> {
        let _scope = module_scope(self);
        functional::embedding(index, &self.weight, self.padding_idx)
    }

    fn describe(&self) -> String {
        let (count, width) = (self.weight.dims()[0], self.weight.dims()[1]);
        let padding = self.padding_idx.map_or(String::new(), |index| format!(", padding_idx={index}"));
        format!("{count}, {width}{padding}")
    }
}

debug_is_display!(Embedding);
