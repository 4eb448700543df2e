//! Kernels on a GPU, where there is one, and what is said where there is none.

use pagelock_cuda::{Argument, Device, Error, Kernel, KernelSource, Launch, Module, Read, Write, software::Config};

use crate::tools::{Gpu, gpu, lazy, pattern};

/// z[i] = x[i] + k * y[i] for i < n.   x, y, z: [n] u32.   One thread per element, grid-stride loop.
const MIX: &str = r#"
extern "C" __global__ void mix(const unsigned* x, const unsigned* y, unsigned* z, unsigned k, unsigned long long n) {
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        z[i] = x[i] + k * y[i];
}
extern "C" __global__ void shared(unsigned* z) {
    extern __shared__ unsigned kept[];
    kept[16 * 1024] = 5;
    z[0] = kept[16 * 1024];
}
"#;

type Mix = (Read<u32>, Read<u32>, Write<u32>, u32, u64);

/// The GPU and the module on it.
fn module() -> Option<(Gpu, Module)> {
    let device = gpu()?;
    let module = device.compile(&KernelSource::new("mix.cu", MIX)).unwrap();
    Some((device, module))
}

fn mix(module: &Module) -> Kernel<Mix> {
    // SAFETY: the kernel takes these, and uses `n` elements of each buffer, which is required.
    let kernel = unsafe { module.kernel::<Mix>("mix") }.unwrap();
    kernel.requires("x, y and z have n elements", |(x, y, z, _, n)| {
        [x.len(), y.len(), z.len()] == [usize::try_from(*n).unwrap_or(0); 3]
    })
}

#[test]
fn a_kernel_computes_in_the_order_of_its_buffers_on_any_stream() {
    let Some((device, module)) = module() else { return };
    let mix = mix(&module);
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    const LEN: usize = 1_000_003;
    let (a, b) = (pattern(1, LEN), pattern(2, LEN));
    for k in 0..20 {
        let (mut x, mut y, mut z) = (first.zeros(LEN).unwrap(), first.zeros(LEN).unwrap(), first.zeros(LEN).unwrap());
        first.upload_staged(&a, &mut x).unwrap();
        second.upload_staged(&b, &mut y).unwrap();
        let launch = mix.filling(LEN, 256).unwrap();
        second.scope(|_| mix.launch(&first, launch, (x.view(), y.view(), z.view_mut(), k, LEN as u64))).unwrap();
        let mut found = vec![0; LEN];
        second.download_staged(&z, &mut found).unwrap();
        let expected = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(k.wrapping_mul(*b)));
        assert!(found.into_iter().eq(expected), "k = {k}");
    }
    assert_eq!(device.leaked().count, 0);
}

#[test]
fn arguments_that_do_not_meet_the_requirements_are_refused() {
    let Some((device, module)) = module() else { return };
    let stream = device.stream().unwrap();
    let (x, mut z) = (stream.zeros(10).unwrap(), stream.zeros(9).unwrap());
    let arguments = (x.view(), x.view(), z.view_mut(), 1, 10);
    let refused = mix(&module).launch(&stream, Launch::covering(10, 32), arguments).unwrap_err();
    assert_eq!(refused.to_string(), "kernel `mix` requires that x, y and z have n elements");
}

#[test]
fn a_signature_that_differs_from_the_kernel_is_refused() {
    let Some((_device, module)) = module() else { return };
    // SAFETY: it is not used.
    let refused = unsafe { module.kernel::<(Read<u32>, Write<u32>, u32)>("mix") }.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "kernel `mix` has parameters of [8, 8, 8, 4, 8] bytes, its signature declares [8, 8, 4]: make them agree, 8 \
         bytes for a buffer"
    );
    // SAFETY: it is not used.
    let missing = unsafe { module.kernel::<(Write<u32>,)>("mixed") }.unwrap_err();
    assert_eq!(
        missing.to_string(),
        "`mix.cu` has no kernel `mixed`; check the name, and that it is `extern \"C\" __global__`"
    );
}

#[test]
fn launches_that_the_device_cannot_do_are_refused() {
    let Some((device, module)) = module() else { return };
    let stream = device.stream().unwrap();
    let (x, mut z) = (stream.zeros(10).unwrap(), stream.zeros(10).unwrap());
    let refused = mix(&module)
        .launch(&stream, Launch::covering(10, 2_048), (x.view(), x.view(), z.view_mut(), 1, 10))
        .unwrap_err();
    assert!(matches!(refused, Error::Launch { most: 1024, .. }), "{refused}");
    let (none, mut nothing) = (stream.zeros(0).unwrap(), stream.zeros(0).unwrap());
    mix(&module)
        .launch(&stream, Launch::covering(0, 64), (none.view(), none.view(), nothing.view_mut(), 1, 0))
        .unwrap();
}

#[test]
fn a_block_gets_as_much_shared_memory_as_it_asks_for() {
    let Some((device, module)) = module() else { return };
    let stream = device.stream().unwrap();
    let mut z = stream.zeros::<u32>(1).unwrap();
    // SAFETY: the kernel takes that, and is launched with the shared memory that it uses.
    let shared = unsafe { module.kernel::<(Write<u32>,)>("shared") }.unwrap();
    shared.launch(&stream, Launch::covering(1, 1).shared_bytes(100 << 10), (z.view_mut(),)).unwrap();
    assert_eq!(stream.read(&z).unwrap(), [5]);
    assert!(shared.blocks_per_multiprocessor(256, 0).unwrap() >= 4);
}

#[test]
fn the_same_code_is_loaded_once() {
    let Some((device, module)) = module() else { return };
    let again = device.compile(&KernelSource::new("mix.cu", MIX)).unwrap();
    assert_eq!(format!("{module:?}"), format!("{again:?}"));
}

#[test]
fn a_function_takes_arguments_whose_types_are_known_only_now() {
    let Some((device, module)) = module() else { return };
    let stream = device.stream().unwrap();
    let (x, mut z) = (stream.zeros::<u8>(40).unwrap(), stream.allocate::<u8>(40).unwrap());
    let mix = module.function("mix").unwrap();
    let (k, n) = (3_u32.to_ne_bytes(), 10_u64.to_ne_bytes());
    let read = || Argument::Read(x.view());
    let launch = Launch::covering(10, 32);

    let arguments = [read(), read(), Argument::Write(z.view_mut()), Argument::Value(&k), Argument::Value(&n)];
    // SAFETY: the kernel takes these, and all buffers have `n` elements.
    unsafe { mix.launch(&stream, launch, &arguments) }.unwrap();
    // SAFETY: it is refused.
    let refused = unsafe { mix.launch(&stream, launch, &[read(), read()]) }.unwrap_err();

    assert_eq!(stream.read(&z).unwrap(), [0; 40]);
    assert_eq!(
        refused.to_string(),
        "kernel `mix` has parameters of [8, 8, 8, 4, 8] bytes, its signature declares [8, 8]: make them agree, 8 bytes \
         for a buffer"
    );
}

#[test]
fn a_software_device_that_accepts_kernels_does_nothing_with_them() {
    let device = Device::software(Config { kernels_for: Some((9, 0)), ..Config::default() }).unwrap();
    assert_eq!(device.properties().compute_capability, (9, 0));
    let stream = device.stream().unwrap();
    let mut z = stream.allocate_from(&[7_u8; 4]).unwrap();
    // SAFETY: nothing runs it.
    let module = unsafe { device.load("image", vec![1, 2, 3]) }.unwrap();
    let function = module.function("any").unwrap();

    // SAFETY: as above.
    unsafe { function.launch(&stream, Launch::covering(4, 32), &[Argument::Write(z.view_mut())]) }.unwrap();
    // SAFETY: as above.
    let refused = unsafe { function.launch(&stream, Launch::covering(4, 2_048), &[]) }.unwrap_err();

    assert_eq!(stream.read(&z).unwrap(), [7; 4]);
    assert!(matches!(refused, Error::Launch { most: 1024, .. }), "{refused}");
}

#[test]
fn a_software_device_says_that_it_runs_no_kernels() {
    let device = lazy(1).device(0).unwrap();
    // SAFETY: nothing is loaded.
    let refused = unsafe { device.load("image", vec![1, 2, 3]) }.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "cuModuleLoadDataEx failed: CUDA_ERROR_NOT_SUPPORTED (801); the device or the driver cannot do it"
    );
}
