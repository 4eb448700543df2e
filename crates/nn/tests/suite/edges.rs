//! Arguments at the edge of what layers, losses and optimizers accept, and parameters that two models share.

use pagelock_nn::optim::lr_scheduler::{Anneal, OneCycleLr, Schedule};
use pagelock_nn::optim::{AveragedModel, Lbfgs, Optimizer, OptimizerState, Sgd};
use pagelock_nn::{
    AdaptiveLogSoftmaxWithLoss, Bilinear, Buffer, CTCLoss, Conv2d, ConvTranspose2d, Embedding, EmbeddingBag, Forward,
    GaussianNLLLoss, HuberLoss, InstanceNorm1d, LSTM, LSTMCell, Linear, Module, MultiMarginLoss, MultiheadAttention,
    MultiheadOptions, Parameter, SmoothL1Loss, TorchValue, functional as F, init, load_safetensors, save_safetensors,
};
use pagelock_tensor::{DType, Generator, Int, Reduction, Result, Tensor};

fn read(x: &Tensor) -> Vec<f64> {
    x.detach().to_vec().unwrap()
}

#[derive(Module)]
struct Sharing {
    weight: Parameter,
}

/// Two models with one parameter, and an optimizer of the second model.
fn sharing() -> (Sharing, Sharing, Sgd) {
    let weight = Parameter::new(Tensor::ones([2]).unwrap());
    let [one, other] = [weight.clone(), weight].map(|weight| Sharing { weight });
    let optimizer = Sgd::new(other.parameters(), 0.5);
    (one, other, optimizer)
}

#[test]
fn a_parameter_of_two_models_is_still_one_after_both_moved() {
    let (one, other, mut optimizer) = sharing();
    let one = one.to_dtype(DType::F64).unwrap();
    let other = other.to_dtype(DType::F64).unwrap();
    assert!(one.weight.is_same(&other.weight));

    other.weight.sum(..).unwrap().backward().unwrap();
    optimizer.step().unwrap();
    assert_eq!(read(&one.weight), [0.5; 2]);
}

#[test]
fn a_parameter_of_two_models_is_trained_again_after_one_froze_it() {
    let (mut one, mut other, mut optimizer) = sharing();
    one.requires_grad_(false);
    other.requires_grad_(true);

    other.weight.sum(..).unwrap().backward().unwrap();
    optimizer.step().unwrap();
    assert_eq!(read(&other.weight), [0.5; 2]);
}

#[test]
fn the_rate_of_one_cycle_stays_after_its_last_step() {
    for schedule in [OneCycleLr::new(1.0, 10), OneCycleLr::new(1.0, 10).anneal_strategy(Anneal::Linear)] {
        let last = schedule.next(9, 0.1, 0.1);
        assert!((last - 1.0 / 250_000.0).abs() < 1e-12, "{last}");
        assert_eq!([10, 11, 1_000].map(|step| schedule.next(step, 0.1, 0.1)), [last; 3]);
    }
}

/// Names in files are sorted, `10` before `2`.
#[test]
fn a_long_history_keeps_its_order_on_the_way_to_pytorch() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    let weight = Parameter::new(Tensor::new([3.0, -2.0, 1.0, 5.0]).unwrap());
    let mut optimizer = Lbfgs::new([weight.clone()], 1e-3).max_iter(1).history_size(20);
    for _ in 0..14 {
        let loss = || -> pagelock_nn::Result<Tensor> {
            weight.zero_grad();
            let loss = weight.pow(4.0)?.add(&weight.mul(&weight)?)?.sum(..)?;
            loss.backward()?;
            Ok(loss)
        };
        optimizer.step(loss).unwrap();
    }
    let state = optimizer.state_dict().unwrap();
    save_safetensors(&state.to_dict().unwrap(), &path).unwrap();
    let loaded = OptimizerState::from_dict(&load_safetensors(&path).unwrap()).unwrap();

    let steps = |state: &OptimizerState| {
        let torch = state.to_torch().unwrap();
        let Some(TorchValue::Dict(parameters)) = torch.get("state").cloned() else { panic!("{torch:?}") };
        let Some(TorchValue::List(steps)) = parameters[0].1.get("old_stps").cloned() else { panic!("{parameters:?}") };
        format!("{steps:?}")
    };
    assert_eq!(steps(&loaded), steps(&state));
    assert!(steps(&state).matches("Tensor").count() > 11, "{}", steps(&state));
}

#[test]
fn the_largest_number_of_steps_is_saved_as_a_large_one() {
    let weight = || Parameter::new(Tensor::new([3.0]).unwrap());
    let optimizer = Lbfgs::new([weight()], 0.1).max_iter(u64::MAX);
    let state = OptimizerState::from_dict(&optimizer.state_dict().unwrap().to_dict().unwrap()).unwrap();
    let mut resumed = Lbfgs::new([weight()], 0.1);
    resumed.load_state_dict(&state).unwrap();
    let kept = resumed.state_dict().unwrap();
    assert!(format!("{:?}", kept.param_groups[0].settings["max_iter"]).contains(&i64::MAX.to_string()), "{kept:?}");
}

#[derive(Module)]
struct Counting {
    weight: Parameter,
    count: Buffer<Int>,
}

#[derive(Module)]
struct Measuring {
    weight: Parameter,
    count: Buffer,
}

#[test]
fn a_model_that_cannot_be_averaged_changes_no_average() {
    let ones = || Parameter::new(Tensor::ones([2]).unwrap());
    let averaged = Counting { weight: ones(), count: Buffer::new(Tensor::full([1], 0).unwrap()) };
    let averaged = AveragedModel::new(averaged).unwrap();
    let weight = Parameter::new(Tensor::zeros([2]).unwrap());
    let other = Measuring { weight, count: Buffer::new(Tensor::ones([1]).unwrap()) };

    let before = read(&averaged.module.weight);
    assert!(averaged.update_parameters(&other).is_err());
    assert_eq!(read(&averaged.module.weight), before);
}

#[test]
fn samples_without_time_steps_and_masked_classes_have_ctc_losses() {
    let loss = CTCLoss::new().reduction(pagelock_tensor::Reduction::None);
    let x = Tensor::zeros([2, 3, 3]).unwrap().log_softmax(2).unwrap();
    let targets = Tensor::new([[1], [1], [1]]).unwrap();
    let losses = read(&loss.forward(&x, &targets, &[0, 0, 2], &[0, 1, 1]).unwrap());
    assert_eq!(losses[..2], [0.0, f64::INFINITY]);
    assert!((losses[2] - (9.0_f64 / 3.0).ln()).abs() < 1e-6, "{losses:?}"); // three of nine alignments

    // At the second step all that the target needs is impossible.
    let masked = Tensor::new([[[0.0, 0.0, 0.0]], [[f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0]]]).unwrap();
    let masked = masked.set_requires_grad(true);
    let losses = loss.forward(&masked, &Tensor::new([[1]]).unwrap(), &[2], &[1]).unwrap();
    assert_eq!(read(&losses), [f64::INFINITY]);
    let zero = loss.zero_infinity(true).forward(&masked, &Tensor::new([[1]]).unwrap(), &[2], &[1]).unwrap();
    zero.sum(..).unwrap().backward().unwrap();
    assert!(read(&masked.grad().unwrap()).iter().all(|grad| grad.is_finite()), "{:?}", masked.grad());
}

#[test]
fn an_empty_batch_leaves_running_statistics_alone() {
    let norm = InstanceNorm1d::new(2).track_running_stats().unwrap();
    assert_eq!(norm.forward(&Tensor::zeros([0, 2, 4]).unwrap()).unwrap().dims(), [0, 2, 4]);
    let state = norm.state_dict();
    assert_eq!(read(&state.get("running_mean").unwrap()), [0.0; 2]);
    assert_eq!(read(&state.get("running_var").unwrap()), [1.0; 2]);
}

/// As in PyTorch, which keeps the number for its files alone.
#[test]
fn an_instance_norm_counts_no_batches() {
    let norm = InstanceNorm1d::new(2).track_running_stats().unwrap();
    norm.forward(&Tensor::randn([3, 2, 4]).unwrap()).unwrap();
    assert_eq!(norm.state_dict().get_int("num_batches_tracked").unwrap().item::<i64>().unwrap(), 0);
}

/// `f(x)`, and the gradient of its sum.
fn with_gradient(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> (Vec<f64>, Vec<f64>) {
    let x = x.detach().set_requires_grad(true);
    let y = f(&x).unwrap();
    y.sum(..).unwrap().backward().unwrap();
    (read(&y), read(&x.grad().unwrap()))
}

/// The numbers are those of PyTorch 2.15.
#[test]
fn distances_have_pytorchs_gradients_at_zeros_and_where_several_differences_are_largest() {
    let zeros_first = Tensor::new([[0.0, 0.0], [3.0, 4.0]]).unwrap();
    let (_, grad) = with_gradient(&zeros_first, |x| F::normalize(x, 3.0, 1, 1e-12));
    let expected = [1e12, 1e12, 0.068_407, -0.051_306];
    assert!(grad.iter().zip(expected).all(|(found, of)| (found - of).abs() <= 1e-5 * of.abs()), "{grad:?}");
    let (y, grad) = with_gradient(&Tensor::new([[0.0, 4.0]]).unwrap(), |x| F::normalize(x, 0.5, 1, 1e-12));
    assert_eq!((y, grad), (vec![0.0, 1.0], vec![0.25, 0.0]));

    let equal = Tensor::new([[1.0, 0.0]]).unwrap();
    let (y, grad) = with_gradient(&equal, |x| F::pairwise_distance(x, &equal, 3.0, 0.0));
    assert_eq!((y, grad), (vec![0.0], vec![0.0; 2]));
    let (y, grad) = with_gradient(&Tensor::new([[0.0, 0.0], [0.0, 1.0]]).unwrap(), |x| F::pdist(x, 0.5));
    assert_eq!((y, grad), (vec![1.0], vec![0.0, -1.0, 0.0, 1.0]));

    let x = Tensor::new([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]).unwrap();
    let (y, grad) = with_gradient(&x, |x| F::pdist(x, f64::INFINITY));
    assert_eq!((y, grad), (vec![1.0, 1.0, 0.0], vec![-2.0, -2.0, 1.0, 1.0, 1.0, 1.0]));
    assert!(F::pdist(&Tensor::ones([1, 3]).unwrap(), f64::INFINITY).unwrap().is_empty());
}

/// The numbers are those of PyTorch 2.15.
#[test]
fn losses_have_pytorchs_gradients_at_infinite_scores() {
    let zeros = Tensor::zeros([2]).unwrap();
    let infinite = |other: f64| Tensor::new([-f64::INFINITY, other]).unwrap();
    let (_, grad) = with_gradient(&infinite(3.0), |x| SmoothL1Loss::new().forward(x, &zeros));
    assert_eq!(grad, [-0.5, 0.5]);
    let (_, grad) = with_gradient(&infinite(1.0), |x| HuberLoss::new().delta(2.0).forward(x, &zeros));
    assert_eq!(grad, [-1.0, 0.5]);
    for p in [1, 2] {
        let right = Tensor::new([[f64::INFINITY, 0.0]]).unwrap();
        let (loss, grad) =
            with_gradient(&right, |x| MultiMarginLoss::new().p(p).forward(x, &Tensor::new([0]).unwrap()));
        assert_eq!((loss, grad), (vec![0.0], vec![0.0; 2]));
    }
}

#[test]
fn a_query_that_may_attend_to_no_key_has_weights_of_zero() {
    let (attention, x) = (MultiheadAttention::new(4, 2).unwrap(), Tensor::randn([1, 1, 4]).unwrap());
    let mask = Tensor::new([[true]]).unwrap();
    let (y, weights) = attention.forward(&x, &x, &x, MultiheadOptions::new().key_padding_mask(&mask)).unwrap();
    assert_eq!((read(&y), read(&weights)), (vec![0.0; 4], vec![0.0])); // the output's bias is 0 at first
}

/// More than a half type can count.
#[test]
fn means_of_large_bags_of_halves_count_all_words() {
    let table = Tensor::of(DType::BF16).new([[1.0, 2.0], [f32::INFINITY, f32::NAN]]).unwrap();
    let words = Tensor::full([1, 600], 0).unwrap();
    let options = F::EmbeddingBagOptions { padding_idx: Some(1), ..Default::default() };
    assert_eq!(read(&F::embedding_bag(&words, &table, options).unwrap()), [1.0, 2.0]);
    let with_padding = Tensor::cat(&[&words, &Tensor::full([1, 3], 1).unwrap()], 1).unwrap();
    assert_eq!(read(&F::embedding_bag(&with_padding, &table, options).unwrap()), [1.0, 2.0]);
}

#[test]
fn a_window_beyond_all_channels_sums_them_all() {
    let x = Tensor::new([[[1.0], [2.0]]]).unwrap();
    let expected: Vec<f64> = [1.0, 2.0].map(|x| x / (1.0 + 5.0 / 9.0)).to_vec();
    let found = read(&F::local_response_norm(&x, 9, 1.0, 1.0, 1.0).unwrap());
    assert!(found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 1e-6), "{found:?}");
}

fn refused<T>(result: Result<T>) -> String {
    result.map(drop).unwrap_err().to_string()
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let (zeros, generator) = (|shape: &[usize]| Tensor::zeros(shape).unwrap(), Generator::new(7));
    let volume = zeros(&[1, 2, 2, 2, 2]);
    for bias in [1, 3] {
        let transposed =
            F::conv_transpose3d(&volume, &zeros(&[2, 4, 1, 1, 1]), Some(&zeros(&[bias])), Default::default());
        assert_eq!(
            refused(transposed),
            format!("conv_transpose3d: the bias is [{bias}], but with the weight [2, 4, 1, 1, 1] it must be [4]")
        );
    }
    let (x, var) = (zeros(&[2, 3]), zeros(&[2]).add_scalar(1.0).unwrap());
    assert_eq!(GaussianNLLLoss::new().forward(&x, &x, &var).unwrap().item::<f32>().unwrap(), 0.0);
    let larger = GaussianNLLLoss::new().forward(&zeros(&[3]), &zeros(&[3]), &zeros(&[2, 3]));
    assert!(refused(larger).starts_with("GaussianNLLLoss: the variance is [2, 3], but"));
    let x = zeros(&[2]);
    assert!(refused(SmoothL1Loss::new().beta(-1.0).forward(&x, &x)).contains("beta is -1"));
    assert!(refused(HuberLoss::new().delta(0.0).forward(&x, &x)).contains("delta is 0"));
    assert!(refused(F::dropout(&x, 2.0, false, &generator)).contains("p is 2"));
    assert!(refused(F::feature_dropout(&zeros(&[2, 2]), -0.5, false, &generator)).contains("p is -0.5"));
    assert!(refused(F::pixel_shuffle(&zeros(&[1, 0, 2, 2]), 1 << 40)).contains("upscale_factor"));
    assert!(refused(F::pixel_unshuffle(&zeros(&[1, 3, 0, 0]), 1 << 40)).contains("downscale_factor"));

    let before = generator.state();
    assert!(F::fractional_max_pool2d(&zeros(&[1, 2, 2]), [3, 3], [1, 1], &generator).is_err());
    assert_eq!(generator.state(), before, "a refused call draws nothing");
}

/// The numbers are those of PyTorch 2.15.
#[test]
fn functions_at_edges_are_those_of_pytorch() -> Result<()> {
    let cosine = F::cosine_similarity(&Tensor::new([0.0, 2.0, 0.0])?, &Tensor::new([2.0])?, 0, 1e-8)?;
    assert!((cosine.item::<f64>()? - 3_f64.sqrt().recip()).abs() < 1e-6, "{cosine}");

    for p in [1.0, 2.0, 3.0] {
        let x = Tensor::new([[[0.0, 0.0, 1.0, 2.0]]])?.set_requires_grad(true);
        F::lp_pool1d(&x, p, [2], None, false)?.sum(..)?.backward()?;
        assert_eq!(read(&x.grad().unwrap())[..2], [0.0; 2], "p = {p}");
    }

    let x = Tensor::new([[[1.0, 2.0, 4.0, 8.0]]])?;
    let options = F::InterpolateOptions::mode(F::InterpolationMode::Linear);
    assert_eq!(read(&F::interpolate(&x, F::Scale::Factor(&[1.2]), options)?), [1.0, 2.0, 4.0, 8.0]);

    let weight = Tensor::new([0.25])?.set_requires_grad(true);
    F::prelu(&Tensor::new([[f32::INFINITY, -1.0]])?, &weight)?.sum(..)?.backward()?;
    assert_eq!(read(&weight.grad().unwrap()), [-1.0]);
    Ok(())
}

const HUGE: usize = 1 << 40;

#[test]
fn more_bags_than_a_machine_can_hold_are_refused() -> Result<()> {
    for mode in [F::EmbeddingBagMode::Mean, F::EmbeddingBagMode::Max] {
        let options = F::EmbeddingBagOptions { mode, ..Default::default() };
        assert!(F::embedding_bag(&Tensor::full([HUGE, 0], 0)?, &Tensor::ones([4, 2])?, options).is_err());
    }
    Ok(())
}

#[test]
fn a_target_longer_than_a_machine_can_hold_is_refused() -> Result<()> {
    let targets = Tensor::full([1, 1], 1)?.expand([1, HUGE])?;
    assert!(CTCLoss::new().forward(&Tensor::zeros([1, 1, 2])?, &targets, &[1], &[1]).is_err());
    Ok(())
}

#[test]
fn empty_batches_of_huge_samples_are_refused() -> Result<()> {
    let pool = F::AvgPoolOptions { padding: [1], count_include_pad: false, ..F::AvgPoolOptions::new([2]) };
    assert!(F::avg_pool1d(&Tensor::zeros([0, 1, HUGE])?, pool).is_err());
    let (x, weight) = (Tensor::zeros([0, 1, HUGE, 1, 1])?, Tensor::ones([1, 1, 1, 1, 1])?);
    assert!(F::conv_transpose3d(&x, &weight, None, Default::default()).is_err());
    Ok(())
}

#[test]
fn sizes_of_windows_that_overflow_are_refused() -> Result<()> {
    let dilated = F::Conv3dOptions { dilation: [usize::MAX, 1, 1], ..Default::default() };
    let conv = F::conv3d(&Tensor::ones([1, 1, 2, 2, 2])?, &Tensor::ones([1, 1, 2, 1, 1])?, None, dilated);
    assert!(refused(conv).contains("its kernel (dilated by 18446744073709551615) must fit the depth 2"));
    let folded = F::fold(&Tensor::zeros([0, 65])?, [(1 << 58) + 64, 1], F::FoldOptions::new([1 << 58, 1]));
    assert!(refused(folded).contains("needs more bytes than memory can address"));
    Ok(())
}

#[test]
fn empty_tensors_with_huge_sizes_take_no_time() -> Result<()> {
    let x = Tensor::zeros([0, 1_usize << 50, 1])?;
    assert_eq!(F::local_response_norm(&x, usize::MAX, 1.0, 0.5, 1.0)?.shape(), x.shape());
    let (x, targets) = (Tensor::zeros([1_usize << 50, 0, 2])?, Tensor::full([0, 1], 1)?);
    let losses = CTCLoss::new().reduction(Reduction::None).forward(&x, &targets, &[], &[])?;
    assert!(losses.is_empty());
    init::sparse_(&Tensor::zeros([0, 1_usize << 59])?, 0.5, 1.0, &Generator::new(0))?;
    init::dirac_(&Tensor::zeros([1_usize << 59, 0, 1])?, 1)
}

#[test]
fn sizes_of_layers_that_overflow_are_refused() {
    let huge = usize::MAX;
    let heads = |embed_dim| MultiheadAttention::new(embed_dim, 1).map(drop);
    assert!(heads(huge).is_err() && heads(huge / 3 + 2).is_err());
    assert!(LSTM::new(1, huge).is_err() && LSTM::new(1, huge / 4 + 2).is_err());
    assert!(LSTMCell::new(1, huge / 4 + 2).is_err());
}

#[test]
fn layers_whose_weight_was_replaced_print_without_a_panic() -> Result<()> {
    let weight = || Ok(Parameter::new(Tensor::zeros(4)?));
    let mut linear = Linear::new(2, 3)?;
    linear.weight = weight()?;
    assert_eq!(linear.to_string(), "Linear(in_features=0, out_features=4, bias=True)");
    let mut conv = Conv2d::new(1, 2, 3)?;
    conv.weight = weight()?;
    assert!(conv.to_string().starts_with("Conv2d(0, 4, "));
    let mut transposed = ConvTranspose2d::new(1, 2, 3)?;
    transposed.weight = weight()?;
    assert!(transposed.to_string().starts_with("ConvTranspose2d(4, 0, "));
    let mut embedding = Embedding::new(2, 3)?;
    embedding.weight = weight()?;
    assert_eq!(embedding.to_string(), "Embedding(4, 0)");
    embedding.weight = Parameter::new(Tensor::zeros(())?);
    assert!(embedding.padding_idx(0).is_err());
    let mut bag = EmbeddingBag::new(2, 3)?;
    bag.weight = weight()?;
    assert!(bag.to_string().starts_with("EmbeddingBag(4, 0, "));
    let mut bilinear = Bilinear::new(1, 2, 3)?;
    bilinear.weight = weight()?;
    assert!(bilinear.to_string().contains("out_features=4"));
    let mut cell = LSTMCell::new(1, 2)?;
    cell.weight_ih = weight()?;
    assert!(cell.to_string().starts_with("LSTMCell(0, 2"));
    let mut adaptive = AdaptiveLogSoftmaxWithLoss::new(4, 8, &[2])?;
    adaptive.head.weight = weight()?;
    assert!(adaptive.log_prob(&Tensor::zeros([2, 4])?).is_err());
    Ok(())
}

#[test]
fn a_padding_row_that_a_table_does_not_have_is_refused() -> Result<()> {
    let (table, index) = (Tensor::zeros([3, 2])?, Tensor::new([[0, 1]])?);
    for padding in [3, 256, usize::MAX] {
        let expected = format!("padding_idx is {padding}, but it must be below 3, the number of rows");
        assert!(refused(F::embedding(&index, &table, Some(padding))).contains(&expected));
        let options = F::EmbeddingBagOptions { padding_idx: Some(padding), ..F::EmbeddingBagOptions::default() };
        assert!(refused(F::embedding_bag(&index, &table, options)).contains(&expected));
    }
    Ok(())
}

#[test]
fn variances_below_zero_and_weights_of_other_classes_are_refused() -> Result<()> {
    let x = Tensor::zeros([2, 3])?;
    let negative = GaussianNLLLoss::new().forward(&x, &x, &Tensor::new([[1.0, 0.0, -1.0]])?);
    assert_eq!(refused(negative), "GaussianNLLLoss: a variance is negative, but it must be at least 0");
    let loss = MultiMarginLoss::new().weight(Tensor::ones([4])?);
    let refusal = refused(loss.forward(&x, &Tensor::new([0, 2])?));
    assert_eq!(refusal, "MultiMarginLoss: the weight is [4], but for the input [2, 3] it must be [3]");
    Ok(())
}

/// As PyTorch's, which leaves neighbors outside out.
#[test]
fn an_infinite_first_pixel_reaches_only_samples_beside_it() -> Result<()> {
    let x = Tensor::new([[[[f64::INFINITY, 1.0], [2.0, 3.0]]]])?;
    let grid = Tensor::new([[[[1.0, 1.0], [2.0, 2.0], [5.0, 5.0]]]])?; // between the last pixel and nothing, then outside
    let (sampled, gradient) = with_gradient(&x, |x| F::grid_sample(x, &grid, F::GridSampleOptions::default())?.sum(..));
    assert_eq!(sampled, [0.75]);
    assert_eq!(gradient, [0.0, 0.0, 0.0, 0.25]);
    Ok(())
}

#[test]
fn infinite_rows_stay_infinite_if_gradients_are_scaled_by_frequency() -> Result<()> {
    let table = Tensor::new([[f64::INFINITY, 1.0], [f64::NEG_INFINITY, 3.0]])?;
    let options = F::EmbeddingOptions { scale_grad_by_freq: true, ..F::EmbeddingOptions::default() };
    let index = Tensor::new([0, 0, 1])?;
    let (rows, gradient) = with_gradient(&table, |table| F::embedding_with(&index, table, options));
    assert_eq!(rows, [f64::INFINITY, 1.0, f64::INFINITY, 1.0, f64::NEG_INFINITY, 3.0]);
    assert_eq!(gradient, [1.0; 4]);
    Ok(())
}
