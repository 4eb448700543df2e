//! [`Tensors`]: what a step takes and returns.

use self::sealed::Sealed;
use crate::device::Device;
use crate::error::Result;
use crate::kind::Kind;
use crate::tensor::{Raw, Tensor};

/// What a [`CapturedStep`](super::CapturedStep) takes and returns: a tensor, a tuple of up to four, a `Vec` of them, or
/// nothing.
pub trait Tensors: Sealed {}

pub(super) mod sealed {
    use super::{Device, Raw, Result};

    pub trait Sealed: Clone {
        /// These tensors on `device`, without gaps on a GPU, as in the slots.
        fn on(&self, device: &Device) -> Result<Self>;

        /// Tensors like these, each made by `next`.
        fn of(&self, next: &mut dyn FnMut() -> Raw) -> Self;

        /// Whether these have the shapes, the types and, apart from gaps, the strides of the slots, the tensors that a
        /// graph reads.
        fn fits(&self, slots: &Self) -> bool;

        /// Whether any of them is on the host.
        fn is_on_host(&self) -> bool;

        /// Copies tensors that are on a device into their slots. Appends tensors on the host, without gaps, and their
        /// slots to `from_host`.
        fn copy_to(&self, slots: &Self, from_host: &mut Vec<(Raw, Raw)>) -> Result<()>;

        /// These tensors outside the autograd graph.
        fn detached(&self) -> Self;

        fn visit(&self, see: &mut dyn FnMut(&Raw));

        fn visit_mut(&mut self, change: &mut dyn FnMut(&mut Raw) -> Result<()>) -> Result<()>;
    }
}

impl<K: Kind> Tensors for Tensor<K> {}

impl<K: Kind> Sealed for Tensor<K> {
    fn on(&self, device: &Device) -> Result<Self> {
        if device.is_cpu() { self.to(device) } else { self.raw().dense()?.to(device).map(Raw::typed) }
    }

    fn of(&self, next: &mut dyn FnMut() -> Raw) -> Self {
        next().typed()
    }

    fn fits(&self, slots: &Self) -> bool {
        let same_kind = self.shape() == slots.shape() && self.dtype() == slots.dtype();
        same_kind && self.raw().layout.dense().strides() == slots.raw().layout.strides()
    }

    fn is_on_host(&self) -> bool {
        self.storage().device().is_cpu()
    }

    fn copy_to(&self, slots: &Self, from_host: &mut Vec<(Raw, Raw)>) -> Result<()> {
        let source = self.clone().with_node(None);
        if !self.is_on_host() {
            return slots.copy_(&source.to(&slots.device())?);
        }
        from_host.push((source.raw().dense()?, slots.raw().clone()));
        Ok(())
    }

    fn detached(&self) -> Self {
        self.clone().with_node(None)
    }

    fn visit(&self, see: &mut dyn FnMut(&Raw)) {
        see(self.raw());
    }

    fn visit_mut(&mut self, change: &mut dyn FnMut(&mut Raw) -> Result<()>) -> Result<()> {
        change(self.raw_mut())
    }
}

macro_rules! tuples {
    ($(($($A:ident $index:tt)*))*) => { $(
        impl<$($A: Tensors),*> Tensors for ($($A,)*) {}

        #[allow(unused_variables, clippy::unused_unit, reason = "the empty tuple has nothing to do")]
        impl<$($A: Tensors),*> Sealed for ($($A,)*) {
            fn on(&self, device: &Device) -> Result<Self> {
                Ok(($(self.$index.on(device)?,)*))
            }

            fn of(&self, next: &mut dyn FnMut() -> Raw) -> Self {
                ($(self.$index.of(next),)*)
            }

            fn fits(&self, slots: &Self) -> bool {
                true $(&& self.$index.fits(&slots.$index))*
            }

            fn is_on_host(&self) -> bool {
                false $(|| self.$index.is_on_host())*
            }

            fn copy_to(&self, slots: &Self, from_host: &mut Vec<(Raw, Raw)>) -> Result<()> {
                $(self.$index.copy_to(&slots.$index, from_host)?;)*
                Ok(())
            }

            fn detached(&self) -> Self {
                ($(self.$index.detached(),)*)
            }

            fn visit(&self, see: &mut dyn FnMut(&Raw)) {
                $(self.$index.visit(see);)*
            }

            fn visit_mut(&mut self, change: &mut dyn FnMut(&mut Raw) -> Result<()>) -> Result<()> {
                $(self.$index.visit_mut(change)?;)*
                Ok(())
            }
        }
    )* };
}

tuples! { () (A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) }

impl<A: Tensors> Tensors for Vec<A> {}

impl<A: Tensors> Sealed for Vec<A> {
    fn on(&self, device: &Device) -> Result<Self> {
        self.iter().map(|tensors| tensors.on(device)).collect()
    }

    fn of(&self, next: &mut dyn FnMut() -> Raw) -> Self {
        self.iter().map(|tensors| tensors.of(next)).collect()
    }

    fn fits(&self, slots: &Self) -> bool {
        self.len() == slots.len() && self.iter().zip(slots).all(|(tensors, slots)| tensors.fits(slots))
    }

    fn is_on_host(&self) -> bool {
        self.iter().any(Sealed::is_on_host)
    }

    fn copy_to(&self, slots: &Self, from_host: &mut Vec<(Raw, Raw)>) -> Result<()> {
        self.iter().zip(slots).try_for_each(|(tensors, slots)| tensors.copy_to(slots, from_host))
    }

    fn detached(&self) -> Self {
        self.iter().map(Sealed::detached).collect()
    }

    fn visit(&self, see: &mut dyn FnMut(&Raw)) {
        self.iter().for_each(|tensors| tensors.visit(see));
    }

    fn visit_mut(&mut self, change: &mut dyn FnMut(&mut Raw) -> Result<()>) -> Result<()> {
        self.iter_mut().try_for_each(|tensors| tensors.visit_mut(change))
    }
}
