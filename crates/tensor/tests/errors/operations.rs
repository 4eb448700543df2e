//! Arithmetic, comparisons, reductions, products, softmax, losses and in-place changes.

use pagelock_tensor::{Axes, BatchNormOptions, Bool, Float, Generator, Reduction, Result, Tensor};

use super::{alone, indices, refuses, zeros};

#[test]
fn shapes_that_do_not_broadcast() {
    let _alone = alone();
    let (a, b) = (zeros([2, 3]), zeros([2]));
    type Binary<K> = fn(&Tensor, &Tensor) -> Result<Tensor<K>>;
    let check = |op: &str, attempt: &dyn Fn() -> Result<()>| {
        refuses(
            attempt,
            &format!(
                "{op}: shapes [2, 3] and [2] do not broadcast: aligned at the end, sizes must be equal or 1; reshape, unsqueeze or transpose one side"
            ),
        );
    };
    let numbers: [(&str, Binary<Float>); 5] = [
        ("add", Tensor::add),
        ("sub", Tensor::sub),
        ("mul", Tensor::mul),
        ("div", Tensor::div),
        ("maximum", Tensor::maximum),
    ];
    let truths: [(&str, Binary<Bool>); 6] = [
        ("eq", Tensor::eq),
        ("ne", Tensor::ne),
        ("lt", Tensor::lt),
        ("le", Tensor::le),
        ("gt", Tensor::gt),
        ("ge", Tensor::ge),
    ];
    for (op, f) in numbers {
        check(op, &|| f(&a, &b).map(drop));
    }
    for (op, f) in truths {
        check(op, &|| f(&a, &b).map(drop));
    }
    check("add", &|| (&a + &b).map(drop));
    refuses(
        || zeros([1, 1]).expand([1_usize << 59, 1])? + zeros([1]).expand([1_usize << 59])?,
        "shape [576460752303423488, 576460752303423488] needs more bytes than memory can address (2^63); check the sizes",
    );
}

#[test]
fn axes_that_do_not_exist_or_are_named_twice() {
    let _alone = alone();
    let x = zeros([2, 3]);
    type Reduce = fn(&Tensor, isize) -> Result<Tensor>;
    let reductions: [(&str, Reduce); 10] = [
        ("sum", |x, axis| x.sum(axis)),
        ("mean", |x, axis| x.mean(axis)),
        ("max", |x, axis| x.max(axis)),
        ("min", |x, axis| x.min(axis)),
        ("var", |x, axis| x.var(axis)),
        ("sum", |x, axis| x.sum_keepdim([0, axis])),
        ("mean", |x, axis| x.mean_keepdim([0, axis])),
        ("max", |x, axis| x.max_keepdim([0, axis])),
        ("min", |x, axis| x.min_keepdim([0, axis])),
        ("var", |x, axis| x.var_keepdim([0, axis])),
    ];
    for (op, reduce) in reductions {
        let text = format!("{op}: there is no dimension 2 in [2, 3]: use 0 to 1, or -2 to -1 from the end");
        refuses(|| reduce(&x, 2), &text);
    }
    refuses(|| x.sum([1, 0, -1]), "sum: dimension -1 of [2, 3] is named twice; name each once");
    refuses(
        || zeros([2]).sum([0, 1].resolve("sum", x.shape())?),
        "sum: there is no dimension 1 in [2]: use 0, or -1 from the end",
    );
    for (op, dim) in [("argmax", 2), ("softmax", -3), ("log_softmax", 5)] {
        let text = format!("{op}: there is no dimension {dim} in [2, 3]: use 0 to 1, or -2 to -1 from the end");
        match op {
            "argmax" => refuses(|| x.argmax(dim), &text),
            "softmax" => refuses(|| x.softmax(dim), &text),
            _ => refuses(|| x.log_softmax(dim), &text),
        }
    }
}

#[test]
fn extremes_of_nothing() {
    let _alone = alone();
    let x = zeros([2, 0]);
    refuses(|| x.max(-1), "max: the reduced dimension is empty; reduce over at least one element");
    refuses(|| x.min(..), "min: the reduced dimension is empty; reduce over at least one element");
    refuses(|| x.argmax(1), "argmax: the dimension is empty; reduce over at least one element");
    refuses(|| x.argmax_keepdim(1), "argmax: the dimension is empty; reduce over at least one element");
}

#[test]
fn matrices_that_do_not_fit() {
    let _alone = alone();
    let fix = "transpose or reshape one side";
    refuses(
        || zeros([64, 784]).matmul(&zeros([128, 10])),
        &format!("matmul: inner sizes differ: left is [64, 784], right is [128, 10]; {fix}"),
    );
    refuses(
        || zeros([3]).matmul(&zeros([4])),
        &format!("matmul: inner sizes differ: left is [3], right is [4]; {fix}"),
    );
    refuses(
        || zeros([2, 2, 3]).matmul(&zeros([4, 5])),
        &format!("matmul: inner sizes differ: left is [2, 2, 3], right is [4, 5]; {fix}"),
    );
    refuses(
        || zeros([]).matmul(&zeros([2])),
        "matmul: the left operand is [], but it must have at least one dimension; use mul for scalars",
    );
    refuses(
        || zeros([2]).matmul(&zeros([])),
        "matmul: the right operand is [], but it must have at least one dimension; use mul for scalars",
    );
    refuses(
        || zeros([2, 2, 3]).matmul(&zeros([3, 3, 2])),
        "matmul: shapes [2] and [3] do not broadcast: aligned at the end, sizes must be equal or 1; reshape, unsqueeze or transpose one side",
    );
    refuses(
        || zeros([1, 1]).expand([1_usize << 59, 1])?.matmul(&zeros([1, 1]).expand([1, 1_usize << 59])?),
        "shape [576460752303423488, 576460752303423488] needs more bytes than memory can address (2^63); check the sizes",
    );
}

#[test]
fn losses_with_targets_that_do_not_fit() {
    let _alone = alone();
    let x = zeros([2, 3]);
    for (op, loss) in [("nll_loss", Tensor::nll_loss as fn(&_, &_, _) -> _), ("cross_entropy", Tensor::cross_entropy)] {
        refuses(
            || loss(&x, &indices(&[0, 1, 2]), Reduction::Mean),
            &format!("{op}: the target is [3], but for predictions [2, 3] it must be [2], without the class dimension"),
        );
        refuses(
            || loss(&x, &indices(&[0, 3]), Reduction::Sum),
            &format!("{op}: index 3 is out of range for dimension 1 of [2, 3]: use 0 to 2"),
        );
        let layer = if op == "nll_loss" { "NLLLoss" } else { "CrossEntropyLoss" };
        refuses(
            || loss(&x, &indices(&[0, -100]), Reduction::Mean),
            &format!(
                "{op}: index -100 is out of range for dimension 1 of [2, 3]: use 0 to 2, or ignore it: `{layer}::new().ignore_index(-100)`"
            ),
        );
        refuses(
            || loss(&zeros([3]), &indices(&[0]), Reduction::None),
            &format!("{op}: the prediction is [3], but it must be [batch, classes, …]; unsqueeze a batch dimension"),
        );
        refuses(
            || loss(&zeros([0, 3]), &indices(&[]), Reduction::Mean),
            &format!("{op}: the batch is empty; skip empty batches, or use Reduction::Sum"),
        );
    }
    refuses(
        || x.mse_loss(&zeros([3]), Reduction::Mean),
        "mse_loss: the target is [3], but it must have the prediction's shape [2, 3]; reshape one of them",
    );
    refuses(
        || zeros([0]).mse_loss(&zeros([0]), Reduction::Mean),
        "mse_loss: the batch is empty; skip empty batches, or use Reduction::Sum",
    );
    refuses(|| x.dropout(1.5, &Generator::new(0)), "dropout: p is 1.5, but it must be a probability, 0 to 1");
    refuses(|| x.dropout(f64::NAN, &Generator::new(0)), "dropout: p is NaN, but it must be a probability, 0 to 1");
}

#[test]
fn in_place_changes_that_do_not_fit() {
    let _alone = alone();
    let x = zeros([2]);
    type Change = fn(&Tensor, &Tensor) -> Result<()>;
    let changes: [(&str, Change); 8] = [
        ("copy_", Tensor::copy_),
        ("add_", Tensor::add_),
        ("sub_", Tensor::sub_),
        ("mul_", Tensor::mul_),
        ("div_", Tensor::div_),
        ("add_scaled_", |x, other| x.add_scaled_(other, 0.5)),
        ("addcmul_", |x, other| x.addcmul_(other, x, 0.5)),
        ("addcdiv_", |x, other| x.addcdiv_(x, other, 0.5)),
    ];
    for (op, change) in changes {
        let text =
            format!("{op}: the tensor is [3, 2], but to expand to [2], sizes aligned at the end must be equal or 1");
        refuses(|| change(&x, &zeros([3, 2])), &text);
    }
    assert_eq!(x.version(), 0, "nothing was changed");
}

#[test]
fn in_place_changes_of_expanded_tensors() {
    let _alone = alone();
    let x = zeros([2, 1]).expand([2, 3]).unwrap();
    let changes: [(&str, fn(&Tensor) -> Result<()>); 6] = [
        ("fill_", |x| x.fill_(1.0)),
        ("zero_", Tensor::zero_),
        ("add_scalar_", |x| x.add_scalar_(1.0)),
        ("mul_scalar_", |x| x.mul_scalar_(1.0)),
        ("sqrt_", Tensor::sqrt_),
        ("add_", |x| x.add_(x)),
    ];
    for (op, change) in changes {
        let text = format!(
            "{op}: [2, 3] is a view whose elements share memory, as expand and unfold make; make it contiguous first"
        );
        refuses(|| change(&x), &text);
    }
}

#[test]
fn in_place_changes_of_windows_that_overlap() {
    let _alone = alone();
    let x = zeros([5]);
    let windows = x.unfold(0, 3, 2).unwrap();
    let fix = "is a view whose elements share memory, as expand and unfold make; make it contiguous first";
    refuses(|| windows.fill_(1.0), &format!("fill_: [2, 3] {fix}"));
    refuses(|| windows.t()?.add_scalar_(1.0), &format!("add_scalar_: [3, 2] {fix}"));
    assert_eq!(x.version(), 0, "nothing was changed");

    x.unfold(0, 2, 3).unwrap().fill_(1.0).unwrap();

    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 1.0, 0.0, 1.0, 1.0], "these do not overlap");
}

#[test]
fn normalizations_that_do_not_fit() {
    let _alone = alone();
    let x = zeros([2, 3]);
    refuses(
        || x.layer_norm([2], None, None, 1e-5),
        "layer_norm: the input is [2, 3], but its last sizes must be those to normalize, [2]; reshape it",
    );
    refuses(
        || x.layer_norm([3], Some(&zeros([2])), None, 1e-5),
        "layer_norm: the weight is [2], but it must have the sizes to normalize, [3]",
    );
    refuses(
        || x.layer_norm([3], None, Some(&zeros([1])), 1e-5),
        "layer_norm: the bias is [1], but it must have the sizes to normalize, [3]",
    );
    let options = BatchNormOptions::default();
    refuses(
        || zeros([3]).batch_norm(None, None, None, options),
        "batch_norm: the input is [3], but it must be [batch, channels, ..]; reshape it",
    );
    refuses(
        || x.batch_norm(None, Some(&zeros([2])), None, options),
        "batch_norm: the weight is [2], but with the input [2, 3] it must be [3], the size of dimension 1; permute the input, \
         or change the layer's number of features",
    );
    refuses(
        || x.batch_norm(Some([&zeros([3]), &zeros([2])]), None, None, options),
        "batch_norm: the running variance is [2], but with the input [2, 3] it must be [3], the size of dimension 1; permute the input, \
         or change the layer's number of features",
    );
    refuses(
        || zeros([1, 3]).batch_norm(None, None, None, options),
        "batch_norm: the input is [1, 3], but while training a channel needs at least two values; give a larger batch, \
         or evaluate",
    );
}
