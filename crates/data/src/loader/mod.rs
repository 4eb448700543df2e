//! Loaders: a dataset, an order and a way to make batches, read with `for`.
//!
//! The same seed and epoch give the same batches in the same order, for any number of workers. Every batch of an
//! epoch is given once: as a batch, or as an error that names the problem, the sample and the worker. No epoch ends
//! early without an error.
//!
//! One engine serves both kinds of datasets: a batch is a function of the epoch and of its position in the epoch.
//!
//! ```text
//! DataLoader, StreamLoader     loaders.rs, settings.rs: both; kinds.rs: what differs
//!   Core                       core.rs: recipe, settings, position, report (report.rs)
//!     AnyBatches                    batches.rs: gives the batches of one epoch
//!       WorkerPool             pool.rs: threads, reorder buffer, backpressure
//!         Recipe, Maker        maker.rs: one batch; order.rs: its position; pinned.rs: page-locked memory
//!           BatchSource, Step       source.rs: datasets and functions of the program's types
//!       Uploads                device.rs: copies batches to a device ahead of the program (DeviceLoader)
//! ```

mod batches;
mod core;
mod device;
mod kinds;
mod loaders;
mod maker;
mod order;
mod pinned;
mod pool;
mod report;
mod settings;
mod source;

pub use self::batches::Batches;
pub use self::device::DeviceLoader;
pub use self::loaders::{DataLoader, Indices, Loader, Shards, StreamLoader};
pub use self::pinned::WhenFull;
pub use self::report::{LoaderReport, Skipped};
