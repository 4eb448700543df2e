//! [`GradScaler`]: multiplies losses by a factor, so that small gradients survive half precision.

use super::Optimizer;
use crate::setters::setters;
use crate::{Error, Result};
use pagelock_tensor::text::number;
use pagelock_tensor::{self as tensor, Tensor};

/// Scales a loss up so that its `f16` gradients do not underflow, and scales the gradients down again before a step,
/// as PyTorch's `torch.amp.GradScaler`. A step whose gradients are not finite is skipped.
///
/// The scale starts at 65,536. It is halved when a step is skipped, and doubled after 2,000 steps in a row that are
/// not. `step` reads one number from the device, so it waits for the device and cannot be part of a captured step.
/// Each optimizer needs its own scaler. `bf16`, which has the range of `f32`, needs no scaler.
///
/// # Examples
/// ```
/// use pagelock_nn::{Parameter, optim::{GradScaler, Optimizer, Sgd}};
/// use pagelock_tensor::{Half, Tensor, autocast};
///
/// let (x, w) = (Tensor::new([[1.0, 2.0]])?, Parameter::new(Tensor::new([[3.0], [1.0]])?));
/// let mut opt = Sgd::new([w.clone()], 0.1);
/// let mut scaler = GradScaler::new();
/// for _ in 0..20 {
///     let loss = autocast(Half::F16, || x.matmul(&w))?.pow(2.0)?.sum(..)?;
///     scaler.scale(&loss)?.backward()?;
///     scaler.step(&mut opt)?;
///     scaler.update();
///     opt.zero_grad();
/// }
/// assert!(x.matmul(&w)?.item::<f32>()?.abs() < 1e-3);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct GradScaler {
    scale: f64,
    growth: f64,
    backoff: f64,
    interval: u32,
    good_steps: u32,         // in a row
    is_finite: Option<bool>, // whether the unscaled gradients are; `None` before they are unscaled
    has_stepped: bool,       // since the last update
}

/// The state of a [`GradScaler`]: all that is needed to resume it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalerState {
    /// The current scale.
    pub scale: f64,
    /// The number of steps in a row with finite gradients since the scale changed: PyTorch's `_growth_tracker`.
    pub good_steps: u32,
}

impl Default for GradScaler {
    fn default() -> Self {
        let (scale, growth, backoff, interval) = (65_536.0, 2.0, 0.5, 2_000);
        Self { scale, growth, backoff, interval, good_steps: 0, is_finite: None, has_stepped: false }
    }
}

setters! { GradScaler,
    /// The initial scale; 65,536 by default.
    init_scale: f64 => scale = init_scale;
    /// The factor by which the scale grows; 2 by default.
    growth_factor: f64 => growth = growth_factor;
    /// The factor of the scale after gradients that are not finite; 0.5 by default.
    backoff_factor: f64 => backoff = backoff_factor;
    /// The number of steps in a row with finite gradients after which the scale grows; 2,000 by default.
    growth_interval: u32 => interval = growth_interval;
}

impl GradScaler {
    /// A scaler with PyTorch's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The current scale.
    pub fn get_scale(&self) -> f64 {
        self.scale
    }

    /// The state, to resume from.
    pub fn state(&self) -> ScalerState {
        ScalerState { scale: self.scale, good_steps: self.good_steps }
    }

    /// Resumes from the [`state`](Self::state) of a scaler with the same settings.
    pub fn load_state(&mut self, state: ScalerState) {
        (self.scale, self.good_steps, self.is_finite) = (state.scale, state.good_steps, None);
        self.has_stepped = false;
    }

    /// The loss times the scale. Call `backward` on it.
    ///
    /// # Errors
    /// The result does not fit the memory budget.
    pub fn scale(&self, loss: &Tensor) -> tensor::Result<Tensor> {
        loss.mul_scalar(self.scale)
    }

    /// Divides the optimizer's gradients by the scale. Call it to read or clip them before [`step`](Self::step).
    ///
    /// # Errors
    /// [`Error::Argument`] for a second call without an [`update`](Self::update) in between, or if the scale is 0, below
    /// 0 or not finite; the errors of [`Optimizer::scale_gradients`].
    pub fn unscale(&mut self, optimizer: &mut (impl Optimizer + ?Sized)) -> Result<()> {
        if self.is_finite.is_some() {
            return Err(misused(
                "the gradients were already unscaled",
                "call `unscale` once, then `step` and `update`",
            ));
        }
        if !(self.scale > 0.0 && self.scale.is_finite()) {
            let fix = "set it with `init_scale` or `load_state`, and find out whether any gradients were finite";
            return Err(Error::Argument(format!(
                "GradScaler: the scale is {}, but must be finite and above 0; {fix}",
                number(self.scale)
            )));
        }
        self.is_finite = Some(optimizer.scale_gradients(1.0 / self.scale)?);
        Ok(())
    }

    /// Divides the gradients by the scale, unless [`unscale`](Self::unscale) has done so, and calls
    /// [`Optimizer::step`] if they are finite. Returns whether they are.
    ///
    /// # Errors
    /// [`Error::Argument`] for a second call without an [`update`](Self::update) in between; the errors of
    /// [`Optimizer::scale_gradients`] and [`Optimizer::step`].
    pub fn step(&mut self, optimizer: &mut (impl Optimizer + ?Sized)) -> Result<bool> {
        if self.has_stepped {
            return Err(misused(
                "`step` was already called",
                "call `update` after each step, and make a scaler for each optimizer",
            ));
        }
        if self.is_finite.is_none() {
            self.unscale(optimizer)?;
        }
        let is_finite = self.is_finite == Some(true);
        if is_finite {
            optimizer.step()?;
        }
        self.has_stepped = true;
        Ok(is_finite)
    }

    /// Adjusts the scale to the result of the last step.
    pub fn update(&mut self) {
        self.has_stepped = false;
        match self.is_finite.take() {
            None => {}
            Some(false) => (self.scale, self.good_steps) = (self.scale * self.backoff, 0),
            Some(true) => {
                self.good_steps = self.good_steps.saturating_add(1);
                if self.good_steps >= self.interval {
                    (self.scale, self.good_steps) = (self.scale * self.growth, 0);
                }
            }
        }
    }
}

fn misused(done: &str, fix: &str) -> Error {
    Error::Argument(format!("GradScaler: {done} since the last update; {fix}"))
}

#[cfg(test)]
mod tests {
    use super::super::{Sgd, clip_grad_norm_, clip_grad_value_};
    use super::*;
    use crate::Parameter;
    use pagelock_tensor::DType;

    fn parameter_with(grad: f32) -> Result<(Parameter, Sgd)> {
        let w = Parameter::new(Tensor::new([1.0])?);
        w.mul_scalar(grad)?.sum(..)?.backward()?;
        Ok((w.clone(), Sgd::new([w], 0.5)))
    }

    #[test]
    fn a_step_uses_the_gradients_without_their_scale() {
        let (w, mut opt) = parameter_with(8.0).unwrap();
        let mut scaler = GradScaler::new().init_scale(4.0);

        assert!(scaler.step(&mut opt).unwrap());

        assert_eq!(w.detach().to_vec::<f32>().unwrap(), [0.0]);
    }

    #[test]
    fn a_step_without_finite_gradients_is_left_out_and_halves_the_scale() {
        for grad in [f32::INFINITY, f32::NAN] {
            let (w, mut opt) = parameter_with(grad).unwrap();
            let mut scaler = GradScaler::new().init_scale(4.0);

            assert!(!scaler.step(&mut opt).unwrap());
            scaler.update();

            assert_eq!((w.detach().to_vec::<f32>().unwrap(), scaler.get_scale()), (vec![1.0], 2.0));
        }
    }

    #[test]
    fn the_scale_grows_after_enough_good_steps_in_a_row() {
        let mut scaler = GradScaler::new().init_scale(4.0).growth_interval(3);
        let mut scales = Vec::new();
        for grad in [1.0, 1.0, f32::NAN, 1.0, 1.0, 1.0, 1.0] {
            let (_, mut opt) = parameter_with(grad).unwrap();
            scaler.step(&mut opt).unwrap();
            scaler.update();
            scales.push(scaler.get_scale());
        }
        assert_eq!(scales, [4.0, 4.0, 2.0, 2.0, 2.0, 4.0, 4.0]);
    }

    #[test]
    fn the_largest_number_of_good_steps_is_followed_by_growth() {
        let (_, mut opt) = parameter_with(1.0).unwrap();
        let mut scaler = GradScaler::new();
        scaler.load_state(ScalerState { scale: 4.0, good_steps: u32::MAX });
        scaler.step(&mut opt).unwrap();
        scaler.update();
        assert_eq!(scaler.state(), ScalerState { scale: 8.0, good_steps: 0 });
    }

    #[test]
    fn the_scale_of_a_loss_of_half_precision_is_not_rounded_to_it() {
        let loss = Tensor::of(DType::F16).full((), 0.25).unwrap();
        let scaled = GradScaler::new().scale(&loss).unwrap();
        assert_eq!((scaled.dtype(), scaled.item::<f32>().unwrap()), (DType::F16, 16_384.0));

        let unscaled = Parameter::new(Tensor::of(DType::F16).new([1.0]).unwrap());
        unscaled.set_grad(Some(Tensor::of(DType::F16).new([32_768.0]).unwrap())).unwrap();
        let mut scaler = GradScaler::new().init_scale(2f64.powi(30)); // whose inverse is 0 in f16
        scaler.unscale(&mut Sgd::new([unscaled.clone()], 0.5)).unwrap();
        assert_eq!(unscaled.grad().unwrap().item::<f32>().unwrap(), 2f32.powi(-15));
    }

    #[test]
    fn a_second_step_without_an_update_is_refused() {
        let (w, mut opt) = parameter_with(8.0).unwrap();
        let mut scaler = GradScaler::new().init_scale(4.0);
        scaler.step(&mut opt).unwrap();

        let error = scaler.step(&mut opt).unwrap_err();

        assert!(
            error.to_string().ends_with("call `update` after each step, and make a scaler for each optimizer"),
            "{error}"
        );
        assert_eq!(w.detach().to_vec::<f32>().unwrap(), [0.0]);
        scaler.update();
        assert!(scaler.step(&mut opt).unwrap());
    }

    #[test]
    fn gradients_are_unscaled_once() {
        let (w, mut opt) = parameter_with(8.0).unwrap();
        let mut scaler = GradScaler::new().init_scale(4.0);

        scaler.unscale(&mut opt).unwrap();
        let error = scaler.unscale(&mut opt).unwrap_err();
        scaler.step(&mut opt).unwrap();

        assert!(error.to_string().starts_with("GradScaler: the gradients were already unscaled"), "{error}");
        assert_eq!(w.detach().to_vec::<f32>().unwrap(), [0.0]);
    }

    #[test]
    fn every_element_of_an_expanded_gradient_is_unscaled_and_clipped_once() {
        let (w, expanded) = (Parameter::new(Tensor::ones([1]).unwrap()), Parameter::new(Tensor::ones([2, 3]).unwrap()));
        w.set_grad(Some(Tensor::new([8.0]).unwrap())).unwrap();
        expanded.set_grad(Some(Tensor::new([[8.0], [16.0]]).unwrap().expand([2, 3]).unwrap())).unwrap();
        let values = || [&w, &expanded].map(|parameter| parameter.grad().unwrap().to_vec::<f32>().unwrap());

        GradScaler::new().init_scale(4.0).unscale(&mut Sgd::new([w.clone(), expanded.clone()], 0.5)).unwrap();
        assert_eq!(values(), [vec![2.0], vec![2.0, 2.0, 2.0, 4.0, 4.0, 4.0]]);

        clip_grad_norm_([w.clone(), expanded.clone()], 4.0).unwrap(); // of 8
        assert!(values()[1].iter().zip([1.0, 1.0, 1.0, 2.0, 2.0, 2.0]).all(|(x, y)| (x - y).abs() < 1e-5));

        clip_grad_value_([w.clone(), expanded.clone()], 0.5).unwrap();
        assert_eq!(values(), [vec![0.5], vec![0.5; 6]]);
    }

    #[test]
    fn a_scale_that_can_scale_nothing_is_refused_instead_of_skipping_every_step() {
        for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let (w, mut opt) = parameter_with(8.0).unwrap();
            let mut scaler = GradScaler::new();
            scaler.load_state(ScalerState { scale, good_steps: 0 });

            let error = scaler.step(&mut opt).unwrap_err().to_string();

            assert!(error.starts_with(&format!("GradScaler: the scale is {}, but must be", number(scale))), "{error}");
            assert_eq!(w.grad().unwrap().to_vec::<f32>().unwrap(), [8.0]);
        }
    }
}
