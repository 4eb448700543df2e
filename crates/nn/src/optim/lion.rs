//! [`Lion`]: steps of the same size for all elements, with the signs of a running mean.

use super::Optimizer;
use super::groups::{Groups, NamedParameter, listed, optimizer, settings};
use super::method::{Field, MAX_STATE_TENSORS, Method, apply_rule};
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::LionRule;

optimizer! {
    /// Lion, as in its paper; PyTorch does not have it.
    ///
    /// With gradient `g` (`−g` to maximize), first `p ← p · (1 − lr · weight_decay)`; then
    /// `p ← p − lr · sign(β₁ m + (1 − β₁) g)`, `m ← β₂ m + (1 − β₂) g`. Its state is half of Adam's, and it needs a
    /// learning rate of a third to a tenth of Adam's.
    ///
    /// X. Chen et al., "Symbolic discovery of optimization algorithms", 2023, <https://arxiv.org/abs/2302.06675>.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, optim::Lion};
    ///
    /// let model = Linear::new(784, 10)?;
    /// let opt = Lion::new(model.parameters(), 1e-4).weight_decay(0.1);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Lion,
    "The other settings have the paper's defaults: betas 0.9 and 0.99. The paper's learning rate is 1e-4.",
    LionRule { betas: [0.9, 0.99], weight_decay: 0.0, maximize: false }
}

settings! { Lion: LionRule
    /// β₁ and β₂: the mean's weight in the update, and its decay factor. Each is in `0..1`; 0.9 and 0.99 by default.
    betas: (update, mean) => betas, both_below_1;
    /// Each step multiplies parameters by `1 − lr · weight_decay`. At least 0; 0 by default.
    weight_decay: f64 => weight_decay, at_least_0;
    /// Whether to maximize instead of minimize; false by default.
    maximize: bool => maximize;
}

impl Method for LionRule {
    apply_rule! { LionRule }

    fn clock(&self) -> &'static [&'static str] {
        &[]
    }

    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS] {
        [Some("exp_avg"), None, None]
    }
}
