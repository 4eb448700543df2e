//! Layers that pad or rearrange sequences, images and volumes: padding, [`PixelShuffle`], [`PixelUnshuffle`],
//! [`ChannelShuffle`].

use super::{debug_is_display, number, tuple};
use crate::functional as F;
use crate::functional::shared::wrong_shape;
use crate::{Forward, Module, module_scope};
use pagelock_tensor::{PadMode, Result, Tensor};

/// The padding of `N` dimensions: one number for all ends, or a pair `[before, after]` for each dimension, the last
/// dimension first.
///
/// ```
/// use pagelock_nn::ZeroPad2d;
///
/// assert_eq!(ZeroPad2d::new(2).to_string(), ZeroPad2d::new([[2, 2], [2, 2]]).to_string());
/// ```
pub trait Padding<const N: usize> {
    /// One pair for each dimension, the last dimension first.
    fn into_pairs(self) -> [[usize; 2]; N];
}

impl<const N: usize> Padding<N> for usize {
    fn into_pairs(self) -> [[usize; 2]; N] {
        [[self; 2]; N]
    }
}

impl<const N: usize> Padding<N> for [[usize; 2]; N] {
    fn into_pairs(self) -> [[usize; 2]; N] {
        self
    }
}

/// Pads an input of an optional batch, channels, and the padded dimensions.
fn padded(op: &str, x: &Tensor, padding: &[[usize; 2]], mode: PadMode) -> Result<Tensor> {
    let rank = padding.len() + 1;
    if x.rank() != rank && x.rank() != rank + 1 {
        let expected = format!("it must have {rank} dimensions, or {} with a batch; reshape it", rank + 1);
        return Err(wrong_shape(op, "the input", x.shape(), &expected));
    }
    let sizes: Vec<isize> = padding.iter().flatten().map(|&size| isize::try_from(size).unwrap_or(isize::MAX)).collect();
    x.pad(&sizes, mode)
}

/// `padding! { Name, dimensions, inputs, shape, [sizes of an example, of its output], what is added, mode }`
macro_rules! padding {
    (
        $name:ident, $n:literal, $inputs:literal, $shape:literal, [$example:literal, $output:literal],
        $added:literal, $mode:expr
    ) => {
        #[doc = concat!("Pads ", $inputs, " with ", $added, ", as PyTorch's `nn.", stringify!($name), "`.")]
        ///
        #[doc = concat!("- input: `[batch, channels, ", $shape, "]`, or one sample without `batch`")]
        /// - output: the same, with larger dimensions
        ///
        /// ```
        #[doc = concat!("use pagelock_nn::{", stringify!($name), ", Forward};")]
        /// # use pagelock_tensor::Tensor;
        #[doc = concat!("let y = ", stringify!($name), "::new(1).forward(&Tensor::zeros([2", $example, "])?)?;")]
        #[doc = concat!("assert_eq!(y.dims(), [2", $output, "]);")]
        /// # Ok::<(), pagelock_tensor::Error>(())
        /// ```
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            padding: [[usize; 2]; $n],
        }

        impl $name {
            /// One number for all ends, or a pair for each dimension, the last dimension first.
            pub fn new(padding: impl Padding<$n>) -> Self {
                Self { padding: padding.into_pairs() }
            }

            fn describe(&self) -> String {
                tuple(self.padding.as_flattened())
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                padded(stringify!($name), x, &self.padding, $mode)
            }
        }

        debug_is_display!($name);
    };
}

/// `paddings! { [three names], what is added, mode }`: the layers of sequences, images and volumes.
macro_rules! paddings {
    ([$of_sequences:ident, $of_images:ident, $of_volumes:ident], $added:literal, $mode:expr) => {
        padding! { $of_sequences, 1, "sequences", "length", [", 4", ", 6"], $added, $mode }
        padding! { $of_images, 2, "images", "height, width", [", 4, 4", ", 6, 6"], $added, $mode }
        padding! { $of_volumes, 3, "volumes", "depth, height, width", [", 4, 4, 4", ", 6, 6, 6"], $added, $mode }
    };
}

paddings! { [ZeroPad1d, ZeroPad2d, ZeroPad3d], "zeros", PadMode::Constant(0.0) }
paddings! {
    [ReflectionPad1d, ReflectionPad2d, ReflectionPad3d],
    "their elements mirrored at the edges, which are not repeated",
    PadMode::Reflect
}
paddings! {
    [ReplicationPad1d, ReplicationPad2d, ReplicationPad3d], "copies of the elements at the edges", PadMode::Replicate
}
paddings! {
    [CircularPad1d, CircularPad2d, CircularPad3d], "the elements from the opposite end", PadMode::Circular
}

/// `constant_padding! { Name, dimensions, inputs, shape, [sizes of an example, of its output] }`
macro_rules! constant_padding {
    ($name:ident, $n:literal, $inputs:literal, $shape:literal, [$example:literal, $output:literal]) => {
        #[doc = concat!("Pads ", $inputs, " with a constant, as PyTorch's `nn.", stringify!($name), "`.")]
        ///
        #[doc = concat!("- input: `[batch, channels, ", $shape, "]`, or one sample without `batch`")]
        /// - output: the same, with larger dimensions
        ///
        /// ```
        #[doc = concat!("use pagelock_nn::{", stringify!($name), ", Forward};")]
        /// # use pagelock_tensor::Tensor;
        #[doc = concat!("let y = ", stringify!($name), "::new(1, 0.5).forward(&Tensor::zeros([2", $example, "])?)?;")]
        #[doc = concat!("assert_eq!(y.dims(), [2", $output, "]);")]
        /// # Ok::<(), pagelock_tensor::Error>(())
        /// ```
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            padding: [[usize; 2]; $n],
            #[module(skip)]
            value: f64,
        }

        impl $name {
            /// One number for all ends, or a pair for each dimension, the last dimension first. The new elements are
            /// `value`.
            pub fn new(padding: impl Padding<$n>, value: f64) -> Self {
                Self { padding: padding.into_pairs(), value }
            }

            fn describe(&self) -> String {
                format!("padding={}, value={}", tuple(self.padding.as_flattened()), number(self.value))
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                padded(stringify!($name), x, &self.padding, PadMode::Constant(self.value))
            }
        }

        debug_is_display!($name);
    };
}

constant_padding! { ConstantPad1d, 1, "sequences", "length", [", 4", ", 6"] }
constant_padding! { ConstantPad2d, 2, "images", "height, width", [", 4, 4", ", 6, 6"] }
constant_padding! { ConstantPad3d, 3, "volumes", "depth, height, width", [", 4, 4, 4", ", 6, 6, 6"] }

/// `shuffle! { docs; Name, setting, function }`
macro_rules! shuffle {
    ($(#[$docs:meta])* $name:ident, $factor:ident, $function:path) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            $factor: usize,
        }

        impl $name {
            /// With this factor, or number of groups.
            pub fn new($factor: usize) -> Self {
                Self { $factor }
            }

            fn describe(&self) -> String {
                format!(concat!(stringify!($factor), "={}"), self.$factor)
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                $function(x, self.$factor)
            }
        }

        debug_is_display!($name);
    };
}

shuffle! {
    /// Turns `[batch, channels · r², height, width]` into `[batch, channels, height · r, width · r]`.
    ///
    /// ```
    /// use pagelock_nn::{Forward, PixelShuffle};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(PixelShuffle::new(2).forward(&Tensor::zeros([1, 8, 3, 3])?)?.dims(), [1, 2, 6, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    PixelShuffle, upscale_factor, F::pixel_shuffle
}

shuffle! {
    /// Turns pixels into channels: the inverse of [`PixelShuffle`].
    ///
    /// ```
    /// use pagelock_nn::{Forward, PixelUnshuffle};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(PixelUnshuffle::new(2).forward(&Tensor::zeros([1, 2, 6, 6])?)?.dims(), [1, 8, 3, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    PixelUnshuffle, downscale_factor, F::pixel_unshuffle
}

shuffle! {
    /// Interleaves the channels of groups, as PyTorch's `nn.ChannelShuffle`; see
    /// [`channel_shuffle`](F::channel_shuffle).
    ///
    /// ```
    /// use pagelock_nn::{ChannelShuffle, Forward};
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[[1.0], [2.0], [3.0], [4.0]]])?;
    /// assert_eq!(ChannelShuffle::new(2).forward(&x)?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ChannelShuffle, groups, F::channel_shuffle
}
