//! Numbers one step apart.

use ::half::{bf16, f16};

use crate::cpu::{self, math::half::Half};
use crate::element::{DType, Element, Scalar};
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::shape::Shape;
use crate::storage::Fresh;
use crate::tensor::{Raw, by_dtype, by_real};

/// `start, start + step, …` before `end`. A float counts as the shortest decimal that it is nearest to, as in PyTorch.
pub(super) fn range([start, end, step]: [Scalar; 3], dtype: DType) -> Result<Raw> {
    let count = match [start, end, step] {
        [Scalar::Int(start), Scalar::Int(end), Scalar::Int(step)] => {
            integer_steps([start, end, step].mapped(i128::from))
        }
        floats => float_steps(floats.mapped(|value| decimal(value.to_f64(), dtype))),
    };
    let count = count.ok_or_else(|| {
        Error::bad_argument(
            "arange",
            "step",
            step,
            format!("it must lead from the start {start} towards the end {end}"),
        )
    })?;
    let mut out = Fresh::allocate("arange", Shape::new(&[count])?, dtype)?;
    // A loop without a choice in it is one of vectors.
    match [start, step] {
        [Scalar::Int(start), Scalar::Int(step)] => fill(
            (&mut out, dtype),
            #[inline(always)]
            move |i| Scalar::Int(start.wrapping_add(step.wrapping_mul(i as i64))),
        ),
        floats => {
            let [first, distance] = floats.mapped(|value| decimal(value.to_f64(), dtype));
            fill(
                (&mut out, dtype),
                #[inline(always)]
                move |i| Scalar::Float(first + i as f64 * distance),
            );
        }
    }
    Ok(out.share())
}

/// Element `i` becomes `number(i)`.
fn fill((out, dtype): (&mut Fresh, DType), number: impl Fn(usize) -> Scalar + Sync + Copy) {
    match Half::of(dtype) {
        Some(half) => cpu::fill_halves_by_number(
            out.bits(),
            half,
            #[inline(always)]
            move |i| number(i).to_f64(),
        ),
        None => by_dtype!(dtype, T => cpu::fill_by_number(
            out.elements::<T>(),
            #[inline(always)]
            move |i| T::from_scalar(number(i)),
        )),
    }
}

/// What is made of `steps` numbers at equal distances; the second half counts from the end, as PyTorch's.
pub(super) fn spaced(
    op: &'static str,
    dtype: DType,
    ([start, end], steps): ([f64; 2], usize),
    made: impl Fn(f64) -> f64 + Sync + Copy,
) -> Result<Raw> {
    let step = (end - start) / steps.saturating_sub(1).max(1) as f64;
    let mut out = Fresh::allocate(op, Shape::new(&[steps])?, dtype)?;
    match Half::of(dtype) {
        Some(half) => cpu::fill_halves_by_number(
            out.bits(),
            half,
            #[inline(always)]
            move |i| made(spaced_number([start, end, step], steps, i)),
        ),
        None => by_real!(dtype, R => cpu::fill_by_number(
            out.elements::<R>(),
            #[inline(always)]
            move |i| R::from_f64(made(spaced_number([start, end, step], steps, i))),
        )),
    }
    Ok(out.share())
}

/// Number `i` of those that [`spaced`] is made of.
#[inline(always)]
fn spaced_number([start, end, step]: [f64; 3], steps: usize, i: usize) -> f64 {
    let from_start = i < steps / 2 || steps == 1;
    let (first, step, i) = if from_start { (start, step, i) } else { (end, -step, steps - 1 - i) };
    first + step * i as f64
}

/// How many of `start, start + step, …` come before `end`; `None` if the step leads elsewhere.
fn float_steps([start, end, step]: [f64; 3]) -> Option<usize> {
    let count = ((end - start) / step).ceil();
    (count >= 0.0 && count.is_finite()).then_some(count as usize)
}

/// The same, exactly: an `f64` does not hold every `i64`.
fn integer_steps([start, end, step]: [i128; 3]) -> Option<usize> {
    let (way, stride) = if step < 0 { (start - end, -step) } else { (end - start, step) };
    (way >= 0 && stride != 0).then(|| usize::try_from((way + stride - 1) / stride).ok()).flatten()
}

/// The number that the shortest decimals stand for whose nearest value of `dtype` is that of `value`: 0.1 for the `f32`
/// nearest to it, which is larger.
fn decimal(value: f64, dtype: DType) -> f64 {
    let rounded = |value: f64| match dtype {
        DType::F16 => f64::from(f16::from_f64(value)),
        DType::BF16 => f64::from(bf16::from_f64(value)),
        DType::F32 => f64::from(value as f32),
        _ => value,
    };
    let wanted = rounded(value);
    let shortest = (0..17).find_map(|digits| {
        let read = format!("{value:.digits$e}").parse::<f64>().ok()?;
        (rounded(read) == wanted).then_some(read)
    });
    shortest.unwrap_or(value)
}
