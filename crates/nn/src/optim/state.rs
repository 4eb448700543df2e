//! [`State`]: what an optimizer keeps for a parameter from its first step on, and [`Clock`], which counts its steps.
//!
//! A step of many parameters is one launch on a GPU as long as they share a clock, so those that take their first step together
//! get one. A parameter that has no gradient in a later step stays behind with it: those that go on get a copy, one for all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::groups::{Group, Slot, laid_as};
use super::method::{KEPT, Method, Methods};
use pagelock_tensor::optimizer_steps::{Rate, StepTensors};
use pagelock_tensor::{self as tensor, Device, Tensor};

/// What is kept for one parameter.
pub(super) struct State {
    /// Of the parameter's shape, in the places that the method names.
    pub(super) kept: [Option<Tensor>; KEPT],
    /// None if the method names no number of its clock.
    pub(super) clock: Option<Arc<Clock>>,
    /// Whether nothing was kept yet.
    pub(super) is_first: bool,
}

/// Numbers that change from step to step, alike for some parameters: how many steps they took, first of all. `f64` where the
/// parameters are, so that captured steps count too.
pub(super) struct Clock {
    pub(super) numbers: Tensor,
    seen_in: AtomicU64, // the latest call that did something with it
}

impl Clock {
    pub(super) fn new(numbers: Tensor) -> Arc<Self> {
        Arc::new(Self { numbers, seen_in: AtomicU64::new(0) })
    }

    pub(super) fn of(numbers: &[f64], device: &Device) -> tensor::Result<Arc<Self>> {
        let numbers = Tensor::from_slice(numbers, numbers.len())?;
        Ok(Self::new(numbers.to(device)?))
    }

    /// Whether this is the first time that it is asked in a call.
    pub(super) fn is_due(&self, call: u64) -> bool {
        self.seen_in.swap(call, Relaxed) != call
    }
}

impl State {
    /// The same where the parameter is now, and in its order and precision.
    pub(super) fn beside(&self, parameter: &Tensor) -> tensor::Result<Self> {
        let device = parameter.device();
        let clock = match &self.clock {
            Some(clock) if clock.numbers.device() != device => Some(Clock::new(clock.numbers.to(&device)?)),
            clock => clock.clone(), // then it stays the clock of others, too
        };
        let mut kept = [const { None }; KEPT];
        for (to, from) in kept.iter_mut().zip(&self.kept) {
            *to = from.as_ref().map(|from| laid_as(parameter, from)).transpose()?;
        }
        Ok(Self { kept, clock, is_first: self.is_first })
    }
}

/// Room for what the methods keep, for every parameter that has a gradient. A clock that only counts is that of several groups.
pub(super) fn keep(methods: &dyn Methods, groups: &mut [Group]) -> tensor::Result<()> {
    let mut parted = Parted::from_resting(groups);
    let mut beginners: Option<Arc<Clock>> = None;
    for (i, Group { lr, slots, .. }) in groups.iter_mut().enumerate() {
        let method = methods.of(i);
        let (names, start) = (method.kept(), method.clock_start(lr.get()));
        if start.is_empty() && names.iter().all(Option::is_none) {
            continue;
        }
        beginners = beginners.filter(|_| method.counts_only());
        for slot in slots.iter_mut().filter(|slot| slot.parameter.grad().is_some()) {
            let Some(State { kept, clock, .. }) = &mut slot.state else {
                let device = slot.parameter.device();
                let mut clock = beginners.take().filter(|clock| clock.numbers.device() == device);
                if clock.is_none() && !start.is_empty() {
                    clock = Some(Clock::of(start.as_slice(), &device)?);
                }
                beginners.clone_from(&clock);
                let mut state = State { kept: [const { None }; KEPT], clock, is_first: true };
                fill(method, names, &mut state.kept, slot.weights())?;
                slot.state = Some(state);
                continue;
            };
            parted.leave(clock)?;
            if kept.iter().zip(names).any(|(kept, name)| kept.is_none() && name.is_some()) {
                let mut filled = kept.clone();
                fill(method, names, &mut filled, slot.weights())?;
                slot.state = slot.state.take().map(|state| State { kept: filled, ..state });
            }
        }
    }
    Ok(())
}

/// The clocks of parameters that rest, each with the one of those that go on, once there is one.
struct Parted(Vec<(Arc<Clock>, Option<Arc<Clock>>)>);

impl Parted {
    fn from_resting(groups: &[Group]) -> Self {
        let mut resting: Vec<(Arc<Clock>, Option<Arc<Clock>>)> = Vec::new();
        let slots = groups.iter().flat_map(|group| &group.slots).filter(|slot| slot.parameter.grad().is_none());
        for clock in slots.filter_map(|slot| slot.state.as_ref()?.clock.as_ref()) {
            if !resting.iter().any(|(other, _)| Arc::ptr_eq(clock, other)) {
                resting.push((clock.clone(), None));
            }
        }
        Self(resting)
    }

    /// Replaces a clock that rests by a copy that goes on.
    fn leave(&mut self, clock: &mut Option<Arc<Clock>>) -> tensor::Result<()> {
        let Some(clock) = clock else { return Ok(()) };
        let Some((_, copy)) = self.0.iter_mut().find(|(resting, _)| Arc::ptr_eq(clock, resting)) else { return Ok(()) };
        let copied = match copy {
            Some(copied) => copied.clone(),
            None => Clock::new(clock.numbers.deep_clone()?),
        };
        *clock = copied.clone();
        *copy = Some(copied);
        Ok(())
    }
}

/// Makes what is named and not there yet.
fn fill(
    method: &dyn Method,
    names: [Option<&'static str>; KEPT],
    kept: &mut [Option<Tensor>; KEPT],
    weights: &Tensor,
) -> tensor::Result<()> {
    for (kept, _) in kept.iter_mut().zip(names).filter(|(kept, name)| kept.is_none() && name.is_some()) {
        *kept = Some(weights.full_like(method.start())?);
    }
    Ok(())
}

/// Does `work` once for each clock of parameters that have a gradient, for a `call` that none before had.
pub(super) fn each_clock(slots: &[Slot], call: u64, work: impl Fn(&Clock) -> tensor::Result<()>) -> tensor::Result<()> {
    for Slot { parameter, state, .. } in slots {
        let state = state.as_ref().filter(|_| parameter.grad().is_some());
        if let Some(clock) = state.and_then(|state| state.clock.as_ref()).filter(|clock| clock.is_due(call)) {
            work(clock)?;
        }
    }
    Ok(())
}

/// Notes that those with a gradient took a step.
pub(super) fn begin(slots: &mut [Slot]) {
    for Slot { parameter, state, .. } in slots {
        if let Some(state) = state.as_mut().filter(|_| parameter.grad().is_some()) {
            state.is_first = false;
        }
    }
}

/// What a step needs for every parameter that has a gradient, with the rule and the learning rate of its group.
pub(super) fn step_tensors<'a, R: 'a>(
    rules: impl Iterator<Item = &'a R>,
    groups: &'a [Group],
) -> impl Iterator<Item = (&'a R, StepTensors, &'a Rate)> {
    let slots = rules.zip(groups).flat_map(|(rule, group)| group.slots.iter().map(move |slot| (rule, group, slot)));
    slots.filter_map(|(rule, group, slot)| Some((rule, slot.step_tensors()?, &group.lr)))
}

impl Slot {
    /// What a step needs, if there is a gradient.
    fn step_tensors(&self) -> Option<StepTensors> {
        let (parameter, half, grad) = (self.weights().clone(), self.half(), self.parameter.grad()?);
        let (kept, clock, is_first) = match &self.state {
            Some(State { kept, clock, is_first }) => {
                (kept.clone(), clock.as_ref().map(|clock| clock.numbers.clone()), *is_first)
            }
            None => ([const { None }; KEPT], None, true),
        };
        Some(StepTensors { parameter, grad, half, kept, clock, is_first })
    }
}
