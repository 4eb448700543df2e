//! Every operation of the table on a GPU, compared with the CPU, in several memory layouts of its inputs: values and
//! gradients.
//!
//! Where each result is rounded once, or only moved, both devices have the same bits.

use pagelock_operations::{Bound, Inputs, Operation, Sample, numbers_like, table};
use pagelock_tensor::autograd::{self, Backward};
use pagelock_tensor::{AnyTensor, DType, Device, Kind, Result, Tensor};

use crate::agreement::difference;
use crate::common::{gpu, reversed};

/// The memory layout of an input.
#[derive(Clone, Copy, Debug)]
enum Layout {
    AsGiven,
    ColumnMajor,
    WithGaps,
    /// One element after an aligned address, in longer rows.
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

/// How much was compared, and what differed.
#[derive(Default)]
struct Report {
    cases: usize,
    gradients: usize,
    failures: Vec<String>,
}

/// One call on both devices.
struct Case<'a> {
    operation: &'a Operation,
    sample: &'a Sample,
    dtype: DType,
    layouts: [Layout; 3],
}

impl Case<'_> {
    /// Compares the results. Returns how many gradients were compared.
    fn check(&self, gpu: &Device) -> Result<usize, String> {
        let [(value, grads), (on_gpu, grads_on_gpu)] = [&Device::Cpu, gpu].map(|device| self.results(device));
        let [value, on_gpu] = [value, on_gpu].map(|result| result.map_err(|error| error.to_string()));
        difference(&value?, &on_gpu?, self.operation.bound.relative(self.dtype))?;
        for (i, (cpu, gpu)) in grads.iter().zip(&grads_on_gpu).enumerate() {
            let bound = Bound::Rounded.relative(self.dtype);
            difference(&cpu.into(), &gpu.into(), bound).map_err(|why| format!("gradient of input {i}: {why}"))?;
        }
        Ok(grads.len())
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

impl Report {
    fn check(&mut self, gpu: &Device, operation: &Operation, sample: &Sample, dtypes: &[DType]) {
        let turns = LAYOUTS.len() * if sample.inputs.len() > 1 { 2 } else { 1 };
        for (&dtype, turn) in dtypes.iter().flat_map(|dtype| (0..turns).map(move |turn| (dtype, turn))) {
            // First all inputs have the same layout, then each has another one.
            let layout = |input: usize| LAYOUTS[(turn + input * (turn / LAYOUTS.len())) % LAYOUTS.len()];
            let layouts = [0, 1, 2].map(layout);
            self.cases += 1;
            match (Case { operation, sample, dtype, layouts }).check(gpu) {
                Ok(gradients) => self.gradients += gradients,
                Err(why) => {
                    self.failures.push(format!("{} {dtype} {} {layouts:?}: {why}", operation.name, sample.title()));
                }
            }
        }
    }

    fn assert(&self, least_cases: usize, least_gradients: usize) {
        let Report { cases, gradients, failures } = self;
        let shown = failures.iter().take(60).map(String::as_str).collect::<Vec<_>>().join("\n");
        assert!(failures.is_empty(), "{} of {cases} cases differ between a GPU and the CPU:\n{shown}", failures.len());
        assert!(*cases >= least_cases && *gradients >= least_gradients, "only {cases} cases, {gradients} gradients");
    }
}

#[test]
fn every_sample_agrees_in_every_layout() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    for operation in &table() {
        for sample in &operation.samples {
            report.check(&gpu, operation, sample, &operation.dtypes_of(sample));
        }
    }
    report.assert(15_000, 12_000);
}

#[test]
fn large_inputs_have_the_same_bits_where_each_result_is_rounded_once() {
    let Some(gpu) = gpu() else { return };
    let mut report = Report::default();
    for operation in table().iter().filter(|operation| operation.bound == Bound::Exact) {
        for sample in (operation.large)(100_000).iter().map(|sample| sample.clone().without_gradients()) {
            report.check(&gpu, operation, &sample, &operation.dtypes());
        }
    }
    report.assert(3_500, 0);
}
