//! Elements reordered, repeated, split or padded, triangles and diagonals of matrices, additions by index, cumulative
//! sums, sorting and selection.

use pagelock_tensor::{PadMode, Tensor};
use serde_json::{Value, json};

use super::call::run;
use super::input::{index, positive, signed, values};
use super::{Autocast, Mixed, Operation, Run, Sample, case, sample, special};

pub fn entries() -> Vec<Operation> {
    [parts(), rearranged(), padded(), matrices(), products(), by_index(), running(), orders(), selected()]
        .into_iter()
        .flatten()
        .collect()
}

/// An operation that only moves elements.
fn moved(name: &'static str, torch: &'static str, run: Run, cases: &[(&[usize], Value)]) -> Operation {
    let mut samples: Vec<_> = cases.iter().map(|(shape, args)| case(shape, args.clone())).collect();
    samples[0].every_precision = true;
    let args = cases[0].1.clone();
    let rank = cases[0].0.len();
    let large = move |n: usize| {
        let shape = match rank {
            1 => vec![n],
            2 => vec![n / 64, 64],
            _ => vec![n / 4096, 64, 64],
        };
        vec![sample([signed(shape)]).args(args.clone())]
    };
    Operation::new(name, torch, run).samples(samples).moves().large(large)
}

fn parts() -> Vec<Operation> {
    let first = |size: usize, dim: isize| json!({ "n": size, "dim": dim });
    let cases: [(&[usize], Value); 3] = [(&[5, 3], first(2, 0)), (&[2, 5], first(3, -1)), (&[4], first(2, 0))];
    vec![
        moved(
            "split",
            "x.split(n, dim)[-1]",
            run! { elements |c| last(c.x().split(c.size("n"), c.int("dim"))) },
            &cases,
        ),
        moved(
            "chunk",
            "x.chunk(n, dim)[-1]",
            run! { elements |c| last(c.x().chunk(c.size("n"), c.int("dim"))) },
            &cases,
        ),
        moved(
            "split_sizes",
            "x.split(sizes, dim)[-1]",
            run! { elements |c| {
                let rest = c.x().size(c.int("dim"))? - 1;
                last(c.x().split_sizes(&[1, rest], c.int("dim")))
            } },
            &[(&[5, 3], json!({ "sizes": [1, 4], "dim": 0 })), (&[2, 5], json!({ "sizes": [1, 4], "dim": 1 }))],
        )
        .large(|n| vec![case(&[n / 64, 64], json!({ "sizes": [1, 63], "dim": 1 }))]),
        moved(
            "unbind",
            "x.unbind(dim)[-1]",
            run! { elements |c| last(c.x().unbind(c.int("dim"))) },
            &[(&[5, 3], json!({ "dim": 1 })), (&[2, 3, 4], json!({ "dim": 0 }))],
        ),
    ]
}

fn last<K>(parts: pagelock_tensor::Result<Vec<Tensor<K>>>) -> pagelock_tensor::Result<Tensor<K>> {
    Ok(parts?.pop().expect("there are parts"))
}

fn rearranged() -> Vec<Operation> {
    let dims = |dims: &[isize]| json!({ "dims": dims });
    let by = |repeats: &[usize]| json!({ "repeats": repeats });
    vec![
        moved(
            "flip",
            "x.flip(dims)",
            run! { elements |c| c.x().flip(&c.ints("dims")) },
            &[(&[3, 4], dims(&[1])), (&[2, 3, 2], dims(&[0, -1])), (&[0, 2], dims(&[0]))],
        ),
        moved(
            "roll",
            "x.roll(shifts, dims)",
            run! { elements |c| c.x().roll(&c.ints("shifts"), &c.ints("dims")) },
            &[
                (&[3, 4], json!({ "shifts": [1], "dims": [1] })),
                (&[3, 4], json!({ "shifts": [-5, 2], "dims": [0, 1] })),
                (&[0, 2], json!({ "shifts": [1], "dims": [0] })),
            ],
        ),
        moved(
            "repeat",
            "x.repeat(repeats)",
            run! { elements |c| c.x().repeat(&c.sizes("repeats")[..]) },
            &[(&[3, 2], by(&[2, 3])), (&[2], by(&[2, 1, 2])), (&[2, 2], by(&[0, 1]))],
        ),
        moved(
            "tile",
            "x.tile(repeats)",
            run! { elements |c| c.x().tile(&c.sizes("repeats")[..]) },
            &[(&[3, 2], by(&[2])), (&[2], by(&[2, 1, 2]))],
        ),
        moved(
            "repeat_interleave",
            "x.repeat_interleave(n, dim)",
            run! { elements |c| c.x().repeat_interleave(c.size("n"), c.int("dim")) },
            &[(&[3, 2], json!({ "n": 2, "dim": 0 })), (&[2, 3], json!({ "n": 3, "dim": -1 }))],
        ),
        moved(
            "unfold",
            "x.unfold(dim, size, step)",
            run! { elements |c| c.x().unfold(c.int("dim"), c.size("size"), c.size("step")) },
            &[
                (&[7, 2], json!({ "dim": 0, "size": 3, "step": 2 })),
                (&[2, 5], json!({ "dim": 1, "size": 2, "step": 1 })),
            ],
        ),
    ]
}

fn padded() -> Vec<Operation> {
    let around = |sizes: &[isize]| json!({ "sizes": sizes });
    let all = |name, torch, run: Run| {
        moved(
            name,
            torch,
            run,
            &[(&[2, 3, 4], around(&[2, 1])), (&[2, 3, 4], around(&[1, 0])), (&[2, 3, 4], around(&[0, 3]))],
        )
        .methods(&["pad"])
    };
    vec![
        moved(
            "pad",
            "F.pad(x, sizes, value=1)",
            run! { numbers |c| c.x().pad(&c.ints("sizes"), PadMode::Constant(1.0)) },
            &[
                (&[3, 4], around(&[2, 1])),
                (&[3, 4], around(&[1, -2, -1, 3])),
                (&[2, 3], around(&[0, 0, 1, 1])),
                (&[3], around(&[-2, 4])),
            ],
        ),
        all(
            "pad_reflect",
            "F.pad(x, sizes, mode='reflect')",
            run! { floats |c| c.x().pad(&c.ints("sizes"), PadMode::Reflect) },
        ),
        all(
            "pad_replicate",
            "F.pad(x, sizes, mode='replicate')",
            run! { floats |c| c.x().pad(&c.ints("sizes"), PadMode::Replicate) },
        ),
        all(
            "pad_circular",
            "F.pad(x, sizes, mode='circular')",
            run! { floats |c| c.x().pad(&c.ints("sizes"), PadMode::Circular) },
        ),
    ]
}

fn matrices() -> Vec<Operation> {
    let diagonal = |number: isize| json!({ "diagonal": number });
    let cases: [(&[usize], Value); 4] =
        [(&[3, 4], diagonal(0)), (&[4, 3], diagonal(1)), (&[2, 3, 3], diagonal(-1)), (&[2, 2], diagonal(5))];
    vec![
        moved("tril", "x.tril(diagonal)", run! { elements |c| c.x().tril(c.int("diagonal")) }, &cases),
        moved("triu", "x.triu(diagonal)", run! { elements |c| c.x().triu(c.int("diagonal")) }, &cases),
        moved(
            "diag",
            "x.diag(diagonal)",
            run! { elements |c| c.x().diag(c.int("diagonal")) },
            &[
                (&[3, 4], diagonal(1)),
                (&[4, 3], diagonal(-1)),
                (&[3], diagonal(0)),
                (&[3], diagonal(2)),
                (&[2], diagonal(-1)),
            ],
        ),
        Operation::new(
            "meshgrid",
            "torch.meshgrid(*inputs, indexing='ij')[1]",
            run! { elements |c| last(Tensor::meshgrid(&c.all())) },
        )
        .samples([sample([signed([3]), signed([4])]).in_every_precision(), sample([signed([1]), signed([0])])])
        .moves()
        .large(|n| vec![sample([signed([n / 64]), signed([64])])]),
        Operation::new(
            "one_hot",
            "F.one_hot(x.abs().long() % 20, 20)",
            run! { ints |c| c.x().abs()?.fmod_scalar(20)?.one_hot(20) },
        )
        .samples([sample([signed([5])]).in_every_precision(), sample([signed([2, 3])])])
        .large(|n| vec![sample([signed([n / 20])])]),
    ]
}

fn products() -> Vec<Operation> {
    let plain = || vec![sample([values([2, 2], [1.0, 0.5, -2.0, 3.0]), values([2, 2], [2.0, -0.5, 4.0, 1.0])])];
    let batches = || {
        let of = |numbers: [f64; 4]| values([1, 2, 2], numbers);
        vec![sample([of([1.0, 0.5, -2.0, 3.0]), of([2.0, -0.5, 4.0, 1.0])])]
    };
    let scales = json!({ "beta": 0.5, "alpha": 2.0 });
    let add = |samples: Vec<Sample>| {
        let scales = scales.clone();
        let first = |sample: Sample| {
            let mut inputs = sample.inputs;
            inputs.insert(0, inputs[0].clone());
            Sample { inputs, ..super::sample([]) }.args(scales.clone())
        };
        samples.into_iter().map(first).collect::<Vec<_>>()
    };
    let (special, batched) = (add(plain()), add(batches()));
    vec![
        Operation::new("outer", "torch.outer(x, y)", run! { numbers |c| c.x().outer(c.y()) })
            .mixed(Mixed::Promotes)
            .samples([sample([signed([3]), signed([4])]).in_every_precision(), sample([signed([0]), signed([2])])])
            .special(|_| vec![sample([values([2], [1.5, -0.0]), values([3], [f64::INFINITY, f64::NAN, 2.0])])])
            .large(|n| vec![sample([signed([n / 64]), positive([64])])]),
        Operation::new("bmm", "torch.bmm(x, y)", run! { floats |c| c.x().bmm(c.y()) })
            .autocast(Autocast::Half)
            .mixed(Mixed::Refuses)
            .samples([sample([signed([2, 3, 4]), signed([2, 4, 2])]).in_every_precision()])
            .special(move |_| batches())
            .large(|n| vec![sample([signed([n / 4096, 64, 64]), signed([n / 4096, 64, 64])])]),
        Operation::new(
            "addmm",
            "torch.addmm(x, y, z, beta=beta, alpha=alpha)",
            run! { floats |c| c.x().addmm(c.y(), c.z(), c.float("beta"), c.float("alpha")) },
        )
        .autocast(Autocast::Half)
        .samples([sample([signed([3, 2]), signed([3, 4]), signed([4, 2])]).args(scales.clone())])
        .special(move |_| special.clone())
        .large(|n| {
            let args = json!({ "beta": 1.0, "alpha": 1.0 });
            vec![sample([signed([n / 64, 64]), signed([n / 64, 64]), signed([64, 64])]).args(args)]
        }),
        Operation::new(
            "baddbmm",
            "torch.baddbmm(x, y, z, beta=beta, alpha=alpha)",
            run! { floats |c| c.x().baddbmm(c.y(), c.z(), c.float("beta"), c.float("alpha")) },
        )
        .autocast(Autocast::Half)
        .samples([sample([signed([2, 3, 2]), signed([2, 3, 4]), signed([2, 4, 2])]).args(scales)])
        .special(move |_| batched.clone())
        .large(|n| {
            let args = json!({ "beta": 1.0, "alpha": 1.0 });
            let square = || signed([n / 4096, 64, 64]);
            vec![sample([square(), square(), square()]).args(args)]
        }),
    ]
}

fn by_index() -> Vec<Operation> {
    let added = |shape: &[usize], high: i64, indices: &[usize], source: &[usize], dim: isize| {
        sample([signed(shape), signed(source), index(high, indices)]).args(json!({ "dim": dim }))
    };
    let filled = |shape: &[usize], high: i64, indices: usize, dim: isize| {
        sample([signed(shape), index(high, [indices])]).args(json!({ "dim": dim, "s": 3 }))
    };
    let edges = |_| {
        let source = values([3], [1.0, f64::INFINITY, f64::NAN]);
        vec![sample([values([3], [1.0, -0.5, 2.0]), source, index(3, [3])]).args(json!({ "dim": 0 }))]
    };
    vec![
        Operation::new(
            "scatter_add",
            "x.scatter_add(dim, z, y)",
            run! { numbers |c| c.x().scatter_add(c.int("dim"), c.index(), c.y()) },
        )
        .mixed(Mixed::Refuses)
        .samples([
            added(&[3, 2], 3, &[4, 2], &[4, 2], 0).in_every_precision(),
            added(&[2, 3], 3, &[2, 5], &[2, 5], -1),
            added(&[2, 3], 3, &[1, 2], &[2, 4], 1),
        ])
        .special(edges)
        .large(|n| {
            let case = |high: usize, dim: usize| {
                let shape = [n / 64, 64];
                sample([signed(shape), signed(shape), index(high as i64, shape)]).args(json!({ "dim": dim }))
            };
            vec![case(64, 1), case(n / 64, 0)]
        }),
        Operation::new(
            "index_add",
            "x.index_add(dim, z, y)",
            run! { numbers |c| c.x().index_add(c.int("dim"), c.index(), c.y()) },
        )
        .mixed(Mixed::Refuses)
        .samples([added(&[3, 2], 3, &[4], &[4, 2], 0).in_every_precision(), added(&[2, 3], 3, &[5], &[2, 5], 1)])
        .special(edges)
        .large(|n| {
            vec![sample([signed([64, n / 64]), signed([64, n / 64]), index(64, [64])]).args(json!({ "dim": 0 }))]
        }),
        Operation::new(
            "index_fill",
            "x.index_fill(dim, y, s)",
            run! { numbers |c| c.x().index_fill(c.int("dim"), c.index(), c.number("s")) },
        )
        .samples([filled(&[3, 2], 3, 2, 0).in_every_precision(), filled(&[2, 3], 3, 4, -1)])
        .moves()
        .large(|n| vec![sample([signed([n / 64, 64]), index(64, [8])]).args(json!({ "dim": 1, "s": 3 }))]),
        Operation::new(
            "take_along_dim",
            "torch.take_along_dim(x, y, dim)",
            run! { elements |c| c.x().take_along_dim(c.index(), c.int("dim")) },
        )
        .samples([
            sample([signed([3, 2]), index(3, [2, 2])]).args(json!({ "dim": 0 })).in_every_precision(),
            sample([signed([3, 2]), index(3, [2, 1])]).args(json!({ "dim": 0 })),
        ])
        .moves()
        .large(|n| vec![sample([signed([n / 64, 64]), index(64, [n / 64, 8])]).args(json!({ "dim": 1 }))]),
    ]
}

fn running() -> Vec<Operation> {
    let along = |dim: isize| json!({ "dim": dim });
    let samples = || {
        vec![
            case(&[3, 4], along(0)).in_every_precision(),
            case(&[3, 4], along(-1)).in_every_precision(),
            case(&[2, 70], along(1)),
            case(&[2, 3, 2], along(1)),
            case(&[0, 3], along(1)),
            sample([signed([4, 3]).view(json!(["transpose", 0, 1]))]).args(along(0)),
        ]
    };
    let edges = |_| {
        let numbers = [1.0, 2.0, -0.0, 4.0, 0.5, f64::INFINITY, 1.0, 2.0, f64::NAN, 1.0, 3.0, 0.25];
        vec![sample([values([3, 4], numbers)]).args(json!({ "dim": 1 })).without_gradients()]
    };
    let large = |n: usize| {
        vec![
            case(&[n / 64, 64], json!({ "dim": 1 })),
            case(&[64, n / 64], json!({ "dim": 1 })),
            case(&[n / 64, 64], json!({ "dim": 0 })),
        ]
    };
    let over = |name, torch, run: Run| {
        Operation::new(name, torch, run).autocast(Autocast::F32).samples(samples()).special(edges).large(large)
    };
    vec![
        over("cumsum", "x.cumsum(dim)", run! { numbers |c| c.x().cumsum(c.int("dim")) }),
        over("cumprod", "x.cumprod(dim)", run! { numbers |c| c.x().cumprod(c.int("dim")) }),
    ]
}

fn orders() -> Vec<Operation> {
    let args = |dim: isize, descending: bool| json!({ "dim": dim, "descending": descending, "k": 2 });
    let samples = || {
        vec![
            case(&[5, 4], args(0, false)).in_every_precision(),
            case(&[3, 7], args(-1, true)).in_every_precision(),
            case(&[2, 4, 3], args(1, false)),
            sample([signed([4, 3]).view(json!(["transpose", 0, 1]))]).args(args(1, true)),
        ]
    };
    let edges = |_| {
        let numbers = [1.0, f64::NAN, -0.5, f64::INFINITY, 0.25, 2.0, f64::NEG_INFINITY, 4.0];
        vec![sample([values([2, 4], numbers)]).args(json!({ "dim": 1, "descending": false, "k": 2 }))]
    };
    let large = |n: usize| {
        let of = |shape: [usize; 2], dim: usize| case(&shape, json!({ "dim": dim, "descending": true, "k": 2 }));
        vec![of([n / 64, 64], 1), of([8, n / 64], 1), of([n / 64, 16], 0)]
    };
    let order =
        |name, torch, run: Run| Operation::new(name, torch, run).exact().samples(samples()).special(edges).large(large);
    let places = |operation: Operation| operation.without_derivative();
    vec![
        order("sort", "torch.sort(x, dim=dim, descending=descending, stable=True)[0]", run! { numbers |c| Ok::<_, pagelock_tensor::Error>(c.x().sort(c.int("dim"), c.flag("descending"))?.0) }),
        places(order("argsort", "torch.argsort(x, dim=dim, descending=descending, stable=True)", run! { numbers |c| c.x().argsort(c.int("dim"), c.flag("descending")) })),
        order("topk", "torch.topk(x, k, dim, descending)[0]", run! { numbers |c| Ok::<_, pagelock_tensor::Error>(c.x().topk(c.size("k"), c.int("dim"), c.flag("descending"))?.0) }),
        places(order("topk_places", "torch.topk(x, k, dim, descending)[1]", run! { floats |c| Ok::<_, pagelock_tensor::Error>(c.x().topk(c.size("k"), c.int("dim"), c.flag("descending"))?.1) }))
            .methods(&["topk"]),
        order("kthvalue", "torch.kthvalue(x, k, dim)[0]", run! { numbers |c| Ok::<_, pagelock_tensor::Error>(c.x().kthvalue(c.size("k"), c.int("dim"))?.0) }),
        order("median", "torch.median(x, dim)[0]", run! { floats |c| Ok::<_, pagelock_tensor::Error>(c.x().median(c.int("dim"))?.0) }),
    ]
}

fn selected() -> Vec<Operation> {
    let masked = |shape: &[usize], mask: &[usize]| sample([signed(shape), index(2, mask)]).in_every_precision();
    let zeros = || sample([values([5], [0.0, 1.0, 0.0, -2.0, 3.0])]).in_every_precision();
    let edges = |_| vec![sample([values([4], [1.0, f64::INFINITY, -0.5, 1.0])])];
    vec![
        Operation::new("nonzero", "torch.nonzero(x)", run! { elements |c| c.x().nonzero() })
            .without_derivative()
            .exact()
            .samples([sample([signed([2, 3])]).in_every_precision(), zeros(), sample([signed([0, 2])])])
            .special(special::numbers)
            .large(|n| vec![sample([signed([n])])]),
        Operation::new(
            "masked_select",
            "x.masked_select(y.bool())",
            run! { elements |c| c.x().masked_select(&c.index().to_bool()?) },
        )
        .samples([masked(&[3, 4], &[3, 4]), masked(&[2, 3], &[3]), masked(&[0, 2], &[2])])
        .moves()
        .large(|n| vec![sample([signed([n]), index(2, [n])])]),
        Operation::new("unique", "torch.unique(x)", run! { numbers |c| c.x().unique() })
            .without_derivative()
            .exact()
            .samples([sample([signed([3, 9])]).in_every_precision(), zeros(), sample([signed([0])])])
            .special(edges)
            .large(|n| vec![sample([signed([n])])]),
        Operation::new(
            "bincount",
            "torch.bincount(x.abs(), minlength=n)",
            run! { ints |c| c.x().abs()?.bincount(c.size("n")) },
        )
        .without_derivative()
        .exact()
        .samples([5, 40].map(|n| sample([signed([9])]).args(json!({ "n": n })).in_every_precision()))
        .large(|n| vec![sample([signed([n])]).args(json!({ "n": 0 }))]),
        Operation::new(
            "histc",
            "torch.histc(x, bins, low, high)",
            run! { floats |c| c.x().histc(c.size("bins"), c.float("low"), c.float("high")) },
        )
        .without_derivative()
        .exact()
        .samples([
            sample([signed([40])]).args(json!({ "bins": 8, "low": -1.0, "high": 2.0 })),
            sample([signed([40])]).args(json!({ "bins": 4, "low": 0.0, "high": 0.0 })),
        ])
        .special(|_| Vec::new())
        .large(|n| vec![sample([signed([n])]).args(json!({ "bins": 8, "low": -1.0, "high": 2.0 }))]),
    ]
}
