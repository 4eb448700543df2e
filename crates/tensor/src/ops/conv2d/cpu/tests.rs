//! The kernels against one naive loop in `f64`, on every instruction set of the machine.

use half::bf16;
use proptest::prelude::*;

use super::*;
use crate::cpu::testing::{Stores, stored, stored_mut};
use crate::element::Real;
use crate::lanes::testing::{Level, levels, with_level};
use crate::parallel::set_num_threads;

/// Calls `each(pixel, weight, output)` for every product of a convolution, with indices into the three slices.
fn for_each_product(d: &ConvDims, mut each: impl FnMut(usize, usize, usize)) {
    let (inputs, outputs) = (d.in_channels / d.groups, d.out_channels / d.groups);
    let outs = (0..d.batch).flat_map(|n| (0..d.out_channels).map(move |o| (n, o)));
    for (n, o) in outs {
        for (c, [y, x]) in (0..inputs).flat_map(|c| pairs(d.out_size).map(move |at| (c, at))) {
            for [ky, kx] in pairs(d.kernel) {
                let row = (y * d.stride[0] + ky * d.dilation[0]).wrapping_sub(d.padding[0]);
                let column = (x * d.stride[1] + kx * d.dilation[1]).wrapping_sub(d.padding[1]);
                if row < d.in_size[0] && column < d.in_size[1] {
                    let channel = o / outputs * inputs + c;
                    let pixel = ((n * d.in_channels + channel) * d.in_size[0] + row) * d.in_size[1] + column;
                    let weight = ((o * inputs + c) * d.kernel[0] + ky) * d.kernel[1] + kx;
                    each(pixel, weight, ((n * d.out_channels + o) * d.out_size[0] + y) * d.out_size[1] + x);
                }
            }
        }
    }
}

fn pairs(size: [usize; 2]) -> impl Iterator<Item = [usize; 2]> {
    (0..size[0]).flat_map(move |y| (0..size[1]).map(move |x| [y, x]))
}

/// Operands of all three passes, with the results of the naive loop.
#[derive(Clone)]
struct Case {
    d: ConvDims,
    x: Vec<f64>,
    weight: Vec<f64>,
    bias: Vec<f64>,
    grad: Vec<f64>,
}

/// A sum, and the sum of its terms' magnitudes, which bounds its rounding error.
type Sums = Vec<(f64, f64)>;

impl Case {
    fn new(d: ConvDims) -> Case {
        let mut state = 1u64;
        let mut numbers = |len: usize| -> Vec<f64> {
            let mut next = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // Few bits, so that the half types hold them exactly.
                ((state >> 33) % 129) as f64 / 64.0 - 1.0
            };
            (0..len).map(|_| next()).collect()
        };
        let pixels = |size: [usize; 2]| size[0] * size[1];
        Case {
            x: numbers(d.batch * d.in_channels * pixels(d.in_size)),
            weight: numbers(d.out_channels * (d.in_channels / d.groups) * pixels(d.kernel)),
            bias: numbers(d.out_channels),
            grad: numbers(d.batch * d.out_channels * pixels(d.out_size)),
            d,
        }
    }

    fn expected(&self) -> [Sums; 3] {
        let plane = self.d.out_size[0] * self.d.out_size[1];
        let bias = |i: usize| self.bias[i / plane % self.d.out_channels];
        let mut out: Sums = (0..self.grad.len()).map(|i| (bias(i), bias(i).abs())).collect();
        let mut grad_in = vec![(0.0, 0.0); self.x.len()];
        let mut grad_weight = vec![(0.0, 0.0); self.weight.len()];
        let add = |to: &mut (f64, f64), product: f64| *to = (to.0 + product, to.1 + product.abs());
        for_each_product(&self.d, |pixel, weight, to| {
            add(&mut out[to], self.x[pixel] * self.weight[weight]);
            add(&mut grad_in[pixel], self.grad[to] * self.weight[weight]);
            add(&mut grad_weight[weight], self.grad[to] * self.x[pixel]);
        });
        [out, grad_in, grad_weight]
    }

    /// Image, weight, bias and gradient in the type `T`.
    fn operands<T: Stores<C: Real>>(&self) -> [Vec<T>; 4] {
        [&self.x, &self.weight, &self.bias, &self.grad]
            .map(|numbers| numbers.iter().map(|&number| T::from_f64(number)).collect())
    }

    /// The three passes in the type `T`. Results start as NaN, so that elements that are not written show.
    fn actual<T: Stores<C: Real>>(&self) -> [Vec<T>; 3] {
        let [x, weight, bias, grad] = self.operands::<T>();
        let [mut out, mut grad_in, mut grad_weight] =
            [&grad, &x, &weight].map(|like| vec![T::from_f64(f64::NAN); like.len()]);
        forward(&self.d, stored(&x), stored(&weight), Some(stored(&bias)), false, stored_mut(&mut out)).unwrap();
        input_grad(&self.d, stored(&grad), stored(&weight), stored_mut(&mut grad_in)).unwrap();
        let gradient = Gradient { numbers: stored(&grad), positive: None };
        weight_and_bias_grad(&self.d, stored(&x), gradient, stored_mut(&mut grad_weight)).unwrap();
        [out, grad_in, grad_weight]
    }

    /// The convolution followed by `relu`, and the gradients of weight and bias: from the whole gradient, and from
    /// where it is above zero.
    fn fused<T: Stores<C: Real>>(&self) -> [Vec<T>; 3] {
        let [x, weight, bias, grad] = self.operands::<T>();
        let mut out = vec![T::from_f64(f64::NAN); grad.len()];
        forward(&self.d, stored(&x), stored(&weight), Some(stored(&bias)), true, stored_mut(&mut out)).unwrap();
        let grads = |positive| {
            let mut grads = vec![T::from_f64(f64::NAN); weight.len() + bias.len()];
            let gradient = Gradient { numbers: stored(&grad), positive };
            weight_and_bias_grad(&self.d, stored(&x), gradient, stored_mut(&mut grads)).unwrap();
            grads
        };
        [out, grads(None), grads(Some(stored(&grad)))]
    }

    /// Compares `fused` with the separate operations.
    fn check_fused(&self, level: Level) {
        let (fused, [out, _, grad_weight]) = with_level(level, || (self.fused::<f32>(), self.actual::<f32>()));
        let positive = Case { grad: self.grad.iter().map(|grad| grad.max(0.0)).collect(), ..self.clone() };
        let positive = with_level(level, || positive.fused::<f32>());

        let relu: Vec<f32> = out.iter().map(|&x| x.max(0.0)).collect();
        assert_eq!(fused[0], relu, "{level:?}: {:?}", self.d);
        assert_eq!(fused[1][..grad_weight.len()], grad_weight, "{level:?}: {:?}", self.d);
        assert_eq!(fused[2], positive[1], "{level:?}: {:?}", self.d);
        let plane = self.d.out_size[0] * self.d.out_size[1];
        for (channel, &bias) in fused[1][grad_weight.len()..].iter().enumerate() {
            let planes = self.grad.chunks_exact(plane).skip(channel).step_by(self.d.out_channels);
            let (sum, magnitude) = planes.flatten().fold((0.0, 1.0), |(sum, all), grad| (sum + grad, all + grad.abs()));
            assert!((f64::from(bias) - sum).abs() <= 1e-6 * magnitude, "{bias}, not {sum}, on {level:?}: {:?}", self.d);
        }
    }

    fn check<R: Stores<C: Real>>(&self, level: Level, epsilon: f64) {
        let actual = with_level(level, || self.actual::<R>());
        for (pass, (actual, expected)) in
            ["forward", "input_grad", "weight_grad"].iter().zip(actual.iter().zip(self.expected()))
        {
            for (i, (actual, (sum, magnitude))) in actual.iter().zip(expected).enumerate() {
                let actual = actual.cast::<f64>();
                let error = (actual - sum).abs();
                assert!(
                    error <= epsilon * (magnitude + 1.0),
                    "{pass}[{i}] is {actual}, not {sum}, on {level:?}: {:?}",
                    self.d
                );
            }
        }
    }
}

/// The level that may have an instruction for `bf16`.
fn best() -> Level {
    levels().pop().expect("a machine has a level")
}

fn dims(batch: usize, [inputs, outputs]: [usize; 2], in_size: [usize; 2], kernel: usize) -> ConvDims {
    ConvDims {
        batch,
        in_channels: inputs,
        out_channels: outputs,
        groups: 1,
        in_size,
        kernel: [kernel; 2],
        out_size: [0; 2],
        stride: [1; 2],
        padding: [0; 2],
        dilation: [1; 2],
    }
    .sized()
}

impl ConvDims {
    /// With the size of the result, computed from the other sizes.
    fn sized(mut self) -> ConvDims {
        for axis in 0..2 {
            let reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1;
            self.out_size[axis] = (self.in_size[axis] + 2 * self.padding[axis] - reach) / self.stride[axis] + 1;
        }
        self
    }

    fn strided(self, stride: usize, padding: usize) -> ConvDims {
        ConvDims { stride: [stride; 2], padding: [padding; 2], ..self }.sized()
    }
}

/// Any geometry that has a result, with few images or with enough for vectors of images.
fn any_dims() -> impl Strategy<Value = ConvDims> {
    let axis = (1..5usize, 1..5usize, 0..4usize, 1..4usize, 0..20usize);
    (prop_oneof![0..6usize, 9..20usize], 1..4usize, 1..12usize, 1..24usize, [axis.clone(), axis]).prop_map(
        |(batch, groups, inputs, outputs, axes)| {
            let reach = |(kernel, _, padding, dilation, _): (usize, usize, usize, usize, usize)| {
                ((kernel - 1) * dilation + 1).saturating_sub(2 * padding).max(1)
            };
            ConvDims {
                batch,
                in_channels: groups * inputs,
                out_channels: groups * outputs,
                groups,
                in_size: axes.map(|axis| reach(axis) + axis.4),
                kernel: axes.map(|axis| axis.0),
                out_size: [0; 2],
                stride: axes.map(|axis| axis.1),
                padding: axes.map(|axis| axis.2),
                dilation: axes.map(|axis| axis.3),
            }
            .sized()
        },
    )
}

proptest! {
    #[test]
    fn all_geometries_agree_with_the_naive_loop(d in any_dims()) {
        let case = Case::new(d);
        for level in levels() {
            case.check::<f32>(level, 1e-6);
            case.check::<f64>(level, 1e-14);
            case.check_fused(level);
        }
        case.check::<bf16>(best(), 4e-3);
    }

    #[test]
    fn one_and_two_threads_give_the_same_bits(d in any_dims(), batch in 1..40usize) {
        let case = Case::new(ConvDims { batch, ..d });
        set_num_threads(1);
        let results = || (case.actual::<f32>(), case.fused::<f32>(), case.actual::<bf16>());
        let one = results();
        set_num_threads(2);
        prop_assert_eq!(one, results());
    }
}

/// Sizes that cover these paths: many images, rows in blocks, channels in several vectors, few images with channels
/// in parts, and rows as long as a vector.
fn large_dims() -> [ConvDims; 17] {
    [
        dims(9, [40, 50], [8, 9], 3),
        dims(2, [16, 24], [40, 61], 5).strided(1, 2),
        dims(3, [33, 16], [60, 52], 3).strided(3, 2),
        dims(64, [1, 16], [28, 28], 3).strided(2, 1),
        dims(19, [16, 16], [14, 14], 3).strided(2, 1),
        dims(64, [16, 10], [7, 7], 3).strided(2, 1),
        dims(7, [6, 16], [14, 14], 5),
        dims(1, [48, 64], [40, 40], 3).strided(1, 1),
        dims(2, [32, 16], [70, 90], 3).strided(2, 1),
        dims(1, [3, 8], [150, 201], 7).strided(4, 3),
        dims(3, [64, 40], [9, 9], 1),
        dims(5, [20, 24], [11, 8], 3).strided(1, 1),
        dims(3, [17, 40], [13, 16], 3).strided(1, 1),
        dims(2, [40, 20], [90, 16], 5).strided(1, 2),
        dims(4, [16, 24], [30, 32], 4).strided(2, 1),
        dims(16, [1, 1], [5, 1], 1).strided(5, 2),
        dims(16, [3, 8], [3, 3], 9).strided(9, 7),
    ]
}

#[test]
fn large_convolutions_agree_with_the_naive_loop() {
    for d in large_dims() {
        let case = Case::new(d);
        for level in levels() {
            case.check::<f32>(level, 1e-5);
            case.check_fused(level);
        }
        case.check::<bf16>(best(), 4e-3);
    }
}

/// Channels that fill matrix units, in whole tiles and in parts, in every geometry.
fn wide_dims() -> impl Strategy<Value = ConvDims> {
    let inputs = prop::sample::select(vec![16usize, 32, 48, 64]);
    (any_dims(), inputs, 14..70usize).prop_map(|(d, inputs, outputs)| ConvDims {
        in_channels: d.groups * inputs,
        out_channels: d.groups * outputs,
        batch: d.batch.min(3),
        ..d
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn many_channels_of_bf16_agree_with_the_naive_loop(d in wide_dims()) {
        Case::new(d).check::<bf16>(best(), 4e-3);
    }
}

#[test]
fn large_convolutions_have_the_same_bits_for_any_number_of_threads() {
    for d in large_dims() {
        let case = Case::new(d);
        set_num_threads(1);
        let results = || (case.actual::<f32>(), case.fused::<f32>(), case.actual::<bf16>());
        let one = results();
        for threads in [2, 5] {
            set_num_threads(threads);
            assert_eq!(one, results(), "{threads} threads, {d:?}");
        }
    }
}

#[test]
fn half_types_are_computed_in_f32_and_rounded_once() {
    let case = Case::new(dims(5, [3, 7], [11, 12], 3).strided(2, 1));
    let (exact, rounded) = (case.actual::<f32>(), case.actual::<bf16>());
    for (exact, rounded) in exact.iter().zip(rounded) {
        assert!(exact.iter().zip(rounded).all(|(&exact, rounded)| bf16::from_f32(exact) == rounded));
    }
}

#[test]
fn an_infinite_pixel_reaches_only_its_own_windows() {
    for batch in [3, 17] {
        let mut case = Case::new(dims(batch, [2, 4], [9, 10], 3).strided(2, 1));
        let pixel = (9 * 10) * 3 + 4 * 10 + 5;
        case.x[pixel] = f64::INFINITY;
        let mut reached = vec![false; case.grad.len()];
        for_each_product(&case.d, |from, _, to| reached[to] |= from == pixel);

        let [out, ..] = case.actual::<f32>();

        assert!(out.iter().zip(reached).all(|(value, reached)| value.is_finite() != reached), "{batch} images");
    }
}

#[test]
fn without_input_channels_the_bias_alone_has_a_gradient() {
    for batch in [3, 17] {
        let case = Case::new(dims(batch, [0, 3], [5, 5], 3));
        for level in levels() {
            case.check::<f32>(level, 1e-6);
            case.check_fused(level);
        }
        case.check::<bf16>(best(), 4e-3);
    }
}

#[test]
fn a_batch_without_images_has_a_gradient_of_zero() {
    let case = Case::new(dims(0, [2, 3], [5, 5], 3));

    let [out, grad_in, grad_weight] = case.actual::<f32>();

    assert!(out.is_empty() && grad_in.is_empty());
    assert!(grad_weight.iter().all(|&gradient| gradient == 0.0));
}
