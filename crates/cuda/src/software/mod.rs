//! A device made of software, for programs that test their pipelines where there is no GPU.
//!
//! It has memory of its own, streams that really run later, and a schedule that is as unkind as CUDA allows: work is
//! done as late as possible, and streams that nothing orders overtake each other. Any call can be made to fail. What
//! it never does is to stand in for a GPU silently: a [`Machine`] is made by name.
//!
//! `machine.rs` is what users see, `core.rs` the state behind it, `queue.rs` what streams hold, `run.rs` does it,
//! `memory.rs` has the bytes, `faults.rs` the failures, `driver.rs` implements [`Driver`](crate::driver::Driver).

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
