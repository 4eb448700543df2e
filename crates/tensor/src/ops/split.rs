//! Splitting tensors, moving and rotating dimensions, and copying whole tensors.

use crate::error::{Error, Result};
use crate::heap::CountedHeap;
use crate::inlined::Array;
use crate::kind::Kind;
use crate::shape::Axes;
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

    /// Consecutive views of a dimension, whose lengths are `sizes`; these must add up to the size of the dimension.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or the sizes do not add up.
    pub fn split_sizes(&self, sizes: &[usize], dim: isize) -> Result<Vec<Tensor<K>>> {
        typed(split_sizes(self.raw(), sizes, dim)?)
    }

    /// At most `chunks` consecutive views along a dimension, of equal size; the last one may be smaller.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or for 0 chunks.
    pub fn chunk(&self, chunks: usize, dim: isize) -> Result<Vec<Tensor<K>>> {
        let size = self.shape()[self.shape().dim("chunk", dim)?];
        if chunks == 0 {
            return Err(Error::bad_argument("chunk", "chunks", 0, "it must be at least 1"));
        }
        if size == 0 {
            let _list = room_for_list("chunk", chunks)?;
            return Ok(vec![self.clone(); chunks]);
        }
        typed(split(self.raw(), "chunk", size.div_ceil(chunks), dim)?)
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

impl<K: Kind> Tensor<K> {
    /// A view with dimensions `source` moved to positions `destination`. All other dimensions keep their order.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let images = Tensor::zeros([8, 28, 32, 3])?;
    /// assert_eq!(images.movedim(&[-1], &[1])?.dims(), [8, 3, 28, 32]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, one is named twice, or the numbers of dimensions differ.
    pub fn movedim(&self, source: &[isize], destination: &[isize]) -> Result<Tensor<K>> {
        movedim(self.raw(), source, destination).map(Raw::typed)
    }

    /// Dimensions `a` and `b` exchanged: another name of [`Tensor::transpose`].
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension.
    pub fn swapaxes(&self, a: isize, b: isize) -> Result<Tensor<K>> {
        self.transpose(a, b)
    }

    /// The elements rotated by `k` quarter turns in the plane of two dimensions, from the first towards the second.
    /// PyTorch's defaults are 1 and `[0, 1]`.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[1, 2], [3, 4]])?.rot90(1, [0, 1])?;
    /// assert_eq!(x.to_vec::<i64>()?, [2, 4, 1, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or both are the same.
    pub fn rot90(&self, k: isize, dims: [isize; 2]) -> Result<Tensor<K>> {
        dims.resolve("rot90", self.shape())?;
        let [a, b] = dims;
        match k.rem_euclid(4) {
            0 => self.deep_clone(),
            1 => self.flip(&[b])?.transpose(a, b),
            2 => self.flip(&[a, b]),
            _ => self.flip(&[a])?.transpose(a, b),
        }
    }

    /// A copy of the elements in a storage of its own, without gaps: PyTorch's `clone`. Gradients flow back. (Rust's `clone` of a
    /// tensor is a second handle to the same elements.)
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::zeros([2])?;
    /// let (handle, copy) = (x.clone(), x.deep_clone()?);
    /// x.fill_(1.0)?;
    /// assert_eq!(handle.to_vec::<f32>()?, [1.0, 1.0]);
    /// assert_eq!(copy.to_vec::<f32>()?, [0.0, 0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if the copy does not fit the budget.
    pub fn deep_clone(&self) -> Result<Tensor<K>> {
        self.raw().deep_clone().map(Raw::typed)
    }
}

pub(super) fn movedim(x: &Raw, source: &[isize], destination: &[isize]) -> Result<Raw> {
    source.resolve("movedim", x.shape())?;
    destination.resolve("movedim", x.shape())?;
    if source.len() != destination.len() {
        let expected = format!("there must be one for each of {source:?}");
        return Err(Error::bad_argument("movedim", "destination", format!("{destination:?}"), expected));
    }
    let place = |dim: &isize| dim.rem_euclid(x.rank().max(1) as isize);
    let [source, destination] = [source, destination].mapped(|dims| dims.iter().map(place).collect::<Vec<_>>());
    let mut others = (0..x.rank() as isize).filter(|dim| !source.contains(dim));
    let moved = |at: isize| destination.iter().position(|to| *to == at).map(|i| source[i]);
    let order: Vec<isize> = (0..x.rank() as isize).filter_map(|at| moved(at).or_else(|| others.next())).collect();
    x.permute(&order)
}

/// Counts the memory of a list of tensors while the list is made.
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
