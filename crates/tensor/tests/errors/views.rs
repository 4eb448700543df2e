//! Views, joins and selections by index.

use pagelock_tensor::{Ellipsis, Tensor};

use super::{alone, indices, refuses, zeros};

#[test]
fn dimensions_that_do_not_exist() {
    let _alone = alone();
    let hint = "use 0 to 1, or -2 to -1 from the end";
    let x = zeros([2, 3]);
    refuses(|| x.size(2), &format!("size: there is no dimension 2 in [2, 3]: {hint}"));
    refuses(|| x.transpose(0, 2), &format!("transpose: there is no dimension 2 in [2, 3]: {hint}"));
    refuses(|| x.transpose(-3, 0), &format!("transpose: there is no dimension -3 in [2, 3]: {hint}"));
    refuses(|| x.permute([0, 5]), &format!("permute: there is no dimension 5 in [2, 3]: {hint}"));
    refuses(|| x.narrow(2, 0, 1), &format!("narrow: there is no dimension 2 in [2, 3]: {hint}"));
    refuses(
        || x.slice(isize::MIN, .., 1),
        &format!("slice: there is no dimension -9223372036854775808 in [2, 3]: {hint}"),
    );
    refuses(
        || x.select(isize::MAX, 0),
        &format!("select: there is no dimension 9223372036854775807 in [2, 3]: {hint}"),
    );
    refuses(|| x.squeeze(2), &format!("squeeze: there is no dimension 2 in [2, 3]: {hint}"));
    refuses(|| x.flatten(0, 2), &format!("flatten: there is no dimension 2 in [2, 3]: {hint}"));
    refuses(|| Tensor::cat(&[&x], 2), &format!("cat: there is no dimension 2 in [2, 3]: {hint}"));
    refuses(|| x.index_select(2, &indices(&[0])), &format!("index_select: there is no dimension 2 in [2, 3]: {hint}"));
    refuses(|| x.gather(-3, &indices(&[0])), &format!("gather: there is no dimension -3 in [2, 3]: {hint}"));
    let hint = "use 0 to 2, or -3 to -1 from the end";
    refuses(|| x.unsqueeze(3), &format!("unsqueeze: there is no dimension 3 in [2, 3]: {hint}"));
    refuses(|| Tensor::stack(&[&x], -4), &format!("stack: there is no dimension -4 in [2, 3]: {hint}"));
    refuses(
        || zeros([]).select(0, 0),
        "select: there is no dimension 0 in []: it is a scalar and has none; reshape it to [1] first",
    );
}

#[test]
fn sizes_that_do_not_fill_the_tensor() {
    let _alone = alone();
    let x = zeros([2, 3]);
    let fix = "make the product of the sizes 6 (one size may be -1)";
    refuses(|| x.reshape([4]), &format!("reshape: [2, 3] has 6 elements, which do not fill [4]; {fix}"));
    refuses(|| x.reshape([-1, 4]), &format!("reshape: [2, 3] has 6 elements, which do not fill [-1, 4]; {fix}"));
    refuses(|| x.reshape([-1, -1]), &format!("reshape: [2, 3] has 6 elements, which do not fill [-1, -1]; {fix}"));
    refuses(|| x.reshape([-2, -3]), &format!("reshape: [2, 3] has 6 elements, which do not fill [-2, -3]; {fix}"));
    refuses(|| x.reshape([0, -1]), &format!("reshape: [2, 3] has 6 elements, which do not fill [0, -1]; {fix}"));
    refuses(|| x.view([5]), &format!("view: [2, 3] has 6 elements, which do not fill [5]; {fix}"));
    refuses(
        || x.reshape([isize::MAX, isize::MAX]),
        &format!("reshape: [2, 3] has 6 elements, which do not fill [9223372036854775807, 9223372036854775807]; {fix}"),
    );
    refuses(
        || zeros([0]).reshape([0, 1_isize << 40, 1 << 40]),
        "shape [0, 1099511627776, 1099511627776] needs more bytes than memory can address (2^63); check the sizes",
    );
    refuses(
        || x.reshape([1, 1, 1, 1, 1, 1, 1, 2, 3]),
        "shape [1, 1, 1, 1, 1, 1, 1, 2, 3] has 9 dimensions, but a tensor has at most 8; flatten some",
    );
}

#[test]
fn views_that_need_a_copy() {
    let _alone = alone();
    refuses(
        || zeros([2, 3]).t()?.view([6]),
        "view: [3, 2] with strides [1, 3] has no view as [6] without a copy; use reshape, or contiguous first",
    );
}

#[test]
fn orders_that_name_dimensions_twice_or_not_at_all() {
    let _alone = alone();
    let x = zeros([2, 3, 4]);
    refuses(|| x.permute([0, 1, -3]), "permute: dimension -3 of [2, 3, 4] is named twice; name each once");
    refuses(
        || x.permute([1, 0]),
        "permute: the tensor is [2, 3, 4], but 2 dimensions were named; name each of its 3 once",
    );
    refuses(|| x.t(), "t: the tensor is [2, 3, 4], but it must have at most 2 dimensions; use transpose or permute");
    refuses(|| x.flatten(2, 1), "flatten: start is 2, but it must not come after end, which is 1 of [2, 3, 4]");
}

#[test]
fn ranges_and_positions_outside() {
    let _alone = alone();
    let x = zeros([2, 3]);
    let fix = "keep start and end in 0..=3 and the step at least 1";
    refuses(|| x.narrow(1, 2, 2), &format!("narrow: 2..4 with step 1 does not fit dimension 1 of [2, 3]; {fix}"));
    refuses(
        || x.narrow(1, usize::MAX, 1),
        &format!(
            "narrow: 9223372036854775807..9223372036854775807 with step 1 does not fit dimension 1 of [2, 3]; {fix}"
        ),
    );
    refuses(
        || x.narrow(1, 1 << 63, 5),
        &format!(
            "narrow: 9223372036854775807..9223372036854775807 with step 1 does not fit dimension 1 of [2, 3]; {fix}"
        ),
    );
    refuses(|| x.slice(1, .., 0), &format!("slice: 0..3 with step 0 does not fit dimension 1 of [2, 3]; {fix}"));
    refuses(
        || x.select(1, 3),
        "select: index 3 is out of range for dimension 1 of [2, 3]: use 0 to 2, or -3 to -1 from the end",
    );
    refuses(
        || x.select(1, -4),
        "select: index -4 is out of range for dimension 1 of [2, 3]: use 0 to 2, or -3 to -1 from the end",
    );
    refuses(
        || zeros([0, 2]).select(0, 0),
        "select: index 0 is out of range for dimension 0 of [0, 2]: it is empty; check for a batch or an index without elements",
    );
    assert_eq!(x.slice(1, isize::MIN..isize::MAX, usize::MAX).unwrap().shape(), &[2, 1]);
}

#[test]
fn too_many_dimensions() {
    let _alone = alone();
    refuses(
        || zeros([1, 1, 1, 1, 1, 1, 1, 2]).unsqueeze(0),
        "shape [1, 1, 1, 1, 1, 1, 1, 2, 1] has 9 dimensions, but a tensor has at most 8; flatten some",
    );
}

#[test]
fn expansions_of_sizes_other_than_one() {
    let _alone = alone();
    let x = zeros([2, 3]);
    refuses(
        || x.expand([4, 3]),
        "expand: the tensor is [2, 3], but to expand to [4, 3], sizes aligned at the end must be equal or 1",
    );
    refuses(
        || x.expand([3]),
        "expand: the tensor is [2, 3], but to expand to [3], sizes aligned at the end must be equal or 1",
    );
    refuses(
        || zeros([1]).expand([usize::MAX]),
        "shape [18446744073709551615] needs more bytes than memory can address (2^63); check the sizes",
    );
}

#[test]
fn tensors_that_cannot_be_joined() {
    let _alone = alone();
    let x = zeros([2, 3]);
    refuses(|| Tensor::cat(&[] as &[&Tensor], 0), "cat: the list of tensors is empty; give at least one");
    refuses(|| Tensor::stack(&[] as &[&Tensor], 0), "stack: the list of tensors is empty; give at least one");
    refuses(
        || Tensor::cat(&[&x, &zeros([2, 4])], 0),
        "cat: a tensor is [2, 4], but it must have the shape of the first, [2, 3], except in dimension 0; reshape or narrow it",
    );
    refuses(
        || Tensor::cat(&[&x, &zeros([2])], -1),
        "cat: a tensor is [2], but it must have the shape of the first, [2, 3], except in dimension 1; reshape or narrow it",
    );
    refuses(
        || Tensor::stack(&[&x, &zeros([3, 2])], 0),
        "stack: a tensor is [3, 2], but it must have the shape of the first, [2, 3]; reshape or expand it",
    );
    refuses(
        || {
            let wide = zeros([1]).expand([1_usize << 59])?;
            Tensor::cat(&[&wide; 16], 0)
        },
        "shape [9223372036854775808] needs more bytes than memory can address (2^63); check the sizes",
    );
}

#[test]
fn indices_outside_or_of_another_shape() {
    let _alone = alone();
    let x = zeros([2, 3]);
    refuses(
        || x.index_select(1, &indices(&[0, 3])),
        "index_select: index 3 is out of range for dimension 1 of [2, 3]: use 0 to 2",
    );
    refuses(
        || x.index_select(0, &indices(&[-1])),
        "index_select: index -1 is out of range for dimension 0 of [2, 3]: use 0 to 1",
    );
    refuses(
        || zeros([0, 3]).index_select(0, &indices(&[0])),
        "index_select: index 0 is out of range for dimension 0 of [0, 3]: it is empty; check for a batch or an index without elements",
    );
    refuses(
        || x.index_select(0, &Tensor::full([1, 1], 0)?),
        "index_select: the index is [1, 1], but it must have one dimension; flatten it",
    );
    refuses(
        || x.gather(1, &Tensor::new([[i64::MAX]])?),
        "gather: index 9223372036854775807 is out of range for dimension 1 of [2, 3]: use 0 to 2",
    );
    refuses(
        || x.gather(1, &Tensor::full([3, 1], 0)?),
        "gather: the index is [3, 1], but it must have the rank of [2, 3] and be no larger, except in dimension 1",
    );
    refuses(
        || x.gather(0, &indices(&[0])),
        "gather: the index is [1], but it must have the rank of [2, 3] and be no larger, except in dimension 0",
    );
    refuses(
        || zeros([1, 1]).expand([1, 1_usize << 59])?.index_select(0, &indices(&[0; 32])),
        "shape [32, 576460752303423488] needs more bytes than memory can address (2^63); check the sizes",
    );
}

#[test]
fn indices_that_do_not_fit() {
    let _alone = alone();
    let x = zeros([2, 3]);
    let (rows, mask) = (indices(&[0, 2]), Tensor::new([true, false, true]).unwrap());
    refuses(|| x.i((0, .., 1)), "i: the tensor is [2, 3], but the index has items for 3 dimensions; remove some");
    refuses(
        || x.i((Ellipsis, 0, Ellipsis)),
        "i: the index has `Ellipsis` twice; only one `Ellipsis` can stand for the remaining dimensions",
    );
    refuses(
        || x.i(&mask),
        "i: the mask is [3], but its shape must equal the sizes of [2, 3] from dimension 0 on, for at least one dimension",
    );
    refuses(|| x.i(&rows), "i: index 2 is out of range for dimension 0 of [2, 3]: use 0 to 1");
    refuses(
        || x.i((&rows, &indices(&[0, 1, 2]))),
        "i: shapes [2] and [3] do not broadcast: aligned at the end, sizes must be equal or 1; reshape, unsqueeze or transpose one side",
    );
    refuses(
        || x.index_put((1, &rows), &zeros([2])),
        "index_put: the index contains numbers, ranges or new dimensions; give only tensors, masks, `..` and `Ellipsis`, or use put_, which takes all items",
    );
    refuses(
        || x.scatter(0, &indices(&[0]), &zeros([1])),
        "scatter: the index is [1], but it must have the rank of [2, 3] and be no larger, except in dimension 0",
    );
    refuses(|| x.diagonal(0, 1, -1), "diagonal: dim2 is -1, but it must differ from dim1");
}

#[test]
fn equations_that_do_not_fit() {
    let _alone = alone();
    let (x, y) = (zeros([2, 3]), zeros([4, 5]));
    let refused = |equation: &str, problem: &str| {
        refuses(
            || Tensor::einsum(equation, &[&x, &y]),
            &format!("einsum: the equation is `{equation}`, but {problem}"),
        );
    };
    refused("ij", "it has 1 terms for 2 operands; write one for each");
    refused("ij,jk->ik", "letter `j` is 3 in one operand and 4 in another");
    refused("ij,kl->im", "no operand has the `m` of the result");
    refused("ij,kl->ii", "the result uses a letter twice; write each once");
    refused("i,kl->i", "`i` must have one letter for each dimension of [2, 3]");
    refused("ii,kl->i", "`ii` uses one letter for two dimensions of [2, 3] with different sizes");
    refused("i1,kl->i", "`1` is not a letter; name dimensions by letters, or several by `...`");
}
