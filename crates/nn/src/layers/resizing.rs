//! Layers that pad or rearrange sequences, images and volumes: padding, [`PixelShuffle`], [`PixelUnshuffle`],
//! [`ChannelShuffle`].

use super::{debug_is_display, number};
use crate::functional as F;
use crate::{Forward, Module, module_scope};
use pagelock_tensor::{Error, PadMode, Result, Tensor};

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
        return Err(Error::Argument(format!("{op}: the input is {}, but {expected}", x.shape())));
    }
    let sizes: Vec<isize> = padding.iter().flatten().map(|&size| isize::try_from(size).unwrap_or(isize::MAX)).collect();
    x.pad(&sizes, mode)
}

/// The padding as PyTorch prints it: `(1, 2, 0, 0)`.
fn shown(padding: &[[usize; 2]]) -> String {
    let all: Vec<String> = padding.iter().flatten().map(usize::to_string).collect();
    format!("({})", all.join(", "))
}

/// `padding! { docs; Name, dimensions, mode }`
macro_rules! padding {
    ($(#[$docs:meta])* $name:ident, $dims:literal, $mode:expr) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            padding: [[usize; 2]; $dims],
        }

        impl $name {
            /// One number for all ends, or a pair for each dimension, the last dimension first.
            pub fn new(padding: impl Padding<$dims>) -> Self {
                Self { padding: padding.into_pairs() }
            }

            fn describe(&self) -> String {
                shown(&self.padding)
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

/// `constant_padding! { docs; Name, dimensions }`
macro_rules! constant_padding {
    ($(#[$docs:meta])* $name:ident, $dims:literal) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            padding: [[usize; 2]; $dims],
            #[module(skip)]
            value: f64,
        }

        impl $name {
            /// One number for all ends, or a pair for each dimension, the last dimension first. The new elements are
            /// `value`.
            pub fn new(padding: impl Padding<$dims>, value: f64) -> Self {
                Self { padding: padding.into_pairs(), value }
            }

            fn describe(&self) -> String {
                format!("padding={}, value={}", shown(&self.padding), number(self.value))
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

padding! {
    /// Pads sequences with zeros, as PyTorch's `nn.ZeroPad1d`.
    ///
    /// - input: `[batch, channels, length]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{Forward, ZeroPad1d};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ZeroPad1d::new(1).forward(&Tensor::zeros([2, 4])?)?.dims(), [2, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ZeroPad1d, 1, PadMode::Constant(0.0)
}

padding! {
    /// Pads images with zeros, as PyTorch's `nn.ZeroPad2d`.
    ///
    /// - input: `[batch, channels, height, width]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{Forward, ZeroPad2d};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ZeroPad2d::new(1).forward(&Tensor::zeros([2, 4, 4])?)?.dims(), [2, 6, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ZeroPad2d, 2, PadMode::Constant(0.0)
}

padding! {
    /// Pads volumes with zeros, as PyTorch's `nn.ZeroPad3d`.
    ///
    /// - input: `[batch, channels, depth, height, width]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{Forward, ZeroPad3d};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ZeroPad3d::new(1).forward(&Tensor::zeros([2, 4, 4, 4])?)?.dims(), [2, 6, 6, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ZeroPad3d, 3, PadMode::Constant(0.0)
}

padding! {
    /// Pads sequences with their elements mirrored at the edges, which are not repeated, as PyTorch's
    /// `nn.ReflectionPad1d`.
    ///
    /// - input: `[batch, channels, length]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{Forward, ReflectionPad1d};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ReflectionPad1d::new(1).forward(&Tensor::zeros([2, 4])?)?.dims(), [2, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ReflectionPad1d, 1, PadMode::Reflect
}

padding! {
    /// Pads images with their elements mirrored at the edges, which are not repeated, as PyTorch's
    /// `nn.ReflectionPad2d`.
    ///
    /// - input: `[batch, channels, height, width]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{Forward, ReflectionPad2d};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ReflectionPad2d::new(1).forward(&Tensor::zeros([2, 4, 4])?)?.dims(), [2, 6, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ReflectionPad2d, 2, PadMode::Reflect
}

padding! {
    /// Pads volumes with their elements mirrored at the edges, which are not repeated, as PyTorch's
    /// `nn.ReflectionPad3d`.
    ///
    /// - input: `[batch, channels, depth, height, width]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{Forward, ReflectionPad3d};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ReflectionPad3d::new(1).forward(&Tensor::zeros([2, 4, 4, 4])?)?.dims(), [2, 6, 6, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ReflectionPad3d, 3, PadMode::Reflect
}

padding! {
    /// Pads sequences with copies of the elements at the edges, as PyTorch's `nn.ReplicationPad1d`.
    ///
    /// - input: `[batch, channels, length]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{Forward, ReplicationPad1d};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ReplicationPad1d::new(1).forward(&Tensor::zeros([2, 4])?)?.dims(), [2, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ReplicationPad1d, 1, PadMode::Replicate
}

padding! {
    /// Pads images with copies of the elements at the edges, as PyTorch's `nn.ReplicationPad2d`.
    ///
    /// - input: `[batch, channels, height, width]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{Forward, ReplicationPad2d};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ReplicationPad2d::new(1).forward(&Tensor::zeros([2, 4, 4])?)?.dims(), [2, 6, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ReplicationPad2d, 2, PadMode::Replicate
}

padding! {
    /// Pads volumes with copies of the elements at the edges, as PyTorch's `nn.ReplicationPad3d`.
    ///
    /// - input: `[batch, channels, depth, height, width]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{Forward, ReplicationPad3d};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ReplicationPad3d::new(1).forward(&Tensor::zeros([2, 4, 4, 4])?)?.dims(), [2, 6, 6, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ReplicationPad3d, 3, PadMode::Replicate
}

padding! {
    /// Pads sequences with the elements from the opposite end, as PyTorch's `nn.CircularPad1d`.
    ///
    /// - input: `[batch, channels, length]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{CircularPad1d, Forward};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(CircularPad1d::new(1).forward(&Tensor::zeros([2, 4])?)?.dims(), [2, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    CircularPad1d, 1, PadMode::Circular
}

padding! {
    /// Pads images with the elements from the opposite end, as PyTorch's `nn.CircularPad2d`.
    ///
    /// - input: `[batch, channels, height, width]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{CircularPad2d, Forward};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(CircularPad2d::new(1).forward(&Tensor::zeros([2, 4, 4])?)?.dims(), [2, 6, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    CircularPad2d, 2, PadMode::Circular
}

padding! {
    /// Pads volumes with the elements from the opposite end, as PyTorch's `nn.CircularPad3d`.
    ///
    /// - input: `[batch, channels, depth, height, width]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{CircularPad3d, Forward};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(CircularPad3d::new(1).forward(&Tensor::zeros([2, 4, 4, 4])?)?.dims(), [2, 6, 6, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    CircularPad3d, 3, PadMode::Circular
}

constant_padding! {
    /// Pads sequences with a constant, as PyTorch's `nn.ConstantPad1d`.
    ///
    /// - input: `[batch, channels, length]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{ConstantPad1d, Forward};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ConstantPad1d::new(1, 0.5).forward(&Tensor::zeros([2, 4])?)?.dims(), [2, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ConstantPad1d, 1
}

constant_padding! {
    /// Pads images with a constant, as PyTorch's `nn.ConstantPad2d`.
    ///
    /// - input: `[batch, channels, height, width]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{ConstantPad2d, Forward};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ConstantPad2d::new(1, 0.5).forward(&Tensor::zeros([2, 4, 4])?)?.dims(), [2, 6, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ConstantPad2d, 2
}

constant_padding! {
    /// Pads volumes with a constant, as PyTorch's `nn.ConstantPad3d`.
    ///
    /// - input: `[batch, channels, depth, height, width]`, or one sample without `batch`
    /// - output: the same, with larger dimensions
    ///
    /// ```
    /// use pagelock_nn::{ConstantPad3d, Forward};
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(ConstantPad3d::new(1, 0.5).forward(&Tensor::zeros([2, 4, 4, 4])?)?.dims(), [2, 6, 6, 6]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ConstantPad3d, 3
}

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
