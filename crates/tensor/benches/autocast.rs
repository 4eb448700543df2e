//! Trains a small CNN and an MLP under autocast, from weights and batches that `autocast.py` made. That script also
//! compares the results with PyTorch's.
//!
//! ```text
//! autocast INPUTS.safetensors OUTPUT.json cpu|cuda bfloat16|float16
//! ```
//!
//! For each model, the output has the loss of every step, and the operations of the first step in order: the name,
//! the precision of the result, and the precision of its gradient. `autocast.py` starts this program, and describes
//! how to run both.

use std::error::Error;
use std::path::Path;

use pagelock_tensor::autograd::no_grad;
use pagelock_tensor::{
    BatchNormOptions, Conv2dOptions, Device, Half, Int, Pool2dOptions, Reduction, Result, Tensor, TensorMap, autocast,
};
use serde_json::{Value, json};

const STEPS: isize = 200;
const BATCH: usize = 64;
const LEARNING_RATE: f64 = 0.05;
/// A factor of the loss, so that small gradients do not become zero in `float16`.
const SCALE: f64 = 1024.0;

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [inputs, output, device, half] = &arguments[..] else {
        eprintln!("usage: autocast INPUTS.safetensors OUTPUT.json cpu|cuda bfloat16|float16; autocast.py runs it");
        return Ok(());
    };
    let device = if device == "cpu" { Device::Cpu } else { Device::cuda(0)? };
    let half = if half == "float16" { Half::F16 } else { Half::BF16 };
    let map = TensorMap::open(Path::new(inputs))?.to(&device)?;
    let models: [(&str, Model); 2] = [("mlp", mlp), ("cnn", cnn)];
    let mut results = serde_json::Map::new();
    for (name, model) in models {
        results.insert(name.to_owned(), train(name, model, &map, half)?);
    }
    Ok(std::fs::write(output, Value::from(results).to_string())?)
}

type Model = fn(&Tensor, &[Tensor], &mut Trace) -> Result<Tensor>;

/// Every result of a forward pass, with the name of its operation.
#[derive(Default)]
struct Trace(Vec<(&'static str, Tensor)>);

impl Trace {
    fn note(&mut self, operation: &'static str, result: Tensor) -> Tensor {
        result.retain_grad();
        self.0.push((operation, result.clone()));
        result
    }

    fn json(&self) -> Value {
        let gradient = |x: &Tensor| x.grad().map(|grad| grad.dtype().name());
        self.0.iter().map(|(operation, x)| json!([operation, x.dtype().name(), gradient(x)])).collect()
    }
}

fn train(name: &str, model: Model, map: &TensorMap, half: Half) -> Result<Value> {
    let map = map.get_map(name)?;
    let (images, labels): (Tensor, Tensor<Int>) = (map.get("x")?, map.get_int("labels")?);
    let mut parameters = Vec::new();
    while let Ok(parameter) = map.get(&format!("parameter.{}", parameters.len())) {
        parameters.push(parameter.set_requires_grad(true));
    }
    let n_batches = (images.size(0)? / BATCH) as isize;
    let (mut losses, mut operations) = (Vec::new(), Value::Null);
    for step in 0..STEPS {
        let start = (step % n_batches) as usize * BATCH;
        let (x, y) = (images.narrow(0, start, BATCH)?, labels.narrow(0, start, BATCH)?);
        let mut trace = Trace::default();
        let loss = autocast(half, || {
            let scores = model(&x, &parameters, &mut trace)?;
            Ok::<_, pagelock_tensor::Error>(trace.note("cross_entropy", scores.cross_entropy(&y, Reduction::Mean)?))
        })?;
        (&loss * SCALE)?.backward()?;
        if step == 0 {
            operations = trace.json();
        }
        for parameter in &parameters {
            let grad = parameter.grad().expect("every parameter is used");
            assert_eq!(grad.dtype(), parameter.dtype());
            no_grad(|| parameter.add_scaled_(&grad, -LEARNING_RATE / SCALE))?;
            parameter.zero_grad();
        }
        losses.push(loss.item::<f32>()?);
    }
    Ok(json!({ "losses": losses, "operations": operations }))
}

fn mlp(x: &Tensor, p: &[Tensor], t: &mut Trace) -> Result<Tensor> {
    let h = t.note("linear", x.linear(&p[0], Some(&p[1]))?);
    let h = t.note("tanh", h.tanh()?);
    let h = t.note("layer_norm", h.layer_norm(h.size(1)?, Some(&p[2]), Some(&p[3]), 1e-5)?);
    let h = t.note("linear", h.linear(&p[4], Some(&p[5]))?);
    let h = t.note("relu", h.relu()?);
    Ok(t.note("linear", h.linear(&p[6], Some(&p[7]))?))
}

fn cnn(x: &Tensor, p: &[Tensor], t: &mut Trace) -> Result<Tensor> {
    let same = Conv2dOptions::new().padding(1);
    let h = t.note("conv2d", x.conv2d(&p[0], Some(&p[1]), same)?);
    let h = t.note("relu", h.relu()?);
    let h = t.note("max_pool2d", h.max_pool2d(Pool2dOptions::new(2))?);
    let h = t.note("conv2d", h.conv2d(&p[2], Some(&p[3]), same)?);
    let h = t.note("batch_norm", h.batch_norm(None, Some(&p[4]), Some(&p[5]), BatchNormOptions::default())?);
    let h = t.note("relu", h.relu()?);
    let h = t.note("avg_pool2d", h.avg_pool2d(Pool2dOptions::new(2))?);
    let h = t.note("flatten", h.flatten(1, -1)?);
    Ok(t.note("linear", h.linear(&p[6], Some(&p[7]))?))
}
