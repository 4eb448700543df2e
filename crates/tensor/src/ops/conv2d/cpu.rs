//! Convolution kernels; plain loops until faster ones replace them.

use crate::element::{Element, Float};

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

/// Calls `each(image element, weight element, result element)` for every product.
fn products(d: &ConvDims, mut each: impl FnMut(usize, usize, usize)) {
    let (per_group_in, per_group_out) = (d.in_channels / d.groups, d.out_channels / d.groups);
    for n in 0..d.batch {
        for o in 0..d.out_channels {
            for y in 0..d.out_size[0] {
                for x in 0..d.out_size[1] {
                    let to = ((n * d.out_channels + o) * d.out_size[0] + y) * d.out_size[1] + x;
                    for c in 0..per_group_in {
                        let channel = o / per_group_out * per_group_in + c;
                        for ky in 0..d.kernel[0] {
                            let row = (y * d.stride[0] + ky * d.dilation[0]).wrapping_sub(d.padding[0]);
                            if row >= d.in_size[0] {
                                continue;
                            }
                            for kx in 0..d.kernel[1] {
                                let column = (x * d.stride[1] + kx * d.dilation[1]).wrapping_sub(d.padding[1]);
                                if column < d.in_size[1] {
                                    let from =
                                        ((n * d.in_channels + channel) * d.in_size[0] + row) * d.in_size[1] + column;
                                    each(from, ((o * per_group_in + c) * d.kernel[0] + ky) * d.kernel[1] + kx, to);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

pub(crate) fn forward<T: Float>(d: &ConvDims, x: &[T], weight: &[T], bias: Option<&[T]>, out: &mut [T]) {
    let plane = d.out_size[0] * d.out_size[1];
    let mut sums = vec![T::Real::ZERO; out.len()];
    products(d, |from, w, to| sums[to] = sums[to] + x[from].to_real() * weight[w].to_real());
    for (i, (out, sum)) in out.iter_mut().zip(sums).enumerate() {
        *out = T::from_real(bias.map_or(sum, |bias| sum + bias[i / plane % d.out_channels].to_real()));
    }
}

pub(crate) fn input_grad<T: Float>(d: &ConvDims, grad_out: &[T], weight: &[T], grad_in: &mut [T]) {
    let mut sums = vec![T::Real::ZERO; grad_in.len()];
    products(d, |from, w, to| sums[from] = sums[from] + grad_out[to].to_real() * weight[w].to_real());
    grad_in.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::from_real(sum));
}

pub(crate) fn weight_grad<T: Float>(d: &ConvDims, x: &[T], grad_out: &[T], grad_weight: &mut [T]) {
    let mut sums = vec![T::Real::ZERO; grad_weight.len()];
    products(d, |from, w, to| sums[w] = sums[w] + grad_out[to].to_real() * x[from].to_real());
    grad_weight.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::from_real(sum));
}
