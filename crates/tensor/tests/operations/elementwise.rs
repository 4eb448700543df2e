//! Arithmetic, functions of single numbers, comparisons and conversions.

use serde_json::json;

use super::call::run;
use super::input::{Input, ones, positive, signed, values};
use super::{Autocast, Mixed, Operation, Run, Sample, sample};

pub(super) fn entries() -> Vec<Operation> {
    [arithmetic(), with_numbers(), functions(), comparisons(), conversions()].into_iter().flatten().collect()
}

/// Pairs of shapes that broadcast, and pairs of layouts.
fn pairs(right: fn(&[usize]) -> Input) -> Vec<Sample> {
    let shapes: [(&[usize], &[usize]); 10] = [
        (&[3, 4], &[3, 4]),
        (&[], &[]),
        (&[3, 4], &[4]),
        (&[4], &[3, 4]),
        (&[3, 1], &[1, 4]),
        (&[2, 3, 4], &[3, 1]),
        (&[1], &[2, 3]),
        (&[], &[2, 3]),
        (&[2, 1, 3, 1], &[4, 1, 5]),
        (&[0, 3], &[3]),
    ];
    let mut samples: Vec<_> = shapes.iter().map(|(left, rhs)| sample([signed(*left), right(rhs)])).collect();
    samples[0].every_precision = true;
    let turned = |input: Input| input.view(json!(["transpose", 0, -1]));
    samples.push(sample([turned(signed([4, 3])), right(&[3, 4])]).in_every_precision());
    samples.push(sample([signed([3, 4]), right(&[3, 9]).view(json!(["slice", 1, 1, 9, 2]))]));
    let repeated = signed([3, 1]).view(json!(["expand", [2, 3, 4]]));
    samples.push(sample([repeated, turned(right(&[4, 3, 2]))]));
    samples
}

fn large_pairs(n: usize) -> Vec<Sample> {
    vec![sample([signed([n]), positive([n])]), sample([signed([n / 64, 64]), positive([64])])]
}

fn arithmetic() -> Vec<Operation> {
    let signed_pairs = || pairs(|shape| signed(shape));
    let binary = |name, torch, run: Run| {
        Operation::new(name, torch, run).mixed(Mixed::Promotes).exact().samples(signed_pairs()).large(large_pairs)
    };
    let ties = sample([values([4], [1.0, 2.0, -3.0, 0.0]), values([4], [1.0, 1.0, -3.0, 5.0])]);
    let maximum = signed_pairs().into_iter().chain([ties.in_every_precision()]);
    vec![
        binary("add", "x + y", run! { elements |c| c.x().add(c.y()) }),
        binary("sub", "x - y", run! { numbers |c| c.x().sub(c.y()) }),
        binary("mul", "x * y", run! { elements |c| c.x().mul(c.y()) }),
        binary("div", "x / y", run! { floats |c| c.x().div(c.y()) }),
        binary("maximum", "torch.maximum(x, y)", run! { numbers |c| c.x().maximum(c.y()) }).samples(maximum),
    ]
}

/// Shapes and layouts of one tensor.
fn single(input: fn(&[usize]) -> Input) -> Vec<Sample> {
    vec![
        sample([input(&[37])]).in_every_precision(),
        sample([input(&[])]),
        sample([input(&[0, 2])]),
        sample([input(&[3, 5]).view(json!(["transpose", 0, 1]))]).in_every_precision(),
        sample([input(&[4, 9]).view(json!(["slice", 0, 1, 4, 2])).view(json!(["narrow", 1, 2, 5]))]),
        sample([input(&[2, 1, 3]).view(json!(["expand", [2, 4, 3]]))]),
    ]
}

fn with_args(samples: Vec<Sample>, args: &[serde_json::Value]) -> Vec<Sample> {
    args.iter().flat_map(|args| samples.iter().map(|sample| sample.clone().args(args.clone()))).collect()
}

fn with_numbers() -> Vec<Operation> {
    let one = |name, torch, run: Run| {
        let samples = with_args(single(|shape| signed(shape)), &[json!({ "s": 3 })]);
        Operation::new(name, torch, run)
            .exact()
            .samples(samples)
            .large(|n| vec![sample([signed([n])]).args(json!({ "s": 3 }))])
    };
    let fractions = || with_args(single(|shape| positive(shape)), &[json!({ "s": 2.5 }), json!({ "s": -0.125 })]);
    let powers = |samples, exponents: &[f64]| {
        with_args(samples, &exponents.iter().map(|s| json!({ "s": s })).collect::<Vec<_>>())
    };
    let whole = powers(single(|shape| signed(shape)), &[2.0, 3.0, 1.0, 0.0, -1.0, -2.0]);
    let other = powers(single(|shape| positive(shape)), &[0.5, -0.5, 2.7]);
    vec![
        one("add_scalar", "x + s", run! { numbers |c| c.x().add_scalar(c.number("s")) }),
        one("mul_scalar", "x * s", run! { numbers |c| c.x().mul_scalar(c.number("s")) }),
        one("sub_scalar", "x - s", run! { numbers |c| c.x() - c.number("s") }).methods(&["sub"]),
        one("rsub_scalar", "s - x", run! { floats |c| c.number("s") - c.x() }).methods(&["sub"]),
        one("div_scalar", "x / s", run! { floats |c| c.x().div_scalar(c.number("s")) }).samples(fractions()),
        one("rdiv_scalar", "s / x", run! { floats |c| c.number("s") / c.x() })
            .methods(&["div"])
            .autocast(Autocast::F32)
            .samples(fractions()),
        Operation::new("pow", "x ** s", run! { floats |c| c.x().pow(c.float("s")) })
            .autocast(Autocast::F32)
            .samples(whole.into_iter().chain(other))
            .large(|n| [3.0, -1.0, 2.7].map(|s| sample([positive([n])]).args(json!({ "s": s }))).to_vec()),
    ]
}

fn functions() -> Vec<Operation> {
    let function = |name, torch, run: Run, input: fn(&[usize]) -> Input| {
        Operation::new(name, torch, run).samples(single(input)).large(|n| vec![sample([positive([n])])])
    };
    let any: fn(&[usize]) -> Input = |shape| signed(shape);
    let above: fn(&[usize]) -> Input = |shape| positive(shape);
    let kink = || sample([values([3], [-1.0, 0.0, 2.0])]).in_every_precision();
    let with_kink = |operation: Operation| {
        let samples = single(any).into_iter().chain([kink()]);
        operation.samples(samples).exact().large(|n| vec![sample([signed([n])])])
    };
    vec![
        function("exp", "torch.exp(x)", run! { floats |c| c.x().exp() }, any).autocast(Autocast::F32),
        function("log", "torch.log(x)", run! { floats |c| c.x().log() }, above).autocast(Autocast::F32),
        function("sqrt", "torch.sqrt(x)", run! { floats |c| c.x().sqrt() }, above).exact(),
        function("tanh", "torch.tanh(x)", run! { floats |c| c.x().tanh() }, any),
        function("sigmoid", "torch.sigmoid(x)", run! { floats |c| c.x().sigmoid() }, any),
        function("neg", "-x", run! { numbers |c| c.x().neg() }, any).exact(),
        function("sign", "torch.sign(x)", run! { numbers |c| c.x().sign() }, any).exact(),
        with_kink(function("relu", "torch.relu(x)", run! { floats |c| c.x().relu() }, any)),
        with_kink(function("abs", "torch.abs(x)", run! { numbers |c| c.x().abs() }, any)),
    ]
}

fn comparisons() -> Vec<Operation> {
    let comparison = |name, torch, run: Run| {
        let equal = || values([5], [1.0, 2.0, -3.0, 0.0, 5.0]);
        let ties = sample([equal(), values([5], [1.0, 1.0, -3.0, 5.0, 5.5])]).in_every_precision();
        Operation::new(name, torch, run)
            .mixed(Mixed::Promotes)
            .without_derivative()
            .exact()
            .samples(pairs(|shape| signed(shape)).into_iter().chain([ties]))
            .large(large_pairs)
    };
    vec![
        comparison("eq", "x == y", run! { elements |c| c.x().eq(c.y()) }),
        comparison("ne", "x != y", run! { elements |c| c.x().ne(c.y()) }),
        comparison("lt", "x < y", run! { elements |c| c.x().lt(c.y()) }),
        comparison("le", "x <= y", run! { elements |c| c.x().le(c.y()) }),
        comparison("gt", "x > y", run! { elements |c| c.x().gt(c.y()) }),
        comparison("ge", "x >= y", run! { elements |c| c.x().ge(c.y()) }),
    ]
}

fn conversions() -> Vec<Operation> {
    let conversion = |name, torch, run: Run| {
        Operation::new(name, torch, run)
            .exact()
            .samples(single(|shape| signed(shape)))
            .large(|n| vec![sample([signed([n])])])
    };
    let to = |names: &[&str]| names.iter().map(|name| json!({ "to": name })).collect::<Vec<_>>();
    let floats = to(&["float32", "float64", "float16", "bfloat16"]);
    let ints = to(&["int64", "int32", "uint8"]);
    let convert = "x.to(getattr(torch, to))";
    vec![
        conversion("to_dtype", convert, run! { floats |c| c.x().to_dtype(c.to()) })
            .samples(with_args(single(|shape| signed(shape)), &floats))
            .large(|n| {
                let to = |name: &str| sample([signed([n])]).args(json!({ "to": name }));
                ["float32", "float64", "float16", "bfloat16"].map(to).to_vec()
            }),
        conversion("to_dtype_of_integers", convert, run! { ints |c| c.x().to_dtype(c.to()) })
            .methods(&["to_dtype"])
            .samples(with_args(single(|shape| signed(shape)), &ints))
            .large(|n| {
                ["int64", "int32", "uint8"].map(|name| sample([signed([n])]).args(json!({ "to": name }))).to_vec()
            }),
        conversion("to_float", "x.float() if not x.is_floating_point() else x", run! { elements |c| c.x().to_float() })
            .without_derivative(),
        conversion(
            "to_int",
            "x.long() if x.dtype not in (torch.int32, torch.uint8) else x",
            run! { elements |c| c.x().to_int() },
        )
        .without_derivative(),
        conversion("to_bool", "x.bool()", run! { elements |c| c.x().to_bool() }).without_derivative(),
        conversion("scaled", "x.float() * factor", run! { ints |c| c.x().scaled(c.float("factor") as f32) })
            .samples(with_args(single(|shape| ones(shape)), &[json!({ "factor": 0.25 })]))
            .large(|n| vec![sample([signed([n])]).args(json!({ "factor": 0.25 }))]),
    ]
}
