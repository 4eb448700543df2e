//! Making and reading tensors.

use pagelock_tensor::{DType, Shape, Tensor};

use super::{alone, refuses, zeros};

#[test]
fn data_that_does_not_fit_its_shape() {
    let _alone = alone();
    refuses(
        || Tensor::from_slice(&[1.0f32, 2.0, 3.0], [2, 2]),
        "from_slice: the length of the data is 3, but must be 4 for shape [2, 2]",
    );
    refuses(
        || Tensor::from_vec(Vec::<i64>::new(), ()),
        "from_slice: the length of the data is 0, but must be 1 for shape []",
    );
    refuses(
        || zeros([2, 2]).copy_to_slice(&mut [0.0; 5]),
        "copy_to_slice: the length of `out` is 5, but must be 4 for shape [2, 2]",
    );
}

#[test]
fn nested_arrays_of_unequal_rows() {
    let _alone = alone();
    refuses(
        || Tensor::new(vec![vec![1.0, 2.0], vec![3.0]]),
        "new: rows of a nested array differ in length: [2] and [1]; pad or cut them to the same length",
    );
    refuses(
        || Tensor::new(vec![vec![vec![1], vec![2]], vec![vec![3], vec![]]]),
        "new: rows of a nested array differ in length: [1] and [0]; pad or cut them to the same length",
    );
}

#[test]
fn shapes_that_no_tensor_can_have() {
    let _alone = alone();
    refuses(
        || Tensor::zeros([1, 1, 1, 1, 1, 1, 1, 1, 1]),
        "shape [1, 1, 1, 1, 1, 1, 1, 1, 1] has 9 dimensions, but a tensor has at most 8; flatten some",
    );
    refuses(
        || Tensor::zeros([1_usize << 31, 1 << 31]),
        "shape [2147483648, 2147483648] needs more bytes than memory can address (2^63); check the sizes",
    );
    refuses(
        || Tensor::of(DType::U8).full([0, usize::MAX], 0),
        "shape [0, 18446744073709551615] needs more bytes than memory can address (2^63); check the sizes",
    );
    refuses(
        || Tensor::zeros((2_usize, -1)),
        "shape [2, -1] has a negative size; give sizes of 0 and more (only reshape, view and expand take a −1)",
    );
    refuses(
        || zeros([2, 3]).expand([-1, 2, -2]),
        "shape [-1, 2, -2] has a negative size; give sizes of 0 and more (only reshape, view and expand take a −1)",
    );
    refuses(
        || zeros([2, 3]).sizes::<3>(),
        "sizes: the pattern has 3 sizes, but [2, 3] has 2; use one name for each dimension",
    );
    refuses(
        || Shape::new(&[usize::MAX, usize::MAX]),
        "shape [18446744073709551615, 18446744073709551615] needs more bytes than memory can address (2^63); check the sizes",
    );
    refuses(
        || Tensor::of(DType::F64).eye(1 << 40),
        "shape [1099511627776, 1099511627776] needs more bytes than memory can address (2^63); check the sizes",
    );
}

#[test]
fn ranges_that_never_end() {
    let _alone = alone();
    refuses(|| Tensor::arange(0, 5, 0), "arange: step is 0, but it must lead from the start 0 towards the end 5");
    refuses(
        || Tensor::of(DType::I32).arange(0, 5, -1),
        "arange: step is -1, but it must lead from the start 0 towards the end 5",
    );
    refuses(
        || Tensor::arange(0.0, f32::INFINITY, 1.0),
        "arange: step is 1.0, but it must lead from the start 0.0 towards the end inf",
    );
    refuses(
        || Tensor::arange(0.0, 1.0, f32::NAN),
        "arange: step is NaN, but it must lead from the start 0.0 towards the end 1.0",
    );
}

#[test]
fn one_number_of_a_tensor_that_holds_another_count() {
    let _alone = alone();
    refuses(|| zeros([3]).item::<f32>(), "item: [3] holds 3 elements, not one; reduce or select first, or use to_vec");
    refuses(
        || zeros([2, 0]).item::<f32>(),
        "item: [2, 0] holds 0 elements, not one; reduce or select first, or use to_vec",
    );
}

/// Before the fix, the program was aborted.
#[test]
fn a_vector_of_more_elements_than_fit_is_refused() {
    let _alone = alone();
    let many = Tensor::scalar(1.0).unwrap().expand([1_usize << 45]).unwrap();
    let refused = many.to_vec::<f32>().unwrap_err();
    assert!(refused.is_out_of_memory());
    assert_eq!(
        refused.to_string(),
        "to_vec: no memory for [35184372088832] of float32: the system cannot allocate 128 TiB of pageable memory; free \
         some, or set a budget below the machine's RAM so that the refusal comes earlier"
    );
}
