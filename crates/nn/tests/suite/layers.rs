//! Layers, functionals and losses against PyTorch: outputs, gradients, second gradients, names of state dicts,
//! printed forms.
//!
//! `../golden/layers.py` computed the expected values; each of its cases is a line here.

use std::sync::{Mutex, PoisonError};

use crate::attention::attention;
use crate::pytorch;
use pagelock_nn::functional as F;
use pagelock_nn::*;
use pagelock_tensor::autograd::{self, Backward};
use pagelock_tensor::{DType, Device, Generator, Int, Reduction, Result, Tensor};

/// The inputs of a case.
pub(crate) enum Input {
    Float(Tensor),
    Int(Tensor<Int>),
}

pub(crate) struct Inputs(pub(crate) Vec<Input>);

impl Inputs {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn float(&self, position: usize) -> &Tensor {
        match &self.0[position] {
            Input::Float(tensor) => tensor,
            Input::Int(_) => panic!("input {position} has integers"),
        }
    }

    pub(crate) fn int(&self, position: usize) -> &Tensor<Int> {
        match &self.0[position] {
            Input::Int(tensor) => tensor,
            Input::Float(_) => panic!("input {position} has floats"),
        }
    }

    /// Reads the inputs from the golden file.
    fn read(golden: &StateDict, dtype: DType, device: &Device) -> Self {
        let all = (0..).map_while(|position| golden.get_any(&format!("input.{position}")));
        Self(
            all.map(|tensor| match tensor.float() {
                Ok(floats) => Input::Float(floats.to_dtype(dtype).unwrap().to(device).unwrap().set_requires_grad(true)),
                Err(_) => Input::Int(tensor.int().unwrap().to(device).unwrap()),
            })
            .collect(),
        )
    }
}

/// A module, and how it is called.
pub(crate) trait Case {
    fn module(&mut self) -> &mut dyn Module;
    fn run(&self, inputs: &Inputs) -> Result<Tensor>;
}

struct Called<M, R>(M, R);

impl<M: Module, R: Fn(&M, &Inputs) -> Result<Tensor>> Case for Called<M, R> {
    fn module(&mut self) -> &mut dyn Module {
        &mut self.0
    }

    fn run(&self, inputs: &Inputs) -> Result<Tensor> {
        (self.1)(&self.0, inputs)
    }
}

pub(crate) type Cases = Vec<(&'static str, Box<dyn Case>)>;

/// Makes a name live as long as the program. Keeping it in a static tells leak sanitizers that it is still reachable.
pub(crate) fn kept(name: String) -> &'static str {
    static NAMES: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    let name: &'static str = name.leak();
    NAMES.lock().unwrap_or_else(PoisonError::into_inner).push(name);
    name
}

pub(crate) fn called<M: Module + 'static>(
    module: M,
    run: impl Fn(&M, &Inputs) -> Result<Tensor> + 'static,
) -> Box<dyn Case> {
    Box::new(Called(module, run))
}

pub(crate) fn layer(layer: impl Layer + 'static) -> Box<dyn Case> {
    called(layer, |layer, x| layer.forward(x.float(0)))
}

pub(crate) fn function(run: impl Fn(&Inputs) -> Result<Tensor> + 'static) -> Box<dyn Case> {
    called(None::<Linear>, move |_, x| run(x))
}

/// `two!(Loss)`: a loss of two tensors.
macro_rules! two {
    ($loss:expr) => {
        called($loss, |loss, x| loss.forward(x.float(0), x.float(1)))
    };
}

macro_rules! three {
    ($loss:expr) => {
        called($loss, |loss, x| loss.forward(x.float(0), x.float(1), x.float(2)))
    };
}

/// `classes!(Loss)`: a loss of a tensor and classes.
macro_rules! classes {
    ($loss:expr) => {
        called($loss, |loss, x| loss.forward(x.float(0), x.int(1)))
    };
}

fn activations() -> Result<Cases> {
    Ok(vec![
        ("gelu", layer(GELU::new())),
        ("gelu tanh", layer(GELU::new().approximate(F::Approximate::Tanh))),
        ("silu", layer(SiLU)),
        ("leaky_relu", layer(LeakyReLU::new())),
        ("leaky_relu slope", layer(LeakyReLU::new().negative_slope(0.25))),
        ("elu", layer(ELU::new())),
        ("elu alpha", layer(ELU::new().alpha(0.5))),
        ("celu", layer(CELU::new())),
        ("celu alpha", layer(CELU::new().alpha(2.0))),
        ("selu", layer(SELU)),
        ("softplus", layer(Softplus::new())),
        ("softplus beta", layer(Softplus::new().beta(3.0).threshold(6.0))),
        ("hardtanh", layer(Hardtanh::new())),
        ("hardtanh bounds", layer(Hardtanh::new().min_val(-2.0).max_val(0.5))),
        ("relu6", layer(ReLU6)),
        ("hardsigmoid", layer(Hardsigmoid)),
        ("hardswish", layer(Hardswish)),
        ("logsigmoid", layer(LogSigmoid)),
        ("softsign", layer(Softsign)),
        ("mish", layer(Mish)),
        ("tanhshrink", layer(Tanhshrink)),
        ("softshrink", layer(Softshrink::new())),
        ("softshrink lambda", layer(Softshrink::new().lambda(1.25))),
        ("hardshrink", layer(Hardshrink::new())),
        ("hardshrink lambda", layer(Hardshrink::new().lambda(1.25))),
        ("threshold", layer(Threshold::new(0.5, 20.0))),
        ("identity", layer(Identity)),
        ("elu apart from kinks", layer(ELU::new())),
        ("celu apart from kinks", layer(CELU::new())),
        ("selu apart from kinks", layer(SELU)),
        ("softplus apart from kinks", layer(Softplus::new())),
        ("activations far out", function(far_out)),
        ("glu", layer(GLU::new())),
        ("glu dim", layer(GLU::new().dim(0))),
        ("softmax", layer(Softmax::new(1))),
        ("log_softmax", layer(LogSoftmax::new(0))),
        ("softmin", layer(Softmin::new(1))),
        ("prelu", layer(PReLU::new(1)?)),
        ("prelu channels", layer(PReLU::new(3)?)),
    ])
}

fn far_out(x: &Inputs) -> Result<Tensor> {
    let x = x.float(0);
    let gelu = F::gelu(x, F::Approximate::None)?;
    let all =
        [F::silu(x)?, F::elu(x, 1.0)?, F::softplus(x, 1.0, 20.0)?, F::logsigmoid(x)?, F::mish(x)?, F::selu(x)?, gelu];
    Tensor::stack(&all.each_ref(), 0)
}

fn embeddings_and_norms() -> Result<Cases> {
    let index = |layer: Embedding| called(layer, |layer, x| layer.forward(x.int(0)));
    let mut cases: Cases = vec![
        ("embedding", index(Embedding::new(7, 3)?)),
        ("embedding padding", index(Embedding::new(7, 3)?.padding_idx(2)?)),
        ("unflatten", layer(Unflatten::new(1, [2, 5])?)),
        ("one_hot", function(|x| F::one_hot(x.int(0), 4)?.to_float_of(DType::F64))),
        ("group_norm", layer(GroupNorm::new(3, 6)?)),
        ("group_norm plain", layer(GroupNorm::new(2, 4)?.eps(1e-3).without_affine())),
        ("instance_norm 1d", layer(InstanceNorm1d::new(3))),
        ("instance_norm 2d", layer(InstanceNorm2d::new(3).affine()?)),
        ("instance_norm 3d", layer(InstanceNorm3d::new(2).eps(1e-3))),
        ("instance_norm unbatched", layer(InstanceNorm1d::new(3).affine()?)),
        ("instance_norm tracked", layer(InstanceNorm1d::new(3).affine()?.track_running_stats()?)),
        ("instance_norm evaluated", layer(evaluated(InstanceNorm1d::new(3).affine()?.track_running_stats()?))),
        ("rms_norm", layer(RMSNorm::new(5)?)),
        ("rms_norm two", layer(RMSNorm::new([3, 4])?.eps(1e-3).without_affine())),
        ("batch_norm 3d", layer(BatchNorm3d::new(3)?)),
        ("local_response_norm", layer(LocalResponseNorm::new(3).alpha(0.5))),
        ("local_response_norm even", layer(LocalResponseNorm::new(2).alpha(0.1).beta(0.5).k(2.0))),
        ("normalize", function(|x| F::normalize(x.float(0), 2.0, 1, 1e-12))),
        ("normalize p", function(|x| F::normalize(x.float(0), 3.0, 0, 1e-12))),
        ("normalize zeros", function(|x| F::normalize(x.float(0), 2.0, 1, 1e-12))),
        ("cosine_similarity", function(|x| F::cosine_similarity(x.float(0), x.float(1), 1, 1e-8))),
    ];
    for (name, p) in [("1.0", 1.0), ("2.0", 2.0), ("3.0", 3.0), ("inf", f64::INFINITY)] {
        let name = kept(["pairwise_distance ", name].concat());
        cases.push((name, function(move |x| F::pairwise_distance(x.float(0), x.float(1), p, 1e-6))));
    }
    for (name, p) in [("pdist 1.0", 1.0), ("pdist 2.0", 2.0), ("pdist 3.0", 3.0), ("pdist inf", f64::INFINITY)] {
        cases.push((name, function(move |x| F::pdist(x.float(0), p))));
    }
    cases.push(("pdist equal rows", function(|x| F::pdist(x.float(0), 3.0))));
    Ok(cases)
}

pub(crate) fn evaluated<M: Module>(module: M) -> M {
    module.eval();
    module
}

fn losses_of_classes() -> Result<Cases> {
    let weight = |len: usize| Tensor::zeros(len).unwrap(); // the golden state replaces them
    let soft = |loss: CrossEntropyLoss| called(loss, |loss, x| loss.forward(x.float(0), x.float(1)));
    let new = CrossEntropyLoss::new;
    Ok(vec![
        ("cross_entropy", classes!(new())),
        ("cross_entropy weight", classes!(new().weight(weight(4)))),
        ("cross_entropy ignored", classes!(new().ignore_index(-100))),
        ("cross_entropy all", classes!(new().weight(weight(4)).ignore_index(-100).label_smoothing(0.25)?)),
        ("cross_entropy smoothing", classes!(new().ignore_index(-100).label_smoothing(0.25)?)),
        ("cross_entropy smoothing sum", classes!(new().label_smoothing(0.25)?.reduction(Reduction::Sum))),
        (
            "cross_entropy none",
            classes!(new().weight(weight(4)).ignore_index(-100).label_smoothing(0.5)?.reduction(Reduction::None)),
        ),
        ("cross_entropy pixels", classes!(new().weight(weight(3)).ignore_index(1).label_smoothing(0.25)?)),
        ("cross_entropy soft", soft(new())),
        ("cross_entropy soft all", soft(new().weight(weight(4)).label_smoothing(0.25)?)),
        ("cross_entropy soft none", soft(new().reduction(Reduction::None))),
        ("nll weight", classes!(NLLLoss::new().weight(weight(4)))),
        ("nll ignored", classes!(NLLLoss::new().ignore_index(2).reduction(Reduction::Sum))),
        ("multi_margin", classes!(MultiMarginLoss::new())),
        ("multi_margin p", classes!(MultiMarginLoss::new().p(2).margin(0.5).weight(weight(4)))),
        ("multilabel_margin", classes!(MultiLabelMarginLoss::new())),
        ("multilabel_soft_margin", two!(MultiLabelSoftMarginLoss::new())),
        (
            "multilabel_soft_margin weight",
            two!(MultiLabelSoftMarginLoss::new().weight(weight(4)).reduction(Reduction::None)),
        ),
        ("ctc", spoken(CTCLoss::new(), [7, 5, 6], [3, 2, 0])),
        ("ctc none", spoken(CTCLoss::new().reduction(Reduction::None), [7, 5, 6], [3, 2, 0])),
        ("ctc impossible", spoken(CTCLoss::new().reduction(Reduction::None).zero_infinity(true), [2, 5, 6], [3, 2, 1])),
    ])
}

fn spoken(loss: CTCLoss, inputs: [usize; 3], targets: [usize; 3]) -> Box<dyn Case> {
    function(move |x| loss.forward(&x.float(0).log_softmax(2)?, x.int(1), &inputs, &targets))
}

fn losses_between() -> Result<Cases> {
    let weight = || Tensor::zeros(4).unwrap();
    let (sum, none) = (Reduction::Sum, Reduction::None);
    Ok(vec![
        ("l1 mean", two!(L1Loss::new())),
        ("l1 sum", two!(L1Loss::new().reduction(sum))),
        ("l1 none", two!(L1Loss::new().reduction(none))),
        ("smooth_l1", two!(SmoothL1Loss::new())),
        ("smooth_l1 beta", two!(SmoothL1Loss::new().beta(0.5))),
        ("smooth_l1 zero", two!(SmoothL1Loss::new().beta(0.0))),
        ("huber", two!(HuberLoss::new())),
        ("huber delta", two!(HuberLoss::new().delta(2.5).reduction(sum))),
        ("bce", two!(BCELoss::new())),
        ("bce ends", two!(BCELoss::new())),
        ("bce weight", two!(BCELoss::new().weight(weight()).reduction(none))),
        ("bce logits", two!(BCEWithLogitsLoss::new())),
        ("bce logits all", two!(BCEWithLogitsLoss::new().weight(weight()).pos_weight(weight()).reduction(sum))),
        ("kl_div", two!(KLDivLoss::new())),
        ("kl_div zeros", two!(KLDivLoss::new().reduction(sum))),
        ("kl_div batchmean", two!(KLDivLoss::new().batchmean())),
        ("kl_div logs", two!(KLDivLoss::new().log_target(true).reduction(none))),
        ("poisson", two!(PoissonNLLLoss::new())),
        ("poisson full", two!(PoissonNLLLoss::new().log_input(false).full(true).eps(1e-3))),
        ("gaussian", three!(GaussianNLLLoss::new())),
        ("gaussian full", three!(GaussianNLLLoss::new().full(true).eps(0.5).reduction(sum))),
        ("soft_margin", two!(SoftMarginLoss::new())),
        ("margin_ranking", three!(MarginRankingLoss::new())),
        ("margin_ranking margin", three!(MarginRankingLoss::new().margin(0.5))),
        ("hinge_embedding", two!(HingeEmbeddingLoss::new())),
        ("hinge_embedding margin", two!(HingeEmbeddingLoss::new().margin(2.5).reduction(sum))),
        ("cosine_embedding", three!(CosineEmbeddingLoss::new())),
        ("cosine_embedding margin", three!(CosineEmbeddingLoss::new().margin(0.25).reduction(none))),
        ("triplet_margin", three!(TripletMarginLoss::new())),
        ("triplet_margin swap", three!(TripletMarginLoss::new().margin(0.5).p(3.0).swap(true))),
        ("triplet_distance", three!(TripletMarginWithDistanceLoss::new())),
        ("triplet_distance other", three!(of_angles().margin(0.5).swap(true).reduction(sum))),
        ("adaptive_softmax", adaptive(adaptive_of(&[3, 7], 2.0, false)?)),
        ("adaptive_softmax frequent", adaptive(adaptive_of(&[3, 7], 2.0, false)?)),
        ("adaptive_softmax all", adaptive(adaptive_of(&[2, 5, 9], 1.5, true)?)),
        ("adaptive_softmax one", adaptive(adaptive_of(&[3, 7], 2.0, false)?)),
        ("adaptive_softmax log_prob", called(adaptive_of(&[2, 5, 9], 1.5, true)?, |loss, x| loss.log_prob(x.float(0)))),
    ])
}

fn of_angles() -> TripletMarginWithDistanceLoss {
    let distance = |x: &Tensor, y: &Tensor| F::cosine_similarity(x, y, 1, 1e-8)?.neg()?.add_scalar(1.0);
    TripletMarginWithDistanceLoss::new().distance_function(distance)
}

fn adaptive_of(cutoffs: &[usize], div_value: f64, head_bias: bool) -> Result<AdaptiveLogSoftmaxWithLoss> {
    AdaptiveLogSoftmaxWithLoss::new_with([8, 12], cutoffs, div_value, head_bias, &Generator::new(0))
}

fn adaptive(loss: AdaptiveLogSoftmaxWithLoss) -> Box<dyn Case> {
    called(loss, |loss, x| {
        let (output, loss) = loss.forward(x.float(0), x.int(1))?;
        Tensor::cat(&[&output.reshape([-1])?, &loss.reshape([-1])?], 0)
    })
}

fn sizes() -> Result<Cases> {
    let (one, two, three) = ([[1, 2]], [[1, 2], [2, 0]], [[1, 2], [2, 0], [0, 1]]);
    Ok(vec![
        ("conv1d", layer(Conv1d::new(3, 4, 3)?)),
        ("conv1d all", layer(Conv1d::grouped(4, 6, 3, 2)?.stride(2).padding(2).dilation(2).without_bias())),
        ("conv1d unbatched", layer(Conv1d::new(3, 2, 2)?)),
        ("max_pool1d", layer(MaxPool1d::new(3).stride(2).padding(1))),
        ("avg_pool1d", layer(AvgPool1d::new(3).stride(2).padding(1))),
        ("adaptive_avg_pool1d", layer(AdaptiveAvgPool1d::new(3))),
        ("zero_pad 1d", layer(ZeroPad1d::new(one))),
        ("zero_pad 2d", layer(ZeroPad2d::new(two))),
        ("zero_pad 3d", layer(ZeroPad3d::new(three))),
        ("constant_pad 1d", layer(ConstantPad1d::new(one, 3.5))),
        ("constant_pad 2d", layer(ConstantPad2d::new(two, 3.5))),
        ("constant_pad 3d", layer(ConstantPad3d::new(three, 3.5))),
        ("reflection_pad 1d", layer(ReflectionPad1d::new(one))),
        ("reflection_pad 2d", layer(ReflectionPad2d::new(two))),
        ("reflection_pad 3d", layer(ReflectionPad3d::new(three))),
        ("replication_pad 1d", layer(ReplicationPad1d::new(one))),
        ("replication_pad 2d", layer(ReplicationPad2d::new(two))),
        ("replication_pad 3d", layer(ReplicationPad3d::new(three))),
        ("circular_pad 1d", layer(CircularPad1d::new(one))),
        ("circular_pad 2d", layer(CircularPad2d::new(two))),
        ("circular_pad 3d", layer(CircularPad3d::new(three))),
        ("replication_pad unbatched", layer(ReplicationPad1d::new(2))),
        ("upsample", layer(Upsample::scale_factor(2.0))),
        ("upsample fraction", layer(Upsample::scale_factor(1.5))),
        ("upsample size", layer(Upsample::size(4))),
        ("pixel_shuffle", layer(PixelShuffle::new(2))),
        ("pixel_unshuffle", layer(PixelUnshuffle::new(2))),
        ("fractional_max_pool2d", function(|x| Ok(fractional(x, [2, 2], [5, 8])?.0))),
        ("fractional_max_pool2d wide", function(|x| Ok(fractional(x, [3, 4], [1, 7])?.0))),
        ("fractional_max_pool2d indices", function(|x| fractional(x, [2, 2], [6, 4])?.1.to_float_of(DType::F64))),
    ])
}

fn fractional(x: &Inputs, kernel: [usize; 2], size: [usize; 2]) -> Result<(Tensor, Tensor<Int>)> {
    F::fractional_max_pool2d_with_indices(x.float(0), kernel, size, x.float(1))
}

pub(crate) fn cases() -> Cases {
    let families =
        [activations, embeddings_and_norms, losses_of_classes, losses_between, attention, sizes].map(|family| family());
    families.into_iter().flat_map(|family| family.unwrap()).collect()
}

/// The differences between our results and PyTorch's.
struct Comparison<'a> {
    name: &'a str,
    bound: f64,
    wrong: Vec<String>,
}

impl Comparison<'_> {
    fn check(&mut self, what: &str, ours: &Tensor, theirs: &Tensor) {
        let ours = ours.detach().to(&Device::Cpu).unwrap();
        if ours.dims() != theirs.dims() {
            self.wrong.push(format!("{} {what}: {} instead of {}", self.name, ours.shape(), theirs.shape()));
            return;
        }
        let pairs = ours.to_vec::<f64>().unwrap().into_iter().zip(theirs.to_vec::<f64>().unwrap());
        for (place, (a, b)) in pairs.enumerate() {
            let is_close = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= self.bound * b.abs().max(1.0);
            if !is_close {
                self.wrong.push(format!("{} {what}[{place}]: {a:e} instead of {b:e}", self.name));
                return;
            }
        }
    }

    /// Treats an absent gradient as zeros.
    fn check_grad(&mut self, what: &str, ours: Option<&Tensor>, theirs: Option<&Tensor>) {
        match (ours, theirs) {
            (Some(ours), Some(theirs)) => self.check(what, ours, theirs),
            (Some(absent), None) | (None, Some(absent)) => {
                let zeros = Tensor::of(DType::F64).zeros(absent.shape()).unwrap();
                self.check(what, absent, &zeros);
            }
            (None, None) => {}
        }
    }
}

fn compare(name: &str, case: &mut dyn Case, dtype: DType, device: &Device, golden: &StateDict) -> Vec<String> {
    let golden = pytorch::under(golden, &format!("{name}/"));
    let bound = if dtype == DType::F64 { 1e-12 } else { 1e-5 };
    let mut comparison = Comparison { name, bound, wrong: Vec::new() };
    let module = case.module();
    module.load_state_dict(&pytorch::under(&golden, "state.")).unwrap_or_else(|error| panic!("{name}: {error}"));
    module.to_dtype_(dtype).unwrap();
    module.to_(device).unwrap();
    let parameters = module.named_parameters();
    let inputs = Inputs::read(&golden, dtype, device);
    let y = case.run(&inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
    comparison.check("output", &y, &golden.get("output").unwrap());
    for (buffer, theirs) in pytorch::under(&golden, "after.").iter() {
        let ours = case.module().state_dict().get(buffer).unwrap();
        comparison.check(buffer, &ours, &theirs.float().unwrap());
    }
    if let Some(upstream) = golden.get("upstream") {
        let upstream = upstream.to_dtype(y.dtype()).unwrap().to(device).unwrap();
        check_grads(&mut comparison, &golden, (&y, upstream), &inputs, &parameters);
    }
    comparison.wrong
}

fn check_grads(
    comparison: &mut Comparison<'_>,
    golden: &StateDict,
    (y, upstream): (&Tensor, Tensor),
    inputs: &Inputs,
    parameters: &[(String, Parameter)],
) {
    let floats = inputs.0.iter().enumerate().filter_map(|(position, input)| match input {
        Input::Float(tensor) => Some((format!("grad.input.{position}"), tensor)),
        Input::Int(_) => None,
    });
    let of_parameters =
        parameters.iter().map(|(name, parameter)| (format!("grad.state.{name}"), parameter.as_tensor()));
    let targets: Vec<(String, &Tensor)> = floats.chain(of_parameters).collect();
    let leaves: Vec<&Tensor> = targets.iter().map(|(_, tensor)| *tensor).collect();
    let options = Backward { gradient: Some(upstream), create_graph: true, ..Backward::default() };
    let grads = autograd::grad(&[y], &leaves, options).unwrap();
    for ((name, _), grad) in targets.iter().zip(&grads) {
        let theirs = golden.get(name);
        if theirs.is_some() || !comparison.name_is_a_loss() {
            comparison.check_grad(name, grad.as_ref(), theirs.as_ref());
        }
    }
    if let (Some(theirs), Some(first)) = (golden.get("second"), grads[0].as_ref()) {
        let squares = first.mul(first).unwrap().sum(..).unwrap();
        let second = match squares.requires_grad() {
            true => autograd::grad(&[&squares], &leaves[..1], Backward::default()).unwrap().remove(0),
            false => None,
        };
        if comparison.bound > 1e-9 {
            comparison.bound = 2e-4; // in f32: two rounded derivatives, squared and added
        }
        comparison.check_grad("second", second.as_ref(), Some(&theirs));
    }
}

impl Comparison<'_> {
    /// Losses compute gradients of their targets here, which PyTorch was not asked for.
    fn name_is_a_loss(&self) -> bool {
        pytorch::json("layers.json")["prints"][self.name].as_str().is_some_and(|print| print.ends_with("Loss()"))
    }
}

/// Compares all cases with the golden file `file` on a device.
pub(crate) fn all_agree_on(device: &Device, file: &str, cases: fn() -> Cases) {
    let golden = load_safetensors(pytorch::path(file)).unwrap();
    let mut wrong = Vec::new();
    for dtype in [DType::F64, DType::F32] {
        for (name, mut case) in cases() {
            wrong
                .extend(compare(name, &mut *case, dtype, device, &golden).iter().map(|line| format!("{dtype} {line}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Calls [`all_agree_on`] with a GPU, if there is one.
pub(crate) fn all_agree_on_a_gpu(file: &str, cases: fn() -> Cases) {
    match Device::cuda(0) {
        Ok(gpu) => all_agree_on(&gpu, file, cases),
        Err(missing) => eprintln!("SKIPPED: {missing}"),
    }
}

/// Checks that a golden file has the same cases as we do, by name.
pub(crate) fn all_are_tested(file: &str, cases: fn() -> Cases) {
    let golden = pytorch::json(file);
    let mut theirs: Vec<&str> = golden["cases"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let mut ours: Vec<&str> = cases().into_iter().map(|(name, _)| name).collect();
    theirs.sort_unstable();
    ours.sort_unstable();
    assert_eq!(ours, theirs);
}

#[test]
fn outputs_and_gradients_are_pytorchs() {
    all_agree_on(&Device::Cpu, "layers.safetensors", cases);
}

#[test]
fn outputs_and_gradients_on_a_gpu_are_pytorchs() {
    all_agree_on_a_gpu("layers.safetensors", cases);
}

#[test]
fn every_case_of_the_golden_file_is_tested() {
    all_are_tested("layers.json", cases);
}

#[test]
fn modules_print_as_in_pytorch() {
    let golden = pytorch::json("layers.json");
    let printed = |name: &str| golden["prints"][name].as_str().map(str::to_owned);
    let mut n_compared = 0;
    for (name, mut case) in cases() {
        if let Some(theirs) = printed(name) {
            assert_eq!(print(case.module()).to_string(), theirs, "{name}");
            n_compared += 1;
        }
    }
    let linear = || Linear::new(2, 3).unwrap();
    let ones = |shape: &[usize]| Parameter::new(Tensor::ones(shape).unwrap());
    let sizes = Sequential::new((GELU::new(), Identity));
    let heads = ModuleDict::new().insert("color", linear()).unwrap().insert("size", sizes).unwrap();
    let dropouts =
        Sequential::new((Dropout1d::new(0.5), Dropout2d::new(0.25), Dropout3d::new(0.75), AlphaDropout::new(0.1)));
    let conv = Conv1d::grouped(4, 6, 3, 2).unwrap().stride(2).padding(2).dilation(2).without_bias();
    let others = [
        ("module_list", ModuleList::new((linear(), linear(), ReLU)).to_string()),
        ("module_dict", heads.to_string()),
        ("parameter_list", ParameterList::new([ones(&[2]), ones(&[2, 3])]).to_string()),
        ("parameter_list of one", ParameterList::new([ones(&[2])]).to_string()),
        ("dropouts", dropouts.to_string()),
        ("conv1d settings", conv.to_string()),
    ];
    n_compared += others.len();
    for (name, ours) in others {
        assert_eq!(ours, printed(name).unwrap(), "{name}");
    }
    assert_eq!((n_compared, golden["prints"].as_object().unwrap().len()), (149, 149), "ours and those of the file");
}

#[test]
fn modules_of_each_kind_are_saved_and_loaded() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (name, mut case)) in cases().into_iter().enumerate() {
        let dict = case.module().state_dict();
        let path = folder.path().join(format!("{number}.safetensors"));
        save_safetensors(&dict, &path).unwrap();
        let values = |dict: &StateDict| -> Vec<Vec<f64>> {
            dict.iter().filter_map(|(_, tensor)| tensor.float().ok()).map(|tensor| tensor.to_vec().unwrap()).collect()
        };
        let saved = values(&dict);
        for (_, tensor) in dict.iter() {
            if let Ok(floats) = tensor.float() {
                floats.fill_(-7.5).unwrap();
            }
        }
        case.module().load_state_dict(&load_safetensors(&path).unwrap()).unwrap();
        assert_eq!(values(&case.module().state_dict()), saved, "{name}");
    }
}
