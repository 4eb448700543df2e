//! [`Sgd`]: stochastic gradient descent, with momentum.

use super::{Optimizer, Slots, check};
use crate::{Parameter, Result};
use pagelock_tensor::{self as tensor, Element, Float, Tensor, no_grad};

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
pub struct Sgd<T: Float = f32> {
    slots: Slots<T, Tensor<T>>, // the kept direction `b`
    rule: Rule,
}

impl<T: Float> Sgd<T> {
    /// Plain descent: no momentum, no weight decay.
    pub fn new(parameters: impl IntoIterator<Item = Parameter<T>>, lr: f64) -> Self {
        let rule = Rule { lr, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
        Self { slots: Slots::new(parameters), rule }
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
}

impl<T: Float> Optimizer for Sgd<T> {
    fn step(&mut self) -> Result<()> {
        self.slots.check("Sgd")?;
        self.rule.check()?;
        no_grad(|| {
            for (parameter, kept) in &mut self.slots.slots {
                if let Some(grad) = parameter.grad() {
                    self.rule.update(parameter, &grad, kept)?;
                }
            }
            Ok(())
        })
    }

    fn zero_grad(&mut self) {
        self.slots.zero_grad();
    }

    fn lr(&self) -> f64 {
        self.rule.lr
    }

    fn set_lr(&mut self, lr: f64) {
        self.rule.lr = lr;
    }
}

/// The settings, and what they do to one parameter.
struct Rule {
    lr: f64,
    momentum: f64,
    dampening: f64,
    nesterov: bool,
    weight_decay: f64,
}

impl Rule {
    fn check(&self) -> Result<()> {
        check(self.lr >= 0.0, "Sgd", "lr", self.lr, "at least 0")?;
        check(self.momentum >= 0.0, "Sgd", "momentum", self.momentum, "at least 0")?;
        check(self.weight_decay >= 0.0, "Sgd", "weight_decay", self.weight_decay, "at least 0")?;
        check(!self.nesterov || self.momentum > 0.0, "Sgd", "momentum", self.momentum, "above 0 for nesterov")?;
        check(!self.nesterov || self.dampening == 0.0, "Sgd", "dampening", self.dampening, "0 for nesterov")
    }

    /// The documented formula, with `g` never stored: its two terms are added where it is used.
    fn update<T: Float>(&self, p: &Tensor<T>, grad: &Tensor<T>, kept: &mut Option<Tensor<T>>) -> tensor::Result<()> {
        if self.momentum == 0.0 {
            return self.descend(p, grad, None);
        }
        let b = self.keep(p, grad, kept)?;
        if self.nesterov { self.descend(p, grad, Some(b)) } else { p.add_scaled_(b, (-self.lr).cast()) }
    }

    /// `p ← p − lr · (grad + weight_decay · p + momentum · b)`
    fn descend<T: Float>(&self, p: &Tensor<T>, grad: &Tensor<T>, b: Option<&Tensor<T>>) -> tensor::Result<()> {
        if self.weight_decay != 0.0 {
            p.mul_scalar_((1.0 - self.lr * self.weight_decay).cast())?;
        }
        p.add_scaled_(grad, (-self.lr).cast())?;
        b.map_or(Ok(()), |b| p.add_scaled_(b, (-self.lr * self.momentum).cast()))
    }

    /// `b ← momentum · b + (1 − dampening) · (grad + weight_decay · p)`, or its start.
    fn keep<'a, T: Float>(
        &self,
        p: &Tensor<T>,
        grad: &Tensor<T>,
        kept: &'a mut Option<Tensor<T>>,
    ) -> tensor::Result<&'a Tensor<T>> {
        let (b, share) = match kept {
            Some(b) => {
                b.mul_scalar_(self.momentum.cast())?;
                (b, 1.0 - self.dampening)
            }
            None => (kept.insert(p.detach().zeros_like()?), 1.0),
        };
        b.add_scaled_(grad, share.cast())?;
        if self.weight_decay != 0.0 {
            b.add_scaled_(p, (share * self.weight_decay).cast())?;
        }
        Ok(b)
    }
}
