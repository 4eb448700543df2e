//! Selecting and scattering by index tensors. On the CPU indices are checked before any loop runs; on a device the kernels
//! check them, and the host is told when it next reads from the device.

mod cuda;

use self::cuda::Index;
use crate::autograd::Saved;
use bytemuck::Pod;

use crate::cpu::{self, CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::device::common_device;
use crate::element::{DType, Num};
use crate::error::{Error, Result};
use crate::kind::{Int, Kind};
use crate::op::{CpuKernel, Derivative, Mover, Op, apply, apply_raw, by_size, per_type};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

impl<K: Kind> Tensor<K> {
    /// The entries of a dimension that `index` (one-dimensional) names, in its order, repeated where it repeats.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?;
    /// let rows = Tensor::new([1, 1, 0])?;
    /// assert_eq!(x.index_select(0, &rows)?.to_vec::<f32>()?, [3.0, 4.0, 3.0, 4.0, 1.0, 2.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or `index` is not one-dimensional; [`Error::IndexOutOfRange`].
    pub fn index_select(&self, dim: isize, index: &Tensor<Int>) -> Result<Tensor<K>> {
        self.raw().index_select(dim, index.raw()).map(Raw::typed)
    }

    /// One element of a dimension per element of `index`: `out[i][j] = self[i][index[i][j]]` for `dim` 1.
    ///
    /// `index` has this tensor's rank, and no dimension but `dim` is larger than here; the result has its shape.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such dimension, or the shapes do not fit; [`Error::IndexOutOfRange`].
    pub fn gather(&self, dim: isize, index: &Tensor<Int>) -> Result<Tensor<K>> {
        self.raw().gather(dim, index.raw()).map(Raw::typed)
    }
}

impl Raw {
    /// [`Tensor::index_select`].
    pub(crate) fn index_select(&self, dim: isize, index: &Raw) -> Result<Raw> {
        let dim = self.shape().dim("index_select", dim)?;
        apply_raw(IndexSelect { dim, index: own_index("index_select", self, index)? }, [self])
    }

    /// [`Tensor::gather`].
    pub(crate) fn gather(&self, dim: isize, index: &Raw) -> Result<Raw> {
        let dim = self.shape().dim("gather", dim)?;
        apply_raw(Gather { dim, index: own_index("gather", self, index)? }, [self])
    }
}

/// Zeros of shape `into`, with each element of `source` added at its index along `dim`: the transpose of `gather`.
pub(crate) fn scatter_add<K: Kind>(
    source: &Tensor<K>,
    dim: usize,
    index: Tensor<Int>,
    into: Shape,
) -> Result<Tensor<K>> {
    apply(ScatterAdd { gather: Gather { dim, index }, into }, [source])
}

/// The index without gaps, in a storage that in-place changes and other inputs do not share.
fn own_index(op: &'static str, x: &Raw, index: &Raw) -> Result<Tensor<Int>> {
    common_device(op, &[x, index])?;
    let own = if index.dtype() == DType::I64 { index.deep_copy(op) } else { index.converted(DType::I64) };
    own.map(Raw::typed)
}

/// Every index is below the size of dimension `dim`, and none negative.
pub(crate) fn check_range(op: &'static str, index: &[i64], dim: usize, shape: &Shape) -> Result<()> {
    let size = shape[dim] as u64;
    let is_outside = move |index: i64| index as u64 >= size; // negative ones are above all sizes
    // All of them, because a loop that ends at the first does not become vectors.
    let any_is_outside = cpu::vectorized(
        #[inline(always)]
        move || index.iter().fold(false, |any, &index| any | is_outside(index)),
    );
    if !any_is_outside {
        return Ok(());
    }
    let first = index.iter().copied().find(|&index| is_outside(index));
    first.map_or(Ok(()), |index| Err(Error::IndexOutOfRange { op, index, dim, shape: *shape, from_end: false }))
}

#[derive(Clone)]
struct IndexSelect {
    dim: usize,
    index: Tensor<Int>,
}

by_size! { IndexSelect }

impl Op<1> for IndexSelect {
    const NAME: &'static str = "index_select";

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        if self.index.rank() != 1 {
            let expected = "it must have one dimension; flatten it".to_string();
            return Err(Error::wrong_shape("index_select", "the index", self.index.shape(), expected));
        }
        Ok(x.with(self.dim, self.index.len()))
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        let lock = self.index.storage().lock();
        let index = Index::of_entries(lock.cuda(self.index.layout(), DType::I64), self.dim);
        cuda::gather(device, "index_select", x, index, out)
    }
}

impl Derivative<1> for IndexSelect {
    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(apply(IndexAdd { select: self.clone(), into: *saved.shape(0) }, [grad])?)])
    }
}

impl Mover for IndexSelect {
    fn cpu<B: Pod + Send + Sync>(&self, x: CpuView<'_, B>, out: &mut [B]) -> Result<()> {
        let reading = self.index.raw().read::<i64>("index_select")?;
        let index = reading.of(self.index.layout());
        check_range("index_select", index, self.dim, &Shape::new(x.shape)?)?;
        cpu::index_select(x, self.dim, index, out);
        Ok(())
    }
}

/// Zeros of shape `into`, to whose entries the input's are added: the derivative of [`IndexSelect`].
struct IndexAdd {
    select: IndexSelect,
    into: Shape,
}

per_type! { IndexAdd[1]: Num }

impl Op<1> for IndexAdd {
    const NAME: &'static str = "index_add";

    fn out_shape(&self, _: [&Shape; 1]) -> Result<Shape> {
        Ok(self.into)
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        let lock = self.select.index.storage().lock();
        let index = Index::of_entries(lock.cuda(self.select.index.layout(), DType::I64), self.select.dim);
        cuda::add_entries(device, "index_add", x, index, out)
    }
}

impl Derivative<1> for IndexAdd {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(apply(self.select.clone(), [grad])?)])
    }
}

impl<T: Num> CpuKernel<T, 1> for IndexAdd {
    type Out = T;

    fn cpu(&self, [grad]: [CpuView<'_, T>; 1], out: StoredMut<'_, T>) -> Result<()> {
        let reading = self.select.index.raw().read::<i64>("index_add")?;
        let index = reading.of(self.select.index.layout());
        cpu::index_add(out, &self.into, self.select.dim, index, grad).map_err(Error::scratch("index_add"))
    }
}

#[derive(Clone)]
struct Gather {
    dim: usize,
    index: Tensor<Int>,
}

by_size! { Gather }

impl Op<1> for Gather {
    const NAME: &'static str = "gather";

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        let index = self.index.shape();
        let fits = index.rank() == x.rank()
            && index.iter().zip(x.iter()).enumerate().all(|(dim, (mine, size))| dim == self.dim || mine <= size);
        if !fits {
            let expected = format!("it must have the rank of {x} and be no larger but for dimension {}", self.dim);
            return Err(Error::wrong_shape("gather", "the index", index, expected));
        }
        Ok(*index)
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        let lock = self.index.storage().lock();
        let index = Index::of_elements(lock.cuda(self.index.layout(), DType::I64), self.dim);
        cuda::gather(device, "gather", x, index, out)
    }
}

impl Derivative<1> for Gather {
    fn backward(&self, saved: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(apply(ScatterAdd { gather: self.clone(), into: *saved.shape(0) }, [grad])?)])
    }
}

impl Mover for Gather {
    fn cpu<B: Pod + Send + Sync>(&self, x: CpuView<'_, B>, out: &mut [B]) -> Result<()> {
        let reading = self.index.raw().read::<i64>("gather")?;
        if x.data.len() > 0 && cpu::gather(x, self.dim, reading.view(self.index.layout()), out) {
            return Ok(());
        }
        check_range("gather", reading.of(self.index.layout()), self.dim, &Shape::new(x.shape)?)
    }
}

/// Zeros of shape `into`, with each input element added where [`Gather`] reads: its derivative.
struct ScatterAdd {
    gather: Gather,
    into: Shape,
}

per_type! { ScatterAdd[1]: Num }

impl Op<1> for ScatterAdd {
    const NAME: &'static str = "scatter_add";

    fn out_shape(&self, _: [&Shape; 1]) -> Result<Shape> {
        Ok(self.into)
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        let lock = self.gather.index.storage().lock();
        let index = Index::of_elements(lock.cuda(self.gather.index.layout(), DType::I64), self.gather.dim);
        cuda::scatter_add(device, "scatter_add", x, index, out)
    }
}

impl Derivative<1> for ScatterAdd {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(apply(self.gather.clone(), [grad])?)])
    }
}

impl<T: Num> CpuKernel<T, 1> for ScatterAdd {
    type Out = T;

    fn cpu(&self, [grad]: [CpuView<'_, T>; 1], out: StoredMut<'_, T>) -> Result<()> {
        let reading = self.gather.index.raw().read::<i64>("scatter_add")?;
        let index = reading.view(self.gather.index.layout());
        cpu::scatter_add(out, &self.into, self.gather.dim, index, grad).map_err(Error::scratch("scatter_add"))
    }
}
