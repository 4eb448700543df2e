//! Tensors in parts: views of them, one after another.

use crate::error::{Error, Result};
use crate::heap::CountedHeap;
use crate::kind::Kind;
use crate::tensor::{Raw, Tensor};

impl<K: Kind> Tensor<K> {
    /// Views of at most `size` entries of a dimension each, one after another; the last one may be smaller.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let parts = Tensor::arange(0, 5, 1)?.split(2, 0)?;
    /// assert_eq!(parts.len(), 3);
    /// assert_eq!(parts[2].to_vec::<i64>()?, [4]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or for a size of 0.
    pub fn split(&self, size: usize, dim: isize) -> Result<Vec<Tensor<K>>> {
        typed(split(self.raw(), "split", size, dim)?)
    }

    /// Views of so many entries of a dimension as `sizes` say, which have to be as many as there are.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or the sizes do not add up.
    pub fn split_sizes(&self, sizes: &[usize], dim: isize) -> Result<Vec<Tensor<K>>> {
        typed(split_sizes(self.raw(), sizes, dim)?)
    }

    /// At most `chunks` views of equal size, but for the last one, one after another along a dimension.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or for 0 chunks.
    pub fn chunk(&self, chunks: usize, dim: isize) -> Result<Vec<Tensor<K>>> {
        let size = self.shape()[self.shape().dim("chunk", dim)?];
        if chunks == 0 {
            return Err(Error::bad_argument("chunk", "chunks", 0, "it must be at least 1"));
        }
        typed(split(self.raw(), "chunk", size.div_ceil(chunks).max(1), dim)?)
    }

    /// A view of every entry of a dimension, without that dimension.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let rows = Tensor::new([[1, 2], [3, 4]])?.unbind(0)?;
    /// assert_eq!(rows[1].to_vec::<i64>()?, [3, 4]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension.
    pub fn unbind(&self, dim: isize) -> Result<Vec<Tensor<K>>> {
        let size = self.shape()[self.shape().dim("unbind", dim)?];
        let _list = room_for_list("unbind", size)?;
        (0..size as isize).map(|i| self.select(dim, i)).collect()
    }
}

/// What a list of tensors takes, while it is made.
fn room_for_list(op: &'static str, n_parts: usize) -> Result<CountedHeap> {
    CountedHeap::granted(op, "the list of parts", n_parts.saturating_mul(size_of::<Raw>()).min(isize::MAX as usize))
}

fn typed<K: Kind>(parts: Vec<Raw>) -> Result<Vec<Tensor<K>>> {
    Ok(parts.into_iter().map(Raw::typed).collect())
}

fn split(x: &Raw, op: &'static str, part: usize, dim: isize) -> Result<Vec<Raw>> {
    let size = x.shape()[x.shape().dim(op, dim)?];
    if part == 0 {
        return Err(Error::bad_argument(op, "size", 0, "it must be at least 1"));
    }
    let starts = (0..size.max(1)).step_by(part);
    let _list = room_for_list(op, starts.len())?;
    starts.map(|start| x.narrow(dim, start, part.min(size - start))).collect()
}

fn split_sizes(x: &Raw, sizes: &[usize], dim: isize) -> Result<Vec<Raw>> {
    let size = x.shape()[x.shape().dim("split_sizes", dim)?];
    let total = sizes.iter().try_fold(0_usize, |sum, &part| sum.checked_add(part));
    if total != Some(size) {
        let expected = format!("they must add up to the {size} entries of dimension {dim} of {}", x.shape());
        return Err(Error::bad_argument("split_sizes", "sizes", format!("{sizes:?}"), expected));
    }
    let starts = sizes.iter().scan(0, |start, &part| {
        *start += part;
        Some((*start - part, part))
    });
    starts.map(|(start, part)| x.narrow(dim, start, part)).collect()
}
