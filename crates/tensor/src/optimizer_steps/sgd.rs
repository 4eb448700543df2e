//! Stochastic gradient descent, with momentum.

use super::Rate;
use super::groups::MAX_STATE_TENSORS;
use super::step::{Formula, MAX_NUMBERS, Now, Prelude, StepTensors, code, step_groups};
use crate::element::Real;
use crate::error::Result;
use crate::inlined::Array;

/// The settings of a step of SGD; the formulas are PyTorch's.
///
/// With gradient `g` (`−g` to maximize), `g ← g + weight_decay · p`; with momentum,
/// `b ← momentum · b + (1 − dampening) · g` (`b = g` in the first step) and then `g ← b`, or with nesterov
/// `g ← g + momentum · b`; finally `p ← p − lr · g`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdRule {
    /// How much of the last step's direction is kept.
    pub momentum: f64,
    /// By how much new gradients count less than the kept direction.
    pub dampening: f64,
    /// Whether to look ahead by one step.
    pub nesterov: bool,
    /// How much of each parameter is added to its gradient, or how much each parameter shrinks relative to the
    /// learning rate.
    pub weight_decay: f64,
    /// Whether parameters shrink: `p ← p · (1 − lr · weight_decay)` first.
    pub is_decoupled: bool,
    /// Whether to maximize.
    pub maximize: bool,
}

impl SgdRule {
    /// Takes one step for all of the tensors. The state tensor is the direction `b`, if `momentum` is not 0; there is no
    /// clock.
    ///
    /// # Errors
    /// [`Error::InPlaceTracked`](crate::Error::InPlaceTracked) outside `no_grad`,
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch); [`Error::Argument`](crate::Error::Argument) for shapes that differ.
    ///
    /// # Examples
    /// ```
    /// use pagelock_tensor::optimizer_steps::{Rate, SgdRule, StepTensors};
    /// use pagelock_tensor::Tensor;
    ///
    /// let (parameter, grad) = (Tensor::new([3.0, 4.0])?, Tensor::new([1.0, -1.0])?);
    /// let (momentum, dampening, nesterov, weight_decay) = (0.0, 0.0, false, 0.0);
    /// let rule = SgdRule { momentum, dampening, nesterov, weight_decay, is_decoupled: false, maximize: false };
    /// let (state, clock, half_copy) = ([None, None, None], None, None);
    /// let tensors = StepTensors { parameter: parameter.clone(), grad, half_copy, state, clock, is_first: true };
    /// rule.step([tensors], &Rate::new(0.5))?;
    /// assert_eq!(parameter.to_vec::<f32>()?, [2.5, 4.5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn step(&self, tensors: impl IntoIterator<Item = StepTensors>, lr: &Rate) -> Result<()> {
        Self::run(&mut tensors.into_iter().map(|tensors| (self, tensors, lr)))
    }

    /// The weight of a gradient in the direction.
    fn share(&self, is_first: bool) -> f64 {
        if is_first { 1.0 } else { 1.0 - self.dampening }
    }
}

step_groups! { SgdRule }

impl Formula for SgdRule {
    code! { "sgd" }
    const CLOCK: usize = 0;

    fn prelude(&self) -> Prelude {
        let Self { maximize, weight_decay, is_decoupled, .. } = *self;
        Prelude { maximize, weight_decay, is_decoupled }
    }

    fn has_state(&self) -> [bool; MAX_STATE_TENSORS] {
        [self.momentum != 0.0, false, false]
    }

    fn numbers(&self, group: &StepTensors) -> ([u64; MAX_NUMBERS], usize) {
        let flags = [group.state[0].is_some(), self.nesterov].mapped(u64::from);
        let [momentum, share] = [self.momentum, self.share(group.is_first)].mapped(f64::to_bits);
        ([momentum, share, flags[0], flags[1], 0, 0], 4)
    }

    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()> {
        let [rate, momentum, share] = [-now.lr, self.momentum, self.share(now.tensors.is_first)].mapped(R::from_f64);
        match (&now.tensors.state[0], self.nesterov) {
            (None, _) => now.change(inlined!(|x: R, [], g: R| (x + g * rate, []))),
            (Some(_), false) => now.change(inlined!(|x: R, [b]: [R; 1], g: R| {
                let b = b * momentum + g * share;
                (x + b * rate, [b])
            })),
            (Some(_), true) => now.change(inlined!(|x: R, [b]: [R; 1], g: R| {
                let b = b * momentum + g * share;
                (x + (g + b * momentum) * rate, [b])
            })),
        }
    }
}
