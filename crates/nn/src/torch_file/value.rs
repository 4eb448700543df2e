//! [`TorchValue`]: the contents of a PyTorch file, and their conversion from and to state dicts.

use std::path::Path;

use pagelock_tensor::{AnyTensor, DType, Tensor};

use super::{read, write};
use crate::optim::{OptimizerState, ParamGroup, Setting};
use crate::{Error, Result, StateDict};

/// The contents of a PyTorch file: a tensor, a number, a text, or a list or dict of such values. See
/// [`TorchValue::load`].
///
/// # Examples
/// ```
/// use pagelock_nn::{Linear, Module, TorchValue};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("checkpoint.pt");
/// let model = Linear::new(3, 2)?;
/// let dict = model.state_dict().to_torch()?;
/// TorchValue::dict([("model", dict), ("epoch", 3.into()), ("note", "first".into())]).save(&path)?;
///
/// let checkpoint = TorchValue::load(&path)?; // or what torch.save({"model": …, "epoch": 3, …}, path) wrote
/// assert_eq!(checkpoint.get("epoch").and_then(TorchValue::as_int), Some(3));
/// model.load_state_dict(&checkpoint.at("model")?.to_state_dict()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TorchValue {
    /// Python's `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer of up to 64 bits.
    Int(i64),
    /// A number.
    Float(f64),
    /// A text; also a device, such as `cuda:0`.
    Text(String),
    /// Bytes; also a text of Python 2.
    Bytes(Vec<u8>),
    /// An element type, by PyTorch's name: `float32`.
    DType(String),
    /// A tensor, or a parameter.
    Tensor(Box<AnyTensor>),
    /// A list, or a set.
    List(Vec<TorchValue>),
    /// A tuple, or a `torch.Size`.
    Tuple(Vec<TorchValue>),
    /// A dict, an `OrderedDict` or a `Counter`, in its order. Each key occurs once.
    Dict(Vec<(TorchValue, TorchValue)>),
}

impl TorchValue {
    /// Reads a file that `torch.save` wrote: the zip archives of today, the sequences of pickles of
    /// older versions, and the tar archives of 2016.
    ///
    /// Its pickle is read by the rules of `torch.load(weights_only=True)`, and never executed. Each storage is read
    /// once, into memory of the host's budget, whatever device it was on. Tensors that share a storage in the file
    /// share it here.
    ///
    /// # Errors
    /// In [`Error::Tensor`]: `Io`; `Content` if it is not a complete PyTorch file, names a function that weights do
    /// not need, or has elements that no tensor has; `Memory` and `WorkingMemory` if the budget does not suffice.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        read::read(path.as_ref())
    }

    /// Writes a file that `torch.load(path)` reads, also with `weights_only=True`, and replaces an existing file.
    /// Tensors that share a storage share it in the file, which has only the part of the storage that they use. A
    /// dict of tensors becomes an `OrderedDict`.
    ///
    /// # Errors
    /// [`Error::Tensor`]: `Io` if the system cannot write the file, or as [`Tensor::to`] for tensors on a device. An
    /// existing file is kept then. [`Error::Argument`] for values that are nested more than 100 deep.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        write::save(self, path.as_ref())
    }

    /// A dict with these names.
    pub fn dict(entries: impl IntoIterator<Item = (impl Into<String>, TorchValue)>) -> Self {
        Self::Dict(entries.into_iter().map(|(name, value)| (Self::Text(name.into()), value)).collect())
    }

    /// The value with this name, if this is a dict that has it.
    pub fn get(&self, name: &str) -> Option<&TorchValue> {
        let has_name = |(key, _): &&(Self, Self)| key.as_text() == Some(name);
        self.entries().iter().find(has_name).map(|(_, value)| value)
    }

    /// The value with this name.
    ///
    /// # Errors
    /// [`Error::Argument`] lists the names that exist.
    pub fn at(&self, name: &str) -> Result<&TorchValue> {
        self.get(name).ok_or_else(|| Error::Argument(format!("there is no `{name}`; there is {}", self.names())))
    }

    /// The entries of a dict, in its order; none for other values.
    pub fn entries(&self) -> &[(TorchValue, TorchValue)] {
        if let Self::Dict(entries) = self { entries } else { &[] }
    }

    /// The integer, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        if let Self::Int(number) = self { Some(*number) } else { None }
    }

    /// The number, if this is a number, an integer or a tensor of one float.
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            Self::Int(number) => Some(*number as f64),
            Self::Tensor(tensor) if tensor.shape().elements() == 1 => tensor.float().ok()?.item().ok(),
            _ => None,
        }
    }

    /// The text, if it is one, or if it is the bytes of a Python 2 text.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The tensor, if it is one.
    pub fn as_tensor(&self) -> Option<&AnyTensor> {
        if let Self::Tensor(tensor) = self { Some(tensor) } else { None }
    }

    /// This value as a state dict, if it is a dict of named tensors and nothing else.
    ///
    /// # Errors
    /// [`Error::Argument`] lists the contents if they are anything else.
    pub fn to_state_dict(&self) -> Result<StateDict> {
        let Self::Dict(entries) = self else {
            return Err(Error::Argument(format!(
                "this is not a state dict, but {}; take the entry that is one",
                self.names()
            )));
        };
        let mut dict = StateDict::new();
        for (key, value) in entries {
            let (Some(name), Some(tensor)) = (key.as_text(), value.as_tensor()) else {
                let fix = "load it with `TorchValue::load`, and take the entry that is a state dict";
                return Err(Error::Argument(format!(
                    "a state dict holds only tensors, but this has {}; {fix}",
                    self.names()
                )));
            };
            dict.insert(name, tensor.clone());
        }
        Ok(dict)
    }

    /// Whether it is a dict of nothing but tensors with names.
    pub(super) fn is_state_dict(&self) -> bool {
        let is_tensor = |(key, value): &(Self, Self)| key.as_text().is_some() && value.as_tensor().is_some();
        matches!(self, Self::Dict(entries) if entries.iter().all(is_tensor))
    }

    /// The state of an optimizer, as PyTorch's `optimizer.state_dict()` has it. Settings that are `None` are left
    /// out, and numbers in the state become tensors.
    ///
    /// # Errors
    /// [`Error::Argument`] names what is missing, or not part of such a state.
    pub fn to_optimizer_state(&self) -> Result<OptimizerState> {
        let mut optimizer = OptimizerState::default();
        for (number, entries) in self.at("state")?.entries() {
            let number = number.as_int().ok_or_else(|| malformed("state", "a parameter without a number"))?;
            for (name, value) in entries.entries() {
                let name = name.as_text().ok_or_else(|| malformed("state", "an entry without a name"))?;
                value.add_entry(&format!("{number}.{name}"), &mut optimizer.state)?;
            }
        }
        let (Self::List(groups) | Self::Tuple(groups)) = self.at("param_groups")? else {
            return Err(malformed("param_groups", "no list"));
        };
        optimizer.param_groups = groups.iter().map(Self::to_group).collect::<Result<_>>()?;
        Ok(optimizer)
    }

    /// Adds an entry of the state under `name`. The elements of a list get their index as a suffix of the name.
    fn add_entry(&self, name: &str, state: &mut StateDict) -> Result<()> {
        let tensor = match self {
            Self::None => return Ok(()),
            Self::List(parts) => {
                let mut parts = parts.iter().enumerate();
                return parts.try_for_each(|(i, part)| part.add_entry(&format!("{name}.{i}"), state));
            }
            Self::Tensor(tensor) => (**tensor).clone(),
            value => {
                let value = value.as_number().ok_or_else(|| malformed(name, value.kind()))?;
                Tensor::of(DType::F64).full((), value)?.into()
            }
        };
        state.insert(name, tensor);
        Ok(())
    }

    fn to_group(&self) -> Result<ParamGroup> {
        let mut group = ParamGroup::default();
        for (name, value) in self.entries() {
            let name = name.as_text().ok_or_else(|| malformed("param_groups", "a setting without a name"))?;
            match (name, value) {
                ("params", Self::List(numbers) | Self::Tuple(numbers)) => {
                    let number = |value: &Self| value.as_int().and_then(|number| number.try_into().ok());
                    let numbers: Option<Vec<usize>> = numbers.iter().map(number).collect();
                    group.params = numbers.ok_or_else(|| malformed("params", "something that is not a number"))?;
                }
                (_, Self::None) | ("param_names", _) => {}
                (name, value) => {
                    let setting = value.to_setting().ok_or_else(|| malformed(name, value.kind()))?;
                    group.settings.insert(name.to_owned(), setting);
                }
            }
        }
        Ok(group)
    }

    fn to_setting(&self) -> Option<Setting> {
        Some(match self {
            Self::Bool(flag) => Setting::Flag(*flag),
            Self::Int(number) if *number >= 0 => Setting::Integer(*number as u64),
            Self::List(numbers) | Self::Tuple(numbers) => {
                Setting::Numbers(numbers.iter().map(Self::as_number).collect::<Option<_>>()?)
            }
            Self::Text(text) => Setting::Text(text.clone()),
            value => Setting::Number(value.as_number()?),
        })
    }

    /// The kind of the value, for errors.
    fn kind(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "a bool",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a number",
            Self::Text(_) => "a string",
            Self::Bytes(_) => "bytes",
            Self::DType(_) => "an element type",
            Self::Tensor(_) => "a tensor",
            Self::List(_) => "a list",
            Self::Tuple(_) => "a tuple",
            Self::Dict(_) => "a dict",
        }
    }

    /// The contents, for errors: the first ten names with the kinds of their values.
    pub(super) fn names(&self) -> String {
        let Self::Dict(entries) = self else { return self.kind().to_owned() };
        let named = |(key, value): &(Self, Self)| {
            let name = key.as_text().map_or_else(|| key.kind().to_owned(), pagelock_tensor::text::shortened);
            format!("`{name}` ({})", value.kind())
        };
        let mut shown: Vec<String> = entries.iter().take(10).map(named).collect();
        if entries.len() > 10 {
            shown.push(format!("{} more", entries.len() - 10));
        }
        if shown.is_empty() { "an empty dict".to_owned() } else { shown.join(", ") }
    }
}

fn malformed(name: &str, what: &str) -> Error {
    let name = pagelock_tensor::text::shortened(name);
    Error::Argument(format!("`{name}` of an optimizer's state has {what}; give what `optimizer.state_dict()` returns"))
}

macro_rules! from {
    ($($type:ty => $variant:ident),+) => {$(
        impl From<$type> for TorchValue {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        }
    )+};
}
from!(f64 => Float, i64 => Int, bool => Bool, &str => Text, AnyTensor => Tensor);

impl StateDict {
    /// The state dict as a value for a PyTorch file.
    ///
    /// # Errors
    /// [`Error::Argument`] if two tensors of the model have the same name.
    ///
    /// # Examples
    /// See [`TorchValue`].
    pub fn to_torch(&self) -> Result<TorchValue> {
        self.check_names()?;
        Ok(TorchValue::dict(self.iter().map(|(name, tensor)| (name, tensor.clone().into()))))
    }
}

impl OptimizerState {
    /// The state as a value for a PyTorch file, which PyTorch's `optimizer.load_state_dict` accepts. The inverse is
    /// [`TorchValue::to_optimizer_state`].
    ///
    /// # Errors
    /// [`Error::Argument`] names an entry of the state without a number.
    ///
    /// # Examples
    /// ```
    /// use pagelock_nn::{Parameter, TorchValue, optim::{Optimizer, Sgd}};
    /// use pagelock_tensor::Tensor;
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("optimizer.pt");
    /// let opt = Sgd::new([Parameter::new(Tensor::new([3.0])?)], 0.1).momentum(0.9);
    /// opt.state_dict()?.to_torch()?.save(&path)?;
    ///
    /// let mut resumed = Sgd::new([Parameter::new(Tensor::new([3.0])?)], 0.0).momentum(0.0);
    /// resumed.load_state_dict(&TorchValue::load(&path)?.to_optimizer_state()?)?;
    /// assert_eq!(resumed.lr(), 0.1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_torch(&self) -> Result<TorchValue> {
        let mut state: Vec<(TorchValue, TorchValue)> = Vec::new();
        let mut entries: Vec<_> = self.state.iter().collect();
        entries.sort_by_key(|(name, _)| index_in_list(name));
        for (name, tensor) in entries {
            let parts = name.split_once('.').and_then(|(number, name)| Some((number.parse::<i64>().ok()?, name)));
            let (number, name) = parts.ok_or_else(|| malformed(name, "no number before its name"))?;
            let is_same = matches!(state.last(), Some((TorchValue::Int(last), _)) if *last == number);
            if !is_same {
                state.push((number.into(), TorchValue::Dict(Vec::new())));
            }
            if let Some((_, TorchValue::Dict(entries))) = state.last_mut() {
                push_entry(entries, name, tensor)?;
            }
        }
        let groups = self.param_groups.iter().map(ParamGroup::to_torch).collect();
        Ok(TorchValue::dict([("state", TorchValue::Dict(state)), ("param_groups", TorchValue::List(groups))]))
    }
}

/// The entries of PyTorch's LBFGS that are integers, numbers and lists.
const COUNTS: [&str; 2] = ["n_iter", "func_evals"];
const NUMBERS: [&str; 2] = ["t", "prev_loss"];
const LISTS: [&str; 3] = ["old_dirs", "old_stps", "ro"];

/// Parts of lists come last, in the order of their numbers: names are sorted as texts, `10` before `2`.
fn index_in_list(name: &str) -> Option<usize> {
    let (rest, number) = name.rsplit_once('.')?;
    let list = rest.split_once('.')?.1;
    if LISTS.contains(&list) { number.parse().ok() } else { None }
}

/// Adds an entry of a parameter's state in PyTorch's form, which counts steps in `f32`.
fn push_entry(entries: &mut Vec<(TorchValue, TorchValue)>, name: &str, tensor: &AnyTensor) -> Result<()> {
    if let Some((list, _)) = name.split_once('.').filter(|(list, _)| LISTS.contains(list)) {
        let found = entries.iter_mut().find(|(key, _)| key.as_text() == Some(list));
        if let Some((_, TorchValue::List(parts))) = found {
            parts.push(tensor.clone().into());
        }
        return Ok(());
    }
    if name == "d" {
        // PyTorch has these lists even if they are empty.
        entries.extend(LISTS.map(|list| (list.into(), TorchValue::List(Vec::new()))));
    }
    let value: TorchValue = match name {
        "step" if tensor.dtype().is_float() => tensor.to_dtype(DType::F32)?.into(),
        // PyTorch changes these in place, so parameters must not share them.
        "mu_product" | "mu" | "eta" => AnyTensor::from(tensor.float()?.deep_clone()?).into(),
        name if COUNTS.contains(&name) => (tensor.float()?.item::<f64>()? as i64).into(),
        name if NUMBERS.contains(&name) => tensor.float()?.item::<f64>()?.into(),
        _ => tensor.clone().into(),
    };
    entries.push((name.into(), value));
    Ok(())
}

impl ParamGroup {
    fn to_torch(&self) -> TorchValue {
        let setting = |setting: &Setting| match setting {
            Setting::None => TorchValue::None,
            Setting::Number(number) => (*number).into(),
            Setting::Numbers(numbers) => TorchValue::Tuple(numbers.iter().map(|&number| number.into()).collect()),
            Setting::Integer(number) => i64::try_from(*number).unwrap_or(i64::MAX).into(),
            Setting::Flag(flag) => (*flag).into(),
            Setting::Text(text) => text.as_str().into(),
        };
        let settings = self.settings.iter().map(|(name, value)| (name.as_str(), setting(value)));
        let params = TorchValue::List(self.params.iter().map(|&number| (number as i64).into()).collect());
        TorchValue::dict(settings.chain([("params", params)]))
    }
}
