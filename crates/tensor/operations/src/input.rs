//! [`Input`]: shape, numbers and layout of an input. `golden/make.py` and `benches/torch_ops.py` make the same
//! inputs.

use pagelock_tensor::{AnyTensor, DType, Device, Kind, Result, Tensor};
use serde_json::{Value, json};

/// The numbers of an input. Integers are ten times as large, and truncated. A `bool` is true if the number is above
/// 1.
#[derive(Debug, Clone, PartialEq)]
pub enum Fill {
    /// Between 0.2 and 1.8 (see `spread`).
    Positive,
    /// The same numbers with both signs.
    Signed,
    Ones,
    /// Whole numbers below this one, always `int64`.
    Index(i64),
    Values(Vec<f64>),
}

/// A tensor and a view of it. The operation gets the view; gradients are those of the tensor.
#[derive(Debug, Clone)]
pub struct Input {
    pub shape: Vec<usize>,
    pub fill: Fill,
    /// The steps of the view: PyTorch's methods with their arguments, such as `["narrow", dim, start, len]`, and
    /// `["slice", dim, start, end, step]`.
    pub view: Vec<Value>,
}

pub(super) fn signed(shape: impl Into<Vec<usize>>) -> Input {
    Input { shape: shape.into(), fill: Fill::Signed, view: Vec::new() }
}

/// [`signed`] with one argument type, so that it can be passed as a function pointer.
pub(super) fn any(shape: &[usize]) -> Input {
    signed(shape)
}

pub(super) fn positive(shape: impl Into<Vec<usize>>) -> Input {
    Input { fill: Fill::Positive, ..signed(shape) }
}

/// [`positive`] with one argument type, so that it can be passed as a function pointer.
pub(super) fn above(shape: &[usize]) -> Input {
    positive(shape)
}

pub(super) fn ones(shape: impl Into<Vec<usize>>) -> Input {
    Input { fill: Fill::Ones, ..signed(shape) }
}

pub(super) fn index(high: i64, shape: impl Into<Vec<usize>>) -> Input {
    Input { fill: Fill::Index(high), ..signed(shape) }
}

pub(super) fn values(shape: impl Into<Vec<usize>>, values: impl Into<Vec<f64>>) -> Input {
    Input { fill: Fill::Values(values.into()), ..signed(shape) }
}

impl Input {
    pub fn view(mut self, step: Value) -> Input {
        self.view.push(step);
        self
    }

    pub fn json(&self) -> Value {
        let fill = match &self.fill {
            Fill::Positive => json!("positive"),
            Fill::Signed => json!("signed"),
            Fill::Ones => json!("ones"),
            Fill::Index(high) => json!({ "below": high }),
            // JSON has no NaN.
            Fill::Values(values) => json!({ "values": values.iter().map(|x| format!("{x:e}")).collect::<Vec<_>>() }),
        };
        json!({ "shape": self.shape, "fill": fill, "view": self.view })
    }

    /// The tensor without the view; `seed` is its position among the inputs.
    pub fn base(&self, dtype: DType, device: &Device, seed: usize) -> Result<AnyTensor> {
        let n: usize = self.shape.iter().product();
        let number = |i: usize| match &self.fill {
            Fill::Positive => spread(i, seed),
            Fill::Signed if (i * 7 + seed) % 5 < 2 => -spread(i, seed),
            Fill::Signed => spread(i, seed),
            Fill::Ones => 1.0,
            Fill::Index(high) => (i as i64 * 5 + i as i64 / high + 3 * seed as i64).rem_euclid(*high) as f64,
            Fill::Values(values) => values[i],
        };
        let plain = matches!(self.fill, Fill::Index(_) | Fill::Ones);
        of(dtype, (0..n).map(number).collect(), plain, &self.shape, device)
    }

    /// A new tensor with the view applied.
    pub fn make(&self, dtype: DType, device: &Device, seed: usize) -> Result<AnyTensor> {
        self.view_of(self.base(dtype, device, seed)?)
    }

    /// Applies the view to `base`.
    pub fn view_of(&self, base: AnyTensor) -> Result<AnyTensor> {
        match base.dtype() {
            DType::Bool => Ok(view_of(base.bool()?, &self.view)?.into()),
            dtype if dtype.is_float() => Ok(view_of(base.float()?, &self.view)?.into()),
            _ => Ok(view_of(base.int()?, &self.view)?.into()),
        }
    }
}

/// Numbers between 0.2 and 1.8 in the shape and precision of `x`.
pub fn numbers_like(x: &Tensor, seed: usize) -> Result<Tensor> {
    positive(x.dims()).base(x.dtype(), &x.device(), seed)?.float()
}

/// Numbers between 0.2 and 1.8, far from kinks. The first thousand of them are about a thousandth apart.
fn spread(i: usize, seed: usize) -> f64 {
    let fraction = (0.618_033_988_749_895 * (i + 1) as f64 + 0.37 * seed as f64).fract();
    // The 20 fractional bits fit in `float32`, so each precision rounds a number only once, whichever type it is
    // converted from.
    ((0.2 + 1.6 * fraction) * 1_048_576.0).floor() / 1_048_576.0
}

fn of(dtype: DType, numbers: Vec<f64>, plain: bool, shape: &[usize], device: &Device) -> Result<AnyTensor> {
    let numbers = Tensor::from_vec(numbers, shape)?;
    let whole = |numbers: &Tensor| if plain { numbers.to_int() } else { numbers.mul_scalar(10.0)?.to_int() };
    Ok(match dtype {
        DType::Bool => numbers.gt(&numbers.ones_like()?)?.to(device)?.into(),
        DType::U8 => whole(&numbers)?.abs()?.to_dtype(dtype)?.to(device)?.into(),
        _ if dtype.is_float() => numbers.to_dtype(dtype)?.to(device)?.into(),
        _ => whole(&numbers)?.to_dtype(dtype)?.to(device)?.into(),
    })
}

fn view_of<K: Kind>(base: Tensor<K>, steps: &[Value]) -> Result<Tensor<K>> {
    steps.iter().try_fold(base, |x, step| {
        let at = |i: usize| step[i].as_i64().unwrap_or_else(|| panic!("no number at {i} of {step}")) as isize;
        let size = |i: usize| at(i) as usize;
        match step[0].as_str() {
            Some("transpose") => x.transpose(at(1), at(2)),
            Some("slice") => x.slice(at(1), at(2)..at(3), size(4)),
            Some("narrow") => x.narrow(at(1), size(2), size(3)),
            Some("select") => x.select(at(1), at(2)),
            Some("expand") => {
                let shape: Vec<_> = step[1].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
                x.expand(&shape[..])
            }
            _ => panic!("no view {step}"),
        }
    })
}
