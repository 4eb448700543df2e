//! [`Adam`] and [`AdamW`]: steps scaled by running moments of the gradient.
//!
//! D. Kingma, J. Ba, "Adam: a method for stochastic optimization", 2014, <https://arxiv.org/abs/1412.6980>;
//! I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", 2017, <https://arxiv.org/abs/1711.05101>;
//! S. Reddi, S. Kale, S. Kumar, "On the convergence of Adam and beyond", 2018, <https://arxiv.org/abs/1904.09237>
//! (AMSGrad).

use super::Optimizer;
use super::groups::{Groups, NamedParameter, at_least_0, both_below_1, listed, optimizer, settings};
use super::method::{Field, MAX_STATE_TENSORS, Method, Settings, apply_rule};
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::AdamRule;

macro_rules! adam {
    ($(#[$docs:meta])* $name:ident, $decoupled:expr, $weight_decay:expr, $decay_docs:literal) => {
        optimizer! {
            $(#[$docs])*
            $name,
            "The other settings have PyTorch's defaults: betas 0.9 and 0.999, eps 1e-8.",
            AdamRule {
                betas: [0.9, 0.999],
                eps: 1e-8,
                weight_decay: $weight_decay,
                is_decoupled: $decoupled,
                amsgrad: false,
                maximize: false,
            }
        }

        settings! { $name
            /// The decay factors of the running mean and of the running mean square, each in `0..1`.
            betas: (mean, square) => betas;
            #[doc = $decay_docs]
            weight_decay: f64 => weight_decay;
            /// Added to the divisor so that steps stay finite where gradients vanish, at least 0.
            eps: f64 => eps;
            /// Whether to divide by the root of the largest running mean square so far, as AMSGrad does; false by
            /// default.
            amsgrad: bool => amsgrad;
            /// Whether to maximize instead of minimize; false by default.
            maximize: bool => maximize;
        }
    };
}

adam! {
    /// Adam, as PyTorch's `optim.Adam`.
    ///
    /// In step `t` with gradient `g` (plus `weight_decay · p`): `m ← β₁ m + (1 − β₁) g`, `v ← β₂ v + (1 − β₂) g²`,
    /// `p ← p − lr · m̂ / (√v̂ + eps)` with `m̂ = m / (1 − β₁ᵗ)` and `v̂ = v / (1 − β₂ᵗ)`. With amsgrad, the largest
    /// `v` so far replaces `v` in `v̂`. To maximize, `−g` replaces `g`.
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
    /// Adam with weight decay that is decoupled from the gradient, as PyTorch's `optim.AdamW`.
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
    AdamW, true, 0.01, "How much a step shrinks parameters, relative to the learning rate; at least 0, by default 0.01."
}

impl Settings for AdamRule {
    fn check_ranges(&self, optimizer: &str) -> Result<()> {
        both_below_1(optimizer, "betas", self.betas)?;
        at_least_0(optimizer, "eps", self.eps)?;
        at_least_0(optimizer, "weight_decay", self.weight_decay)
    }

    fn settings(&mut self, show: &mut dyn FnMut(&'static str, Field<'_>)) {
        let AdamRule { betas, eps, weight_decay, is_decoupled, amsgrad, maximize } = self;
        show("betas", Field::Numbers(betas));
        show("eps", Field::Number(eps));
        show("weight_decay", Field::Number(weight_decay));
        show("amsgrad", Field::Flag(amsgrad));
        show("maximize", Field::Flag(maximize));
        show("decoupled_weight_decay", Field::Fixed(*is_decoupled));
    }
}

impl Method for AdamRule {
    apply_rule! { AdamRule }

    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS] {
        [Some("exp_avg"), Some("exp_avg_sq"), self.amsgrad.then_some("max_exp_avg_sq")]
    }
}
