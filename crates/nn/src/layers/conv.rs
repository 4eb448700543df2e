//! Convolutions of sequences, images and volumes: [`Conv1d`], [`Conv2d`], [`Conv3d`].

use super::{Sizes, debug_is_display, tuple};
use crate::functional::shared::{size, wrong_argument};
use crate::functional::{self as F, Conv1dOptions, Conv3dOptions};
use crate::parameter::charged;
use crate::parametrizations::Weighted;
use crate::setters::setters;
use crate::{Forward, Module, Parameter, init, module_scope};
use pagelock_tensor::{Conv2dOptions, Generator, PadMode, Result, Tensor, default_generator};

/// The geometry of a convolution.
struct ConvGeometry<const N: usize> {
    stride: [usize; N],
    padding: [usize; N],
    dilation: [usize; N],
    groups: usize,
    /// Whether the output is as large as the input, whatever `padding` is.
    same: bool,
    mode: PadMode,
}

impl<const N: usize> ConvGeometry<N> {
    fn new(groups: usize) -> Self {
        Self { stride: [1; N], padding: [0; N], dilation: [1; N], groups, same: false, mode: PadMode::Constant(0.0) }
    }

    /// The padded input, if the convolution itself cannot pad it, and the number of zeros that the convolution adds
    /// at each end.
    fn prepare(&self, op: &str, x: &Tensor, weight: &Tensor) -> Result<(Option<Tensor>, [usize; N])> {
        let mut ends = [[0; 2]; N];
        let kernel = weight.dims().get(2..).unwrap_or_default();
        for (axis, ends) in ends.iter_mut().enumerate() {
            let total =
                self.dilation[axis].saturating_mul(kernel.get(axis).map_or(0, |kernel| kernel.saturating_sub(1)));
            *ends = if self.same { [total / 2, total - total / 2] } else { [self.padding[axis]; 2] };
        }
        if self.same && self.stride != [1; N] {
            let expected = "1 in each dimension, so that \"same\" padding can keep the size";
            return Err(wrong_argument(op, "stride", tuple(&self.stride), expected));
        }
        if self.mode == PadMode::Constant(0.0) && ends.iter().all(|[before, after]| before == after) {
            return Ok((None, ends.map(|[before, _]| before)));
        }
        let sizes: Vec<isize> =
            ends.iter().rev().flatten().map(|&end| isize::try_from(end).unwrap_or(isize::MAX)).collect();
        Ok((Some(x.pad(&sizes, self.mode)?), [0; N]))
    }

    /// The settings of the layer, as PyTorch prints them.
    fn describe(&self, weight: &Tensor, has_bias: bool) -> String {
        let padding = if self.same { "same".to_owned() } else { tuple(&self.padding) };
        Description {
            channels: [size(weight, 1).saturating_mul(self.groups), size(weight, 0)],
            kernel: weight.dims().get(2..).unwrap_or_default(),
            stride: &self.stride,
            padding: (self.same || self.padding != [0; N]).then_some(padding),
            dilation: &self.dilation,
            output_padding: &[0; N],
            groups: self.groups,
            has_bias,
            mode: self.mode,
        }
        .text()
    }
}

/// The settings that a convolution prints.
pub(super) struct Description<'a> {
    pub(super) channels: [usize; 2],
    pub(super) kernel: &'a [usize],
    pub(super) stride: &'a [usize],
    pub(super) padding: Option<String>,
    pub(super) dilation: &'a [usize],
    pub(super) output_padding: &'a [usize],
    pub(super) groups: usize,
    pub(super) has_bias: bool,
    pub(super) mode: PadMode,
}

impl Description<'_> {
    pub(super) fn text(&self) -> String {
        let [inputs, outputs] = self.channels;
        let mut text =
            format!("{inputs}, {outputs}, kernel_size={}, stride={}", tuple(self.kernel), tuple(self.stride));
        let mut push_unless = |is_default: bool, part: String| {
            if !is_default {
                text.push_str(&part);
            }
        };
        push_unless(self.padding.is_none(), format!(", padding={}", self.padding.as_deref().unwrap_or_default()));
        push_unless(self.dilation.iter().all(|&step| step == 1), format!(", dilation={}", tuple(self.dilation)));
        push_unless(
            self.output_padding.iter().all(|&padding| padding == 0),
            format!(", output_padding={}", tuple(self.output_padding)),
        );
        push_unless(self.groups == 1, format!(", groups={}", self.groups));
        push_unless(self.has_bias, ", bias=False".to_owned());
        let mode = match self.mode {
            PadMode::Reflect => "reflect",
            PadMode::Replicate => "replicate",
            PadMode::Circular => "circular",
            _ => "zeros",
        };
        push_unless(mode == "zeros", format!(", padding_mode={mode}"));
        text
    }
}

/// Weight and bias of a layer: `[first, second, ..kernel]` and `[outputs]`.
pub(super) fn parameters(
    op: &str,
    channels: [usize; 2],
    (kernel, groups): (&[usize], usize),
    is_transposed: bool,
    generator: &Generator,
) -> Result<[Parameter; 2]> {
    let [inputs, outputs] = channels;
    let divides = |channels: usize| channels.checked_rem(groups) == Some(0);
    if !divides(inputs) || !divides(outputs) {
        let expected = format!("a divisor of {inputs} input and {outputs} output channels");
        return Err(wrong_argument(op, "groups", groups, &expected));
    }
    let [first, second] = if is_transposed { [inputs, outputs / groups] } else { [outputs, inputs / groups] };
    let mut sizes = vec![first, second];
    sizes.extend(kernel);
    let _charged = charged();
    let (weight, bias) = (Tensor::zeros(&sizes[..])?, Tensor::zeros(outputs)?);
    init::default_(&weight, Some(&bias), generator)?;
    Ok([Parameter::new(weight), Parameter::new(bias)])
}

/// `layer! { docs; Name, dimensions, shape of the weight, geometry, is transposed }`: the type of a layer, its
/// constructors, and the settings of all convolutions.
macro_rules! layer {
    ($(#[$docs:meta])* $name:ident, $n:literal, $weight:literal, $geometry:ident, $is_transposed:literal) => {
        $(#[$docs])*
        #[derive(Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[doc = $weight]
            pub weight: Parameter,
            /// `[out_channels]`, if there is one.
            pub bias: Option<Parameter>,
            #[module(skip)]
            geometry: $geometry<$n>,
        }

        impl $name {
            /// A layer with weights from the default generator, stride 1 and no padding.
            ///
            /// `kernel` is one number for all dimensions, or one for each.
            ///
            /// # Errors
            /// The weights do not fit the memory budget.
            pub fn new(in_channels: usize, out_channels: usize, kernel: impl Sizes<$n>) -> Result<Self> {
                Self::of([in_channels, out_channels], kernel.into_sizes(), 1, default_generator())
            }

            /// As [`new`](Self::new), with weights from `generator`.
            ///
            /// # Errors
            /// The weights do not fit the memory budget.
            pub fn new_with(
                in_channels: usize,
                out_channels: usize,
                kernel: impl Sizes<$n>,
                generator: &Generator,
            ) -> Result<Self> {
                Self::of([in_channels, out_channels], kernel.into_sizes(), 1, generator)
            }

            /// As [`new`](Self::new), with groups of channels that are convolved independently.
            ///
            /// # Errors
            /// [`Error::Argument`](pagelock_tensor::Error::Argument) if `groups` does not divide both numbers of channels.
            pub fn grouped(
                in_channels: usize,
                out_channels: usize,
                kernel: impl Sizes<$n>,
                groups: usize,
            ) -> Result<Self> {
                Self::of([in_channels, out_channels], kernel.into_sizes(), groups, default_generator())
            }

            /// As [`grouped`](Self::grouped), with weights from `generator`.
            ///
            /// # Errors
            /// As [`grouped`](Self::grouped).
            pub fn grouped_with(
                in_channels: usize,
                out_channels: usize,
                kernel: impl Sizes<$n>,
                groups: usize,
                generator: &Generator,
            ) -> Result<Self> {
                Self::of([in_channels, out_channels], kernel.into_sizes(), groups, generator)
            }

            fn of(channels: [usize; 2], kernel: [usize; $n], groups: usize, generator: &Generator) -> Result<Self> {
                let parts = (&kernel[..], groups);
                let [weight, bias] = parameters(stringify!($name), channels, parts, $is_transposed, generator)?;
                Ok(Self { weight, bias: Some(bias), geometry: $geometry::new(groups) })
            }

            fn describe(&self) -> String {
                self.geometry.describe(&self.weight, self.bias.is_some())
            }
        }

        setters! { $name,
            /// The layer without its bias.
            without_bias => bias = None;
            /// The distance between neighboring elements of the kernel: one number for all dimensions, or one for
            /// each.
            dilation: impl Sizes<$n> => geometry.dilation = dilation.into_sizes();
        }

        debug_is_display!($name);
    };
}
pub(super) use layer;

/// `convolution! { docs; Name, dimensions, shape of the weight }`
macro_rules! convolution {
    ($(#[$docs:meta])* $name:ident, $n:literal, $weight:literal) => {
        layer! { $(#[$docs])* $name, $n, $weight, ConvGeometry, false }

        setters! { $name,
            /// The distance between neighboring windows: one number for all dimensions, or one for each.
            stride: impl Sizes<$n> => geometry.stride = stride.into_sizes();
            /// The elements that padding adds; zeros by default.
            padding_mode: PadMode => geometry.mode = padding_mode;
            /// The padding at each end: one number for all dimensions, or one for each. PyTorch's `"valid"` is 0.
            padding: impl Sizes<$n> => geometry.padding = padding.into_sizes(), geometry.same = false;
            /// PyTorch's `padding="same"`: the padding that keeps the size, for a stride of 1. If the padding is odd,
            /// the end gets one element more.
            padding_same => geometry.same = true;
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                self.forward_with_weight(x, &self.weight)
            }

            fn forward_relu(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                self.run(x, &self.weight, true)
            }
        }

        impl Weighted for $name {
            fn weight(&self) -> &Parameter {
                &self.weight
            }

            fn forward_with_weight(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                self.run(x, weight, false)
            }
        }
    };
}

convolution! {
    /// Cross-correlation of sequences with kernels, as PyTorch's `nn.Conv1d`.
    ///
    /// - input: `[batch, in_channels, length]`, or one sample without `batch`
    /// - output: `[batch, out_channels, out]`, with `out = (length + 2·padding − dilation·(kernel − 1) − 1) / stride + 1`
    ///
    /// Weight and bias are initialized uniformly in ±1 / √(in_channels / groups · kernel) ([`init::default_`]).
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
    Conv1d, 1, "`[out_channels, in_channels / groups, kernel]`"
}

convolution! {
    /// Cross-correlation of images with kernels, as PyTorch's `nn.Conv2d`.
    ///
    /// - input: `[batch, in_channels, height, width]`, or one sample without `batch`
    /// - output: `[batch, out_channels, out_h, out_w]`, with
    ///   `out_h = (height + 2·padding − dilation·(kernel_h − 1) − 1) / stride + 1`
    ///
    /// Weight and bias are initialized uniformly in ±1 / √(in_channels / groups · kernel_h · kernel_w)
    /// ([`init::default_`]).
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Conv2d, Forward};
    /// use pagelock_tensor::{PadMode, Tensor};
    ///
    /// let layer = Conv2d::new(1, 16, 3)?.stride(2).padding(1);
    /// assert_eq!(layer.weight.dims(), [16, 1, 3, 3]);
    /// assert_eq!(layer.forward(&Tensor::zeros([64, 1, 28, 28])?)?.dims(), [64, 16, 14, 14]);
    ///
    /// let same = Conv2d::new(1, 2, [3, 4])?.padding_same().padding_mode(PadMode::Circular);
    /// assert_eq!(same.forward(&Tensor::zeros([1, 28, 28])?)?.dims(), [2, 28, 28]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Conv2d, 2, "`[out_channels, in_channels / groups, kernel_h, kernel_w]`"
}

convolution! {
    /// Cross-correlation of volumes with kernels, as PyTorch's `nn.Conv3d`. It runs as one convolution of images,
    /// which needs a larger copy of the input; see [`functional::conv3d`](crate::functional::conv3d).
    ///
    /// - input: `[batch, in_channels, depth, height, width]`, or one sample without `batch`
    /// - output: `[batch, out_channels, out_d, out_h, out_w]`, with
    ///   `out_d = (depth + 2·padding − dilation·(kernel_d − 1) − 1) / stride + 1`
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Conv3d, Forward};
    /// use pagelock_tensor::Tensor;
    ///
    /// let layer = Conv3d::new(1, 4, 3)?.stride(2).padding(1);
    /// assert_eq!(layer.weight.dims(), [4, 1, 3, 3, 3]);
    /// assert_eq!(layer.forward(&Tensor::zeros([2, 1, 8, 8, 8])?)?.dims(), [2, 4, 4, 4, 4]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    Conv3d, 3, "`[out_channels, in_channels / groups, kernel_d, kernel_h, kernel_w]`"
}

fn activated(y: Result<Tensor>, relu: bool) -> Result<Tensor> {
    if relu { y?.relu() } else { y }
}

impl Conv1d {
    fn run(&self, x: &Tensor, weight: &Tensor, relu: bool) -> Result<Tensor> {
        let (padded, [padding]) = self.geometry.prepare("Conv1d", x, weight)?;
        let ConvGeometry { stride: [stride], dilation: [dilation], groups, .. } = self.geometry;
        let options = Conv1dOptions { stride, padding, dilation, groups };
        activated(F::conv1d(padded.as_ref().unwrap_or(x), weight, self.bias.as_deref(), options), relu)
    }
}

impl Conv2d {
    fn run(&self, x: &Tensor, weight: &Tensor, relu: bool) -> Result<Tensor> {
        let (padded, padding) = self.geometry.prepare("Conv2d", x, weight)?;
        let ConvGeometry { stride, dilation, groups, .. } = self.geometry;
        let options = Conv2dOptions { stride, padding, dilation, groups };
        let (x, bias) = (padded.as_ref().unwrap_or(x), self.bias.as_deref());
        if relu && x.rank() == 4 {
            return x.conv2d_relu(weight, bias, options);
        }
        activated(F::conv2d(x, weight, bias, options), relu)
    }
}

impl Conv3d {
    fn run(&self, x: &Tensor, weight: &Tensor, relu: bool) -> Result<Tensor> {
        let (padded, padding) = self.geometry.prepare("Conv3d", x, weight)?;
        let ConvGeometry { stride, dilation, groups, .. } = self.geometry;
        let options = Conv3dOptions { stride, padding, dilation, groups };
        activated(F::conv3d(padded.as_ref().unwrap_or(x), weight, self.bias.as_deref(), options), relu)
    }
}
