//! [`Adam`] and [`AdamW`]: steps scaled by running moments of the gradient.
//!
//! D. Kingma, J. Ba, "Adam: a method for stochastic optimization", 2014, <https://arxiv.org/abs/1412.6980>;
//! I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", 2017, <https://arxiv.org/abs/1711.05101>.

use super::{Optimizer, Slots, State, check};
use crate::{Parameter, Result};
use pagelock_tensor::{self as tensor, Device, Element, Float, Tensor, no_grad};

macro_rules! adam {
    ($(#[$docs:meta])* $name:ident, $decoupled:expr, $weight_decay:expr, $decay_docs:literal) => {
        $(#[$docs])*
        pub struct $name<T: Float = f32> {
            slots: Slots<T, Moments<T>>,
            rule: Rule,
        }

        impl<T: Float> $name<T> {
            /// PyTorch's other defaults: betas 0.9 and 0.999, eps 1e-8.
            pub fn new(parameters: impl IntoIterator<Item = Parameter<T>>, lr: f64) -> Self {
                let rule = Rule { name: stringify!($name), decoupled: $decoupled, lr, betas: [0.9, 0.999], eps: 1e-8, weight_decay: $weight_decay };
                Self { slots: Slots::new(parameters), rule }
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

        impl<T: Float> Optimizer for $name<T> {
            fn step(&mut self) -> Result<()> {
                self.slots.check(self.rule.name)?;
                self.rule.check()?;
                self.rule.step(&mut self.slots)
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
struct Moments<T: Float> {
    step: i32,
    mean: Tensor<T>,
    square: Tensor<T>,
    scratch: Tensor<T>,
}

impl<T: Float> Moments<T> {
    fn new(p: &Tensor<T>) -> tensor::Result<Self> {
        let p = p.detach();
        Ok(Self { step: 0, mean: p.zeros_like()?, square: p.zeros_like()?, scratch: p.zeros_like()? })
    }
}

impl<T: Float> State for Moments<T> {
    fn to(&self, device: &Device) -> tensor::Result<Self> {
        let Self { step, mean, square, scratch } = self;
        Ok(Self { step: *step, mean: mean.to(device)?, square: square.to(device)?, scratch: scratch.to(device)? })
    }
}

/// The settings, and what they do to one parameter.
struct Rule {
    name: &'static str,
    decoupled: bool,
    lr: f64,
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
}

impl Rule {
    fn check(&self) -> Result<()> {
        let [mean, square] = self.betas;
        check(self.lr >= 0.0, self.name, "lr", self.lr, "at least 0")?;
        check((0.0..1.0).contains(&mean), self.name, "the first beta", mean, "at least 0 and below 1")?;
        check((0.0..1.0).contains(&square), self.name, "the second beta", square, "at least 0 and below 1")?;
        check(self.eps >= 0.0, self.name, "eps", self.eps, "at least 0")?;
        check(self.weight_decay >= 0.0, self.name, "weight_decay", self.weight_decay, "at least 0")
    }

    fn step<T: Float>(&self, slots: &mut Slots<T, Moments<T>>) -> Result<()> {
        no_grad(|| {
            for (parameter, moments) in &mut slots.slots {
                let Some(grad) = parameter.grad() else { continue };
                let moments = match moments {
                    Some(moments) => moments,
                    None => moments.insert(Moments::new(parameter)?),
                };
                self.update(parameter, &grad, moments)?;
            }
            Ok(())
        })
    }

    fn update<T: Float>(&self, p: &Tensor<T>, grad: &Tensor<T>, moments: &mut Moments<T>) -> tensor::Result<()> {
        moments.step += 1;
        let Moments { step, mean, square, scratch } = moments;
        let grad = self.decay(p, grad, scratch)?;
        let [keep_mean, keep_square] = self.betas;
        mean.mul_scalar_(keep_mean.cast())?;
        mean.add_scaled_(grad, (1.0 - keep_mean).cast())?;
        square.mul_scalar_(keep_square.cast())?;
        square.addcmul_(grad, grad, 1.0 - keep_square)?;

        let [mean_share, square_share] = self.betas.map(|beta| 1.0 - beta.powi(*step));
        scratch.copy_(square)?; // `grad` may have been in it
        scratch.sqrt_()?;
        scratch.mul_scalar_((1.0 / square_share.sqrt()).cast())?;
        scratch.add_scalar_(self.eps.cast())?;
        p.addcdiv_(mean, scratch, -self.lr / mean_share)
    }

    /// Decays the parameter, or gives the gradient that does.
    fn decay<'a, T: Float>(
        &self,
        p: &Tensor<T>,
        grad: &'a Tensor<T>,
        scratch: &'a Tensor<T>,
    ) -> tensor::Result<&'a Tensor<T>> {
        if self.weight_decay == 0.0 {
            return Ok(grad);
        }
        if self.decoupled {
            p.mul_scalar_((1.0 - self.lr * self.weight_decay).cast())?;
            return Ok(grad);
        }
        scratch.copy_(grad)?;
        scratch.add_scaled_(p, self.weight_decay.cast())?;
        Ok(scratch)
    }
}
