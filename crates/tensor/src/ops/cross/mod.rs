//! Cross products of vectors with three components.

mod cuda;

use super::scan::Lines;
use crate::autograd::{Saved, record};
use crate::device::{Device, common_device};
use crate::element::Num;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::op::{Derivative, Saves, on_cpu, widest};
use crate::scratch;
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor, by_num};

const OP: &str = "cross";

pub(super) fn cross(x: &Raw, y: &Raw, dim: isize) -> Result<Raw> {
    let shape = Shape::broadcast(OP, x.shape(), y.shape())?;
    let at = shape.dim(OP, dim)?;
    if shape[at] != 3 {
        return Err(Error::wrong_shape(OP, "a tensor", &shape, format!("dimension {at} must have size 3")));
    }
    let dtype = widest(OP, &[x, y])?;
    let [x, y] = [x, y].mapped(|x| x.converted(dtype)?.expand(shape));
    let (x, y) = (x?, y?);
    products(&x, &y, at)
}

/// The cross products of tensors of one shape, precision and device.
fn products(x: &Raw, y: &Raw, dim: usize) -> Result<Raw> {
    let (left, right, lines) = (x.gap_free()?, y.gap_free()?, Lines::along(dim, x.shape()));
    let out = match common_device(OP, &[x, y])? {
        Device::Cpu => on_host([&left, &right], lines),
        Device::Cuda(device) => cuda::on_device(device, [&left, &right], lines),
    }?;
    Ok(record(OP, Cross { dim }, [Some(x), Some(y)], out))
}

/// The cross products of contiguous tensors on the CPU.
fn on_host([x, y]: [&Raw; 2], lines: Lines) -> Result<Raw> {
    on_cpu(OP, [Some(x), Some(y)], (*x.shape(), x.dtype()), &mut |inputs, out| {
        let Some([slab, piece]) = lines.pieces() else { return Ok(()) };
        by_num!(inputs.dtype(), T => {
            let [x, y] = inputs.views::<T>().mapped(|view| view.data);
            out.stored::<T>().try_for_each_chunk(piece, &|i, out| {
                let [x, y] = [x, y].mapped(|numbers| numbers.part(i * piece, out.len()));
                scratch::reals_mut(out, |out| scratch::reals(x, |x| scratch::reals(y, |y| {
                    let slabs = x.chunks_exact(slab).zip(y.chunks_exact(slab)).zip(out.chunks_exact_mut(slab));
                    slabs.for_each(|((x, y), out)| multiply(x, y, out));
                    Ok(())
                })))
            })
        })
        .map_err(Error::scratch(OP))
    })
}

/// The products of vectors whose components are the thirds of these slices.
#[inline]
fn multiply<T: Num>(x: &[T], y: &[T], out: &mut [T]) {
    let product = |[a, b, c]: [T; 3], [d, e, f]: [T; 3]| {
        [b.times(f).minus(c.times(e)), c.times(d).minus(a.times(f)), a.times(e).minus(b.times(d))]
    };
    if let (Ok(&x), Ok(&y), Ok(out)) = (x.try_into(), y.try_into(), <&mut [T; 3]>::try_from(&mut *out)) {
        *out = product(x, y);
        return;
    }
    let n = out.len() / 3;
    for i in 0..n {
        let of = |x: &[T]| [x[i], x[n + i], x[2 * n + i]];
        [out[i], out[n + i], out[2 * n + i]] = product(of(x), of(y));
    }
}

/// The derivative of [`products`].
struct Cross {
    dim: usize,
}

impl Derivative<2> for Cross {
    const SAVES: Saves = Saves::Inputs;

    fn backward(&self, saved: &Saved<'_, 2>, grad: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let product = |x: &Tensor, y: &Tensor| products(x.raw(), y.raw(), self.dim).map(Raw::typed);
        Ok([saved.grad_of(0, || product(saved.input(1), grad))?, saved.grad_of(1, || product(grad, saved.input(0)))?])
    }
}
