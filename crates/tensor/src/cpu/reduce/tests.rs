//! Tests of reductions against index arithmetic.

use proptest::prelude::*;

use super::super::testing::{Strided, shape, strided};
use super::*;

/// The elements of every result, by index arithmetic.
fn groups(x: &Strided, axes: u32) -> Vec<Vec<i32>> {
    let kept = |index: &[usize]| -> Vec<usize> {
        index.iter().enumerate().filter(|&(dim, _)| axes >> dim & 1 == 0).map(|(_, &i)| i).collect()
    };
    let shape = kept(&x.shape);
    let mut groups = vec![vec![]; shape.iter().product()];
    for (index, value) in x.indices().iter().zip(x.values()) {
        let position = kept(index).iter().zip(&shape).fold(0, |position, (i, size)| position * size + i);
        groups[position].push(value);
    }
    groups
}

fn check(x: &Strided, axes: u32) {
    let groups = groups(x, axes);
    let mut sums = vec![0_i64; groups.len()];
    sum(x.view(), axes, sums.as_mut_slice().into());
    let expected: Vec<i64> = groups.iter().map(|group| group.iter().map(|&x| i64::from(x)).sum()).collect();
    assert_eq!(sums, expected, "shape {:?}, strides {:?}, axes {axes:b}", x.shape, x.strides);

    let mut largest = vec![0; groups.len()];
    reduce(x.view(), axes, largest.as_mut_slice().into(), Extreme::<true>, |x| x);
    let expected: Vec<i32> = groups.iter().map(|group| group.iter().copied().max().unwrap_or(i32::MIN)).collect();
    assert_eq!(largest, expected, "shape {:?}, strides {:?}, axes {axes:b}", x.shape, x.strides);
}

proptest! {
    #[test]
    fn sums_and_maxima_match_index_arithmetic(x in shape().prop_flat_map(strided), axes in 0..32_u32) {
        check(&x, axes);
    }
}

#[test]
fn sums_and_maxima_match_index_arithmetic_beyond_one_chunk() {
    for (shape, strides) in [
        (vec![150_001], vec![1]),
        (vec![40_000, 5], vec![5, 1]),
        (vec![5, 40_000], vec![40_000, 1]),
        (vec![5, 40_000], vec![1, 5]),
        (vec![5, 20_000], vec![120_000, 3]),
        (vec![3_000, 40], vec![80, 2]),
        (vec![20, 30, 200], vec![6_000, 200, 1]),
        (vec![70, 1_400], vec![1_400, 1]),
        (vec![3, 333, 70], vec![24_000, 71, 1]),
        (vec![3, 5_000, 33], vec![165_000, 33, 1]),
        (vec![6, 3, 9_000], vec![27_001, 9_000, 1]),
        (vec![4, 20, 30, 40], vec![24_000, 30, 1, 600]),
        (vec![4, 20, 30, 40], vec![600, 30, 1, 2_400]),
        (vec![2, 1_000, 9, 7], vec![63_000, 1, 7_000, 1_000]),
    ] {
        let x = Strided::new(shape, strides);
        (0..1 << x.shape.len()).for_each(|axes| check(&x, axes));
    }
}

/// Sums of 10 million numbers along both kinds of loops, against the sum in `f64`.
#[test]
fn sums_of_ten_million_floats_are_accurate() {
    let (rows, columns) = (40_000, 250);
    let data: Vec<f32> = (0..rows * columns).map(|i| 0.1 + (i % 1_000) as f32 * 1e-3).collect();
    let sum = |shape: &[usize], strides: &[usize], axes, out: &mut [f32]| {
        super::sum(CpuView { data: data[..].into(), shape, strides }, axes, out.into());
    };
    let exact =
        |offset: usize, stride: usize, n: usize| -> f64 { (0..n).map(|i| f64::from(data[offset + i * stride])).sum() };
    let error = |sum: f32, exact: f64| (f64::from(sum) / exact - 1.0).abs();

    let (mut total, mut over_rows) = ([0.0], vec![0.0; columns]);
    sum(&[data.len()], &[1], 1, &mut total);
    sum(&[rows, columns], &[columns, 1], 1, &mut over_rows);

    assert!(error(total[0], exact(0, 1, data.len())) < 1e-6);
    for (column, &sum) in over_rows.iter().enumerate() {
        assert!(error(sum, exact(column, columns, rows)) < 1e-6, "column {column}");
    }
}
