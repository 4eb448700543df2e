//! [`NAdam`]: Adam with Nesterov momentum.

use super::Optimizer;
use super::groups::{Groups, NamedParameter, listed, optimizer, settings};
use super::method::{Field, MAX_STATE_TENSORS, Method, Start, apply_rule};
use super::state::Clock;
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::NAdamRule;
use pagelock_tensor::{self as tensor};

optimizer! {
    /// NAdam, as PyTorch's `optim.NAdam`.
    ///
    /// In step `t` with gradient `g` (`−g` to maximize; plus `weight_decay · p`, unless that is decoupled) and momenta
    /// `μₜ = β₁ (1 − ½ · 0.96^(t · momentum_decay))`: `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`,
    /// `d = √(v / (1 − β₂ᵗ)) + eps`, `p ← p − lr · ((1 − μₜ) / (1 − Πₜ) · g + μₜ₊₁ / (1 − Πₜ₊₁) · m) / d`, where `Πₜ = μ₁ · … · μₜ`.
    ///
    /// T. Dozat, "Incorporating Nesterov momentum into Adam", 2016, <https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ>.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, optim::NAdam};
    ///
    /// let model = Linear::new(784, 10)?;
    /// let opt = NAdam::new(model.parameters(), 2e-3).weight_decay(0.1).decoupled_weight_decay(true);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    NAdam,
    "The other settings have PyTorch's defaults: betas 0.9 and 0.999, eps 1e-8, momentum decay 4e-3. PyTorch's \
     learning rate is 2e-3.",
    NAdamRule {
        betas: [0.9, 0.999],
        eps: 1e-8,
        weight_decay: 0.0,
        is_decoupled: false,
        momentum_decay: 4e-3,
        maximize: false,
    }
}

settings! { NAdam: NAdamRule
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
    /// How fast the momenta `μₜ` rise, at least 0; 4e-3 by default.
    momentum_decay: f64 => momentum_decay, at_least_0;
    /// Whether to maximize instead of minimize; false by default.
    maximize: bool => maximize;
}

impl Method for NAdamRule {
    apply_rule! { NAdamRule }

    fn clock(&self) -> &'static [&'static str] {
        &["step", "mu_product"]
    }

    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS] {
        [Some("exp_avg"), Some("exp_avg_sq"), None]
    }

    fn clock_start(&self, _: f64) -> Start {
        Start::new(&[0.0, 1.0])
    }

    fn advance(&self, clock: &Clock) -> tensor::Result<()> {
        NAdamRule::advance(self, &clock.numbers)
    }
}
