//! Automatic differentiation: the graph behind `requires_grad` and `backward`.
//!
//! Reading order: `record.rs` (what operations record), `node.rs` (the graph), `engine.rs` (the backward pass), then
//! `function.rs`, `gradcheck.rs` and `audit.rs`, which build on them.
//!
//! Invariants: derivatives are written in tensor operations, so recording them gives second derivatives; gradients of
//! broadcast inputs are summed down in one place (`engine.rs`); a saved tensor is used only at the version at which it
//! was saved.

mod audit;
mod engine;
mod function;
mod gradcheck;
mod mode;
mod node;
mod record;
mod tensor;

pub use audit::{Audit, Cut, CutBy, Reason, Unreached, audit};
pub use function::{Context, Function};
pub use gradcheck::{Tolerance, gradcheck, gradgradcheck};
pub use mode::{enable_grad, is_grad_enabled, no_grad};

pub(crate) use audit::note_cut;
pub(crate) use engine::{Options, gradients};
pub(crate) use node::{GradFn, NodeRef};
pub(crate) use record::{Saved, SavedTensor, is_recorded, record, record_view};
pub use tensor::{Backward, HookHandle, grad};
