//! [`Muon`]: steps along the orthogonal matrix nearest to the momentum.

use super::Optimizer;
use super::groups::{Group, Groups, NamedParameter, Slot, at_least_0, check, listed, optimizer, settings};
use super::method::{Field, MAX_STATE_TENSORS, Method, Settings};
use crate::{Error, Parameter, Result};
use pagelock_tensor::optimizer_steps::{SgdRule, StepTensors};
use pagelock_tensor::{self as tensor, DType, Tensor};

optimizer! {
    /// Muon, as PyTorch's `optim.Muon`, for the matrices inside a network; give embeddings, biases, norms and the last layer to
    /// [`AdamW`](super::AdamW).
    ///
    /// With gradient `g`: `b ← momentum · b + (1 − momentum) · g`, and `u = b`, or with nesterov
    /// `u = momentum · b + (1 − momentum) · g`. First `p ← p · (1 − lr · weight_decay)`, then `p ← p − lr · s · O`, where
    /// `O` approximates the orthogonal matrix nearest to `u`, and `s` depends on the shape ([`AdjustLr`]). `O` is the
    /// result of `ns_steps` Newton-Schulz steps in `bf16`, `X ← a X + (b A + c A²) X` with `A = X Xᵀ`, that start from
    /// `u` divided by its norm.
    ///
    /// K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024, <https://kellerjordan.github.io/posts/muon/>.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module, optim::{AdamW, Muon}};
    ///
    /// let model = Linear::new(784, 10)?;
    /// let (matrices, rest): (Vec<_>, Vec<_>) = model.parameters().into_iter().partition(|p| p.rank() == 2);
    /// let opt = (Muon::new(matrices, 0.02), AdamW::new(rest, 3e-4));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Muon,
    "The other settings have PyTorch's defaults: momentum 0.95, nesterov, weight decay 0.1, 5 Newton-Schulz \
     steps. PyTorch's learning rate is 1e-3.",
    MuonMethod {
        descent: SgdRule {
            momentum: 0.0,
            dampening: 0.0,
            nesterov: false,
            weight_decay: 0.1,
            is_decoupled: true,
            maximize: false,
        },
        momentum: 0.95,
        nesterov: true,
        ns_coefficients: [3.4445, -4.775, 2.0315],
        eps: 1e-7,
        ns_steps: 5,
        adjust_lr: AdjustLr::Original,
    }
}

/// The factor by which [`Muon`] multiplies the learning rate for a matrix of `rows` and `columns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdjustLr {
    /// `√max(1, rows / columns)`, as Muon's author has it: `"original"`.
    #[default]
    Original,
    /// `0.2 · √max(rows, columns)`, so that steps are as long as AdamW's: `"match_rms_adamw"`.
    MatchRmsAdamW,
    /// `√(rows / columns)`: `"spectral_unclamped"`.
    SpectralUnclamped,
}

impl AdjustLr {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Original, "original"),
        (Self::MatchRmsAdamW, "match_rms_adamw"),
        (Self::SpectralUnclamped, "spectral_unclamped"),
    ];

    fn factor(self, rows: usize, columns: usize) -> f64 {
        let (rows, columns) = (rows as f64, columns as f64);
        match self {
            Self::Original => (rows / columns).max(1.0).sqrt(),
            Self::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
            Self::SpectralUnclamped => (rows / columns).sqrt(),
        }
    }
}

impl Muon {
    /// The number of Newton-Schulz steps, below 100; 5 by default.
    #[must_use]
    pub fn ns_steps(self, ns_steps: u32) -> Self {
        self.set(|method| method.ns_steps = ns_steps.into())
    }
}

settings! { Muon
    /// By how much parameters shrink in each step, relative to the learning rate, at least 0; 0.1 by default.
    weight_decay: f64 => descent.weight_decay;
    /// The decay factor of the running mean of gradients, at least 0; 0.95 by default.
    momentum: f64 => momentum;
    /// Whether to use Nesterov momentum; true by default.
    nesterov: bool => nesterov;
    /// `a`, `b` and `c` of the Newton-Schulz steps.
    ns_coefficients: [f64; 3] => ns_coefficients;
    /// The lower bound of the norm by which a direction is divided, at least 0; 1e-7 by default.
    eps: f64 => eps;
    /// The factor of the learning rate; [`AdjustLr::Original`] by default.
    adjust_lr: AdjustLr => adjust_lr;
}

#[derive(Clone)]
struct MuonMethod {
    descent: SgdRule, // along the orthogonal matrix
    momentum: f64,
    nesterov: bool,
    ns_coefficients: [f64; 3],
    eps: f64,
    ns_steps: u64,
    adjust_lr: AdjustLr,
}

impl Settings for MuonMethod {
    fn check_ranges(&self, optimizer: &str) -> Result<()> {
        at_least_0(optimizer, "momentum", self.momentum)?;
        at_least_0(optimizer, "weight_decay", self.descent.weight_decay)?;
        at_least_0(optimizer, "eps", self.eps)?;
        check(self.ns_steps < 100, optimizer, "ns_steps", self.ns_steps as f64, "below 100")
    }

    fn settings(&mut self, show: &mut dyn FnMut(&'static str, Field<'_>)) {
        show("weight_decay", Field::Number(&mut self.descent.weight_decay));
        show("momentum", Field::Number(&mut self.momentum));
        show("nesterov", Field::Flag(&mut self.nesterov));
        show("ns_coefficients", Field::Numbers(&mut self.ns_coefficients));
        show("eps", Field::Number(&mut self.eps));
        show("ns_steps", Field::Integer(&mut self.ns_steps));
        let index = AdjustLr::ALL.iter().position(|(adjust, _)| *adjust == self.adjust_lr);
        let mut index = index.unwrap_or_default();
        show("adjust_lr_fn", Field::Choice(&mut index, &AdjustLr::ALL.map(|(_, name)| name)));
        self.adjust_lr = AdjustLr::ALL[index].0;
    }
}

impl Method for MuonMethod {
    fn clock(&self) -> &'static [&'static str] {
        &[]
    }

    fn check_parameter(&self, parameter: &Parameter) -> Result<()> {
        if parameter.rank() == 2 {
            return Ok(());
        }
        let fix = "give it to another optimizer, such as AdamW";
        Err(Error::Argument(format!("Muon: a parameter is {}, not a matrix; {fix}", parameter.shape())))
    }

    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS] {
        [Some("momentum_buffer"), None, None]
    }

    fn apply(methods: &[Self], groups: &[Group]) -> tensor::Result<()> {
        let mut steps = Vec::new();
        for (method, Group { lr, slots, .. }) in methods.iter().zip(groups) {
            for slot in slots {
                steps.extend(method.tensors(slot)?.map(|tensors| (&method.descent, tensors, lr)));
            }
        }
        SgdRule::step_groups(steps)
    }
}

impl MuonMethod {
    /// The inputs of a parameter's step, if it has a gradient: plain descent with the orthogonal matrix as the
    /// gradient.
    fn tensors(&self, slot: &Slot) -> tensor::Result<Option<StepTensors>> {
        let direction = slot.state.as_ref().and_then(|state| state.tensors[0].as_ref());
        let (Some(direction), Some(grad)) = (direction, slot.parameter.grad()) else { return Ok(None) };
        let wide = grad.to_dtype(direction.dtype())?;
        direction.lerp_(&wide, 1.0 - self.momentum)?;
        let update = match self.nesterov {
            true => wide.add(&direction.sub(&wide)?.mul_scalar(self.momentum)?)?,
            false => direction.clone(),
        };
        let factor = self.adjust_lr.factor(grad.dims()[0], grad.dims()[1]);
        let step = self.orthogonal(&update)?.to_dtype(direction.dtype())?.mul_scalar(factor)?;
        let (parameter, half_copy) = (slot.weights().clone(), slot.half_copy());
        let grad = step.to_dtype(grad.dtype())?;
        Ok(Some(StepTensors { parameter, grad, half_copy, state: [None, None, None], clock: None, is_first: true }))
    }

    /// Approximates the orthogonal matrix nearest to `x` by Newton-Schulz steps, whose `A` has the size of the
    /// shorter side.
    fn orthogonal(&self, x: &Tensor) -> tensor::Result<Tensor> {
        let ([a, b, c], is_tall) = (self.ns_coefficients, x.dims()[0] > x.dims()[1]);
        let half = x.to_dtype(DType::BF16)?;
        let wide = half.to_dtype(DType::F32)?;
        let norm = wide.mul(&wide)?.sum(..)?.sqrt()?.to_dtype(DType::BF16)?;
        let half = half.div(&norm.maximum(&norm.full_like(self.eps)?)?)?;
        let mut x = if is_tall { half.t()? } else { half };
        for _ in 0..self.ns_steps {
            let gram = x.matmul(&x.t()?)?;
            let by = gram.mul_scalar(b)?.add(&gram.matmul(&gram)?.mul_scalar(c)?)?;
            x = x.mul_scalar(a)?.add(&by.matmul(&x)?)?;
        }
        if is_tall { x.t() } else { Ok(x) }
    }
}
