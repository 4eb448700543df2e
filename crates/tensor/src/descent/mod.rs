//! Steps of optimizers over many tensors: on a GPU a few tensors at a time, in one kernel each; and what is done with all
//! gradients before a step.
//!
//! What may change between the replays of a captured step is read by the kernels when they run: the learning rate from
//! a [`Rate`], and how many steps there were from a tensor on the device.

mod adam;
mod clip;
mod cpu;
mod cuda;
mod groups;
mod rate;
mod sgd;

pub use adam::{AdamRule, AdamTensors, adam_step};
pub use clip::clip_grad_norm_;
pub use rate::Rate;
pub use sgd::{SgdRule, SgdTensors, sgd_step};
