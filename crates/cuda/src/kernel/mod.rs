//! Kernels: CUDA C++ beside the Rust that launches it, compiled at run time for the device of the machine.
//!
//! - `source.rs`: the source and its options; `compiler.rs` and `nvrtc.rs`: the compiler, and its cache on disk;
//! - `archive.rs`: compiled kernels that come with the program;
//! - `module.rs`: compiled code on a device; `function.rs`: one of its kernels, and how it is launched;
//! - `launch.rs`: kernels with typed parameters, which `signature.rs` turns into plain arguments;
//! - `repeat.rs`: makes repeated launches cheaper.
//!
//! The author of a kernel makes one promise: that the kernel has the parameters of its signature, and stays inside
//! its buffers when its requirements hold. The promise is made when the kernel is taken from its module; all launches
//! after that are safe.

mod archive;
mod compiler;
mod function;
mod launch;
mod module;
mod nvrtc;
mod repeat;
mod signature;
mod source;

pub(crate) use self::{archive::unpack_all, module::Modules};
pub use self::{
    archive::{KernelArchive, KernelOrigins, kernel_origins, load_kernel_archive},
    compiler::{compile, compiler_version},
    function::{Argument, KernelFunction, MAX_ARGUMENTS},
    launch::{Kernel, Launch},
    module::KernelModule,
    signature::{KernelParameter, Read, Signature, Write},
    source::KernelSource,
};
