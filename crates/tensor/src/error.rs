//! The crate's one error type. Every text names the operation, the numbers and the fix.

mod hints;
mod made;

use std::io;
use std::path::PathBuf;

use pagelock_cuda as cuda;
use pagelock_memory as memory;
use pagelock_memory::text::named;

use self::hints::{index_hint, places_hint, saved_types};
use crate::device::{Device, Operand};
use crate::element::DType;
use crate::shape::{MAX_RANK, Shape};

/// What every fallible call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation was refused. Nothing has been changed when one is returned.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two shapes do not broadcast.
    #[error(
        "{op}: shapes {left} and {right} do not broadcast: aligned at the end, sizes must be equal or 1; reshape, unsqueeze or transpose one side"
    )]
    Broadcast {
        /// The operation.
        op: &'static str,
        /// The left operand's shape.
        left: Shape,
        /// The right operand's shape.
        right: Shape,
    },
    /// The inner sizes of a matrix product differ.
    #[error("matmul: inner sizes differ: left is {left}, right is {right}; transpose or reshape one side")]
    InnerSizes {
        /// The left operand's shape.
        left: Shape,
        /// The right operand's shape.
        right: Shape,
    },
    /// Tensors of two precisions in an operation that takes one.
    #[error("{op}: one operand is {left}, another {right}; convert one of them: x.to_dtype(DType::{wider:?})")]
    MixedTypes {
        /// The operation.
        op: &'static str,
        /// One precision.
        left: DType,
        /// The other.
        right: DType,
        /// One that holds the values of both.
        wider: DType,
    },
    /// A precision that tensors of this kind do not have.
    #[error("{op}: {dtype} is no precision of {kind} tensors; to_float, to_int and to_bool convert between kinds")]
    WrongKind {
        /// The operation.
        op: &'static str,
        /// The precision that was asked for.
        dtype: DType,
        /// The kind: float, integer or bool.
        kind: &'static str,
    },
    /// A shape that the operation does not take.
    #[error("{op}: {operand} is {shape}, but {expected}")]
    WrongShape {
        /// The operation.
        op: &'static str,
        /// Which operand.
        operand: &'static str,
        /// Its shape.
        shape: Shape,
        /// What it should be, and how to get there.
        expected: String,
    },
    /// A view of other sizes was asked for, with another number of elements.
    #[error("reshape: {from} has {elements} elements, which do not fill {to:?}; make the product of the sizes {elements} (one size may be -1)", elements = from.elements())]
    Reshape {
        /// The shape before.
        from: Shape,
        /// The sizes asked for.
        to: Vec<isize>,
    },
    /// A view cannot be made without copying.
    #[error(
        "view: {shape} with strides {strides:?} has no view as {to:?} without a copy; use reshape, or contiguous first"
    )]
    NeedsCopy {
        /// The shape before.
        shape: Shape,
        /// Its strides, in elements.
        strides: Vec<usize>,
        /// The sizes asked for.
        to: Vec<isize>,
    },
    /// A dimension that the tensor does not have.
    #[error("{op}: there is no dimension {dim} in {shape}: {}", places_hint(*places))]
    NoSuchDim {
        /// The operation.
        op: &'static str,
        /// The dimension asked for.
        dim: isize,
        /// The tensor's shape.
        shape: Shape,
        /// How many dimensions can be named: the rank, or one more for a new dimension.
        places: usize,
    },
    /// A dimension given twice.
    #[error("{op}: dimension {dim} of {shape} is named twice; name each once")]
    RepeatedDim {
        /// The operation.
        op: &'static str,
        /// The dimension.
        dim: isize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// A position outside a dimension.
    #[error("{op}: index {index} is out of range for dimension {dim} of {shape}: {}", index_hint(shape[*dim], *from_end))]
    IndexOutOfRange {
        /// The operation.
        op: &'static str,
        /// The index.
        index: i64,
        /// The dimension it selects in.
        dim: usize,
        /// The tensor's shape.
        shape: Shape,
        /// Whether negative indices count from the end here.
        from_end: bool,
    },
    /// A range outside a dimension, or a step of zero.
    #[error(
        "{op}: {start}..{end} with step {step} does not fit dimension {dim} of {shape}; keep start and end in 0..={} and the step at least 1", shape[*dim]
    )]
    BadRange {
        /// The operation.
        op: &'static str,
        /// First index.
        start: isize,
        /// One past the last index.
        end: isize,
        /// Distance between indices.
        step: usize,
        /// The dimension.
        dim: usize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// An argument outside what the operation is defined for.
    #[error("{op}: {argument} is {}, but {expected}", named(value))]
    BadArgument {
        /// The operation.
        op: &'static str,
        /// Which argument.
        argument: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        expected: String,
    },
    /// Data and shape do not agree.
    #[error("{op}: {given} values were given for shape {shape}, which has {} elements; give as many values as the shape has", shape.elements())]
    DataLength {
        /// The operation.
        op: &'static str,
        /// How many values were given.
        given: usize,
        /// The shape.
        shape: Shape,
    },
    /// Nested arrays of unequal lengths.
    #[error("new: rows of a nested array differ in length: {first:?} and {other:?}; pad or cut them to one length")]
    Ragged {
        /// The first row's shape.
        first: Vec<usize>,
        /// Another row's shape.
        other: Vec<usize>,
    },
    /// More dimensions than a tensor can have.
    #[error("shape {sizes:?} has {} dimensions, a tensor has at most {MAX_RANK}; flatten some", sizes.len())]
    TooManyDims {
        /// The sizes.
        sizes: Vec<usize>,
    },
    /// A shape whose bytes cannot be addressed.
    #[error("shape {shape} needs more bytes than memory can address (2^63); check the sizes")]
    TooLarge {
        /// The shape.
        shape: Shape,
    },
    /// `item` of a tensor that is not one number.
    #[error("item: {shape} holds {} elements, not one; reduce or select first, or use to_vec", shape.elements())]
    NotOneElement {
        /// The tensor's shape.
        shape: Shape,
    },
    /// Nothing to work on.
    #[error("{op}: {what} is empty; {fix}")]
    Empty {
        /// The operation.
        op: &'static str,
        /// What is empty.
        what: &'static str,
        /// What to do.
        fix: &'static str,
    },
    /// A gradient of a tensor that nothing was recorded for.
    #[error(
        "{op}: the tensor of shape {shape} does not require grad; mark it, or what it is computed from, with set_requires_grad(true), and compute it outside no_grad"
    )]
    NoGraph {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
    },
    /// `backward` of more than one number without a gradient to start from.
    #[error("backward: {shape} is not one number; reduce it (sum, mean) or give Backward::gradient of that shape")]
    NotScalar {
        /// The tensor's shape.
        shape: Shape,
    },
    /// `backward` a second time.
    #[error(
        "backward: the saved tensors of `{op}` were freed by an earlier backward; pass retain_graph the first time, or compute the loss again"
    )]
    GraphFreed {
        /// The operation whose saved tensors are gone.
        op: &'static str,
    },
    /// A tensor that backward needs was changed in place since.
    #[error(
        "backward: a tensor saved by `{op}` ({shape}) was changed in place: it is at version {now}, saved at version {saved}; change it after backward, or clone it first"
    )]
    StaleSaved {
        /// The operation that saved it.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
        /// Its version when saved.
        saved: u64,
        /// Its version now.
        now: u64,
    },
    /// An in-place change that would lose a gradient.
    #[error(
        "{op}: {operand} of shape {shape} requires grad, and in-place changes are not recorded; make the change inside no_grad, or use the call without the underscore"
    )]
    InPlaceTracked {
        /// The operation.
        op: &'static str,
        /// Which tensor requires grad.
        operand: &'static str,
        /// The tensor's shape.
        shape: Shape,
    },
    /// A tensor whose elements overlap in memory cannot be written.
    #[error("{op}: {shape} is an expanded view whose elements share memory; make it contiguous first")]
    InPlaceExpanded {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
    },
    /// A gradient of the wrong shape or type.
    #[error(
        "{op}: the gradient is {dtype} {shape}, but {expected_dtype} {expected} was expected; a gradient is shaped like its tensor"
    )]
    GradientShape {
        /// The operation.
        op: &'static str,
        /// The gradient's element type.
        dtype: DType,
        /// The gradient's shape.
        shape: Shape,
        /// The element type expected.
        expected_dtype: DType,
        /// The shape expected.
        expected: Shape,
    },
    /// A custom function returned the wrong number of gradients.
    #[error(
        "{op}: backward returned {given} gradients for {expected} inputs; return one per input, None where there is none"
    )]
    GradientCount {
        /// The function's name.
        op: &'static str,
        /// How many it returned.
        given: usize,
        /// How many inputs it has.
        expected: usize,
    },
    /// A custom function asked for a tensor that it did not save.
    #[error(
        "{op}: there is no saved {kind} tensor {position}: forward saved {}; count the calls of save from 0",
        saved_types(saved)
    )]
    NotSaved {
        /// The function's name.
        op: &'static str,
        /// The position asked for.
        position: usize,
        /// The kind asked for.
        kind: &'static str,
        /// The precisions of the saved tensors.
        saved: Vec<DType>,
    },
    /// A second derivative through a tensor whose making was not recorded.
    #[error(
        "{op}: saved tensor {position} ({shape}) was made inside forward, where nothing is recorded, so it has no derivative of its own; save the inputs or the result instead, or use save_constant if it does not depend on the inputs"
    )]
    SavedIntermediate {
        /// The function's name.
        op: &'static str,
        /// The tensor's position.
        position: usize,
        /// Its shape.
        shape: Shape,
    },
    /// A derivative that disagrees with finite differences.
    #[error(
        "gradcheck: d output[{output}] / d input {input}[{element}] is {analytic:e} by backward and {numeric:e} by central differences (allowed difference {allowed:e})"
    )]
    GradientMismatch {
        /// The input's position.
        input: usize,
        /// The element of the input.
        element: usize,
        /// The element of the output.
        output: usize,
        /// What `backward` says.
        analytic: f64,
        /// What differences say.
        numeric: f64,
        /// The tolerance.
        allowed: f64,
    },
    /// Memory that must not be written, such as a mapped file.
    #[error("{op}: {shape} cannot be changed in place: {source}")]
    NotWritable {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
        /// What the memory says.
        r#source: memory::Error,
    },
    /// Tensors of one operation are on different devices.
    #[error("{op}: {}, {}; move one with `.to(&device)?`", operands[0], operands[1])]
    DeviceMismatch {
        /// The operation.
        op: &'static str,
        /// The first tensor, and the first that is elsewhere.
        operands: Box<[Operand; 2]>,
    },
    /// The host has to read what is in a device's memory.
    #[error("{op}: {shape} is on {device}, and the host reads only its own memory; copy it with `.to(&Device::Cpu)?`")]
    OnDevice {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
        /// Where it is.
        device: Device,
    },
    /// There is no such device.
    #[error(transparent)]
    NoDevice(cuda::Error),
    /// A device's memory was refused.
    #[error("{op}: no memory for {shape} of {dtype}: {source}")]
    DeviceMemory {
        /// The operation.
        op: &'static str,
        /// The shape asked for.
        shape: Shape,
        /// The element type.
        dtype: DType,
        /// The refusal.
        r#source: cuda::Error,
    },
    /// CUDA refused, or a kernel cannot be had.
    #[error("{op}{inputs}: {source}")]
    Cuda {
        /// The operation.
        op: &'static str,
        /// What it was given: ` of float32 [64, 10]`, or nothing.
        inputs: String,
        /// What CUDA, or the compiler of kernels, says.
        r#source: cuda::Error,
    },
    /// A library that was asked for is missing, or refuses.
    #[error("{op} of {sizes}: {source}; or compute it with `Kernels::Fastest`")]
    Library {
        /// The operation.
        op: &'static str,
        /// The sizes.
        sizes: String,
        /// What is missing, or what the library says.
        r#source: cuda::Error,
    },
    /// Something that cannot be part of a captured step.
    #[error("{what} cannot be part of a captured step; do that before or after it, or return what is needed there")]
    Captured {
        /// What was asked for.
        what: &'static str,
    },
    /// A file could not be opened, read or written.
    #[error("cannot {action} {}: {source}", named(path.display()))]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        r#source: io::Error,
    },
    /// What is to be saved would make a file that nobody can read; nothing was written.
    #[error("cannot write {}: {problem}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the format does not allow, and what to do.
        problem: String,
    },
    /// A file does not hold what it should.
    #[error("{}: {problem}", named(path.display()))]
    Stored {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A tensor was asked for as one of another kind.
    #[error("the tensor is {found} {shape}, not {asked}; ask for its own kind, and convert that")]
    ElementType {
        /// Its precision.
        found: DType,
        /// Its shape.
        shape: Shape,
        /// The kind asked for.
        asked: &'static str,
    },
    /// What went wrong with one tensor of a map.
    #[error("`{path}`: {source}")]
    At {
        /// Where it is in the map.
        path: String,
        /// What went wrong.
        r#source: Box<Error>,
    },
    /// A text that is no path in a map.
    #[error("`{path}` is no path in a map: {problem}; write names joined with dots, as in `agent.state`")]
    Path {
        /// The text.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// There is nothing at a path.
    #[error("there is no `{path}` in the map: {} {names}; check the path", if inside.is_empty() { "it has".to_owned() } else { format!("`{inside}` has") })]
    NoEntry {
        /// The path.
        path: String,
        /// How far it leads.
        inside: String,
        /// What is there instead.
        names: String,
    },
    /// A map where a tensor was asked for.
    #[error("`{path}` is a map of {names}; name one of its tensors, or ask for the map with `get_map`")]
    NotATensor {
        /// The path.
        path: String,
        /// What the map has.
        names: String,
    },
    /// A tensor where a map was expected.
    #[error("`{path}` is a tensor and holds no names; end the path there, or remove the tensor first")]
    NotAMap {
        /// The path of the tensor.
        path: String,
    },
    /// A tensor that does not begin with the batch of its map.
    #[error(
        "`{path}` is {shape}, and in this map shapes begin with its batch, {batch}; reshape or narrow the tensor, or put it in a map of another batch"
    )]
    Batch {
        /// Where it was to be.
        path: String,
        /// Its shape.
        shape: Shape,
        /// The map's batch.
        batch: Shape,
    },
    /// Maps that were to be joined are not alike.
    #[error("{op}: map {map} is not like the first{}: {problem}; give maps of the same names and batches", if path.is_empty() { String::new() } else { format!(" at `{path}`") })]
    MapsDiffer {
        /// The operation.
        op: &'static str,
        /// The position of the map, from 0.
        map: usize,
        /// Where they differ.
        path: String,
        /// How.
        problem: String,
    },
    /// Host memory was refused that an operation needs beside its result.
    #[error("{op}: no memory for {purpose}: {source}")]
    WorkingMemory {
        /// The operation.
        op: &'static str,
        /// What it is for.
        purpose: &'static str,
        /// The refusal.
        r#source: memory::Error,
    },
    /// Host memory was refused.
    #[error("{op}: no memory for {shape} of {dtype}: {source}")]
    Memory {
        /// The operation.
        op: &'static str,
        /// The shape asked for.
        shape: Shape,
        /// The element type.
        dtype: DType,
        /// The refusal.
        r#source: memory::Error,
    },
    /// An environment variable that says nothing sensible.
    #[error("{variable} is `{value}`, and {expected}")]
    Variable {
        /// Which.
        variable: &'static str,
        /// What it was set to.
        value: String,
        /// What is accepted.
        expected: &'static str,
    },
}

memory::debug_is_the_message!(Error);
