//! [`Adamax`]: Adam with a decaying maximum of the gradients' magnitudes in place of the root mean square.

use super::Optimizer;
use super::groups::{Groups, NamedParameter, listed, optimizer, settings};
use super::method::{Field, MAX_STATE_TENSORS, Method, apply_rule};
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::AdamaxRule;

optimizer! {
    /// Adamax, as PyTorch's `optim.Adamax`.
    ///
    /// In step `t` with gradient `g` (`−g` to maximize; plus `weight_decay · p`): `m ← β₁ m + (1 − β₁) g`,
    /// `u ← max(β₂ u, |g| + eps)`, `p ← p − lr / (1 − β₁ᵗ) · m / u`.
    ///
    /// D. Kingma, J. Ba, "Adam: a method for stochastic optimization", 2014, <https://arxiv.org/abs/1412.6980>, section 7.1.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, optim::Adamax};
    ///
    /// let model = Linear::new(784, 10)?;
    /// let opt = Adamax::new(model.parameters(), 2e-3).betas(0.9, 0.99);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Adamax,
    "The other settings have PyTorch's defaults: betas 0.9 and 0.999, eps 1e-8. PyTorch's learning rate is 2e-3.",
    AdamaxRule { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0, maximize: false }
}

settings! { Adamax: AdamaxRule
    /// The decay factors of the running mean and of the running maximum, each in `0..1`; 0.9 and 0.999 by default.
    betas: (mean, largest) => betas, both_below_1;
    /// Added to `|g|` so that steps stay finite where gradients vanish, at least 0; 1e-8 by default.
    eps: f64 => eps, at_least_0;
    /// How much of each parameter is added to its gradient, at least 0; 0 by default.
    weight_decay: f64 => weight_decay, at_least_0;
    /// Whether to maximize instead of minimize; false by default.
    maximize: bool => maximize;
}

impl Method for AdamaxRule {
    apply_rule! { AdamaxRule }

    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS] {
        [Some("exp_avg"), Some("exp_inf"), None]
    }
}
