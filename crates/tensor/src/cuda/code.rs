//! From text to kernels: compiled for the element types that are asked for, when they are first used.
//!
//! One text is one module for each pair of types, so that a program compiles what it uses and nothing else. Compiled
//! code is kept on disk by `pagelock-cuda`, and on the device here.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use pagelock_cuda::{Argument, Function, KernelSource, Launch};

use super::CudaDevice;
use crate::element::DType;
use crate::error::{Error, Result};

/// What every kernel is compiled with.
const HEADER: &str = include_str!("header.cu");

/// CUDA C++ of some kernels, for any element types. A `static` beside the operation: its address is its identity.
pub(crate) struct Code {
    /// What errors and profiles call it.
    pub(crate) name: &'static str,
    /// The text behind the header: what is the same for all types.
    pub(crate) text: &'static str,
}

/// The kernels that a device has.
#[derive(Default)]
pub(super) struct Kernels {
    loaded: RwLock<HashMap<Key, Arc<Function>>>, // guards which there are
}

/// A text by its address, the types that it was compiled for, and a kernel's name by its address.
type Key = (usize, [DType; 2], usize);

impl CudaDevice {
    /// The kernel of that name, for inputs of one type and an output of another; made of `source` at the first call.
    pub(super) fn kernel(
        &self,
        op: &'static str,
        address: usize,
        types: [DType; 2],
        kernel: &'static str,
        source: impl FnOnce() -> KernelSource,
    ) -> Result<Arc<Function>> {
        let key = (address, types, kernel.as_ptr().addr());
        let loaded = &self.kernels().loaded;
        if let Some(function) = loaded.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(function.clone());
        }
        let function = self.cuda().compile(&source()).and_then(|module| module.function(kernel));
        let function = Arc::new(function.map_err(|source| Error::cuda(op, source))?);
        // Perhaps two threads came here at once, which does no harm.
        loaded.write().unwrap_or_else(PoisonError::into_inner).insert(key, function.clone());
        Ok(function)
    }
}

/// The whole source of one kernel: types, header, text. A text with several kernels has each inside `#ifdef KERNEL_name`,
/// so that only what is used is compiled.
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
    /// As [`Function::launch`].
    pub(crate) unsafe fn launch(
        &'static self,
        device: &CudaDevice,
        op: &'static str,
        (types, kernel): ([DType; 2], &'static str),
        launch: Launch,
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        let address = std::ptr::from_ref(self).addr();
        let source = || source(self.name, types, kernel, &[self.text]);
        let function = device.kernel(op, address, types, kernel, source)?;
        // SAFETY: the caller's promise.
        unsafe { function.launch(&device.stream(), launch, arguments) }.map_err(|source| Error::cuda(op, source))
    }
}

/// What `header.cu` calls the type.
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
