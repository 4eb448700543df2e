//! [`audit`]: which parameters of a model get no gradient, and why.

use crate::Module;
use pagelock_tensor::autograd::{self, Audit};
use pagelock_tensor::{Result, Tensor};

/// Runs `loss` and reports each parameter of `model` that the loss's gradient does not reach, and why.
/// Such a parameter is never trained.
///
/// Operations that `loss` runs on other threads are not seen.
///
/// # Errors
/// Those of `loss`.
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, Linear, Module, audit};
/// use pagelock_tensor::{Result, Tensor};
///
/// #[derive(Module)]
/// struct Net {
///     body: Linear,
///     head: Linear,
///     spare: Linear,
/// }
/// # let linear = || Linear::new(3, 3).map(Linear::without_bias);
/// let net = Net { body: linear()?, head: linear()?, spare: linear()? };
/// let report = audit(&net, || {
///     let features = net.body.forward(&Tensor::ones([1, 3])?)?.detach();
///     net.head.forward(&features)?.sum(..)
/// })?;
/// assert_eq!(report.to_string(), "\
/// `body.weight` is not reached from the loss: cut by `detach`
/// `spare.weight` is not reached from the loss: never used");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn audit<M: Module + ?Sized>(model: &M, loss: impl FnOnce() -> Result<Tensor>) -> Result<Audit> {
    let parameters = model.named_parameters();
    let named: Vec<(&str, &Tensor)> =
        parameters.iter().map(|(name, parameter)| (name.as_str(), parameter.as_tensor())).collect();
    autograd::audit(&named, loss)
}
