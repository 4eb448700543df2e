//! Layers for sequences: [`Conv1d`], [`MaxPool1d`], [`AvgPool1d`], [`AdaptiveAvgPool1d`].

use super::{debug_is_display, tuple};
use crate::functional::pieces::wrong_argument;
use crate::functional::{Conv1dOptions, Pool1dOptions};
use crate::{Forward, Module, Parameter, functional, init, module_scope};
use pagelock_tensor::{Generator, Result, Tensor, default_generator};

/// Cross-correlation of sequences with kernels, as PyTorch's `nn.Conv1d`.
///
/// - input: `[batch, in_channels, length]`, or one sample without `batch`
/// - output: `[batch, out_channels, out]`, with `out = (length + 2·padding − dilation·(kernel − 1) − 1) / stride + 1`
///
/// Weight and bias begin between ±1 / √(in_channels / groups · kernel) ([`init::default_`]).
///
/// # Examples
/// ```
/// use pagelock_nn::{Conv1d, Forward};
/// use pagelock_tensor::Tensor;
///
/// let layer = Conv1d::new(1, 16, 3)?.stride(2).padding(1);
/// assert_eq!(layer.weight.dims(), [16, 1, 3]);
/// assert_eq!(layer.forward(&Tensor::zeros([64, 1, 100])?)?.dims(), [64, 16, 50]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(details = Self::describe)]
pub struct Conv1d {
    /// `[out_channels, in_channels / groups, kernel]`
    pub weight: Parameter,
    /// `[out_channels]`, if there is one.
    pub bias: Option<Parameter>,
    #[module(skip)]
    geometry: Conv1dOptions,
}

impl Conv1d {
    /// A layer with weights from the default generator, stride 1 and no padding.
    ///
    /// # Errors
    /// The weights do not fit the memory budget.
    pub fn new(in_channels: usize, out_channels: usize, kernel: usize) -> Result<Self> {
        Self::new_with(in_channels, out_channels, kernel, default_generator())
    }

    /// A layer with weights from `generator`, stride 1 and no padding.
    ///
    /// # Errors
    /// The weights do not fit the memory budget.
    pub fn new_with(in_channels: usize, out_channels: usize, kernel: usize, generator: &Generator) -> Result<Self> {
        Self::grouped_with(in_channels, out_channels, kernel, 1, generator)
    }

    /// As [`Conv1d::new`], with channels in groups that do not see each other.
    ///
    /// # Errors
    /// [`Error::Argument`](pagelock_tensor::Error::Argument) if `groups` does not divide both numbers of channels.
    pub fn grouped(in_channels: usize, out_channels: usize, kernel: usize, groups: usize) -> Result<Self> {
        Self::grouped_with(in_channels, out_channels, kernel, groups, default_generator())
    }

    /// As [`Conv1d::new_with`], with channels in groups that do not see each other.
    ///
    /// # Errors
    /// As [`Conv1d::grouped`].
    pub fn grouped_with(
        in_channels: usize,
        out_channels: usize,
        kernel: usize,
        groups: usize,
        generator: &Generator,
    ) -> Result<Self> {
        let divides = |channels: usize| channels.checked_rem(groups) == Some(0);
        if !divides(in_channels) || !divides(out_channels) {
            let expected = format!("a divisor of {in_channels} input and {out_channels} output channels");
            return Err(wrong_argument("Conv1d", "groups", groups, &expected));
        }
        let weight = Tensor::zeros([out_channels, in_channels / groups, kernel])?;
        let bias = Tensor::zeros(out_channels)?;
        init::default_(&weight, Some(&bias), generator)?;
        let geometry = Conv1dOptions { groups, ..Conv1dOptions::default() };
        Ok(Self { weight: Parameter::new(weight), bias: Some(Parameter::new(bias)), geometry })
    }

    /// By how many elements the kernel moves.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Self {
        self.geometry.stride = stride;
        self
    }

    /// How many zeros are at each end.
    #[must_use]
    pub fn padding(mut self, padding: usize) -> Self {
        self.geometry.padding = padding;
        self
    }

    /// How far the kernel's elements lie apart.
    #[must_use]
    pub fn dilation(mut self, dilation: usize) -> Self {
        self.geometry.dilation = dilation;
        self
    }

    /// The layer without its bias.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    fn describe(&self) -> String {
        let (Conv1dOptions { stride, padding, dilation, groups }, weight) = (self.geometry, self.weight.dims());
        let mut text =
            format!("{}, {}, kernel_size=({},), stride=({stride},)", weight[1] * groups, weight[0], weight[2]);
        let mut unless = |usual: bool, part: String| {
            if !usual {
                text.push_str(&part)
            }
        };
        unless(padding == 0, format!(", padding=({padding},)"));
        unless(dilation == 1, format!(", dilation=({dilation},)"));
        unless(groups == 1, format!(", groups={groups}"));
        unless(self.bias.is_some(), ", bias=False".to_owned());
        text
    }
}

impl Forward for Conv1d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        functional::conv1d(x, &self.weight, self.bias.as_deref(), self.geometry)
    }
}

debug_is_display!(Conv1d);

macro_rules! pool {
    ($(#[$docs:meta])* $name:ident, $function:path, |$shown:ident| $details:expr) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            geometry: Pool1dOptions,
        }

        impl $name {
            /// Windows of `kernel` elements side by side.
            pub fn new(kernel: usize) -> Self {
                Self { geometry: Pool1dOptions::new(kernel) }
            }

            /// By how many elements the window moves.
            #[must_use]
            pub fn stride(self, stride: usize) -> Self {
                Self { geometry: Pool1dOptions { stride, ..self.geometry } }
            }

            /// How far windows may reach beyond each end.
            #[must_use]
            pub fn padding(self, padding: usize) -> Self {
                Self { geometry: Pool1dOptions { padding, ..self.geometry } }
            }

            fn describe(&self) -> String {
                let $shown = self.geometry;
                $details
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                $function(x, self.geometry)
            }
        }

        debug_is_display!($name);
    };
}

pool! {
    /// The largest of each window.
    ///
    /// - input: `[batch, channels, length]`, or one sample without `batch`
    /// - output: `[batch, channels, out]` with `out = (length + 2·padding − kernel) / stride + 1`
    ///
    /// ```
    /// use pagelock_nn::{Forward, MaxPool1d};
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[[1.0, 4.0, 3.0, 2.0]]])?;
    /// assert_eq!(MaxPool1d::new(2).forward(&x)?.to_vec::<f32>()?, [4.0, 3.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    MaxPool1d, functional::max_pool1d, |of| format!(
        "kernel_size={}, stride={}, padding={}, dilation=1, ceil_mode=False", of.kernel, of.stride, of.padding
    )
}

pool! {
    /// The mean of each window; what is beyond the ends counts as 0.
    ///
    /// - input: `[batch, channels, length]`, or one sample without `batch`
    /// - output: `[batch, channels, out]` with `out = (length + 2·padding − kernel) / stride + 1`
    ///
    /// ```
    /// use pagelock_nn::{AvgPool1d, Forward};
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[[1.0, 4.0, 3.0, 2.0]]])?;
    /// assert_eq!(AvgPool1d::new(2).forward(&x)?.to_vec::<f32>()?, [2.5, 2.5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    AvgPool1d, functional::avg_pool1d, |of| format!(
        "kernel_size={}, stride={}, padding={}", tuple(&[of.kernel]), tuple(&[of.stride]), tuple(&[of.padding])
    )
}

/// The means of as many windows as the output has elements, for sequences of any length.
///
/// - input: `[batch, channels, length]`, or one sample without `batch`
/// - output: `[batch, channels, size]`
///
/// ```
/// use pagelock_nn::{AdaptiveAvgPool1d, Forward};
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::new([[[1.0, 4.0, 3.0, 2.0]]])?;
/// assert_eq!(AdaptiveAvgPool1d::new(2).forward(&x)?.to_vec::<f32>()?, [2.5, 2.5]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Module)]
#[module(details = Self::describe)]
pub struct AdaptiveAvgPool1d {
    #[module(skip)]
    size: usize,
}

impl AdaptiveAvgPool1d {
    /// `size` windows.
    pub fn new(size: usize) -> Self {
        Self { size }
    }

    fn describe(&self) -> String {
        format!("output_size={}", self.size)
    }
}

impl Forward for AdaptiveAvgPool1d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        functional::adaptive_avg_pool1d(x, self.size)
    }
}

debug_is_display!(AdaptiveAvgPool1d);
