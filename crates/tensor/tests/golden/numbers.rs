//! Numbers of golden files, and how ours are compared with them.

use half::{bf16, f16};
use pagelock_tensor::{Element, Float, Result, Tensor};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::{File, said};

/// The floating-point types, each with the relative error allowed against PyTorch.
pub(super) trait Golden: Float {
    const BOUND: f64;
}

impl Golden for f32 {
    const BOUND: f64 = 1e-5;
}
impl Golden for f64 {
    const BOUND: f64 = 1e-10;
}
impl Golden for f16 {
    const BOUND: f64 = 4e-3;
}
impl Golden for bf16 {
    const BOUND: f64 = 3e-2;
}

/// Numbers of any element type as `f64`, which holds all of them exactly.
pub(super) struct Numbers {
    pub(super) dtype: &'static str,
    pub(super) dims: Vec<usize>,
    pub(super) values: Vec<f64>,
}

impl Numbers {
    pub(super) fn of<U: Element>(tensor: &Tensor<U>) -> Result<Self> {
        let values = tensor.to_vec()?.into_iter().map(Element::cast).collect();
        Ok(Self { dtype: tensor.dtype().name(), dims: tensor.dims().to_vec(), values })
    }

    pub(super) fn compare(&self, what: &str, stored: &TensorView<'_>, bound: f64) -> Result<(), String> {
        if (self.dtype, &self.dims[..]) != (dtype_name(stored.dtype()), stored.shape()) {
            let expected = dtype_name(stored.dtype());
            return Err(format!("{what} is {} {:?}, PyTorch's {expected} {:?}", self.dtype, self.dims, stored.shape()));
        }
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

pub(super) fn load<T: Golden>(file: &File<'_>, stored: &TensorView<'_>) -> Result<Tensor<T>, String> {
    let values = decode(stored).into_iter().map(Element::cast).collect();
    Tensor::from_vec(values, stored.shape()).and_then(|tensor| tensor.to(&file.device)).map_err(said)
}

pub(super) fn decode(stored: &TensorView<'_>) -> Vec<f64> {
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
