//! [`StateDict`]: a model's parameters, buffers and counts by name.
//!
//! Invariant: `places` has exactly the names in `entries`, each with its place there.

use crate::error::shortened;
use crate::{Error, Misfit, Result};
use pagelock_tensor::{Float, Shape, Tensor, no_grad};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// Tensors by dotted name, in a model's order of declaration, as PyTorch's `state_dict()`.
///
/// Names are looked up in constant time. Counts of batches are integers, which [`count`](Self::count) gives.
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
    entries: BTreeMap<usize, (Arc<str>, Value<T>)>, // by their place in the order
    places: HashMap<Arc<str>, usize>,
    /// A name that two tensors of a model have, of which only the second is here.
    twice: Option<String>,
}

/// What has a name.
#[derive(Clone)]
pub(crate) enum Value<T: Float> {
    /// A parameter or a buffer.
    Tensor(Tensor<T>),
    /// A count, such as one of batches.
    Count(Tensor<i64>),
}

impl<T: Float> Value<T> {
    pub(crate) fn shape(&self) -> &Shape {
        match self {
            Value::Tensor(tensor) => tensor.shape(),
            Value::Count(count) => count.shape(),
        }
    }

    /// Takes the elements of another one of the same shape, which may be of the other kind.
    fn copy_(&self, from: &Value<T>) -> Result<()> {
        match (self, from) {
            (Value::Tensor(to), Value::Tensor(from)) => to.copy_(&from.to(&to.device())?)?,
            (Value::Tensor(to), Value::Count(from)) => to.copy_(&from.cast::<T>()?.to(&to.device())?)?,
            (Value::Count(to), Value::Tensor(from)) => to.copy_(&from.cast::<i64>()?.to(&to.device())?)?,
            (Value::Count(to), Value::Count(from)) => to.copy_(&from.to(&to.device())?)?,
        }
        Ok(())
    }
}

impl<T: Float> StateDict<T> {
    /// An empty one.
    pub fn new() -> Self {
        Self { entries: BTreeMap::new(), places: HashMap::new(), twice: None }
    }

    /// Adds a tensor; one of the same name is replaced.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor<T>) {
        self.put(name.into().into(), Value::Tensor(tensor));
    }

    /// Adds a count, a tensor without dimensions; what has the same name is replaced.
    pub fn insert_count(&mut self, name: impl Into<String>, count: Tensor<i64>) {
        self.put(name.into().into(), Value::Count(count));
    }

    /// Adds what a model has under a name, and notes if it has two of that name.
    pub(crate) fn add(&mut self, name: &str, value: Value<T>) {
        if self.put(name.into(), value) && self.twice.is_none() {
            self.twice = Some(shortened(name));
        }
    }

    /// Whether it replaced something.
    fn put(&mut self, name: Arc<str>, value: Value<T>) -> bool {
        if let Some((_, old)) = self.places.get(&name).and_then(|place| self.entries.get_mut(place)) {
            *old = value;
            return true;
        }
        let place = self.entries.last_key_value().map_or(0, |(last, _)| last + 1);
        self.places.insert(Arc::clone(&name), place);
        self.entries.insert(place, (name, value));
        false
    }

    /// The tensor of a name.
    pub fn get(&self, name: &str) -> Option<&Tensor<T>> {
        match self.value(name)? {
            Value::Tensor(tensor) => Some(tensor),
            Value::Count(_) => None,
        }
    }

    /// The count of a name.
    pub fn count(&self, name: &str) -> Option<&Tensor<i64>> {
        match self.value(name)? {
            Value::Tensor(_) => None,
            Value::Count(count) => Some(count),
        }
    }

    fn value(&self, name: &str) -> Option<&Value<T>> {
        self.entries.get(self.places.get(name)?).map(|(_, value)| value)
    }

    /// Takes a tensor out.
    pub fn remove(&mut self, name: &str) -> Option<Tensor<T>> {
        self.get(name)?;
        match self.take(name)? {
            Value::Tensor(tensor) => Some(tensor),
            Value::Count(_) => None,
        }
    }

    /// Takes a count out.
    pub fn remove_count(&mut self, name: &str) -> Option<Tensor<i64>> {
        self.count(name)?;
        match self.take(name)? {
            Value::Tensor(_) => None,
            Value::Count(count) => Some(count),
        }
    }

    fn take(&mut self, name: &str) -> Option<Value<T>> {
        let place = self.places.remove(name)?;
        self.entries.remove(&place).map(|(_, value)| value)
    }

    /// All names, those of counts among them, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values().map(|(name, _)| name)
    }

    /// All tensors with their names, in order, without the counts. To choose or rename both, see [`renamed`](Self::renamed).
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor<T>)> {
        self.values().filter_map(|(name, value)| match value {
            Value::Tensor(tensor) => Some((name, tensor)),
            Value::Count(_) => None,
        })
    }

    /// All counts with their names, in order.
    pub fn counts(&self) -> impl Iterator<Item = (&str, &Tensor<i64>)> {
        self.values().filter_map(|(name, value)| match value {
            Value::Tensor(_) => None,
            Value::Count(count) => Some((name, count)),
        })
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, &Value<T>)> {
        self.entries.values().map(|(name, value)| (&**name, value))
    }

    /// The tensors and counts to which `rename` gives a name, in order. Two of one name make a dict that can be neither loaded
    /// nor saved.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{BatchNorm2d, Module};
    ///
    /// let dict = (BatchNorm2d::new(3)?,).state_dict();
    /// let layer = dict.renamed(|name| name.strip_prefix("0.").map(str::to_owned));
    /// BatchNorm2d::new(3)?.load_state_dict(&layer)?;
    /// # Ok::<(), pagelock_nn::Error>(())
    /// ```
    #[must_use]
    pub fn renamed(&self, mut rename: impl FnMut(&str) -> Option<String>) -> Self {
        let mut dict = Self { twice: self.twice.clone(), ..Self::new() };
        for (name, value) in self.values() {
            if let Some(name) = rename(name) {
                dict.add(&name, value.clone());
            }
        }
        dict
    }

    /// How many tensors and counts there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// That no two tensors had one name when this was made.
    pub(crate) fn check_names(&self) -> Result<()> {
        self.twice.as_ref().map_or(Ok(()), |name| Err(Error::NameTwice { name: name.clone() }))
    }

    /// Copies the values into `model`, the state dict of a model, if names and shapes are the same.
    pub(crate) fn copy_into(&self, model: &Self) -> Result<()> {
        self.check_names()?;
        model.check_names()?;
        let misfit = self.misfit(model);
        if !misfit.is_empty() {
            return Err(Error::StateDict(Box::new(misfit)));
        }
        no_grad(|| {
            for (name, target) in model.values() {
                if let Some(value) = self.value(name) {
                    target.copy_(value)?;
                }
            }
            Ok(())
        })
    }

    fn misfit(&self, model: &Self) -> Misfit {
        let mut misfit = Misfit::default();
        for (name, target) in model.values() {
            match (self.value(name), target) {
                (None, Value::Tensor(_)) => misfit.missing.push(name.to_owned()),
                (None, Value::Count(_)) => {} // PyTorch's files of before 2018 have none
                (Some(value), _) if value.shape() != target.shape() => {
                    misfit.misshapen.push((name.to_owned(), *value.shape(), *target.shape()));
                }
                (Some(_), _) => {}
            }
        }
        misfit.unexpected = self.names().filter(|name| model.value(name).is_none()).map(str::to_owned).collect();
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
        f.debug_map().entries(self.values().map(|(name, value)| (name, value.shape()))).finish()
    }
}

impl<T: Float> FromIterator<(String, Tensor<T>)> for StateDict<T> {
    fn from_iter<I: IntoIterator<Item = (String, Tensor<T>)>>(entries: I) -> Self {
        let mut dict = Self::new();
        entries.into_iter().for_each(|(name, tensor)| dict.insert(name, tensor));
        dict
    }
}
