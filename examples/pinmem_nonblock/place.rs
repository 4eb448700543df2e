//! What the guide is measured with: the device, the sizes of everything, and a stopwatch.

use std::{fmt, time::Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use pagelock::{
    cuda::{self, DeviceBuffer, Kernel, KernelSource, Stream, Write, software},
    prelude::*,
};
use serde::Serialize;

/// See the head of the file.
pub(crate) struct Place {
    /// For streams, events and copies.
    pub(crate) cuda: cuda::Device,
    /// The same device, for tensors.
    pub(crate) gpu: Device,
    pub(crate) is_gpu: bool,
    pub(crate) work: Work,
    pub(crate) sizes: Sizes,
    instead_of: Option<String>, // why there is no GPU
    bar: ProgressBar,
}

/// The sizes of everything; on a GPU they are those of PyTorch's guide.
pub(crate) struct Sizes {
    pub(crate) one_floats: usize,
    pub(crate) n_small: usize,
    pub(crate) small_floats: usize,
    pub(crate) n_large: usize,
    pub(crate) large_floats: usize,
    pub(crate) traced_bytes: usize,
    /// The bytes of one copy when only its rate is measured.
    pub(crate) bulk_bytes: usize,
    pub(crate) few_runs: usize,
    pub(crate) many_runs: usize,
    pub(crate) tries: usize,
}

/// Something that keeps the device busy.
pub(crate) enum Work {
    Kernel(Kernel<(Write<f32>, u32, u32)>),
    /// Software devices run no kernels.
    Fill,
}

/// How long something took, in milliseconds.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Time {
    pub(crate) median_ms: f64,
    pub(crate) least_ms: f64,
    pub(crate) most_ms: f64,
}

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
const N_SECTIONS: u64 = 9;

impl Place {
    /// Finds the first GPU, or makes a software device if `software` is true or there is no GPU.
    pub(crate) fn find(software: bool) -> Result<Self> {
        let missing = match cuda::Device::cuda(0).and_then(|device| Ok((Work::kernel(&device)?, device))) {
            Ok((work, device)) if !software => return Self::new(device, work, Sizes::of_guide(), None),
            Ok(_) => "`--software` was given".to_owned(),
            Err(error) => error.to_string(),
        };
        let execution = software::Execution::Threads(2);
        let device = cuda::Device::software(software::Config { execution, ..Default::default() })?;
        Self::new(device, Work::Fill, Sizes::small(), Some(missing))
    }

    fn new(cuda: cuda::Device, work: Work, sizes: Sizes, instead_of: Option<String>) -> Result<Self> {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {prefix} {msg:.dim}")?;
        let bar = ProgressBar::new(N_SECTIONS).with_style(style);
        let (gpu, is_gpu) = (Device::try_from(&cuda)?, instead_of.is_none());
        Ok(Self { cuda, gpu, is_gpu, work, sizes, instead_of, bar })
    }

    /// Measures one section of the guide.
    pub(crate) fn section<T>(&self, name: &'static str, measure: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        self.bar.set_prefix(name);
        let measured = measure(self);
        self.bar.set_message("");
        self.bar.inc(1);
        measured
    }

    /// Shows the current step beside the progress bar.
    pub(crate) fn doing(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Times `runs` runs of `work`. The device is idle before each. Device work that `work` does not wait for is not
    /// counted.
    pub(crate) fn time<T>(&self, runs: usize, mut work: impl FnMut() -> Result<T>) -> Result<Time> {
        let mut millis = Vec::with_capacity(runs);
        for run in 0..runs + 2 {
            self.cuda.synchronize()?;
            let start = Instant::now();
            drop(work()?);
            let elapsed = start.elapsed().as_secs_f64() * 1e3;
            if run >= 2 {
                millis.push(elapsed); // the first two warm up
            }
        }
        millis.sort_by(f64::total_cmp);
        Ok(Time { median_ms: millis[runs / 2], least_ms: millis[0], most_ms: millis[runs - 1] })
    }

    /// Why a software device is used, if one is.
    pub(crate) fn instead_of(&self) -> Option<&str> {
        self.instead_of.as_deref()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.instead_of {
            None => write!(f, "Measuring {}.", self.cuda.properties().name),
            Some(why) => write!(
                f,
                "Measuring a software device ({why}): the structure is the guide's, sizes are smaller, and the times \
                 say nothing about a GPU."
            ),
        }
    }
}

impl Sizes {
    fn of_guide() -> Self {
        Self {
            one_floats: 1_000_000,
            n_small: 1_000,
            small_floats: 1_000,
            n_large: 1_000,
            large_floats: 1_000_000,
            traced_bytes: 128 << 20,
            bulk_bytes: 512 << 20,
            few_runs: 5,
            many_runs: 200,
            tries: 100,
        }
    }

    fn small() -> Self {
        Self {
            large_floats: 10_000,
            traced_bytes: 8 << 20,
            bulk_bytes: 8 << 20,
            few_runs: 3,
            many_runs: 10,
            tries: 20,
            ..Self::of_guide()
        }
    }
}

impl Work {
    fn kernel(device: &cuda::Device) -> cuda::Result<Self> {
        let module = device.compile(&KernelSource::new("work.cu", WORK))?;
        // SAFETY: the kernel has these parameters. It accesses `n` elements of the buffer, and `requires` below
        // checks the length.
        let kernel = unsafe { module.kernel::<(Write<f32>, u32, u32)>("work") }?;
        Ok(Work::Kernel(kernel.requires("x has n elements", |(x, n, _)| x.len() == *n as usize)))
    }

    /// Queues work that takes some milliseconds on a GPU.
    pub(crate) fn queue(&self, stream: &Stream, numbers: &mut DeviceBuffer<f32>) -> cuda::Result<()> {
        match self {
            Work::Kernel(kernel) => {
                let (launch, n) = (kernel.filling(numbers.len(), 256)?, numbers.len() as u32);
                kernel.launch(stream, launch, (numbers.view_mut(), n, 20_000))
            }
            Work::Fill => stream.fill(numbers, 1.0),
        }
    }
}

impl Time {
    /// Gigabytes (10⁹) per second, if `bytes` bytes moved.
    pub(crate) fn rate(&self, bytes: usize) -> f64 {
        bytes as f64 / self.median_ms / 1e6
    }
}
