//! Joins the index tensors of several dimensions into one tensor of nonnegative indices into the merged dimension. On
//! the CPU all indices are checked here. On a device, an index that is out of range stays out of range, and the
//! kernel that uses it finds it.

use super::Place;
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

/// The indices of all places, broadcast and joined into one index into the merged dimensions of `x`, the first one
/// outermost.
pub(super) fn joined(op: &'static str, x: &Raw, places: &[Place]) -> Result<Raw> {
    let Some((first, rest)) = places.split_first() else {
        return Err(Error::empty(op, "the index", "give a tensor of numbers or a mask"));
    };
    let numbers = |(dim, numbers): &Place| Ok::<_, Error>((x.shape()[*dim], own_index(op, [x, x], numbers)?));
    match x.storage.device() {
        Device::Cpu => {
            let from_start = |place: &Place| from_start(op, x, place.0, numbers(place)?.1);
            rest.iter().try_fold(from_start(first)?, |before, place| {
                before.times_scalar(Scalar::Int(x.shape()[place.0] as i64))?.add(&from_start(place)?)
            })
        }
        Device::Cuda(device) => {
            let formula = if rest.is_empty() { &FROM_START } else { &FIRST };
            let (size, first) = numbers(first)?;
            let first = run(op, device, formula, [&first], size)?;
            rest.iter().try_fold(first, |before, place| {
                let (size, next) = numbers(place)?;
                let shape = Shape::broadcast(op, before.shape(), next.shape())?;
                run(op, device, &NEXT, [&before.expand(shape)?, &next.expand(shape)?], size)
            })
        }
    }
}

/// Runs a formula over index tensors of one shape on a device.
fn run<const N: usize>(
    op: &'static str,
    device: &CudaDevice,
    formula: &'static Formula,
    numbers: [&Raw; N],
    size: usize,
) -> Result<Raw> {
    let (made, size) = ((*numbers[0].shape(), DType::I64), constant(DType::I64, Scalar::Int(size as i64)));
    on_cuda(op, device, numbers.mapped(Some), made, &mut |inputs, out| {
        formula.run(device, op, &inputs.cuda_views(), &[size], out)
    })
}

/// Checks the indices into `dim` on the CPU, and makes those that count from the end count from the start.
fn from_start(op: &'static str, x: &Raw, dim: usize, numbers: Raw) -> Result<Raw> {
    let mut are_inside = false;
    with_locked([Some(&numbers)], &mut |index| {
        are_inside = cpu::all_below(index.view::<i64>(0).data.plain(), x.shape()[dim]);
        Ok(())
    })?;
    if are_inside {
        return Ok(numbers);
    }
    let zero = number_like(op, &numbers, Scalar::Int(0))?;
    let from_start = numbers.plus_scalar(Scalar::Int(x.shape()[dim] as i64))?;
    let from_start = where_cond(op, &numbers.lt(&zero)?, &from_start, &numbers)?;
    with_locked([Some(&from_start)], &mut |index| check_range(op, index.view::<i64>(0).data.plain(), dim, x.shape()))?;
    Ok(from_start)
}
