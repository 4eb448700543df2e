//! Layers that make images smaller: [`MaxPool2d`], [`AvgPool2d`], [`AdaptiveAvgPool2d`].

use super::{Pair, debug_is_display, short};
use crate::{Forward, Module, module_scope};
use pagelock_tensor::{Pool2dOptions, Result, Tensor};

macro_rules! pool {
    ($(#[$docs:meta])* $name:ident, $method:ident, $details:path) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Module)]
        #[module(details = $details)]
        pub struct $name {
            #[module(skip)]
            geometry: Pool2dOptions,
        }

        impl $name {
            /// Windows of `kernel` (`2` for `[2, 2]`, or a pair of height and width) side by side.
            pub fn new(kernel: impl Pair) -> Self {
                let kernel = kernel.into_pair();
                Self { geometry: Pool2dOptions { kernel, stride: kernel, padding: [0, 0] } }
            }

            /// By how many pixels the window moves: `2`, or a pair of height and width.
            #[must_use]
            pub fn stride(self, stride: impl Pair) -> Self {
                Self { geometry: Pool2dOptions { stride: stride.into_pair(), ..self.geometry } }
            }

            /// How far windows may reach beyond the image: `1`, or a pair of height and width.
            #[must_use]
            pub fn padding(self, padding: impl Pair) -> Self {
                Self { geometry: Pool2dOptions { padding: padding.into_pair(), ..self.geometry } }
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                x.$method(self.geometry)
            }
        }

        debug_is_display!($name);
    };
}

fn describe_max(pool: &MaxPool2d) -> String {
    format!("{}, dilation=1, ceil_mode=False", describe(&pool.geometry))
}

fn describe_avg(pool: &AvgPool2d) -> String {
    describe(&pool.geometry)
}

fn describe(pool: &Pool2dOptions) -> String {
    format!("kernel_size={}, stride={}, padding={}", short(pool.kernel), short(pool.stride), short(pool.padding))
}

pool! {
    /// The largest of each window.
    ///
    /// - input: `[batch, channels, height, width]`
    /// - output: `[batch, channels, out_h, out_w]` with `out_h = (height + 2·padding − kernel_h) / stride_h + 1`
    ///
    /// ```
    /// use pagelock_nn::{Forward, MaxPool2d};
    /// # use pagelock_tensor::Tensor;
    /// let image = Tensor::arange(0.0, 16.0, 1.0)?.reshape([1, 1, 4, 4])?;
    /// assert_eq!(MaxPool2d::new(2).forward(&image)?.to_vec::<f32>()?, [5.0, 7.0, 13.0, 15.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    MaxPool2d, max_pool2d, describe_max
}

pool! {
    /// The mean of each window; pixels beyond the image count as 0.
    ///
    /// - input: `[batch, channels, height, width]`
    /// - output: `[batch, channels, out_h, out_w]` with `out_h = (height + 2·padding − kernel_h) / stride_h + 1`
    ///
    /// ```
    /// use pagelock_nn::{AvgPool2d, Forward};
    /// # use pagelock_tensor::Tensor;
    /// let image = Tensor::arange(0.0, 16.0, 1.0)?.reshape([1, 1, 4, 4])?;
    /// assert_eq!(AvgPool2d::new(2).forward(&image)?.to_vec::<f32>()?, [2.5, 4.5, 10.5, 12.5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    AvgPool2d, avg_pool2d, describe_avg
}

/// The means of as many windows as the output has pixels, for images of any size.
///
/// - input: `[batch, channels, height, width]`
/// - output: `[batch, channels, size_h, size_w]`
///
/// ```
/// use pagelock_nn::{AdaptiveAvgPool2d, Forward};
/// # use pagelock_tensor::Tensor;
/// let images = Tensor::ones([64, 10, 4, 4])?;
/// assert_eq!(AdaptiveAvgPool2d::new(1).forward(&images)?.dims(), [64, 10, 1, 1]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Module)]
#[module(details = Self::describe)]
pub struct AdaptiveAvgPool2d {
    #[module(skip)]
    size: [usize; 2],
}

impl AdaptiveAvgPool2d {
    /// `size` is `1` for `[1, 1]`, or a pair of height and width.
    pub fn new(size: impl Pair) -> Self {
        Self { size: size.into_pair() }
    }

    fn describe(&self) -> String {
        format!("output_size={}", short(self.size))
    }
}

impl Forward for AdaptiveAvgPool2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        x.adaptive_avg_pool2d(self.size)
    }
}

debug_is_display!(AdaptiveAvgPool2d);
