//! [`Embedding`]: a table of vectors that is read by index.

use super::{debug_is_display, number};
use crate::functional::EmbeddingOptions;
use crate::functional::shared::{size, wrong_argument};
use crate::parameter::charged;
use crate::setters::setters;
use crate::{Module, Parameter, functional, init, module_scope};
use pagelock_tensor::{Generator, Int, Result, Tensor, default_generator, no_grad};

/// A vector for each index, as PyTorch's `nn.Embedding`.
///
/// - input: integers of any shape `[..]`, each at least 0 and below `num_embeddings`
/// - output: `[.., embedding_dim]`
///
/// The vectors are initialized with normally distributed numbers of mean 0 and standard deviation 1. Gradients of
/// rows that are read several times are added in a fixed order, so that they have the same bits in each run.
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
    options: EmbeddingOptions,
    #[module(skip)]
    is_pretrained: bool,
}

setters! { Embedding,
    /// The largest Euclidean norm of a vector. A longer vector that is read is first scaled down to it, in the table
    /// itself.
    max_norm: f64 => options.max_norm = Some(max_norm);
    /// The order of the norm for [`max_norm`](Self::max_norm); 2, the Euclidean norm, by default.
    norm_type: f64 => options.norm_type = norm_type;
    /// Whether the gradient of a vector is divided by the number of times that the index contains it.
    scale_grad_by_freq: bool => options.scale_grad_by_freq = scale_grad_by_freq;
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
        let weight = table(num_embeddings, embedding_dim, generator)?;
        Ok(Self { weight, options: EmbeddingOptions::default(), is_pretrained: false })
    }

    /// A table of `vectors`, `[num_embeddings, embedding_dim]`, whose memory it shares. The table is trained. PyTorch
    /// freezes it by default, as [`requires_grad_(false)`](Module::requires_grad_) does.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if there are not two dimensions.
    pub fn from_pretrained(vectors: Tensor) -> Result<Self> {
        functional::check_table("Embedding", &vectors, None)?;
        Ok(Self { weight: Parameter::new(vectors), options: EmbeddingOptions::default(), is_pretrained: true })
    }

    /// The index that marks padding: its vector gets no gradient, and is set to zeros unless the table is
    /// [pretrained](Self::from_pretrained). A negative index counts from the end.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if there is no such index.
    pub fn padding_idx(mut self, padding_idx: isize) -> Result<Self> {
        let index = padding_row("Embedding", &self.weight, padding_idx)?;
        if !self.is_pretrained {
            no_grad(|| self.weight.narrow(0, index, 1)?.zero_())?;
        }
        self.options.padding_idx = Some(index);
        Ok(self)
    }

    /// The vectors of `index`.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`](pagelock_tensor::Error::IndexOutOfRange) for an index outside of the table.
    pub fn forward(&self, index: &Tensor<Int>) -> Result<Tensor> {
        let _scope = module_scope(self);
        functional::embedding_with(index, &self.weight, self.options)
    }

    fn describe(&self) -> String {
        let (count, width) = (size(&self.weight, 0), size(&self.weight, 1));
        let EmbeddingOptions { padding_idx, max_norm, norm_type, scale_grad_by_freq } = self.options;
        let mut text = format!("{count}, {width}");
        text.extend(padding_idx.map(|index| format!(", padding_idx={index}")));
        text.extend(max_norm.map(|norm| format!(", max_norm={}", number(norm))));
        text.extend((norm_type != 2.0).then(|| format!(", norm_type={}", number(norm_type))));
        text.extend(scale_grad_by_freq.then(|| ", scale_grad_by_freq=True".to_owned()));
        text
    }
}

/// A table of normally distributed numbers.
pub(super) fn table(num_embeddings: usize, embedding_dim: usize, generator: &Generator) -> Result<Parameter> {
    let _charged = charged();
    let weight = Tensor::zeros([num_embeddings, embedding_dim])?;
    init::normal_(&weight, 0.0, 1.0, generator)?;
    Ok(Parameter::new(weight))
}

/// The row of a table that `padding_idx` means; a negative one counts from the end.
pub(super) fn padding_row(op: &str, table: &Tensor, padding_idx: isize) -> Result<usize> {
    let count = size(table, 0);
    let from_start = if padding_idx < 0 { padding_idx.checked_add_unsigned(count) } else { Some(padding_idx) };
    let row = from_start.and_then(|index| usize::try_from(index).ok()).filter(|&index| index < count);
    row.ok_or_else(|| wrong_argument(op, "padding_idx", padding_idx, &format!("an index into the {count} vectors")))
}

debug_is_display!(Embedding);
