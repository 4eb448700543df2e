//! Layers and functionals that enlarge and shrink sequences, images and volumes, and layers made of layers, against
//! PyTorch.
//!
//! `../golden/images.py` computed the expected values; each of its cases is a line here. `layers.rs` describes the
//! comparison.

use crate::layers::{
    Case, Cases, Inputs, all_agree_on, all_agree_on_a_gpu, all_are_tested, called, evaluated, function, kept, layer,
};
use crate::pytorch;
use pagelock_nn::functional::{
    self as F, AvgPoolOptions, EmbeddingBagMode, EmbeddingBagOptions, GridPadding, GridSampleMode, GridSampleOptions,
    InterpolateOptions, InterpolationMode as Mode, MaxPoolOptions, Scale,
};
use pagelock_nn::parametrizations::{SpectralNormOptions, spectral_norm, weight_norm};
use pagelock_nn::*;
use pagelock_tensor::{Bool, DType, Device, Int, PadMode, Result, Tensor};

fn convolutions() -> Result<Cases> {
    let sized = function(|x| {
        let x = x.float(0);
        let layer = ConvTranspose2d::new(2, 1, 3)?.stride(2).padding(1).without_bias();
        let layer = layer.to_dtype(x.dtype()).unwrap().to(&x.device()).unwrap();
        layer.weight.detach().fill_(1.0)?;
        layer.forward_sized(x, 6)
    });
    Ok(vec![
        ("conv_transpose1d", layer(ConvTranspose1d::new(3, 2, 3)?)),
        (
            "conv_transpose1d all",
            layer(
                ConvTranspose1d::grouped(4, 6, 3, 2)?.stride(3).padding(1).output_padding(2).dilation(2).without_bias(),
            ),
        ),
        ("conv_transpose1d unbatched", layer(ConvTranspose1d::new(3, 2, 2)?.stride(2))),
        ("conv_transpose2d", layer(ConvTranspose2d::new(3, 2, 3)?)),
        (
            "conv_transpose2d all",
            layer(
                ConvTranspose2d::grouped(4, 2, [3, 2], 2)?
                    .stride([2, 3])
                    .padding([1, 0])
                    .output_padding([1, 2])
                    .dilation([1, 2]),
            ),
        ),
        ("conv_transpose2d sized", sized),
        ("conv_transpose2d unbatched", layer(ConvTranspose2d::new(2, 1, 4)?.stride(2).padding(1))),
        ("conv_transpose3d", layer(ConvTranspose3d::new(2, 2, 2)?)),
        (
            "conv_transpose3d all",
            layer(
                ConvTranspose3d::grouped(4, 2, [3, 2, 2], 2)?
                    .stride([2, 2, 3])
                    .padding([1, 0, 1])
                    .output_padding([1, 0, 2])
                    .dilation([2, 1, 1]),
            ),
        ),
        ("conv_transpose3d unbatched", layer(ConvTranspose3d::new(2, 1, 2)?.stride(2).without_bias())),
        ("conv1d same", layer(Conv1d::new(2, 3, 4)?.padding_same())),
        ("conv1d circular", layer(Conv1d::new(2, 3, 3)?.stride(2).padding(2).padding_mode(PadMode::Circular))),
        ("conv2d same", layer(Conv2d::new(2, 3, [3, 4])?.padding_same().dilation([1, 2]))),
        ("conv2d same reflect", layer(Conv2d::new(2, 2, [4, 3])?.padding_same().padding_mode(PadMode::Reflect))),
        ("conv2d replicate", layer(Conv2d::new(2, 2, 3)?.padding([2, 1]).padding_mode(PadMode::Replicate))),
        ("conv2d unbatched", layer(Conv2d::new(2, 2, 3)?.padding(1))),
        ("conv3d", layer(Conv3d::new(2, 2, 2)?)),
        (
            "conv3d all",
            layer(
                Conv3d::grouped(4, 2, [2, 3, 2], 2)?
                    .stride([2, 1, 2])
                    .padding([1, 2, 0])
                    .dilation([2, 1, 1])
                    .without_bias(),
            ),
        ),
        ("conv3d same", layer(Conv3d::new(1, 2, [3, 2, 3])?.padding_same().padding_mode(PadMode::Circular))),
        ("conv3d unbatched", layer(Conv3d::new(1, 2, 3)?.padding(1))),
    ])
}

/// Values and places as one vector.
fn with_places(pooled: Result<(Tensor, Tensor<Int>)>) -> Result<Tensor> {
    let (values, places) = pooled?;
    Tensor::cat(&[&values.reshape([-1])?, &places.reshape([-1])?.to_float_of(values.dtype())?], 0)
}

fn largest() -> Result<Cases> {
    fn options<const N: usize>(kernel: usize, padding: usize) -> MaxPoolOptions<N> {
        MaxPoolOptions { padding: [padding; N], ..MaxPoolOptions::new([kernel; N]).stride([2; N]) }
    }
    Ok(vec![
        ("max_pool1d ceil", layer(MaxPool1d::new(3).stride(2).padding(1).ceil_mode(true))),
        ("max_pool1d dilated", layer(MaxPool1d::new(3).stride(2).padding(1).dilation(2))),
        ("max_pool1d unbatched", layer(MaxPool1d::new(2))),
        ("max_pool1d places", function(|x| with_places(F::max_pool1d_with_indices(x.float(0), options::<1>(3, 1))))),
        ("max_pool2d ceil", layer(MaxPool2d::new([2, 3]).stride([3, 2]).padding([1, 0]).ceil_mode(true))),
        ("max_pool2d dilated", layer(MaxPool2d::new(3).stride(1).padding(1).dilation([1, 2]).ceil_mode(true))),
        ("max_pool2d places", function(|x| with_places(F::max_pool2d_with_indices(x.float(0), options::<2>(3, 1))))),
        ("max_pool2d ties", function(|x| with_places(F::max_pool2d_with_indices(x.float(0), options::<2>(3, 1))))),
        ("max_pool3d", layer(MaxPool3d::new(2))),
        ("max_pool3d all", layer(MaxPool3d::new(3).stride(2).padding(1).ceil_mode(true))),
        ("max_pool3d dilated", layer(MaxPool3d::new(2).stride([1, 2, 2]).dilation([2, 1, 2]))),
        ("max_pool3d places", function(|x| with_places(F::max_pool3d_with_indices(x.float(0), options::<3>(2, 1))))),
        ("adaptive_max_pool1d", layer(AdaptiveMaxPool1d::new(3))),
        ("adaptive_max_pool2d", layer(AdaptiveMaxPool2d::new([2, 3]))),
        ("adaptive_max_pool3d", layer(AdaptiveMaxPool3d::new([2, 3, 1]))),
        (
            "adaptive_max_pool2d places",
            function(|x| with_places(F::adaptive_max_pool2d_with_indices(x.float(0), [2, 3]))),
        ),
        ("max_unpool1d", called(MaxUnpool1d::new(2), |layer, x| layer.forward(x.float(0), x.int(1)))),
        ("max_unpool2d", called(MaxUnpool2d::new(2).stride(2), |layer, x| layer.forward(x.float(0), x.int(1)))),
        ("max_unpool3d", called(MaxUnpool3d::new(2), |layer, x| layer.forward(x.float(0), x.int(1)))),
    ])
}

fn means() -> Result<Cases> {
    Ok(vec![
        ("avg_pool1d ceil", layer(AvgPool1d::new(3).stride(2).padding(1).ceil_mode(true).count_include_pad(false))),
        ("avg_pool2d ceil", layer(AvgPool2d::new([2, 3]).stride([3, 2]).padding([1, 0]).ceil_mode(true))),
        ("avg_pool2d uncounted", layer(AvgPool2d::new(3).stride(2).padding(1).count_include_pad(false))),
        ("avg_pool2d divisor", layer(AvgPool2d::new(3).stride(2).ceil_mode(true).divisor_override(5))),
        ("avg_pool3d", layer(AvgPool3d::new(2))),
        (
            "avg_pool3d all",
            layer(AvgPool3d::new(3).stride([2, 1, 2]).padding(1).ceil_mode(true).count_include_pad(false)),
        ),
        ("adaptive_avg_pool3d", layer(AdaptiveAvgPool3d::new([2, 3, 1]))),
        ("lp_pool1d", layer(LPPool1d::new(2.0, 3).stride(2))),
        ("lp_pool2d", layer(LPPool2d::new(3.0, [2, 3]).ceil_mode(true))),
        ("lp_pool3d", layer(LPPool3d::new(2.0, 2))),
    ])
}

fn sized(size: &'static [usize], options: InterpolateOptions) -> Box<dyn Case> {
    function(move |x| F::interpolate(x.float(0), Scale::Size(size), options))
}

fn scaled(factor: &'static [f64], options: InterpolateOptions) -> Box<dyn Case> {
    function(move |x| F::interpolate(x.float(0), Scale::Factor(factor), options))
}

fn interpolations() -> Result<Cases> {
    let of = InterpolateOptions::mode;
    let anew = InterpolateOptions { recompute_scale_factor: true, ..of(Mode::Bilinear) };
    let corners = |mode| of(mode).align_corners(true);
    let smooth = |mode| of(mode).antialias(true);
    Ok(vec![
        ("interpolate nearest", sized(&[7, 2], of(Mode::Nearest))),
        ("interpolate nearest factor", scaled(&[1.3], of(Mode::Nearest))),
        ("interpolate nearest-exact", sized(&[7, 2], of(Mode::NearestExact))),
        ("interpolate nearest-exact volume", scaled(&[2.0, 1.5, 0.7], of(Mode::NearestExact))),
        ("interpolate linear", sized(&[8], of(Mode::Linear))),
        ("interpolate linear corners", sized(&[3], corners(Mode::Linear))),
        ("interpolate bilinear", scaled(&[2.0], of(Mode::Bilinear))),
        ("interpolate bilinear factor", scaled(&[1.3, 0.7], of(Mode::Bilinear))),
        ("interpolate bilinear recomputed", scaled(&[1.3, 0.7], anew)),
        ("interpolate bilinear corners", sized(&[5, 1], corners(Mode::Bilinear))),
        ("interpolate bilinear long", sized(&[70, 3], of(Mode::Bilinear))),
        ("interpolate bilinear smooth", sized(&[3, 8], smooth(Mode::Bilinear))),
        ("interpolate bicubic", sized(&[7, 3], of(Mode::Bicubic))),
        ("interpolate bicubic corners", sized(&[7, 3], corners(Mode::Bicubic))),
        ("interpolate bicubic smooth", sized(&[4, 8], smooth(Mode::Bicubic))),
        ("interpolate trilinear", scaled(&[2.0, 1.5, 0.7], of(Mode::Trilinear))),
        ("interpolate trilinear corners", sized(&[4, 3, 2], corners(Mode::Trilinear))),
        ("interpolate area", sized(&[2, 3], of(Mode::Area))),
        ("interpolate area volume", scaled(&[0.5], of(Mode::Area))),
        ("upsample bilinear", layer(Upsample::scale_factor(2.0).mode(Mode::Bilinear).align_corners(true))),
        ("upsample trilinear", layer(Upsample::sizes(&[3, 2, 4]).mode(Mode::Trilinear))),
        ("upsampling nearest", layer(UpsamplingNearest2d::scale_factor(2.0))),
        ("upsampling bilinear", layer(UpsamplingBilinear2d::size(5))),
    ])
}

fn places() -> Result<Cases> {
    let mut cases: Cases = vec![
        ("unfold", layer(Unfold::new([2, 3]).dilation([2, 1]).padding(1).stride([1, 2]))),
        ("unfold unbatched", layer(Unfold::new(2))),
        ("fold", layer(Fold::new([4, 5], [2, 3]).padding(1).stride(1).dilation([2, 1]))),
        ("fold unbatched", layer(Fold::new([4, 5], 2))),
        ("channel_shuffle", layer(ChannelShuffle::new(3))),
        ("affine_grid", function(|x| F::affine_grid(x.float(0), &[2, 1, 3, 4], false))),
        ("affine_grid volume", function(|x| F::affine_grid(x.float(0), &[1, 1, 3, 2, 1], true))),
    ];
    let sampled = |options| function(move |x| F::grid_sample(x.float(0), x.float(1), options));
    for (mode, of_mode) in [("bilinear", GridSampleMode::Bilinear), ("nearest", GridSampleMode::Nearest)] {
        let paddings =
            [("zeros", GridPadding::Zeros), ("border", GridPadding::Border), ("reflection", GridPadding::Reflection)];
        for (padding, padding_mode) in paddings {
            for (corners, align_corners) in [("False", false), ("True", true)] {
                let name = kept(format!("grid_sample {mode} {padding} {corners}"));
                cases.push((name, sampled(GridSampleOptions { mode: of_mode, padding_mode, align_corners })));
            }
        }
    }
    let border = GridSampleOptions { padding_mode: GridPadding::Border, ..GridSampleOptions::default() };
    cases.push(("grid_sample volume", sampled(border)));
    Ok(cases)
}

fn bags(mode: EmbeddingBagMode) -> Result<[Box<dyn Case>; 2]> {
    let rows = EmbeddingBag::new(7, 3)?.mode(mode);
    let offsets = EmbeddingBag::new(7, 3)?.mode(mode).padding_idx(1)?;
    let rows = called(rows, |layer, x| layer.forward(x.int(0)));
    Ok([rows, called(offsets, |layer, x| layer.forward_offsets(x.int(0), x.int(1)))])
}

fn weighted(x: &Inputs) -> Result<Tensor> {
    let per_sample_weights = x.float(1);
    let table = Tensor::arange(0.0, 21.0, 1.0)?.reshape([7, 3])?.to_dtype(per_sample_weights.dtype())?;
    let table = table.to(&per_sample_weights.device())?;
    let (mode, weights) = (EmbeddingBagMode::Sum, Some(per_sample_weights));
    F::embedding_bag(x.int(0), &table, EmbeddingBagOptions { mode, per_sample_weights: weights, ..Default::default() })
}

fn tables() -> Result<Cases> {
    let index = |layer: Embedding| called(layer, |layer, x| layer.forward(x.int(0)));
    let [sum, sum_offsets] = bags(EmbeddingBagMode::Sum)?;
    let [mean, mean_offsets] = bags(EmbeddingBagMode::Mean)?;
    let [max, max_offsets] = bags(EmbeddingBagMode::Max)?;
    let cosine = CosineSimilarity::new().dim(0);
    let distance = PairwiseDistance::new().p(3.0).keepdim(true);
    Ok(vec![
        ("embedding max_norm", index(Embedding::new(7, 3)?.max_norm(1.25))),
        ("embedding frequency", index(Embedding::new(7, 3)?.padding_idx(0)?.scale_grad_by_freq(true))),
        ("embedding_bag sum", sum),
        ("embedding_bag sum offsets", sum_offsets),
        ("embedding_bag mean", mean),
        ("embedding_bag mean offsets", mean_offsets),
        ("embedding_bag max", max),
        ("embedding_bag max offsets", max_offsets),
        ("embedding_bag weighted", function(weighted)),
        ("bilinear", called(Bilinear::new(3, 4, 2)?, |layer, x| layer.forward(x.float(0), x.float(1)))),
        ("softmax2d", layer(Softmax2d)),
        ("rrelu", layer(evaluated(RReLU::new().lower(0.25).upper(0.5)))),
        ("cosine_similarity layer", called(cosine, |layer, x| layer.forward(x.float(0), x.float(1)))),
        ("pairwise_distance layer", called(distance, |layer, x| layer.forward(x.float(0), x.float(1)))),
    ])
}

fn masked(layer: &TransformerDecoderLayer, x: &Inputs) -> Result<Tensor> {
    let (no, yes, device) = (false, true, x.float(0).device());
    let later = Tensor::<Bool>::new([[no, yes, yes], [no, no, yes], [no; 3]])?.to(&device)?;
    let padded = Tensor::<Bool>::new([[no, yes], [no; 2]])?.to(&device)?;
    let masks = DecoderMasks {
        target: MultiheadOptions::new().attn_mask(&later),
        memory: MultiheadOptions::new().key_padding_mask(&padded),
    };
    layer.forward(x.float(0), x.float(1), masks)?.reshape([-1])
}

fn composed() -> Result<Cases> {
    let encoder = TransformerEncoder::new(2, || Ok(TransformerEncoderLayer::new(4, 2, 6)?.dropout(0.0)))?;
    let decoder_layer = || Ok(TransformerDecoderLayer::new(4, 2, 6)?.dropout(0.0));
    let (decoder, plain) = (TransformerDecoder::new(2, decoder_layer)?, DecoderMasks::default);
    let transformer = called(Transformer::new(4, 2, [1, 1], 6)?.dropout(0.0), move |layer, x| {
        layer.forward(x.float(0), x.float(1), MultiheadOptions::new(), plain())
    });
    let three = SpectralNormOptions { n_power_iterations: 3, ..SpectralNormOptions::default() };
    let usual = SpectralNormOptions::default();
    Ok(vec![
        ("encoder", layer(encoder.norm(LayerNorm::new(4)?))),
        ("decoder_layer", called(decoder_layer()?, move |layer, x| layer.forward(x.float(0), x.float(1), plain()))),
        ("decoder_layer masked", called(decoder_layer()?.norm_first(true), masked)),
        ("decoder", called(decoder, move |layer, x| layer.forward(x.float(0), x.float(1), plain()))),
        ("transformer", transformer),
        ("weight_norm", layer(weight_norm(Linear::new(3, 2)?, 0)?)),
        ("weight_norm dim", layer(weight_norm(Conv2d::new(2, 3, 2)?, 1)?)),
        ("spectral_norm", layer(spectral_norm(Linear::new(3, 4)?, usual)?)),
        ("spectral_norm evaluated", layer(evaluated(spectral_norm(Conv1d::new(2, 3, 2)?, usual)?))),
        ("spectral_norm transposed", layer(spectral_norm(ConvTranspose1d::new(2, 3, 2)?, three)?)),
    ])
}

pub(crate) fn cases() -> Cases {
    let families =
        [convolutions, largest, means, interpolations, places, tables, composed].map(|family| family().unwrap());
    families.into_iter().flatten().collect()
}

#[test]
fn outputs_and_gradients_are_pytorchs() {
    all_agree_on(&Device::Cpu, "images.safetensors", cases);
}

#[test]
fn outputs_and_gradients_on_a_gpu_are_pytorchs() {
    all_agree_on_a_gpu("images.safetensors", cases);
}

#[test]
fn every_case_of_the_golden_file_is_tested() {
    all_are_tested("images.json", cases);
}

#[test]
fn modules_print_as_in_pytorch() {
    let golden = pytorch::json("images.json");
    let printed = |name: &str| golden["prints"][name].as_str().map(str::to_owned);
    let mut n_compared = 0;
    for (name, mut case) in cases() {
        if let Some(theirs) = printed(name) {
            assert_eq!(print(case.module()).to_string(), theirs, "{name}");
            n_compared += 1;
        }
    }
    let ones = |shape: &[usize]| Parameter::new(Tensor::ones(shape).unwrap());
    let dict = ParameterDict::new().insert("left", ones(&[2])).unwrap().insert("right", ones(&[2, 3])).unwrap();
    assert_eq!(dict.to_string(), printed("parameter_dict").unwrap());
    assert_eq!(FeatureAlphaDropout::new(0.25).to_string(), printed("feature_alpha_dropout").unwrap());
    n_compared += 2;
    assert_eq!((n_compared, golden["prints"].as_object().unwrap().len()), (77, 77), "ours and those of the file");
}

#[test]
fn what_does_not_fit_is_refused() {
    let x = || Tensor::ones([1, 2, 4, 4]).unwrap();
    let of = InterpolateOptions::mode;
    let uneven = AvgPoolOptions { divisor_override: Some(0), ..AvgPoolOptions::new([2, 2]) };
    let refused = [
        F::interpolate(&x(), Scale::Size(&[2]), of(Mode::Linear)),
        F::interpolate(&x(), Scale::Size(&[2, 2, 2]), of(Mode::Nearest)),
        F::interpolate(&x(), Scale::Factor(&[0.0]), of(Mode::Nearest)),
        F::interpolate(&x(), Scale::Factor(&[0.1]), of(Mode::Nearest)),
        F::interpolate(&x(), Scale::Size(&[2]), of(Mode::Nearest).align_corners(true)),
        F::interpolate(&x(), Scale::Size(&[2]), of(Mode::Area).antialias(true)),
        F::interpolate(&x(), Scale::Size(&[usize::MAX]), of(Mode::Bilinear)),
        F::max_pool2d(&x(), MaxPoolOptions { padding: [2, 2], ..MaxPoolOptions::new([2, 2]) }),
        F::max_pool2d(&x(), MaxPoolOptions { dilation: [4, 4], ..MaxPoolOptions::new([3, 3]) }),
        F::max_pool3d(&x().select(0, 0).unwrap().select(0, 0).unwrap(), MaxPoolOptions::new([1, 1, 1])),
        F::avg_pool2d(&x(), uneven),
        F::adaptive_max_pool2d(&x(), [0, 1]),
        F::grid_sample(&x(), &Tensor::ones([2, 1, 1, 2]).unwrap(), GridSampleOptions::default()),
        F::affine_grid(&Tensor::ones([1, 2, 2]).unwrap(), &[1, 1, 2, 2], false),
        F::fold(&Tensor::ones([1, 4, 3]).unwrap(), [4, 4], F::FoldOptions::new([2, 2])),
        F::unfold(&x(), F::FoldOptions::new([5, 1])),
        F::channel_shuffle(&x(), 3),
        Conv2d::new(2, 1, 3).unwrap().stride(2).padding_same().forward(&x()),
        Conv3d::new(2, 1, 5).unwrap().forward(&Tensor::ones([1, 2, 4, 4, 4]).unwrap()),
        ConvTranspose2d::new(2, 1, 3).unwrap().output_padding(1).forward(&x()),
        ConvTranspose2d::new(2, 1, 3).unwrap().stride(2).forward_sized(&x(), 20),
        ConvTranspose3d::new(2, 1, 1).unwrap().padding(3).forward(&Tensor::ones([1, 2, 4, 4, 4]).unwrap()),
    ];
    for (number, result) in refused.into_iter().enumerate() {
        assert!(result.is_err(), "{number}");
    }
    let (index, table) = (Tensor::new([0, 1, 2]).unwrap(), Tensor::ones([3, 2]).unwrap());
    for offsets in [[1_i64, 2], [0, 4], [0, -1]] {
        let offsets = Tensor::new(offsets).unwrap();
        let options = EmbeddingBagOptions { offsets: Some(&offsets), ..EmbeddingBagOptions::default() };
        assert!(F::embedding_bag(&index, &table, options).is_err());
    }
}

#[test]
fn halves_are_interpolated_as_f32() {
    let x = Tensor::rand([1, 2, 5, 5]).unwrap().to_dtype(DType::F16).unwrap();
    let resized =
        |x: &Tensor| F::interpolate(x, Scale::Size(&[7, 7]), InterpolateOptions::mode(Mode::Bicubic)).unwrap();
    let expected = resized(&x.to_dtype(DType::F32).unwrap()).to_dtype(DType::F16).unwrap();
    assert_eq!(resized(&x).to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
}

/// The elements that the nearest neighbor takes of `0, 1, 2, ..`.
fn nearest_of(size: usize, scale: Scale<'_>, mode: Mode) -> Vec<i64> {
    let x = Tensor::arange(0.0, size as f64, 1.0).unwrap().reshape([1, 1, -1]).unwrap();
    let taken = |x: &Tensor| F::interpolate(x, scale, InterpolateOptions::mode(mode)).unwrap().to_int().unwrap();
    let indices = taken(&x).to_vec().unwrap();
    match Device::cuda(0) {
        Ok(gpu) => assert_eq!(taken(&x.to(&gpu).unwrap()).to_vec::<i64>().unwrap(), indices, "on a GPU"),
        Err(missing) => eprintln!("SKIPPED: {missing}"),
    }
    indices
}

/// The indices are those of `F.interpolate` on the CPU and in `f32`, of PyTorch 2.15.
#[test]
fn the_nearest_neighbor_is_chosen_in_f32_as_in_pytorch() {
    let nearest = |size, to, mode| nearest_of(size, Scale::Size(&[to]), mode);
    assert_eq!(nearest(300, 224, Mode::Nearest)[168], 225);
    assert_eq!(nearest(2, 98, Mode::Nearest)[48..51], [0, 1, 1]);
    assert_eq!(nearest(41, 82, Mode::Nearest), (0..82).map(|out| out / 2).collect::<Vec<_>>());
    assert_eq!([nearest(2, 49, Mode::NearestExact)[24], nearest(2, 103, Mode::NearestExact)[51]], [1, 1]);
    let scaled = |size, factor, mode| nearest_of(size, Scale::Factor(&[factor]), mode);
    assert_eq!([49, 98].map(|out| scaled(3, 49.0, Mode::Nearest)[out]), [1, 2]);
    assert_eq!([41, 82].map(|out| scaled(3, 41.0, Mode::Nearest)[out]), [0, 1]);
    assert_eq!(scaled(16, 1.3, Mode::NearestExact)[19], 15);
    assert_eq!(scaled(16, 2.3, Mode::NearestExact)[34], 14);
}
