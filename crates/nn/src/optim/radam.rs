//! [`RAdam`]: Adam that takes plain momentum steps at first, while its running mean of squares is still inaccurate.

use super::Optimizer;
use super::groups::{Groups, NamedParameter, listed, optimizer, settings};
use super::method::{Field, MAX_STATE_TENSORS, Method, apply_rule};
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::RAdamRule;

optimizer! {
    /// RAdam, as PyTorch's `optim.RAdam`.
    ///
    /// In step `t` with gradient `g` (`−g` to maximize; plus `weight_decay · p`, unless that is decoupled):
    /// `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`, `m̂ = m / (1 − β₁ᵗ)`, `ρ∞ = 2 / (1 − β₂) − 1`,
    /// `ρₜ = ρ∞ − 2 t β₂ᵗ / (1 − β₂ᵗ)`. For `ρₜ > 5`, `p ← p − lr · m̂ · r · √(1 − β₂ᵗ) / (√v + eps)` with
    /// `r = √((ρₜ − 4)(ρₜ − 2) ρ∞ / ((ρ∞ − 4)(ρ∞ − 2) ρₜ))`, else `p ← p − lr · m̂`.
    ///
    /// L. Liu et al., "On the variance of the adaptive learning rate and beyond", 2019, <https://arxiv.org/abs/1908.03265>.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, optim::RAdam};
    ///
    /// let model = Linear::new(784, 10)?;
    /// let opt = RAdam::new(model.parameters(), 1e-3).weight_decay(0.1).decoupled_weight_decay(true);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    RAdam,
    "The other settings have PyTorch's defaults: betas 0.9 and 0.999, eps 1e-8. PyTorch's learning rate is 1e-3.",
    RAdamRule { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0, is_decoupled: false, maximize: false }
}

settings! { RAdam: RAdamRule
    /// The decay factors of the running mean and of the running mean square, each in `0..1`; 0.9 and 0.999 by default.
    betas: (mean, square) => betas, both_below_1;
    /// Added to the divisor so that steps stay finite where gradients vanish, at least 0; 1e-8 by default.
    eps: f64 => eps, at_least_0;
    /// How much of each parameter is added to its gradient, at least 0; 0 by default. If decoupled, a step instead
    /// multiplies parameters by `1 − lr · weight_decay`.
    weight_decay: f64 => weight_decay, at_least_0;
    /// Whether weight decay multiplies parameters by `1 − lr · weight_decay` instead of changing gradients; false by
    /// default.
    decoupled_weight_decay: bool => is_decoupled;
    /// Whether to maximize instead of minimize; false by default.
    maximize: bool => maximize;
}

impl Method for RAdamRule {
    apply_rule! { RAdamRule }

    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS] {
        [Some("exp_avg"), Some("exp_avg_sq"), None]
    }
}
