//! Dropout. What is dropped is a function of a place in a random sequence, so nothing of it is kept for the gradient.

mod cuda;

use crate::autograd::Saved;
use crate::cpu::{CpuView, PIECE, StoredMut};
use crate::cuda::{CudaDevice, CudaOut, CudaView, constant};
use crate::element::{DType, Real};
use crate::error::{Error, Result};
use crate::op::{CpuKernel, Inputs, Op, Saves, apply, per_type};
use crate::random::{self, Draw, Generator};
use crate::scratch;
use crate::shape::Shape;
use crate::tensor::Tensor;

impl Tensor {
    /// Zeroes each element with probability `p` and divides the others by `1 − p`, so that the mean stays
    /// (inverted dropout: Srivastava et al., 2014, <https://jmlr.org/papers/v15/srivastava14a.html>). Where it fails, the
    /// generator stays where it was.
    ///
    /// # Errors
    /// [`Error::BadArgument`] unless 0 ≤ `p` ≤ 1.
    pub fn dropout(&self, p: f64, generator: &Generator) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::BadArgument {
                op: "dropout",
                argument: "p",
                value: p.to_string(),
                expected: "it must be a probability, 0 to 1".into(),
            });
        }
        if p == 1.0 {
            return self.mul_scalar(0.0);
        }
        Draw::make(generator, self.len(), DType::F32, |draw| {
            apply(Dropout { p: p as f32, scale: 1.0 / (1.0 - p), draw }, [self])
        })
    }
}

/// The element times `scale`, where the random number is not below `p`. Linear, so its derivative is itself.
#[derive(Clone, Copy)]
struct Dropout {
    p: f32,
    scale: f64,
    draw: Draw,
}

per_type! { Dropout[1]: Real }

impl Op<1> for Dropout {
    const NAME: &'static str = "dropout";
    const SAVES: Saves = Saves::Nothing;
    const INPUTS: Inputs = Inputs::WithoutGaps;

    fn out_shape(&self, [x]: [&Shape; 1]) -> Result<Shape> {
        Ok(*x)
    }

    fn cuda(&self, device: &CudaDevice, [x]: [CudaView<'_>; 1], out: CudaOut<'_>) -> Result<()> {
        cuda::run(device, self.draw, self.p, constant(x.dtype(), self.scale.into()), x, out)
    }

    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(apply(*self, [grad])?)])
    }
}

impl<R: Real> CpuKernel<R, 1> for Dropout {
    type Out = R;

    fn cpu(&self, [x]: [CpuView<'_, R>; 1], out: StoredMut<'_, R>) -> Result<()> {
        let scale = R::from_f64(self.scale);
        let computed = out.try_for_each_chunk(random::CHUNK, &|i, out| {
            scratch::with(out.len(), |numbers: &mut [f32]| {
                random::fill_uniform(self.draw.behind_chunks_of_f32(i), (&mut *numbers).into());
                let mut out = out;
                out.each_piece(|start, out| {
                    let mut room = [R::ZERO; PIECE];
                    let x = x.data.part(i * random::CHUNK + start, out.len()).widened(&mut room);
                    for ((out, &x), &number) in out.iter_mut().zip(x).zip(&numbers[start..]) {
                        *out = x * if number >= self.p { scale } else { R::ZERO };
                    }
                });
                Ok(())
            })
        });
        computed.map_err(Error::scratch("dropout"))
    }
}
