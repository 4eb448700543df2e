//! Layers that normalize each channel over a batch: [`BatchNorm1d`], [`BatchNorm2d`], [`BatchNorm3d`].

use super::{debug_is_display, number, python};
use crate::functional::shared::wrong_shape;
use crate::parameter::charged;
use crate::setters::setters;
use crate::{Buffer, Counter, Forward, Mode, Module, Parameter, module_scope};
use pagelock_tensor::{BatchNormOptions, Result, Shape, Tensor};

/// The rank of a layer's input.
struct InputRank {
    layer: &'static str,
    /// The dimensions, in words.
    dims: &'static str,
    ranks: std::ops::RangeInclusive<usize>,
}

impl InputRank {
    fn check(&self, x: &Shape) -> Result<()> {
        if self.ranks.contains(&x.rank()) {
            return Ok(());
        }
        Err(wrong_shape(self.layer, "the input", x, &format!("it must be {}; reshape it", self.dims)))
    }
}

macro_rules! batch_norm {
    ($(#[$docs:meta])* $name:ident, $input:expr) => {
        $(#[$docs])*
        #[derive(Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            /// `[channels]`, if there is one; initialized to ones.
            pub weight: Option<Parameter>,
            /// `[channels]`, if there is one; initialized to zeros.
            pub bias: Option<Parameter>,
            /// `[channels]`, if there is one; initialized to zeros.
            pub running_mean: Option<Buffer>,
            /// `[channels]`, if there is one: variances with Bessel's correction, initialized to ones.
            pub running_var: Option<Buffer>,
            /// How many batches the running statistics have seen, if there are any.
            pub num_batches_tracked: Option<Counter>,
            #[module(skip)]
            channels: usize,
            mode: Mode,
            #[module(skip)]
            momentum: Option<f64>,
            #[module(skip)]
            eps: f64,
        }

        setters! { $name,
            /// What is added to variances; 1e-5 by default.
            eps: f64;
            /// The fraction by which the running statistics move towards those of a batch; 0.1 by default. With
            /// `None` they are means over all batches, and each training step waits for the device to read the number
            /// of batches.
            momentum: impl Into<Option<f64>> => momentum = momentum.into();
            /// The layer without weight and bias.
            without_affine => weight = None, bias = None;
            /// The layer without its bias.
            without_bias => bias = None;
            /// The layer without running statistics: it uses those of the batch, also in evaluation mode.
            without_running_stats => running_mean = None, running_var = None, num_batches_tracked = None;
        }

        impl $name {
            /// A layer with weight and bias, and with running statistics.
            ///
            /// # Errors
            /// The parameters do not fit the memory budget.
            pub fn new(channels: usize) -> Result<Self> {
                let _charged = charged();
                let (zeros, ones) = (|| Tensor::zeros(channels), || Tensor::ones(channels));
                Ok(Self {
                    weight: Some(Parameter::new(ones()?)),
                    bias: Some(Parameter::new(zeros()?)),
                    running_mean: Some(Buffer::new(zeros()?)),
                    running_var: Some(Buffer::new(ones()?)),
                    num_batches_tracked: Some(Counter::new()?),
                    channels,
                    mode: Mode::default(),
                    momentum: Some(0.1),
                    eps: 1e-5,
                })
            }

            /// The counter of batches, if this forward counts.
            fn counter(&self) -> Option<&Counter> {
                self.num_batches_tracked.as_ref().filter(|_| self.mode.is_training())
            }

            /// The fraction by which the running statistics move towards the next batch.
            fn batch_momentum(&self) -> Result<f64> {
                match (self.counter(), self.momentum) {
                    (None, _) => Ok(0.0),
                    (Some(_), Some(momentum)) => Ok(momentum),
                    (Some(count), None) => Ok(1.0 / (count.item::<i64>()? as f64 + 1.0)),
                }
            }

            fn run(&self, x: &Tensor, relu: bool) -> Result<Tensor> {
                const INPUT: InputRank = $input;
                INPUT.check(x.shape())?;
                let running = self.running_mean.as_deref().zip(self.running_var.as_deref());
                let (training, momentum) = (self.mode.is_training(), self.batch_momentum()?);
                let options = BatchNormOptions { training, momentum, eps: self.eps };
                let (running, weight, bias) =
                    (running.map(|(mean, var)| [mean, var]), self.weight.as_deref(), self.bias.as_deref());
                let y = match relu {
                    true => x.batch_norm_relu(running, weight, bias, options),
                    false => x.batch_norm(running, weight, bias, options),
                }?;
                // Last, so that a forward that fails counts nothing.
                self.counter().map_or(Ok(()), Counter::increment)?;
                Ok(y)
            }

            fn describe(&self) -> String {
                let (affine, running) = (python(self.weight.is_some()), python(self.running_mean.is_some()));
                let momentum = self.momentum.map_or("None".to_owned(), number);
                let eps = number(self.eps);
                let (channels, bias) = (self.channels, python(self.bias.is_some()));
                format!(
                    "{channels}, eps={eps}, momentum={momentum}, affine={affine}, bias={bias}, track_running_stats={running}"
                )
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                self.run(x, false)
            }

            fn forward_relu(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                self.run(x, true)
            }
        }

        debug_is_display!($name);
    };
}

batch_norm! {
    /// Normalizes each channel of images to mean 0 and variance 1, then applies `weight` and `bias`, as PyTorch's
    /// `nn.BatchNorm2d`.
    ///
    /// - input: `[batch, channels, height, width]`
    /// - output: the same
    ///
    /// While training, the layer uses the mean and variance of the batch, and the running statistics move towards
    /// them. In evaluation mode ([`Module::eval`]) it uses the running statistics.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{BatchNorm2d, Forward, Module};
    /// use pagelock_tensor::Tensor;
    ///
    /// let layer = BatchNorm2d::new(3)?;
    /// assert_eq!(layer.forward(&Tensor::randn([8, 3, 4, 4])?)?.dims(), [8, 3, 4, 4]);
    /// let state = layer.state_dict();
    /// assert_eq!(
    ///     state.names().collect::<Vec<_>>(),
    ///     ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    /// );
    /// assert_eq!(state.get_int("num_batches_tracked").unwrap().item::<i64>()?, 1);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    BatchNorm2d,
    InputRank { layer: "BatchNorm2d", dims: "[batch, channels, height, width]", ranks: 4..=4 }
}

batch_norm! {
    /// Normalizes each channel to mean 0 and variance 1, then applies `weight` and `bias`, as PyTorch's
    /// `nn.BatchNorm1d`; see [`BatchNorm2d`].
    ///
    /// - input: `[batch, channels]` or `[batch, channels, length]`
    /// - output: the same
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{BatchNorm1d, Forward};
    /// use pagelock_tensor::Tensor;
    ///
    /// let y = BatchNorm1d::new(2)?.forward(&Tensor::new([[1.0, 10.0], [3.0, 50.0]])?)?;
    /// assert_eq!(format!("{:.2}", y.detach()), "tensor([[-1.00, -1.00],\n        [ 1.00,  1.00]])");
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    BatchNorm1d,
    InputRank { layer: "BatchNorm1d", dims: "[batch, channels] or [batch, channels, length]", ranks: 2..=3 }
}

batch_norm! {
    /// Normalizes each channel of volumes to mean 0 and variance 1, then applies `weight` and `bias`, as PyTorch's
    /// `nn.BatchNorm3d`; see [`BatchNorm2d`].
    ///
    /// - input: `[batch, channels, depth, height, width]`
    /// - output: the same
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{BatchNorm3d, Forward};
    /// use pagelock_tensor::Tensor;
    ///
    /// assert_eq!(BatchNorm3d::new(2)?.forward(&Tensor::randn([4, 2, 3, 3, 3])?)?.dims(), [4, 2, 3, 3, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    BatchNorm3d,
    InputRank { layer: "BatchNorm3d", dims: "[batch, channels, depth, height, width]", ranks: 5..=5 }
}
