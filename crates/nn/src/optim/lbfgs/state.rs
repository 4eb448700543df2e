//! [`Memory`]: the state of L-BFGS between steps, and its state dict. As in PyTorch, the first parameter has the
//! whole state.
//!
//! ```text
//! 0.d  0.t  0.H_diag  0.prev_flat_grad  0.prev_loss  0.n_iter  0.func_evals       0.old_dirs.0 0.old_stps.0 0.ro.0  0.old_dirs.1 …
//! ```

use std::collections::{BTreeMap, VecDeque};

use pagelock_memory::Holder;
use pagelock_tensor::{self as tensor, AnyTensor, DType, Device, Tensor, no_grad};

use super::{Lbfgs, NAME, Settings, Vectors};
use crate::optim::group_states::{Problem, Show, read_settings, settings};
use crate::optim::method::Field;
use crate::optim::{OptimizerState, ParamGroup, Setting};
use crate::{Error, Result};

/// The state, with the names of PyTorch's state dict. `old_dirs` are changes of the gradient, `old_stps` the steps
/// that caused them.
#[derive(Clone, Default)]
pub(super) struct Memory {
    pub(super) n_iter: u64,
    pub(super) func_evals: u64,
    pub(super) t: f64,
    pub(super) prev_loss: f64,
    pub(super) d: Option<Tensor>,
    pub(super) prev_flat_grad: Option<Tensor>,
    pub(super) h_diag: Option<Tensor>, // `None`: 1
    pub(super) old_dirs: VecDeque<Tensor>,
    pub(super) old_stps: VecDeque<Tensor>,
    pub(super) ro: VecDeque<Tensor>, // 1 / (`old_dirs` · `old_stps`)
}

const LINE_SEARCH: &str = "line_search_fn";
const FIX: &str = "give a state dict of `Lbfgs` or of PyTorch's LBFGS";

impl Memory {
    /// A copy for parameters that have moved or changed their precision.
    pub(super) fn on(&self, dtype: DType, device: &Device) -> Result<Self> {
        let moved = |tensor: &Tensor| tensor.to_dtype(dtype)?.to(device);
        let one = |tensor: &Option<Tensor>| tensor.as_ref().map(moved).transpose();
        let all = |tensors: &VecDeque<Tensor>| tensors.iter().map(moved).collect::<tensor::Result<_>>();
        Ok(Self {
            d: one(&self.d)?,
            prev_flat_grad: one(&self.prev_flat_grad)?,
            h_diag: one(&self.h_diag)?,
            old_dirs: all(&self.old_dirs)?,
            old_stps: all(&self.old_stps)?,
            ro: all(&self.ro)?,
            ..*self
        })
    }

    /// The whole state, by name.
    fn entries(&self) -> Result<Vec<(String, Tensor)>> {
        let number = |value: f64| Tensor::of(DType::F64).full((), value);
        let mut all = vec![
            ("n_iter".to_owned(), number(self.n_iter as f64)?),
            ("func_evals".to_owned(), number(self.func_evals as f64)?),
        ];
        let (Some(d), Some(grad)) = (&self.d, &self.prev_flat_grad) else { return Ok(all) };
        all.push(("d".to_owned(), d.clone()));
        all.push(("t".to_owned(), number(self.t)?));
        all.push(("prev_flat_grad".to_owned(), grad.clone()));
        all.push(("prev_loss".to_owned(), number(self.prev_loss)?));
        all.push(("H_diag".to_owned(), self.h_diag.clone().map_or_else(|| number(1.0), Ok)?));
        for (name, list) in [("old_dirs", &self.old_dirs), ("old_stps", &self.old_stps), ("ro", &self.ro)] {
            all.extend(list.iter().enumerate().map(|(i, tensor)| (format!("{name}.{i}"), tensor.clone())));
        }
        Ok(all)
    }

    /// Reads the state from the entries, for the precision and device of `vectors`. An unknown entry is an error.
    fn of(mut entries: Entries<'_>, vectors: &Vectors) -> Result<Self> {
        let len = vectors.len();
        let mut memory = Self {
            n_iter: entries.number("n_iter")? as u64,
            func_evals: entries.number("func_evals")? as u64,
            ..Self::default()
        };
        if entries.has("d") {
            memory.t = entries.number("t")?;
            memory.prev_loss = entries.number("prev_loss")?;
            memory.d = Some(entries.tensor("d", &[len])?);
            memory.prev_flat_grad = Some(entries.tensor("prev_flat_grad", &[len])?);
            memory.h_diag = Some(entries.tensor("H_diag", &[])?);
            for i in 0.. {
                let name = |list: &str| format!("{list}.{i}");
                if !["old_dirs", "old_stps", "ro"].iter().any(|list| entries.has(&name(list))) {
                    break;
                }
                memory.old_dirs.push_back(entries.tensor(&name("old_dirs"), &[len])?);
                memory.old_stps.push_back(entries.tensor(&name("old_stps"), &[len])?);
                memory.ro.push_back(entries.tensor(&name("ro"), &[])?);
            }
        }
        if let Some(other) = entries.by_name.keys().next() {
            return Err(misfit(&format!("the optimizer does not know `0.{other}`; {FIX}")));
        }
        memory.on(vectors.dtype, &vectors.device)
    }
}

/// The entries of a state dict that have not been read yet.
struct Entries<'a> {
    by_name: BTreeMap<&'a str, &'a AnyTensor>,
}

impl<'a> Entries<'a> {
    fn of(state: &'a OptimizerState, number: usize) -> Result<Self> {
        let mut by_name = BTreeMap::new();
        let before = format!("{number}.");
        for (name, tensor) in state.state.iter() {
            let Some(own) = name.strip_prefix(&before) else {
                let problem = format!("`{name}` is not an entry of parameter {number}, which holds the whole state");
                return Err(misfit(&format!("{problem}; {FIX}")));
            };
            if own != "al" && !own.starts_with("al.") {
                by_name.insert(own, tensor); // PyTorch's `al` is scratch memory, not state
            }
        }
        Ok(Self { by_name })
    }

    fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Removes an entry, and returns a copy of it.
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let Some(tensor) = self.by_name.remove(name).and_then(|tensor| tensor.float().ok()) else {
            return Err(misfit(&format!("it has no floats `0.{name}`; {FIX}")));
        };
        if tensor.dims() != shape {
            let found = tensor.shape();
            return Err(misfit(&format!("`0.{name}` is {found}, but must be {shape:?} for these parameters; {FIX}")));
        }
        let own = tensor.zeros_like()?;
        own.copy_(&tensor)?;
        Ok(own)
    }

    fn number(&mut self, name: &str) -> Result<f64> {
        Ok(self.tensor(name, &[])?.item()?)
    }
}

fn misfit(problem: &str) -> Error {
    Error::Argument(format!("{NAME}: the state dict does not fit, and nothing was loaded: {problem}"))
}

impl Settings {
    /// Passes all settings but the learning rate to `show`.
    fn show(&mut self, show: Show<'_>) {
        let (mut max_eval, mut search) = (self.max_eval(), usize::from(self.strong_wolfe));
        show("max_iter", Field::Integer(&mut self.max_iter));
        show("max_eval", Field::Integer(&mut max_eval));
        show("tolerance_grad", Field::Number(&mut self.tolerance_grad));
        show("tolerance_change", Field::Number(&mut self.tolerance_change));
        show("history_size", Field::Integer(&mut self.history_size));
        show(LINE_SEARCH, Field::Choice(&mut search, &["none", "strong_wolfe"]));
        show("maximize", Field::Flag(&mut self.maximize));
        (self.max_eval, self.strong_wolfe) = (Some(max_eval), search == 1);
    }
}

impl Lbfgs {
    pub(super) fn to_state(&self) -> Result<OptimizerState> {
        let mut settings = settings(self.lr, self.initial_lr, |show| self.settings.clone().show(show));
        if !self.settings.strong_wolfe {
            settings.insert(LINE_SEARCH.to_owned(), Setting::None);
        }
        let mut state = OptimizerState::default();
        state.param_groups.push(ParamGroup { settings, params: (0..self.parameters.len()).collect() });
        if self.memory.func_evals > 0 {
            for (name, tensor) in self.memory.entries()? {
                state.state.insert(format!("0.{name}"), tensor);
            }
        }
        Ok(state)
    }

    pub(super) fn load_state(&mut self, state: &OptimizerState) -> Result<()> {
        let [group] = &state.param_groups[..] else {
            let saved = state.param_groups.len();
            return Err(misfit(&format!("it has {saved} groups of parameters, but {NAME} has one; {FIX}")));
        };
        let (saved, own) = (group.params.len(), self.parameters.len());
        if saved != own {
            let fix = "make the optimizer with the parameters that it was saved with";
            return Err(misfit(&format!("it has {saved} parameters, but the optimizer has {own}; {fix}")));
        }
        let mut read =
            Self { parameters: self.parameters.clone(), settings: self.settings.clone(), ..Self::of(Vec::new(), 0.0) };
        for parameter in &mut read.parameters {
            parameter.follow();
        }
        read.read_group(group)?;
        read.check()?;
        if state.state.iter().next().is_some() {
            let entries = Entries::of(state, group.params.first().copied().unwrap_or(0))?;
            let vectors = read.vectors()?;
            let _charged = Holder::OPTIMIZER_STATE.by_default();
            read.memory = no_grad(|| Memory::of(entries, &vectors))?;
        }
        *self = read;
        Ok(())
    }

    fn read_group(&mut self, group: &ParamGroup) -> Result<()> {
        let saved = group.settings.iter().map(|(name, setting)| (&**name, setting));
        let saved = saved.filter(|(_, setting)| **setting != Setting::None).collect();
        let rates = read_settings(saved, |show| self.settings.show(show)).map_err(|problem| match problem {
            Problem::Setting(problem) => misfit(&problem),
            Problem::Unknown(name) => {
                misfit(&format!("it has the setting `{name}`, which the optimizer does not have; {FIX}"))
            }
        })?;
        (self.lr, self.initial_lr) = (rates.lr, rates.initial_lr);
        Ok(())
    }
}
