//! The memory that tensors take besides their elements.

use pagelock_tensor::{Result, Steps, Tensor};

use super::{Body, LIMIT, MIB, is_refusal, unless_refused};

pub(super) const CASES: &[Body] = &[
    ("tiny tensors", tiny_tensors),
    ("tiny tensors that are gone", tiny_tensors_that_are_gone),
    ("a graph of tiny tensors", a_graph),
    ("a graph of views", a_graph_of_views),
    ("the gradient of a long graph", the_gradient_of_a_long_graph),
    ("parameters", parameters),
    ("nested vectors", nested_vectors),
    ("tensors of all lengths", tensors_of_all_lengths),
    ("steps of sequences", steps_of_sequences),
];

/// So many handles do not fit: with 64 bytes each, they take twice the limit.
const TOO_MANY: usize = 2 * LIMIT / 64;

/// Makes values until one is refused.
fn until_refused<T>(make: impl Fn(usize) -> Result<T>) -> Vec<T> {
    let mut all = Vec::new();
    loop {
        match make(all.len()) {
            Ok(next) => all.push(next),
            Err(error) => {
                assert!(is_refusal(&error), "{error}");
                return all;
            }
        }
        assert!(all.len() < TOO_MANY, "{} were not refused", all.len());
    }
}

fn tiny_tensors() -> Result<()> {
    let all = until_refused(|_| Tensor::scalar(1.0));
    assert!(all.len() > 50_000, "only {} fit", all.len());
    Ok(())
}

/// A large tensor can reuse the memory of many small tensors that were dropped.
fn tiny_tensors_that_are_gone() -> Result<()> {
    for _ in 0..2 {
        drop(until_refused(|_| Tensor::scalar(1.0)));
        let large = Tensor::ones([LIMIT * 3 / 4 / size_of::<f32>()])?;
        assert_eq!(large.select(0, -1)?.item::<f32>()?, 1.0);
    }
    Ok(())
}

fn a_graph() -> Result<()> {
    let mut last = Tensor::scalar(1.0)?.set_requires_grad(true);
    for _ in 0..TOO_MANY {
        match unless_refused(last.add_scalar(1.0).and_then(|next| next.exp()))? {
            Some(next) => last = next,
            None => return Ok(()),
        }
    }
    panic!("{TOO_MANY} nodes were not refused")
}

/// Views own no elements, but their nodes take memory.
fn a_graph_of_views() -> Result<()> {
    let mut last = Tensor::scalar(1.0)?.set_requires_grad(true);
    for _ in 0..TOO_MANY {
        match unless_refused(last.unsqueeze(0).and_then(|next| next.squeeze(0)))? {
            Some(next) => last = next,
            None => return Ok(()),
        }
    }
    panic!("{TOO_MANY} nodes were not refused")
}

/// The lists of the backward pass are about as long as the graph. A pass that they do not fit computes no gradient.
fn the_gradient_of_a_long_graph() -> Result<()> {
    let first = Tensor::scalar(1.0)?.set_requires_grad(true);
    let mut last = first.clone();
    for _ in 0..TOO_MANY {
        match unless_refused(last.unsqueeze(0).and_then(|next| next.squeeze(0)))? {
            Some(next) => last = next,
            None => {
                let refused = last.backward().expect_err("the graph has left no memory for the lists");
                assert!(is_refusal(&refused) && refused.to_string().starts_with("backward: no memory for its list of"));
                assert!(first.grad().is_none());
                return Ok(());
            }
        }
    }
    panic!("{TOO_MANY} nodes were not refused")
}

fn parameters() -> Result<()> {
    let all = until_refused(|_| {
        let parameter = Tensor::zeros([2])?.set_requires_grad(true);
        parameter.set_grad(Some(Tensor::zeros([2])?))?;
        Ok(parameter)
    });
    assert!(all.len() > 10_000, "only {} fit", all.len());
    Ok(())
}

/// Intermediate copies count too.
fn nested_vectors() -> Result<()> {
    assert!(unless_refused(Tensor::new(vec![vec![1.0_f32; 1 << 10]; 1 << 8]))?.is_some());
    for _ in 0..3 {
        // The vectors are memory of the program, which is not counted.
        unless_refused(Tensor::new(vec![vec![1.0_f32; 1 << 10]; 6 << 10]))?;
    }
    Ok(())
}

/// Each tensor fits by itself, although the pool keeps the memory of earlier ones.
fn tensors_of_all_lengths() -> Result<()> {
    for round in 0..3 {
        for i in 0..200 {
            let len_bytes = (i * 7_919 + round * 104_729) % 61 * MIB / 2 + 4 + i * 1_000;
            Tensor::ones([len_bytes.min(LIMIT / 2) / size_of::<f32>()])?;
        }
        let few: Vec<_> = (1..60).map(|i| Tensor::ones([i * 4_000])).collect::<Result<_>>()?;
        drop(few);
    }
    Ok(())
}

fn steps_of_sequences() -> Result<()> {
    let all = until_refused(|_| Steps::packed(&[1; MIB / size_of::<(usize, usize)>()]));
    assert!(all.len() > 50, "only {} fit", all.len());
    Ok(())
}
