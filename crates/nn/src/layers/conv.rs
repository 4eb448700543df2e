//! [`Conv2d`]: kernels that slide over images.

use super::{Pair, debug_is_display};
use crate::{Forward, Module, Parameter, init, module_scope};
use pagelock_tensor::{self as tensor, Error, Generator, Result, Tensor, default_generator};

/// Cross-correlation of images with kernels, as PyTorch's `nn.Conv2d`.
///
/// - input: `[batch, in_channels, height, width]`
/// - output: `[batch, out_channels, out_h, out_w]`, with
///   `out_h = (height + 2·padding − dilation·(kernel_h − 1) − 1) / stride + 1`
///
/// Weight and bias begin between ±1 / √(in_channels / groups · kernel_h · kernel_w) ([`init::default_`]).
///
/// # Examples
/// ```
/// use pagelock_nn::{Conv2d, Forward};
/// use pagelock_tensor::Tensor;
///
/// let layer = Conv2d::new(1, 16, 3)?.stride(2).padding(1);
/// assert_eq!(layer.weight.dims(), [16, 1, 3, 3]);
/// assert_eq!(layer.forward(&Tensor::zeros([64, 1, 28, 28])?)?.dims(), [64, 16, 14, 14]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(details = Self::describe)]
pub struct Conv2d {
    /// `[out_channels, in_channels / groups, kernel_h, kernel_w]`
    pub weight: Parameter,
    /// `[out_channels]`, if there is one.
    pub bias: Option<Parameter>,
    #[module(skip)]
    geometry: tensor::Conv2dOptions,
}

impl Conv2d {
    /// A layer with weights from the default generator, stride 1 and no padding.
    ///
    /// `kernel` is `3` for `[3, 3]`, or a pair of height and width.
    ///
    /// # Errors
    /// The weights do not fit the memory budget.
    pub fn new(in_channels: usize, out_channels: usize, kernel: impl Pair) -> Result<Self> {
        Self::new_with(in_channels, out_channels, kernel, default_generator())
    }

    /// As [`Conv2d::new`], with channels in groups that do not see each other.
    ///
    /// # Errors
    /// [`Error::Argument`] if `groups` does not divide both numbers of channels.
    pub fn grouped(in_channels: usize, out_channels: usize, kernel: impl Pair, groups: usize) -> Result<Self> {
        Self::grouped_with(in_channels, out_channels, kernel, groups, default_generator())
    }

    /// A layer with weights from `generator`, stride 1 and no padding.
    ///
    /// # Errors
    /// The weights do not fit the memory budget.
    pub fn new_with(in_channels: usize, out_channels: usize, kernel: impl Pair, generator: &Generator) -> Result<Self> {
        Self::grouped_with(in_channels, out_channels, kernel, 1, generator)
    }

    /// As [`Conv2d::new_with`], with channels in groups that do not see each other.
    ///
    /// # Errors
    /// [`Error::Argument`] if `groups` does not divide both numbers of channels.
    pub fn grouped_with(
        in_channels: usize,
        out_channels: usize,
        kernel: impl Pair,
        groups: usize,
        generator: &Generator,
    ) -> Result<Self> {
        Self::of([in_channels, out_channels], kernel.into_pair(), groups, generator)
    }

    fn of(
        [in_channels, out_channels]: [usize; 2],
        [kernel_h, kernel_w]: [usize; 2],
        groups: usize,
        generator: &Generator,
    ) -> Result<Self> {
        let divides = |channels: usize| channels.checked_rem(groups) == Some(0);
        if !divides(in_channels) || !divides(out_channels) {
            return Err(Error::Argument(format!(
                "Conv2d: groups is {groups} for {in_channels} input and {out_channels} output channels, but it must divide \
                 both numbers of channels"
            )));
        }
        let weight = Tensor::zeros([out_channels, in_channels / groups, kernel_h, kernel_w])?;
        let bias = Tensor::zeros(out_channels)?;
        init::default_(&weight, Some(&bias), generator)?;
        let geometry = tensor::Conv2dOptions { groups, ..tensor::Conv2dOptions::default() };
        Ok(Self { weight: Parameter::new(weight), bias: Some(Parameter::new(bias)), geometry })
    }

    /// By how many pixels the kernel moves: `2`, or a pair of height and width.
    #[must_use]
    pub fn stride(mut self, stride: impl Pair) -> Self {
        self.geometry.stride = stride.into_pair();
        self
    }

    /// How many zeros surround the image: `1`, or a pair of height and width.
    #[must_use]
    pub fn padding(mut self, padding: impl Pair) -> Self {
        self.geometry.padding = padding.into_pair();
        self
    }

    /// How far the kernel's elements lie apart: `1`, or a pair of height and width.
    #[must_use]
    pub fn dilation(mut self, dilation: impl Pair) -> Self {
        self.geometry.dilation = dilation.into_pair();
        self
    }

    /// The layer without its bias.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    fn describe(&self) -> String {
        let (tensor::Conv2dOptions { stride, padding, dilation, groups }, weight) = (self.geometry, self.weight.dims());
        let pair = |[height, width]: [usize; 2]| format!("({height}, {width})");
        let mut text = format!(
            "{}, {}, kernel_size={}, stride={}",
            weight[1] * groups,
            weight[0],
            pair([weight[2], weight[3]]),
            pair(stride)
        );
        let mut unless = |usual: bool, part: String| {
            if !usual {
                text.push_str(&part)
            }
        };
        unless(padding == [0, 0], format!(", padding={}", pair(padding)));
        unless(dilation == [1, 1], format!(", dilation={}", pair(dilation)));
        unless(groups == 1, format!(", groups={groups}"));
        unless(self.bias.is_some(), ", bias=False".to_owned());
        text
    }
}

impl Forward for Conv2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        x.conv2d(&self.weight, self.bias.as_deref(), self.geometry)
    }

    fn forward_relu(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        x.conv2d_relu(&self.weight, self.bias.as_deref(), self.geometry)
    }
}

debug_is_display!(Conv2d);
