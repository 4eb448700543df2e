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
    of: Arc<Mutex<Rates>>,
    place: usize,
}

/// Numbers that are stored together.
#[derive(Debug)]
struct Rates {
    values: Vec<f64>,
    /// The numbers on each device where a step ran, and whether they are current.
    there: Vec<(Tensor, bool)>,
}

impl Rate {
    /// A number that no device has yet.
    pub fn new(value: f64) -> Self {
        Self { of: Arc::new(Mutex::new(Rates { values: vec![value], there: Vec::new() })), place: 0 }
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
        let of = Arc::new(Mutex::new(Rates { values, there: Vec::new() }));
        for (place, rate) in rates.iter_mut().enumerate() {
            **rate = Self { of: Arc::clone(&of), place };
        }
    }

    /// The number.
    pub fn get(&self) -> f64 {
        self.lock().values[self.place]
    }

    /// Changes the number for all steps from now on, including those that a captured step repeats.
    pub fn set(&self, value: f64) {
        Self::set_all(&[(self, value)]);
    }

    /// Changes several numbers as [`set`](Self::set) does, and those that were [joined](Self::join) together.
    pub fn set_all(rates: &[(&Rate, f64)]) {
        for &(rate, value) in rates {
            rate.lock().set(rate.place, value);
        }
        for (rate, _) in rates {
            let Rates { values, there } = &mut *rate.lock();
            // Errors are ignored: a device that cannot take the numbers cannot step either, and a step tries again.
            there.iter_mut().for_each(|there| drop(bring(values, there)));
        }
    }

    /// Whether both were [joined](Self::join) with each other.
    pub(super) fn is_beside(&self, other: &Rate) -> bool {
        Arc::ptr_eq(&self.of, &other.of)
    }

    /// Its index among the numbers that it was joined with.
    pub(super) fn place(&self) -> usize {
        self.place
    }

    /// All numbers that it was joined with, as kernels on a device read them: `f64`, one dimension.
    pub(super) fn all_on(&self, device: &Device) -> Result<Tensor> {
        let Rates { values, there } = &mut *self.lock();
        if let Some(known) = there.iter_mut().find(|(there, _)| there.device() == *device) {
            return bring(values, known);
        }
        let mut made = (Tensor::on(device).of(DType::F64).zeros([values.len()])?, false);
        let brought = bring(values, &mut made)?;
        there.push(made);
        Ok(brought)
    }

    fn lock(&self) -> MutexGuard<'_, Rates> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rates {
    fn set(&mut self, place: usize, value: f64) {
        let is_news = self.values[place].to_bits() != value.to_bits();
        self.values[place] = value;
        if is_news {
            self.there.iter_mut().for_each(|(_, is_current)| *is_current = false);
        }
    }
}

/// Copies the numbers to a device's tensor, unless that is current.
fn bring(values: &[f64], (there, is_current): &mut (Tensor, bool)) -> Result<Tensor> {
    if !*is_current {
        match there.device() {
            Device::Cuda(device) => write(&device, there, values)?,
            Device::Cpu => there.copy_(&Tensor::from_slice(values, values.len())?)?,
        }
        *is_current = true;
    }
    Ok(there.clone())
}

static CODE: Code = Code { name: "rate", text: include_str!("rate.cu") };

/// The most numbers of a launch: `NUMBERS` of `rate.cu`.
const NUMBERS: usize = 8;

/// Writes the numbers as arguments of a kernel, so that no host memory must stay alive until they are copied.
fn write(device: &CudaDevice, there: &Tensor, values: &[f64]) -> Result<()> {
    let storage = there.storage();
    capture::note_write(storage);
    let mut locked = storage.lock_mut();
    for (i, values) in values.chunks(NUMBERS).enumerate() {
        let mut settings = [0; 2 + NUMBERS];
        settings[..2].copy_from(&[(i * NUMBERS) as u64, values.len() as u64]);
        settings[2..].iter_mut().zip(values).for_each(|(to, value)| *to = value.to_bits());
        let x = locked.cuda(there.layout(), DType::F64).into_argument();
        let (types, launch) = ([DType::F64; 2], Launch::covering(NUMBERS, NUMBERS as u32));
        let queue = || {
            // SAFETY: the kernel takes these arguments. It writes as many numbers as there are values, from `first`
            // on, and `there` is contiguous and has an element for each of them.
            unsafe {
                CODE.launch(device, OP, (types, "set"), launch, &[x, Argument::Value(bytemuck::bytes_of(&settings))])
            }
        };
        profiler::on_stream("set", || device.stream(), queue)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_are_set_together_are_there() {
        let mut rates = [0.1, 0.2, 0.3].map(Rate::new);
        let there = |rate: &Rate| rate.all_on(&Device::Cpu).unwrap().to_vec::<f64>().unwrap()[rate.place()];
        assert_eq!((there(&rates[0]), there(&rates[1])), (0.1, 0.2));
        for _ in 0..2 {
            Rate::set_all(&[(&rates[0], 1.0), (&rates[1], 0.2), (&rates[2], 3.0), (&rates[0], 4.0)]);
            assert_eq!(rates.each_ref().map(Rate::get), [4.0, 0.2, 3.0]);
            assert_eq!(rates.each_ref().map(there), [4.0, 0.2, 3.0]);
            rates[0].set(0.5);
            assert_eq!(there(&rates[0]), 0.5);
            Rate::join(&mut rates); // the same again with the joined rates
        }
        assert!(rates[0].is_beside(&rates[2]) && !rates[0].is_beside(&Rate::new(0.5)));
    }
}
