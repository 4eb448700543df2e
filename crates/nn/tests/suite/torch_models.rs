//! Models that PyTorch and this crate train in turn: files go both ways bit for bit, and the losses are the same.
//!
//! Runs if `PAGELOCK_PYTHON` names a Python that has torch. `../golden/torch_models.py` has the same models, data and
//! optimizers.
//!
//! ```text
//! PyTorch   5 steps ─ NAME.pt ─ 5 steps: losses          NAME.back.pt ─ the same bits, the same 5 losses
//! here                └ the same bits, the same 5 losses └──┘      5 steps ─ NAME.rust.pt ─ 5 steps: losses
//! PyTorch                                                                   └ the same bits, the same 5 losses
//! ```

use std::fs;
use std::path::Path;

use pagelock_nn::functional as F;
use pagelock_nn::optim::{Adadelta, Adagrad, Adam, AdamW, Adamax, Asgd, Lbfgs, NAdam, Optimizer, RAdam, RmsProp, Sgd};
use pagelock_nn::*;
use pagelock_tensor::{Bool, DType, Int, Result, Tensor};
use serde_json::{Value, json};

use crate::layers::{Case, Input, Inputs, called};
use crate::pytorch;
use crate::torch_files::describe;

/// The number of steps before a file is written, and again after it.
const STEPS: usize = 5;

type Named = Vec<(String, Parameter)>;

/// An optimizer. LBFGS is separate, since its step takes a closure.
enum Opt {
    Usual(Box<dyn Optimizer>),
    Lbfgs(Box<Lbfgs>),
}

impl Opt {
    fn as_dyn(&mut self) -> &mut dyn Optimizer {
        match self {
            Self::Usual(opt) => &mut **opt,
            Self::Lbfgs(opt) => &mut **opt,
        }
    }

    fn step(&mut self, mut closure: impl FnMut() -> pagelock_nn::Result<Tensor>) -> pagelock_nn::Result<Tensor> {
        match self {
            Self::Usual(opt) => {
                let loss = closure()?;
                opt.step()?;
                Ok(loss)
            }
            Self::Lbfgs(opt) => opt.step(closure),
        }
    }
}

fn usual(opt: impl Optimizer + 'static) -> Opt {
    Opt::Usual(Box::new(opt))
}

/// A model that takes all inputs but the last one, which is the target.
struct Trained {
    name: &'static str,
    model: Box<dyn Case>,
    make: fn(Named) -> Opt,
}

impl Trained {
    fn optimizer(&mut self) -> Opt {
        (self.make)(self.model.module().named_parameters())
    }
}

/// A model whose parts have the names of the script.
#[derive(Module)]
struct Net<E, B, H> {
    embed: E,
    body: B,
    head: H,
}

type Plain = Option<Linear>;

fn net<E: Module, B: Module, H: Module>(embed: E, body: B, head: H) -> Net<E, B, H> {
    Net { embed, body, head }
}

/// A residual block.
#[derive(Module)]
struct Block {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    downsample: Option<Sequential>,
}

impl Block {
    fn new(inputs: usize, outputs: usize, stride: usize) -> Result<Self> {
        let conv = |inputs, stride| Ok(Conv2d::new(inputs, outputs, 3)?.stride(stride).padding(1).without_bias());
        let shortcut = || {
            let conv = Conv2d::new(inputs, outputs, 1)?.stride(stride).without_bias();
            Ok(Sequential::new((conv, BatchNorm2d::new(outputs)?)))
        };
        Ok(Self {
            conv1: conv(inputs, stride)?,
            bn1: BatchNorm2d::new(outputs)?,
            conv2: conv(outputs, 1)?,
            bn2: BatchNorm2d::new(outputs)?,
            downsample: if inputs == outputs { None } else { Some(shortcut()?) },
        })
    }
}

impl Forward for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.bn1.forward(&self.conv1.forward(x)?)?.relu()?;
        let y = self.bn2.forward(&self.conv2.forward(&y)?)?;
        let shortcut = self.downsample.as_ref().map(|layers| layers.forward(x)).transpose()?;
        y.add(shortcut.as_ref().unwrap_or(x))?.relu()
    }
}

/// Weights of half precision that are not trained, and buffers of other kinds.
#[derive(Module)]
struct Mixed {
    table: Parameter,
    scale: Buffer,
    columns: Buffer<Int>,
    hidden: Buffer<Bool>,
    head: Linear,
}

impl Mixed {
    fn new() -> Result<Self> {
        let mut table = Parameter::new(Tensor::randn([6, 3])?.to_dtype(DType::BF16)?);
        table.requires_grad_(false);
        Ok(Self {
            table,
            scale: Buffer::new(Tensor::rand(6)?.to_dtype(DType::F16)?),
            columns: Buffer::new(Tensor::new([3_i64, 0, 2])?),
            hidden: Buffer::new(Tensor::new([false, true, false, false, false, true])?),
            head: Linear::new(6, 1)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let table = self.table.as_tensor().to_dtype(DType::F32)?;
        let features = F::linear(&x.index_select(1, &self.columns)?, &table, None)?;
        let features = features.mul(&Tensor::to_dtype(&self.scale, DType::F32)?)?;
        self.head.forward(&features.masked_fill(&self.hidden, 0.5)?)
    }
}

#[derive(Module)]
struct Lists {
    layers: ModuleList,
    scales: ParameterList,
    heads: ModuleDict,
}

impl Lists {
    fn new() -> Result<Self> {
        let scales = [1.0, 0.5].map(|scale| Ok(Parameter::new(Tensor::full(4, scale)?)));
        Ok(Self {
            layers: ModuleList::new((Linear::new(4, 4)?, Linear::new(4, 4)?)),
            scales: ParameterList::new(scales.into_iter().collect::<Result<Vec<_>>>()?),
            heads: ModuleDict::new().insert("first", Linear::new(4, 1)?)?.insert("second", Linear::new(4, 1)?)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for (layer, scale) in self.layers.iter().zip(self.scales.iter()) {
            x = layer.forward(&x)?.tanh()?.mul(scale)?;
        }
        let head = |name: &str| self.heads.get(name).expect("it was inserted").forward(&x);
        head("first")?.add(&head("second")?)
    }
}

/// The output of a recurrent layer at the last step.
fn last(y: &Tensor) -> Result<Tensor> {
    y.select(1, -1)
}

fn layers(model: impl IntoLayers) -> Box<dyn Case> {
    called(Sequential::new(model), |model, x| model.forward(x.float(0)))
}

fn perceptron(dtype: DType) -> pagelock_nn::Result<Box<dyn Case>> {
    let model = Sequential::new((Linear::new(4, 8)?, Tanh, Linear::new(8, 1)?));
    Ok(called(model.to_dtype(dtype)?, |model, x| model.forward(x.float(0))))
}

fn pictures() -> Result<Vec<Trained>> {
    let resnet = net(
        Sequential::new((Conv2d::new(3, 4, 3)?.padding(1).without_bias(), BatchNorm2d::new(4)?, ReLU)),
        Sequential::new((Block::new(4, 4, 1)?, Block::new(4, 8, 2)?)),
        Linear::new(8, 5)?,
    );
    let unet = net(Conv2d::new(1, 4, 3)?.padding(1), Conv2d::new(4, 4, 3)?.padding(1), Conv2d::new(8, 1, 1)?);
    Ok(vec![
        Trained {
            name: "cnn",
            model: layers((
                Conv2d::new(1, 4, 3)?,
                ReLU,
                MaxPool2d::new(2),
                Conv2d::new(4, 6, 3)?,
                Flatten::new(),
                Linear::new(24, 5)?,
            )),
            make: |p| usual(Sgd::new(p, 0.05).momentum(0.9).nesterov(true).weight_decay(0.01)),
        },
        Trained {
            name: "resnet",
            model: called(resnet, |net, x| {
                let features = net.body.forward(&net.embed.forward(x.float(0))?)?;
                net.head.forward(&features.mean([2, 3])?)
            }),
            make: |p| usual(Adam::new(p, 0.01)),
        },
        Trained {
            name: "conv_transpose",
            model: layers((
                Conv2d::new(1, 4, 3)?.stride(2).padding(1),
                LeakyReLU::new(),
                ConvTranspose2d::new(4, 1, 2)?.stride(2),
            )),
            make: |p| usual(Adadelta::new(p, 0.5)),
        },
        Trained {
            name: "unet",
            model: called(unet, |net, x| {
                let wide = net.embed.forward(x.float(0))?.relu()?;
                let deep = net.body.forward(&MaxPool2d::new(2).forward(&wide)?)?.relu()?;
                let deep = UpsamplingNearest2d::scale_factor(2.0).forward(&deep)?;
                net.head.forward(&Tensor::cat(&[&wide, &deep], 1)?)
            }),
            make: |p| usual(RmsProp::new(p, 0.003).centered(true)),
        },
        Trained {
            name: "conv3d",
            model: layers((
                Conv3d::new(1, 3, 2)?,
                BatchNorm3d::new(3)?,
                PReLU::new(3)?,
                Flatten::new(),
                Linear::new(81, 2)?,
            )),
            make: |p| usual(RAdam::new(p, 0.01).weight_decay(0.1).decoupled_weight_decay(true)),
        },
    ])
}

fn sequences() -> Result<Vec<Trained>> {
    let new = RNNOptions::new;
    let lstm = LSTM::with(5, 6, new().num_layers(2).batch_first(true).bidirectional(true))?;
    let gru = GRU::with(4, 6, new().batch_first(true))?;
    let relu = new().num_layers(2).nonlinearity(RNNNonlinearity::Relu).batch_first(true);
    let encoder =
        TransformerEncoder::new(2, || Ok(TransformerEncoderLayer::new(8, 2, 16)?.dropout(0.0).batch_first(true)))?;
    let transformer = Transformer::new(8, 2, [1, 1], 16)?.dropout(0.0).batch_first(true);
    let attention = MultiheadAttention::new(8, 2)?.batch_first(true);
    Ok(vec![
        Trained {
            name: "lstm",
            model: called(net(Embedding::new(7, 5)?, lstm, Linear::new(12, 3)?), |net, x| {
                net.head.forward(&net.body.forward(&net.embed.forward(x.int(0))?)?.0)
            }),
            make: |p| usual(AdamW::new(p, 0.01)),
        },
        Trained {
            name: "gru",
            model: called(net(Plain::None, gru, Linear::new(6, 2)?), |net, x| {
                net.head.forward(&last(&net.body.forward(x.float(0))?.0)?)
            }),
            make: |p| usual(RmsProp::new(p, 0.005).momentum(0.5)),
        },
        Trained {
            name: "rnn",
            model: called(net(Plain::None, RNN::with(4, 6, relu)?, Linear::new(6, 2)?), |net, x| {
                net.head.forward(&last(&net.body.forward(x.float(0))?.0)?)
            }),
            make: |p| usual(Adagrad::new(p, 0.02).lr_decay(0.1)),
        },
        Trained {
            name: "cells",
            model: called(net(LSTMCell::new(3, 5)?, GRUCell::new(5, 4)?, Linear::new(4, 1)?), |net, x| {
                let batch = x.float(0).dims()[0];
                let (mut h, mut c) = (Tensor::zeros([batch, 5])?, Tensor::zeros([batch, 5])?);
                let mut g = Tensor::zeros([batch, 4])?;
                for word in 0..x.float(0).dims()[1] {
                    (h, c) = net.embed.forward_with(&x.float(0).select(1, word as isize)?, (&h, &c))?;
                    g = net.body.forward_with(&h, &g)?;
                }
                net.head.forward(&g)
            }),
            make: |p| usual(Sgd::new(p, 0.1).momentum(0.8).dampening(0.3)),
        },
        Trained {
            name: "encoder",
            model: called(
                net(Embedding::new(9, 8)?, encoder.norm(LayerNorm::new(8)?), Linear::new(8, 4)?),
                |net, x| net.head.forward(&net.body.forward(&net.embed.forward(x.int(0))?)?.mean(1)?),
            ),
            make: |p| usual(AdamW::new(p, 0.003).amsgrad(true)),
        },
        Trained {
            name: "attention",
            model: called(net(Linear::new(4, 8)?, attention, Linear::new(8, 3)?), |net, x| {
                let (query, key) = (net.embed.forward(x.float(0))?, net.embed.forward(x.float(1))?);
                net.head.forward(&net.body.forward(&query, &key, &key, MultiheadOptions::new())?.0)
            }),
            make: |p| usual(NAdam::new(p, 0.01)),
        },
        Trained {
            name: "transformer",
            model: called(net(Linear::new(4, 8)?, transformer, Linear::new(8, 2)?), |net, x| {
                let (source, target) = (net.embed.forward(x.float(0))?, net.embed.forward(x.float(1))?);
                let masks = (MultiheadOptions::new(), DecoderMasks::default());
                net.head.forward(&net.body.forward(&source, &target, masks.0, masks.1)?)
            }),
            make: |p| usual(Adam::new(p, 0.003).betas(0.8, 0.95)),
        },
    ])
}

fn words() -> Result<Vec<Trained>> {
    let mut tied = net(Embedding::new(9, 6)?, Linear::new(6, 6)?, Linear::new(6, 9)?.without_bias());
    tied.head.weight = tied.embed.weight.clone();
    let bag = net(EmbeddingBag::new(9, 4)?, Linear::new(4, 4)?, Linear::new(4, 3)?);
    Ok(vec![
        Trained {
            name: "tied",
            model: called(tied, |net, x| net.head.forward(&net.body.forward(&net.embed.forward(x.int(0))?)?.tanh()?)),
            make: |p| usual(RAdam::new(p, 0.02)),
        },
        Trained {
            name: "embedding_bag",
            model: called(bag, |net, x| net.head.forward(&net.body.forward(&net.embed.forward(x.int(0))?)?.relu()?)),
            make: |p| usual(Adagrad::new(p, 0.05).initial_accumulator_value(0.1)),
        },
    ])
}

fn norms() -> Result<Box<dyn Case>> {
    Ok(layers((
        Conv1d::new(3, 6, 3)?,
        GroupNorm::new(2, 6)?,
        ReLU,
        InstanceNorm1d::new(6).affine()?.track_running_stats()?,
        Conv1d::new(6, 4, 1)?,
        LayerNorm::new([4, 6])?,
        BatchNorm1d::new(4)?,
        Flatten::new(),
        Linear::new(24, 2)?,
    )))
}

/// Models that fit into none of the other lists.
fn others() -> pagelock_nn::Result<Vec<Trained>> {
    let mlp = layers((Linear::new(4, 8)?, ReLU, Linear::new(8, 8)?, GELU::new(), Linear::new(8, 1)?));
    let conv1d = layers((Conv1d::new(3, 4, 3)?.padding(1), SiLU, Flatten::new(), Linear::new(24, 3)?));
    let bilinear = net(Linear::new(3, 4)?, Bilinear::new(4, 3, 5)?, Linear::new(5, 1)?);
    let weight_norm = parametrizations::weight_norm(Linear::new(4, 8)?, 0)?;
    let two_groups = |p| {
        let opt = AdamW::new(p, 0.01).weight_decay(0.1);
        usual(opt.group_where(|_, parameter| parameter.rank() < 2, |group| group.weight_decay(0.0).with_lr(0.002)))
    };
    Ok(vec![
        Trained { name: "mlp", model: mlp, make: |p| usual(Sgd::new(p, 0.05).momentum(0.9)) },
        Trained { name: "norms", model: norms()?, make: |p| usual(Adamax::new(p, 0.01)) },
        Trained {
            name: "asgd",
            model: perceptron(DType::F64)?,
            make: |p| usual(Asgd::new(p, 0.05).t0(3.0).weight_decay(0.01)),
        },
        Trained {
            name: "lbfgs",
            model: perceptron(DType::F64)?,
            make: |p| {
                let opt = Lbfgs::new(p, 1.0).max_iter(3).history_size(4).strong_wolfe(true);
                Opt::Lbfgs(Box::new(opt))
            },
        },
        Trained { name: "groups", model: conv1d, make: two_groups },
        Trained {
            name: "mixed",
            model: called(Mixed::new()?, |model, x| model.forward(x.float(0))),
            make: |p| usual(Adam::new(p, 0.02).weight_decay(0.01)),
        },
        Trained {
            name: "bilinear",
            model: called(bilinear, |net, x| {
                net.head.forward(&net.body.forward(&net.embed.forward(x.float(0))?, x.float(1))?.sigmoid()?)
            }),
            make: |p| usual(NAdam::new(p, 0.01).weight_decay(0.1).decoupled_weight_decay(true)),
        },
        Trained {
            name: "weight_norm",
            model: layers((weight_norm, Tanh, Linear::new(8, 1)?)),
            make: |p| usual(Sgd::new(p, 0.1)),
        },
        Trained {
            name: "lists",
            model: called(Lists::new()?, |model, x| model.forward(x.float(0))),
            make: |p| usual(Adamax::new(p, 0.01).weight_decay(0.01)),
        },
        Trained { name: "bf16", model: perceptron(DType::BF16)?, make: |p| usual(AdamW::new(p, 0.01)) },
    ])
}

fn all() -> pagelock_nn::Result<Vec<Trained>> {
    Ok([pictures()?, sequences()?, words()?, others()?].into_iter().flatten().collect())
}

/// The inputs of a step, from the data of the file.
fn inputs(data: &TorchValue, step: usize) -> Inputs {
    let at_step = |(_, value): &(TorchValue, TorchValue)| {
        let tensor = value.as_tensor().unwrap();
        match tensor.float() {
            Ok(floats) => Input::Float(floats.select(0, step as isize).unwrap()),
            Err(_) => Input::Int(tensor.int().unwrap().select(0, step as isize).unwrap()),
        }
    };
    Inputs(data.entries().iter().map(at_step).collect())
}

fn loss(model: &dyn Case, x: &Inputs) -> pagelock_nn::Result<Tensor> {
    let output = model.run(x)?;
    Ok(match x.0.last().unwrap() {
        Input::Float(y) => F::mse_loss(&output, y)?,
        Input::Int(y) => {
            let classes = output.dims()[output.rank() - 1];
            F::cross_entropy(&output.reshape([-1, classes as isize])?, &y.reshape([-1])?)?
        }
    })
}

/// The losses of [`STEPS`] steps from step `first` on.
fn train(trained: &mut Trained, opt: &mut Opt, data: &TorchValue, first: usize) -> Vec<f64> {
    let parameters = trained.model.module().parameters();
    let model = &*trained.model;
    let step = |step| {
        let x = inputs(data, step);
        let found = opt.step(|| {
            parameters.iter().for_each(|parameter| parameter.zero_grad());
            let loss = loss(model, &x)?;
            loss.backward()?;
            Ok(loss)
        });
        found.unwrap().item::<f64>().unwrap()
    };
    (first..first + STEPS).map(step).collect()
}

fn described(value: &TorchValue) -> Value {
    describe(value, &mut Default::default())
}

fn read(folder: &Path, name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join(name)).unwrap()).unwrap()
}

/// Reads PyTorch's file, writes it back for PyTorch, and continues the training. Returns the largest relative
/// difference from PyTorch's losses, or 0 for models with a wide tolerance.
fn goes_on(folder: &Path, trained: &mut Trained) -> f64 {
    let name = trained.name;
    let saved = TorchValue::load(folder.join(format!("{name}.pt"))).unwrap();
    let wanted = read(folder, &format!("{name}.json"));
    for part in ["model", "optimizer", "data"] {
        assert!(described(saved.at(part).unwrap()) == wanted[part], "{name}: {part} was read with other bits");
    }
    let dict = saved.at("model").unwrap().to_state_dict().unwrap();
    trained.model.module().load_state_dict(&dict).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut opt = trained.optimizer();
    let state = saved.at("optimizer").unwrap().to_optimizer_state().unwrap();
    opt.as_dyn().load_state_dict(&state).unwrap_or_else(|error| panic!("{name}: {error}"));
    let dict = trained.model.module().state_dict().to_torch().unwrap();
    assert!(described(&dict) == wanted["model"], "{name}: the model has other bits than the file");
    save(trained, &mut opt, &folder.join(format!("{name}.back.pt")));

    let losses = train(trained, &mut opt, saved.at("data").unwrap(), STEPS);
    let wanted: Vec<f64> = serde_json::from_value(read(folder, &format!("{name}.losses"))).unwrap();
    let (tolerance, wanted) = (wanted[0], &wanted[1..]);
    assert_eq!(losses.len(), wanted.len(), "{name}");
    let differences = losses.iter().zip(wanted).map(|(found, wanted)| (found - wanted).abs() / wanted.abs());
    let worst = pytorch::largest(differences);
    assert!(worst <= tolerance, "{name}: the losses are {losses:?}, and not {wanted:?}: {worst:e}");
    if tolerance > 1e-6 { 0.0 } else { worst }
}

fn save(trained: &mut Trained, opt: &mut Opt, path: &Path) {
    let model = trained.model.module().state_dict().to_torch().unwrap();
    let optimizer = opt.as_dyn().state_dict().unwrap().to_torch().unwrap();
    TorchValue::dict([("model", model), ("optimizer", optimizer)]).save(path).unwrap();
}

/// Trains a model from its initial values, writes a file, and continues the training.
fn begins(folder: &Path, mut trained: Trained) {
    let name = trained.name;
    let saved = TorchValue::load(folder.join(format!("{name}.pt"))).unwrap();
    let data = saved.at("data").unwrap();
    let mut opt = trained.optimizer();
    train(&mut trained, &mut opt, data, 0);
    let path = folder.join(format!("{name}.rust.pt"));
    save(&mut trained, &mut opt, &path);
    let dict = trained.model.module().state_dict().to_torch().unwrap();
    assert!(described(TorchValue::load(path).unwrap().at("model").unwrap()) == described(&dict), "{name}");

    let losses = train(&mut trained, &mut opt, data, STEPS);
    let tolerance = read(folder, &format!("{name}.losses"))[0].clone();
    let all: Vec<Value> = [tolerance].into_iter().chain(losses.into_iter().map(|loss| json!(loss))).collect();
    fs::write(folder.join(format!("{name}.rust.losses")), Value::from(all).to_string()).unwrap();
}

#[test]
fn models_and_optimizers_go_both_ways_and_train_on_with_the_same_losses() {
    let folder = tempfile::tempdir().unwrap();
    if !pytorch::script("torch_models.py", "train", folder.path()) {
        return;
    }
    let worst = all().unwrap().iter_mut().map(|trained| goes_on(folder.path(), trained)).fold(0.0, f64::max);
    println!("models of PyTorch's files go on here; losses differ by at most {worst:.1e}");
    all().unwrap().into_iter().for_each(|trained| begins(folder.path(), trained));
    pytorch::script("torch_models.py", "continue", folder.path());
}
