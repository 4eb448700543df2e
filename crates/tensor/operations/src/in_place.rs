//! Operations that change their first input. None has a gradient.

use serde_json::{Value, json};

use super::call::run;
use super::input::{Input, ones, positive};
use super::{Mixed, Operation, Run, sample, special};

pub fn entries() -> Vec<Operation> {
    let number = || json!({ "s": 3 });
    let part = || json!({ "s": 0.25 });
    let of_numbers = |s: f64| move |dtype| special::with(special::numbers(dtype), &special::scalars(&[s]));
    let of_pairs = |s: &'static [f64]| move |dtype| special::with(special::pairs(dtype), &special::scalars(s));
    let of_triples = |dtype| special::with(special::triples(dtype), &special::scalars(&[0.5]));
    vec![
        change::<1>("fill_", "x.fill_(s)", run! { numbers |c| c.changed(c.x().fill_(c.number("s"))) }, number())
            .special(of_numbers(-0.0)),
        change::<1>("zero_", "x.zero_()", run! { elements |c| c.changed(c.x().zero_()) }, json!({}))
            .special(special::numbers),
        change::<2>("copy_", "x.copy_(y)", run! { elements |c| c.changed(c.x().copy_(c.y())) }, json!({})),
        change::<2>("add_", "x.add_(y)", run! { numbers |c| c.changed(c.x().add_(c.y())) }, json!({})),
        change::<2>("sub_", "x.sub_(y)", run! { numbers |c| c.changed(c.x().sub_(c.y())) }, json!({})),
        change::<2>("mul_", "x.mul_(y)", run! { numbers |c| c.changed(c.x().mul_(c.y())) }, json!({})),
        change::<2>("div_", "x.div_(y)", run! { floats |c| c.changed(c.x().div_(c.y())) }, json!({})),
        change::<1>(
            "add_scalar_",
            "x.add_(s)",
            run! { numbers |c| {
                c.changed(c.x().add_scalar_(c.number("s")))
            } },
            number(),
        )
        .special(of_numbers(1.5)),
        change::<1>(
            "mul_scalar_",
            "x.mul_(s)",
            run! { numbers |c| {
                c.changed(c.x().mul_scalar_(c.number("s")))
            } },
            json!({ "s": -1 }),
        )
        .special(of_numbers(-3.0)),
        change::<2>(
            "add_scaled_",
            "x.add_(y, alpha=s)",
            run! { numbers |c| {
                c.changed(c.x().add_scaled_(c.y(), c.number("s")))
            } },
            number(),
        )
        .special(of_pairs(&[-0.5])),
        change::<2>(
            "lerp_",
            "x.lerp_(y, s)",
            run! { floats |c| {
                c.changed(c.x().lerp_(c.y(), c.float("s")))
            } },
            part(),
        )
        .special(of_pairs(&[0.0, 0.25, 0.5, 1.0, 1.5])),
        change::<3>(
            "addcmul_",
            "x.addcmul_(y, z, value=s)",
            run! { floats |c| {
                c.changed(c.x().addcmul_(c.y(), c.z(), c.float("s")))
            } },
            part(),
        )
        .special(of_triples),
        change::<3>(
            "addcdiv_",
            "x.addcdiv_(y, z, value=s)",
            run! { floats |c| {
                c.changed(c.x().addcdiv_(c.y(), c.z(), c.float("s")))
            } },
            part(),
        )
        .special(of_triples),
        change::<1>(
            "clamp_",
            "x.clamp_(low, high)",
            run! { floats |c| {
                c.changed(c.x().clamp_(c.float("low"), c.float("high")))
            } },
            json!({ "low": 0.75, "high": 1.5 }),
        )
        .special(|dtype| special::with(special::numbers(dtype), &[json!({ "low": -1.5, "high": 2.5 })])),
        change::<1>("sqrt_", "x.sqrt_()", run! { floats |c| c.changed(c.x().sqrt_()) }, json!({}))
            .special(special::numbers),
    ]
}

/// An operation with `N` operands that changes the first one; the others broadcast.
fn change<const N: usize>(name: &'static str, torch: &'static str, run: Run, args: Value) -> Operation {
    let of = |first: Input, others: &[usize]| {
        let inputs = std::array::from_fn::<_, N, _>(|i| if i == 0 { first.clone() } else { positive(others) });
        sample(inputs).args(args.clone())
    };
    let samples = [
        of(positive([3, 4]), &[3, 4]).in_every_precision(),
        of(positive([4, 3]).view(json!(["transpose", 0, 1])), &[3, 4]).in_every_precision(),
        of(positive([3, 9]).view(json!(["slice", 1, 1, 9, 2])), &[4]),
    ];
    Operation::new(name, torch, run)
        .mixed(if N == 1 { Mixed::Untested } else { Mixed::IntoFirst })
        .without_derivative()
        .exact()
        .samples(samples)
        .special(special::pairs)
        // The benchmark calls the operation again and again; with ones, nothing overflows.
        .large(move |n| vec![sample(std::array::from_fn::<_, N, _>(|_| ones([n]))).args(args.clone())])
}
