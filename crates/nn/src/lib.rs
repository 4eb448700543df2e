//! Neural-network modules, losses, initializers, optimizers and saved weights, on [`pagelock_tensor`].
//!
//! ```
//! use pagelock_nn::{Forward, Linear, Module, ReLU, Sequential, functional as F, optim::{Optimizer, Sgd}};
//! use pagelock_tensor::Tensor;
//!
//! let model = Sequential::new((Linear::new(784, 32)?, ReLU, Linear::new(32, 10)?));
//! let mut opt = Sgd::new(model.parameters(), 0.1).momentum(0.9);
//!
//! let (xb, yb) = (Tensor::randn([64, 784])?, Tensor::full(64, 0)?);
//! let loss = F::cross_entropy(&model.forward(&xb)?, &yb)?;
//! loss.backward()?;
//! opt.step()?;
//! opt.zero_grad();
//! # Ok::<(), pagelock_nn::Error>(())
//! ```

// Reading order: `module.rs` (a module shows its parameters to visitors), `parameter.rs`, `forward.rs`, then
// `layers/`, `optim/` and `train.rs`. Everything that inspects a model (`parameters`, `state_dict`, `train`,
// printing) visits it with a `Visitor`; nothing else knows the parts of a model.
//
// Invariants:
// - names are PyTorch's: the path of field names joined with dots, `"layers.0.weight"`;
// - a parameter's elements change in place only, so every handle to it (the model's, the optimizer's) sees the
//   changes;
// - a call that fails changes nothing.

#![forbid(unsafe_code)]

// So that `#[derive(Module)]`, whose code starts with `::pagelock_nn`, works in here too.
extern crate self as pagelock_nn;

mod audit;
mod checkpoint;
mod containers;
mod counter;
mod error;
mod forward;
pub mod functional;
mod functional_call;
pub mod init;
mod layers;
mod loss;
pub mod metrics;
mod module;
mod moving;
pub mod optim;
mod parameter;
pub mod parametrizations;
mod print;
mod profiling;
pub mod rnn;
mod safetensors_file;
mod setters;
mod state_dict;
mod torch_file;
mod train;
mod vector;
mod walk;

pub use audit::audit;
pub use checkpoint::{Checkpoint, CheckpointValue, Checkpoints, SavedCheckpoint};
pub use counter::Counter;
pub use error::{Error, Misfit, Result};
pub use forward::{Forward, Layer};
pub use functional_call::{functional_call, stack_module_state};
pub use layers::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d,
    AlphaDropout, AvgPool1d, AvgPool2d, AvgPool3d, BatchNorm1d, BatchNorm2d, BatchNorm3d, Bilinear, CELU,
    ChannelShuffle, CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad1d, ConstantPad2d, ConstantPad3d, Conv1d,
    Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, CosineSimilarity, DecoderMasks, Dropout,
    Dropout1d, Dropout2d, Dropout3d, ELU, Embedding, EmbeddingBag, FeatureAlphaDropout, Flatten, Fold,
    FractionalMaxPool2d, GELU, GLU, GroupNorm, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, HookHandle, Hooked,
    Identity, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, IntoLayers, LPPool1d, LPPool2d, LPPool3d, Lambda,
    LayerNorm, LeakyReLU, Linear, LocalResponseNorm, LogSigmoid, LogSoftmax, MaxPool1d, MaxPool2d, MaxPool3d,
    MaxUnpool1d, MaxUnpool2d, MaxUnpool3d, Mish, ModuleDict, ModuleList, MultiheadAttention, MultiheadOptions,
    OutProjection, PReLU, Padding, PairwiseDistance, ParameterDict, ParameterList, PixelShuffle, PixelUnshuffle,
    RMSNorm, RReLU, ReLU, ReLU6, ReflectionPad1d, ReflectionPad2d, ReflectionPad3d, ReplicationPad1d, ReplicationPad2d,
    ReplicationPad3d, SELU, Sequential, SiLU, Sigmoid, Softmax, Softmax2d, Softmin, Softplus, Softshrink, Softsign,
    Tanh, Tanhshrink, Threshold, Transformer, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder,
    TransformerEncoderLayer, Unflatten, Unfold, Upsample, UpsamplingBilinear2d, UpsamplingNearest2d, ZeroPad1d,
    ZeroPad2d, ZeroPad3d,
};
pub use layers::{GRU, GRUCell, LSTM, LSTMCell, RNN, RNNCell, RNNNonlinearity, RNNOptions};
pub use loss::{
    AdaptiveLogSoftmaxWithLoss, BCELoss, BCEWithLogitsLoss, CTCLoss, CosineEmbeddingLoss, CrossEntropyLoss,
    GaussianNLLLoss, HingeEmbeddingLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss, MarginRankingLoss,
    MultiLabelMarginLoss, MultiLabelSoftMarginLoss, MultiMarginLoss, NLLLoss, PoissonNLLLoss, SmoothL1Loss,
    SoftMarginLoss, Targets, TripletMarginLoss, TripletMarginWithDistanceLoss,
};
pub use module::{Mode, Module, VisitEvent, VisitEventMut, Visitor, VisitorMut};
pub use pagelock_nn_derive::Module;
/// The tensor crate, for programs that depend on this crate alone.
pub use pagelock_tensor as tensor;
pub use parameter::{Buffer, Parameter};
pub use print::{Tree, print};
pub use profiling::{module_names, module_scope, record_graph};
pub use safetensors_file::{load_safetensors, save_safetensors};
pub use state_dict::StateDict;
pub use torch_file::{TorchValue, load_torch, save_torch};
pub use train::{Epoch, evaluate, fit, fit_with, loss_batch};

pub use vector::{parameters_to_vector, vector_to_parameters};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
