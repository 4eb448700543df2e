//! [`Sgd`]: stochastic gradient descent, with momentum.

use super::Optimizer;
use super::groups::{Groups, NamedParameter, check, listed, optimizer, settings};
use super::method::{Field, MAX_STATE_TENSORS, Method, Settings, apply_rule};
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::SgdRule;

optimizer! {
    /// Stochastic gradient descent, as PyTorch's `optim.SGD`.
    ///
    /// With gradient `g` (`−g` to maximize), `g ← g + weight_decay · p`; with momentum,
    /// `b ← momentum · b + (1 − dampening) · g` (`b = g` in the first step) and then `g ← b`, or with nesterov
    /// `g ← g + momentum · b`; finally `p ← p − lr · g`.
    ///
    /// Momentum: I. Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013,
    /// <https://proceedings.mlr.press/v28/sutskever13.html>.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, optim::{Optimizer, Sgd}};
    ///
    /// let model = Linear::new(784, 10)?;
    /// let mut opt = Sgd::new(model.parameters(), 0.1).momentum(0.9).weight_decay(1e-4);
    /// assert_eq!(opt.lr(), 0.1);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Sgd,
    "Plain descent: no momentum, no weight decay.",
    SgdRule {
        momentum: 0.0,
        dampening: 0.0,
        nesterov: false,
        weight_decay: 0.0,
        is_decoupled: false,
        maximize: false,
    }
}

settings! { Sgd: SgdRule
    /// The momentum factor, at least 0; 0 by default.
    momentum: f64 => momentum, at_least_0;
    /// New gradients enter the momentum with the factor `1 − dampening`; 0 by default.
    dampening: f64 => dampening;
    /// How much of each parameter is added to its gradient, at least 0; 0 by default.
    weight_decay: f64 => weight_decay, at_least_0;
    /// Whether to use Nesterov momentum, which needs a momentum above 0 and no dampening; false by default.
    nesterov: bool => nesterov;
    /// Whether to maximize instead of minimize; false by default.
    maximize: bool => maximize;
}

impl Method for SgdRule {
    apply_rule! { SgdRule }

    fn clock(&self) -> &'static [&'static str] {
        &[]
    }

    fn check(&self, optimizer: &str) -> Result<()> {
        let SgdRule { momentum, dampening, nesterov, .. } = *self;
        self.check_ranges(optimizer)?;
        check(!nesterov || momentum > 0.0, optimizer, "momentum", momentum, "above 0 for nesterov")?;
        check(!nesterov || dampening == 0.0, optimizer, "dampening", dampening, "0 for nesterov")
    }

    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS] {
        [(self.momentum != 0.0).then_some("momentum_buffer"), None, None]
    }
}
