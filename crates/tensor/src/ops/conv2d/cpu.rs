//! Convolution kernels: the convolution and its two derivatives, over contiguous NCHW slices.
//!
//! Nothing is unrolled into a matrix. What a pass adds up where is decided per axis (`axis.rs`), so stride, dilation and
//! padding cost nothing in the inner loops, and the derivative by the image is the same pass as the convolution with the
//! roles exchanged (`pass.rs`). There are two ways to run each pass:
//!
//! - Vectors over the channels of the result, where these fill at least half of the lanes (`direct.rs`): a vector of
//!   weights, or of gradients, times one pixel.
//! - Vectors over pixels for fewer channels (`correlate.rs`, with its inner loop in `tile.rs`, and `weight_grad.rs`).
//!   Images are copied, a few at a time, into zero-padded planes split by the phases of the stride (`planes.rs`), in which
//!   every tap of the kernel reads consecutive pixels.
//!
//! Order of the files: `axis.rs`, `pass.rs`, `direct.rs` and its folder, then `planes.rs`, `fill.rs`, `tile.rs`, `rows.rs`,
//! `correlate.rs`, `weight_grad.rs`.
//!
//! Each result is added up in an order that depends on sizes and instruction set only. The half types are computed in `f32`.

mod axis;
mod correlate;
mod direct;
mod fill;
mod pass;
mod planes;
mod rows;
#[cfg(test)]
mod tests;
mod tile;
mod weight_grad;

use pagelock_memory::Result;
use pulp::{Simd, WithSimd};

use self::pass::Pass;
use crate::cpu::{Stored, StoredMut};
use crate::element::Real;
use crate::lanes::{self, Registers};
use crate::scratch;

/// The sizes of a convolution; whoever makes one has checked that they belong together.
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
    /// Multiply-adds per image, in each of the three passes.
    fn work_per_image(&self) -> usize {
        let pixels = self.out_size[0] * self.out_size[1];
        self.out_channels * pixels * (self.in_channels / self.groups) * self.kernel[0] * self.kernel[1]
    }
}

/// `out = x ⋆ weight + bias`, with zero for what is below zero if `relu`.
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
    scratch::reals(x, |x| {
        scratch::reals(weight, |weight| {
            scratch::reals(bias.unwrap_or([][..].into()), |values| {
                scratch::reals_mut(out, |out| {
                    run(Pass::forward(d).then_relu(relu), x, weight, bias.map(|_| values), out)
                })
            })
        })
    })
}

/// The derivative by the image: `grad_in[b, i] = Σ grad_out[b, o] · weight[o, i]` over output channels and taps.
pub(crate) fn input_grad<R: Real>(
    d: &ConvDims,
    grad_out: Stored<'_, R>,
    weight: Stored<'_, R>,
    grad_in: StoredMut<'_, R>,
) -> Result<()> {
    scratch::reals(grad_out, |grad_out| {
        scratch::reals(weight, |weight| {
            scratch::reals_mut(grad_in, |grad_in| run(Pass::input_grad(d), grad_out, weight, None, grad_in))
        })
    })
}

/// `target = Σ weight · source + bias`
fn run<R: Real>(pass: Pass, source: &[R], weight: &[R], bias: Option<&[R]>, target: &mut [R]) -> Result<()> {
    if target.is_empty() {
        return Ok(());
    }
    lanes::dispatch(Run { pass, source, weight, bias, target })
}

struct Run<'a, R> {
    pass: Pass,
    source: &'a [R],
    weight: &'a [R],
    bias: Option<&'a [R]>,
    target: &'a mut [R],
}

impl<R: Real> WithSimd for Run<'_, R> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Result<()> {
        let Run { pass, source, weight, bias, target } = self;
        if Registers::<S>::ARE_WIDE && direct::suits::<S, R>(&pass) {
            direct::run(simd, &pass, source, weight, bias, target)
        } else {
            correlate::run(simd, &pass, source, weight, bias, target)
        }
    }
}

/// The derivative by the weight: `grad_weight[o, i] = Σ grad_out[b, o] · x[b, i]` over images and pixels.
///
/// A product with a pixel that the tap does not reach is one with zero, so an infinite or NaN pixel can make more
/// weights of its channel NaN than the sum alone would.
pub(crate) fn weight_grad<R: Real>(
    d: &ConvDims,
    x: Stored<'_, R>,
    grad_out: Stored<'_, R>,
    grad_weight: StoredMut<'_, R>,
) -> Result<()> {
    grads(d, x, Gradient { numbers: grad_out, positive: None }, false, grad_weight)
}

/// The derivatives by the weight and the bias, one after the other in `grads`, in one walk over the gradient.
pub(crate) fn weight_and_bias_grad<R: Real>(
    d: &ConvDims,
    x: Stored<'_, R>,
    grad_out: Gradient<Stored<'_, R>>,
    grads: StoredMut<'_, R>,
) -> Result<()> {
    self::grads(d, x, grad_out, true, grads)
}

/// The gradient of the result.
#[derive(Clone, Copy)]
pub(crate) struct Gradient<N> {
    pub(crate) numbers: N,
    /// It counts as zero where these numbers are not above zero.
    pub(crate) positive: Option<N>,
}

fn grads<R: Real>(
    d: &ConvDims,
    x: Stored<'_, R>,
    gradient: Gradient<Stored<'_, R>>,
    with_bias: bool,
    grads: StoredMut<'_, R>,
) -> Result<()> {
    scratch::reals(x, |x| {
        scratch::reals(gradient.numbers, |numbers| {
            scratch::reals(gradient.positive.unwrap_or([][..].into()), |positive| {
                let gradient = Gradient { numbers, positive: gradient.positive.map(|_| positive) };
                scratch::reals_mut(grads, |grads| weight_grad::run(d, x, gradient, with_bias, grads))
            })
        })
    })
}
