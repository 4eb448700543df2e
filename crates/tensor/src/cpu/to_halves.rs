//! Conversions of numbers to halves, in registers: rounded once, to the nearest, ties to even.

use super::kernel::loop_over;
use super::map::{Way, contiguous};
use super::math::half::{BLOCK, Half, Registers, Wide, by_half, f64_to_f32_odd, i32_to_f32_odd};
use super::{CpuView, PIECE, Stored, StoredMut, simd};
use crate::element::{Computing, DType, Scalar};
use crate::inlined::zip;

/// `out[i] = x[i]`, rounded.
pub(crate) fn to_halves<A: Computing>(x: CpuView<'_, A>, out: StoredMut<'_, f32>) {
    contiguous(Way::to_write(&out), out, [x], &|dst, &[x]| {
        let (StoredMut::Halves(dst, half), Stored::Plain(x)) = (dst, x) else { unreachable!("numbers become halves") };
        match Wide::new(half) {
            Some(wide) => by_half!(wide, registers => in_registers(registers, x, dst)),
            None => {
                let mut buffer = [0.0; PIECE];
                for (dst, x) in zip(dst.chunks_mut(PIECE), x.chunks(PIECE)) {
                    let buffer = &mut buffer[..dst.len()];
                    simd::vectorized(loop_over(buffer, &[x], |out, [x]| *out = odd(x)));
                    half.narrow(buffer, dst);
                }
            }
        }
    });
}

#[inline(always)]
fn in_registers<A: Computing, R: Registers>(registers: R, x: &[A], dst: &mut [u16]) {
    if A::DTYPE == DType::F64 && registers.narrow_doubles(bytemuck::cast_slice(x), dst) {
        return;
    }
    let ((blocks, last), (of, of_last)) = (dst.as_chunks_mut(), x.as_chunks());
    registers.vectorized_widely(inlined!(|| {
        let blocks = &mut blocks[..of.len()];
        for (i, x) in of.iter().enumerate() {
            let rounded = numbers(x, |x| x.cast());
            blocks[i] = match round_alike(R::HALF, x, &rounded) {
                true => registers.narrow(&rounded),
                false => registers.narrow(&numbers(x, odd)),
            };
        }
    }));
    zip(last, of_last).for_each(|(dst, &x)| [*dst] = R::HALF.bits_of([odd(x)]));
}

/// Applies `f` to a block.
#[inline(always)]
fn numbers<A: Computing>(x: &[A; BLOCK], f: impl Fn(A) -> f32) -> [f32; BLOCK] {
    let mut numbers = [0.0; BLOCK];
    for (lane, number) in numbers.iter_mut().enumerate() {
        *number = f(x[lane]);
    }
    numbers
}

/// Converts a number to an `f32` that rounds to the same half as the number.
#[inline(always)]
fn odd<C: Computing>(x: C) -> f32 {
    match (C::DTYPE, x.to_scalar()) {
        (DType::U8, _) => x.cast(),
        (DType::I32, _) => i32_to_f32_odd(x.cast()),
        (_, Scalar::Int(value)) => f64_to_f32_odd(value as f64),
        (_, Scalar::Float(value)) => f64_to_f32_odd(value),
    }
}

/// Whether numbers that were rounded to `f32` round to the same halves as `x`: this check takes less time than
/// [`odd`].
///
/// `f32` has every `i32` from -2²⁴ to less than 2²⁴. For an `f64`, the first rounding matters only if it gives the
/// midpoint between two halves. For `f16`, looking for midpoints takes as long as [`odd`].
#[inline(always)]
fn round_alike<C: Computing>(half: Half, x: &[C; BLOCK], rounded: &[f32; BLOCK]) -> bool {
    match C::DTYPE {
        DType::U8 => true,
        DType::I32 => {
            let mut outside = 0;
            for &x in x {
                let x: i32 = x.cast();
                outside |= x.wrapping_add(1 << 24) as u32;
            }
            outside < 1 << 25
        }
        DType::F64 => {
            let mut middles = false;
            for x in rounded {
                middles |= x.to_bits() & 0xffff == 0x8000;
            }
            half == Half::BF16 && !middles
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn are_rounded_once<A: Computing>(of: impl Fn(f64) -> A) {
        let numbers: Vec<A> = (0..700).map(|i| of((f64::from(i) - 300.3) * 1.37_f64.powi(i % 64) / 997.0)).collect();
        for (half, len) in
            [Half::F16, Half::BF16].into_iter().flat_map(|half| [0, 1, 31, 32, 700].map(|len| (half, len)))
        {
            let x = CpuView { data: numbers[..len].into(), shape: &[len], strides: &[1] };
            let mut bits = vec![7; len];
            to_halves(x, StoredMut::Halves(&mut bits, half));
            let expected = numbers[..len].iter().map(|&x| half.bits_of([f64_to_f32_odd(x.cast())])[0]);
            assert!(bits.into_iter().eq(expected), "{half:?} of {len} {}", A::DTYPE);
        }
    }

    #[test]
    fn numbers_are_rounded_once() {
        are_rounded_once(|x| x);
        are_rounded_once(|x| x as i32);
        are_rounded_once(|x| x as i64);
        are_rounded_once(|x| x as u8);
    }
}
