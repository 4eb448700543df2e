//! [`Rate`]: a number that kernels read when they run.

use std::sync::{Mutex, PoisonError};

use crate::device::Device;
use crate::element::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// A number that may change between steps that are captured: a learning rate.
///
/// # Examples
/// ```
/// use pagelock_tensor::optimizer_steps::Rate;
///
/// let lr = Rate::new(0.1);
/// lr.set(0.05);
/// assert_eq!(lr.get(), 0.05);
/// ```
#[derive(Debug)]
pub struct Rate {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    value: f64,
    /// On a device, once a step ran there, and whether it is the value.
    there: Option<(Tensor, bool)>,
}

impl Rate {
    /// A number that no device has yet.
    pub fn new(value: f64) -> Self {
        Self { state: Mutex::new(State { value, there: None }) }
    }

    /// The number.
    pub fn get(&self) -> f64 {
        self.lock().value
    }

    /// Changes it for all steps from now on, those that a captured step does again among them.
    pub fn set(&self, value: f64) {
        let mut state = self.lock();
        let is_news = state.value.to_bits() != value.to_bits();
        state.value = value;
        if let Some((there, is_current)) = state.there.as_mut().filter(|_| is_news) {
            // A device that cannot be asked for this does no step either.
            *is_current = there.fill_(value).is_ok();
        }
    }

    /// The number on a device, where kernels read it.
    pub(super) fn on(&self, device: &Device) -> Result<Tensor> {
        let mut state = self.lock();
        let value = state.value;
        match &mut state.there {
            Some((there, is_current)) if there.device() == *device => {
                if !*is_current {
                    there.fill_(value)?;
                    *is_current = true;
                }
                Ok(there.clone())
            }
            there => {
                let made = Tensor::on(device).of(DType::F64).full((), value)?;
                *there = Some((made.clone(), true));
                Ok(made)
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
