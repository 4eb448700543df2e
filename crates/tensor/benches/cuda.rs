//! What operations cost on a GPU, through the public API.
//!
//! ```text
//! cargo bench -p pagelock-tensor --bench cuda
//! ```
//! Small tensors show what a call costs, in a row of calls with one wait at the end; large ones how near an operation
//! comes to the speed at which the device copies as many bytes.

use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

use pagelock_cuda::{KernelSource, Launch, Read, Write};
use pagelock_tensor::{Device, Result, Tensor};

fn main() -> Result<()> {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(missing) => {
            println!("nothing to measure: {missing}");
            return Ok(());
        }
    };
    small(&device)?;
    large(&device)
}

fn small(device: &Device) -> Result<()> {
    let x = Tensor::on(device).ones([1_000])?;
    let (column, row) = (Tensor::on(device).ones([40, 1])?, Tensor::on(device).ones([25])?);
    let tracked = x.clone().set_requires_grad(true);
    println!("{:34} {:>8}", "1,000 elements", "µs");
    let show = |name: &str, f: &dyn Fn() -> Result<()>| -> Result<()> {
        println!("{name:34} {:8.2}", per_call(device, 2_000, f)? * 1e6);
        Ok(())
    };
    show("launching alone, without a tensor", &launching(device))?;
    show("zeros", &|| x.zeros_like().map(drop))?;
    show("relu", &|| x.relu().map(drop))?;
    show("add", &|| x.add(&x).map(drop))?;
    show("add, recorded", &|| tracked.add(&tracked).map(drop))?;
    show("add, broadcast", &|| column.add(&row).map(drop))?;
    show("add_", &|| x.add_(&row.select(0, 0)?))?;
    show("sum of all", &|| x.sum(..).map(drop))
}

/// A launch of an empty kernel through `pagelock-cuda`: what an operation cannot be faster than.
fn launching(device: &Device) -> impl Fn() -> Result<()> {
    let Device::Cuda(cuda) = device else { unreachable!("it is a GPU") };
    let text = "extern \"C\" __global__ void nothing(float* y, const float* x, unsigned long long n) {}";
    let module = cuda.cuda().compile(&KernelSource::new("nothing.cu", text)).expect("it compiles");
    // SAFETY: the kernel takes these, and does nothing.
    let kernel = unsafe { module.kernel::<(Write<f32>, Read<f32>, u64)>("nothing") }.expect("it is there");
    let stream = cuda.stream();
    let (x, y) = (stream.zeros(1).expect("there is room"), stream.zeros(1).expect("there is room"));
    let y = RefCell::new(y);
    move || {
        let launch = Launch::covering(1_000, 256);
        kernel.launch(&stream, launch, (y.borrow_mut().view_mut(), x.view(), 1_000)).expect("it is launched");
        Ok(())
    }
}

fn large(device: &Device) -> Result<()> {
    const SIDE: usize = 16 * 1024;
    let gigabyte = 1e9;
    let x = Tensor::on(device).ones([SIDE, SIDE])?; // 1 GiB
    let row = Tensor::on(device).ones([SIDE])?;
    let column = Tensor::on(device).ones([SIDE, 1])?;
    let bytes = (x.len() * 4) as f64;
    println!("{:34} {:>8} {:>8}", "16,384² elements", "ms", "GB/s");
    let show = |name: &str, moved: f64, f: &dyn Fn() -> Result<()>| -> Result<()> {
        let seconds = per_call(device, 10, f)?;
        println!("{name:34} {:8.3} {:8.0}", seconds * 1e3, moved * bytes / gigabyte / seconds);
        Ok(())
    };
    let y = Tensor::on(device).zeros([SIDE, SIDE])?;
    show("copy_", 2.0, &|| y.copy_(&x))?;
    show("relu", 2.0, &|| x.relu().map(drop))?;
    show("exp", 2.0, &|| x.exp().map(drop))?;
    show("add", 3.0, &|| x.add(&y).map(drop))?;
    show("add, a row", 2.0, &|| x.add(&row).map(drop))?;
    show("add, a column", 2.0, &|| x.add(&column).map(drop))?;
    show("add_scaled_", 3.0, &|| y.add_scaled_(&x, 0.5))?;
    show("transpose, contiguous", 2.0, &|| x.t()?.contiguous().map(drop))?;
    show("every second, contiguous", 1.5, &|| x.slice(1, 0..SIDE as isize, 2)?.contiguous().map(drop))?;
    show("cast to f16", 1.5, &|| x.cast::<half::f16>().map(drop))?;
    show("sum of all", 1.0, &|| x.sum(..).map(drop))?;
    show("sum of rows", 1.0, &|| x.sum(1).map(drop))?;
    show("sum of columns", 1.0, &|| x.sum(0).map(drop))?;
    show("max of rows", 1.0, &|| x.max(1).map(drop))?;
    show("argmax of rows", 1.0, &|| x.argmax(1).map(drop))?;
    let images = x.reshape([64, 64, 256, 256])?;
    show("sum of channels", 1.0, &|| images.sum([0, 2, 3]).map(drop))
}

/// The best of five rounds, in seconds.
fn per_call(device: &Device, calls: usize, f: &dyn Fn() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..6 {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..calls {
            black_box(f())?;
        }
        device.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64() / calls as f64);
    }
    Ok(best)
}
