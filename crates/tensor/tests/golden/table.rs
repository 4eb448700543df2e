//! What each op of a golden file is called here.

use pagelock_tensor::{
    Axes, AxisSet, BatchNormOptions, Conv2dOptions, DType, Int, Kind, Pool2dOptions, Reduction, Result, Tensor,
};
use serde_json::Value;
use std::collections::BTreeMap;

use super::common::Values;
use super::numbers::{Numbers, dtype_named};
use super::{ints, sizes, text};

/// What an op is given: its floating-point inputs, its index inputs, its arguments.
pub(super) struct Call<'a> {
    pub(super) floats: Vec<&'a Tensor>,
    pub(super) ints: Vec<&'a Tensor<Int>>,
    pub(super) args: &'a Value,
}

/// What an op gives: a tensor that may have a gradient, or the numbers of one of another type.
pub(super) enum Output {
    Tensor(Tensor),
    Numbers(Numbers),
}

pub(super) type Run = fn(&Call<'_>) -> Result<Output>;

pub(super) fn table() -> BTreeMap<&'static str, Run> {
    let entries: Vec<(&'static str, Run)> = vec![
        ("add", |c| tensor(c.x() + c.y())),
        ("sub", |c| tensor(c.x() - c.y())),
        ("mul", |c| tensor(c.x() * c.y())),
        ("div", |c| tensor(c.x() / c.y())),
        ("maximum", |c| tensor(c.x().maximum(c.y()))),
        ("add_scalar", |c| tensor(c.x() + c.float("s"))),
        ("sub_scalar", |c| tensor(c.x() - c.float("s"))),
        ("mul_scalar", |c| tensor(c.x() * c.float("s"))),
        ("div_scalar", |c| tensor(c.x() / c.float("s"))),
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
        ("conv2d_relu", |c| tensor(c.x().conv2d_relu(c.y(), c.floats.get(2).copied(), c.conv()))),
        ("linear", |c| tensor(c.x().linear(c.y(), c.parameter(2)))),
        ("rdiv", |c| tensor(c.float("s") / c.x())),
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
            let running = running.as_ref().map(<[Tensor; 2]>::each_ref);
            tensor(c.x().batch_norm(running, c.parameter(1), c.parameter(2), c.batch_norm()))
        }),
        ("batch_norm_relu", |c| {
            let running = c.running()?;
            let running = running.as_ref().map(<[Tensor; 2]>::each_ref);
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
        ("cast_there_and_back", |c| tensor(c.x().to_dtype(c.to().unwrap())?.to_dtype(c.x().dtype()))),
        ("argmax", |c| {
            numbers(if c.keepdim() { c.x().argmax_keepdim(c.int("dim")) } else { c.x().argmax(c.int("dim")) })
        }),
        ("eq", |c| numbers(c.x().eq(c.y()))),
        ("ne", |c| numbers(c.x().ne(c.y()))),
        ("lt", |c| numbers(c.x().lt(c.y()))),
        ("le", |c| numbers(c.x().le(c.y()))),
        ("gt", |c| numbers(c.x().gt(c.y()))),
        ("ge", |c| numbers(c.x().ge(c.y()))),
        ("cast", |c| match (c.to(), c.text("to")) {
            (Some(dtype), _) => numbers(c.x().to_dtype(dtype)),
            (None, "int64") => numbers(c.x().to_int()),
            (None, "int32") => numbers(c.x().to_int()?.to_dtype(DType::I32)),
            (None, "uint8") => numbers(c.x().to_int()?.to_dtype(DType::U8)),
            (None, _) => numbers(c.x().to_bool()),
        }),
    ];
    entries.into_iter().chain(in_place()).collect()
}

/// Ops that change their first input, which is their result.
fn in_place() -> Vec<(&'static str, Run)> {
    vec![
        ("fill_", |c| changed(c, c.x().fill_(c.float("s")))),
        ("copy_", |c| changed(c, c.x().copy_(c.y()))),
        ("add_", |c| changed(c, c.x().add_(c.y()))),
        ("sub_", |c| changed(c, c.x().sub_(c.y()))),
        ("mul_", |c| changed(c, c.x().mul_(c.y()))),
        ("div_", |c| changed(c, c.x().div_(c.y()))),
        ("add_scalar_", |c| changed(c, c.x().add_scalar_(c.float("s")))),
        ("mul_scalar_", |c| changed(c, c.x().mul_scalar_(c.float("s")))),
        ("add_scaled_", |c| changed(c, c.x().add_scaled_(c.y(), c.float("s")))),
        ("lerp_", |c| changed(c, c.x().lerp_(c.y(), c.float("s")))),
        ("addcmul_", |c| changed(c, c.x().addcmul_(c.y(), c.floats[2], c.float("s")))),
        ("addcdiv_", |c| changed(c, c.x().addcdiv_(c.y(), c.floats[2], c.float("s")))),
        ("sqrt_", |c| changed(c, c.x().sqrt_())),
    ]
}

fn changed(call: &Call<'_>, done: Result<()>) -> Result<Output> {
    done.map(|()| Output::Tensor(call.x().clone()))
}

fn tensor(result: Result<Tensor>) -> Result<Output> {
    result.map(Output::Tensor)
}

fn numbers<K: Values>(result: Result<Tensor<K>>) -> Result<Output> {
    Ok(Output::Numbers(Numbers::of(&result?)?))
}

impl<'a> Call<'a> {
    fn x(&self) -> &'a Tensor {
        self.floats[0]
    }
    fn y(&self) -> &'a Tensor {
        self.floats[1]
    }
    fn float(&self, name: &str) -> f64 {
        self.args[name].as_f64().unwrap_or_else(|| panic!("no number `{name}` in {}", self.args))
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
    /// The floating-point type to convert to, if it is one.
    fn to(&self) -> Option<DType> {
        dtype_named(self.text("to"))
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
    fn parameter(&self, i: usize) -> Option<&'a Tensor> {
        self.floats.get(i).copied()
    }
    fn batch_norm(&self) -> BatchNormOptions {
        let training = self.args["training"].as_bool().unwrap();
        BatchNormOptions { training, momentum: self.float("momentum"), eps: self.float("eps") }
    }
    /// The running mean and variance, if there are any.
    fn running(&self) -> Result<Option<[Tensor; 2]>> {
        let numbers = |name: &str| -> Option<Vec<f64>> {
            Some(self.args[name].as_array()?.iter().map(|x| x.as_f64().unwrap()).collect())
        };
        let Some((mean, variance)) = numbers("mean").zip(numbers("variance")) else { return Ok(None) };
        let (n, dtype, device) = (mean.len(), self.x().dtype(), self.x().device());
        let load = |values| Tensor::from_vec(values, n)?.to_dtype(dtype)?.to(&device);
        Ok(Some([load(mean)?, load(variance)?]))
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
fn reshape(x: &Tensor, sizes: &[isize]) -> Result<Tensor> {
    match *sizes {
        [a] => x.reshape([a]),
        [a, b] => x.reshape([a, b]),
        [a, b, c] => x.reshape([a, b, c]),
        _ => panic!("reshape to {sizes:?}: add its length here"),
    }
}

pub(super) fn permute<K: Kind>(x: &Tensor<K>, dims: &[isize]) -> Result<Tensor<K>> {
    match *dims {
        [a, b] => x.permute([a, b]),
        [a, b, c] => x.permute([a, b, c]),
        [a, b, c, d] => x.permute([a, b, c, d]),
        _ => panic!("permute {dims:?}: add its length here"),
    }
}
