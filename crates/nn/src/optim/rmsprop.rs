//! [`RmsProp`]: divides gradients by the root of a running mean of their squares.

use super::Optimizer;
use super::groups::{Groups, NamedParameter, listed, optimizer, settings};
use super::method::{Field, MAX_STATE_TENSORS, Method, apply_rule};
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::RmsPropRule;

optimizer! {
    /// RMSprop, as PyTorch's `optim.RMSprop`.
    ///
    /// With gradient `g` (`−g` to maximize; plus `weight_decay · p`): `v ← α v + (1 − α) g²`; `d = √v + eps`, or if centered
    /// `d = √(v − a²) + eps` with `a ← α a + (1 − α) g`. Then `p ← p − lr · g / d`, or with momentum `b ← momentum · b + g / d` and
    /// `p ← p − lr · b`.
    ///
    /// G. Hinton, "Neural networks for machine learning", lecture 6, 2012; centered as in A. Graves, "Generating sequences with
    /// recurrent neural networks", 2013, <https://arxiv.org/abs/1308.0850>.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, optim::RmsProp};
    ///
    /// let model = Linear::new(784, 10)?;
    /// let opt = RmsProp::new(model.parameters(), 0.01).momentum(0.9).centered(true);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    RmsProp,
    "The other settings have PyTorch's defaults: alpha 0.99, eps 1e-8, no momentum. PyTorch's learning rate is \
     0.01.",
    RmsPropRule { alpha: 0.99, eps: 1e-8, weight_decay: 0.0, momentum: 0.0, centered: false, maximize: false }
}

settings! { RmsProp: RmsPropRule
    /// The decay factor of the running mean square, at least 0; 0.99 by default.
    alpha: f64 => alpha, at_least_0;
    /// Added to the divisor so that steps stay finite where gradients vanish, at least 0; 1e-8 by default.
    eps: f64 => eps, at_least_0;
    /// How much of each parameter is added to its gradient, at least 0; 0 by default.
    weight_decay: f64 => weight_decay, at_least_0;
    /// The momentum factor, at least 0; 0 by default.
    momentum: f64 => momentum, at_least_0;
    /// Whether to divide by the standard deviation of gradients instead of their root mean square; false by default.
    centered: bool => centered;
    /// Whether to maximize instead of minimize; false by default.
    maximize: bool => maximize;
}

impl Method for RmsPropRule {
    apply_rule! { RmsPropRule }

    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS] {
        let momentum = (self.momentum > 0.0).then_some("momentum_buffer");
        [Some("square_avg"), self.centered.then_some("grad_avg"), momentum]
    }
}
