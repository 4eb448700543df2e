//! Every operation of the table in each of its precisions, forward and backward, and other code that allocates for
//! tensors: files, maps, printing, optimizers.

use pagelock_operations::{Derivative, Fill, Inputs, Operation, Sample, table};
use pagelock_tensor::optimizer_steps::{Rate, SgdRule, StepTensors};
use pagelock_tensor::{AnyTensor, DType, Device, Kind, Result, Tensor, TensorMap, no_grad};

use super::common::{self, FLOATS, INTS};
use super::{Case, MIB, unless_refused};

/// The bytes of a small tensor, which always fits, and of large ones.
const SIZES: [usize; 3] = [64 << 10, 8 * MIB, 16 * MIB];

pub(super) fn cases() -> Vec<Case> {
    let operations = table().into_iter().filter(|operation| !(operation.large)(1 << 14).is_empty());
    let operations = operations.map(|operation| Case::new(operation.name, move || every_precision(&operation)));
    let floats: [(&str, fn(DType, usize) -> Result<()>); 1] = [("sgd", sgd)];
    let elements: [(&str, fn(DType, usize) -> Result<()>); 4] =
        [("creation", creation), ("maps", maps), ("saving", saving), ("printing", printing)];
    let all = [FLOATS, INTS, &[DType::Bool]].concat();
    let floats = floats.into_iter().map(|(name, body)| Case::new(name, move || sizes(FLOATS, body)));
    let elements = elements.into_iter().map(move |(name, body)| {
        let all = all.clone();
        Case::new(name, move || sizes(&all, body))
    });
    let into_a_large_tensor = Case::new("entries of a large tensor", entries_of_a_large_tensor);
    operations.chain(floats).chain(elements).chain([into_a_large_tensor]).collect()
}

/// The tensor is so large that a copy of it would be refused.
fn entries_of_a_large_tensor() -> Result<()> {
    let x = Tensor::zeros([1024, 3, 4 << 10])?; // 48 MiB
    let (rows, columns) = (Tensor::new([1, -1])?, Tensor::new([2, 0])?);
    x.put_(&rows, &Tensor::scalar(1.0)?)?;
    x.put_((.., &columns, &rows), &Tensor::scalar(2.0)?)?;
    x.put_((7, 1.., &rows), &Tensor::scalar(3.0)?)?;
    assert_eq!(x.i((7, .., 1))?.to_vec::<f32>()?, [0.0, 3.0, 3.0]);
    Ok(())
}

/// Runs `body` with each precision, and with the number of elements for each size.
fn sizes(dtypes: &[DType], body: impl Fn(DType, usize) -> Result<()>) -> Result<()> {
    for &dtype in dtypes {
        for bytes in SIZES {
            let done = unless_refused(body(dtype, bytes / dtype.size()))?;
            assert!(done.is_some() || bytes > SIZES[0], "there is room for {dtype} tensors of {bytes} bytes");
        }
    }
    Ok(())
}

fn every_precision(operation: &Operation) -> Result<()> {
    sizes(&operation.dtypes(), |dtype, n| {
        (operation.large)(n).iter().try_for_each(|sample| forward_and_backward(operation, sample, dtype))
    })
}

/// Runs the operation on ones, which are made without further memory.
fn forward_and_backward(operation: &Operation, sample: &Sample, dtype: DType) -> Result<()> {
    let mut inputs = Inputs { dtype, device: Device::Cpu, values: Vec::new(), indices: Vec::new() };
    let wanted = operation.derivative == Derivative::Twice && dtype.is_float();
    for input in &sample.inputs {
        if matches!(input.fill, Fill::Index(_)) {
            inputs.indices.push(Tensor::full(&input.shape[..], 0)?);
            continue;
        }
        let base = ones(dtype, &input.shape)?;
        let base = if wanted { base.float()?.set_requires_grad(true).into() } else { base };
        inputs.values.push(input.view_of(base)?);
    }
    let output = operation.call(&inputs, &sample.args)?;
    drop(inputs);
    match output.float() {
        Ok(output) if output.requires_grad() => output.sum(..)?.backward(),
        _ => Ok(()),
    }
}

fn ones(dtype: DType, shape: &[usize]) -> Result<AnyTensor> {
    match dtype {
        DType::Bool => Ok(common::ones::<pagelock_tensor::Bool>(&Device::Cpu, dtype, shape)?.into()),
        _ if dtype.is_float() => Ok(common::ones::<pagelock_tensor::Float>(&Device::Cpu, dtype, shape)?.into()),
        _ => Ok(common::ones::<pagelock_tensor::Int>(&Device::Cpu, dtype, shape)?.into()),
    }
}

fn filled<K: Kind>(dtype: DType, shape: &[usize]) -> Result<Tensor<K>> {
    ones(dtype, shape)?.kind()
}

fn sgd(dtype: DType, n: usize) -> Result<()> {
    let [parameter, grad, state] = [filled(dtype, &[n])?, filled(dtype, &[n])?, filled(dtype, &[n])?];
    let state = [Some(state), None, None];
    let tensors = StepTensors { parameter, grad, half_copy: None, state, clock: None, is_first: true };
    let rule = SgdRule {
        momentum: 0.9,
        dampening: 0.0,
        nesterov: false,
        weight_decay: 0.0,
        is_decoupled: false,
        maximize: false,
    };
    no_grad(|| rule.step([tensors], &Rate::new(0.1)))
}

/// Makes tensors until one is refused; of small ones, only about a hundred.
fn creation(dtype: DType, n: usize) -> Result<()> {
    let mut all = Vec::new();
    while let Some(next) = unless_refused(ones(dtype, &[n]))? {
        all.push(next);
        if all.len() * n * dtype.size() > 2 * super::LIMIT {
            panic!("{} tensors of {n} elements were not refused", all.len());
        }
        if n * dtype.size() < MIB && all.len() > 100 {
            return Ok(());
        }
    }
    Ok(())
}

fn maps(dtype: DType, n: usize) -> Result<()> {
    let mut map = TensorMap::new([n / 64])?;
    map.set("x", ones(dtype, &[n / 64, 64])?)?;
    TensorMap::stack(&[&map, &map], 0).map(drop)
}

fn saving(dtype: DType, n: usize) -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let mut map = TensorMap::new(())?;
    map.set("x", ones(dtype, &[n / 64, 64])?)?;
    map.save(&path)?;
    TensorMap::open(&path)?.to(&Device::Cpu)?;
    let mut whole = TensorMap::new(())?;
    whole.set("x", ones(dtype, &[n])?)?;
    whole.set("y", ones(dtype, &[n])?)?;
    whole.consolidate().map(drop)
}

fn printing(dtype: DType, n: usize) -> Result<()> {
    let x = ones(dtype, &[n])?;
    let text = match dtype {
        DType::Bool => format!("{0} {0:?}", x.bool()?),
        _ if dtype.is_float() => format!("{0} {0:?}", x.float()?),
        _ => format!("{0} {0:?}", x.int()?),
    };
    assert!(text.len() < MIB);
    Ok(())
}
