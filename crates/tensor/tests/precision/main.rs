//! Kinds are types, precisions are values: what tensors are made with, how they are read and converted, what two
//! precisions give, and what autocast computes in which. Values named PyTorch's are those of PyTorch 2.15.

#[path = "../common/mod.rs"]
mod common;

mod autocast;
mod making;
mod normalizations;
mod promotion;
mod scalars;
mod table;
