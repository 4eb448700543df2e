//! The walkthrough's network.

use pagelock::nn::functional as F;
use pagelock::prelude::*;
use pagelock::tensor::Result;

/// Two convolutions, each with ReLU and pooling, and three linear layers.
#[derive(Module)]
pub(crate) struct Net {
    conv1: Conv2d,
    pool: MaxPool2d,
    conv2: Conv2d,
    fc1: Linear,
    fc2: Linear,
    fc3: Linear,
}

impl Net {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            conv1: Conv2d::new(1, 6, 5)?,
            pool: MaxPool2d::new(2),
            conv2: Conv2d::new(6, 16, 5)?,
            fc1: Linear::new(16 * 4 * 4, 120)?,
            fc2: Linear::new(120, 84)?,
            fc3: Linear::new(84, 10)?,
        })
    }
}

impl Forward for Net {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.pool.forward(&F::relu(&self.conv1.forward(x)?)?)?;
        let x = self.pool.forward(&F::relu(&self.conv2.forward(&x)?)?)?;
        let x = x.reshape([-1, 16 * 4 * 4])?;
        let x = F::relu(&self.fc1.forward(&x)?)?;
        let x = F::relu(&self.fc2.forward(&x)?)?;
        self.fc3.forward(&x)
    }
}
