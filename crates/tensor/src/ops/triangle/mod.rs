//! Triangles of matrices: [`Tensor::tril`] and [`Tensor::triu`].

mod cuda;

use crate::autograd::{Saved, record};
use crate::cpu;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::op::{Derivative, on_cpu, on_cuda};
use crate::tensor::{Raw, Tensor, by_bits};

impl<K: Kind> Tensor<K> {
    /// The elements on and below diagonal number `diagonal` of each matrix, 0 above. Diagonal 0 is the main
    /// one; those above it have positive numbers.
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
    let &[.., rows, columns] = &x.shape()[..] else {
        return Err(Error::wrong_shape(
            side.name(),
            "the tensor",
            x.shape(),
            "it must have two dimensions; reshape it",
        ));
    };
    let (input, shape_and_dtype) = (x.gap_free()?, (*x.shape(), x.dtype()));
    let out = match x.storage.device() {
        Device::Cuda(device) => on_cuda(side.name(), device, [Some(&input)], shape_and_dtype, &mut |inputs, out| {
            let [x] = inputs.cuda_views();
            cuda::triangle(device, x, (side, diagonal), out)
        })?,
        _ => on_cpu(side.name(), [Some(&input)], shape_and_dtype, &mut |inputs, out| {
            by_bits!(inputs.dtype(), B => {
                let x = inputs.bits_of::<B>(0).data.plain();
                cpu::triangle(x, (rows, columns), (diagonal, side == Side::Upper), out.bits());
            });
            Ok(())
        })?,
    };
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
