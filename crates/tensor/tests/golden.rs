//! Every op against PyTorch: values, gradients and second derivatives, as `golden/make.py` wrote them.
//!
//! A case holds when dtype and shape are equal and every element differs from PyTorch's by at most
//! `bound · max(1, |PyTorch's|)`, with `bound` = 1e-10 in f64, 1e-5 in f32, 4e-3 in f16 and 3e-2 in bf16 (four units in
//! the last place). Infinities and NaN must be the same. A gradient is that of the stored *base*, so a case with a
//! view checks the derivative of the view too.
//!
//! The cases of `special` (NaN, infinities, zeros of both signs, subnormal, largest and smallest numbers, and magnitudes
//! between, in every float type) have the same results in f64 beside PyTorch's, and a closer bound, in units of PyTorch's own
//! error: `|ours − f64's| ≤ 2 · max(|PyTorch's − f64's|, half a unit in the last place)`. NaN, infinities and signs of zeros
//! must be PyTorch's or the rounded f64's. Where PyTorch overflows and f64 does not, any finite number will do. In rows and
//! columns that are summed or normalized, both are the largest of the row or column, and 4 stands for 2. In f64, where PyTorch's error is not known, the
//! bound is that of the other cases.
//!
//! Everything runs on the CPU and on a GPU, where there is one.
//!
//! To add an op: a line in `OPS` and cases in `make.py`, cases in `special.py`, a line in `golden/table.rs`.

mod common;
#[path = "golden/numbers.rs"]
mod numbers;
#[path = "golden/table.rs"]
mod table;

use pagelock_tensor::autograd::{self, Backward};
use pagelock_tensor::{DType, Device, Error, Int, Kind, Result, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use self::numbers::{Numbers, bound, decode, dtype_named, load};
use self::table::{Call, Output, permute, table};

/// One test per file and kind of device; `every_golden_file_has_a_test` sees that none is left out.
macro_rules! files {
    ($($file:ident)+) => {
        const FILES: &[&str] = &[$(stringify!($file)),+];
        $(
            #[test]
            fn $file() {
                check_file(stringify!($file), &Device::Cpu);
            }
        )+

        mod on_a_gpu {
            $(
                #[test]
                fn $file() {
                    if let Some(gpu) = super::common::gpu() {
                        super::check_file(stringify!($file), &gpu);
                    }
                }
            )+
        }
    };
}

files! { binary unaries reductions matmuls convolutions pools losses views joins seconds normalizations special }

#[test]
fn every_golden_file_has_a_test() {
    let found = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let found: BTreeSet<String> = found
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(found, FILES.iter().map(|&file| file.to_owned()).collect());
}

#[test]
fn every_op_has_cases_in_f32_and_f64() {
    let mut seen = BTreeSet::new();
    for file in FILES {
        let bytes = read(file);
        for case in &File::parse(file, &bytes, Device::Cpu).cases {
            seen.insert((text(&case["op"]).to_owned(), text(&case["dtype"]).to_owned()));
        }
    }
    for op in table().keys() {
        for dtype in ["float32", "float64"] {
            assert!(
                seen.contains(&((*op).to_owned(), dtype.to_owned())),
                "no case of {op} in {dtype}: add some to make.py"
            );
        }
    }
}

#[test]
fn every_op_has_special_values_in_every_float_type() {
    let bytes = read("special");
    let file = File::parse("special", &bytes, Device::Cpu);
    let seen: BTreeSet<_> = file.cases.iter().map(|case| (text(&case["op"]), text(&case["dtype"]))).collect();
    for op in table().keys() {
        for dtype in ["float32", "float64", "float16", "bfloat16"] {
            assert!(seen.contains(&(*op, dtype)), "no case of {op} in {dtype}: add one to special.py");
        }
    }
}

#[test]
fn at_least_ten_ops_have_second_derivatives() {
    let bytes = read("seconds");
    let file = File::parse("seconds", &bytes, Device::Cpu);
    let ops: BTreeSet<&str> = file.cases.iter().map(|case| text(&case["op"])).collect();
    assert!(ops.len() >= 10, "only {ops:?}");
    assert!(file.cases.iter().all(|case| case.get("seconds").is_some()));
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
        numbers.compare_in_units(DType::F32, "value", &stored, &exact, None)
    };
    let ulp = 2f64.powi(-23);

    assert!(check([1.0 + ulp, -0.0, f64::INFINITY]).is_ok());
    let error = check([1.0 + 2.0 * ulp, -0.0, f64::INFINITY]).unwrap_err();
    assert!(error.ends_with("error 4.0 units, of which 2 are allowed"), "{error}");
    assert!(check([1.0, 0.0, f64::INFINITY]).is_err());
    assert!(check([1.0, -0.0, f64::from(f32::MAX)]).is_err());
    assert!(check([f64::NAN, -0.0, f64::INFINITY]).is_err());
}

#[test]
fn an_op_that_the_table_lacks_is_an_error() {
    let bytes = read("unaries");
    let file = File::parse("unaries", &bytes, Device::Cpu);
    let mut case = file.cases[0].clone();
    case["op"] = "cosine".into();
    assert_eq!(check(&file, &case).unwrap_err(), "unknown op: add it to the table in golden.rs");
}

/// Applies the steps that make an input of its stored base.
fn view<K: Kind>(base: &Tensor<K>, steps: &Value) -> Result<Tensor<K>> {
    let mut x = base.clone();
    for step in steps.as_array().unwrap() {
        let at = |i: usize| step[i].as_i64().unwrap() as isize;
        let size = |i: usize| at(i) as usize;
        x = match text(&step[0]) {
            "permute" => permute(&x, &ints(&step[1])),
            "transpose" => x.transpose(at(1), at(2)),
            "slice" => x.slice(at(1), at(2)..at(3), size(4)),
            "narrow" => x.narrow(at(1), size(2), size(3)),
            "select" => x.select(at(1), at(2)),
            "expand" => x.expand(&sizes(&step[1])[..]),
            other => panic!("no view step {other}"),
        }?;
    }
    Ok(x)
}

// ---- running a case ---------------------------------------------------------------------------------------------

fn check_file(name: &str, device: &Device) {
    let bytes = read(name);
    let file = File::parse(name, &bytes, device.clone());
    assert!(!file.cases.is_empty(), "{name} has no cases");
    let mut failures = Vec::new();
    for (number, case) in file.cases.iter().enumerate() {
        let result = check(&file, case);
        if let Err(why) = result {
            let of = |part: &str| case[part].to_string();
            failures.push(format!(
                "case {number}: {} {} {}\n    {}\n    {why}",
                of("op"),
                of("dtype"),
                of("args"),
                of("inputs")
            ));
        }
    }
    let shown = failures.iter().take(100).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(
        failures.is_empty(),
        "{} of {} cases of {name} differ from PyTorch:\n{shown}",
        failures.len(),
        file.cases.len()
    );
}

/// A case's inputs: bases, of which the floating-point ones require gradients where the case has some.
struct Bases {
    floats: Vec<Tensor>,
    ints: Vec<Tensor<Int>>,
}

fn check(file: &File<'_>, case: &Value) -> Result<(), String> {
    let bases = bases(file, case)?;
    let (mut floats, mut ints) = (Vec::new(), Vec::new());
    let (mut next_float, mut next_int) = (bases.floats.iter(), bases.ints.iter());
    for input in case["inputs"].as_array().unwrap() {
        if file.tensor(&input["tensor"])?.dtype() == Dtype::I64 {
            ints.push(view(next_int.next().unwrap(), &input["view"]).map_err(said)?);
        } else {
            floats.push(view(next_float.next().unwrap(), &input["view"]).map_err(said)?);
        }
    }
    let call = Call { floats: floats.iter().collect(), ints: ints.iter().collect(), args: &case["args"] };
    let run = table().remove(text(&case["op"])).ok_or("unknown op: add it to the table in golden.rs")?;
    match run(&call).map_err(said)? {
        Output::Numbers(numbers) => numbers.compare("value", &file.tensor(&case["output"])?, 0.0),
        Output::Tensor(output) => {
            compare_one("value", (file, case), &output, &case["output"], case.get("exact"))?;
            check_gradients(file, case, &bases.floats, &output)
        }
    }
}

/// The precision of a case's floating-point inputs.
fn dtype(case: &Value) -> Result<DType, String> {
    let name = text(&case["dtype"]);
    dtype_named(name).ok_or_else(|| format!("no element type {name}"))
}

fn bases(file: &File<'_>, case: &Value) -> Result<Bases, String> {
    let wanted = case.get("grads").is_some();
    let mut bases = Bases { floats: Vec::new(), ints: Vec::new() };
    for input in case["inputs"].as_array().unwrap() {
        let stored = file.tensor(&input["tensor"])?;
        if stored.dtype() == Dtype::I64 {
            let labels = decode(&stored).into_iter().map(|label| label as i64).collect();
            let labels = Tensor::from_vec(labels, stored.shape()).and_then(|labels| labels.to(&file.device));
            bases.ints.push(labels.map_err(said)?);
        } else {
            bases.floats.push(load(file, dtype(case)?, &stored)?.set_requires_grad(wanted));
        }
    }
    Ok(bases)
}

fn check_gradients(file: &File<'_>, case: &Value, inputs: &[Tensor], output: &Tensor) -> Result<(), String> {
    let Some(expected) = case.get("grads") else { return Ok(()) };
    let upstream = load(file, output.dtype(), &file.tensor(&case["grad_output"])?)?;
    let Some(seeds) = case.get("seeds") else {
        output.backward_with(Backward { gradient: Some(upstream), ..Backward::default() }).map_err(said)?;
        let found: Vec<_> = inputs.iter().map(Tensor::grad).collect();
        return compare_all("gradient", (file, case), &found, expected);
    };
    let targets: Vec<&Tensor> = inputs.iter().collect();
    let squared = (output * output).map_err(said)?;
    let options = Backward { gradient: Some(upstream), create_graph: true, ..Backward::default() };
    let first = autograd::grad(&[&squared], &targets, options).map_err(said)?;
    compare_all("gradient", (file, case), &first, expected)?;
    let second = directional(file, &first, seeds, &targets)?;
    compare_all("second derivative", (file, case), &second, &case["seconds"])
}

/// The gradients of `Σ <first_i, seed_i>`.
fn directional(
    file: &File<'_>,
    first: &[Option<Tensor>],
    seeds: &Value,
    targets: &[&Tensor],
) -> Result<Vec<Option<Tensor>>, String> {
    let dtype = targets[0].dtype();
    let mut total = Tensor::on(&file.device).of(dtype).zeros(()).map_err(said)?;
    for (first, seed) in first.iter().zip(present(seeds)) {
        let first = first.as_ref().ok_or("an input has no first gradient")?;
        let seed = load(file, dtype, &file.tensor(seed)?)?;
        total = (total + (first * &seed).and_then(|product| product.sum(..))).map_err(said)?;
    }
    autograd::grad(&[&total], targets, Backward::default()).map_err(said)
}

fn compare_all(
    what: &str,
    (file, case): (&File<'_>, &Value),
    found: &[Option<Tensor>],
    expected: &Value,
) -> Result<(), String> {
    let mut exact = case.get("exact_grads").map(present);
    let expected: Vec<&Value> = present(expected).collect();
    if expected.len() != found.len() {
        return Err(format!("{} of {what}, PyTorch has {}", found.len(), expected.len()));
    }
    for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
        let what = format!("{what} of input {position}");
        let found = found.as_ref().ok_or_else(|| format!("no {what}"))?;
        compare_one(&what, (file, case), found, expected, exact.as_mut().and_then(Iterator::next))?;
    }
    Ok(())
}

/// With PyTorch's result, and the same in f64 where there is one.
fn compare_one(
    what: &str,
    (file, case): (&File<'_>, &Value),
    found: &Tensor,
    expected: &Value,
    exact: Option<&Value>,
) -> Result<(), String> {
    let dtype = dtype(case)?;
    let (found, expected) = (Numbers::of(found).map_err(said)?, file.tensor(expected)?);
    match exact {
        None => found.compare(what, &expected, bound(dtype)),
        Some(exact) => found.compare_in_units(dtype, what, &expected, &file.tensor(exact)?, case["together"].as_u64()),
    }
}

// ---- files and numbers ------------------------------------------------------------------------------------------

struct File<'a> {
    tensors: SafeTensors<'a>,
    cases: Vec<Value>,
    /// Where its tensors go.
    device: Device,
}

impl<'a> File<'a> {
    fn parse(name: &str, bytes: &'a [u8], device: Device) -> Self {
        let (_, header) = SafeTensors::read_metadata(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let cases = header
            .metadata()
            .as_ref()
            .and_then(|metadata| metadata.get("cases"))
            .expect("the metadata has the key `cases`");
        Self { tensors: SafeTensors::deserialize(bytes).unwrap(), cases: serde_json::from_str(cases).unwrap(), device }
    }

    fn tensor(&self, name: &Value) -> Result<TensorView<'a>, String> {
        self.tensors.tensor(text(name)).map_err(|error| format!("tensor {name}: {error}"))
    }
}

/// In the sources, or, where this runs without them, in the current folder.
fn folder() -> PathBuf {
    let in_sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    if in_sources.is_dir() { in_sources } else { PathBuf::from("golden") }
}

fn read(name: &str) -> Vec<u8> {
    let path = folder().join(format!("{name}.safetensors"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; run make.py there", path.display()))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn ints(value: &Value) -> Vec<isize> {
    value.as_array().unwrap().iter().map(|number| number.as_i64().unwrap() as isize).collect()
}

fn sizes(value: &Value) -> Vec<usize> {
    ints(value).into_iter().map(|size| size as usize).collect()
}

/// The keys of a per-input list that are not null.
fn present(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().unwrap().iter().filter(|key| !key.is_null())
}

fn said(error: Error) -> String {
    error.to_string()
}
