//! What a launch costs, compared with the driver's own call in a tight loop.

use std::{ffi::c_void, hint::black_box, ptr};

use cudarc::driver::sys;
use pagelock_cuda::{Device, KernelSource, Launch, Read, Result, Write, compile};

use crate::{Figure, millis};

/// Takes three buffers and does nothing, since `n` is never 1 here.
const THREE: &str = "extern \"C\" __global__ void three(const float* x, const float* y, float* z, unsigned n) { if (n == 1) *z = *x + *y; }";
const LAUNCHES: usize = 2_000;
const SIZE: u32 = 1_000;

pub(crate) fn measure(device: &Device) -> Result<Vec<Figure>> {
    let source = KernelSource::new("three.cu", THREE);
    let stream = device.stream()?;
    let (x, y, mut z) = (stream.zeros::<f32>(1_000)?, stream.zeros::<f32>(1_000)?, stream.zeros::<f32>(1_000)?);
    let per_launch = |millis: f64| millis * 1e3 / LAUNCHES as f64;

    // SAFETY: the kernel takes these arguments, and uses only the first element of each buffer.
    let three = unsafe { device.compile(&source)?.kernel::<(Read<f32>, Read<f32>, Write<f32>, u32)>("three") }?;
    let ours = millis(30, || {
        for _ in 0..LAUNCHES {
            three.launch(&stream, Launch::covering(256, 256), (x.view(), y.view(), z.view_mut(), SIZE))?;
        }
        stream.synchronize()
    })?;
    let plain = plain(&compile(&source, device.properties().compute_capability)?, [&x, &y, &z].map(|b| b.address().0));
    let recording = device.capture(|stream| {
        (0..LAUNCHES).try_for_each(|_| {
            three.launch(stream, Launch::covering(256, 256), (x.view(), y.view(), z.view_mut(), SIZE))
        })
    })?;
    let graph = recording.with((x, y, z))?;
    let in_graph = millis(30, || {
        graph.launch(&stream)?;
        stream.synchronize()
    })?;
    let cached = millis(30, || (0..100_000).try_for_each(|_| stream.allocate::<f32>(black_box(1_000)).map(drop)))?;
    Ok(vec![
        Figure::new("launch a kernel with three buffers", per_launch(ours), "us", Some(per_launch(plain))),
        Figure::new("the same, 2000 times in one graph", per_launch(in_graph), "us", None),
        Figure::new("allocate and drop a cached device buffer", cached * 10.0, "ns", None),
    ])
}

/// Milliseconds for all launches by the driver's own call.
fn plain(image: &[u8], mut addresses: [u64; 3]) -> f64 {
    let (mut module, mut function, mut stream) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: `image` is a whole cubin, and the device's context is current on this thread, which has just used it.
    unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) }.result().expect("it was loaded before");
    // SAFETY: the module was just loaded.
    unsafe { sys::cuModuleGetFunction(&mut function, module, c"three".as_ptr()) }.result().expect("it has the kernel");
    // SAFETY: `stream` is valid for the handle that is written.
    unsafe { sys::cuStreamCreate(&mut stream, 1) }.result().expect("there is room for a stream");
    let mut size = SIZE;
    let [x, y, z] = &mut addresses;
    let mut arguments: [*mut c_void; 4] =
        [ptr::from_mut(x).cast(), ptr::from_mut(y).cast(), ptr::from_mut(z).cast(), ptr::from_mut(&mut size).cast()];
    let timed = millis(30, || {
        for _ in 0..LAUNCHES {
            let arguments = arguments.as_mut_ptr();
            // SAFETY: the kernel takes these four arguments, and the buffers live until the stream is done.
            unsafe { sys::cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, stream, arguments, ptr::null_mut()) }
                .result()?;
        }
        // SAFETY: the stream exists.
        unsafe { sys::cuStreamSynchronize(stream) }.result()
    });
    timed.expect("nothing that was launched fails")
}
