//! [`StepTensors`]: what a step needs for one parameter; [`Formula`]: what differs between methods.
//!
//! ```text
//! rule.step(tensors, lr) ─▶ Batch (groups.rs): those that one launch takes ─┬─ CPU:  Formula::on_cpu ─▶ Now::change
//!                                                                           └─ CUDA: cuda::step ─▶ <method>.cu + steps.cu
//! ```

use super::groups::{Batch, Group, GroupTensors, MAX_GROUPS, MAX_STATE_TENSORS, MAX_TENSORS, OP};
use super::{Rate, cuda};
use crate::cuda::Code;
use crate::device::{Device, common_device};
use crate::element::{DType, Real};
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::kind::{Float, Int};
use crate::profiler;
use crate::tensor::Tensor;

/// A parameter and the tensors that its step needs. All are on one device, and all but `clock` have one shape.
#[derive(Debug, Clone)]
pub struct StepTensors {
    /// The parameter, which is changed: `p`.
    pub parameter: Tensor,
    /// Its gradient: `g`.
    pub grad: Tensor,
    /// The parameter in half precision, if `parameter` is its `f32` master. First, the step copies to the master
    /// those elements that differ from the rounded master; last, it rounds the master into this. Its precision is the
    /// gradient's.
    pub half_copy: Option<Tensor>,
    /// The state tensors, which are changed too. The rule says which of them it has.
    pub state: [Option<Tensor>; 3],
    /// Numbers (`f64`, one dimension) that change from step to step: the number of steps, including this one, and
    /// others that the rule describes. `None` for rules that need none.
    pub clock: Option<Tensor>,
    /// Whether this is the first step: the state tensors have their initial values.
    pub is_first: bool,
}

/// What all rules do to gradient and parameter before their formula.
#[derive(Clone, Copy)]
pub(super) struct Prelude {
    /// Whether to maximize: the gradient is taken with the other sign.
    pub(super) maximize: bool,
    /// How much of the parameter is added to the gradient, or how much the parameter shrinks.
    pub(super) weight_decay: f64,
    /// Whether the parameter shrinks, relative to the learning rate.
    pub(super) is_decoupled: bool,
}

impl Prelude {
    /// Sign, decay and shrink, as in `Settings` of `steps.cu`.
    pub(super) fn numbers(&self) -> [f64; 3] {
        let sign = if self.maximize { -1.0 } else { 1.0 };
        if self.is_decoupled { [sign, 0.0, self.weight_decay] } else { [sign, self.weight_decay, 0.0] }
    }
}

/// A step of one group on the CPU.
#[derive(Clone, Copy)]
pub(super) struct Now<'a> {
    pub(super) tensors: &'a StepTensors,
    pub(super) prelude: Prelude,
    pub(super) lr: f64,
    /// The numbers of the clock that the rule needs, then zeros.
    pub(super) clock: [f64; MAX_STATE_TENSORS],
}

/// The formula of a method, with its settings.
pub(super) trait Formula: 'static {
    /// Its kernel: the method's text, then `steps.cu`.
    const CODE: &'static Code;
    /// How many numbers of the clock it reads.
    const CLOCK: usize = 1;
    /// The type of these numbers: `f64`, or `i64` for a clock that only counts.
    const CLOCK_TYPE: DType = DType::F64;

    fn prelude(&self) -> Prelude;

    /// Which of the state tensors it has.
    fn has_state(&self) -> [bool; MAX_STATE_TENSORS];

    /// The numbers of its kernel's `Rule`, and how many there are.
    fn numbers(&self, group: &StepTensors) -> ([u64; MAX_NUMBERS], usize);

    /// The step of one group, on the CPU: [`Now::change`] with the method's function of an element.
    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()>;
}

/// `code! { name }`: the [`CODE`](Formula::CODE) of the method whose text is `name.cu`.
macro_rules! code {
    ($name:literal) => {
        const CODE: &'static $crate::cuda::Code = {
            static CODE: $crate::cuda::Code = $crate::cuda::Code {
                name: $name,
                text: concat!(include_str!(concat!($name, ".cu")), include_str!("steps.cu")),
            };
            &CODE
        };
    };
}
pub(super) use code;

/// `rule! { name, self => is_decoupled, has_state, numbers }`: a method's [`code!`], and what does not depend on the group.
macro_rules! rule {
    ($name:literal, $self:ident => is_decoupled: $is_decoupled:expr, has_state: $has_state:expr, numbers: $numbers:expr) => {
        $crate::optimizer_steps::step::code! { $name }

        fn prelude(&$self) -> $crate::optimizer_steps::step::Prelude {
            $crate::optimizer_steps::step::Prelude {
                maximize: $self.maximize,
                weight_decay: $self.weight_decay,
                is_decoupled: $is_decoupled,
            }
        }

        fn has_state(&$self) -> [bool; $crate::optimizer_steps::groups::MAX_STATE_TENSORS] {
            $has_state
        }

        fn numbers(&$self, _: &StepTensors) -> ([u64; $crate::optimizer_steps::step::MAX_NUMBERS], usize) {
            $crate::optimizer_steps::step::numbers($numbers)
        }
    };
}
pub(super) use rule;

/// Any [`Formula`], so that code that does not depend on the method is compiled once.
pub(super) trait AnyFormula {
    fn code(&self) -> &'static Code;
    /// [`Formula::CLOCK`] and [`Formula::CLOCK_TYPE`].
    fn clock(&self) -> (usize, DType);
    fn prelude(&self) -> Prelude;
    fn has_state(&self) -> [bool; MAX_STATE_TENSORS];
    fn numbers(&self, group: &StepTensors) -> ([u64; MAX_NUMBERS], usize);
    /// [`Formula::on_cpu`] in the parameter's precision.
    fn on_cpu(&self, now: Now<'_>) -> Result<()>;
}

impl<F: Formula> AnyFormula for F {
    fn code(&self) -> &'static Code {
        F::CODE
    }

    fn clock(&self) -> (usize, DType) {
        (F::CLOCK, F::CLOCK_TYPE)
    }

    fn prelude(&self) -> Prelude {
        Formula::prelude(self)
    }

    fn has_state(&self) -> [bool; MAX_STATE_TENSORS] {
        Formula::has_state(self)
    }

    fn numbers(&self, group: &StepTensors) -> ([u64; MAX_NUMBERS], usize) {
        Formula::numbers(self, group)
    }

    fn on_cpu(&self, now: Now<'_>) -> Result<()> {
        match now.tensors.parameter.dtype() {
            DType::F64 => Formula::on_cpu::<f64>(self, now),
            _ => Formula::on_cpu::<f32>(self, now),
        }
    }
}

/// The most numbers of a rule.
pub(super) const MAX_NUMBERS: usize = 6;

/// Numbers for a kernel, padded with zeros.
pub(super) fn numbers<const N: usize>(numbers: [f64; N]) -> ([u64; MAX_NUMBERS], usize) {
    let mut filled = [0; MAX_NUMBERS];
    filled.iter_mut().zip(numbers).for_each(|(to, number)| *to = number.to_bits());
    (filled, N)
}

/// The tensors of one parameter's step, its rule and its learning rate.
#[derive(Clone)]
pub(super) struct Ruled<'a> {
    pub(super) tensors: StepTensors,
    pub(super) formula: &'a dyn AnyFormula,
    pub(super) lr: &'a Rate,
}

/// Takes one step for all of the tensors, each with its rule and learning rate.
pub(super) fn step<'a, F: Formula>(tensors: &mut dyn Iterator<Item = (&'a F, StepTensors, &'a Rate)>) -> Result<()> {
    step_each(&mut tensors.map(|(formula, tensors, lr)| Ruled { tensors, formula, lr }))
}

fn step_each<'a>(groups: &mut dyn Iterator<Item = Ruled<'a>>) -> Result<()> {
    let mut batch = Batch::new();
    for group in groups {
        batch.add(group, launch)?;
    }
    batch.finish(launch)
}

/// Defines `step` of a rule.
macro_rules! steps {
    ($rule:ident, $state:literal) => {
        impl $rule {
            /// Takes one step for all of the tensors.
            #[doc = $state]
            ///
            /// # Errors
            /// As [`SgdRule::step`](super::SgdRule::step).
            pub fn step(
                &self,
                tensors: impl IntoIterator<Item = $crate::optimizer_steps::StepTensors>,
                lr: &$crate::optimizer_steps::Rate,
            ) -> Result<()> {
                Self::run(&mut tensors.into_iter().map(|tensors| (self, tensors, lr)))
            }
        }

        $crate::optimizer_steps::step::step_groups! { $rule }
    };
}
pub(super) use steps;

/// Defines `step_groups` of a rule.
macro_rules! step_groups {
    ($rule:ident) => {
        impl $rule {
            /// Takes one step for tensors of several groups, each with its rule and learning rate. On a GPU, groups
            /// share a launch if their rules differ only in weight decay and direction, and their learning rates were
            /// [joined](crate::optimizer_steps::Rate::join).
            ///
            /// # Errors
            /// As [`SgdRule::step`](crate::optimizer_steps::SgdRule::step).
            pub fn step_groups<'a>(
                tensors: impl IntoIterator<
                    Item = (&'a Self, $crate::optimizer_steps::StepTensors, &'a $crate::optimizer_steps::Rate),
                >,
            ) -> Result<()> {
                Self::run(&mut tensors.into_iter())
            }

            /// Not generic, so that kernels are compiled here and not in each crate that steps.
            fn run<'a>(
                tensors: &mut dyn Iterator<
                    Item = (&'a Self, $crate::optimizer_steps::StepTensors, &'a $crate::optimizer_steps::Rate),
                >,
            ) -> Result<()> {
                $crate::optimizer_steps::step::step(tensors)
            }
        }
    };
}
pub(super) use step_groups;

fn launch(groups: &[Option<Ruled<'_>>]) -> Result<()> {
    let Some(Ruled { tensors: first, .. }) = groups.iter().flatten().next() else { return Ok(()) };
    let _running = profiler::op(OP);
    for Ruled { tensors, formula, .. } in groups.iter().flatten() {
        tensors.check(formula.has_state(), formula.clock())?;
    }
    match first.parameter.device() {
        Device::Cuda(device) => cuda::step(&device, groups),
        Device::Cpu => groups.iter().flatten().try_for_each(|group| group.formula.on_cpu(group.now()?)),
    }
}

impl Ruled<'_> {
    fn now(&self) -> Result<Now<'_>> {
        let (tensors, prelude) = (&self.tensors, self.formula.prelude());
        let mut now = Now { tensors, prelude, lr: self.lr.get(), clock: [0.0; MAX_STATE_TENSORS] };
        let (len, dtype) = self.formula.clock();
        let Some(clock) = tensors.clock.as_ref().filter(|_| len > 0) else { return Ok(now) };
        for (i, number) in now.clock.iter_mut().take(len).enumerate() {
            let of_clock = clock.raw().select(0, i as isize)?;
            *number = match dtype {
                DType::I64 => of_clock.typed::<Int>().item::<i64>()? as f64,
                _ => of_clock.typed::<Float>().item()?,
            };
        }
        Ok(now)
    }
}

impl Group for Ruled<'_> {
    fn max_groups(&self) -> usize {
        self.tensors.max_groups()
    }

    fn tensors(&self) -> GroupTensors<'_> {
        self.tensors.tensors()
    }

    fn with(&self, tensors: [Option<Tensor>; MAX_TENSORS]) -> Self {
        Self { tensors: self.tensors.with(tensors), ..*self }
    }

    fn fits(&self, other: &Self) -> bool {
        let is_one_rule = self.formula.numbers(&self.tensors) == other.formula.numbers(&other.tensors);
        is_one_rule && self.lr.is_joined_with(other.lr) && self.tensors.fits(&other.tensors)
    }
}

impl StepTensors {
    /// The number of state tensors that a kernel takes: 1 to 3.
    pub(super) fn n_state_tensors(&self) -> usize {
        self.state.iter().rposition(Option::is_some).map_or(1, |last| last + 1)
    }

    /// Checks that the state tensors and the clock are those that a rule needs.
    fn check(&self, has_state: [bool; MAX_STATE_TENSORS], (n_numbers, clock_type): (usize, DType)) -> Result<()> {
        if self.state.each_ref().mapped(Option::is_some) != has_state {
            let wanted: Vec<usize> = (0..MAX_STATE_TENSORS).filter(|&i| has_state[i]).collect();
            let fix = "give tensors of the parameter's shape there, and none elsewhere";
            return Err(Error::Argument(format!("{OP}: this rule has the state tensors {wanted:?}; {fix}")));
        }
        if n_numbers == 0 {
            return Ok(());
        }
        let Some(clock) = &self.clock else {
            let fix = format!("give a tensor of {n_numbers} numbers of {clock_type}");
            return Err(Error::Argument(format!("{OP}: there is no clock; {fix}")));
        };
        common_device(OP, &[self.parameter.raw(), clock.raw()])?;
        if clock.dtype() != clock_type {
            return Err(Error::MixedTypes { op: OP, left: clock_type, right: clock.dtype(), wider: clock_type });
        }
        if clock.rank() == 1 && clock.len() >= n_numbers && clock.is_contiguous() {
            return Ok(());
        }
        let expected = format!("it must have {n_numbers} elements in one dimension, without gaps");
        Err(Error::wrong_shape(OP, "the clock", clock.shape(), expected))
    }
}

impl Group for StepTensors {
    fn max_groups(&self) -> usize {
        const MAX_POINTERS: usize = 20; // that a kernel of `steps.cu` takes for its groups
        (MAX_POINTERS / (2 + self.n_state_tensors() + usize::from(self.half_copy.is_some()))).min(MAX_GROUPS)
    }

    fn tensors(&self) -> GroupTensors<'_> {
        let [a, b, c] = self.state.each_ref().mapped(Option::as_ref);
        [Some(&self.parameter), a, b, c, self.half_copy.as_ref(), Some(&self.grad)]
    }

    fn with(&self, [parameter, a, b, c, half_copy, grad]: [Option<Tensor>; MAX_TENSORS]) -> Self {
        Self {
            parameter: parameter.unwrap_or_else(|| self.parameter.clone()),
            grad: grad.unwrap_or_else(|| self.grad.clone()),
            half_copy,
            state: [a, b, c],
            clock: self.clock.clone(),
            is_first: self.is_first,
        }
    }

    fn fits(&self, other: &Self) -> bool {
        let clocks = self.clock.as_ref().zip(other.clock.as_ref());
        let is_one_clock = self.clock.is_some() == other.clock.is_some();
        self.is_first == other.is_first
            && is_one_clock
            && clocks.is_none_or(|(one, other)| one.raw().is_same_view(other.raw()))
    }
}
