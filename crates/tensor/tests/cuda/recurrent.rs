//! Recurrent layers on a GPU, compared with the CPU: sizes that a GPU computes in one launch, and sizes that it
//! computes step by step.

use pagelock_tensor::autograd::{Backward, grad};
use pagelock_tensor::{
    DType, Device, Float32MatmulPrecision as Precision, Kernels, Recurrence, RecurrentLayer, Result, Steps, Tensor,
    set_float32_matmul_precision, with_kernels,
};

use crate::agreement::same;
use crate::common::{gpu, gpu_alone};
use crate::libraries::has_libraries;

#[derive(Clone, Copy, Debug)]
struct Layer {
    kind: Recurrence,
    hidden: usize,
    batch: usize,
    steps: usize,
    reverse: bool,
    starts: bool,
}

const COLUMNS: usize = 3;

impl Layer {
    /// The inputs: x, weights, biases, initial states.
    fn inputs(&self) -> Result<Vec<Tensor>> {
        let Layer { hidden, batch, steps, .. } = *self;
        let width = self.kind.gates() * hidden;
        let scale = 1.0 / (hidden as f64).sqrt();
        let shapes = [[steps * batch, COLUMNS], [width, COLUMNS], [width, hidden], [1, width], [1, width]];
        let weights = shapes.into_iter().map(|shape| Tensor::randn(shape)?.mul_scalar(scale));
        let states = if self.starts { if self.kind == Recurrence::Lstm { 2 } else { 1 } } else { 0 };
        weights.chain((0..states).map(|_| Tensor::randn([batch, hidden]))).collect()
    }

    /// The states of all steps, and the gradients of all inputs.
    fn run(&self, device: &Device, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.run_steps(device, inputs, &Steps::even(self.steps, self.batch))
    }

    fn run_steps(&self, device: &Device, inputs: &[Tensor], steps: &Steps) -> Result<Vec<Tensor>> {
        let inputs: Vec<Tensor> =
            inputs.iter().map(|x| Ok(x.to(device)?.set_requires_grad(true))).collect::<Result<_>>()?;
        let [x, weight_ih, weight_hh, bias_ih, bias_hh, first @ ..] = &inputs[..] else {
            unreachable!("five and states")
        };
        let (bias_ih, bias_hh) = (bias_ih.squeeze(0)?, bias_hh.squeeze(0)?);
        let layer = RecurrentLayer::new(self.kind, weight_ih, weight_hh).bias(Some([&bias_ih, &bias_hh]));
        let (h, c) = layer.reverse(self.reverse).run(x, steps, first.first(), first.get(1))?;
        let out = c.map_or(Ok(h.clone()), |c| Tensor::cat(&[&h, &c], 0))?;
        let gradient = Some(Tensor::on(device).of(out.dtype()).full(out.dims(), 0.1)?);
        let gradients =
            grad(&[&out], &inputs.iter().collect::<Vec<_>>(), Backward { gradient, ..Backward::default() })?;
        Ok([out.detach()].into_iter().chain(gradients.into_iter().flatten()).collect())
    }
}

fn layers() -> Vec<Layer> {
    use Recurrence::{Gru, Lstm, Relu, Tanh};
    let sizes = [
        (Tanh, 512, 3, 5),
        (Tanh, 600, 3, 4),
        (Relu, 40, 133, 3),
        (Relu, 128, 5, 6),
        (Lstm, 128, 67, 4),
        (Lstm, 128, 3, 9),
        (Lstm, 160, 2, 5),
        (Lstm, 256, 18, 3),
        (Lstm, 300, 4, 3),
        (Gru, 128, 5, 7),
        (Gru, 33, 70, 4),
        (Gru, 256, 17, 4),
        (Gru, 320, 2, 3),
        (Tanh, 40, 9, 1), // one step, as cells take it
        (Lstm, 40, 9, 1),
        (Gru, 64, 70, 1),
        (Lstm, 256, 64, 1),
    ];
    let layer = |(i, (kind, hidden, batch, steps))| {
        let plain = Layer { kind, hidden, batch, steps, reverse: i % 2 == 1, starts: i % 3 == 0 };
        [plain, Layer { reverse: !plain.reverse, starts: !plain.starts, ..plain }]
    };
    sizes.into_iter().enumerate().flat_map(layer).collect()
}

#[test]
fn recurrent_layers_of_many_sizes_agree() {
    let Some(gpu) = gpu() else { return };
    let count = if has_libraries(&gpu) { 3 } else { 2 };
    for layer in layers() {
        let inputs = layer.inputs().unwrap();
        let expected = layer.run(&Device::Cpu, &inputs).unwrap();
        for &kernels in &[Kernels::Fastest, Kernels::Own, Kernels::Library][..count] {
            let found = with_kernels(kernels, || layer.run(&gpu, &inputs)).unwrap();
            for (i, (cpu, gpu)) in expected.iter().zip(&found).enumerate() {
                same(cpu, gpu, 2e-5, &format!("{layer:?}, {kernels:?}, result {i}"));
            }
        }
    }
}

#[test]
fn recurrent_layers_repeat_bit_for_bit() {
    let Some(gpu) = gpu() else { return };
    for layer in layers() {
        let inputs = layer.inputs().unwrap();
        let [once, again] = [(); 2].map(|()| layer.run(&gpu, &inputs).unwrap());
        for (i, (once, again)) in once.iter().zip(&again).enumerate() {
            same(once, again, 0.0, &format!("{layer:?}, result {i}"));
        }
    }
}

/// The greatest of |found - exact| / max(1, |exact|).
fn relative_error(exact: &Tensor, found: &Tensor) -> Result<f64> {
    let found = found.to(&Device::Cpu)?.to_dtype(DType::F32)?;
    found.sub(exact)?.abs()?.div(&exact.abs()?.clamp_min(1.0)?)?.max(..)?.item()
}

/// A step of these sizes, with its product, is one kernel if factors may be rounded to TF32 or are halves.
#[test]
fn steps_with_their_products_agree() {
    use Recurrence::{Gru, Lstm, Relu, Tanh};
    let Some(gpu) = gpu_alone().filter(has_libraries) else { return };
    let sizes: [(Recurrence, usize, &[usize]); 6] = [
        (Lstm, 1024, &[64; 3]),
        (Gru, 512, &[70; 3]),
        (Tanh, 1024, &[37; 3]),
        (Relu, 1024, &[64; 2]),
        (Lstm, 1024, &[50; 1]),
        (Gru, 1024, &[64, 64, 33, 12]), // of several lengths
    ];
    for (i, (kind, hidden, rows)) in sizes.into_iter().enumerate() {
        for (dtype, rounding) in [(DType::F32, 5e-4), (DType::F16, 5e-4), (DType::BF16, 4e-3)] {
            let (reverse, starts) = (i % 2 == 1, i % 3 == 0 || rows.len() == 1);
            let layer = Layer { kind, hidden, batch: rows[0], steps: rows.len(), reverse, starts };
            let steps = Steps::packed(rows).unwrap();
            let mut inputs: Vec<Tensor> = layer.inputs().unwrap().iter().map(|x| x.to_dtype(dtype).unwrap()).collect();
            inputs[0] = inputs[0].narrow(0, 0, steps.rows()).unwrap();
            let exact: Vec<Tensor> = inputs.iter().map(|x| x.to_dtype(DType::F32).unwrap()).collect();
            let expected = layer.run_steps(&Device::Cpu, &exact, &steps).unwrap();
            let run = |kernels| {
                set_float32_matmul_precision(Precision::High);
                let found = with_kernels(kernels, || layer.run_steps(&gpu, &inputs, &steps));
                set_float32_matmul_precision(Precision::Highest);
                found.unwrap()
            };
            let [found, again, library] = [Kernels::Fastest, Kernels::Fastest, Kernels::Library].map(run);
            let is_same = |a: &Tensor, b: &Tensor| a.equal(&b.to(&a.device()).unwrap()).unwrap();
            assert!(!is_same(&found[0], &library[0]), "{layer:?} in {dtype:?} is one kernel a step, not two");
            for (j, (cpu, found)) in expected.iter().zip(&found).enumerate() {
                let name = format!("{layer:?} in {dtype:?}, result {j}");
                assert!(is_same(found, &again[j]), "{name} differs the second time");
                if kind == Relu && j > 0 {
                    break; // a state close to zero may have the other sign, and then another gradient
                }
                let [error, of_library] = [found, &library[j]].map(|x| relative_error(cpu, x).unwrap());
                assert!(of_library < 25.0 * rounding, "{name}: {of_library} by the library");
                assert!(error < 2.0 * of_library + rounding, "{name}: {error}, by the library {of_library}");
            }
        }
    }
}
