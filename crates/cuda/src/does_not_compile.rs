//! What does not compile: every race between a program and its copies that can be written down.
//!
//! Each of these is compiled when the documentation is tested, and must fail with the error that is named. The races of
//! [`Ticket`](crate::Ticket), [`Uninit`](crate::Uninit), [`Frozen`](crate::Frozen), [`DeviceCopy`](crate::DeviceCopy) and
//! [`Stream::scope`](crate::Stream::scope) stand at those.
//!
//! A slice is borrowed, and a borrow can end, or be forgotten, while the copy goes on; outside a scope only owners
//! will do:
//! ```compile_fail,E0277
//! # use pagelock_cuda::{Device, software::Config};
//! # let stream = Device::software(Config::default())?.stream()?;
//! # let mut on_device = stream.allocate::<f32>(2)?;
//! let source = [1.0, 2.0];
//! let ticket = stream.upload(&source[..], &mut on_device)?;
//! # Ok::<(), pagelock_cuda::Error>(())
//! ```
//!
//! A ticket gives its buffer back once:
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
//! Nobody keeps a way into a source:
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
//! A ticket that nobody looks at is a warning:
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
//! A device buffer is not read and written by one copy:
//! ```compile_fail,E0502
//! # use pagelock_cuda::{Device, software::Config};
//! # let stream = Device::software(Config::default())?.stream()?;
//! let mut on_device = stream.allocate::<f32>(4)?;
//! stream.copy(on_device.slice(..2)?, on_device.slice_mut(1..3)?)?;
//! # Ok::<(), pagelock_cuda::Error>(())
//! ```
//!
//! A scope does not leave its closure:
//! ```compile_fail,E0521
//! # use pagelock_cuda::{Device, software::Config};
//! # let stream = Device::software(Config::default())?.stream()?;
//! let mut escaped = None;
//! stream.scope(|scope| escaped = Some(scope));
//! # Ok::<(), pagelock_cuda::Error>(())
//! ```
//!
//! nor its thread:
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
//! nor does it wait in a future, which can be forgotten before it is finished:
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
