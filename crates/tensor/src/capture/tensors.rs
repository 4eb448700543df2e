//! [`Tensors`]: what a step takes and returns.

use self::sealed::{FromHost, Output, Sealed, Slot};
use crate::cuda::CudaDevice;
use crate::device::Device;
use crate::error::Result;
use crate::kind::Kind;
use crate::tensor::{Raw, Tensor};

/// What a [`CapturedStep`](super::CapturedStep) takes and returns: a tensor, a tuple of up to four, a `Vec` of them, or
/// nothing.
pub trait Tensors: Sealed {}

pub(super) mod sealed {
    use super::{CudaDevice, Device, Raw, Result};

    /// A tensor that a graph writes.
    pub struct Output<'a>(pub(crate) &'a mut Raw);

    /// A tensor that a graph wrote.
    pub struct Seen<'a>(pub(crate) &'a Raw);

    /// A tensor that a graph reads.
    pub struct Slot(pub(crate) Raw);

    /// Contiguous tensors of the host, each with its slot.
    #[derive(Default)]
    pub struct FromHost(pub(crate) Vec<(Raw, Raw)>);

    pub trait Sealed: Clone {
        /// On that device.
        fn on(&self, device: &Device) -> Result<Self>;

        /// The same of other tensors, one after another.
        fn of(&self, next: &mut dyn FnMut() -> Slot) -> Self;

        /// Whether these have the shapes of the slots.
        fn fits(&self, slots: &Self) -> bool;

        /// Whether any of them is.
        fn is_on_host(&self) -> bool;

        /// Copies the elements into the slots, if they are on a device; else adds them, contiguous, with their slot.
        fn copy_to(&self, slots: &Self, from_host: &mut FromHost) -> Result<()>;

        /// Without history.
        fn detached(&self) -> Self;

        fn visit(&self, see: &mut dyn FnMut(Seen<'_>));

        fn visit_mut(&mut self, change: &mut dyn FnMut(Output<'_>) -> Result<()>) -> Result<()>;
    }

    impl Seen<'_> {
        pub(crate) fn raw(&self) -> &Raw {
            self.0
        }

        pub(crate) fn is_unique(&self) -> bool {
            self.0.storage.is_unique()
        }
    }

    impl Output<'_> {
        pub(crate) fn is_unique(&self) -> bool {
            self.0.storage.is_unique()
        }

        /// Gives the other handles of the storage a copy of its memory, and takes the memory in a storage of its own.
        pub(crate) fn leave_to_others(self, device: &CudaDevice) -> Result<()> {
            self.0.storage = self.0.storage.with_other_memory(device)?;
            Ok(())
        }
    }
}

impl<K: Kind> Tensors for Tensor<K> {}

impl<K: Kind> Sealed for Tensor<K> {
    fn on(&self, device: &Device) -> Result<Self> {
        self.to(device)
    }

    fn of(&self, next: &mut dyn FnMut() -> Slot) -> Self {
        next().0.typed()
    }

    fn fits(&self, slots: &Self) -> bool {
        self.shape() == slots.shape() && self.dtype() == slots.dtype()
    }

    fn is_on_host(&self) -> bool {
        self.storage().device().is_cpu()
    }

    fn copy_to(&self, slots: &Self, from_host: &mut FromHost) -> Result<()> {
        let source = self.clone().with_node(None);
        if !self.is_on_host() {
            return slots.copy_(&source.to(&slots.device())?);
        }
        from_host.0.push((source.contiguous()?.into_raw(), slots.raw().clone()));
        Ok(())
    }

    fn detached(&self) -> Self {
        self.clone().with_node(None)
    }

    fn visit(&self, see: &mut dyn FnMut(sealed::Seen<'_>)) {
        see(sealed::Seen(self.raw()));
    }

    fn visit_mut(&mut self, change: &mut dyn FnMut(Output<'_>) -> Result<()>) -> Result<()> {
        change(Output(self.raw_mut()))
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

            fn of(&self, next: &mut dyn FnMut() -> Slot) -> Self {
                ($(self.$index.of(next),)*)
            }

            fn fits(&self, slots: &Self) -> bool {
                true $(&& self.$index.fits(&slots.$index))*
            }

            fn is_on_host(&self) -> bool {
                false $(|| self.$index.is_on_host())*
            }

            fn copy_to(&self, slots: &Self, from_host: &mut FromHost) -> Result<()> {
                $(self.$index.copy_to(&slots.$index, from_host)?;)*
                Ok(())
            }

            fn detached(&self) -> Self {
                ($(self.$index.detached(),)*)
            }

            fn visit(&self, see: &mut dyn FnMut(sealed::Seen<'_>)) {
                $(self.$index.visit(see);)*
            }

            fn visit_mut(&mut self, change: &mut dyn FnMut(Output<'_>) -> Result<()>) -> Result<()> {
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

    fn of(&self, next: &mut dyn FnMut() -> Slot) -> Self {
        self.iter().map(|tensors| tensors.of(next)).collect()
    }

    fn fits(&self, slots: &Self) -> bool {
        self.len() == slots.len() && self.iter().zip(slots).all(|(tensors, slots)| tensors.fits(slots))
    }

    fn is_on_host(&self) -> bool {
        self.iter().any(Sealed::is_on_host)
    }

    fn copy_to(&self, slots: &Self, from_host: &mut FromHost) -> Result<()> {
        self.iter().zip(slots).try_for_each(|(tensors, slots)| tensors.copy_to(slots, from_host))
    }

    fn detached(&self) -> Self {
        self.iter().map(Sealed::detached).collect()
    }

    fn visit(&self, see: &mut dyn FnMut(sealed::Seen<'_>)) {
        self.iter().for_each(|tensors| tensors.visit(see));
    }

    fn visit_mut(&mut self, change: &mut dyn FnMut(Output<'_>) -> Result<()>) -> Result<()> {
        self.iter_mut().try_for_each(|tensors| tensors.visit_mut(change))
    }
}
