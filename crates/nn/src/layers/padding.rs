//! Layers that pad sequences, images and volumes.

use super::{debug_is_display, number, tuple};
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

/// `padding! { Name, dimensions, inputs, shape, [sizes of an example, of its output], what is added, mode }`; if the mode
/// takes a value, also `, value = that of the example`.
macro_rules! padding {
    (
        $name:ident, $n:literal, $inputs:literal, $shape:literal, [$example:literal, $output:literal],
        $added:literal, $mode:expr $(, $value:ident = $of_example:literal)?
    ) => {
        #[doc = concat!("Pads ", $inputs, " with ", $added, ", as PyTorch's `nn.", stringify!($name), "`.")]
        ///
        #[doc = concat!("- input: `[batch, channels, ", $shape, "]`, or one sample without `batch`")]
        /// - output: the same, with larger dimensions
        ///
        /// ```
        #[doc = concat!("use pagelock_nn::{", stringify!($name), ", Forward};")]
        /// # use pagelock_tensor::Tensor;
        #[doc = concat!("let layer = ", stringify!($name), "::new(1" $(, ", ", $of_example)?, ");")]
        #[doc = concat!("assert_eq!(layer.forward(&Tensor::zeros([2", $example, "])?)?.dims(), [2", $output, "]);")]
        /// # Ok::<(), pagelock_tensor::Error>(())
        /// ```
        #[derive(Clone, Copy, Module)]
        #[module(details = Self::describe)]
        pub struct $name {
            #[module(skip)]
            padding: [[usize; 2]; $n],
            $(#[module(skip)] $value: f64,)?
        }

        impl $name {
            /// One number for all ends, or a pair for each dimension, the last dimension first.
            $(#[doc = concat!("The new elements are `", stringify!($value), "`.")])?
            pub fn new(padding: impl Padding<$n> $(, $value: f64)?) -> Self {
                Self { padding: padding.into_pairs() $(, $value)? }
            }

            fn describe(&self) -> String {
                let text = tuple(self.padding.as_flattened());
                $(let text = format!("padding={text}, value={}", number(self.$value));)?
                text
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _scope = module_scope(self);
                padded(stringify!($name), x, &self.padding, $mode $((self.$value))?)
            }
        }

        debug_is_display!($name);
    };
}

/// `paddings! { [three names], what is added, mode .. }`: the layers of sequences, images and volumes.
macro_rules! paddings {
    ([$of_sequences:ident, $of_images:ident, $of_volumes:ident], $($mode:tt)+) => {
        padding! { $of_sequences, 1, "sequences", "length", [", 4", ", 6"], $($mode)+ }
        padding! { $of_images, 2, "images", "height, width", [", 4, 4", ", 6, 6"], $($mode)+ }
        padding! { $of_volumes, 3, "volumes", "depth, height, width", [", 4, 4, 4", ", 6, 6, 6"], $($mode)+ }
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
paddings! { [ConstantPad1d, ConstantPad2d, ConstantPad3d], "a constant", PadMode::Constant, value = 0.5 }
