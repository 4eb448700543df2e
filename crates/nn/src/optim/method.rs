//! [`Method`]: what differs between optimizers. Each optimizer has a file of its own.

use super::groups::Group;
use super::state::Clock;
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::Rate;
use pagelock_tensor::{self as tensor};

/// The most state tensors of a parameter.
pub(super) const MAX_STATE_TENSORS: usize = 3;

/// The initial numbers of a clock, at most three.
#[derive(Clone, Copy)]
pub(super) struct Start {
    numbers: [f64; 3],
    len: usize,
}

impl Start {
    pub(super) fn new(start: &[f64]) -> Self {
        let mut numbers = [0.0; 3];
        numbers[..start.len()].copy_from_slice(start);
        Self { numbers, len: start.len() }
    }

    pub(super) fn as_slice(&self) -> &[f64] {
        &self.numbers[..self.len]
    }

    pub(super) fn bits(&self) -> [u64; 3] {
        self.numbers.map(f64::to_bits)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The settings of a group but the learning rate, under the names of PyTorch's state dicts.
pub(super) trait Settings {
    /// Returns an error for a setting outside its range.
    fn check_ranges(&self, optimizer: &str) -> Result<()>;

    /// Passes all settings to `show`, which reads or changes them.
    fn settings(&mut self, show: &mut dyn FnMut(&'static str, Field<'_>));
}

/// The formula of an optimizer, with the settings of a group. Names are those of PyTorch's state dicts.
pub(super) trait Method: Settings {
    /// The names of the numbers of its clock, `step` first; empty if it has no clock.
    fn clock(&self) -> &'static [&'static str] {
        &["step"]
    }

    /// Whether its clock only counts steps, so that groups with different settings can share it.
    fn counts_only(&self) -> bool {
        self.clock().len() == 1
    }

    /// Returns an error for settings that cannot be used.
    fn check(&self, optimizer: &str) -> Result<()> {
        self.check_ranges(optimizer)
    }

    /// Returns an error for a parameter that it cannot train.
    fn check_parameter(&self, parameter: &Parameter) -> Result<()> {
        let _ = parameter;
        Ok(())
    }

    /// The names of the state tensors of a parameter.
    fn state_names(&self) -> [Option<&'static str>; MAX_STATE_TENSORS];

    /// The initial value of the elements of the state tensors.
    fn start(&self) -> f64 {
        0.0
    }

    /// The initial numbers of the clock.
    fn clock_start(&self, lr: f64) -> Start {
        let _ = lr;
        Start::new(&[0.0; 3][..self.clock().len()])
    }

    /// Updates the clock before a step.
    fn advance(&self, clock: &Clock) -> tensor::Result<()> {
        match self.clock().len() {
            1 => clock.numbers.add_scalar_(1),
            _ => clock.numbers.select(0, 0)?.add_scalar_(1),
        }
    }

    /// Updates the clock after a step.
    fn after(&self, clock: &Clock, lr: &Rate) -> tensor::Result<()> {
        let _ = (clock, lr);
        Ok(())
    }

    /// Changes every parameter that has a gradient. `methods[i]` is the method of `groups[i]`.
    fn apply(methods: &[Self], groups: &[Group]) -> tensor::Result<()>
    where
        Self: Sized;
}

/// `apply_rule! { Rule }`: [`Method::apply`] of a method that is a rule of `tensor`.
macro_rules! apply_rule {
    ($rule:ident) => {
        fn apply(methods: &[Self], groups: &[$crate::optim::groups::Group]) -> pagelock_tensor::Result<()> {
            $rule::step_groups($crate::optim::state::step_tensors(methods.iter(), groups))
        }
    };
}
pub(super) use apply_rule;

/// The methods of an optimizer, one for each group. Code that uses this trait is compiled once, not for each type of
/// method.
pub(super) trait Methods {
    fn of(&self, group: usize) -> &dyn Method;
    fn of_mut(&mut self, group: usize) -> &mut dyn Method;
    /// Calls [`Method::apply`].
    fn apply(&self, groups: &[Group]) -> tensor::Result<()>;
}

impl<M: Method> Methods for Vec<M> {
    fn of(&self, group: usize) -> &dyn Method {
        &self[group]
    }

    fn of_mut(&mut self, group: usize) -> &mut dyn Method {
        &mut self[group]
    }

    fn apply(&self, groups: &[Group]) -> tensor::Result<()> {
        M::apply(self, groups)
    }
}

/// A setting, to be read or changed.
pub(super) enum Field<'a> {
    Number(&'a mut f64),
    Numbers(&'a mut [f64]),
    Integer(&'a mut u64),
    Flag(&'a mut bool),
    /// One of several names, by its index. `None` in PyTorch's state dicts means the first one.
    Choice(&'a mut usize, &'a [&'static str]),
    /// A flag that always has this value for this optimizer, and must have it in a state dict to load.
    Fixed(bool),
}
