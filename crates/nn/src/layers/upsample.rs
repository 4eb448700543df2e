//! [`Upsample`], which resizes sequences, images and volumes, and PyTorch's older names for two of its modes.

use super::{debug_is_display, number, tuple};
use crate::functional::{self as F, InterpolateOptions, InterpolationMode, Scale};
use crate::setters::setters;
use crate::{Forward, Module, module_scope};
use pagelock_tensor::{Result, Tensor};

/// Resizes sequences, images or volumes, as PyTorch's `nn.Upsample`. Each element is that of the nearest neighbor,
/// unless another [`mode`](Self::mode) is chosen.
///
/// - input: `[batch, channels, ..]` with one to three more dimensions
/// - output: the same, with these dimensions times the factor (rounded down), or of the given size
///
/// ```
/// use pagelock_nn::{Forward, Upsample, functional::InterpolationMode};
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::zeros([1, 3, 4, 5])?;
/// assert_eq!(Upsample::scale_factor(2.0).forward(&x)?.dims(), [1, 3, 8, 10]);
/// assert_eq!(Upsample::size(7).mode(InterpolationMode::Bilinear).forward(&x)?.dims(), [1, 3, 7, 7]);
/// assert_eq!(Upsample::sizes(&[6, 10]).forward(&x)?.dims(), [1, 3, 6, 10]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Module)]
#[module(details = Self::describe)]
pub struct Upsample {
    #[module(skip)]
    to: To,
    #[module(skip)]
    options: InterpolateOptions,
}

#[derive(Clone)]
enum To {
    Sizes(Vec<usize>),
    Times(Vec<f64>),
}

impl Upsample {
    /// To this size in each dimension.
    pub fn size(size: usize) -> Self {
        Self::sizes(&[size])
    }

    /// To these sizes, one for each dimension.
    pub fn sizes(sizes: &[usize]) -> Self {
        Self { to: To::Sizes(sizes.to_vec()), options: InterpolateOptions::default() }
    }

    /// To this many times the size. A factor that is not above 0 is an error of `forward`.
    pub fn scale_factor(scale_factor: f64) -> Self {
        Self::scale_factors(&[scale_factor])
    }

    /// To this many times the size, one factor for each dimension.
    pub fn scale_factors(scale_factors: &[f64]) -> Self {
        Self { to: To::Times(scale_factors.to_vec()), options: InterpolateOptions::default() }
    }

    fn describe(&self) -> String {
        let to = match &self.to {
            To::Sizes(sizes) => match **sizes {
                [size] => format!("size={size}"),
                _ => format!("size={}", tuple(sizes)),
            },
            To::Times(factors) => match **factors {
                [factor] => format!("scale_factor={}", number(factor)),
                _ => format!(
                    "scale_factor=({})",
                    factors.iter().map(|&factor| number(factor)).collect::<Vec<_>>().join(", ")
                ),
            },
        };
        format!("{to}, mode='{}'", self.options.mode.name())
    }
}

setters! { Upsample,
    /// How elements are interpolated.
    mode: InterpolationMode => options.mode = mode;
    /// Whether the centers of the corner elements stay aligned.
    align_corners: bool => options.align_corners = align_corners;
    /// Whether factors are recomputed from the rounded sizes.
    recompute_scale_factor: bool => options.recompute_scale_factor = recompute_scale_factor;
}

impl Forward for Upsample {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        let to = match &self.to {
            To::Sizes(sizes) => Scale::Size(sizes),
            To::Times(factors) => Scale::Factor(factors),
        };
        F::interpolate(x, to, self.options)
    }
}

debug_is_display!(Upsample);

/// `named! { docs; Name, mode, align_corners }`
macro_rules! named {
    ($(#[$docs:meta])* $name:ident, $mode:ident, $align_corners:literal) => {
        $(#[$docs])*
        #[derive(Clone, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            upsample: Upsample,
        }

        impl $name {
            fn of(upsample: Upsample) -> Self {
                Self { upsample: upsample.mode(InterpolationMode::$mode).align_corners($align_corners) }
            }

            /// To this size in each dimension.
            pub fn size(size: usize) -> Self {
                Self::of(Upsample::size(size))
            }

            /// To this many times the size. A factor that is not above 0 is an error of `forward`.
            pub fn scale_factor(scale_factor: f64) -> Self {
                Self::of(Upsample::scale_factor(scale_factor))
            }

            fn describe(&self) -> String {
                self.upsample.describe()
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                self.upsample.forward(x)
            }
        }

        debug_is_display!($name);
    };
}

named! {
    /// [`Upsample`] of images with the nearest element, as PyTorch's `nn.UpsamplingNearest2d`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, UpsamplingNearest2d};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(UpsamplingNearest2d::size(4).forward(&Tensor::zeros([1, 3, 2, 2])?)?.dims(), [1, 3, 4, 4]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    UpsamplingNearest2d, Nearest, false
}

named! {
    /// [`Upsample`] of images by bilinear interpolation with aligned corners, as PyTorch's `nn.UpsamplingBilinear2d`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, UpsamplingBilinear2d};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(UpsamplingBilinear2d::scale_factor(2.0).forward(&Tensor::zeros([1, 3, 2, 2])?)?.dims(), [1, 3, 4, 4]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    UpsamplingBilinear2d, Bilinear, true
}
