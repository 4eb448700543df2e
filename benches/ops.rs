//! Times every operation of the table in every precision, forward and backward, beside PyTorch in the same run.
//!
//! ```text
//! PYTHON=path/to/python/with/torch cargo bench --bench ops -- [--only NAME] [--quick] [--json FILE] [--device cuda]
//! ```
//!
//! A child process, `torch_ops.py`, computes the same expressions on the same inputs. Both sides take turns, and the
//! shortest time of a call counts. A row above the limit is measured again before it counts as slow: up to [`AGAIN`]
//! times at once, and up to `--later` times after all other rows. Most such rows are noise. Some noise lasts for
//! seconds, or for as long as another machine on the same host uses its caches. On a busy machine only `--threads 1`
//! gives comparable times, because PyTorch's threads wait for each other's time slices.

// Included by path, because a dev-dependency would also be compiled for the examples.
#[allow(dead_code, unreachable_pub, unused_imports, reason = "tests use the rest")]
#[path = "../crates/tensor/operations/src/lib.rs"]
mod operations;
#[path = "ops/torch.rs"]
mod torch;

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use pagelock::prelude::*;
use pagelock::tensor::autograd::{self, Backward};
use pagelock::tensor::{AnyTensor, DType, Float32MatmulPrecision, set_float32_matmul_precision};
use serde::Serialize;

use self::operations::{Derivative, Operation, Sample, table};
use self::torch::Torch;

/// The number of calls per synchronization with a GPU.
const QUEUED: u32 = 5;
/// Further rounds for a slow row.
const AGAIN: usize = 4;
/// The pause before slow rows are measured after all others.
const PAUSE: Duration = Duration::from_secs(5);

/// Times every operation beside PyTorch
#[derive(Parser)]
struct Args {
    /// Operations whose names contain one of these texts, separated by commas; `=NAME` selects the operation NAME
    #[arg(long, default_value = "")]
    only: String,
    /// Only f32, bf16, i64 and bool, and only the first sample of each operation
    #[arg(long)]
    quick: bool,
    /// `cpu` or `cuda`
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Only precisions with these names, separated by commas
    #[arg(long, value_delimiter = ',')]
    dtypes: Vec<String>,
    /// How often rows that are still slow are measured again after all others
    #[arg(long, default_value_t = 8)]
    later: usize,
    /// Threads of both sides
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Approximate number of elements of the inputs; by default 2²⁰, on a GPU 2²⁴
    #[arg(long)]
    size: Option<usize>,
    /// A row is slow if it takes more than this multiple of PyTorch's time
    #[arg(long, default_value_t = 1.2)]
    limit: f64,
    /// Milliseconds of each turn
    #[arg(long, default_value_t = 12)]
    turn: u64,
    /// Turns of each side
    #[arg(long, default_value_t = 4)]
    turns: usize,
    /// Python interpreter that has PyTorch; by default `$PYTHON`
    #[arg(long)]
    python: Option<PathBuf>,
    /// Write all rows to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// `cargo bench` passes this
    #[arg(long, hide = true)]
    bench: bool,
}

/// What a row measures.
struct Case {
    operation: Rc<Operation>,
    sample: Rc<Sample>,
    dtype: DType,
    pass: &'static str,
    device: Device,
}

/// The shortest times of a call so far, in milliseconds.
#[derive(Clone, Copy)]
struct Times {
    ours: f64,
    /// `None` if PyTorch does not support the case.
    torch: Option<f64>,
}

/// One line of the result; times in milliseconds.
#[derive(Serialize)]
struct Row {
    operation: &'static str,
    sample: String,
    dtype: &'static str,
    pass: &'static str,
    ours: f64,
    torch: Option<f64>,
    ratio: Option<f64>,
}

type Call = Box<dyn Fn() -> Result<()>>;

fn main() -> Result<()> {
    let args = Args::parse();
    set_num_threads(args.threads);
    let python = args.python.clone().or_else(|| std::env::var_os("PYTHON").map(PathBuf::from));
    let device: Device = args.device.parse()?;
    if !device.is_cpu() {
        set_float32_matmul_precision(Float32MatmulPrecision::High); // the default of PyTorch's convolutions
    }
    let mut torch = Torch::start(&python.unwrap_or_else(|| "python3".into()), args.threads, &device)?;
    let (mut measured, mut failed) = (Vec::new(), 0);
    for case in cases(&args, &device) {
        match case.measure(&args, &mut torch) {
            Ok(times) => measured.push((case, times)),
            Err(error) => {
                failed += 1;
                eprintln!("\n{error:#}");
            }
        }
        let name = measured.last().map_or("", |(case, _)| case.operation.name);
        eprint!("\r{:60}", format!("{name}: {} rows", measured.len()));
    }
    for _ in 0..args.later {
        let slow: Vec<_> = measured.iter_mut().filter(|(_, times)| times.are_slow(args.limit)).collect();
        if slow.is_empty() {
            break;
        }
        thread::sleep(PAUSE);
        for (case, times) in slow {
            match case.measure(&args, &mut torch) {
                Ok(again) => *times = times.least(again),
                Err(error) => eprintln!("\n{error:#}"), // the first times stay
            }
        }
    }
    eprintln!();
    let mut rows: Vec<Row> = measured.iter().map(|(case, times)| case.row(*times)).collect();
    print(&mut rows, args.limit);
    if let Some(file) = args.json {
        fs::write(file, serde_json::to_string_pretty(&rows)?)?;
    }
    ensure!(failed == 0, "{failed} rows failed, which are not in the table");
    Ok(())
}

/// All cases that the arguments select.
fn cases(args: &Args, device: &Device) -> Vec<Case> {
    let mut cases = Vec::new();
    let size = args.size.unwrap_or(if device.is_cpu() { 1 << 20 } else { 1 << 24 });
    for operation in table().into_iter().filter(|operation| wanted(operation, &args.only)).map(Rc::new) {
        for dtype in operation.dtypes() {
            if args.quick && !matches!(dtype, DType::F32 | DType::BF16 | DType::I64 | DType::Bool) {
                continue;
            }
            if !args.dtypes.is_empty() && !args.dtypes.iter().any(|name| name == dtype.name()) {
                continue;
            }
            let differentiable = operation.derivative == Derivative::Twice && dtype.is_float();
            let passes = if differentiable { &["forward", "backward"][..] } else { &["forward"] };
            for sample in (operation.large)(size).into_iter().take(if args.quick { 1 } else { usize::MAX }).map(Rc::new)
            {
                let case = |&pass| Case {
                    operation: operation.clone(),
                    sample: sample.clone(),
                    dtype,
                    pass,
                    device: device.clone(),
                };
                cases.extend(passes.iter().map(case));
            }
        }
    }
    cases
}

fn wanted(operation: &Operation, only: &str) -> bool {
    let fits = |one: &str| one.strip_prefix('=').map_or(operation.name.contains(one), |name| operation.name == name);
    only.split(',').any(fits)
}

impl Case {
    /// Measures both sides in turns.
    fn measure(&self, args: &Args, torch: &mut Torch) -> Result<Times> {
        self.in_turns(args, torch)
            .with_context(|| format!("{} {} {}", self.operation.name, self.sample.title(), self.dtype))
    }

    fn in_turns(&self, args: &Args, torch: &mut Torch) -> Result<Times> {
        let Case { operation, sample, dtype, pass, device } = self;
        let call = match *pass {
            "forward" => forward(operation, sample, *dtype, device)?,
            _ => backward(operation, sample, *dtype, device)?,
        };
        let lacks = torch.prepare(operation, sample, *dtype, pass)?;
        let mut times = Times { ours: f64::INFINITY, torch: None };
        for turn in 0..args.turns * (1 + AGAIN) {
            if turn >= args.turns && !times.are_slow(args.limit) {
                break;
            }
            let ours = least(&call, device, Duration::from_millis(args.turn))?;
            let torch = if lacks.is_none() { Some(torch.least(args.turn)?) } else { None };
            times = times.least(Times { ours, torch });
        }
        Ok(times)
    }

    fn row(&self, times: Times) -> Row {
        let (operation, sample) = (self.operation.name, self.sample.title());
        let Times { ours, torch } = times;
        Row { operation, sample, dtype: self.dtype.name(), pass: self.pass, ours, torch, ratio: times.ratio() }
    }
}

impl Times {
    fn ratio(self) -> Option<f64> {
        self.torch.map(|torch| self.ours / torch)
    }

    fn are_slow(self, limit: f64) -> bool {
        self.ratio().is_some_and(|ratio| ratio > limit)
    }

    /// The shorter time of each side.
    fn least(self, other: Times) -> Times {
        let torch = self.torch.into_iter().chain(other.torch).reduce(f64::min);
        Times { ours: self.ours.min(other.ours), torch }
    }
}

fn forward(operation: &Rc<Operation>, sample: &Sample, dtype: DType, device: &Device) -> Result<Call> {
    let (operation, args) = (operation.clone(), sample.args.clone());
    let inputs = sample.make(dtype, device)?;
    Ok(Box::new(move || {
        black_box(no_grad(|| operation.call(&inputs, &args))?);
        Ok(())
    }))
}

/// Computes the gradients of all inputs. All calls use the same graph.
fn backward(operation: &Operation, sample: &Sample, dtype: DType, device: &Device) -> Result<Call> {
    let mut inputs = sample.make(dtype, device)?;
    let of: Vec<Tensor> =
        inputs.values.iter().map(|x| Ok(x.float()?.set_requires_grad(true))).collect::<Result<_>>()?;
    inputs.values = of.iter().map(AnyTensor::from).collect();
    let output = operation.call(&inputs, &sample.args)?.float()?;
    let gradient = Some(output.ones_like()?);
    let options = Backward { gradient, retain_graph: true, ..Backward::default() };
    Ok(Box::new(move || {
        let of: Vec<&Tensor> = of.iter().collect();
        black_box(autograd::grad(&[&output], &of, options.clone())?);
        Ok(())
    }))
}

/// Milliseconds of the fastest of at least three calls, which are repeated for about `time`. On a GPU, [`QUEUED`]
/// calls count as one, and their mean is taken.
fn least(call: &Call, device: &Device, time: Duration) -> Result<f64> {
    call()?;
    device.synchronize()?;
    let queued = if device.is_cpu() { 1 } else { QUEUED };
    let (begin, mut least) = (Instant::now(), Duration::MAX);
    for calls in 0.. {
        let before = Instant::now();
        (0..queued).try_for_each(|_| call())?;
        device.synchronize()?;
        least = least.min(before.elapsed() / queued);
        if calls >= 2 && begin.elapsed() > time {
            break;
        }
    }
    Ok(1e3 * least.as_secs_f64())
}

/// Prints the slowest rows first, and marks those above the limit.
fn print(rows: &mut [Row], limit: f64) {
    rows.sort_by(|a, b| b.ratio.unwrap_or(0.0).total_cmp(&a.ratio.unwrap_or(0.0)));
    println!(
        "{:>7} {:>10} {:>10}  operation (milliseconds; ratio to PyTorch, ! above {limit})",
        "ratio", "ours", "PyTorch"
    );
    for Row { operation, sample, dtype, pass, ours, torch, ratio } in &*rows {
        let mark = if ratio.is_some_and(|ratio| ratio > limit) { "!" } else { " " };
        let [ratio, torch] = [ratio, torch].map(|x| x.map_or("-".to_owned(), |x| format!("{x:.3}")));
        println!("{mark}{ratio:>6} {ours:10.4} {torch:>10}  {operation} {dtype} {pass} {sample}");
    }
    let slow = rows.iter().filter(|row| row.ratio.is_some_and(|ratio| ratio > limit)).count();
    println!("{} rows, {slow} above {limit}", rows.len());
}
