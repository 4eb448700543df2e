//! [`Method`]: what differs between optimizers, each in a file of its own.

use super::groups::Group;
use super::state::Clock;
use crate::{Parameter, Result};
use pagelock_tensor::optimizer_steps::Rate;
use pagelock_tensor::{self as tensor};

/// Tensors that are kept for a parameter, at most.
pub(super) const KEPT: usize = 3;

/// Numbers that a clock begins with, at most three.
#[derive(Clone, Copy)]
pub(super) struct Start {
    numbers: [f64; 3],
    len: usize,
}

impl Start {
    pub(super) fn new(begin: &[f64]) -> Self {
        let mut numbers = [0.0; 3];
        numbers[..begin.len()].copy_from_slice(begin);
        Self { numbers, len: begin.len() }
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

/// The formula of an optimizer, with the settings of a group. Names are those of PyTorch's state dicts.
pub(super) trait Method {
    /// What its clock counts; `step` comes first, if anything does.
    fn clock(&self) -> &'static [&'static str] {
        &["step"]
    }

    /// Whether all that its clock says is how many steps there were, so that groups with other settings may have the same one.
    fn counts_only(&self) -> bool {
        self.clock().len() == 1
    }

    /// Refuses settings outside their ranges.
    fn check(&self) -> Result<()>;

    /// Refuses a parameter that it cannot train.
    fn check_parameter(&self, parameter: &Parameter) -> Result<()> {
        let _ = parameter;
        Ok(())
    }

    /// Shows all settings but the learning rate.
    fn settings(&mut self, show: &mut dyn FnMut(&'static str, Field<'_>));

    /// The tensors that are kept for a parameter.
    fn kept(&self) -> [Option<&'static str>; KEPT];

    /// What their elements are at first.
    fn start(&self) -> f64 {
        0.0
    }

    /// What the numbers of the clock are at first.
    fn clock_start(&self, lr: f64) -> Start {
        let _ = lr;
        Start::new(&[0.0; 3][..self.clock().len()])
    }

    /// Counts a step.
    fn advance(&self, clock: &Clock) -> tensor::Result<()> {
        match self.clock().len() {
            1 => clock.numbers.add_scalar_(1),
            _ => clock.numbers.select(0, 0)?.add_scalar_(1),
        }
    }

    /// What becomes of the clock after a step.
    fn after(&self, clock: &Clock, lr: &Rate) -> tensor::Result<()> {
        let _ = (clock, lr);
        Ok(())
    }

    /// Changes every parameter that has a gradient. Each of `methods` is that of a group.
    fn apply(methods: &[Self], groups: &[Group]) -> tensor::Result<()>
    where
        Self: Sized;
}

/// The methods of an optimizer, one for each group. What works with this is compiled once, not for each type of method.
pub(super) trait Methods {
    fn of(&self, group: usize) -> &dyn Method;
    fn of_mut(&mut self, group: usize) -> &mut dyn Method;
    /// [`Method::apply`].
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
    /// One of some names, by its place among them. None in PyTorch's state dicts is the first.
    Choice(&'a mut usize, &'a [&'static str]),
    /// What is always so for this optimizer, and must be so in what is loaded.
    Fixed(bool),
}
