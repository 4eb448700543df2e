//! The driver's functions, looked up once by name.
//!
//! They are declared here because cudarc's declarations return a Rust enum, which is undefined behavior for a status
//! that the enum does not know, and panic if a symbol is missing.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    sync::OnceLock,
};

use cudarc::driver::sys;

use crate::{driver::HostFunction, library::load::functions};

type Device = c_int;
type Pointer = u64;
type Handle = *mut c_void;

functions! {
    pub(super) u32;
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut Device, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, Device);
    device_memory = "cuDeviceTotalMem_v2" (*mut usize, Device);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_uint, Device);
    retain_context = "cuDevicePrimaryCtxRetain" (*mut Handle, Device);
    current_context = "cuCtxGetCurrent" (*mut Handle);
    set_context = "cuCtxSetCurrent" (Handle);
    stream_priorities = "cuCtxGetStreamPriorityRange" (*mut c_int, *mut c_int);
    synchronize = "cuCtxSynchronize" ();
    memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    allocate = "cuMemAlloc_v2" (*mut Pointer, usize);
    free = "cuMemFree_v2" (Pointer);
    register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister = "cuMemHostUnregister" (*mut c_void);
    create_stream = "cuStreamCreateWithPriority" (*mut Handle, c_uint, c_int);
    destroy_stream = "cuStreamDestroy_v2" (Handle);
    query_stream = "cuStreamQuery" (Handle);
    synchronize_stream = "cuStreamSynchronize" (Handle);
    wait_event = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    create_event = "cuEventCreate" (*mut Handle, c_uint);
    destroy_event = "cuEventDestroy_v2" (Handle);
    record_event = "cuEventRecord" (Handle, Handle);
    query_event = "cuEventQuery" (Handle);
    synchronize_event = "cuEventSynchronize" (Handle);
    elapsed_ms = "cuEventElapsedTime" (*mut f32, Handle, Handle);
    copy_to_device = "cuMemcpyHtoDAsync_v2" (Pointer, *const c_void, usize, Handle);
    copy_to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, Pointer, usize, Handle);
    copy_on_device = "cuMemcpyDtoDAsync_v2" (Pointer, Pointer, usize, Handle);
    copy_from_peer = "cuMemcpyPeerAsync" (Pointer, Handle, Pointer, Handle, usize, Handle);
    can_access_peer = "cuDeviceCanAccessPeer" (*mut c_int, Device, Device);
    enable_peer = "cuCtxEnablePeerAccess" (Handle, c_uint);
    copy_2d = "cuMemcpy2DAsync_v2" (*const Memcpy2d, Handle);
    fill_one = "cuMemsetD8Async" (Pointer, u8, usize, Handle);
    fill_two = "cuMemsetD16Async" (Pointer, u16, usize, Handle);
    fill_four = "cuMemsetD32Async" (Pointer, c_uint, usize, Handle);
    call_host = "cuLaunchHostFunc" (Handle, HostFunction, *mut c_void);
    load_module = "cuModuleLoadDataEx" (*mut Handle, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    unload_module = "cuModuleUnload" (Handle);
    function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    function_attribute = "cuFuncGetAttribute" (*mut c_int, c_uint, Handle);
    set_function_attribute = "cuFuncSetAttribute" (Handle, c_uint, c_int);
    occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor" (*mut c_int, Handle, c_int, usize);
    launch = "cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void,
    );
    create_graph = "cuGraphCreate" (*mut Handle, c_uint);
    add_kernel_node = "cuGraphAddKernelNode_v2" (*mut Handle, Handle, *const Handle, usize, *const KernelNode);
    set_kernel_node = "cuGraphExecKernelNodeSetParams_v2" (Handle, Handle, *const KernelNode);
    begin_capture = "cuStreamBeginCapture_v2" (Handle, c_uint);
    end_capture = "cuStreamEndCapture" (Handle, *mut Handle);
    destroy_graph = "cuGraphDestroy" (Handle);
    instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    update_graph = "cuGraphExecUpdate_v2" (Handle, Handle, *mut GraphUpdate);
    launch_early = "cuLaunchKernelEx" (*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
    launch_graph = "cuGraphLaunch" (Handle, Handle);
    destroy_runnable_graph = "cuGraphExecDestroy" (Handle);
}

type ParameterInfo = unsafe extern "C" fn(Handle, usize, *mut usize, *mut usize) -> u32;

/// `cuFuncGetParamInfo`, which exists since CUDA 12.4.
pub(super) fn parameter_info() -> Option<ParameterInfo> {
    static FOUND: OnceLock<Option<ParameterInfo>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: as in `Api::load`, which has succeeded before any function handle exists.
        let library = unsafe { sys::culib() };
        // SAFETY: the driver's header declares the function with these types.
        let symbol = unsafe { library.get::<ParameterInfo>(b"cuFuncGetParamInfo\0") };
        symbol.ok().map(|symbol| *symbol)
    })
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
pub(super) struct Memcpy2d {
    pub(super) from: MemcpyEnd,
    pub(super) to: MemcpyEnd,
    pub(super) row_bytes: usize,
    pub(super) rows: usize,
}

/// Either half of `CUDA_MEMCPY2D`; both have the same fields in the same order.
#[repr(C)]
pub(super) struct MemcpyEnd {
    pub(super) x_bytes: usize,
    pub(super) y: usize,
    pub(super) kind: c_uint,
    pub(super) host: *mut c_void,
    pub(super) device: Pointer,
    pub(super) array: Handle,
    pub(super) pitch: usize,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
pub(super) struct GraphUpdate {
    pub(super) result: c_uint,
    pub(super) error_node: Handle,
    pub(super) error_from_node: Handle,
}

/// `CUDA_KERNEL_NODE_PARAMS` of CUDA 12.
#[repr(C)]
pub(super) struct KernelNode {
    pub(super) function: Handle,
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) arguments: *mut *mut c_void,
    pub(super) extras: *mut *mut c_void,
    pub(super) kernel: Handle,  // null, since there is a function
    pub(super) context: Handle, // ignored, since there is a function
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) stream: Handle,
    pub(super) attributes: *const LaunchAttribute,
    pub(super) n_attributes: c_uint,
}

/// `CUlaunchAttribute`, for attributes whose value is an integer.
#[repr(C, align(8))]
pub(super) struct LaunchAttribute {
    pub(super) id: c_uint,
    pub(super) padding: c_uint,
    pub(super) value: [c_uint; 16],
}

pub(super) const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;

/// `CU_DEVICE_ATTRIBUTE_…`
pub(super) mod attribute {
    use std::ffi::c_uint;

    pub(crate) const MAX_THREADS_PER_BLOCK: c_uint = 1;
    pub(crate) const WARP_SIZE: c_uint = 10;
    pub(crate) const MULTIPROCESSOR_COUNT: c_uint = 16;
    pub(crate) const L2_CACHE_SIZE: c_uint = 38;
    pub(crate) const ASYNC_ENGINE_COUNT: c_uint = 40;
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: c_uint = 75;
    pub(crate) const COMPUTE_CAPABILITY_MINOR: c_uint = 76;
    pub(crate) const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_uint = 97;
}
