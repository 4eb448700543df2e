//! [`StateDict`]: a model's parameters and buffers by name.
//!
//! Invariant: `keys` has exactly the names in `entries`, each with its key there.

use crate::{Error, Misfit, Result};
use pagelock_tensor::text::shortened;
use pagelock_tensor::{self as tensor, AnyTensor, Bool, CountedHeap, DType, Int, Kind, Tensor, copy_all_, no_grad};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// Tensors by dotted name, in a model's order of declaration, as PyTorch's `state_dict()`: floats, integers and truth values
/// of any precision.
///
/// Names are looked up in constant time.
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, Module};
///
/// let (trained, fresh) = (Linear::new(3, 2)?, Linear::new(3, 2)?);
/// let dict = trained.state_dict();
/// assert_eq!(dict.names().collect::<Vec<_>>(), ["weight", "bias"]);
/// fresh.load_state_dict(&dict)?;
/// assert_eq!(fresh.weight.to_vec::<f32>()?, trained.weight.to_vec::<f32>()?);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
#[derive(Default)]
pub struct StateDict {
    entries: BTreeMap<usize, (Arc<str>, AnyTensor)>, // by key, in order
    keys: HashMap<Arc<str>, usize>,
    /// A name that two tensors of a model have; `entries` has only the second one.
    duplicate_name: Option<String>,
    entry_bytes: EntryBytes,
}

/// The memory of the entries without the elements of tensors, counted in the host's budget.
struct EntryBytes {
    text_bytes: usize,
    heap: CountedHeap,
}

impl Default for EntryBytes {
    fn default() -> Self {
        Self { text_bytes: 0, heap: CountedHeap::new(0) }
    }
}

impl EntryBytes {
    /// Bytes of an entry without its name: in a node of the tree, which is half empty if keys are inserted in order, and in the
    /// table of keys.
    const ENTRY_BYTES: usize = 2 * size_of::<(usize, (Arc<str>, AnyTensor))>() + 4 * size_of::<(Arc<str>, usize)>();

    fn set(&mut self, n_entries: usize, text_bytes: usize) {
        self.text_bytes = text_bytes;
        self.heap.set(text_bytes + n_entries * Self::ENTRY_BYTES);
    }
}

impl Clone for StateDict {
    fn clone(&self) -> Self {
        let mut entry_bytes = EntryBytes::default();
        entry_bytes.set(self.len(), self.entry_bytes.text_bytes);
        Self {
            entries: self.entries.clone(),
            keys: self.keys.clone(),
            duplicate_name: self.duplicate_name.clone(),
            entry_bytes,
        }
    }
}

impl StateDict {
    /// An empty state dict.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor, or replaces the one of the same name.
    pub fn insert(&mut self, name: impl Into<String>, tensor: impl Into<AnyTensor>) {
        self.put(name.into().into(), tensor.into());
    }

    /// Adds a tensor of a model, and records if the model has two of that name.
    pub(crate) fn add(&mut self, name: &str, tensor: AnyTensor) {
        if self.put(name.into(), tensor) && self.duplicate_name.is_none() {
            self.duplicate_name = Some(shortened(name));
        }
    }

    /// Inserts a tensor. Returns whether it replaced one.
    fn put(&mut self, name: Arc<str>, tensor: AnyTensor) -> bool {
        if let Some((_, old)) = self.keys.get(&name).and_then(|key| self.entries.get_mut(key)) {
            *old = tensor;
            return true;
        }
        let key = self.entries.last_key_value().map_or(0, |(last, _)| last + 1);
        let text_bytes = self.entry_bytes.text_bytes + name.len();
        self.keys.insert(Arc::clone(&name), key);
        self.entries.insert(key, (name, tensor));
        self.entry_bytes.set(self.len(), text_bytes);
        false
    }

    /// The float tensor with this name.
    pub fn get(&self, name: &str) -> Option<Tensor> {
        self.get_as(name)
    }

    /// The integer tensor with this name, such as a count of batches.
    pub fn get_int(&self, name: &str) -> Option<Tensor<Int>> {
        self.get_as(name)
    }

    /// The boolean tensor with this name.
    pub fn get_bool(&self, name: &str) -> Option<Tensor<Bool>> {
        self.get_as(name)
    }

    /// The tensor with this name, if it is of the kind `K`.
    pub fn get_as<K: Kind>(&self, name: &str) -> Option<Tensor<K>> {
        self.get_any(name)?.kind().ok()
    }

    /// The tensor with this name, of any kind.
    pub fn get_any(&self, name: &str) -> Option<&AnyTensor> {
        self.entries.get(self.keys.get(name)?).map(|(_, tensor)| tensor)
    }

    /// Removes a tensor and returns it.
    pub fn remove(&mut self, name: &str) -> Option<AnyTensor> {
        let key = self.keys.remove(name)?;
        let (name, tensor) = self.entries.remove(&key)?;
        self.entry_bytes.set(self.len(), self.entry_bytes.text_bytes - name.len());
        Some(tensor)
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    /// All tensors with their names, in order. To choose or rename some, see [`renamed`](Self::renamed).
    pub fn iter(&self) -> impl Iterator<Item = (&str, &AnyTensor)> {
        self.entries.values().map(|(name, tensor)| (&**name, tensor))
    }

    /// The tensors to which `rename` gives a name, in order. If two get the same name, the dict can be neither loaded
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
        let mut dict = Self { duplicate_name: self.duplicate_name.clone(), ..Self::new() };
        for (name, tensor) in self.iter() {
            if let Some(name) = rename(name) {
                dict.add(&name, tensor.clone());
            }
        }
        dict
    }

    /// A state dict with a copy of each tensor, which training does not change. Tied tensors have a copy each.
    ///
    /// # Errors
    /// As [`AnyTensor::to_dtype`].
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Linear, Module};
    /// use pagelock_tensor::no_grad;
    ///
    /// let model = Linear::new(2, 1)?;
    /// let best = model.state_dict().deep_clone()?;
    /// no_grad(|| model.weight.zero_())?;
    /// model.load_state_dict(&best)?;
    /// # Ok::<(), pagelock_nn::Error>(())
    /// ```
    pub fn deep_clone(&self) -> Result<Self> {
        let mut dict = self.clone();
        for (_, tensor) in dict.entries.values_mut() {
            *tensor = tensor.deep_clone()?;
        }
        Ok(dict)
    }

    /// A state dict with all floats converted to `dtype`, for example for a smaller file. Integers and booleans stay
    /// as they are.
    ///
    /// # Errors
    /// As [`AnyTensor::to_dtype`].
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        let mut dict = self.clone();
        for (_, tensor) in dict.entries.values_mut().filter(|(_, tensor)| tensor.dtype().is_float()) {
            *tensor = tensor.to_dtype(dtype)?;
        }
        Ok(dict)
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns an error if two tensors had the same name when this was made.
    pub(crate) fn check_names(&self) -> Result<()> {
        let Some(name) = &self.duplicate_name else { return Ok(()) };
        Err(Error::Argument(format!(
            "two tensors have the name `{name}`, but a state dict can hold only one of them; give each field and \
             child its own name"
        )))
    }

    /// Copies the values into `model`, the state dict of a model, if names, shapes and kinds are the same.
    pub(crate) fn copy_into(&self, model: &Self) -> Result<()> {
        self.check_names()?;
        model.check_names()?;
        let misfit = self.misfit(model);
        if !misfit.is_empty() {
            return Err(Error::StateDict(Box::new(misfit)));
        }
        self.copy_common(model)
    }

    /// As [`copy_into`](Self::copy_into), for the names that both have. Returns the names that only one has.
    pub(crate) fn copy_partly_into(&self, model: &Self) -> Result<Misfit> {
        self.check_names()?;
        model.check_names()?;
        let misfit = self.misfit(model);
        if !misfit.misshapen.is_empty() || !misfit.mistyped.is_empty() {
            return Err(Error::StateDict(Box::new(misfit)));
        }
        self.copy_common(model)?;
        Ok(misfit)
    }

    /// Copies the tensors that both have. Their shapes and kinds must match.
    fn copy_common(&self, model: &Self) -> Result<()> {
        no_grad(|| {
            let pairs = model.iter().filter_map(|(name, target)| Some((target, self.get_any(name)?)));
            let pairs = pairs.map(|(target, value)| Ok((target, of_kind_of(target, value)?)));
            let pairs = pairs.collect::<tensor::Result<Vec<_>>>()?;
            Ok(copy_all_(&pairs.iter().map(|(target, value)| (*target, value)).collect::<Vec<_>>())?)
        })
    }

    fn misfit(&self, model: &Self) -> Misfit {
        let mut misfit = Misfit::default();
        for (name, target) in model.iter() {
            match self.get_any(name) {
                None if is_count(target) => {} // PyTorch's files from before 2018 have no counts
                None => misfit.missing.push(name.to_owned()),
                Some(value) if value.shape() != target.shape() => {
                    misfit.misshapen.push((name.to_owned(), *value.shape(), *target.shape()));
                }
                Some(value) if !takes(target, value) => {
                    misfit.mistyped.push((name.to_owned(), value.dtype(), target.dtype()));
                }
                Some(_) => {}
            }
        }
        misfit.unexpected = self.names().filter(|name| model.get_any(name).is_none()).map(str::to_owned).collect();
        misfit
    }
}

/// Whether a tensor may be a count, such as a count of batches.
fn is_count(tensor: &AnyTensor) -> bool {
    tensor.dtype() == DType::I64 && tensor.shape().rank() == 0
}

/// Whether `value` can be copied into `target`: both are of one kind, or `target` is a count and `value` a float, as
/// in older files.
fn takes(target: &AnyTensor, value: &AnyTensor) -> bool {
    let is_same_kind = target.dtype().kind_name() == value.dtype().kind_name();
    is_same_kind || (is_count(target) && value.dtype().is_float())
}

/// `value` in the kind of `target`.
fn of_kind_of(target: &AnyTensor, value: &AnyTensor) -> tensor::Result<AnyTensor> {
    let is_old_count = !target.dtype().is_float() && value.dtype().is_float();
    if is_old_count { Ok(value.float()?.to_int()?.into()) } else { Ok(value.clone()) }
}

/// Names, element types and shapes.
impl fmt::Debug for StateDict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (name, tensor) in self.iter() {
            map.entry(&name, &format_args!("{} {}", tensor.dtype(), tensor.shape()));
        }
        map.finish()
    }
}

impl<V: Into<AnyTensor>> FromIterator<(String, V)> for StateDict {
    fn from_iter<I: IntoIterator<Item = (String, V)>>(entries: I) -> Self {
        let mut dict = Self::new();
        entries.into_iter().for_each(|(name, tensor)| dict.insert(name, tensor));
        dict
    }
}
