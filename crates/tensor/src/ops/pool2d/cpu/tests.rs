//! Pooling against naive loops in `f64`.

use half::bf16;
use proptest::prelude::*;

use super::*;
use crate::cpu::testing::{stored, stored_mut};
use crate::element::Element;
use crate::lanes::testing::{levels, with_level};
use crate::parallel::set_num_threads;

/// Any geometry that has a result.
fn any_dims() -> impl Strategy<Value = PoolDims> {
    let axis = (1..6usize, 1..5usize, 0..3usize, 0..30usize);
    (0..5usize, [axis.clone(), axis]).prop_map(|(planes, axes)| {
        let padding = axes.map(|axis| axis.2.min(axis.0 / 2));
        let in_size = [0, 1].map(|i| axes[i].0.saturating_sub(2 * padding[i]).max(1) + axes[i].3);
        PoolDims {
            planes,
            in_size,
            out_size: [0, 1].map(|i| (in_size[i] + 2 * padding[i] - axes[i].0) / axes[i].1 + 1),
            kernel: axes.map(|axis| axis.0),
            stride: axes.map(|axis| axis.1),
            padding,
        }
    })
}

/// Numbers that repeat, so that windows have equal maxima.
fn numbers(len: usize) -> Vec<f64> {
    (0..len as u64).map(|i| ((i.wrapping_mul(2_654_435_761) >> 7) % 17) as f64 - 8.0).collect()
}

fn cast<T: Element>(numbers: &[f64]) -> Vec<T> {
    numbers.iter().map(|&number| T::from_f64(number)).collect()
}

/// The pixels of each window of each plane, as places in the whole input.
fn windows(planes: usize, axes: [Axis; 2], pixels: impl Fn(Axis, usize) -> Vec<usize>) -> Vec<Vec<usize>> {
    let sizes = axes.map(Axis::in_size);
    let mut all = Vec::new();
    for plane in 0..planes {
        for i in 0..axes[0].out_size() {
            for j in 0..axes[1].out_size() {
                let (rows, columns) = (pixels(axes[0], i), pixels(axes[1], j));
                let place = |y: usize, x: usize| (plane * sizes[0] + y) * sizes[1] + x;
                all.push(rows.iter().flat_map(|&y| columns.iter().map(move |&x| place(y, x))).collect());
            }
        }
    }
    all
}

/// The pixels of a window, by the definition.
fn sliding(axis: Axis, i: usize) -> Vec<usize> {
    let Axis::Sliding { in_size, kernel, stride, padding, .. } = axis else { unreachable!("sliding") };
    (0..kernel).map(|tap| (i * stride + tap).wrapping_sub(padding)).filter(|&at| at < in_size).collect()
}

fn adaptive(axis: Axis, i: usize) -> Vec<usize> {
    let (size, windows) = (axis.in_size(), axis.out_size());
    let start = (i as f64 * size as f64 / windows as f64).floor() as usize;
    let end = ((i + 1) as f64 * size as f64 / windows as f64).ceil() as usize;
    (start..end).collect()
}

/// A sum of fractions, the number of terms, and the sum of their magnitudes.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    terms: usize,
    magnitude: f64,
}

impl Sum {
    fn add(&mut self, term: f64) {
        *self = Sum { value: self.value + term, terms: self.terms + 1, magnitude: self.magnitude + term.abs() };
    }

    /// Whether `actual` is no further away than a sum in `f32` of rounded terms may be, in any order
    /// (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
    fn allows(&self, actual: f32) -> bool {
        let unit = f64::from(f32::EPSILON) / 2.0;
        (f64::from(actual) - self.value).abs() <= 1.01 * (self.terms + 2) as f64 * unit * self.magnitude
    }
}

fn close(actual: &[f32], expected: &[Sum]) -> bool {
    actual.len() == expected.len() && actual.iter().zip(expected).all(|(&actual, sum)| sum.allows(actual))
}

proptest! {
    #[test]
    fn the_largest_of_each_window_is_found_with_its_first_place(d in any_dims()) {
        let windows = windows(d.planes, d.axes(), sliding);
        let x = numbers(d.planes * d.in_size[0] * d.in_size[1]);
        let first_largest = |window: &Vec<usize>| {
            window.iter().copied().reduce(|best, at| if x[at] > x[best] { at } else { best }).unwrap()
        };
        let places: Vec<usize> = windows.iter().map(first_largest).collect();
        let plane = (d.in_size[0] * d.in_size[1]).max(1);
        for level in levels() {
            let (mut values, mut positions) = (vec![f32::NAN; windows.len()], vec![-1; windows.len()]);
            with_level(level, || {
                max(&d, stored(&cast::<f32>(&x)), stored_mut(&mut values)).unwrap();
                max_positions(&d, stored(&cast::<f32>(&x)), &mut positions).unwrap();
            });
            prop_assert!(values.iter().zip(&places).all(|(&value, &at)| f64::from(value) == x[at]));
            prop_assert!(positions.iter().zip(&places).all(|(&position, &at)| position as usize == at % plane));
        }
    }

    #[test]
    fn averages_and_their_gradients_agree_with_the_definition(d in any_dims()) {
        let windows = windows(d.planes, d.axes(), sliding);
        let sliding = Windows::Sliding(d);
        let area = sliding.area().unwrap() as f64;
        check_averages(
            &windows,
            d.planes * d.in_size[0] * d.in_size[1],
            |_| area,
            |x, out| average(&sliding, stored(x), stored_mut(out)).unwrap(),
            |grad, out| spread(&sliding, stored(grad), stored_mut(out)).unwrap(),
        );
    }

    #[test]
    fn adaptive_averages_and_their_gradients_agree_with_the_definition(
        planes in 0..4usize, from in [1..20usize, 1..20], to in [1..25usize, 1..25],
    ) {
        let covering = Windows::Adaptive(from, to);
        let windows = windows(planes, covering.axes(), adaptive);
        check_averages(
            &windows,
            planes * from[0] * from[1],
            |window| window.len() as f64,
            |x, out| average(&covering, stored(x), stored_mut(out)).unwrap(),
            |grad, out| spread(&covering, stored(grad), stored_mut(out)).unwrap(),
        );
    }
}

fn check_averages(
    windows: &[Vec<usize>],
    in_len: usize,
    count: impl Fn(&Vec<usize>) -> f64,
    forward: impl Fn(&[f32], &mut [f32]),
    backward: impl Fn(&[f32], &mut [f32]),
) {
    let (x, grad) = (numbers(in_len), numbers(windows.len()));
    let mut averages = vec![Sum::default(); windows.len()];
    let mut gradient = vec![Sum::default(); in_len];
    for ((window, average), grad) in windows.iter().zip(&mut averages).zip(&grad) {
        for &at in window {
            average.add(x[at] / count(window));
            gradient[at].add(grad / count(window));
        }
    }
    let (mut out, mut grad_in) = (vec![f32::NAN; windows.len()], vec![f32::NAN; in_len]);
    forward(&cast::<f32>(&x), &mut out);
    backward(&cast::<f32>(&grad), &mut grad_in);
    assert!(close(&out, &averages) && close(&grad_in, &gradient));
}

fn pairs_of(planes: usize, in_size: [usize; 2]) -> PoolDims {
    let out_size = in_size.map(|size| size / 2);
    PoolDims { planes, in_size, out_size, kernel: [2; 2], stride: [2; 2], padding: [0; 2] }
}

#[test]
fn nan_is_the_largest() {
    let d = pairs_of(1, [2, 4]);
    let x = [1.0, 2.0, f32::NAN, 5.0, 3.0, 0.0, 4.0, f32::NAN];
    let (mut values, mut positions) = ([0.0f32; 2], [0; 2]);
    max(&d, stored(&x), stored_mut(&mut values)).unwrap();
    max_positions(&d, stored(&x), &mut positions).unwrap();
    assert!(values[0] == 3.0 && values[1].is_nan());
    assert_eq!(positions, [4, 7]); // the last NaN, as in PyTorch
}

#[test]
fn half_types_are_averaged_in_f32_and_rounded_once() {
    let d = pairs_of(2, [6, 10]);
    let x = numbers(120);
    let (mut exact, mut rounded) = (vec![0.0f32; 30], vec![bf16::ZERO; 30]);
    average(&Windows::Sliding(d), stored(&cast::<f32>(&x)), stored_mut(&mut exact)).unwrap();
    average(&Windows::Sliding(d), stored(&cast::<bf16>(&x)), stored_mut(&mut rounded)).unwrap();
    assert!(exact.iter().zip(rounded).all(|(&exact, rounded)| bf16::from_f32(exact) == rounded));
}

#[test]
fn one_and_two_threads_give_the_same_bits() {
    let d = pairs_of(300, [28, 28]);
    let x: Vec<f32> = cast(&numbers(300 * 784));
    let results = [1, 2].map(|threads| {
        set_num_threads(threads);
        let mut out = vec![0.0f32; 300 * 196];
        average(&Windows::Sliding(d), stored(&x), stored_mut(&mut out)).unwrap();
        out
    });
    assert!(results[0] == results[1]);
}

#[test]
fn no_planes_make_no_result() {
    let d = pairs_of(0, [8, 8]);
    max::<f32>(&d, [][..].into(), (&mut [][..]).into()).unwrap();
    spread::<f32>(&Windows::Sliding(d), [][..].into(), (&mut [][..]).into()).unwrap();
    average::<f32>(&Windows::Adaptive([8, 8], [2, 2]), [][..].into(), (&mut [][..]).into()).unwrap();
}
