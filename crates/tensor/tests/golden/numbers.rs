//! The numbers of golden files, and how ours are compared with them.

use half::{bf16, f16};
use pagelock_operations::{Bound, Operation};
use pagelock_tensor::{AnyTensor, DType, Device, Result};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::common::numbers_of;

/// `c` of `golden.rs`: how many halves of a unit in the last place a special sample may be off, or how many times
/// PyTorch's error.
///
/// On a GPU, `exp`, `log`, `sin` and so on of `float32` are CUDA's. Their documented maximum error (CUDA C++
/// Programming Guide, "Mathematical Functions", single precision) counts whole units from the correctly rounded
/// result, which is itself off by up to half a unit. Half types are computed in `float32` and rounded, so they keep
/// the bound of the CPU, and so does `float64`.
pub(super) fn allowed(operation: &Operation, dtype: DType, device: &Device) -> f64 {
    let ours = match operation.name {
        _ if operation.summed_dim.is_some() => 4.0,
        // Its derivative is 0 near -1.28, where the rounding error of the sigmoid is multiplied, in PyTorch too.
        "silu" => 4.0,
        _ => 2.0,
    };
    let cudas = match operation.name {
        _ if device.is_cpu() || dtype != DType::F32 => return ours,
        "log" | "log1p" | "log2" | "expm1" => 1.0,
        "exp" | "tanh" | "sin" | "cos" | "asin" | "acos" | "atan" | "exp2" | "log10" | "erf" => 2.0,
        "sinh" | "cosh" | "asinh" | "atanh" | "atan2" => 3.0,
        "pow" | "pow_tensor" | "tan" | "acosh" | "erfc" => 4.0,
        // An exponential inside a logarithm, and erfc times a number.
        "softplus" | "log_sigmoid" => 3.0,
        // An exponential times two numbers, each of which adds half a unit.
        "elu" => 3.0,
        "gelu" => 5.0,
        // An exponential or a quotient inside a logarithm; `logcumsumexp` has several.
        "logaddexp" | "xlogy" | "logit" => 3.0,
        "logcumsumexp" => 6.0,
        // 1 / (1 + exp(−x)): the sum and the quotient add half a unit each.
        "sigmoid" | "silu" => 3.0,
        // A sum of exponentials has the relative error of its terms, and that of the summation.
        "softmax" | "log_softmax" | "cross_entropy" => return ours + 2.0 * 2.0,
        _ => return ours,
    };
    1.0 + 2.0 * cudas
}

/// Bits of the fraction, and the exponent of the smallest normal number.
fn format(dtype: DType) -> [i32; 2] {
    match dtype {
        DType::F64 => [52, -1022],
        DType::F32 => [23, -126],
        DType::F16 => [10, -14],
        DType::BF16 => [7, -126],
        other => panic!("{other} is no floating-point type"),
    }
}

/// The distance between neighboring numbers of this size.
fn ulp(dtype: DType, size: f64) -> f64 {
    let [fraction, least] = format(dtype);
    (size.abs().log2().floor().max(least.into()) - f64::from(fraction)).exp2()
}

/// The nearest number of this precision.
fn rounded_to(dtype: DType, number: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(number as f32),
        DType::F16 => f16::from_f64(number).into(),
        DType::BF16 => bf16::from_f64(number).into(),
        _ => number,
    }
}

/// Numbers of any element type as `f64`, which is exact for all but large integers.
pub(super) struct Numbers {
    pub(super) dtype: &'static str,
    pub(super) dims: Vec<usize>,
    pub(super) values: Vec<f64>,
}

impl Numbers {
    pub(super) fn of(tensor: &AnyTensor) -> Result<Self> {
        let values = numbers_of(tensor)?;
        Ok(Self { dtype: tensor.dtype().name(), dims: tensor.dims().to_vec(), values })
    }

    fn check_shape(&self, what: &str, stored: &TensorView<'_>) -> Result<(), String> {
        let (dtype, shape) = (dtype_name(stored.dtype()), stored.shape());
        match (self.dtype, &self.dims[..]) == (dtype, shape) {
            true => Ok(()),
            false => Err(format!("{what} is {} {:?}, PyTorch's {dtype} {shape:?}", self.dtype, self.dims)),
        }
    }

    pub(super) fn compare(&self, what: &str, stored: &TensorView<'_>, bound: f64) -> Result<(), String> {
        self.check_shape(what, stored)?;
        for (position, (&ours, theirs)) in self.values.iter().zip(decode(stored)).enumerate() {
            let equal = ours == theirs || ours.is_nan() && theirs.is_nan();
            let error = (ours - theirs).abs() / theirs.abs().max(1.0);
            if !equal && (error > bound || error.is_nan()) {
                return Err(format!(
                    "{what}[{position}] is {ours:e}, PyTorch's {theirs:e}: error {error:.1e}, bound {bound:.0e}"
                ));
            }
        }
        Ok(())
    }
}

impl Numbers {
    /// Compares with PyTorch's numbers, and with those of the same inputs in `f64`. The error may be `units` times
    /// PyTorch's, or as many halves of a unit in the last place if that is more. For numbers that are computed
    /// `summed_dim`, in a row (1) or a column (0), the largest error and the largest number of the row or column count.
    pub(super) fn compare_in_units(
        &self,
        dtype: DType,
        what: &str,
        stored: &TensorView<'_>,
        exact: &TensorView<'_>,
        (summed_dim, units): (Option<u64>, f64),
    ) -> Result<(), String> {
        self.check_shape(what, stored)?;
        let group = |i: usize| match (summed_dim, &self.dims[..]) {
            (Some(0), [_, columns]) => i % columns,
            (Some(1), [_, columns]) => i / columns,
            _ => i,
        };
        let (theirs, exact) = (decode(stored), decode(exact));
        let mut allowed = vec![units / 2.0 * ulp(dtype, 0.0); self.values.len()];
        for (i, (theirs, exact)) in theirs.iter().zip(&exact).enumerate().filter(|(_, (_, exact))| exact.is_finite()) {
            let error = (theirs - exact).abs();
            let of_group = &mut allowed[group(i)];
            *of_group =
                of_group.max(units / 2.0 * ulp(dtype, *exact)).max(if error.is_finite() { units * error } else { 0.0 });
        }
        for (i, (&ours, (&theirs, &exact))) in self.values.iter().zip(theirs.iter().zip(&exact)).enumerate() {
            let allowed = allowed[group(i)];
            if !is_as_good(dtype, ours, theirs, exact, (what == "value" && summed_dim.is_none(), allowed)) {
                let error = units * (ours - exact).abs() / allowed;
                return Err(format!(
                    "{what}[{i}] is {ours:e}, PyTorch's {theirs:e}, in f64 {exact:e}: error {error:.1} units, of which {units} are allowed"
                ));
            }
        }
        Ok(())
    }
}

fn is_as_good(dtype: DType, ours: f64, theirs: f64, exact: f64, (with_sign, allowed): (bool, f64)) -> bool {
    let rounded = rounded_to(dtype, exact);
    let same = |other: f64| ours.to_bits() == other.to_bits() || ours.is_nan() && other.is_nan();
    if same(theirs) || same(rounded) {
        return true;
    }
    if dtype == DType::F64 {
        // The expected numbers are PyTorch's own, so neither their error is known, nor what they would be without
        // overflow.
        let error = (ours - theirs).abs() / theirs.abs().max(1.0);
        return error <= Bound::Rounded.relative(dtype)
            || ours.is_finite() && (theirs.is_infinite() || theirs.is_nan() && !with_sign);
    }
    if !ours.is_finite() || !rounded.is_finite() || (with_sign && ours == 0.0 && exact == 0.0) {
        return false;
    }
    !theirs.is_finite() || (ours - exact).abs() <= allowed
}

fn decode(stored: &TensorView<'_>) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks().0.iter().map(|&chunk| number(chunk)).collect()
    }
    let bytes = stored.data();
    match stored.dtype() {
        Dtype::F64 => each(bytes, f64::from_le_bytes),
        Dtype::F32 => each(bytes, |b| f32::from_le_bytes(b).into()),
        Dtype::F16 => each(bytes, |b| f16::from_le_bytes(b).into()),
        Dtype::BF16 => each(bytes, |b| bf16::from_le_bytes(b).into()),
        Dtype::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        Dtype::I32 => each(bytes, |b| i32::from_le_bytes(b).into()),
        Dtype::U8 | Dtype::BOOL => each(bytes, |[b]: [u8; 1]| b.into()),
        other => panic!("no golden file has {other:?}"),
    }
}

fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "float64",
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        Dtype::BF16 => "bfloat16",
        Dtype::I64 => "int64",
        Dtype::I32 => "int32",
        Dtype::U8 => "uint8",
        Dtype::BOOL => "bool",
        other => panic!("no golden file has {other:?}"),
    }
}
