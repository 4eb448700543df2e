//! [`TokenBlocks`]: one long text as examples for a language model.

use pagelock_tensor::{Int, Tensor};

use crate::dataset::{Dataset, TensorDataset, check_index};
use crate::{Error, Result};

/// Blocks of consecutive tokens. Sample `i` is a pair: `tokens[i · stride ..][.. block]`, and the block one token
/// further on, which a model is to predict. Samples share the memory of the tokens.
///
/// # Examples
/// ```
/// use pagelock_data::Dataset;
/// use pagelock_data::text::TokenBlocks;
/// use pagelock_tensor::Tensor;
///
/// let blocks = TokenBlocks::new(Tensor::arange(0, 10, 1)?, 4)?;
/// assert_eq!(blocks.len(), 2); // and one token that fills no block
/// let (x, y) = blocks.get(1)?;
/// assert_eq!((x.to_vec::<i64>()?, y.to_vec::<i64>()?), (vec![4, 5, 6, 7], vec![5, 6, 7, 8]));
/// assert_eq!(blocks.stride(1).len(), 6); // every place is a start
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[derive(Clone)]
pub struct TokenBlocks {
    tokens: TensorDataset<Tensor<Int>>,
    block_size: usize,
    stride: usize,
}

impl TokenBlocks {
    /// Blocks of `block_size` tokens, one after another. `tokens` is `[tokens]`.
    ///
    /// # Errors
    /// [`Error::Argument`] if `tokens` does not have one dimension, has no more tokens than a block, or if
    /// `block_size` is 0.
    pub fn new(tokens: Tensor<Int>, block_size: usize) -> Result<Self> {
        match *tokens.dims() {
            [len] if block_size > 0 && len > block_size => {}
            _ => {
                let shape = tokens.shape();
                return Err(Error::Argument(format!(
                    "tokens of shape {shape} do not fill a block of {block_size} tokens plus one; give one dimension \
                     with at least {} tokens and a block of at least 1",
                    block_size.saturating_add(1)
                )));
            }
        }
        Ok(Self { tokens: TensorDataset::new(tokens)?, block_size, stride: block_size })
    }

    /// The distance between the starts of two blocks, at least 1; the length of a block unless set.
    pub fn stride(mut self, stride: usize) -> Self {
        self.stride = stride.max(1);
        self
    }
}

impl Dataset for TokenBlocks {
    type Sample = (Tensor<Int>, Tensor<Int>);

    fn len(&self) -> usize {
        (self.tokens.len() - 1 - self.block_size) / self.stride + 1
    }

    fn get(&self, index: usize) -> Result<Self::Sample> {
        check_index(index, self.len())?;
        let start = index * self.stride;
        let block = |start: usize| self.tokens.slice(start..start + self.block_size);
        Ok((block(start)?, block(start + 1)?))
    }

    fn identity(&self) -> String {
        format!("blocks of {} tokens, {} apart, of {}", self.block_size, self.stride, self.tokens.identity())
    }
}
