//! Results whose sizes depend on numbers, and questions about whole tensors. The host needs a number to answer, so it waits
//! for a device.

use super::places::places;
use super::quantile::Tally;
use crate::autograd::{Kept, Saved, no_grad, record};
use crate::cpu::{self, Key, PIECE, Stored, vectorized};
use crate::device::{Device, common_device};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::{Slice, zip};
use crate::kind::{Bool, Float, Int, Kind, Numeric};
use crate::op::{Derivative, on_cpu, with_locked};
use crate::parallel::for_each_chunk_mut;
use crate::scratch;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor, by_bits, by_num};

impl<K: Kind> Tensor<K> {
    /// The indices of all elements that are true (of numbers: not 0), one row for each, in row-major order: `[n, rank]`.
    /// Waits for a device.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[0, 5], [7, 0]])?;
    /// assert_eq!(x.nonzero()?.to_vec::<i64>()?, [0, 1, 1, 0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if the result does not fit the budget; as [`Tensor::to_vec`].
    pub fn nonzero(&self) -> Result<Tensor<Int>> {
        let mask = no_grad(|| self.raw().converted(DType::Bool)?.gap_free())?;
        match self.device() {
            Device::Cpu => nonzero(&mask).map(Raw::typed),
            Device::Cuda(device) => coordinates(places("nonzero", &device, &mask)?.typed(), self.shape()),
        }
    }

    /// The elements where `mask` is true, in row-major order, as a vector; both broadcast. Waits for a device.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([1.0, -2.0, 3.0])?;
    /// assert_eq!(x.masked_select(&x.gt_scalar(0.0)?)?.to_vec::<f32>()?, [1.0, 3.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not fit; as [`Tensor::nonzero`].
    pub fn masked_select(&self, mask: &Tensor<Bool>) -> Result<Tensor<K>> {
        let shape = Shape::broadcast("masked_select", self.shape(), mask.shape())?;
        selected(&self.raw().expand(shape)?, &mask.raw().expand(shape)?.gap_free()?).map(Raw::typed)
    }

    /// Whether both have the same shape and equal elements; NaN equals nothing. Waits for a device.
    ///
    /// # Errors
    /// As [`Tensor::nonzero`].
    pub fn equal(&self, other: &Tensor<K>) -> Result<bool> {
        if self.shape() != other.shape() {
            return Ok(false);
        }
        let differ: Tensor<Bool> = self.raw().ne(other.raw())?.typed();
        Ok(!differ.any(..)?.item::<bool>()?)
    }
}

/// [`Tensor::nonzero`] of truth values on the host, without gaps.
fn nonzero(mask: &Raw) -> Result<Raw> {
    let counts = counts_where(mask)?;
    let made = (Shape::new(&[counts.iter().sum(), mask.rank()])?, DType::I64);
    on_cpu("nonzero", [Some(mask)], made, &mut |inputs, out| {
        let truths = inputs.bits_of::<u8>(0).data.plain();
        cpu::places_where(truths, &counts, mask.shape(), out.elements::<i64>());
        Ok(())
    })
}

/// The indices of elements, of which these are the places in row-major order.
fn coordinates(places: Tensor<Int>, shape: &Shape) -> Result<Tensor<Int>> {
    let mut columns = Vec::with_capacity(shape.rank());
    let mut rest = places.clone();
    for &size in shape.iter().rev() {
        let size = size.max(1) as i64; // of nothing there are no places
        columns.push(rest.remainder_scalar(size)?);
        rest = rest.floor_divide_scalar(size)?;
    }
    columns.reverse();
    match columns.is_empty() {
        true => places.reshape([places.len(), 0]),
        false => Tensor::stack(&columns.iter().collect::<Vec<_>>(), 1),
    }
}

/// How many elements of a mask on the host, which has no gaps, are true, piece by piece.
pub(super) fn counts_where(mask: &Raw) -> Result<Vec<usize>> {
    let mut counts = Vec::new();
    with_locked([Some(mask)], &mut |inputs| {
        counts = cpu::counts_of_true(inputs.bits_of::<u8>(0).data.plain());
        Ok(())
    })?;
    Ok(counts)
}

const MASKED_SELECT: &str = "masked_select";

/// [`Tensor::masked_select`] of tensors of one shape; the mask has no gaps.
fn selected(x: &Raw, mask: &Raw) -> Result<Raw> {
    let device = common_device(MASKED_SELECT, &[x, mask])?;
    let out = match device {
        Device::Cpu => selected_on_cpu(x, mask)?,
        Device::Cuda(device) => {
            let places = places(MASKED_SELECT, device, mask)?;
            x.without_node().reshape(&[-1])?.index_select(0, &places)?
        }
    };
    Ok(record(MASKED_SELECT, Selected { mask: Kept::new(mask.without_node()) }, [Some(x)], out))
}

fn selected_on_cpu(x: &Raw, mask: &Raw) -> Result<Raw> {
    let (counts, input) = (counts_where(mask)?, x.gap_free()?);
    let made = (Shape::new(&[counts.iter().sum()])?, x.dtype());
    on_cpu(MASKED_SELECT, [Some(&input), Some(mask)], made, &mut |inputs, out| {
        let mask = inputs.bits_of::<u8>(1).data.plain();
        by_bits!(inputs.dtype(), B => cpu::keep_where(inputs.bits_of::<B>(0).data.plain(), mask, &counts, out.bits()));
        Ok(())
    })
}

/// Zeros of the mask's shape, with the elements of a vector where it is true.
fn placed(x: &Raw, mask: &Raw) -> Result<Raw> {
    let out = match mask.storage.device() {
        Device::Cpu => placed_on_cpu(x, mask)?,
        Device::Cuda(_) => super::places::placed(MASKED_SELECT, x, mask)?,
    };
    Ok(record(MASKED_SELECT, Placed { mask: Kept::new(mask.clone()) }, [Some(x)], out))
}

fn placed_on_cpu(x: &Raw, mask: &Raw) -> Result<Raw> {
    let (counts, input) = (counts_where(mask)?, x.gap_free()?);
    on_cpu(MASKED_SELECT, [Some(&input), Some(mask)], (*mask.shape(), x.dtype()), &mut |inputs, out| {
        let mask = inputs.bits_of::<u8>(1).data.plain();
        by_bits!(inputs.dtype(), B => {
            cpu::replace_where(None, mask, &counts, inputs.bits_of::<B>(0).data.plain(), out.bits());
        });
        Ok(())
    })
}

/// The derivative of [`selected`].
struct Selected {
    mask: Kept,
}

impl Derivative<1> for Selected {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(placed(grad.raw(), &self.mask.get(MASKED_SELECT)?)?.typed())])
    }
}

/// The derivative of [`placed`].
struct Placed {
    mask: Kept,
}

impl Derivative<1> for Placed {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(selected(grad.raw(), &self.mask.get(MASKED_SELECT)?)?.typed())])
    }
}

impl<K: Numeric> Tensor<K> {
    /// The different elements in order, as a vector. Waits for a device.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([3, 1, 3])?.unique()?.to_vec::<i64>()?, [1, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::nonzero`].
    pub fn unique(&self) -> Result<Tensor<K>> {
        let flat = self.detach_raw().reshape(&[-1])?;
        match Tally::of(&flat)? {
            Some(tally) => tally.values(&tally.places()?, self.dtype()).map(Raw::typed),
            None => flat.typed::<K>().sort(0, false)?.0.firsts(),
        }
    }

    /// The elements without those that equal the one before, as a vector. Waits for a device.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([3, 3, 1, 3])?.unique_consecutive()?.to_vec::<i64>()?, [3, 1, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::nonzero`].
    pub fn unique_consecutive(&self) -> Result<Tensor<K>> {
        self.detach_raw().reshape(&[-1])?.typed::<K>().firsts()
    }

    /// The first of each run of equal elements of a vector.
    fn firsts(&self) -> Result<Tensor<K>> {
        let n = self.len();
        if n < 2 {
            return Ok(self.clone());
        }
        let is_new: Tensor<Bool> = self.narrow(0, 1, n - 1)?.ne(&self.narrow(0, 0, n - 1)?)?;
        let first = Tensor::new([true])?.to(&self.device())?;
        self.masked_select(&Tensor::cat(&[&first, &is_new], 0)?)
    }

    fn detach_raw(&self) -> Raw {
        self.raw().without_node()
    }
}

/// Shows the elements of a vector, some at a time.
fn each_piece(x: &Tensor, mut visit: impl FnMut(&[f64])) -> Result<()> {
    const PIECE: usize = 1 << 18;
    for start in (0..x.len()).step_by(PIECE) {
        visit(&x.narrow(0, start, PIECE.min(x.len() - start))?.to_vec::<f64>()?);
    }
    Ok(())
}

impl Tensor {
    /// Whether all elements differ by at most `atol + rtol · |other|`, and infinite ones are equal. Waits for a device.
    /// PyTorch's defaults are `rtol` 1e-5 and `atol` 1e-8.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([1.0, 2.0])?;
    /// assert!(x.allclose(&(&x * 1.000001)?, 1e-5, 1e-8)?);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the shapes do not broadcast; as [`Tensor::nonzero`].
    pub fn allclose(&self, other: &Tensor, rtol: f64, atol: f64) -> Result<bool> {
        self.isclose(other, rtol, atol, false)?.all(..)?.item::<bool>()
    }

    /// How many elements are in each of `bins` equal parts of `[min, max]`; those outside count nowhere. If both bounds are
    /// equal, they are the least and the largest element. In this tensor's precision. Waits for a device.
    ///
    /// # Errors
    /// [`Error::Argument`] for 0 bins, bounds that are not finite, or in the wrong order; as [`Tensor::nonzero`].
    pub fn histc(&self, bins: usize, min: f64, max: f64) -> Result<Tensor> {
        let flat = self.detach_raw().reshape(&[-1])?.typed::<Float>();
        let (mut min, mut max) = (min, max);
        if min == max && !flat.is_empty() {
            let (least, most) = flat.aminmax(0)?;
            (min, max) = (least.item()?, most.item()?);
        }
        if min == max {
            (min, max) = (min - 1.0, max + 1.0);
        }
        if bins == 0 || !(max - min).is_finite() || min > max {
            let expected = format!("give at least one bin, and finite bounds in order, not {min} and {max}");
            return Err(Error::bad_argument("histc", "bins", bins, expected));
        }
        let mut counted = Ok(());
        // Behind the bins, one more for what is outside.
        let counts = Tensor::build(bins.saturating_add(1), |counts: &mut [i64]| {
            counts.set_to(0);
            let mut places = [0; PIECE];
            counted = each_piece(&flat, |numbers| {
                for numbers in numbers.chunks(PIECE) {
                    vectorized(
                        #[inline(always)]
                        || {
                            for (place, &number) in places.iter_mut().zip(numbers) {
                                let bin = ((number - min) / (max - min) * bins as f64).min((bins - 1) as f64);
                                *place = if number >= min && number <= max { bin } else { bins as f64 } as i64;
                            }
                        },
                    );
                    count_places(&places[..numbers.len()], |place| place as usize, counts);
                }
            });
        })?;
        counted?;
        counts.narrow(0, 0, bins)?.to_float_of(self.dtype())?.to(&self.device())
    }
}

impl Tensor<Int> {
    /// How often each number from 0 on occurs, up to the largest, or at least up to `minlength`. Waits for a device.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([2, 0, 2])?.bincount(0)?.to_vec::<i64>()?, [1, 0, 2]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for other than a vector of numbers that are not negative; as [`Tensor::nonzero`].
    pub fn bincount(&self, minlength: usize) -> Result<Tensor<Int>> {
        if self.rank() != 1 {
            return Err(Error::wrong_shape("bincount", "the tensor", self.shape(), "it must be a vector; flatten it"));
        }
        let numbers = self.to(&Device::Cpu)?.contiguous()?;
        let (least, most) = if numbers.is_empty() { (0, -1) } else { extremes(&numbers)? };
        if least < 0 {
            return Err(Error::bad_argument("bincount", "an element", least, "it must not be negative"));
        }
        let mut shape = Shape::SCALAR;
        let len = usize::try_from(most).map_or(0, |most| most.saturating_add(1));
        shape.push(len.max(minlength))?;
        shape.check_size()?;
        let counts = on_cpu("bincount", [Some(numbers.raw())], (shape, DType::I64), &mut |inputs, out| {
            let counts = out.bits::<i64>();
            counts.set_to(0);
            by_num!(inputs.dtype(), T => if let Some(Stored::Plain(numbers)) = inputs.data::<T>(0) {
                let zero = T::default().key();
                count_many(numbers, |number: T| (number.key() - zero) as usize, counts).map_err(Error::scratch("bincount"))?;
            });
            Ok(())
        })?;
        let counts: Tensor<Int> = counts.typed();
        counts.to(&self.device())
    }
}

/// So few counters are kept several times.
const FEW: usize = 256;

/// [`count_places`] by all threads, if there are few counters.
fn count_many<T: Copy + Sync>(
    numbers: &[T],
    place: impl Fn(T) -> usize + Sync + Copy,
    counts: &mut [i64],
) -> pagelock_memory::Result<()> {
    const TASK_LEN: usize = 64 << 10;
    const MAX_TASKS: usize = 64;
    let n = counts.len();
    let tasks = numbers.len().div_ceil(TASK_LEN).min(MAX_TASKS);
    if n > FEW || tasks < 2 {
        count_places(numbers, place, counts);
        return Ok(());
    }
    let task_len = numbers.len().div_ceil(tasks);
    scratch::with(tasks * n, |tables: &mut [i64]| {
        tables.set_to(0);
        for_each_chunk_mut(tables, n, |task, table| {
            let numbers = &numbers[(task * task_len).min(numbers.len())..];
            count_places(&numbers[..task_len.min(numbers.len())], place, table);
        });
        for table in tables.chunks_exact(n) {
            zip(&mut *counts, table).for_each(|(count, more)| *count += more);
        }
        Ok(())
    })
}

/// Adds to `counts[place]` how many of the numbers have this place.
fn count_places<T: Copy>(numbers: &[T], place: impl Fn(T) -> usize, counts: &mut [i64]) {
    // A number need not wait until the counter of the one before it is written: that is in another table.
    let (fours, rest) = numbers.as_chunks::<4>();
    if counts.len() > FEW || fours.len() < FEW {
        return numbers.iter().for_each(|&number| counts[place(number)] += 1);
    }
    let mut tables = [[0; FEW]; 4];
    for four in fours {
        for (i, table) in tables.iter_mut().enumerate() {
            table[place(four[i])] += 1;
        }
    }
    rest.iter().for_each(|&number| counts[place(number)] += 1);
    for table in tables {
        counts.iter_mut().zip(table).for_each(|(count, more)| *count += more);
    }
}

/// The least and the largest of some integers.
pub(super) fn extremes(numbers: &Tensor<Int>) -> Result<(i64, i64)> {
    let (least, most) = numbers.aminmax(0)?;
    Ok((least.item()?, most.item()?))
}
