//! In-place operations: for optimizers, buffers and data, where no gradient is recorded.
//!
//! Each makes a new version of the storage, so that a `backward` that saved the old values fails instead of using the
//! new ones. An operand that shares the destination's storage is copied first.

use crate::autograd::is_grad_enabled;
use crate::cpu;
use crate::element::{Element, Float, Num, Real};
use crate::error::{Error, Result};
use crate::tensor::{Tensor, view};

impl<T: Element> Tensor<T> {
    /// Sets every element to `value`.
    ///
    /// # Errors
    /// [`Error::InPlaceTracked`] outside `no_grad` on a tensor that requires grad; [`Error::InPlaceExpanded`].
    pub fn fill_(&self, value: T) -> Result<()> {
        self.copy_(&Tensor::scalar(value)?)
    }

    /// Sets every element to 0.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn zero_(&self) -> Result<()> {
        self.fill_(T::ZERO)
    }

    /// Sets every element to that of `source`, which broadcasts.
    ///
    /// # Errors
    /// As [`Tensor::fill_`]; [`Error::WrongShape`] if `source` does not expand to this shape.
    pub fn copy_(&self, source: &Tensor<T>) -> Result<()> {
        self.update("copy_", source, |to, from| *to = from)
    }

    /// The destination's checks.
    fn check_writable(&self, op: &'static str, tracked_source: bool) -> Result<()> {
        if is_grad_enabled() && (self.node().is_some() || tracked_source) {
            return Err(Error::InPlaceTracked { op, shape: *self.shape() });
        }
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
        self.check_writable(op, source.node().is_some())?;
        let source = self.operand(op, source)?;
        let reading = source.read();
        let mut writing = self.storage().write();
        cpu::update1(writing.of(op, self.layout())?, self.shape(), self.strides(), view(&reading, source.layout()), f);
        Ok(())
    }

    /// Changes every element by a function of it and two sources'.
    fn update2(&self, op: &'static str, [a, b]: [&Tensor<T>; 2], f: impl Fn(&mut T, T, T) + Sync + Copy) -> Result<()> {
        self.check_writable(op, a.node().is_some() || b.node().is_some())?;
        let (a, b) = (self.operand(op, a)?, self.operand(op, b)?);
        let b = if b.shares_storage(&a) { b.deep_copy(op)? } else { b };
        let (reading_a, reading_b) = (a.read(), b.read());
        let mut writing = self.storage().write();
        let sources = (view(&reading_a, a.layout()), view(&reading_b, b.layout()));
        cpu::update2(writing.of(op, self.layout())?, self.shape(), self.strides(), sources.0, sources.1, f);
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
        self.add_(&Tensor::scalar(value)?)
    }

    /// `self *= value`.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn mul_scalar_(&self, value: T) -> Result<()> {
        self.mul_(&Tensor::scalar(value)?)
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
