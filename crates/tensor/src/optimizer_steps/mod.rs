//! Steps of optimizers over many tensors: on a GPU a few tensors at a time, in one kernel each; and what is done with all
//! gradients before a step.
//!
//! Kernels read what may change between replays of a captured step when they run: the learning rate from a [`Rate`], the
//! number of steps from a tensor on the device.
//!
//! A method is a file of Rust beside one of CUDA: its rule, and one function of an element on either side (`step.rs`).

mod adam;
mod clip;
mod cpu;
mod cuda;
mod groups;
mod rate;
mod sgd;
mod step;

pub use adam::AdamRule;
pub use clip::clip_grad_norm_;
pub use rate::Rate;
pub use sgd::SgdRule;
pub use step::StepTensors;
