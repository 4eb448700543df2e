//! Times training steps of GPT models. Causal attention is written out with matrix products and a softmax, or is one
//! call (`--fused`). Weights are `f32` under autocast to bfloat16, gradients are clipped to a norm of 1, and the
//! optimizer is AdamW.
//!
//! ```text
//! python benches/torch_gpt.py [--fused] > torch.json      # the same models in PyTorch, eager and compiled
//! cargo bench --bench gpt -- [--fused] [--torch torch.json] [--model character|gpt2|tiny] [--way eager|captured] [--json]
//! ```
//! On a GPU: nanoGPT's character model (10.7 million parameters) with 64 texts of 256 characters a step, and GPT-2
//! (124 million) with 16 texts of 1024 tokens. Without a GPU: a tiny model, so that the program runs on any machine.
//! Each row is measured in a process of its own, so that its peak memory includes no other row's. All steps train on
//! the same texts, so the loss has to fall.

mod model;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use pagelock::cuda::Event;
use pagelock::nn::optim::clip_grad_norm_;
use pagelock::prelude::*;
use serde::{Deserialize, Serialize};

use model::{Gpt, Sizes};

/// The peak bfloat16 FLOP/s of an H200, by its datasheet.
const MAX_PER_SECOND: f64 = 989e12;

/// Times training steps of GPT models
#[derive(Parser)]
struct Args {
    /// Measure only this model
    #[arg(long, value_enum)]
    model: Option<Name>,
    /// Measure only this way of running a step
    #[arg(long, value_enum)]
    way: Option<Way>,
    /// File with the output of `torch_gpt.py` on this machine
    #[arg(long)]
    torch: Option<PathBuf>,
    /// Compute attention with `scaled_dot_product_attention`
    #[arg(long)]
    fused: bool,
    /// Number of steps that are timed
    #[arg(long)]
    steps: Option<usize>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// `cargo bench` passes this
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Name {
    /// nanoGPT's model of Shakespeare's characters
    Character,
    /// GPT-2 with 124 million parameters
    Gpt2,
    /// A tiny model for a CPU
    Tiny,
}

#[derive(Clone, Copy, PartialEq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    /// One operation after another
    Eager,
    /// One launch for each step
    Captured,
}

/// One measurement.
#[derive(Serialize, Deserialize)]
struct Row {
    model: Name,
    way: Way,
    device: String,
    parameters: usize,
    ms_per_step: f64,
    tokens_per_second: f64,
    /// The share of an H200's peak FLOP/s.
    share_of_peak: f64,
    /// The peak memory of live GPU buffers.
    peak_gib: Option<f64>,
    reserved_gib: Option<f64>,
    first_loss: f64,
    last_loss: f64,
    /// The milliseconds of each part of one eager step, by the GPU's clock.
    parts: Vec<(String, f64)>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let (Some(model), Some(way)) = (args.model, args.way) {
        let row = measure(model, way, &args)?;
        return print(&[row], &args);
    }
    let models = match args.model {
        Some(model) => vec![model],
        None if Device::best().is_cpu() => vec![Name::Tiny],
        None => vec![Name::Character, Name::Gpt2],
    };
    let ways = args.way.map_or(vec![Way::Eager, Way::Captured], |way| vec![way]);
    let mut rows = Vec::new();
    for &model in &models {
        for &way in &ways {
            rows.push(measure_apart(model, way, &args)?);
        }
    }
    print(&rows, &args)
}

/// Runs [`measure`] in a child process.
fn measure_apart(model: Name, way: Way, args: &Args) -> Result<Row> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--json", "--model", &argument(model), "--way", &argument(way)]);
    if args.fused {
        command.arg("--fused");
    }
    if let Some(steps) = args.steps {
        command.args(["--steps", &steps.to_string()]);
    }
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{model:?}, {way:?}: {}: {said}", output.status);
    let report: Report =
        serde_json::from_slice(&output.stdout).context("the child process did not print a JSON report")?;
    report.rows.into_iter().next().context("the report of the child process has no row")
}

/// A row of `torch_gpt.py`.
#[derive(Deserialize)]
struct Theirs {
    model: Name,
    way: String,
    ms_per_step: f64,
    peak_gib: f64,
}

#[derive(Serialize, Deserialize)]
struct Report {
    program: String,
    rows: Vec<Row>,
}

fn argument(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn measure(name: Name, way: Way, args: &Args) -> Result<Row> {
    manual_seed(0);
    let device = Device::best();
    let (sizes, batch, warm, usual_steps) = match name {
        Name::Character => (Sizes::character(), 64, 8, 20),
        Name::Gpt2 => (Sizes::gpt2(), 16, 8, 20),
        Name::Tiny => (Sizes::tiny(), 4, 4, 4),
    };
    let sizes = sizes.fused(args.fused);
    let texts = || -> Result<Tensor<Int>> {
        let numbers = (Tensor::rand([batch, sizes.context])? * sizes.vocabulary)?;
        Ok(numbers.to_int()?.to(&device)?)
    };
    let (tokens, targets) = (texts()?, texts()?);
    let mut trainer = Trainer::new(sizes, &device)?;
    let Timed { seconds, first_loss, last_loss } =
        trainer.time(way, (&tokens, &targets), warm, args.steps.unwrap_or(usual_steps).max(1))?;
    ensure!(last_loss < first_loss, "the model learned nothing: the loss went from {first_loss} to {last_loss}");
    let tokens_per_second = tokens.len() as f64 / seconds;
    let (peak_gib, reserved_gib) = memory(&device);
    Ok(Row {
        model: name,
        way,
        device: device.to_string(),
        parameters: trainer.model.num_parameters(),
        ms_per_step: seconds * 1e3,
        tokens_per_second,
        share_of_peak: sizes.flops_per_token() * tokens_per_second / MAX_PER_SECOND,
        peak_gib,
        reserved_gib,
        first_loss,
        last_loss,
        parts: if way == Way::Eager { trainer.parts((&tokens, &targets))? } else { Vec::new() },
    })
}

fn memory(device: &Device) -> (Option<f64>, Option<f64>) {
    let Device::Cuda(cuda) = device else { return (None, None) };
    let stats = cuda.cuda().pool_stats();
    let [peak, reserved] = [stats.peak, stats.reserved].map(|bytes| bytes.0 as f64 / (1_u64 << 30) as f64);
    (Some(peak), Some(reserved))
}

/// A model and its optimizer.
struct Trainer {
    device: Device,
    model: Gpt,
    parameters: Vec<Parameter>,
    opt: AdamW,
}

/// Seconds per step, and the losses of the first and the last step.
struct Timed {
    seconds: f64,
    first_loss: f64,
    last_loss: f64,
}

/// Input tokens and target tokens.
type Texts<'a> = (&'a Tensor<Int>, &'a Tensor<Int>);

impl Trainer {
    fn new(sizes: Sizes, device: &Device) -> Result<Self> {
        let model = Gpt::new(sizes)?.to(device)?;
        let parameters = model.parameters();
        let opt = AdamW::new(parameters.clone(), 6e-4).betas(0.9, 0.95).weight_decay(0.1);
        Ok(Self { device: device.clone(), model, parameters, opt })
    }

    /// Times `steps` steps after `warm` untimed ones, and returns their mean.
    fn time(&mut self, way: Way, (tokens, targets): Texts<'_>, warm: usize, steps: usize) -> Result<Timed> {
        let device = self.device.clone();
        let mut captured = CapturedStep::new(&device);
        let mut step = || match way {
            Way::Eager => self.step((tokens, targets), |_| Ok(())),
            Way::Captured => captured
                .run((tokens.clone(), targets.clone()), |(tokens, targets)| self.step((tokens, targets), |_| Ok(()))),
        };
        let first_loss = step()?.item()?;
        for _ in 1..warm {
            step()?;
        }
        device.synchronize()?;
        let start = Instant::now();
        let mut last = step()?;
        for _ in 1..steps {
            last = step()?;
        }
        device.synchronize()?;
        let seconds = start.elapsed().as_secs_f64() / steps as f64;
        Ok(Timed { seconds, first_loss, last_loss: last.item()? })
    }

    /// Runs one step and calls `done` after each part.
    fn step(
        &mut self,
        (tokens, targets): Texts<'_>,
        mut done: impl FnMut(&'static str) -> Result<()>,
    ) -> Result<Tensor> {
        let loss = autocast(Half::BF16, || self.model.loss(tokens, targets))?;
        done("forward")?;
        loss.backward()?;
        done("backward")?;
        clip_grad_norm_(self.parameters.iter().cloned(), 1.0)?;
        done("clipping")?;
        self.opt.step()?;
        self.opt.zero_grad();
        done("AdamW")?;
        Ok(loss.detach())
    }

    /// How long the GPU takes for each part of a step.
    fn parts(&mut self, texts: Texts<'_>) -> Result<Vec<(String, f64)>> {
        let device = self.device.clone();
        let Device::Cuda(cuda) = &device else { return Ok(Vec::new()) };
        device.synchronize()?;
        let mut ends: Vec<(&str, Event)> = vec![("", cuda.stream().record_timed()?)];
        self.step(texts, |part| {
            ends.push((part, cuda.stream().record_timed()?));
            Ok(())
        })?;
        let part = |pair: &[(&str, Event)]| {
            let elapsed = pair[1].1.elapsed_since(&pair[0].1)?;
            Ok((pair[1].0.to_owned(), elapsed.as_secs_f64() * 1e3))
        };
        ends.windows(2).map(part).collect()
    }
}

fn print(rows: &[Row], args: &Args) -> Result<()> {
    if args.json {
        println!("{}", serde_json::json!({ "program": "Pagelock", "rows": rows }));
        return Ok(());
    }
    println!(
        "{:<10} {:<9} {:>9} {:>10} {:>8} {:>10} {:>13}   loss",
        "model", "way", "ms/step", "tokens/s", "of peak", "peak, GiB", "reserved, GiB"
    );
    let gib = |gib: Option<f64>| gib.map_or("-".to_owned(), |gib| format!("{gib:.2}"));
    for row in rows {
        let Row { ms_per_step, tokens_per_second, first_loss, last_loss, .. } = row;
        print!("{:<10} {:<9} {ms_per_step:>9.2} {tokens_per_second:>10.0} ", argument(row.model), argument(row.way));
        print!("{:>6.1} % {:>10} {:>13}", 100.0 * row.share_of_peak, gib(row.peak_gib), gib(row.reserved_gib));
        println!("   {first_loss:.3} to {last_loss:.3}");
        for (part, ms) in &row.parts {
            println!("{:<10} {part:<9} {ms:>9.2}", "");
        }
    }
    match &args.torch {
        Some(path) => print_theirs(rows, path),
        None => Ok(()),
    }
}

/// Prints PyTorch's figures for the same models.
fn print_theirs(rows: &[Row], path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let theirs: Vec<Theirs> = serde_json::from_reader(file)
        .with_context(|| format!("{} is not the output of torch_gpt.py", path.display()))?;
    for Theirs { model, way, ms_per_step, peak_gib } in theirs {
        if rows.iter().any(|row| row.model == model) {
            let (model, nothing) = (argument(model), "");
            println!("{model:<10} {way:<9} {ms_per_step:>9.2} {nothing:>19} {peak_gib:>10.2}   PyTorch");
        }
    }
    Ok(())
}
