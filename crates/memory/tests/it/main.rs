//! What the crate promises, file by file. Start with `every_stack.rs`, a suite that runs on every stack of layers.

mod budgets;
mod buffers;
mod ceilings;
mod every_stack;
mod holders;
mod pools;
mod sizes;
mod sources;
mod tools;
