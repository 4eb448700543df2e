//! Networks that several test programs use.

use pagelock_nn::{AdaptiveAvgPool2d, Conv2d, Flatten, ReLU, Sequential};
use pagelock_tensor::Result;

/// The tutorial's model.
pub(crate) fn cnn() -> Result<Sequential> {
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
