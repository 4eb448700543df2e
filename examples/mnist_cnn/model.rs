//! The two networks.

use anyhow::Result;
use pagelock::prelude::*;

/// Which network.
#[derive(Clone, Copy, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arch {
    /// The network of "What is torch.nn really?": three convolutions, 3,930 parameters.
    Tutorial,
    /// Like LeNet-5 (LeCun et al., 1998), but wider, with ReLU and dropout.
    Lenet,
}

impl Arch {
    pub(crate) fn model(self) -> Result<Sequential> {
        Ok(match self {
            Arch::Tutorial => Sequential::new((
                Conv2d::new(1, 16, 3)?.stride(2).padding(1),
                ReLU,
                Conv2d::new(16, 16, 3)?.stride(2).padding(1),
                ReLU,
                Conv2d::new(16, 10, 3)?.stride(2).padding(1),
                ReLU,
                AdaptiveAvgPool2d::new(1),
                Flatten::new(),
            )),
            Arch::Lenet => Sequential::new((
                Conv2d::new(1, 16, 5)?.padding(2),
                ReLU,
                MaxPool2d::new(2),
                Conv2d::new(16, 32, 5)?,
                ReLU,
                MaxPool2d::new(2),
                Flatten::new(),
                Linear::new(32 * 5 * 5, 128)?,
                ReLU,
                Dropout::new(0.3),
                Linear::new(128, 10)?,
            )),
        })
    }

    /// The learning rate of each epoch. It is constant for the tutorial's network. For `Lenet` each epoch multiplies
    /// it by the same factor, down to a twentieth.
    pub(crate) fn schedule(self, lr: Option<f64>, epochs: usize) -> impl Fn(usize) -> f64 {
        let (first, last_share): (f64, f64) = match self {
            Arch::Tutorial => (0.1, 1.0),
            Arch::Lenet => (0.05, 0.05),
        };
        let steps = epochs.saturating_sub(1).max(1) as f64;
        move |epoch| lr.unwrap_or(first) * last_share.powf(epoch as f64 / steps)
    }
}
