//! CUDA streams, events, device memory and DMA copies that cannot race, with a software device for tests.
//!
//! A [`Device`] has [`Stream`]s. A stream executes its work in order, concurrently with other streams.
//! [`DeviceBuffer`]s are elements in a device's memory; [`Pinned`], [`Uninit`] and [`Frozen`] are page-locked
//! elements on the host. A copy owns its host memory until it is done ([`Ticket`]), or borrows it inside
//! [`Stream::scope`]. There is no flag to set and no synchronization to forget: code that could race either does not
//! compile or waits for the device.
//!
//! # Examples
//! The same program runs on a GPU, or on a [`software`] device if there is no GPU:
//! ```
//! use pagelock_cuda::{Device, Pinned, Uninit, software};
//!
//! let device = Device::cuda(0).or_else(|_| Device::software(software::Config::default()))?;
//! let stream = device.stream()?;
//!
//! let mut on_device = stream.allocate::<f32>(3)?;
//! let sent = stream.upload(Pinned::from_slice(&device, &[1.0, 2.0, 3.0])?, &mut on_device)?;
//! let received = stream.download(&on_device, Uninit::new(&device, 3)?)?;
//!
//! let source = sent.wait()?; // may be changed again
//! let target = received.wait()?; // may be read now
//! assert_eq!(*source, *target);
//! # Ok::<(), pagelock_cuda::Error>(())
//! ```
//!
//! # Races of `unsafe` code
//! Safe code cannot race with a copy. To find races of `unsafe` code that accesses the memory of copies in flight,
//! run the program with `PAGELOCK_SANITIZE=1`. The next call that waits for the device returns a [`Race`] as
//! [`Error::Raced`]. This costs a second copy of every download, and nothing if the variable is not set.

// # Reading order
// `ticket.rs` and `stream/mod.rs` (the two protocols: who owns host memory, and in which order work is executed),
// then `stream/order.rs`, `pool/mod.rs` and `copy/`. `driver/mod.rs` is the interface of a device, which
// `driver/cuda/` and `software/` implement.
//
// # Invariants
// - Host memory that a device may use is owned by an `InUse`, or borrowed in a scope that waits, or in a `HostBuffer`
//   that waits before it is accessed or dropped. Nothing else can reach it.
// - Every use of device memory goes through `StreamCore::enqueue`, which orders it against the uses by other streams.
// - No user code runs after work is submitted and before its uses are recorded in the buffers.
// - A handle is used with a driver only after `StreamCore::check_same_family` or `DeviceShared::check_same` has
//   compared the devices.
// - Memory is leaked, never freed, and counted in `Device::leaked`, if the driver cannot say that the device is done
//   with it.
// - No lock of this crate is held while the driver waits for a device. The only exceptions are the turns of buffers
//   that graphs use too (`stream/order.rs`), if a call of the driver that queues a copy waits by itself.
//
// # Files with `unsafe`
// `driver/cuda/api.rs`, `driver/cuda/context.rs` and `driver/cuda/library.rs` (the calls of CUDA), `driver/types.rs`
// (the type of a C function); `software/driver.rs`, `software/queue.rs` and `software/run.rs` (the same for the
// software device); and the files that call a driver after they have established its preconditions:
// `device_shared.rs`, `device.rs`, `event.rs`, `host_function.rs`, `deferred_drops.rs`, `pool/segment.rs`,
// `stream/mod.rs`, `stream/handles.rs`, `stream/order.rs`, `stream/capture.rs`, `page_locked/locker.rs`,
// `copy/fill.rs`, `copy/on_device.rs`, `copy/owned.rs`, `copy/page_locked.rs`, `copy/rows.rs`, `copy/scoped.rs`,
// `copy/staging/download.rs`, `copy/staging/non_temporal.rs`, `copy/staging/ring.rs`, `copy/staging/small.rs`,
// `copy/staging/upload.rs`, `copy/staging/workers.rs`, `kernel/archive.rs`, `kernel/function.rs`, `kernel/module.rs`,
// `kernel/launch.rs`, `kernel/repeat.rs` and `graph.rs`. `sanitize/driver.rs` and `sanitize/watch.rs` read memory of
// copies in flight. `kernel/nvrtc.rs` calls the compiler; `library/load.rs`, `library/blas/mod.rs`,
// `library/blas/plan.rs`, `library/dnn/mod.rs`, `library/dnn/plan.rs` and `library/dnn/descriptor.rs` call NVIDIA's
// libraries. `driver/mod.rs` declares the trait, and `loom_tests.rs` implements it for loom.

mod buffer;
mod chrome_trace;
mod copy;
mod deferred_drops;
mod device;
mod device_copy;
mod device_shared;
#[cfg(doctest)]
mod does_not_compile;
pub mod driver;
mod error;
mod event;
#[doc(hidden)]
pub mod foreign;
mod graph;
mod host_function;
mod kernel;
mod leaked;
pub mod library;
#[cfg(all(test, loom))]
mod loom_tests;
mod page_locked;
mod pool;
mod sanitize;
pub mod software;
mod stream;
mod sync;
mod ticket;
mod timeline;
mod user_cache;

pub use buffer::{DeviceBuffer, DeviceView, DeviceViewMut, Parts};
pub use chrome_trace::ChromeTrace;
pub use copy::{HostSource, HostTarget, InRows, Packed, RowLayout, Scope, Source, StagingConfig};
pub use device::{Device, InFlight, Leaked};
pub use device_copy::DeviceCopy;
pub use error::{Absence, Error, LibraryAbsence, OnDevice, Result};
pub use event::Event;
pub use graph::{Graph, GraphBuffers, Recording, Shared};
pub use host_function::HostCall;
pub use kernel::{
    Argument, Kernel, KernelArchive, KernelFunction, KernelModule, KernelOrigins, KernelParameter, KernelSource,
    Launch, MAX_ARGUMENTS, Read, Signature, Write, compile, compiler_version, kernel_origins, load_kernel_archive,
};
pub use page_locked::{Frozen, PageLockedMemory, Pinned, Uninit, page_locked_budget};
pub use pool::DevicePoolStats;
pub use sanitize::{Here, HostAccess, Race, RaceKind, here};
pub use stream::{Priority, Stream};
pub use ticket::{Refused, Ticket};
pub use timeline::{Span, StreamSpan, Timeline, Track};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
