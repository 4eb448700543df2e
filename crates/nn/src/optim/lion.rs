//! [`Lion`]: steps of one size, in the direction of a running mean.

use super::Optimizer;
use super::groups::{Group, Groups, NamedParameter, check, check_betas, listed, optimizer};
use super::method::{Field, KEPT, Method};
use super::state::step_tensors;
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::LionRule;
use pagelock_tensor::{self as tensor};

/// Lion, as its authors wrote it; PyTorch has none.
///
/// With gradient `g` (`−g` to maximize), first `p ← p · (1 − lr · weight_decay)`; then `p ← p − lr · sign(β₁ m + (1 − β₁) g)`,
/// `m ← β₂ m + (1 − β₂) g`. It keeps half of what Adam keeps, and wants a learning rate of a third to a tenth of Adam's.
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
pub struct Lion {
    methods: Vec<LionRule>,
    groups: Groups,
}

impl Lion {
    /// The paper's other defaults: betas 0.9 and 0.99. Its learning rate is 1e-4.
    pub fn new<P: Into<NamedParameter>>(parameters: impl IntoIterator<Item = P>, lr: f64) -> Self {
        Self::of(listed(parameters), lr)
    }

    /// What programs need not compile again.
    fn of(parameters: Vec<NamedParameter>, lr: f64) -> Self {
        let rule = LionRule { betas: [0.9, 0.99], weight_decay: 0.0, maximize: false };
        Self::with(rule, lr, parameters)
    }

    /// How much of the running mean counts in the step, and how much of it is kept, each in `0..1`; 0.9 and 0.99 by default.
    #[must_use]
    pub fn betas(self, mean: f64, square: f64) -> Self {
        self.set(|rule| rule.betas = [mean, square])
    }

    /// By how much parameters shrink in each step, relative to the learning rate, at least 0; 0 by default.
    #[must_use]
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        self.set(|rule| rule.weight_decay = weight_decay)
    }

    /// Goes up instead of down.
    #[must_use]
    pub fn maximize(self, maximize: bool) -> Self {
        self.set(|rule| rule.maximize = maximize)
    }
}

optimizer! { Lion, LionRule }

impl Method for LionRule {
    fn clock(&self) -> &'static [&'static str] {
        &[]
    }

    fn check(&self) -> Result<()> {
        check_betas("Lion", self.betas)?;
        check(self.weight_decay >= 0.0, "Lion", "weight_decay", self.weight_decay, "at least 0")
    }

    fn settings(&mut self, show: &mut dyn FnMut(&'static str, Field<'_>)) {
        let LionRule { betas, weight_decay, maximize } = self;
        show("betas", Field::Numbers(betas));
        show("weight_decay", Field::Number(weight_decay));
        show("maximize", Field::Flag(maximize));
    }

    fn kept(&self) -> [Option<&'static str>; KEPT] {
        [Some("exp_avg"), None, None]
    }

    fn apply(methods: &[Self], groups: &[Group]) -> tensor::Result<()> {
        LionRule::step_groups(step_tensors(methods.iter(), groups))
    }
}
