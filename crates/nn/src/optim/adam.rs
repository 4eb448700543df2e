//! [`Adam`] and [`AdamW`]: steps scaled by running moments of the gradient.
//!
//! D. Kingma, J. Ba, "Adam: a method for stochastic optimization", 2014, <https://arxiv.org/abs/1412.6980>;
//! I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", 2017, <https://arxiv.org/abs/1711.05101>.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Optimizer, Slot, Slots, State, check, laid_as, listed};
use crate::{Parameter, Result};
use pagelock_tensor::descent::{AdamRule, AdamTensors, Rate, adam_step};
use pagelock_tensor::{self as tensor, DType, Tensor, no_grad};

macro_rules! adam {
    ($(#[$docs:meta])* $name:ident, $decoupled:expr, $weight_decay:expr, $decay_docs:literal) => {
        $(#[$docs])*
        pub struct $name {
            slots: Slots<Moments>,
            rule: AdamRule,
            lr: Rate,
            calls: u64, // of `step`
        }

        impl $name {
            /// PyTorch's other defaults: betas 0.9 and 0.999, eps 1e-8.
            pub fn new(parameters: impl IntoIterator<Item = Parameter>, lr: f64) -> Self {
                Self::of(listed(parameters), lr)
            }

            fn of(parameters: Vec<Parameter>, lr: f64) -> Self {
                let rule = AdamRule { betas: [0.9, 0.999], eps: 1e-8, weight_decay: $weight_decay, is_decoupled: $decoupled };
                Self { slots: Slots::new(parameters), rule, lr: Rate::new(lr), calls: 0 }
            }

            /// How much of the running mean and of the running square is kept, each in `0..1`.
            #[must_use]
            pub fn betas(mut self, mean: f64, square: f64) -> Self {
                self.rule.betas = [mean, square];
                self
            }

            /// What keeps the step finite where gradients vanish, at least 0.
            #[must_use]
            pub fn eps(mut self, eps: f64) -> Self {
                self.rule.eps = eps;
                self
            }

            #[doc = $decay_docs]
            #[must_use]
            pub fn weight_decay(mut self, weight_decay: f64) -> Self {
                self.rule.weight_decay = weight_decay;
                self
            }
        }

        impl Optimizer for $name {
            fn step(&mut self) -> Result<()> {
                self.slots.check(stringify!($name))?;
                check_rule(stringify!($name), &self.rule, self.lr())?;
                self.slots.prepare()?;
                keep(&mut self.slots)?;
                self.calls += 1;
                count(&self.slots, self.calls)?; // only when nothing can be refused any more
                let tensors = self.slots.slots.iter().filter_map(|slot| {
                    let Moments { mean, square, steps } = slot.state.as_ref()?;
                    let (parameter, half, grad) = (slot.weights().clone(), slot.half(), slot.parameter.grad()?);
                    let (mean, square, steps) = (mean.clone(), square.clone(), steps.taken.clone());
                    Some(AdamTensors { parameter, grad, half, mean, square, steps })
                });
                Ok(no_grad(|| adam_step(tensors, self.rule, &self.lr))?)
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
    };
}

adam! {
    /// Adam, as PyTorch's `optim.Adam`.
    ///
    /// In step `t` with gradient `g` (plus `weight_decay · p`): `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`,
    /// `p ← p − lr · m̂ / (√v̂ + eps)` with `m̂ = m / (1 − β₁ᵗ)` and `v̂ = v / (1 − β₂ᵗ)`.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, optim::{Adam, Optimizer}};
    ///
    /// let model = Linear::new(784, 10)?;
    /// let mut opt = Adam::new(model.parameters(), 1e-3).betas(0.9, 0.99);
    /// opt.set_lr(1e-4);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Adam, false, 0.0, "How much of each parameter is added to its gradient, at least 0; 0 by default."
}

adam! {
    /// Adam with weight decay beside the gradient, as PyTorch's `optim.AdamW`.
    ///
    /// First `p ← p · (1 − lr · weight_decay)`, then the step of [`Adam`] without its weight decay.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, optim::AdamW};
    ///
    /// let model = Linear::new(784, 10)?;
    /// let opt = AdamW::new(model.parameters(), 1e-3).weight_decay(0.1);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    AdamW, true, 0.01, "By how much parameters shrink in each step, relative to the learning rate, at least 0; 0.01 by default."
}

/// What is kept for one parameter.
struct Moments {
    mean: Tensor,
    square: Tensor,
    steps: Arc<Steps>,
}

/// How many steps some parameters took: one `f64` where they are, so that captured steps count too.
struct Steps {
    taken: Tensor,
    counted_in: AtomicU64, // the latest call of `step` that did
}

impl Steps {
    fn new(taken: Tensor) -> Arc<Self> {
        Arc::new(Self { taken, counted_in: AtomicU64::new(0) })
    }
}

impl State for Moments {
    fn beside(&self, parameter: &Tensor) -> tensor::Result<Self> {
        let Self { mean, square, steps } = self;
        let device = parameter.device();
        let is_there = steps.taken.device() == device; // then it stays the count of others, too
        let steps = if is_there { steps.clone() } else { Steps::new(steps.taken.to(&device)?) };
        Ok(Self { mean: laid_as(parameter, mean)?, square: laid_as(parameter, square)?, steps })
    }
}

/// Room for what is kept for every parameter that has a gradient; those that take their first step together are counted
/// together.
fn keep(slots: &mut Slots<Moments>) -> tensor::Result<()> {
    let mut beginners = None;
    let some_rest = slots.slots.iter().any(|slot| slot.state.is_some() && slot.parameter.grad().is_none());
    for slot in &mut slots.slots {
        if slot.parameter.grad().is_none() {
            continue;
        }
        match &mut slot.state {
            Some(Moments { steps, .. }) if some_rest && Arc::strong_count(steps) > 1 => {
                *steps = Steps::new(steps.taken.add_scalar(0)?);
            }
            Some(_) => {}
            None => {
                let device = slot.parameter.device();
                let together = beginners.take().filter(|steps: &Arc<Steps>| steps.taken.device() == device);
                let steps = match together {
                    Some(steps) => steps,
                    None => Steps::new(Tensor::on(&device).of(DType::F64).zeros(())?),
                };
                beginners = Some(Arc::clone(&steps));
                let zeros = || slot.weights().zeros_like();
                slot.state = Some(Moments { mean: zeros()?, square: zeros()?, steps });
            }
        }
    }
    Ok(())
}

/// Counts a step of every parameter that has a gradient.
fn count(slots: &Slots<Moments>, call: u64) -> tensor::Result<()> {
    for Slot { parameter, state, .. } in &slots.slots {
        let Some(Moments { steps, .. }) = state.as_ref().filter(|_| parameter.grad().is_some()) else { continue };
        if steps.counted_in.swap(call, Relaxed) != call {
            no_grad(|| steps.taken.add_scalar_(1))?;
        }
    }
    Ok(())
}

fn check_rule(name: &'static str, rule: &AdamRule, lr: f64) -> Result<()> {
    let [mean, square] = rule.betas;
    check(lr >= 0.0, name, "lr", lr, "at least 0")?;
    check((0.0..1.0).contains(&mean), name, "the first beta", mean, "at least 0 and below 1")?;
    check((0.0..1.0).contains(&square), name, "the second beta", square, "at least 0 and below 1")?;
    check(rule.eps >= 0.0, name, "eps", rule.eps, "at least 0")?;
    check(rule.weight_decay >= 0.0, name, "weight_decay", rule.weight_decay, "at least 0")
}
