//! In-place operations: for optimizers, buffers and data, where no gradient is recorded.
//!
//! Each makes a new version of the storage, so that a `backward` that saved the old values fails instead of using the
//! new ones. An operand that shares the destination's storage is copied first.

use crate::autograd::{CutBy, is_grad_enabled, note_cut};
use crate::cpu::{self, CpuView};
use crate::element::{Element, Float, Num, Real};
use crate::error::{Error, Result};
use crate::op::first_of_storage;
use crate::storage::lock_order;
use crate::tensor::{Tensor, view};

impl<T: Element> Tensor<T> {
    /// Sets every element to `value`.
    ///
    /// # Errors
    /// [`Error::InPlaceTracked`] outside `no_grad` on a tensor that requires grad; [`Error::InPlaceExpanded`].
    pub fn fill_(&self, value: T) -> Result<()> {
        self.set("fill_", value)
    }

    /// Sets every element to 0.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn zero_(&self) -> Result<()> {
        self.set("zero_", T::ZERO)
    }

    /// Sets every element to that of `source`, which broadcasts.
    ///
    /// # Errors
    /// As [`Tensor::fill_`]; [`Error::WrongShape`] if `source` does not expand to this shape.
    pub fn copy_(&self, source: &Tensor<T>) -> Result<()> {
        self.update("copy_", source, |to, from| *to = from)
    }

    fn set(&self, op: &'static str, value: T) -> Result<()> {
        self.update(op, &Tensor::scalar(value)?, |to, from| *to = from)
    }

    /// No tensor that requires grad takes part while gradients are recorded, and no two elements share a place.
    fn check_writable<const N: usize>(&self, op: &'static str, sources: [&Tensor<T>; N]) -> Result<()> {
        let tracked_source = sources.into_iter().find(|source| source.node().is_some());
        let tracked_self = self.node().map(|_| ("the tensor", self));
        if let (true, Some((operand, tensor))) =
            (is_grad_enabled(), tracked_self.or(tracked_source.map(|source| ("an operand", source))))
        {
            return Err(Error::InPlaceTracked { op, operand, shape: *tensor.shape() });
        }
        note_cut(op, CutBy::NoGrad, sources.into_iter().filter_map(|source| source.node()));
        if self.layout().overlaps() {
            return Err(Error::InPlaceExpanded { op, shape: *self.shape() });
        }
        Ok(())
    }

    /// The operand expanded to this shape, in another storage than this one's.
    fn operand(&self, op: &'static str, source: &Tensor<T>) -> Result<Tensor<T>> {
        let source = source.broadcast_to(op, self.shape())?;
        if source.shares_storage(self) { source.deep_copy(op) } else { Ok(source) }
    }

    /// Changes every element by a function of it and the source's.
    fn update(&self, op: &'static str, source: &Tensor<T>, f: impl Fn(&mut T, T) + Sync + Copy) -> Result<()> {
        self.check_writable(op, [source])?;
        let source = self.operand(op, source)?;
        self.locked(op, [&source], |to, [from]| cpu::update1(to, self.shape(), self.strides(), from, f))
    }

    /// Changes every element by a function of it and two sources'.
    fn update2(&self, op: &'static str, [a, b]: [&Tensor<T>; 2], f: impl Fn(&mut T, T, T) + Sync + Copy) -> Result<()> {
        self.check_writable(op, [a, b])?;
        let (a, b) = (self.operand(op, a)?, self.operand(op, b)?);
        self.locked(op, [&a, &b], |to, [a, b]| cpu::update2(to, self.shape(), self.strides(), a, b, f))
    }

    /// Locks this storage for writing and the sources', none of which it is, for reading, in the order for all threads.
    fn locked<const N: usize>(
        &self,
        op: &'static str,
        sources: [&Tensor<T>; N],
        change: impl FnOnce(&mut [T], [CpuView<'_, T>; N]),
    ) -> Result<()> {
        let first = first_of_storage(sources.map(Tensor::storage));
        let (mut reading, mut writing) = ([const { None }; N], None);
        for i in lock_order(sources.map(Tensor::storage)) {
            if writing.is_none() && self.storage().address() < sources[i].storage().address() {
                writing = Some(self.storage().write());
            }
            reading[i] = (first[i] == i).then(|| sources[i].read());
        }
        let mut writing = writing.unwrap_or_else(|| self.storage().write());
        let views = std::array::from_fn(|i| match &reading[first[i]] {
            Some(lock) => view(lock, sources[i].layout()),
            None => unreachable!("the first of the sources that share a storage locks it"),
        });
        change(writing.of(op, self.layout())?, views);
        Ok(())
    }
}

/// `in_place! { bound, doc; method(arguments) = name, sources, |to, from| change }`
macro_rules! in_place {
    ($bound:ident, $doc:literal, $method:ident, |$to:ident, $from:ident| $change:expr) => {
        impl<T: $bound> Tensor<T> {
            #[doc = $doc]
            ///
            /// # Errors
            /// As [`Tensor::copy_`].
            pub fn $method(&self, other: &Tensor<T>) -> Result<()> {
                self.update(
                    stringify!($method),
                    other,
                    #[inline(always)]
                    |$to, $from| *$to = $change,
                )
            }
        }
    };
}

in_place!(Num, "`self += other`, which broadcasts.", add_, |to, from| to.plus(from));
in_place!(Num, "`self -= other`, which broadcasts.", sub_, |to, from| to.minus(from));
in_place!(Num, "`self *= other`, which broadcasts.", mul_, |to, from| to.times(from));
in_place!(Float, "`self /= other`, which broadcasts.", div_, |to, from| T::from_real(to.to_real() / from.to_real()));

impl<T: Num> Tensor<T> {
    /// `self += value`.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn add_scalar_(&self, value: T) -> Result<()> {
        self.update("add_scalar_", &Tensor::scalar(value)?, |to, from| *to = to.plus(from))
    }

    /// `self *= value`.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn mul_scalar_(&self, value: T) -> Result<()> {
        self.update("mul_scalar_", &Tensor::scalar(value)?, |to, from| *to = to.times(from))
    }

    /// `self += alpha · other`, which broadcasts: one pass, for optimizers.
    ///
    /// # Errors
    /// As [`Tensor::copy_`].
    pub fn add_scaled_(&self, other: &Tensor<T>, alpha: T) -> Result<()> {
        self.update(
            "add_scaled_",
            other,
            #[inline(always)]
            |to, from| *to = to.plus(from.times(alpha)),
        )
    }
}

impl<T: Float> Tensor<T> {
    /// `self += value · a · b`, elementwise.
    ///
    /// # Errors
    /// As [`Tensor::copy_`].
    pub fn addcmul_(&self, a: &Tensor<T>, b: &Tensor<T>, value: f64) -> Result<()> {
        let value = T::Real::from_f64(value);
        self.update2(
            "addcmul_",
            [a, b],
            #[inline(always)]
            |to, a, b| *to = T::from_real(to.to_real() + value * a.to_real() * b.to_real()),
        )
    }

    /// `self += value · a / b`, elementwise.
    ///
    /// # Errors
    /// As [`Tensor::copy_`].
    pub fn addcdiv_(&self, a: &Tensor<T>, b: &Tensor<T>, value: f64) -> Result<()> {
        let value = T::Real::from_f64(value);
        self.update2(
            "addcdiv_",
            [a, b],
            #[inline(always)]
            |to, a, b| *to = T::from_real(to.to_real() + value * a.to_real() / b.to_real()),
        )
    }

    /// The square root of every element.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn sqrt_(&self) -> Result<()> {
        self.update("sqrt_", &Tensor::scalar(T::ZERO)?, |to, _| *to = T::from_real(to.to_real().sqrt()))
    }
}
