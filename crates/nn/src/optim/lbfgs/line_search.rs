//! [`LineSearch`]: how far to go along a direction, so that the strong Wolfe conditions hold: the loss falls enough,
//! and the slope becomes flat enough.
//!
//! The first phase takes growing steps until two of them bracket such a point. The second phase tries points between
//! those two, each at the minimum of the cubic through both losses and slopes.

use pagelock_tensor::Tensor;

use super::algorithm::{Point, Step, dot, max_abs};
use crate::Result;

/// The loss must fall by at least this share of what the slope predicts.
const SUFFICIENT_DECREASE: f64 = 1e-4;
/// The magnitude of the slope must fall to at most this share of its magnitude at the start.
const CURVATURE: f64 = 0.9;

/// A point along the direction.
#[derive(Clone)]
pub(super) struct Trial {
    pub(super) t: f64,
    pub(super) point: Point,
    slope: f64,
}

impl Trial {
    fn loss(&self) -> f64 {
        self.point.loss
    }
}

pub(super) struct LineSearch<'a, 'b> {
    step: &'a mut Step<'b>,
    direction: &'a Tensor,
    from: Tensor, // the parameters at t = 0
    start: Trial,
    n_iter: u64,
    max_iter: u64,
}

/// The result of the first phase.
#[allow(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
enum Bracket {
    Point(Trial),
    Between([Trial; 2]),
}

impl<'a, 'b> LineSearch<'a, 'b> {
    pub(super) fn new(
        step: &'a mut Step<'b>,
        direction: &'a Tensor,
        at: &Point,
        slope: f64,
        max_iter: u64,
    ) -> Result<LineSearch<'a, 'b>> {
        let from = step.vectors.values()?;
        let start = Trial { t: 0.0, point: at.clone(), slope };
        Ok(LineSearch { step, direction, from, start, n_iter: 0, max_iter })
    }

    /// Returns a point for which the conditions hold, and the number of evaluations. If no such point is found, the
    /// result is the better end of the last bracket. The first trial is at `t`. After a success, the parameters are as
    /// they were.
    pub(super) fn from(mut self, t: f64) -> Result<(Trial, u64)> {
        let found = match self.bracket(t)? {
            Bracket::Point(trial) => trial,
            Bracket::Between(pair) => self.zoom(pair)?,
        };
        Ok((found, self.n_iter + 1))
    }

    fn trial(&mut self, t: f64) -> Result<Trial> {
        self.step.vectors.add(t, self.direction)?;
        let (_, point) = self.step.evaluate()?;
        self.step.vectors.set(&self.from)?;
        let slope = dot(&point.grad, self.direction)?;
        Ok(Trial { t, point, slope })
    }

    fn is_too_high(&self, trial: &Trial) -> bool {
        trial.loss() > self.start.loss() + SUFFICIENT_DECREASE * trial.t * self.start.slope
    }

    fn is_flat(&self, trial: &Trial) -> bool {
        trial.slope.abs() <= -CURVATURE * self.start.slope
    }

    fn bracket(&mut self, t: f64) -> Result<Bracket> {
        let (mut before, mut at) = (self.start.clone(), self.trial(t)?);
        while self.n_iter < self.max_iter {
            if self.is_too_high(&at) || (self.n_iter > 1 && at.loss() >= before.loss()) {
                return Ok(Bracket::Between([before, at]));
            }
            if self.is_flat(&at) {
                return Ok(Bracket::Point(at));
            }
            if at.slope >= 0.0 {
                return Ok(Bracket::Between([before, at]));
            }
            let next = cubic_minimum(&before, &at, [at.t + 0.01 * (at.t - before.t), at.t * 10.0]);
            let trial = self.trial(next)?;
            before = std::mem::replace(&mut at, trial);
            self.n_iter += 1;
        }
        Ok(Bracket::Between([self.start.clone(), at]))
    }

    fn zoom(&mut self, mut pair: [Trial; 2]) -> Result<Trial> {
        let d_norm = max_abs(self.direction)?;
        let lower = |pair: &[Trial; 2]| usize::from(pair[0].loss() > pair[1].loss());
        let (mut low, mut was_near_end) = (lower(&pair), false);
        while self.n_iter < self.max_iter {
            let ends = [pair[0].t.min(pair[1].t), pair[0].t.max(pair[1].t)];
            if (ends[1] - ends[0]) * d_norm < self.step.settings.tolerance_change {
                break;
            }
            let t = safeguard(cubic_minimum(&pair[0], &pair[1], ends), ends, &mut was_near_end);
            let trial = self.trial(t)?;
            self.n_iter += 1;
            if self.is_too_high(&trial) || trial.loss() >= pair[low].loss() {
                pair[1 - low] = trial;
                low = lower(&pair);
                continue;
            }
            let is_found = self.is_flat(&trial);
            if !is_found && trial.slope * (pair[1 - low].t - pair[low].t) >= 0.0 {
                pair[1 - low] = pair[low].clone();
            }
            pair[low] = trial;
            if is_found {
                break;
            }
        }
        let [first, second] = pair;
        Ok(if low == 0 { first } else { second })
    }
}

/// Returns `t` if it is at least a tenth of the interval away from both ends. A nearer `t` is accepted only if it is
/// inside the interval, and if the trial before it was not accepted in this way. Otherwise, returns the point that is a
/// tenth of the interval away from the nearer end.
fn safeguard(t: f64, [min, max]: [f64; 2], was_near_end: &mut bool) -> f64 {
    let margin = 0.1 * (max - min);
    if (max - t).min(t - min) >= margin {
        *was_near_end = false;
        return t;
    }
    if !*was_near_end && t < max && t > min {
        *was_near_end = true;
        return t;
    }
    *was_near_end = false;
    if (t - max).abs() < (t - min).abs() { max - margin } else { min + margin }
}

/// The minimum of the cubic through two losses and slopes, clamped to the bounds. If the cubic has no minimum, the
/// middle of the bounds.
fn cubic_minimum(a: &Trial, b: &Trial, [min, max]: [f64; 2]) -> f64 {
    let d1 = a.slope + b.slope - 3.0 * (a.loss() - b.loss()) / (a.t - b.t);
    let square = d1 * d1 - a.slope * b.slope;
    if square.is_nan() || square < 0.0 {
        return (min + max) / 2.0;
    }
    let d2 = square.sqrt();
    let (near, far) = if a.t <= b.t { (a, b) } else { (b, a) };
    let t = far.t - (far.t - near.t) * ((far.slope + d2 - d1) / (far.slope - near.slope + 2.0 * d2));
    t.max(min).min(max)
}
