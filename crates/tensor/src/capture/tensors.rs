//! [`Tensors`]: what a step takes and returns.

use self::sealed::Sealed;
use crate::device::Device;
use crate::error::Result;
use crate::kind::Kind;
use crate::ops::in_place;
use crate::tensor::{Raw, Tensor};

/// What a [`CapturedStep`](super::CapturedStep) takes and returns: a tensor, a tuple of up to four, a `Vec` of them, or
/// nothing.
pub trait Tensors: Sealed {}

mod sealed {
    use super::{Raw, Result};

    pub trait Sealed: Clone {
        /// Calls `change` with each tensor, up to the first error.
        fn visit_mut(&mut self, change: &mut dyn FnMut(&mut Raw) -> Result<()>) -> Result<()>;

        /// Calls `see` with each tensor and its counterpart in `other` until it returns false. Returns whether it never
        /// did, and both have the same structure.
        fn pairs(&self, other: &Self, see: &mut dyn FnMut(&Raw, &Raw) -> bool) -> bool;
    }
}

/// Calls `see` with each tensor.
pub(crate) fn visit<T: Tensors>(tensors: &T, see: &mut dyn FnMut(&Raw)) {
    tensors.pairs(tensors, &mut |tensor, _| {
        see(tensor);
        true
    });
}

/// These tensors on `device`, without gaps on a GPU, as in the slots.
pub(super) fn on<T: Tensors>(tensors: &T, device: &Device) -> Result<T> {
    let mut moved = tensors.clone();
    moved.visit_mut(&mut |tensor| {
        *tensor = if device.is_cpu() { tensor.to(device)? } else { tensor.dense()?.to(device)? };
        Ok(())
    })?;
    Ok(moved)
}

/// Whether these have the shapes, the types and, apart from gaps, the strides of the slots, the tensors that a graph
/// reads.
pub(super) fn fit<T: Tensors>(tensors: &T, slots: &T) -> bool {
    tensors.pairs(slots, &mut |tensor, slot| {
        let same_kind = tensor.shape() == slot.shape() && tensor.dtype() == slot.dtype();
        same_kind && tensor.layout.dense().strides() == slot.layout.strides()
    })
}

/// Whether any of them is on the host.
pub(super) fn are_on_host<T: Tensors>(tensors: &T) -> bool {
    let mut found = false;
    visit(tensors, &mut |tensor| found |= tensor.storage.device().is_cpu());
    found
}

/// Copies tensors that are on a device into their slots. Returns tensors on the host, without gaps, and their slots.
pub(super) fn copy_from_devices<T: Tensors>(tensors: &T, slots: &T) -> Result<Vec<(Raw, Raw)>> {
    let (mut from_host, mut outcome) = (Vec::new(), Ok(()));
    let mut copy = |tensor: &Raw, slot: &Raw| -> Result<()> {
        let tensor = tensor.without_node();
        if tensor.storage.device().is_cpu() {
            from_host.push((tensor.dense()?, slot.clone()));
            return Ok(());
        }
        in_place::copy(slot, &tensor.to(slot.storage.device())?)
    };
    tensors.pairs(slots, &mut |tensor, slot| {
        outcome = copy(tensor, slot);
        outcome.is_ok()
    });
    outcome.map(|()| from_host)
}

/// These tensors outside the autograd graph.
pub(super) fn detached<T: Tensors>(mut tensors: T) -> Result<T> {
    tensors.visit_mut(&mut |tensor| {
        tensor.node = None;
        Ok(())
    })?;
    Ok(tensors)
}

impl<K: Kind> Tensors for Tensor<K> {}

impl<K: Kind> Sealed for Tensor<K> {
    fn visit_mut(&mut self, change: &mut dyn FnMut(&mut Raw) -> Result<()>) -> Result<()> {
        change(self.raw_mut())
    }

    fn pairs(&self, other: &Self, see: &mut dyn FnMut(&Raw, &Raw) -> bool) -> bool {
        see(self.raw(), other.raw())
    }
}

macro_rules! tuples {
    ($(($($A:ident $index:tt)*))*) => { $(
        impl<$($A: Tensors),*> Tensors for ($($A,)*) {}

        #[allow(unused_variables, reason = "the empty tuple has nothing to do")]
        impl<$($A: Tensors),*> Sealed for ($($A,)*) {
            fn visit_mut(&mut self, change: &mut dyn FnMut(&mut Raw) -> Result<()>) -> Result<()> {
                $(self.$index.visit_mut(change)?;)*
                Ok(())
            }

            fn pairs(&self, other: &Self, see: &mut dyn FnMut(&Raw, &Raw) -> bool) -> bool {
                true $(&& self.$index.pairs(&other.$index, see))*
            }
        }
    )* };
}

tuples! { () (A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) }

impl<A: Tensors> Tensors for Vec<A> {}

impl<A: Tensors> Sealed for Vec<A> {
    fn visit_mut(&mut self, change: &mut dyn FnMut(&mut Raw) -> Result<()>) -> Result<()> {
        self.iter_mut().try_for_each(|tensors| tensors.visit_mut(change))
    }

    fn pairs(&self, other: &Self, see: &mut dyn FnMut(&Raw, &Raw) -> bool) -> bool {
        self.len() == other.len() && self.iter().zip(other).all(|(tensors, other)| tensors.pairs(other, see))
    }
}
