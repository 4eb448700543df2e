//! The index of the largest or smallest element along a dimension.

use crate::cpu::{self, CpuView, Key, StoredMut};
use crate::cuda::{Accumulator, CudaDevice, CudaOut, CudaReduction, CudaView};
use crate::error::{Error, Result};
use crate::op::{CpuKernel, Op, PerType, per_type};
use crate::shape::{AxisSet, Shape};

/// The index of the largest (`MAX`) or smallest element. NaN wins over every number; among equals the first one wins.
pub(super) struct ArgExtreme<const MAX: bool> {
    pub(super) dim: usize,
}

per_type! { ArgExtreme<true>[1]: Num }
per_type! { ArgExtreme<false>[1]: Num }

impl<const MAX: bool> Op<1> for ArgExtreme<MAX>
where
    Self: PerType<1>,
{
    const NAME: &'static str = if MAX { "argmax" } else { "argmin" };

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        let mut out = *x;
        if out.remove(self.dim) == 0 && out.elements() > 0 {
            return Err(Error::empty(<Self as Op<1>>::NAME, "the dimension", "reduce over at least one element"));
        }
        Ok(out)
    }

    /// The first of equals wins, in whatever order they are compared.
    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        const fn reduction(name: &'static str, identity: &'static str, combine: &'static str) -> CudaReduction {
            let (lift, finish) = ("A{x, i64(i)}", "total.index");
            CudaReduction { name, accumulator: Accumulator::Indexed, identity, lift, combine, finish, constants: &[] }
        }
        static LARGEST: CudaReduction = reduction(
            "argmax",
            "A{LOWEST, 9223372036854775807ll}",
            "is_better(a.value, b.value) || (!is_better(b.value, a.value) && a.index < b.index) ? a : b",
        );
        static SMALLEST: CudaReduction = reduction(
            "argmin",
            "A{HIGHEST, 9223372036854775807ll}",
            "is_less(a.value, b.value) || (!is_less(b.value, a.value) && a.index < b.index) ? a : b",
        );
        let found = if MAX { &LARGEST } else { &SMALLEST };
        found.run(device, <Self as Op<1>>::NAME, x, AxisSet::one(self.dim), &[], out)
    }
}

impl<T: Key, const MAX: bool> CpuKernel<T, 1> for ArgExtreme<MAX> {
    type Out = i64;

    fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: StoredMut<'_, i64>) -> Result<()> {
        cpu::arg_reduce::<T, MAX>(x, self.dim, out.plain());
        Ok(())
    }
}
