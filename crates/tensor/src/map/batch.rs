//! Operations along the batch of a [`TensorMap`], which apply to all of its tensors.

use super::entries::{Entries, Entry, check_budget};
use super::{AnyTensor, TensorMap};
use crate::error::{Error, Result};
use crate::kind::Int;
use crate::shape::{Shape, resolve_dim};
use crate::tensor::Tensor;

impl TensorMap {
    /// Views of all tensors at one index of a batch dimension, which is removed.
    ///
    /// # Errors
    /// [`Error::Argument`] if the batch has no such dimension, [`Error::At`] if the index is out of range.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::{Tensor, TensorMap};
    /// let mut map = TensorMap::new([3])?;
    /// map.set("x", Tensor::new([[1.0], [2.0], [3.0]])?)?;
    /// let last = map.select(0, -1)?;
    /// assert_eq!((last.batch().rank(), last.get("x")?.item::<f32>()?), (0, 3.0));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn select(&self, dim: isize, index: isize) -> Result<TensorMap> {
        let dim = self.batch_dim("select", dim)?;
        let select = |batch: &Shape| Ok(*shaped_like(batch)?.select(dim as isize, index)?.shape());
        self.rebuilt(&mut |tensor| tensor.select(dim as isize, index), &select)
    }

    /// Views of all tensors at `len` indices of a batch dimension, from `start` on.
    ///
    /// # Errors
    /// [`Error::Argument`] if the batch has no such dimension, [`Error::At`] if the indices are out of range.
    pub fn narrow(&self, dim: isize, start: usize, len: usize) -> Result<TensorMap> {
        let dim = self.batch_dim("narrow", dim)?;
        let narrow = |batch: &Shape| Ok(*shaped_like(batch)?.narrow(dim as isize, start, len)?.shape());
        self.rebuilt(&mut |tensor| tensor.narrow(dim as isize, start, len), &narrow)
    }

    /// Copies of all tensors at the indices of a batch dimension that `index` holds, in its order.
    ///
    /// # Errors
    /// [`Error::Argument`] if the batch has no such dimension, [`Error::At`] if an index is out of range.
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::{Tensor, TensorMap};
    /// let mut map = TensorMap::new([3])?;
    /// map.set("x", Tensor::new([1.0, 2.0, 3.0])?)?;
    /// let picked = map.index_select(0, &Tensor::new([2, 2, 0])?)?;
    /// assert_eq!(picked.get("x")?.to_vec::<f32>()?, [3.0, 3.0, 1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn index_select(&self, dim: isize, index: &Tensor<Int>) -> Result<TensorMap> {
        let dim = self.batch_dim("index_select", dim)?;
        if self.is_empty() {
            let entries = Tensor::on(&index.device()).zeros(())?.expand([self.batch[dim]])?;
            entries.index_select(0, index)?; // checks the index
        }
        let pick = &mut |tensor: &AnyTensor| tensor.index_select(dim as isize, index);
        self.rebuilt(pick, &|batch| Ok(batch.with(dim, index.len())))
    }

    /// Stacks maps of the same names and shapes along a new dimension of the batch.
    ///
    /// # Errors
    /// [`Error::Argument`] without maps, or for maps that do not fit; [`Error::At`] with the errors of
    /// [`Tensor::stack`].
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::{Tensor, TensorMap};
    /// let sample = |value: f32| {
    ///     let mut sample = TensorMap::new(())?;
    ///     sample.set("image", Tensor::full([28, 28], value)?)?;
    ///     Ok::<_, pagelock_tensor::Error>(sample)
    /// };
    /// let batch = TensorMap::stack(&[&sample(1.0)?, &sample(2.0)?], 0)?;
    /// assert_eq!((batch.batch(), batch.get("image")?.dims()), (&[2].into_shape()?, &[2, 28, 28][..]));
    /// # use pagelock_tensor::IntoShape;
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn stack(maps: &[&TensorMap], dim: isize) -> Result<TensorMap> {
        let first = first_of("stack", maps)?;
        let dim = resolve_dim("stack", dim, first.batch.rank() + 1, &first.batch)?;
        let batch = |batches: &[&Shape]| {
            let mut batch = *batches[0];
            batch.insert(dim, batches.len())?;
            Ok(batch)
        };
        same_batches("stack", maps, |batch, first| batch == first)?;
        joined("stack", maps, &|tensors| AnyTensor::stack(tensors, dim as isize), &batch)
    }

    /// Concatenates maps of the same names along a dimension of the batch.
    ///
    /// # Errors
    /// [`Error::Argument`] without maps, or for maps that do not fit; [`Error::At`] with the errors of
    /// [`Tensor::cat`].
    ///
    /// # Examples
    /// ```
    /// # use pagelock_tensor::{Tensor, TensorMap};
    /// let mut map = TensorMap::new([3])?;
    /// map.set("x", Tensor::zeros([3, 5])?)?;
    /// let both = TensorMap::cat(&[&map, &map], 0)?;
    /// assert_eq!(both.get("x")?.dims(), [6, 5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn cat(maps: &[&TensorMap], dim: isize) -> Result<TensorMap> {
        let dim = first_of("cat", maps)?.batch_dim("cat", dim)?;
        let batch = |batches: &[&Shape]| {
            let total = batches.iter().fold(0_usize, |total, batch| total.saturating_add(batch[dim]));
            Ok(batches[0].with(dim, total))
        };
        same_batches("cat", maps, |a, b| a.rank() == b.rank() && a.with(dim, 0) == b.with(dim, 0))?;
        joined("cat", maps, &|tensors| AnyTensor::cat(tensors, dim as isize), &batch)
    }

    fn batch_dim(&self, op: &'static str, dim: isize) -> Result<usize> {
        self.batch.dim(op, dim)
    }
}

/// A tensor of that shape, which takes no memory. A map without tensors is checked by it.
fn shaped_like(batch: &Shape) -> Result<Tensor> {
    Tensor::zeros(())?.expand(*batch)
}

fn first_of<'a>(op: &'static str, maps: &[&'a TensorMap]) -> Result<&'a TensorMap> {
    maps.first().copied().ok_or_else(|| Error::empty(op, "the list of maps", "give at least one"))
}

/// Returns an error unless all batches are like the first one.
fn same_batches(op: &'static str, maps: &[&TensorMap], are_alike: impl Fn(&Shape, &Shape) -> bool) -> Result<()> {
    let first = maps[0].batch;
    match maps.iter().position(|map| !are_alike(&map.batch, &first)) {
        None => Ok(()),
        Some(map) => {
            let problem = format!("its batch is {}, but the first one's is {first}", maps[map].batch);
            Err(Error::maps_differ(op, map, "", problem))
        }
    }
}

/// A map of the same names, where `join` makes each tensor from those of one name; an error if a map has other names.
fn joined(
    op: &'static str,
    maps: &[&TensorMap],
    join: &impl Fn(&[&AnyTensor]) -> Result<AnyTensor>,
    batch: &impl Fn(&[&Shape]) -> Result<Shape>,
) -> Result<TensorMap> {
    let mut entries = Entries::new();
    for (map, other) in maps.iter().enumerate() {
        if let Some(name) = other.entries.keys().find(|name| !maps[0].entries.contains_key(*name)) {
            return Err(Error::maps_differ(op, map, name, "the first map has no such entry"));
        }
    }
    for (name, first) in maps[0].entries.iter() {
        let (mut tensors, mut inner) = (Vec::new(), Vec::new());
        for (at, map) in maps.iter().enumerate() {
            match (first, map.entries.get(name)) {
                (Entry::Tensor(_), Some(Entry::Tensor(tensor))) => tensors.push(tensor),
                (Entry::Map(_), Some(Entry::Map(map))) => inner.push(map),
                (_, Some(_)) => return Err(Error::maps_differ(op, at, name, "one is a tensor, the other a map")),
                (_, None) => {
                    return Err(Error::maps_differ(op, at, name, "it has no such entry, but the first map has"));
                }
            }
        }
        let made = match first {
            Entry::Tensor(_) => join(&tensors).map(Entry::Tensor),
            // Inner batches begin with the outer ones, so they may differ in the same dimension, but not in their ranks.
            Entry::Map(_) => same_batches(op, &inner, |batch, first| batch.rank() == first.rank())
                .and_then(|()| joined(op, &inner, join, batch))
                .map(Entry::Map),
        };
        entries.insert(name.clone(), made.map_err(|source| Error::at(name, source))?);
    }
    let batches: Vec<_> = maps.iter().map(|map| &map.batch).collect();
    check_budget(op)?;
    Ok(TensorMap { batch: batch(&batches)?, entries })
}
