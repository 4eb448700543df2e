//! Datasets, samplers and loaders, with MNIST and a generated digit set.
//!
//! A [`Dataset`] gives samples by index, a [`Sampler`] says in which order, [`Stack`] (or a function) makes batches
//! of them, and a [`DataLoader`] puts the three together for a `for` loop.
//!
//! ```
//! use pagelock_data::{DataLoader, SyntheticDigits, TensorDataset};
//!
//! let digits = SyntheticDigits::new(42).train_len(600).test_len(100).generate()?;
//! let train_ds = TensorDataset::new((digits.train.flat()?, digits.train.labels()?))?;
//!
//! for batch in &DataLoader::new(train_ds).batch_size(64).shuffle(1) {
//!     let (xb, yb) = batch?; // [64, 784] of f32 in [0, 1), [64] of i64
//!     assert_eq!(xb.dims()[0], yb.dims()[0]);
//! }
//! # Ok::<(), pagelock_data::Error>(())
//! ```
//!
//! # Features
//! - `cuda-13000` (default): the bindings are those of CUDA 13.0; see `pagelock-cuda`.
//! - `download` (default): missing data files are fetched over HTTPS; without it, a missing file is an error that says
//!   where to get it.
//! - `progress` (default): a progress bar for downloads, on terminals only.
//! - `images`: folders of PNG and JPEG pictures (`ImageFolder`). The JPEG decoder gives libjpeg-turbo's pixels; its
//!   crate contains `unsafe` code.
//! - `text`: normal forms of Unicode and words (`text::normalize`, `text::words`).
//! - `parquet`: columns of Parquet files (`ParquetTable`).
//! - `ndarray`: arrays of the crate `ndarray` as tensors (`from_ndarray`), and views of tensors (`ndarray_view`).
//! - `arrow`: values of Arrow arrays as tensors (`from_arrow`), and back (`to_arrow`), without a copy where the
//!   alignment allows it.
//!
//! There is no `unsafe` in this crate.

// Reading order: `dataset.rs`, `subset.rs`, `split.rs`, `combine.rs`, `iterable.rs`, `sampler/`, `collate.rs`,
// `pin.rs`, `state.rs`, `loader/`, `get_data.rs`; then for digits `digits.rs`, `mnist.rs` (with `idx.rs`,
// `published.rs`, `remote.rs`, `download.rs`) and `synthetic/`; for other data `array_files/`, `cifar/`, `csv.rs`,
// `table.rs`, `parquet/`, `ndarray_views.rs`, `arrow_buffers.rs` and `image_folder.rs` (with `jpeg.rs`), `text/` for texts,
// and `transforms/` for pictures.

#![forbid(unsafe_code)]

mod array_files;
#[cfg(feature = "arrow")]
mod arrow_buffers;
mod cifar;
mod collate;
mod combine;
mod csv;
mod dataset;
mod digits;
#[cfg(feature = "download")]
mod download;
mod elements;
mod error;
mod file_bytes;
mod get_data;
mod identity;
pub mod idx;
#[cfg(feature = "images")]
mod image_folder;
mod iterable;
#[cfg(feature = "images")]
mod jpeg;
mod loader;
mod mnist;
#[cfg(feature = "ndarray")]
mod ndarray_views;
mod opaque;
mod panics;
#[cfg(feature = "parquet")]
mod parquet;
mod pin;
#[cfg(feature = "download")]
mod progress;
mod published;
mod remote;
mod sampler;
mod split;
mod state;
mod subset;
mod synthetic;
mod table;
pub mod text;
pub mod transforms;

pub use array_files::{StoredRows, save_npy, save_npz};
#[cfg(feature = "arrow")]
pub use arrow_buffers::{from_arrow, from_arrow_bool, to_arrow};
pub use cifar::{Cifar, CifarArchive, CifarFiles, CifarSet};
pub use collate::Stack;
pub use combine::{ChainDataset, ConcatDataset, DatasetTuple, StackDataset};
pub use csv::CsvTable;
pub use dataset::{Dataset, Rows, TensorDataset, Transformed};
pub use digits::{DigitBytes, DigitSet, Digits, Origin};
#[cfg(feature = "download")]
pub use download::Timeouts;
pub use error::{Error, Result};
pub use get_data::get_data;
#[cfg(feature = "images")]
pub use image_folder::ImageFolder;
pub use iterable::{IterableDataset, Samples};
pub use loader::{
    Batches, DataLoader, DeviceLoader, Indices, Loader, LoaderReport, Shards, Skipped, StreamLoader, WhenFull,
};
pub use mnist::{DigitFiles, Mnist};
#[cfg(feature = "ndarray")]
pub use ndarray_views::{from_ndarray, ndarray_view};
pub use pagelock_data_derive::PinMemory;
#[cfg(feature = "parquet")]
pub use parquet::ParquetTable;
pub use pin::{PinMemory, Slots};
#[cfg(feature = "progress")]
pub use progress::TerminalBar;
#[cfg(feature = "download")]
pub use progress::{Progress, Silent};
pub use published::Published;
pub use remote::NoDownload;
pub use sampler::{
    BatchSampler, BucketSampler, DistributedSampler, FixedSampler, Place, RandomSampler, Sampler, SequentialSampler,
    SubsetRandomSampler, WeightedSampler,
};
pub use split::{random_split_fractions, stratified_split};
pub use state::LoaderState;
pub use subset::{Subset, random_split};
pub use synthetic::SyntheticDigits;
pub use table::{Categories, Standardize};

/// The README's program, checked.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
