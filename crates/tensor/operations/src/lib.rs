//! The table of operations: their names here and in PyTorch, their inputs, and how exact their results must be.
//!
//! One entry of [`table`] makes an operation part of every test of the table (golden values, gradients, budget, CPU
//! against CUDA, precision, autocast) and of the benchmark `ops`. `tests/table.rs` of `pagelock-tensor` fails for a
//! public operation without an entry, and writes the table as JSON, from which `golden/make.py` computes PyTorch's
//! results.
//!
//! Read [`Operation`] first. `input.rs` describes inputs; the other files have the entries.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "never published: names and PyTorch's expressions say what an entry is")]

pub mod arrangements;
mod call;
pub mod elementwise;
pub mod everyday;
pub mod factories;
pub mod functions;
pub mod further;
pub mod images;
pub mod in_place;
mod input;
pub mod products;
pub mod recurrent;
pub mod reductions;
pub mod rows;
pub mod scattered;
pub mod selections;
mod special;
pub mod views;

use pagelock_tensor::{AnyTensor, Bool, DType, Device, Float, Int, Result, Tensor};
use serde_json::{Value, json};

pub use self::call::{Call, Run};
pub use self::input::{Fill, Input, numbers_like};
pub use self::special::why_of_few_bits;

pub const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
pub const INTS: &[DType] = &[DType::I64, DType::I32, DType::U8];

/// All operations.
pub fn table() -> Vec<Operation> {
    let parts = [
        elementwise::entries(),
        functions::entries(),
        arrangements::entries(),
        reductions::entries(),
        products::entries(),
        images::entries(),
        rows::entries(),
        recurrent::entries(),
        views::entries(),
        selections::entries(),
        scattered::entries(),
        further::entries(),
        everyday::entries(),
        in_place::entries(),
        factories::entries(),
    ];
    parts.into_iter().flatten().collect()
}

/// An entry of the table.
pub struct Operation {
    /// PyTorch's name. Our method has the same name, unless `methods` says otherwise.
    pub name: &'static str,
    /// The public functions that the entry calls.
    pub methods: &'static [&'static str],
    /// The same call in Python: an expression of the inputs `x`, `y`, `z` (all of them: `inputs`) and of the
    /// arguments by name.
    pub torch: &'static str,
    /// Calls the operation, for each kind that it takes.
    pub run: Run,
    /// The precision in which autocast computes the operation.
    pub autocast: Autocast,
    /// How the operation treats operands of two precisions.
    pub mixed: Mixed,
    pub derivative: Derivative,
    /// The error that is allowed from PyTorch's results, and of a GPU from the CPU's.
    pub bound: Bound,
    /// Small inputs.
    pub samples: Vec<Sample>,
    /// Inputs at the edges of a floating-point precision.
    pub special: Box<dyn Fn(DType) -> Vec<Sample>>,
    /// For `special`: the dimension over which numbers are summed, 0 within a column or 1 within a row. The errors of
    /// a column or row are compared together.
    pub summed_dim: Option<u64>,
    /// Inputs of about the given number of elements, for the benchmark and the test of the budget.
    pub large: Box<dyn Fn(usize) -> Vec<Sample>>,
}

/// How autocast converts the floating-point inputs of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Autocast {
    /// Inputs keep their precision; of two precisions, the wider one is used.
    AsItIs,
    /// Inputs become half.
    Half,
    /// Half inputs become `float32`.
    F32,
}

/// How operands of two precisions are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixed {
    /// Not tested with two precisions, for example because the operation has only one operand.
    Untested,
    /// The operation computes in a precision that holds both.
    Promotes,
    /// The operation returns an error that names both.
    Refuses,
    /// The first operand is changed in place and keeps its precision: a wider operand is an error.
    IntoFirst,
    /// The result has the precision of the first operand, to which the second is converted.
    Converts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Derivative {
    /// The result has no gradient.
    None,
    /// The operation has a derivative, which has a derivative too.
    Twice,
}

/// The relative error that is allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// Each result is rounded once, or only moved: the CPU and a GPU have the same bits.
    Exact,
    /// The error of [`Bound::relative`], also between CPU and GPU.
    Rounded,
}

impl Bound {
    /// The bound for results of this precision, which is 0 for anything but floats. `Rounded` allows half types about
    /// four units in the last place.
    pub fn relative(self, dtype: DType) -> f64 {
        match (self, dtype) {
            (Bound::Exact, _) => 0.0,
            (Bound::Rounded, DType::F64) => 1e-10,
            (Bound::Rounded, DType::F32) => 1e-5,
            (Bound::Rounded, DType::F16) => 4e-3,
            (Bound::Rounded, DType::BF16) => 3e-2,
            (Bound::Rounded, _) => 0.0,
        }
    }
}

/// Inputs and arguments.
#[derive(Debug, Clone)]
pub struct Sample {
    pub inputs: Vec<Input>,
    pub args: Value,
    /// Whether all precisions are tried; otherwise `float32`, `float64` and `int64`.
    pub every_precision: bool,
    /// Whether gradients are compared. There are none at kinks and where results overflow.
    pub gradients: bool,
}

/// The tensors that [`Sample::make`] makes.
pub struct Inputs {
    pub dtype: DType,
    pub device: Device,
    pub values: Vec<AnyTensor>,
    pub indices: Vec<Tensor<Int>>,
}

pub fn sample<const N: usize>(inputs: [Input; N]) -> Sample {
    Sample { inputs: inputs.into(), args: json!({}), every_precision: false, gradients: true }
}

/// One input of both signs, with arguments.
fn case(shape: &[usize], args: Value) -> Sample {
    sample([input::signed(shape)]).args(args)
}

impl Sample {
    pub fn args(self, args: Value) -> Sample {
        Sample { args, ..self }
    }

    pub fn in_every_precision(self) -> Sample {
        Sample { every_precision: true, ..self }
    }

    pub fn without_gradients(self) -> Sample {
        Sample { gradients: false, ..self }
    }

    /// The inputs as tensors.
    pub fn make(&self, dtype: DType, device: &Device) -> Result<Inputs> {
        let mut inputs = Inputs { dtype, device: device.clone(), values: Vec::new(), indices: Vec::new() };
        for (seed, input) in self.inputs.iter().enumerate() {
            match input.fill {
                Fill::Index(_) => inputs.indices.push(input.make(DType::I64, device, seed)?.int()?),
                _ => inputs.values.push(input.make(dtype, device, seed)?),
            }
        }
        Ok(inputs)
    }

    /// Shapes and arguments.
    pub fn title(&self) -> String {
        let shapes: Vec<_> = self.inputs.iter().map(|input| format!("{:?}", input.shape)).collect();
        let args: Vec<_> =
            self.args.as_object().unwrap().iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{} {}", shapes.join(" "), args.join(" ")).replace(", ", "×").trim().to_owned()
    }

    pub fn json(&self) -> Value {
        let inputs: Vec<_> = self.inputs.iter().map(Input::json).collect();
        json!({ "inputs": inputs, "args": self.args })
    }
}

impl Operation {
    pub fn new(name: &'static str, torch: &'static str, run: Run) -> Operation {
        Operation {
            name,
            methods: &[],
            torch,
            run,
            autocast: Autocast::AsItIs,
            mixed: Mixed::Untested,
            derivative: Derivative::Twice,
            bound: Bound::Rounded,
            samples: Vec::new(),
            special: Box::new(|_| Vec::new()),
            summed_dim: None,
            large: Box::new(|_| Vec::new()),
        }
    }

    pub fn methods(self, methods: &'static [&'static str]) -> Operation {
        Operation { methods, ..self }
    }

    pub fn autocast(self, autocast: Autocast) -> Operation {
        Operation { autocast, ..self }
    }

    pub fn mixed(self, mixed: Mixed) -> Operation {
        Operation { mixed, ..self }
    }

    pub fn without_derivative(self) -> Operation {
        Operation { derivative: Derivative::None, ..self }
    }

    pub fn exact(self) -> Operation {
        Operation { bound: Bound::Exact, ..self }
    }

    pub fn samples(self, samples: impl IntoIterator<Item = Sample>) -> Operation {
        Operation { samples: samples.into_iter().collect(), ..self }
    }

    pub fn special(self, special: impl Fn(DType) -> Vec<Sample> + 'static) -> Operation {
        Operation { special: Box::new(special), ..self }
    }

    /// Says that the operation only moves elements: its special inputs are the samples, filled with edges.
    pub fn moves(self) -> Operation {
        let samples = self.samples.clone();
        self.exact().special(move |dtype| special::moved(&samples, dtype))
    }

    /// Says that the results are sums within rows (1) or columns (0).
    pub fn summed_dim(self, dim: u64) -> Operation {
        Operation { summed_dim: Some(dim), ..self }
    }

    pub fn large(self, large: impl Fn(usize) -> Vec<Sample> + 'static) -> Operation {
        Operation { large: Box::new(large), ..self }
    }

    /// The precisions in which a sample is tried.
    pub fn dtypes_of(&self, sample: &Sample) -> Vec<DType> {
        let wide = [DType::F32, DType::F64, DType::I64];
        self.dtypes().into_iter().filter(|dtype| sample.every_precision || wide.contains(dtype)).collect()
    }

    /// What `golden/make.py` needs to know about the operation.
    pub fn json(&self) -> Value {
        let name = |dtype: &DType| dtype.name();
        let with_dtypes = |sample: &Sample| {
            let mut json = sample.json();
            json["dtypes"] = self.dtypes_of(sample).iter().map(name).collect();
            json["gradients"] = (self.derivative == Derivative::Twice && sample.gradients).into();
            json
        };
        let special = |dtype: &DType| {
            let samples: Vec<_> = (self.special)(*dtype).into_iter().collect();
            samples
                .iter()
                .map(|sample| {
                    let mut json = with_dtypes(sample);
                    json["dtypes"] = json!([dtype.name()]);
                    json
                })
                .collect::<Vec<_>>()
        };
        let mut json = json!({
            "name": self.name,
            "torch": self.torch,
            "samples": self.samples.iter().map(with_dtypes).collect::<Vec<_>>(),
            "special": self.dtypes().iter().filter(|dtype| dtype.is_float()).flat_map(special).collect::<Vec<_>>(),
        });
        json["hash"] = hash(&json.to_string()).into();
        json
    }

    /// Whether gradients of the sample are compared.
    pub fn has_gradients(&self, sample: &Sample, dtype: DType) -> bool {
        self.derivative == Derivative::Twice && self.run.float.is_some() && sample.gradients && dtype.is_float()
    }

    /// The precisions that the operation takes.
    pub fn dtypes(&self) -> Vec<DType> {
        let Run { float, int, bool } = &self.run;
        let floats = FLOATS.iter().filter(|_| float.is_some());
        let ints = INTS.iter().filter(|_| int.is_some());
        floats.chain(ints).copied().chain(bool.map(|_| DType::Bool)).collect()
    }

    /// Calls the operation.
    pub fn call(&self, inputs: &Inputs, args: &Value) -> Result<AnyTensor> {
        match inputs.dtype {
            DType::Bool => self.run.bool.unwrap()(&Call::<Bool>::new(inputs, args)?),
            dtype if dtype.is_float() => self.run.float.unwrap()(&Call::<Float>::new(inputs, args)?),
            _ => self.run.int.unwrap()(&Call::<Int>::new(inputs, args)?),
        }
    }
}

/// The 64-bit FNV-1a hash, which is the same wherever the program is built.
fn hash(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}
