//! In-place operations: for optimizers, buffers and data, where no gradient is recorded.
//!
//! Each makes a new version of the storage, so that a `backward` that saved the old values fails instead of using the
//! new ones. An operand that shares the destination's storage is copied first.

use crate::autograd::{CutBy, is_grad_enabled, note_cut};
use crate::capture;
use crate::cpu::{self, CpuView};
use crate::cuda::{Formula, constant};
use crate::device::{Device, common_device};
use crate::element::{Element, Float, Num, Real};
use crate::error::{Error, Result};
use crate::op::{first_of_storage, locked};
use crate::shape::MAX_RANK;
use crate::storage::{Locked, LockedMut, lock_order};
use crate::tensor::Tensor;

/// `change! { name, [the element and the operands], [constants], formula }`: the formula that changes elements, in CUDA.
macro_rules! change {
    ($name:expr, [$($input:ident),*], [$($constant:ident),*], $text:literal) => {
        static FORMULA: Formula = Formula {
            name: $name,
            inputs: &[$(stringify!($input)),*],
            constants: &[$(stringify!($constant)),*],
            text: $text,
            changes: true,
        };
    };
}

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
        change! { "copy_", [to, from], [], "from" }
        self.change("copy_", [source], &FORMULA, &[], |to, [from]| match self.is_contiguous() {
            true => cpu::copy(from, to),
            false => cpu::update1(to, self.shape(), self.strides(), from, |to, from| *to = from),
        })
    }

    fn set(&self, op: &'static str, value: T) -> Result<()> {
        change! { "fill", [to], [value], "value" };
        self.change(op, [], &FORMULA, &[constant(value)], |to, []| self.each(to, |to| *to = value))
    }

    /// No tensor that requires grad takes part while gradients are recorded, no two elements share a place, and all are
    /// on one device.
    pub(crate) fn check_writable<const N: usize>(&self, op: &'static str, sources: [&Tensor<T>; N]) -> Result<()> {
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
        let mut all = [self.raw(); 1 + MAX_SOURCES];
        all[1..=N].copy_from_slice(&sources.map(Tensor::raw));
        common_device(op, &all[..=N]).map(|_| ())
    }

    /// The operand expanded to this shape, in another storage than this one's.
    fn operand(&self, op: &'static str, source: &Tensor<T>) -> Result<Tensor<T>> {
        let source = source.broadcast_to(op, self.shape())?;
        if source.shares_storage(self) { source.deep_copy(op) } else { Ok(source) }
    }

    /// Changes every element by a function of it and the sources': by `cpu`, or by `formula` with its constants.
    fn change<const N: usize>(
        &self,
        op: &'static str,
        sources: [&Tensor<T>; N],
        formula: &'static Formula,
        constants: &[u64],
        cpu: impl FnOnce(&mut [T], [CpuView<'_, T>; N]),
    ) -> Result<()> {
        self.check_writable(op, sources)?;
        let mut expanded = sources.map(Tensor::clone);
        for (expanded, source) in expanded.iter_mut().zip(sources) {
            *expanded = self.operand(op, source)?;
        }
        let sources = expanded.each_ref();
        let (first, locks, mut writing) = self.locks(sources);
        let lock = |i: usize| (locked(&locks, first[i]), sources[i].layout());
        match self.storage().device() {
            Device::Cpu => {
                let views = std::array::from_fn(|i| lock(i).0.cpu(lock(i).1));
                cpu(writing.of(op, self.layout())?, views);
                Ok(())
            }
            Device::Cuda(device) => {
                let views: [_; N] = std::array::from_fn(|i| lock(i).0.cuda(lock(i).1, T::DTYPE));
                formula.run(device, op, &views, constants, writing.cuda(self.layout(), T::DTYPE))
            }
        }
    }

    /// Locks this storage for writing and the sources', none of which it is, for reading, in the order for all threads.
    fn locks<'a, const N: usize>(
        &'a self,
        sources: [&'a Tensor<T>; N],
    ) -> ([usize; N], [Option<Locked<'a>>; N], LockedMut<'a>) {
        capture::note_write(self.storage());
        let storages = sources.map(Tensor::storage);
        let first = first_of_storage(storages);
        let (mut reading, mut writing) = ([const { None }; N], None);
        for i in lock_order(storages) {
            if writing.is_none() && self.storage().address() < storages[i].address() {
                writing = Some(self.storage().lock_mut());
            }
            reading[i] = (first[i] == i).then(|| storages[i].lock());
        }
        let writing = writing.unwrap_or_else(|| self.storage().lock_mut());
        (first, reading, writing)
    }

    /// Changes every element of this tensor, of which `to` are those from the first to the last.
    fn each(&self, to: &mut [T], f: impl Fn(&mut T) + Sync + Copy) {
        let nothing = CpuView { data: &[T::ZERO], shape: self.shape(), strides: &[0; MAX_RANK][..self.rank()] };
        cpu::update1(to, self.shape(), self.strides(), nothing, |to, _| f(to));
    }
}

/// Most operands of a change in place.
const MAX_SOURCES: usize = 2;

/// `in_place! { bound, doc, method, |to, from| new value, the same in CUDA }`
macro_rules! in_place {
    ($bound:ident, $doc:literal, $method:ident, |$to:ident, $from:ident| $change:expr, $cuda:literal) => {
        impl<T: $bound> Tensor<T> {
            #[doc = $doc]
            ///
            /// # Errors
            /// As [`Tensor::copy_`].
            pub fn $method(&self, other: &Tensor<T>) -> Result<()> {
                change! { stringify!($method), [$to, $from], [], $cuda }
                self.change(stringify!($method), [other], &FORMULA, &[], |to, [from]| {
                    cpu::update1(
                        to,
                        self.shape(),
                        self.strides(),
                        from,
                        #[inline(always)]
                        |$to, $from| *$to = $change,
                    )
                })
            }
        }
    };
}

in_place!(Num, "`self += other`, which broadcasts.", add_, |to, from| to.plus(from), "plus(to, from)");
in_place!(Num, "`self -= other`, which broadcasts.", sub_, |to, from| to.minus(from), "minus(to, from)");
in_place!(Num, "`self *= other`, which broadcasts.", mul_, |to, from| to.times(from), "times(to, from)");
in_place!(
    Float,
    "`self /= other`, which broadcasts.",
    div_,
    |to, from| T::from_real(to.to_real() / from.to_real()),
    "to / from"
);

impl<T: Num> Tensor<T> {
    /// `self += value`.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn add_scalar_(&self, value: T) -> Result<()> {
        change! { "add_scalar_", [to], [value], "plus(to, value)" }
        self.change("add_scalar_", [], &FORMULA, &[constant(value)], |to, []| self.each(to, |to| *to = to.plus(value)))
    }

    /// `self *= value`.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn mul_scalar_(&self, value: T) -> Result<()> {
        change! { "mul_scalar_", [to], [value], "times(to, value)" }
        self.change("mul_scalar_", [], &FORMULA, &[constant(value)], |to, []| self.each(to, |to| *to = to.times(value)))
    }

    /// `self += alpha · other`, which broadcasts, rounded once: one pass, for optimizers.
    ///
    /// # Errors
    /// As [`Tensor::copy_`].
    pub fn add_scaled_(&self, other: &Tensor<T>, alpha: T) -> Result<()> {
        change! { "add_scaled_", [to, from], [alpha], "plus(to, times(from, alpha))" }
        self.change("add_scaled_", [other], &FORMULA, &[constant(alpha)], |to, [from]| {
            cpu::update1(
                to,
                self.shape(),
                self.strides(),
                from,
                #[inline(always)]
                |to, from| *to = T::from_sum(to.to_sum().plus(from.to_sum().times(alpha.to_sum()))),
            )
        })
    }
}

/// By numbers that half types do not hold: rounded once, after the operation.
impl<T: Float> Tensor<T> {
    /// Every element becomes `f` of it and of those of `a` and `b`, on the CPU.
    pub(crate) fn update_(
        &self,
        op: &'static str,
        [a, b]: [&Tensor<T>; 2],
        f: impl Fn([T::Real; 3]) -> T::Real + Sync + Copy,
    ) -> Result<()> {
        self.check_writable(op, [a, b])?;
        let [a, b] = [self.operand(op, a)?, self.operand(op, b)?];
        let (first, locks, mut writing) = self.locks([&a, &b]);
        let (from, to) = ([(0, &a), (1, &b)], writing.of::<T>(op, self.layout())?);
        let [a, b] = from.map(|(i, source)| locked(&locks, first[i]).cpu::<T>(source.layout()));
        cpu::update2(
            to,
            self.shape(),
            self.strides(),
            a,
            b,
            #[inline(always)]
            |to, a, b| *to = T::from_real(f([to.to_real(), a.to_real(), b.to_real()])),
        );
        Ok(())
    }

    /// `self *= value`.
    pub(crate) fn mul_real_(&self, value: f64) -> Result<()> {
        change! { "mul_scalar_", [to], [value], "times(to, value)" }
        let value = T::Real::from_f64(value);
        let multiply = |to: &mut T| *to = T::from_real(to.to_real() * value);
        self.change("mul_scalar_", [], &FORMULA, &[constant(value)], |to, []| self.each(to, multiply))
    }

    /// `self += value · other`.
    pub(crate) fn add_times_(&self, other: &Tensor<T>, value: f64) -> Result<()> {
        change! { "add_scaled_", [to, from], [value], "plus(to, times(from, value))" }
        let value = T::Real::from_f64(value);
        self.change("add_scaled_", [other], &FORMULA, &[constant(value)], |to, [from]| {
            cpu::update1(
                to,
                self.shape(),
                self.strides(),
                from,
                #[inline(always)]
                |to, from| *to = T::from_real(to.to_real() + from.to_real() * value),
            )
        })
    }
}

impl<T: Float> Tensor<T> {
    /// `self += weight · (other − self)`, where `other` broadcasts: a running mean. From weight 0.5 on it is computed as
    /// `other + (weight − 1) · (other − self)`, as in PyTorch, so that weight 1 gives `other` exactly.
    ///
    /// # Errors
    /// As [`Tensor::copy_`].
    pub fn lerp_(&self, other: &Tensor<T>, weight: f64) -> Result<()> {
        change! { "lerp_", [to, from], [weight], "weight < R(0.5) ? to + weight * (from - to) : from + (weight - R(1)) * (from - to)" }
        let weight = T::Real::from_f64(weight);
        let (is_small, beyond) = (weight < T::Real::from_f64(0.5), weight - T::Real::ONE);
        self.change("lerp_", [other], &FORMULA, &[constant(weight)], |to, [from]| {
            cpu::update1(
                to,
                self.shape(),
                self.strides(),
                from,
                #[inline(always)]
                |to, from| {
                    let (old, new) = (to.to_real(), from.to_real());
                    let way = new - old;
                    *to = T::from_real(if is_small { old + weight * way } else { new + beyond * way });
                },
            )
        })
    }

    /// `self += value · a · b`, elementwise.
    ///
    /// # Errors
    /// As [`Tensor::copy_`].
    pub fn addcmul_(&self, a: &Tensor<T>, b: &Tensor<T>, value: f64) -> Result<()> {
        change! { "addcmul_", [to, a, b], [value], "to + value * a * b" }
        let value = T::Real::from_f64(value);
        self.change("addcmul_", [a, b], &FORMULA, &[constant(value)], |to, [a, b]| {
            cpu::update2(
                to,
                self.shape(),
                self.strides(),
                a,
                b,
                #[inline(always)]
                |to, a, b| *to = T::from_real(to.to_real() + value * a.to_real() * b.to_real()),
            )
        })
    }

    /// `self += value · a / b`, elementwise.
    ///
    /// # Errors
    /// As [`Tensor::copy_`].
    pub fn addcdiv_(&self, a: &Tensor<T>, b: &Tensor<T>, value: f64) -> Result<()> {
        change! { "addcdiv_", [to, a, b], [value], "to + value * a / b" }
        let value = T::Real::from_f64(value);
        self.change("addcdiv_", [a, b], &FORMULA, &[constant(value)], |to, [a, b]| {
            cpu::update2(
                to,
                self.shape(),
                self.strides(),
                a,
                b,
                #[inline(always)]
                |to, a, b| *to = T::from_real(to.to_real() + value * a.to_real() / b.to_real()),
            )
        })
    }

    /// The square root of every element.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn sqrt_(&self) -> Result<()> {
        change! { "sqrt_", [to], [], "sqrt(to)" }
        self.change("sqrt_", [], &FORMULA, &[], |to, []| {
            self.each(to, |to| *to = T::from_real(to.to_real().sqrt()));
        })
    }
}
