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
//! Each layer is a crate of its own, useful alone; here they are modules:
//! - [`memory`]: budgets, pools, page-locked and memory-mapped bytes, and a [`ledger`](memory::ledger()) of who holds what.
//! - [`cuda`]: streams, events, device memory and copies that cannot race, on a GPU or a software device.
//! - [`tensor`]: n-dimensional arrays, operations and automatic differentiation.
//! - [`data`]: datasets, samplers and loaders that page-lock batches and bring them to a GPU; MNIST, CIFAR, CSV, `.npy` and more.
//! - [`nn`]: modules, layers, losses, optimizers and checkpoints that PyTorch reads.
//! - `board`: event files for TensorBoard, with the names of PyTorch's `SummaryWriter`.
//!
//! # Features
//! - `cuda-13000` (default): the bindings are those of CUDA 13.0. They load whatever driver there is when the program runs. For
//!   other bindings switch it off and name one of cudarc's.
//! - `download` and `progress` (default): missing data files are fetched over HTTPS, with a progress bar on terminals.
//! - `tensorboard` (default): the module `board`.
//! - `images`, `parquet`: folders of pictures, columns of Parquet files.
#![forbid(unsafe_code)]

#[cfg(feature = "tensorboard")]
#[doc(inline)]
pub use pagelock_board as board;
#[doc(inline)]
pub use pagelock_cuda as cuda;
#[doc(inline)]
pub use pagelock_data as data;
#[doc(inline)]
pub use pagelock_memory as memory;
#[doc(inline)]
pub use pagelock_nn as nn;
#[doc(inline)]
pub use pagelock_tensor as tensor;

/// What most programs use, in one line: `use pagelock::prelude::*;`.
///
/// Losses and activations as functions are in [`nn::functional`], usually imported `as F`.
pub mod prelude {
    pub use pagelock_data::{
        DataLoader, Dataset, DigitSet, Digits, Mnist, PinMemory, Stack, Subset, SyntheticDigits, TensorDataset,
        WhenFull, get_data, random_split,
    };
    pub use pagelock_memory::{Budget, ByteSize, ledger};
    pub use pagelock_nn::optim::{Adam, AdamW, Optimizer, Sgd};
    pub use pagelock_nn::{
        AdaptiveAvgPool2d, AvgPool2d, BatchNorm1d, BatchNorm2d, Checkpoint, Checkpoints, Conv1d, Conv2d,
        CrossEntropyLoss, Dropout, Embedding, Epoch, Flatten, Forward, GELU, GRU, GRUCell, GroupNorm, Identity, LSTM,
        LSTMCell, Lambda, Layer, LayerNorm, LeakyReLU, Linear, MaxPool2d, Module, ModuleDict, ModuleList,
        MultiheadAttention, Parameter, RMSNorm, RNN, RNNCell, RNNOptions, ReLU, SavedCheckpoint, Sequential, SiLU,
        Sigmoid, Softmax, Tanh, TransformerEncoderLayer, Unflatten, Upsample, fit, load_safetensors, loss_batch,
        save_safetensors,
    };
    pub use pagelock_tensor::{
        Bool, CapturedStep, Conv2dOptions, DType, Device, Float, Generator, Half, Int, Pool2dOptions, Reduction, Shape,
        Tensor, autocast, manual_seed, no_grad, num_threads, set_num_threads,
    };
}

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
