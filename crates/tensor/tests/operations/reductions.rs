//! Sums, means, extremes and variances over axes.

use serde_json::{Value, json};

use super::call::run;
use super::input::{signed, values};
use super::{Autocast, Operation, Run, Sample, sample, special};

pub(crate) fn entries() -> Vec<Operation> {
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
            .together(1),
        reduction!(floats mean, mean_keepdim, "torch.mean(x, dim=axes, keepdim=keepdim)").together(1),
        extreme(reduction!(numbers max, max_keepdim, "torch.amax(x, dim=axes or (), keepdim=keepdim)")),
        extreme(reduction!(numbers min, min_keepdim, "torch.amin(x, dim=axes or (), keepdim=keepdim)")),
        reduction!(floats var, var_keepdim, "torch.var(x, dim=axes, keepdim=keepdim)").together(1),
        argmax(),
    ]
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

fn argmax() -> Operation {
    let over = |dim: isize, keepdim: bool| json!({ "dim": dim, "keepdim": keepdim });
    let shapes: [(&[usize], isize); 5] = [(&[5], 0), (&[3, 4], 0), (&[3, 4], 1), (&[2, 3, 4], -2), (&[2, 3, 4], 2)];
    let mut samples = Vec::new();
    for (shape, dim) in shapes {
        samples.extend([false, true].map(|keepdim| sample([signed(shape)]).args(over(dim, keepdim))));
    }
    samples.push(sample([signed([4, 3]).view(json!(["transpose", 0, 1]))]).args(over(1, false)).in_every_precision());
    let tied = [1.0, 3.0, 3.0, 2.0, 2.0, 2.0];
    samples.push(sample([values([2, 3], tied)]).args(over(1, false)).in_every_precision());
    Operation::new(
        "argmax",
        "torch.argmax(x, dim, keepdim)",
        run! { numbers |c| {
            if c.flag("keepdim") { c.x().argmax_keepdim(c.int("dim")) } else { c.x().argmax(c.int("dim")) }
        } },
    )
    .methods(&["argmax", "argmax_keepdim"])
    .without_derivative()
    .exact()
    .samples(samples)
    .special(|dtype| special::with(special::rows(dtype), &[json!({ "dim": 1, "keepdim": false })]))
    .large(|n| {
        let over =
            |shape: [usize; 2], dim: isize| sample([signed(shape)]).args(json!({ "dim": dim, "keepdim": false }));
        vec![over([n / 64, 64], 0), over([n / 64, 64], 1), over([64, n / 64], 0), over([64, n / 64], 1)]
    })
}
