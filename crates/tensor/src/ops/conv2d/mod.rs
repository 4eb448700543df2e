//! Two-dimensional convolution (cross-correlation, zero padding), and its two derivatives.
//!
//! The three form a closed family: each is linear in both operands, and the derivatives of each are the other two, so
//! convolutions can be differentiated any number of times.

mod channels_last;
mod cpu;
mod cuda;
mod library;
mod small;

use crate::autocast::prepared;
use crate::autograd::{Saved, is_grad_enabled};
use crate::cpu::{CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::device::Device;
use crate::element::Real;
use crate::error::{Error, Result};
use crate::op::{CpuKernel, Inputs, Op, Precision, Saves, apply, per_type, same_precision};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The geometry of [`Tensor::conv2d`]: stride 1, no padding, dilation 1 and one group, unless changed.
///
/// ```
/// # use pagelock_tensor::Conv2dOptions;
/// let halving = Conv2dOptions::new().stride(2).padding(1);
/// assert_eq!(halving, Conv2dOptions { stride: [2, 2], padding: [1, 1], ..Conv2dOptions::new() });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// Distance between neighboring windows, `[vertical, horizontal]`, in pixels.
    pub stride: [usize; 2],
    /// Rows and columns of zeros added on each side.
    pub padding: [usize; 2],
    /// Distance between neighboring taps of the kernel.
    pub dilation: [usize; 2],
    /// Groups of channels that do not see each other.
    pub groups: usize,
}

impl Default for Conv2dOptions {
    fn default() -> Self {
        Conv2dOptions { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 1 }
    }
}

impl Conv2dOptions {
    /// The defaults.
    pub fn new() -> Conv2dOptions {
        Conv2dOptions::default()
    }

    /// The same stride both ways.
    #[must_use]
    pub fn stride(self, stride: usize) -> Conv2dOptions {
        Conv2dOptions { stride: [stride; 2], ..self }
    }

    /// The same padding on all sides.
    #[must_use]
    pub fn padding(self, padding: usize) -> Conv2dOptions {
        Conv2dOptions { padding: [padding; 2], ..self }
    }

    /// The same dilation both ways.
    #[must_use]
    pub fn dilation(self, dilation: usize) -> Conv2dOptions {
        Conv2dOptions { dilation: [dilation; 2], ..self }
    }

    /// As many groups of channels.
    #[must_use]
    pub fn groups(self, groups: usize) -> Conv2dOptions {
        Conv2dOptions { groups, ..self }
    }

    /// All sizes, from the shapes of image and weight; the one place that rejects them.
    fn dims(&self, image: &Shape, weight: &Shape) -> Result<cpu::ConvDims> {
        let wrong = |operand, shape: &Shape, expected: String| {
            Err(Error::WrongShape { op: "conv2d", operand, shape: *shape, expected })
        };
        let [batch, in_channels, in_h, in_w] = **image else {
            return wrong(
                "the image",
                image,
                "it must be [batch, channels, height, width]; reshape or unsqueeze it".into(),
            );
        };
        let [out_channels, group_channels, kernel_h, kernel_w] = **weight else {
            return wrong(
                "the weight",
                weight,
                "it must be [out_channels, in_channels / groups, kernel_h, kernel_w]".into(),
            );
        };
        for (argument, values) in [("stride", self.stride), ("dilation", self.dilation), ("groups", [self.groups; 2])] {
            if values.contains(&0) {
                return Err(Error::BadArgument {
                    op: "conv2d",
                    argument,
                    value: "0".into(),
                    expected: "it must be at least 1".into(),
                });
            }
        }
        if Some(in_channels) != group_channels.checked_mul(self.groups) || !out_channels.is_multiple_of(self.groups) {
            let groups = self.groups;
            let expected = format!(
                "with {groups} groups and an image of {in_channels} channels it must be [a multiple of {groups}, {}, …]",
                in_channels / groups
            );
            return wrong("the weight", weight, expected);
        }
        let axis = |size: usize, kernel: usize, axis: usize| {
            let reach = self.dilation[axis].checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
            let padded = size.checked_add(self.padding[axis].checked_mul(2)?)?;
            Some(padded.checked_sub(reach)? / self.stride[axis] + 1)
        };
        let (Some(out_h), Some(out_w)) = (axis(in_h, kernel_h, 0), axis(in_w, kernel_w, 1)) else {
            let expected = format!(
                "its kernel (dilated by {:?}) must have a size and fit the image {image} padded by {:?}",
                self.dilation, self.padding
            );
            return wrong("the weight", weight, expected);
        };
        Ok(cpu::ConvDims {
            batch,
            in_channels,
            out_channels,
            groups: self.groups,
            in_size: [in_h, in_w],
            kernel: [kernel_h, kernel_w],
            out_size: [out_h, out_w],
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
        })
    }
}

impl Tensor {
    /// Slides `weight` over `self` (cross-correlation, zero padding).
    ///
    /// - `self`: `[batch, in_channels, height, width]`
    /// - `weight`: `[out_channels, in_channels / groups, kernel_h, kernel_w]`
    /// - `bias`: `[out_channels]`
    /// - result: `[batch, out_channels, out_h, out_w]` with
    ///   `out_h = (height + 2·padding − dilation·(kernel_h − 1) − 1) / stride + 1`
    ///
    /// ```
    /// # use pagelock_tensor::{Conv2dOptions, Tensor};
    /// let image = Tensor::zeros([1, 1, 28, 28])?;
    /// let weight = Tensor::zeros([16, 1, 3, 3])?;
    /// assert_eq!(image.conv2d(&weight, None, Conv2dOptions::new().stride(2).padding(1))?.shape(), &[1, 16, 14, 14]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongShape`] if channels or sizes do not fit; [`Error::BadArgument`] for a zero in the geometry.
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, geometry: Conv2dOptions) -> Result<Tensor> {
        let (image, weight) = (prepared(PRECISION, self)?, prepared(PRECISION, weight)?);
        let bias = bias.map(|bias| prepared(PRECISION, bias)).transpose()?;
        image.convolved(&weight, bias.as_ref(), geometry)
    }

    /// [`conv2d`](Self::conv2d) in the precision of the operands.
    fn convolved(&self, weight: &Tensor, bias: Option<&Tensor>, geometry: Conv2dOptions) -> Result<Tensor> {
        same_precision("conv2d", &[self.raw(), weight.raw(), bias.unwrap_or(weight).raw()])?;
        if let Some(result) = channels_last::forward(self, weight, bias, geometry)? {
            return Ok(result);
        }
        let result = match bias {
            Some(bias) => apply(Forward(geometry), [self, weight, bias]),
            None => apply(Forward(geometry), [self, weight]),
        }?;
        if channels_last::is_kept(self) { result.channels_last() } else { Ok(result) }
    }

    /// `self.conv2d(weight, bias, geometry)?.relu()` with fewer walks through memory where that is possible: with a bias,
    /// on the CPU, or of small images on a GPU.
    ///
    /// ```
    /// # use pagelock_tensor::{Conv2dOptions, Tensor};
    /// let (image, weight) = (Tensor::new([[[[1.0, -2.0]]]])?, Tensor::ones([1, 1, 1, 1])?);
    /// let bias = Tensor::new([0.5])?;
    /// assert_eq!(image.conv2d_relu(&weight, Some(&bias), Conv2dOptions::new())?.to_vec::<f32>()?, [1.5, 0.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::conv2d`].
    pub fn conv2d_relu(&self, weight: &Tensor, bias: Option<&Tensor>, geometry: Conv2dOptions) -> Result<Tensor> {
        let (image, weight) = (prepared(PRECISION, self)?, prepared(PRECISION, weight)?);
        let bias = bias.map(|bias| prepared(PRECISION, bias)).transpose()?;
        match &bias {
            Some(bias) if is_fused(geometry, &image, *weight.shape()) => {
                apply(ForwardRelu(geometry), [&image, &weight, bias])
            }
            bias => image.convolved(&weight, bias.as_ref(), geometry)?.relu(),
        }
    }
}

const PRECISION: Precision = Precision::HalfUnderAutocast;

/// Whether there are kernels for the convolution of that image with relu, and for its gradients.
fn is_fused(geometry: Conv2dOptions, image: &Tensor, weight: Shape) -> bool {
    match image.storage().device() {
        Device::Cpu => true,
        Device::Cuda(device) => {
            geometry.dims(image.shape(), &weight).is_ok_and(|dims| cuda::is_fused(device, &dims, image.dtype()))
        }
    }
}

/// The convolution itself, with or without bias.
struct Forward(Conv2dOptions);

fn shape_of_result(dims: &cpu::ConvDims) -> Result<Shape> {
    Shape::new(&[dims.batch, dims.out_channels, dims.out_size[0], dims.out_size[1]])
}

per_type! { Forward[2]: Real }

impl Op<2> for Forward {
    const NAME: &'static str = "conv2d";
    const SAVES: Saves = Saves::Inputs;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, [image, weight]: [&Shape; 2]) -> Result<Shape> {
        shape_of_result(&self.0.dims(image, weight)?)
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 2], out: CudaOut<'_>) -> Result<()> {
        cuda::forward(device, &self.0.dims(inputs[0].shape(), inputs[1].shape())?, inputs, None, out)
    }

    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (image, weight) = (saved.input(0), saved.input(1));
        Ok([
            saved.grad_of(0, || apply(ImageGrad { geometry: self.0, image: *image.shape() }, [grad, weight]))?,
            saved.grad_of(1, || apply(WeightGrad { geometry: self.0, weight: *weight.shape() }, [image, grad]))?,
        ])
    }
}

impl<R: Real> CpuKernel<R, 2> for Forward {
    type Out = R;

    fn cpu(&self, [image, weight]: [CpuView<'_, R>; 2], out: StoredMut<'_, R>) -> Result<()> {
        let dims = self.0.dims(&Shape::new(image.shape)?, &Shape::new(weight.shape)?)?;
        cpu::forward(&dims, image.data, weight.data, None, false, out).map_err(Error::scratch("conv2d"))
    }
}

per_type! { Forward[3]: Real }

impl Op<3> for Forward {
    const NAME: &'static str = "conv2d";
    const SAVES: Saves = Saves::Inputs;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, [image, weight, bias]: [&Shape; 3]) -> Result<Shape> {
        let dims = self.0.dims(image, weight)?;
        if *bias != [dims.out_channels] {
            let expected = format!("with the weight {weight} it must be [{}]", dims.out_channels);
            return Err(Error::WrongShape { op: "conv2d", operand: "the bias", shape: *bias, expected });
        }
        shape_of_result(&dims)
    }

    fn cuda(&self, device: &CudaDevice, [image, weight, bias]: [CudaView<'_>; 3], out: CudaOut<'_>) -> Result<()> {
        let dims = self.0.dims(image.shape(), weight.shape())?;
        cuda::forward(device, &dims, [image, weight], Some(bias), out)
    }

    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        gradients(self.0, saved, grad)
    }
}

impl<R: Real> CpuKernel<R, 3> for Forward {
    type Out = R;

    fn cpu(&self, [image, weight, bias]: [CpuView<'_, R>; 3], out: StoredMut<'_, R>) -> Result<()> {
        let dims = self.0.dims(&Shape::new(image.shape)?, &Shape::new(weight.shape)?)?;
        cpu::forward(&dims, image.data, weight.data, Some(bias.data), false, out).map_err(Error::scratch("conv2d"))
    }
}

/// The gradients of image, weight and bias.
fn gradients(geometry: Conv2dOptions, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
    let (image, weight) = (saved.input(0), saved.input(1));
    let image_grad = saved.grad_of(0, || apply(ImageGrad { geometry, image: *image.shape() }, [grad, weight]))?;
    let op = WeightAndBiasGrad { geometry, weight: *weight.shape() };
    let [weight_grad, bias_grad] = match op.suits(saved) {
        true => op.parts(apply(op, [image, grad])?)?,
        false => [
            saved.grad_of(1, || apply(WeightGrad { geometry, weight: *weight.shape() }, [image, grad]))?,
            saved.grad_of(2, || grad.sum([0, 2, 3]))?,
        ],
    };
    Ok([image_grad, weight_grad, bias_grad])
}

/// The convolution with a bias, and `relu` after it, where [`is_fused`].
struct ForwardRelu(Conv2dOptions);

per_type! { ForwardRelu[3]: Real }

impl Op<3> for ForwardRelu {
    const NAME: &'static str = "conv2d_relu";
    const SAVES: Saves = Saves::OutputForLast;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, inputs: [&Shape; 3]) -> Result<Shape> {
        <Forward as Op<3>>::out_shape(&Forward(self.0), inputs)
    }

    fn cuda(&self, device: &CudaDevice, [image, weight, bias]: [CudaView<'_>; 3], out: CudaOut<'_>) -> Result<()> {
        cuda::forward_relu(device, &self.0.dims(image.shape(), weight.shape())?, [image, weight], bias, out)
    }

    /// Where the result is 0, the gradient counts as 0. It is read as such on a device, or if it is needed once; else made
    /// so first.
    fn backward(&self, saved: &Saved<'_, 3>, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let (image, weight, out) = (saved.input(0), saved.input(1), saved.output());
        let op = WeightAndBiasGrad { geometry: self.0, weight: *weight.shape() };
        let reads_twice = !matches!(grad.storage().device(), Device::Cpu);
        if !op.suits(saved) || (saved.needs(0) && !reads_twice) {
            return gradients(self.0, saved, &grad.where_positive(out)?);
        }
        let of_image = ImageGrad { geometry: self.0, image: *image.shape() };
        let image_grad = saved.grad_of(0, || apply(of_image, [grad, weight, out]))?;
        let [weight_grad, bias_grad] = op.parts(apply(op, [image, grad, out])?)?;
        Ok([image_grad, weight_grad, bias_grad])
    }
}

impl<R: Real> CpuKernel<R, 3> for ForwardRelu {
    type Out = R;

    fn cpu(&self, [image, weight, bias]: [CpuView<'_, R>; 3], out: StoredMut<'_, R>) -> Result<()> {
        let dims = self.0.dims(&Shape::new(image.shape)?, &Shape::new(weight.shape)?)?;
        cpu::forward(&dims, image.data, weight.data, Some(bias.data), true, out).map_err(Error::scratch("conv2d_relu"))
    }
}

/// The gradient of the image: `[gradient of the result, weight]` to the image's shape.
struct ImageGrad {
    geometry: Conv2dOptions,
    image: Shape,
}

per_type! { ImageGrad[2]: Real }

impl Op<2> for ImageGrad {
    const NAME: &'static str = "conv2d_image_grad";
    const SAVES: Saves = Saves::Inputs;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, _: [&Shape; 2]) -> Result<Shape> {
        Ok(self.image)
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 2], out: CudaOut<'_>) -> Result<()> {
        let [grad, weight] = inputs;
        let dims = self.geometry.dims(&self.image, weight.shape())?;
        cuda::image_grad(device, &dims, (grad, None), weight, out)
    }

    fn backward(&self, saved: &Saved<'_, 2>, image: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (grad, weight) = (saved.input(0), saved.input(1));
        Ok([
            saved.grad_of(0, || apply(Forward(self.geometry), [image, weight]))?,
            saved
                .grad_of(1, || apply(WeightGrad { geometry: self.geometry, weight: *weight.shape() }, [image, grad]))?,
        ])
    }
}

impl<R: Real> CpuKernel<R, 2> for ImageGrad {
    type Out = R;

    fn cpu(&self, [grad, weight]: [CpuView<'_, R>; 2], out: StoredMut<'_, R>) -> Result<()> {
        let dims = self.geometry.dims(&self.image, &Shape::new(weight.shape)?)?;
        cpu::input_grad(&dims, grad.data, weight.data, out).map_err(Error::scratch("conv2d_image_grad"))
    }
}

per_type! { ImageGrad[3]: Real }

/// The same of `[gradient of the result, weight, result]`, where the gradient counts as 0 unless the result is above 0; never
/// recorded, and on devices only.
impl Op<3> for ImageGrad {
    const NAME: &'static str = "conv2d_image_grad";
    const SAVES: Saves = Saves::Nothing;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, _: [&Shape; 3]) -> Result<Shape> {
        Ok(self.image)
    }

    fn cuda(&self, device: &CudaDevice, [grad, weight, out]: [CudaView<'_>; 3], to: CudaOut<'_>) -> Result<()> {
        let dims = self.geometry.dims(&self.image, weight.shape())?;
        cuda::image_grad(device, &dims, (grad, Some(out)), weight, to)
    }

    fn backward(&self, _: &Saved<'_, 3>, _: &Tensor) -> Result<[Option<Tensor>; 3]> {
        unreachable!("a recorded derivative is made of other operations")
    }
}

impl<R: Real> CpuKernel<R, 3> for ImageGrad {
    type Out = R;

    fn cpu(&self, _: [CpuView<'_, R>; 3], _: StoredMut<'_, R>) -> Result<()> {
        unreachable!("{} is two operations on the CPU", <Self as Op<3>>::NAME)
    }
}

/// The gradient of the weight: `[image, gradient of the result]` to the weight's shape.
struct WeightGrad {
    geometry: Conv2dOptions,
    weight: Shape,
}

per_type! { WeightGrad[2]: Real }

impl Op<2> for WeightGrad {
    const NAME: &'static str = "conv2d_weight_grad";
    const SAVES: Saves = Saves::Inputs;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, _: [&Shape; 2]) -> Result<Shape> {
        Ok(self.weight)
    }

    fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; 2], out: CudaOut<'_>) -> Result<()> {
        cuda::weight_grad(device, &self.geometry.dims(inputs[0].shape(), &self.weight)?, inputs, out)
    }

    fn backward(&self, saved: &Saved<'_, 2>, weight: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let (image, grad) = (saved.input(0), saved.input(1));
        Ok([
            saved.grad_of(0, || apply(ImageGrad { geometry: self.geometry, image: *image.shape() }, [grad, weight]))?,
            saved.grad_of(1, || apply(Forward(self.geometry), [image, weight]))?,
        ])
    }
}

impl<R: Real> CpuKernel<R, 2> for WeightGrad {
    type Out = R;

    fn cpu(&self, [image, grad]: [CpuView<'_, R>; 2], out: StoredMut<'_, R>) -> Result<()> {
        let dims = self.geometry.dims(&Shape::new(image.shape)?, &self.weight)?;
        cpu::weight_grad(&dims, image.data, grad.data, out).map_err(Error::scratch("conv2d_weight_grad"))
    }
}

/// The gradients of weight and bias in one tensor, one after the other; never recorded, where [`is_fused`].
///
/// - of `[image, gradient of the result]`
/// - of `[image, gradient of the result, result]`, where the gradient counts as 0 unless the result is above 0
#[derive(Clone, Copy)]
struct WeightAndBiasGrad {
    geometry: Conv2dOptions,
    weight: Shape,
}

impl WeightAndBiasGrad {
    /// Whether both gradients are wanted, as numbers, and there are kernels for that.
    fn suits(&self, saved: &Saved<'_, 3>) -> bool {
        let wanted = saved.needs(1) && saved.needs(2) && !is_grad_enabled();
        wanted && is_fused(self.geometry, saved.input(0), self.weight)
    }

    fn len(&self) -> Result<Shape> {
        Shape::new(&[self.weight.elements() + self.weight[0]])
    }

    fn dims(&self, image: &[usize]) -> Result<cpu::ConvDims> {
        self.geometry.dims(&Shape::new(image)?, &self.weight)
    }

    /// The two gradients.
    fn parts(&self, grads: Tensor) -> Result<[Option<Tensor>; 2]> {
        let [weight, bias] = grads.split_behind(self.weight.elements())?;
        Ok([Some(weight.reshape_to(self.weight)?), Some(bias)])
    }
}

/// `WeightAndBiasGrad` for so many inputs, of which the last are the gradient of the result and what it depends on.
macro_rules! weight_and_bias_grad {
    ($n:literal, [$image:ident, $grad:ident $(, $out:ident)?], $positive:expr) => {
        per_type! { WeightAndBiasGrad[$n]: Real }

        impl Op<$n> for WeightAndBiasGrad {
            const NAME: &'static str = "conv2d_weight_grad";
            const SAVES: Saves = Saves::Nothing;
            const INPUTS: Inputs = Inputs::WithoutGaps;

            fn out_shape(&self, _: [&Shape; $n]) -> Result<Shape> {
                self.len()
            }

            fn cuda(&self, device: &CudaDevice, inputs: [CudaView<'_>; $n], out: CudaOut<'_>) -> Result<()> {
                let dims = self.dims(inputs[0].shape())?;
                cuda::weight_and_bias_grad(device, &dims, inputs[0], (inputs[1], inputs.get(2).copied()), out)
            }

            fn backward(&self, _: &Saved<'_, $n>, _: &Tensor) -> Result<[Option<Tensor>; $n]> {
                unreachable!("a recorded derivative is made of other operations")
            }
        }

        impl<R: Real> CpuKernel<R, $n> for WeightAndBiasGrad {
            type Out = R;

            fn cpu(&self, [$image, $grad $(, $out)?]: [CpuView<'_, R>; $n], out: StoredMut<'_, R>) -> Result<()> {
                let gradient = cpu::Gradient { numbers: $grad.data, positive: $positive };
                cpu::weight_and_bias_grad(&self.dims($image.shape)?, $image.data, gradient, out)
                    .map_err(Error::scratch(<Self as Op<$n>>::NAME))
            }
        }
    };
}

weight_and_bias_grad!(2, [image, grad], None);
weight_and_bias_grad!(3, [image, grad, out], Some(out.data));
