//! [`State`]: the state that an optimizer keeps for a parameter from its first step on, and [`Clock`], which counts
//! its steps.
//!
//! A step of many parameters is one launch on a GPU as long as they share a clock, so parameters that take their
//! first step together share one. If some of them have no gradient in a later step, these keep the clock, and the
//! others share a copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::groups::{Group, Slot, in_layout_of};
use super::method::{MAX_STATE_TENSORS, Method, Methods};
use pagelock_tensor::optimizer_steps::{Rate, StepTensors};
use pagelock_tensor::{self as tensor, Device, Tensor};

/// The state of one parameter.
pub(super) struct State {
    /// Tensors of the parameter's shape, in the order of [`Method::state_names`].
    pub(super) tensors: [Option<Tensor>; MAX_STATE_TENSORS],
    /// `None` if the method has no clock.
    pub(super) clock: Option<Arc<Clock>>,
    /// Whether the next step is the first.
    pub(super) is_first: bool,
}

/// Numbers that change from step to step, and that several parameters may share. The first is the number of steps.
/// They are `f64` on the parameters' device, so that captured steps count too.
pub(super) struct Clock {
    pub(super) numbers: Tensor,
    seen_in: AtomicU64, // the latest call that updated it
}

impl Clock {
    pub(super) fn new(numbers: Tensor) -> Arc<Self> {
        Arc::new(Self { numbers, seen_in: AtomicU64::new(0) })
    }

    pub(super) fn of(numbers: &[f64], device: &Device) -> tensor::Result<Arc<Self>> {
        let numbers = Tensor::from_slice(numbers, numbers.len())?;
        Ok(Self::new(numbers.to(device)?))
    }

    /// Whether this is the first query in `call`.
    pub(super) fn is_due(&self, call: u64) -> bool {
        self.seen_in.swap(call, Relaxed) != call
    }
}

/// The clocks that were copied to other devices, with their copies.
#[derive(Default)]
pub(super) struct MovedClocks(Vec<[Arc<Clock>; 2]>);

impl MovedClocks {
    /// The clock, or its copy on `device`.
    fn on(&mut self, clock: &Arc<Clock>, device: &Device) -> tensor::Result<Arc<Clock>> {
        if clock.numbers.device() == *device {
            return Ok(clock.clone());
        }
        let is_copy = |[from, to]: &&[Arc<Clock>; 2]| Arc::ptr_eq(from, clock) && to.numbers.device() == *device;
        if let Some([_, copy]) = self.0.iter().find(is_copy) {
            return Ok(copy.clone());
        }
        let copy = Clock::new(clock.numbers.to(device)?);
        self.0.push([clock.clone(), copy.clone()]);
        Ok(copy)
    }
}

impl State {
    /// The state for `parameter`: on its device, and in its memory order and precision. `moved` is for all parameters
    /// of an optimizer, so that a clock which they share stays shared.
    pub(super) fn moved_to(&self, parameter: &Tensor, moved: &mut MovedClocks) -> tensor::Result<Self> {
        let clock = self.clock.as_ref().map(|clock| moved.on(clock, &parameter.device())).transpose()?;
        let mut tensors = [const { None }; MAX_STATE_TENSORS];
        for (to, from) in tensors.iter_mut().zip(&self.tensors) {
            *to = from.as_ref().map(|from| in_layout_of(parameter, from)).transpose()?;
        }
        Ok(Self { tensors, clock, is_first: self.is_first })
    }
}

/// Allocates the state of every parameter that has a gradient. Groups share a clock that only counts steps.
pub(super) fn allocate(methods: &dyn Methods, groups: &mut [Group]) -> tensor::Result<()> {
    let mut split_clocks = SplitClocks::of_idle(groups);
    let mut shared_clock: Option<Arc<Clock>> = None;
    for (i, Group { lr, slots, .. }) in groups.iter_mut().enumerate() {
        let method = methods.of(i);
        let (names, start) = (method.state_names(), method.clock_start(lr.get()));
        if start.is_empty() && names.iter().all(Option::is_none) {
            continue;
        }
        shared_clock = shared_clock.filter(|_| method.counts_only());
        for slot in slots.iter_mut().filter(|slot| slot.parameter.grad().is_some()) {
            let Some(State { tensors, clock, .. }) = &mut slot.state else {
                let device = slot.parameter.device();
                let mut clock = shared_clock.take().filter(|clock| clock.numbers.device() == device);
                if clock.is_none() && !start.is_empty() {
                    clock = Some(Clock::of(start.as_slice(), &device)?);
                }
                shared_clock.clone_from(&clock);
                let mut state = State { tensors: [const { None }; MAX_STATE_TENSORS], clock, is_first: true };
                allocate_missing(method, names, &mut state.tensors, slot.weights())?;
                slot.state = Some(state);
                continue;
            };
            split_clocks.split(clock)?;
            if tensors.iter().zip(names).any(|(tensor, name)| tensor.is_none() && name.is_some()) {
                let mut filled = tensors.clone();
                allocate_missing(method, names, &mut filled, slot.weights())?;
                slot.state = slot.state.take().map(|state| State { tensors: filled, ..state });
            }
        }
    }
    Ok(())
}

/// The clocks of parameters without a gradient, each with the copy for the parameters that have one, once it is made.
struct SplitClocks(Vec<(Arc<Clock>, Option<Arc<Clock>>)>);

impl SplitClocks {
    fn of_idle(groups: &[Group]) -> Self {
        let mut idle: Vec<(Arc<Clock>, Option<Arc<Clock>>)> = Vec::new();
        let slots = groups.iter().flat_map(|group| &group.slots).filter(|slot| slot.parameter.grad().is_none());
        for clock in slots.filter_map(|slot| slot.state.as_ref()?.clock.as_ref()) {
            if !idle.iter().any(|(other, _)| Arc::ptr_eq(clock, other)) {
                idle.push((clock.clone(), None));
            }
        }
        Self(idle)
    }

    /// Replaces the clock of a parameter with a gradient by a copy, if a parameter without one has it too.
    fn split(&mut self, clock: &mut Option<Arc<Clock>>) -> tensor::Result<()> {
        let Some(clock) = clock else { return Ok(()) };
        let Some((_, copy)) = self.0.iter_mut().find(|(idle, _)| Arc::ptr_eq(clock, idle)) else { return Ok(()) };
        let copied = match copy {
            Some(copied) => copied.clone(),
            None => Clock::new(clock.numbers.deep_clone()?),
        };
        *clock = copied.clone();
        *copy = Some(copied);
        Ok(())
    }
}

/// Allocates the named tensors that are missing.
fn allocate_missing(
    method: &dyn Method,
    names: [Option<&'static str>; MAX_STATE_TENSORS],
    tensors: &mut [Option<Tensor>; MAX_STATE_TENSORS],
    weights: &Tensor,
) -> tensor::Result<()> {
    for (tensor, _) in tensors.iter_mut().zip(names).filter(|(tensor, name)| tensor.is_none() && name.is_some()) {
        *tensor = Some(weights.full_like(method.start())?);
    }
    Ok(())
}

/// Calls `work` once for each clock of parameters that have a gradient. `call` must be a number not used before.
pub(super) fn each_clock(slots: &[Slot], call: u64, work: impl Fn(&Clock) -> tensor::Result<()>) -> tensor::Result<()> {
    for Slot { parameter, state, .. } in slots {
        let state = state.as_ref().filter(|_| parameter.grad().is_some());
        if let Some(clock) = state.and_then(|state| state.clock.as_ref()).filter(|clock| clock.is_due(call)) {
            work(clock)?;
        }
    }
    Ok(())
}

/// Records that the parameters with a gradient have taken a step.
pub(super) fn record_step(slots: &mut [Slot]) {
    for Slot { parameter, state, .. } in slots {
        if let Some(state) = state.as_mut().filter(|_| parameter.grad().is_some()) {
            state.is_first = false;
        }
    }
}

/// The inputs of a step for every parameter that has a gradient, with the rule and the learning rate of its group.
pub(super) fn step_tensors<'a, R: 'a>(
    rules: impl Iterator<Item = &'a R>,
    groups: &'a [Group],
) -> impl Iterator<Item = (&'a R, StepTensors, &'a Rate)> {
    let slots = rules.zip(groups).flat_map(|(rule, group)| group.slots.iter().map(move |slot| (rule, group, slot)));
    slots.filter_map(|(rule, group, slot)| Some((rule, slot.step_tensors()?, &group.lr)))
}

impl Slot {
    /// The inputs of a step, if there is a gradient.
    fn step_tensors(&self) -> Option<StepTensors> {
        let (parameter, half_copy, grad) = (self.weights().clone(), self.half_copy(), self.parameter.grad()?);
        let (state, clock, is_first) = match &self.state {
            Some(State { tensors, clock, is_first }) => {
                (tensors.clone(), clock.as_ref().map(|clock| clock.numbers.clone()), *is_first)
            }
            None => ([const { None }; MAX_STATE_TENSORS], None, true),
        };
        Some(StepTensors { parameter, grad, half_copy, state, clock, is_first })
    }
}
