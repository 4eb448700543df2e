//! Evenly spaced numbers.

use ::half::{bf16, f16};
use pagelock_cuda::{Argument, Launch};

use super::fresh_on;
use crate::cpu::{self, math::half::Half};
use crate::cuda::{Code, Constants, CudaDevice, CudaOut, count};
use crate::device::Device;
use crate::element::{DType, Element, Scalar};
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::shape::Shape;
use crate::storage::Fresh;
use crate::tensor::{Raw, by_dtype};

/// `start, start + step, …` before `end`. A float is taken for the shortest decimal that rounds to it, as in PyTorch.
pub(super) fn range(device: &Device, [start, end, step]: [Scalar; 3], dtype: DType) -> Result<Raw> {
    let steps = match [start, end, step] {
        [Scalar::Int(start), Scalar::Int(end), Scalar::Int(step)] => {
            integer_steps([start, end, step].mapped(i128::from))
        }
        floats => float_steps(floats.mapped(|value| decimal(value.to_f64(), dtype))),
    };
    let steps = steps.ok_or_else(|| {
        Error::bad_argument(
            "arange",
            "step",
            step,
            format!("it must lead from the start {start} towards the end {end}"),
        )
    })?;
    let (shape, numbers) = (Shape::new(&[steps])?, [start, step]);
    match device {
        Device::Cpu => range_on_cpu(shape, numbers, dtype),
        Device::Cuda(cuda) => {
            let (is_float, [start, step]) = match numbers {
                [Scalar::Int(start), Scalar::Int(step)] => (false, [start as u64, step as u64]),
                floats => (true, floats.mapped(|value| decimal(value.to_f64(), dtype).to_bits())),
            };
            let (kernel, range) = (("range", ("IS_FLOAT", is_float)), [start, step, steps as u64]);
            fresh_on("arange", (device, cuda), (shape, dtype), |out| run("arange", cuda, kernel, &range, out))
        }
    }
}

/// Runs a kernel of `range.cu`, compiled with one constant. `numbers` are the fields of the struct that it takes, as bits.
fn run(
    op: &'static str,
    device: &CudaDevice,
    (kernel, (constant, value)): (&'static str, (&'static str, bool)),
    numbers: &[u64],
    mut out: CudaOut<'_>,
) -> Result<()> {
    static CODE: Code = Code { name: "range", text: include_str!("range.cu") };
    const THREADS: usize = 256;
    let (n, types) = (out.shape().elements(), [out.dtype(); 2]);
    if n == 0 {
        return Ok(());
    }
    count(op, n.div_ceil(THREADS))?;
    let arguments = [out.argument(), Argument::Value(bytemuck::cast_slice(numbers))];
    let (constants, launch) = (Constants::of(&[(constant, value.into())]), Launch::covering(n, THREADS as u32));
    // SAFETY: the kernel takes these; the result has n elements.
    unsafe { CODE.launch_for(device, op, (types, kernel), constants, launch, &arguments) }
}

fn range_on_cpu(shape: Shape, numbers: [Scalar; 2], dtype: DType) -> Result<Raw> {
    let mut out = Fresh::allocate("arange", shape, dtype)?;
    // A loop without branches vectorizes, so each kind of numbers has its own.
    match numbers {
        [Scalar::Int(start), Scalar::Int(step)] => {
            fill((&mut out, dtype), inlined!(move |i| Scalar::Int(start.wrapping_add(step.wrapping_mul(i as i64)))))
        }
        floats => {
            let [first, distance] = floats.mapped(|value| decimal(value.to_f64(), dtype));
            fill((&mut out, dtype), inlined!(move |i| Scalar::Float(first + i as f64 * distance)));
        }
    }
    Ok(out.share())
}

/// Element `i` becomes `number(i)`.
fn fill((out, dtype): (&mut Fresh, DType), number: impl Fn(usize) -> Scalar + Sync + Copy) {
    match Half::of(dtype) {
        Some(half) => cpu::fill_halves_by_number(out.bits(), half, inlined!(move |i| number(i).to_f64())),
        None => by_dtype!(dtype, T => cpu::fill_by_number(
            out.elements::<T>(),
            inlined!(move |i| T::from_scalar(number(i))),
        )),
    }
}

/// `steps` evenly spaced numbers, or `base` to the power of each. The second half counts from the end, as in PyTorch.
pub(super) fn spaced(
    op: &'static str,
    (device, dtype): (&Device, DType),
    ([start, end], steps): ([f64; 2], usize),
    base: Option<f64>,
) -> Result<Raw> {
    let step = (end - start) / steps.saturating_sub(1).max(1) as f64;
    let shape = Shape::new(&[steps])?;
    if let Device::Cuda(cuda) = device {
        let [first, last, step, base_bits] = [start, end, step, base.unwrap_or(0.0)].mapped(f64::to_bits);
        let (kernel, spaced) = (("spaced", ("IS_POWER", base.is_some())), [first, last, step, base_bits, steps as u64]);
        return fresh_on(op, (device, cuda), (shape, dtype), |out| run(op, cuda, kernel, &spaced, out));
    }
    let mut out = Fresh::allocate(op, shape, dtype)?;
    match base {
        Some(base) => fill(
            (&mut out, dtype),
            inlined!(move |i| Scalar::Float(base.powf(spaced_number([start, end, step], steps, i)))),
        ),
        None => fill((&mut out, dtype), inlined!(move |i| Scalar::Float(spaced_number([start, end, step], steps, i)))),
    }
    Ok(out.share())
}

/// Number `i` of the evenly spaced numbers in [`spaced`].
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

/// [`float_steps`] of integers, exactly: an `f64` cannot represent every `i64`.
fn integer_steps([start, end, step]: [i128; 3]) -> Option<usize> {
    let (way, stride) = if step < 0 { (start - end, -step) } else { (end - start, step) };
    (way >= 0 && stride != 0).then(|| usize::try_from((way + stride - 1) / stride).ok()).flatten()
}

/// The shortest decimal that rounds to the same number of type `dtype` as `value`: 0.1 for the `f32` nearest to 0.1,
/// which is slightly larger.
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
