//! Matrix products of vectors, matrices and batches.
//!
//! Kernels take matrices with any strides, so a transposed operand is never copied. A vector is viewed as a matrix
//! with a dimension of size 1.

mod cpu;
mod cuda;
mod library;
mod linear;

pub(crate) use self::cpu::{Packed, chained, gemm};
pub(crate) use self::cuda::run as product_on_cuda;
pub(crate) use self::library::is_large as is_large_product;
use crate::autocast::{no_autocast, prepared_raw};
use crate::autograd::Saved;
use crate::cpu::{CpuView, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView};
use crate::element::Num;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::kind::{Float, Numeric};
use crate::op::{CpuKernel, Derivative, Op, Precision, Saves, apply_raw, per_type, same_precision};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

impl<K: Numeric> Tensor<K> {
    /// The matrix product.
    ///
    /// - `[m, k] · [k, n]` is `[m, n]`; a vector on the left is a row, one on the right a column, and its added
    ///   dimension is removed
    /// - leading dimensions are batches and broadcast: `[b, 1, m, k] · [c, k, n]` is `[b, c, m, n]`
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let a = Tensor::new([[1.0, 2.0], [3.0, 4.0]])?;
    /// let x = Tensor::new([1.0, 10.0])?;
    /// assert_eq!(a.matmul(&x)?.to_vec::<f32>()?, [21.0, 43.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for sizes or batches that do not fit, or for scalars.
    pub fn matmul(&self, other: &Tensor<K>) -> Result<Tensor<K>> {
        self.raw().matmul(other.raw()).map(Raw::typed)
    }
}

impl Raw {
    pub(crate) fn matmul(&self, other: &Raw) -> Result<Raw> {
        for (operand, tensor) in [("the left operand", self), ("the right operand", other)] {
            if tensor.rank() == 0 {
                let expected = "it must have at least one dimension; use mul for scalars".to_string();
                return Err(Error::wrong_shape("matmul", operand, tensor.shape(), expected));
            }
        }
        match (self.rank(), other.rank()) {
            (1, 1) if is_long(self) && self.shape() == other.shape() => inner_product(self, other),
            (1, 1) => self.unsqueeze(0)?.product(&other.unsqueeze(1)?, self, other)?.reshape(&[]),
            (1, _) => self.unsqueeze(0)?.product(other, self, other)?.squeeze(-2),
            (_, 1) => self.product(&other.unsqueeze(1)?, self, other)?.squeeze(-1),
            // A batch times one matrix is a single product: the rows of the batch form one tall matrix.
            (3.., 2) if self.is_contiguous() => {
                let rows = self.flatten(0, -2)?.product(other, self, other)?;
                rows.reshape_to(self.shape().with(self.rank() - 1, other.shape()[1]))
            }
            _ => self.product(other, self, other),
        }
    }

    /// The product of two (batches of) matrices; `left` and `right` are the user's operands, for the error.
    fn product(&self, other: &Raw, left: &Raw, right: &Raw) -> Result<Raw> {
        if self.shape()[self.rank() - 1] != other.shape()[other.rank() - 2] {
            return Err(Error::inner_sizes(left.shape(), right.shape()));
        }
        multiply(self, other)
    }
}

/// Whether a vector is on a device, and too long for one block of threads.
fn is_long(x: &Raw) -> bool {
    const LONG: usize = 1 << 14;
    !x.storage.device().is_cpu() && x.dtype().is_float() && x.shape().elements() >= LONG
}

/// The dot product of long vectors on a device, as a product and a sum: a kernel for matrices would use one block for
/// it.
fn inner_product(a: &Raw, b: &Raw) -> Result<Raw> {
    let [a, b] = [prepared_raw(MatMul::PRECISION, a)?, prepared_raw(MatMul::PRECISION, b)?];
    let dtype = same_precision("matmul", &[&a, &b])?;
    no_autocast(|| {
        let [a, b] = [a.converted(dtype.computing())?, b.converted(dtype.computing())?];
        a.typed::<Float>().mul(&b.typed())?.sum(..)?.raw().converted(dtype)
    })
}

/// The product of matrices whose inner sizes agree.
fn multiply(a: &Raw, b: &Raw) -> Result<Raw> {
    if a.rank().max(b.rank()) == 2 || a.storage.device().is_cpu() {
        return apply_raw(MatMul, [a, b]);
    }
    let [a, b] = [prepared_raw(MatMul::PRECISION, a)?, prepared_raw(MatMul::PRECISION, b)?];
    let [a, b] = library::evenly_spaced([&a, &b])?;
    apply_raw(MatMul, [&a, &b])
}

impl Tensor {
    /// Matrices transposed: the last two dimensions exchanged.
    fn mt(&self) -> Result<Tensor> {
        self.transpose(-2, -1)
    }
}

struct MatMul;

/// Multiply-adds of several matrices that make a task worth handing out.
const TASK_WORK: usize = 1 << 20;

/// Multiply-adds of dot products that make a task: both sides are read only once, so memory sets the pace.
const DOTS_WORK: usize = 1 << 16;

per_type! { MatMul[2]: Num }

impl Op<2> for MatMul {
    const NAME: &'static str = "matmul";
    const PRECISION: Precision = Precision::HalfUnderAutocast;

    /// The inner sizes were compared by `product`, which knows the shapes that the user gave.
    fn out_shape(&self, [a, b]: [&Shape; 2]) -> Result<Shape> {
        let (rows, columns) = (a[a.rank() - 2], b[b.rank() - 1]);
        let mut shape = Shape::broadcast("matmul", &batch(a), &batch(b))?;
        shape.push(rows)?;
        shape.push(columns)?;
        Ok(shape)
    }

    fn flops(&self, [a, b]: [&Shape; 2]) -> u64 {
        let batches = Shape::broadcast("matmul", &batch(a), &batch(b)).map_or(0, |batches| batches.elements());
        let ([.., m, k], [.., n]) = (&a[..], &b[..]) else { return 0 };
        [batches, *m, *k, *n].into_iter().fold(2, |product, size| product * size as u64)
    }

    fn cuda(&self, device: &CudaDevice, [a, b]: [CudaView<'_>; 2], out: CudaOut<'_>) -> Result<()> {
        cuda::run(device, &Shape::broadcast("matmul", &batch(a.shape()), &batch(b.shape()))?, [a, b], out)
    }
}

impl Derivative<2> for MatMul {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        Ok([
            saved.grad_of(0, || product_laid_out_like(saved.input(0), [grad, &saved.input(1).mt()?]))?,
            saved.grad_of(1, || product_laid_out_like(saved.input(1), [&saved.input(0).mt()?, grad]))?,
        ])
    }
}

impl<T: Num> CpuKernel<T, 2> for MatMul {
    type Out = T;

    fn cpu(&self, [a, b]: [CpuView<'_, T>; 2], mut out: StoredMut<'_, T>) -> Result<()> {
        let ([.., m, k], [.., n]) = (a.shape, b.shape) else { unreachable!("matmul makes matrices of vectors") };
        if *m == 0 || *n == 0 {
            return Ok(());
        }
        let batches = Shape::broadcast("matmul", &batch(&Shape::new(a.shape)?), &batch(&Shape::new(b.shape)?))?;
        let are_rows = |side: &CpuView<'_, T>| {
            side.is_contiguous() && side.shape.iter().product::<usize>() == batches.elements() * k
        };
        if [*m, *n] == [1, 1] && *k > DOTS_WORK && batches.elements() == 1 && [a, b].iter().all(are_rows) {
            let [a, b] = [a, b].mapped(|side| side.data.part(0, *k));
            if let Some(computed) = cpu::long_dot(a, b, out.all()) {
                return computed.map_err(Error::scratch("matmul"));
            }
        }
        if [*m, *n] == [1, 1] && (1..=DOTS_WORK).contains(k) && batches.elements() > 1 && [a, b].iter().all(are_rows) {
            let rows = DOTS_WORK / k;
            let dots = |i: usize, out: StoredMut<'_, T>| {
                let [a, b] = [a, b].mapped(|side| side.data.part(i * rows * k, out.len() * k));
                cpu::dots(*k, a, b, out)
            };
            return out.try_for_each_chunk(rows, &dots).map_err(Error::scratch("matmul"));
        }
        // Several small products make a task; `gemm` itself splits a large one between threads.
        let per_task = (TASK_WORK / (m * n * k).max(1)).max(1);
        let products = |first: usize, out: &mut StoredMut<'_, T>| {
            (0..out.len() / (m * n)).try_for_each(|i| {
                let [a_data, b_data] = [a, b].mapped(|side| {
                    let start = batch_start(&batches, first + i, side.shape, side.strides);
                    side.data.from(start.min(side.data.len())) // an empty operand begins at 0
                });
                let out = out.part(i * m * n, m * n);
                cpu::gemm(*m, *k, *n, a_data, matrix_strides(a), b_data, matrix_strides(b), out)
            })
        };
        match per_task {
            1 => products(0, &mut out),
            _ => out.try_for_each_chunk(per_task * m * n, &|i, mut out| products(i * per_task, &mut out)),
        }
        .map_err(Error::scratch("matmul"))
    }
}

/// The product of two factors, stored transposed if `operand` is a transposed matrix. The gradient of the tensor that
/// was transposed, a layer's weight, then needs no copy.
fn product_laid_out_like(operand: &Tensor, [a, b]: [&Tensor; 2]) -> Result<Tensor> {
    if !operand.is_contiguous() && operand.mt()?.is_contiguous() {
        return multiply(b.mt()?.raw(), a.mt()?.raw())?.typed::<Float>().mt();
    }
    // A column times a row is an elementwise product.
    if a.dims().last() == Some(&1) && a.device().is_cpu() && a.dtype() == b.dtype() {
        return a.mul(b);
    }
    multiply(a.raw(), b.raw()).map(Raw::typed)
}

/// All dimensions but the last two.
fn batch(shape: &Shape) -> Shape {
    let mut batch = *shape;
    batch.remove(shape.rank() - 1);
    batch.remove(shape.rank() - 2);
    batch
}

/// The stride between matrices along a dimension of the batches, counted from the last; 0 where the operand repeats.
fn batch_stride(shape: &[usize], strides: &[usize], back: usize) -> usize {
    match (shape.len() - 2).checked_sub(back + 1) {
        Some(dim) if shape[dim] != 1 => strides[dim],
        _ => 0,
    }
}

/// The offset of matrix number `i` of the broadcast batches in an operand.
fn batch_start(batches: &Shape, mut i: usize, shape: &[usize], strides: &[usize]) -> usize {
    let mut start = 0;
    for back in 0..batches.rank() {
        let size = batches[batches.rank() - 1 - back];
        start += i % size * batch_stride(shape, strides, back);
        i /= size;
    }
    start
}

fn matrix_strides<T>(operand: CpuView<'_, T>) -> [usize; 2] {
    let rank = operand.strides.len();
    [operand.strides[rank - 2], operand.strides[rank - 1]]
}
