//! Views, which move no elements, and operations that copy them.

use serde_json::{Value, json};

use super::call::{Call, run};
use super::input::signed;
use super::{Operation, Run, Sample, case, sample};
use pagelock_tensor::{Kind, Result, Tensor};

pub fn entries() -> Vec<Operation> {
    vec![
        view("reshape", "x.reshape(shape)", run! { elements |c| reshape(c) }, &shapes())
            .samples([
                case(&[2, 3], json!({ "shape": [3, 2] })).in_every_precision(),
                case(&[2, 1, 3], json!({ "shape": [-1] })),
                sample([signed([4, 3]).view(json!(["transpose", 0, 1]))]).args(json!({ "shape": [2, 6] })),
            ])
            .large(|n| vec![case(&[n / 64, 64], json!({ "shape": [-1] })), turned(n, json!({ "shape": [-1] }))]),
        view("view", "x.view(shape)", run! { elements |c| as_view(c) }, &shapes()),
        view(
            "flatten",
            "x.flatten(start, end)",
            run! { elements |c| c.x().flatten(c.int("start"), c.int("end")) },
            &[(&[2, 3, 2], json!({ "start": 1, "end": -1 })), (&[], json!({ "start": 0, "end": 0 }))],
        ),
        view(
            "unflatten",
            "x.unflatten(dim, sizes)",
            run! { elements |c| c.x().unflatten(c.int("dim"), [2, 3]) },
            &[(&[2, 6], json!({ "dim": 1, "sizes": [2, 3] })), (&[6], json!({ "dim": -1, "sizes": [2, 3] }))],
        ),
        view(
            "permute",
            "x.permute(dims)",
            run! { elements |c| c.x().permute(c.array::<3>("dims")) },
            &[(&[2, 3, 4], json!({ "dims": [2, 0, 1] })), (&[2, 3, 4], json!({ "dims": [1, -1, 0] }))],
        ),
        view(
            "transpose",
            "x.transpose(a, b)",
            run! { elements |c| c.x().transpose(c.int("a"), c.int("b")) },
            &[(&[2, 3, 4], json!({ "a": 0, "b": -1 })), (&[2, 3], json!({ "a": 1, "b": 0 }))],
        ),
        view("t", "x.t()", run! { elements |c| c.x().t() }, &[(&[2, 3], json!({})), (&[3], json!({}))]),
        view(
            "narrow",
            "x.narrow(dim, start, len)",
            run! { elements |c| {
                c.x().narrow(c.int("dim"), c.size("start"), c.size("len"))
            } },
            &[
                (&[2, 4], json!({ "dim": 1, "start": 1, "len": 2 })),
                (&[2, 2], json!({ "dim": 0, "start": 0, "len": 0 })),
            ],
        ),
        view(
            "slice",
            "strided(x, dim, start, end, step)",
            run! { elements |c| {
                c.x().slice(c.int("dim"), c.int("start")..c.int("end"), c.size("step"))
            } },
            &[
                (&[5, 2], json!({ "dim": 0, "start": 0, "end": 5, "step": 2 })),
                (&[2, 8], json!({ "dim": -1, "start": 1, "end": -1, "step": 3 })),
            ],
        ),
        view(
            "select",
            "x.select(dim, index)",
            run! { elements |c| c.x().select(c.int("dim"), c.int("index")) },
            &[(&[3, 2], json!({ "dim": 0, "index": -1 })), (&[3, 2], json!({ "dim": -1, "index": 0 }))],
        ),
        view(
            "squeeze",
            "x.squeeze(dim)",
            run! { elements |c| c.x().squeeze(c.int("dim")) },
            &[(&[2, 1, 3], json!({ "dim": 1 })), (&[2, 1, 3], json!({ "dim": 0 }))],
        ),
        view(
            "unsqueeze",
            "x.unsqueeze(dim)",
            run! { elements |c| c.x().unsqueeze(c.int("dim")) },
            &[(&[2, 3], json!({ "dim": -1 })), (&[], json!({ "dim": 0 }))],
        ),
        view(
            "expand",
            "x.expand(shape)",
            run! { elements |c| c.x().expand(&c.sizes("shape")[..]) },
            &[
                (&[2, 1], json!({ "shape": [4, 2, 3] })),
                (&[], json!({ "shape": [2, 2] })),
                (&[2, 3], json!({ "shape": [2, 3] })),
            ],
        ),
        view("contiguous", "x.contiguous()", run! { elements |c| c.x().contiguous() }, &[(&[2, 3], json!({}))])
            .samples([
                sample([signed([4, 3]).view(json!(["transpose", 0, 1]))]).in_every_precision(),
                sample([signed([4, 9]).view(json!(["slice", 0, 1, 4, 2])).view(json!(["narrow", 1, 2, 5]))])
                    .in_every_precision(),
                sample([signed([2, 1, 3]).view(json!(["expand", [2, 4, 3]]))]),
            ])
            .moves()
            .large(|n| {
                vec![
                    turned(n, json!({})),
                    sample([signed([n / 64, 64]).view(json!(["narrow", 1, 3, 50]))]),
                    sample([signed([n / 64, 64]).view(json!(["slice", 0, 0, n / 64, 2]))]),
                    sample([signed([n / 64, 1]).view(json!(["expand", [n / 64, 64]]))]),
                ]
            }),
    ]
}

fn shapes() -> [(&'static [usize], Value); 2] {
    [(&[2, 3], json!({ "shape": [3, 2] })), (&[2, 1, 3], json!({ "shape": [-1, 1, 2] }))]
}

fn turned(n: usize, args: Value) -> Sample {
    sample([signed([64, n / 64]).view(json!(["transpose", 0, 1]))]).args(args)
}

/// An operation that at most moves elements. The benchmark has nothing to time.
fn view(name: &'static str, torch: &'static str, run: Run, cases: &[(&[usize], Value)]) -> Operation {
    let samples = cases.iter().map(|(shape, args)| case(shape, args.clone()).in_every_precision());
    Operation::new(name, torch, run).samples(samples).moves()
}

fn reshape<K: Kind>(c: &Call<'_, K>) -> Result<Tensor<K>> {
    match c.ints("shape")[..] {
        [a] => c.x().reshape([a]),
        [a, b] => c.x().reshape([a, b]),
        _ => c.x().reshape(c.array::<3>("shape")),
    }
}

fn as_view<K: Kind>(c: &Call<'_, K>) -> Result<Tensor<K>> {
    match c.ints("shape")[..] {
        [a, b] => c.x().contiguous()?.view([a, b]),
        _ => c.x().contiguous()?.view(c.array::<3>("shape")),
    }
}
