//! Kinds are types, and precisions are values: how tensors are made, read and converted, what two precisions give,
//! and which precision autocast chooses. Values that are called PyTorch's are those of PyTorch 2.15.

#[path = "../common/mod.rs"]
mod common;

mod autocast;
mod making;
mod normalizations;
mod promotion;
mod scalars;
mod table;
