//! [`Rate`]: a number that kernels read when they run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagelock_cuda::{Argument, Launch};

use super::groups::OP;
use crate::capture;
use crate::cuda::{Code, CudaDevice};
use crate::device::Device;
use crate::element::DType;
use crate::error::Result;
use crate::inlined::Slice;
use crate::profiler;
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
    shared: Arc<Mutex<Rates>>,
    index: usize,
}

/// Numbers that are stored together.
#[derive(Debug)]
struct Rates {
    values: Vec<f64>,
    /// The numbers on each device where a step ran, and whether they are current.
    on_devices: Vec<(Tensor, bool)>,
}

impl Rate {
    /// A number that no device has yet.
    pub fn new(value: f64) -> Self {
        Self { shared: Arc::new(Mutex::new(Rates { values: vec![value], on_devices: Vec::new() })), index: 0 }
    }

    /// Stores these numbers together from now on, so that one launch can read or set several of them. A step that was
    /// captured before continues with the numbers of that time.
    ///
    /// # Examples
    /// ```
    /// use pagelock_tensor::optimizer_steps::Rate;
    ///
    /// let mut lrs = [Rate::new(0.1), Rate::new(0.2)];
    /// Rate::join(&mut lrs);
    /// Rate::set_all(&[(&lrs[0], 0.3), (&lrs[1], 0.4)]); // one launch, once steps ran on a GPU
    /// assert_eq!((lrs[0].get(), lrs[1].get()), (0.3, 0.4));
    /// ```
    pub fn join<'a>(rates: impl IntoIterator<Item = &'a mut Rate>) {
        let mut rates: Vec<_> = rates.into_iter().collect();
        let values = rates.iter().map(|rate| rate.get()).collect();
        let shared = Arc::new(Mutex::new(Rates { values, on_devices: Vec::new() }));
        for (index, rate) in rates.iter_mut().enumerate() {
            **rate = Self { shared: Arc::clone(&shared), index };
        }
    }

    /// The number.
    pub fn get(&self) -> f64 {
        self.lock().values[self.index]
    }

    /// Changes the number for all steps from now on, including those that a captured step repeats.
    pub fn set(&self, value: f64) {
        Self::set_all(&[(self, value)]);
    }

    /// Changes several numbers as [`set`](Self::set) does, and those that were [joined](Self::join) together.
    pub fn set_all(rates: &[(&Rate, f64)]) {
        for &(rate, value) in rates {
            rate.lock().set(rate.index, value);
        }
        for (rate, _) in rates {
            let Rates { values, on_devices } = &mut *rate.lock();
            // Errors are ignored: a device that cannot take the numbers cannot step either, and a step tries again.
            on_devices.iter_mut().for_each(|copy| drop(sync(values, copy)));
        }
    }

    /// Whether both were [joined](Self::join) with each other.
    pub(super) fn is_joined_with(&self, other: &Rate) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Its index among the numbers that it was joined with.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// All numbers that it was joined with, as kernels on a device read them: `f64`, one dimension.
    pub(super) fn all_on(&self, device: &Device) -> Result<Tensor> {
        let Rates { values, on_devices } = &mut *self.lock();
        if let Some(copy) = on_devices.iter_mut().find(|(tensor, _)| tensor.device() == *device) {
            return sync(values, copy);
        }
        let mut copy = (capture::outside(|| Tensor::on(device).of(DType::F64).zeros([values.len()]))?, false);
        let tensor = sync(values, &mut copy)?;
        on_devices.push(copy);
        Ok(tensor)
    }

    fn lock(&self) -> MutexGuard<'_, Rates> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rates {
    fn set(&mut self, index: usize, value: f64) {
        let is_changed = self.values[index].to_bits() != value.to_bits();
        self.values[index] = value;
        if is_changed {
            self.on_devices.iter_mut().for_each(|(_, is_current)| *is_current = false);
        }
    }
}

/// Copies the numbers to a device's tensor, unless that is current. Not as a part of a captured step, which would copy
/// the same numbers at each launch.
fn sync(values: &[f64], (tensor, is_current): &mut (Tensor, bool)) -> Result<Tensor> {
    if !*is_current {
        capture::outside(|| match tensor.device() {
            Device::Cuda(device) => write(&device, tensor, values),
            Device::Cpu => tensor.copy_(&Tensor::from_slice(values, values.len())?),
        })?;
        *is_current = true;
    }
    Ok(tensor.clone())
}

static CODE: Code = Code { name: "rate", text: include_str!("rate.cu") };

/// The most numbers of a launch: `NUMBERS` of `rate.cu`.
const NUMBERS: usize = 8;

/// Writes the numbers as arguments of a kernel, so that no host memory must stay alive until they are copied.
fn write(device: &CudaDevice, tensor: &Tensor, values: &[f64]) -> Result<()> {
    let mut locked = tensor.storage().lock_mut();
    for (i, values) in values.chunks(NUMBERS).enumerate() {
        let mut settings = [0; 2 + NUMBERS];
        settings[..2].copy_from(&[(i * NUMBERS) as u64, values.len() as u64]);
        settings[2..].iter_mut().zip(values).for_each(|(to, value)| *to = value.to_bits());
        let x = locked.cuda(tensor.layout(), DType::F64).into_argument();
        let (types, grid) = ([DType::F64; 2], Launch::covering(NUMBERS, NUMBERS as u32));
        let launch = || {
            // SAFETY: the kernel takes these arguments. It writes as many numbers as there are values, from `first`
            // on, and `tensor` is contiguous and has an element for each of them.
            unsafe {
                CODE.launch(device, OP, (types, "set"), grid, &[x, Argument::Value(bytemuck::bytes_of(&settings))])
            }
        };
        profiler::on_stream("set", || device.stream(), launch)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_are_set_together_are_on_the_device() {
        let mut rates = [0.1, 0.2, 0.3].map(Rate::new);
        let on_device = |rate: &Rate| rate.all_on(&Device::Cpu).unwrap().to_vec::<f64>().unwrap()[rate.index()];
        assert_eq!((on_device(&rates[0]), on_device(&rates[1])), (0.1, 0.2));
        for _ in 0..2 {
            Rate::set_all(&[(&rates[0], 1.0), (&rates[1], 0.2), (&rates[2], 3.0), (&rates[0], 4.0)]);
            assert_eq!(rates.each_ref().map(Rate::get), [4.0, 0.2, 3.0]);
            assert_eq!(rates.each_ref().map(on_device), [4.0, 0.2, 3.0]);
            rates[0].set(0.5);
            assert_eq!(on_device(&rates[0]), 0.5);
            Rate::join(&mut rates); // the same again with the joined rates
        }
        assert!(rates[0].is_joined_with(&rates[2]) && !rates[0].is_joined_with(&Rate::new(0.5)));
    }
}
