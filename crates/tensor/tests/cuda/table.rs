//! Every operation of the table on a GPU and on the CPU, however its inputs lie in memory: values and gradients.
//!
//! Where each result is rounded once, or only moved, both devices have the same bits.

use pagelock_tensor::autograd::{self, Backward};
use pagelock_tensor::{AnyTensor, DType, Device, Kind, Result, Tensor};

use crate::agreement::difference;
use crate::common::{gpu, reversed};
use crate::operations::{Bound, Inputs, Operation, Sample, numbers_like, table};

/// How an input lies in memory.
#[derive(Clone, Copy, Debug)]
enum Layout {
    AsGiven,
    ColumnMajor,
    WithGaps,
    /// One element behind an aligned address, in longer rows.
    Shifted,
}

const LAYOUTS: [Layout; 4] = [Layout::AsGiven, Layout::ColumnMajor, Layout::WithGaps, Layout::Shifted];

impl Layout {
    fn of(self, x: &AnyTensor) -> Result<AnyTensor> {
        match x.dtype() {
            DType::Bool => Ok(self.of_kind(&x.bool()?)?.into()),
            dtype if dtype.is_float() => Ok(self.of_kind(&x.float()?)?.into()),
            _ => Ok(self.of_kind(&x.int()?)?.into()),
        }
    }

    fn of_kind<K: Kind>(self, x: &Tensor<K>) -> Result<Tensor<K>> {
        let last = x.dims().len() as isize - 1;
        match self {
            Layout::ColumnMajor => reversed(&reversed(x)?.contiguous()?),
            Layout::WithGaps => Tensor::stack(&[x, x, x], -1)?.select(-1, 1),
            Layout::Shifted if last >= 0 && !x.is_empty() => {
                Tensor::cat(&[&x.narrow(last, 0, 1)?, x], last)?.narrow(last, 1, x.dims()[last as usize])
            }
            Layout::AsGiven | Layout::Shifted => Ok(x.clone()),
        }
    }
}

/// One call on both devices.
struct Case<'a> {
    operation: &'a Operation,
    sample: &'a Sample,
    dtype: DType,
    layouts: [Layout; 3],
}

impl Case<'_> {
    fn check(&self, gpu: &Device) -> Result<(), String> {
        let [(value, grads), (on_gpu, grads_on_gpu)] = [&Device::Cpu, gpu].map(|device| self.results(device));
        let [value, on_gpu] = [value, on_gpu].map(|result| result.map_err(|error| error.to_string()));
        difference(&value?, &on_gpu?, self.operation.bound.relative(self.dtype))?;
        for (i, (cpu, gpu)) in grads.iter().zip(&grads_on_gpu).enumerate() {
            let bound = Bound::Rounded.relative(self.dtype);
            difference(&cpu.into(), &gpu.into(), bound).map_err(|why| format!("gradient of input {i}: {why}"))?;
        }
        Ok(())
    }

    fn results(&self, device: &Device) -> (Result<AnyTensor>, Vec<Tensor>) {
        let (inputs, bases) = self.inputs(device).unwrap();
        let output = self.operation.call(&inputs, &self.sample.args);
        let grads = output.as_ref().ok().and_then(|output| output.float().ok()).filter(Tensor::requires_grad);
        let grads = grads.map_or_else(Vec::new, |output| {
            let targets: Vec<&Tensor> = bases.iter().collect();
            let upstream = numbers_like(&output, 10).unwrap();
            let start = Backward { gradient: Some(upstream), ..Backward::default() };
            let found = autograd::grad(&[&output], &targets, start).unwrap();
            found.into_iter().flatten().collect()
        });
        (output, grads)
    }

    fn inputs(&self, device: &Device) -> Result<(Inputs, Vec<Tensor>)> {
        let mut inputs = self.sample.make(self.dtype, device)?;
        let mut bases = Vec::new();
        for (input, layout) in inputs.values.iter_mut().zip(self.layouts) {
            if self.operation.has_gradients(self.sample, self.dtype) {
                bases.push(input.float()?.detach().contiguous()?.set_requires_grad(true));
                *input = AnyTensor::from(&bases[bases.len() - 1]);
            }
            *input = layout.of(input)?;
        }
        Ok((inputs, bases))
    }
}

fn check(gpu: &Device, operation: &Operation, sample: &Sample, dtypes: &[DType], failures: &mut Vec<String>) {
    let turns = LAYOUTS.len() * if sample.inputs.len() > 1 { 2 } else { 1 };
    for &dtype in dtypes {
        for turn in 0..turns {
            // First all inputs alike, then each another way.
            let layout = |input: usize| LAYOUTS[(turn + input * (turn / LAYOUTS.len())) % LAYOUTS.len()];
            let case = Case { operation, sample, dtype, layouts: [0, 1, 2].map(layout) };
            if let Err(why) = case.check(gpu) {
                let Case { layouts, .. } = case;
                failures.push(format!("{} {dtype} {} {layouts:?}: {why}", operation.name, sample.title()));
            }
        }
    }
}

fn none(failures: &[String]) {
    let shown = failures.iter().take(60).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} cases differ between a GPU and the CPU:\n{shown}", failures.len());
}

#[test]
fn every_sample_agrees_in_every_layout() {
    let Some(gpu) = gpu() else { return };
    let mut failures = Vec::new();
    for operation in &table() {
        for sample in &operation.samples {
            check(&gpu, operation, sample, &operation.dtypes_of(sample), &mut failures);
        }
    }
    none(&failures);
}

#[test]
fn large_inputs_have_the_same_bits_where_each_result_is_rounded_once() {
    let Some(gpu) = gpu() else { return };
    let mut failures = Vec::new();
    for operation in table().iter().filter(|operation| operation.bound == Bound::Exact) {
        for sample in (operation.large)(100_000).iter().map(|sample| sample.clone().without_gradients()) {
            check(&gpu, operation, &sample, &operation.dtypes(), &mut failures);
        }
    }
    none(&failures);
}
