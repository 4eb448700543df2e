//! Losses as values, with PyTorch's settings. [`functional`](crate::functional) has them as functions with PyTorch's
//! default settings.
//!
//! A loss is a [`Module`](crate::Module): its class weights are buffers, which are moved and saved with a model that
//! contains the loss.

mod adaptive;
mod classes;
mod ctc;
mod elementwise;
mod embeddings;
mod labels;

use pagelock_tensor::{Error, Reduction, Result, Tensor, autocast_type};

use crate::functional::shared::wrong_shape;

pub use adaptive::AdaptiveLogSoftmaxWithLoss;
pub use classes::{CrossEntropyLoss, NLLLoss, Targets};
pub use ctc::CTCLoss;
pub use elementwise::{
    GaussianNLLLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss, PoissonNLLLoss, SmoothL1Loss, SoftMarginLoss,
};
pub use embeddings::{
    CosineEmbeddingLoss, HingeEmbeddingLoss, MarginRankingLoss, TripletMarginLoss, TripletMarginWithDistanceLoss,
};
pub use labels::{BCELoss, BCEWithLogitsLoss, MultiLabelMarginLoss, MultiLabelSoftMarginLoss, MultiMarginLoss};

/// `loss! { docs; Name { docs; setting: type = default, .. }, |loss, inputs| losses of the elements }`
macro_rules! loss {
    (
        $(#[$docs:meta])* $name:ident { $($(#[$of_setting:meta])* $setting:ident: $type:ty = $default:expr),* $(,)? },
        |$loss:ident, $($input:ident),+| $losses:expr
    ) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Debug, crate::Module)]
        pub struct $name {
            #[module(skip)]
            reduction: pagelock_tensor::Reduction,
            $(#[module(skip)] $setting: $type),*
        }

        impl $name {
            /// The loss with PyTorch's default settings, reduced to its mean.
            pub fn new() -> Self {
                Self { reduction: pagelock_tensor::Reduction::Mean, $($setting: $default),* }
            }

            /// The losses of the elements, reduced.
            ///
            /// # Errors
            /// The shapes do not match, or there is no element to take the mean of.
            pub fn forward(&self, $($input: &pagelock_tensor::Tensor),+) -> pagelock_tensor::Result<pagelock_tensor::Tensor> {
                let _scope = crate::module_scope(self);
                let $loss = self;
                $(let $input = &super::in_precision($input)?;)+
                super::reduced(stringify!($name), $losses?, self.reduction)
            }
        }

        crate::setters::setters! { $name,
            /// Sets the reduction: the mean (the default), the sum, or none.
            reduction: pagelock_tensor::Reduction;
            $($(#[$of_setting])* $setting: $type;)*
        }

        crate::setters::default_is_new!($name);
    };
}
use loss;

/// The input in the precision of losses: under [`autocast`](pagelock_tensor::autocast), halves are converted to `f32`.
fn in_precision(input: &Tensor) -> Result<Tensor> {
    match autocast_type() {
        Some(_) => input.to_dtype(input.dtype().computing()),
        None => Ok(input.clone()),
    }
}

/// Reduces the losses of the elements.
fn reduced(op: &str, losses: Tensor, reduction: Reduction) -> Result<Tensor> {
    match reduction {
        Reduction::Mean if losses.is_empty() => {
            Err(Error::Argument(format!("{op}: the batch is empty; skip empty batches, or use Reduction::Sum")))
        }
        Reduction::Mean => losses.mean(..),
        Reduction::Sum => losses.sum(..),
        Reduction::None => Ok(losses),
    }
}

/// Checks that the target has the input's shape.
fn check_same(op: &str, input: &Tensor, target: &Tensor) -> Result<()> {
    if input.shape() == target.shape() {
        return Ok(());
    }
    let expected = format!("it must have the input's shape {}; reshape one of them", input.shape());
    Err(wrong_shape(op, "the target", target.shape(), &expected))
}
