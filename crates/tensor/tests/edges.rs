//! Arguments at the edge of what operations accept: nothing to compute, two precisions, the least integers, results that
//! could share the elements of their inputs.

use std::f64::consts::PI;

use pagelock_tensor::{DType, Float, PadMode, Pool2dOptions, Result, ScatterReduce, Steps, Tensor, TensorMap, no_grad};

fn floats(x: &Tensor) -> Result<Vec<f64>> {
    x.to_vec()
}

#[test]
fn a_search_takes_values_and_sequences_of_two_precisions() -> Result<()> {
    let sorted = Tensor::of(DType::F64).new([1.0, 2.5, 4.0])?;
    let values = Tensor::new([2.5, 9.0])?;
    assert_eq!(sorted.searchsorted(&values, false)?.to_vec::<i64>()?, [1, 3]);
    assert_eq!(values.bucketize(&sorted, true)?.to_vec::<i64>()?, [2, 3]);
    let bytes = Tensor::new([3, 200])?.to_dtype(DType::U8)?;
    assert_eq!(Tensor::new([200, 456])?.isin(&bytes)?.to_vec::<bool>()?, [true, false]);
    Ok(())
}

#[test]
fn an_end_before_the_first_entry_leaves_nothing() -> Result<()> {
    let x = Tensor::arange(0, 3, 1)?;
    let through = |start, last| x.slice(0, start..=last, 1)?.to_vec::<i64>();
    assert!(through(0, -4)?.is_empty());
    assert_eq!(through(0, -1)?, [0, 1, 2]);
    assert_eq!(through(1, isize::MAX)?, [1, 2]);
    Ok(())
}

#[test]
fn empty_windows_and_long_steps_have_gradients() -> Result<()> {
    for (size, step, expected) in [(0, 1, [0.0; 3]), (2, 1 << 40, [1.0, 1.0, 0.0]), (3, 3, [1.0; 3])] {
        let x = Tensor::zeros([3])?.set_requires_grad(true);
        x.unfold(0, size, step)?.sum(..)?.backward()?;
        assert_eq!(floats(&x.grad().unwrap())?, expected, "windows of {size}, {step} apart");
    }
    Ok(())
}

#[test]
fn the_logarithm_of_an_empty_sum_is_minus_infinity() -> Result<()> {
    assert_eq!(floats(&Tensor::zeros([2, 0])?.logsumexp(1)?)?, [f64::NEG_INFINITY; 2]);
    assert_eq!(Tensor::zeros([0, 3])?.logsumexp(1)?.len(), 0);
    Ok(())
}

#[test]
fn copies_are_their_own_even_if_nothing_moves() -> Result<()> {
    let x = Tensor::new([5, 6])?;
    let square = x.reshape([2, 1])?;
    let copies = [
        x.roll(&[2], &[0])?,
        x.pad(&[0, 0], PadMode::Constant(1.0))?,
        x.repeat([1])?,
        x.tile([1])?,
        square.rot90(4, [0, 1])?.reshape([2])?,
        Tensor::cat(&[&x.narrow(0, 0, 1)?.unique_consecutive()?, &x.narrow(0, 1, 1)?], 0)?,
    ];
    let first = x.narrow(0, 0, 1)?.unique_consecutive()?;
    x.fill_(0)?;
    for (i, copy) in copies.iter().enumerate() {
        assert_eq!(copy.to_vec::<i64>()?, [5, 6], "copy {i}");
    }
    assert_eq!(first.to_vec::<i64>()?, [5]);
    Ok(())
}

#[test]
fn a_summand_with_the_factor_0_must_fit_all_the_same() -> Result<()> {
    let (nan, square) = (Tensor::full([2], f32::NAN)?, Tensor::ones([2, 2])?);
    assert_eq!(floats(&nan.addmm(&square, &square, 0.0, 1.0)?)?, [2.0; 4]);
    assert!(Tensor::zeros([3])?.addmm(&square, &square, 0.0, 1.0).is_err());
    Ok(())
}

#[test]
fn the_least_integers_are_arguments_like_others() -> Result<()> {
    let x = Tensor::new([1, 2, 3])?;
    let by = (isize::MIN.rem_euclid(3)) as usize;
    let expected: Vec<i64> = (0..3).map(|i| [1, 2, 3][(i + 3 - by) % 3]).collect();
    assert_eq!(x.roll(&[isize::MIN], &[0])?.to_vec::<i64>()?, expected);
    assert!(x.diag(isize::MIN).is_err());
    assert!(Steps::packed(&[usize::MAX, 1]).is_ok_and(|steps| steps.rows() == usize::MAX));
    Ok(())
}

/// More than 256 elements of one index, which a `bf16` cannot count.
#[test]
fn means_of_many_halves_count_them_all() -> Result<()> {
    let n = 600;
    let zeros = Tensor::of(DType::BF16).zeros([1])?;
    let source = Tensor::cat(&[&Tensor::of(DType::BF16).ones([64])?, &Tensor::of(DType::BF16).zeros([n - 64])?], 0)?;
    let mean = zeros.scatter_reduce(0, &Tensor::full([n], 0)?, &source, ScatterReduce::Mean, false)?;
    let expected = 64.0 / n as f64;
    assert!((mean.item::<f64>()? - expected).abs() < 0.01 * expected, "{mean}, not {expected}");
    Ok(())
}

#[test]
fn a_copy_from_another_precision_is_as_strict_as_one_from_the_same() -> Result<()> {
    let y = Tensor::of(DType::F64).ones([2])?.set_requires_grad(true);
    let x = Tensor::zeros([2])?;
    assert!(x.copy_(&y).is_err());
    no_grad(|| x.copy_(&y))?;
    assert_eq!(floats(&x)?, [1.0; 2]);
    Ok(())
}

#[test]
fn rows_of_different_lengths_are_named_before_memory_is_taken() {
    let mut rows = vec![Vec::new(); 1_000_000];
    rows[0] = vec![0.0; 1_000_000];
    let error = Tensor::<Float>::new(rows).unwrap_err().to_string();
    assert!(error.starts_with("new: rows of a nested array differ in length"), "{error}");
}

#[test]
fn memory_that_is_refused_inside_a_map_is_out_of_memory() -> Result<()> {
    let mut large = TensorMap::new([1])?;
    large.set("x", Tensor::zeros([1, 1])?.expand([1, 1_usize << 45])?)?;
    let error = TensorMap::cat(&[&large, &large], 0).map(drop).unwrap_err();
    assert!(error.is_out_of_memory(), "{error:?}");
    Ok(())
}

#[test]
fn indices_of_a_triangle_are_those_of_a_loop_and_absurd_sizes_end_at_once() -> Result<()> {
    for (rows, columns, offset) in (0..5).flat_map(|r| (0..5).flat_map(move |c| (-6..=6).map(move |o| (r, c, o)))) {
        let all = || (0..rows as i64).flat_map(|row| (0..columns as i64).map(move |column| (row, column)));
        let expected = |is_in: fn(i64, i64) -> bool| -> Vec<i64> {
            let chosen = all().filter(|(row, column)| is_in(*column, row + offset));
            let (of_rows, of_columns): (Vec<i64>, Vec<i64>) = chosen.unzip();
            [of_rows, of_columns].concat()
        };
        let case = format!("[{rows}, {columns}], {offset}");
        let lower = Tensor::tril_indices(rows, columns, offset as isize)?;
        assert_eq!(lower.to_vec::<i64>()?, expected(|column, diagonal| column <= diagonal), "{case}");
        let upper = Tensor::triu_indices(rows, columns, offset as isize)?;
        assert_eq!(upper.to_vec::<i64>()?, expected(|column, diagonal| column >= diagonal), "{case}");
    }
    const MANY: usize = 1 << 58;
    assert_eq!(Tensor::tril_indices(MANY, 0, 0)?.dims(), [2, 0]);
    assert_eq!(Tensor::tril_indices(MANY, 1, 2 - MANY as isize)?.dims(), [2, 2]);
    assert_eq!(Tensor::triu_indices(MANY, 2, -1)?.to_vec::<i64>()?, [0, 0, 1, 1, 2, 0, 1, 0, 1, 1]);
    assert_eq!(Tensor::triu_indices(1, MANY, isize::MAX)?.dims(), [2, 0]);
    for refused in [Tensor::tril_indices(MANY, 1, 0), Tensor::tril_indices(1, MANY, isize::MAX)] {
        assert!(refused.is_err());
    }
    Ok(())
}

/// The index is that of the first NaN.
#[test]
fn the_median_of_elements_with_nan_is_nan() -> Result<()> {
    let x = Tensor::new([[1.0, f32::NAN, 2.0, f32::NAN], [1.0, 2.0, 3.0, f32::INFINITY]])?;
    let (values, places) = x.median(1)?;
    assert!(values.to_vec::<f32>()?[0].is_nan());
    assert_eq!((values.to_vec::<f32>()?[1], places.to_vec::<i64>()?), (2.0, vec![1, 1]));
    Ok(())
}

#[test]
fn sizes_without_elements_may_be_large_but_not_too_large() -> Result<()> {
    let half = 1_usize << 40;
    assert!(Tensor::zeros([half, 0])?.unflatten(1, [0, half]).is_err());
    let single = Tensor::arange(0, 10, 1)?.slice(0, 1..10, usize::MAX)?;
    assert_eq!(single.narrow(0, 1, 0)?.dims(), [0]);
    Ok(())
}

#[test]
fn a_count_of_elements_that_another_thread_changes_is_a_count_or_an_error() -> Result<()> {
    let x = Tensor::full([1000], 0)?;
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| (0..2000).for_each(|_| drop(x.bincount(0))));
        while !counting.is_finished() {
            x.fill_(1000)?;
            x.fill_(0)?;
        }
        counting.join().expect("it does not panic");
        Ok(())
    })
}

/// The counts are those of PyTorch 2.15, which computes an element's bin in the element's type.
#[test]
fn histograms_choose_bins_in_the_element_type() -> Result<()> {
    let counts = |x: &Tensor, bins: usize, max: f64| x.histc(bins, 0.0, max).and_then(|counts| floats(&counts));
    assert_eq!(counts(&Tensor::of(DType::F32).new([0.7])?, 10, 1.0)?[7], 1.0);
    assert_eq!(counts(&Tensor::of(DType::F64).new([0.7])?, 10, 1.0)?[7], 1.0);
    let hundredths = Tensor::arange(0.0_f32, 101.0, 1.0)?.div_scalar(100.0)?;
    let found = counts(&hundredths, 100, 1.0)?;
    assert_eq!([52, 53, 58, 59, 99].map(|bin| found[bin]), [2.0, 0.0, 2.0, 0.0, 2.0]);
    let found = counts(&Tensor::of(DType::F64).arange(0.0, 301.0, 1.0)?.div_scalar(100.0)?, 300, 3.0)?;
    assert_eq!([40, 41, 112, 113, 114, 139, 228, 299].map(|bin| found[bin]), [2.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 2.0]);
    Ok(())
}

/// The numbers are those of PyTorch 2.15.
#[test]
fn a_bound_that_is_nan_clamps_everything_to_nan() -> Result<()> {
    let nan = f64::NAN;
    let infinite = [f64::NEG_INFINITY, -1.0, 0.0, 1.0, f64::INFINITY];
    let clamps: [fn(&Tensor, f64) -> Result<Tensor>; 4] =
        [|x, to| x.clamp(to, 1.0), |x, to| x.clamp(0.0, to), |x, to| x.clamp_min(to), |x, to| x.clamp_max(to)];
    for clamp in clamps {
        let x = Tensor::new(infinite)?.set_requires_grad(true);
        let y = clamp(&x, nan)?;
        assert!(floats(&y.detach())?.iter().all(|y| y.is_nan()));
        y.sum(..)?.backward()?;
        assert_eq!(floats(&x.grad().unwrap())?, [0.0; 5]);
    }
    let x = Tensor::new(infinite)?;
    x.clamp_(0.0, nan)?;
    assert!(floats(&x)?.iter().all(|x| x.is_nan()));
    Ok(())
}

/// The numbers are those of PyTorch 2.15.
#[test]
fn an_infinite_bound_of_clamp_has_a_gradient_of_zero_and_a_missing_one_has_not() -> Result<()> {
    let infinity = f64::INFINITY;
    let gradient = |f: &dyn Fn(&Tensor) -> Result<Tensor>| {
        let x = Tensor::new([-infinity, -1.0, 0.0, 1.0, infinity])?.set_requires_grad(true);
        f(&x)?.sum(..)?.backward()?;
        floats(&x.grad().unwrap())
    };
    assert_eq!(gradient(&|x| x.clamp(0.0, infinity))?, [0.0, 0.0, 0.0, 1.0, 0.0]);
    assert_eq!(gradient(&|x| x.clamp(-infinity, 0.0))?, [0.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(gradient(&|x| x.clamp_min(0.0))?, [0.0, 0.0, 0.0, 1.0, 1.0]);
    assert_eq!(gradient(&|x| x.clamp_max(infinity))?, [1.0, 1.0, 1.0, 1.0, 0.0]);
    Ok(())
}

/// The numbers are those of PyTorch 2.15.
#[test]
fn gradients_at_edges_are_those_of_pytorch() -> Result<()> {
    let leaf = |values: &[f64]| Tensor::from_slice(values, values.len()).map(|x| x.set_requires_grad(true));
    let nothing = Tensor::zeros([3, 0])?.set_requires_grad(true);
    nothing.var(1)?.sum(..)?.backward()?;
    assert_eq!(nothing.grad().unwrap().dims(), [3, 0]);

    let x = leaf(&[1.0, 3.0])?;
    x.var_correction(0, 3.0)?.backward()?;
    assert_eq!(floats(&x.grad().unwrap())?, [2.0, -2.0]);

    let (y, x) = (leaf(&[0.0, -0.0])?, leaf(&[0.0, 0.0])?);
    y.atan2(&x)?.sum(..)?.backward()?;
    assert_eq!([floats(&y.grad().unwrap())?, floats(&x.grad().unwrap())?], [[0.0; 2]; 2]);

    let nan = f64::NAN;
    let gradient = Tensor::of(DType::F64).new([1.0, 2.0, 3.0, 4.0])?;
    for f in [Tensor::fmax, Tensor::fmin] {
        let (a, b) = (leaf(&[nan, -2.0, nan, 1.0])?, leaf(&[-2.0, nan, nan, 1.0])?);
        f(&a, &b)?.mul(&gradient)?.sum(..)?.backward()?;
        let found = [floats(&a.grad().unwrap())?, floats(&b.grad().unwrap())?];
        assert_eq!(found, [[0.0, 2.0, 3.0, 2.0], [1.0, 0.0, 0.0, 2.0]]);
    }
    Ok(())
}

/// The shapes are those of PyTorch 2.15.
#[test]
fn shapes_at_edges_are_those_of_pytorch() -> Result<()> {
    assert_eq!(Tensor::new([[1.0, 2.0, 4.0]])?.cov(1.0)?.rank(), 0);
    assert_eq!(Tensor::new([[1.0, 2.0, 4.0]])?.corrcoef()?.rank(), 0);
    assert_eq!(Tensor::zeros([2])?.unfold(0, 0, 3)?.dims(), [1, 0]);
    let chunks = Tensor::zeros([1, 0])?.chunk(3, -1)?;
    assert_eq!(chunks.iter().map(Tensor::dims).collect::<Vec<_>>(), [[1, 0]; 3]);
    Ok(())
}

#[test]
fn nan_in_a_sorted_sequence_is_behind_all_numbers() -> Result<()> {
    let nan = f32::NAN;
    assert_eq!(Tensor::new([0.0])?.isin(&Tensor::new([nan, nan, nan, 0.0])?)?.to_vec::<bool>()?, [true]);
    let sorted = Tensor::new([-2.0, -1.0, 1.0, 2.0, nan, nan, nan])?;
    assert_eq!(sorted.searchsorted(&Tensor::new([2.0, nan])?, false)?.to_vec::<i64>()?, [3, 7]);
    Ok(())
}

/// The numbers are those of PyTorch 2.15, except for the last, which PyTorch takes minutes for.
#[test]
fn derivatives_of_digamma_are_finite_between_negative_integers() -> Result<()> {
    let x = Tensor::of(DType::F64).new([-0.5, -2.25, -10.3, -1e10 - 0.5])?.set_requires_grad(true);
    let second = [-0.82879664423432, 123.89694977406015, 68.82898861103696];
    let third = [193.40909103400242, 1558.4550231887147, 769.0193334243988, 2.0 * PI.powi(4)];
    for (n, expected) in [(2, &second[..]), (3, &third)] {
        for (found, expected) in floats(&x.polygamma(n)?)?.into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-11 * expected.abs(), "{n}: {found}, not {expected}");
        }
    }
    x.polygamma(1)?.sum(..)?.backward()?;
    assert!(floats(&x.grad().unwrap())?.into_iter().all(f64::is_finite));
    let integers = floats(&Tensor::new([-3.0, f32::NEG_INFINITY, 0.0])?.polygamma(2)?)?;
    assert_eq!(integers, [f64::NEG_INFINITY; 3]);
    Ok(())
}

#[test]
fn replaced_parts_take_the_precision_of_the_tensor() -> Result<()> {
    let (x, part) = (Tensor::zeros([2, 2])?, Tensor::of(DType::F64).new([0.1, 0.2])?.set_requires_grad(true));
    let all = [
        x.select_scatter(&part, 0, 1)?,
        x.slice_scatter(&part.unsqueeze(0)?, 0, 1.., 1)?,
        x.diagonal_scatter(&part, 0, 0, 1)?,
    ];
    for replaced in all {
        assert_eq!(replaced.dtype(), DType::F32);
        replaced.sum(..)?.backward()?;
    }
    assert_eq!(floats(&part.grad().unwrap())?, [3.0; 2]);
    Ok(())
}

#[test]
fn an_average_of_a_large_image_is_as_precise_as_its_mean() -> Result<()> {
    let image = Tensor::full([1, 2048, 2048], 0.1_f32)?;
    let average = image.adaptive_avg_pool2d([1, 1])?.item::<f32>()?;
    assert!((average - 0.1).abs() < 1e-7, "{average}");
    assert_eq!(average, image.mean(..)?.item::<f32>()?);
    Ok(())
}

/// Before the fix, each window was read tap by tap, also beyond the image.
#[test]
fn windows_can_be_much_larger_than_the_image() -> Result<()> {
    let windows = Pool2dOptions { kernel: [1, 1 << 50], stride: [1, 1], padding: [0, 1 << 49] };
    let x = Tensor::new([[[[1.0, 2.0, 4.0, 3.0]]]])?.set_requires_grad(true);
    let largest = x.max_pool2d(windows)?;
    assert_eq!(floats(&largest)?, [4.0; 5]);
    largest.sum(..)?.backward()?;
    assert_eq!(floats(&x.grad().unwrap())?, [0.0, 0.0, 5.0, 0.0]);
    assert_eq!(floats(&x.avg_pool2d(windows)?)?, [10.0 / (1_u64 << 50) as f64; 5]);
    Ok(())
}

/// Before the fix, the program was aborted.
#[test]
fn no_combination_can_have_any_length() -> Result<()> {
    let x = Tensor::arange(0, 3, 1)?;
    assert_eq!(x.combinations(1 << 40, false)?.dims(), [0, 1 << 40]);
    assert!(x.combinations(1 << 40, true).is_err());
    assert_eq!(x.combinations(0, false)?.dims(), [1, 0]);
    assert_eq!(x.narrow(0, 0, 0)?.combinations(2, true)?.dims(), [0, 2]);
    Ok(())
}

#[test]
fn a_histogram_of_more_bins_than_there_is_room_for_is_refused() {
    let x = Tensor::new([1.0, 2.0]).unwrap();
    assert!(x.histc(usize::MAX, 0.0, 3.0).is_err());
    assert!(x.histc(usize::MAX - 1, 0.0, 3.0).is_err());
}

#[test]
fn the_range_of_a_histogram_must_not_overflow() {
    let x = Tensor::new([-3e38, 0.0, 3e38]).unwrap();
    let error = x.histc(10, -3.3e38, 3.3e38).unwrap_err().to_string();
    assert!(error.contains("its product with 10 bins must be finite in float32"), "{error}");
    let x = x.to_dtype(DType::F64).unwrap();
    assert_eq!(x.histc(3, -3.3e38, 3.3e38).unwrap().to_vec::<f64>().unwrap(), [1.0; 3]);
}

#[test]
fn sizes_of_padding_are_added_without_overflow() -> Result<()> {
    let x = Tensor::new([1.0, 2.0, 3.0, 4.0])?;
    for mode in [PadMode::Constant(7.0), PadMode::Replicate] {
        let filled = if mode == PadMode::Replicate { [1.0; 4] } else { [7.0; 4] };
        assert_eq!(floats(&x.pad(&[isize::MAX, -isize::MAX], mode)?)?, filled);
        assert_eq!(x.pad(&[isize::MIN, isize::MAX], mode)?.dims(), [3]);
        assert!(x.pad(&[isize::MAX, isize::MAX], mode).is_err());
        assert!(x.pad(&[isize::MIN, isize::MIN], mode).is_err());
    }
    Ok(())
}
