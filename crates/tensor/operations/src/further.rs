//! Operations composed of others: `einsum`, diagonals, products of vectors, distances, cumulative extremes,
//! quantiles, counts.

use pagelock_tensor::{Error, Tensor};
use serde_json::{Value, json};

use super::call::run;
use super::elementwise::{large_pairs, pairs, single};
use super::input::{any, positive, signed, values};
use super::{Autocast, Mixed, Operation, Run, Sample, case, sample, special};

pub fn entries() -> Vec<Operation> {
    special::at_edges([
        sums_of_products(),
        diagonals(),
        vectors(),
        of_values(),
        running(),
        ordered(),
        counted(),
        moved(),
    ])
}

fn sums_of_products() -> Vec<Operation> {
    fn of(equation: &str, shapes: &[&[usize]]) -> Sample {
        let inputs = shapes.iter().map(|shape| signed(*shape)).collect();
        Sample { inputs, ..sample([]) }.args(json!({ "eq": equation }))
    }
    let call = || run! { numbers |c| Tensor::einsum(c.text("eq"), &c.all()) };
    vec![
        Operation::new("einsum", "torch.einsum(eq, *inputs)", call())
            .autocast(Autocast::Half)
            .samples([
                of("ij,jk->ik", &[&[3, 4], &[4, 2]]),
                of("bij,bkj", &[&[2, 3, 4], &[2, 2, 4]]),
                of("...ij,...jk->...ik", &[&[2, 1, 3, 4], &[3, 4, 2]]),
                of("ii,i", &[&[3, 3], &[3]]),
                of("abc,cd,ad->bd", &[&[2, 3, 4], &[4, 2], &[2, 2]]),
                of("i,i->", &[&[4], &[4]]),
            ])
            .large(|n| {
                vec![
                    of("bij,bkj->bik", &[&[n / 4096, 64, 64], &[n / 4096, 32, 64]]),
                    of("bqhd,bkhd->bhqk", &[&[n / 8192, 32, 4, 64], &[n / 8192, 32, 4, 64]]),
                    of("nd,nd->n", &[&[n / 64, 64], &[n / 64, 64]]),
                ]
            }),
        Operation::new(
            "einsum_sums",
            "torch.einsum(eq, *inputs)",
            run! { floats |c| Tensor::einsum(c.text("eq"), &c.all()) },
        )
        .methods(&["einsum"])
        .autocast(Autocast::F32)
        .samples([
            of("ij->j", &[&[3, 4]]),
            of("ii", &[&[3, 3]]),
            of("iji->j", &[&[3, 2, 3]]),
            of("...i->...", &[&[2, 3, 4]]),
        ])
        .large(|n| vec![of("ij->j", &[&[n / 64, 64]]), of("bij->bi", &[&[n / 4096, 64, 64]])]),
        Operation::new("einsum_moves", "torch.einsum(eq, *inputs)", call())
            .methods(&["einsum"])
            .samples([
                of("ij->ji", &[&[3, 4]]).in_every_precision(),
                of("ba", &[&[3, 4]]),
                of("ii->i", &[&[3, 3]]),
                of("i,j->ij", &[&[3], &[4]]),
                of("a...b->b...a", &[&[2, 3, 4, 2]]),
            ])
            .large(|n| vec![of("i,j->ij", &[&[n / 64], &[64]])]),
    ]
}

fn diagonals() -> Vec<Operation> {
    let args = |offset: isize, a: isize, b: isize| json!({ "offset": offset, "a": a, "b": b });
    let triangle = |name, torch, run: Run| {
        let of = |n: usize, m: usize, offset: isize| {
            sample([]).args(json!({ "n": n, "m": m, "offset": offset })).in_every_precision()
        };
        let samples = [of(3, 4, 0), of(4, 3, 1), of(4, 3, -2), of(2, 2, -5), of(2, 2, 5)];
        let operation = Operation::new(name, torch, run).without_derivative().exact().samples(samples);
        operation.large(move |n| vec![of(n.isqrt(), n.isqrt() / 2, -1)])
    };
    vec![
        Operation::new(
            "diagonal",
            "x.diagonal(offset, a, b)",
            run! { elements |c| c.x().diagonal(c.int("offset"), c.int("a"), c.int("b")) },
        )
        .samples([
            case(&[3, 4], args(0, 0, 1)).in_every_precision(),
            case(&[4, 3], args(-1, 0, 1)),
            case(&[2, 3, 4], args(1, -1, 0)),
            case(&[2, 3], args(5, 0, 1)),
            sample([signed([4, 3]).view(json!(["transpose", 0, 1]))]).args(args(1, 0, 1)),
        ])
        .moves()
        .large(move |n| vec![case(&[n / 4096, 64, 64], args(1, 1, 2))]),
        Operation::new(
            "diag_embed",
            "x.diag_embed(offset, a, b)",
            run! { elements |c| c.x().diag_embed(c.int("offset"), c.int("a"), c.int("b")) },
        )
        .samples([
            case(&[3], args(0, -2, -1)).in_every_precision(),
            case(&[2, 3], args(1, -2, -1)),
            case(&[2, 3], args(-1, 2, 0)),
        ])
        .moves()
        .large(move |n| vec![case(&[n / 4096, 64], args(0, -2, -1))]),
        Operation::new("trace", "torch.trace(x)", run! { numbers |c| c.x().trace() })
            .autocast(Autocast::F32)
            .samples([case(&[3, 4], json!({})).in_every_precision(), case(&[0, 2], json!({}))])
            .large(|n| vec![case(&[n.isqrt(), n.isqrt()], json!({}))]),
        triangle(
            "tril_indices",
            "torch.tril_indices(n, m, offset)",
            run! { ints |c| Tensor::tril_indices(c.size("n"), c.size("m"), c.int("offset")) },
        ),
        triangle(
            "triu_indices",
            "torch.triu_indices(n, m, offset)",
            run! { ints |c| Tensor::triu_indices(c.size("n"), c.size("m"), c.int("offset")) },
        ),
    ]
}

fn vectors() -> Vec<Operation> {
    let both = |left: &[usize], right: &[usize]| sample([signed(left), signed(right)]);
    let distances = |p: f64| {
        [both(&[3, 2], &[4, 2]), both(&[2, 3, 4], &[2, 2, 4])].map(move |sample| sample.args(json!({ "p": p })))
    };
    vec![
        Operation::new("dot", "torch.dot(x, y)", run! { numbers |c| c.x().dot(c.y()) })
            .autocast(Autocast::Half)
            .mixed(Mixed::Refuses)
            .samples([both(&[5], &[5])])
            .large(move |n| vec![both(&[n], &[n])]),
        Operation::new("mv", "torch.mv(x, y)", run! { numbers |c| c.x().mv(c.y()) })
            .autocast(Autocast::Half)
            .mixed(Mixed::Refuses)
            .samples([both(&[3, 5], &[5])])
            .large(move |n| vec![both(&[n / 256, 256], &[256])]),
        Operation::new("kron", "torch.kron(x, y)", run! { numbers |c| c.x().kron(c.y()) })
            .mixed(Mixed::Promotes)
            .samples([both(&[2, 3], &[3, 2]).in_every_precision(), both(&[3], &[2, 2]), both(&[2, 2, 2], &[2])])
            .large(move |n| vec![both(&[n / 4096, 16], &[16, 16])]),
        Operation::new(
            "cdist",
            "torch.cdist(wide(x), wide(y), p, compute_mode='donot_use_mm_for_euclid_dist').to(x.dtype)",
            run! { floats |c| c.x().cdist(c.y(), c.float("p")) },
        )
        .autocast(Autocast::F32)
        .mixed(Mixed::Promotes)
        .samples([2.0, 1.0, 3.0].into_iter().flat_map(distances))
        .large(|n| {
            let of = |p: f64| sample([signed([n / 128, 16]), positive([128, 16])]).args(json!({ "p": p }));
            vec![of(2.0), of(1.0)]
        }),
    ]
}

fn of_values() -> Vec<Operation> {
    let binary = |name, torch, run: Run| {
        let samples = pairs(any).into_iter().take(6);
        Operation::new(name, torch, run).mixed(Mixed::Promotes).samples(samples).large(large_pairs)
    };
    let triple = |name, torch, run: Run| {
        let of = |x: &[usize], y: &[usize], z: &[usize]| {
            sample([signed(x), signed(y), positive(z)]).args(json!({ "s": 0.25 }))
        };
        let samples =
            [of(&[3, 4], &[3, 4], &[3, 4]).in_every_precision(), of(&[4], &[3, 1], &[]), of(&[2, 3], &[3], &[2, 1])];
        let operation = Operation::new(name, torch, run).mixed(Mixed::Promotes).samples(samples);
        operation.large(move |n| vec![of(&[n], &[n], &[n])])
    };
    let weighted = |weight: f64| {
        let of = move |sample: Sample| sample.args(json!({ "s": weight }));
        pairs(any).into_iter().take(4).map(of)
    };
    let stepped = [values([6], [-1.0, 0.0, 2.0, -0.0, 0.0, 3.0]), values([6], [5.0, 6.0, 7.0, 8.0, 9.0, 4.0])];
    let logs = [values([6], [0.0, 0.0, 2.0, 0.0, 1.0, -3.0]), values([6], [0.0, 2.0, 3.0, f64::NAN, 0.5, 4.0])];
    let close = [
        values([6], [1.0, f64::NAN, f64::INFINITY, 2.0, f64::INFINITY, 0.0]),
        values([6], [1.0, f64::NAN, f64::INFINITY, 2.5, -f64::INFINITY, -0.0]),
    ];
    let edges = || sample([values([5], [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.5, -0.0])]).in_every_precision();
    let squares = single(any);
    vec![
        binary("logaddexp", "torch.logaddexp(x, y)", run! { floats |c| c.x().logaddexp(c.y()) }),
        binary("hypot", "torch.hypot(x, y)", run! { floats |c| c.x().hypot(c.y()) }),
        Operation::new("xlogy", "torch.xlogy(x, y)", run! { floats |c| c.x().xlogy(c.y()) })
            .mixed(Mixed::Promotes)
            .samples([
                sample([signed([3, 4]), positive([3, 4])]).in_every_precision(),
                sample([signed([3, 1]), positive([4])]),
                sample(logs).without_gradients(),
            ])
            .large(|n| vec![sample([signed([n]), positive([n])])]),
        Operation::new("lerp", "torch.lerp(x, y, s)", run! { floats |c| c.x().lerp(c.y(), c.float("s")) })
            .samples([0.25, 0.75].into_iter().flat_map(weighted))
            .large(|n| vec![sample([signed([n]), signed([n])]).args(json!({ "s": 0.25 }))]),
        triple("lerp_tensor", "torch.lerp(x, y, z)", run! { floats |c| c.x().lerp_tensor(c.y(), c.z()) })
            .mixed(Mixed::Untested),
        triple(
            "addcmul",
            "torch.addcmul(x, y, z, value=s)",
            run! { floats |c| c.x().addcmul(c.y(), c.z(), c.float("s")) },
        ),
        triple(
            "addcdiv",
            "torch.addcdiv(x, y, z, value=s)",
            run! { floats |c| c.x().addcdiv(c.y(), c.z(), c.float("s")) },
        ),
        Operation::new("heaviside", "torch.heaviside(x, y)", run! { floats |c| c.x().heaviside(c.y()) })
            .without_derivative()
            .exact()
            .samples([sample(stepped).in_every_precision(), sample([signed([3, 1]), signed([4])])])
            .large(large_pairs),
        Operation::new(
            "logit",
            "torch.logit(x / 2, 1e-2)",
            run! { floats |c| c.x().mul_scalar(0.5)?.logit(Some(1e-2)) },
        )
        .samples([case(&[7], json!({})).in_every_precision()])
        .large(|n| vec![sample([positive([n])])]),
        Operation::new("nan_to_num", "torch.nan_to_num(x, 2.0)", run! { floats |c| c.x().nan_to_num(2.0) })
            .exact()
            .samples([edges(), case(&[5], json!({}))])
            .large(|n| vec![case(&[n], json!({}))]),
        Operation::new(
            "isclose",
            "torch.isclose(x, y, 1e-5, 1e-8, equal_nan=True)",
            run! { floats |c| c.x().isclose(c.y(), 1e-5, 1e-8, true) },
        )
        .without_derivative()
        .exact()
        .samples([sample(close).in_every_precision(), sample([signed([3, 1]), signed([4])])])
        .large(large_pairs),
        Operation::new("square", "torch.square(x)", run! { numbers |c| c.x().square() })
            .exact()
            .samples(squares)
            .special(special::numbers)
            .large(|n| vec![case(&[n], json!({}))]),
    ]
}

fn running() -> Vec<Operation> {
    let along = |dim: isize| json!({ "dim": dim });
    let tied = || sample([values([7], [1.0, 3.0, 3.0, 2.0, 5.0, 1.0, 5.0])]).args(along(0)).in_every_precision();
    let with_nan = || sample([values([5], [1.0, f64::NAN, 3.0, f64::NAN, 5.0])]).args(along(0)).without_gradients();
    let samples = || {
        vec![
            case(&[3, 4], along(0)).in_every_precision(),
            case(&[3, 7], along(-1)).in_every_precision(),
            case(&[2, 3, 2], along(1)),
            sample([signed([4, 3]).view(json!(["transpose", 0, 1]))]).args(along(0)),
        ]
    };
    let large = move |n: usize| vec![case(&[n / 64, 64], along(1)), case(&[n / 64, 64], along(0))];
    let extreme = |name, torch, run: Run| {
        Operation::new(name, torch, run).exact().samples(samples().into_iter().chain([tied()])).large(large)
    };
    let places = |name, torch, run: Run, method: &'static [&'static str]| {
        let samples = samples().into_iter().chain([tied(), with_nan()]);
        Operation::new(name, torch, run).methods(method).without_derivative().exact().samples(samples).large(large)
    };
    vec![
        extreme(
            "cummax",
            "torch.cummax(x, dim)[0]",
            run! { numbers |c| Ok::<_, Error>(c.x().cummax(c.int("dim"))?.0) },
        ),
        extreme(
            "cummin",
            "torch.cummin(x, dim)[0]",
            run! { numbers |c| Ok::<_, Error>(c.x().cummin(c.int("dim"))?.0) },
        ),
        places(
            "cummax_places",
            "torch.cummax(x, dim)[1]",
            run! { floats |c| Ok::<_, Error>(c.x().cummax(c.int("dim"))?.1) },
            &["cummax"],
        ),
        places(
            "cummin_places",
            "torch.cummin(x, dim)[1]",
            run! { floats |c| Ok::<_, Error>(c.x().cummin(c.int("dim"))?.1) },
            &["cummin"],
        ),
        Operation::new(
            "logcumsumexp",
            "torch.logcumsumexp(x, dim)",
            run! { floats |c| c.x().logcumsumexp(c.int("dim")) },
        )
        .autocast(Autocast::F32)
        .samples(samples())
        .large(large),
    ]
}

fn ordered() -> Vec<Operation> {
    let at = |dim: isize, q: f64| json!({ "dim": dim, "q": q });
    let samples = || {
        vec![
            case(&[5, 4], at(0, 0.3)),
            case(&[3, 6], at(-1, 0.5)),
            case(&[7], at(0, 1.0)),
            case(&[2, 3, 2], at(1, 0.0)),
        ]
    };
    let with_nan = |q: f64| {
        let numbers = [1.0, f64::NAN, 3.0, 2.0, 5.0, 4.0, f64::NAN, f64::NAN, f64::NAN, f64::NAN];
        sample([values([2, 5], numbers)]).args(at(1, q)).without_gradients()
    };
    let over = |name, torch, run: Run| {
        let operation = Operation::new(name, torch, run).samples(samples().into_iter().chain([with_nan(0.4)]));
        operation.large(move |n| vec![case(&[n / 256, 64], at(1, 0.3)), case(&[64, n / 256], at(1, 0.5))])
    };
    // The closures sort the first input, and so do the expressions for PyTorch.
    let searched = |name, torch, run: Run| {
        let of = |sorted: &[usize], wanted: &[usize]| {
            [true, false].map(|right| sample([signed(sorted), signed(wanted)]).args(json!({ "right": right })))
        };
        let samples = [of(&[7], &[3, 4]), of(&[1], &[5]), of(&[0], &[5])].into_iter().flatten();
        let samples = samples.map(Sample::in_every_precision);
        let operation = Operation::new(name, torch, run).without_derivative().exact().samples(samples);
        operation.large(|n| vec![sample([signed([1024]), signed([n / 4])]).args(json!({ "right": true }))])
    };
    let distinct = |name, torch, run: Run| {
        let samples =
            [sample([signed([3, 9])]), sample([values([5], [0.0, 1.0, 0.0, -2.0, 3.0])]), sample([signed([0])])];
        Operation::new(name, torch, run)
            .methods(&["unique_with_counts"])
            .without_derivative()
            .exact()
            .samples(samples.map(Sample::in_every_precision))
            .large(|n| vec![sample([signed([n / 8])])])
    };
    vec![
        over(
            "quantile",
            "torch.quantile(wide(x), q, dim).to(x.dtype)",
            run! { floats |c| c.x().quantile(c.float("q"), c.int("dim")) },
        ),
        over(
            "nanquantile",
            "torch.nanquantile(wide(x), q, dim).to(x.dtype)",
            run! { floats |c| c.x().nanquantile(c.float("q"), c.int("dim")) },
        ),
        over("nanmedian", "torch.nanmedian(x, dim)[0]", run! { floats |c| c.x().nanmedian(c.int("dim")) }).exact(),
        searched(
            "searchsorted",
            "torch.searchsorted(x.sort()[0], y, right=right)",
            run! { numbers |c| c.x().sort(0, false)?.0.searchsorted(c.y(), c.flag("right")) },
        ),
        searched(
            "bucketize",
            "torch.bucketize(y, x.sort()[0], right=right)",
            run! { numbers |c| c.y().bucketize(&c.x().sort(0, false)?.0, c.flag("right")) },
        ),
        Operation::new(
            "searchsorted_rows",
            "torch.searchsorted(x.sort()[0], y)",
            run! { numbers |c| c.x().sort(-1, false)?.0.searchsorted(c.y(), false) },
        )
        .methods(&["searchsorted"])
        .without_derivative()
        .exact()
        .samples([sample([signed([2, 5]), signed([2, 3])])])
        .large(|n| vec![sample([signed([16, 64]), signed([16, n / 64])])]),
        distinct(
            "unique_inverse",
            "torch.unique(x, return_inverse=True)[1]",
            run! { numbers |c| Ok::<_, Error>(c.x().unique_with_counts()?.1) },
        ),
        distinct(
            "unique_counts",
            "torch.unique(x, return_counts=True)[1]",
            run! { numbers |c| {
                let (values, _, counts) = c.x().unique_with_counts()?;
                assert_eq!(values.dims(), c.x().unique()?.dims());
                Ok::<_, Error>(counts)
            } },
        ),
    ]
}

fn counted() -> Vec<Operation> {
    let large = |n: usize| [json!([1]), json!([0])].map(|axes| case(&[n / 64, 64], json!({ "axes": axes }))).into();
    let over = |name, torch, run: Run| {
        let of = |shape: &[usize], axes: Value| case(shape, json!({ "axes": axes }));
        let samples =
            [of(&[3, 4], json!([1])).in_every_precision(), of(&[2, 3, 4], json!([0, 2])), of(&[3, 4], json!([0]))];
        Operation::new(name, torch, run).samples(samples).large(large)
    };
    let with_nan = || {
        let numbers = values([2, 3], [1.0, f64::NAN, 3.0, 2.0, 0.5, 0.25]);
        sample([numbers]).args(json!({ "axes": [1] })).in_every_precision()
    };
    let without_numbers = |operation: Operation| {
        let samples: Vec<_> = operation.samples.clone().into_iter().chain([with_nan()]).collect();
        operation.samples(samples)
    };
    let zeros = sample([values([2, 3], [0.0, 1.0, 2.0, 0.0, 0.0, 3.0])]).args(json!({ "axes": [1] }));
    let first = |name, torch, run: Run, method: &'static [&'static str]| over(name, torch, run).methods(method);
    vec![
        first(
            "std_mean",
            "torch.std_mean(x, axes)[0]",
            run! { floats |c| Ok::<_, Error>(c.x().std_mean(c.axes()?)?.0) },
            &["std_mean"],
        ),
        first(
            "var_mean",
            "torch.var_mean(x, axes)[1]",
            run! { floats |c| Ok::<_, Error>(c.x().var_mean(c.axes()?)?.1) },
            &["var_mean"],
        ),
        without_numbers(over("nansum", "torch.nansum(x, axes)", run! { floats |c| c.x().nansum(c.axes()?) })),
        without_numbers(over("nanmean", "torch.nanmean(x, axes)", run! { floats |c| c.x().nanmean(c.axes()?) })),
        first(
            "aminmax",
            "torch.amin(x, axes) + torch.amax(x, axes)",
            run! { numbers |c| {
                let (least, most) = c.x().aminmax(c.axes()?)?;
                least.add(&most)
            } },
            &["aminmax"],
        ),
        over("count_nonzero", "torch.count_nonzero(x, axes)", run! { elements |c| c.x().count_nonzero(c.axes()?) })
            .without_derivative()
            .exact()
            .samples([zeros.in_every_precision(), case(&[2, 3, 4], json!({ "axes": [0, 2] }))]),
    ]
}

fn moved() -> Vec<Operation> {
    let over = |name, torch, run: Run, cases: &[(&[usize], Value)]| {
        let mut samples: Vec<_> = cases.iter().map(|(shape, args)| case(shape, args.clone())).collect();
        samples[0].every_precision = true;
        let (rank, args) = (cases[0].0.len(), cases[0].1.clone());
        let large = move |n: usize| {
            let shape = if rank == 2 { vec![n / 64, 64] } else { vec![n / 4096, 64, 64] };
            vec![case(&shape, args.clone())]
        };
        Operation::new(name, torch, run).samples(samples).moves().large(large)
    };
    let turned = |k: isize| json!({ "k": k, "dims": [0, 1] });
    vec![
        over(
            "movedim",
            "x.movedim(a, b)",
            run! { elements |c| c.x().movedim(&c.ints("a"), &c.ints("b")) },
            &[
                (&[2, 3, 4], json!({ "a": [-1], "b": [0] })),
                (&[2, 3, 4], json!({ "a": [0, 1], "b": [2, 0] })),
                (&[2, 3], json!({ "a": [], "b": [] })),
            ],
        ),
        over(
            "swapaxes",
            "x.swapaxes(a, b)",
            run! { elements |c| c.x().swapaxes(c.int("a"), c.int("b")) },
            &[(&[2, 3, 4], json!({ "a": 0, "b": -1 }))],
        ),
        over(
            "rot90",
            "x.rot90(k, dims)",
            run! { elements |c| c.x().rot90(c.int("k"), c.array("dims")) },
            &[
                (&[2, 3], turned(1)),
                (&[2, 3], turned(-2)),
                (&[2, 3], turned(3)),
                (&[2, 3, 2], json!({ "k": 1, "dims": [2, 0] })),
                (&[2, 3], turned(4)),
            ],
        ),
        Operation::new("deep_clone", "x.clone()", run! { elements |c| c.x().deep_clone() })
            .samples([
                sample([signed([2, 3])]).in_every_precision(),
                sample([signed([4, 3]).view(json!(["transpose", 0, 1]))]),
            ])
            .moves()
            .large(|n| vec![case(&[n], json!({}))]),
    ]
}
