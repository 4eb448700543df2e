//! A software device, for tests of programs on machines without a GPU.
//!
//! It has memory of its own and asynchronous streams, with the worst schedule that CUDA allows: work is executed as
//! late as possible, and unordered streams overtake each other. Any call can be made to fail. A software device never
//! replaces a GPU silently: programs create a [`Machine`] explicitly.
//!
//! `machine.rs` is the public interface, `core.rs` has the state, `queue.rs` the work of streams, `run.rs` executes
//! it, `memory.rs` has the bytes, `faults.rs` the failures, and `driver.rs` implements
//! [`Driver`](crate::driver::Driver).

mod core;
mod driver;
mod faults;
mod machine;
mod memory;
mod queue;
mod run;

pub use self::{
    faults::{Effect, Fault},
    machine::{Config, Execution, Machine},
};
