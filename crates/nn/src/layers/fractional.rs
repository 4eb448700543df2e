//! [`FractionalMaxPool2d`]: max pooling that shrinks images by any factor.

use super::{Sizes, debug_is_display};
use crate::functional::fractional::random_samples;
use crate::functional::shared::wrong_argument;
use crate::{Forward, Module, functional as F, module_scope};
use pagelock_tensor::{Int, Result, Tensor, default_generator};

/// The largest element of each window (Graham, 2014, <https://arxiv.org/abs/1412.6071>). Each call draws the
/// positions of the windows from the default generator, as PyTorch's `nn.FractionalMaxPool2d`.
///
/// - input: `[batch, channels, height, width]`, or one sample without `batch`
/// - output: the same with the output size in the last two dimensions
///
/// ```
/// use pagelock_nn::{Forward, FractionalMaxPool2d};
/// # use pagelock_tensor::Tensor;
/// let x = Tensor::randn([2, 3, 10, 12])?;
/// assert_eq!(FractionalMaxPool2d::new(2, [7, 9]).forward(&x)?.dims(), [2, 3, 7, 9]);
/// assert_eq!(FractionalMaxPool2d::with_output_ratio(2, [0.5, 0.75]).forward(&x)?.dims(), [2, 3, 5, 9]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Module)]
pub struct FractionalMaxPool2d {
    #[module(skip)]
    kernel: [usize; 2],
    #[module(skip)]
    output: Output,
}

#[derive(Clone, Copy)]
enum Output {
    Size([usize; 2]),
    Ratio([f64; 2]),
}

impl FractionalMaxPool2d {
    /// Windows of size `kernel`, `output_size` of them in each dimension: one number for both dimensions, or one for
    /// each.
    pub fn new(kernel: impl Sizes<2>, output_size: impl Sizes<2>) -> Self {
        Self { kernel: kernel.into_sizes(), output: Output::Size(output_size.into_sizes()) }
    }

    /// Outputs of `height · output_ratio[0]` and `width · output_ratio[1]`, rounded down. Ratios that are not above 0 and below 1
    /// are an error of `forward`.
    pub fn with_output_ratio(kernel: impl Sizes<2>, output_ratio: [f64; 2]) -> Self {
        Self { kernel: kernel.into_sizes(), output: Output::Ratio(output_ratio) }
    }

    /// The largest elements, and their flat indices in their channel: PyTorch's `return_indices=True`.
    ///
    /// # Errors
    /// As [`functional::fractional_max_pool2d`](crate::functional::fractional_max_pool2d).
    pub fn forward_with_indices(&self, x: &Tensor) -> Result<(Tensor, Tensor<Int>)> {
        let _scope = module_scope(self);
        let output_size = self.output_size(x)?;
        let samples = random_samples(x, self.kernel, output_size, default_generator())?;
        F::fractional_max_pool2d_with_indices(x, self.kernel, output_size, &samples)
    }

    fn output_size(&self, x: &Tensor) -> Result<[usize; 2]> {
        let ratio = match self.output {
            Output::Size(size) => return Ok(size),
            Output::Ratio(ratio) => ratio,
        };
        if let Some(ratio) = ratio.into_iter().find(|ratio| !(*ratio > 0.0 && *ratio < 1.0)) {
            return Err(wrong_argument("FractionalMaxPool2d", "output_ratio", ratio, "above 0 and below 1"));
        }
        let part = |dim: isize, ratio: f64| Ok((x.size(dim)? as f64 * ratio) as usize);
        Ok([part(-2, ratio[0])?, part(-1, ratio[1])?])
    }
}

impl Forward for FractionalMaxPool2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.forward_with_indices(x)?.0)
    }
}

debug_is_display!(FractionalMaxPool2d);
