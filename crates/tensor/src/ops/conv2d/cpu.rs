//! Convolution kernels: the convolution and its two derivatives, over contiguous NCHW slices.
//!
//! Images are not unrolled into a matrix (im2col). Which pixels a pass adds up is decided per axis (`axis.rs`), so
//! stride, dilation and padding cost nothing in the inner loops, and the gradient of the image is the same pass as
//! the convolution with the roles exchanged (`pass.rs`). There are two ways to run each pass:
//!
//! - Vectors over pixels (`correlate.rs` and `weight_grad.rs`). Images are copied, a few at a time, into zero-padded
//!   planes split by the phases of the stride (`planes.rs`), in which every tap of the kernel reads consecutive pixels.
//! - Vectors over images (`images.rs`), where enough images fill a vector and small ones fit in the cache: images are
//!   transposed, so that a vector holds the same pixel of each. The passes use it if rows of the result are shorter
//!   than a vector, the gradient of the weight for rows of any length.
//!
//! Both add up tiles of channels in registers (`tile.rs`). Order of the files: `axis.rs`, `pass.rs`, `planes.rs`,
//! `entries.rs`, `fill.rs`, `tile.rs`, `rows.rs`, `correlate.rs`, `weight_grad.rs`, `images.rs`.
//!
//! Each result is added up in an order that depends on sizes and instruction set only. `bf16` is multiplied by the
//! instruction for it or by matrix units (`entries.rs`) on processors that have them; else the half types are computed
//! in `f32`.

mod axis;
mod correlate;
mod entries;
mod fill;
mod images;
mod pass;
mod planes;
mod rows;
#[cfg(test)]
mod tests;
mod tile;
mod weight_grad;

use pagelock_memory::Result;
use pulp::{Simd, WithSimd};

use self::correlate::Operands;
use self::images::Block;
use self::pass::Pass;
#[cfg(target_arch = "x86_64")]
use crate::cpu::math::half::Half;
use crate::cpu::{Stored, StoredMut};
use crate::element::Real;
use crate::lanes::{self, Numbers};
#[cfg(target_arch = "x86_64")]
use crate::lanes::{Bf16, PairsOfBf16};
use crate::scratch;

/// The sizes of a convolution, which `Conv2dOptions::dims` has checked to fit together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvDims {
    pub(crate) batch: usize,
    pub(crate) in_channels: usize,
    pub(crate) out_channels: usize,
    pub(crate) groups: usize,
    pub(crate) in_size: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) out_size: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) padding: [usize; 2],
    pub(crate) dilation: [usize; 2],
}

impl ConvDims {
    /// Floating-point operations of each of the three passes.
    pub(super) fn flops(&self) -> u64 {
        2 * self.batch as u64 * self.work_per_image() as u64
    }

    /// Multiply-adds per image, in each of the three passes.
    fn work_per_image(&self) -> usize {
        let pixels = self.out_size[0] * self.out_size[1];
        self.out_channels * pixels * (self.in_channels / self.groups) * self.kernel[0] * self.kernel[1]
    }
}

/// `out = x ⋆ weight + bias`; with `relu`, negative results become zero.
///
/// - `x`: `[batch, in_channels, in_h, in_w]`
/// - `weight`: `[out_channels, in_channels / groups, kernel_h, kernel_w]`
/// - `bias`: `[out_channels]`
/// - `out`: `[batch, out_channels, out_h, out_w]`
pub(crate) fn forward<R: Real>(
    d: &ConvDims,
    x: Stored<'_, R>,
    weight: Stored<'_, R>,
    bias: Option<Stored<'_, R>>,
    relu: bool,
    out: StoredMut<'_, R>,
) -> Result<()> {
    correlate(Pass::forward(d).then_relu(relu), x, weight, bias, out)
}

/// The gradient of the image: `grad_in[b, i] = Σ grad_out[b, o] · weight[o, i]` over output channels and taps.
pub(crate) fn input_grad<R: Real>(
    d: &ConvDims,
    grad_out: Stored<'_, R>,
    weight: Stored<'_, R>,
    grad_in: StoredMut<'_, R>,
) -> Result<()> {
    correlate(Pass::input_grad(d), grad_out, weight, None, grad_in)
}

/// `target = Σ weight · source + bias`
fn correlate<R: Real>(
    pass: Pass,
    source: Stored<'_, R>,
    weight: Stored<'_, R>,
    bias: Option<Stored<'_, R>>,
    target: StoredMut<'_, R>,
) -> Result<()> {
    if target.len() == 0 {
        return Ok(());
    }
    scratch::reals(bias.unwrap_or([][..].into()), |values| {
        let bias = bias.map(|_| values);
        #[cfg(target_arch = "x86_64")]
        let target = match (Bf16::new(), source, weight, target) {
            (
                Some(bf16),
                Stored::Halves(source, Half::BF16),
                Stored::Halves(weight, Half::BF16),
                StoredMut::Halves(target, Half::BF16),
            ) => {
                let operands = Operands { source, weight, bias: bias.map(bytemuck::cast_slice), target };
                return correlate::run(PairsOfBf16(bf16), &pass, operands);
            }
            (.., target) => target,
        };
        scratch::reals(source, |source| {
            scratch::reals(weight, |weight| {
                scratch::reals_mut(target, |target| {
                    lanes::dispatch(Correlate { pass, operands: Operands { source, weight, bias, target } })
                })
            })
        })
    })
}

struct Correlate<'a, R> {
    pass: Pass,
    operands: Operands<'a, R, R>,
}

impl<R: Real> WithSimd for Correlate<'_, R> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Result<()> {
        let Correlate { pass, operands } = self;
        match Block::for_pass::<S, R>(&pass) {
            Some(block) => images::run(simd, &pass, block, operands),
            None => correlate::run(Numbers::<S, R>::new(simd), &pass, operands),
        }
    }
}

/// The gradient of the result.
#[derive(Clone, Copy)]
pub(crate) struct Gradient<N> {
    pub(crate) numbers: N,
    /// The gradient counts as zero where these numbers are at most zero.
    pub(crate) positive: Option<N>,
}

/// The gradient of the weight, `Σ gradient[b, o] · x[b, i]` over images and pixels. If `grads` is longer than the
/// weight, the gradient of the bias follows.
///
/// Pixels that a tap does not reach are multiplied by zero instead of left out, so an infinite or NaN pixel can make
/// more weights of its channel NaN than the formula does.
pub(crate) fn weight_and_bias_grad<R: Real>(
    d: &ConvDims,
    x: Stored<'_, R>,
    gradient: Gradient<Stored<'_, R>>,
    grads: StoredMut<'_, R>,
) -> Result<()> {
    let pass = &Pass::forward(d);
    let positive = gradient.positive.unwrap_or([][..].into());
    scratch::reals_mut(grads, |grads| {
        #[cfg(target_arch = "x86_64")]
        if let Some(bf16) = Bf16::new()
            && let (Stored::Halves(x, Half::BF16), Stored::Halves(numbers, Half::BF16)) = (x, gradient.numbers)
        {
            let positive = gradient.positive.map(Stored::halves);
            return weight_grad::run(bf16, pass, x, Gradient { numbers, positive }, bytemuck::cast_slice_mut(grads));
        }
        scratch::reals(x, |x| {
            scratch::reals(gradient.numbers, |numbers| {
                scratch::reals(positive, |positive| {
                    let gradient = Gradient { numbers, positive: gradient.positive.map(|_| positive) };
                    lanes::dispatch(WeightGrad { pass, x, gradient, grads })
                })
            })
        })
    })
}

struct WeightGrad<'a, R> {
    pass: &'a Pass,
    x: &'a [R],
    gradient: Gradient<&'a [R]>,
    grads: &'a mut [R],
}

impl<R: Real> WithSimd for WeightGrad<'_, R> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Result<()> {
        let WeightGrad { pass, x, gradient, grads } = self;
        match Block::for_weight_grad::<S, R>(pass) {
            Some(block) => images::weight_and_bias_grad(simd, pass, block, (x, gradient), grads),
            None => weight_grad::run(Numbers::<S, R>::new(simd), pass, x, gradient, grads),
        }
    }
}
