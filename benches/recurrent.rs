//! Recurrent layers, forward and backward: on the CPU, and on a GPU where there is one, by NVIDIA's library and by our products,
//! each step queued anew and captured.
//!
//! ```text
//! cargo bench --bench recurrent -- [--cpu-only] [--threads 2] [--json]
//! python benches/torch_recurrent.py        # the same in PyTorch
//! ```
//!
//! Milliseconds, the best of some rounds. Layers: LSTM, GRU and RNN of two layers; a cell in a loop of twenty steps (256 inputs and
//! states, batch 64).

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
    /// Threads of the CPU
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// A layer's name, inputs and states, batch, steps.
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

/// The best of some rounds, in milliseconds.
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

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    set_num_threads(args.threads);
    let say = |what: &str, (kind, hidden, batch, steps): Case, dtype: DType, ms: f64| match args.json {
        true => println!(
            "{}",
            serde_json::json!({ "case": format!("{kind} {hidden} {batch}x{steps}"), "dtype": dtype.name(), "how": what, "ms": ms })
        ),
        false => println!("{kind:9} {hidden:>5} {batch:>3} x {steps:<4} {:9} {what:28} {ms:9.3} ms", dtype.name()),
    };
    for kind in ["LSTM", "GRU", "RNN"] {
        let case = (kind, 256, 32, 64);
        let timed = layer(case, DType::F32, &Device::Cpu)?;
        say(&format!("cpu, {} threads", args.threads), case, DType::F32, milliseconds(&Device::Cpu, &timed, 2, false)?);
    }
    let Device::Cuda(gpu) = Device::best() else {
        println!("no GPU");
        return Ok(());
    };
    if args.cpu_only {
        return Ok(());
    }
    let device = Device::Cuda(gpu);
    set_float32_matmul_precision(Float32MatmulPrecision::High); // as PyTorch's cuDNN does
    for (kernels, name) in [(Kernels::Fastest, "fastest"), (Kernels::Own, "own products")] {
        with_kernels(kernels, || -> anyhow::Result<()> {
            for captured in [false, true] {
                let what = format!("{name}, {}", if captured { "captured" } else { "queued" });
                for dtype in [DType::F32, DType::BF16] {
                    for (kind, hidden) in
                        ["LSTM", "GRU", "RNN"].into_iter().flat_map(|kind| [(kind, 1024), (kind, 128)])
                    {
                        let case = (kind, hidden, 64, 128);
                        say(&what, case, dtype, milliseconds(&device, &layer(case, dtype, &device)?, 5, captured)?);
                    }
                }
                for kind in ["RNNCell", "GRUCell", "LSTMCell"] {
                    let case = (kind, 256, 64, 20);
                    say(
                        &what,
                        case,
                        DType::F32,
                        milliseconds(&device, &cell(case, DType::F32, &device)?, 10, captured)?,
                    );
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}
