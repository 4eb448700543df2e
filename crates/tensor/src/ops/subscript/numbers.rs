//! Joins the index tensors of several dimensions into one tensor of nonnegative indices into the merged dimension. On
//! the CPU all indices are checked here. On a device, an index that is out of range stays out of range, and the
//! kernel that uses it finds it.

use super::Indexed;
use crate::cpu;
use crate::cuda::{CudaDevice, Formula, constant};
use crate::device::Device;
use crate::element::{DType, Scalar};
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::op::{on_cuda, with_locked};
use crate::ops::index::{check_range, own_index};
use crate::ops::{number_like, where_cond};
use crate::shape::Shape;
use crate::tensor::Raw;

static FROM_START: Formula = Formula {
    name: "index",
    inputs: &["number"],
    constants: &["size"],
    text: "number < 0 && number >= -size ? number + size : number",
    changes: false,
};

/// The index into the first of several dimensions. If it is out of range, it becomes so small that the joined index
/// is negative.
static FIRST: Formula = Formula {
    name: "index",
    inputs: &["number"],
    constants: &["size"],
    text: "number < -size || number >= size ? -(1ll << 62) : number < 0 ? number + size : number",
    changes: false,
};

/// The index into the dimensions so far, joined with the index into the next one.
static NEXT: Formula = Formula {
    name: "index",
    inputs: &["before", "number"],
    constants: &["size"],
    text: "before < 0 || number < -size || number >= size ? -(1ll << 62)
        : before * size + (number < 0 ? number + size : number)",
    changes: false,
};

/// The indices of all indexed dimensions, broadcast and joined into one index into the merged dimensions of `x`, the
/// first one outermost.
pub(super) fn join_indices(op: &'static str, x: &Raw, indexed: &[Indexed]) -> Result<Raw> {
    let Some((first, rest)) = indexed.split_first() else {
        return Err(Error::empty(op, "the index", "give a tensor of numbers or a mask"));
    };
    let size_and_index = |(dim, index): &Indexed| Ok::<_, Error>((x.shape()[*dim], own_index(op, [x, x], index)?));
    match x.storage.device() {
        Device::Cpu => {
            let from_start = |next: &Indexed| from_start(op, x, next.0, size_and_index(next)?.1);
            rest.iter().try_fold(from_start(first)?, |joined, next| {
                joined.times_scalar(Scalar::Int(x.shape()[next.0] as i64))?.add(&from_start(next)?)
            })
        }
        Device::Cuda(device) => {
            let formula = if rest.is_empty() { &FROM_START } else { &FIRST };
            let (size, first) = size_and_index(first)?;
            let first = run(op, device, formula, [&first], size)?;
            rest.iter().try_fold(first, |joined, next| {
                let (size, next) = size_and_index(next)?;
                let shape = Shape::broadcast(op, joined.shape(), next.shape())?;
                run(op, device, &NEXT, [&joined.expand(shape)?, &next.expand(shape)?], size)
            })
        }
    }
}

/// Runs a formula over index tensors of one shape on a device.
fn run<const N: usize>(
    op: &'static str,
    device: &CudaDevice,
    formula: &'static Formula,
    indices: [&Raw; N],
    size: usize,
) -> Result<Raw> {
    let (shape, size) = (*indices[0].shape(), constant(DType::I64, Scalar::Int(size as i64)));
    on_cuda(op, device, indices.mapped(Some), (shape, DType::I64), &mut |inputs, out| {
        formula.run(device, op, &inputs.cuda_views(), &[size], out)
    })
}

/// Checks the indices into `dim` on the CPU, and makes those that count from the end count from the start.
fn from_start(op: &'static str, x: &Raw, dim: usize, indices: Raw) -> Result<Raw> {
    let mut are_inside = false;
    with_locked([Some(&indices)], &mut |index| {
        are_inside = cpu::all_below(index.view::<i64>(0).data.plain(), x.shape()[dim]);
        Ok(())
    })?;
    if are_inside {
        return Ok(indices);
    }
    let zero = number_like(op, &indices, Scalar::Int(0))?;
    let from_start = indices.plus_scalar(Scalar::Int(x.shape()[dim] as i64))?;
    let from_start = where_cond(op, &indices.lt(&zero)?, &from_start, &indices)?;
    with_locked([Some(&from_start)], &mut |index| check_range(op, index.view::<i64>(0).data.plain(), dim, x.shape()))?;
    Ok(from_start)
}
