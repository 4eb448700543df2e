//! [`OptimizerState`]: all that an optimizer needs to resume, as PyTorch's `optimizer.state_dict()`.
//!
//! ```text
//! parameters, numbered in the order of groups    0        1       2           3
//! state                                          0.step 0.exp_avg 0.exp_avg_sq 1.step …     the state of each
//! param_groups                                   [lr, betas, …, params: [0, 1]]  [lr, …, params: [2, 3]]
//! ```

use crate::{Error, Result, StateDict};
use pagelock_tensor::{AnyTensor, Bool, DType, Float, Int, Kind, Tensor};
use std::collections::BTreeMap;

/// The settings and the state of an optimizer, in PyTorch's layout.
/// [`Optimizer::state_dict`](super::Optimizer::state_dict) returns it, and
/// [`Optimizer::load_state_dict`](super::Optimizer::load_state_dict) loads it.
///
/// [`to_dict`](Self::to_dict) converts it to a dict of tensors, for a file.
///
/// # Examples
/// ```
/// use pagelock_nn::{Parameter, load_safetensors, optim::{Adam, Optimizer, OptimizerState}, save_safetensors};
/// use pagelock_tensor::Tensor;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("optimizer.safetensors");
/// let w = Parameter::new(Tensor::new([3.0])?);
/// let mut opt = Adam::new([w.clone()], 0.1);
/// w.pow(2.0)?.sum(..)?.backward()?;
/// opt.step()?;
///
/// let state = opt.state_dict()?;
/// assert_eq!(state.state.names().collect::<Vec<_>>(), ["0.exp_avg", "0.exp_avg_sq", "0.step"]);
/// save_safetensors(&state.to_dict()?, &path)?;
///
/// let mut resumed = Adam::new([w.clone()], 0.0);
/// resumed.load_state_dict(&OptimizerState::from_dict(&load_safetensors(&path)?)?)?;
/// assert_eq!(resumed.lr(), 0.1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct OptimizerState {
    /// The state of each parameter that has taken a step. Its names are the parameter's number, a dot, and PyTorch's
    /// name, as in `0.exp_avg`. A half-precision parameter also has its `f32` weights, as `master_weight`, which
    /// PyTorch does not have.
    ///
    /// The tensors of [`Optimizer::state_dict`](super::Optimizer::state_dict) are the optimizer's own: a later step
    /// changes them.
    pub state: StateDict,
    /// The groups of parameters.
    pub param_groups: Vec<ParamGroup>,
}

/// The settings of a group of parameters, and the numbers of its parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParamGroup {
    /// The settings by PyTorch's names: `lr`, `betas`, `weight_decay`, …; `initial_lr` if a scheduler set it.
    pub settings: BTreeMap<String, Setting>,
    /// The numbers of its parameters.
    pub params: Vec<usize>,
}

/// A setting of an optimizer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Setting {
    /// No choice, such as `line_search_fn` without a line search.
    None,
    /// Such as `lr`.
    Number(f64),
    /// Such as `betas`.
    Numbers(Vec<f64>),
    /// Such as `ns_steps`.
    Integer(u64),
    /// Such as `amsgrad`.
    Flag(bool),
    /// Such as `adjust_lr_fn`.
    Text(String),
}

const STATE: &str = "state.";
const GROUPS: &str = "param_groups.";
const PARAMS: &str = "params";

/// The most numbers in all settings and lists of parameters together, which are 8 MiB.
const MAX_NUMBERS: usize = 1 << 20;

impl OptimizerState {
    /// The settings and the state as tensors, for [`save_safetensors`](crate::save_safetensors): `state.0.exp_avg`,
    /// `param_groups.0.lr` (one `f64`), `param_groups.0.betas`, `param_groups.0.amsgrad` (a truth value),
    /// `param_groups.0.params` (integers). Text is stored as bytes.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the tensors of settings do not fit the memory budget.
    pub fn to_dict(&self) -> Result<StateDict> {
        let mut dict = self.state.renamed(|name| Some(format!("{STATE}{name}")));
        for (i, group) in self.param_groups.iter().enumerate() {
            for (name, setting) in &group.settings {
                if let Some(tensor) = setting.to_tensor()? {
                    dict.insert(format!("{GROUPS}{i}.{name}"), tensor);
                }
            }
            let params: Vec<i64> = group.params.iter().map(|&number| number as i64).collect();
            let n_params = params.len();
            dict.insert(format!("{GROUPS}{i}.{PARAMS}"), Tensor::<Int>::from_vec(params, n_params)?);
        }
        Ok(dict)
    }

    /// The inverse of [`to_dict`](Self::to_dict).
    ///
    /// # Errors
    /// [`Error::Argument`] names an entry of a wrong kind, an entry that no optimizer has, or a missing group, or if the
    /// settings have more than 2²⁰ numbers.
    pub fn from_dict(dict: &StateDict) -> Result<Self> {
        let mut groups: BTreeMap<usize, ParamGroup> = BTreeMap::new();
        let mut n_numbers = 0_usize;
        for (name, tensor) in dict.iter().filter(|(name, _)| !name.starts_with(STATE)) {
            let parts = name.strip_prefix(GROUPS).and_then(|rest| rest.split_once('.'));
            let Some((Ok(number), setting)) = parts.map(|(number, setting)| (number.parse(), setting)) else {
                let fix = "give the dict that `OptimizerState::to_dict` made";
                return Err(Error::Argument(format!("`{name}` is not an entry of an optimizer's state; {fix}")));
            };
            n_numbers = n_numbers.saturating_add(tensor.shape().elements());
            if n_numbers > MAX_NUMBERS {
                let problem = format!("with `{name}`, the settings have more than {MAX_NUMBERS} numbers");
                return Err(Error::Argument(format!("{problem} in an optimizer's state; check where it comes from")));
            }
            let group = groups.entry(number).or_default();
            if setting == PARAMS {
                group.params = numbers::<Int, i64>(name, tensor)?.into_iter().map(|number| number as usize).collect();
            } else {
                group.settings.insert(setting.to_owned(), Setting::of(name, tensor)?);
            }
        }
        if let Some(missing) = (0..groups.len()).find(|number| !groups.contains_key(number)) {
            let fix = "give the dict that `OptimizerState::to_dict` made";
            return Err(Error::Argument(format!("an optimizer's state lacks `{GROUPS}{missing}`; {fix}")));
        }
        let state = dict.renamed(|name| name.strip_prefix(STATE).map(str::to_owned));
        Ok(Self { state, param_groups: groups.into_values().collect() })
    }
}

impl Setting {
    /// `None` for [`Setting::None`], which a dict leaves out.
    fn to_tensor(&self) -> Result<Option<AnyTensor>> {
        Ok(Some(match self {
            Self::None => return Ok(None),
            Self::Number(number) => Tensor::of(DType::F64).full((), *number)?.into(),
            Self::Numbers(numbers) => Tensor::of(DType::F64).from_slice(numbers, numbers.len())?.into(),
            Self::Integer(number) => Tensor::<Int>::full((), i64::try_from(*number).unwrap_or(i64::MAX))?.into(),
            Self::Text(text) => Tensor::of(DType::U8).from_slice(text.as_bytes(), text.len())?.into(),
            Self::Flag(flag) => Tensor::<Bool>::full((), *flag)?.into(),
        }))
    }

    fn of(name: &str, tensor: &AnyTensor) -> Result<Self> {
        if tensor.dtype() == DType::Bool {
            return Ok(Self::Flag(numbers::<Bool, bool>(name, tensor)?.contains(&true)));
        }
        if tensor.dtype() == DType::U8 {
            let text = String::from_utf8_lossy(&numbers::<Int, u8>(name, tensor)?).into_owned();
            return Ok(Self::Text(text));
        }
        if let (DType::I64, [number]) = (tensor.dtype(), &numbers_or_none(tensor)?[..]) {
            return Ok(Self::Integer((*number).max(0) as u64));
        }
        let numbers = numbers::<Float, f64>(name, tensor)?;
        Ok(match (tensor.shape().rank(), &numbers[..]) {
            (0, [number]) => Self::Number(*number),
            _ => Self::Numbers(numbers),
        })
    }
}

/// The elements of an `i64` entry; none for other entries.
fn numbers_or_none(tensor: &AnyTensor) -> Result<Vec<i64>> {
    if tensor.dtype() == DType::I64 { Ok(tensor.int()?.to_vec()?) } else { Ok(Vec::new()) }
}

/// The elements of an entry, if it is of the kind `K`.
fn numbers<K: Kind, T: pagelock_tensor::Element<Kind = K>>(name: &str, tensor: &AnyTensor) -> Result<Vec<T>> {
    match tensor.kind::<K>() {
        Ok(tensor) => Ok(tensor.to_vec()?),
        Err(_) => {
            let (found, wanted) = (tensor.dtype(), T::DTYPE.kind_name());
            Err(Error::Argument(format!("`{name}` of an optimizer's state is {found}; it must be {wanted}")))
        }
    }
}
