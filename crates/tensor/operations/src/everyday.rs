//! Further everyday operations: gamma functions, bits, differences, copies with replaced parts, combinations of
//! tensors.

use pagelock_tensor::{Error, ScatterReduce, Tensor};
use serde_json::{Value, json};

use super::call::run;
use super::elementwise::{large_pairs, pairs, single};
use super::input::{Input, above, any, index, positive, signed, values};
use super::{Autocast, Mixed, Operation, Run, Sample, case, sample, special};

pub fn entries() -> Vec<Operation> {
    special::at_edges([gamma(), of_pairs(), bits(), differences(), written(), combined(), counted()])
}

fn gamma() -> Vec<Operation> {
    let function = |name, torch, run: Run, input: fn(&[usize]) -> Input| {
        let operation = Operation::new(name, torch, run).samples(single(input)).special(special::numbers);
        operation.large(|n| vec![sample([positive([n / 8])])])
    };
    // Only compares numbers for which PyTorch's own `f64` results are accurate.
    let plain = |numbers: [f64; 6]| move |_| vec![sample([values([6], numbers)])];
    let order = |n: u32| json!({ "n": n });
    vec![
        function("lgamma", "torch.lgamma(x)", run! { floats |c| c.x().lgamma() }, above)
            .autocast(Autocast::F32)
            .special(plain([0.5, 1.0, 2.0, f64::INFINITY, 40.0, 0.0])),
        function("digamma", "torch.digamma(x)", run! { floats |c| c.x().digamma() }, above)
            .autocast(Autocast::F32)
            .special(plain([0.5, 1.0, 10.0, -2.5, 0.0, -0.0])),
        function("polygamma", "torch.polygamma(n, x)", run! { floats |c| c.x().polygamma(c.size("n") as u32) }, above)
            .autocast(Autocast::F32)
            .samples([1, 2, 3].into_iter().flat_map(|n| special::with(single(above), &[order(n)])))
            .special(move |_| vec![sample([values([3], [0.5, 2.0, 11.0])]).args(order(1)).without_gradients()])
            .large(move |n| vec![sample([positive([n / 64])]).args(order(1))]),
        function("erfinv", "torch.erfinv(x / 2)", run! { floats |c| c.x().mul_scalar(0.5)?.erfinv() }, any)
            .autocast(Autocast::F32)
            .special(plain([0.5, -1.0, 2.0, 3.0, -0.0, f64::NAN])),
        function("sinc", "torch.sinc(x)", run! { floats |c| c.x().sinc() }, any)
            .special(|_| vec![sample([values([4], [0.0, -0.0, f64::NAN, 0.5])]).without_gradients()]),
        function("deg2rad", "torch.deg2rad(x)", run! { floats |c| c.x().deg2rad() }, any),
        function("rad2deg", "torch.rad2deg(x)", run! { floats |c| c.x().rad2deg() }, any),
        function("signbit", "torch.signbit(x)", run! { floats |c| c.x().signbit() }, any)
            .without_derivative()
            .exact()
            .special(plain([0.5, -1.0, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY])),
    ]
}

fn of_pairs() -> Vec<Operation> {
    let binary = |name, torch, run: Run| {
        let operation = Operation::new(name, torch, run).mixed(Mixed::Promotes).samples(pairs(any).into_iter().take(6));
        operation.large(large_pairs)
    };
    let edges = |_| {
        let left = [1.0, f64::NAN, 2.0, f64::INFINITY, 3.0, 3.0, f64::NAN];
        let right = [2.0, 1.0, f64::NAN, 1.0, f64::NEG_INFINITY, 3.0, f64::NAN];
        vec![sample([values([7], left), values([7], right)])]
    };
    let finite =
        |_| vec![sample([values([4], [1.0, -2.0, 0.5, 3.0]), values([4], [1.0, 2.0, f64::NEG_INFINITY, 8.0])])];
    vec![
        binary("fmax", "torch.fmax(x, y)", run! { floats |c| c.x().fmax(c.y()) }).exact().special(edges),
        binary("fmin", "torch.fmin(x, y)", run! { floats |c| c.x().fmin(c.y()) }).exact().special(edges),
        binary("copysign", "torch.copysign(x, y)", run! { floats |c| c.x().copysign(c.y()) }).exact().special(|_| {
            let left = [f64::NAN, f64::INFINITY, 0.0, -0.0, 2.0, -3.0];
            let right = [1.0, -1.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, -2.0];
            vec![sample([values([6], left), values([6], right)]).without_gradients()]
        }),
        binary(
            "logaddexp2",
            "torch.logaddexp2(wide(x), wide(y)).to(torch.promote_types(x.dtype, y.dtype))",
            run! { floats |c| c.x().logaddexp2(c.y()) },
        )
        .special(finite),
    ]
}

fn bits() -> Vec<Operation> {
    let of_bits = |name, torch, run: Run| {
        let operation = Operation::new(name, torch, run).mixed(Mixed::Promotes).exact().samples(pairs(any));
        operation.large(large_pairs)
    };
    let shift = |name, torch, run: Run| {
        let by = values([4], [0.1, 0.3, 0.5, 2.0]);
        let samples = [sample([signed([4]), by.clone()]).in_every_precision(), sample([signed([3, 1]), by])];
        Operation::new(name, torch, run)
            .mixed(Mixed::Promotes)
            .exact()
            .samples(samples)
            .large(|n| vec![sample([signed([n]), super::input::ones([n])])])
    };
    vec![
        of_bits("bitwise_and", "torch.bitwise_and(x, y)", run! { ints |c| c.x().bitwise_and(c.y()) }),
        of_bits("bitwise_or", "torch.bitwise_or(x, y)", run! { ints |c| c.x().bitwise_or(c.y()) }),
        of_bits("bitwise_xor", "torch.bitwise_xor(x, y)", run! { ints |c| c.x().bitwise_xor(c.y()) }),
        shift(
            "bitwise_left_shift",
            "torch.bitwise_left_shift(x, y)",
            run! { ints |c| c.x().bitwise_left_shift(c.y()) },
        ),
        shift(
            "bitwise_right_shift",
            "torch.bitwise_right_shift(x, y)",
            run! { ints |c| c.x().bitwise_right_shift(c.y()) },
        ),
        of_bits("gcd", "torch.gcd(x, y)", run! { ints |c| c.x().gcd(c.y()) }),
        of_bits("lcm", "torch.lcm(x, y)", run! { ints |c| c.x().lcm(c.y()) }),
        Operation::new("bitwise_not", "torch.bitwise_not(x)", run! { ints |c| c.x().bitwise_not() })
            .exact()
            .samples(single(any))
            .large(|n| vec![sample([signed([n])])]),
    ]
}

fn differences() -> Vec<Operation> {
    let steps = |n: usize, dim: isize| json!({ "n": n, "dim": dim });
    let width = |dim: isize| json!({ "dx": 0.5, "dim": dim });
    let area = |name, torch, run: Run| {
        let samples = [case(&[3, 4], width(-1)).in_every_precision(), case(&[3, 4], width(0)), case(&[1], width(0))];
        let operation = Operation::new(name, torch, run).autocast(Autocast::F32).samples(samples).summed_dim(1);
        operation.large(move |n| vec![case(&[n / 64, 64], width(1))])
    };
    let renormed = |p: f64, dim: isize| json!({ "p": p, "dim": dim, "most": 1.5 });
    vec![
        Operation::new("diff", "torch.diff(x, n, dim)", run! { numbers |c| c.x().diff(c.size("n"), c.int("dim")) })
            .samples([
                case(&[3, 4], steps(1, -1)).in_every_precision(),
                case(&[4, 3], steps(2, 0)),
                case(&[3], steps(0, 0)),
                case(&[2], steps(5, 0)),
            ])
            .large(move |n| vec![case(&[n / 64, 64], steps(1, 1)), case(&[n / 64, 64], steps(1, 0))]),
        area(
            "trapezoid",
            "torch.trapezoid(x, dx=dx, dim=dim)",
            run! { floats |c| c.x().trapezoid(c.float("dx"), c.int("dim")) },
        ),
        area(
            "cumulative_trapezoid",
            "torch.cumulative_trapezoid(x, dx=dx, dim=dim)",
            run! { floats |c| c.x().cumulative_trapezoid(c.float("dx"), c.int("dim")) },
        ),
        Operation::new("cov", "torch.cov(x, correction=n)", run! { floats |c| c.x().cov(c.float("n")) })
            .samples([case(&[3, 5], json!({ "n": 1 })), case(&[4], json!({ "n": 0 }))])
            .large(|n| vec![case(&[16, n / 16], json!({ "n": 1 }))]),
        Operation::new("corrcoef", "torch.corrcoef(x)", run! { floats |c| c.x().corrcoef() })
            .samples([case(&[3, 5], json!({}))])
            .special(|_| {
                vec![sample([values([2, 4], [1.0, 2.0, -1.0, -2.0, 2.0, 4.0, -2.0, -4.0])]).without_gradients()]
            })
            .summed_dim(1)
            .large(|n| vec![case(&[16, n / 16], json!({}))]),
        Operation::new("dist", "torch.dist(x, y, p)", run! { floats |c| c.x().dist(c.y(), c.float("p")) })
            .autocast(Autocast::F32)
            .mixed(Mixed::Promotes)
            .samples([1.0, 2.0, 3.0].map(|p| sample([signed([3, 4]), signed([4])]).args(json!({ "p": p }))))
            .large(|n| vec![sample([signed([n]), positive([n])]).args(json!({ "p": 2.0 }))]),
        Operation::new(
            "renorm",
            "torch.renorm(x, p, dim, most)",
            run! { floats |c| c.x().renorm(c.float("p"), c.int("dim"), c.float("most")) },
        )
        .samples([case(&[3, 4], renormed(2.0, 0)), case(&[2, 3, 2], renormed(1.0, 1))])
        .large(move |n| vec![case(&[n / 64, 64], renormed(2.0, 0))]),
    ]
}

fn written() -> Vec<Operation> {
    let both = |x: &[usize], y: &[usize], args: Value| sample([signed(x), signed(y)]).args(args);
    let part = |dim: isize, range: [isize; 2], step: usize| json!({ "dim": dim, "start": range[0], "end": range[1], "step": step });
    let diagonal = |offset: isize| json!({ "offset": offset, "a": 0, "b": 1 });
    let numbers = |shape: &[usize], high: i64, of: &[usize]| sample([signed(shape), index(high, of)]);
    let mut all = vec![
        Operation::new(
            "select_scatter",
            "torch.select_scatter(x, y, dim, at)",
            run! { elements |c| c.x().select_scatter(c.y(), c.int("dim"), c.int("at")) },
        )
        .mixed(Mixed::Converts)
        .samples([
            both(&[3, 2], &[2], json!({ "dim": 0, "at": -1 })).in_every_precision(),
            both(&[2, 3, 2], &[2, 2], json!({ "dim": 1, "at": 0 })),
        ])
        .moves()
        .large(move |n| vec![both(&[n / 64, 64], &[n / 64], json!({ "dim": 1, "at": 5 }))]),
        Operation::new(
            "slice_scatter",
            "torch.slice_scatter(x, y, dim, start, end, step)",
            run! { elements |c| c.x().slice_scatter(c.y(), c.int("dim"), [c.int("start"), c.int("end")], c.size("step")) },
        )
        .mixed(Mixed::Converts)
        .samples([
            both(&[5, 2], &[2, 2], part(0, [1, 4], 2)).in_every_precision(),
            both(&[2, 4], &[2, 2], part(1, [-2, 4], 1)),
        ])
        .moves()
        .large(move |n| vec![both(&[n / 64, 64], &[n / 128, 64], part(0, [0, (n / 64) as isize], 2))]),
        Operation::new(
            "diagonal_scatter",
            "torch.diagonal_scatter(x, y, offset, a, b)",
            run! { elements |c| c.x().diagonal_scatter(c.y(), c.int("offset"), c.int("a"), c.int("b")) },
        )
        .mixed(Mixed::Converts)
        .samples([both(&[3, 4], &[3], diagonal(1)).in_every_precision(), both(&[3, 3, 2], &[2, 3], diagonal(0))])
        .moves()
        .large(move |n| vec![both(&[n.isqrt(), n.isqrt()], &[n.isqrt()], diagonal(0))]),
        Operation::new("take", "torch.take(x, y)", run! { elements |c| c.x().take(c.index()) })
            .samples([numbers(&[3, 4], 12, &[5]).in_every_precision(), numbers(&[6], 6, &[2, 2])])
            .moves()
            .large(move |n| vec![numbers(&[n / 64, 64], (n / 64 * 64) as i64, &[n / 4])]),
        Operation::new("fill_diagonal_", "x.fill_diagonal_(s)", run! { numbers |c| c.changed(c.x().fill_diagonal_(c.number("s"))) })
            .without_derivative()
            .exact()
            .samples([case(&[3, 4], json!({ "s": 3 })).in_every_precision(), case(&[4, 3], json!({ "s": -2 }))])
            .large(|n| vec![case(&[n.isqrt(), n.isqrt()], json!({ "s": 1 }))]),
    ];
    macro_rules! reduced {
        ($name:literal, $reduce:literal, $how:ident) => {{
            let of = |shape: &[usize], high: i64, n: usize, dim: usize, include: bool| {
                let mut source = shape.to_vec();
                source[dim] = n;
                sample([signed(shape), signed(source), index(high, [n])]).args(json!({ "dim": dim, "include": include }))
            };
            let torch = concat!("x.index_reduce(dim, z, y, '", $reduce, "', include_self=include)");
            let run = run! { numbers |c| {
                c.x().index_reduce(c.int("dim"), c.index(), c.y(), ScatterReduce::$how, c.flag("include"))
            } };
            Operation::new($name, torch, run)
                .methods(&["index_reduce"])
                .mixed(Mixed::Refuses)
                .samples([of(&[3, 2], 3, 4, 0, true), of(&[2, 3], 3, 5, 1, false)])
                .large(move |n| vec![of(&[n / 64, 64], n as i64 / 64, n / 64, 0, true)])
        }};
    }
    all.push(reduced!("index_reduce_prod", "prod", Prod));
    all.push(reduced!("index_reduce_mean", "mean", Mean));
    all.push(reduced!("index_reduce_amax", "amax", Amax).exact());
    all
}

fn combined() -> Vec<Operation> {
    let shaped = |name, torch, run: Run| {
        let samples = [case(&[], json!({})).in_every_precision(), case(&[3], json!({})), case(&[2, 3], json!({}))];
        Operation::new(name, torch, run).samples(samples).moves().large(|n| vec![case(&[n], json!({}))])
    };
    let many =
        |shapes: &[&[usize]]| Sample { inputs: shapes.iter().map(|shape| signed(*shape)).collect(), ..sample([]) };
    let dims = |a: &[isize], b: &[isize]| json!({ "a": a, "b": b });
    let scales = |beta: f64, alpha: f64| json!({ "beta": beta, "alpha": alpha });
    let picked = |r: usize, again: bool| json!({ "r": r, "again": again });
    vec![
        shaped("atleast_1d", "torch.atleast_1d(x)", run! { elements |c| c.x().atleast_1d() }),
        shaped("atleast_2d", "torch.atleast_2d(x)", run! { elements |c| c.x().atleast_2d() }),
        shaped("atleast_3d", "torch.atleast_3d(x)", run! { elements |c| c.x().atleast_3d() }),
        Operation::new(
            "cartesian_prod",
            "torch.cartesian_prod(*inputs)",
            run! { elements |c| Tensor::cartesian_prod(&c.all()) },
        )
        .samples([many(&[&[2], &[3]]).in_every_precision(), many(&[&[2], &[2], &[2]]), many(&[&[3]])])
        .moves()
        .large(move |n| vec![many(&[&[n / 128], &[64]])]),
        Operation::new(
            "combinations",
            "torch.combinations(x, r, again)",
            run! { elements |c| c.x().combinations(c.size("r"), c.flag("again")) },
        )
        .samples([
            case(&[4], picked(2, false)).in_every_precision(),
            case(&[4], picked(3, true)),
            case(&[3], picked(3, false)),
            case(&[2], picked(3, false)),
        ])
        .moves()
        .large(move |n| vec![case(&[n.isqrt()], picked(2, false))]),
        Operation::new("block_diag", "torch.block_diag(*inputs)", run! { numbers |c| Tensor::block_diag(&c.all()) })
            .mixed(Mixed::Promotes)
            .samples([many(&[&[2, 3], &[1, 2]]).in_every_precision(), many(&[&[2], &[], &[2, 1]])])
            .moves()
            .large(move |n| vec![many(&[&[n.isqrt() / 2, n.isqrt() / 2], &[n.isqrt() / 2, n.isqrt() / 2]])]),
        Operation::new(
            "tensordot",
            "torch.tensordot(x, y, dims=(a, b))",
            run! { numbers |c| c.x().tensordot(c.y(), &c.ints("a"), &c.ints("b")) },
        )
        .autocast(Autocast::Half)
        .mixed(Mixed::Refuses)
        .samples([
            many(&[&[2, 3, 4], &[4, 3, 2]]).args(dims(&[1, -1], &[1, 0])),
            many(&[&[3, 2], &[2, 3]]).args(dims(&[0], &[1])),
            many(&[&[2], &[3]]).args(dims(&[], &[])),
        ])
        .large(move |n| vec![many(&[&[n / 4096, 64, 64], &[64, 64]]).args(dims(&[2], &[0]))]),
        Operation::new("cross", "torch.cross(x, y, dim=dim)", run! { numbers |c| c.x().cross(c.y(), c.int("dim")) })
            .mixed(Mixed::Promotes)
            .samples([
                many(&[&[4, 3], &[4, 3]]).args(json!({ "dim": -1 })).in_every_precision(),
                many(&[&[3, 2], &[3, 2]]).args(json!({ "dim": 0 })),
            ])
            .large(|n| vec![many_of(&[n / 3, 3]).args(json!({ "dim": 1 }))]),
        Operation::new(
            "sum_to_size",
            "x.sum_to_size(shape)",
            run! { numbers |c| c.x().sum_to_size(&c.sizes("shape")[..]) },
        )
        .autocast(Autocast::F32)
        .summed_dim(1)
        .samples([
            case(&[2, 3, 4], json!({ "shape": [3, 1] })),
            case(&[3, 4], json!({ "shape": [3, 4] })),
            case(&[3, 4], json!({ "shape": [] })),
        ])
        .large(|n| vec![case(&[n / 64, 64], json!({ "shape": [64] }))]),
        Operation::new(
            "addr",
            "torch.addr(x, y, z, beta=beta, alpha=alpha)",
            run! { floats |c| c.x().addr(c.y(), c.z(), c.float("beta"), c.float("alpha")) },
        )
        .mixed(Mixed::Promotes)
        .samples([many(&[&[3, 2], &[3], &[2]]).args(scales(0.5, 2.0)).in_every_precision()])
        .large(move |n| vec![many(&[&[n / 64, 64], &[n / 64], &[64]]).args(scales(1.0, 1.0))]),
        Operation::new(
            "addbmm",
            "torch.addbmm(x, y, z, beta=beta, alpha=alpha)",
            run! { floats |c| c.x().addbmm(c.y(), c.z(), c.float("beta"), c.float("alpha")) },
        )
        .autocast(Autocast::Half)
        .samples([many(&[&[3, 2], &[2, 3, 4], &[2, 4, 2]]).args(scales(0.5, 2.0))])
        .large(move |n| vec![many(&[&[64, 64], &[n / 4096, 64, 64], &[n / 4096, 64, 64]]).args(scales(1.0, 1.0))]),
        Operation::new(
            "unravel_index",
            "torch.unravel_index(x.abs(), (4, 50))[1]",
            run! { ints |c| Ok::<_, Error>(c.x().abs()?.unravel_index([4, 50])?[1].clone()) },
        )
        .exact()
        .samples([case(&[5], json!({}))])
        .large(|n| vec![case(&[n], json!({}))]),
    ]
}

fn many_of(shape: &[usize]) -> Sample {
    sample([signed(shape), signed(shape)])
}

fn counted() -> Vec<Operation> {
    let along = |dim: isize| json!({ "dim": dim });
    let repeated = || values([2, 6], [1.0, 2.0, 2.0, 1.0, 3.0, 0.0, 5.0, 5.0, 4.0, 4.0, 4.0, 0.0]);
    vec![
        Operation::new("isin", "torch.isin(x, y)", run! { numbers |c| c.x().isin(c.y()) })
            .without_derivative()
            .exact()
            .samples([
                sample([values([2, 3], [1.0, 2.0, 3.0, 4.0, 5.0, 0.0]), values([3], [5.0, 1.0, 9.0])])
                    .in_every_precision(),
                sample([signed([3, 4]), signed([0])]),
                sample([signed([9]), signed([9])]),
            ])
            .large(|n| vec![sample([signed([n / 4]), signed([1024])])]),
        Operation::new(
            "mode",
            "torch.mode(x, dim)[0]",
            run! { numbers |c| Ok::<_, Error>(c.x().mode(c.int("dim"))?.0) },
        )
        .exact()
        .samples([
            sample([repeated()]).args(along(1)).without_gradients().in_every_precision(),
            sample([repeated()]).args(along(0)).without_gradients(),
            case(&[4, 1], along(-1)),
        ])
        .large(move |n| vec![case(&[n / 256, 64], along(1))]),
        Operation::new(
            "unique_consecutive",
            "torch.unique_consecutive(x)",
            run! { numbers |c| c.x().unique_consecutive() },
        )
        .without_derivative()
        .exact()
        .samples([sample([repeated()]).in_every_precision(), case(&[0], json!({})), case(&[1], json!({}))])
        .large(|n| vec![case(&[n], json!({}))]),
    ]
}
