//! Compiles CUDA sources to kernels, for the element types that a program uses, at their first use.
//!
//! A source is one module for each pair of types, so that a program compiles only what it uses. Some sources are
//! compiled for sizes, too. Compiled code is cached on disk by `pagelock-cuda`, and per device here. Some comes with
//! the crate, in `kernels.bin`.

use std::sync::{Arc, Once, PoisonError, RwLock};

use pagelock_cuda::{Argument, KernelFunction, KernelSource, Launch};
use rustc_hash::FxHashMap;

use super::CudaDevice;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::Slice;

/// The header of every source.
const HEADER: &str = include_str!("header.cu");

/// Compiled kernels that come with this crate: those of the walkthrough's networks, and those that programs begin
/// with. Written by `cargo xtask kernels`; a test of `pagelock-nn` checks that they match the sources.
static ARCHIVE: &[u8] = include_bytes!("kernels.bin");

/// From the first call on, kernels that come compiled are not compiled again.
pub(super) fn load_kernel_archive() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `KernelArchive::to_bytes` made the file.
        let loaded = unsafe { pagelock_cuda::load_kernel_archive(ARCHIVE) };
        debug_assert!(loaded.is_ok(), "kernels.bin is not complete: {loaded:?}");
    });
}

/// CUDA C++ of some kernels, for any element types. A `static` beside the operation: its address is its identity.
pub(crate) struct Code {
    /// The name in errors and profiles.
    pub(crate) name: &'static str,
    /// The source after the header, which is the same for all types.
    pub(crate) text: &'static str,
}

/// The kernels that are loaded on a device.
#[derive(Default)]
pub(super) struct LoadedKernels {
    loaded: RwLock<FxHashMap<Key, Vec<(Constants, Arc<KernelFunction>)>>>, // guards the list
}

/// A source by its address, the types that it was compiled for, and a kernel's name by its address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key(usize, [DType; 2], usize);

/// Numbers that a source is compiled with, each as `#define NAME value`. Their number is bounded, so that no call
/// allocates.
#[derive(Clone, Copy)]
pub(crate) struct Constants {
    list: [(&'static str, i32); Constants::MOST],
    len: usize,
}

impl Constants {
    const MOST: usize = 24;
    pub(super) const NONE: Constants = Constants { list: [("", 0); Constants::MOST], len: 0 };

    /// Constants with their names, always in the same order for one source.
    pub(crate) fn of(list: &[(&'static str, i32)]) -> Constants {
        Constants::NONE.and(list)
    }

    /// These constants and some more.
    pub(crate) fn and(mut self, more: &[(&'static str, i32)]) -> Constants {
        self.list[self.len..][..more.len()].copy_from(more);
        self.len += more.len();
        self
    }

    fn list(&self) -> &[(&'static str, i32)] {
        &self.list[..self.len]
    }

    fn values(&self) -> impl Iterator<Item = i32> {
        self.list().iter().map(|&(_, value)| value)
    }
}

// The values tell the constants of one source apart.
impl PartialEq for Constants {
    fn eq(&self, other: &Constants) -> bool {
        self.values().eq(other.values())
    }
}

impl CudaDevice {
    /// The kernel of this name, for inputs of one type and an output of another, compiled from `source` at the first
    /// call.
    pub(super) fn kernel(
        &self,
        op: &'static str,
        address: usize,
        types: [DType; 2],
        (kernel, constants): (&'static str, &Constants),
        source: impl FnOnce() -> KernelSource,
    ) -> Result<Arc<KernelFunction>> {
        let key = Key(address, types, kernel.as_ptr().addr());
        let loaded = &self.kernels().loaded;
        if let Some(known) = loaded.read().unwrap_or_else(PoisonError::into_inner).get(&key)
            && let Some((_, function)) = known.iter().find(|(of, _)| of == constants)
        {
            return Ok(function.clone());
        }
        let source = source();
        let function = self.cuda().compile(&source).and_then(|module| module.function(kernel));
        let function = function.map_err(|source| Error::cuda(op, source))?;
        let function = Arc::new(match all_kernels_begin(source.text()) {
            // SAFETY: `begin` waits for the kernels before, and a test checks that kernels that call it do so first.
            true => unsafe { function.with_dependent_launch() },
            false => function,
        });
        // If two threads get here at once, the kernel is in the list twice, which does no harm.
        let mut loaded = loaded.write().unwrap_or_else(PoisonError::into_inner);
        loaded.entry(key).or_default().push((*constants, function.clone()));
        Ok(function)
    }
}

/// Whether all kernels of a source call `begin` of `header.cu`.
fn all_kernels_begin(text: &str) -> bool {
    text.matches("__global__").count() == text.matches("begin();").count()
}

/// The whole source of one kernel: types, header, text. A text with several kernels has each inside `#ifdef
/// KERNEL_name`, so that only the one in use is compiled.
pub(super) fn source(name: &str, [input, out]: [DType; 2], kernel: &str, text: &[&str]) -> KernelSource {
    let types = format!("#define T {}\n#define O {}\n#define KERNEL_{kernel}\n", c_name(input), c_name(out));
    let name = match input == out {
        true => format!("{name}, {kernel} ({input})"),
        false => format!("{name}, {kernel} ({input} to {out})"),
    };
    let whole = [&types, HEADER, &text.concat()].concat();
    KernelSource::new(name, whole).option("--fmad=false")
}

impl Code {
    /// Launches a kernel, compiled for inputs of one type and an output of another.
    ///
    /// # Safety
    /// As [`KernelFunction::launch`].
    pub(crate) unsafe fn launch(
        &'static self,
        device: &CudaDevice,
        op: &'static str,
        kernel: ([DType; 2], &'static str),
        launch: Launch,
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_for(device, op, kernel, Constants::NONE, launch, arguments) }
    }

    /// [`launch`](Self::launch) of a kernel that is compiled for `constants`, too.
    ///
    /// # Safety
    /// As [`KernelFunction::launch`].
    pub(crate) unsafe fn launch_for(
        &'static self,
        device: &CudaDevice,
        op: &'static str,
        kernel: ([DType; 2], &'static str),
        constants: Constants,
        launch: Launch,
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        let function = self.function(device, op, kernel, constants)?;
        // SAFETY: the caller's promise.
        unsafe { function.launch(&device.stream(), launch, arguments) }.map_err(|source| Error::cuda(op, source))
    }

    /// A kernel, compiled for inputs of one type, an output of another, and `constants`.
    pub(crate) fn function(
        &'static self,
        device: &CudaDevice,
        op: &'static str,
        (types, kernel): ([DType; 2], &'static str),
        constants: Constants,
    ) -> Result<Arc<KernelFunction>> {
        let source = || self.source(types, kernel, constants);
        device.kernel(op, std::ptr::from_ref(self).addr(), types, (kernel, &constants), source)
    }

    fn source(&self, types: [DType; 2], kernel: &str, constants: Constants) -> KernelSource {
        let defines = constants.list().iter().map(|(name, value)| format!("#define {name} ({value})\n"));
        source(self.name, types, kernel, &[&defines.collect::<String>(), self.text])
    }

    /// Compiles a kernel for Hopper, without a device.
    #[cfg(test)]
    pub(crate) fn compile(
        &self,
        types: [DType; 2],
        kernel: &str,
        constants: Constants,
    ) -> std::result::Result<Vec<u8>, pagelock_cuda::Error> {
        pagelock_cuda::compile(&self.source(types, kernel, constants), (9, 0))
    }
}

/// The name of the type in `header.cu`.
fn c_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I64 => "i64",
        DType::I32 => "i32",
        DType::U8 => "u8",
        DType::Bool => "bool",
    }
}
