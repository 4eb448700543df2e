//! Autocast: matrix products and convolutions of `f32` tensors in half precision, in a scope.

use std::cell::Cell;

use half::{bf16, f16};

use crate::element::{DType, Element, Float, Num};
use crate::error::Result;
use crate::ops::Conv2dOptions;
use crate::tensor::Tensor;

/// An element type of two bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// `bfloat16`: the range of `f32` with 7 bits behind the point.
    BF16,
    /// `float16`: 10 bits behind the point, up to 65,504; gradients need a scale (`pagelock_nn::GradScaler`).
    F16,
}

thread_local! {
    static CHOSEN: Cell<Option<Half>> = const { Cell::new(None) };
}

/// Runs `f`; in this thread, until it returns, matrix products and convolutions of `f32` tensors are computed in half
/// precision, as in PyTorch's `torch.autocast`.
///
/// Operands are rounded to `to`, sums are `f32`, and the result is rounded to `to`. Since element types are part of
/// a tensor's type here, the result is then an `f32` tensor again, with the values that PyTorch's has; everything but
/// [`matmul`](Tensor::matmul), [`conv2d`](Tensor::conv2d) and [`conv2d_relu`](Tensor::conv2d_relu) goes on in `f32`.
/// `backward` needs no scope: gradients of these operations are computed as the operations were.
///
/// ```
/// use pagelock_tensor::{Half, Tensor, autocast};
///
/// let x = Tensor::new([[1.0, 1.0 / 3.0]])?;
/// let product = autocast(Half::BF16, || x.matmul(&x.t()?))?;
/// assert_eq!(product.item()?, 1.109375); // 1 + 1/9 is 1.1111…
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn autocast<R>(to: Half, f: impl FnOnce() -> R) -> R {
    scope(Some(to), f)
}

/// Runs `f` as if it were in no [`autocast`]: for a part of a network that needs all bits.
pub fn no_autocast<R>(f: impl FnOnce() -> R) -> R {
    scope(None, f)
}

/// What [`autocast`] this thread is in.
pub fn autocast_type() -> Option<Half> {
    CHOSEN.get()
}

fn scope<R>(to: Option<Half>, f: impl FnOnce() -> R) -> R {
    let _restore = Restore(CHOSEN.replace(to));
    f()
}

/// Puts the type back, also when `f` unwinds.
struct Restore(Option<Half>);

impl Drop for Restore {
    fn drop(&mut self) {
        CHOSEN.set(self.0);
    }
}

/// The type to compute with, for tensors of `T`.
fn chosen<T: Element>() -> Option<Half> {
    CHOSEN.get().filter(|_| T::DTYPE == DType::F32)
}

/// The product in half precision, if that is chosen.
pub(crate) fn matmul<T: Num>(a: &Tensor<T>, b: &Tensor<T>) -> Result<Option<Tensor<T>>> {
    fn product<T: Num, H: Float>(a: &Tensor<T>, b: &Tensor<T>) -> Result<Option<Tensor<T>>> {
        rounded::<T, H>(a)?.matmul(&rounded(b)?)?.cast().map(Some)
    }
    match chosen::<T>() {
        None => Ok(None),
        Some(Half::BF16) => product::<T, bf16>(a, b),
        Some(Half::F16) => product::<T, f16>(a, b),
    }
}

/// What a convolution takes: image, weight, bias and geometry.
pub(crate) type Convolution<'a, T> = (&'a Tensor<T>, &'a Tensor<T>, Option<&'a Tensor<T>>, Conv2dOptions);

/// The convolution in half precision, if that is chosen, and `relu` after it, if that is wanted.
pub(crate) fn conv2d<T: Float>(convolution: Convolution<'_, T>, with_relu: bool) -> Result<Option<Tensor<T>>> {
    fn result<T: Float, H: Float>(
        (image, weight, bias, geometry): Convolution<'_, T>,
        with_relu: bool,
    ) -> Result<Option<Tensor<T>>> {
        let (image, weight) = (image.cast::<H>()?, weight.cast::<H>()?);
        let bias = bias.map(Tensor::cast::<H>).transpose()?;
        let result = match with_relu {
            true => image.conv2d_relu(&weight, bias.as_ref(), geometry)?,
            false => image.conv2d(&weight, bias.as_ref(), geometry)?,
        };
        result.cast().map(Some)
    }
    match chosen::<T>() {
        None => Ok(None),
        Some(Half::BF16) => result::<T, bf16>(convolution, with_relu),
        Some(Half::F16) => result::<T, f16>(convolution, with_relu),
    }
}

/// The same numbers, rounded; a transposed matrix stays one, since turning it would be slower than rounding it.
fn rounded<T: Num, H: Float>(x: &Tensor<T>) -> Result<Tensor<H>> {
    if x.rank() >= 2 && !x.is_contiguous() {
        let turned = x.transpose(-2, -1)?;
        if turned.is_contiguous() {
            return turned.cast::<H>()?.transpose(-2, -1);
        }
    }
    x.cast()
}
