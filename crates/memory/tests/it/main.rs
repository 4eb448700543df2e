//! What the crate promises, file by file. `every_stack.rs` first: one suite, run on every stack of layers.

mod budgets;
mod buffers;
mod ceilings;
mod every_stack;
mod holders;
mod pools;
mod sizes;
mod sources;
mod tools;
