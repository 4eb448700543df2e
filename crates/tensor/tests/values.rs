//! Values that are easy to get wrong: derivatives where squares overflow, half types where each step could round,
//! ranges, NaN, and what NumPy and PyTorch see through DLPack. `golden.rs` compares every operation with PyTorch; the
//! tests here state what has to hold.

use std::str::FromStr;

use half::{bf16, f16};
use pagelock_tensor::DType::{BF16, F16, F32, F64};
use pagelock_tensor::autograd::{self, Backward};
use pagelock_tensor::optimizer_steps::{Rate, SgdRule, StepTensors};
use pagelock_tensor::{
    BatchNormOptions, Conv2dOptions, DType, Element, Float, Generator, Number, Pool2dOptions, Reduction, Result,
    Tensor, no_grad,
};

fn numbers(dtype: DType, values: &[f64]) -> Tensor {
    Tensor::from_slice(values, values.len()).unwrap().to_dtype(dtype).unwrap()
}

fn read(x: &Tensor) -> Vec<f64> {
    x.to_vec().unwrap()
}

/// The gradient of the sum of `f`.
fn gradient(dtype: DType, x: &[f64], f: impl Fn(&Tensor) -> Result<Tensor>) -> Vec<f64> {
    let x = numbers(dtype, x).set_requires_grad(true);
    f(&x).unwrap().sum(..).unwrap().backward().unwrap();
    read(&x.grad().unwrap())
}

fn assert_close(found: &[f64], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let is_close = (found - expected).abs() <= bound * expected.abs() || found == expected;
        assert!(is_close, "{found:e} instead of {expected:e}");
    }
}

/// The gradient of `x / y` with respect to `y`.
fn gradient_of_divisor(dtype: DType, x: f64, y: f64) -> f64 {
    gradient(dtype, &[y], |y| numbers(dtype, &[x]).div(y))[0]
}

#[test]
fn the_gradient_of_a_quotient_squares_nothing_that_could_overflow_or_vanish() {
    assert_close(&[gradient_of_divisor(F16, 3000.0, 300.0)], &[-1.0 / 30.0], 1e-3);
    assert_close(&[gradient_of_divisor(F32, 1e25, 1e20)], &[-1e-15], 1e-6);
    assert_close(&[gradient_of_divisor(BF16, 1e25, 1e20)], &[-1e-15], 2e-2);
    assert_close(&[gradient_of_divisor(F32, 1e-30, 1e-23)], &[-1e16], 1e-6);
    assert_close(&[gradient_of_divisor(F64, 1e200, 1e180)], &[-1e-160], 1e-14);
    assert_eq!(gradient_of_divisor(F16, 0.0, 1e-4), 0.0);
    assert_eq!(gradient_of_divisor(F32, 0.0, 1e-30), 0.0);
    assert_close(&gradient(F32, &[1e20], |y| 1e25 / y), &[-1e-15], 1e-6);
    assert_close(&gradient(F16, &[300.0], |y| 3000.0 / y), &[-1.0 / 30.0], 1e-3);
}

/// If several values are most frequent, the mode is the least of them. NaN is equal to nothing; PyTorch's result for
/// NaN depends on how it sorts.
#[test]
fn the_mode_is_the_last_of_the_most_frequent_elements() {
    let nan = f64::NAN;
    for dtype in [F16, BF16, F32, F64] {
        let place = |x: &[f64]| numbers(dtype, x).mode(0).unwrap().1.item::<i64>().unwrap();
        assert_eq!(place(&[3.0, 1.0, 3.0, 1.0, 2.0]), 3);
        assert_eq!(place(&[0.0, 1.0, -0.0, 1.0, 0.0]), 4, "zeros are equal");
        assert_eq!(place(&[nan, 2.0, nan, 1.0, nan]), 3);
        assert_eq!(place(&[nan, nan]), 0);
        assert_eq!(place(&[f64::INFINITY, -1.0, f64::INFINITY]), 2);
        let columns = numbers(dtype, &[1.0, 5.0, 2.0, 4.0, 1.0, 5.0]).reshape([3, 2]).unwrap();
        let (values, places) = columns.mode(0).unwrap();
        assert_eq!((read(&values), places.to_vec::<i64>().unwrap()), (vec![1.0, 5.0], vec![2, 2]));
    }
    let (values, places) = Tensor::new([7, -7, i64::MAX, -7, i64::MAX, i64::MAX]).unwrap().mode(0).unwrap();
    assert_eq!((values.item::<i64>().unwrap(), places.item::<i64>().unwrap()), (i64::MAX, 5));
}

/// Variances along planes, along samples, and along dimensions in between; of halves in whole blocks and with a
/// remainder.
#[test]
fn gradients_of_variances_over_any_axes_are_deviations() {
    let kinds: [(&[usize], &[isize]); 7] = [
        (&[3, 64], &[1]),
        (&[3, 40], &[-1]),
        (&[40, 3], &[0]),
        (&[64, 32], &[0]),
        (&[33, 4, 8], &[0, 2]),
        (&[4, 8, 5], &[0, 2]),
        (&[4, 8, 5], &[1]),
    ];
    for (shape, axes) in kinds {
        let values: Vec<f64> = (0..shape.iter().product()).map(|i: usize| (i * 37 % 101) as f64 / 8.0).collect();
        let gradient_in = |dtype| gradient(dtype, &values, |x| x.reshape(shape)?.var(axes));
        let x = numbers(F64, &values).reshape(shape).unwrap();
        let n = values.len() / x.var(axes).unwrap().len();
        let deviations = x.sub(&x.mean_keepdim(axes).unwrap()).unwrap();
        let expected = read(&deviations.mul_scalar(2.0 / (n - 1) as f64).unwrap());
        for (dtype, bound) in [(F64, 1e-14), (F32, 1e-6), (F16, 1e-3), (BF16, 8e-3)] {
            let found = gradient_in(dtype);
            let is_close = |(found, expected): (&f64, &f64)| (found - expected).abs() <= bound * (1.0 + expected.abs());
            assert!(
                found.iter().zip(&expected).all(is_close),
                "{dtype} {shape:?} {axes:?}: {found:?}, not {expected:?}"
            );
        }
        for half in [F16, BF16] {
            assert_eq!(gradient_in(half), read(&numbers(half, &gradient_in(F32))), "{half} {shape:?} {axes:?}");
        }
    }
}

#[test]
fn the_variance_of_half_types_is_rounded_once() {
    let x = [256.0, 258.0, 256.0, 258.0];
    let expected = read(&numbers(BF16, &[4.0 / 3.0]));
    assert_eq!(read(&numbers(BF16, &x).var(..).unwrap()), expected);
    assert_eq!(
        gradient(BF16, &x, |x| x.var(..)),
        read(&numbers(BF16, &[-2.0 / 3.0, 2.0 / 3.0, -2.0 / 3.0, 2.0 / 3.0]))
    );
    let x = [1000.0, -1000.0, 0.0]; // f16 represents neither the squares nor the variance
    assert_eq!(read(&numbers(F16, &x).var(..).unwrap()), [f64::INFINITY]);
    assert_close(&gradient(F16, &x, |x| x.var(..)), &[1000.0, -1000.0, 0.0], 1e-3);
}

#[test]
fn the_variance_of_numbers_far_from_zero_is_that_of_their_differences() {
    assert_eq!(read(&numbers(F32, &[1e8, 1e8 + 8.0]).var(..).unwrap()), [32.0]);
    assert_eq!(read(&numbers(F64, &[1e15, 1e15 + 1.0, 1e15 + 2.0]).var(..).unwrap()), [1.0]);
    assert_eq!(read(&numbers(F32, &[3e38, 3e38]).var(..).unwrap()), [0.0]);
    let x: Vec<f64> = (0..100_000).map(|i| 4096.0 + f64::from(i % 2)).collect();
    assert_close(&read(&numbers(F32, &x).var(..).unwrap()), &[0.25 * 100_000.0 / 99_999.0], 1e-7);
    let columns = numbers(F32, &x).reshape([500, 200]).unwrap().var(0).unwrap();
    assert_eq!(read(&columns), [0.0; 200]);
}

#[test]
fn the_gradients_of_tanh_and_sigmoid_are_rounded_once() {
    let x = [2.0, 2.5, 3.0, -3.0];
    let y = read(&numbers(BF16, &x).tanh().unwrap());
    let expected: Vec<f64> = y.iter().map(|y| 1.0 - y * y).collect();
    assert_eq!(gradient(BF16, &x, Tensor::tanh), read(&numbers(BF16, &expected)));
    let y = read(&numbers(BF16, &x).sigmoid().unwrap());
    let expected: Vec<f64> = y.iter().map(|y| y * (1.0 - y)).collect();
    assert_eq!(gradient(BF16, &x, Tensor::sigmoid), read(&numbers(BF16, &expected)));
}

#[test]
fn the_mean_squared_error_of_half_types_squares_in_f32() {
    let (a, b) = (numbers(F16, &[300.0, 0.0]), numbers(F16, &[0.0, 0.0]));
    assert_eq!(read(&a.mse_loss(&b, Reduction::Mean).unwrap()), read(&numbers(F16, &[45_000.0])));
}

/// Gradients with `create_graph` are computed by other operations. In half types, they must not be less accurate.
fn agrees_with_plain_gradient(f: impl Fn(&Tensor) -> Result<Tensor>) {
    let x: Vec<f64> = (0..12).map(|i| f64::from((i * 7) % 12) * 60.0 - 300.0).collect();
    let x = numbers(F16, &x).reshape([6, 2]).unwrap().set_requires_grad(true);
    let upstream = numbers(F16, &(0..12).map(|i| f64::from(i % 5) - 1.5).collect::<Vec<_>>()).reshape([6, 2]).unwrap();
    let [plain, again] = [false, true].map(|create_graph| {
        let options = Backward { gradient: Some(upstream.clone()), create_graph, ..Backward::default() };
        read(autograd::grad(&[&f(&x).unwrap()], &[&x], options).unwrap()[0].as_ref().unwrap())
    });
    let size = plain.iter().fold(0.0_f64, |size, x| size.max(x.abs()));
    for (plain, again) in plain.iter().zip(&again) {
        assert!((plain - again).abs() <= 2e-3 * size, "{again:e} instead of {plain:e}");
    }
}

#[test]
fn normalizations_of_half_types_keep_their_range_where_gradients_are_differentiated_again() {
    agrees_with_plain_gradient(|x| x.t()?.layer_norm([6], None, None, 1e-5)?.t());
    agrees_with_plain_gradient(|x| x.batch_norm(None, None, None, BatchNormOptions::default()));
}

#[test]
fn interpolating_all_the_way_gives_the_end() {
    let ends = [10.0, 1e9, -3.0, 1e-30, 0.0];
    for weight in [1.0, 0.5] {
        let x = numbers(F32, &[1.0, 2.0, 1e20, 1.0, 0.5]);
        x.lerp_(&numbers(F32, &ends), weight).unwrap();
        let expected = if weight == 1.0 { ends } else { [5.5, 500_000_001.0, 5e19, 0.5, 0.25] };
        assert_close(&read(&x), &read(&numbers(F32, &expected)), if weight == 1.0 { 0.0 } else { 1e-6 });
    }
}

#[test]
fn a_running_mean_with_momentum_one_is_the_batchs() {
    let x = numbers(F32, &[0.1, 0.3]).reshape([2, 1]).unwrap();
    let running = [numbers(F32, &[1e9]), numbers(F32, &[1e9])];
    let options = BatchNormOptions { momentum: 1.0, ..BatchNormOptions::default() };
    x.batch_norm(Some(running.each_ref()), None, None, options).unwrap();
    assert_close(&read(&running[0]), &[0.2], 1e-6);
    assert_close(&read(&running[1]), &[0.02], 1e-6);
}

#[test]
fn gradients_show_nan_where_pytorchs_do() {
    let nan = f64::NAN;
    assert_eq!(gradient(F32, &[nan, 0.0, -1.0, 2.0], Tensor::relu), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(gradient(F32, &[nan, 1.0, 3.0], |x| x.maximum(&numbers(F32, &[1.0, nan, 4.0]))), [1.0, 1.0, 0.0]);
    assert_eq!(gradient(F32, &[nan, 1.0, 3.0], |x| numbers(F32, &[1.0, nan, 4.0]).maximum(x)), [1.0, 1.0, 0.0]);
    assert!(gradient(F32, &[1.0, nan, 3.0], |x| x.max(..)).iter().all(|x| x.is_nan()));
    assert!(gradient(F32, &[1.0, nan, 3.0], |x| x.min(..)).iter().all(|x| x.is_nan()));
    let pooled = |x: &Tensor| {
        x.reshape([1, 1, 4])?.max_pool2d(Pool2dOptions { kernel: [1, 4], stride: [1, 4], padding: [0, 0] })
    };
    assert_eq!(gradient(F32, &[nan, 1.0, nan, 2.0], pooled), [0.0, 0.0, 1.0, 0.0]);
    let convolved = |x: &Tensor| {
        let (weight, bias) = (Tensor::full([1, 1, 1, 1], 2.0)?, Tensor::zeros([1])?);
        x.reshape([1, 1, 1, 4])?.conv2d_relu(&weight, Some(&bias), Conv2dOptions::new())
    };
    assert_eq!(gradient(F32, &[nan, 1.0, -1.0, 0.0], convolved), [2.0, 2.0, 0.0, 0.0]);
    let normalized = |x: &Tensor| x.reshape([2, 1])?.batch_norm_relu(None, None, None, BatchNormOptions::default());
    assert!(gradient(F32, &[nan, 1.0], normalized).iter().all(|x| x.is_nan()));
}

#[test]
fn logsumexp_of_halves_is_finite_where_the_sum_is_not() {
    for (dtype, bound) in [(F16, 1e-3), (BF16, 1e-2)] {
        let x = numbers(dtype, &vec![1.0; 100_000]);
        assert_close(&read(&x.logsumexp(..).unwrap()), &[1.0 + 100_000_f64.ln()], bound);
    }
}

#[test]
fn the_gradient_of_windows_counts_those_that_have_an_element() {
    const LEN: usize = 23;
    for dtype in [F16, F32, F64] {
        for (size, step) in [(1, 1), (2, 1), (3, 2), (2, 3), (3, 3), (7, 2), (8, 1), (10, 1), (23, 4), (4, 30)] {
            let found = gradient(dtype, &[1.0; LEN], |x| x.unfold(0, size, step));
            let starts: Vec<usize> = (0..=LEN - size).step_by(step).collect();
            let windows = |i: usize| starts.iter().filter(|&&start| (start..start + size).contains(&i)).count() as f64;
            assert_eq!(found, (0..LEN).map(windows).collect::<Vec<_>>(), "{size} {step}");
        }
    }
}

#[test]
fn ranges_have_the_numbers_of_pytorchs() {
    fn check<N: Element<Kind = Float> + Number<Float> + FromStr>(dtype: DType, case: &serde_json::Value) {
        let number = |i: usize| case[i].as_str().unwrap().parse::<N>().ok().unwrap();
        let found = Tensor::of(dtype).arange(number(1), number(2), number(3)).unwrap();
        assert_eq!((found.len() as u64, found.dtype()), (case[4].as_u64().unwrap(), dtype), "{case}");
        if let Some(&ours) = read(&found).last() {
            let theirs = case[5].as_f64().unwrap();
            let bound = if dtype.size() == 2 { 8e-3 } else { 2.5e-7 };
            assert!((ours - theirs).abs() <= bound * theirs.abs().max(1.0), "{ours} ends {case}");
        }
    }
    let cases: Vec<serde_json::Value> = serde_json::from_str(include_str!("golden/arange.json")).unwrap();
    assert!(cases.len() > 300);
    for case in &cases {
        let dtype = match case[0].as_str().unwrap() {
            "float32" => F32,
            "float64" => F64,
            "float16" => F16,
            _ => BF16,
        };
        check::<f64>(dtype, case);
        match dtype {
            F16 => check::<f16>(dtype, case),
            BF16 => check::<bf16>(dtype, case),
            F32 => check::<f32>(dtype, case),
            _ => {}
        }
    }
}

#[test]
fn a_range_leaves_its_end_out_whatever_the_step_rounds_to() {
    assert_eq!(Tensor::arange(0.0, 0.3, 0.1).unwrap().to_vec::<f32>().unwrap(), [0.0, 0.1, 0.2]);
    for n in 1..200_u16 {
        let tenths = Tensor::arange(0.0, f32::from(n) / 10.0, 0.1).unwrap();
        assert_eq!(tenths.len(), (f64::from(n) / 10.0 / 0.1).ceil() as usize, "{n}");
    }
    assert_eq!(Tensor::of(BF16).arange(bf16::ZERO, bf16::from_f32(0.3), bf16::from_f32(0.1)).unwrap().len(), 3);
    assert_eq!(Tensor::of(F16).arange(f16::from_f32(1.0), f16::from_f32(0.4), f16::from_f32(-0.2)).unwrap().len(), 3);
}

#[test]
fn a_change_by_a_multiple_is_rounded_once() {
    let (x, y) = (numbers(BF16, &[1.0]), numbers(BF16, &[1.0078125]));
    no_grad(|| x.add_scaled_(&y, 1.0078125)).unwrap();
    assert_eq!(read(&x), read(&numbers(BF16, &[1.0 + 1.0078125 * 1.0078125])));
}

#[test]
fn optimizers_take_their_rates_unrounded() {
    // 0.01 is 0.01001 in bf16.
    let (parameter, grad) = (numbers(BF16, &[0.0]), numbers(BF16, &[7.0]));
    let rule = SgdRule {
        momentum: 0.0,
        dampening: 0.0,
        nesterov: false,
        weight_decay: 0.0,
        is_decoupled: false,
        maximize: false,
    };
    let (state, clock, half_copy) = ([None, None, None], None, None);
    let tensors = StepTensors { parameter: parameter.clone(), grad, half_copy, state, clock, is_first: true };
    rule.step([tensors], &Rate::new(0.01)).unwrap();
    assert_eq!(read(&parameter), read(&numbers(BF16, &[-0.07])));
}

#[test]
fn of_elements_that_go_to_one_place_the_last_stays_and_gets_the_gradient() -> Result<()> {
    let x = Tensor::zeros([3])?.set_requires_grad(true);
    let source = Tensor::new([1.0, 2.0, 3.0])?.set_requires_grad(true);
    let y = x.scatter(0, &Tensor::new([1, 2, 1])?, &source)?;
    assert_eq!(y.to_vec::<f32>()?, [0.0, 3.0, 2.0]);
    y.mul(&Tensor::new([1.0, 10.0, 100.0])?)?.sum(..)?.backward()?;
    assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [1.0, 0.0, 0.0]);
    assert_eq!(source.grad().unwrap().to_vec::<f32>()?, [0.0, 100.0, 10.0]);
    Ok(())
}

/// As `index_put`, which makes a copy: in contiguous tensors, in permuted ones, and inside larger ones.
#[test]
fn what_an_index_names_is_written_in_place_wherever_it_lies() -> Result<()> {
    let whole = || Tensor::arange(0, 60, 1)?.reshape([3, 4, 5]);
    let inside = || Tensor::arange(0, 180, 1)?.reshape([3, 4, 15]);
    let (rows, others) = (Tensor::new([2, 0, 2])?, Tensor::new([-1, 1, -1])?);
    let mask = whole()?.to_float()?.sin()?.gt_scalar(0.3)?;
    let of_rows = mask.select(2, 0)?;
    macro_rules! check {
        ($($index:expr),*) => {$(
            for x in [whole()?, whole()?.permute([2, 0, 1])?.contiguous()?.permute([1, 2, 0])?, inside()?.narrow(2, 5, 5)?] {
                let value = x.i($index)?.mul_scalar(7)?;
                let expected = x.index_put($index, &value)?;
                x.put_($index, &value)?;
                assert_eq!(x.to_vec::<i64>()?, expected.to_vec::<i64>()?, "{}", stringify!($index));
            }
        )*};
    }
    check!(&rows, (.., &rows), (&rows, &others), (.., &rows, &others), (&rows, .., &others), &mask, &of_rows);

    let around = inside()?;
    around.narrow(2, 5, 5)?.put_(&mask, &Tensor::scalar(-1)?)?;
    let untouched = around.lt_scalar(0)?.to_int()?.sum([0, 1])?.to_vec::<i64>()?;
    assert!(untouched[..5].iter().chain(&untouched[10..]).all(|&written| written == 0), "{untouched:?}");
    Ok(())
}

#[test]
fn what_is_written_is_read_before_it_changes() -> Result<()> {
    let x = Tensor::new([2, 0, 1])?;
    x.put_(&x, &Tensor::new([7, 8, 9])?)?;
    assert_eq!(x.to_vec::<i64>()?, [8, 9, 7]);
    let x = Tensor::new([[1, 2], [3, 4]])?;
    x.put_(&Tensor::new([1, 0])?, &x)?;
    assert_eq!(x.to_vec::<i64>()?, [3, 4, 1, 2]);
    assert_eq!(x.version(), 1, "one change");
    Ok(())
}

/// A row joined with its negative has a mean of 0 and the row's mean square. The rows fit in one block,
/// in several, or are computed in pieces.
#[test]
fn rms_norm_is_the_layer_norm_of_numbers_and_their_negatives() -> Result<()> {
    for (n, dtype) in [7, 300, 3_000, 20_000].into_iter().flat_map(|n| [(n, DType::F32), (n, DType::F16)]) {
        let random = |shape: &[usize], seed| Tensor::randn_with(shape, &Generator::new(seed))?.to_dtype(dtype);
        let (x, weight, upstream) = (random(&[20, n], 1)?, random(&[n], 2)?, random(&[20, n], 3)?);
        let results = |f: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>| -> Result<[Vec<f32>; 3]> {
            let [x, weight] = [&x, &weight].map(|x| x.detach().set_requires_grad(true));
            let y = f(&x, &weight)?;
            y.mul(&upstream)?.sum(..)?.backward()?;
            let [y, x, weight] = [y, x.grad().unwrap(), weight.grad().unwrap()].map(|found| found.to_vec::<f32>());
            Ok([y?, x?, weight?])
        };
        let found = results(&|x, weight| x.rms_norm(n, Some(weight), Some(1e-3)))?;
        let expected = results(&|x, weight| {
            let both = Tensor::cat(&[x, &x.neg()?], 1)?.layer_norm(2 * n, None, None, 1e-3)?;
            both.narrow(1, 0, n)?.mul(weight)
        })?;
        let bound = if dtype == DType::F32 { 1e-4 } else { 2e-2 };
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!((found - expected).abs() <= bound * expected.abs().max(1.0), "{n} of {dtype}: {found}, {expected}");
        }
    }
    Ok(())
}

#[test]
fn an_index_that_is_changed_after_a_scatter_changes_no_gradient() -> Result<()> {
    let index = Tensor::new([0, 2])?;
    let source = Tensor::new([1.0, 2.0])?.set_requires_grad(true);
    let y = Tensor::zeros([3])?.scatter(0, &index, &source)?;
    index.fill_(1)?;
    y.sum(..)?.backward()?;
    assert_eq!(source.grad().unwrap().to_vec::<f32>()?, [1.0, 1.0]);
    Ok(())
}

#[test]
fn an_index_that_is_changed_before_the_gradient_of_what_it_took_is_an_error() -> Result<()> {
    let (index, rows) = (Tensor::new([0, 2])?, Tensor::new([1, 1])?);
    let x = Tensor::new([1.0, 2.0, 3.0])?.set_requires_grad(true);
    let (gathered, selected) = (x.gather(0, &index)?, x.index_select(0, &rows)?);
    selected.sum(..)?.backward()?;
    assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [0.0, 2.0, 0.0]);
    index.fill_(1)?;
    let said = gathered.sum(..)?.backward().unwrap_err().to_string();
    assert!(said.starts_with("backward: a tensor saved by `gather` ([2]) was changed in place"), "{said}");
    Ok(())
}

#[test]
fn sizes_of_any_integer_type_make_the_same_shape() {
    let x = Tensor::zeros([2, 3, 4]).unwrap();
    let [batch, rows, columns] = x.sizes().unwrap();
    let flat = [batch, rows * columns];
    assert_eq!(x.reshape((batch, -1)).unwrap().dims(), flat);
    assert_eq!(x.reshape((batch as u32, -1_i64)).unwrap().dims(), flat);
    assert_eq!(x.reshape(&[2, 12][..]).unwrap().dims(), flat);
    assert_eq!(x.reshape(vec![2_u64, 12]).unwrap().dims(), flat);
    assert_eq!(x.view(-1).unwrap().dims(), [24]);
    assert_eq!(Tensor::ones(x.dims()).unwrap().shape(), x.shape());
    assert_eq!(x.expand((5, -1, rows, -1)).unwrap().dims(), [5, 2, 3, 4]);
    for dim in 0..x.rank() {
        assert_eq!(x.sum(dim).unwrap().rank(), 2);
        assert_eq!(x.select(dim as isize, x.dims()[dim] - 1).unwrap().rank(), 2);
    }
    assert_eq!(x.sum([0_usize, 2]).unwrap().dims(), [3]);
}

#[test]
fn numbers_stand_on_either_side_of_owned_and_borrowed_tensors() {
    let x = || Tensor::new([1.0, 2.0, 4.0]).unwrap();
    let labels = || Tensor::new([1, 2, 4]).unwrap();
    let of = |result: Result<Tensor>| read(&result.unwrap());
    assert_eq!(of(2.0 * x()), of(&x() * 2.0));
    assert_eq!(of(1 - x()), [0.0, -1.0, -3.0]);
    assert_eq!(of(1.0 - &x()), of(1 - x()));
    assert_eq!(of(8 / x()), [8.0, 4.0, 2.0]);
    assert_eq!(of(8.0 / &x()), of(8 / x()));
    assert_eq!((3 + labels()).unwrap().to_vec::<i64>().unwrap(), [4, 5, 7]);
    assert_eq!(of((x() + &x()) * x()), [2.0, 8.0, 32.0]);
    assert_eq!(of(x() * (x() + &x())), [2.0, 8.0, 32.0]);
}

/// `dlpack/numpy_and_torch.py` says what is compared.
#[test]
fn numpy_and_pytorch_see_the_same_tensors_through_dlpack() {
    let Some(python) = std::env::var_os("PAGELOCK_PYTHON") else {
        return println!("skipped: set PAGELOCK_PYTHON to a Python that has torch and numpy");
    };
    let tests = std::env::current_exe().unwrap();
    let library = tests.parent().unwrap().parent().unwrap().join("examples/libdlpack_library.so");
    assert!(library.exists(), "there is no `{}`: run `cargo build --examples` first", library.display());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dlpack/numpy_and_torch.py");
    let status = std::process::Command::new(python).arg(script).arg(library).status();
    assert!(status.expect("PAGELOCK_PYTHON runs").success(), "the script says above what is wrong");
}

#[test]
fn whole_numbers_are_told_apart_wherever_they_lie() {
    for numbers in [
        vec![i64::MIN + 2, i64::MIN, i64::MIN + 2], // a small range, which is counted
        vec![i64::MAX, i64::MAX - 300, i64::MAX],   // a larger range, which is sorted
        vec![i64::MAX, i64::MIN, i64::MAX],
        vec![-3],
    ] {
        let x = Tensor::from_slice(&numbers, numbers.len()).unwrap();
        let (values, inverse, counts) = x.unique_with_counts().unwrap();
        let (values, counts) = (values.to_vec::<i64>().unwrap(), counts.to_vec::<i64>().unwrap());
        let mut expected = numbers.clone();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!((&values, &x.unique().unwrap().to_vec::<i64>().unwrap()), (&expected, &expected));
        let back = inverse.to_vec::<i64>().unwrap().into_iter().map(|place| values[place as usize]);
        assert_eq!(back.collect::<Vec<_>>(), numbers);
        let of = |value: &i64| numbers.iter().filter(|number| *number == value).count() as i64;
        assert_eq!(counts, values.iter().map(of).collect::<Vec<_>>());
    }
}

/// Lines that are longer and shorter than the blocks in which loops process them.
#[test]
fn lines_of_any_length_are_flipped_and_multiplied() {
    for n in [1_usize, 31, 33, 70, 40_000] {
        let numbers: Vec<i64> = (0..3 * n as i64).map(|i| i * 37 % 101).collect();
        let x = Tensor::from_slice(&numbers, [3, n]).unwrap();
        let flipped: Vec<i64> = numbers.chunks(n).flat_map(|line| line.iter().rev().copied()).collect();
        assert_eq!(x.flip(&[1]).unwrap().to_vec::<i64>().unwrap(), flipped);
        let columns = x.t().unwrap().flip(&[0]).unwrap();
        assert_eq!(columns.t().unwrap().to_vec::<i64>().unwrap(), flipped);

        let products = numbers.chunks(n).zip(flipped.chunks(n)).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * b).sum());
        let dots = Tensor::einsum("nd,nd->n", &[&x, &x.flip(&[1]).unwrap()]).unwrap();
        assert_eq!(dots.to_vec::<i64>().unwrap(), products.collect::<Vec<i64>>());
    }
}

/// Lines of whole blocks, with a remainder, and shorter than a block; enough lines for several threads.
#[test]
fn a_column_times_a_row_is_the_product_of_each_pair() {
    for (rows, n) in [(3_usize, 5_usize), (700, 16), (300, 71)] {
        let (x, y): (Vec<i64>, Vec<i64>) = ((1..=rows as i64).collect(), (1..=n as i64).collect());
        let [a, b] = [&x, &y].map(|numbers| Tensor::from_slice(numbers, numbers.len()).unwrap());
        let expected: Vec<i64> = x.iter().flat_map(|x| y.iter().map(move |y| x * y)).collect();
        let columns = a.unsqueeze(1).unwrap();
        for product in [
            Tensor::einsum("i,j->ij", &[&a, &b]).unwrap(),
            b.mul(&columns).unwrap(),
            columns.mul(&b.unsqueeze(0).unwrap()).unwrap(),
        ] {
            assert_eq!(product.to_vec::<i64>().unwrap(), expected, "{rows} lines of {n}");
        }
        assert_eq!(a.kron(&b).unwrap().to_vec::<i64>().unwrap(), expected);
    }
}

#[test]
fn masked_select_and_nonzero_agree_beyond_one_chunk() {
    let truths: Vec<bool> = (0..3 * 20_001_usize).map(|i| i * i % 7 < 3).collect();
    let mask = Tensor::from_slice(&truths, [3, 20_001]).unwrap();
    let x = Tensor::from_slice(&(0..truths.len() as i64).collect::<Vec<_>>(), [3, 20_001]).unwrap();

    let places: Vec<i64> = (0..).zip(&truths).filter(|(_, is_true)| **is_true).map(|(place, _)| place).collect();
    assert_eq!(x.masked_select(&mask).unwrap().to_vec::<i64>().unwrap(), places);
    let rows: Vec<i64> = places.iter().flat_map(|place| [place / 20_001, place % 20_001]).collect();
    assert_eq!(mask.nonzero().unwrap().to_vec::<i64>().unwrap(), rows);
}

/// Some lines are computed side by side in vectors, others alone. The bits of an element depend only on its line.
#[test]
fn running_logarithms_of_rows_have_the_bits_of_those_of_columns() {
    let numbers: Vec<f64> = (0..19 * 37).map(|i| f64::from(i * 31 % 101) / 7.0 - 5.0).collect();
    for dtype in [F16, F32, F64] {
        let x = Tensor::from_slice(&numbers, [19, 37]).unwrap().to_dtype(dtype).unwrap();
        let of_columns = x.t().unwrap().logcumsumexp(0).unwrap().t().unwrap();
        assert_eq!(read(&x.logcumsumexp(1).unwrap()), read(&of_columns), "{dtype}");
    }
}

#[test]
fn quantiles_of_equal_elements_and_nan_take_those_of_the_stable_order() {
    let nan = f64::NAN;
    for dtype in [F32, F64] {
        let middle = |x: &[f64]| gradient(dtype, x, |x| x.nanmedian(0));
        assert_eq!(middle(&[2.0, 1.0, 2.0, 2.0, 3.0]), [0.0, 0.0, 1.0, 0.0, 0.0]);
        assert_eq!(middle(&[nan, 5.0, nan, 5.0]), [0.0, 1.0, 0.0, 0.0]);
        let quarter = |x: &[f64]| gradient(dtype, x, |x| x.quantile(0.25, 0));
        assert_eq!(quarter(&[4.0, 4.0, 4.0]), [0.5, 0.5, 0.0]);
        assert_eq!(quarter(&[1.0, nan, 0.0]), [0.0, 1.0, 0.0]);
    }
}

#[test]
fn long_lines_of_halves_are_scaled_to_their_ends() {
    for dtype in [DType::F16, DType::BF16] {
        for len in [16_385, 16_415, 2 * 16_384 + 31] {
            let x = Tensor::ones([15, len]).unwrap().to_dtype(dtype).unwrap();
            let scales = Tensor::full([15, 1], 2.0).unwrap().to_dtype(dtype).unwrap();
            drop((0..4).map(|_| x.add_scalar(76.0).unwrap()).collect::<Vec<_>>()); // what recycled memory has
            let products = [x.mul(&scales).unwrap(), scales.mul(&x).unwrap()];
            assert!(products.iter().flat_map(read).all(|x| x == 2.0), "{dtype:?} {len}");
        }
    }
}

#[test]
fn running_statistics_may_have_any_precision() {
    let (x, expected) = ([[1.0, 2.0], [3.0, 6.0]], [0.0, -1.0, 1.0, 1.0]);
    for [of_x, of_running] in [
        [DType::F32, DType::F64],
        [DType::BF16, DType::F64],
        [DType::F64, DType::F32],
        [DType::F64, DType::F16],
        [DType::F16, DType::F32],
    ] {
        let x = Tensor::new(x).unwrap().to_dtype(of_x).unwrap();
        let running = [[1.0, 4.0], [4.0, 4.0]].map(|running| numbers(of_running, &running));
        let options = BatchNormOptions { training: false, eps: 0.0, ..BatchNormOptions::default() };
        let y = x.batch_norm(Some(running.each_ref()), None, None, options).unwrap();
        assert_eq!((y.dtype(), read(&y)), (of_x, expected.to_vec()), "{of_x:?} {of_running:?}");
    }
}

#[test]
fn running_sums_are_added_up_in_f64() {
    let len = 100_000;
    for (rows, columns) in [(1, 1), (4, 1), (17, 1), (1, 3)] {
        let x = Tensor::full([rows, len, columns], 0.1).unwrap();
        let last = |x: Tensor| read(&x.select(1, -1).unwrap());
        let [sums, reverse] = [x.cumsum(1).unwrap(), x.flip(&[1]).unwrap().cumsum(1).unwrap()].map(last);
        assert_close(&sums, &vec![10_000.000_149; rows * columns], 1e-7);
        assert_eq!(sums, reverse);
        let products = Tensor::full([rows, len, columns], 1.000_01).unwrap().cumprod(1).unwrap();
        assert_close(&last(products), &vec![f64::from(1.000_01_f32).powi(100_000); rows * columns], 1e-7);
        let logarithms = x.zeros_like().unwrap().logcumsumexp(1).unwrap();
        assert_close(&last(logarithms), &vec![(len as f64).ln(); rows * columns], 1e-7);
    }
}
