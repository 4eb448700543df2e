//! A training stack built from the memory up: host memory with ceilings, tensors with autograd, datasets and loaders, and
//! neural networks, on CPUs and NVIDIA GPUs.
//!
//! ```
//! use pagelock::nn::functional as F;
//! use pagelock::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::best(); // a GPU, if there is one
//! let digits = SyntheticDigits::new(0).train_len(1_000).test_len(100).generate()?; // or Mnist::new().open()?
//! let train_ds = TensorDataset::new((digits.train.flat()?, digits.train.labels()?))?;
//! let train_dl = DataLoader::new(train_ds).batch_size(64).shuffle(0).to(&device)?;
//!
//! let model = Sequential::new((Linear::new(784, 64)?, ReLU, Linear::new(64, 10)?)).to(&device)?;
//! let mut opt = Sgd::new(model.parameters(), 0.1).momentum(0.9);
//! for batch in &train_dl {
//!     let (xb, yb) = batch?; // Tensor [64, 784], Tensor<Int> [64]
//!     let loss = F::cross_entropy(&model.forward(&xb)?, &yb)?;
//!     loss.backward()?;
//!     opt.step()?;
//!     opt.zero_grad();
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Each layer is a crate that also works alone; here the crates are modules:
//! - [`memory`]: budgets, pools, page-locked and memory-mapped bytes, and a [`ledger`](memory::ledger()) of who holds what.
//! - [`cuda`]: streams, events, device memory and copies that cannot race, on a GPU or a software device.
//! - [`tensor`]: n-dimensional arrays, operations and automatic differentiation.
//! - `linalg`: solving, inverses and decompositions of matrices, with gradients.
//! - [`data`]: datasets, samplers and loaders that page-lock batches and bring them to a GPU; MNIST, CIFAR, CSV, `.npy` and more.
//! - [`nn`]: modules, layers, losses, optimizers and checkpoints that PyTorch reads.
//! - `board`: event files for TensorBoard, with the names of PyTorch's `SummaryWriter`.
//!
//! # Features
//! - `cuda-13000` (default): bindings of CUDA 13.0. They load the installed driver when the program runs. For another
//!   version, disable this feature and enable the one of the crate `cudarc` for that version.
//! - `download` and `progress` (default): missing data files are fetched over HTTPS, with a progress bar on terminals.
//! - `tensorboard` (default): the module `board`.
//! - `linalg`: the module `linalg`. It uses `nalgebra`, which takes about 15 seconds to compile.
//! - `images`, `parquet`: folders of pictures, columns of Parquet files.
//! - `ndarray`, `arrow`: arrays of `ndarray` and values of Arrow arrays as tensors, and back.
//! - `tracing`: spans of the crate `tracing` (`tracing_spans`).
#![forbid(unsafe_code)]

#[cfg(feature = "tracing")]
mod spans;

#[cfg(feature = "tensorboard")]
#[doc(inline)]
pub use pagelock_board as board;
#[doc(inline)]
pub use pagelock_cuda as cuda;
#[doc(inline)]
pub use pagelock_data as data;
#[cfg(feature = "linalg")]
#[doc(inline)]
pub use pagelock_linalg as linalg;
#[doc(inline)]
pub use pagelock_memory as memory;
#[doc(inline)]
pub use pagelock_nn as nn;
#[doc(inline)]
pub use pagelock_tensor as tensor;
#[cfg(feature = "tracing")]
pub use spans::tracing_spans;

/// The names that most programs use, in one line: `use pagelock::prelude::*;`.
///
/// Losses and activations as functions are in [`nn::functional`], usually imported `as F`. `Result` is that of tensors
/// and layers, as in `Result<Tensor>`. A program with other errors too names a type for all of them:
/// `Result<(), Box<dyn std::error::Error>>`. The functions of [`nn::init`] take a generator:
/// ```
/// use pagelock::{nn::init, prelude::*};
///
/// let layer = Linear::new(784, 10)?;
/// init::normal_(&layer.weight, 0.0, 0.01, default_generator())?;
/// # Ok::<(), pagelock::tensor::Error>(())
/// ```
pub mod prelude {
    pub use pagelock_data::{
        DataLoader, Dataset, DigitSet, Digits, IterableDataset, Mnist, PinMemory, Stack, Subset, SyntheticDigits,
        TensorDataset, WhenFull, get_data, random_split,
    };
    pub use pagelock_memory::{Budget, ByteSize, ledger};
    pub use pagelock_nn::optim::{Adam, AdamW, GradScaler, Optimizer, RmsProp, Sgd, clip_grad_norm_, lr_scheduler};
    pub use pagelock_nn::{
        AdaptiveAvgPool2d, AvgPool2d, BCEWithLogitsLoss, BatchNorm1d, BatchNorm2d, Buffer, Checkpoint, Checkpoints,
        Conv1d, Conv2d, CrossEntropyLoss, Dropout, ELU, Embedding, Epoch, Flatten, Forward, GELU, GRU, GRUCell,
        GroupNorm, Identity, L1Loss, LSTM, LSTMCell, Lambda, Layer, LayerNorm, LeakyReLU, Linear, MSELoss, MaxPool2d,
        Module, ModuleDict, ModuleList, MultiheadAttention, NLLLoss, Parameter, RMSNorm, RNN, RNNCell, RNNOptions,
        ReLU, SavedCheckpoint, Sequential, SiLU, Sigmoid, Softmax, StateDict, Tanh, TransformerEncoderLayer, Unflatten,
        Upsample, fit, functional_call, load_safetensors, loss_batch, metrics, save_safetensors,
    };
    pub use pagelock_tensor::{
        Bool, CapturedStep, Conv2dOptions, DType, Device, Float, Generator, Half, Int, Pool2dOptions, Reduction,
        Result, Shape, Tensor, autocast, bf16, default_generator, enable_grad, f16, func, manual_seed, no_grad,
        num_threads, set_num_threads,
    };
}

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
