//! In-place operations: for optimizers, buffers and data, where no gradient is recorded.
//!
//! Each makes a new version of the storage, so that a `backward` that saved the old values fails instead of using the
//! new ones. Operands that share the destination's storage are copied first; those of a narrower precision are
//! converted.

use bytemuck::Pod;

use crate::autograd::{CutBy, is_grad_enabled, no_grad, note_cut};
use crate::capture;
use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, Formula, constant};
use crate::device::{Device, common_device};
use crate::element::{Computing, Element, Num, Scalar};
use crate::error::{Error, Result};
use crate::inlined::{Array, Slice};
use crate::kind::{Kind, Number, Numeric};
use crate::op::{LockedInputs, first_of_storage};
use crate::ops::cast;
use crate::profiler;
use crate::shape::MAX_RANK;
use crate::storage::{Locked, LockedMut, lock_order};
use crate::tensor::{Raw, Tensor, by_bits, by_dtype, by_num, by_real};

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

/// `changed! { name, target, [operands], by_…: T, |to, [elements of the operands]| new value, in CUDA }`: changes each
/// element. Constants, which follow the elements, are scalars outside of the new value and of type `T` inside.
macro_rules! changed {
    ($name:expr, $target:expr, [$($operand:expr),*], $by:ident: $T:ident, |$to:ident, [$($from:ident),*]$(, $constant:ident)*| $change:expr, $cuda:literal) => {{
        change! { $name, [$to $(, $from)*], [$($constant),*], $cuda }
        let target: &Raw = $target;
        change(target, $name, [$($operand),*], &FORMULA, &[$($constant),*], &mut |to, sources| {
            $by!(target.dtype(), $T => {
                $(let $constant = $T::from_scalar($constant);)*
                to.update(sources.views::<$T>(), #[inline(always)] move |$to: &mut $T, [$($from),*]| *$to = $change)
            })
        })
    }};
}

impl<K: Kind> Tensor<K> {
    /// Sets every element to `value`.
    ///
    /// # Errors
    /// [`Error::InPlaceTracked`] outside `no_grad` on a tensor that requires grad; [`Error::Argument`] if the tensor is expanded.
    pub fn fill_(&self, value: impl Number<K>) -> Result<()> {
        fill(self.raw(), "fill_", value.scalar())
    }

    /// Sets every element to 0.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn zero_(&self) -> Result<()> {
        fill(self.raw(), "zero_", Scalar::Int(0))
    }

    /// Sets the elements to those of `source`, which broadcasts, rounded if this tensor's precision is narrower.
    ///
    /// # Errors
    /// As [`Tensor::fill_`]; [`Error::Argument`] if `source` does not expand to this shape.
    pub fn copy_(&self, source: &Tensor<K>) -> Result<()> {
        copy(self.raw(), source.raw())
    }
}

fn fill(target: &Raw, op: &'static str, value: Scalar) -> Result<()> {
    change! { "fill", [to], [value], "value" }
    change(
        target,
        op,
        [],
        &FORMULA,
        &[value],
        &mut |to, _| by_dtype!(target.dtype(), T => to.fill(T::from_scalar(value))),
    )
}

pub(crate) fn copy(target: &Raw, source: &Raw) -> Result<()> {
    change! { "copy_", [to, from], [], "from" }
    target.check_writable("copy_", [source])?; // before the cast, which is not recorded
    let source = if source.dtype() == target.dtype() { source } else { &no_grad(|| cast(source, target.dtype()))? };
    change(target, "copy_", [source], &FORMULA, &[], &mut |to, sources| {
        by_bits!(target.dtype(), B => {
            let [from] = sources.bits::<B>();
            cpu::copy_strided(to.bits::<B>()?, target.layout.strides(), from);
            Ok(())
        })
    })
}

/// The elements of the tensor that is changed, from the first to the last.
pub(crate) struct Target<'a, 'l> {
    op: &'static str,
    raw: &'a Raw,
    writing: LockedMut<'l>,
}

impl Target<'_, '_> {
    fn elements<C: Computing>(&mut self) -> Result<StoredMut<'_, C>> {
        let dtype = self.raw.dtype();
        Ok(StoredMut::of_bytes(self.writing.span(self.op, &self.raw.layout, dtype.size())?, dtype))
    }

    pub(super) fn bits<B: Pod>(&mut self) -> Result<&mut [B]> {
        Ok(bytemuck::cast_slice_mut(self.writing.span(self.op, &self.raw.layout, size_of::<B>())?))
    }

    /// Sets every element to the value.
    fn fill<T: Element>(&mut self, value: T) -> Result<()> {
        let raw = self.raw;
        let (value, strides) = ([value], &[0; MAX_RANK][..raw.rank()]);
        by_bits!(T::DTYPE, B => {
            let value = CpuView { data: bytemuck::cast_slice::<T, B>(&value).into(), shape: raw.shape(), strides };
            cpu::copy_strided(self.bits::<B>()?, raw.layout.strides(), value);
        });
        Ok(())
    }

    /// Applies `f` to every element and the corresponding elements of the sources.
    #[inline(always)]
    fn update<T: Computing, const N: usize>(
        &mut self,
        sources: [CpuView<'_, T>; N],
        f: impl Fn(&mut T, [T; N]) + Sync + Copy,
    ) -> Result<()> {
        let raw = self.raw;
        cpu::update(self.elements()?, raw.shape(), raw.layout.strides(), sources, f);
        Ok(())
    }
}

impl Raw {
    /// Checks that no tensor that requires grad takes part while gradients are recorded, that no two elements share
    /// memory, and that all tensors are on one device.
    pub(crate) fn check_writable<const N: usize>(&self, op: &'static str, sources: [&Raw; N]) -> Result<()> {
        let tracked_source = sources.into_iter().find(|source| source.node.is_some());
        let tracked_self = self.node.as_ref().map(|_| ("the tensor", self));
        if let (true, Some((operand, tensor))) =
            (is_grad_enabled(), tracked_self.or(tracked_source.map(|source| ("an operand", source))))
        {
            return Err(Error::InPlaceTracked { op, operand, shape: *tensor.shape() });
        }
        note_cut(op, CutBy::NoGrad, sources.into_iter().filter_map(|source| source.node.as_ref()));
        if self.layout.overlaps() {
            return Err(Error::Argument(format!(
                "{op}: {} is a view whose elements share memory, as expand and unfold make; make it contiguous first",
                self.shape()
            )));
        }
        let mut all = [self; 1 + MAX_SOURCES];
        all[1..=N].copy_from(&sources);
        common_device(op, &all[..=N]).map(|_| ())
    }

    /// The operand expanded to this shape, in this precision, and not in this tensor's storage.
    fn operand(&self, op: &'static str, source: &Raw) -> Result<Raw> {
        let dtype = self.dtype();
        if source.dtype() != dtype {
            let wider = dtype.wider(source.dtype()).unwrap_or(dtype);
            if wider != dtype {
                return Err(Error::MixedTypes { op, left: dtype, right: source.dtype(), wider });
            }
            return no_grad(|| cast(source, dtype))?.broadcast_to(op, self.shape());
        }
        let source = source.broadcast_to(op, self.shape())?;
        if source.storage.is(&self.storage) { source.detached_copy(op) } else { Ok(source) }
    }
}

/// Changes every element, given those of the sources: on the CPU by `cpu`, on a device by `formula` with its
/// constants.
fn change<const N: usize>(
    target: &Raw,
    op: &'static str,
    sources: [&Raw; N],
    formula: &'static Formula,
    constants: &[Scalar],
    cpu: &mut dyn FnMut(&mut Target<'_, '_>, &LockedInputs<'_, N>) -> Result<()>,
) -> Result<()> {
    let _running = profiler::op(op);
    target.check_writable(op, sources)?;
    let mut expanded = sources.mapped(Raw::clone);
    for (expanded, source) in expanded.iter_mut().zip(sources) {
        *expanded = target.operand(op, source)?;
    }
    write(op, target, expanded.each_ref(), cpu, &mut |device, sources, out| {
        let mut values = [0; MAX_CONSTANTS];
        values.iter_mut().zip(constants).for_each(|(value, &of)| *value = constant(target.dtype(), of));
        formula.run(device, op, &sources, &values[..constants.len()], out)
    })
}

/// Writes to a tensor, for which that was checked, by `cpu` or by `cuda`; none of the sources has its storage.
pub(super) fn write<const N: usize>(
    op: &'static str,
    target: &Raw,
    sources: [&Raw; N],
    cpu: &mut dyn FnMut(&mut Target<'_, '_>, &LockedInputs<'_, N>) -> Result<()>,
    cuda: &mut dyn FnMut(&CudaDevice, [CudaView<'_>; N], CudaOut<'_>) -> Result<()>,
) -> Result<()> {
    let sources = sources.mapped(Some);
    let (first, locks, mut writing) = lock_all(target, sources);
    let inputs = LockedInputs::new(sources, &locks, first);
    match target.storage.device() {
        Device::Cpu => cpu(&mut Target { op, raw: target, writing }, &inputs),
        Device::Cuda(device) => {
            let (views, out) = (inputs.cuda_views(), writing.cuda(&target.layout, target.dtype()));
            profiler::on_stream(op, || device.stream(), || cuda(device, views, out))
        }
    }
}

/// Locks the target's storage for writing and the sources', which are others, for reading, in the order that all
/// threads use.
fn lock_all<'a, const N: usize>(
    target: &'a Raw,
    sources: [Option<&'a Raw>; N],
) -> ([usize; N], [Option<Locked<'a>>; N], LockedMut<'a>) {
    capture::note_write(&target.storage);
    let storages = sources.mapped(|source| source.map(|source| &source.storage));
    let first = first_of_storage(storages);
    let (mut reading, mut writing) = ([const { None }; N], None);
    for i in lock_order(storages) {
        let Some(storage) = storages[i] else { continue };
        if writing.is_none() && target.storage.lock_key() < storage.lock_key() {
            writing = Some(target.storage.lock_mut());
        }
        reading[i] = (first[i] == i).then(|| storage.lock());
    }
    let writing = writing.unwrap_or_else(|| target.storage.lock_mut());
    (first, reading, writing)
}

/// The most operands of a change in place, and the most constants.
const MAX_SOURCES: usize = 2;
const MAX_CONSTANTS: usize = 2;

/// `in_place! { kind, doc, method, by_…, |to, from| new value, the same in CUDA }`
macro_rules! in_place {
    ([$($kind:tt)*] $tensor:ty, $doc:literal, $method:ident, $by:ident, |$T:ident, $to:ident, $from:ident| $change:expr, $cuda:literal) => {
        impl<$($kind)*> $tensor {
            #[doc = $doc]
            ///
            /// # Errors
            /// As [`Tensor::copy_`]; [`Error::MixedTypes`] if `other` has a wider precision.
            pub fn $method(&self, other: &$tensor) -> Result<()> {
                fn run(target: &Raw, other: &Raw) -> Result<()> {
                    changed! { stringify!($method), target, [other], $by: $T, |$to, [$from]| $change, $cuda }
                }
                run(self.raw(), other.raw())
            }
        }
    };
}

in_place!([K: Numeric] Tensor<K>, "`self += other`, which broadcasts.", add_, by_num, |T, to, from| to.plus(from), "plus(to, from)");
in_place!([K: Numeric] Tensor<K>, "`self -= other`, which broadcasts.", sub_, by_num, |T, to, from| to.minus(from), "minus(to, from)");
in_place!([K: Numeric] Tensor<K>, "`self *= other`, which broadcasts.", mul_, by_num, |T, to, from| to.times(from), "times(to, from)");
in_place!(
    [] Tensor,
    "`self /= other`, which broadcasts.",
    div_,
    by_real,
    |T, to, from| *to / from,
    "to / from"
);

impl<K: Numeric> Tensor<K> {
    /// `self += value`.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn add_scalar_(&self, value: impl Number<K>) -> Result<()> {
        add_scalar(self.raw(), value.scalar())
    }

    /// `self *= value`.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn mul_scalar_(&self, value: impl Number<K>) -> Result<()> {
        mul_scalar(self.raw(), value.scalar())
    }

    /// `self += alpha · other`, which broadcasts, rounded once: one pass, for optimizers.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    pub fn add_scaled_(&self, other: &Tensor<K>, alpha: impl Number<K>) -> Result<()> {
        add_scaled(self.raw(), other.raw(), alpha.scalar())
    }
}

fn add_scalar(target: &Raw, value: Scalar) -> Result<()> {
    changed! { "add_scalar_", target, [], by_num: T, |to, [], value| to.plus(value), "plus(to, value)" }
}

fn mul_scalar(target: &Raw, value: Scalar) -> Result<()> {
    changed! { "mul_scalar_", target, [], by_num: T, |to, [], value| to.times(value), "times(to, value)" }
}

fn add_scaled(target: &Raw, other: &Raw, alpha: Scalar) -> Result<()> {
    changed! { "add_scaled_", target, [other], by_num: T, |to, [from], alpha| to.plus(from.times(alpha)),
    "plus(to, times(from, alpha))" }
}

impl Tensor {
    /// `self += weight · (other − self)`, where `other` broadcasts: a running mean. For weights from 0.5 on it is
    /// computed as `other + (weight − 1) · (other − self)`, so that weight 1 gives `other` exactly. PyTorch also uses
    /// this form for weights below −0.5, where results may differ by rounding.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    pub fn lerp_(&self, other: &Tensor, weight: f64) -> Result<()> {
        change! { "lerp_", [to, from], [weight], "weight < R(0.5) ? to + weight * (from - to) : from + (weight - R(1)) * (from - to)" }
        let target = self.raw();
        change(target, "lerp_", [other.raw()], &FORMULA, &[weight.into()], &mut |to, sources| {
            by_real!(target.dtype(), R => {
                let weight = R::from_f64(weight);
                let beyond = weight - R::ONE;
                match weight < R::from_f64(0.5) {
                    true => to.update(sources.views::<R>(), |to, [from]| *to = *to + weight * (from - *to)),
                    false => to.update(sources.views::<R>(), |to, [from]| *to = from + beyond * (from - *to)),
                }
            })
        })
    }

    /// `self += value · a · b`, elementwise.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    pub fn addcmul_(&self, a: &Tensor, b: &Tensor, value: f64) -> Result<()> {
        let value = value.into();
        changed! { "addcmul_", self.raw(), [a.raw(), b.raw()], by_real: R, |to, [a, b], value| *to + value * a * b,
        "to + value * a * b" }
    }

    /// `self += value · a / b`, elementwise.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    pub fn addcdiv_(&self, a: &Tensor, b: &Tensor, value: f64) -> Result<()> {
        let value = value.into();
        changed! { "addcdiv_", self.raw(), [a.raw(), b.raw()], by_real: R, |to, [a, b], value| *to + value * a / b,
        "to + value * a / b" }
    }

    /// Sets elements below `min` to `min`, and elements above `max` to `max`. NaN stays NaN; if a bound is NaN, all
    /// elements become NaN.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn clamp_(&self, min: f64, max: f64) -> Result<()> {
        if min.is_nan() || max.is_nan() {
            return self.fill_(f64::NAN);
        }
        let [min, max] = [min, max].mapped(Scalar::Float);
        changed! { "clamp_", self.raw(), [], by_real: R, |to, [], min, max| {
            let at_least = if *to < min { min } else { *to };
            if at_least > max { max } else { at_least }
        }, "(to < min ? min : to) > max ? max : to < min ? min : to" }
    }

    /// Replaces every element by its square root.
    ///
    /// # Errors
    /// As [`Tensor::fill_`].
    pub fn sqrt_(&self) -> Result<()> {
        changed! { "sqrt_", self.raw(), [], by_real: R, |to, []| to.sqrt(), "sqrt(to)" }
    }
}
