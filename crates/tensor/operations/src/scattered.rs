//! Writes at positions that index tensors give, and indexing as in Python.

use pagelock_tensor::{Ellipsis, NewAxis, ScatterReduce, Tensor};
use serde_json::json;

use super::call::{Call, run};
use super::input::{index, positive, signed, values};
use super::{Mixed, Operation, Run, Sample, sample, special};

pub fn entries() -> Vec<Operation> {
    special::at_edges([scattered(), reduced(), indexed(), put()])
}

/// Where gradients are compared, each index occurs once in a line: PyTorch does not specify which of several values
/// stays.
fn scattered() -> Vec<Operation> {
    let from = |shape: &[usize], high: i64, indices: &[usize], source: &[usize], dim: isize| {
        sample([signed(shape), signed(source), index(high, indices)]).args(json!({ "dim": dim }))
    };
    let large = |n: usize| {
        let case = |high: usize, source: [usize; 2], dim: usize| {
            sample([signed([n / 64, 64]), signed(source), index(high as i64, source)]).args(json!({ "dim": dim }))
        };
        vec![case(64, [n / 64, 32], 1), case(n / 64, [n / 128, 64], 0)]
    };
    let number = |shape: &[usize], high: i64, indices: &[usize], dim: isize| {
        sample([signed(shape), index(high, indices)]).args(json!({ "dim": dim, "s": 3 }))
    };
    let masked = |shape: &[usize], source: &[usize], mask: &[usize]| {
        sample([signed(shape), signed(source), index(2, mask)]).in_every_precision()
    };
    vec![
        Operation::new(
            "scatter",
            "x.scatter(dim, z, y)",
            run! { elements |c| c.x().scatter(c.int("dim"), c.index(), c.y()) },
        )
        .mixed(Mixed::Refuses)
        .samples([
            from(&[3, 2], 3, &[2, 2], &[2, 2], 0).in_every_precision(),
            from(&[2, 4], 4, &[2, 2], &[2, 2], -1),
            from(&[2, 3, 4], 4, &[1, 2, 2], &[1, 2, 2], 2),
            from(&[2, 3], 3, &[0, 2], &[0, 2], 1),
            from(&[2, 4], 4, &[1, 2], &[2, 4], 1).without_gradients(),
        ])
        .moves()
        .large(large),
        Operation::new(
            "scatter_scalar",
            "x.scatter(dim, y, s)",
            run! { numbers |c| c.x().scatter_scalar(c.int("dim"), c.index(), c.number("s")) },
        )
        .samples([number(&[3, 2], 3, &[4, 2], 0).in_every_precision(), number(&[2, 3], 3, &[1, 2], -1)])
        .moves()
        .large(|n| vec![sample([signed([n / 64, 64]), index(64, [n / 64, 32])]).args(json!({ "dim": 1, "s": 3 }))]),
        Operation::new(
            "index_copy",
            "x.index_copy(dim, z, y)",
            run! { elements |c| c.x().index_copy(c.int("dim"), c.index(), c.y()) },
        )
        .mixed(Mixed::Refuses)
        .samples([
            from(&[3, 2], 3, &[2], &[2, 2], 0).in_every_precision(),
            from(&[2, 4, 2], 4, &[3], &[2, 3, 2], 1),
            from(&[2, 4], 4, &[0], &[2, 0], -1),
        ])
        .moves()
        .large(|n| {
            let case = |shape: [usize; 2], dim: usize| {
                let high = shape[dim];
                sample([signed(shape), signed(shape), index(high as i64, [high])]).args(json!({ "dim": dim }))
            };
            vec![case([n / 64, 64], 0), case([n / 64, 64], 1)]
        }),
        Operation::new(
            "masked_scatter",
            "x.masked_scatter(z.bool(), y)",
            run! { elements |c| c.x().masked_scatter(&c.index().to_bool()?, c.y()) },
        )
        .mixed(Mixed::Refuses)
        .samples([masked(&[3, 4], &[12], &[3, 4]), masked(&[2, 3], &[2, 3], &[3]), masked(&[0, 2], &[1], &[2])])
        .moves()
        .large(|n| vec![sample([signed([n]), signed([n]), index(2, [n])])]),
    ]
}

fn reduced() -> Vec<Operation> {
    let with = |name: &'static str, reduce: &'static str, run: Run| {
        let of = |shape: &[usize], high: i64, indices: &[usize], dim: isize, include: bool| {
            let args = json!({ "dim": dim, "reduce": reduce, "include": include });
            sample([signed(shape), signed(indices), index(high, indices)]).args(args)
        };
        let torch = "x.scatter_reduce(dim, z, y, reduce, include_self=include)";
        let tied = [values([2], [2.0, 3.0]), values([3], [2.0, 2.0, 1.0]), index(2, [3])];
        let zeros = [values([2], [0.0, 3.0]), values([4], [2.0, 0.0, 4.0, 5.0]), index(2, [4])];
        let args = json!({ "dim": 0, "reduce": reduce, "include": true });
        let large = move |n: usize| {
            let of = |high: usize, dim: usize| {
                let args = json!({ "dim": dim, "reduce": reduce, "include": true });
                sample([signed([n / 64, 64]), positive([n / 64, 64]), index(high as i64, [n / 64, 64])]).args(args)
            };
            vec![of(64, 1), of(n / 64, 0)]
        };
        let operation = Operation::new(name, torch, run).methods(&["scatter_reduce"]).mixed(Mixed::Refuses);
        operation.large(large).samples([
            of(&[3, 2], 3, &[4, 2], 0, true).in_every_precision(),
            of(&[3, 2], 3, &[4, 2], 0, false).in_every_precision(),
            of(&[2, 3], 3, &[1, 5], -1, false),
            of(&[2, 3], 3, &[2, 40], 1, true),
            sample(tied).args(args.clone()),
            sample(zeros).args(args),
        ])
    };
    macro_rules! by {
        ($reduce:ident) => {
            run! { numbers |c| {
                c.x().scatter_reduce(c.int("dim"), c.index(), c.y(), ScatterReduce::$reduce, c.flag("include"))
            } }
        };
    }
    vec![
        with("scatter_reduce_sum", "sum", by!(Sum)),
        with("scatter_reduce_prod", "prod", by!(Prod)),
        with("scatter_reduce_mean", "mean", by!(Mean)),
        with("scatter_reduce_amax", "amax", by!(Amax)).exact(),
        with("scatter_reduce_amin", "amin", by!(Amin)).exact(),
    ]
}

fn of(shape: &[usize], high: i64, indices: &[&[usize]]) -> Sample {
    let indices = indices.iter().map(|shape| index(high, *shape));
    Sample { inputs: [signed(shape)].into_iter().chain(indices).collect(), ..sample([]) }
}

fn indexed() -> Vec<Operation> {
    let moved = |name, torch, run: Run, samples: Vec<Sample>, large: fn(usize) -> Sample| {
        let samples: Vec<_> = samples.into_iter().map(Sample::in_every_precision).collect();
        Operation::new(name, torch, run).methods(&["i"]).samples(samples).moves().large(move |n| vec![large(n)])
    };
    vec![
        moved(
            "i",
            "x[1, ..., None, :-1, 1:3]",
            run! { elements |c| c.x().i((1, Ellipsis, NewAxis, ..-1, 1..3)) },
            vec![of(&[2, 3, 4], 1, &[]), of(&[2, 3, 5, 4], 1, &[])],
            |n| of(&[2, n / 64, 64], 1, &[]),
        ),
        moved("i_number", "x[-1]", run! { elements |c| c.x().i(-1) }, vec![of(&[2, 3], 1, &[])], |n| {
            of(&[2, n], 1, &[])
        }),
        moved(
            "i_tensor",
            "x[:, y - 1]",
            run! { elements |c| c.x().i((.., &c.indices(0).add_scalar(-1)?)) },
            vec![of(&[2, 3], 3, &[&[4]]), of(&[2, 3, 2], 3, &[&[2, 2]])],
            |n| of(&[64, n / 64], n as i64 / 64, &[&[n / 64]]),
        ),
        moved(
            "i_tensors",
            "x[:, y, z]",
            run! { elements |c| c.x().i((.., c.indices(0), c.indices(1))) },
            vec![of(&[2, 3, 4], 3, &[&[5], &[5]]), of(&[2, 3, 4, 2], 3, &[&[2, 1], &[3]])],
            |n| of(&[4, n / 256, 64], 64, &[&[n / 4], &[n / 4]]),
        ),
        moved(
            "i_apart",
            "x[y, :, z, 0]",
            run! { elements |c| c.x().i((c.indices(0), .., c.indices(1), 0)) },
            vec![of(&[3, 2, 4, 2], 3, &[&[5], &[5]]), of(&[3, 2, 4, 1, 2], 3, &[&[2, 1], &[3]])],
            |n| of(&[16, 8, 16, n / 2048], 16, &[&[n / 8], &[n / 8]]),
        ),
        moved(
            "i_mask",
            "x[:, y.bool()]",
            run! { elements |c| c.x().i((.., &c.indices(0).to_bool()?)) },
            vec![of(&[2, 3, 4], 2, &[&[3, 4]]), of(&[2, 3, 4], 2, &[&[3]])],
            |n| of(&[4, n / 256, 64], 2, &[&[n / 256, 64]]),
        ),
    ]
}

fn put() -> Vec<Operation> {
    let pairs = |shape: &[usize], source: &[usize], high: i64, indices: &[&[usize]]| {
        let mut sample = of(shape, high, indices);
        sample.inputs.insert(1, signed(source));
        sample
    };
    // No position occurs twice, except where values are added.
    let once = || {
        vec![
            pairs(&[3, 4, 2], &[3, 2], 3, &[&[3], &[3]]).in_every_precision(),
            pairs(&[3, 4], &[], 3, &[&[2, 1], &[2]]),
        ]
    };
    let large = move |n: usize| vec![pairs(&[64, 64, n / 4096], &[n / 128, n / 4096], 64, &[&[n / 128], &[n / 128]])];
    let mut twice = once();
    twice.push(pairs(&[2, 3, 4], &[7, 4], 2, &[&[7], &[7]]));
    vec![
        Operation::new(
            "index_put",
            "x.index_put((z, inputs[3]), y)",
            run! { elements |c| c.x().index_put((c.indices(0), c.indices(1)), c.y()) },
        )
        .mixed(Mixed::Refuses)
        .samples(once())
        .moves()
        .large(large),
        Operation::new(
            "index_put_add",
            "x.index_put((z, inputs[3]), y, accumulate=True)",
            run! { numbers |c| c.x().index_put_add((c.indices(0), c.indices(1)), c.y()) },
        )
        .mixed(Mixed::Refuses)
        .samples(twice)
        .large(large),
        Operation::new("put_", "put(x, (slice(None), z), y)", run! { elements |c| put_in(c) })
            .without_derivative()
            .exact()
            .samples([pairs(&[2, 3], &[2, 2], 3, &[&[2]]).in_every_precision(), pairs(&[2, 4, 3], &[3, 1], 4, &[&[3]])])
            .large(move |n| vec![pairs(&[64, n / 64], &[64, n / 128], n as i64 / 64, &[&[n / 128]])]),
    ]
}

fn put_in<K: pagelock_tensor::Kind>(c: &Call<'_, K>) -> pagelock_tensor::Result<Tensor<K>> {
    c.changed(c.x().put_((.., c.indices(0)), c.y()))
}
