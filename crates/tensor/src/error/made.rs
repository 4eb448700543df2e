//! How errors are made, and what a program may ask of one.

use std::io;
use std::path::Path;

use pagelock_cuda as cuda;
use pagelock_memory as memory;

use super::Error;
use crate::map::shortened;
use crate::tensor::Raw;

impl Error {
    /// Whether there was not enough memory, on the host or on a device: a smaller batch may do.
    ///
    /// Nothing is left behind by what was refused. Gradients that `backward` had already added to parameters stay there,
    /// so forget them before the next try.
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
            Error::DeviceMemory { source, .. } | Error::Cuda { source, .. } => match source {
                cuda::Error::OutOfMemory { .. } => true,
                cuda::Error::Memory(source) => of_host(source),
                _ => false,
            },
            _ => false,
        }
    }

    /// What a kernel works in was refused.
    pub(crate) fn scratch(op: &'static str) -> impl Fn(memory::Error) -> Error {
        move |source| Error::WorkingMemory { op, purpose: "what it works in", source }
    }

    pub(crate) fn cuda(op: &'static str, source: cuda::Error) -> Error {
        Error::Cuda { op, inputs: String::new(), source }
    }

    /// The same error, with what the operation was given, where it says nothing of that.
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

    /// What went wrong at `path`, or further down there.
    pub(crate) fn at(path: &str, source: Error) -> Error {
        match source {
            Error::At { path: inner, source } => Error::At { path: shortened(&format!("{path}.{inner}")), source },
            source => Error::At { path: shortened(path), source: Box::new(source) },
        }
    }
}
