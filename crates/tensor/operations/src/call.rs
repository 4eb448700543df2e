//! [`Call`]: the inputs and arguments that the closure of an entry gets. [`run!`] writes that closure for each kind.

use pagelock_tensor::{
    AnyTensor, Axes, AxisSet, BatchNormOptions, Bool, Conv2dOptions, ConvTranspose2dOptions, DType, Element, Float,
    Int, Kind, Number, Pool2dOptions, Reduction, Result, Tensor, TensorOptions,
};
use serde_json::Value;

use super::Inputs;

pub(super) type RunOn<K> = fn(&Call<'_, K>) -> Result<AnyTensor>;

/// How an operation is called, for the kinds that it takes.
pub struct Run {
    pub float: Option<RunOn<Float>>,
    pub int: Option<RunOn<Int>>,
    pub bool: Option<RunOn<Bool>>,
}

/// `run! { numbers |c| c.x().neg() }`: the closure for floats and integers.
macro_rules! run {
    (floats |$c:ident| $body:expr) => { super::Run { float: run!(@ $c $body), int: None, bool: None } };
    (ints |$c:ident| $body:expr) => { super::Run { float: None, int: run!(@ $c $body), bool: None } };
    (numbers |$c:ident| $body:expr) => {
        super::Run { float: run!(@ $c $body), int: run!(@ $c $body), bool: None }
    };
    (elements |$c:ident| $body:expr) => {
        super::Run { float: run!(@ $c $body), int: run!(@ $c $body), bool: run!(@ $c $body) }
    };
    (@ $c:ident $body:expr) => { Some(|$c| Ok(($body)?.into())) };
}
pub(super) use run;

/// Inputs and arguments of one call.
pub struct Call<'a, K: Kind> {
    sample_inputs: &'a Inputs,
    inputs: Vec<Tensor<K>>,
    args: &'a Value,
}

/// A kind whose numbers can be read from JSON.
pub trait FromJson: Kind + Sized {
    type Number: Number<Self> + Element<Kind = Self>;
    fn from_json(value: &Value) -> Option<Self::Number>;
}

impl FromJson for Float {
    type Number = f64;
    fn from_json(value: &Value) -> Option<f64> {
        value.as_f64()
    }
}

impl FromJson for Int {
    type Number = i64;
    fn from_json(value: &Value) -> Option<i64> {
        value.as_i64()
    }
}

impl<'a, K: Kind> Call<'a, K> {
    pub fn new(sample_inputs: &'a Inputs, args: &'a Value) -> Result<Call<'a, K>> {
        let inputs = sample_inputs.values.iter().map(|input| input.kind()).collect::<Result<_>>()?;
        Ok(Call { sample_inputs, inputs, args })
    }

    pub(super) fn x(&self) -> &Tensor<K> {
        &self.inputs[0]
    }

    pub(super) fn y(&self) -> &Tensor<K> {
        &self.inputs[1]
    }

    pub(super) fn z(&self) -> &Tensor<K> {
        &self.inputs[2]
    }

    /// The input at `position`, such as a weight or a bias, if the sample has it.
    pub(super) fn optional(&self, position: usize) -> Option<&Tensor<K>> {
        self.inputs.get(position)
    }

    pub(super) fn all(&self) -> Vec<&Tensor<K>> {
        self.inputs.iter().collect()
    }

    pub(super) fn index(&self) -> &Tensor<Int> {
        &self.sample_inputs.indices[0]
    }

    /// The index tensor at `position` among the index tensors.
    pub(super) fn indices(&self, position: usize) -> &Tensor<Int> {
        &self.sample_inputs.indices[position]
    }

    /// The first input, after it was changed in place.
    pub(super) fn changed(&self, done: Result<()>) -> Result<Tensor<K>> {
        done.map(|()| self.x().clone())
    }

    /// The options of factories: the device and the precision of the call.
    pub(super) fn options(&self) -> TensorOptions<'_> {
        Tensor::on(&self.sample_inputs.device).of(self.sample_inputs.dtype)
    }

    // ---- arguments by name ----

    pub(super) fn optional_float(&self, name: &str) -> Option<f64> {
        self.args[name].as_f64()
    }

    pub(super) fn float(&self, name: &str) -> f64 {
        self.args[name].as_f64().unwrap_or_else(|| panic!("no number `{name}` in {}", self.args))
    }

    pub(super) fn int(&self, name: &str) -> isize {
        self.args[name].as_i64().unwrap_or_else(|| panic!("no integer `{name}` in {}", self.args)) as isize
    }

    pub(super) fn size(&self, name: &str) -> usize {
        self.int(name) as usize
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.args[name].as_bool().unwrap_or_else(|| panic!("no truth value `{name}` in {}", self.args))
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.args[name].as_str().unwrap_or_else(|| panic!("no text `{name}` in {}", self.args))
    }

    pub(super) fn ints(&self, name: &str) -> Vec<isize> {
        let list = self.args[name].as_array().unwrap_or_else(|| panic!("no list `{name}` in {}", self.args));
        list.iter().map(|number| number.as_i64().unwrap() as isize).collect()
    }

    pub(super) fn sizes(&self, name: &str) -> Vec<usize> {
        self.ints(name).into_iter().map(|size| size as usize).collect()
    }

    pub(super) fn array<const N: usize>(&self, name: &str) -> [isize; N] {
        self.ints(name).try_into().unwrap_or_else(|_| panic!("`{name}` does not have {N} numbers in {}", self.args))
    }

    pub(super) fn pair(&self, name: &str) -> [usize; 2] {
        self.array(name).map(|size: isize| size as usize)
    }

    pub(super) fn to(&self) -> DType {
        let name = self.args["to"].as_str().unwrap_or_else(|| panic!("no `to` in {}", self.args));
        let known = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8, DType::Bool];
        known.into_iter().find(|dtype| dtype.name() == name).unwrap_or_else(|| panic!("no precision {name}"))
    }

    /// The argument `axes`; `null` means all axes.
    pub(super) fn axes(&self) -> Result<AxisSet> {
        match &self.args["axes"] {
            Value::Null => (..).resolve("table", self.x().shape()),
            _ => self.ints("axes")[..].resolve("table", self.x().shape()),
        }
    }

    pub(super) fn reduction(&self) -> Reduction {
        match self.args["reduction"].as_str() {
            Some("mean") => Reduction::Mean,
            Some("sum") => Reduction::Sum,
            _ => Reduction::None,
        }
    }

    pub(super) fn conv2d(&self) -> Conv2dOptions {
        let [stride, padding, dilation] = ["stride", "padding", "dilation"].map(|name| self.pair(name));
        Conv2dOptions { stride, padding, dilation, groups: self.size("groups") }
    }

    pub(super) fn conv_transpose2d(&self) -> ConvTranspose2dOptions {
        let [stride, padding, output_padding, dilation] =
            ["stride", "padding", "output_padding", "dilation"].map(|name| self.pair(name));
        ConvTranspose2dOptions { stride, padding, output_padding, groups: self.size("groups"), dilation }
    }

    pub(super) fn pool2d(&self) -> Pool2dOptions {
        Pool2dOptions { kernel: self.pair("kernel"), stride: self.pair("stride"), padding: self.pair("padding") }
    }

    pub(super) fn batch_norm(&self) -> BatchNormOptions {
        BatchNormOptions { training: self.flag("training"), momentum: self.float("momentum"), eps: self.float("eps") }
    }
}

impl<K: FromJson> Call<'_, K> {
    /// The argument `name` as a number of the kind.
    pub(super) fn number(&self, name: &str) -> K::Number {
        K::from_json(&self.args[name]).unwrap_or_else(|| panic!("no number `{name}` for the kind in {}", self.args))
    }
}

impl Call<'_, Float> {
    /// New running statistics of a batch norm, with a mean of 0.5 and a variance of 2, if the sample has them.
    pub(super) fn running(&self) -> Result<Option<[Tensor; 2]>> {
        let channels = self.x().size(1)?;
        match self.flag("running") {
            true => Ok(Some([self.options().full(channels, 0.5)?, self.options().full(channels, 2.0)?])),
            false => Ok(None),
        }
    }
}
