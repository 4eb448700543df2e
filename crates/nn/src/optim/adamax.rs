//! [`Adamax`]: Adam with the largest gradient in place of the root mean square.

use super::Optimizer;
use super::groups::{Group, Groups, NamedParameter, check, check_betas, listed, optimizer, settings};
use super::method::{Field, MAX_STATE_TENSORS, Method};
use super::state::step_tensors;
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::AdamaxRule;
use pagelock_tensor::{self as tensor};

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

impl Adamax {
    /// The decay factors of the running mean and of the largest gradient, each in `0..1`; 0.9 and 0.999 by default.
    #[must_use]
    pub fn betas(self, mean: f64, largest: f64) -> Self {
        self.set(|rule| rule.betas = [mean, largest])
    }
}

settings! { Adamax
    /// Added to `|g|` so that steps stay finite where gradients vanish, at least 0; 1e-8 by default.
    eps: f64 => eps;
    /// How much of each parameter is added to its gradient, at least 0; 0 by default.
    weight_decay: f64 => weight_decay;
    /// Whether to maximize instead of minimize; false by default.
    maximize: bool => maximize;
}

impl Method for AdamaxRule {
    fn check(&self) -> Result<()> {
        check_betas("Adamax", self.betas)?;
        check(self.eps >= 0.0, "Adamax", "eps", self.eps, "at least 0")?;
        check(self.weight_decay >= 0.0, "Adamax", "weight_decay", self.weight_decay, "at least 0")
    }

    fn settings(&mut self, show: &mut dyn FnMut(&'static str, Field<'_>)) {
        let AdamaxRule { betas, eps, weight_decay, maximize } = self;
        show("betas", Field::Numbers(betas));
        show("eps", Field::Number(eps));
        show("weight_decay", Field::Number(weight_decay));
        show("maximize", Field::Flag(maximize));
    }

    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS] {
        [Some("exp_avg"), Some("exp_inf"), None]
    }

    fn apply(methods: &[Self], groups: &[Group]) -> tensor::Result<()> {
        AdamaxRule::step_groups(step_tensors(methods.iter(), groups))
    }
}
