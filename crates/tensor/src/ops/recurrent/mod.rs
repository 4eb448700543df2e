//! Recurrent layers: all steps of one layer and direction in one operation, and its gradient through time in another.
//!
//! The inputs of all steps are multiplied in one product. Each step is then a product with the state before it and
//! one pass over the gates; the backward pass does the same in reverse order. The gradients of the weights are again
//! products over all steps at once. Layers with projected states, and gradients that are themselves differentiated,
//! are composed of other operations (`composed.rs`).
//!
//! `steps.rs` says which rows belong to a step, and `run.rs` prepares inputs and allocates results. `cpu/` and
//! `cuda.rs` compute steps; `persistent.rs` computes all steps of small states in one launch.

mod composed;
mod cpu;
mod cuda;
mod fused;
mod persistent;
mod run;
mod steps;

use crate::autocast::no_autocast;
use crate::autograd::{Saved, SavedTensor, is_grad_enabled, record};
use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::kind::Float;
use crate::op::{Derivative, Precision, Saves, keeps_for_gradient, prepared};
use crate::ops::cast;
use crate::tensor::{Raw, Tensor};

use self::run::Gradients;
pub use self::steps::Steps;

const OP: &str = "recurrent";
const GRADIENT: &str = "recurrent's gradient";

/// What a step of a recurrent layer computes from its input x and the state h before it. `a(x)` is
/// `x · weight_ihᵀ + bias_ih`, and `b(h)` is `h · weight_hhᵀ + bias_hh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recurrence {
    /// h' = tanh(a(x) + b(h)) (Elman, 1990).
    Tanh,
    /// h' = max(a(x) + b(h), 0)
    Relu,
    /// Hochreiter and Schmidhuber, 1997: with the parts i, f, g, o of a(x) + b(h), c' = σ(f)·c + σ(i)·tanh(g) and
    /// h' = σ(o)·tanh(c').
    Lstm,
    /// Cho et al., 2014: with the parts r, z, n of both, n' = tanh(a(x)ₙ + σ(r)·b(h)ₙ) and h' = (1 − σ(z))·n' + σ(z)·h.
    Gru,
}

impl Recurrence {
    /// The number of gates: parts of the weights, each with as many rows as a state has numbers.
    pub fn gates(self) -> usize {
        match self {
            Recurrence::Tanh | Recurrence::Relu => 1,
            Recurrence::Lstm => 4,
            Recurrence::Gru => 3,
        }
    }

    /// The size of what a step saves for the gradient, in states: gates, and b(h)ₙ of a GRU.
    fn kept(self) -> usize {
        match self {
            Recurrence::Tanh | Recurrence::Relu => 0,
            Recurrence::Lstm | Recurrence::Gru => 4,
        }
    }
}

/// One recurrent layer in one direction.
///
/// ```
/// use pagelock_tensor::{Recurrence, RecurrentLayer, Steps, Tensor};
///
/// let (weight_ih, weight_hh) = (Tensor::randn([4 * 8, 3])?, Tensor::randn([4 * 8, 8])?);
/// let layer = RecurrentLayer::new(Recurrence::Lstm, &weight_ih, &weight_hh);
/// let x = Tensor::randn([5 * 2, 3])?; // five steps of two sequences
/// let (h, c) = layer.run(&x, &Steps::even(5, 2), None, None)?;
/// assert_eq!((h.dims(), c.unwrap().dims()), (&[10, 8][..], &[10, 8][..]));
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct RecurrentLayer<'a> {
    kind: Recurrence,
    weight_ih: &'a Tensor,
    weight_hh: &'a Tensor,
    bias: Option<[&'a Tensor; 2]>,
    weight_hr: Option<&'a Tensor>,
    reverse: bool,
}

impl<'a> RecurrentLayer<'a> {
    /// A layer without biases, from the first step to the last.
    ///
    /// - `weight_ih`: `[gates · hidden, in]`, `weight_hh`: `[gates · hidden, hidden]`, PyTorch's parts in PyTorch's order
    pub fn new(kind: Recurrence, weight_ih: &'a Tensor, weight_hh: &'a Tensor) -> Self {
        RecurrentLayer { kind, weight_ih, weight_hh, bias: None, weight_hr: None, reverse: false }
    }

    /// With `bias_ih` and `bias_hh`, `[gates · hidden]` each.
    #[must_use]
    pub fn bias(self, bias: Option<[&'a Tensor; 2]>) -> Self {
        RecurrentLayer { bias, ..self }
    }

    /// For an LSTM: h' is projected by `weight_hr`, `[projected, hidden]`; then `weight_hh` is
    /// `[gates · hidden, projected]` (Sak et al., 2014).
    #[must_use]
    pub fn projection(self, weight_hr: Option<&'a Tensor>) -> Self {
        RecurrentLayer { weight_hr, ..self }
    }

    /// Whether steps are taken from the last to the first.
    #[must_use]
    pub fn reverse(self, reverse: bool) -> Self {
        RecurrentLayer { reverse, ..self }
    }

    /// The states after each step, in the order of `x`: h and, of an LSTM, c.
    ///
    /// - `x`: `[rows, in]`, one step after another, as `steps` says
    /// - `h0`, `c0`: `[batch, hidden]`, the states before the first step (`h0` of a projected LSTM `[batch, projected]`); zeros
    ///   if there are none
    /// - results: `[rows, hidden]`, or `[rows, projected]`
    ///
    /// # Errors
    /// [`Error::Argument`] for shapes that do not fit each other; [`Error::MixedTypes`] for more than one precision;
    /// [`Error::Memory`] if the results do not fit the budget.
    pub fn run(
        &self,
        x: &Tensor,
        steps: &Steps,
        h0: Option<&Tensor>,
        c0: Option<&Tensor>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        self.check(x, steps, h0, c0)?;
        let [bias_ih, bias_hh] = self.bias.map_or([None; 2], |bias| bias.mapped(Some));
        let inputs = [Some(x), Some(self.weight_ih), Some(self.weight_hh), bias_ih, bias_hh, h0, c0];
        let inputs = prepared(OP, Precision::HalfUnderAutocast, inputs.mapped(|input| input.map(Tensor::raw)))?;
        let (kind, reverse, steps) = (self.kind, self.reverse, steps.clone());
        let op = Recurrent { kind, reverse, steps, is_bf16: false, kept: None };
        if let Some(weight_hr) = self.weight_hr {
            let weight_hr = prepared(OP, Precision::HalfUnderAutocast, [Some(weight_hr.raw())])?;
            let inputs = inputs.mapped(|input| input.map(Raw::typed));
            let weight_hr = weight_hr.into_iter().flatten().next().map(Raw::typed);
            return op.composed(inputs.each_ref().mapped(Option::as_ref), weight_hr.as_ref());
        }
        no_autocast(|| op.run(inputs)) // the inputs have their precision
    }

    fn check(&self, x: &Tensor, steps: &Steps, h0: Option<&Tensor>, c0: Option<&Tensor>) -> Result<()> {
        let (width, n_in, hidden) = self.sizes()?;
        let out = self.weight_hr.map_or(hidden, |weight| weight.dims().first().copied().unwrap_or(0));
        let batch = steps.batch();
        let operands: [(&str, Option<&Tensor>, &[usize]); 7] = [
            ("the input", Some(x), &[steps.rows(), n_in]),
            ("weight_hh", Some(self.weight_hh), &[width, out]),
            ("bias_ih", self.bias.map(|bias| bias[0]), &[width]),
            ("bias_hh", self.bias.map(|bias| bias[1]), &[width]),
            ("weight_hr", self.weight_hr, &[out, hidden]),
            ("h0", h0, &[batch, out]),
            ("c0", c0, &[batch, hidden]),
        ];
        for (operand, tensor, shape) in operands {
            if let Some(tensor) = tensor.filter(|tensor| tensor.dims() != shape) {
                return Err(Error::wrong_shape(OP, operand, tensor.shape(), format!("it must be {shape:?}")));
            }
        }
        let is_lstm = self.kind == Recurrence::Lstm;
        if !is_lstm && (c0.is_some() || self.weight_hr.is_some()) {
            return Err(Error::Argument(format!("{OP}: there is a c0 or a weight_hr, which only an LSTM has")));
        }
        if steps.count() == 0 {
            return Err(Error::Argument(format!("{OP}: there are no steps; give at least one")));
        }
        Ok(())
    }

    /// The rows of the weights, the size of an input, and the size of a state.
    fn sizes(&self) -> Result<(usize, usize, usize)> {
        let gates = self.kind.gates();
        match *self.weight_ih.dims() {
            [width, n_in] if width > 0 && width.is_multiple_of(gates) => Ok((width, n_in, width / gates)),
            _ => {
                let expected = format!("it must be [{gates} · hidden, in]");
                Err(Error::wrong_shape(OP, "weight_ih", self.weight_ih.shape(), expected))
            }
        }
    }
}

/// The indices of inputs.
const X: usize = 0;
const WEIGHT_IH: usize = 1;
const WEIGHT_HH: usize = 2;
const BIAS_IH: usize = 3;
const BIAS_HH: usize = 4;
const H0: usize = 5;
const C0: usize = 6;

/// The operation on an input, weights, and optional biases and first states.
#[derive(Clone)]
struct Recurrent {
    kind: Recurrence,
    reverse: bool,
    steps: Steps,
    /// Whether, on the CPU, the input and the weights are `bf16`, and all else is `f32`. The factors of products are
    /// rounded, as in PyTorch.
    is_bf16: bool,
    /// The result, and what steps save for the gradient: the gates of all rows, and behind them, for a GRU, b(h)ₙ of
    /// all rows.
    kept: Option<(SavedTensor, Option<Raw>)>,
}

impl Recurrent {
    fn is_lstm(&self) -> bool {
        self.kind == Recurrence::Lstm
    }

    /// The result, and what steps saved for the gradient.
    fn result_and_kept(&self) -> Result<(Raw, Option<&Raw>)> {
        let Some((out, kept)) = &self.kept else { unreachable!("a recorded operation keeps its result") };
        Ok((out.get(OP)?, kept.as_ref()))
    }

    /// A factor of a product, in its precision.
    fn factor(&self, x: &Tensor) -> Result<Tensor> {
        if self.is_bf16 { x.to_dtype(DType::BF16) } else { Ok(x.clone()) }
    }

    fn run(self, inputs: [Option<Raw>; 7]) -> Result<(Tensor, Option<Tensor>)> {
        let dtype = inputs[X].as_ref().map_or(DType::F32, Raw::dtype);
        let is_on_cpu = inputs[X].as_ref().is_some_and(|x| x.storage.device().is_cpu());
        if is_on_cpu && dtype != dtype.computing() && !self.is_bf16 {
            let is_bf16 = dtype == DType::BF16;
            let [x, weight_ih, weight_hh, others @ ..] = inputs;
            let widen = |input: Option<Raw>| input.map(|input| cast(&input, dtype.computing())).transpose();
            let factor = |input: Option<Raw>| if is_bf16 { Ok(input) } else { widen(input) };
            let [x, weight_ih, weight_hh] = [x, weight_ih, weight_hh].mapped(factor);
            let [bias_ih, bias_hh, h0, c0] = others.mapped(widen);
            let op = Recurrent { is_bf16, ..self };
            let (h, c) = op.run([x?, weight_ih?, weight_hh?, bias_ih?, bias_hh?, h0?, c0?])?;
            return Ok((h.to_dtype(dtype)?, c.map(|c| c.to_dtype(dtype)).transpose()?));
        }
        let is_lstm = self.is_lstm();
        let out: Tensor = self.forward(inputs.each_ref().mapped(Option::as_ref))?.typed();
        if is_lstm { Ok((out.select(0, 0)?, Some(out.select(0, 1)?))) } else { Ok((out, None)) }
    }

    fn forward(mut self, inputs: [Option<&Raw>; 7]) -> Result<Raw> {
        let is_recorded = keeps_for_gradient(&inputs);
        let of = |i: usize| inputs[i].map(|input| input.without_node().typed::<Float>());
        let (Some(x), Some(weight_ih)) = (of(X), of(WEIGHT_IH)) else { unreachable!("there are input and weights") };
        // A GRU multiplies b(h), so `bias_hh` is added in the step. Otherwise the biases are added up once for all
        // steps; for a single step on a device, the kernel adds `bias_hh`, which saves that sum.
        let is_one_of_device = self.steps.count() == 1 && !x.device().is_cpu();
        let adds_in_step = self.kind == Recurrence::Gru || is_one_of_device;
        let bias = match (of(BIAS_IH), of(BIAS_HH)) {
            (Some(bias_ih), Some(bias_hh)) if !adds_in_step => Some(bias_ih.add(&bias_hh)?),
            (bias_ih, _) => bias_ih,
        };
        let bias = bias.map(|bias| self.factor(&bias)).transpose()?;
        let gates = x.linear(&weight_ih, bias.as_ref())?;
        let bias_hh = inputs[BIAS_HH].filter(|_| adds_in_step);
        let inputs_of_steps = [Some(gates.raw()), inputs[WEIGHT_HH], bias_hh, inputs[H0], inputs[C0]];
        let (out, kept) = match gates.device() {
            Device::Cpu => self.on_cpu(inputs_of_steps, is_recorded)?,
            Device::Cuda(device) => self.on_cuda(&device, inputs_of_steps, is_recorded)?,
        };
        self.kept = is_recorded.then(|| (SavedTensor::new(out.clone()), kept));
        Ok(record(OP, self, inputs, out))
    }

    /// The gradients of b(h), and the states h before the same rows. Rows whose states were zeros may be left out.
    fn pairs(&self, of_h: &Tensor, out: &Tensor, h0: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let h = if self.is_lstm() { out.select(0, 0)? } else { out.clone() };
        let (batch, count) = (self.steps.batch(), self.steps.count());
        if h0.is_some() || count == 1 || self.steps != Steps::even(count, batch) {
            return Ok((of_h.clone(), self.before(&h, h0)?));
        }
        let rows = self.steps.rows() - batch;
        let (of_h_from, h_from) = if self.reverse { (0, batch) } else { (batch, 0) };
        Ok((of_h.narrow(0, of_h_from, rows)?, h.narrow(0, h_from, rows)?))
    }

    /// The states before each row.
    fn before(&self, h: &Tensor, h0: Option<&Tensor>) -> Result<Tensor> {
        let (batch, rows, count) = (self.steps.batch(), self.steps.rows(), self.steps.count());
        let zeros = || Tensor::on(&h.device()).of(h.dtype()).zeros([batch, h.shape()[1]]);
        let h0 = h0.map_or_else(zeros, |h0| Ok(h0.clone()))?;
        if count == 1 {
            return Ok(h0);
        }
        if self.steps == Steps::even(count, batch) {
            return match self.reverse {
                false => Tensor::cat(&[&h0, &h.narrow(0, 0, rows - batch)?], 0),
                true => Tensor::cat(&[&h.narrow(0, batch, rows - batch)?, &h0], 0),
            };
        }
        let mut steps: Vec<[Tensor; 2]> = Vec::with_capacity(count);
        for step in self.steps.in_order(self.reverse) {
            let carried = h.narrow(0, step.before.unwrap_or(0), step.carried)?;
            steps.push([carried, h0.narrow(0, step.carried, step.rows - step.carried)?]);
        }
        if self.reverse {
            steps.reverse();
        }
        Tensor::cat(&steps.iter().flatten().collect::<Vec<_>>(), 0)
    }
}

impl Derivative<7> for Recurrent {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 7>, grad: &Tensor) -> Result<[Option<Tensor>; 7]> {
        if is_grad_enabled() {
            return self.composed_gradients(saved, grad);
        }
        let grad = grad.raw().gap_free()?;
        let Gradients { of_gates, h0, c0 } = match grad.storage.device() {
            Device::Cpu => self.backward_on_cpu(saved, &grad)?,
            Device::Cuda(device) => self.backward_on_cuda(device, saved, &grad)?,
        };
        let (of_x, of_h) = (of_gates.select(0, 0)?, of_gates.select(0, -1)?);
        let product = |a: &Tensor, b: &Tensor| self.factor(a)?.matmul(&self.factor(b)?);
        let needs_biases = saved.needs(BIAS_IH) || saved.needs(BIAS_HH);
        let biases = needs_biases.then(|| of_gates.sum([1])).transpose()?;
        let bias = |input: usize, at: isize| {
            biases.as_ref().filter(|_| saved.needs(input)).map(|biases| biases.select(0, at)).transpose()
        };
        let of_weight_hh = || {
            let (out, _) = self.result_and_kept()?;
            let (of_h, before) = self.pairs(&of_h, &out.typed(), saved.optional(H0))?;
            product(&of_h.t()?, &before)
        };
        Ok([
            saved.grad_of(X, || product(&of_x, saved.input(WEIGHT_IH)))?,
            saved.grad_of(WEIGHT_IH, || product(&of_x.t()?, saved.input(X)))?,
            saved.grad_of(WEIGHT_HH, of_weight_hh)?,
            bias(BIAS_IH, 0)?,
            bias(BIAS_HH, -1)?,
            h0.filter(|_| saved.needs(H0)),
            c0.filter(|_| saved.needs(C0)),
        ])
    }
}
