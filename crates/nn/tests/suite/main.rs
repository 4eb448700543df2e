//! The tests of pagelock-nn, in one binary: what PyTorch does is in `../golden`, written by `make.py` there.

mod derive;
mod files;
mod fit;
mod init;
mod modules;
mod moving;
mod normalizing;
mod optimizers;
mod printing;
mod pytorch;
mod replay;

use pagelock_nn::{AdaptiveAvgPool2d, Conv2d, Flatten, ReLU, Sequential};
use pagelock_tensor::Result;

/// The tutorial's model.
fn cnn() -> Result<Sequential> {
    Ok(Sequential::new((
        Conv2d::new(1, 16, 3)?.stride(2).padding(1),
        ReLU,
        Conv2d::new(16, 16, 3)?.stride(2).padding(1),
        ReLU,
        Conv2d::new(16, 10, 3)?.stride(2).padding(1),
        ReLU,
        AdaptiveAvgPool2d::new(1),
        Flatten::new(),
    )))
}
