#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

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
        AdaptiveAvgPool2d, AvgPool2d, BatchNorm1d, BatchNorm2d, Conv2d, Dropout, Epoch, Flatten, Forward, Lambda,
        Layer, LayerNorm, Linear, MaxPool2d, Module, Parameter, ReLU, Sequential, Sigmoid, Tanh, fit, load_safetensors,
        loss_batch, save_safetensors,
    };
    pub use pagelock_tensor::{
        Bool, CapturedStep, Conv2dOptions, DType, Device, Float, Generator, Half, Int, Pool2dOptions, Reduction, Shape,
        Tensor, autocast, manual_seed, no_grad, num_threads, set_num_threads,
    };
}
