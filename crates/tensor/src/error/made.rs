//! Constructors and queries of [`Error`].

use std::fmt::Display;
use std::io;
use std::path::Path;

use pagelock_cuda as cuda;
use pagelock_memory as memory;
use pagelock_memory::text::{named, shortened};

use super::Error;
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::Raw;

impl Error {
    /// Changes the operation that an [`Error::IndexOutOfRange`] names; other errors stay as they are.
    #[doc(hidden)]
    #[must_use]
    pub fn of_index_in(self, op: &'static str) -> Error {
        match self {
            Error::IndexOutOfRange { index, dim, shape, from_end, .. } => {
                Error::IndexOutOfRange { op, index, dim, shape, from_end }
            }
            other => other,
        }
    }

    /// Whether memory ran out, on the host or on a device: a smaller batch may fit.
    ///
    /// The operation that failed leaves nothing behind. Gradients that `backward` had already added to parameters
    /// stay, so clear them before the next try.
    ///
    /// ```no_run
    /// # use pagelock_tensor::{Result, Tensor};
    /// # fn train_step(x: &Tensor) -> Result<f32> { x.sum(..)?.item() }
    /// # fn zero_grad() {}
    /// # let (data, mut batch) = (Tensor::zeros([1024, 784])?, 1024);
    /// let loss = loop {
    ///     match train_step(&data.narrow(0, 0, batch)?) {
    ///         Err(error) if error.is_out_of_memory() && batch > 1 => {
    ///             eprintln!("{error}; going on with batches of {}", batch / 2);
    ///             zero_grad();
    ///             batch /= 2;
    ///         }
    ///         result => break result?,
    ///     }
    /// };
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn is_out_of_memory(&self) -> bool {
        let of_host = |source: &memory::Error| {
            matches!(
                source,
                memory::Error::OverBudget(_) | memory::Error::OutOfMemory { .. } | memory::Error::LockLimit { .. }
            )
        };
        match self {
            Error::Memory { source, .. } | Error::WorkingMemory { source, .. } => of_host(source),
            Error::At { source, .. } => source.is_out_of_memory(),
            Error::DeviceMemory { source, .. } | Error::Cuda { source, .. } | Error::Library { source, .. } => {
                match source {
                    cuda::Error::OutOfMemory { .. } => true,
                    cuda::Error::Memory(source) => of_host(source),
                    _ => false,
                }
            }
            _ => false,
        }
    }

    /// A shape that the operation does not accept. `expected` says what it should be, and how to get there.
    pub(crate) fn wrong_shape(op: &str, operand: &str, shape: &Shape, expected: impl Display) -> Error {
        Error::Argument(format!("{op}: {operand} is {shape}, but {expected}"))
    }

    /// An argument outside what the operation is defined for.
    pub(crate) fn bad_argument(op: &str, argument: &str, value: impl Display, expected: impl Display) -> Error {
        Error::Argument(format!("{op}: {argument} is {}, but {expected}", named(value)))
    }

    pub(crate) fn empty(op: &str, what: &str, fix: &str) -> Error {
        Error::Argument(format!("{op}: {what} is empty; {fix}"))
    }

    /// `what` has length `given`, which is not the number of elements of `shape`.
    pub(crate) fn wrong_length(op: &str, what: &str, given: usize, shape: &Shape) -> Error {
        let len = shape.elements();
        Error::Argument(format!("{op}: the length of {what} is {given}, but must be {len} for shape {shape}"))
    }

    pub(crate) fn inner_sizes(left: &Shape, right: &Shape) -> Error {
        Error::Argument(format!(
            "matmul: inner sizes differ: left is {left}, right is {right}; transpose or reshape one side"
        ))
    }

    pub(crate) fn too_many_dims(sizes: &[impl std::fmt::Debug]) -> Error {
        let rank = sizes.len();
        let problem = format!("has {rank} dimensions, but a tensor has at most {MAX_RANK}");
        Error::Argument(format!("shape {sizes:?} {problem}; flatten some"))
    }

    pub(crate) fn too_large(shape: impl Display) -> Error {
        Error::Argument(format!("shape {shape} needs more bytes than memory can address (2^63); check the sizes"))
    }

    /// Maps that cannot be joined, since they differ at `path`.
    pub(crate) fn maps_differ(op: &str, map: usize, path: &str, problem: impl Display) -> Error {
        let at = if path.is_empty() { String::new() } else { format!(" at `{path}`") };
        Error::Argument(format!(
            "{op}: map {map} is not like the first{at}: {problem}; give maps of the same names and batches"
        ))
    }

    pub(crate) fn no_path(path: &str, problem: &str) -> Error {
        let path = shortened(path);
        Error::Argument(format!(
            "`{path}` is not a path in a map: {problem}; write names joined with dots, as in `agent.state`"
        ))
    }

    /// A tensor where a map was expected.
    pub(crate) fn not_a_map(path: &str) -> Error {
        let path = shortened(path);
        Error::Argument(format!(
            "`{path}` is a tensor and holds no names; end the path there, or remove the tensor first"
        ))
    }

    /// A tensor that does not begin with the batch of its map.
    pub(crate) fn wrong_batch(path: &str, shape: &Shape, batch: &Shape) -> Error {
        let path = shortened(path);
        Error::Argument(format!(
            "`{path}` is {shape}, but shapes in this map must begin with its batch, {batch}; reshape or narrow the tensor, or put it in a map of another batch"
        ))
    }

    /// The working memory of a kernel could not be allocated.
    pub(crate) fn scratch(op: &'static str) -> impl Fn(memory::Error) -> Error {
        move |source| Error::WorkingMemory { op, purpose: "its working memory", source }
    }

    pub(crate) fn cuda(op: &'static str, source: cuda::Error) -> Error {
        Error::Cuda { op, inputs: String::new(), source }
    }

    /// The same error with the operation's inputs, if it is an [`Error::Cuda`] that has none yet.
    pub(crate) fn with_inputs(mut self, given: &[Option<&Raw>]) -> Error {
        if let Error::Cuda { inputs, .. } = &mut self
            && inputs.is_empty()
        {
            let all: Vec<String> =
                given.iter().flatten().map(|raw| format!("{} {}", raw.dtype(), raw.shape())).collect();
            *inputs = format!(" of {}", all.join(", "));
        }
        self
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source }
    }

    /// An error at `path`, or below it.
    pub(crate) fn at(path: &str, source: Error) -> Error {
        match source {
            Error::At { path: inner, source } => Error::At { path: shortened(&format!("{path}.{inner}")), source },
            source => Error::At { path: shortened(path), source: Box::new(source) },
        }
    }
}
