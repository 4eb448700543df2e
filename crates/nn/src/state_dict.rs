//! [`StateDict`]: a model's parameters and buffers by name.

use crate::{Error, Misfit, Result};
use pagelock_tensor::{Float, Tensor, no_grad};
use std::fmt;

/// Tensors by dotted name, in a model's order of declaration, as PyTorch's `state_dict()`.
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, Module};
///
/// let (trained, fresh) = (Linear::new(3, 2)?, Linear::new(3, 2)?);
/// let dict = trained.state_dict();
/// assert_eq!(dict.names().collect::<Vec<_>>(), ["weight", "bias"]);
/// fresh.load_state_dict(&dict)?;
/// assert_eq!(fresh.weight.to_vec()?, trained.weight.to_vec()?);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
#[derive(Clone)]
pub struct StateDict<T: Float = f32> {
    entries: Vec<(String, Tensor<T>)>,
}

impl<T: Float> StateDict<T> {
    /// An empty one.
    pub fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Adds a tensor; one of the same name is replaced.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor<T>) {
        let name = name.into();
        match self.entries.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => *old = tensor,
            None => self.entries.push((name, tensor)),
        }
    }

    /// The tensor of a name.
    pub fn get(&self, name: &str) -> Option<&Tensor<T>> {
        self.entries.iter().find(|(other, _)| other == name).map(|(_, tensor)| tensor)
    }

    /// Takes a tensor out.
    pub fn remove(&mut self, name: &str) -> Option<Tensor<T>> {
        let position = self.entries.iter().position(|(other, _)| other == name)?;
        Some(self.entries.remove(position).1)
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// All names and tensors, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor<T>)> {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Copies the values into `model`, the state dict of a model, if names and shapes are the same.
    pub(crate) fn copy_into(&self, model: &Self) -> Result<()> {
        let misfit = self.misfit(model);
        if !misfit.is_empty() {
            return Err(Error::StateDict(Box::new(misfit)));
        }
        no_grad(|| {
            for (name, target) in model.iter() {
                if let Some(value) = self.get(name) {
                    target.copy_(&value.to(&target.device())?)?;
                }
            }
            Ok(())
        })
    }

    fn misfit(&self, model: &Self) -> Misfit {
        let mut misfit = Misfit::default();
        for (name, target) in model.iter() {
            match self.get(name) {
                None => misfit.missing.push(name.to_owned()),
                Some(value) if value.shape() != target.shape() => {
                    misfit.misshapen.push((name.to_owned(), *value.shape(), *target.shape()));
                }
                Some(_) => {}
            }
        }
        misfit.unexpected = self.names().filter(|name| model.get(name).is_none()).map(str::to_owned).collect();
        misfit
    }
}

impl<T: Float> Default for StateDict<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Names and shapes.
impl<T: Float> fmt::Debug for StateDict<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(name, tensor)| (name, tensor.shape()))).finish()
    }
}

impl<T: Float> FromIterator<(String, Tensor<T>)> for StateDict<T> {
    fn from_iter<I: IntoIterator<Item = (String, Tensor<T>)>>(entries: I) -> Self {
        let mut dict = Self::new();
        entries.into_iter().for_each(|(name, tensor)| dict.insert(name, tensor));
        dict
    }
}
