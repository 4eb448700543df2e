//! Helpers that several functions of this module share.

use pagelock_memory::HeapReservation;
use pagelock_tensor::{Device, Error, Int, Result, Shape, Tensor};

/// The error for a shape that a function does not accept. `expected` says what it must be and how to get there.
pub(crate) fn wrong_shape(op: &str, operand: &str, shape: &Shape, expected: &str) -> Error {
    Error::Argument(format!("{op}: {operand} is {shape}, but {expected}"))
}

/// The error for an argument outside its range. `expected` says what it must be.
pub(crate) fn wrong_argument(op: &str, argument: &str, value: impl std::fmt::Display, expected: &str) -> Error {
    Error::Argument(format!("{op}: {argument} is {value}, but it must be {expected}"))
}

/// Runs `f` in computing precision: an input of half precision is converted to `f32`, and the result is rounded once,
/// as in PyTorch's kernels.
pub(crate) fn computed(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match x.dtype().computing() {
        wide if wide != x.dtype() => f(&x.to_dtype(wide)?)?.to_dtype(x.dtype()),
        _ => f(x),
    }
}

/// A tensor without dimensions, on the device and in the precision of `like`.
pub(crate) fn constant(like: &Tensor, value: f64) -> Result<Tensor> {
    Tensor::on(&like.device()).of(like.dtype()).full((), value)
}

/// The same elements in another shape of the same size.
pub(crate) fn shaped(x: &Tensor, shape: &Shape) -> Result<Tensor> {
    x.reshape([-1])?.unflatten(0, shape)
}

/// The first `len` of `positions` as an index on `device`.
pub(crate) fn index(len: usize, positions: impl Iterator<Item = usize>, device: &Device) -> Result<Tensor<Int>> {
    let fill = |index: &mut [i64]| std::iter::zip(index, positions).for_each(|(to, position)| *to = position as i64);
    Tensor::build(len, fill)?.to(device)
}

/// Reserves the memory of a list of numbers of 8 bytes, which is no tensor.
pub(crate) fn reserve(op: &'static str, len: usize) -> Result<HeapReservation> {
    let refused = |source| Error::WorkingMemory { op, purpose: "its numbers", source };
    HeapReservation::new((len as u64).saturating_mul(8)).map_err(refused)
}

/// The size of a dimension of a weight. A weight that was replaced may not have the dimension; then 0.
pub(crate) fn size(weight: &Tensor, dim: usize) -> usize {
    weight.dims().get(dim).copied().unwrap_or(0)
}

/// A size in the type that `reshape` takes.
pub(crate) fn signed(size: usize) -> isize {
    size as isize // sizes of tensors fit
}

/// `[channels]` as `[channels, 1, ..]`, which broadcasts along dimension 1 of a tensor of `rank` dimensions.
pub(crate) fn along_channels(per_channel: &Tensor, rank: usize) -> Result<Tensor> {
    (2..rank).try_fold(per_channel.clone(), |tensor, _| tensor.unsqueeze(-1))
}
