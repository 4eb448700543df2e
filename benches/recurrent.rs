//! Times recurrent layers, forward and backward, on the CPU and on a GPU if there is one. On a GPU it times the
//! kernels of `--kernels`, with each step launched eagerly and captured.
//!
//! ```text
//! cargo bench --bench recurrent -- [--cpu-only] [--threads 2] [--json]
//! python benches/torch_recurrent.py        # the same in PyTorch
//! ```
//!
//! Prints milliseconds, the best of six rounds. The rows are LSTM, GRU and RNN with two layers each, and their cells
//! in a loop of twenty steps (256 inputs and states, batch 64).

use std::time::Instant;

use clap::Parser;
use pagelock::nn::{GRUCell, LSTMCell, RNNCell, RNNOptions};
use pagelock::prelude::*;
use pagelock::tensor::{Float32MatmulPrecision, Kernels, Result, set_float32_matmul_precision, with_kernels};

/// Times recurrent layers
#[derive(Parser)]
struct Args {
    /// Leave the GPU out
    #[arg(long)]
    cpu_only: bool,
    /// Leave the CPU out
    #[arg(long)]
    gpu_only: bool,
    /// Kernels on a GPU: `fastest`, `own`, or `library`, which computes every step with a product of cuBLASLt
    #[arg(long, value_delimiter = ',', default_value = "fastest,own")]
    kernels: Vec<String>,
    /// Sequences in a batch, on a GPU
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Sizes of states on a GPU
    #[arg(long, value_delimiter = ',', default_value = "1024,128")]
    hidden: Vec<usize>,
    /// Threads of the CPU
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// `cargo bench` passes this
    #[arg(long, hide = true)]
    bench: bool,
}

/// The name of a layer, the size of its inputs and states, the batch size, the number of steps.
type Case = (&'static str, usize, usize, usize);

struct Timed {
    parameters: Vec<Parameter>,
    step: Box<dyn Fn() -> Result<()>>,
}

fn layer((kind, hidden, batch, steps): Case, dtype: DType, device: &Device) -> anyhow::Result<Timed> {
    let x = Tensor::on(device).of(dtype).randn([steps, batch, hidden])?.set_requires_grad(true);
    let options = RNNOptions::new().num_layers(2);
    macro_rules! timed {
        ($layer:ident) => {{
            let mut layer = $layer::with(hidden, hidden, options)?;
            layer.to_dtype_(dtype)?;
            layer.to_(device)?;
            let parameters = layer.parameters();
            let gradient = Tensor::on(device).of(dtype).ones([steps, batch, hidden])?;
            let step = move || {
                let (y, _) = layer.forward(&x)?;
                let gradient = Some(gradient.clone());
                y.backward_with(pagelock::tensor::autograd::Backward { gradient, ..Default::default() })?;
                x.zero_grad();
                Ok(())
            };
            Ok(Timed { parameters, step: Box::new(step) })
        }};
    }
    match kind {
        "LSTM" => timed!(LSTM),
        "GRU" => timed!(GRU),
        _ => timed!(RNN),
    }
}

fn cell((kind, hidden, batch, steps): Case, dtype: DType, device: &Device) -> anyhow::Result<Timed> {
    let x = Tensor::on(device).of(dtype).randn([steps, batch, hidden])?;
    macro_rules! timed {
        ($cell:ident, $state:ident => $first:expr, |$model:ident, $input:ident| $next:expr, $h:expr) => {{
            let mut $model = $cell::new(hidden, hidden)?;
            $model.to_dtype_(dtype)?;
            $model.to_(device)?;
            let parameters = $model.parameters();
            let zeros = Tensor::on(device).of(dtype).zeros([batch, hidden])?;
            let step = move || {
                let first = |zeros: &Tensor| $first(zeros);
                let mut $state = first(&zeros);
                for i in 0..steps {
                    let $input = &x.select(0, i as isize)?;
                    $state = $next?;
                }
                $h.sum(..)?.backward()
            };
            Ok(Timed { parameters, step: Box::new(step) })
        }};
    }
    match kind {
        "LSTMCell" => timed!(LSTMCell, state => |zeros: &Tensor| (zeros.clone(), zeros.clone()),
            |model, input| model.forward_with(input, (&state.0, &state.1)), state.0),
        "GRUCell" => {
            timed!(GRUCell, state => |zeros: &Tensor| zeros.clone(), |model, input| model.forward_with(input, &state), state)
        }
        _ => {
            timed!(RNNCell, state => |zeros: &Tensor| zeros.clone(), |model, input| model.forward_with(input, &state), state)
        }
    }
}

/// Milliseconds per call in the best of six rounds.
fn milliseconds(device: &Device, timed: &Timed, calls: usize, captured: bool) -> anyhow::Result<f64> {
    let once = || -> Result<()> {
        (timed.step)()?;
        timed.parameters.iter().for_each(|parameter| parameter.zero_grad());
        Ok(())
    };
    let mut step = CapturedStep::new(device);
    let nothing = Tensor::on(device).zeros([1])?;
    let mut call = || -> Result<()> {
        match captured {
            true => step.run(nothing.clone(), |nothing| once().and_then(|()| nothing.add_scalar(0.0))).map(drop),
            false => once(),
        }
    };
    let mut best = f64::INFINITY;
    for _ in 0..6 {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        device.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64() * 1e3 / calls as f64);
    }
    Ok(best)
}

impl Args {
    fn say(&self, how: &str, case: Case, dtype: DType, ms: f64) {
        let ((kind, hidden, batch, steps), dtype) = (case, dtype.name());
        match self.json {
            true => {
                let case = format!("{kind} {hidden} {batch}x{steps}");
                println!("{}", serde_json::json!({ "case": case, "dtype": dtype, "how": how, "ms": ms }));
            }
            false => println!("{kind:9} {hidden:>5} {batch:>4} x {steps:<4} {dtype:9} {how:28} {ms:9.3} ms"),
        }
    }

    fn cpu(&self) -> anyhow::Result<()> {
        for kind in ["LSTM", "GRU", "RNN"] {
            let case = (kind, 256, 32, 64);
            let timed = layer(case, DType::F32, &Device::Cpu)?;
            let ms = milliseconds(&Device::Cpu, &timed, 2, false)?;
            self.say(&format!("cpu, {} threads", self.threads), case, DType::F32, ms);
        }
        Ok(())
    }

    fn gpu(&self, device: &Device, name: &str, captured: bool) -> anyhow::Result<()> {
        let how = format!("{name}, {}", if captured { "captured" } else { "queued" });
        let kinds = ["LSTM", "GRU", "RNN"];
        for dtype in [DType::F32, DType::BF16] {
            for (kind, hidden) in self.hidden.iter().flat_map(|&hidden| kinds.map(|kind| (kind, hidden))) {
                let case = (kind, hidden, self.batch, 128);
                let ms = milliseconds(device, &layer(case, dtype, device)?, 5, captured)?;
                self.say(&how, case, dtype, ms);
            }
        }
        for kind in ["RNNCell", "GRUCell", "LSTMCell"] {
            let case = (kind, 256, self.batch, 20);
            let ms = milliseconds(device, &cell(case, DType::F32, device)?, 10, captured)?;
            self.say(&how, case, DType::F32, ms);
        }
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    set_num_threads(args.threads);
    if !args.gpu_only {
        args.cpu()?;
    }
    let device = Device::best();
    if args.cpu_only || device.is_cpu() {
        return Ok(());
    }
    set_float32_matmul_precision(Float32MatmulPrecision::High); // as PyTorch's cuDNN does
    for name in &args.kernels {
        let kernels = match name.as_str() {
            "fastest" => Kernels::Fastest,
            "own" => Kernels::Own,
            "library" => Kernels::Library,
            _ => anyhow::bail!("--kernels are fastest, own or library, not `{name}`"),
        };
        with_kernels(kernels, || [false, true].into_iter().try_for_each(|captured| args.gpu(&device, name, captured)))?;
    }
    Ok(())
}
