//! The plain values that the operations of [`Driver`](super::Driver) take and return.

use std::{ffi::c_void, ptr};

use pagelock_memory::ByteSize;

/// An address in a device's memory. It is a number for the device, not a pointer for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl Address {
    /// The address `bytes` bytes further on.
    pub fn offset(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes as u64))
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub u64);
    )* };
}

handles! {
    /// A driver's handle of a queue of work.
    StreamHandle
    /// A driver's handle of a mark in a stream.
    EventHandle
    /// A driver's handle of a loaded image.
    ModuleHandle
    /// A driver's handle of a kernel.
    FunctionHandle
    /// A driver's handle of captured work.
    GraphHandle
    /// A driver's handle of captured work that was instantiated and can be launched.
    RunnableGraphHandle
    /// A driver's handle of a node of captured work.
    NodeHandle
}

/// Identifies a group of devices whose handles are valid for each other's drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family(usize);

impl Family {
    /// The family of all devices that share this object. The object must keep its address as long as any of them
    /// exists.
    pub fn of<S: ?Sized>(shared: &S) -> Self {
        Self(ptr::from_ref(shared).cast::<()>().addr())
    }
}

/// Whether an event notes the time at which it is reached. An untimed event is cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventTiming {
    /// Without the time.
    Untimed,
    /// With the time.
    Timed,
}

/// The properties of a device. By default, all numbers are 0 and the name is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// The name of the device.
    pub name: String,
    /// Its number among the devices of its driver.
    pub ordinal: u32,
    /// The version of its instruction set, for example `(9, 0)` for Hopper.
    pub compute_capability: (u32, u32),
    /// The size of its memory.
    pub memory: ByteSize,
    /// The number of its multiprocessors.
    pub multiprocessors: u32,
    /// The size of its second-level cache.
    pub l2_cache: ByteSize,
    /// The number of engines that copy concurrently with kernels. With two, uploads and downloads run at the same
    /// time.
    pub copy_engines: u32,
    /// The number of threads in a warp.
    pub warp_threads: u32,
    /// The most threads of one block.
    pub max_threads_per_block: u32,
    /// The most shared memory that a kernel can request for one block.
    pub max_shared_memory_per_block: ByteSize,
    /// The version of CUDA that the driver supports, for example `(13, 0)`.
    pub driver_version: (u32, u32),
    /// The lowest and the highest priority of its streams. Higher priorities have lower numbers.
    pub stream_priorities: (i32, i32),
}

/// How much memory a device has, and how much of it is free, over all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// The free memory.
    pub free: ByteSize,
    /// All memory.
    pub total: ByteSize,
}

/// One end of a [`Copy2d`].
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Host memory.
    Host(*mut u8),
    /// Device memory.
    Device(Address),
}

/// A copy of rows.
#[derive(Clone, Copy, Debug)]
pub struct Copy2d {
    /// The start of the first source row.
    pub from: End,
    /// The number of bytes from the start of one source row to the next.
    pub from_pitch: usize,
    /// The start of the first target row.
    pub to: End,
    /// The number of bytes from the start of one target row to the next.
    pub to_pitch: usize,
    /// The number of bytes in a row.
    pub row_bytes: usize,
    /// The number of rows.
    pub rows: usize,
}

/// The value that a fill repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One byte.
    One(u8),
    /// Two bytes, at addresses that are multiples of two.
    Two(u16),
    /// Four bytes, at addresses that are multiples of four.
    Four(u32),
}

/// A function that a stream calls on the host.
pub type HostFunction = unsafe extern "C" fn(data: *mut c_void);

/// When a kernel may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// When all work before it on its stream is done.
    InTurn,
    /// When all blocks of the kernel before it have started. The kernel itself waits for the end of that one.
    Early,
}

/// A prepared launch of a kernel: a graph that consists of this launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedLaunch {
    /// The graph, which must not be destroyed while the launch is used.
    pub graph: GraphHandle,
    /// The node of the launch in the graph.
    pub node: NodeHandle,
    /// The instantiated graph, which is launched.
    pub runnable: RunnableGraphHandle,
}

/// The size of a kernel's launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The number of blocks, in three dimensions.
    pub grid: [u32; 3],
    /// The number of threads in a block, in three dimensions.
    pub block: [u32; 3],
    /// The size of a block's dynamic shared memory, in addition to the shared memory that the kernel declares.
    pub shared_bytes: u32,
}
