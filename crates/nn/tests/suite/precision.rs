//! Every parameter and buffer has its own precision: models that change it, models that mix several, optimizers of
//! parameters in half precision, and files of any mixture.

use std::collections::HashMap;
use std::fs;

use half::{bf16, f16};
use pagelock_nn::optim::{Adam, Optimizer, Sgd};
use pagelock_nn::{
    BatchNorm1d, BatchNorm2d, Buffer, Conv2d, Counter, Error, Forward, Linear, Module, NLLLoss, Parameter, ReLU,
    Sequential, StateDict, functional as F, load_safetensors, save_safetensors,
};
use pagelock_tensor::{self as tensor, Bool, DType, Generator, Half, Int, Reduction, Tensor, autocast, no_grad};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];
const HALVES: [DType; 2] = [DType::F16, DType::BF16];

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_vec().unwrap()
}

/// A model with buffers of all kinds, and with one parameter in two fields.
#[derive(Module)]
struct Table {
    weight: Parameter,
    same: Parameter,
    mean: Buffer,
    indices: Buffer<Int>,
    bytes: Buffer<Int>,
    mask: Buffer<Bool>,
    seen: Counter,
}

fn table(scale: f64) -> Table {
    let weight = Parameter::new((Tensor::new([[0.1, 0.2], [0.3, 0.4]]).unwrap() * scale).unwrap());
    let number = scale as u8;
    Table {
        same: weight.clone(),
        weight,
        mean: Buffer::new(Tensor::full(3, scale).unwrap()),
        indices: Buffer::new(Tensor::new([(1_i64 << 40) + 1, -2, number.into()]).unwrap()),
        bytes: Buffer::new(Tensor::from_slice(&[255_u8, 0, number], 3).unwrap()),
        mask: Buffer::new(Tensor::new([true, scale > 1.5]).unwrap()),
        seen: Counter::new().unwrap(),
    }
}

/// Element types by name, in order.
fn dtypes(dict: &StateDict) -> Vec<(&str, DType)> {
    dict.iter().map(|(name, tensor)| (name, tensor.dtype())).collect()
}

#[test]
fn buffers_of_all_kinds_are_in_the_state_dict() {
    let (from, to) = (table(1.0), table(2.0));
    from.seen.increment().unwrap();
    let dict = from.state_dict();
    let expected = [
        ("weight", DType::F32),
        ("same", DType::F32),
        ("mean", DType::F32),
        ("indices", DType::I64),
        ("bytes", DType::U8),
        ("mask", DType::Bool),
        ("seen", DType::I64),
    ];
    assert_eq!(dtypes(&dict), expected);
    let buffers: Vec<String> = from.named_buffers().into_iter().map(|(name, _)| name).collect();
    assert_eq!(buffers, ["mean", "indices", "bytes", "mask", "seen"]);
    assert!(dict.get("mask").is_none() && dict.get_int("mask").is_none() && dict.get_bool("mask").is_some());

    to.load_state_dict(&dict).unwrap();

    assert_eq!(values(&to.weight), values(&from.weight));
    assert_eq!(to.indices.to_vec::<i64>().unwrap(), [(1 << 40) + 1, -2, 1]);
    assert_eq!(to.bytes.to_vec::<u8>().unwrap(), [255, 0, 1]);
    assert_eq!(to.mask.to_vec::<bool>().unwrap(), [true, false]);
    assert_eq!(to.seen.item::<i64>().unwrap(), 1);
}

#[test]
fn buffers_of_all_kinds_survive_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let (from, to) = (table(1.0).bfloat16().unwrap(), table(2.0));
    save_safetensors(&from.state_dict(), &path).unwrap();
    let read = load_safetensors(&path).unwrap();
    let mut expected = dtypes(&read);
    let saved = from.state_dict();
    let mut written = dtypes(&saved);
    expected.sort_unstable_by_key(|(name, _)| *name);
    written.sort_unstable_by_key(|(name, _)| *name);
    assert_eq!(written, expected);

    to.load_state_dict(&read).unwrap();

    assert_eq!((to.weight.dtype(), values(&to.weight)), (DType::F32, values(&from.weight)));
    assert_eq!(to.indices.to_vec::<i64>().unwrap(), [(1 << 40) + 1, -2, 1]);
    assert_eq!((to.bytes.dtype(), to.bytes.to_vec::<u8>().unwrap()), (DType::U8, vec![255, 0, 1]));
    assert_eq!(to.mask.to_vec::<bool>().unwrap(), [true, false]);
}

/// A tensor of two numbers in each element type that both files and tensors support.
fn mixture() -> Vec<(&'static str, Dtype, Vec<u8>)> {
    vec![
        ("bf16", Dtype::BF16, [bf16::ONE, bf16::from_f32(-2.5)].iter().flat_map(|x| x.to_le_bytes()).collect()),
        ("bool", Dtype::BOOL, vec![1, 0]),
        ("f16", Dtype::F16, [f16::ONE, f16::from_f32(-2.5)].iter().flat_map(|x| x.to_le_bytes()).collect()),
        ("f32", Dtype::F32, [1.0_f32, 0.1].iter().flat_map(|x| x.to_le_bytes()).collect()),
        ("f64", Dtype::F64, [1.0_f64, 0.1].iter().flat_map(|x| x.to_le_bytes()).collect()),
        ("i32", Dtype::I32, [1_i32, i32::MIN].iter().flat_map(|x| x.to_le_bytes()).collect()),
        ("i64", Dtype::I64, [1_i64, i64::MAX].iter().flat_map(|x| x.to_le_bytes()).collect()),
        ("u8", Dtype::U8, vec![1, 255]),
    ]
}

#[test]
fn a_file_of_any_mixture_is_read_exactly_and_written_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (theirs, ours) = (folder.path().join("theirs"), folder.path().join("ours"));
    let mixture = mixture();
    let view = |dtype, bytes| TensorView::new(dtype, vec![2], bytes).unwrap();
    let views: HashMap<_, _> = mixture.iter().map(|(name, dtype, bytes)| (*name, view(*dtype, bytes))).collect();
    fs::write(&theirs, safetensors::serialize(views, None).unwrap()).unwrap();

    let dict = load_safetensors(&theirs).unwrap();
    save_safetensors(&dict, &ours).unwrap();

    assert_eq!(values(&dict.get("bf16").unwrap()), [1.0, -2.5]);
    assert_eq!(dict.get_bool("bool").unwrap().to_vec::<bool>().unwrap(), [true, false]);
    assert_eq!(values(&dict.get("f16").unwrap()), [1.0, -2.5]);
    assert_eq!(dict.get("f32").unwrap().to_vec::<f32>().unwrap(), [1.0, 0.1]);
    assert_eq!(values(&dict.get("f64").unwrap()), [1.0, 0.1]);
    assert_eq!(dict.get_int("i32").unwrap().to_vec::<i32>().unwrap(), [1, i32::MIN]);
    assert_eq!(dict.get_int("i64").unwrap().to_vec::<i64>().unwrap(), [1, i64::MAX]);
    assert_eq!(dict.get_int("u8").unwrap().to_vec::<u8>().unwrap(), [1, 255]);
    let written = fs::read(&ours).unwrap();
    let written = SafeTensors::deserialize(&written).unwrap();
    for (name, dtype, bytes) in &mixture {
        let found = written.tensor(name).unwrap();
        assert_eq!((found.dtype(), found.data()), (*dtype, &bytes[..]), "{name}");
    }
    assert_eq!(written.len(), mixture.len());
}

#[test]
fn a_state_dict_of_another_kind_is_refused_with_both_types_and_nothing_is_loaded() {
    let model = table(1.0);
    let mut dict = table(2.0).state_dict();
    dict.insert("indices", Tensor::new([1.0, 2.0, 3.0]).unwrap());
    dict.insert("mask", Tensor::new([0, 1]).unwrap());
    dict.insert("mean", Tensor::full(3, 7).unwrap());
    dict.remove("bytes").unwrap();

    let error = model.load_state_dict(&dict).unwrap_err();

    assert_eq!(
        error.to_string(),
        "the state dict does not fit the model, and nothing was loaded: it lacks `bytes`; `mean` is int64, and float32 in \
         the model; `indices` is float32, and int64 in the model; `mask` is int64, and bool in the model"
    );
    let Error::StateDict(misfit) = error else { panic!("{error:?}") };
    assert_eq!(misfit.mistyped.len(), 3);
    assert_eq!(values(&model.weight), values(&table(1.0).weight));
}

#[test]
fn a_model_keeps_its_precision_whatever_a_file_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    for of_file in FLOATS {
        for of_model in FLOATS {
            let from = table(1.0).to_dtype(of_file).unwrap();
            let to = table(2.0).to_dtype(of_model).unwrap();
            save_safetensors(&from.state_dict(), &path).unwrap();
            to.load_state_dict(&load_safetensors(&path).unwrap()).unwrap();
            assert_eq!((to.weight.dtype(), to.mean.dtype()), (of_model, of_model));
            let converted = from.weight.detach().to_dtype(of_model).unwrap();
            assert_eq!(values(&to.weight), values(&converted), "from {of_file} to {of_model}");
        }
    }
}

#[test]
fn a_state_dict_can_be_converted_for_a_file() {
    let model = table(1.0);
    let dict = model.state_dict().to_dtype(DType::BF16).unwrap();
    let types: Vec<DType> = dict.iter().map(|(_, tensor)| tensor.dtype()).collect();
    let half = DType::BF16;
    assert_eq!(types, [half, half, half, DType::I64, DType::U8, DType::Bool, DType::I64]);
    assert_eq!(model.weight.dtype(), DType::F32);
    assert!(model.state_dict().to_dtype(DType::I64).is_err());
}

#[test]
fn a_model_changes_precision_and_keeps_counts_masks_and_what_is_shared() {
    let model = table(1.0);
    model.seen.increment().unwrap();
    let model = model.half().unwrap();
    assert_eq!([model.weight.dtype(), model.same.dtype(), model.mean.dtype()], [DType::F16; 3]);
    assert!(model.weight.is_same(&model.same) && model.weight.requires_grad() && model.weight.is_leaf());
    assert_eq!(values(&model.weight)[0], f16::from_f32(0.1).to_f64());
    assert_eq!([model.indices.dtype(), model.bytes.dtype(), model.seen.dtype()], [DType::I64, DType::U8, DType::I64]);
    assert_eq!(model.indices.to_vec::<i64>().unwrap(), [(1 << 40) + 1, -2, 1]);
    assert_eq!((model.mask.dtype(), model.seen.item::<i64>().unwrap()), (DType::Bool, 1));
    for (model, dtype) in [
        (table(1.0).bfloat16().unwrap(), DType::BF16),
        (table(1.0).double().unwrap(), DType::F64),
        (table(1.0).double().unwrap().float().unwrap(), DType::F32),
    ] {
        assert_eq!([model.weight.dtype(), model.mean.dtype(), model.seen.dtype()], [dtype, dtype, DType::I64]);
    }
}

#[test]
fn a_precision_of_another_kind_is_refused_and_changes_nothing() {
    let mut model = table(1.0);
    let weight = model.weight.clone();
    let error = model.to_dtype_(DType::I64).unwrap_err();
    assert!(matches!(error, Error::Tensor(tensor::Error::WrongKind { dtype: DType::I64, .. })), "{error}");
    assert!(model.weight.is_same(&weight) && model.mean.dtype() == DType::F32);
    assert!(ReLU.to_dtype(DType::Bool).is_err(), "also of a model without floats");
}

#[test]
fn a_model_that_has_the_precision_stays_the_same() {
    let layer = Linear::new(3, 2).unwrap();
    let weight = layer.weight.clone();
    assert!(layer.float().unwrap().weight.is_same(&weight));
}

/// Points on either side of a line, and the side of each.
fn points(dtype: DType) -> (Tensor, Tensor<Int>) {
    let points = Tensor::randn_with([64, 2], &Generator::new(7)).unwrap();
    let coordinates: Vec<f32> = points.to_vec().unwrap();
    let sides: Vec<i64> = coordinates.chunks(2).map(|p| i64::from(p[0] + 2.0 * p[1] > 0.0)).collect();
    (points.to_dtype(dtype).unwrap(), Tensor::from_vec(sides, 64).unwrap())
}

fn classifier() -> Sequential {
    let generator = Generator::new(3);
    let linear = |from, to| Linear::new_with(from, to, &generator).unwrap();
    Sequential::new((linear(2, 8), BatchNorm1d::new(8).unwrap(), ReLU, linear(8, 2)))
}

/// The losses of 60 steps of a model that is converted to `dtype` after its optimizer was made.
fn losses(dtype: DType, opt: fn(Vec<Parameter>) -> Box<dyn Optimizer>) -> Vec<f64> {
    let (model, (points, sides)) = (classifier(), points(dtype));
    let mut opt = opt(model.parameters());
    let model = model.to_dtype(dtype).unwrap();
    let losses = (0..60).map(|_| {
        let loss = F::cross_entropy(&model.forward(&points).unwrap(), &sides).unwrap();
        loss.backward().unwrap();
        assert!(model.parameters().iter().all(|parameter| parameter.grad().unwrap().dtype() == dtype));
        opt.step().unwrap();
        opt.zero_grad();
        loss.item().unwrap()
    });
    let losses = losses.collect();
    assert!(model.parameters().iter().all(|parameter| parameter.dtype() == dtype));
    assert_eq!(model.state_dict().get_int("1.num_batches_tracked").unwrap().item::<i64>().unwrap(), 60);
    losses
}

#[test]
fn a_model_of_half_precision_trains_as_well_as_one_of_f32() {
    for opt in [
        (|parameters| Box::new(Sgd::new(parameters, 0.2).momentum(0.9)) as _) as fn(Vec<Parameter>) -> _,
        |parameters| Box::new(Adam::new(parameters, 0.05)) as _,
    ] {
        let whole = losses(DType::F32, opt);
        assert!(whole[0] > 0.5 && whole[59] < 0.1, "{whole:?}");
        for dtype in HALVES {
            let half = losses(dtype, opt);
            assert!((half[59] - whole[59]).abs() < 0.03, "{dtype}: {} and {}", half[59], whole[59]);
        }
    }
}

#[test]
fn steps_smaller_than_the_precision_add_up() {
    let weight = Parameter::new(Tensor::of(DType::BF16).ones(1).unwrap());
    let mut opt = Sgd::new([weight.clone()], 1e-3);
    for _ in 0..100 {
        weight.set_grad(Some(Tensor::of(DType::BF16).ones(1).unwrap())).unwrap();
        opt.step().unwrap();
    }
    assert_eq!(values(&weight), [bf16::from_f32(0.9).to_f64()]);
}

#[test]
fn what_is_loaded_between_steps_is_trained_on() {
    for dtype in HALVES {
        let model = Linear::new(2, 1).unwrap().without_bias().to_dtype(dtype).unwrap();
        let mut opt = Sgd::new(model.parameters(), 0.25);
        let mut step = || {
            model.weight.set_grad(Some(Tensor::of(dtype).new([[1.0, 0.0]]).unwrap())).unwrap();
            opt.step().unwrap();
        };
        step();
        let mut dict = StateDict::new();
        dict.insert("weight", Tensor::new([[3.0, -5.0]]).unwrap());
        model.load_state_dict(&dict).unwrap();
        step();
        assert_eq!(values(&model.weight), [2.75, -5.0]);
    }
}

/// The weights after six steps with fixed gradients. If `to` is given, the model changes to it before the third step.
fn after_a_change(opt: fn(Vec<Parameter>) -> Box<dyn Optimizer>, to: Option<DType>) -> Tensor {
    let mut model = (Parameter::new(Tensor::new([0.1, -0.7, 0.33]).unwrap()),);
    let mut opt = opt(model.parameters());
    for step in 0..6 {
        if step == 2 {
            to.into_iter().for_each(|dtype| model.to_dtype_(dtype).unwrap());
        }
        let grad = Tensor::new([0.5, -0.25, f64::from(step) / 8.0]).unwrap();
        model.0.set_grad(Some(grad.to_dtype(model.0.dtype()).unwrap())).unwrap();
        opt.step().unwrap();
    }
    model.0.detach()
}

#[test]
fn optimizers_follow_a_change_of_precision_with_all_bits_that_they_had() {
    for opt in [
        (|parameters| Box::new(Sgd::new(parameters, 0.01).momentum(0.9)) as _) as fn(Vec<Parameter>) -> _,
        |parameters| Box::new(Adam::new(parameters, 0.01)) as _,
    ] {
        let stayed = after_a_change(opt, None);
        for dtype in HALVES {
            let changed = after_a_change(opt, Some(dtype));
            assert_eq!(changed.dtype(), dtype);
            assert_eq!(values(&changed), values(&stayed.to_dtype(dtype).unwrap()), "{dtype}");
        }
        let wide = after_a_change(opt, Some(DType::F64));
        assert_eq!(wide.dtype(), DType::F64);
        for (wide, stayed) in values(&wide).into_iter().zip(values(&stayed)) {
            assert!((wide - stayed).abs() < 1e-6, "{wide} and {stayed}");
        }
    }
}

#[derive(Module)]
struct Mixed {
    body: Linear,
    head: Linear,
    scale: Parameter,
}

fn mixed() -> Mixed {
    let generator = Generator::new(5);
    let linear = |from, to| Linear::new_with(from, to, &generator).unwrap();
    Mixed {
        body: linear(2, 8).bfloat16().unwrap(),
        head: linear(8, 2),
        scale: Parameter::new(Tensor::of(DType::F64).ones(2).unwrap()),
    }
}

#[test]
fn parts_of_a_model_may_have_different_precision_and_one_optimizer() {
    let (model, (points, sides)) = (mixed(), points(DType::F32));
    let mut opt = Adam::new(model.parameters(), 0.05);
    let mut losses = Vec::new();
    for _ in 0..60 {
        let hidden = model.body.forward(&points.to_dtype(DType::BF16).unwrap()).unwrap().relu().unwrap();
        let scores = model.head.forward(&hidden.to_dtype(DType::F32).unwrap()).unwrap();
        let loss = F::cross_entropy(&(&scores * &model.scale).unwrap(), &sides).unwrap();
        loss.backward().unwrap();
        assert!(model.parameters().iter().all(|p| p.grad().unwrap().dtype() == p.dtype()));
        opt.step().unwrap();
        opt.zero_grad();
        losses.push(loss.item::<f64>().unwrap());
    }
    assert!(losses[59] < losses[0] / 4.0, "{losses:?}");
    let types: Vec<DType> = model.parameters().iter().map(|parameter| parameter.dtype()).collect();
    assert_eq!(types, [DType::BF16, DType::BF16, DType::F32, DType::F32, DType::F64]);
}

#[test]
fn layers_name_both_precisions_where_parts_meet_without_a_conversion() {
    let model = mixed();
    let x = Tensor::ones([1, 2]).unwrap();
    let error = model.body.forward(&x).err().unwrap();
    assert!(matches!(error, tensor::Error::MixedTypes { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("float32") && said.contains("bfloat16") && said.contains("to_dtype"), "{said}");
}

#[test]
fn gradients_of_several_precisions_are_scaled_together() {
    let model = mixed();
    for (parameter, grad) in model.parameters().iter().zip([8.0, 4.0, 2.0, 1.0, f64::INFINITY]) {
        parameter.set_grad(Some(parameter.full_like(grad).unwrap())).unwrap();
    }
    let mut opt = Sgd::new(model.parameters(), 0.1);
    assert!(!opt.scale_gradients(0.5).unwrap());
    model.scale.set_grad(Some(model.scale.full_like(6.0).unwrap())).unwrap();
    assert!(opt.scale_gradients(0.5).unwrap());
    let grads = model.parameters().into_iter().map(|parameter| values(&parameter.grad().unwrap())[0]);
    assert_eq!(grads.collect::<Vec<_>>(), [2.0, 1.0, 0.5, 0.25, 3.0]);
}

#[test]
fn under_autocast_activations_are_half_and_parameters_statistics_and_gradients_are_not() {
    for (half, dtype) in [(Half::BF16, DType::BF16), (Half::F16, DType::F16)] {
        let (conv, norm) = (Conv2d::new(3, 4, 3).unwrap(), BatchNorm2d::new(4).unwrap());
        let head = Linear::new(4 * 6 * 6, 5).unwrap();
        let x = Tensor::randn_with([2, 3, 8, 8], &Generator::new(1)).unwrap();
        let (types, loss) = autocast(half, || -> tensor::Result<_> {
            let features = conv.forward(&x)?;
            let normalized = norm.forward_relu(&features)?;
            let scores = head.forward(&normalized.flatten(1, -1)?)?;
            let types = [features.dtype(), normalized.dtype(), scores.dtype()];
            Ok((types, F::cross_entropy(&scores, &Tensor::new([1, 4])?)?))
        })
        .unwrap();
        assert_eq!((types, loss.dtype()), ([dtype; 3], DType::F32));
        loss.backward().unwrap();
        let model = (conv, norm, head);
        assert!(model.parameters().iter().all(|p| [p.dtype(), p.grad().unwrap().dtype()] == [DType::F32; 2]));
        assert_eq!(model.1.running_mean.as_ref().unwrap().dtype(), DType::F32);
        assert!(values(model.1.running_mean.as_ref().unwrap()).iter().any(|mean| *mean != 0.0));
        assert_eq!(model.1.num_batches_tracked.as_ref().unwrap().item::<i64>().unwrap(), 1);
    }
}

#[test]
fn initial_weights_of_half_precision_are_those_of_f32_rounded() {
    let drawn = |dtype| {
        let weight = Tensor::of(dtype).zeros([5, 7]).unwrap();
        pagelock_nn::init::default_(&weight, None, &Generator::new(9)).unwrap();
        weight
    };
    for dtype in HALVES {
        assert_eq!(values(&drawn(dtype)), values(&drawn(DType::F32).to_dtype(dtype).unwrap()));
    }
}

#[test]
fn infinite_weights_of_half_precision_stay_infinite_until_others_are_loaded() {
    for dtype in [DType::F16, DType::BF16] {
        let w = Parameter::new(
            Tensor::new([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0]).unwrap().to_dtype(dtype).unwrap(),
        );
        let mut opt = Sgd::new([w.clone()], 0.5);
        let ones = Tensor::ones([4]).unwrap().to_dtype(dtype).unwrap();
        let mut step = || {
            opt.zero_grad();
            (&w * &ones).unwrap().sum(..).unwrap().backward().unwrap();
            opt.step().unwrap();
            w.detach().to_vec::<f32>().unwrap()
        };
        for n_steps in 1..4 {
            let [up, down, nan, last] = step()[..] else { unreachable!() };
            assert_eq!((up, down, last), (f32::INFINITY, f32::NEG_INFINITY, 1.0 - 0.5 * n_steps as f32), "{dtype}");
            assert!(nan.is_nan());
        }
        no_grad(|| w.copy_(&ones)).unwrap();
        assert_eq!(step(), [0.5; 4], "{dtype}: what is loaded takes the place of what was infinite");
    }
}

#[test]
fn losses_under_autocast_are_computed_in_f32() {
    let (x, y) = (Tensor::full([2, 3], 0.25).unwrap(), Tensor::ones([2, 3]).unwrap());
    let (classes, labels) = (Tensor::new([1, 2]).unwrap(), Tensor::new([[1, -1, -1], [2, 0, -1]]).unwrap());
    for (half, dtype) in [(Half::F16, DType::F16), (Half::BF16, DType::BF16)] {
        let [x, y] = [&x, &y].map(|x| x.to_dtype(dtype).unwrap());
        let losses = autocast(half, || -> tensor::Result<_> {
            let rows = &x.sum(1)?.to_dtype(dtype)?;
            Ok([
                ("l1_loss", F::l1_loss(&x, &y)?),
                ("mse_loss", x.mse_loss(&y, Reduction::Mean)?),
                ("smooth_l1_loss", F::smooth_l1_loss(&x, &y)?),
                ("huber_loss", F::huber_loss(&x, &y)?),
                ("binary_cross_entropy", F::binary_cross_entropy(&x, &y)?),
                ("binary_cross_entropy_with_logits", F::binary_cross_entropy_with_logits(&x, &y)?),
                ("kl_div", F::kl_div(&x, &y)?),
                ("poisson_nll_loss", F::poisson_nll_loss(&x, &y)?),
                ("gaussian_nll_loss", F::gaussian_nll_loss(&x, &y, &y)?),
                ("soft_margin_loss", F::soft_margin_loss(&x, &y)?),
                ("margin_ranking_loss", F::margin_ranking_loss(&x, &y, &y)?),
                ("hinge_embedding_loss", F::hinge_embedding_loss(&x, &y)?),
                ("cosine_embedding_loss", F::cosine_embedding_loss(&x, &y, &rows.ones_like()?)?),
                ("triplet_margin_loss", F::triplet_margin_loss(&x, &y, &x)?),
                ("multi_margin_loss", F::multi_margin_loss(&x, &classes)?),
                ("multilabel_margin_loss", F::multilabel_margin_loss(&x, &labels)?),
                ("multilabel_soft_margin_loss", F::multilabel_soft_margin_loss(&x, &y)?),
                ("nll_loss with ignore_index", NLLLoss::new().ignore_index(0).forward(&x, &classes)?),
                ("cross_entropy", x.cross_entropy(&classes, Reduction::Mean)?),
            ])
        })
        .unwrap();
        for (name, loss) in losses {
            assert_eq!(loss.dtype(), DType::F32, "{name} of {half:?}");
        }
    }
}
