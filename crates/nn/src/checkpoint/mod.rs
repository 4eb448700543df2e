//! Checkpoints: everything that a training run needs to resume, in one file that is written in the background.
//!
//! - `parts.rs`: [`Checkpoint`], named tensors and values to save;
//! - `value.rs`: [`CheckpointValue`], numbers and strings as tensors;
//! - `folder.rs`: [`Checkpoints`], a folder of checkpoints: writes, lists and removes them;
//! - `saved.rs`: [`SavedCheckpoint`], a checkpoint read from its file.
//!
//! ```text
//! training   … step ── save: copy all tensors ── step ── step ── step ── save (waits for the thread before) ── …
//! thread                                      └ checksums ── NewFile ── rename ── remove those that are not kept
//! file       step-….safetensors: model.0.weight, optimizer.state.0.exp_avg, random.seed, values.epoch, …
//! ```
//!
//! A checkpoint is one safetensors file, in which everything is a tensor, numbers and strings too. As it is a single
//! file, [`pagelock_files::NewFile`] writes it atomically. As it holds only tensors, PyTorch users can read all of
//! it.
//!
//! Invariant: once the first save has finished, the folder has a whole checkpoint at any moment, because old files
//! are removed only after a newer one is in place and on the disk.

mod folder;
mod parts;
mod saved;
mod value;

pub use folder::Checkpoints;
pub use parts::Checkpoint;
pub use saved::SavedCheckpoint;
pub use value::CheckpointValue;
