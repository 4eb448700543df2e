//! [`Dnn`]: convolutions and attention by cuDNN.
//!
//! The plan of each [`Convolution`] or [`Attention`] is cached. It is the first plan that the library proposes, or
//! the fastest, of those that have the requested precision and determinism.
//!
//! - `convolution.rs`, `attention.rs`: the operations and their graphs, which `graph.rs` builds;
//! - `plan.rs`: makes a plan of a graph; `measure.rs` finds the fastest;
//! - `descriptor.rs`: the library's only kind of object; `header.rs`: the constants of its header.

mod attention;
mod convolution;
mod descriptor;
mod graph;
mod header;
mod measure;
mod plan;

use std::{
    ffi::{c_int, c_void},
    fmt,
    sync::{Arc, OnceLock},
};

use libloading::Library;

use self::plan::{Operation, Plan};
pub use self::{
    attention::{Attention, AttentionGrads},
    convolution::{Convolution, ConvolutionKind},
};
use super::{
    DataType,
    load::{LibrarySpec, functions},
    work::{self, Handle, PlanCache, Refusal},
};
use crate::{
    buffer::DeviceBuffer,
    device::Device,
    error::{Error, LibraryAbsence, Result},
    stream::{Access, Stream},
    sync::{Mutex, lock},
};

const LIBRARY: &str = "cuDNN";

const SPEC: LibrarySpec = LibrarySpec {
    name: LIBRARY,
    files: &["libcudnn.so.9", "libcudnn.so"],
    variable: "PAGELOCK_CUDNN",
    package_folders: &["nvidia/cudnn/lib"],
    install: "install cuDNN 9 or `pip install nvidia-cudnn-cu13`",
    dependencies: &[],
};

functions! {
    c_int;
    create = "cudnnCreate" (*mut *mut c_void);
    set_stream = "cudnnSetStream" (*mut c_void, *mut c_void);
    create_descriptor = "cudnnBackendCreateDescriptor" (c_int, *mut *mut c_void);
    destroy_descriptor = "cudnnBackendDestroyDescriptor" (*mut c_void);
    finalize = "cudnnBackendFinalize" (*mut c_void);
    set = "cudnnBackendSetAttribute" (*mut c_void, c_int, c_int, i64, *const c_void);
    get = "cudnnBackendGetAttribute" (*mut c_void, c_int, c_int, i64, *mut i64, *mut c_void);
    execute = "cudnnBackendExecute" (*mut c_void, *mut c_void, *mut c_void);
}

/// The functions, and the library's version.
fn api() -> Result<&'static (Api, usize), LibraryAbsence> {
    static API: OnceLock<Result<(Api, usize), LibraryAbsence>> = OnceLock::new();
    let load = || {
        // Parts of cuDNN use these libraries, and find them if they are loaded. cuDNN also works without them.
        let _ = (crate::kernel::compiler_version(), super::blas::is_available());
        let look_up = |library: &Library| {
            let api = Api::load(library)?;
            // SAFETY: the library's header declares the function with these types.
            let version = unsafe { library.get::<unsafe extern "C" fn() -> usize>(b"cudnnGetVersion\0") };
            let version = version.map_err(|_| "cudnnGetVersion")?;
            // SAFETY: no precondition.
            Ok((api, unsafe { version() }))
        };
        SPEC.load(look_up).map(|(loaded, _)| loaded)
    };
    API.get_or_init(load).as_ref().map_err(LibraryAbsence::clone)
}

/// The sizes and strides of a tensor with four dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout4 {
    /// `[batch, channels, height, width]` of images, `[out, in / groups, height, width]` of a weight, or
    /// `[batch, heads, words, features]` of attention.
    pub sizes: [usize; 4],
    /// The stride of each dimension, in elements.
    pub strides: [usize; 4],
}

/// Which of the library's algorithms computes a convolution or an attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The one that the library proposes first. With one version of the library, it is the same on all devices of a
    /// kind.
    #[default]
    First,
    /// The fastest of those that the library proposes, measured at the first use and cached on disk: in
    /// `$PAGELOCK_PLAN_CACHE`, or in `pagelock/plans` in the user's cache folder if that is not set. Another user of
    /// the same device may get another algorithm. In a capture, where nothing can be measured, it is the first.
    Measured,
}

/// cuDNN for one device.
pub struct Dnn {
    device: Device,
    api: &'static Api,
    version: usize,
    handle: Mutex<Handle>, // guards the library's handle, which is not thread-safe
    plans: PlanCache<Operation, Plan>,
}

impl Dnn {
    /// Starts the library for a device. The first call loads the library.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] lists the places that were searched, and what to install; [`Error::Driver`].
    pub fn new(device: &Device) -> Result<Dnn> {
        let (api, version) = api()?;
        work::make_current(device, LIBRARY)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle, which is kept until the process exits.
        match unsafe { (api.create)(&mut handle) } {
            0 => Ok(Dnn {
                device: device.clone(),
                api,
                version: *version,
                handle: Mutex::new(Handle::new(handle)),
                plans: PlanCache::new(),
            }),
            status => Err(LibraryAbsence::NotStarted { library: LIBRARY, status }.into()),
        }
    }

    /// Queues an operation, with scratch memory.
    fn compute(&self, stream: &Stream, operation: Operation, call: &Call<'_>) -> Result<()> {
        let plan = self.plan(stream, operation, call)?;
        let scratch_bytes = lock(&plan).scratch_bytes();
        let scratch = work::scratch(stream, scratch_bytes)?;
        let result = self.run(stream, &lock(&plan), scratch.as_ref(), call)?;
        result.map_err(|status| refused(&operation, "cudnnBackendExecute", status))
    }

    /// Queues the work of a plan. The inner error is the library's status if its call fails.
    fn run(
        &self,
        stream: &Stream,
        plan: &Plan,
        scratch: Option<&DeviceBuffer<u8>>,
        call: &Call<'_>,
    ) -> Result<Result<(), c_int>> {
        let scratch_access = scratch.map(|scratch| scratch.view().access());
        let accesses: Vec<Access<'_>> = call.accesses.iter().copied().chain(scratch_access).collect();
        let scratch = scratch.map_or(0, |scratch| scratch.address().0);
        let handle = lock(&self.handle);
        work::enqueue(stream, &accesses, |stream| {
            // SAFETY: the library's handle, which is locked, and a stream of its device.
            match unsafe { (self.api.set_stream)(handle.get(), stream) } {
                // SAFETY: the addresses are those of the tensors that the plan's graph describes (checked by the
                // caller), with the alignments of the plan; `enqueue` orders the buffers.
                0 => unsafe { plan.run(handle.get(), call.tensors, scratch) },
                status => status,
            }
        })
    }

    fn plan(&self, stream: &Stream, mut operation: Operation, call: &Call<'_>) -> Result<Arc<Mutex<Plan>>> {
        if stream.core().is_capturing() && !self.plans.contains(&operation) {
            *operation.choice_mut() = Choice::First;
        }
        let plan = self.plans.get(operation, || {
            work::make_current(&self.device, LIBRARY)?;
            match *operation.choice_mut() {
                Choice::First => Ok(Plan::first(self.api, lock(&self.handle).get(), &operation)),
                Choice::Measured => self.fastest(stream, &operation, call),
            }
        })?;
        plan.map_err(|Refusal { call, status }| refused(&operation, call, status))
    }
}

/// The arguments of a plan: the UIDs and addresses of its tensors, and its accesses to their buffers.
struct Call<'a> {
    tensors: &'a [(i64, u64)],
    accesses: &'a [Access<'a>],
}

fn refused(what: &impl fmt::Display, call: &'static str, status: c_int) -> Error {
    Error::Library { library: LIBRARY, what: what.to_string(), call, status }
}

fn unsupported(what: &impl fmt::Display, requirement: &'static str) -> Error {
    Error::Unsupported { library: LIBRARY, what: what.to_string(), requirement }
}

impl Layout4 {
    /// A contiguous layout of these sizes, with the last dimension innermost.
    pub fn without_gaps(sizes: [usize; 4]) -> Layout4 {
        let [_, channels, height, width] = sizes;
        Layout4 { sizes, strides: [channels * height * width, height * width, width, 1] }
    }

    /// An error unless all elements of this type are inside a buffer of `len_bytes`.
    fn check(&self, data_type: DataType, len_bytes: usize) -> Result<()> {
        let last = self
            .sizes
            .iter()
            .zip(self.strides)
            .try_fold(0_usize, |last, (&size, stride)| last.checked_add(size.checked_sub(1)?.checked_mul(stride)?));
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(data_type.size_bytes()));
        match end.unwrap_or(usize::MAX) {
            end if end > len_bytes => Err(Error::range(0, end, len_bytes)),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Dnn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dnn(on {:?})", self.device)
    }
}
