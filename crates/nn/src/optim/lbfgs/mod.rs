//! [`Lbfgs`]: limited-memory BFGS, which evaluates the loss several times in a step. `algorithm.rs` has the step,
//! `line_search.rs` its line search, `state.rs` its state dict.
//!
//! All parameters are treated as one vector. A step replaces the state only when it is done, so that a failed step
//! changes nothing.

mod algorithm;
mod line_search;
mod state;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use pagelock_memory::Holder;
use pagelock_tensor::profiler::{self, Category};
use pagelock_tensor::{DType, Device, Tensor, enable_grad, no_grad};

use self::algorithm::Step;
use self::state::Memory;
use super::groups::{NamedParameter, at_least_0, check, listed};
use super::master::is_half;
use super::{Optimizer, OptimizerState};
use crate::setters::setters;
use crate::{Error, Parameter, Result};

const NAME: &str = "LBFGS";

/// L-BFGS, as PyTorch's `optim.LBFGS`: a quasi-Newton method for smooth losses of the whole data set.
///
/// [`step`](Self::step) takes a closure that computes the loss and its gradients, and calls it up to `max_eval`
/// times. There is one group of parameters, on one device, of `f32` or `f64`. It keeps up to `2 · history_size + 2`
/// vectors as long as all parameters, in the budget of the host or the device.
///
/// It reads the loss and the slope to decide what to do, so it waits for a GPU, and cannot be part of a
/// [`CapturedStep`](pagelock_tensor::CapturedStep). A [`GradScaler`](super::GradScaler) cannot scale its gradients.
///
/// J. Nocedal and S. Wright, "Numerical optimization", 2006, algorithms 7.4 and 7.5; the line search is algorithm 3.5 with cubic
/// interpolation, as in M. Schmidt's minFunc, <https://www.cs.ubc.ca/~schmidtm/Software/minFunc.html>.
///
/// # Examples
/// ```
/// use pagelock_nn::{Parameter, optim::{Lbfgs, Optimizer}};
/// use pagelock_tensor::Tensor;
///
/// let w = Parameter::new(Tensor::new([-1.5, 2.0])?);
/// let mut opt = Lbfgs::new([w.clone()], 1.0).strong_wolfe(true);
/// for _ in 0..5 {
///     opt.step(|| {
///         w.zero_grad();
///         let (x, y) = (w.select(0, 0)?, w.select(0, 1)?);
///         let valley = y.sub(&x.pow(2.0)?)?.pow(2.0)?.mul_scalar(100.0)?; // Rosenbrock's
///         let loss = valley.add(&x.add_scalar(-1.0)?.pow(2.0)?)?;
///         loss.backward()?;
///         Ok(loss)
///     })?;
/// }
/// assert!(w.to_vec::<f32>()?.iter().all(|x| (x - 1.0).abs() < 1e-2));
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
pub struct Lbfgs {
    parameters: Vec<Parameter>,
    lr: f64,
    initial_lr: Option<f64>, // set by a scheduler
    settings: Settings,
    memory: Memory,
}

#[derive(Clone)]
struct Settings {
    max_iter: u64,
    max_eval: Option<u64>, // `None`: `max_iter · 5 / 4`
    tolerance_grad: f64,
    tolerance_change: f64,
    history_size: u64,
    strong_wolfe: bool,
    maximize: bool,
}

impl Settings {
    fn max_eval(&self) -> u64 {
        self.max_eval.unwrap_or(self.max_iter.saturating_mul(5) / 4)
    }
}

setters! { Lbfgs,
    /// The maximum number of iterations in a step, each along one direction; 20 by default.
    max_iter: u64 => settings.max_iter = max_iter;
    /// The number of evaluations of the loss after which a step ends; `max_iter · 5 / 4` by default.
    max_eval: u64 => settings.max_eval = Some(max_eval);
    /// A step ends when no element of the gradient has a larger absolute value, at least 0; 1e-7 by default.
    tolerance_grad: f64 => settings.tolerance_grad = tolerance_grad;
    /// A step ends when the loss, or every parameter, changes by no more than this, at least 0; 1e-9 by default.
    tolerance_change: f64 => settings.tolerance_change = tolerance_change;
    /// The number of earlier steps from which the curvature is estimated, at least 1; 100 by default.
    history_size: u64 => settings.history_size = history_size;
    /// Whether to search along each direction for a point that satisfies the strong Wolfe conditions (PyTorch's
    /// `line_search_fn="strong_wolfe"`), instead of scaling the direction by `lr`; false by default.
    strong_wolfe: bool => settings.strong_wolfe = strong_wolfe;
    /// Whether to maximize instead of minimize; false by default.
    maximize: bool => settings.maximize = maximize;
}

impl Lbfgs {
    /// The other settings have PyTorch's defaults: at most 20 iterations and 25 evaluations in a step, a history of
    /// 100 steps, no line search. PyTorch's learning rate is 1.
    pub fn new<P: Into<NamedParameter>>(parameters: impl IntoIterator<Item = P>, lr: f64) -> Self {
        Self::of(listed(parameters), lr)
    }

    /// The body of `new`, not generic, so that users' crates do not compile it again.
    fn of(parameters: Vec<NamedParameter>, lr: f64) -> Self {
        let settings = Settings {
            max_iter: 20,
            max_eval: None,
            tolerance_grad: 1e-7,
            tolerance_change: 1e-9,
            history_size: 100,
            strong_wolfe: false,
            maximize: false,
        };
        let parameters = parameters.into_iter().map(NamedParameter::into_parameter).collect();
        Self { parameters, lr, initial_lr: None, settings, memory: Memory::default() }
    }

    /// Changes the parameters until the loss no longer changes, in at most `max_iter` iterations, and returns the
    /// loss before the step. `closure` must drop the gradients, compute the loss of all data and its gradients, and
    /// return the loss. It is called with gradients enabled.
    ///
    /// # Errors
    /// The error of `closure`; [`Error::Argument`] if there are no parameters, a setting is outside its range, or a
    /// parameter is of half precision or on another device than the first; [`Error::Tensor`] if the history does not
    /// fit the memory budget. Parameters and history are unchanged then, and if `closure` panics.
    ///
    /// # Examples
    /// See [`Lbfgs`].
    pub fn step(&mut self, mut closure: impl FnMut() -> Result<Tensor>) -> Result<Tensor> {
        self.step_with(&mut closure)
    }

    /// The body of `step`, not generic, so that users' crates do not compile it again.
    fn step_with(&mut self, closure: &mut dyn FnMut() -> Result<Tensor>) -> Result<Tensor> {
        let _running = profiler::span(NAME, Category::OptimizerStep);
        self.check()?;
        let outer_holder = Holder::current();
        let _charged = Holder::OPTIMIZER_STATE.by_default();
        self.parameters.iter_mut().for_each(|parameter| drop(parameter.follow()));
        let vectors = self.vectors()?;
        let mut memory = no_grad(|| self.memory.on(vectors.dtype, &vectors.device))?;
        let before =
            no_grad(|| self.parameters.iter().map(|parameter| parameter.deep_clone()).collect::<Result<Vec<_>, _>>())?;
        let mut evaluate = || {
            let _charged = outer_holder.enter();
            enable_grad(&mut *closure)
        };
        let mut step = Step { vectors: &vectors, settings: &self.settings, lr: self.lr, closure: &mut evaluate };
        let outcome = catch_unwind(AssertUnwindSafe(|| no_grad(|| step.run(&mut memory))));
        if let Ok(Ok(loss)) = outcome {
            self.memory = memory;
            return Ok(loss);
        }
        no_grad(|| self.parameters.iter().zip(&before).try_for_each(|(parameter, before)| parameter.copy_(before)))?;
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn check(&self) -> Result<()> {
        let Settings { tolerance_grad, tolerance_change, history_size, .. } = self.settings;
        at_least_0(NAME, "lr", self.lr)?;
        at_least_0(NAME, "tolerance_grad", tolerance_grad)?;
        at_least_0(NAME, "tolerance_change", tolerance_change)?;
        check(history_size >= 1, NAME, "history_size", history_size as f64, "at least 1")
    }

    /// The parameters as one vector, if their devices and precisions allow that.
    fn vectors(&self) -> Result<Vectors> {
        let Some(first) = self.parameters.first() else {
            let fix = "pass `model.parameters()` of a model that has some";
            return Err(Error::Argument(format!("{NAME}: there are no parameters to train; {fix}")));
        };
        let device = first.device();
        let mut dtype = DType::F32;
        for (i, parameter) in self.parameters.iter().enumerate() {
            if is_half(parameter) {
                let fix = "train in `f32`, with `model.float()`";
                let found = parameter.dtype();
                return Err(Error::Argument(format!(
                    "{NAME}: a parameter is {found}, which would round each step; {fix}"
                )));
            }
            if parameter.device() != device {
                let (here, fix) = (parameter.device(), "move all to one device");
                return Err(Error::Argument(format!(
                    "{NAME}: a parameter is on {here}, but the first is on {device}; {fix}"
                )));
            }
            if self.parameters[..i].iter().any(|other| other.is_same(parameter)) {
                let (shape, fix) = (parameter.shape(), "give each parameter once");
                return Err(Error::Argument(format!("{NAME}: the parameter {shape} occurs twice; {fix}")));
            }
            dtype = if parameter.dtype() == DType::F64 { DType::F64 } else { dtype };
        }
        Ok(Vectors { parameters: self.parameters.clone(), dtype, device })
    }
}

/// All parameters, seen as one vector in the widest of their precisions.
struct Vectors {
    parameters: Vec<Parameter>,
    dtype: DType,
    device: Device,
}

impl Vectors {
    fn len(&self) -> usize {
        self.parameters.iter().map(|parameter| parameter.len()).sum()
    }

    fn concatenated(&self, of: impl Fn(&Parameter) -> Result<Tensor>) -> Result<Tensor> {
        let pieces = self.parameters.iter().map(|p| Ok(of(p)?.to_dtype(self.dtype)?.reshape([-1])?));
        let pieces = pieces.collect::<Result<Vec<Tensor>>>()?;
        Ok(Tensor::cat(&pieces, 0)?)
    }

    /// A copy of the elements.
    fn values(&self) -> Result<Tensor> {
        self.concatenated(|parameter| Ok(parameter.detach()))
    }

    /// A copy of the gradients; zeros where a parameter has none.
    fn gradient(&self) -> Result<Tensor> {
        self.concatenated(|parameter| Ok(parameter.grad().map_or_else(|| parameter.zeros_like(), Ok)?))
    }

    /// Calls `change` with each parameter and its piece of a vector.
    fn each(&self, vector: &Tensor, change: impl Fn(&Tensor, &Tensor) -> pagelock_tensor::Result<()>) -> Result<()> {
        let mut at = 0;
        for parameter in &self.parameters {
            let piece = vector.narrow(0, at, parameter.len())?.unflatten(0, *parameter.shape())?;
            change(parameter, &piece.to_dtype(parameter.dtype())?)?;
            at += parameter.len();
        }
        Ok(())
    }

    fn set(&self, values: &Tensor) -> Result<()> {
        self.each(values, |parameter, piece| parameter.copy_(piece))
    }

    /// Adds `t` times the vector to the parameters.
    fn add(&self, t: f64, vector: &Tensor) -> Result<()> {
        self.each(vector, |parameter, piece| parameter.add_scaled_(piece, t))
    }
}

/// For schedulers, state dicts and checkpoints. `step` without a closure returns an error.
impl Optimizer for Lbfgs {
    fn step(&mut self) -> Result<()> {
        let fix = "call `Lbfgs::step` with a closure that computes it and its gradients";
        Err(Error::Argument(format!("{NAME} evaluates the loss several times in a step; {fix}")))
    }

    fn zero_grad(&mut self) {
        self.parameters.iter().for_each(|parameter| parameter.zero_grad());
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn set_lr(&mut self, lr: f64) {
        self.lr = lr;
    }

    fn set_initial_lrs(&mut self, lrs: &[f64]) {
        self.initial_lr = self.initial_lr.or(lrs.first().copied());
    }

    fn scale_gradients(&mut self, _: f64) -> Result<bool> {
        let fix = "scale the loss in the closure, or train without a `GradScaler`";
        Err(Error::Argument(format!(
            "{NAME} computes gradients several times in a step, which cannot be scaled; {fix}"
        )))
    }

    fn state_dict(&self) -> Result<OptimizerState> {
        self.to_state()
    }

    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()> {
        self.load_state(state)
    }
}
