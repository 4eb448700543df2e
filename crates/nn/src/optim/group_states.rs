//! Writing state dicts of [`Groups`], and loading them in two passes.
//!
//! The first pass reads everything and makes the tensors that each parameter needs, which may fail. The second pass
//! changes the optimizer. It copies into tensors that the optimizer has already, since a captured step uses them.

use super::groups::{Group, Groups, Slot, at_least_0, in_layout_of};
use super::master::{Master, is_half};
use super::method::{Field, MAX_STATE_TENSORS, Method, Methods, Start};
use super::state::{Clock, MovedClocks, State};
use super::{OptimizerState, ParamGroup, Setting};
use crate::{Error, Result, StateDict};
use pagelock_memory::Holder;
use pagelock_tensor::{self as tensor, Tensor, no_grad};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

const MASTER: &str = "master_weight";
const LR: &str = "lr";
const INITIAL_LR: &str = "initial_lr";
/// PyTorch's settings that do not change what a step computes; the last five are notes of its schedulers.
const IGNORED_SETTINGS: [&str; 10] = [
    "foreach",
    "capturable",
    "differentiable",
    "fused",
    "param_names",
    "max_lr",
    "min_lr",
    "base_momentum",
    "max_momentum",
    "swa_lr",
];

impl Groups {
    pub(super) fn state_dict(&self, methods: &mut dyn Methods) -> Result<OptimizerState> {
        let mut dict = OptimizerState::default();
        let mut number = 0;
        for (i, group) in self.groups.iter().enumerate() {
            let first = number;
            for slot in &group.slots {
                no_grad(|| insert(&mut dict.state, number, methods.of(i), slot))?;
                number += 1;
            }
            let settings = settings(group.lr.get(), group.initial_lr, |show| methods.of_mut(i).settings(show));
            dict.param_groups.push(ParamGroup { settings, params: (first..number).collect() });
        }
        Ok(dict)
    }

    /// Loads settings into `methods`, which may be changed even if this fails.
    pub(super) fn load_state_dict(&mut self, dict: &OptimizerState, methods: &mut dyn Methods) -> Result<()> {
        let (saved, groups) = (dict.param_groups.len(), self.groups.len());
        if saved != groups {
            let fix = "make the optimizer with the groups that it was saved with";
            let problem = format!("it has {saved} groups of parameters, but the optimizer has {groups}; {fix}");
            return Err(misfit(self.optimizer, &problem));
        }
        let _charged = Holder::OPTIMIZER_STATE.by_default();
        let mut entries = Entries::of(self.optimizer, &dict.state)?;
        let (mut read, mut moved) = (Vec::new(), MovedClocks::default());
        for (i, (group, saved)) in self.groups.iter_mut().zip(&dict.param_groups).enumerate() {
            let rates = read_group(self.optimizer, i, methods.of_mut(i), saved)?;
            let slots = no_grad(|| {
                ReadSlot::of_group(self.optimizer, (i, group), methods.of(i), saved, (&mut entries, &mut moved))
            })?;
            read.push((rates, slots));
        }
        if let Some((number, entry)) = entries.any() {
            let fix = "remove it, or load into the optimizer that it was saved from";
            let problem = format!("`{number}.{entry}` belongs to no parameter, or its parameter is listed twice");
            return Err(misfit(self.optimizer, &format!("{problem}; {fix}")));
        }
        let mut clocks = Clocks { claimed: Vec::new() };
        for (i, (group, (rates, slots))) in self.groups.iter_mut().zip(read).enumerate() {
            group.lr.set(rates.lr);
            group.initial_lr = rates.initial_lr;
            if !methods.of(i).counts_only() {
                clocks.claimed.clear(); // groups share a clock only if it holds nothing but a step count
            }
            no_grad(|| group.slots.iter_mut().zip(slots).try_for_each(|(slot, read)| read.load(slot, &mut clocks)))?;
        }
        Ok(())
    }
}

/// The error of a state dict that does not fit the optimizer.
fn misfit(optimizer: &str, problem: &str) -> Error {
    Error::Argument(format!("{optimizer}: the state dict does not fit, and nothing was loaded: {problem}"))
}

/// The function to which an optimizer passes its settings, by PyTorch's names.
pub(super) type Show<'a> = &'a mut dyn FnMut(&'static str, Field<'_>);

/// The settings of a group, by name.
pub(super) fn settings(lr: f64, initial_lr: Option<f64>, show: impl FnOnce(Show<'_>)) -> BTreeMap<String, Setting> {
    let mut all = BTreeMap::from([(LR.to_owned(), Setting::Number(lr))]);
    all.extend(initial_lr.map(|lr| (INITIAL_LR.to_owned(), Setting::Number(lr))));
    show(&mut |name, field| {
        let setting = match field {
            Field::Number(number) => Setting::Number(*number),
            Field::Numbers(numbers) => Setting::Numbers(numbers.to_vec()),
            Field::Integer(number) => Setting::Integer(*number),
            Field::Flag(flag) => Setting::Flag(*flag),
            Field::Choice(index, names) => Setting::Text(names[*index].to_owned()),
            Field::Fixed(flag) => Setting::Flag(flag),
        };
        all.insert(name.to_owned(), setting);
    });
    all
}

/// Adds the state of a parameter.
fn insert(dict: &mut StateDict, number: usize, method: &dyn Method, slot: &Slot) -> tensor::Result<()> {
    let Some(State { tensors, clock, .. }) = &slot.state else { return insert_master(dict, number, slot) };
    for (name, tensor) in method.state_names().iter().zip(tensors) {
        if let (Some(name), Some(tensor)) = (name, tensor) {
            dict.insert(format!("{number}.{name}"), tensor);
        }
    }
    if let Some(clock) = clock {
        for (i, name) in method.clock().iter().enumerate() {
            dict.insert(format!("{number}.{name}"), clock.numbers.select(0, i as isize)?);
        }
    }
    insert_master(dict, number, slot)
}

fn insert_master(dict: &mut StateDict, number: usize, slot: &Slot) -> tensor::Result<()> {
    if let Some(master) = &slot.master {
        dict.insert(format!("{number}.{MASTER}"), &master.weights);
    }
    Ok(())
}

/// The entries of a state dict by the parameter's number and by name.
struct Entries {
    by_number: BTreeMap<usize, HashMap<String, Tensor>>,
}

impl Entries {
    fn of(optimizer: &str, state: &StateDict) -> Result<Self> {
        let mut by_number: BTreeMap<usize, HashMap<String, Tensor>> = BTreeMap::new();
        for (name, tensor) in state.iter() {
            let parts = name.split_once('.').and_then(|(number, entry)| Some((number.parse().ok()?, entry)));
            let (Some((number, entry)), Ok(tensor)) = (parts, tensor.float()) else {
                let fix = "name entries as `0.exp_avg`, the parameter's number first, and give floats";
                let problem = format!("`{name}` ({}) is not an entry of a state; {fix}", tensor.dtype());
                return Err(misfit(optimizer, &problem));
            };
            by_number.entry(number).or_default().insert(entry.to_owned(), tensor);
        }
        Ok(Self { by_number })
    }

    fn any(&self) -> Option<(usize, &str)> {
        let (number, entries) = self.by_number.first_key_value()?;
        Some((*number, entries.keys().next()?))
    }
}

/// The state of a parameter after loading, in tensors that nothing else uses.
#[derive(Default)]
struct ReadSlot {
    tensors: [Option<Tensor>; MAX_STATE_TENSORS],
    /// The numbers of its clock, and a clock of its own that has them.
    clock: Option<(Start, Arc<Clock>)>,
    master: Option<Tensor>,
    has_state: bool,
}

/// The clocks of the parameters loaded so far, with their new numbers.
struct Clocks {
    claimed: Vec<(Arc<Clock>, Start)>,
}

impl Clocks {
    /// The parameter's own clock, unless it was claimed with other numbers; else a claimed clock with these numbers,
    /// or the new one.
    fn of(&mut self, own: Option<Arc<Clock>>, (start, new): (Start, Arc<Clock>)) -> tensor::Result<Arc<Clock>> {
        let device = new.numbers.device();
        let is_same = |clock: &Arc<Clock>, at: &Start| clock.numbers.device() == device && at.bits() == start.bits();
        if let Some(own) = own {
            match self.claimed.iter().find(|(clock, _)| Arc::ptr_eq(clock, &own)) {
                Some((_, at)) if is_same(&own, at) => return Ok(own),
                Some(_) => {}
                None => {
                    own.numbers.copy_(&new.numbers)?;
                    self.claimed.push((own.clone(), start));
                    return Ok(own);
                }
            }
        }
        if let Some((clock, _)) = self.claimed.iter().find(|(clock, at)| is_same(clock, at)) {
            return Ok(clock.clone());
        }
        self.claimed.push((new.clone(), start));
        Ok(new)
    }
}

impl ReadSlot {
    /// Reads the parameters of a group.
    fn of_group(
        optimizer: &str,
        (i, group): (usize, &mut Group),
        method: &dyn Method,
        saved: &ParamGroup,
        (entries, moved): (&mut Entries, &mut MovedClocks),
    ) -> Result<Vec<Self>> {
        let (n_saved, n_slots) = (saved.params.len(), group.slots.len());
        if n_saved != n_slots {
            let fix = "make the optimizer with the parameters that it was saved with";
            let problem = format!("group {i} has {n_saved} parameters, but the optimizer's has {n_slots}; {fix}");
            return Err(misfit(optimizer, &problem));
        }
        let mut slots = Vec::new();
        for (slot, number) in group.slots.iter_mut().zip(&saved.params) {
            slot.follow(moved)?;
            let own = entries.by_number.remove(number);
            let mut read = own.map_or(Ok(Self::default()), |own| Self::new(optimizer, *number, method, slot, own))?;
            if slot.master.is_some() && read.master.is_none() {
                read.master = Some(in_layout_of(&slot.parameter, &slot.parameter.detach())?);
            }
            slots.push(read);
        }
        Ok(slots)
    }

    /// The second pass, which allocates nothing. This parameter may share a clock of the parameters before it, which
    /// are in `clocks`.
    fn load(self, slot: &mut Slot, clocks: &mut Clocks) -> tensor::Result<()> {
        match (&slot.master, self.master) {
            (Some(own), Some(read)) => own.weights.copy_(&read)?,
            (_, read) => slot.master = read.map(|weights| Master { weights }),
        }
        let mut own = slot.state.take().unwrap_or(State { tensors: Default::default(), clock: None, is_first: false });
        if !self.has_state {
            return Ok(());
        }
        for (own, read) in own.tensors.iter_mut().zip(self.tensors) {
            match (own.as_ref(), read) {
                (Some(own), Some(read)) => own.copy_(&read)?,
                (_, read) => *own = read,
            }
        }
        let clock = self.clock.map(|read| clocks.of(own.clock.take(), read)).transpose()?;
        slot.state = Some(State { clock, is_first: false, ..own });
        Ok(())
    }

    fn new(
        optimizer: &str,
        number: usize,
        method: &dyn Method,
        slot: &Slot,
        mut entries: HashMap<String, Tensor>,
    ) -> Result<Self> {
        let mut read = Self { has_state: true, ..Self::default() };
        if is_half(&slot.parameter) {
            let master = entries.remove(MASTER);
            read.master = master.map(|master| converted_copy(optimizer, number, MASTER, slot, &master)).transpose()?;
        }
        let (names, clock) = (method.state_names(), method.clock());
        if read.master.is_some() && entries.is_empty() && names[0].is_none() && clock.is_empty() {
            read.has_state = false; // the method keeps nothing but the weights
            return Ok(read);
        }
        let missing = |name: &str| {
            let fix = "give all entries of a parameter, or none";
            misfit(optimizer, &format!("it has no `{number}.{name}`; {fix}"))
        };
        for (to, name) in read.tensors.iter_mut().zip(names) {
            let Some(name) = name else { continue };
            let tensor = entries.remove(name).ok_or_else(|| missing(name))?;
            *to = Some(converted_copy(optimizer, number, name, slot, &tensor)?);
        }
        if !clock.is_empty() {
            let mut numbers = [0.0; 3];
            for (to, name) in numbers.iter_mut().zip(clock) {
                *to = entries.remove(*name).ok_or_else(|| missing(name))?.item()?;
            }
            let start = Start::new(&numbers[..clock.len()]);
            let new = Clock::of(start.as_slice(), &slot.parameter.device())?;
            read.clock = Some((start, new));
        }
        match entries.keys().next() {
            None => Ok(read),
            Some(other) => {
                let fix = "remove it, or load into the optimizer that it was saved from";
                Err(misfit(optimizer, &format!("the optimizer does not know `{number}.{other}`; {fix}")))
            }
        }
    }
}

/// A copy as the parameter needs it.
fn converted_copy(optimizer: &str, number: usize, name: &str, slot: &Slot, tensor: &Tensor) -> Result<Tensor> {
    let parameter = slot.parameter.as_tensor();
    if tensor.shape() != parameter.shape() {
        let (given, wanted) = (tensor.shape(), parameter.shape());
        let problem = format!("`{number}.{name}` is {given}, but its parameter is {wanted}");
        return Err(misfit(
            optimizer,
            &format!("{problem}; give the parameters in the order in which they were saved"),
        ));
    }
    let converted = in_layout_of(parameter, tensor)?;
    let copy = converted.zeros_like()?;
    copy.copy_(&converted)?;
    Ok(copy)
}

/// The learning rates of a group after loading.
pub(super) struct Rates {
    pub(super) lr: f64,
    pub(super) initial_lr: Option<f64>,
}

/// Reads the settings of a group into `method`.
fn read_group(optimizer: &str, i: usize, method: &mut dyn Method, saved: &ParamGroup) -> Result<Rates> {
    let saved = saved.settings.iter().map(|(name, setting)| (&**name, setting)).collect();
    let rates = read_settings(saved, |show| method.settings(show)).map_err(|problem| match problem {
        Problem::Setting(problem) => misfit(optimizer, &format!("in group {i}, {problem}")),
        Problem::Unknown(name) => {
            let fix = "remove it, or load into the optimizer that it was saved from";
            let problem = format!("group {i} has the setting `{name}`, which the optimizer does not have; {fix}");
            misfit(optimizer, &problem)
        }
    })?;
    at_least_0(optimizer, "lr", rates.lr)?;
    method.check(optimizer)?;
    Ok(rates)
}

/// Why settings cannot be read.
pub(super) enum Problem {
    /// A setting is missing or has a wrong value; says which.
    Setting(String),
    /// No setting has this name.
    Unknown(String),
}

/// Reads the saved settings into the fields that the optimizer shows, and the learning rates.
pub(super) fn read_settings(
    mut saved: BTreeMap<&str, &Setting>,
    show: impl FnOnce(Show<'_>),
) -> std::result::Result<Rates, Problem> {
    saved.retain(|name, _| !IGNORED_SETTINGS.contains(name));
    let (mut lr, mut initial_lr, mut problem) = (0.0, 0.0, None);
    read(&mut saved, LR, Field::Number(&mut lr), &mut problem);
    let has_initial = saved.contains_key(INITIAL_LR);
    if has_initial {
        read(&mut saved, INITIAL_LR, Field::Number(&mut initial_lr), &mut problem);
    }
    show(&mut |name, field| read(&mut saved, name, field, &mut problem));
    match (problem, saved.keys().next()) {
        (Some(problem), _) => Err(Problem::Setting(problem)),
        (None, Some(name)) => Err(Problem::Unknown((*name).to_owned())),
        (None, None) => Ok(Rates { lr, initial_lr: has_initial.then_some(initial_lr) }),
    }
}

/// Reads a setting into a field, or sets `wrong` to the problem. A missing flag is off, as in PyTorch's older files.
fn read(saved: &mut BTreeMap<&str, &Setting>, name: &str, field: Field<'_>, wrong: &mut Option<String>) {
    match (field, saved.remove(name)) {
        (Field::Number(to), Some(Setting::Number(number))) => *to = *number,
        (Field::Number(to), Some(Setting::Integer(number))) => *to = *number as f64, // Python's `weight_decay=0`
        (Field::Numbers(to), Some(Setting::Numbers(numbers))) if numbers.len() == to.len() => {
            to.copy_from_slice(numbers)
        }
        (Field::Integer(to), Some(Setting::Integer(number))) => *to = *number,
        (Field::Choice(to, names), Some(Setting::Text(name))) if names.contains(&&**name) => {
            *to = names.iter().position(|known| known == name).unwrap_or_default();
        }
        (Field::Choice(to, _), None) => *to = 0,
        (Field::Flag(to), Some(Setting::Flag(flag))) => *to = *flag,
        (Field::Flag(to), None) => *to = false,
        (Field::Fixed(to), Some(Setting::Flag(flag))) if to == *flag => {}
        (Field::Fixed(_), None) => {}
        (_, None) => *wrong = Some(format!("the setting `{name}` is missing; add it")),
        (Field::Fixed(to), _) => *wrong = Some(format!("`{name}` must be {to} for this optimizer")),
        (_, Some(other)) => *wrong = Some(format!("`{name}` is {other:?}, which is not allowed for this optimizer")),
    }
}
