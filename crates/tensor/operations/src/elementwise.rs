//! Arithmetic, functions of single numbers, comparisons and conversions.

use serde_json::{Value, json};

use super::call::run;
use super::input::{Input, ones, positive, signed, values};
use super::{Autocast, Mixed, Operation, Run, Sample, sample, special};

pub fn entries() -> Vec<Operation> {
    [arithmetic(), with_numbers(), functions(), comparisons(), conversions()].into_iter().flatten().collect()
}

/// Pairs of shapes that broadcast, and pairs of layouts.
pub(super) fn pairs(right: fn(&[usize]) -> Input) -> Vec<Sample> {
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
    samples.push(sample([turned(signed([4, 3])), right(&[3, 4])]).in_every_precision());
    samples.push(sample([signed([3, 4]), right(&[3, 9]).view(json!(["slice", 1, 1, 9, 2]))]));
    let repeated = signed([3, 1]).view(json!(["expand", [2, 3, 4]]));
    samples.push(sample([repeated, turned(right(&[4, 3, 2]))]));
    samples
}

/// The input with its first and last dimensions swapped.
fn turned(input: Input) -> Input {
    input.view(json!(["transpose", 0, -1]))
}

pub(super) fn large_pairs(n: usize) -> Vec<Sample> {
    vec![
        sample([signed([n]), positive([n])]),
        sample([signed([n / 64, 64]), positive([64])]),
        sample([turned(signed([64, n / 64])), positive([n / 64, 64])]),
    ]
}

fn arithmetic() -> Vec<Operation> {
    let signed_pairs = || pairs(|shape| signed(shape));
    let binary = |name, torch, run: Run| {
        Operation::new(name, torch, run)
            .mixed(Mixed::Promotes)
            .exact()
            .samples(signed_pairs())
            .special(special::pairs)
            .large(large_pairs)
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
pub(super) fn single(input: fn(&[usize]) -> Input) -> Vec<Sample> {
    vec![
        sample([input(&[37])]).in_every_precision(),
        sample([input(&[])]),
        sample([input(&[0, 2])]),
        sample([input(&[3, 5]).view(json!(["transpose", 0, 1]))]).in_every_precision(),
        sample([input(&[4, 9]).view(json!(["slice", 0, 1, 4, 2])).view(json!(["narrow", 1, 2, 5]))]),
        sample([input(&[2, 1, 3]).view(json!(["expand", [2, 4, 3]]))]),
    ]
}

fn with_numbers() -> Vec<Operation> {
    let one = |name, torch, run: Run, edge: &'static [f64]| {
        let samples = special::with(single(|shape| signed(shape)), &[json!({ "s": 3 })]);
        Operation::new(name, torch, run)
            .exact()
            .samples(samples)
            .special(|dtype| special::with(special::numbers(dtype), &special::scalars(edge)))
            .large(|n| vec![sample([signed([n])]).args(json!({ "s": 3 }))])
    };
    let fractions = || special::with(single(|shape| positive(shape)), &[json!({ "s": 2.5 }), json!({ "s": -0.125 })]);
    let powers = |samples, exponents: &[f64]| {
        special::with(samples, &exponents.iter().map(|s| json!({ "s": s })).collect::<Vec<_>>())
    };
    let whole = powers(single(|shape| signed(shape)), &[2.0, 3.0, 1.0, 0.0, -1.0, -2.0]);
    let other = powers(single(|shape| positive(shape)), &[0.5, -0.5, 2.7]);
    vec![
        one("add_scalar", "x + s", run! { numbers |c| c.x().add_scalar(c.number("s")) }, &[1.5]),
        one("mul_scalar", "x * s", run! { numbers |c| c.x().mul_scalar(c.number("s")) }, &[-3.0]),
        one("sub_scalar", "x - s", run! { numbers |c| c.x() - c.number("s") }, &[1.5]).methods(&["sub"]),
        one("rsub_scalar", "s - x", run! { floats |c| c.number("s") - c.x() }, &[1.5]).methods(&["sub"]),
        one("div_scalar", "x / s", run! { floats |c| c.x().div_scalar(c.number("s")) }, &[3.0]).samples(fractions()),
        one("rdiv_scalar", "s / x", run! { floats |c| c.number("s") / c.x() }, &[3.0, -3000.0])
            .methods(&["div"])
            .autocast(Autocast::F32)
            .samples(fractions()),
        Operation::new("pow", "x ** s", run! { floats |c| c.x().pow(c.float("s")) })
            .autocast(Autocast::F32)
            .samples(whole.into_iter().chain(other))
            .special(|dtype| {
                let exponents = [0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 2.75];
                special::with(special::numbers(dtype), &special::scalars(&exponents))
            })
            .large(|n| [3.0, -1.0, 2.7].map(|s| sample([positive([n])]).args(json!({ "s": s }))).to_vec()),
    ]
}

fn functions() -> Vec<Operation> {
    let function = |name, torch, run: Run, input: fn(&[usize]) -> Input| {
        let operation = Operation::new(name, torch, run).samples(single(input)).special(special::numbers);
        operation.large(|n| vec![sample([positive([n])])])
    };
    let any: fn(&[usize]) -> Input = |shape| signed(shape);
    let above_zero: fn(&[usize]) -> Input = |shape| positive(shape);
    let kink = || sample([values([3], [-1.0, 0.0, 2.0])]).in_every_precision();
    let with_kink = |operation: Operation| {
        let samples = single(any).into_iter().chain([kink()]);
        let large = |n| vec![sample([signed([n])]), sample([turned(signed([64, n / 64]))])];
        operation.samples(samples).exact().large(large)
    };
    vec![
        function("exp", "torch.exp(x)", run! { floats |c| c.x().exp() }, any).autocast(Autocast::F32),
        function("log", "torch.log(x)", run! { floats |c| c.x().log() }, above_zero).autocast(Autocast::F32),
        function("sqrt", "torch.sqrt(x)", run! { floats |c| c.x().sqrt() }, above_zero).exact(),
        function("tanh", "torch.tanh(x)", run! { floats |c| c.x().tanh() }, any),
        function("sigmoid", "torch.sigmoid(x)", run! { floats |c| c.x().sigmoid() }, any),
        function("silu", "F.silu(x)", run! { floats |c| c.x().silu() }, any),
        function("gelu_tanh", "F.gelu(x, approximate='tanh')", run! { floats |c| c.x().gelu_tanh() }, any),
        function("neg", "-x", run! { numbers |c| c.x().neg() }, any).exact(),
        function("sign", "torch.sign(x)", run! { numbers |c| c.x().sign() }, any).exact(),
        with_kink(function("relu", "torch.relu(x)", run! { floats |c| c.x().relu() }, any)),
        with_kink(function("abs", "torch.abs(x)", run! { numbers |c| c.x().abs() }, any)),
    ]
}

fn comparisons() -> Vec<Operation> {
    let comparison = |name, torch, run: Run| {
        let left = || values([5], [1.0, 2.0, -3.0, 0.0, 5.0]);
        let ties = sample([left(), values([5], [1.0, 1.0, -3.0, 5.0, 5.5])]).in_every_precision();
        Operation::new(name, torch, run)
            .mixed(Mixed::Promotes)
            .without_derivative()
            .exact()
            .samples(pairs(|shape| signed(shape)).into_iter().chain([ties]))
            .special(special::pairs)
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
        let operation = Operation::new(name, torch, run).exact().samples(single(|shape| signed(shape)));
        operation.large(|n| vec![sample([signed([n])])])
    };
    fn to<const N: usize>(names: [&str; N]) -> Vec<Value> {
        names.map(|name| json!({ "to": name })).to_vec()
    }
    let floats = || to(["float32", "float64", "float16", "bfloat16"]);
    let ints = || to(["int64", "int32", "uint8"]);
    let convert = "x.to(getattr(torch, to))";
    let each = move |args: Vec<Value>| move |n: usize| special::with(vec![sample([signed([n])])], &args);
    let scale = [json!({ "factor": 0.25 })];
    vec![
        conversion("to_dtype", convert, run! { floats |c| c.x().to_dtype(c.to()) })
            .samples(special::with(single(|shape| signed(shape)), &floats()))
            .special(move |dtype| special::with(special::numbers(dtype), &floats()))
            .large(each(floats())),
        conversion("to_dtype_of_integers", convert, run! { ints |c| c.x().to_dtype(c.to()) })
            .methods(&["to_dtype"])
            .samples(special::with(single(|shape| signed(shape)), &ints()))
            .large(each(ints())),
        conversion("to_float", "x if x.is_floating_point() else x.float()", run! { elements |c| c.x().to_float() })
            .without_derivative(),
        conversion("to_float_of", convert, run! { elements |c| c.x().to_float_of(c.to()) })
            .samples(special::with(single(|shape| signed(shape)), &floats()))
            .special(move |dtype| special::with(special::numbers(dtype), &floats()))
            .large(each(floats())),
        conversion(
            "to_int",
            "x if x.dtype in (torch.int32, torch.uint8) else x.long()",
            run! { elements |c| {
                c.x().to_int()
            } },
        )
        .special(special::whole_numbers)
        .without_derivative(),
        conversion("to_bool", "x.bool()", run! { elements |c| c.x().to_bool() })
            .special(special::numbers)
            .without_derivative(),
        conversion("scaled", "x.float() * factor", run! { ints |c| c.x().scaled(c.float("factor") as f32) })
            .samples(special::with(single(|shape| ones(shape)), &scale))
            .large(move |n| special::with(vec![sample([signed([n])])], &scale)),
    ]
}
