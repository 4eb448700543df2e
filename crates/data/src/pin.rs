//! [`PinMemory`]: batches whose tensors can be put into page-locked memory, or on a device.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};
use std::path::PathBuf;
use std::time::Duration;

use pagelock_tensor::{AnyTensor, Kind, Tensor, TensorMap};

use crate::Result;

/// A batch whose tensors can be moved: by [`DataLoader::pin_memory`](crate::DataLoader::pin_memory) into page-locked
/// memory, by [`DataLoader::to`](crate::DataLoader::to) to a device. Tensors and maps of tensors ([`TensorMap`])
/// implement it, and so do tuples, arrays, vectors, options, boxes and maps of `PinMemory` types. Numbers and texts
/// have nothing to pin.
///
/// `#[derive(PinMemory)]` implements it for a struct or an enum, field by field. `#[pin(skip)]` on a field leaves
/// that field as it is. `#[pin(crate = path::to::data)]` on the type names the path of `pagelock_data`, if that is
/// neither a dependency nor in `pagelock`.
///
/// # Examples
/// ```
/// use pagelock_data::{DataLoader, PinMemory, Result, Stack, TensorDataset};
/// use pagelock_tensor::Tensor;
///
/// #[derive(PinMemory)]
/// struct Batch {
///     input: Tensor,
///     target: Tensor,
/// }
///
/// fn collate(samples: Vec<(Tensor, Tensor)>) -> Result<Batch> {
///     let (input, target) = Stack::stack(samples)?;
///     Ok(Batch { input, target })
/// }
///
/// let dataset = TensorDataset::new((Tensor::zeros([8, 4])?, Tensor::ones([8, 4])?))?;
/// for batch in &DataLoader::with_collate(dataset, collate).batch_size(4).pin_memory(true) {
///     let batch = batch?;
///     assert!(batch.input.is_pinned() && batch.target.is_pinned());
/// }
/// # Ok::<(), pagelock_data::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "batches of type `{Self}` cannot be page-locked: the type does not implement `PinMemory`",
    label = "`PinMemory` is not implemented for this type",
    note = "write `#[derive(PinMemory)]` above the type, and `#[pin(skip)]` on fields that must not be moved",
    note = "tensors, numbers, texts, and tuples, arrays, vectors, options and maps of them implement `PinMemory`"
)]
pub trait PinMemory: Sized {
    /// Moves every tensor with [`Slots::take`]: into page-locked memory, or to a device.
    ///
    /// # Errors
    /// Those of [`Slots::take`].
    fn move_into(self, slots: &Slots<'_>) -> Result<Self>;

    /// Whether every tensor is in page-locked memory, and without gaps: no other elements lie between its own.
    fn is_pinned(&self) -> bool;
}

/// The destination of the tensors of a loader's batches: its page-locked memory, or a device. The argument of
/// [`PinMemory::move_into`].
pub struct Slots<'a>(&'a dyn Destination);

/// Page-locked memory, or a device.
pub(crate) trait Destination {
    /// `tensor` at the destination: itself if it is there already, else a copy.
    fn take(&self, tensor: AnyTensor) -> Result<AnyTensor>;
}

impl<'a> Slots<'a> {
    pub(crate) fn new(destination: &'a dyn Destination) -> Self {
        Self(destination)
    }

    /// `tensor` at the destination: itself if it is there already, else a copy.
    ///
    /// # Errors
    /// [`Error::Tensor`](crate::Error::Tensor) if memory is refused, or for a tensor on a GPU that is to be page-locked.
    pub fn take<K: Kind>(&self, tensor: Tensor<K>) -> Result<Tensor<K>> {
        Ok(self.0.take(tensor.into())?.kind()?)
    }
}

/// Where the tensors are already, but without gaps: when page-locked memory has run out.
pub(crate) struct WithoutGaps;

impl Destination for WithoutGaps {
    fn take(&self, tensor: AnyTensor) -> Result<AnyTensor> {
        if has_gaps(tensor.dims(), tensor.strides()) { without_gaps(&tensor) } else { Ok(tensor) }
    }
}

/// Whether a tensor's memory has other elements between its first and its last, or shows elements twice. If not, each
/// stride is the product of the sizes of all dimensions further in.
fn has_gaps(dims: &[usize], strides: &[usize]) -> bool {
    let is_further_in = |other: usize, dim: usize| (strides[other], dim) < (strides[dim], other);
    let n_further_in = |dim: usize| -> usize {
        (0..dims.len()).filter(|&other| other != dim && is_further_in(other, dim)).map(|other| dims[other]).product()
    };
    !dims.contains(&0) && (0..dims.len()).any(|dim| dims[dim] > 1 && strides[dim] != n_further_in(dim))
}

/// A copy without gaps and without a gradient. Its dimensions have the same order in memory, so strides are kept if there
/// were no gaps. The copy of an expanded tensor is contiguous.
pub(crate) fn without_gaps(tensor: &AnyTensor) -> Result<AnyTensor> {
    Ok(match tensor.dtype() {
        dtype if dtype.is_float() => in_order(tensor.float()?.detach())?.into(),
        dtype if dtype.is_int() => in_order(tensor.int()?)?.into(),
        _ => in_order(tensor.bool()?)?.into(),
    })
}

fn in_order<K: Kind>(mut tensor: Tensor<K>) -> Result<Tensor<K>> {
    if tensor.dims().iter().zip(tensor.strides()).any(|(&size, &stride)| size > 1 && stride == 0) {
        return Ok(tensor.deep_clone()?);
    }
    let mut swaps = Vec::new();
    for at in 0..tensor.rank() {
        let widest = (at..tensor.rank()).rev().max_by_key(|&dim| tensor.strides()[dim]).unwrap_or(at);
        if widest != at {
            tensor = tensor.transpose(at as isize, widest as isize)?;
            swaps.push([at as isize, widest as isize]);
        }
    }
    swaps.iter().rev().try_fold(tensor.deep_clone()?, |copy, &[a, b]| Ok(copy.transpose(a, b)?))
}

impl<K: Kind> PinMemory for Tensor<K> {
    fn move_into(self, slots: &Slots<'_>) -> Result<Self> {
        slots.take(self)
    }

    fn is_pinned(&self) -> bool {
        Tensor::is_pinned(self) && !has_gaps(self.dims(), self.strides())
    }
}

impl PinMemory for AnyTensor {
    fn move_into(self, slots: &Slots<'_>) -> Result<Self> {
        slots.0.take(self)
    }

    fn is_pinned(&self) -> bool {
        AnyTensor::is_pinned(self) && !has_gaps(self.dims(), self.strides())
    }
}

impl PinMemory for TensorMap {
    fn move_into(self, slots: &Slots<'_>) -> Result<Self> {
        self.map_tensors(|_, tensor| tensor.clone().move_into(slots))
    }

    fn is_pinned(&self) -> bool {
        self.iter().all(|(_, tensor)| PinMemory::is_pinned(tensor))
    }
}

macro_rules! nothing_to_pin {
    ($($type:ty)*) => {$(
        impl PinMemory for $type {
            fn move_into(self, _slots: &Slots<'_>) -> Result<Self> {
                Ok(self)
            }

            fn is_pinned(&self) -> bool {
                true
            }
        }
    )*};
}

nothing_to_pin! {
    () bool char f32 f64 i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize &'static str String PathBuf Duration
}

macro_rules! pin_tuples {
    ($(($($part:ident: $type:ident),+))*) => {$(
        impl<$($type: PinMemory),+> PinMemory for ($($type,)+) {
            fn move_into(self, slots: &Slots<'_>) -> Result<Self> {
                let ($($part,)+) = self;
                Ok(($($part.move_into(slots)?,)+))
            }

            fn is_pinned(&self) -> bool {
                let ($($part,)+) = self;
                $($part.is_pinned())&&+
            }
        }
    )*};
}

pin_tuples! {
    (a: A)
    (a: A, b: B)
    (a: A, b: B, c: C)
    (a: A, b: B, c: C, d: D)
    (a: A, b: B, c: C, d: D, e: E)
    (a: A, b: B, c: C, d: D, e: E, f: F)
}

impl<T: PinMemory> PinMemory for Vec<T> {
    fn move_into(self, slots: &Slots<'_>) -> Result<Self> {
        self.into_iter().map(|part| part.move_into(slots)).collect()
    }

    fn is_pinned(&self) -> bool {
        self.iter().all(T::is_pinned)
    }
}

impl<T: PinMemory, const N: usize> PinMemory for [T; N] {
    fn move_into(self, slots: &Slots<'_>) -> Result<Self> {
        let pinned = Vec::from(self).move_into(slots)?;
        Ok(pinned.try_into().unwrap_or_else(|_| unreachable!("`move_into` keeps the number of parts")))
    }

    fn is_pinned(&self) -> bool {
        self.iter().all(T::is_pinned)
    }
}

impl<T: PinMemory> PinMemory for Option<T> {
    fn move_into(self, slots: &Slots<'_>) -> Result<Self> {
        self.map(|part| part.move_into(slots)).transpose()
    }

    fn is_pinned(&self) -> bool {
        self.as_ref().is_none_or(T::is_pinned)
    }
}

impl<T: PinMemory> PinMemory for Box<T> {
    fn move_into(self, slots: &Slots<'_>) -> Result<Self> {
        Ok(Box::new((*self).move_into(slots)?))
    }

    fn is_pinned(&self) -> bool {
        T::is_pinned(self)
    }
}

impl<K: Ord, V: PinMemory> PinMemory for BTreeMap<K, V> {
    fn move_into(self, slots: &Slots<'_>) -> Result<Self> {
        self.into_iter().map(|(key, part)| Ok((key, part.move_into(slots)?))).collect()
    }

    fn is_pinned(&self) -> bool {
        self.values().all(V::is_pinned)
    }
}

impl<K: Eq + Hash, V: PinMemory, S: BuildHasher + Default> PinMemory for HashMap<K, V, S> {
    fn move_into(self, slots: &Slots<'_>) -> Result<Self> {
        self.into_iter().map(|(key, part)| Ok((key, part.move_into(slots)?))).collect()
    }

    fn is_pinned(&self) -> bool {
        self.values().all(V::is_pinned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_repeated_elements_are_found_and_closed() -> Result<()> {
        let x = Tensor::arange(0_i64, 60, 1)?.reshape([3, 4, 5])?;
        let dense = [x.clone(), x.permute([2, 0, 1])?, x.narrow(0, 1, 1)?, x.narrow(0, 1, 2)?, x.narrow(0, 3, 0)?];
        for x in dense {
            assert!(!has_gaps(x.dims(), x.strides()), "{:?}", x.strides());
        }
        let every_third = x.flatten(0, -1)?.narrow(0, 0, 6)?.reshape([2, 3])?.narrow(1, 0, 1)?.expand([2, 2])?;
        let of_one = x.narrow(0, 1, 1)?.expand([7, 4, 5])?;
        for x in [every_third, of_one, x.narrow(1, 0, 2)?, x.permute([2, 1, 0])?.narrow(1, 1, 2)?] {
            assert!(has_gaps(x.dims(), x.strides()), "{:?}", x.strides());
            let closed = without_gaps(&x.clone().into())?.int()?;
            assert!(!has_gaps(closed.dims(), closed.strides()), "{:?}", closed.strides());
            assert!(!x.strides().contains(&0) || closed.strides() == x.contiguous()?.strides());
            assert_eq!(closed.to_vec::<i64>()?, x.to_vec::<i64>()?);
        }
        Ok(())
    }
}
