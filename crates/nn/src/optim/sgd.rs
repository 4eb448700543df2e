//! [`Sgd`]: stochastic gradient descent, with momentum.

use super::{Optimizer, Slot, Slots, State, check, laid_as, listed};
use crate::{Parameter, Result};
use pagelock_tensor::descent::{Rate, SgdRule, SgdTensors, sgd_step};
use pagelock_tensor::{self as tensor, Tensor, no_grad};

/// Stochastic gradient descent, as PyTorch's `optim.SGD`.
///
/// With gradient `g`, `g ← g + weight_decay · p`; with momentum, `b ← momentum · b + (1 − dampening) · g` (`b = g` in the
/// first step) and then `g ← b`, or with nesterov `g ← g + momentum · b`; at last `p ← p − lr · g`.
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
pub struct Sgd {
    slots: Slots<Kept>,
    rule: SgdRule,
    lr: Rate,
}

impl Sgd {
    /// Plain descent: no momentum, no weight decay.
    pub fn new(parameters: impl IntoIterator<Item = Parameter>, lr: f64) -> Self {
        Self::of(listed(parameters), lr)
    }

    fn of(parameters: Vec<Parameter>, lr: f64) -> Self {
        let rule = SgdRule { momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
        Self { slots: Slots::new(parameters), rule, lr: Rate::new(lr) }
    }

    /// How much of the last step's direction is kept, at least 0.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.rule.momentum = momentum;
        self
    }

    /// By how much new gradients count less than the kept direction.
    #[must_use]
    pub fn dampening(mut self, dampening: f64) -> Self {
        self.rule.dampening = dampening;
        self
    }

    /// Looks ahead by one step: Nesterov's momentum. Needs a momentum above 0 and no dampening.
    #[must_use]
    pub fn nesterov(mut self, nesterov: bool) -> Self {
        self.rule.nesterov = nesterov;
        self
    }

    /// How much of each parameter is added to its gradient, at least 0.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.rule.weight_decay = weight_decay;
        self
    }

    fn check(&self) -> Result<()> {
        let SgdRule { momentum, dampening, nesterov, weight_decay } = self.rule;
        check(self.lr() >= 0.0, "Sgd", "lr", self.lr(), "at least 0")?;
        check(momentum >= 0.0, "Sgd", "momentum", momentum, "at least 0")?;
        check(weight_decay >= 0.0, "Sgd", "weight_decay", weight_decay, "at least 0")?;
        check(!nesterov || momentum > 0.0, "Sgd", "momentum", momentum, "above 0 for nesterov")?;
        check(!nesterov || dampening == 0.0, "Sgd", "dampening", dampening, "0 for nesterov")
    }

    /// Room for what is kept for every parameter that has a gradient.
    fn keep(&mut self) -> tensor::Result<()> {
        for slot in &mut self.slots.slots {
            if slot.state.is_none() && slot.parameter.grad().is_some() {
                slot.state = Some(Kept { direction: slot.weights().zeros_like()?, is_first: true });
            }
        }
        Ok(())
    }
}

impl Optimizer for Sgd {
    fn step(&mut self) -> Result<()> {
        self.slots.check("Sgd")?;
        self.check()?;
        self.slots.prepare()?;
        if self.rule.momentum != 0.0 {
            self.keep()?;
        }
        let tensors = self.slots.slots.iter().filter_map(|slot| {
            let (parameter, half, grad) = (slot.weights().clone(), slot.half(), slot.parameter.grad()?);
            let is_first = slot.state.as_ref().is_some_and(|kept| kept.is_first);
            let kept = slot.state.as_ref().map(|kept| kept.direction.clone());
            Some(SgdTensors { parameter, grad, half, kept, is_first })
        });
        no_grad(|| sgd_step(tensors, self.rule, &self.lr))?;
        for Slot { parameter, state, .. } in &mut self.slots.slots {
            if let Some(kept) = state.as_mut().filter(|_| parameter.grad().is_some()) {
                kept.is_first = false;
            }
        }
        Ok(())
    }

    fn zero_grad(&mut self) {
        self.slots.zero_grad();
    }

    fn lr(&self) -> f64 {
        self.lr.get()
    }

    fn set_lr(&mut self, lr: f64) {
        self.lr.set(lr);
    }

    fn scale_gradients(&mut self, factor: f64) -> Result<bool> {
        self.slots.scale_gradients(factor)
    }
}

/// What is kept for one parameter.
struct Kept {
    direction: Tensor, // `b`
    is_first: bool,    // whether nothing was kept yet, and it is zero
}

impl State for Kept {
    fn beside(&self, parameter: &Tensor) -> tensor::Result<Self> {
        Ok(Self { direction: laid_as(parameter, &self.direction)?, is_first: self.is_first })
    }
}
