//! How the operations of the table treat inputs of two precisions, and in which precision they compute under autocast.

use pagelock_operations::{Autocast, Bound, Inputs, Mixed, Operation, Sample, table};
use pagelock_tensor::{AnyTensor, DType, Device, Error, Half, Result, autocast, autograd, no_autocast};

use crate::common::{FLOATS, INTS, numbers_of};

/// The operations that treat inputs of two precisions as `mixed` says, each with a sample of several inputs.
fn operations(mixed: Mixed) -> Vec<(Operation, Sample)> {
    let several = |sample: &&Sample| sample.inputs.len() > 1;
    let found = table().into_iter().filter(|operation| operation.mixed == mixed).map(|operation| {
        let sample = operation.samples.iter().find(several).expect("a sample with two inputs").clone();
        (operation, sample)
    });
    found.collect()
}

/// The first input in one precision, all others in another.
fn inputs(sample: &Sample, left: DType, right: DType) -> Result<Inputs> {
    let mut inputs = sample.make(left, &Device::Cpu)?;
    for input in &mut inputs.values[1..] {
        *input = input.to_dtype(right)?;
    }
    Ok(inputs)
}

fn converted(inputs: &Inputs, dtype: DType) -> Result<Inputs> {
    let values = inputs.values.iter().map(|input| input.to_dtype(dtype)).collect::<Result<_>>()?;
    Ok(Inputs { dtype, device: Device::Cpu, values, indices: inputs.indices.clone() })
}

/// Pairs of different precisions of one kind that the operation takes.
fn pairs(operation: &Operation) -> Vec<(DType, DType)> {
    let taken = operation.dtypes();
    let kinds = [FLOATS, INTS].into_iter().filter(|kind| taken.contains(&kind[0]));
    let all = kinds.flat_map(|kind| kind.iter().flat_map(move |&left| kind.iter().map(move |&right| (left, right))));
    all.filter(|(left, right)| left != right).collect()
}

/// The precision to which PyTorch promotes the two, which holds the values of both.
fn promoted(left: DType, right: DType) -> DType {
    use DType::{BF16, F16, F32, F64, I32, I64};
    match (left, right) {
        (left, right) if left == right => left,
        (F64, _) | (_, F64) => F64,
        (F32 | F16 | BF16, _) => F32,
        (I64, _) | (_, I64) => I64,
        _ => I32,
    }
}

fn numbers(x: &AnyTensor) -> Vec<u64> {
    numbers_of(x).unwrap().into_iter().map(f64::to_bits).collect()
}

#[track_caller]
fn equal(what: &str, found: &AnyTensor, expected: &AnyTensor) {
    assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()), "{what}");
    assert_eq!(numbers(found), numbers(expected), "{what}");
}

/// Checks that two results differ by at most [`Bound::Rounded`]: for half types, about four units in the last place.
#[track_caller]
fn close(what: &str, found: &AnyTensor, expected: &AnyTensor) {
    assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()), "{what}");
    let bound = Bound::Rounded.relative(found.dtype());
    for (found, expected) in numbers_of(found).unwrap().into_iter().zip(numbers_of(expected).unwrap()) {
        assert!((found - expected).abs() <= bound * expected.abs().max(1.0), "{what}: {found} instead of {expected}");
    }
}

#[track_caller]
fn refused<R>(what: &str, result: Result<R>) {
    let Err(error) = result else { panic!("{what} took two precisions") };
    assert!(matches!(error, Error::MixedTypes { .. }), "{what}: {error}");
}

#[test]
fn what_promotes_computes_in_the_precision_that_holds_both() -> Result<()> {
    let operations = operations(Mixed::Promotes);
    assert!(operations.len() >= 14, "only {}", operations.len());
    for (operation, sample) in operations {
        for (left, right) in pairs(&operation) {
            let inputs = inputs(&sample, left, right)?;
            let wide = converted(&inputs, promoted(left, right))?;
            let what = format!("{} of {left} and {right}", operation.name);
            equal(&what, &operation.call(&inputs, &sample.args)?, &operation.call(&wide, &sample.args)?);
        }
    }
    Ok(())
}

#[test]
fn gradients_of_promoted_operands_have_the_operands_own_precision() -> Result<()> {
    for (operation, sample) in operations(Mixed::Promotes) {
        for (left, right) in pairs(&operation).into_iter().filter(|(left, _)| left.is_float()) {
            if !operation.has_gradients(&sample, left) {
                continue;
            }
            let mut inputs = inputs(&sample, left, right)?;
            let of: Vec<_> =
                inputs.values.iter().map(|x| Ok(x.float()?.set_requires_grad(true))).collect::<Result<_>>()?;
            inputs.values = of.iter().map(AnyTensor::from).collect();
            operation.call(&inputs, &sample.args)?.float()?.sum(..)?.backward()?;
            for x in &of {
                let grad = x.grad().unwrap_or_else(|| panic!("{} has no gradient of {}", operation.name, x.dtype()));
                assert_eq!((grad.dtype(), grad.shape()), (x.dtype(), x.shape()), "{}", operation.name);
            }
        }
    }
    Ok(())
}

#[test]
fn what_takes_one_precision_refuses_two() -> Result<()> {
    let operations = operations(Mixed::Refuses);
    assert!(operations.len() >= 32, "only {}", operations.len());
    let mut n_norms = 0;
    for (operation, sample) in operations {
        for (left, right) in pairs(&operation) {
            let what = format!("{} of {left} and {right}", operation.name);
            let inputs = inputs(&sample, left, right)?;
            let result = operation.call(&inputs, &sample.args);
            // A norm of half activations takes `f32` weights, as PyTorch's does.
            let takes_wider = operation.name.contains("_norm") && right == DType::F32 && left != DType::F64;
            if takes_wider {
                let wide = operation.call(&converted(&inputs, DType::F32)?, &sample.args)?;
                close(&what, &result?, &wide.to_dtype(left)?);
                n_norms += 1;
            } else {
                refused(&what, result);
            }
        }
    }
    assert_eq!(n_norms, 8, "four norms of two half types");
    Ok(())
}

#[test]
fn what_converts_its_second_operand_has_the_precision_of_the_first() -> Result<()> {
    let operations = operations(Mixed::Converts);
    assert_eq!(operations.len(), 3);
    for (operation, sample) in operations {
        for (left, right) in pairs(&operation) {
            let inputs = inputs(&sample, left, right)?;
            let same = converted(&inputs, left)?;
            let what = format!("{} of {left} and {right}", operation.name);
            equal(&what, &operation.call(&inputs, &sample.args)?, &operation.call(&same, &sample.args)?);
        }
    }
    Ok(())
}

#[test]
fn a_tensor_changed_in_place_takes_narrower_operands_and_refuses_wider_ones() -> Result<()> {
    let mut operations = operations(Mixed::IntoFirst);
    operations.retain(|(operation, _)| operation.name != "copy_");
    assert!(operations.len() >= 8, "only {}", operations.len());
    for (operation, sample) in operations {
        for (left, right) in pairs(&operation) {
            let what = format!("{} of {left} and {right}", operation.name);
            let inputs = inputs(&sample, left, right)?;
            if promoted(left, right) == left {
                let wide = converted(&self::inputs(&sample, left, right)?, left)?;
                equal(&what, &operation.call(&inputs, &sample.args)?, &operation.call(&wide, &sample.args)?);
            } else {
                let before = numbers(&inputs.values[0]);
                refused(&what, operation.call(&inputs, &sample.args));
                assert_eq!(numbers(&inputs.values[0]), before, "{what} changed something");
            }
        }
    }
    Ok(())
}

#[test]
fn autocast_chooses_the_precision_that_the_table_says() -> Result<()> {
    for operation in table().iter().filter(|operation| operation.run.float.is_some()) {
        for sample in operation.samples.iter().filter(|sample| !sample.inputs.is_empty()) {
            for (half, narrow) in [(Half::BF16, DType::BF16), (Half::F16, DType::F16)] {
                for &dtype in FLOATS {
                    let wanted = match operation.autocast {
                        _ if dtype == DType::F64 => dtype,
                        Autocast::Half => narrow,
                        Autocast::F32 => DType::F32,
                        Autocast::AsItIs => dtype,
                    };
                    let found = autocast(half, || operation.call(&sample.make(dtype, &Device::Cpu)?, &sample.args))?;
                    let wide = converted(&sample.make(dtype, &Device::Cpu)?, wanted)?;
                    let expected = no_autocast(|| operation.call(&wide, &sample.args))?;
                    let what = format!("{} of {dtype} under autocast to {narrow}: {}", operation.name, sample.title());
                    equal(&what, &found, &expected);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_under_autocast_have_the_precision_of_their_tensors() -> Result<()> {
    for operation in &table() {
        for sample in operation.samples.iter().filter(|sample| operation.has_gradients(sample, DType::F32)) {
            let mut inputs = sample.make(DType::F32, &Device::Cpu)?;
            let of: Vec<_> =
                inputs.values.iter().map(|x| Ok(x.float()?.detach().set_requires_grad(true))).collect::<Result<_>>()?;
            inputs.values = of.iter().map(AnyTensor::from).collect();
            let output = autocast(Half::BF16, || operation.call(&inputs, &sample.args))?.float()?;
            if output.is_empty() || !output.requires_grad() {
                continue;
            }
            let of: Vec<_> = of.iter().collect();
            let grads = autograd::grad(&[&output.sum(..)?], &of, autograd::Backward::default())?;
            for grad in grads.iter().flatten() {
                assert_eq!(grad.dtype(), DType::F32, "{} {}", operation.name, sample.title());
            }
        }
    }
    Ok(())
}
