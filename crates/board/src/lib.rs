//! Event files for [TensorBoard](https://www.tensorflow.org/tensorboard), with the names of PyTorch's
//! `torch.utils.tensorboard.SummaryWriter`.
//!
//! ```
//! use pagelock_board::{Array, GridOptions, HParams, SummaryWriter, make_grid};
//!
//! # let runs = tempfile::tempdir()?;
//! let writer = SummaryWriter::new(runs.path().join("fashion"))?;
//! let images = vec![0.5f32; 16 * 28 * 28];
//! let grid = make_grid(&Array::new(&images, [16, 1, 28, 28])?, GridOptions::default())?;
//! writer.add_image("images", &grid, 0)?;
//! for step in 0..10 {
//!     writer.add_scalar("loss/train", 0.9f64.powi(step), step)?;
//! }
//! writer.add_hparams(&HParams::new().set("lr", 0.001).set("batch_size", 4).metric("hparam/accuracy", 0.87), 10)?;
//! writer.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! Then `tensorboard --logdir runs`.
//!
//! # What there is
//! - **Numbers:** [`add_scalar`](SummaryWriter::add_scalar), [`add_scalars`](SummaryWriter::add_scalars),
//!   [`add_custom_scalars`](SummaryWriter::add_custom_scalars), [`add_hparams`](SummaryWriter::add_hparams).
//! - **Distributions:** [`add_histogram`](SummaryWriter::add_histogram), [`add_pr_curve`](SummaryWriter::add_pr_curve),
//!   [`add_embedding`](SummaryWriter::add_embedding).
//! - **Pictures:** [`add_image`](SummaryWriter::add_image), [`add_images`](SummaryWriter::add_images), [`make_grid`],
//!   `add_figure` for plots of `plotters`.
//! - **The rest:** [`add_text`](SummaryWriter::add_text), [`add_graph`](SummaryWriter::add_graph),
//!   [`add_mesh`](SummaryWriter::add_mesh).
//!
//! # What is promised
//! - A call only encodes its values, which takes less than a microsecond for a scalar; a worker thread writes them.
//!   The queue between them is bounded.
//! - Nothing is lost without an error: see [`SummaryWriter`].
//! - A file that was cut off anywhere is readable up to its last whole event.
//! - Bad input returns an [`Error`] and writes nothing.
//!
//! # Features
//! - `tensors` (default): calls accept tensors of `pagelock-tensor`, on any device. Without it, this crate builds in
//!   seconds and accepts slices and [`Array`]s.
//! - `figures` (default): `Figure`, which `plotters` draws on.
//! - `cuda-13000` (default): the feature of `pagelock-tensor` with the same name.

// # Reading order
// 1. `writer.rs`: a folder of event files, and the simplest calls; `step.rs` and `names.rs` are its helpers.
// 2. `queue.rs`, which begins with a diagram: the worker thread; `record.rs` and `proto.rs`: the file format.
// 3. `array.rs`: the arguments of calls; `tensors.rs`: tensors as arguments.
// 4. A file for each kind of value: `histogram.rs`, `image.rs`, `grid.rs`, `figure.rs`, `pr_curve.rs`, `embedding.rs`,
//    `graph.rs`, `hparams.rs`, `custom_scalars.rs`, `mesh.rs`.

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as pagelock_board; // `tests/calls.rs` is also part of `tests/tensorboard.rs`, outside the crate

mod array;
mod custom_scalars;
mod embedding;
mod error;
#[cfg(feature = "figures")]
mod figure;
mod graph;
mod grid;
mod histogram;
mod hparams;
mod image;
mod mesh;
mod names;
mod pr_curve;
mod proto;
mod queue;
mod record;
mod step;
#[cfg(feature = "tensors")]
mod tensors;
#[cfg(test)]
mod tests;
mod writer;

pub use array::{Array, Number, ToArray, ToScalar};
pub use custom_scalars::Chart;
pub use embedding::Embedding;
pub use error::{Error, Result};
#[cfg(feature = "figures")]
pub use figure::{Figure, FigureBackend};
pub use graph::{GraphNode, ToGraph};
pub use grid::{GridOptions, make_grid};
pub use histogram::Bins;
pub use hparams::{HParam, HParams};
pub use mesh::Mesh;
pub use step::Step;
pub use writer::{SummaryWriter, WriterOptions};

/// The example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
