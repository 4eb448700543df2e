//! [`Rate`]: a number that kernels read when they run.

use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;

use super::cuda::Kernel;
use super::groups::{CHANGED, MOST, Single};
use crate::cuda::Code;
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
        Self::set_all(&[(self, value)]);
    }

    /// Changes some as [`set`](Self::set) does each: those of a device in one launch.
    pub fn set_all(rates: &[(&Rate, f64)]) {
        rates.chunks(MOST).for_each(set_few);
    }

    /// Notes the number; where it is on a device and is another one there.
    fn note(&self, value: f64) -> Option<Tensor> {
        let mut state = self.lock();
        let is_news = state.value.to_bits() != value.to_bits();
        state.value = value;
        let (there, is_current) = state.there.as_mut().filter(|_| is_news)?;
        *is_current = false;
        Some(there.clone())
    }

    /// The device has the number, unless it was changed meanwhile.
    fn is_there(&self, value: f64) {
        let mut state = self.lock();
        let now = state.value;
        if let Some((there, is_current)) = &mut state.there {
            *is_current = now.to_bits() == value.to_bits() || there.fill_(now).is_ok();
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

static CODE: Code = Code { name: "rate", text: include_str!("rate.cu") };

/// A number that changed, its new value, and where it is on a device.
type Noted<'a> = (&'a Rate, f64, Tensor);

fn set_few(rates: &[(&Rate, f64)]) {
    let noted = rates.iter().filter_map(|&(rate, value)| Some((rate, value, rate.note(value)?)));
    let noted: ArrayVec<Noted<'_>, MOST> = noted.collect();
    // A device that cannot be asked for this does no step either.
    if set_at_once(&noted).unwrap_or(false) {
        noted.iter().for_each(|(rate, value, _)| rate.is_there(*value));
        return;
    }
    for (rate, value, there) in noted {
        if there.fill_(value).is_ok() {
            rate.is_there(value);
        }
    }
}

/// Sets them in one launch, if they are different numbers on one GPU.
fn set_at_once(noted: &[Noted<'_>]) -> Result<bool> {
    let Some((.., first)) = noted.first() else { return Ok(true) };
    let Device::Cuda(device) = first.device() else { return Ok(false) };
    let apart = |i: usize| noted[..i].iter().all(|(.., other)| !other.shares_storage(&noted[i].2));
    if !(0..noted.len()).all(|i| noted[i].2.device() == first.device() && apart(i)) {
        return Ok(false);
    }
    let singles = noted.iter().map(|(.., there)| Some(Single { tensor: there.clone(), is_changed: true }));
    let singles: ArrayVec<_, MOST> = singles.collect();
    let values = std::array::from_fn::<_, MOST, _>(|i| noted.get(i).map_or(0, |(_, value, _)| value.to_bits()));
    let kernel = Kernel { code: &CODE, name: "set", places: CHANGED, blocks: 1 };
    kernel.launch(&device, &singles, &[], None, &values).map(|()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_are_set_together_are_there() {
        let rates = [0.1, 0.2, 0.3].map(Rate::new);
        let there = |rate: &Rate| rate.on(&Device::Cpu).unwrap().item::<f64>().unwrap();
        assert_eq!((there(&rates[0]), there(&rates[1])), (0.1, 0.2));
        Rate::set_all(&[(&rates[0], 1.0), (&rates[1], 0.2), (&rates[2], 3.0), (&rates[0], 4.0)]);
        assert_eq!(rates.each_ref().map(Rate::get), [4.0, 0.2, 3.0]);
        assert_eq!(rates.each_ref().map(there), [4.0, 0.2, 3.0]);
    }
}
