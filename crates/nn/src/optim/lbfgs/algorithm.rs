//! One step: it moves along directions computed from this and earlier gradients until nothing changes any more.
//!
//! ```text
//! evaluate ─▶ direction d = −H·g ─▶ how far: t = lr, or by line search ─▶ x + t·d ─▶ evaluate ─▶ direction …
//! ```

use pagelock_tensor::Tensor;

use super::line_search::LineSearch;
use super::state::Memory;
use super::{Settings, Vectors};
use crate::Result;

/// The loss at some point and its gradient, both negated if the loss is maximized.
#[derive(Clone)]
pub(super) struct Point {
    pub(super) loss: f64,
    pub(super) grad: Tensor,
}

impl Point {
    fn is_flat(&self, tolerance: f64) -> Result<bool> {
        Ok(max_abs(&self.grad)? <= tolerance)
    }
}

/// The inputs of a step.
pub(super) struct Step<'a> {
    pub(super) vectors: &'a Vectors,
    pub(super) settings: &'a Settings,
    pub(super) lr: f64,
    pub(super) closure: &'a mut dyn FnMut() -> Result<Tensor>,
}

impl Step<'_> {
    /// Runs the step, and returns the loss before it.
    pub(super) fn run(&mut self, memory: &mut Memory) -> Result<Tensor> {
        let settings = self.settings;
        let (first, mut at) = self.evaluate()?;
        let mut n_evals = 1;
        memory.func_evals = memory.func_evals.saturating_add(1);
        let mut is_done = at.is_flat(settings.tolerance_grad)?;
        let mut n_iter = 0;
        while !is_done && n_iter < settings.max_iter {
            n_iter += 1;
            let direction = memory.next_direction(&at, settings.history_size)?;
            let loss_before = at.loss;
            let start = if memory.n_iter == 1 { self.lr * (1.0 / l1_norm(&at.grad)?).min(1.0) } else { self.lr };
            memory.t = start;
            let slope = dot(&at.grad, &direction)?;
            if slope > -settings.tolerance_change {
                break;
            }
            let evals_left = settings.max_eval().saturating_sub(n_evals);
            let n_more = if settings.strong_wolfe {
                let (found, n_more) = LineSearch::new(self, &direction, &at, slope, evals_left)?.from(start)?;
                (memory.t, at) = (found.t, found.point);
                self.vectors.add(memory.t, &direction)?;
                n_more
            } else {
                self.vectors.add(start, &direction)?;
                let is_last = n_iter == settings.max_iter; // the next step evaluates the result
                if !is_last {
                    at = self.evaluate()?.1;
                }
                u64::from(!is_last)
            };
            n_evals += n_more;
            memory.func_evals = memory.func_evals.saturating_add(n_more);
            is_done = n_evals >= settings.max_eval()
                || at.is_flat(settings.tolerance_grad)?
                || max_abs(&direction)? * memory.t.abs() <= settings.tolerance_change
                || (at.loss - loss_before).abs() < settings.tolerance_change;
        }
        Ok(first)
    }

    /// Evaluates the closure at the parameters, and returns its loss beside the point.
    pub(super) fn evaluate(&mut self) -> Result<(Tensor, Point)> {
        let loss = (self.closure)()?;
        let (number, grad) = (loss.item::<f64>()?, self.vectors.gradient()?);
        let point = match self.settings.maximize {
            true => Point { loss: -number, grad: grad.neg()? },
            false => Point { loss: number, grad },
        };
        Ok((loss, point))
    }
}

impl Memory {
    /// The next direction, from the gradient at this point and from earlier steps.
    fn next_direction(&mut self, at: &Point, history_size: u64) -> Result<Tensor> {
        self.n_iter = self.n_iter.saturating_add(1);
        let direction = match (&self.d, &self.prev_flat_grad) {
            (Some(d), Some(before)) => {
                let change = at.grad.sub(before)?;
                let step = d.mul_scalar(self.t)?;
                self.update_history(change, step, history_size)?;
                self.two_loop_recursion(&at.grad)?
            }
            _ => at.grad.neg()?,
        };
        (self.d, self.prev_flat_grad, self.prev_loss) = (Some(direction.clone()), Some(at.grad.clone()), at.loss);
        Ok(direction)
    }

    /// Adds a step and its change of the gradient to the history, if the curvature along the step is positive.
    fn update_history(&mut self, change: Tensor, step: Tensor, history_size: u64) -> Result<()> {
        const MIN_CURVATURE: f64 = 1e-10;
        let ys = change.mul(&step)?.sum(..)?;
        let is_curved = ys.item::<f64>()? > MIN_CURVATURE;
        if !is_curved {
            return Ok(());
        }
        while self.ro.len() as u64 >= history_size {
            self.old_dirs.pop_front();
            self.old_stps.pop_front();
            self.ro.pop_front();
        }
        self.h_diag = Some(ys.div(&change.mul(&change)?.sum(..)?)?);
        self.ro.push_back(ys.reciprocal()?);
        self.old_dirs.push_back(change);
        self.old_stps.push_back(step);
        Ok(())
    }

    /// Approximates minus the inverse Hessian times the gradient, by the two-loop recursion. Nothing is read from the
    /// device.
    fn two_loop_recursion(&self, grad: &Tensor) -> Result<Tensor> {
        let mut q = grad.neg()?;
        let mut als = Vec::new();
        for ((step, change), ro) in self.old_stps.iter().zip(&self.old_dirs).zip(&self.ro).rev() {
            let al = step.mul(&q)?.sum(..)?.mul(ro)?;
            q = q.sub(&change.mul(&al)?)?;
            als.push(al);
        }
        let mut r = match &self.h_diag {
            Some(h_diag) => q.mul(h_diag)?,
            None => q,
        };
        for ((step, change), ro) in self.old_stps.iter().zip(&self.old_dirs).zip(&self.ro) {
            let be = change.mul(&r)?.sum(..)?.mul(ro)?;
            let Some(al) = als.pop() else { unreachable!("there is one for each step") };
            r = r.add(&step.mul(&al.sub(&be)?)?)?;
        }
        Ok(r)
    }
}

pub(super) fn dot(a: &Tensor, b: &Tensor) -> Result<f64> {
    Ok(a.mul(b)?.sum(..)?.item()?)
}

/// The largest absolute value.
pub(super) fn max_abs(vector: &Tensor) -> Result<f64> {
    Ok(vector.abs()?.max(..)?.item()?)
}

fn l1_norm(vector: &Tensor) -> Result<f64> {
    Ok(vector.abs()?.sum(..)?.item()?)
}
