//! The plain values that [`Driver`](super::Driver)'s operations take and return.

use std::{ffi::c_void, ptr};

use pagelock_memory::ByteSize;

/// A place in a device's memory: a number for the device, never a pointer of the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl Address {
    /// The place `bytes` bytes further on.
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
    /// A queue of work, in a driver's own numbers.
    StreamHandle
    /// A mark in a stream, in a driver's own numbers.
    EventHandle
    /// A loaded image, in a driver's own numbers.
    ModuleHandle
    /// A kernel, in a driver's own numbers.
    FunctionHandle
    /// Captured work, in a driver's own numbers.
    GraphHandle
    /// Captured work that was made ready to run, in a driver's own numbers.
    RunnableGraphHandle
    /// A node of captured work, in a driver's own numbers.
    NodeHandle
}

/// Devices whose handles mean something to each other, told from others by what they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family(usize);

impl Family {
    /// Of all devices that share this, which is where it is for as long as any of them lives.
    pub fn of<S: ?Sized>(shared: &S) -> Self {
        Self(ptr::from_ref(shared).cast::<()>().addr())
    }
}

/// Whether an event remembers when it was reached. Without, it is cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventTiming {
    /// It only says whether it was reached.
    Untimed,
    /// It says when.
    Timed,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// What it calls itself.
    pub name: String,
    /// Its number among the devices of its driver.
    pub ordinal: u32,
    /// The version of its instruction set, `(9, 0)` for Hopper.
    pub compute_capability: (u32, u32),
    /// All of its memory.
    pub memory: ByteSize,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// Its second-level cache.
    pub l2_cache: ByteSize,
    /// Engines that copy beside kernels; two copy both ways at once.
    pub copy_engines: u32,
    /// Threads that run in step.
    pub warp_threads: u32,
    /// The most threads of one block.
    pub max_threads_per_block: u32,
    /// The most shared memory of one block that a kernel can ask for.
    pub max_shared_memory_per_block: ByteSize,
    /// The version of CUDA that the driver speaks, `(13, 0)`.
    pub driver_version: (u32, u32),
    /// Numbers of the least and the greatest priority of its streams; greater priorities have lower numbers.
    pub stream_priorities: (i32, i32),
}

/// How much memory a device has and has left, for all processes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What nobody has.
    pub free: ByteSize,
    /// All of it.
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
    /// Where the first row is read.
    pub from: End,
    /// Bytes from the start of one source row to the next.
    pub from_pitch: usize,
    /// Where the first row is written.
    pub to: End,
    /// Bytes from the start of one target row to the next.
    pub to_pitch: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// How many rows.
    pub rows: usize,
}

/// What a fill repeats.
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
    /// When everything before it on its stream is done.
    InTurn,
    /// When all blocks of a kernel before it have started: it waits for that one's end itself.
    Early,
}

/// A launch of a kernel that was prepared: a graph of that alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedLaunch {
    /// The graph, which has to stay.
    pub graph: GraphHandle,
    /// The launch in it.
    pub node: NodeHandle,
    /// What is launched.
    pub runnable: RunnableGraphHandle,
}

/// The size of a kernel's launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks, in three dimensions.
    pub grid: [u32; 3],
    /// Threads of a block, in three dimensions.
    pub block: [u32; 3],
    /// Shared memory that a block gets beyond what its kernel declares.
    pub shared_bytes: u32,
}
