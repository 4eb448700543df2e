//! All parameters as one vector, and back: PyTorch's `nn.utils.parameters_to_vector` and `vector_to_parameters`.

use pagelock_tensor::{Error, Tensor, no_grad};

use crate::{Parameter, Result};

/// The elements of all parameters, one after the other. Gradients flow back to the parameters.
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, Module, parameters_to_vector, vector_to_parameters};
///
/// let model = Linear::new(3, 2)?;
/// let vector = parameters_to_vector(&model.parameters())?;
/// assert_eq!(vector.dims(), [3 * 2 + 2]);
/// vector_to_parameters(&vector.detach().mul_scalar(0.0)?, &model.parameters())?;
/// assert_eq!(model.weight.to_vec::<f32>()?, [0.0; 6]);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) without parameters; [`Error::Tensor`](crate::Error::Tensor) if they
/// are on different devices, or the vector does not fit the memory budget.
pub fn parameters_to_vector(parameters: &[Parameter]) -> Result<Tensor> {
    if parameters.is_empty() {
        return Err(crate::Error::Argument(
            "parameters_to_vector: there are no parameters; give at least one".to_owned(),
        ));
    }
    let flat = parameters.iter().map(|parameter| parameter.reshape([-1])).collect::<Result<Vec<Tensor>, Error>>()?;
    Ok(Tensor::cat(&flat, 0)?)
}

/// Copies the elements of a vector into the parameters, in order, each in its own precision.
///
/// # Examples
/// See [`parameters_to_vector`].
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) if the vector is not one-dimensional with as many elements as the
/// parameters, or is on another device. Nothing is copied then.
pub fn vector_to_parameters(vector: &Tensor, parameters: &[Parameter]) -> Result<()> {
    let count: usize = parameters.iter().map(|parameter| parameter.len()).sum();
    if *vector.shape() != [count] {
        return Err(crate::Error::Argument(format!(
            "vector_to_parameters: the vector is {}, but the parameters have {count} elements together; give a vector of [{count}]",
            vector.shape()
        )));
    }
    if let Some(elsewhere) = parameters.iter().find(|parameter| parameter.device() != vector.device()) {
        let (here, there) = (vector.device(), elsewhere.device());
        return Err(crate::Error::Argument(format!(
            "vector_to_parameters: the vector is on {here}, but a parameter is on {there}; move one with `.to(&device)?`"
        )));
    }
    let mut start = 0;
    for parameter in parameters {
        let part = vector.detach().narrow(0, start, parameter.len())?.to_dtype(parameter.dtype())?;
        let part = if parameter.rank() == 1 { part } else { part.unflatten(0, parameter.shape())? };
        no_grad(|| parameter.copy_(&part))?;
        start += parameter.len();
    }
    Ok(())
}
