//! [`Adagrad`]: steps divided by the root of the sum of all squares.

use super::Optimizer;
use super::groups::{Group, Groups, NamedParameter, listed, optimizer, settings};
use super::method::{Field, MAX_STATE_TENSORS, Method};
use super::state::step_tensors;
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::AdagradRule;
use pagelock_tensor::{self as tensor};

optimizer! {
    /// Adagrad, as PyTorch's `optim.Adagrad`.
    ///
    /// In step `t` with gradient `g` (`−g` to maximize; plus `weight_decay · p`): `s ← s + g²`,
    /// `p ← p − lr / (1 + (t − 1) · lr_decay) · g / (√s + eps)`.
    ///
    /// J. Duchi, E. Hazan, Y. Singer, "Adaptive subgradient methods for online learning and stochastic optimization", 2011,
    /// <https://jmlr.org/papers/v12/duchi11a.html>.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, optim::Adagrad};
    ///
    /// let model = Linear::new(784, 10)?;
    /// let opt = Adagrad::new(model.parameters(), 0.01).initial_accumulator_value(0.1);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Adagrad,
    "The other settings have PyTorch's defaults: eps 1e-10, sums that begin at 0. PyTorch's learning rate is \
     0.01.",
    AdagradMethod { rule: AdagradRule { lr_decay: 0.0, eps: 1e-10, weight_decay: 0.0, maximize: false }, start: 0.0 }
}

settings! { Adagrad: AdagradMethod
    /// By how much the learning rate falls from step to step, at least 0; 0 by default.
    lr_decay: f64 => rule.lr_decay, at_least_0;
    /// Added to the divisor so that steps stay finite where gradients vanish, at least 0; 1e-10 by default.
    eps: f64 => rule.eps, at_least_0;
    /// How much of each parameter is added to its gradient, at least 0; 0 by default.
    weight_decay: f64 => rule.weight_decay, at_least_0;
    /// The initial value of the sums of squares, at least 0; 0 by default.
    initial_accumulator_value: f64 => start, at_least_0;
    /// Whether to maximize instead of minimize; false by default.
    maximize: bool => rule.maximize;
}

#[derive(Clone)]
struct AdagradMethod {
    rule: AdagradRule,
    start: f64,
}

impl Method for AdagradMethod {
    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS] {
        [Some("sum"), None, None]
    }

    fn start(&self) -> f64 {
        self.start
    }

    fn apply(methods: &[Self], groups: &[Group]) -> tensor::Result<()> {
        AdagradRule::step_groups(step_tensors(methods.iter().map(|method| &method.rule), groups))
    }
}
