//! New tensors. None has a gradient, and random numbers differ from PyTorch's.

use pagelock_tensor::{Generator, Tensor};
use serde_json::json;

use super::call::run;
use super::input::{positive, signed};
use super::{Operation, Run, Sample, sample};

pub fn entries() -> Vec<Operation> {
    let new = |name, torch, run: Run| {
        let shaped = |shape: &[usize]| sample([]).args(json!({ "shape": shape, "s": 3 }));
        let samples = [shaped(&[2, 3]).in_every_precision(), shaped(&[]), shaped(&[0, 2])];
        let operation = Operation::new(name, torch, run).without_derivative().exact().samples(samples);
        operation.large(|n| vec![sample([]).args(json!({ "shape": [n], "s": 3 }))])
    };
    let like = |name, torch, run: Run| {
        let of = |shape: &[usize]| sample([signed(shape)]).args(json!({ "s": 3 }));
        let operation = Operation::new(name, torch, run).without_derivative().exact();
        operation
            .samples([of(&[2, 3]).in_every_precision(), of(&[])])
            .large(|n| vec![sample([signed([n])]).args(json!({ "s": 3 }))])
    };
    let counted = |args: serde_json::Value| -> Sample { sample([]).args(args).in_every_precision() };
    vec![
        new("zeros", "torch.zeros(shape, dtype=dtype)", run! { floats |c| c.options().zeros(&c.sizes("shape")[..]) }),
        new("ones", "torch.ones(shape, dtype=dtype)", run! { floats |c| c.options().ones(&c.sizes("shape")[..]) }),
        new(
            "full",
            "torch.full(shape, s, dtype=dtype)",
            run! { numbers |c| {
                c.options().full(&c.sizes("shape")[..], c.number("s"))
            } },
        ),
        like("zeros_like", "torch.zeros_like(x)", run! { elements |c| c.x().zeros_like() }),
        // PyTorch leaves the values unspecified; ours are zeros.
        like("empty_like", "torch.empty_like(x).zero_()", run! { elements |c| c.x().empty_like() }),
        like("ones_like", "torch.ones_like(x)", run! { elements |c| c.x().ones_like() }),
        like("full_like", "torch.full_like(x, s)", run! { numbers |c| c.x().full_like(c.number("s")) }),
        new("eye", "torch.eye(n, dtype=dtype)", run! { floats |c| c.options().eye(c.size("n")) })
            .samples([1, 3].map(|n| counted(json!({ "n": n }))))
            .large(|n| vec![sample([]).args(json!({ "n": n.isqrt() }))]),
        new(
            "arange",
            "torch.arange(start, end, step, dtype=dtype)",
            run! { numbers |c| {
                c.options().arange(c.number("start"), c.number("end"), c.number("step"))
            } },
        )
        .samples(
            [(0, 5, 1), (1, 20, 3)]
                .map(|(start, end, step)| counted(json!({ "start": start, "end": end, "step": step }))),
        )
        .large(|n| vec![sample([]).args(json!({ "start": 0, "end": n, "step": 1 }))]),
        random(
            "rand",
            "torch.rand(shape, dtype=dtype)",
            run! { floats |c| {
                c.options().rand_with(&c.sizes("shape")[..], &Generator::new(5))
            } },
        )
        .methods(&["rand", "rand_with", "rand_like"]),
        random(
            "randn",
            "torch.randn(shape, dtype=dtype)",
            run! { floats |c| {
                c.options().randn_with(&c.sizes("shape")[..], &Generator::new(5))
            } },
        )
        .methods(&["randn", "randn_with", "randn_like"]),
        random(
            "randperm",
            "torch.randperm(n)",
            run! { ints |c| Tensor::randperm_with(c.size("n"), &Generator::new(5)) },
        )
        .methods(&["randperm", "randperm_with"])
        .large(|n| vec![sample([]).args(json!({ "n": n / 8 }))]),
        random(
            "randint",
            "torch.randint(0, 10, shape)",
            run! { ints |c| Tensor::randint_with(0, 10, &c.sizes("shape")[..], &Generator::new(5)) },
        )
        .methods(&["randint", "randint_with", "randint_like"]),
        random(
            "normal",
            "torch.normal(1, 2, shape)",
            run! { floats |c| Tensor::normal_with(1.0, 2.0, &c.sizes("shape")[..], &Generator::new(5)) },
        )
        .methods(&["normal", "normal_with"]),
        random(
            "bernoulli",
            "torch.bernoulli(x / 4)",
            run! { floats |c| c.x().div_scalar(4.0)?.bernoulli_with(&Generator::new(5)) },
        )
        .methods(&["bernoulli", "bernoulli_with"])
        .large(|n| vec![sample([positive([n])])]),
        random(
            "multinomial",
            "torch.multinomial(x, 2, True)",
            run! { floats |c| c.x().multinomial_with(2, true, &Generator::new(5)) },
        )
        .methods(&["multinomial", "multinomial_with"])
        .large(|n| vec![sample([positive([n / 64, 64])])]),
        new(
            "linspace",
            "torch.linspace(start, end, n, dtype=dtype)",
            run! { floats |c| c.options().linspace(c.float("start"), c.float("end"), c.size("n")) },
        )
        .samples([0, 1, 2, 7].map(|n| counted(json!({ "start": -1.0, "end": 2.0, "n": n }))))
        .large(|n| vec![sample([]).args(json!({ "start": 0.0, "end": 1.0, "n": n }))]),
        Operation::new(
            "logspace",
            "torch.logspace(start, end, n, 2, dtype=dtype)",
            run! { floats |c| c.options().logspace(c.float("start"), c.float("end"), c.size("n"), 2.0) },
        )
        .without_derivative()
        .samples([1, 7].map(|n| counted(json!({ "start": -1.0, "end": 2.0, "n": n }))))
        .large(|n| vec![sample([]).args(json!({ "start": 0.0, "end": 1.0, "n": n }))]),
    ]
}

/// An entry without samples, since its numbers differ from PyTorch's.
fn random(name: &'static str, torch: &'static str, run: Run) -> Operation {
    let large = |n: usize| vec![sample([]).args(json!({ "shape": [n] }))];
    Operation::new(name, torch, run).without_derivative().exact().large(large)
}
