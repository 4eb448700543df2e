//! [`Unfold`] and [`Fold`]: windows of images as columns, and back.

use super::{Sizes, debug_is_display, short};
use crate::functional::{self as F, FoldOptions};
use crate::setters::setters;
use crate::{Forward, Module, module_scope};
use pagelock_tensor::{Result, Tensor};

/// `windows! { Name }`: the settings that [`Unfold`] and [`Fold`] share.
macro_rules! windows {
    ($name:ident) => {
        setters! { $name,
            /// The distance between neighboring elements of a window: one number for both dimensions, or one for
            /// each.
            dilation: impl Sizes<2> => options.dilation = dilation.into_sizes();
            /// The number of zeros added at each end of the image: one number for both dimensions, or one for each.
            padding: impl Sizes<2> => options.padding = padding.into_sizes();
            /// The distance between neighboring windows: one number for both dimensions, or one for each.
            stride: impl Sizes<2> => options.stride = stride.into_sizes();
        }
    };
}

fn describe(options: &FoldOptions) -> String {
    let FoldOptions { kernel_size, dilation, padding, stride } = options;
    let [kernel, dilation, padding, stride] = [kernel_size, dilation, padding, stride].map(|sizes| short(sizes));
    format!("kernel_size={kernel}, dilation={dilation}, padding={padding}, stride={stride}")
}

/// The windows of images as columns, as PyTorch's `nn.Unfold`; see [`unfold`](F::unfold).
///
/// - input: `[batch, channels, height, width]`, or one sample without `batch`
/// - output: `[batch, channels · kernel_h · kernel_w, windows]`
///
/// ```
/// use pagelock_nn::{Forward, Unfold};
/// # use pagelock_tensor::Tensor;
/// assert_eq!(Unfold::new(2).forward(&Tensor::zeros([1, 3, 4, 5])?)?.dims(), [1, 12, 12]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Module)]
#[module(details = Self::describe)]
pub struct Unfold {
    #[module(skip)]
    options: FoldOptions,
}

impl Unfold {
    /// Windows of `kernel_size` with stride 1: one number for both dimensions, or one for each.
    pub fn new(kernel_size: impl Sizes<2>) -> Self {
        Self { options: FoldOptions::new(kernel_size.into_sizes()) }
    }

    fn describe(&self) -> String {
        describe(&self.options)
    }
}

windows! { Unfold }

impl Forward for Unfold {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        F::unfold(x, self.options)
    }
}

debug_is_display!(Unfold);

/// Images whose windows are the columns, summed where they overlap, as PyTorch's `nn.Fold`; see [`fold`](F::fold).
///
/// - input: `[batch, channels · kernel_h · kernel_w, windows]`, or one sample without `batch`
/// - output: `[batch, channels, output_h, output_w]`
///
/// ```
/// use pagelock_nn::{Fold, Forward};
/// # use pagelock_tensor::Tensor;
/// assert_eq!(Fold::new([4, 5], 2).forward(&Tensor::zeros([1, 12, 12])?)?.dims(), [1, 3, 4, 5]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Module)]
#[module(details = Self::describe)]
pub struct Fold {
    #[module(skip)]
    output_size: [usize; 2],
    #[module(skip)]
    options: FoldOptions,
}

impl Fold {
    /// Windows of `kernel_size` with stride 1 in an image of `output_size`: one number for both dimensions, or one
    /// for each.
    pub fn new(output_size: impl Sizes<2>, kernel_size: impl Sizes<2>) -> Self {
        Self { output_size: output_size.into_sizes(), options: FoldOptions::new(kernel_size.into_sizes()) }
    }

    fn describe(&self) -> String {
        format!("output_size={}, {}", short(&self.output_size), describe(&self.options))
    }
}

windows! { Fold }

impl Forward for Fold {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = module_scope(self);
        F::fold(x, self.output_size, self.options)
    }
}

debug_is_display!(Fold);
