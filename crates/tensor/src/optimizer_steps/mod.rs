//! Steps of optimizers over many tensors, and the clipping of all gradients before a step. On a GPU, one kernel takes
//! a few tensors at a time.
//!
//! Values that may change between replays of a captured step are read when kernels run: the learning rate from a
//! [`Rate`], the number of steps from a tensor on the device.
//!
//! A method is a Rust file beside a CUDA file: its rule, and the step of one element in both languages (`step.rs`).

mod adadelta;
mod adagrad;
mod adam;
mod adamax;
mod asgd;
mod average;
mod clip;
mod cpu;
mod cuda;
mod groups;
mod lion;
mod nadam;
mod radam;
mod rate;
mod rmsprop;
mod running;
mod sgd;
mod step;

pub use adadelta::AdadeltaRule;
pub use adagrad::AdagradRule;
pub use adam::AdamRule;
pub use adamax::AdamaxRule;
pub use asgd::AsgdRule;
pub use average::AverageRule;
pub use clip::{clip_grad_norm_, clip_grad_value_};
pub use lion::LionRule;
pub use nadam::NAdamRule;
pub use radam::RAdamRule;
pub use rate::Rate;
pub use rmsprop::RmsPropRule;
pub(crate) use running::{can_move_at_once, move_at_once};
pub use sgd::SgdRule;
pub use step::StepTensors;
