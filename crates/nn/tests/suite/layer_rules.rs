//! What layers do besides computing: refuse inputs with the numbers, drop channels, keep precision, run under
//! autocast.

use pagelock_nn::functional::{self as F, AttentionOptions};
use pagelock_nn::*;
use pagelock_tensor::{self as tensor, DType, Generator, Half, Int, PadMode, Result, Tensor, autocast, no_grad};

use crate::pytorch;

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape).unwrap()
}

fn refused(what: Result<Tensor>) -> String {
    what.unwrap_err().to_string()
}

#[test]
fn layers_refuse_other_shapes_with_the_numbers_and_the_fix() {
    let x = zeros(&[2, 3]);
    let cases = [
        (
            GLU::new().forward(&x),
            "glu: the input is [2, 3], but dimension -1 has the odd size 3; give an even one: one half gates the other",
        ),
        (
            PReLU::new(4).unwrap().forward(&x),
            "prelu: the weight is [4], but for the input [2, 3] it must be [1] or [3]",
        ),
        (
            Unflatten::new(1, [2, 2]).unwrap().forward(&x),
            "unflatten: the tensor is [2, 3], but dimension 1 has 3 elements, which do not fill [2, 2]; give sizes whose product is 3",
        ),
        (
            GroupNorm::new(2, 4).unwrap().forward(&x),
            "GroupNorm: the input is [2, 3], but it must be [batch, 4, ..]; reshape it",
        ),
        (
            InstanceNorm1d::new(3).forward(&zeros(&[4, 2, 5])),
            "InstanceNorm1d: the input is [4, 2, 5], but it must be [batch, channels, length] with 3 channels; reshape it",
        ),
        (
            InstanceNorm1d::new(3).forward(&zeros(&[4, 3, 1])),
            "instance_norm: the input is [4, 3, 1], but a channel needs at least two values; give longer or larger samples",
        ),
        (
            RMSNorm::new(4).unwrap().forward(&x),
            "rms_norm: the input is [2, 3], but its last sizes must be those to normalize, [4]; reshape it",
        ),
        (
            LocalResponseNorm::new(2).forward(&x),
            "local_response_norm: the input is [2, 3], but it must be [batch, channels, ..] with at least one more dimension",
        ),
        (
            Dropout2d::new(0.5).forward(&x),
            "Dropout2d: the input is [2, 3], but it must be [batch, channels, height, width] or [channels, height, width]; reshape it",
        ),
        (
            Conv1d::new(3, 4, 2).unwrap().forward(&zeros(&[3])),
            "conv1d: the input is [3], but it must be [batch, channels, length] or [channels, length]; reshape it",
        ),
        (
            Conv1d::new(2, 4, 2).unwrap().forward(&zeros(&[2, 3, 5])),
            "conv1d: the input is [2, 3, 5], but with groups 1 and the weight [4, 2, 2] it must have 2 channels in dimension 1; permute it, or change the weight",
        ),
        (
            Conv3d::new(2, 4, 2).unwrap().forward(&zeros(&[1, 3, 4, 4, 4])),
            "conv3d: the input is [1, 3, 4, 4, 4], but with groups 1 and the weight [4, 2, 2, 2, 2] it must have 2 channels in dimension 1; permute it, or change the weight",
        ),
        (
            ConvTranspose1d::new(2, 4, 2).unwrap().forward(&zeros(&[2, 3, 5])),
            "conv_transpose1d: the weight is [2, 4, 2], but for an input of 3 channels in 1 groups it must begin with 3, a multiple of groups",
        ),
        (
            MaxPool2d::new(2).forward(&zeros(&[2, 3, 1, 1])),
            "max_pool2d: the input is [2, 3, 1, 1], but padded by [0, 0] it must be at least as large as the window, [2, 2] dilated by [1, 1]; use a smaller kernel",
        ),
        (
            ReflectionPad1d::new(3).forward(&x),
            "pad: dimension 1 of [2, 3] cannot be padded or cut by 3 and 3; pad or cut less",
        ),
        (
            ZeroPad2d::new(1).forward(&x),
            "ZeroPad2d: the input is [2, 3], but it must have 3 dimensions, or 4 with a batch; reshape it",
        ),
        (
            PixelShuffle::new(2).forward(&zeros(&[1, 6, 2, 2])),
            "pixel_shuffle: upscale_factor is 2, but it must be one whose square divides the 6 channels of [1, 6, 2, 2]",
        ),
        (
            Upsample::scale_factor(-1.0).forward(&zeros(&[1, 1, 2])),
            "interpolate: scale_factor is -1, but it must be above 0",
        ),
        (
            F::pad(&x, &[0; 6], PadMode::Replicate),
            "pad: sizes is [0, 0, 0, 0, 0, 0], but there must be two for each of the last dimensions of [2, 3]",
        ),
    ];
    for (result, expected) in cases {
        assert_eq!(refused(result), expected);
    }
}

#[test]
fn embeddings_refuse_what_they_do_not_have() {
    let embedding = Embedding::new(5, 3).unwrap();
    let error = refused(embedding.forward(&Tensor::new([4, 5]).unwrap()));
    assert!(error.starts_with("embedding: index 5 is out of range for dimension 0 of [5, 3]"), "{error}");
    let padding = embedding.padding_idx(5).unwrap_err().to_string();
    assert_eq!(padding, "Embedding: padding_idx is 5, but it must be an index into the 5 vectors");
    assert_eq!(
        Embedding::from_pretrained(zeros(&[5])).unwrap_err().to_string(),
        "Embedding: the weight is [5], but it must be [num_embeddings, embedding_dim]; reshape it"
    );
    let one_hot = F::one_hot(&Tensor::new([0, 3]).unwrap(), 3).unwrap_err().to_string();
    assert!(one_hot.starts_with("one_hot: index 3 is out of range for dimension 1 of [2, 3]"), "{one_hot}");
    let nothing: Tensor<Int> = Tensor::from_vec(Vec::<i64>::new(), [0, 2]).unwrap();
    assert_eq!(Embedding::new(5, 3).unwrap().forward(&nothing).unwrap().dims(), [0, 2, 3]);
}

#[test]
fn a_padding_vector_begins_as_zeros_and_gets_no_gradient() {
    let embedding = Embedding::new(4, 2).unwrap().padding_idx(-1).unwrap();
    assert_eq!(embedding.weight.select(0, 3).unwrap().to_vec::<f32>().unwrap(), [0.0; 2]);
    embedding.forward(&Tensor::new([3, 1, 3, 1]).unwrap()).unwrap().sum(..).unwrap().backward().unwrap();
    let expected = [0.0, 0.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0];
    assert_eq!(embedding.weight.grad().unwrap().to_vec::<f32>().unwrap(), expected);
}

/// PyTorch's `from_pretrained(v, padding_idx=0)` leaves the vectors as they are.
#[test]
fn the_padding_of_a_pretrained_embedding_keeps_its_vector() {
    let vectors = Tensor::ones([3, 2]).unwrap();
    let embedding = Embedding::from_pretrained(vectors.clone()).unwrap().padding_idx(0).unwrap();
    assert_eq!(vectors.to_vec::<f32>().unwrap(), [1.0; 6]);
    embedding.forward(&Tensor::new([0, 1]).unwrap()).unwrap().sum(..).unwrap().backward().unwrap();
    assert_eq!(embedding.weight.grad().unwrap().to_vec::<f32>().unwrap(), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
}

/// As `nn.EmbeddingBag(3, 2, padding_idx=-1)`.
#[test]
fn the_padding_vector_of_a_new_embedding_bag_is_zeros() {
    let bag = EmbeddingBag::new(3, 2).unwrap().padding_idx(-1).unwrap();
    assert_eq!(bag.to_string(), "EmbeddingBag(3, 2, mode='mean', padding_idx=2)");
    assert_eq!(bag.weight.select(0, 2).unwrap().to_vec::<f32>().unwrap(), [0.0; 2]);
    assert!(bag.weight.select(0, 1).unwrap().to_vec::<f32>().unwrap().iter().all(|&x| x != 0.0));
    let padding = EmbeddingBag::new(3, 2).unwrap().padding_idx(3).unwrap_err().to_string();
    assert_eq!(padding, "EmbeddingBag: padding_idx is 3, but it must be an index into the 3 vectors");
}

#[test]
fn losses_refuse_other_shapes_classes_and_settings_with_the_numbers() {
    let (x, y) = (zeros(&[2, 3]), Tensor::new([0, 3]).unwrap());
    let cross_entropy = CrossEntropyLoss::new().weight(zeros(&[4]));
    let cases = [
        (
            L1Loss::new().forward(&x, &zeros(&[3])),
            "L1Loss: the target is [3], but it must have the input's shape [2, 3]; reshape one of them",
        ),
        (
            cross_entropy.forward(&x, &y),
            "CrossEntropyLoss: the weight is [4], but for the input [2, 3] it must be [3], one for each class",
        ),
        (
            NLLLoss::new().ignore_index(1).forward(&x, &Tensor::new([1]).unwrap()),
            "NLLLoss: the target is [1], but for the input [2, 3] it must be [2], without the class dimension",
        ),
        (
            BCELoss::new().forward(&Tensor::new([0.5, 1.5]).unwrap(), &zeros(&[2])),
            "BCELoss: an element of the input is 1.5, but it must be a probability, 0 to 1; apply sigmoid, or use \
             BCEWithLogitsLoss, which takes scores",
        ),
        (MultiMarginLoss::new().p(3).forward(&x, &y), "MultiMarginLoss: p is 3, but it must be 1 or 2"),
        (
            L1Loss::new().forward(&zeros(&[0]), &zeros(&[0])),
            "L1Loss: the batch is empty; skip empty batches, or use Reduction::Sum",
        ),
        (
            F::pairwise_distance(&x, &x, 0.0, 1e-6),
            "norm: p is 0, but it must be above 0; f64::INFINITY is the largest magnitude",
        ),
    ];
    for (result, expected) in cases {
        assert_eq!(refused(result), expected);
    }
    let smoothing = CrossEntropyLoss::new().label_smoothing(2.0).unwrap_err().to_string();
    assert_eq!(smoothing, "CrossEntropyLoss: label_smoothing is 2, but it must be 0 to 1");
    let out_of_range = refused(CrossEntropyLoss::new().ignore_index(-100).forward(&x, &y));
    assert!(out_of_range.starts_with("CrossEntropyLoss: index 3 is out of range"), "{out_of_range}");
    let probabilities = zeros(&[2, 1, 3]);
    let lengths = CTCLoss::new().forward(&probabilities, &Tensor::new([[1]]).unwrap(), &[3], &[1]);
    assert_eq!(refused(lengths), "CTCLoss: an input length is 3, but it must be at most 2");
}

#[test]
fn attention_refuses_what_does_not_fit() {
    let x = zeros(&[2, 3, 4]);
    let mask = zeros(&[3, 3]);
    let both = AttentionOptions::new().is_causal(true).mask(&mask);
    assert_eq!(
        refused(F::scaled_dot_product_attention(&x, &x, &x, both)),
        "scaled_dot_product_attention: both a mask and is_causal are given; give one of them"
    );
    assert_eq!(
        refused(F::scaled_dot_product_attention(&x, &zeros(&[2, 3, 5]), &x, AttentionOptions::new())),
        "scaled_dot_product_attention: the key is [2, 3, 5], but the query is [2, 3, 4], and both need the \
         same number of features"
    );
    assert_eq!(
        MultiheadAttention::new(6, 4).unwrap_err().to_string(),
        "MultiheadAttention: num_heads is 4, but it must be a divisor of embed_dim, which is 6"
    );
    let attention = MultiheadAttention::new(4, 2).unwrap();
    let wide = zeros(&[2, 3, 5]);
    assert_eq!(
        attention.forward(&wide, &wide, &wide, MultiheadOptions::new()).unwrap_err().to_string(),
        "MultiheadAttention: the query is [2, 3, 5], but it must be [words, batch, 4] with one batch size; transpose or \
         reshape it"
    );
}

#[test]
fn channels_are_dropped_as_a_whole_and_nothing_in_evaluation() {
    let layer = Dropout2d::new_with(0.5, Generator::new(3));
    let y: Vec<f32> = layer.forward(&Tensor::ones([8, 16, 3, 3]).unwrap()).unwrap().to_vec().unwrap();
    let dropped = y.chunks(9).filter(|channel| channel.iter().all(|&value| value == 0.0)).count();
    let kept = y.chunks(9).filter(|channel| channel.iter().all(|&value| value == 2.0)).count();
    assert_eq!(dropped + kept, 128);
    assert!((40..88).contains(&dropped), "{dropped} of 128");
    layer.eval();
    let one = Tensor::ones([16, 3, 3]).unwrap();
    assert_eq!(layer.forward(&one).unwrap().to_vec::<f32>().unwrap(), [1.0; 144]);
}

#[test]
fn alpha_dropout_keeps_mean_and_variance() {
    let x = Tensor::randn_with(50_000, &Generator::new(1)).unwrap();
    let y = AlphaDropout::new_with(0.3, Generator::new(2)).forward(&x).unwrap();
    let (mean, variance): (f32, f32) = (y.mean(..).unwrap().item().unwrap(), y.var(..).unwrap().item().unwrap());
    assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
}

#[test]
fn names_in_a_module_dict_are_one_step_of_a_path() {
    let error = ModuleDict::new().insert("a.b", ReLU).err().unwrap().to_string();
    assert_eq!(error, "ModuleDict: a name is `a.b`, but it must be one or more characters without dots");
    let dict = ModuleDict::new().insert("a", ReLU).unwrap().insert("a", Tanh).unwrap();
    assert_eq!((dict.len(), dict.get("a").unwrap().title()), (1, "Tanh".to_owned()));
}

#[test]
fn a_module_that_has_a_loss_saves_its_weights() {
    #[derive(Module)]
    struct Trained {
        head: Linear,
        loss: CrossEntropyLoss,
    }
    let head = Linear::new(2, 3).unwrap();
    let model = Trained { head, loss: CrossEntropyLoss::new().weight(Tensor::ones(3).unwrap()) };
    assert_eq!(model.state_dict().names().collect::<Vec<_>>(), ["head.weight", "head.bias", "loss.weight"]);
    assert_eq!(model.parameters().len(), 2);
}

#[test]
fn layers_run_in_half_precision_and_under_autocast() {
    let layers: Vec<Box<dyn Layer>> = vec![
        Box::new(GELU::new()),
        Box::new(Mish),
        Box::new(SELU),
        Box::new(Softplus::new()),
        Box::new(RMSNorm::new(4).unwrap()),
        Box::new(GroupNorm::new(2, 6).unwrap()),
        Box::new(InstanceNorm1d::new(6).affine().unwrap()),
        Box::new(TransformerEncoderLayer::new(4, 2, 8).unwrap().dropout(0.0)),
        Box::new(Conv1d::new(6, 3, 2).unwrap()),
    ];
    let x = Tensor::randn_with([3, 6, 4], &Generator::new(7)).unwrap();
    for mut layer in layers {
        let title = layer.title();
        let exact: Vec<f64> = layer.forward(&x).unwrap().to_vec().unwrap();
        let automatic: Vec<f64> = autocast(Half::BF16, || layer.forward(&x)).unwrap().to_vec().unwrap();
        layer.to_dtype_(DType::BF16).unwrap();
        let half = layer.forward(&x.to_dtype(DType::BF16).unwrap()).unwrap();
        assert_eq!(half.dtype(), DType::BF16, "{title}");
        for rounded in [automatic, half.to_vec().unwrap()] {
            assert_eq!(rounded.len(), exact.len(), "{title}");
            let far = pytorch::largest(rounded.iter().zip(&exact).map(|(a, b)| (a - b).abs()));
            assert!(far < 0.1, "{title}: {far}");
        }
    }
}

#[test]
fn rearranged_tensors_never_share_the_elements_of_their_inputs() {
    let x = || Tensor::ones([1, 4, 2, 2]).unwrap();
    let same = |mode| move |x: &Tensor| F::interpolate(x, F::Scale::Size(&[2, 2]), F::InterpolateOptions::mode(mode));
    type Rearrange = Box<dyn Fn(&Tensor) -> tensor::Result<Tensor>>;
    let calls: [(&str, Rearrange); 8] = [
        ("pixel_shuffle", Box::new(|x| F::pixel_shuffle(x, 1))),
        ("pixel_unshuffle", Box::new(|x| F::pixel_unshuffle(x, 1))),
        ("channel_shuffle", Box::new(|x| F::channel_shuffle(x, 1))),
        ("nearest", Box::new(same(F::InterpolationMode::Nearest))),
        ("bilinear", Box::new(same(F::InterpolationMode::Bilinear))),
        ("repeat_interleave", Box::new(|x| x.repeat_interleave(1, 0))),
        ("diff", Box::new(|x| x.diff(0, 1))),
        ("masked_scatter", Box::new(|x| x.masked_scatter(&x.eq_scalar(0.0)?, &Tensor::zeros([0])?))),
    ];
    for (name, call) in calls {
        let x = x();
        let y = call(&x).unwrap();
        no_grad(|| y.fill_(7.0)).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 16], "{name}");
    }
    let repeated = x().repeat_interleave(3, 0).unwrap();
    no_grad(|| repeated.fill_(7.0)).unwrap();
}
