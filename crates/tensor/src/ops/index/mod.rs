//! Selecting and scattering by index tensors. On the CPU indices are checked before any loop runs; on a device the kernels
//! check them, and the host is told when it next reads from the device.

mod cuda;

use self::cuda::Index;
use crate::autograd::Saved;
use crate::cpu::{self, CpuView};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::device::common_device;
use crate::element::{DType, Element};
use crate::error::{Error, Result};
use crate::op::{Op, Saves, apply, per_type};
use crate::shape::Shape;
use crate::tensor::Tensor;

impl<T: Element> Tensor<T> {
    /// The entries of a dimension that `index` (one-dimensional) names, in its order, repeated where it repeats.
    ///
    /// ```
    /// # use pagelock_tensor::{Create, Tensor};
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?;
    /// let rows = Tensor::<i64>::new([1, 1, 0])?;
    /// assert_eq!(x.index_select(0, &rows)?.to_vec()?, [3.0, 4.0, 3.0, 4.0, 1.0, 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchDim`], [`Error::IndexOutOfRange`]; [`Error::WrongShape`] if `index` is not one-dimensional.
    pub fn index_select(&self, dim: isize, index: &Tensor<i64>) -> Result<Tensor<T>> {
        let dim = self.shape().dim("index_select", dim)?;
        apply(IndexSelect { dim, index: own_index("index_select", self, index)? }, [self])
    }

    /// One element of a dimension per element of `index`: `out[i][j] = self[i][index[i][j]]` for `dim` 1.
    ///
    /// `index` has this tensor's rank, and no dimension but `dim` is larger than here; the result has its shape.
    ///
    /// # Errors
    /// [`Error::NoSuchDim`], [`Error::IndexOutOfRange`], [`Error::WrongShape`].
    pub fn gather(&self, dim: isize, index: &Tensor<i64>) -> Result<Tensor<T>> {
        let dim = self.shape().dim("gather", dim)?;
        apply(Gather { dim, index: own_index("gather", self, index)? }, [self])
    }
}

/// Zeros of shape `into`, with each element of `source` added at its index along `dim`: the transpose of `gather`.
pub(crate) fn scatter_add<T: Element>(
    source: &Tensor<T>,
    dim: usize,
    index: Tensor<i64>,
    into: Shape,
) -> Result<Tensor<T>> {
    apply(ScatterAdd { gather: Gather { dim, index }, into }, [source])
}

/// The index without gaps, in a storage that in-place changes and other inputs do not share.
fn own_index<T: Element>(op: &'static str, x: &Tensor<T>, index: &Tensor<i64>) -> Result<Tensor<i64>> {
    common_device(op, &[x.raw(), index.raw()])?;
    index.deep_copy(op)
}

/// Every index is below the size of dimension `dim`, and none negative.
pub(crate) fn check_range(op: &'static str, index: &[i64], dim: usize, shape: &Shape) -> Result<()> {
    let size = shape[dim] as i64;
    match index.iter().find(|&&index| !(0..size).contains(&index)) {
        Some(&index) => Err(Error::IndexOutOfRange { op, index, dim, shape: *shape, from_end: false }),
        None => Ok(()),
    }
}

#[derive(Clone)]
struct IndexSelect {
    dim: usize,
    index: Tensor<i64>,
}

per_type! { IndexSelect[1]: Element }

impl<T: Element> Op<T, 1> for IndexSelect {
    type Out = T;
    const NAME: &'static str = "index_select";
    const SAVES: Saves = Saves::Nothing;

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        if self.index.rank() != 1 {
            let expected = "it must have one dimension; flatten it".to_string();
            return Err(Error::WrongShape {
                op: "index_select",
                operand: "the index",
                shape: *self.index.shape(),
                expected,
            });
        }
        Ok(x.with(self.dim, self.index.len()))
    }

    fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: &mut [T]) -> Result<()> {
        let reading = self.index.read("index_select")?;
        let index = reading.of(self.index.layout());
        check_range("index_select", index, self.dim, &Shape::new(x.shape)?)?;
        cpu::index_select(x, self.dim, index, out);
        Ok(())
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        let lock = self.index.storage().lock();
        let index = Index::of_entries(lock.cuda(self.index.layout(), DType::I64), self.dim);
        cuda::gather(device, "index_select", x, index, out)
    }

    fn backward(&self, saved: &Saved<'_, T, T, 1>, grad: &Tensor<T>) -> Result<[Option<Tensor<T>>; 1]> {
        Ok([Some(apply(IndexAdd { select: self.clone(), into: *saved.shape(0) }, [grad])?)])
    }
}

/// Zeros of shape `into`, to whose entries the input's are added: the derivative of [`IndexSelect`].
struct IndexAdd {
    select: IndexSelect,
    into: Shape,
}

per_type! { IndexAdd[1]: Element }

impl<T: Element> Op<T, 1> for IndexAdd {
    type Out = T;
    const NAME: &'static str = "index_add";
    const SAVES: Saves = Saves::Nothing;

    fn out_shape(&self, _: [&Shape; 1]) -> Result<Shape> {
        Ok(self.into)
    }

    fn cpu(&self, [grad]: [CpuView<'_, T>; 1], out: &mut [T]) -> Result<()> {
        out.fill(T::ZERO);
        let reading = self.select.index.read("index_add")?;
        cpu::index_add(out, &self.into, self.select.dim, reading.of(self.select.index.layout()), grad, T::plus);
        Ok(())
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        let lock = self.select.index.storage().lock();
        let index = Index::of_entries(lock.cuda(self.select.index.layout(), DType::I64), self.select.dim);
        cuda::scatter_add(device, "index_add", x, index, out)
    }

    fn backward(&self, _: &Saved<'_, T, T, 1>, grad: &Tensor<T>) -> Result<[Option<Tensor<T>>; 1]> {
        Ok([Some(apply(self.select.clone(), [grad])?)])
    }
}

#[derive(Clone)]
struct Gather {
    dim: usize,
    index: Tensor<i64>,
}

per_type! { Gather[1]: Element }

impl<T: Element> Op<T, 1> for Gather {
    type Out = T;
    const NAME: &'static str = "gather";
    const SAVES: Saves = Saves::Nothing;

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        let index = self.index.shape();
        let fits = index.rank() == x.rank()
            && index.iter().zip(x.iter()).enumerate().all(|(dim, (mine, size))| dim == self.dim || mine <= size);
        if !fits {
            let expected = format!("it must have the rank of {x} and be no larger but for dimension {}", self.dim);
            return Err(Error::WrongShape { op: "gather", operand: "the index", shape: *index, expected });
        }
        Ok(*index)
    }

    fn cpu(&self, [x]: [CpuView<'_, T>; 1], out: &mut [T]) -> Result<()> {
        let reading = self.index.read("gather")?;
        check_range("gather", reading.of(self.index.layout()), self.dim, &Shape::new(x.shape)?)?;
        cpu::gather(x, self.dim, reading.view(self.index.layout()), out);
        Ok(())
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        let lock = self.index.storage().lock();
        let index = Index::of_elements(lock.cuda(self.index.layout(), DType::I64), self.dim);
        cuda::gather(device, "gather", x, index, out)
    }

    fn backward(&self, saved: &Saved<'_, T, T, 1>, grad: &Tensor<T>) -> Result<[Option<Tensor<T>>; 1]> {
        Ok([Some(apply(ScatterAdd { gather: self.clone(), into: *saved.shape(0) }, [grad])?)])
    }
}

/// Zeros of shape `into`, with each input element added where [`Gather`] reads: its derivative.
struct ScatterAdd {
    gather: Gather,
    into: Shape,
}

per_type! { ScatterAdd[1]: Element }

impl<T: Element> Op<T, 1> for ScatterAdd {
    type Out = T;
    const NAME: &'static str = "scatter_add";
    const SAVES: Saves = Saves::Nothing;

    fn out_shape(&self, _: [&Shape; 1]) -> Result<Shape> {
        Ok(self.into)
    }

    fn cpu(&self, [grad]: [CpuView<'_, T>; 1], out: &mut [T]) -> Result<()> {
        out.fill(T::ZERO);
        let reading = self.gather.index.read("scatter_add")?;
        cpu::scatter_add(out, &self.into, self.gather.dim, reading.view(self.gather.index.layout()), grad, T::plus);
        Ok(())
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        let lock = self.gather.index.storage().lock();
        let index = Index::of_elements(lock.cuda(self.gather.index.layout(), DType::I64), self.gather.dim);
        cuda::scatter_add(device, "scatter_add", x, index, out)
    }

    fn backward(&self, _: &Saved<'_, T, T, 1>, grad: &Tensor<T>) -> Result<[Option<Tensor<T>>; 1]> {
        Ok([Some(apply(self.gather.clone(), [grad])?)])
    }
}
