//! What operations cost on a GPU, through the public API.
//!
//! ```text
//! cargo bench -p pagelock-tensor --bench cuda [-- norms]
//! ```
//! Small tensors show the cost of a call: many calls are queued before one wait. Large tensors show how close an
//! operation comes to the speed of a device copy of as many bytes. `norms` measures only normalizations;
//! `benches/torch_norms.py` prints the same rows for PyTorch.

use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

use pagelock_cuda::{Argument, KernelSource, Launch};
use pagelock_tensor::autograd::{Backward, grad};
use pagelock_tensor::{BatchNormOptions, DType, Device, Result, Tensor};

fn main() -> Result<()> {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(missing) => {
            println!("nothing to measure: {missing}");
            return Ok(());
        }
    };
    if std::env::args().all(|argument| argument != "norms") {
        small(&device)?;
        large(&device)?;
    }
    norms(&device, DType::F32)?;
    norms(&device, DType::BF16)
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

/// Launches an empty kernel through `pagelock-cuda` as operations launch theirs: a lower bound for the time of an
/// operation.
fn launching(device: &Device) -> impl Fn() -> Result<()> {
    let Device::Cuda(cuda) = device else { unreachable!("it is a GPU") };
    let text = "extern \"C\" __global__ void nothing(float* y, const float* x, unsigned long long n) {
        #if __CUDA_ARCH__ >= 900
        asm volatile(\"griddepcontrol.wait;\");
        #endif
    }";
    let module = cuda.cuda().compile(&KernelSource::new("nothing.cu", text)).expect("it compiles");
    let kernel = module.function("nothing").expect("it is there");
    // SAFETY: the kernel waits first, as the kernels of operations do.
    let kernel = unsafe { kernel.with_dependent_launch() };
    let stream = cuda.stream();
    let (x, y) = (stream.zeros(4).expect("there is room"), stream.zeros(4).expect("there is room"));
    let y = RefCell::new(y);
    move || {
        let (launch, mut y) = (Launch::covering(1_000, 256), y.borrow_mut());
        let n = 1_000_u64.to_ne_bytes();
        let arguments = [Argument::Write(y.view_mut()), Argument::Read(x.view()), Argument::Value(&n)];
        // SAFETY: the kernel has these parameters, and accesses no memory.
        unsafe { kernel.launch(&stream, launch, &arguments) }.expect("it is launched");
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
    show("cast to f16", 1.5, &|| x.to_dtype(DType::F16).map(drop))?;
    show("sum of all", 1.0, &|| x.sum(..).map(drop))?;
    show("sum of rows", 1.0, &|| x.sum(1).map(drop))?;
    show("sum of columns", 1.0, &|| x.sum(0).map(drop))?;
    show("max of rows", 1.0, &|| x.max(1).map(drop))?;
    show("argmax of rows", 1.0, &|| x.argmax(1).map(drop))?;
    let images = x.reshape([64, 64, 256, 256])?;
    show("sum of channels", 1.0, &|| images.sum([0, 2, 3]).map(drop))
}

/// Normalizes rows and channels of the sizes of `torch_norms.py`. Each element counts as often as it has to be read
/// or written.
fn norms(device: &Device, dtype: DType) -> Result<()> {
    let on = || Tensor::on(device).of(dtype);
    let random = |shape: &[usize]| on().randn(shape);
    println!("{:34} {:>8} {:>8}", format!("normalizing {dtype}"), "ms", "GB/s");
    let show = |name: &str, moved: f64, f: &dyn Fn() -> Result<()>| -> Result<()> {
        let seconds = per_call(device, 20, f)?;
        println!("{name:34} {:8.3} {:8.0}", seconds * 1e3, moved * dtype.size() as f64 / 1e9 / seconds);
        Ok(())
    };
    let backward = |y: &Tensor, inputs: &[&Tensor], gradient: &Tensor| {
        let options = Backward { gradient: Some(gradient.clone()), retain_graph: true, ..Backward::default() };
        grad(&[y], inputs, options).map(drop)
    };
    let (x, g, copy) = (random(&[8192, 8192])?, random(&[8192, 8192])?, on().zeros([8192, 8192])?);
    let (w, b) = (random(&[8192])?.set_requires_grad(true), random(&[8192])?.set_requires_grad(true));
    let n = x.len() as f64;
    show("copy_", 2.0 * n, &|| copy.copy_(&x))?;
    show("softmax", 2.0 * n, &|| x.softmax(1).map(drop))?;
    show("log_softmax", 2.0 * n, &|| x.log_softmax(1).map(drop))?;
    let (w_alone, b_alone) = (w.detach(), b.detach());
    show("layer_norm", 2.0 * n, &|| x.layer_norm(8192, Some(&w_alone), Some(&b_alone), 1e-5).map(drop))?;
    let x = x.set_requires_grad(true);
    let y = x.softmax(1)?;
    show("softmax backward", 3.0 * n, &|| backward(&y, &[&x], &g))?;
    let y = x.layer_norm(8192, Some(&w), Some(&b), 1e-5)?;
    show("layer_norm backward", 3.0 * n, &|| backward(&y, &[&x, &w, &b], &g))?;
    for shape in [[256, 64, 64, 64], [512, 64, 32, 32], [512, 512, 4, 4]] {
        for order in ["", ", channels last"] {
            let lay = |x: Tensor| match order {
                "" => Ok(x),
                _ => x.permute([0, 2, 3, 1])?.contiguous()?.permute([0, 3, 1, 2]),
            };
            let (x, g) = (lay(random(&shape)?)?, lay(random(&shape)?)?);
            let channels = shape[1];
            let (w, b) = (on().ones(channels)?, on().zeros(channels)?);
            let running = [on().zeros(channels)?, on().ones(channels)?];
            let run = |x: &Tensor, w: &Tensor, b: &Tensor| {
                x.batch_norm(Some(running.each_ref()), Some(w), Some(b), BatchNormOptions::default())
            };
            let n = x.len() as f64;
            show(&format!("batch_norm {shape:?}{order}"), 3.0 * n, &|| run(&x, &w, &b).map(drop))?;
            let (x, w, b) = (x.set_requires_grad(true), w.set_requires_grad(true), b.set_requires_grad(true));
            let y = run(&x, &w, &b)?;
            show(&format!("backward{order}"), 5.0 * n, &|| backward(&y, &[&x, &w, &b], &g))?;
        }
    }
    Ok(())
}

/// The time of a call in the best of six rounds, in seconds.
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
