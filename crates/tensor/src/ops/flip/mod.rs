//! Elements in the reverse order along dimensions: [`Tensor::flip`].

mod cuda;

use crate::autograd::{Saved, record};
use crate::cpu;
use crate::device::Device;
use crate::error::Result;
use crate::op::{Derivative, on_cpu, on_cuda};
use crate::tensor::{Raw, Tensor, by_bits};

/// Reverses each of `dims`; a dimension that is listed twice stays as it is.
pub(super) fn flip(x: &Raw, dims: Vec<usize>) -> Result<Raw> {
    let once: Vec<usize> = (0..x.rank()).filter(|at| dims.iter().filter(|dim| *dim == at).count() % 2 == 1).collect();
    // On the CPU, dimensions are permuted first, so that elements are read in their order in memory.
    if x.storage.device().is_cpu()
        && let Some(order) = x.layout.order()
    {
        let place = |dim| order.iter().position(|&at| at == dim).unwrap_or(dim);
        let to: Vec<isize> = order.iter().map(|&dim| dim as isize).collect();
        let back: Vec<isize> = (0..x.rank()).map(|dim| place(dim) as isize).collect();
        let places = once.into_iter().map(place).collect();
        return flip(&x.permute(&to)?, places)?.permute(&back);
    }
    let input = x.gap_free()?;
    let shape_and_dtype = (*x.shape(), x.dtype());
    let out = match x.storage.device() {
        Device::Cuda(device) => once.iter().try_fold(input, |input, &dim| {
            on_cuda("flip", device, [Some(&input)], shape_and_dtype, &mut |inputs, out| {
                let [x] = inputs.cuda_views();
                cuda::flip(device, x, dim, out)
            })
        })?,
        _ => on_cpu("flip", [Some(&input)], shape_and_dtype, &mut |inputs, out| {
            by_bits!(inputs.dtype(), B => {
                let x = inputs.bits_of::<B>(0);
                cpu::flip(x.data.plain(), x.shape, &once, out.bits());
            });
            Ok(())
        })?,
    };
    Ok(record("flip", Flip(once), [Some(x)], out))
}

/// The derivative of [`flip`].
struct Flip(Vec<usize>);

impl Derivative<1> for Flip {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(flip(grad.raw(), self.0.clone())?.typed())])
    }
}
