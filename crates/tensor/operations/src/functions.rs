//! Further functions of single numbers, operations on pairs, choices by masks, and logical operations.

use serde_json::json;

use super::call::run;
use super::elementwise::{large_pairs, pairs, single};
use super::input::{Input, above, any, index, positive, signed, values};
use super::{Autocast, Mixed, Operation, Run, Sample, sample, special};

pub fn entries() -> Vec<Operation> {
    [angles(), exponentials(), rounding(), of_pairs(), with_numbers(), choices(), truths()]
        .into_iter()
        .flatten()
        .collect()
}

fn function(name: &'static str, torch: &'static str, run: Run, input: fn(&[usize]) -> Input) -> Operation {
    let operation = Operation::new(name, torch, run).samples(single(input)).special(special::numbers);
    operation.large(|n| vec![sample([positive([n])])])
}

fn angles() -> Vec<Operation> {
    vec![
        function("sin", "torch.sin(x)", run! { floats |c| c.x().sin() }, any),
        function("cos", "torch.cos(x)", run! { floats |c| c.x().cos() }, any),
        function("tan", "torch.tan(x / 2)", run! { floats |c| c.x().mul_scalar(0.5)?.tan() }, any)
            .autocast(Autocast::F32),
        function("asin", "torch.asin(x / 2)", run! { floats |c| c.x().mul_scalar(0.5)?.asin() }, any),
        function("acos", "torch.acos(x / 2)", run! { floats |c| c.x().mul_scalar(0.5)?.acos() }, any),
        function("atan", "torch.atan(x)", run! { floats |c| c.x().atan() }, any),
        function("sinh", "torch.sinh(x)", run! { floats |c| c.x().sinh() }, any).autocast(Autocast::F32),
        function("cosh", "torch.cosh(x)", run! { floats |c| c.x().cosh() }, any).autocast(Autocast::F32),
        function("asinh", "torch.asinh(x)", run! { floats |c| c.x().asinh() }, any),
        function("acosh", "torch.acosh(x * 8)", run! { floats |c| c.x().mul_scalar(8.0)?.acosh() }, above),
        function("atanh", "torch.atanh(x / 2)", run! { floats |c| c.x().mul_scalar(0.5)?.atanh() }, any),
    ]
    .into_iter()
    .map(|operation| match operation.name {
        "asin" | "acos" => operation.autocast(Autocast::F32),
        _ => operation,
    })
    .collect()
}

fn exponentials() -> Vec<Operation> {
    // Only compares numbers for which PyTorch's own `f64` results are accurate.
    let near = |_| vec![sample([values([9], [0.0, -0.0, 1e-4, 0.5, -0.5, 1.0, -2.5, 3.0, 11.0])])];
    let softplus = |beta: f64, threshold: f64| json!({ "beta": beta, "threshold": threshold });
    let bends = [softplus(1.0, 20.0), softplus(2.0, 1.0)];
    let all_bends = bends.clone();
    let elu = |alpha: f64, scale: f64, input_scale: f64| json!({ "alpha": alpha, "scale": scale, "input_scale": input_scale });
    vec![
        function("log1p", "torch.log1p(x)", run! { floats |c| c.x().log1p() }, above).autocast(Autocast::F32),
        function("expm1", "torch.expm1(x)", run! { floats |c| c.x().expm1() }, any).autocast(Autocast::F32),
        function("log2", "torch.log2(x)", run! { floats |c| c.x().log2() }, above).autocast(Autocast::F32),
        function("log10", "torch.log10(x)", run! { floats |c| c.x().log10() }, above).autocast(Autocast::F32),
        function("exp2", "torch.exp2(x)", run! { floats |c| c.x().exp2() }, any),
        function("erf", "torch.erf(x)", run! { floats |c| c.x().erf() }, any),
        function("erfc", "torch.erfc(x)", run! { floats |c| c.x().erfc() }, any),
        function("rsqrt", "torch.rsqrt(x)", run! { floats |c| c.x().rsqrt() }, above).autocast(Autocast::F32),
        function("reciprocal", "torch.reciprocal(x)", run! { floats |c| c.x().reciprocal() }, any)
            .autocast(Autocast::F32)
            .exact(),
        function("gelu", "F.gelu(x)", run! { floats |c| c.x().gelu() }, any).special(near),
        function("leaky_relu", "F.leaky_relu(x, s)", run! { floats |c| c.x().leaky_relu(c.float("s")) }, any)
            .samples(special::with(single(any), &[json!({ "s": 0.01 }), json!({ "s": -0.5 })]))
            .special(|dtype| special::with(special::numbers(dtype), &[json!({ "s": 0.01 })]))
            .large(|n| vec![sample([signed([n])]).args(json!({ "s": 0.01 }))]),
        function(
            "elu",
            "torch.ops.aten.elu(x, alpha, scale, input_scale)",
            run! { floats |c| c.x().elu(c.float("alpha"), c.float("scale"), c.float("input_scale")) },
            any,
        )
        .samples(special::with(single(any), &[elu(1.0, 1.0, 1.0), elu(1.5, 1.25, 0.5)]))
        .special(move |dtype| special::with(special::numbers(dtype), &[elu(1.0, 1.0, 1.0)]))
        .large(move |n| vec![sample([signed([n])]).args(elu(1.0, 1.0, 1.0))]),
        Operation::new("prelu", "F.prelu(x, y)", run! { floats |c| c.x().prelu(c.y()) })
            .mixed(Mixed::Untested)
            .samples([vec![3], vec![]].map(|weight| sample([signed([2, 3]), positive(weight)]).in_every_precision()))
            .special(|_| {
                let x = [f64::NAN, f64::INFINITY, -f64::INFINITY, -0.0, 0.0, -2.0];
                vec![sample([values([1, 6], x), values([6], [0.5, -1.0, 0.25, 3.0, -f64::INFINITY, 2.0])])]
            })
            .large(|n| vec![sample([signed([n]), positive([])])]),
        function(
            "threshold",
            "F.threshold(x, t, v)",
            run! { floats |c| c.x().threshold(c.float("t"), c.float("v")) },
            any,
        )
        .samples(special::with(single(any), &[json!({ "t": 0.5, "v": 20.0 })]))
        .special(|dtype| special::with(special::numbers(dtype), &[json!({ "t": 0.0, "v": 1.0 })]))
        .large(|n| vec![sample([signed([n])]).args(json!({ "t": 0.1, "v": 1.0 }))]),
        function("hardshrink", "F.hardshrink(x, l)", run! { floats |c| c.x().hardshrink(c.float("l")) }, any)
            .samples(special::with(single(any), &[json!({ "l": 0.5 }), json!({ "l": 1.25 })]))
            .special(|dtype| special::with(special::numbers(dtype), &[json!({ "l": 0.5 })]))
            .large(|n| vec![sample([signed([n])]).args(json!({ "l": 0.5 }))]),
        function("softshrink", "F.softshrink(x, l)", run! { floats |c| c.x().softshrink(c.float("l")) }, any)
            .samples(special::with(single(any), &[json!({ "l": 0.5 }), json!({ "l": 1.25 })]))
            .special(|dtype| special::with(special::numbers(dtype), &[json!({ "l": 0.5 })]))
            .large(|n| vec![sample([signed([n])]).args(json!({ "l": 0.5 }))]),
        function("log_sigmoid", "F.logsigmoid(x)", run! { floats |c| c.x().log_sigmoid() }, any),
        function(
            "softplus",
            "F.softplus(x, beta, threshold)",
            run! { floats |c| c.x().softplus(c.float("beta"), c.float("threshold")) },
            any,
        )
        .autocast(Autocast::F32)
        .samples(special::with(single(any), &bends))
        .special(move |dtype| special::with(special::numbers(dtype), &all_bends))
        .large(|n| vec![sample([positive([n])]).args(json!({ "beta": 1.0, "threshold": 20.0 }))]),
    ]
}

fn rounding() -> Vec<Operation> {
    let ties = || sample([values([6], [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])]).without_gradients();
    let rounding = |name, torch, run: Run| {
        let samples = single(any).into_iter().chain([ties()]);
        function(name, torch, run, any).samples(samples).exact()
    };
    vec![
        rounding("floor", "torch.floor(x)", run! { floats |c| c.x().floor() }),
        rounding("ceil", "torch.ceil(x)", run! { floats |c| c.x().ceil() }),
        rounding("trunc", "torch.trunc(x)", run! { floats |c| c.x().trunc() }),
        rounding("round", "torch.round(x)", run! { floats |c| c.x().round() }),
        rounding("frac", "torch.frac(x)", run! { floats |c| c.x().frac() }),
    ]
}

/// Small numbers of both signs, whose remainders are exact in every type.
fn quotients(_: super::DType) -> Vec<Sample> {
    let left = [5.0, -5.0, 5.0, -5.0, 6.0, 0.0, -0.0, 7.5, -7.5, f64::NAN, f64::INFINITY, 2.0];
    let right = [3.0, 3.0, -3.0, -3.0, 3.0, 2.0, 2.0, 0.5, 2.0, 1.0, 2.0, f64::INFINITY];
    vec![sample([values([12], left), values([12], right)]).without_gradients()]
}

fn of_pairs() -> Vec<Operation> {
    let binary = |name, torch, run: Run, samples: Vec<Sample>| {
        Operation::new(name, torch, run).mixed(Mixed::Promotes).samples(samples).large(large_pairs)
    };
    let signed_pairs = || pairs(any);
    let tied = [values([4], [1.0, 2.0, -3.0, 0.0]), values([4], [1.0, 1.0, -3.0, 5.0])];
    let ties = sample(tied).in_every_precision();
    let from_positive = || {
        let mut samples = vec![sample([positive([3, 4]), signed([3, 4])]).in_every_precision()];
        samples.extend([sample([positive([3, 1]), signed([4])]), sample([positive([]), signed([2, 3])])]);
        samples
    };
    let minimum = signed_pairs().into_iter().chain([ties]).collect();
    vec![
        binary("minimum", "torch.minimum(x, y)", run! { numbers |c| c.x().minimum(c.y()) }, minimum)
            .exact()
            .special(special::pairs),
        binary("atan2", "torch.atan2(x, y)", run! { floats |c| c.x().atan2(c.y()) }, signed_pairs()).special(|dtype| {
            quotients(dtype)
                .into_iter()
                .chain(special::pairs(dtype).into_iter().map(Sample::without_gradients))
                .collect()
        }),
        binary("fmod", "torch.fmod(x, y)", run! { numbers |c| c.x().fmod(c.y()) }, pairs(above)).special(quotients),
        binary("remainder", "torch.remainder(x, y)", run! { numbers |c| c.x().remainder(c.y()) }, pairs(above))
            .special(quotients),
        binary(
            "floor_divide",
            "torch.floor_divide(x, y)",
            run! { numbers |c| c.x().floor_divide(c.y()) },
            pairs(above),
        )
        .without_derivative()
        .special(quotients),
        binary("pow_tensor", "torch.pow(x, y)", run! { floats |c| c.x().pow_tensor(c.y()) }, from_positive())
            .special(|_| {
                let left = [2.0, 2.0, 0.0, 0.0, 1.0, -2.0, -2.0, 9.0, f64::INFINITY, f64::NAN];
                let right = [3.0, -1.0, 2.0, 0.0, f64::NAN, 3.0, 2.5, 0.5, 0.0, 0.0];
                vec![sample([values([10], left), values([10], right)]).without_gradients()]
            })
            .large(|n| vec![sample([positive([n]), positive([n])])]),
    ]
}

fn with_numbers() -> Vec<Operation> {
    let one = |name, torch, run: Run| {
        let args = [json!({ "s": 3 }), json!({ "s": -2 })];
        Operation::new(name, torch, run)
            .exact()
            .samples(special::with(single(any), &args[..1]))
            .special(move |dtype| special::with(special::numbers(dtype), &args))
            .large(|n| vec![sample([signed([n])]).args(json!({ "s": 3 }))])
    };
    let divided = |name, torch, run: Run| {
        one(name, torch, run).special(|dtype| {
            let left = |sample: Sample| Sample { inputs: sample.inputs[..1].to_vec(), ..sample };
            special::with(quotients(dtype).into_iter().map(left).collect(), &[json!({ "s": 3 }), json!({ "s": -2 })])
        })
    };
    let bounds = [json!({ "low": -1, "high": 2 }), json!({ "low": 2, "high": 1 })];
    let all_bounds = bounds.clone();
    let bounded = move |name, torch, run: Run| {
        let (small, edges) = (bounds.clone(), all_bounds.clone());
        Operation::new(name, torch, run)
            .exact()
            .samples(special::with(single(any), &small))
            .special(move |dtype| special::with(special::numbers(dtype), &edges))
            .large(|n| vec![sample([signed([n])]).args(json!({ "low": 0, "high": 1 }))])
    };
    let compared = |name, torch, run: Run| {
        let integers = sample([values([4], [1.0, 2.0, 3.0, 4.0])]).args(json!({ "s": 3 })).in_every_precision();
        let operation = one(name, torch, run).without_derivative();
        let samples: Vec<_> = operation.samples.clone().into_iter().chain([integers]).collect();
        operation.samples(samples)
    };
    vec![
        divided("fmod_scalar", "torch.fmod(x, s)", run! { numbers |c| c.x().fmod_scalar(c.number("s")) }),
        divided(
            "remainder_scalar",
            "torch.remainder(x, s)",
            run! { numbers |c| c.x().remainder_scalar(c.number("s")) },
        ),
        divided("floor_divide_scalar", "x // s", run! { numbers |c| c.x().floor_divide_scalar(c.number("s")) })
            .without_derivative(),
        bounded(
            "clamp",
            "torch.clamp(x, low, high)",
            run! { numbers |c| c.x().clamp(c.number("low"), c.number("high")) },
        ),
        // The bound fits in `uint8`: PyTorch's versions treat other bounds differently.
        bounded("clamp_min", "torch.clamp_min(x, low)", run! { numbers |c| c.x().clamp_min(c.number("low")) })
            .samples(special::with(single(any), &[json!({ "low": 1 })])),
        bounded("clamp_max", "torch.clamp_max(x, high)", run! { numbers |c| c.x().clamp_max(c.number("high")) }),
        compared("eq_scalar", "x == s", run! { numbers |c| c.x().eq_scalar(c.number("s")) }),
        compared("ne_scalar", "x != s", run! { numbers |c| c.x().ne_scalar(c.number("s")) }),
        compared("lt_scalar", "x < s", run! { numbers |c| c.x().lt_scalar(c.number("s")) }),
        compared("le_scalar", "x <= s", run! { numbers |c| c.x().le_scalar(c.number("s")) }),
        compared("gt_scalar", "x > s", run! { numbers |c| c.x().gt_scalar(c.number("s")) }),
        compared("ge_scalar", "x >= s", run! { numbers |c| c.x().ge_scalar(c.number("s")) }),
    ]
}

fn choices() -> Vec<Operation> {
    let shapes: [(&[usize], &[usize], &[usize]); 4] =
        [(&[3, 4], &[3, 4], &[3, 4]), (&[4], &[3, 1], &[3, 4]), (&[], &[2, 3], &[3]), (&[0, 3], &[3], &[1])];
    let of = |(x, y, mask): &(&[usize], &[usize], &[usize])| {
        sample([signed(*x), signed(*y), index(2, *mask)]).in_every_precision()
    };
    let masked = |shape: &[usize], mask: &[usize]| {
        sample([signed(shape), index(2, mask)]).args(json!({ "s": 3 })).in_every_precision()
    };
    vec![
        Operation::new(
            "where_cond",
            "torch.where(z.bool(), x, y)",
            run! { elements |c| c.x().where_cond(&c.index().to_bool()?, c.y()) },
        )
        .mixed(Mixed::Promotes)
        .samples(shapes.iter().map(of))
        .moves()
        .large(|n| vec![sample([signed([n]), positive([n]), index(2, [n])])]),
        Operation::new(
            "masked_fill",
            "x.masked_fill(y.bool(), s)",
            run! { numbers |c| c.x().masked_fill(&c.index().to_bool()?, c.number("s")) },
        )
        .samples([masked(&[3, 4], &[3, 4]), masked(&[2, 3, 4], &[3, 1]), masked(&[0, 2], &[2])])
        .moves()
        .large(|n| vec![sample([signed([n]), index(2, [n])]).args(json!({ "s": 3 }))]),
    ]
}

fn truths() -> Vec<Operation> {
    let zeros = || sample([values([5], [0.0, 1.0, 0.0, -2.0, 3.0]), values([5], [0.0, 0.0, 4.0, 1.0, 2.0])]);
    let logical = |name, torch, run: Run| {
        Operation::new(name, torch, run)
            .without_derivative()
            .exact()
            .samples(pairs(any).into_iter().chain([zeros().in_every_precision()]))
            .special(special::pairs)
            .large(large_pairs)
    };
    let about = |name, torch, run: Run| function(name, torch, run, any).without_derivative().exact();
    vec![
        logical("logical_and", "torch.logical_and(x, y)", run! { elements |c| c.x().logical_and(c.y()) }),
        logical("logical_or", "torch.logical_or(x, y)", run! { elements |c| c.x().logical_or(c.y()) }),
        logical("logical_xor", "torch.logical_xor(x, y)", run! { elements |c| c.x().logical_xor(c.y()) }),
        about("logical_not", "torch.logical_not(x)", run! { elements |c| c.x().logical_not() }),
        about("isnan", "torch.isnan(x)", run! { floats |c| c.x().isnan() }),
        about("isinf", "torch.isinf(x)", run! { floats |c| c.x().isinf() }),
        about("isfinite", "torch.isfinite(x)", run! { floats |c| c.x().isfinite() }),
    ]
}
