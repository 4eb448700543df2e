//! Tests of the loops along rows and along columns against the formulas in `f64`.

use half::{bf16, f16};

use super::super::testing::{Stores, stored, stored_mut};
use super::*;
use crate::element::{Element, Real};

/// `[outer, n, inner]`: rows of all lengths, few and many rows of columns, and counts that do not fill tiles, blocks or chunks.
const SLABS: [[usize; 3]; 18] = [
    [1, 1, 1],
    [3, 10, 1],
    [64, 10, 1],
    [17, 32, 1],
    [3, 33, 1],
    [5, 96, 1],
    [2_000, 7, 1],
    [3, 5_003, 1],
    [1, 1, 16],
    [2, 3, 17],
    [50, 10, 49],
    [3, 2, 5_000],
    [2, 21, 1_031],
    [1, 64, 200],
    [2, 65, 16],
    [70, 66, 19],
    [1, 1_000, 33],
    [1, 129, 1_100],
];

fn numbers(n: usize, seed: u32) -> Vec<f64> {
    let random = |i: usize| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8;
    (0..n).map(|i| f64::from(random(i)) / f64::from(1 << 23) - 1.0).collect()
}

/// The columns of slabs.
fn columns([outer, n, inner]: [usize; 3]) -> impl Iterator<Item = Vec<usize>> {
    let starts = (0..outer).flat_map(move |slab| (0..inner).map(move |column| slab * n * inner + column));
    starts.map(move |start| (0..n).map(|j| start + j * inner).collect())
}

fn naive_log_softmax(x: &[f64]) -> Vec<f64> {
    let sum: f64 = x.iter().map(|x| x.exp()).sum();
    x.iter().map(|x| x - sum.ln()).collect()
}

/// Checks `f` against `model`, for which the inputs are exact. Errors are relative to the result plus `scale` (the
/// size of terms that cancel).
fn check<T: Stores>(
    f: impl Fn([Stored<'_, T::C>; 2], [usize; 2], StoredMut<'_, T::C>) -> Result<()>,
    model: impl Fn(&[f64], &[f64]) -> Vec<f64>,
    scale: impl Fn(usize) -> f64,
    tolerance: f64,
) {
    let to_f64 = |x: &[T]| x.iter().map(|&x| x.cast()).collect::<Vec<f64>>();
    for slab @ [outer, n, inner] in SLABS {
        let len = outer * n * inner;
        let inputs = [1, 77].map(|seed| numbers(len, seed).iter().map(|&x| f64::cast::<T>(x)).collect::<Vec<T>>());
        let mut out = vec![T::ZERO; len];
        f([stored(&inputs[0]), stored(&inputs[1])], [n, inner], stored_mut(&mut out)).unwrap();
        let (out, inputs) = (to_f64(&out), inputs.map(|input| to_f64(&input)));
        for column in columns(slab) {
            let [a, b] = inputs.each_ref().map(|input| column.iter().map(|&i| input[i]).collect::<Vec<_>>());
            for (&i, expected) in column.iter().zip(model(&a, &b)) {
                let error = (out[i] - expected).abs() / (expected.abs() + scale(n));
                assert!(error < tolerance, "{i} of {slab:?}: {} instead of {expected}", out[i]);
            }
        }
    }
}

fn check_all<T: Stores<C: Real>>(tolerance: f64) {
    let exp = |x: Vec<f64>| x.iter().map(|x| x.exp()).collect::<Vec<f64>>();
    check::<T>(
        |[x, _], slab, out| softmax::<_, false>(x, slab, out),
        |x, _| exp(naive_log_softmax(x)),
        |_| 1e-3,
        tolerance,
    );
    check::<T>(|[x, _], slab, out| softmax::<_, true>(x, slab, out), |x, _| naive_log_softmax(x), |_| 1.0, tolerance);
    check::<T>(
        |[y, grad], slab, out| softmax_grad::<_, false>(y, grad, slab, out),
        |y, grad| {
            let sum: f64 = y.iter().zip(grad).map(|(y, grad)| y * grad).sum();
            y.iter().zip(grad).map(|(y, grad)| y * (grad - sum)).collect()
        },
        |n| n as f64,
        tolerance,
    );
    check::<T>(
        |[y, grad], slab, out| softmax_grad::<_, true>(y, grad, slab, out),
        |y, grad| y.iter().zip(grad).map(|(y, g)| g - y.exp() * grad.iter().sum::<f64>()).collect(),
        |n| 10.0 * n as f64,
        tolerance,
    );
}

#[test]
fn columns_match_the_formulas_in_every_precision() {
    check_all::<f64>(1e-13);
    check_all::<f32>(1e-6);
    check_all::<f16>(1e-3);
    check_all::<bf16>(8e-3);
}

#[test]
fn large_numbers_do_not_overflow_and_what_is_not_a_number_stays_in_its_column() {
    for [outer, n, inner] in [[2, 10, 1], [2, 100, 1], [1, 10, 16], [1, 100, 17], [2, 3, 600]] {
        let mut x = vec![1e30_f32; outer * n * inner];
        let mut out = vec![0.0; x.len()];
        let last = x.len() - 1;
        x[last] = f32::NAN;
        softmax::<_, false>(stored(&x), [n, inner], stored_mut(&mut out)).unwrap();
        for column in columns([outer, n, inner]) {
            let are_right =
                |y: f32| if column.contains(&last) { y.is_nan() } else { (y * n as f32 - 1.0).abs() < 1e-6 };
            assert!(column.iter().all(|&i| are_right(out[i])), "{n} of {inner}");
        }
    }
}

/// If one block of rows is all -∞, the others make up the sum. If all are, the sum is NaN.
#[test]
fn minus_infinity_has_no_probability() {
    let (n, inner) = (200, 16);
    let mut x: Vec<f64> = numbers(n * inner, 3);
    x[..64 * inner].fill(f64::NEG_INFINITY);
    (0..n).for_each(|j| x[j * inner] = f64::NEG_INFINITY);
    let mut out = vec![0.0; x.len()];
    softmax::<_, false>(stored(&x), [n, inner], stored_mut(&mut out)).unwrap();
    for (i, column) in columns([1, n, inner]).enumerate() {
        let sum: f64 = column.iter().map(|&i| out[i]).sum();
        let is_right = if i == 0 { sum.is_nan() } else { (sum - 1.0).abs() < 1e-12 && out[column[63]] == 0.0 };
        assert!(is_right, "column {i}: {sum}");
    }
}
