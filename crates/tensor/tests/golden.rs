//! Every op against PyTorch: values, gradients and second derivatives, as `golden/make.py` wrote them.
//!
//! A case holds when dtype and shape are equal and every element differs from PyTorch's by at most
//! `bound · max(1, |PyTorch's|)`, with `bound` = 1e-10 in f64, 1e-5 in f32, 4e-3 in f16 and 3e-2 in bf16 (four units in
//! the last place). Infinities and NaN must be the same. A gradient is that of the stored *base*, so a case with a
//! view checks the derivative of the view too.
//!
//! Everything runs on the CPU and on a GPU, where there is one.
//!
//! To add an op: a line in `OPS` and cases in `make.py`, a line in `table` here.

mod common;
#[path = "golden/numbers.rs"]
mod numbers;

use half::{bf16, f16};
use pagelock_tensor::autograd::{self, Backward};
use pagelock_tensor::{
    Axes, AxisSet, BatchNormOptions, Conv2dOptions, Create, Device, Element, Error, Pool2dOptions, Reduction, Result,
    Tensor,
};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use self::numbers::{Golden, Numbers, decode, load};

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

files! { binary unaries reductions matmuls convolutions pools losses views joins seconds normalizations }

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
    for op in table::<f32>().keys() {
        for dtype in ["float32", "float64"] {
            assert!(
                seen.contains(&((*op).to_owned(), dtype.to_owned())),
                "no case of {op} in {dtype}: add some to make.py"
            );
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
fn an_op_that_the_table_lacks_is_an_error() {
    let bytes = read("unaries");
    let file = File::parse("unaries", &bytes, Device::Cpu);
    let mut case = file.cases[0].clone();
    case["op"] = "cosine".into();
    assert_eq!(check::<f32>(&file, &case).unwrap_err(), "unknown op: add it to the table in golden.rs");
}

// ---- what each op is called here --------------------------------------------------------------------------------

/// What an op is given: its floating-point inputs, its index inputs, its arguments.
struct Call<'a, T> {
    floats: Vec<&'a Tensor<T>>,
    ints: Vec<&'a Tensor<i64>>,
    args: &'a Value,
}

/// What an op gives: a tensor that may have a gradient, or the numbers of one of another type.
enum Output<T> {
    Tensor(Tensor<T>),
    Numbers(Numbers),
}

type Run<T> = fn(&Call<'_, T>) -> Result<Output<T>>;

fn table<T: Golden>() -> BTreeMap<&'static str, Run<T>> {
    let entries: Vec<(&'static str, Run<T>)> = vec![
        ("add", |c| tensor(c.x() + c.y())),
        ("sub", |c| tensor(c.x() - c.y())),
        ("mul", |c| tensor(c.x() * c.y())),
        ("div", |c| tensor(c.x() / c.y())),
        ("maximum", |c| tensor(c.x().maximum(c.y()))),
        ("add_scalar", |c| tensor(c.x() + c.scalar("s"))),
        ("sub_scalar", |c| tensor(c.x() - c.scalar("s"))),
        ("mul_scalar", |c| tensor(c.x() * c.scalar("s"))),
        ("div_scalar", |c| tensor(c.x() / c.scalar("s"))),
        ("pow", |c| tensor(c.x().pow(c.float("s")))),
        ("exp", |c| tensor(c.x().exp())),
        ("log", |c| tensor(c.x().log())),
        ("sqrt", |c| tensor(c.x().sqrt())),
        ("abs", |c| tensor(c.x().abs())),
        ("neg", |c| tensor(-c.x())),
        ("tanh", |c| tensor(c.x().tanh())),
        ("sigmoid", |c| tensor(c.x().sigmoid())),
        ("relu", |c| tensor(c.x().relu())),
        ("sign", |c| tensor(c.x().sign())),
        ("sum", |c| tensor(if c.keepdim() { c.x().sum_keepdim(c.axes()?) } else { c.x().sum(c.axes()?) })),
        ("mean", |c| tensor(if c.keepdim() { c.x().mean_keepdim(c.axes()?) } else { c.x().mean(c.axes()?) })),
        ("max", |c| tensor(if c.keepdim() { c.x().max_keepdim(c.axes()?) } else { c.x().max(c.axes()?) })),
        ("min", |c| tensor(if c.keepdim() { c.x().min_keepdim(c.axes()?) } else { c.x().min(c.axes()?) })),
        ("var", |c| tensor(if c.keepdim() { c.x().var_keepdim(c.axes()?) } else { c.x().var(c.axes()?) })),
        ("matmul", |c| tensor(c.x().matmul(c.y()))),
        ("conv2d", |c| tensor(c.x().conv2d(c.y(), c.floats.get(2).copied(), c.conv()))),
        ("max_pool2d", |c| tensor(c.x().max_pool2d(c.pool()))),
        ("avg_pool2d", |c| tensor(c.x().avg_pool2d(c.pool()))),
        ("adaptive_avg_pool2d", |c| tensor(c.x().adaptive_avg_pool2d(c.pair("size")))),
        ("softmax", |c| tensor(c.x().softmax(c.int("dim")))),
        ("log_softmax", |c| tensor(c.x().log_softmax(c.int("dim")))),
        ("layer_norm", |c| {
            let normalized = sizes(&c.args["normalized"]);
            tensor(c.x().layer_norm(&normalized[..], c.parameter(1), c.parameter(2), c.float("eps")))
        }),
        ("batch_norm", |c| {
            let running = c.running()?;
            let running = running.as_ref().map(<[Tensor<T>; 2]>::each_ref);
            tensor(c.x().batch_norm(running, c.parameter(1), c.parameter(2), c.batch_norm()))
        }),
        ("batch_norm_relu", |c| {
            let running = c.running()?;
            let running = running.as_ref().map(<[Tensor<T>; 2]>::each_ref);
            tensor(c.x().batch_norm_relu(running, c.parameter(1), c.parameter(2), c.batch_norm()))
        }),
        ("batch_norm_running", |c| {
            let running = c.running()?.unwrap();
            c.x().batch_norm(Some(running.each_ref()), c.parameter(1), c.parameter(2), c.batch_norm())?;
            tensor(Tensor::stack(&running.each_ref(), 0))
        }),
        ("nll_loss", |c| tensor(c.x().nll_loss(c.ints[0], c.reduction()))),
        ("cross_entropy", |c| tensor(c.x().cross_entropy(c.ints[0], c.reduction()))),
        ("mse_loss", |c| tensor(c.x().mse_loss(c.y(), c.reduction()))),
        ("reshape", |c| tensor(reshape(c.x(), &ints(&c.args["shape"])))),
        ("view", |c| {
            tensor(match ints(&c.args["shape"])[..] {
                [a] => c.x().view([a]),
                [a, b] => c.x().view([a, b]),
                [a, b, d] => c.x().view([a, b, d]),
                ref other => panic!("view as {other:?}: add its length here"),
            })
        }),
        ("t", |c| tensor(c.x().t())),
        ("permute", |c| tensor(permute(c.x(), &ints(&c.args["dims"])))),
        ("transpose", |c| tensor(c.x().transpose(ints(&c.args["dims"])[0], ints(&c.args["dims"])[1]))),
        ("narrow", |c| tensor(c.x().narrow(c.int("dim"), c.size("start"), c.size("len")))),
        ("slice", |c| tensor(c.x().slice(c.int("dim"), c.int("start")..c.int("end"), c.size("step")))),
        ("select", |c| tensor(c.x().select(c.int("dim"), c.int("index")))),
        ("squeeze", |c| tensor(c.x().squeeze(c.int("dim")))),
        ("unsqueeze", |c| tensor(c.x().unsqueeze(c.int("dim")))),
        ("expand", |c| tensor(c.x().expand(&sizes(&c.args["shape"])[..]))),
        ("flatten", |c| tensor(c.x().flatten(c.int("start"), c.int("end")))),
        ("contiguous", |c| tensor(c.x().contiguous())),
        ("cat", |c| tensor(Tensor::cat(&c.floats, c.int("dim")))),
        ("stack", |c| tensor(Tensor::stack(&c.floats, c.int("dim")))),
        ("index_select", |c| tensor(c.x().index_select(c.int("dim"), c.ints[0]))),
        ("gather", |c| tensor(c.x().gather(c.int("dim"), c.ints[0]))),
        ("cast_there_and_back", |c| match c.text("to") {
            "float16" => tensor(c.x().cast::<f16>()?.cast()),
            "bfloat16" => tensor(c.x().cast::<bf16>()?.cast()),
            "float32" => tensor(c.x().cast::<f32>()?.cast()),
            _ => tensor(c.x().cast::<f64>()?.cast()),
        }),
        ("argmax", |c| {
            numbers(if c.keepdim() { c.x().argmax_keepdim(c.int("dim")) } else { c.x().argmax(c.int("dim")) })
        }),
        ("eq", |c| numbers(c.x().eq(c.y()))),
        ("ne", |c| numbers(c.x().ne(c.y()))),
        ("lt", |c| numbers(c.x().lt(c.y()))),
        ("le", |c| numbers(c.x().le(c.y()))),
        ("gt", |c| numbers(c.x().gt(c.y()))),
        ("ge", |c| numbers(c.x().ge(c.y()))),
        ("cast", |c| match c.text("to") {
            "float16" => numbers(c.x().cast::<f16>()),
            "bfloat16" => numbers(c.x().cast::<bf16>()),
            "float32" => numbers(c.x().cast::<f32>()),
            "float64" => numbers(c.x().cast::<f64>()),
            "int64" => numbers(c.x().cast::<i64>()),
            "int32" => numbers(c.x().cast::<i32>()),
            "uint8" => numbers(c.x().cast::<u8>()),
            _ => numbers(c.x().cast::<bool>()),
        }),
    ];
    entries.into_iter().collect()
}

fn tensor<T>(result: Result<Tensor<T>>) -> Result<Output<T>> {
    result.map(Output::Tensor)
}

fn numbers<T, U: Element>(result: Result<Tensor<U>>) -> Result<Output<T>> {
    Ok(Output::Numbers(Numbers::of(&result?)?))
}

impl<'a, T: Golden> Call<'a, T> {
    fn x(&self) -> &'a Tensor<T> {
        self.floats[0]
    }
    fn y(&self) -> &'a Tensor<T> {
        self.floats[1]
    }
    fn float(&self, name: &str) -> f64 {
        self.args[name].as_f64().unwrap_or_else(|| panic!("no number `{name}` in {}", self.args))
    }
    fn scalar(&self, name: &str) -> T {
        self.float(name).cast()
    }
    fn int(&self, name: &str) -> isize {
        self.args[name].as_i64().unwrap_or_else(|| panic!("no integer `{name}` in {}", self.args)) as isize
    }
    fn size(&self, name: &str) -> usize {
        self.int(name) as usize
    }
    fn text(&self, name: &str) -> &str {
        text(&self.args[name])
    }
    fn pair(&self, name: &str) -> [usize; 2] {
        sizes(&self.args[name]).try_into().unwrap_or_else(|_| panic!("no pair `{name}` in {}", self.args))
    }
    fn keepdim(&self) -> bool {
        self.args["keepdim"].as_bool().unwrap()
    }
    fn axes(&self) -> Result<AxisSet> {
        match &self.args["axes"] {
            Value::Null => (..).resolve("golden", self.x().shape()),
            axes => ints(axes)[..].resolve("golden", self.x().shape()),
        }
    }
    fn conv(&self) -> Conv2dOptions {
        let (stride, padding, dilation) = (self.pair("stride"), self.pair("padding"), self.pair("dilation"));
        Conv2dOptions { stride, padding, dilation, groups: self.size("groups") }
    }
    fn pool(&self) -> Pool2dOptions {
        Pool2dOptions { kernel: self.pair("kernel"), stride: self.pair("stride"), padding: self.pair("padding") }
    }
    /// The weight or the bias, if there is one.
    fn parameter(&self, i: usize) -> Option<&'a Tensor<T>> {
        self.floats.get(i).copied()
    }
    fn batch_norm(&self) -> BatchNormOptions {
        let training = self.args["training"].as_bool().unwrap();
        BatchNormOptions { training, momentum: self.float("momentum"), eps: self.float("eps") }
    }
    /// The running mean and variance, if there are any.
    fn running(&self) -> Result<Option<[Tensor<T>; 2]>> {
        let numbers = |name: &str| -> Option<Vec<T>> {
            Some(self.args[name].as_array()?.iter().map(|x| x.as_f64().unwrap().cast()).collect())
        };
        let Some((mean, variance)) = numbers("mean").zip(numbers("variance")) else { return Ok(None) };
        let (n, device) = (mean.len(), self.x().device());
        Ok(Some([Tensor::from_vec(mean, n)?.to(&device)?, Tensor::from_vec(variance, n)?.to(&device)?]))
    }
    fn reduction(&self) -> Reduction {
        match self.text("reduction") {
            "mean" => Reduction::Mean,
            "sum" => Reduction::Sum,
            _ => Reduction::None,
        }
    }
}

/// `reshape` and `permute` take arrays; a file has lists.
fn reshape<T: Element>(x: &Tensor<T>, sizes: &[isize]) -> Result<Tensor<T>> {
    match *sizes {
        [a] => x.reshape([a]),
        [a, b] => x.reshape([a, b]),
        [a, b, c] => x.reshape([a, b, c]),
        _ => panic!("reshape to {sizes:?}: add its length here"),
    }
}

fn permute<T: Element>(x: &Tensor<T>, dims: &[isize]) -> Result<Tensor<T>> {
    match *dims {
        [a, b] => x.permute([a, b]),
        [a, b, c] => x.permute([a, b, c]),
        [a, b, c, d] => x.permute([a, b, c, d]),
        _ => panic!("permute {dims:?}: add its length here"),
    }
}

/// Applies the steps that make an input of its stored base.
fn view<T: Element>(base: &Tensor<T>, steps: &Value) -> Result<Tensor<T>> {
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
        let result = match text(&case["dtype"]) {
            "float32" => check::<f32>(&file, case),
            "float64" => check::<f64>(&file, case),
            "float16" => check::<f16>(&file, case),
            "bfloat16" => check::<bf16>(&file, case),
            other => Err(format!("no element type {other}")),
        };
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
    let shown = failures.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(
        failures.is_empty(),
        "{} of {} cases of {name} differ from PyTorch:\n{shown}",
        failures.len(),
        file.cases.len()
    );
}

/// A case's inputs: bases, of which the floating-point ones require gradients where the case has some.
struct Bases<T> {
    floats: Vec<Tensor<T>>,
    ints: Vec<Tensor<i64>>,
}

fn check<T: Golden>(file: &File<'_>, case: &Value) -> Result<(), String> {
    let bases = bases::<T>(file, case)?;
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
    let run = table::<T>().remove(text(&case["op"])).ok_or("unknown op: add it to the table in golden.rs")?;
    match run(&call).map_err(said)? {
        Output::Numbers(numbers) => numbers.compare("value", &file.tensor(&case["output"])?, 0.0),
        Output::Tensor(output) => {
            Numbers::of(&output).map_err(said)?.compare("value", &file.tensor(&case["output"])?, T::BOUND)?;
            check_gradients(file, case, &bases.floats, &output)
        }
    }
}

fn bases<T: Golden>(file: &File<'_>, case: &Value) -> Result<Bases<T>, String> {
    let wanted = case.get("grads").is_some();
    let mut bases = Bases { floats: Vec::new(), ints: Vec::new() };
    for input in case["inputs"].as_array().unwrap() {
        let stored = file.tensor(&input["tensor"])?;
        if stored.dtype() == Dtype::I64 {
            let labels = decode(&stored).into_iter().map(|label| label as i64).collect();
            let labels = Tensor::from_vec(labels, stored.shape()).and_then(|labels| labels.to(&file.device));
            bases.ints.push(labels.map_err(said)?);
        } else {
            bases.floats.push(load::<T>(file, &stored)?.set_requires_grad(wanted));
        }
    }
    Ok(bases)
}

fn check_gradients<T: Golden>(
    file: &File<'_>,
    case: &Value,
    inputs: &[Tensor<T>],
    output: &Tensor<T>,
) -> Result<(), String> {
    let Some(expected) = case.get("grads") else { return Ok(()) };
    let upstream = load::<T>(file, &file.tensor(&case["grad_output"])?)?;
    let Some(seeds) = case.get("seeds") else {
        output.backward_with(Backward { gradient: Some(upstream), ..Backward::default() }).map_err(said)?;
        let found: Vec<_> = inputs.iter().map(Tensor::grad).collect();
        return compare_all("gradient", file, &found, expected);
    };
    let targets: Vec<&Tensor<T>> = inputs.iter().collect();
    let squared = (output * output).map_err(said)?;
    let options = Backward { gradient: Some(upstream), create_graph: true, ..Backward::default() };
    let first = autograd::grad(&[&squared], &targets, options).map_err(said)?;
    compare_all("gradient", file, &first, expected)?;
    let second = directional(file, &first, seeds, &targets)?;
    compare_all("second derivative", file, &second, &case["seconds"])
}

/// The gradients of `Σ <first_i, seed_i>`.
fn directional<T: Golden>(
    file: &File<'_>,
    first: &[Option<Tensor<T>>],
    seeds: &Value,
    targets: &[&Tensor<T>],
) -> Result<Vec<Option<Tensor<T>>>, String> {
    let mut total = <Tensor<T> as Create<T>>::on(&file.device).zeros(()).map_err(said)?;
    for (first, seed) in first.iter().zip(present(seeds)) {
        let first = first.as_ref().ok_or("an input has no first gradient")?;
        let seed = load::<T>(file, &file.tensor(seed)?)?;
        total = (total + (first * &seed).and_then(|product| product.sum(..))).map_err(said)?;
    }
    autograd::grad(&[&total], targets, Backward::default()).map_err(said)
}

fn compare_all<T: Golden>(
    what: &str,
    file: &File<'_>,
    found: &[Option<Tensor<T>>],
    expected: &Value,
) -> Result<(), String> {
    let expected: Vec<&Value> = present(expected).collect();
    if expected.len() != found.len() {
        return Err(format!("{} of {what}, PyTorch has {}", found.len(), expected.len()));
    }
    for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
        let what = format!("{what} of input {position}");
        let found = found.as_ref().ok_or_else(|| format!("no {what}"))?;
        Numbers::of(found).map_err(said)?.compare(&what, &file.tensor(expected)?, T::BOUND)?;
    }
    Ok(())
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
