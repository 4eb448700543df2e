//! NVIDIA's libraries for large products and convolutions, and when they are used.
//!
//! A library is loaded when something large is computed for the first time. Without it, this crate's own kernels
//! compute everything; [`CudaDevice::libraries`] says what is missing. [`with_kernels`] changes the choice.

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;

use pagelock_cuda as cuda;
use pagelock_cuda::LibraryAbsence;
use pagelock_cuda::library::{Blas, Choice, DataType, Dnn};

use super::CudaDevice;
use crate::deterministic::are_deterministic_algorithms_enabled;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::thread_value::with_value;

/// Whose kernels compute matrix products and convolutions on GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kernels {
    /// A library's kernels if they are faster for the sizes and the library is installed, else this crate's.
    #[default]
    Fastest,
    /// As `Fastest`, but with the fastest of a library's algorithms for a convolution or an attention, which is
    /// measured at first use and stored on disk: PyTorch's `cudnn.benchmark`. On another machine, and in a step that
    /// is captured before the measurement, another algorithm may be chosen, whose results differ by rounding.
    Measured,
    /// Always this crate's kernels.
    Own,
    /// Always a library's kernels: it is an error if the library is missing or refuses. Integers, `f64` convolutions,
    /// and batches whose matrices are not evenly spaced are computed by this crate all the same. Recurrent layers are
    /// computed step by step, with a product for each step.
    Library,
}

thread_local! {
    static CHOSEN: Cell<Option<Kernels>> = const { Cell::new(None) };
}

/// Runs `f`. Until it returns, matrix products and convolutions on GPUs are computed by these kernels in this thread.
///
/// Results of libraries and of this crate's kernels differ by rounding. Outside of such a call, the environment
/// variable `PAGELOCK_KERNELS` decides (`fastest`, `measured`, `own` or `library`), as it was at its first use; by
/// default, kernels are [`Kernels::Fastest`]. With any other value, every call that makes a tensor on a GPU fails
/// with [`Error::Variable`].
///
/// ```
/// use pagelock_tensor::{Kernels, kernels, with_kernels};
///
/// assert_eq!(with_kernels(Kernels::Own, kernels), Kernels::Own);
/// ```
pub fn with_kernels<R>(kernels: Kernels, f: impl FnOnce() -> R) -> R {
    with_value(&CHOSEN, Some(kernels), f)
}

/// Whose kernels compute matrix products and convolutions on GPUs in this thread: see [`with_kernels`].
pub fn kernels() -> Kernels {
    CHOSEN.get().unwrap_or_else(|| from_environment().unwrap_or(Kernels::Fastest)) // an error is reported by `check`
}

/// Which of a library's algorithms computes a convolution or an attention in this thread.
pub(crate) fn choice() -> Choice {
    if kernels() == Kernels::Measured { Choice::Measured } else { Choice::First }
}

/// An error if the environment variable does not name kernels, unless the program chose some.
#[inline]
pub(crate) fn check() -> Result<()> {
    if CHOSEN.get().is_some() { Ok(()) } else { from_environment().map(drop) }
}

fn from_environment() -> Result<Kernels> {
    static FROM_ENVIRONMENT: OnceLock<Kernels> = OnceLock::new();
    if let Some(&kernels) = FROM_ENVIRONMENT.get() {
        return Ok(kernels);
    }
    let text = std::env::var_os(VARIABLE).unwrap_or_default();
    parse(&text.to_string_lossy()).map(|kernels| *FROM_ENVIRONMENT.get_or_init(|| kernels))
}

const VARIABLE: &str = "PAGELOCK_KERNELS";

fn parse(text: &str) -> Result<Kernels> {
    match text.trim() {
        "" | "fastest" => Ok(Kernels::Fastest),
        "measured" => Ok(Kernels::Measured),
        "own" => Ok(Kernels::Own),
        "library" => Ok(Kernels::Library),
        other => Err(Error::Variable {
            variable: VARIABLE,
            value: other.to_owned(),
            expected: "it must be `fastest`, `measured`, `own` or `library`; unset it to use the fastest kernels",
        }),
    }
}

/// The libraries that a device has, and those that are missing. Prints both.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Libraries {
    /// cuBLASLt, for large matrix products.
    pub blas: Result<(), LibraryAbsence>,
    /// cuDNN, for convolutions and attention.
    pub dnn: Result<(), LibraryAbsence>,
}

impl fmt::Display for Libraries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let describe = |library: &Result<(), LibraryAbsence>, name: &str| match library {
            Ok(()) => format!("{name} is available"),
            Err(missing) => missing.to_string(),
        };
        write!(f, "{}\n{}", describe(&self.blas, "cuBLASLt"), describe(&self.dnn, "cuDNN"))
    }
}

/// The libraries that were needed so far, or why they are missing.
#[derive(Default)]
pub(super) struct Loaded {
    blas: OnceLock<Result<Blas, LibraryAbsence>>,
    dnn: OnceLock<Result<Dnn, LibraryAbsence>>,
}

impl CudaDevice {
    /// Which libraries for large products and convolutions exist. Loads them.
    ///
    /// ```
    /// # use pagelock_tensor::Device;
    /// if let Device::Cuda(device) = Device::best() {
    ///     println!("{}", device.libraries());
    /// }
    /// ```
    pub fn libraries(&self) -> Libraries {
        let status = |missing: Option<&LibraryAbsence>| missing.map_or(Ok(()), |missing| Err(missing.clone()));
        Libraries { blas: status(self.blas().err()), dnn: status(self.dnn().err()) }
    }

    fn blas(&self) -> Result<&Blas, &LibraryAbsence> {
        self.loaded().blas.get_or_init(|| Blas::new(self.cuda()).map_err(|error| absence("cuBLASLt", error))).as_ref()
    }

    fn dnn(&self) -> Result<&Dnn, &LibraryAbsence> {
        self.loaded().dnn.get_or_init(|| Dnn::new(self.cuda()).map_err(|error| absence("cuDNN", error))).as_ref()
    }

    /// cuBLASLt, if it should compute this work.
    pub(crate) fn blas_for(&self, work: &Work<'_>) -> Result<Option<&Blas>> {
        work.choose(|| self.blas())
    }

    /// cuDNN, if it should compute this work.
    pub(crate) fn dnn_for(&self, work: &Work<'_>) -> Result<Option<&Dnn>> {
        work.choose(|| self.dnn())
    }

    /// cuDNN, or an error if it is missing.
    pub(crate) fn require_dnn(&self, work: &Work<'_>) -> Result<&Dnn> {
        self.dnn().map_err(|missing| work.error(missing.clone().into()))
    }
}

fn absence(library: &'static str, error: cuda::Error) -> LibraryAbsence {
    match error {
        cuda::Error::NoLibrary(absence) => absence,
        cuda::Error::Driver(failure) => LibraryAbsence::NotStarted { library, status: failure.status.0 as i32 },
        _ => LibraryAbsence::NotStarted { library, status: 0 },
    }
}

/// Work that a library could compute.
pub(crate) struct Work<'a> {
    pub(crate) op: &'static str,
    /// Whether it is so large that the library is faster.
    pub(crate) is_large: bool,
    /// The sizes, for errors.
    pub(crate) sizes: &'a dyn Fn() -> String,
}

impl Work<'_> {
    fn choose<'l, L>(&self, library: impl FnOnce() -> Result<&'l L, &'l LibraryAbsence>) -> Result<Option<&'l L>> {
        match kernels() {
            Kernels::Own => Ok(None),
            Kernels::Fastest | Kernels::Measured if !self.is_large => Ok(None),
            // If a variable names a folder that does not have the library, it is an error.
            Kernels::Fastest | Kernels::Measured => match library() {
                Err(LibraryAbsence::NotInFolder { variable, folder, .. }) => Err(Error::Variable {
                    variable,
                    value: folder.clone(),
                    expected: "that folder does not have the library; name the one that does, or unset the variable",
                }),
                found => Ok(found.ok()),
            },
            Kernels::Library => library().map(Some).map_err(|missing| self.error(missing.clone().into())),
        }
    }

    /// Whether the library has queued the work. False if it refused and this crate's kernels may compute it. Whether
    /// there is scratch memory may differ from run to run, so a shortage is an error while algorithms must be deterministic.
    pub(crate) fn is_done(&self, queued: Result<(), cuda::Error>) -> Result<bool> {
        match queued {
            Ok(()) => Ok(true),
            Err(shortage @ (cuda::Error::OutOfMemory { .. } | cuda::Error::Memory(_))) => {
                match are_deterministic_algorithms_enabled() || kernels() == Kernels::Library {
                    true => Err(Error::cuda(self.op, shortage)),
                    false => Ok(false),
                }
            }
            Err(cuda::Error::Library { .. } | cuda::Error::Unsupported { .. }) if kernels() != Kernels::Library => {
                Ok(false)
            }
            Err(source) => Err(self.error(source)),
        }
    }

    /// The library's error, with the operation and its sizes.
    pub(crate) fn error(&self, source: cuda::Error) -> Error {
        Error::Library { op: self.op, sizes: (self.sizes)(), source }
    }
}

/// The type as libraries name it, if they compute with it.
pub(crate) fn data_type(dtype: DType) -> Option<DataType> {
    match dtype {
        DType::F16 => Some(DataType::F16),
        DType::BF16 => Some(DataType::Bf16),
        DType::F32 => Some(DataType::F32),
        DType::F64 => Some(DataType::F64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_kernels_is_refused_with_what_does() {
        let known = [("", Kernels::Fastest), (" own ", Kernels::Own), ("measured", Kernels::Measured)];
        known.into_iter().for_each(|(text, kernels)| assert_eq!(parse(text).unwrap(), kernels));
        assert_eq!(
            parse("cublas").unwrap_err().to_string(),
            "PAGELOCK_KERNELS is `cublas`, but it must be `fastest`, `measured`, `own` or `library`; unset it to use \
             the fastest kernels"
        );
    }

    #[test]
    fn a_folder_without_the_library_that_a_variable_names_is_an_error_where_it_is_needed() {
        let variable = "PAGELOCK_CUBLAS";
        let [library, names, folder] = ["cuBLASLt", "libcublasLt.so", "/nowhere"];
        let (names, folder) = (names.to_owned(), folder.to_owned());
        let missing = LibraryAbsence::NotInFolder { library, names, variable, folder };
        let choose = |is_large| {
            let work = Work { op: "matmul", is_large, sizes: &String::new };
            with_kernels(Kernels::Fastest, || work.choose::<()>(|| Err(&missing)).map(|found| found.is_some()))
        };
        assert!(!choose(false).unwrap());
        let refused = choose(true).unwrap_err().to_string();
        assert!(refused.starts_with("PAGELOCK_CUBLAS is `/nowhere`, but that folder"), "{refused}");
    }
}
