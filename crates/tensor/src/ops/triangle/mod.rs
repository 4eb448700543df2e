//! Triangles of matrices: [`Tensor::tril`] and [`Tensor::triu`].

mod cuda;

use super::{choose, number_like};
use crate::autograd::{Saved, record};
use crate::device::Device;
use crate::element::Scalar;
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::op::{Derivative, on_cuda};
use crate::tensor::{Raw, Tensor};

impl<K: Kind> Tensor<K> {
    /// The elements on and below diagonal number `diagonal` of each matrix, 0 above. Diagonal 0 is the main one, those above
    /// it have positive numbers.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::ones([2, 2])?.tril(0)?.to_vec::<f32>()?, [1.0, 0.0, 1.0, 1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for fewer than two dimensions.
    pub fn tril(&self, diagonal: isize) -> Result<Tensor<K>> {
        triangle(self.raw(), Side::Lower, diagonal).map(Raw::typed)
    }

    /// The elements on and above diagonal number `diagonal` of each matrix, 0 below; see [`Tensor::tril`].
    ///
    /// # Errors
    /// As [`Tensor::tril`].
    pub fn triu(&self, diagonal: isize) -> Result<Tensor<K>> {
        triangle(self.raw(), Side::Upper, diagonal).map(Raw::typed)
    }
}

/// Which triangle stays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Lower,
    Upper,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Lower => "tril",
            Side::Upper => "triu",
        }
    }
}

fn triangle(x: &Raw, side: Side, diagonal: isize) -> Result<Raw> {
    let keep = match side {
        Side::Lower => Raw::le,
        Side::Upper => Raw::ge,
    };
    let Device::Cuda(device) = x.storage.device() else {
        return kept(side.name(), x, diagonal, keep);
    };
    if x.rank() < 2 {
        return Err(needs_two(side.name(), x));
    }
    let out = on_cuda(side.name(), device, [Some(&x.gap_free()?)], (*x.shape(), x.dtype()), &mut |inputs, out| {
        let [x] = inputs.cuda_views();
        cuda::triangle(device, x, (side, diagonal), out)
    })?;
    Ok(record(side.name(), Triangle { side, diagonal }, [Some(x)], out))
}

/// The derivative of [`triangle`].
struct Triangle {
    side: Side,
    diagonal: isize,
}

impl Derivative<1> for Triangle {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(triangle(grad.raw(), self.side, self.diagonal)?.typed())])
    }
}

fn needs_two(op: &'static str, x: &Raw) -> Error {
    Error::wrong_shape(op, "the tensor", x.shape(), "it must have two dimensions; reshape it")
}

/// The elements whose column number and row number plus `diagonal` `keep` says yes to, 0 elsewhere.
fn kept(op: &'static str, x: &Raw, diagonal: isize, keep: fn(&Raw, &Raw) -> Result<Raw>) -> Result<Raw> {
    let &[.., rows, columns] = &x.shape()[..] else {
        return Err(needs_two(op, x));
    };
    let numbers = |n: usize| Tensor::arange(0, n as i64, 1)?.to(x.storage.device());
    let [row, column] = [numbers(rows)?.unsqueeze(1)?, numbers(columns)?];
    let first = row.add_scalar(diagonal as i64)?;
    choose(op, &keep(column.raw(), first.raw())?, x, &number_like(op, x, Scalar::Int(0))?)
}
