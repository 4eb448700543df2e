//! Kernels: CUDA C++ beside the Rust that launches it, compiled when the program runs, for the device that is there.
//!
//! - `source.rs`: what is compiled; `compiler.rs` and `nvrtc.rs`: how; `find.rs`: where NVRTC is looked for;
//! - `archive.rs`: compiled kernels that come with the program; `cache.rs`: those on disk, so that NVRTC is needed once;
//! - `module.rs`: compiled code on a device; `function.rs`: one of its kernels, and how it is launched;
//! - `launch.rs`: kernels with their parameters in their type, which `signature.rs` turns into plain arguments;
//! - `repeat.rs`: launches that are made again and again, for less.
//!
//! One promise is the author's: that a kernel takes what its signature says, and stays inside its buffers when its
//! requirements hold. It is made where the kernel is taken from its module, and everything after that is safe.

mod archive;
mod cache;
mod compiler;
mod find;
mod function;
mod launch;
mod module;
mod nvrtc;
mod repeat;
mod signature;
mod source;

pub(crate) use self::{archive::unpack_all, module::Modules};
pub use self::{
    archive::{KernelArchive, KernelOrigins, bring_kernels, kernel_origins},
    compiler::{compile, compiler_version},
    function::{Argument, KernelFunction, MAX_ARGUMENTS},
    launch::{Kernel, Launch},
    module::KernelModule,
    signature::{KernelParameter, Read, Signature, Write},
    source::KernelSource,
};
