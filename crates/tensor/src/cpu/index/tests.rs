//! Tests against index arithmetic.

use proptest::prelude::*;

use super::super::math::half::f32_to_bf16;
use super::super::testing::{Strided, shape, strided};
use super::*;

/// A tensor of rank 1 to 5, a dimension, and a tensor that is at most as large except along that dimension.
fn indexed() -> impl Strategy<Value = (Strided, usize, Strided)> {
    let cases = (shape(), 0..5_usize, 1..40_usize, any::<u32>());
    let cases = cases.prop_filter("needs a dimension", |(shape, ..)| !shape.is_empty() && !shape.contains(&0));
    cases.prop_flat_map(|(shape, dim, count, seed)| {
        let dim = dim % shape.len();
        let smaller = |(i, &size): (usize, &usize)| 1 + (seed >> (4 * i)) as usize % size;
        let mut other: Vec<usize> = shape.iter().enumerate().map(smaller).collect();
        other[dim] = count;
        (strided(shape), Just(dim), strided(other))
    })
}

/// Values of `x` as indices below `size`.
fn to_indices(x: &Strided, size: usize) -> Vec<i64> {
    x.data.iter().map(|&value| i64::from(value).rem_euclid(size as i64)).collect()
}

/// `index` with the entry at `dim` replaced.
fn at(index: &[usize], dim: usize, value: i64) -> Vec<usize> {
    let mut index = index.to_vec();
    index[dim] = value as usize;
    index
}

fn check_select(x: &Strided, dim: usize, count: usize) {
    let index: Vec<i64> = (0..count).map(|j| (j * 7 % x.shape[dim]) as i64).collect();
    let mut shape = x.shape.clone();
    shape[dim] = count;
    let positions = Strided::contiguous(shape);
    let mut out = vec![0; positions.len()];
    index_select(x.view(), dim, &index, &mut out);
    for (position, out) in positions.indices().iter().zip(out) {
        assert_eq!(out, x.data[x.offset(&at(position, dim, index[position[dim]]))], "{position:?} of {:?}", x.shape);
    }
}

fn check_gather(x: &Strided, dim: usize, positions: &Strided) {
    let index = to_indices(positions, x.shape[dim]);
    let mut out = vec![0; positions.len()];
    assert!(gather(x.view(), dim, CpuView { data: index[..].into(), ..view(positions) }, &mut out));
    for ((position, offset), out) in positions.indices().iter().zip(positions.offsets()).zip(out) {
        assert_eq!(out, x.data[x.offset(&at(position, dim, index[offset]))], "{position:?} of {:?}", x.shape);
    }
}

fn check_scatter(dst_shape: &[usize], dim: usize, positions: &Strided) {
    let dst = Strided::contiguous(dst_shape.to_vec());
    let index = to_indices(positions, dst_shape[dim]);
    let (mut data, mut expected) = (dst.data.clone(), vec![0; dst.len()]);
    let (index_view, strides) = (CpuView { data: index[..].into(), ..view(positions) }, contiguous_strides(dst_shape));
    let (base, stride) = (without(dim, &strides), strides[dim]);
    let any_outside = AtomicBool::new(false);
    let scatter = Scatter { dst_shape, dim, index: index_view, base, stride, any_outside: &any_outside };
    scatter.sum((&mut data[..]).into(), source(positions), None, OrderDependent).unwrap();
    assert!(!any_outside.into_inner());
    for (position, offset) in positions.indices().iter().zip(positions.offsets()) {
        let target = &mut expected[dst.offset(&at(position, dim, index[offset]))];
        *target = 3 * (*target % 1_000) + positions.data[offset];
    }
    assert_eq!(data, expected, "{dst_shape:?}, dim {dim}, {positions:?}");
}

fn check_index_add(src: &Strided, dim: usize, size: usize) {
    let index: Vec<i64> = (0..src.shape[dim]).map(|j| (j * 7 % size) as i64).collect();
    let mut dst_shape = src.shape.clone();
    dst_shape[dim] = size;
    let dst = Strided::contiguous(dst_shape.clone());
    let (mut data, mut expected) = (dst.data.clone(), vec![0; dst.len()]);
    let row_len = dst_shape[dim + 1..].iter().product();
    let rows = AddRows { row_len, slab_len: row_len * size, index: &index };
    rows.sum((&mut data[..]).into(), source(src), None, OrderDependent).unwrap();
    for (position, value) in src.indices().iter().zip(src.values()) {
        let target = &mut expected[dst.offset(&at(position, dim, index[position[dim]]))];
        *target = 3 * (*target % 1_000) + value;
    }
    assert_eq!(data, expected, "{dst_shape:?}, dim {dim}, {src:?}");
}

/// An addition whose result depends on the order.
#[derive(Clone, Copy)]
struct OrderDependent;

impl Adding<i32> for OrderDependent {
    fn plus(self, a: i32, b: i32) -> i32 {
        3 * (a % 1_000) + b
    }
    fn add_to_bits(self, _: &mut u16, _: i32) {
        unreachable!("the numbers are no halves")
    }
}

fn source(x: &Strided) -> Source<'_, i32> {
    Source { data: x.data[..].into(), strides: &x.strides, dims: Dims::of(&x.shape, &x.strides) }
}

fn view(positions: &Strided) -> CpuView<'_, i64> {
    CpuView { data: [][..].into(), shape: &positions.shape, strides: &positions.strides }
}

proptest! {
    #[test]
    fn index_select_matches_index_arithmetic((x, dim, other) in indexed()) {
        check_select(&x, dim, other.shape[dim]);
    }

    #[test]
    fn gather_matches_index_arithmetic((x, dim, positions) in indexed()) {
        check_gather(&x, dim, &positions);
    }

    #[test]
    fn scatter_add_matches_index_arithmetic_in_row_major_order((x, dim, positions) in indexed()) {
        check_scatter(&x.shape, dim, &positions);
    }

    #[test]
    fn index_add_matches_index_arithmetic_in_row_major_order((x, dim, other) in indexed()) {
        check_index_add(&x, dim, other.shape[dim]);
    }
}

#[test]
fn all_match_index_arithmetic_beyond_one_chunk() {
    let x = Strided::contiguous(vec![300, 200]);
    let positions = Strided::new(vec![300, 190], vec![1, 300]);
    for dim in 0..2 {
        check_select(&x, dim, 250);
        check_gather(&Strided::contiguous(vec![300, 300]), dim, &positions);
        check_scatter(&[300, 200], dim, &positions);
        check_index_add(&x, dim, 50);
    }
}

#[test]
fn rows_begin_as_the_base_whatever_part_of_them_the_index_names() {
    for shape in [[300, 190], [300, 1], [300, 200], [200, 190], [1, 190]] {
        check_scatter(&[300, 200], 1, &Strided::contiguous(shape.to_vec()));
    }
    check_scatter(&[30, 1, 40], 2, &Strided::contiguous(vec![30, 1, 9]));
    check_scatter(&[1, 40], 1, &Strided::contiguous(vec![1, 9]));
}

#[test]
fn long_rows_are_added_in_several_bands() {
    check_index_add(&Strided::contiguous(vec![300, 200]), 0, 500);
    check_index_add(&Strided::new(vec![300, 200], vec![1, 300]), 0, 500);
}

#[test]
fn sums_of_halves_are_rounded_as_by_conversions() {
    let halves = |step| (0..=u16::MAX).step_by(step);
    for (a, b) in halves(61).flat_map(|a| halves(97).map(move |b| (a, b))) {
        let same = |what: &str, sum: f32, expected: f32| {
            let are_same = sum.to_bits() == expected.to_bits() || sum.is_nan() && expected.is_nan();
            assert!(are_same, "{what} with the bits {a:x} and {b:x}: {sum}, not {expected}");
        };
        let [x, y] = [a, b].map(|bits| f16_to_f32(f16::from_bits(bits)));
        let expected = f16_to_f32(f32_to_f16(x + y));
        same("f16", AddF16.plus(x, y), expected);
        if let Some(Wide::F16(registers)) = Wide::new(Half::F16) {
            same("f16, by instructions,", AddInRegisters(registers).plus_one(x, y), expected);
        }
        let [x, y] = [a, b].map(|bits| bf16_to_f32(bf16::from_bits(bits)));
        same("bf16", AddBf16.plus(x, y), bf16_to_f32(f32_to_bf16(x + y)));
    }
}

#[test]
fn halves_are_added_to_few_places_as_to_many() {
    for half in [Half::F16, Half::BF16] {
        let values: Vec<u16> = half.bits_of(std::array::from_fn::<f32, 64, _>(|i| 0.1 + i as f32)).to_vec();
        let index: Vec<i64> = (0..64).map(|i| i * 5 % 7).collect();
        let sum = |len: usize| {
            let mut out = vec![0; len];
            let index = CpuView { data: index[..].into(), shape: &[64], strides: &[1] };
            let src = CpuView { data: Stored::<f32>::Halves(&values, half), shape: &[64], strides: &[1] };
            let out_of_bits = StoredMut::Halves(&mut out, half);
            assert!(scatter_add(out_of_bits, (&[len], 0), index, src, None).unwrap());
            out
        };
        assert_eq!(sum(7), sum(64 * SPARSE)[..7]);
    }
}

/// Tries the first part that a thread takes, and the last; with parts that are checked separately, and all together.
#[test]
fn an_index_out_of_range_is_found_wherever_it_is() {
    let (shape, src) = ([400, 100], vec![1.0_f32; 40_000]);
    for (dim, at, number) in [(1, 3, 100), (1, 39_999, -1), (0, 39_999, 400), (0, 0, -1)] {
        let mut index = vec![7_i64; 40_000];
        for is_inside in [true, false] {
            let view = CpuView { data: index[..].into(), shape: &shape, strides: &[100, 1] };
            let src = CpuView { data: src[..].into(), shape: &shape, strides: &[100, 1] };
            let mut out = vec![0.0; 40_000];
            let added = scatter_add((&mut out[..]).into(), (&shape, dim), view, src, None).unwrap();
            let written = super::super::scatter(&mut out, &shape, dim, view, src, |_, new| new);
            assert_eq!((added, written), (is_inside, is_inside), "{number} at {at}, dimension {dim}");
            index[at] = number;
        }
    }
}

#[test]
#[should_panic(expected = "out of range")]
fn an_index_that_was_not_checked_panics() {
    let x = Strided::contiguous(vec![4, 3]);
    index_select(x.view(), 0, &[4], &mut [0; 3]);
}
