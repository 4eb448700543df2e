//! [`Asgd`]: gradient descent that averages its parameters.

use super::Optimizer;
use super::groups::{Groups, NamedParameter, listed, optimizer, settings};
use super::method::{Field, MAX_STATE_TENSORS, Method, Start, apply_rule};
use super::state::Clock;
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::{AsgdRule, Rate};
use pagelock_tensor::{self as tensor};

optimizer! {
    /// Averaged stochastic gradient descent, as PyTorch's `optim.ASGD`.
    ///
    /// With gradient `g` (`−g` to maximize; plus `weight_decay · p`): `p ← p · (1 − lambd · η) − η · g`,
    /// `a ← a + μ · (p − a)`. After step `t`, `η = lr / (1 + lambd · lr · t)^alpha` and `μ = 1 / max(1, t − t0)`; in the
    /// first step, `η = lr` and `μ = 1`. The averages `a` are in [`state_dict`](Optimizer::state_dict), as `ax`.
    ///
    /// B. Polyak, A. Juditsky, "Acceleration of stochastic approximation by averaging", 1992, <https://doi.org/10.1137/0330046>.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, optim::Asgd};
    ///
    /// let model = Linear::new(784, 10)?;
    /// let opt = Asgd::new(model.parameters(), 0.01).t0(1e4);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Asgd,
    "The other settings have PyTorch's defaults: lambd 1e-4, alpha 0.75, t0 1e6. PyTorch's learning rate is 0.01.",
    AsgdRule { lambd: 1e-4, alpha: 0.75, t0: 1e6, weight_decay: 0.0, maximize: false }
}

settings! { Asgd: AsgdRule
    /// The decay of the parameters, relative to `η`; 1e-4 by default.
    lambd: f64 => lambd;
    /// The power with which `η` falls; 0.75 by default.
    alpha: f64 => alpha;
    /// The step at which averaging begins; 1e6 by default.
    t0: f64 => t0;
    /// How much of each parameter is added to its gradient, at least 0; 0 by default.
    weight_decay: f64 => weight_decay, at_least_0;
    /// Whether to maximize instead of minimize; false by default.
    maximize: bool => maximize;
}

impl Method for AsgdRule {
    apply_rule! { AsgdRule }

    fn clock(&self) -> &'static [&'static str] {
        &["step", "eta", "mu"]
    }

    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS] {
        [Some("ax"), None, None]
    }

    fn clock_start(&self, lr: f64) -> Start {
        Start::new(&[0.0, lr, 1.0])
    }

    fn after(&self, clock: &Clock, lr: &Rate) -> tensor::Result<()> {
        self.anneal(&clock.numbers, lr)
    }
}
