//! Transposed convolutions of sequences, images and volumes: [`ConvTranspose1d`], [`ConvTranspose2d`],
//! [`ConvTranspose3d`].

use super::conv::{Description, layer, parameters};
use super::{Sizes, debug_is_display, tuple};
use crate::functional::shared::{size, wrong_argument, wrong_shape};
use crate::functional::{self as F, ConvTranspose1dOptions, ConvTranspose3dOptions};
use crate::parametrizations::Weighted;
use crate::setters::setters;
use crate::{Forward, Module, Parameter, module_scope};
use pagelock_tensor::{ConvTranspose2dOptions, Generator, PadMode, Result, Tensor, default_generator};

/// The geometry of a transposed convolution.
struct TransposedGeometry<const N: usize> {
    stride: [usize; N],
    padding: [usize; N],
    output_padding: [usize; N],
    dilation: [usize; N],
    groups: usize,
}

impl<const N: usize> TransposedGeometry<N> {
    fn new(groups: usize) -> Self {
        Self { stride: [1; N], padding: [0; N], output_padding: [0; N], dilation: [1; N], groups }
    }

    /// The output padding for an output of size `wanted`.
    fn output_padding_for(&self, op: &str, x: &Tensor, weight: &Tensor, wanted: [usize; N]) -> Result<[usize; N]> {
        let (Some(from), Some(kernel)) =
            (x.rank().checked_sub(N).map(|lead| &x.dims()[lead..]), weight.dims().get(2..))
        else {
            let expected = format!("it must have {N} dimensions after the channels; reshape it");
            return Err(wrong_shape(op, "the input", x.shape(), &expected));
        };
        let mut output_padding = [0; N];
        for axis in 0..N {
            let span = self.dilation[axis].saturating_mul(kernel[axis].saturating_sub(1));
            let full =
                from[axis].saturating_sub(1).saturating_mul(self.stride[axis]).saturating_add(span).saturating_add(1);
            let min = full.saturating_sub(self.padding[axis].saturating_mul(2));
            let Some(rest) = wanted[axis].checked_sub(min).filter(|&rest| rest < self.stride[axis]) else {
                let max = min.saturating_add(self.stride[axis]).saturating_sub(1);
                let expected = format!("from {min} to {max} in dimension {axis}, for the input {}", x.shape());
                return Err(wrong_argument(op, "output_size", tuple(&wanted), &expected));
            };
            output_padding[axis] = rest;
        }
        Ok(output_padding)
    }

    fn describe(&self, weight: &Tensor, has_bias: bool) -> String {
        Description {
            channels: [size(weight, 0), size(weight, 1).saturating_mul(self.groups)],
            kernel: weight.dims().get(2..).unwrap_or_default(),
            stride: &self.stride,
            padding: (self.padding != [0; N]).then(|| tuple(&self.padding)),
            dilation: &self.dilation,
            output_padding: &self.output_padding,
            groups: self.groups,
            has_bias,
            mode: PadMode::Constant(0.0),
        }
        .text()
    }
}

/// `transposed! { docs; Name, dimensions, shape of the weight }`
macro_rules! transposed {
    ($(#[$docs:meta])* $name:ident, $n:literal, $weight:literal) => {
        layer! { $(#[$docs])* $name, $n, $weight, TransposedGeometry, true }

        impl $name {
            /// The output with a given size. With a stride above 1 several sizes are possible; `output_size` chooses
            /// one instead of `output_padding`.
            ///
            /// # Errors
            /// [`Error::Argument`](pagelock_tensor::Error::Argument) if this input cannot have an output of that
            /// size; as [`forward`](Forward::forward).
            pub fn forward_sized(&self, x: &Tensor, output_size: impl Sizes<$n>) -> Result<Tensor> {
                let _scope = module_scope(self);
                let output_size = output_size.into_sizes();
                let output_padding = self.geometry.output_padding_for(stringify!($name), x, &self.weight, output_size)?;
                self.run(x, &self.weight, output_padding)
            }
        }

        setters! { $name,
            /// The distance in the output between neighboring elements of the input: one number for all dimensions,
            /// or one for each.
            stride: impl Sizes<$n> => geometry.stride = stride.into_sizes();
            /// The number of elements removed at each end of the output: one number for all dimensions, or one for
            /// each.
            padding: impl Sizes<$n> => geometry.padding = padding.into_sizes();
            /// The number of elements added at the end of the output; below the stride. One number for all
            /// dimensions, or one for each.
            output_padding: impl Sizes<$n> => geometry.output_padding = output_padding.into_sizes();
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                self.forward_with_weight(x, &self.weight)
            }
        }

        impl Weighted for $name {
            fn weight(&self) -> &Parameter {
                &self.weight
            }

            fn forward_with_weight(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                self.run(x, weight, self.geometry.output_padding)
            }

            fn output_dim(&self) -> isize {
                1
            }
        }
    };
}

transposed! {
    /// The transposed convolution of sequences, as PyTorch's `nn.ConvTranspose1d`.
    ///
    /// - input: `[batch, in_channels, length]`, or one sample without `batch`
    /// - output: `[batch, out_channels, out]`, with
    ///   `out = (length − 1)·stride − 2·padding + dilation·(kernel − 1) + output_padding + 1`
    ///
    /// ```
    /// use pagelock_nn::{ConvTranspose1d, Forward};
    /// # use pagelock_tensor::Tensor;
    /// let doubling = ConvTranspose1d::new(8, 4, 4)?.stride(2).padding(1);
    /// assert_eq!(doubling.forward(&Tensor::zeros([2, 8, 50])?)?.dims(), [2, 4, 100]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ConvTranspose1d, 1, "`[in_channels, out_channels / groups, kernel]`"
}

transposed! {
    /// The transposed convolution of images, as PyTorch's `nn.ConvTranspose2d`.
    ///
    /// - input: `[batch, in_channels, height, width]`, or one sample without `batch`
    /// - output: `[batch, out_channels, out_h, out_w]`, with
    ///   `out_h = (height − 1)·stride − 2·padding + dilation·(kernel_h − 1) + output_padding + 1`
    ///
    /// ```
    /// use pagelock_nn::{ConvTranspose2d, Forward};
    /// # use pagelock_tensor::Tensor;
    /// let doubling = ConvTranspose2d::new(8, 4, 3)?.stride(2).padding(1);
    /// let x = Tensor::zeros([2, 8, 14, 14])?;
    /// assert_eq!(doubling.forward(&x)?.dims(), [2, 4, 27, 27]);
    /// assert_eq!(doubling.forward_sized(&x, 28)?.dims(), [2, 4, 28, 28]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ConvTranspose2d, 2, "`[in_channels, out_channels / groups, kernel_h, kernel_w]`"
}

transposed! {
    /// The transposed convolution of volumes, as PyTorch's `nn.ConvTranspose3d`; see
    /// [`functional::conv_transpose3d`](crate::functional::conv_transpose3d) for its memory.
    ///
    /// - input: `[batch, in_channels, depth, height, width]`, or one sample without `batch`
    /// - output: `[batch, out_channels, out_d, out_h, out_w]`, with
    ///   `out_d = (depth − 1)·stride − 2·padding + dilation·(kernel_d − 1) + output_padding + 1`
    ///
    /// ```
    /// use pagelock_nn::{ConvTranspose3d, Forward};
    /// # use pagelock_tensor::Tensor;
    /// let doubling = ConvTranspose3d::new(2, 1, 2)?.stride(2);
    /// assert_eq!(doubling.forward(&Tensor::zeros([1, 2, 3, 4, 5])?)?.dims(), [1, 1, 6, 8, 10]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ConvTranspose3d, 3, "`[in_channels, out_channels / groups, kernel_d, kernel_h, kernel_w]`"
}

impl ConvTranspose1d {
    fn run(&self, x: &Tensor, weight: &Tensor, [output_padding]: [usize; 1]) -> Result<Tensor> {
        let TransposedGeometry { stride: [stride], padding: [padding], dilation: [dilation], groups, .. } =
            self.geometry;
        let options = ConvTranspose1dOptions { stride, padding, output_padding, groups, dilation };
        F::conv_transpose1d(x, weight, self.bias.as_deref(), options)
    }
}

impl ConvTranspose2d {
    fn run(&self, x: &Tensor, weight: &Tensor, output_padding: [usize; 2]) -> Result<Tensor> {
        let TransposedGeometry { stride, padding, dilation, groups, .. } = self.geometry;
        let options = ConvTranspose2dOptions { stride, padding, output_padding, groups, dilation };
        F::conv_transpose2d(x, weight, self.bias.as_deref(), options)
    }
}

impl ConvTranspose3d {
    fn run(&self, x: &Tensor, weight: &Tensor, output_padding: [usize; 3]) -> Result<Tensor> {
        let TransposedGeometry { stride, padding, dilation, groups, .. } = self.geometry;
        let options = ConvTranspose3dOptions { stride, padding, output_padding, groups, dilation };
        F::conv_transpose3d(x, weight, self.bias.as_deref(), options)
    }
}
