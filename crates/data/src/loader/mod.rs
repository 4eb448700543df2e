//! Loaders: a dataset, an order and a way to make batches, read with `for`.
//!
//! A loader promises: the same seed and epoch give the same batches in the same order, for any number of workers; every
//! batch of an epoch is given once, as a batch or as an error that says what is wrong with it, with which sample, and which
//! worker was at it; nothing ends early in silence.
//!
//! There is one engine for both kinds of datasets. Which samples make which batch is a function of the epoch and the
//! batch's position, so workers change nothing of what a program sees, and a program can go on where another stopped.
//!
//! ```text
//! DataLoader, StreamLoader     loaders.rs (both), data_loader.rs, stream_loader.rs, settings.rs: thin types
//!   Core                       core.rs: recipe, settings, where the loader is, what it did (report.rs)
//!     Epoch                    batches.rs: gives the batches of one epoch
//!       WorkerPool             pool.rs: threads, reorder buffer, backpressure
//!         Recipe, Maker        maker.rs: one batch; order.rs: its position; pinned.rs: page-locked memory
//!           Source             source.rs: datasets and functions of the program's types
//!       Uploads                device.rs: copies batches to a device ahead of the program (DeviceLoader)
//! ```

mod batches;
mod core;
mod data_loader;
mod device;
mod loaders;
mod maker;
mod opaque;
mod order;
mod pinned;
mod pool;
mod report;
mod settings;
mod source;
mod stream_loader;
mod tuning;

pub use self::batches::Batches;
pub use self::data_loader::get_data;
pub use self::device::DeviceLoader;
pub use self::loaders::{DataLoader, Indices, Loader, Shards, StreamLoader};
pub use self::pinned::WhenFull;
pub use self::report::{LoaderReport, Skipped};
pub use self::tuning::Tuning;
