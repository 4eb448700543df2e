//! The crate's one error type. Every text names the operation, the numbers and the fix.

mod made;

use std::io;
use std::path::PathBuf;

use pagelock_cuda as cuda;
use pagelock_memory as memory;
use pagelock_memory::text::named;

use crate::device::{Device, Operand};
use crate::element::DType;
use crate::shape::Shape;

/// What every fallible call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. A failed operation has changed nothing, unless its docs say otherwise.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that an operation does not accept: shapes that do not fit, a dimension or a path that does not
    /// exist, a number outside its range. The text says which, with the numbers and the fix.
    #[error("{0}")]
    Argument(String),
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
    #[error("{op}: {dtype} is not a precision of {kind} tensors; to_float, to_int and to_bool convert between kinds")]
    WrongKind {
        /// The operation.
        op: &'static str,
        /// The requested precision.
        dtype: DType,
        /// The kind: float, integer or bool.
        kind: &'static str,
    },
    /// A position outside a dimension.
    #[error("{op}: index {index} is out of range for dimension {dim} of {shape}: {}", index_hint(op, *index, shape[*dim], *from_end))]
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
    /// A gradient was requested of a tensor that requires none.
    #[error(
        "{op}: the tensor of shape {shape} does not require grad; mark it, or what it is computed from, with set_requires_grad(true), and compute it outside no_grad"
    )]
    NoGraph {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
    },
    /// `backward` was called again on a graph whose saved tensors it had freed.
    #[error(
        "backward: the saved tensors of `{op}` were freed by an earlier backward; pass retain_graph the first time, or compute the loss again"
    )]
    GraphFreed {
        /// The operation whose saved tensors are gone.
        op: &'static str,
    },
    /// A tensor that `backward` needs was changed in place after it was saved.
    #[error(
        "backward: a tensor saved by `{op}` ({shape}) was changed in place: it is at version {now}, saved at version {saved}; change it after backward, or change a `deep_clone` of it"
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
        "{op}: {operand} of shape {shape} requires grad, and in-place changes are not recorded; make the change inside no_grad, which does not record it either, or compute another tensor, for example with `where_cond`, `slice_scatter` or `stack`"
    )]
    InPlaceTracked {
        /// The operation.
        op: &'static str,
        /// Which tensor requires grad.
        operand: &'static str,
        /// The tensor's shape.
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
        /// The error of the memory.
        r#source: memory::Error,
    },
    /// Tensors of one operation are on different devices.
    #[error("{op}: {}, {}; move one with `.to(&device)?`", operands[0], operands[1])]
    DeviceMismatch {
        /// The operation.
        op: &'static str,
        /// The first tensor, and the first one on another device.
        operands: Box<[Operand; 2]>,
    },
    /// An operation that reads its tensor on the host was given one in a device's memory.
    #[error("{op}: {shape} is on {device}, but the host reads only its own memory; copy it with `.to(&Device::Cpu)?`")]
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
    /// Device memory could not be allocated.
    #[error("{op}: no memory for {shape} of {dtype}: {source}")]
    DeviceMemory {
        /// The operation.
        op: &'static str,
        /// The requested shape.
        shape: Shape,
        /// The element type.
        dtype: DType,
        /// The refusal.
        r#source: cuda::Error,
    },
    /// A call of CUDA failed, or a kernel could not be compiled.
    #[error("{op}{inputs}: {source}")]
    Cuda {
        /// The operation.
        op: &'static str,
        /// The types and shapes of the inputs: ` of float32 [64, 10]`, or nothing.
        inputs: String,
        /// The error of CUDA or of the kernel compiler.
        r#source: cuda::Error,
    },
    /// A library that the program requires is missing, or failed.
    #[error("{op} of {sizes}: {source}; or compute it with `Kernels::Fastest`")]
    Library {
        /// The operation.
        op: &'static str,
        /// The sizes.
        sizes: String,
        /// What is missing, or the error of the library.
        r#source: cuda::Error,
    },
    /// An action that cannot be part of a captured step.
    #[error(
        "{what} cannot be part of a captured step; do that before or after it, with tensors that it takes or returns"
    )]
    Captured {
        /// The action.
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
    /// The contents cannot be represented in the file's format; nothing was written.
    #[error("cannot write {}: {problem}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the format does not allow, and what to do.
        problem: String,
    },
    /// A file does not hold what it should.
    #[error("{}: {problem}", named(path.display()))]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A tensor was requested as one of another kind.
    #[error("the tensor is {found} {shape}, not {asked}; read it as its own kind, then convert it")]
    ElementType {
        /// Its precision.
        found: DType,
        /// Its shape.
        shape: Shape,
        /// The requested kind.
        asked: &'static str,
    },
    /// An error that concerns one tensor of a map.
    #[error("`{path}`: {source}")]
    At {
        /// The tensor's path in the map.
        path: String,
        /// The error.
        r#source: Box<Error>,
    },
    /// A map has no entry at a path.
    #[error("there is no `{path}` in the map: {} {names}; check the path", if inside.is_empty() { "it has".to_owned() } else { format!("`{inside}` has") })]
    NoEntry {
        /// The path.
        path: String,
        /// The part of the path that exists.
        inside: String,
        /// The names that exist there.
        names: String,
    },
    /// Host memory that an operation needs beside its result could not be allocated.
    #[error("{op}: no memory for {purpose}: {source}")]
    WorkingMemory {
        /// The operation.
        op: &'static str,
        /// What it is for.
        purpose: &'static str,
        /// The refusal.
        r#source: memory::Error,
    },
    /// Host memory could not be allocated.
    #[error("{op}: no memory for {shape} of {dtype}: {source}")]
    Memory {
        /// The operation.
        op: &'static str,
        /// The requested shape.
        shape: Shape,
        /// The element type.
        dtype: DType,
        /// The refusal.
        r#source: memory::Error,
    },
    /// The processor lacks instructions that kernels are compiled for.
    #[error(
        "this processor lacks AVX2 or FMA, for which kernels are compiled: use Intel Haswell, AMD Zen or later; a virtual machine may have to be configured to expose them"
    )]
    Processor,
    /// An environment variable has a value that is not accepted.
    #[error("{variable} is `{value}`, but {expected}")]
    Variable {
        /// The variable's name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is accepted.
        expected: &'static str,
    },
}

memory::debug_is_the_message!(Error);

/// What to do about an index that is out of range.
fn index_hint(op: &str, index: i64, size: usize, from_end: bool) -> String {
    let loss = match op {
        "cross_entropy" | "CrossEntropyLoss" if index < 0 => "CrossEntropyLoss",
        "nll_loss" | "NLLLoss" if index < 0 => "NLLLoss",
        _ => "",
    };
    match (size, from_end) {
        (1.., false) if !loss.is_empty() => {
            format!("use 0 to {}, or ignore it: `{loss}::new().ignore_index({index})`", size - 1)
        }
        (0, _) => "it is empty; check for a batch or an index without elements".to_string(),
        (_, true) => format!("use 0 to {}, or -{size} to -1 from the end", size - 1),
        (_, false) => format!("use 0 to {}", size - 1),
    }
}
