//! Sums, means, extremes and variances over axes.

use serde_json::{Value, json};

use super::call::run;
use super::input::{signed, values};
use super::{Autocast, Operation, Run, Sample, sample, special};

pub fn entries() -> Vec<Operation> {
    macro_rules! reduction {
        ($kind:ident $method:ident, $keepdim:ident, $torch:literal) => {
            over_axes(
                stringify!($method),
                $torch,
                run! { $kind |c| {
                    if c.flag("keepdim") { c.x().$keepdim(c.axes()?) } else { c.x().$method(c.axes()?) }
                } },
            )
            .methods(&[stringify!($method), stringify!($keepdim)])
        };
    }
    let tied = sample([values([2, 3], [1.0, 3.0, 3.0, 2.0, 2.0, 2.0])]).args(axes(json!([1]), false));
    let extreme = |operation: Operation| {
        let samples = operation.samples.clone().into_iter().chain([tied.clone().in_every_precision()]);
        operation.exact().samples(samples)
    };
    vec![
        reduction!(numbers sum, sum_keepdim, "torch.sum(x, dim=axes, keepdim=keepdim)")
            .autocast(Autocast::F32)
            .summed_dim(1),
        reduction!(floats mean, mean_keepdim, "torch.mean(x, dim=axes, keepdim=keepdim)").summed_dim(1),
        extreme(reduction!(numbers max, max_keepdim, "torch.amax(x, dim=axes or (), keepdim=keepdim)")),
        extreme(reduction!(numbers min, min_keepdim, "torch.amin(x, dim=axes or (), keepdim=keepdim)")),
        reduction!(floats var, var_keepdim, "torch.var(x, dim=axes, keepdim=keepdim)").summed_dim(1),
        place(
            "argmax",
            "torch.argmax(x, dim, keepdim)",
            run! { numbers |c| {
                if c.flag("keepdim") { c.x().argmax_keepdim(c.int("dim")) } else { c.x().argmax(c.int("dim")) }
            } },
        )
        .methods(&["argmax", "argmax_keepdim"]),
        place(
            "argmin",
            "torch.argmin(x, dim, keepdim)",
            run! { numbers |c| {
                if c.flag("keepdim") { c.x().argmin_keepdim(c.int("dim")) } else { c.x().argmin(c.int("dim")) }
            } },
        )
        .methods(&["argmin", "argmin_keepdim"]),
        extreme(reduction!(numbers amax, amax_keepdim, "torch.amax(x, dim=axes or (), keepdim=keepdim)")),
        extreme(reduction!(numbers amin, amin_keepdim, "torch.amin(x, dim=axes or (), keepdim=keepdim)")),
        reduction!(floats std, std_keepdim, "torch.std(x, dim=axes, keepdim=keepdim)").summed_dim(1).special(plain),
        reduction!(floats logsumexp, logsumexp_keepdim, "torch.logsumexp(x, axes or list(range(x.dim())), keepdim)")
            .summed_dim(1)
            .special(masked),
        corrected(
            "var_correction",
            "torch.var(x, axes, correction=0)",
            run! { floats |c| c.x().var_correction(c.axes()?, 0.0) },
        ),
        corrected(
            "std_correction",
            "torch.std(x, axes, correction=2)",
            run! { floats |c| c.x().std_correction(c.axes()?, 2.0) },
        ),
        norms(),
        products(),
        truth(
            "any",
            "(torch.any(x, dim=axes) if axes else torch.any(x)).bool()",
            run! { elements |c| c.x().any(c.axes()?) },
        ),
        truth(
            "all",
            "(torch.all(x, dim=axes) if axes else torch.all(x)).bool()",
            run! { elements |c| c.x().all(c.axes()?) },
        ),
        with_place(
            "max_dim",
            "torch.max(x, dim)[0]",
            run! { numbers |c| Ok::<_, pagelock_tensor::Error>(c.x().max_dim(c.int("dim"))?.0) },
        ),
        with_place(
            "min_dim",
            "torch.min(x, dim)[0]",
            run! { numbers |c| Ok::<_, pagelock_tensor::Error>(c.x().min_dim(c.int("dim"))?.0) },
        ),
    ]
}

/// Rows of numbers that every precision represents exactly.
fn plain(_: pagelock_tensor::DType) -> Vec<Sample> {
    let rows = values([3, 4], [1.0, 2.0, -0.5, 3.0, 0.25, 0.5, 4.0, -2.0, 1.0, -1.0, 2.0, 0.75]);
    vec![sample([rows]).args(axes(json!([1]), false))]
}

/// Rows in which some or all numbers are −∞, as masks make them, and rows with ∞ and NaN.
fn masked(dtype: pagelock_tensor::DType) -> Vec<Sample> {
    let (least, greatest) = (f64::NEG_INFINITY, f64::INFINITY);
    let rows = values([3, 3], [least, 1.0, -2.0, 0.5, least, least, least, least, 3.0]);
    let infinite = values([3, 3], [least, least, least, greatest, 1.0, least, f64::NAN, 1.0, least]);
    let of = |rows| sample([rows]).args(axes(json!([1]), false));
    [of(rows), of(infinite).without_gradients()].into_iter().chain(plain(dtype)).collect()
}

fn corrected(name: &'static str, torch: &'static str, run: Run) -> Operation {
    let over = |shape: &[usize], over: Value| sample([signed(shape)]).args(axes(over, false));
    let samples =
        [over(&[3, 4], json!([1])).in_every_precision(), over(&[4, 3], json!([0])), over(&[2, 3, 4], json!([0, 2]))];
    Operation::new(name, torch, run).summed_dim(1).samples(samples).special(plain).large(large)
}

fn norms() -> Operation {
    let with_p = |samples: Vec<Sample>, p: f64| {
        let add = move |sample: Sample| {
            let mut args = sample.args.clone();
            args["p"] = json!(p);
            sample.args(args)
        };
        samples.into_iter().map(add).collect::<Vec<_>>()
    };
    let torch = "torch.linalg.vector_norm(x, p, dim=axes, keepdim=keepdim)";
    let operation = over_axes(
        "norm",
        torch,
        run! { floats |c| {
            if c.flag("keepdim") { c.x().norm_keepdim(c.float("p"), c.axes()?) } else { c.x().norm(c.float("p"), c.axes()?) }
        } },
    );
    let samples = operation.samples.clone();
    let all = [2.0, 1.0, 3.0].into_iter().flat_map(|p| with_p(samples.clone(), p)).collect::<Vec<_>>();
    operation
        .methods(&["norm", "norm_keepdim"])
        .autocast(Autocast::F32)
        .summed_dim(1)
        .samples(all)
        .special(move |dtype| [2.0, 1.0].into_iter().flat_map(|p| with_p(plain(dtype), p)).collect())
        .large(move |n| with_p(large(n), 2.0))
}

fn products() -> Operation {
    let over = |shape: &[usize], over: Value, keepdim: bool| sample([signed(shape)]).args(axes(over, keepdim));
    let with_zero = sample([values([2, 3], [1.0, 0.0, 3.0, 0.0, 0.0, 2.0])]).args(axes(json!([1]), false));
    let torch = "torch.prod(x, axes[0], keepdim=keepdim) if axes else torch.prod(x)";
    Operation::new(
        "prod",
        torch,
        run! { numbers |c| {
            if c.flag("keepdim") { c.x().prod_keepdim(c.axes()?) } else { c.x().prod(c.axes()?) }
        } },
    )
    .methods(&["prod", "prod_keepdim"])
    .autocast(Autocast::F32)
    .summed_dim(1)
    .samples([
        over(&[3, 4], json!([1]), false).in_every_precision(),
        over(&[3, 5], json!([0]), true),
        over(&[7], json!(null), false),
        over(&[2, 3, 4], json!([1]), false),
        over(&[2, 0], json!([1]), false),
        with_zero,
    ])
    .special(|dtype| plain(dtype).into_iter().map(Sample::without_gradients).collect())
    .large(large)
}

fn truth(name: &'static str, torch: &'static str, run: Run) -> Operation {
    let over = |shape: &[usize], over: Value| sample([signed(shape)]).args(axes(over, false));
    let mixed = values([3, 3], [0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 3.0, 2.0, 5.0]);
    Operation::new(name, torch, run)
        .without_derivative()
        .exact()
        .samples([
            sample([mixed]).args(axes(json!([1]), false)).in_every_precision(),
            over(&[3, 4], json!(null)),
            over(&[0, 2], json!([0])),
            over(&[2, 3, 4], json!([2])),
        ])
        .special(|dtype| special::with(special::rows(dtype), &[axes(json!([1]), false)]))
        .large(large)
}

fn axes(axes: Value, keepdim: bool) -> Value {
    json!({ "axes": axes, "keepdim": keepdim })
}

fn over_axes(name: &'static str, torch: &'static str, run: Run) -> Operation {
    let all = json!(null);
    let cases: [(&[usize], Value); 10] = [
        (&[3, 4], json!([1])),
        (&[6], all.clone()),
        (&[3, 4], all.clone()),
        (&[3, 4], json!([0])),
        (&[3, 4], json!([-1])),
        (&[2, 3, 4], json!([0, 2])),
        (&[2, 3, 4], json!([1])),
        (&[2, 3, 4, 2], json!([1, 3])),
        (&[2, 3, 4, 2], json!([-1, 0])),
        (&[2, 3, 4, 2], json!([2, 3])),
    ];
    let over =
        |keepdim| move |(shape, over): &(&[usize], Value)| sample([signed(*shape)]).args(axes(over.clone(), keepdim));
    let mut samples: Vec<_> = cases.iter().map(over(false)).chain(cases.iter().map(over(true))).collect();
    samples[0].every_precision = true;
    for axis in [all.clone(), json!([0]), json!([1, 2]), json!([2])] {
        let turned = signed([4, 3, 2]).view(json!(["transpose", 0, 2])).view(json!(["transpose", 1, 2]));
        samples.push(sample([turned]).args(axes(axis, false)).in_every_precision());
    }
    let gaps = signed([6, 7]).view(json!(["slice", 0, 0, 6, 2])).view(json!(["slice", 1, 1, 7, 3]));
    samples.push(sample([gaps]).args(axes(json!([0]), false)));
    samples.push(sample([signed([4, 33])]).args(axes(json!([1]), false)).in_every_precision());
    samples.push(sample([signed([1000])]).args(axes(all, false)));
    let special = |dtype| special::with(special::rows(dtype), &[axes(json!([1]), false)]);
    Operation::new(name, torch, run).samples(samples).special(special).large(large)
}

fn large(n: usize) -> Vec<Sample> {
    let over = |shape: [usize; 2], over: Value| sample([signed(shape)]).args(axes(over, false));
    let (long, wide) = ([n / 64, 64], [64, n / 64]);
    vec![
        over(long, json!(null)),
        over(long, json!([0])),
        over(long, json!([1])),
        over(wide, json!([0])),
        over(wide, json!([1])),
    ]
}

fn places() -> Vec<Sample> {
    let over = |dim: isize, keepdim: bool| json!({ "dim": dim, "keepdim": keepdim });
    let shapes: [(&[usize], isize); 5] = [(&[5], 0), (&[3, 4], 0), (&[3, 4], 1), (&[2, 3, 4], -2), (&[2, 3, 4], 2)];
    let mut samples = Vec::new();
    for (shape, dim) in shapes {
        samples.extend([false, true].map(|keepdim| sample([signed(shape)]).args(over(dim, keepdim))));
    }
    samples.push(sample([signed([4, 3]).view(json!(["transpose", 0, 1]))]).args(over(1, false)).in_every_precision());
    let tied = [1.0, 3.0, 3.0, 2.0, 2.0, 2.0];
    samples.push(sample([values([2, 3], tied)]).args(over(1, false)).in_every_precision());
    samples
}

fn place(name: &'static str, torch: &'static str, run: Run) -> Operation {
    Operation::new(name, torch, run)
        .without_derivative()
        .exact()
        .samples(places())
        .special(|dtype| special::with(special::rows(dtype), &[json!({ "dim": 1, "keepdim": false })]))
        .large(large_places)
}

fn large_places(n: usize) -> Vec<Sample> {
    let over = |shape: [usize; 2], dim: isize| sample([signed(shape)]).args(json!({ "dim": dim, "keepdim": false }));
    vec![over([n / 64, 64], 0), over([n / 64, 64], 1), over([64, n / 64], 0), over([64, n / 64], 1)]
}

/// Extremes that are returned with their positions; the values are compared.
fn with_place(name: &'static str, torch: &'static str, run: Run) -> Operation {
    Operation::new(name, torch, run)
        .exact()
        .samples(places())
        .special(|dtype| special::with(plain(dtype), &[json!({ "dim": 1, "keepdim": false })]))
        .large(large_places)
}
