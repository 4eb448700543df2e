//! Products against one naive loop in `f64`, on every instruction set of the machine.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::cpu::testing::{Stores, stored, stored_mut};
use crate::element::Element;
use crate::lanes::testing::{levels, with_level};
use crate::parallel::set_num_threads;

/// How an operand is laid out in its slice.
#[derive(Clone, Copy, Debug)]
enum OperandLayout {
    InRows,
    InColumns,
    /// In rows, of which only every other number is used.
    Spread,
    /// In rows of a wider matrix.
    InPart,
    /// One row, repeated.
    Broadcast,
    /// One number, repeated.
    One,
}

/// An operand of `rows × columns` small integers, which all types hold exactly.
struct Operand {
    numbers: Vec<i64>,
    strides: [usize; 2],
}

impl Operand {
    fn new([rows, columns]: [usize; 2], layout: OperandLayout, seed: u64) -> Operand {
        let strides = match layout {
            OperandLayout::InRows => [columns, 1],
            OperandLayout::InColumns => [1, rows],
            OperandLayout::Spread => [2 * columns, 2],
            OperandLayout::InPart => [columns + 2, 1],
            OperandLayout::Broadcast => [0, 1],
            OperandLayout::One => [0, 0],
        };
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as i64 % 7 - 3
        };
        Operand { numbers: (0..2 * rows * (columns + 1)).map(|_| next()).collect(), strides }
    }

    fn cast<T: Element>(&self) -> Vec<T> {
        self.numbers.iter().map(|&number| number.cast()).collect()
    }
}

/// A product, and the layouts of its operands.
type Case = (Sizes, [OperandLayout; 2]);

fn expected(a: &Operand, b: &Operand, Sizes { m, k, n }: Sizes) -> Vec<i64> {
    let element = |of: &Operand, i: usize, j: usize| of.numbers[i * of.strides[0] + j * of.strides[1]];
    let dot = |i: usize, j: usize| (0..k).map(|p| element(a, i, p) * element(b, p, j)).sum();
    (0..m * n).map(|at| dot(at / n, at % n)).collect()
}

/// Sums of products of these small integers are exact in every float type of at least 24 bits, in any order.
fn check<T: Stores<C: Num>>((sizes, layouts): Case) {
    let Sizes { m, k, n } = sizes;
    let (a, b) = (Operand::new([m, k], layouts[0], 1), Operand::new([k, n], layouts[1], 2));
    let mut c = vec![T::from_f64(77.0); m * n];
    let (a_numbers, b_numbers) = (a.cast::<T>(), b.cast::<T>());
    gemm(m, k, n, stored(&a_numbers), a.strides, stored(&b_numbers), b.strides, stored_mut(&mut c)).unwrap();
    let expected: Vec<T> = expected(&a, &b, sizes).into_iter().map(|sum| sum.cast()).collect();
    assert!(c == expected, "{} {sizes:?} {layouts:?}", T::DTYPE);
}

fn any_case() -> impl Strategy<Value = Case> {
    use OperandLayout::{Broadcast, InColumns, InPart, InRows, One, Spread};
    let layout = prop::sample::select(vec![InRows, InColumns, Spread, InPart, Broadcast, One]);
    let size = prop_oneof![1..4usize, 1..40usize, 1..140usize];
    let (sizes, layouts) = ([size.clone(), size.clone(), size], [layout.clone(), layout]);
    (sizes, layouts).prop_map(|([m, k, n], layouts)| (Sizes { m, k, n }, layouts))
}

proptest! {
    #[test]
    fn all_types_and_layouts_agree_with_the_naive_loop(case in any_case()) {
        for level in levels() {
            with_level(level, || {
                check::<f32>(case);
                check::<f64>(case);
            });
        }
        check::<f16>(case);
        check::<bf16>(case);
        check::<i64>(case);
        check::<i32>(case);
        check::<u8>(case);
    }
}

/// Sizes that are cut into blocks: by rows, by columns, by both, with a transposed right side, with few rows, along a long inner
/// dimension, and by rows with halves that each task widens.
const LARGE: [(usize, usize, usize); 9] = [
    (300, 200, 310),
    (700, 90, 170),
    (70, 400, 900),
    (64, 784, 10),
    (1, 3000, 2000),
    (37, 1100, 250),
    (20, 9000, 33),
    (13, 5000, 11),
    (600, 70, 90),
];

#[test]
fn large_products_agree_with_the_naive_loop() {
    for (m, k, n) in LARGE {
        for layouts in [
            [OperandLayout::InRows, OperandLayout::InRows],
            [OperandLayout::InColumns, OperandLayout::InRows],
            [OperandLayout::InRows, OperandLayout::InColumns],
            [OperandLayout::Spread, OperandLayout::One],
            [OperandLayout::One, OperandLayout::Spread],
            [OperandLayout::Broadcast, OperandLayout::Broadcast],
        ] {
            check::<f32>((Sizes { m, k, n }, layouts));
            check::<f64>((Sizes { m, k, n }, layouts));
            check::<f16>((Sizes { m, k, n }, layouts));
            check::<bf16>((Sizes { m, k, n }, layouts));
        }
    }
}

/// Sizes whose right side is copied in several parts, or in one that is not full.
#[test]
fn large_products_of_integers_agree_with_the_naive_loop() {
    for (m, k, n) in [(70, 400, 900), (5, 20_000, 130), (64, 784, 10)] {
        for layouts in [[OperandLayout::InRows; 2], [OperandLayout::InColumns; 2]] {
            check::<i64>((Sizes { m, k, n }, layouts));
            check::<i32>((Sizes { m, k, n }, layouts));
            check::<u8>((Sizes { m, k, n }, layouts));
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for (m, k, n) in LARGE {
        for b_strides in [[n, 1], [1, k]] {
            check_threads::<f32>(Sizes { m, k, n }, b_strides);
            check_threads::<f16>(Sizes { m, k, n }, b_strides);
            check_threads::<bf16>(Sizes { m, k, n }, b_strides);
        }
    }
}

fn check_threads<T: Stores<C: Num>>(sizes: Sizes, b_strides: [usize; 2]) {
    let Sizes { m, k, n } = sizes;
    let numbers = |len: usize| -> Vec<T> { (0..len).map(|i| T::from_f64((i as f64 * 0.37).sin())).collect() };
    let (a, b) = (numbers(m * k), numbers(k * n));
    let results = [1, 2, 5].map(|threads| {
        set_num_threads(threads);
        let mut c = vec![T::ZERO; m * n];
        gemm(m, k, n, stored(&a), [k, 1], stored(&b), b_strides, stored_mut(&mut c)).unwrap();
        c
    });
    assert!(results[0] == results[1] && results[0] == results[2], "{} {sizes:?} {b_strides:?}", T::DTYPE);
}

#[test]
fn a_product_over_nothing_is_zero() {
    let mut c = [7.0f32; 6];
    gemm::<f32>(2, 0, 3, [][..].into(), [0, 1], [][..].into(), [3, 1], stored_mut(&mut c)).unwrap();
    assert_eq!(c, [0.0; 6]);
}

#[test]
fn a_product_without_rows_or_columns_writes_nothing() {
    gemm::<f32>(0, 4, 3, [][..].into(), [4, 1], [1.0; 12][..].into(), [3, 1], (&mut [][..]).into()).unwrap();
    gemm::<f32>(2, 4, 0, [1.0; 8][..].into(), [4, 1], [][..].into(), [0, 1], (&mut [][..]).into()).unwrap();
}

#[test]
fn integers_wrap() {
    let mut c = [0u8];
    gemm(1, 2, 1, stored(&[200u8, 100]), [2, 1], stored(&[2u8, 3]), [1, 1], stored_mut(&mut c)).unwrap();
    assert_eq!(c[0], (400 + 300 - 512) as u8);
}
