//! Histograms: [`Tensor::histc`] and [`Tensor::bincount`].

mod cuda;

use crate::cpu::{Key, PIECE, Stored, vectorized};
use crate::device::Device;
use crate::element::{DType, Element, Real};
use crate::error::{Error, Result};
use crate::inlined::{Array, Slice, zip};
use crate::kind::{Float, Int};
use crate::op::on_cpu;
use crate::parallel::for_each_chunk_mut;
use crate::scratch;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor, by_num, by_real};

/// Calls `visit` with the elements of a vector, a piece at a time.
fn each_piece<R: Real<Kind = Float>>(x: &Tensor, mut visit: impl FnMut(&[R])) -> Result<()> {
    const PIECE: usize = 1 << 18;
    for start in (0..x.len()).step_by(PIECE) {
        visit(&x.narrow(0, start, PIECE.min(x.len() - start))?.to_vec::<R>()?);
    }
    Ok(())
}

/// Counts the elements of a vector in each of equal bins between the bounds; a counter after the bins is for the
/// elements outside. As in PyTorch, an element's bin is computed in `R`, where it may be another than in `f64`.
fn count_bins<R: Real<Kind = Float>>(x: &Tensor, [min, max]: [f64; 2], counts: &mut [i64]) -> Result<()> {
    let bins = counts.len() - 1;
    let [min, max, n] = [min, max, bins as f64].mapped(R::from_f64);
    let mut counters = [0; PIECE];
    each_piece(x, |numbers: &[R]| {
        for numbers in numbers.chunks(PIECE) {
            vectorized(inlined!(|| {
                for (counter, &number) in counters.iter_mut().zip(numbers) {
                    let bin: i64 = ((number - min) * n / (max - min)).cast();
                    *counter = if number >= min && number <= max { bin.min(bins as i64 - 1) } else { bins as i64 };
                }
            }));
            count_each(&counters[..numbers.len()], |counter| counter as usize, counts);
        }
    })
}

impl Tensor {
    /// The number of elements in each of `bins` equal parts of `[min, max]`, in this tensor's precision. Elements
    /// outside are not counted. If both bounds are equal, the least and the largest element are used instead, for
    /// which the host waits for a device.
    ///
    /// # Errors
    /// [`Error::Argument`] for 0 bins, or bounds that are not finite or in the wrong order; [`Error::Memory`] if the
    /// counts do not fit the budget.
    pub fn histc(&self, bins: usize, min: f64, max: f64) -> Result<Tensor> {
        let flat = self.raw().without_node().reshape(&[-1])?.typed::<Float>();
        let (mut min, mut max) = (min, max);
        if min == max && !flat.is_empty() {
            let (least, most) = flat.aminmax(0)?;
            (min, max) = (least.item()?, most.item()?);
        }
        if min == max {
            (min, max) = (min - 1.0, max + 1.0);
        }
        if bins == 0 || !(max - min).is_finite() || min > max {
            let expected = format!("it must be at least 1, and the bounds {min} and {max} finite and in order");
            return Err(Error::bad_argument("histc", "bins", bins, expected));
        }
        let fits = by_real!(self.dtype(), R => {
            let [min, max, n] = [min, max, bins as f64].mapped(R::from_f64);
            ((max - min) * n).is_finite()
        });
        if !fits {
            let expected = format!("its product with {bins} bins must be finite in {}", self.dtype());
            return Err(Error::bad_argument("histc", "max - min", max - min, expected));
        }
        if let Device::Cuda(device) = self.device() {
            let counts = cuda::counts("histc", &device, flat.raw(), bins, Some([min, max]))?;
            return counts.typed::<Int>().to_float_of(self.dtype());
        }
        let mut counted = Ok(());
        // One more counter after the bins, for the elements outside.
        let counts = Tensor::build(bins.saturating_add(1), |counts: &mut [i64]| {
            counts.set_to(0);
            counted = by_real!(self.dtype(), R => count_bins::<R>(&flat, [min, max], counts));
        })?;
        counted?;
        counts.narrow(0, 0, bins)?.to_float_of(self.dtype())
    }
}

impl Tensor<Int> {
    /// How often each number from 0 to the largest element occurs; at least `minlength` counts. The host waits for a
    /// device.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([2, 0, 2])?.bincount(0)?.to_vec::<i64>()?, [1, 0, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] unless this is a vector without negative numbers; as [`Tensor::nonzero`].
    pub fn bincount(&self, minlength: usize) -> Result<Tensor<Int>> {
        if self.rank() != 1 {
            return Err(Error::wrong_shape("bincount", "the tensor", self.shape(), "it must be a vector; flatten it"));
        }
        let numbers = self.contiguous()?;
        let (least, most) = if numbers.is_empty() { (0, -1) } else { extremes(&numbers)? };
        if least < 0 {
            return Err(Error::bad_argument("bincount", "an element", least, "it must not be negative"));
        }
        let mut shape = Shape::SCALAR;
        let len = usize::try_from(most).map_or(0, |most| most.saturating_add(1));
        shape.push(len.max(minlength))?;
        shape.check_size()?;
        if let Device::Cuda(device) = self.device() {
            return cuda::counts("bincount", &device, numbers.raw(), shape[0], None).map(Raw::typed);
        }
        // One more counter after the others, for elements that another thread has changed to larger ones.
        let n = shape[0];
        let counts =
            on_cpu("bincount", [Some(numbers.raw())], (shape.with(0, n + 1), DType::I64), &mut |inputs, out| {
                let counts = out.bits::<i64>();
                counts.set_to(0);
                by_num!(inputs.dtype(), T => if let Some(Stored::Plain(numbers)) = inputs.data::<T>(0) {
                    let zero = T::default().key();
                    let counter = |number: T| ((number.key() - zero) as usize).min(n);
                    count_many(numbers, counter, counts).map_err(Error::scratch("bincount"))?;
                });
                match counts[n] {
                    0 => Ok(()),
                    changed => Err(Error::bad_argument(
                        "bincount",
                        "changed elements",
                        changed,
                        "no thread may change the tensor",
                    )),
                }
            })?;
        counts.narrow(0, 0, n).map(Raw::typed)
    }
}

/// Up to this many counters, several copies of them are used.
const FEW_COUNTERS: usize = 256;

/// [`count_each`] by several threads, if there are few counters.
fn count_many<T: Copy + Sync>(
    numbers: &[T],
    counter: impl Fn(T) -> usize + Sync + Copy,
    counts: &mut [i64],
) -> pagelock_memory::Result<()> {
    const TASK_LEN: usize = 64 << 10;
    const MAX_TASKS: usize = 64;
    let n = counts.len();
    let tasks = numbers.len().div_ceil(TASK_LEN).min(MAX_TASKS);
    if n > FEW_COUNTERS || tasks < 2 {
        count_each(numbers, counter, counts);
        return Ok(());
    }
    let task_len = numbers.len().div_ceil(tasks);
    scratch::with(tasks * n, |tables: &mut [i64]| {
        tables.set_to(0);
        for_each_chunk_mut(tables, n, |task, table| {
            let numbers = &numbers[(task * task_len).min(numbers.len())..];
            count_each(&numbers[..task_len.min(numbers.len())], counter, table);
        });
        for table in tables.chunks_exact(n) {
            zip(&mut *counts, table).for_each(|(count, more)| *count += more);
        }
        Ok(())
    })
}

/// Adds to each `counts[counter]` the number of elements with that counter.
fn count_each<T: Copy>(numbers: &[T], counter: impl Fn(T) -> usize, counts: &mut [i64]) {
    // Neighboring numbers use different tables, so that equal ones do not wait for each other's counter.
    let (fours, rest) = numbers.as_chunks::<4>();
    if counts.len() > FEW_COUNTERS || fours.len() < FEW_COUNTERS {
        return numbers.iter().for_each(|&number| counts[counter(number)] += 1);
    }
    let mut tables = [[0; FEW_COUNTERS]; 4];
    for four in fours {
        for (i, table) in tables.iter_mut().enumerate() {
            table[counter(four[i])] += 1;
        }
    }
    rest.iter().for_each(|&number| counts[counter(number)] += 1);
    for table in tables {
        counts.iter_mut().zip(table).for_each(|(count, more)| *count += more);
    }
}

/// The least and the largest of some integers.
pub(super) fn extremes(numbers: &Tensor<Int>) -> Result<(i64, i64)> {
    let (least, most) = numbers.aminmax(0)?;
    Ok((least.item()?, most.item()?))
}
