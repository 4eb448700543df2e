//! Rates that rise and fall: [`CyclicLr`], [`OneCycleLr`]. Momentum stays as it is, as with PyTorch's `cycle_momentum=False`.

use std::f64::consts::PI;

use super::{Schedule, check, check_steps};
use crate::Result;
use crate::setters::setters;

/// Moves the rate up and down between two bounds, as PyTorch's `CyclicLR`.
///
/// L. Smith, "Cyclical learning rates for training neural networks", 2015, <https://arxiv.org/abs/1506.01186>.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CyclicLr {
    base_lr: f64,
    max_lr: f64,
    step_size_up: u64,
    step_size_down: u64,
    mode: CyclicMode,
}

/// How high the cycles of [`CyclicLr`] are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CyclicMode {
    /// All cycles are equally high: `"triangular"`.
    Triangular,
    /// Each half as high as the one before: `"triangular2"`.
    Triangular2,
    /// Scaled by this number to the power of the step: `"exp_range"`.
    ExpRange(f64),
}

impl CyclicLr {
    /// Triangles of 2000 steps up and 2000 down.
    pub fn new(base_lr: f64, max_lr: f64) -> Self {
        Self { base_lr, max_lr, step_size_up: 2000, step_size_down: 2000, mode: CyclicMode::Triangular }
    }

    fn at(&self, step: u64) -> f64 {
        let total = self.step_size_up as f64 + self.step_size_down as f64;
        let up = self.step_size_up as f64 / total;
        let cycle = (1.0 + step as f64 / total).floor();
        let x = 1.0 + step as f64 / total - cycle;
        let height = if x <= up { x / up } else { (x - 1.0) / (up - 1.0) };
        let scale = match self.mode {
            CyclicMode::Triangular => 1.0,
            CyclicMode::Triangular2 => 1.0 / 2.0_f64.powf(cycle - 1.0),
            CyclicMode::ExpRange(gamma) => gamma.powf(step as f64),
        };
        self.base_lr + (self.max_lr - self.base_lr) * height * scale
    }
}

setters! { CyclicLr,
    /// The number of steps down.
    step_size_down: u64;
    /// The height of later cycles.
    mode: CyclicMode;
    /// The number of steps up, and of steps down.
    step_size: u64 => step_size_up = step_size, step_size_down = step_size;
}

impl Schedule for CyclicLr {
    fn next(&self, step: u64, _base: f64, _lr: f64) -> f64 {
        self.at(step)
    }

    fn first(&self, _base: f64, _lr: f64) -> f64 {
        self.at(0)
    }

    fn check(&self) -> Result<()> {
        check_steps("CyclicLr", "step_size_up", self.step_size_up)?;
        check_steps("CyclicLr", "step_size_down", self.step_size_down)
    }
}

/// Moves the rate up to `max_lr` and down to almost 0 once, as PyTorch's `OneCycleLR`. The optimizer's initial rate
/// is not used.
///
/// L. Smith, N. Topin, "Super-convergence: very fast training of neural networks using large learning rates", 2017,
/// <https://arxiv.org/abs/1708.07120>.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OneCycleLr {
    max_lr: f64,
    total_steps: u64,
    pct_start: f64,
    anneal: Anneal,
    div_factor: f64,
    final_div_factor: f64,
    three_phase: bool,
}

/// The shape of the rise and the fall of [`OneCycleLr`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anneal {
    /// Half a cosine.
    Cos,
    /// A straight line.
    Linear,
}

impl Anneal {
    fn between(self, start: f64, end: f64, part: f64) -> f64 {
        match self {
            Anneal::Cos => end + (start - end) / 2.0 * ((PI * part).cos() + 1.0),
            Anneal::Linear => (end - start) * part + start,
        }
    }
}

impl OneCycleLr {
    /// One cycle of `total_steps` steps: the number of epochs times the steps of an epoch. After them the rate
    /// stays as in the last one. (PyTorch computes one rate more, which is below that and may be negative.)
    ///
    /// The rate begins at 1/25 of `max_lr`, rises for 30 % of the steps along half a cosine, and falls to 1/250,000
    /// of `max_lr`.
    pub fn new(max_lr: f64, total_steps: u64) -> Self {
        let (pct_start, anneal, div_factor, final_div_factor) = (0.3, Anneal::Cos, 25.0, 1e4);
        Self { max_lr, total_steps, pct_start, anneal, div_factor, final_div_factor, three_phase: false }
    }

    fn at(&self, step: u64) -> f64 {
        let step = step.min(self.total_steps.saturating_sub(1)) as f64;
        let (initial, total) = (self.max_lr / self.div_factor, self.total_steps as f64);
        let least = initial / self.final_div_factor;
        let top = self.pct_start * total - 1.0;
        let between = |(start, end): (f64, f64), from: f64, to: f64| {
            let part = if start == end { 1.0 } else { (step - start) / (end - start) };
            self.anneal.between(from, to, part)
        };
        let down = 2.0 * self.pct_start * total - 2.0;
        match self.three_phase {
            _ if step <= top => between((0.0, top), initial, self.max_lr),
            true if step <= down => between((top, down), self.max_lr, initial),
            true => between((down, total - 1.0), initial, least),
            false => between((top, total - 1.0), self.max_lr, least),
        }
    }
}

setters! { OneCycleLr,
    /// The part of the steps in which the rate rises, from 0 to 1.
    pct_start: f64;
    /// The shape of the rise and the fall.
    anneal_strategy: Anneal => anneal = anneal_strategy;
    /// `max_lr` divided by this is the initial rate.
    div_factor: f64;
    /// The initial rate divided by this is the final rate.
    final_div_factor: f64;
    /// Whether the rate first falls back to the initial rate, in as many steps as it rose, and then to the final rate.
    three_phase: bool;
}

impl Schedule for OneCycleLr {
    fn next(&self, step: u64, _base: f64, _lr: f64) -> f64 {
        self.at(step)
    }

    fn first(&self, _base: f64, _lr: f64) -> f64 {
        self.at(0)
    }

    fn check(&self) -> Result<()> {
        check_steps("OneCycleLr", "total_steps", self.total_steps)?;
        check((0.0..=1.0).contains(&self.pct_start), "OneCycleLr", "pct_start", self.pct_start, "from 0 to 1")?;
        check(self.div_factor > 0.0, "OneCycleLr", "div_factor", self.div_factor, "above 0")?;
        check(self.final_div_factor > 0.0, "OneCycleLr", "final_div_factor", self.final_div_factor, "above 0")
    }
}
