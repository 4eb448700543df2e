//! Averages of parameters over steps: exponential ones, and equal ones.

use super::cpu::change;
use super::groups::KEPT;
use super::step::{self, Formula, MOST_NUMBERS, Now, Prelude, StepTensors, steps};
use crate::cuda::Code;
use crate::element::Real;
use crate::error::Result;

/// How an average follows: `parameter` is the average `a`, `grad` what is averaged, `x`.
///
/// The clock counts what was averaged before, `n`. At first `a ← x`; then `a ← a + (1 − decay) · (x − a)`, an exponential average, or
/// without a decay `a ← a + (x − a) / (n + 1)`, the mean of all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AverageRule {
    /// How much of the average is kept, if that is the same in all steps.
    pub decay: Option<f64>,
}

steps! { AverageRule, "Nothing is kept; the clock counts what was averaged before." }

static CODE: Code = Code { name: "average", text: concat!(include_str!("average.cu"), include_str!("steps.cu")) };

impl Formula for AverageRule {
    const CODE: &'static Code = &CODE;

    fn prelude(&self) -> Prelude {
        Prelude { maximize: false, weight_decay: 0.0, is_decoupled: false }
    }

    fn keeps(&self) -> [bool; KEPT] {
        [false; KEPT]
    }

    fn numbers(&self, _: &StepTensors) -> ([u64; MOST_NUMBERS], usize) {
        step::numbers([self.decay.map_or(-1.0, |decay| 1.0 - decay)])
    }

    fn on_cpu<R: Real>(&self, group: &StepTensors, now: Now) -> Result<()> {
        let share = self.decay.map_or(1.0 / (now.clock[0] + 1.0), |decay| 1.0 - decay);
        let is_first = now.clock[0] == 0.0;
        let share = R::from_f64(share);
        change(
            group,
            self.prelude(),
            now,
            #[inline(always)]
            |a: R, []: [R; 0], x| (if is_first { x } else { a + share * (x - a) }, []),
        )
    }
}
