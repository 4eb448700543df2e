//! Every operation under a budget that has nothing left.

use std::collections::BTreeSet;

use pagelock_memory::{ByteSize, Resource, default_host, host_budget, ledger};
use pagelock_operations::table;
use pagelock_tensor::{BatchNormOptions, DType, Device, Error, Generator, Result, Tensor, no_grad};

use super::{alone, zeros};

/// Refuses every allocation until this is dropped: frees idle memory, and sets the limit of the budget to 0.
struct Exhausted(ByteSize);

impl Exhausted {
    fn now() -> Exhausted {
        default_host().trim();
        let before = host_budget().limit();
        // 0, not what is used now: threads of other tests may end meanwhile and free the memory that they kept.
        host_budget().set_limit(ByteSize(0));
        Exhausted(before)
    }
}

impl Drop for Exhausted {
    fn drop(&mut self) {
        host_budget().set_limit(self.0);
    }
}

/// Checks that `attempt` is refused by the budget with an error that begins with `start`, and leaves no bytes behind.
#[track_caller]
fn refused<R>(attempt: impl FnOnce() -> Result<R>, start: &str) {
    let before = ledger().live_bytes();
    let limit = host_budget().limit();
    let Err(error) = attempt() else { panic!("nothing was refused; expected: {start}") };
    let text = error.to_string();
    assert!(matches!(error, Error::Memory { .. }), "{text}");
    assert!(text.starts_with(start), "{text}\nbut expected: {start}");
    let budget = format!(": budget `host` has 0 B left of {limit}; ");
    let advice = "set $PAGELOCK_HOST_LIMIT higher or drop buffers first";
    let end = text.split_once(&budget).and_then(|(_, end)| end.strip_suffix(advice));
    let end = end.unwrap_or_else(|| panic!("{text}\nbut expected at the end: {budget}{advice}"));
    // Other tests of this process may hold handles of tensors, and scratch memory of threads that are ending. The 208
    // B are a block of such scratch memory that was freed while this was refused: only the budget knows it, under the
    // name of its first holder.
    let holders = end.strip_prefix("largest holders: ").map_or(end, |holders| holders.trim_end_matches("; "));
    let is_theirs =
        |holder: &str| holder == "`handles` 256 KiB" || holder.ends_with("` 208 B") || holder.starts_with("`scratch` ");
    assert!(holders.is_empty() || holders.split(", ").all(is_theirs), "{text}");
    // Threads of other tests may end meanwhile and free the memory that they kept.
    assert!(ledger().live_bytes() <= before, "bytes are left after: {text}");
}

#[test]
fn making_tensors_names_what_was_asked_for() {
    let _alone = alone();
    let generator = Generator::new(0);
    let _exhausted = Exhausted::now();
    refused(|| Tensor::zeros([4, 8]), "zeros: no memory for [4, 8] of float32: cannot take 128 B");
    refused(|| Tensor::of(DType::F64).full([3], 1.0), "full: no memory for [3] of float64: cannot take 64 B");
    refused(|| Tensor::arange(0, 9, 1), "arange: no memory for [9] of int64: cannot take 128 B");
    refused(|| Tensor::of(DType::U8).full([9, 9], 1), "full: no memory for [9, 9] of uint8: cannot take 128 B");
    refused(|| Tensor::of(DType::BF16).eye(8), "eye: no memory for [8, 8] of bfloat16: cannot take 128 B");
    refused(|| Tensor::rand_with([2], &generator), "rand: no memory for [2] of float32: cannot take 64 B");
    refused(|| Tensor::randn_with([2], &generator), "randn: no memory for [2] of float32: cannot take 64 B");
    refused(|| Tensor::randperm_with(5, &generator), "randperm: no memory for [5] of int64: cannot take 64 B");
    refused(|| Tensor::new([1.0, 2.0]), "new: no memory for [2] of float32: cannot take 64 B");
    refused(|| Tensor::from_slice(&[1_u8], 1), "from_slice: no memory for [1] of uint8: cannot take 64 B");
    refused(|| Tensor::scalar(true), "scalar: no memory for [] of bool: cannot take 64 B");
}

#[test]
fn operations_name_themselves_and_the_result() {
    let _alone = alone();
    let (x, row, image) = (zeros([4, 8]), zeros([8]), zeros([1, 2, 4, 4]));
    let _exhausted = Exhausted::now();
    refused(|| x.exp(), "exp: no memory for [4, 8] of float32: cannot take 128 B");
    refused(|| &x + &row, "add: no memory for [4, 8] of float32: cannot take 128 B");
    refused(|| x.lt(&row), "lt: no memory for [4, 8] of bool: cannot take 64 B");
    refused(|| x.to_dtype(DType::F64), "to_dtype: no memory for [4, 8] of float64: cannot take 256 B");
    refused(|| x.max_keepdim(1), "max: no memory for [4, 1] of float32: cannot take 64 B");
    refused(|| x.argmax(0), "argmax: no memory for [8] of int64: cannot take 64 B");
    refused(|| Tensor::cat(&[&image, &image], 0), "cat: no memory for [2, 2, 4, 4] of float32: cannot take 256 B");
    let turned = image.transpose(2, 3).unwrap();
    refused(|| turned.contiguous(), "contiguous: no memory for [1, 2, 4, 4] of float32: cannot take 128 B");
}

#[test]
fn every_operation_is_refused_or_needs_no_memory() {
    let _alone = alone();
    let mut refused = BTreeSet::new();
    for operation in &table() {
        for sample in &operation.samples {
            for dtype in operation.dtypes_of(sample) {
                let inputs = sample.make(dtype, &Device::Cpu).unwrap();
                let before = ledger().live_bytes();
                let result = {
                    let _exhausted = Exhausted::now();
                    operation.call(&inputs, &sample.args)
                };
                let what = format!("{} of {dtype}, {}", operation.name, sample.title());
                if let Err(error) = result {
                    let text = error.to_string();
                    let is_refusal =
                        matches!(error, Error::Memory { .. }) && text.contains(": budget `host` has 0 B left");
                    assert!(is_refusal, "{what}: {text}");
                    refused.insert(operation.name);
                }
                // Threads of other tests may end meanwhile and free the memory that they kept.
                assert!(ledger().live_bytes() <= before, "bytes are left after {what}");
            }
        }
    }
    // All but views and changes in place.
    assert!(refused.len() >= 60, "only {} operations were refused: {refused:?}", refused.len());
}

#[test]
fn views_and_reading_need_no_memory() -> Result<()> {
    let _alone = alone();
    let x = zeros([4, 6]);
    let _exhausted = Exhausted::now();
    let view = x.reshape([2, 2, 6])?.permute([2, 0, 1])?.narrow(0, 1, 4)?.slice(0, .., 2)?.select(1, 0)?;
    let view = view.unsqueeze(0)?.expand([3, 2, 2])?.squeeze(1)?.flatten(0, 0)?.transpose(0, 1)?;
    assert_eq!(view.to_vec::<f32>()?, [0.0; 12]);
    Ok(())
}

#[test]
fn in_place_changes_are_refused_before_anything_is_changed() -> Result<()> {
    let _alone = alone();
    let x = Tensor::ones([4])?;
    let _exhausted = Exhausted::now();
    refused(|| x.narrow(0, 0, 2)?.add_(&x.narrow(0, 1, 2)?), "add_: no memory for [2] of float32: cannot take 64 B");
    assert_eq!((x.to_vec::<f32>()?, x.version()), (vec![1.0; 4], 0));
    x.fill_(2.0)?; // needs no memory
    assert_eq!((x.to_vec::<f32>()?, x.version()), (vec![2.0; 4], 1));
    Ok(())
}

/// Limits the budget to `bytes` more than are in use.
fn leave(bytes: u64) -> Exhausted {
    let exhausted = Exhausted::now();
    host_budget().set_limit(ByteSize(host_budget().used().0 + bytes));
    exhausted
}

#[test]
fn backward_that_runs_out_of_memory_changes_no_gradient() -> Result<()> {
    let _alone = alone();
    let leaves: Vec<_> = (0..3).map(|_| zeros([16]).set_requires_grad(true)).collect();
    leaves.iter().try_for_each(|leaf| leaf.exp()?.sum(..)?.backward())?;
    let before = ledger().live_bytes();
    let mut finished = false;
    for room in 0..64 {
        let graph = leaves.iter().try_fold(Tensor::scalar(0.0f32)?, |sum, leaf| sum + leaf.exp()?.sum(..))?;
        let limited = leave(64 * room);
        let outcome = graph.backward();
        drop((graph, limited));
        let gradients = leaves.iter().map(|leaf| leaf.grad().unwrap().to_vec::<f32>()).collect::<Result<Vec<_>>>()?;
        // Threads of other tests may end meanwhile and free the memory that they kept.
        assert!(ledger().live_bytes() <= before, "with room for {room} blocks");
        match outcome {
            Ok(()) => {
                assert_eq!(gradients, vec![vec![2.0; 16]; 3]);
                finished = true;
                break;
            }
            Err(error) => {
                assert!(matches!(error, Error::Memory { .. }), "{error}");
                assert_eq!(gradients, vec![vec![1.0; 16]; 3], "with room for {room} blocks");
            }
        }
    }
    assert!(finished);
    Ok(())
}

#[test]
fn a_training_step_that_was_refused_can_be_repeated_with_more_room() -> Result<()> {
    let _alone = alone();
    let (x, w) = (Tensor::ones([8, 4])?, Tensor::ones([4, 2])?.set_requires_grad(true));
    let step = || {
        x.matmul(&w)?.pow(2.0)?.mean(..)?.backward()?;
        let grad = w.grad().map_or_else(|| w.zeros_like(), Ok)?;
        w.zero_grad();
        no_grad(|| w.add_scaled_(&grad, -0.1))
    };
    let before = ledger().live_bytes();
    let refused = {
        let _exhausted = Exhausted::now();
        step()
    };
    assert!(matches!(refused, Err(Error::Memory { .. })), "{refused:?}");
    assert_eq!(w.to_vec::<f32>()?, [1.0; 8]);
    // A thread of another test may end meanwhile and free the memory that it kept.
    assert!(ledger().live_bytes() <= before, "bytes are left");
    step()?;
    assert_eq!(w.to_vec::<f32>()?, [1.0f32 - 0.1 * 4.0; 8]);
    Ok(())
}

/// Calls `attempt` with a growing limit until it succeeds; `state` must be the same after each refusal.
fn refusals_change_nothing<S: PartialEq + std::fmt::Debug>(
    state: impl Fn() -> S,
    attempt: impl Fn() -> Result<Tensor>,
) {
    let before = state();
    for extra in 0..64 {
        let refused = {
            let exhausted = Exhausted::now();
            host_budget().set_limit(ByteSize(host_budget().used().0 + extra * 64));
            let refused = attempt().is_err();
            drop(exhausted);
            refused
        };
        if !refused {
            assert!(extra > 0, "nothing was refused");
            return;
        }
        assert_eq!(state(), before, "after a refusal with {} B left", extra * 64);
    }
    panic!("4096 B are not enough");
}

#[test]
fn a_refused_batch_norm_leaves_the_running_statistics() {
    let _alone = alone();
    let x = Tensor::from_vec((0..24).map(|i| i as f32).collect(), [2, 3, 4]).unwrap();
    let running = [zeros([3]), zeros([3])];
    let state = || running.each_ref().map(|running| running.to_vec::<f32>().unwrap());
    for parameters in [None, Some(zeros([3]))] {
        refusals_change_nothing(state, || {
            let options = BatchNormOptions::default();
            x.batch_norm(Some(running.each_ref()), parameters.as_ref(), None, options)
        });
        running.iter().for_each(|running| running.zero_().unwrap());
    }
}

#[test]
fn refused_random_numbers_are_the_next_ones_again() {
    let _alone = alone();
    let (x, generator) = (zeros([4, 8]), Generator::new(3));
    generator.next_u64();
    refusals_change_nothing(|| generator.position(), || x.dropout(0.5, &generator));
    refusals_change_nothing(|| generator.position(), || Tensor::rand_with([33], &generator));
    refusals_change_nothing(|| generator.position(), || Tensor::randn_with([33], &generator));
}
