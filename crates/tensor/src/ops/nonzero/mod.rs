//! Elements that are true, or not 0. The sizes of the results depend on the elements, so the host waits for a device.

pub(super) mod cuda;

use super::quantile::Tally;
use crate::autograd::{Saved, SavedTensor, no_grad, record};
use crate::cpu;
use crate::device::{Device, common_device};
use crate::element::DType;
use crate::error::Result;
use crate::kind::{Bool, Int, Kind, Numeric};
use crate::op::{Derivative, on_cpu, with_locked};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor, by_bits};

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
    /// [`Error::Memory`](crate::Error::Memory) if the result does not fit the budget; as [`Tensor::to_vec`].
    pub fn nonzero(&self) -> Result<Tensor<Int>> {
        let mask = no_grad(|| self.raw().converted(DType::Bool)?.gap_free())?;
        match self.device() {
            Device::Cpu => nonzero(&mask).map(Raw::typed),
            Device::Cuda(device) => coordinates(cuda::places("nonzero", &device, &mask)?.typed(), self.shape()),
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
    /// [`Error::Argument`](crate::Error::Argument) if the shapes do not fit; as [`Tensor::nonzero`].
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
    let shape_and_dtype = (Shape::new(&[counts.iter().sum(), mask.rank()])?, DType::I64);
    on_cpu("nonzero", [Some(mask)], shape_and_dtype, &mut |inputs, out| {
        let truths = inputs.bits_of::<u8>(0).data.plain();
        cpu::indices_where(truths, &counts, mask.shape(), out.elements::<i64>());
        Ok(())
    })
}

/// The indices of elements, from their places in row-major order.
fn coordinates(places: Tensor<Int>, shape: &Shape) -> Result<Tensor<Int>> {
    let Some((_, inner)) = shape.split_first() else { return places.narrow(0, 0, 0)?.reshape([places.len(), 0]) };
    let mut columns = Vec::with_capacity(shape.rank());
    let mut rest = places;
    for &size in inner.iter().rev() {
        let size = size.max(1) as i64; // an empty tensor has no places
        columns.push(rest.remainder_scalar(size)?);
        rest = rest.floor_divide_scalar(size)?;
    }
    columns.push(rest);
    columns.reverse();
    Tensor::stack(&columns, 1)
}

/// The number of true elements in each piece of a mask on the host, which has no gaps.
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
            let places = cuda::places(MASKED_SELECT, device, mask)?;
            x.without_node().reshape(&[-1])?.index_select(0, &places)?
        }
    };
    Ok(record(MASKED_SELECT, Masked { mask: SavedTensor::new(mask.without_node()), places: false }, [Some(x)], out))
}

fn selected_on_cpu(x: &Raw, mask: &Raw) -> Result<Raw> {
    let (counts, input) = (counts_where(mask)?, x.gap_free()?);
    let shape_and_dtype = (Shape::new(&[counts.iter().sum()])?, x.dtype());
    on_cpu(MASKED_SELECT, [Some(&input), Some(mask)], shape_and_dtype, &mut |inputs, out| {
        let mask = inputs.bits_of::<u8>(1).data.plain();
        by_bits!(inputs.dtype(), B => cpu::keep_where(inputs.bits_of::<B>(0).data.plain(), mask, &counts, out.bits()));
        Ok(())
    })
}

/// Zeros of the mask's shape, with the elements of the vector `x` where the mask is true.
fn placed(x: &Raw, mask: &Raw) -> Result<Raw> {
    let out = match mask.storage.device() {
        Device::Cpu => placed_on_cpu(x, mask)?,
        Device::Cuda(device) => cuda::spread(MASKED_SELECT, device, None, mask, &x.gap_free()?)?,
    };
    Ok(record(MASKED_SELECT, Masked { mask: SavedTensor::new(mask.clone()), places: true }, [Some(x)], out))
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

/// The derivative of [`selected`], or of [`placed`] if it `places`: each is that of the other.
struct Masked {
    mask: SavedTensor,
    places: bool,
}

impl Derivative<1> for Masked {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        let back = if self.places { selected } else { placed };
        Ok([Some(back(grad.raw(), &self.mask.get(MASKED_SELECT)?)?.typed())])
    }
}

impl<K: Numeric> Tensor<K> {
    /// The distinct elements in ascending order, as a vector. Waits for a device.
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

    /// The elements without those that equal the element before, as a vector. Waits for a device.
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
            return self.deep_clone();
        }
        let is_new: Tensor<Bool> = self.narrow(0, 1, n - 1)?.ne(&self.narrow(0, 0, n - 1)?)?;
        let first = Tensor::new([true])?.to(&self.device())?;
        self.masked_select(&Tensor::cat(&[&first, &is_new], 0)?)
    }

    fn detach_raw(&self) -> Raw {
        self.raw().without_node()
    }
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
    /// [`Error::Argument`](crate::Error::Argument) if the shapes do not broadcast; as [`Tensor::nonzero`].
    pub fn allclose(&self, other: &Tensor, rtol: f64, atol: f64) -> Result<bool> {
        self.isclose(other, rtol, atol, false)?.all(..)?.item::<bool>()
    }
}
