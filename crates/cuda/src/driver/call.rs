//! The names of a driver's operations, and their failures.
//!
//! A status is a plain number from C, not an enum: new drivers return numbers that no binding knows yet.

use std::fmt;

/// The result of a driver's operation.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

macro_rules! calls {
    ($($name:ident = $cuda:literal,)*) => {
        /// An operation of [`Driver`](super::Driver).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "each is the method of that name")]
        pub enum Call { $($name,)* }

        impl Call {
            /// Every operation.
            pub const ALL: &[Call] = &[$(Call::$name,)*];

            /// The name of the operation's function in CUDA.
            pub fn cuda_name(self) -> &'static str {
                match self { $(Call::$name => $cuda,)* }
            }
        }
    };
}

calls! {
    Open = "cuDevicePrimaryCtxRetain",
    MemoryInfo = "cuMemGetInfo",
    Synchronize = "cuCtxSynchronize",
    Allocate = "cuMemAlloc",
    Free = "cuMemFree",
    Register = "cuMemHostRegister",
    Unregister = "cuMemHostUnregister",
    CreateStream = "cuStreamCreateWithPriority",
    DestroyStream = "cuStreamDestroy",
    QueryStream = "cuStreamQuery",
    SynchronizeStream = "cuStreamSynchronize",
    WaitEvent = "cuStreamWaitEvent",
    CreateEvent = "cuEventCreate",
    DestroyEvent = "cuEventDestroy",
    RecordEvent = "cuEventRecord",
    QueryEvent = "cuEventQuery",
    SynchronizeEvent = "cuEventSynchronize",
    ElapsedMs = "cuEventElapsedTime",
    CopyToDevice = "cuMemcpyHtoDAsync",
    CopyToHost = "cuMemcpyDtoHAsync",
    CopyOnDevice = "cuMemcpyDtoDAsync",
    CopyFromPeer = "cuMemcpyPeerAsync",
    CanAccessPeer = "cuDeviceCanAccessPeer",
    EnablePeer = "cuCtxEnablePeerAccess",
    Copy2d = "cuMemcpy2DAsync",
    Fill = "cuMemsetD8Async",
    CallHost = "cuLaunchHostFunc",
    LoadModule = "cuModuleLoadDataEx",
    UnloadModule = "cuModuleUnload",
    Function = "cuModuleGetFunction",
    ParameterSize = "cuFuncGetParamInfo",
    FunctionAttribute = "cuFuncGetAttribute",
    SetFunctionAttribute = "cuFuncSetAttribute",
    Occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    Launch = "cuLaunchKernel",
    LaunchEarly = "cuLaunchKernelEx",
    CreateGraph = "cuGraphCreate",
    AddKernelNode = "cuGraphAddKernelNode",
    SetKernelNode = "cuGraphExecKernelNodeSetParams",
    BeginCapture = "cuStreamBeginCapture",
    EndCapture = "cuStreamEndCapture",
    DestroyGraph = "cuGraphDestroy",
    Instantiate = "cuGraphInstantiate",
    UpdateGraph = "cuGraphExecUpdate",
    LaunchGraph = "cuGraphLaunch",
    DestroyRunnableGraph = "cuGraphExecDestroy",
}

/// An operation that did not succeed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The operation.
    pub call: Call,
    /// The status that the driver returned.
    pub status: Status,
}

impl Failure {
    pub(crate) fn new(call: Call, status: u32) -> Self {
        Self { call, status: Status(status) }
    }

    pub(crate) fn not_supported(call: Call) -> Self {
        Self { call, status: Status::NOT_SUPPORTED }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.call.cuda_name(), self.status)
    }
}

pagelock_memory::debug_is_the_message!(Failure);

impl std::error::Error for Failure {}

/// A status of CUDA's driver. Its text has the name, the number and advice.
///
/// # Examples
/// ```
/// use pagelock_cuda::driver::Status;
///
/// let text = Status::OUT_OF_MEMORY.to_string();
/// assert!(text.starts_with("CUDA_ERROR_OUT_OF_MEMORY (2); "), "{text}");
/// assert_eq!(Status(9999).to_string(), "status 9999, which this version does not know");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($name:ident = $code:literal, $advice:literal;)*) => {
        #[allow(missing_docs, reason = "the names are CUDA's")]
        impl Status { $(pub const $name: Status = Status($code);)* }

        impl Status {
            /// CUDA's name, without its prefix, and the advice.
            fn name_and_advice(self) -> Option<(&'static str, &'static str)> {
                match self.0 { $($code => Some((stringify!($name), $advice)),)* _ => None }
            }
        }
    };
}

statuses! {
    INVALID_VALUE = 1, "an argument is out of range";
    OUT_OF_MEMORY = 2, "the device has no memory left: drop buffers, trim the pool or use smaller batches";
    NOT_INITIALIZED = 3, "the driver was not started, or the process is ending";
    DEINITIALIZED = 4, "the driver is shutting down: the process is ending";
    STUB_LIBRARY = 34, "a stub of the driver was found first: take the toolkit's `stubs` folder off LD_LIBRARY_PATH";
    DEVICE_UNAVAILABLE = 46, "another process has exclusive use of the device";
    NO_DEVICE = 100, "the driver sees no device: check `nvidia-smi` and CUDA_VISIBLE_DEVICES";
    INVALID_DEVICE = 101, "there is no device with that number";
    INVALID_IMAGE = 200, "the module's image is damaged";
    INVALID_CONTEXT = 201, "other code in this process has reset the device";
    NO_BINARY_FOR_GPU = 209, "the module was compiled for another architecture";
    ECC_UNCORRECTABLE = 214, "the device's memory is damaged: restart the program, and watch `nvidia-smi -q`";
    INVALID_PTX = 218, "the PTX is damaged or newer than the driver";
    NVLINK_UNCORRECTABLE = 220, "a link between devices is damaged: restart the program";
    INVALID_SOURCE = 300, "the source of the module is not valid";
    OPERATING_SYSTEM = 304, "a call of the operating system failed";
    INVALID_HANDLE = 400, "a handle is no longer valid";
    ILLEGAL_STATE = 401, "the device is in the wrong state for this call";
    NOT_FOUND = 500, "the name is not in the module";
    NOT_READY = 600, "the work is not done yet";
    ILLEGAL_ADDRESS = 700, "a kernel accessed an invalid address: restart the program under compute-sanitizer";
    LAUNCH_OUT_OF_RESOURCES = 701, "the launch needs more registers or shared memory than a block can have";
    LAUNCH_TIMEOUT = 702, "a kernel ran too long for a device that drives a display";
    PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled: nothing to do";
    CONTEXT_IS_DESTROYED = 709, "the device was reset: restart the program";
    ASSERT = 710, "an assertion in a kernel failed: see what it printed";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "some of these pages are page-locked already";
    HOST_MEMORY_NOT_REGISTERED = 713, "these pages are not page-locked";
    HARDWARE_STACK_ERROR = 714, "a kernel's stack is damaged: restart the program";
    ILLEGAL_INSTRUCTION = 715, "a kernel ran an instruction that does not exist: restart the program";
    MISALIGNED_ADDRESS = 716, "a kernel used a misaligned address: restart the program under compute-sanitizer";
    INVALID_PC = 718, "a kernel jumped out of its code: restart the program";
    LAUNCH_FAILED = 719, "a kernel crashed: restart the program under compute-sanitizer";
    NOT_PERMITTED = 800, "not allowed here, for example inside a host function";
    NOT_SUPPORTED = 801, "the device or the driver does not support this call";
    SYSTEM_NOT_READY = 802, "the system's fabric manager is not running";
    SYSTEM_DRIVER_MISMATCH = 803, "kernel module and library of the driver have different versions: reboot";
    STREAM_CAPTURE_UNSUPPORTED = 900, "this call cannot be captured in a graph";
    STREAM_CAPTURE_INVALIDATED = 901, "an earlier error invalidated the capture";
    STREAM_CAPTURE_ISOLATION = 905, "the capture would depend on work outside it";
    CAPTURED_EVENT = 907, "the event is part of a capture";
    UNKNOWN = 999, "the driver gives no details: see the system log";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name_and_advice() {
            Some((name, advice)) => write!(f, "CUDA_ERROR_{name} ({}); {advice}", self.0),
            None => write!(f, "status {}, which this version does not know", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name_and_advice() {
            Some((name, _)) => write!(f, "{name}"),
            None => write!(f, "Status({})", self.0),
        }
    }
}
