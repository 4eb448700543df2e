//! [`RNNCell`], [`LSTMCell`] and [`GRUCell`]: one step of a recurrent layer, for loops written by hand.

use super::{RNNNonlinearity, uniform_parameter};
use crate::functional::shared::{size, wrong_argument, wrong_shape};
use crate::layers::{debug_is_display, python};
use crate::parameter::charged;
use crate::setters::setters;
use crate::{Module, Parameter, module_scope};
use pagelock_tensor::{Generator, Recurrence, RecurrentLayer, Result, Steps, Tensor, default_generator};

/// `cell! { docs; Name, |cell| kind, number of gates }`
macro_rules! cell {
    ($(#[$docs:meta])* $name:ident, |$cell:ident| $kind:expr, $gates:literal) => {
        $(#[$docs])*
        #[derive(Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            /// `[gates · hidden_size, input_size]`
            pub weight_ih: Parameter,
            /// `[gates · hidden_size, hidden_size]`
            pub weight_hh: Parameter,
            /// `[gates · hidden_size]`; `None` without biases.
            pub bias_ih: Option<Parameter>,
            /// `[gates · hidden_size]`; `None` without biases.
            pub bias_hh: Option<Parameter>,
            #[module(skip)]
            nonlinearity: RNNNonlinearity,
        }

        impl $name {
            /// A cell with weights from the default generator, uniform in ±1 / √hidden_size.
            ///
            /// # Errors
            /// [`Error::Argument`](pagelock_tensor::Error::Argument) if `hidden_size` is 0;
            /// [`Error::Memory`](pagelock_tensor::Error::Memory) if the weights do not fit the memory budget.
            pub fn new(input_size: usize, hidden_size: usize) -> Result<Self> {
                Self::new_with(input_size, hidden_size, default_generator())
            }

            /// A cell with weights from `generator`.
            ///
            /// # Errors
            /// As [`new`](Self::new).
            pub fn new_with(input_size: usize, hidden_size: usize, generator: &Generator) -> Result<Self> {
                let [weight_ih, weight_hh, bias_ih, bias_hh] = parameters(stringify!($name), [input_size, hidden_size], $gates, generator)?;
                let nonlinearity = RNNNonlinearity::Tanh;
                Ok(Self { weight_ih, weight_hh, bias_ih: Some(bias_ih), bias_hh: Some(bias_hh), nonlinearity })
            }

            fn describe(&self) -> String {
                let mut text = format!("{}, {}", size(&self.weight_ih, 1), size(&self.weight_hh, 1));
                if self.bias_ih.is_none() {
                    text.push_str(&format!(", bias={}", python(false)));
                }
                if self.nonlinearity == RNNNonlinearity::Relu {
                    text.push_str(", nonlinearity=relu");
                }
                text
            }

            fn step(&self, x: &Tensor, h: Option<&Tensor>, c: Option<&Tensor>) -> Result<(Tensor, Option<Tensor>)> {
                let _scope = module_scope(self);
                let $cell = self;
                let bias = self.bias_ih.as_deref().zip(self.bias_hh.as_deref()).map(|(ih, hh)| [ih, hh]);
                let layer = RecurrentLayer::new($kind, &self.weight_ih, &self.weight_hh).bias(bias);
                step(stringify!($name), &layer, x, [h, c])
            }
        }

        setters! { $name,
            /// The cell without its biases.
            without_bias => bias_ih = None, bias_hh = None;
        }

        debug_is_display!($name);
    };
}

fn parameters(cell: &str, [inputs, hidden]: [usize; 2], gates: usize, generator: &Generator) -> Result<[Parameter; 4]> {
    if hidden == 0 {
        return Err(wrong_argument(cell, "hidden_size", hidden, "at least 1"));
    }
    let rows = gates.saturating_mul(hidden);
    let _charged = charged();
    let new = |shape: &[usize]| uniform_parameter(shape, hidden, generator);
    Ok([new(&[rows, inputs])?, new(&[rows, hidden])?, new(&[rows])?, new(&[rows])?])
}

/// One step of a batch, or of one sample without the batch dimension.
fn step(
    cell: &str,
    layer: &RecurrentLayer<'_>,
    x: &Tensor,
    [h, c]: [Option<&Tensor>; 2],
) -> Result<(Tensor, Option<Tensor>)> {
    let unbatched = x.rank() == 1;
    if !unbatched && x.rank() != 2 {
        return Err(wrong_shape(cell, "the input", x.shape(), "it must be [batch, input_size], or [input_size]"));
    }
    let batched = |tensor: &Tensor| if unbatched { tensor.unsqueeze(0) } else { Ok(tensor.clone()) };
    let (x, h, c) = (batched(x)?, h.map(batched).transpose()?, c.map(batched).transpose()?);
    let (h, c) = layer.run(&x, &Steps::even(1, x.shape()[0]), h.as_ref(), c.as_ref())?;
    if unbatched { Ok((h.squeeze(0)?, c.map(|c| c.squeeze(0)).transpose()?)) } else { Ok((h, c)) }
}

macro_rules! one_state {
    ($name:ident) => {
        impl $name {
            /// The state after one step from zeros.
            ///
            /// # Errors
            /// The shapes do not fit each other, or the result does not fit the memory budget.
            pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
                self.step(x, None, None).map(|(h, _)| h)
            }

            /// The state after one step from `h`.
            ///
            /// # Errors
            /// As [`forward`](Self::forward).
            pub fn forward_with(&self, x: &Tensor, h: &Tensor) -> Result<Tensor> {
                self.step(x, Some(h), None).map(|(h, _)| h)
            }
        }
    };
}

cell! {
    /// One step of an [`RNN`](crate::RNN), as PyTorch's `nn.RNNCell`.
    ///
    /// - input: `[batch, input_size]`, or one sample without `batch`
    /// - state and output: `[batch, hidden_size]`
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::RNNCell;
    /// use pagelock_tensor::Tensor;
    ///
    /// let (cell, x) = (RNNCell::new(3, 5)?, Tensor::randn([7, 2, 3])?);
    /// let mut h = Tensor::zeros([2, 5])?;
    /// for step in 0..7 {
    ///     h = cell.forward_with(&x.select(0, step)?, &h)?;
    /// }
    /// assert_eq!(h.dims(), [2, 5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    RNNCell, |cell| match cell.nonlinearity {
        RNNNonlinearity::Tanh => Recurrence::Tanh,
        RNNNonlinearity::Relu => Recurrence::Relu,
    }, 1
}
one_state!(RNNCell);

setters! { RNNCell,
    /// The nonlinearity; tanh by default.
    nonlinearity: RNNNonlinearity;
}

cell! {
    /// One step of a [`GRU`](crate::GRU), as PyTorch's `nn.GRUCell`.
    ///
    /// - input: `[batch, input_size]`, or one sample without `batch`
    /// - state and output: `[batch, hidden_size]`
    GRUCell, |_cell| Recurrence::Gru, 3
}
one_state!(GRUCell);

cell! {
    /// One step of an [`LSTM`](crate::LSTM), as PyTorch's `nn.LSTMCell`.
    ///
    /// - input: `[batch, input_size]`, or one sample without `batch`
    /// - states: h and c, `[batch, hidden_size]` each
    LSTMCell, |_cell| Recurrence::Lstm, 4
}

impl LSTMCell {
    /// The states after one step from zeros.
    ///
    /// # Errors
    /// The shapes do not fit each other, or the result does not fit the memory budget.
    pub fn forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        self.step(x, None, None).map(pair)
    }

    /// The states after one step from `(h, c)`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_with(&self, x: &Tensor, (h, c): (&Tensor, &Tensor)) -> Result<(Tensor, Tensor)> {
        self.step(x, Some(h), Some(c)).map(pair)
    }
}

fn pair((h, c): (Tensor, Option<Tensor>)) -> (Tensor, Tensor) {
    let Some(c) = c else { unreachable!("an LSTM has two states") };
    (h, c)
}
