//! Overlap: when a copy runs while the GPU computes, and when it does not.
//!
//! Run with `cargo run --release --example overlap`. It runs the same rounds of copying and computing four times,
//! from {pageable, page-locked} memory on {the same stream, a stream of its own}, as PyTorch's guide to page-locked
//! memory does. It writes a timeline of each to `runs/overlap/*.json`, for chrome://tracing or
//! <https://ui.perfetto.dev>, and computes from the same events how much of the copies overlapped. Copies of ordinary
//! memory are staged, so they overlap too.

#[path = "common/mod.rs"]
mod common;

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Parser;
use pagelock::cuda::{
    self, Device, DeviceBuffer, Error, Kernel, KernelSource, Pinned, Span, Stream, Timeline, Write, software,
};
use serde::Serialize;

const ROUNDS: usize = 5;
const COPIED_BYTES: usize = 128 << 20;
const COMPUTED: usize = 1 << 22;

/// x[i] = x[i] * 0.999 + 0.001, `steps` times, for i < n.   x: [n] f32.   One thread per element, grid-stride loop.
const WORK: &str = r#"
extern "C" __global__ void work(float* x, unsigned n, unsigned steps) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float value = x[i];
        for (unsigned step = 0; step < steps; ++step) value = value * 0.999f + 0.001f;
        x[i] = value;
    }
}
"#;

/// Show when copies overlap with computing
#[derive(Parser)]
struct Args {
    /// Also write the figures to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Use a software device, whose traces say nothing about a GPU
    #[arg(long)]
    software: bool,
}

/// The times in one trace.
#[derive(Serialize)]
struct Overlap {
    trace: String,
    copying_ms: f64,
    computing_ms: f64,
    overlapped_ms: f64,
}

/// Something that keeps the device busy.
enum Work {
    Kernel(Kernel<(Write<f32>, u32, u32)>),
    /// Software devices run no kernels.
    Fill,
}

fn main() -> Result<()> {
    let args: Args = common::arguments();
    args.json.as_deref().map(common::try_file).transpose()?;
    let (device, work) = match prepare(args.software) {
        Ok(prepared) => prepared,
        Err(missing @ (Error::Absent(_) | Error::NoSuchDevice { .. } | Error::NoCompiler(_))) => {
            println!("nothing to trace: {missing}; `--software` shows the traces without a GPU");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    if args.software {
        println!("Measuring a software device; its times say nothing about a GPU.");
    }
    let folder = PathBuf::from("runs/overlap");
    common::make_folder(&folder)?;
    let mut figures = Vec::new();
    for source in ["pageable", "page_locked"] {
        for stream in ["same_stream", "own_stream"] {
            let timeline = trace(&device, &work, source == "page_locked", stream == "own_stream")?;
            let name = format!("{source}_{stream}");
            timeline.write_chrome_trace(folder.join(format!("{name}.json")))?;
            let overlap = Overlap::measure(name, &timeline.spans()?);
            println!("{overlap}");
            figures.push(overlap);
        }
    }
    println!("Traces are in {}, for chrome://tracing or https://ui.perfetto.dev.", folder.display());
    if let Some(path) = args.json {
        let report = serde_json::json!({ "device": device.properties().name, "traces": figures });
        pagelock_files::replace(&path, format!("{report:#}\n"))?;
        println!("Figures are in {}.", path.display());
    }
    Ok(())
}

/// The device and its work.
fn prepare(software: bool) -> cuda::Result<(Device, Work)> {
    if software {
        let execution = software::Execution::Threads(2);
        return Ok((Device::software(software::Config { execution, ..Default::default() })?, Work::Fill));
    }
    let device = Device::cuda(0)?;
    let module = device.compile(&KernelSource::new("work.cu", WORK))?;
    // SAFETY: the kernel has these parameters. It accesses `n` elements of the buffer, and `requires` below checks
    // the length.
    let kernel = unsafe { module.kernel::<(Write<f32>, u32, u32)>("work") }?;
    Ok((device, Work::Kernel(kernel.requires("x has n elements", |(x, n, _)| x.len() == *n as usize))))
}

impl Work {
    fn queue(&self, stream: &Stream, numbers: &mut DeviceBuffer<f32>) -> cuda::Result<()> {
        match self {
            Work::Kernel(kernel) => {
                let launch = kernel.filling(numbers.len(), 256)?;
                let n = numbers.len() as u32;
                kernel.launch(stream, launch, (numbers.view_mut(), n, 20_000))
            }
            Work::Fill => stream.fill(numbers, 1.0),
        }
    }
}

/// Queues the work and then an independent copy, and waits for both. Repeats this [`ROUNDS`] times.
fn trace(device: &Device, work: &Work, page_locked: bool, own_stream: bool) -> cuda::Result<Timeline> {
    let computes = device.stream()?;
    let own = if own_stream { Some(device.stream()?) } else { None };
    let copies = own.as_ref().unwrap_or(&computes);
    let mut numbers = computes.zeros::<f32>(COMPUTED)?;
    let mut target = copies.zeros::<u8>(COPIED_BYTES)?;
    let ordinary = vec![1_u8; COPIED_BYTES];
    let mut pinned = if page_locked { Some(Pinned::from_slice(device, &ordinary)?) } else { None };

    let timeline = Timeline::new();
    for round in 0..=ROUNDS {
        // The first round warms up: it allocates the ring buffer of staged copies, for example.
        let timeline = if round == 0 { Timeline::new() } else { timeline.clone() };
        timeline.on_stream("compute", &computes, || work.queue(&computes, &mut numbers))??;
        timeline.on_host("copy", || match pinned.take() {
            Some(source) => {
                let ticket = timeline.on_stream("copy", copies, || copies.upload(source, &mut target))??;
                pinned = Some(ticket.wait()?);
                Ok(())
            }
            None => timeline.on_stream("copy", copies, || copies.upload_from(&ordinary, &mut target))?,
        })?;
        timeline.on_host("wait", || device.synchronize())?;
    }
    Ok(timeline)
}

impl Overlap {
    fn measure(trace: String, spans: &[Span]) -> Self {
        let on_stream = |name: &'static str| {
            spans.iter().filter(move |span| span.name == name && matches!(span.track, cuda::Track::Stream { .. }))
        };
        let (copies, computes) = (on_stream("copy"), on_stream("compute"));
        let length = |spans: &mut dyn Iterator<Item = &Span>| spans.map(|span| span.end - span.start).sum::<Duration>();
        let overlapped: Duration =
            copies.clone().flat_map(|copy| computes.clone().map(move |compute| common(copy, compute))).sum();
        let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
        Self {
            trace,
            copying_ms: millis(length(&mut copies.clone())),
            computing_ms: millis(length(&mut computes.clone())),
            overlapped_ms: millis(overlapped),
        }
    }
}

impl std::fmt::Display for Overlap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { trace, copying_ms, computing_ms, overlapped_ms } = self;
        write!(f, "{trace:<24} copying {copying_ms:7.2} ms, computing {computing_ms:7.2} ms, ")?;
        write!(f, "{overlapped_ms:7.2} ms overlapped ({:.0} % of the copies)", 100.0 * overlapped_ms / copying_ms)
    }
}

/// The time during which both ran.
fn common(a: &Span, b: &Span) -> Duration {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}
