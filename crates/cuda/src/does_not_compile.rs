//! Programs that misuse copies, by a race or otherwise. All of them must fail to compile.
//!
//! The documentation tests compile each example, which must fail with the given error. Further examples are in the
//! docs of [`Ticket`](crate::Ticket), [`Uninit`](crate::Uninit), [`Frozen`](crate::Frozen),
//! [`DeviceCopy`](crate::DeviceCopy) and [`Stream::scope`](crate::Stream::scope).
//!
//! The borrow of a slice can end, or its guard can be forgotten, while the copy is in flight. So copies outside a
//! scope accept only owned memory:
//! ```compile_fail,E0277
//! # use pagelock_cuda::{Device, software::Config};
//! # let stream = Device::software(Config::default())?.stream()?;
//! # let mut on_device = stream.allocate::<f32>(2)?;
//! let source = [1.0, 2.0];
//! let ticket = stream.upload(&source[..], &mut on_device)?;
//! # Ok::<(), pagelock_cuda::Error>(())
//! ```
//!
//! A ticket returns its buffer only once:
//! ```compile_fail,E0382
//! # use pagelock_cuda::{Device, Pinned, software::Config};
//! # let device = Device::software(Config::default())?;
//! # let stream = device.stream()?;
//! # let mut on_device = stream.allocate::<f32>(2)?;
//! let ticket = stream.upload(Pinned::from_slice(&device, &[1.0, 2.0])?, &mut on_device)?;
//! let first = ticket.wait()?;
//! let second = ticket.wait()?;
//! # Ok::<(), pagelock_cuda::Error>(())
//! ```
//!
//! No reference into a source outlives the start of its copy:
//! ```compile_fail,E0505
//! # use pagelock_cuda::{Device, Pinned, software::Config};
//! # let device = Device::software(Config::default())?;
//! # let stream = device.stream()?;
//! # let mut on_device = stream.allocate::<f32>(2)?;
//! let mut source = Pinned::from_slice(&device, &[1.0, 2.0])?;
//! let first = &mut source[0];
//! let ticket = stream.upload(source, &mut on_device)?;
//! *first = 3.0;
//! # Ok::<(), pagelock_cuda::Error>(())
//! ```
//!
//! An unused ticket is a warning:
//! ```compile_fail
//! #![deny(unused_must_use)]
//! # use pagelock_cuda::{Device, Pinned, software::Config};
//! # let device = Device::software(Config::default())?;
//! # let stream = device.stream()?;
//! # let mut on_device = stream.allocate::<f32>(2)?;
//! stream.upload(Pinned::from_slice(&device, &[1.0, 2.0])?, &mut on_device)?;
//! # Ok::<(), pagelock_cuda::Error>(())
//! ```
//!
//! One copy cannot read and write the same device buffer:
//! ```compile_fail,E0502
//! # use pagelock_cuda::{Device, software::Config};
//! # let stream = Device::software(Config::default())?.stream()?;
//! let mut on_device = stream.allocate::<f32>(4)?;
//! stream.copy(on_device.slice(..2)?, on_device.slice_mut(1..3)?)?;
//! # Ok::<(), pagelock_cuda::Error>(())
//! ```
//!
//! A scope cannot leave its closure:
//! ```compile_fail,E0521
//! # use pagelock_cuda::{Device, software::Config};
//! # let stream = Device::software(Config::default())?.stream()?;
//! let mut escaped = None;
//! stream.scope(|scope| escaped = Some(scope));
//! # Ok::<(), pagelock_cuda::Error>(())
//! ```
//!
//! A scope cannot move to another thread:
//! ```compile_fail,E0277
//! # use pagelock_cuda::{Device, software::Config};
//! # let stream = Device::software(Config::default())?.stream()?;
//! # let mut on_device = stream.allocate::<u8>(2)?;
//! let source = [1, 2];
//! stream.scope(|scope| {
//!     std::thread::scope(|threads| {
//!         threads.spawn(|| scope.upload(&source, &mut on_device));
//!     });
//! });
//! # Ok::<(), pagelock_cuda::Error>(())
//! ```
//!
//! A scope cannot be used in a future, which may be forgotten before it is finished:
//! ```compile_fail,E0597
//! # use pagelock_cuda::{Device, software::Config};
//! # let stream = Device::software(Config::default())?.stream()?;
//! # let mut on_device = stream.allocate::<u8>(2)?;
//! let source = [1, 2];
//! let copying = stream.scope(|scope| async move {
//!     scope.upload(&source, &mut on_device)
//! });
//! # Ok::<(), pagelock_cuda::Error>(())
//! ```
