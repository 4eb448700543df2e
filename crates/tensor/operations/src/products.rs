//! Matrix products.

use serde_json::json;

use super::call::run;
use super::input::{Input, signed, values};
use super::{Autocast, Mixed, Operation, Sample, sample, special};

pub fn entries() -> Vec<Operation> {
    vec![
        Operation::new("matmul", "x @ y", run! { numbers |c| c.x().matmul(c.y()) })
            .autocast(Autocast::Half)
            .mixed(Mixed::Refuses)
            .samples(matmul())
            .special(|dtype| {
                let weight = || values([2, 3], [1.0, 0.0, 2.0, 0.5, 1.0, -1.0]);
                let row = values([1, 3], [1.0, 0.0, 2.0]);
                let edges = special::factors(dtype)[..6].to_vec();
                vec![sample([special::factor(dtype), weight()]), sample([row, values([3, 2], edges)])]
            })
            .large(large_matmul),
        Operation::new(
            "linear",
            "F.linear(x, y, inputs[2] if len(inputs) > 2 else None)",
            run! { floats |c| {
                c.x().linear(c.y(), c.optional(2))
            } },
        )
        .autocast(Autocast::Half)
        .mixed(Mixed::Refuses)
        .samples([
            sample([signed([3, 4]), signed([5, 4]), signed([5])]).in_every_precision(),
            sample([signed([3, 4]), signed([5, 4])]).in_every_precision(),
            sample([signed([2, 3, 4]), signed([5, 4]), signed([5])]),
            sample([turned(signed([4, 3])), turned(signed([4, 5])), signed([5])]),
        ])
        .special(|dtype| {
            let weight = values([3, 2], [1.0, 0.5, 0.0, 1.0, 2.0, -1.0]);
            vec![sample([special::factor(dtype), weight, values([3], [0.25, -0.5, 1.0])])]
        })
        .large(|n| vec![sample([signed([32, n / 256]), signed([256, n / 256]), signed([256])])]),
    ]
}

fn turned(input: Input) -> Input {
    input.view(json!(["transpose", -1, -2]))
}

fn matmul() -> Vec<Sample> {
    let shapes: [(&[usize], &[usize]); 15] = [
        (&[3, 4], &[4, 5]),
        (&[4], &[4]),
        (&[3, 4], &[4]),
        (&[4], &[4, 5]),
        (&[1, 1], &[1, 1]),
        (&[17, 19], &[19, 13]),
        (&[2, 3, 4], &[2, 4, 5]),
        (&[2, 3, 4], &[4, 5]),
        (&[3, 4], &[2, 4, 5]),
        (&[2, 1, 3, 4], &[5, 4, 2]),
        (&[2, 3, 4], &[4]),
        (&[4], &[2, 4, 3]),
        (&[2, 2, 3], &[2, 3, 1]),
        (&[0, 4], &[4, 3]),
        (&[3, 0], &[0, 2]),
    ];
    let mut samples: Vec<_> = shapes.iter().map(|(left, right)| sample([signed(*left), signed(*right)])).collect();
    samples[0].every_precision = true;
    let sliced = |input: Input, end: usize, step: usize| input.view(json!(["slice", 1, end % 2, end, step]));
    samples.extend([
        sample([turned(signed([4, 3])), signed([4, 5])]).in_every_precision(),
        sample([signed([3, 4]), turned(signed([5, 4]))]).in_every_precision(),
        sample([turned(signed([4, 3])), turned(signed([5, 4]))]),
        sample([turned(signed([2, 4, 3])), turned(signed([5, 4]))]),
        sample([sliced(signed([3, 9]), 8, 2), sliced(signed([4, 7]), 7, 3)]),
        sample([signed([1, 3, 4]).view(json!(["expand", [3, 3, 4]])), signed([3, 4, 2])]),
        sample([signed([3, 2, 4]).view(json!(["transpose", 0, 1])), signed([2, 4, 2])]),
        sample([signed([4, 2]).view(json!(["select", 1, 1])), signed([4, 3])]),
        sample([signed([1]).view(json!(["expand", [4]])), signed([4, 3])]),
    ]);
    samples
}

/// Products with one short dimension, so that there is little to compute, and a batch of small products.
fn large_matmul(n: usize) -> Vec<Sample> {
    let side = n.min(1 << 18).isqrt();
    vec![
        sample([signed([side, side]), signed([side, side])]),
        sample([signed([n / 1024, 1024]), signed([1024, 32])]),
        sample([signed([32, n / 1024]), signed([n / 1024, 1024])]),
        sample([signed([32, n / 1024]), turned(signed([1024, n / 1024]))]),
        sample([turned(signed([256, 32])), signed([256, n / 256])]),
        sample([signed([n / 1024, 32, 32]), signed([n / 1024, 32, 32])]),
    ]
}
