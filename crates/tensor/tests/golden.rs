//! Every operation of the table, compared with PyTorch: values, gradients and second derivatives, as `golden/make.py`
//! wrote them.
//!
//! A sample passes if dtype and shape are equal and every element differs from PyTorch's by at most
//! `bound · max(1, |PyTorch's|)`. `bound` is 1e-10 in f64, 1e-5 in f32, 4e-3 in f16 and 3e-2 in bf16 (about four units
//! in the last place for the half types), and 0 for other types. Infinities and NaN must be the same. A gradient is
//! that of the input's *base*, so a sample with a view checks the derivative of the view too.
//!
//! For the samples of `special` (NaN, infinities, zeros of both signs, subnormal, largest and smallest numbers, and
//! magnitudes between, in every float type), the file also has the results in f64, and the bound is closer, in units
//! of PyTorch's own error: `|ours − f64's| ≤ c · max(|PyTorch's − f64's|, half a unit in the last place)`.
//!
//! - `c` is 2 on the CPU. So our error may be one unit in the last place where PyTorch rounds correctly, and twice
//!   PyTorch's error elsewhere.
//! - `c` is 4 where numbers of a row or column are summed or normalized, and the largest error of the row or column
//!   counts: a sum's error depends on the order of its terms, in which we differ from PyTorch.
//! - On a GPU, functions that CUDA computes may have the errors that CUDA documents. `numbers.rs` lists them.
//!
//! NaN, infinities and signs of zeros must be PyTorch's or those of the rounded f64 result. Where PyTorch overflows
//! and f64 does not, any finite number passes. In f64, where PyTorch's error is not known, the bound is that of the
//! other samples.
//!
//! Everything runs on the CPU, and on a GPU if there is one. A new operation needs no line here, but an entry in the
//! crate `pagelock-operations`.

mod common;
#[path = "golden/numbers.rs"]
mod numbers;

use std::path::{Path, PathBuf};

use pagelock_operations::{Bound, Fill, Inputs, Operation, Sample, numbers_like, table};
use pagelock_tensor::autograd::{self, Backward};
use pagelock_tensor::{AnyTensor, DType, Device, Error, Result, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use self::numbers::{Numbers, allowed};

/// Seeds of `numbers_like`, as in `make.py`.
const UPSTREAM: usize = 10;
const DIRECTION: usize = 20;

/// The cases that PyTorch could not compute.
const LACKS: [&str; 4] =
    ["meshgrid/0/float64/", "meshgrid/1/float64/", "scatter_add/2/float32/", "scatter_add/2/float64/"];

#[test]
fn values() {
    check_file("values", &Device::Cpu);
}

#[test]
fn special() {
    check_file("special", &Device::Cpu);
}

mod on_a_gpu {
    #[test]
    fn values() {
        if let Some(gpu) = super::common::gpu() {
            super::check_file("values", &gpu);
        }
    }

    #[test]
    fn special() {
        if let Some(gpu) = super::common::gpu() {
            super::check_file("special", &gpu);
        }
    }
}

#[test]
fn the_files_are_made_from_the_table() {
    for name in ["values", "special"] {
        let bytes = read(name);
        let (file, table) = (File::parse(name, &bytes), table());
        for operation in &table {
            let hash = operation.json()["hash"].as_str().map(str::to_owned);
            assert_eq!(file.metadata.get(operation.name), hash.as_ref(), "{}: run golden/make.py", operation.name);
        }
        assert_eq!(file.metadata.len(), table.len() + 1, "{name} has operations that are gone: run golden/make.py");
    }
}

#[test]
fn every_operation_with_floats_has_special_values_in_every_precision() {
    // Leaves out operations without inputs, and those of which only certain numbers can be compared.
    let made_of_nothing = |operation: &Operation| operation.samples.iter().all(|sample| sample.inputs.is_empty());
    for operation in table().iter().filter(|operation| operation.run.float.is_some() && !made_of_nothing(operation)) {
        if ["dropout", "to_float", "zeros_like", "empty_like", "ones_like", "full_like", "histc"]
            .contains(&operation.name)
        {
            continue;
        }
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            assert!(!(operation.special)(dtype).is_empty(), "{} has no special values in {dtype}", operation.name);
        }
    }
}

#[test]
fn a_number_that_is_off_by_more_than_the_bound_is_reported() {
    let bytes = [1.0f32, 200.0].map(f32::to_le_bytes).concat();
    let stored = TensorView::new(Dtype::F32, vec![2], &bytes).unwrap();
    let numbers = |values: [f64; 2]| Numbers { dtype: "float32", dims: vec![2], values: values.to_vec() };

    assert!(numbers([1.0, 200.001]).compare("value", &stored, 1e-5).is_ok());
    let error = numbers([1.0, 200.003]).compare("value", &stored, 1e-5).unwrap_err();
    assert_eq!(error, "value[1] is 2.00003e2, PyTorch's 2e2: error 1.5e-5, bound 1e-5");
    assert!(numbers([f64::NAN, 200.0]).compare("value", &stored, 1e-5).is_err());
}

#[test]
fn an_error_of_more_than_twice_pytorchs_is_reported() {
    let [stored, exact] = [[1.0f32, -0.0, f32::INFINITY].map(f32::to_le_bytes).concat(), {
        [1.0 + 2f64.powi(-30), -0.0, 1e39].map(f64::to_le_bytes).concat()
    }];
    let stored = TensorView::new(Dtype::F32, vec![3], &stored).unwrap();
    let exact = TensorView::new(Dtype::F64, vec![3], &exact).unwrap();
    let check = |values: [f64; 3]| {
        let numbers = Numbers { dtype: "float32", dims: vec![3], values: values.to_vec() };
        numbers.compare_in_units(DType::F32, "value", &stored, &exact, (None, 2.0))
    };
    let ulp = 2f64.powi(-23);

    assert!(check([1.0 + ulp, -0.0, f64::INFINITY]).is_ok());
    let error = check([1.0 + 2.0 * ulp, -0.0, f64::INFINITY]).unwrap_err();
    assert!(error.ends_with("error 4.0 units, of which 2 are allowed"), "{error}");
    assert!(check([1.0, 0.0, f64::INFINITY]).is_err());
    assert!(check([1.0, -0.0, f64::from(f32::MAX)]).is_err());
    assert!(check([f64::NAN, -0.0, f64::INFINITY]).is_err());
}

// ---- running a sample -------------------------------------------------------------------------------------------

/// One sample in one precision, and the key of its results in the file.
struct Case<'a> {
    file: &'a File<'a>,
    operation: &'a Operation,
    sample: &'a Sample,
    dtype: DType,
    device: &'a Device,
    key: String,
}

fn check_file(name: &str, device: &Device) {
    let bytes = read(name);
    let file = File::parse(name, &bytes);
    let lacks: Vec<String> = serde_json::from_str(&file.metadata["lacks"]).unwrap();
    let more: Vec<_> = lacks.iter().filter(|key| !LACKS.contains(&key.as_str())).collect();
    assert!(more.is_empty(), "{name} lacks {more:?}, which would not be compared");
    let (mut cases, mut failures) = (0, Vec::new());
    for operation in &table() {
        for (number, sample, dtype) in samples(operation, name) {
            let key = format!("{}/{number}/{dtype}/", operation.name);
            if lacks.contains(&key) {
                continue;
            }
            cases += 1;
            if let Err(why) =
                (Case { file: &file, operation, sample: &sample, dtype, device, key: key.clone() }).check()
            {
                failures.push(format!("{key} {}\n    {why}", sample.title().chars().take(200).collect::<String>()));
            }
        }
    }
    assert!(cases > 500, "{name} has only {cases} cases");
    let shown = failures.iter().take(100).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {cases} cases of {name} differ from PyTorch:\n{shown}", failures.len());
}

/// The samples of a file, each with its number among the operation's samples.
fn samples(operation: &Operation, file: &str) -> Vec<(usize, Sample, DType)> {
    if file == "values" {
        let numbered = operation.samples.iter().enumerate();
        return numbered
            .flat_map(|(i, sample)| {
                operation.dtypes_of(sample).into_iter().map(move |dtype| (i, sample.clone(), dtype))
            })
            .collect();
    }
    let floats = operation.dtypes().into_iter().filter(|dtype| dtype.is_float());
    let all = floats.flat_map(|dtype| (operation.special)(dtype).into_iter().map(move |sample| (sample, dtype)));
    all.enumerate().map(|(i, (sample, dtype))| (i, sample, dtype)).collect()
}

impl Case<'_> {
    fn check(&self) -> Result<(), String> {
        let wanted = self.operation.has_gradients(self.sample, self.dtype);
        let (inputs, bases) = self.inputs(wanted).map_err(said)?;
        let output = self.operation.call(&inputs, &self.sample.args).map_err(said)?;
        self.compare("value", "output", &output)?;
        match output.float() {
            Ok(output) if wanted && output.requires_grad() => self.gradients(&bases, &output),
            _ => Ok(()),
        }
    }

    /// The inputs, and the bases of those that have gradients, by position.
    fn inputs(&self, wanted: bool) -> Result<(Inputs, Vec<(usize, Tensor)>)> {
        let mut inputs =
            Inputs { dtype: self.dtype, device: self.device.clone(), values: Vec::new(), indices: Vec::new() };
        let mut bases = Vec::new();
        for (i, input) in self.sample.inputs.iter().enumerate() {
            if matches!(input.fill, Fill::Index(_)) {
                inputs.indices.push(input.make(DType::I64, self.device, i)?.int()?);
                continue;
            }
            let mut base = input.base(self.dtype, self.device, i)?;
            if wanted {
                bases.push((i, base.float()?.set_requires_grad(true)));
                base = AnyTensor::from(&bases[bases.len() - 1].1);
            }
            inputs.values.push(input.view_of(base)?);
        }
        Ok((inputs, bases))
    }

    fn gradients(&self, bases: &[(usize, Tensor)], output: &Tensor) -> Result<(), String> {
        let targets: Vec<&Tensor> = bases.iter().map(|(_, base)| base).collect();
        let is_special = self.file.has(&format!("{}exact.output", self.key));
        let upstream = if is_special { pattern_like(output) } else { numbers_like(output, UPSTREAM) }.map_err(said)?;
        let start = |create_graph| Backward { gradient: Some(upstream.clone()), retain_graph: true, create_graph };
        let found = autograd::grad(&[output], &targets, start(false)).map_err(said)?;
        self.compare_all("gradient", "grad", bases, &found)?;
        if !self.file.has(&format!("{}second.{}", self.key, bases[0].0)) {
            return Ok(());
        }
        let squared = (output * output).map_err(said)?;
        let first = autograd::grad(&[&squared], &targets, start(true)).map_err(said)?;
        let second = directional(&first, &targets).map_err(said)?;
        self.compare_all("second derivative", "second", bases, &second)
    }

    fn compare_all(
        &self,
        what: &str,
        key: &str,
        bases: &[(usize, Tensor)],
        found: &[Option<Tensor>],
    ) -> Result<(), String> {
        for ((position, base), found) in bases.iter().zip(found) {
            let found = found.clone().map_or_else(|| base.zeros_like(), Ok).map_err(said)?;
            self.compare(&format!("{what} of input {position}"), &format!("{key}.{position}"), &found.into())?;
        }
        Ok(())
    }

    /// Compares with PyTorch's result, and with the result in f64 if the file has one.
    fn compare(&self, what: &str, key: &str, found: &AnyTensor) -> Result<(), String> {
        let numbers = Numbers::of(found).map_err(said)?;
        let expected = self.file.tensor(&format!("{}{key}", self.key))?;
        let exact = format!("{}exact.{key}", self.key);
        // A conversion to another precision only rounds, so the usual bound is enough.
        if !self.file.has(&exact) || found.dtype() != self.dtype {
            return numbers.compare(what, &expected, Bound::Rounded.relative(found.dtype()));
        }
        let units = allowed(self.operation, self.dtype, self.device);
        numbers.compare_in_units(
            self.dtype,
            what,
            &expected,
            &self.file.tensor(&exact)?,
            (self.operation.summed_dim, units),
        )
    }
}

/// Numbers of few bits, so that products with them stay exact.
fn pattern_like(x: &Tensor) -> Result<Tensor> {
    let pattern = [1.0, -0.5, 3.0, 2.0, -1.5, 0.25, -4.0];
    let numbers = pattern.into_iter().cycle().take(x.len()).collect();
    Tensor::from_vec(numbers, x.dims())?.to_dtype(x.dtype())?.to(&x.device())
}

/// The gradients of `Σ <first_i, v_i>`.
fn directional(first: &[Option<Tensor>], targets: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
    let mut total = targets[0].zeros_like()?.sum(..)?;
    for first in first.iter().flatten() {
        total = (total + first.mul(&numbers_like(first, DIRECTION)?)?.sum(..)?)?;
    }
    if !total.requires_grad() {
        return Ok(vec![None; targets.len()]);
    }
    autograd::grad(&[&total], targets, Backward::default())
}

// ---- files ------------------------------------------------------------------------------------------------------

struct File<'a> {
    tensors: SafeTensors<'a>,
    metadata: std::collections::HashMap<String, String>,
}

impl<'a> File<'a> {
    fn parse(name: &str, bytes: &'a [u8]) -> Self {
        let (_, header) = SafeTensors::read_metadata(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let metadata = header.metadata().clone().expect("the file has metadata");
        Self { tensors: SafeTensors::deserialize(bytes).unwrap(), metadata }
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.tensor(name).is_ok()
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'a>, String> {
        self.tensors.tensor(name).map_err(|error| format!("tensor {name}: {error}"))
    }
}

/// The folder of the golden files: in the sources or, without them, in the current folder.
fn folder() -> PathBuf {
    let in_sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    if in_sources.is_dir() { in_sources } else { PathBuf::from("golden") }
}

fn read(name: &str) -> Vec<u8> {
    let path = folder().join(format!("{name}.safetensors"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; run make.py there", path.display()))
}

fn said(error: Error) -> String {
    error.to_string()
}
