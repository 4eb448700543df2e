//! [`Groups`]: the part that all optimizers share. They differ in their [`Method`].
//!
//! An optimizer has groups of parameters, each with settings and a learning rate of its own. A step allocates the
//! state of all groups before it changes anything, so that a step whose state does not fit the budget changes
//! nothing.

use super::master::Master;
use super::method::Methods;
use super::state::{self, MovedClocks, State};
use crate::{Error, Parameter, Result};
use pagelock_memory::Holder;
use pagelock_tensor::optimizer_steps::Rate;
use pagelock_tensor::profiler::{self, Category};
use pagelock_tensor::text::number;
use pagelock_tensor::{self as tensor, Tensor, no_grad};
use std::collections::HashSet;

/// A parameter for an optimizer, with its name if that is known. It is made from a [`Parameter`], or from an item of
/// [`Module::named_parameters`](crate::Module::named_parameters).
pub struct NamedParameter {
    name: Option<String>,
    parameter: Parameter,
}

impl From<Parameter> for NamedParameter {
    fn from(parameter: Parameter) -> Self {
        Self { name: None, parameter }
    }
}

impl From<(String, Parameter)> for NamedParameter {
    fn from((name, parameter): (String, Parameter)) -> Self {
        Self { name: Some(name), parameter }
    }
}

impl NamedParameter {
    pub(super) fn into_parameter(self) -> Parameter {
        self.parameter
    }
}

/// Collects parameters. This is a loop because `collect` would compile ten times as much code in every program.
pub(super) fn listed<P: Into<NamedParameter>>(parameters: impl IntoIterator<Item = P>) -> Vec<NamedParameter> {
    let mut list = Vec::new();
    for parameter in parameters {
        list.push(parameter.into());
    }
    list
}

/// A parameter, with the state that an optimizer keeps for it from the first step on.
pub(super) struct Slot {
    pub(super) name: Option<String>,
    pub(super) parameter: Parameter,
    pub(super) state: Option<State>,
    pub(super) master: Option<Master>, // trained in place of a half-precision parameter
}

impl Slot {
    fn new(NamedParameter { name, parameter }: NamedParameter) -> Self {
        Self { name, parameter, state: None, master: None }
    }

    /// The tensor that the step changes.
    pub(super) fn weights(&self) -> &Tensor {
        self.master.as_ref().map_or(self.parameter.as_tensor(), |master| &master.weights)
    }

    /// The half-precision parameter, if a master is trained in its place and rounded into it.
    pub(super) fn half_copy(&self) -> Option<Tensor> {
        self.master.as_ref().map(|_| self.parameter.as_tensor().clone())
    }

    /// The error of a parameter that an optimizer does not take.
    fn refused(&self, optimizer: &str, problem: &str) -> Error {
        let (shape, name) = (self.parameter.dims(), self.name.as_deref().unwrap_or("without a name"));
        Error::Argument(format!("{optimizer}: the parameter {name}, {shape:?}, {problem}"))
    }

    /// If the parameter was moved or converted, moves and converts its state accordingly.
    pub(super) fn follow(&mut self, moved: &mut MovedClocks) -> tensor::Result<()> {
        if !self.parameter.is_replaced() {
            return Ok(());
        }
        let mut followed = self.parameter.clone();
        if let Some(before) = followed.follow() {
            let state = self.state.as_ref().map(|state| state.moved_to(&followed, moved)).transpose()?;
            let weights = self.master.as_ref().map_or(&before, |master| &master.weights);
            let master = Master::moved_to(&followed, weights)?;
            *self = Self { name: self.name.take(), parameter: followed, state, master };
        }
        Ok(())
    }
}

/// Parameters with their own learning rate. Their other settings are in their [`Method`].
pub(super) struct Group {
    pub(super) lr: Rate,
    pub(super) initial_lr: Option<f64>, // set by a scheduler
    pub(super) slots: Vec<Slot>,
}

/// All parameters of an optimizer, which has the method of each group in another field.
pub(super) struct Groups {
    pub(super) optimizer: &'static str, // its name, for errors
    pub(super) groups: Vec<Group>,      // at least one
    calls: u64,                         // twice the number of calls of `step`
    is_checked: bool,                   // whether each parameter was found to occur once
    lacks_names: bool,                  // whether a group by name is empty because parameters have no names
}

impl Groups {
    /// Makes one group of all parameters.
    pub(super) fn new(optimizer: &'static str, lr: f64, parameters: Vec<NamedParameter>) -> Self {
        let slots = parameters.into_iter().map(Slot::new).collect();
        let group = Group { lr: Rate::new(lr), initial_lr: None, slots };
        Self { optimizer, groups: vec![group], calls: 0, is_checked: false, lacks_names: false }
    }

    /// A group without parameters that has the learning rate of the first group.
    pub(super) fn settings(&self) -> Self {
        Self::new(self.optimizer, self.lr(), Vec::new())
    }

    /// Adds a group with the learning rate of `settings`.
    pub(super) fn add(&mut self, parameters: Vec<NamedParameter>, settings: Self) {
        self.push(parameters.into_iter().map(Slot::new).collect(), settings);
    }

    /// Moves those parameters that `belongs` accepts from the first group to a new one.
    pub(super) fn split(&mut self, belongs: &dyn Fn(&str, &Parameter) -> bool, settings: Self) {
        let belong = |slot: &mut Slot| belongs(slot.name.as_deref().unwrap_or(""), &slot.parameter);
        let moved: Vec<_> = self.groups[0].slots.extract_if(.., belong).collect();
        self.lacks_names |= moved.is_empty() && self.groups[0].slots.iter().any(|slot| slot.name.is_none());
        self.push(moved, settings);
    }

    fn push(&mut self, slots: Vec<Slot>, settings: Self) {
        let group = settings.groups.into_iter().next();
        self.groups.extend(group.map(|group| Group { slots, ..group }));
        self.is_checked = false;
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.groups.iter().flat_map(|group| &group.slots)
    }

    pub(super) fn step(&mut self, methods: &dyn Methods) -> Result<()> {
        let _running = profiler::span(self.optimizer, Category::OptimizerStep);
        let _charged = Holder::OPTIMIZER_STATE.by_default();
        self.check(methods)?;
        let mut moved = MovedClocks::default();
        for slot in self.groups.iter_mut().flat_map(|group| &mut group.slots) {
            slot.follow(&mut moved)?;
            Master::prepare(&mut slot.master, &slot.parameter)?;
        }
        state::allocate(methods, &mut self.groups)?;
        self.calls += 2; // one number for the clocks' update before the step, one for the update after it
        no_grad(|| {
            for (i, Group { slots, .. }) in self.groups.iter().enumerate() {
                state::each_clock(slots, self.calls, |clock| methods.of(i).advance(clock))?;
            }
            methods.apply(&self.groups)?;
            self.groups.iter().enumerate().try_for_each(|(i, Group { lr, slots, .. })| {
                state::each_clock(slots, self.calls + 1, |clock| methods.of(i).after(clock, lr))
            })
        })?;
        self.groups.iter_mut().for_each(|group| state::record_step(&mut group.slots));
        Ok(())
    }

    /// Checks that there are parameters, each of them once, and that settings are in their ranges.
    fn check(&mut self, methods: &dyn Methods) -> Result<()> {
        let optimizer = self.optimizer;
        for (i, Group { lr, .. }) in self.groups.iter().enumerate() {
            at_least_0(optimizer, "lr", lr.get())?;
            methods.of(i).check(optimizer)?;
        }
        if self.is_checked {
            return Ok(());
        }
        if self.lacks_names {
            let fix = "make the optimizer of `model.named_parameters()`, or leave out a rule that fits none";
            let problem = "`group_where` found no parameters, and some have no names";
            return Err(Error::Argument(format!("{optimizer}: {problem}; {fix}")));
        }
        for (i, Group { slots, .. }) in self.groups.iter().enumerate() {
            slots.iter().try_for_each(|slot| methods.of(i).check_parameter(&slot.parameter))?;
        }
        let is_expanded = |x: &Tensor| x.dims().iter().zip(x.strides()).any(|(&size, &stride)| size > 1 && stride == 0);
        if let Some(expanded) = self.slots().find(|slot| is_expanded(&slot.parameter)) {
            let problem = "is an expanded view, whose elements share memory; make it of a `contiguous` tensor";
            return Err(expanded.refused(optimizer, problem));
        }
        let mut seen = HashSet::new();
        if let Some(again) = self.slots().find(|slot| !seen.insert(slot.parameter.id())) {
            return Err(again.refused(optimizer, "occurs twice; give each parameter to one group"));
        }
        if seen.is_empty() {
            let fix = "pass `model.parameters()` of a model that has some";
            return Err(Error::Argument(format!("{optimizer}: there are no parameters to train; {fix}")));
        }
        Rate::join(self.groups.iter_mut().map(|group| &mut group.lr));
        self.is_checked = true;
        Ok(())
    }

    pub(super) fn lr(&self) -> f64 {
        self.groups[0].lr.get()
    }

    pub(super) fn set_lr(&self, lr: f64) {
        self.set_rates(std::iter::repeat(lr));
    }

    pub(super) fn lrs(&self) -> Vec<f64> {
        self.groups.iter().map(|group| group.lr.get()).collect()
    }

    pub(super) fn set_lrs(&self, lrs: &[f64]) -> Result<()> {
        check_lrs(self.optimizer, lrs, self.groups.len())?;
        self.set_rates(lrs.iter().copied());
        Ok(())
    }

    fn set_rates(&self, lrs: impl Iterator<Item = f64>) {
        let rates: Vec<_> = self.groups.iter().map(|group| &group.lr).zip(lrs).collect();
        Rate::set_all(&rates);
    }

    pub(super) fn set_initial_lrs(&mut self, lrs: &[f64]) {
        self.groups.iter_mut().zip(lrs).for_each(|(group, lr)| {
            group.initial_lr.get_or_insert(*lr);
        });
    }

    pub(super) fn zero_grad(&self) {
        self.slots().for_each(|slot| slot.parameter.zero_grad());
    }

    pub(super) fn scale_gradients(&self, factor: f64) -> Result<bool> {
        no_grad(|| {
            let grads = || self.slots().filter_map(|slot| slot.parameter.grad());
            let mut faults: Vec<Tensor> = Vec::new(); // zeros, or NaN where a scaled gradient is not finite
            for grad in grads() {
                let fault = grad.mul_scalar(factor)?;
                fault.mul_scalar_(0)?;
                faults.push(fault.sum(..)?.to(&faults.first().unwrap_or(&grad).device())?);
            }
            let Some(first) = faults.first() else { return Ok(true) };
            let all = faults[1..].iter().try_fold(first.clone(), |sum, fault| sum.add(fault))?;
            let are_finite = all.item::<f64>()? == 0.0;
            // Last, so that a call that fails above has scaled nothing and can be repeated.
            grads().try_for_each(|grad| grad.mul_scalar_(factor))?;
            Ok(are_finite)
        })
    }
}

/// The tensor on the parameter's device, in the parameter's memory order, and in the precision in which the parameter's
/// state is kept: `f32` for half types.
pub(super) fn in_layout_of(parameter: &Tensor, tensor: &Tensor) -> tensor::Result<Tensor> {
    let moved = tensor.to_dtype(parameter.dtype().computing())?.to(&parameter.device())?;
    if parameter.is_channels_last() { moved.channels_last() } else { moved.contiguous() }
}

/// Returns an error unless there is one learning rate for each group.
pub(super) fn check_lrs(optimizer: &str, lrs: &[f64], groups: usize) -> Result<()> {
    if lrs.len() == groups {
        return Ok(());
    }
    let (given, fix) = (lrs.len(), "give one for each");
    Err(Error::Argument(format!(
        "{optimizer}: {given} learning rates were given for {groups} groups of parameters; {fix}"
    )))
}

/// Returns an error unless a setting is at least 0.
pub(super) fn at_least_0(optimizer: &str, setting: &str, value: f64) -> Result<()> {
    check(value >= 0.0, optimizer, setting, value, "at least 0")
}

/// Returns an error unless a setting is in `0..=1`.
pub(super) fn from_0_to_1(optimizer: &str, setting: &str, value: f64) -> Result<()> {
    check((0.0..=1.0).contains(&value), optimizer, setting, value, "from 0 to 1")
}

/// Returns an error unless both betas are in `0..1`.
pub(super) fn both_below_1(optimizer: &str, _setting: &str, [first, second]: [f64; 2]) -> Result<()> {
    check((0.0..1.0).contains(&first), optimizer, "the first beta", first, "at least 0 and below 1")?;
    check((0.0..1.0).contains(&second), optimizer, "the second beta", second, "at least 0 and below 1")
}

/// Returns an error that names the `allowed` values unless `ok`. Callers compare so that NaN is not ok.
pub(super) fn check(ok: bool, optimizer: &str, setting: &str, value: f64, allowed: &str) -> Result<()> {
    if ok {
        return Ok(());
    }
    Err(Error::Argument(format!("{optimizer}: {setting} is {}; it must be {allowed}", number(value))))
}

/// `optimizer! { docs Name, docs of new, Method { the settings of a new optimizer } }`: an optimizer, its constructor,
/// and the methods that all optimizers share.
macro_rules! optimizer {
    ($(#[$docs:meta])* $name:ident, $docs_of_new:literal, $method:ident { $($settings:tt)+ }) => {
        $(#[$docs])*
        pub struct $name {
            methods: Vec<$method>, // one for each group
            groups: Groups,
        }

        impl $name {
            #[doc = $docs_of_new]
            pub fn new<P: Into<NamedParameter>>(parameters: impl IntoIterator<Item = P>, lr: f64) -> Self {
                Self::of(listed(parameters), lr)
            }

            /// The body of `new`, not generic, so that users' crates do not compile it again.
            fn of(parameters: Vec<NamedParameter>, lr: f64) -> Self {
                Self { methods: vec![$method { $($settings)+ }], groups: Groups::new(stringify!($name), lr, parameters) }
            }

            /// Changes the settings of all groups.
            fn set(mut self, change: impl Fn(&mut $method)) -> Self {
                self.methods.iter_mut().for_each(change);
                self
            }

            /// An optimizer without parameters that has the settings of the first group, changed by `change`.
            fn changed(&self, change: impl FnOnce(Self) -> Self) -> Self {
                change(Self { methods: vec![self.methods[0].clone()], groups: self.groups.settings() })
            }

            /// Replaces the learning rate; for the `settings` of [`group`](Self::group).
            #[must_use]
            pub fn with_lr(self, lr: f64) -> Self {
                self.groups.set_lr(lr);
                self
            }

            /// Adds a group of parameters, with the settings so far, changed by `settings`. Settings that are set after
            /// this call hold for all groups.
            #[must_use]
            pub fn group<P: Into<NamedParameter>>(
                mut self,
                parameters: impl IntoIterator<Item = P>,
                settings: impl FnOnce(Self) -> Self,
            ) -> Self {
                let changed = self.changed(settings);
                self.methods.extend(changed.methods.into_iter().take(1));
                self.groups.add(listed(parameters), changed.groups);
                self
            }

            /// Moves the parameters of the first group that `belongs` accepts to a new group, with the settings so
            /// far, changed by `settings`. `belongs` gets the name, empty if there is none, and the parameter. If it
            /// accepts none, and some have no names, [`step`](Optimizer::step) returns an error. Later calls change all
            /// groups.
            ///
            /// # Examples
            /// No weight decay for biases and norms, and half the learning rate for one layer:
            /// ```
            #[doc = concat!("use pagelock_nn::{Conv2d, BatchNorm2d, Module, Sequential, optim::{Optimizer, ", stringify!($name), "}};")]
            ///
            /// let model = Sequential::new((Conv2d::new(1, 16, 3)?, BatchNorm2d::new(16)?, Conv2d::new(16, 4, 3)?));
            #[doc = concat!("let opt = ", stringify!($name), "::new(model.named_parameters(), 1e-3)")]
            ///     .weight_decay(0.1)
            ///     .group_where(|_, parameter| parameter.rank() < 2, |group| group.weight_decay(0.0))
            ///     .group_where(|name, _| name.starts_with("2."), |group| group.with_lr(5e-4));
            /// assert_eq!(opt.lrs(), [1e-3, 1e-3, 5e-4]);
            /// # Ok::<(), pagelock_nn::Error>(())
            /// ```
            #[must_use]
            pub fn group_where(
                mut self,
                belongs: impl Fn(&str, &Parameter) -> bool,
                settings: impl FnOnce(Self) -> Self,
            ) -> Self {
                let changed = self.changed(settings);
                self.methods.extend(changed.methods.into_iter().take(1));
                self.groups.split(&belongs, changed.groups);
                self
            }
        }

        impl Optimizer for $name {
            fn step(&mut self) -> Result<()> {
                self.groups.step(&self.methods)
            }

            fn zero_grad(&mut self) {
                self.groups.zero_grad();
            }

            fn lr(&self) -> f64 {
                self.groups.lr()
            }

            fn set_lr(&mut self, lr: f64) {
                self.groups.set_lr(lr);
            }

            fn lrs(&self) -> Vec<f64> {
                self.groups.lrs()
            }

            fn set_lrs(&mut self, lrs: &[f64]) -> Result<()> {
                self.groups.set_lrs(lrs)
            }

            fn set_initial_lrs(&mut self, lrs: &[f64]) {
                self.groups.set_initial_lrs(lrs);
            }

            fn scale_gradients(&mut self, factor: f64) -> Result<bool> {
                self.groups.scale_gradients(factor)
            }

            fn state_dict(&self) -> Result<$crate::optim::OptimizerState> {
                // A copy, because `Method::settings` takes `&mut self`, both to read settings and to change them.
                let mut methods = self.methods.clone();
                self.groups.state_dict(&mut methods)
            }

            fn load_state_dict(&mut self, state: &$crate::optim::OptimizerState) -> Result<()> {
                let mut methods = self.methods.clone();
                self.groups.load_state_dict(state, &mut methods)?;
                self.methods = methods;
                Ok(())
            }
        }
    };
}
pub(super) use optimizer;

/// `settings! { Name: Method docs setting: type => field, range; .. }`: the methods of an optimizer that change the
/// settings of all groups, and [`Settings`](super::method::Settings) of its method, which has each setting in `field`
/// and checks it by the function `range`. The type of a pair of numbers is their names, `(first, second)`. Without
/// `: Method`, only the methods of the optimizer.
macro_rules! settings {
    ($name:ident: $method:ident $($(#[$docs:meta])* $setting:ident: $type:tt => $($field:ident).+ $(, $range:ident)?;)+) => {
        settings! { $name $($(#[$docs])* $setting: $type => $($field).+;)+ }

        impl $crate::optim::method::Settings for $method {
            fn check_ranges(&self, optimizer: &str) -> Result<()> {
                $(settings!(@check optimizer, $setting, self.$($field).+ $(, $range)?);)+
                Ok(())
            }

            fn settings(&mut self, show: &mut dyn FnMut(&'static str, Field<'_>)) {
                $(show(stringify!($setting), settings!(@field $type, &mut self.$($field).+));)+
            }
        }
    };
    ($name:ident $($(#[$docs:meta])* $setting:ident: $type:tt => $($field:ident).+;)+) => {
        impl $name {
            $(settings!(@setter [$(#[$docs])*] $setting, $type, $($field).+);)+
        }
    };
    (@setter [$(#[$docs:meta])*] $setting:ident, ($first:ident, $second:ident), $($field:ident).+) => {
        $(#[$docs])*
        #[must_use]
        pub fn $setting(self, $first: f64, $second: f64) -> Self {
            self.set(|method| method.$($field).+ = [$first, $second])
        }
    };
    (@setter [$(#[$docs:meta])*] $setting:ident, $type:ty, $($field:ident).+) => {
        $(#[$docs])*
        #[must_use]
        pub fn $setting(self, $setting: $type) -> Self {
            self.set(|method| method.$($field).+ = $setting)
        }
    };
    (@check $optimizer:ident, $setting:ident, $value:expr, $range:ident) => {
        $crate::optim::groups::$range($optimizer, stringify!($setting), $value)?
    };
    (@check $optimizer:ident, $setting:ident, $value:expr) => {};
    (@field f64, $field:expr) => {
        Field::Number($field)
    };
    (@field bool, $field:expr) => {
        Field::Flag($field)
    };
    (@field $pair:tt, $field:expr) => {
        Field::Numbers($field)
    };
}
pub(super) use settings;
