//! Averages of parameters over steps: exponential ones, and equal means.

use super::Rate;
use super::groups::MAX_STATE_TENSORS;
use super::step::{self, Formula, MAX_NUMBERS, Now, Prelude, StepTensors, code};
use crate::element::{DType, Real};
use crate::error::Result;
use crate::kind::Int;
use crate::tensor::Tensor;

/// The settings of an average: `parameter` is the average `a`, `grad` the value `x` to average.
///
/// The first step is `a ← x`. After `n` values, a step is `a ← a + (1 − decay) · (x − a)`, an exponential average, or
/// without a decay `a ← a + (x − a) / (n + 1)`, the mean of all values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AverageRule {
    /// How much of the average is kept in each step; `None` for the mean of all values.
    pub decay: Option<f64>,
}

impl AverageRule {
    /// Takes one step for all of the tensors. There are no state tensors. `averaged`, an `i64` without dimensions, is
    /// the number of values averaged before. The learning rate is not used.
    ///
    /// # Errors
    /// As [`SgdRule::step`](super::SgdRule::step).
    pub fn step(
        &self,
        tensors: impl IntoIterator<Item = StepTensors>,
        averaged: &Tensor<Int>,
        lr: &Rate,
    ) -> Result<()> {
        self.run(tensors.into_iter().collect(), averaged, lr)
    }

    /// Not generic, so that kernels are compiled here and not in each crate that steps.
    fn run(&self, tensors: Vec<StepTensors>, averaged: &Tensor<Int>, lr: &Rate) -> Result<()> {
        let averaged = averaged.to_dtype(DType::I64)?.reshape([1])?;
        let with_clock = |group: StepTensors| {
            let clock = averaged.to(&group.parameter.device())?.into_raw().passed_as();
            Ok(StepTensors { clock: Some(clock), ..group })
        };
        let tensors = tensors.into_iter().map(with_clock).collect::<Result<Vec<_>>>()?;
        step::step(&mut tensors.into_iter().map(|tensors| (self, tensors, lr)))
    }
}

impl Formula for AverageRule {
    code! { "average" }
    const CLOCK_TYPE: DType = DType::I64;

    fn prelude(&self) -> Prelude {
        Prelude { maximize: false, weight_decay: 0.0, is_decoupled: false }
    }

    fn has_state(&self) -> [bool; MAX_STATE_TENSORS] {
        [false; MAX_STATE_TENSORS]
    }

    fn numbers(&self, _: &StepTensors) -> ([u64; MAX_NUMBERS], usize) {
        step::numbers([self.decay.map_or(-1.0, |decay| 1.0 - decay)])
    }

    fn on_cpu<R: Real>(&self, now: Now<'_>) -> Result<()> {
        let share = self.decay.map_or(1.0 / (now.clock[0] + 1.0), |decay| 1.0 - decay);
        let is_first = now.clock[0] == 0.0;
        let share = R::from_f64(share);
        now.change(inlined!(|a: R, []: [R; 0], x| (if is_first { x } else { a + share * (x - a) }, [])))
    }
}
