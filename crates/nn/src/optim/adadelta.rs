//! [`Adadelta`]: steps in the units of the parameter.

use super::Optimizer;
use super::groups::{Groups, NamedParameter, listed, optimizer, settings};
use super::method::{Field, MAX_STATE_TENSORS, Method, apply_rule};
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::AdadeltaRule;

optimizer! {
    /// Adadelta, as PyTorch's `optim.Adadelta`.
    ///
    /// With gradient `g` (`−g` to maximize; plus `weight_decay · p`): `v ← ρ v + (1 − ρ) g²`, `d = √(u + eps) / √(v + eps) · g`,
    /// `u ← ρ u + (1 − ρ) d²`, `p ← p − lr · d`.
    ///
    /// M. Zeiler, "ADADELTA: an adaptive learning rate method", 2012, <https://arxiv.org/abs/1212.5701>.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, optim::Adadelta};
    ///
    /// let model = Linear::new(784, 10)?;
    /// let opt = Adadelta::new(model.parameters(), 1.0).rho(0.95);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Adadelta,
    "The other settings have PyTorch's defaults: rho 0.9, eps 1e-6. PyTorch's learning rate is 1.",
    AdadeltaRule { rho: 0.9, eps: 1e-6, weight_decay: 0.0, maximize: false }
}

settings! { Adadelta: AdadeltaRule
    /// The decay factor of the running mean squares, from 0 to 1; 0.9 by default.
    rho: f64 => rho, from_0_to_1;
    /// Added to `u` and `v`, at least 0; 1e-6 by default. It sets the size of the first steps and keeps them finite.
    eps: f64 => eps, at_least_0;
    /// How much of each parameter is added to its gradient, at least 0; 0 by default.
    weight_decay: f64 => weight_decay, at_least_0;
    /// Whether to maximize instead of minimize; false by default.
    maximize: bool => maximize;
}

impl Method for AdadeltaRule {
    apply_rule! { AdadeltaRule }

    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS] {
        [Some("square_avg"), Some("acc_delta"), None]
    }
}
