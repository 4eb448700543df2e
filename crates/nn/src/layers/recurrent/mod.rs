//! [`RNN`], [`LSTM`] and [`GRU`]: stacks of [`RecurrentLayer`]s. The cells, which run single steps, are in
//! `cells.rs`.

mod cells;

pub use cells::{GRUCell, LSTMCell, RNNCell};

use super::{debug_is_display, number};
use crate::functional::shared::{index, wrong_argument, wrong_shape};
use crate::parameter::charged;
use crate::rnn::PackedSequence;
use crate::setters::{default_is_new, setters};
use crate::{Mode, Module, Parameter, Visitor, VisitorMut, functional, init, module_scope};
use pagelock_tensor::{Generator, Recurrence, RecurrentLayer, Result, Steps, Tensor, default_generator};

/// The settings of [`RNN`], [`LSTM`] and [`GRU`], with PyTorch's names.
///
/// ```
/// use pagelock_nn::{LSTM, RNNOptions};
/// let options = RNNOptions::new().num_layers(2).bidirectional(true).batch_first(true);
/// assert_eq!(LSTM::with(10, 20, options)?.to_string(), "LSTM(10, 20, num_layers=2, batch_first=True, bidirectional=True)");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RNNOptions {
    num_layers: usize,
    nonlinearity: RNNNonlinearity,
    bias: bool,
    batch_first: bool,
    dropout: f64,
    bidirectional: bool,
    proj_size: usize,
}

/// The nonlinearity of an [`RNN`] or an [`RNNCell`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RNNNonlinearity {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// `max(x, 0)`.
    Relu,
}

default_is_new!(RNNOptions);

impl RNNOptions {
    /// One forward layer with biases, for inputs `[steps, batch, ..]`.
    pub fn new() -> Self {
        let nonlinearity = RNNNonlinearity::Tanh;
        let (num_layers, bias, batch_first, dropout, bidirectional, proj_size) = (1, true, false, 0.0, false, 0);
        Self { num_layers, nonlinearity, bias, batch_first, dropout, bidirectional, proj_size }
    }
}

setters! { RNNOptions,
    /// The number of layers. Each takes the states of the layer before it as its input.
    num_layers: usize;
    /// The nonlinearity of an [`RNN`]; tanh by default.
    nonlinearity: RNNNonlinearity;
    /// Whether there are biases.
    bias: bool;
    /// Whether inputs and outputs are `[batch, steps, ..]`. The shape of states does not change.
    batch_first: bool;
    /// The probability with which states between layers are set to 0 while training.
    dropout: f64;
    /// Whether each layer also has a reverse direction, from the last step to the first.
    bidirectional: bool;
    /// The size to which an [`LSTM`] projects its states; 0 for no projection.
    proj_size: usize;
}

/// A parameter with numbers that are uniform in ±1 / √hidden.
fn uniform_parameter(shape: &[usize], hidden: usize, generator: &Generator) -> Result<Parameter> {
    let (parameter, bound) = (Tensor::zeros(shape)?, 1.0 / (hidden as f64).sqrt());
    init::uniform_(&parameter, -bound, bound, generator)?;
    Ok(Parameter::new(parameter))
}

/// The parameters of one layer in one direction.
struct Direction {
    weight_ih: Parameter,
    weight_hh: Parameter,
    bias: Option<[Parameter; 2]>,
    weight_hr: Option<Parameter>,
    names: [String; 5],
}

impl Direction {
    fn new(
        kind: Recurrence,
        [inputs, hidden]: [usize; 2],
        options: &RNNOptions,
        end: &str,
        generator: &Generator,
    ) -> Result<Self> {
        let (rows, out) =
            (kind.gates().saturating_mul(hidden), if options.proj_size > 0 { options.proj_size } else { hidden });
        let _charged = charged();
        let new = |shape: &[usize]| uniform_parameter(shape, hidden, generator);
        let (weight_ih, weight_hh) = (new(&[rows, inputs])?, new(&[rows, out])?);
        let bias = if options.bias { Some([new(&[rows])?, new(&[rows])?]) } else { None };
        let weight_hr = if options.proj_size > 0 { Some(new(&[out, hidden])?) } else { None };
        let names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"].map(|name| [name, end].concat());
        Ok(Self { weight_ih, weight_hh, bias, weight_hr, names })
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        let Self { weight_ih, weight_hh, bias, weight_hr, names } = self;
        let biases = bias.iter().flatten().zip(&names[2..]);
        let all = [(weight_ih, &names[0]), (weight_hh, &names[1])].into_iter().chain(biases);
        all.chain(weight_hr.iter().zip(&names[4..])).for_each(|(parameter, name)| visitor.child(name, parameter));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        let Self { weight_ih, weight_hh, bias, weight_hr, .. } = self;
        let all = [weight_ih, weight_hh].into_iter().chain(bias.iter_mut().flatten()).chain(weight_hr);
        all.for_each(|parameter| visitor.child(parameter));
    }

    fn layer(&self, kind: Recurrence, reverse: bool) -> RecurrentLayer<'_> {
        let bias = self.bias.as_ref().map(|bias| bias.each_ref().map(Parameter::as_tensor));
        RecurrentLayer::new(kind, &self.weight_ih, &self.weight_hh)
            .bias(bias)
            .projection(self.weight_hr.as_deref())
            .reverse(reverse)
    }
}

/// What [`RNN`], [`LSTM`] and [`GRU`] have in common: layers, each with one or two directions.
struct Layers {
    kind: Recurrence,
    directions: Vec<Direction>, // for each layer the forward one, then the reverse one
    sizes: [usize; 2],
    options: RNNOptions,
    mode: Mode,
}

/// The states of all rows, and the last states h and c.
type States = (Tensor, Tensor, Option<Tensor>);

impl Layers {
    fn new(kind: Recurrence, sizes: [usize; 2], options: RNNOptions, generator: &Generator) -> Result<Self> {
        let [inputs, hidden] = sizes;
        let name = Self::name(kind);
        if hidden == 0 || options.num_layers == 0 {
            let (argument, value) =
                if hidden == 0 { ("hidden_size", hidden) } else { ("num_layers", options.num_layers) };
            return Err(wrong_argument(name, argument, value, "at least 1"));
        }
        if options.proj_size > 0 && (kind != Recurrence::Lstm || options.proj_size >= hidden) {
            let expected = format!("0, or for an LSTM below hidden_size, which is {hidden}");
            return Err(wrong_argument(name, "proj_size", options.proj_size, &expected));
        }
        if !(0.0..=1.0).contains(&options.dropout) {
            return Err(wrong_argument(name, "dropout", options.dropout, "from 0 to 1"));
        }
        let out = if options.proj_size > 0 { options.proj_size } else { hidden };
        let ends = if options.bidirectional { &["", "_reverse"][..] } else { &[""] };
        let mut directions = Vec::new();
        for layer in 0..options.num_layers {
            let inputs = if layer == 0 { inputs } else { out.saturating_mul(ends.len()) };
            for end in ends {
                directions.push(Direction::new(
                    kind,
                    [inputs, hidden],
                    &options,
                    &format!("_l{layer}{end}"),
                    generator,
                )?);
            }
        }
        Ok(Self { kind, directions, sizes, options, mode: Mode::default() })
    }

    fn name(kind: Recurrence) -> &'static str {
        match kind {
            Recurrence::Tanh | Recurrence::Relu => "RNN",
            Recurrence::Lstm => "LSTM",
            Recurrence::Gru => "GRU",
        }
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.directions.iter().for_each(|direction| direction.visit(visitor));
        visitor.child("mode", &self.mode);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.directions.iter_mut().for_each(|direction| direction.visit_mut(visitor));
        visitor.child(&mut self.mode);
    }

    fn describe(&self) -> String {
        let RNNOptions { num_layers, bias, batch_first, dropout, bidirectional, proj_size, .. } = self.options;
        let mut text = format!("{}, {}", self.sizes[0], self.sizes[1]);
        let parts = [
            (proj_size != 0, format!(", proj_size={proj_size}")),
            (num_layers != 1, format!(", num_layers={num_layers}")),
            (!bias, ", bias=False".to_owned()),
            (batch_first, ", batch_first=True".to_owned()),
            (dropout != 0.0, format!(", dropout={}", number(dropout))),
            (bidirectional, ", bidirectional=True".to_owned()),
        ];
        parts.iter().filter(|(is_shown, _)| *is_shown).for_each(|(_, part)| text.push_str(part));
        text
    }

    /// Runs the rows of all steps through all layers. States are `[layers · directions, batch, ..]`. `packed` knows
    /// the last row of each sequence.
    fn run_rows(
        &self,
        x: &Tensor,
        steps: &Steps,
        states: [Option<&Tensor>; 2],
        packed: Option<&PackedSequence>,
    ) -> Result<States> {
        let per_layer = 1 + usize::from(self.options.bidirectional);
        let last_rows = packed.map(PackedSequence::last_rows).transpose()?;
        let last = |all: &Tensor, reverse: bool| match &last_rows {
            _ if reverse => all.narrow(0, 0, steps.batch()),
            Some(rows) => all.index_select(0, rows),
            None => all.narrow(0, steps.rows() - steps.batch(), steps.batch()),
        };
        let (mut x, mut last_h, mut last_c) = (x.clone(), Vec::new(), Vec::new());
        for (layer, directions) in self.directions.chunks(per_layer).enumerate() {
            if layer > 0 && self.options.dropout > 0.0 {
                x = functional::dropout(&x, self.options.dropout, self.mode.is_training(), default_generator())?;
            }
            let mut outputs = Vec::with_capacity(per_layer);
            for (side, direction) in directions.iter().enumerate() {
                let initial = |state: Option<&Tensor>| {
                    state.map(|all| all.select(0, (layer * per_layer + side) as isize)).transpose()
                };
                let (h0, c0) = (initial(states[0])?, initial(states[1])?);
                let (h, c) = direction.layer(self.kind, side == 1).run(&x, steps, h0.as_ref(), c0.as_ref())?;
                last_h.push(last(&h, side == 1)?);
                last_c.extend(c.map(|c| last(&c, side == 1)).transpose()?);
                outputs.push(h);
            }
            x = match &outputs[..] {
                [one] => one.clone(),
                _ => Tensor::cat(&outputs, 1)?,
            };
        }
        let stacked = |all: &[Tensor]| Tensor::stack(all, 0);
        Ok((x, stacked(&last_h)?, if last_c.is_empty() { None } else { Some(stacked(&last_c)?) }))
    }

    fn check_state(&self, [h0, c0]: [Option<&Tensor>; 2], batch: Option<usize>) -> Result<()> {
        let (layers, hidden) = (self.directions.len(), self.sizes[1]);
        let out = if self.options.proj_size > 0 { self.options.proj_size } else { hidden };
        for (name, state, size) in [("h0", h0, out), ("c0", c0, hidden)] {
            let expected = batch.map_or(vec![layers, size], |batch| vec![layers, batch, size]);
            if let Some(state) = state.filter(|state| state.dims() != expected) {
                return Err(wrong_shape(
                    Self::name(self.kind),
                    name,
                    state.shape(),
                    &format!("it must be {expected:?}"),
                ));
            }
        }
        Ok(())
    }

    /// Runs padded or unbatched sequences.
    fn padded(&self, x: &Tensor, states: [Option<&Tensor>; 2]) -> Result<States> {
        let (batch_first, name) = (self.options.batch_first, Self::name(self.kind));
        let by_step = match x.rank() {
            2 => x.unsqueeze(1)?,
            3 if batch_first => x.transpose(0, 1)?,
            3 => x.clone(),
            _ => return Err(wrong_shape(name, "the input", x.shape(), "it must have 2 dimensions, or 3 with a batch")),
        };
        let (unbatched, sizes) = (x.rank() == 2, [by_step.shape()[0], by_step.shape()[1]]);
        if by_step.shape()[2] != self.sizes[0] {
            let expected = format!("its last size must be {}, the layer's input size; reshape it", self.sizes[0]);
            return Err(wrong_shape(name, "the input", x.shape(), &expected));
        }
        self.check_state(states, (!unbatched).then_some(sizes[1]))?;
        let batched =
            |state: Option<&Tensor>| state.map(|state| if unbatched { state.unsqueeze(1) } else { Ok(state.clone()) });
        let [h0, c0] = states.map(|state| batched(state).transpose());
        let (h0, c0) = (h0?, c0?);
        let steps = Steps::even(sizes[0], sizes[1]);
        let (y, h, c) = self.run_rows(&by_step.flatten(0, 1)?, &steps, [h0.as_ref(), c0.as_ref()], None)?;
        let y = y.unflatten(0, sizes)?;
        if unbatched {
            return Ok((y.squeeze(1)?, h.squeeze(1)?, c.map(|c| c.squeeze(1)).transpose()?));
        }
        Ok((if batch_first { y.transpose(0, 1)? } else { y }, h, c))
    }

    /// Runs packed sequences. Their states are in the order that the sequences had before packing.
    fn packed(
        &self,
        x: &PackedSequence,
        states: [Option<&Tensor>; 2],
    ) -> Result<(PackedSequence, Tensor, Option<Tensor>)> {
        let steps = x.steps()?;
        self.check_state(states, Some(steps.batch()))?;
        let ordered = |state: &Tensor, order: Option<&[usize]>| match order {
            Some(order) => state.index_select(1, &index(order.len(), order.iter().copied(), &state.device())?),
            None => Ok(state.clone()),
        };
        let sorted = |state: Option<&Tensor>| state.map(|state| ordered(state, x.sorted_indices())).transpose();
        let (h0, c0) = (sorted(states[0])?, sorted(states[1])?);
        let (y, h, c) = self.run_rows(x.data(), &steps, [h0.as_ref(), c0.as_ref()], Some(x))?;
        let unsorted = |state: Tensor| ordered(&state, x.unsorted_indices());
        Ok((x.with_data(y), unsorted(h)?, c.map(unsorted).transpose()?))
    }
}

/// `recurrent! { docs; Name, |options| kind }`: a module around [`Layers`].
macro_rules! recurrent {
    ($(#[$docs:meta])* $name:ident, |$options:ident| $kind:expr) => {
        $(#[$docs])*
        pub struct $name(Layers);

        impl $name {
            /// One layer with weights from the default generator.
            ///
            /// # Errors
            /// [`Error::Argument`](pagelock_tensor::Error::Argument) if `hidden_size` is 0; the weights do not fit
            /// the memory budget.
            pub fn new(input_size: usize, hidden_size: usize) -> Result<Self> {
                Self::with(input_size, hidden_size, RNNOptions::new())
            }

            /// Layers with weights from the default generator.
            ///
            /// # Errors
            /// [`Error::Argument`](pagelock_tensor::Error::Argument) for options outside their ranges; the weights do
            /// not fit the memory budget.
            pub fn with(input_size: usize, hidden_size: usize, options: RNNOptions) -> Result<Self> {
                Self::new_with(input_size, hidden_size, options, default_generator())
            }

            /// Layers with weights from `generator`.
            ///
            /// # Errors
            /// As [`with`](Self::with).
            pub fn new_with(input_size: usize, hidden_size: usize, $options: RNNOptions, generator: &Generator) -> Result<Self> {
                Ok(Self(Layers::new($kind, [input_size, hidden_size], $options, generator)?))
            }
        }

        impl Module for $name {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                self.0.visit(visitor);
            }

            fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
                self.0.visit_mut(visitor);
            }

            fn details(&self) -> String {
                self.0.describe()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&crate::print(self), f)
            }
        }

        debug_is_display!($name);
    };
}

/// `one_state!(Name)`: the forward methods of a layer with one state.
macro_rules! one_state {
    ($name:ident) => {
        impl $name {
            /// The states of the last layer after each step, and the last states of all layers. Initial states are
            /// zeros.
            ///
            /// # Errors
            /// The shapes do not fit each other, or the result does not fit the memory budget.
            pub fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
                let _scope = module_scope(self);
                self.0.padded(x, [None; 2]).map(|(y, h, _)| (y, h))
            }

            /// As [`forward`](Self::forward), from the initial states `h0`.
            ///
            /// # Errors
            /// As [`forward`](Self::forward).
            pub fn forward_with(&self, x: &Tensor, h0: &Tensor) -> Result<(Tensor, Tensor)> {
                let _scope = module_scope(self);
                self.0.padded(x, [Some(h0), None]).map(|(y, h, _)| (y, h))
            }

            /// As [`forward`](Self::forward), for packed sequences, from `h0` or zeros.
            ///
            /// # Errors
            /// As [`forward`](Self::forward).
            pub fn forward_packed(&self, x: &PackedSequence, h0: Option<&Tensor>) -> Result<(PackedSequence, Tensor)> {
                let _scope = module_scope(self);
                self.0.packed(x, [h0, None]).map(|(y, h, _)| (y, h))
            }
        }
    };
}

recurrent! {
    /// Elman's recurrent layers, as PyTorch's `nn.RNN`: h' = tanh(W_ih·x + b_ih + W_hh·h + b_hh), or relu instead of
    /// tanh.
    ///
    /// - input: `[steps, batch, input_size]`, with [`batch_first`](RNNOptions::batch_first) `[batch, steps, input_size]`, or
    ///   `[steps, input_size]`
    /// - output: the same with `directions · hidden_size`; and the last states, `[layers · directions, batch, hidden_size]`
    ///
    /// Parameters are initialized uniformly in ±1 / √hidden_size, and have PyTorch's names.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{RNN, RNNOptions};
    /// use pagelock_tensor::Tensor;
    ///
    /// let layers = RNN::with(10, 20, RNNOptions::new().num_layers(2))?;
    /// let (y, h) = layers.forward(&Tensor::randn([5, 3, 10])?)?;
    /// assert_eq!((y.dims(), h.dims()), (&[5, 3, 20][..], &[2, 3, 20][..]));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    RNN, |options| match options.nonlinearity {
        RNNNonlinearity::Tanh => Recurrence::Tanh,
        RNNNonlinearity::Relu => Recurrence::Relu,
    }
}
one_state!(RNN);

recurrent! {
    /// Gated recurrent units, as PyTorch's `nn.GRU`; the formula is [`Recurrence::Gru`]'s.
    ///
    /// - input, output and states: those of [`RNN`]
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{GRU, Module};
    ///
    /// let names: Vec<String> = GRU::new(10, 20)?.named_parameters().into_iter().map(|(name, _)| name).collect();
    /// assert_eq!(names, ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    GRU, |options| Recurrence::Gru
}
one_state!(GRU);

recurrent! {
    /// Long short-term memory, as PyTorch's `nn.LSTM`; the formula is [`Recurrence::Lstm`]'s.
    ///
    /// - input and output: those of [`RNN`]; the states are h and c; [`proj_size`](RNNOptions::proj_size) projects h
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::LSTM;
    /// use pagelock_tensor::Tensor;
    ///
    /// let layer = LSTM::new(10, 20)?;
    /// let (y, (h, c)) = layer.forward(&Tensor::randn([5, 3, 10])?)?;
    /// assert_eq!((y.dims(), h.dims(), c.dims()), (&[5, 3, 20][..], &[1, 3, 20][..], &[1, 3, 20][..]));
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    LSTM, |options| Recurrence::Lstm
}

impl LSTM {
    /// The states of the last layer after each step, and the last states of all layers. Initial states are zeros.
    ///
    /// # Errors
    /// The shapes do not fit each other, or the result does not fit the memory budget.
    pub fn forward(&self, x: &Tensor) -> Result<(Tensor, (Tensor, Tensor))> {
        let _scope = module_scope(self);
        self.0.padded(x, [None; 2]).map(both)
    }

    /// As [`forward`](Self::forward), from the initial states `(h0, c0)`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_with(&self, x: &Tensor, (h0, c0): (&Tensor, &Tensor)) -> Result<(Tensor, (Tensor, Tensor))> {
        let _scope = module_scope(self);
        self.0.padded(x, [Some(h0), Some(c0)]).map(both)
    }

    /// As [`forward`](Self::forward), for packed sequences, from `(h0, c0)` or zeros.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_packed(
        &self,
        x: &PackedSequence,
        states: Option<(&Tensor, &Tensor)>,
    ) -> Result<(PackedSequence, (Tensor, Tensor))> {
        let _scope = module_scope(self);
        self.0.packed(x, [states.map(|states| states.0), states.map(|states| states.1)]).map(both)
    }
}

/// The states of an LSTM as a pair.
fn both<Y>((y, h, c): (Y, Tensor, Option<Tensor>)) -> (Y, (Tensor, Tensor)) {
    let Some(c) = c else { unreachable!("an LSTM has two states") };
    (y, (h, c))
}
