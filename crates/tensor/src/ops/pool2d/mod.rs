//! Two-dimensional pooling: largest, average, and average to a given size.
//!
//! An average and its transpose are each other's derivative. The largest element is a gather by position, so its
//! derivative is a scatter.

mod cpu;
mod cuda;

use self::cpu::Windows;
use self::cuda::Pooling;
use crate::autograd::{Saved, is_grad_enabled, record};
use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::op::{Derivative, Saves, on_cpu, on_cuda};
use crate::ops::index::scatter_add;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor, by_bits, by_real};

/// The geometry of pooling: windows of `kernel`, `stride` apart, over an image padded by `padding`.
///
/// ```
/// # use pagelock_tensor::Pool2dOptions;
/// assert_eq!(Pool2dOptions::new(2), Pool2dOptions { kernel: [2, 2], stride: [2, 2], padding: [0, 0] });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool2dOptions {
    /// The window, `[height, width]`, in pixels.
    pub kernel: [usize; 2],
    /// Distance between neighboring windows.
    pub stride: [usize; 2],
    /// Rows and columns added on each side: −∞ for the largest, zeros (which count) for the average.
    pub padding: [usize; 2],
}

impl Pool2dOptions {
    /// Square windows side by side, without padding.
    pub fn new(kernel: usize) -> Pool2dOptions {
        Pool2dOptions { kernel: [kernel; 2], stride: [kernel; 2], padding: [0; 2] }
    }

    /// The same stride both ways.
    #[must_use]
    pub fn stride(self, stride: usize) -> Pool2dOptions {
        Pool2dOptions { stride: [stride; 2], ..self }
    }

    /// The same padding on all sides.
    #[must_use]
    pub fn padding(self, padding: usize) -> Pool2dOptions {
        Pool2dOptions { padding: [padding; 2], ..self }
    }

    /// Whether windows do not overlap, and each row of windows has rows of the image to itself, without rows left over.
    fn covers_by_rows(&self, image: &Shape) -> Result<bool> {
        let dims = self.dims(MAX, image)?;
        let are_apart = (0..2).all(|axis| self.kernel[axis] <= self.stride[axis] && self.padding[axis] == 0);
        Ok(are_apart && dims.in_size[0] == dims.out_size[0] * self.stride[0] && dims.in_size[1] > 0)
    }

    /// All sizes, from the image's shape. This is the only place that rejects sizes.
    fn dims(&self, op: &'static str, image: &Shape) -> Result<cpu::PoolDims> {
        let in_size = image_size(op, image)?;
        for (argument, values) in [("kernel", self.kernel), ("stride", self.stride)] {
            if values.contains(&0) {
                return Err(Error::bad_argument(op, argument, "0", "it must be at least 1"));
            }
        }
        let mut out_size = [0; 2];
        for axis in 0..2 {
            let [kernel, padding] = [self.kernel[axis], self.padding[axis]];
            if padding > kernel / 2 {
                return Err(Error::bad_argument(
                    op,
                    "padding",
                    padding,
                    format!("it must be at most half of the kernel, which is {kernel}"),
                ));
            }
            // Every window must have a pixel of the image. `2 * padding` cannot overflow: it is at most the kernel.
            let reach = in_size[axis].checked_add(2 * padding).filter(|_| in_size[axis] > 0);
            let reach = reach.and_then(|reach| reach.checked_sub(kernel)).ok_or_else(|| {
                Error::wrong_shape(
                    op,
                    "the image",
                    image,
                    format!(
                        "it must have pixels and, padded by {:?}, be at least as large as the kernel {:?}",
                        self.padding, self.kernel
                    ),
                )
            })?;
            out_size[axis] = reach / self.stride[axis] + 1;
        }
        Ok(cpu::PoolDims {
            planes: planes(image),
            in_size,
            out_size,
            kernel: self.kernel,
            stride: self.stride,
            padding: self.padding,
        })
    }
}

/// The last two sizes of `[…, height, width]`.
fn image_size(op: &'static str, image: &Shape) -> Result<[usize; 2]> {
    match **image {
        [.., height, width] if image.rank() >= 3 => Ok([height, width]),
        _ => Err(Error::wrong_shape(
            op,
            "the image",
            image,
            "it must be [batch, channels, height, width] or [channels, height, width]",
        )),
    }
}

fn planes(image: &Shape) -> usize {
    image[..image.rank() - 2].iter().product()
}

fn resized(image: &Shape, [height, width]: [usize; 2]) -> Shape {
    image.with(image.rank() - 2, height).with(image.rank() - 1, width)
}

const MAX: &str = "max_pool2d";

impl Tensor {
    /// The largest element of each window of `[…, height, width]`; NaN wins. The first of equals gets the
    /// gradient, or the last NaN, as in PyTorch.
    ///
    /// # Errors
    /// [`Error::Argument`] if the window does not fit, or for a zero in the geometry or padding of
    /// more than half of the kernel.
    pub fn max_pool2d(&self, geometry: Pool2dOptions) -> Result<Tensor> {
        // On the CPU, searching again in `backward` would take longer than all else there. A device searches faster
        // than it would write positions.
        let keeps = self.device().is_cpu() && self.requires_grad() && is_grad_enabled();
        let image = self.raw().gap_free_in_graph()?;
        let positions = keeps.then(|| largest(Pooling::PlaceOfLargest, geometry, &image)).transpose()?;
        let result = largest(Pooling::Largest, geometry, &image)?;
        Ok(record(MAX, MaxPool { geometry, positions }, [Some(&image)], result).typed())
    }

    /// The average of each window of `[…, height, width]`; padding counts as zeros.
    ///
    /// # Errors
    /// As [`Tensor::max_pool2d`].
    pub fn avg_pool2d(&self, geometry: Pool2dOptions) -> Result<Tensor> {
        Average::of_sliding(geometry, *self.shape())?.of(self)
    }

    /// Averages that resize an image `[…, height, width]` to `size`: window `i` of `n` covers pixels ⌊i·in/n⌋ to ⌈(i
    /// + 1)·in/n⌉, as in PyTorch.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::zeros([64, 10, 4, 4])?.adaptive_avg_pool2d([1, 1])?.shape(), &[64, 10, 1, 1]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if it is no image, or for a size of 0.
    pub fn adaptive_avg_pool2d(&self, size: [usize; 2]) -> Result<Tensor> {
        Average::of_size(size, *self.shape())?.of(self)
    }
}

/// The largest element of each window, or where in its plane it is; not recorded.
fn largest(pooling: Pooling, geometry: Pool2dOptions, image: &Raw) -> Result<Raw> {
    let (dims, image) = (geometry.dims(MAX, image.shape())?, &image.gap_free()?);
    let is_place = pooling == Pooling::PlaceOfLargest;
    let shape_and_dtype = (resized(image.shape(), dims.out_size), if is_place { DType::I64 } else { image.dtype() });
    match image.storage.device() {
        Device::Cpu => on_cpu(MAX, [Some(image)], shape_and_dtype, &mut |inputs, out| {
            let of_window = dims.kernel[0].min(dims.in_size[0]).saturating_mul(dims.in_size[1]);
            if is_place && u32::try_from(of_window).is_err() {
                let expected = "at most 2^32 pixels, so that positions in them have 32 bits; split the image";
                return Err(Error::bad_argument(MAX, "the rows of a window", of_window, expected));
            }
            by_real!(inputs.dtype(), R => {
                let x = inputs.view::<R>(0).data;
                match is_place {
                    true => cpu::max_positions(&dims, x, out.stored().plain()),
                    false => cpu::max(&dims, x, out.stored()),
                }
                .map_err(Error::scratch(MAX))
            })
        }),
        Device::Cuda(device) => on_cuda(MAX, device, [Some(image)], shape_and_dtype, &mut |inputs, out| {
            cuda::run(device, MAX, pooling, &Windows::Sliding(dims), inputs.cuda_view(0), out)
        }),
    }
}

struct MaxPool {
    geometry: Pool2dOptions,
    /// Where the largest elements are, if the forward pass has found that.
    positions: Option<Raw>,
}

impl Derivative<1> for MaxPool {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let image = saved.input(0);
        let positions = match &self.positions {
            Some(positions) => positions.clone(),
            None => largest(Pooling::PlaceOfLargest, self.geometry, image.raw())?,
        };
        if !is_grad_enabled() && image.device().is_cpu() && self.geometry.covers_by_rows(image.shape())? {
            return Ok([Some(place_largest(grad, &positions, *image.shape(), self.geometry.stride[0])?)]);
        }
        let flat = |size: [usize; 2]| Shape::new(&[planes(image.shape()), size[0] * size[1]]);
        let windows = flat(image_size(MAX, grad.shape())?)?;
        let into = flat(image_size(MAX, image.shape())?)?;
        let scattered = scatter_add(&grad.reshape_to(windows)?, 1, positions.reshape_to(windows)?, into)?;
        Ok([Some(scattered.reshape_to(*image.shape())?)])
    }
}

/// The derivative of [`MaxPool`] on the CPU, for windows that do not overlap, where each row of windows takes `step`
/// rows of the image. Each gradient is written to its place. Not recorded.
fn place_largest(grad: &Tensor, positions: &Raw, image: Shape, step: usize) -> Result<Tensor> {
    let ([height, width], windows) = (image_size(MAX, &image)?, image_size(MAX, positions.shape())?);
    let grad = grad.raw().gap_free()?;
    let out = on_cpu(MAX, [Some(&grad), Some(positions)], (image, grad.dtype()), &mut |inputs, out| {
        let positions = inputs.view::<i64>(1).data.plain();
        by_bits!(inputs.dtype(), B => {
            let grad = inputs.bits_of::<B>(0).data.plain();
            cpu::place_largest([height / step, step * width], windows[1], grad, positions, out.bits());
        });
        Ok(())
    })?;
    Ok(out.typed())
}

/// The averages of windows, and their transpose, each the other's derivative.
#[derive(Clone, Copy)]
struct Average {
    /// The names of the two operations.
    ops: [&'static str; 2],
    windows: Windows,
    image: Shape,
    result: Shape,
}

impl Average {
    fn of_sliding(geometry: Pool2dOptions, image: Shape) -> Result<Average> {
        let ops = ["avg_pool2d", "avg_pool2d_grad"];
        let dims = geometry.dims(ops[0], &image)?;
        Ok(Average { ops, windows: Windows::Sliding(dims), image, result: resized(&image, dims.out_size) })
    }

    fn of_size(size: [usize; 2], image: Shape) -> Result<Average> {
        let ops = ["adaptive_avg_pool2d", "adaptive_avg_pool2d_grad"];
        let (op, from) = (ops[0], image_size(ops[0], &image)?);
        if size.contains(&0) {
            let (value, expected) = (format!("{size:?}"), "it must be at least 1 in both dimensions");
            return Err(Error::bad_argument(op, "size", value, expected));
        }
        if from.contains(&0) && image.elements() == 0 && planes(&image) > 0 {
            return Err(Error::empty(op, "the image", "give it at least one pixel"));
        }
        Ok(Average { ops, windows: Windows::Adaptive(from, size), image, result: resized(&image, size) })
    }

    /// The averages of an image, recorded.
    fn of(self, image: &Tensor) -> Result<Tensor> {
        let result = self.run(Pooling::Mean, image.raw(), self.result)?;
        Ok(record(self.ops[0], self, [Some(image.raw())], result).typed())
    }

    /// The transpose, recorded: each number divided among the pixels of its window.
    fn spread(self, averages: &Tensor) -> Result<Tensor> {
        let image = self.run(Pooling::Spread, averages.raw(), self.image)?;
        Ok(record(self.ops[1], SpreadAverage(self), [Some(averages.raw())], image).typed())
    }

    fn run(&self, pooling: Pooling, x: &Raw, shape: Shape) -> Result<Raw> {
        let spreads = pooling == Pooling::Spread;
        let (op, x) = (self.ops[usize::from(spreads)], &x.gap_free()?);
        match x.storage.device() {
            Device::Cpu => on_cpu(op, [Some(x)], (shape, x.dtype()), &mut |inputs, out| {
                by_real!(inputs.dtype(), R => {
                    let (x, out) = (inputs.view::<R>(0).data, out.stored());
                    let run = if spreads { cpu::spread } else { cpu::average };
                    run(&self.windows, x, out).map_err(Error::scratch(op))
                })
            }),
            Device::Cuda(device) => on_cuda(op, device, [Some(x)], (shape, x.dtype()), &mut |inputs, out| {
                let [x] = inputs.cuda_views();
                cuda::run(device, op, pooling, &self.windows, x, out)
            }),
        }
    }
}

impl Derivative<1> for Average {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(self.spread(grad)?)])
    }
}

/// The derivative of [`Average::spread`].
struct SpreadAverage(Average);

impl Derivative<1> for SpreadAverage {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(self.0.of(grad)?)])
    }
}
