//! Dropout. Which elements are dropped is a function of a position in a random sequence. A device computes it again
//! for the gradient. On the CPU, where that takes ten times as long as reading the tensor, one bit per element is
//! saved.

mod cuda;

use crate::autograd::{Saved, record};
use crate::cpu::math::half::{self, Registers, Wide, by_half};
use crate::cpu::{PIECE, Stored, StoredMut, vectorized};
use crate::cuda::{CudaDevice, constant};
use crate::device::Device;
use crate::element::{DType, Real};
use crate::error::{Error, Result};
use crate::inlined::{Slice, zip};
use crate::kind::Int;
use crate::op::{Derivative, on_cpu, on_cuda};
use crate::parallel::try_for_each_chunk_mut;
use crate::random::{self, Draw, Generator};
use crate::scratch;
use crate::shape::Shape;
use crate::storage::Fresh;
use crate::tensor::{Tensor, by_real};

const OP: &str = "dropout";

impl Tensor {
    /// Zeroes each element with probability `p` and divides the others by `1 − p`, so that the mean stays the same
    /// (inverted dropout: Srivastava et al., 2014, <https://jmlr.org/papers/v15/srivastava14a.html>). If the call
    /// fails, the generator does not advance.
    ///
    /// # Errors
    /// [`Error::Argument`] unless 0 ≤ `p` ≤ 1.
    pub fn dropout(&self, p: f64, generator: &Generator) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::bad_argument("dropout", "p", p, "it must be a probability, 0 to 1"));
        }
        if p == 1.0 {
            return self.mul_scalar(0.0);
        }
        Draw::make(generator, self.len(), DType::F32, |draw| {
            let (p, scale) = (p as f32, 1.0 / (1.0 - p));
            let mask = match self.storage().device() {
                Device::Cpu => Mask::Kept(kept(p, draw, self.len())?),
                Device::Cuda(device) => Mask::Drawn { p, draw, device: device.clone() },
            };
            Dropout { mask, scale }.of(self)
        })
    }
}

/// Elements per block of bits. Bit `b` of byte `i` of a block belongs to element `b · BYTES + i`, so that neighboring
/// elements use the same bit of neighboring bytes.
const BLOCK: usize = 8 * BYTES;
/// Bytes of a block; also the number of halves that are widened together.
const BYTES: usize = half::BLOCK;

/// One bit per element: whether its random number is at least `p`.
fn kept(p: f32, draw: Draw, len: usize) -> Result<Tensor<Int>> {
    let mut out = Fresh::allocate("dropout", Shape::new(&[len.div_ceil(BLOCK) * BYTES])?, DType::U8)?;
    let computed = try_for_each_chunk_mut(out.bits::<u8>(), random::CHUNK / 8, |i, bytes| {
        scratch::with(8 * bytes.len(), |numbers: &mut [f32]| {
            random::fill_uniform(draw.after_chunks_of_f32(i), (&mut *numbers).into());
            keep(p, numbers, bytes);
            Ok(())
        })
    });
    computed.map_err(Error::scratch("dropout"))?;
    Ok(out.share().typed())
}

/// Sets the bits of numbers that are at least `p`, in whole blocks.
fn keep(p: f32, numbers: &[f32], bytes: &mut [u8]) {
    vectorized(inlined!(move || {
        for (bytes, numbers) in zip(bytes.chunks_exact_mut(BYTES), numbers.chunks_exact(BLOCK)) {
            bytes.set_to(0);
            for (bit, numbers) in numbers.chunks_exact(BYTES).enumerate() {
                let pairs = zip(&mut bytes[..], numbers);
                pairs.for_each(|(byte, &number)| *byte |= u8::from(number >= p) << bit);
            }
        }
    }));
}

/// The element times `scale`, or 0 where it is dropped. Linear, so its derivative is itself.
#[derive(Clone)]
struct Dropout {
    mask: Mask,
    scale: f64,
}

/// The elements that are not dropped.
#[derive(Clone)]
enum Mask {
    /// On the CPU, those whose bit is set in the result of [`kept`].
    Kept(Tensor<Int>),
    /// On a device, those whose random number is at least `p`; the device draws the numbers again.
    Drawn { p: f32, draw: Draw, device: CudaDevice },
}

impl Dropout {
    fn of(self, x: &Tensor) -> Result<Tensor> {
        let (input, shape_and_dtype) = (&x.raw().gap_free()?, (*x.shape(), x.dtype()));
        let out = match &self.mask {
            Mask::Kept(kept) => on_cpu(OP, [Some(input), Some(kept.raw())], shape_and_dtype, &mut |inputs, out| {
                let kept = inputs.view::<u8>(1).data.plain();
                by_real!(inputs.dtype(), R => scale_all(kept, self.scale as R, inputs.view(0).data, out.stored()));
                Ok(())
            }),
            Mask::Drawn { p, draw, device } => {
                on_cuda(OP, device, [Some(input)], shape_and_dtype, &mut |inputs, out| {
                    let scale = constant(inputs.dtype(), self.scale.into());
                    cuda::run(device, *draw, *p, scale, inputs.cuda_view(0), out)
                })
            }
        }?;
        Ok(record(OP, self, [Some(x.raw())], out).typed())
    }
}

impl Derivative<1> for Dropout {
    fn backward(&self, _: &Saved<'_, 1>, grad: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(self.clone().of(grad)?)])
    }
}

fn scale_all<R: Real>(kept: &[u8], scale: R, x: Stored<'_, R>, out: StoredMut<'_, R>) {
    out.for_each_chunk(random::CHUNK, &|i, mut out| {
        let start = i * random::CHUNK;
        let (kept, x) = (&kept[start / 8..], x.part(start, out.len()));
        let done = scale_halves(kept, scale, x, out.all());
        let mut buffer = [R::ZERO; PIECE];
        out.part(done, x.len() - done).each_piece(|at, out| {
            let at = done + at;
            scale_kept(&kept[at / 8..], scale, x.part(at, out.len()).widened(&mut buffer), out);
        });
    });
}

/// Scales whole blocks of halves with the machine's instructions for halves, if it has any. Returns the number of
/// elements scaled.
fn scale_halves<R: Real>(kept: &[u8], scale: R, x: Stored<'_, R>, out: StoredMut<'_, R>) -> usize {
    let (Stored::Halves(x, half), StoredMut::Halves(out, _)) = (x, out) else { return 0 };
    let (x, out) = (x.as_chunks::<BLOCK>().0, out.as_chunks_mut::<BLOCK>().0);
    let Some(wide) = Wide::new(half) else { return 0 };
    by_half!(if R::HAS_HALVES, wide, registers => scale_in(registers, kept, scale, x, out));
    x.len() * BLOCK
}

fn scale_in<R: Real>(registers: impl Registers, kept: &[u8], scale: R, x: &[[u16; BLOCK]], out: &mut [[u16; BLOCK]]) {
    registers.vectorized(inlined!(move || {
        for ((out, x), bytes) in zip(zip(&mut out[..], x), kept.as_chunks::<BYTES>().0) {
            let (out, x) = (out.as_chunks_mut::<BYTES>().0, x.as_chunks::<BYTES>().0);
            for (bit, (out, x)) in zip(&mut out[..], x).enumerate() {
                let (x, mut numbers) = (R::widened(registers, x), [R::ZERO; BYTES]);
                for lane in 0..BYTES {
                    numbers[lane] = x[lane] * if bytes[lane] & 1 << bit != 0 { scale } else { R::ZERO };
                }
                *out = R::narrowed(registers, &numbers);
            }
        }
    }));
}

/// `out = x · scale`, or `x · 0` where the bit is not set.
fn scale_kept<R: Real>(kept: &[u8], scale: R, x: &[R], out: &mut [R]) {
    vectorized(inlined!(move || {
        for ((out, x), bytes) in zip(zip(out.chunks_mut(BLOCK), x.chunks(BLOCK)), kept.chunks_exact(BYTES)) {
            for (bit, (out, x)) in zip(out.chunks_mut(BYTES), x.chunks(BYTES)).enumerate() {
                for ((out, &x), &byte) in zip(zip(&mut out[..], x), bytes) {
                    *out = x * if byte & 1 << bit != 0 { scale } else { R::ZERO };
                }
            }
        }
    }));
}
