//! Checkpoints: all that a training needs to go on where it was, in one file, written while it goes on.
//!
//! - `parts.rs`: [`Checkpoint`], what is to be saved, by name;
//! - `value.rs`: [`CheckpointValue`], numbers and texts as tensors;
//! - `folder.rs`: [`Checkpoints`], a folder of them: which are kept, which is the newest;
//! - `saved.rs`: [`SavedCheckpoint`], one that is read.
//!
//! ```text
//! training   … step ── save: copy all tensors ── step ── step ── step ── save (waits for the thread before) ── …
//! thread                                      └ checksums ── NewFile ── rename ── remove those that are not kept
//! file       step-….safetensors: model.0.weight, optimizer.state.0.exp_avg, random.seed, values.epoch, …
//! ```
//!
//! A checkpoint is one safetensors file, in which everything is a tensor, numbers and texts too. So
//! [`pagelock_files::NewFile`] makes it whole or not there, and PyTorch's users can read all of it.
//!
//! Invariant: from the first save on, a whole checkpoint is in the folder at any moment: files are removed after a newer
//! one is in its place and on the disk.

mod folder;
mod parts;
mod saved;
mod value;

pub use folder::Checkpoints;
pub use parts::Checkpoint;
pub use saved::SavedCheckpoint;
pub use value::CheckpointValue;
