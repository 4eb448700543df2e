//! Kernels on a GPU, where there is one, and the errors of devices that run none.

use pagelock_cuda::{
    Argument, Device, Error, Kernel, KernelModule, KernelSource, Launch, Read, Write,
    driver::{Call, Status},
    software::{Config, Fault, Machine},
};

use crate::tools::{Gpu, gpu, lazy, pattern};

/// z[i] = x[i] + k * y[i] for i < n.   x, y, z: [n] u32.   One thread per element, grid-stride loop.
const MIX: &str = r#"
extern "C" __global__ void mix(const unsigned* x, const unsigned* y, unsigned* z, unsigned k, unsigned long long n) {
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        z[i] = x[i] + k * y[i];
}
extern "C" __global__ void shared(unsigned* z) {
    extern __shared__ unsigned kept[];
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    if (bytes <= 64 * 1024) return;
    kept[16 * 1024] = 5;
    z[0] = kept[16 * 1024];
}
"#;

type Mix = (Read<u32>, Read<u32>, Write<u32>, u32, u64);

/// The GPU and the module on it.
fn module() -> Option<(Gpu, KernelModule)> {
    let device = gpu()?;
    let module = device.compile(&KernelSource::new("mix.cu", MIX)).unwrap();
    Some((device, module))
}

fn mix(module: &KernelModule) -> Kernel<Mix> {
    // SAFETY: the kernel takes these arguments, and uses `n` elements of each buffer, which is required below.
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
        first.upload_from(&a, &mut x).unwrap();
        second.upload_from(&b, &mut y).unwrap();
        let launch = mix.filling(LEN, 256).unwrap();
        second.scope(|_| mix.launch(&first, launch, (x.view(), y.view(), z.view_mut(), k, LEN as u64))).unwrap();
        let mut found = vec![0; LEN];
        second.download_to(&z, &mut found).unwrap();
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
    // SAFETY: the kernel is never launched.
    let refused = unsafe { module.kernel::<(Read<u32>, Write<u32>, u32)>("mix") }.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "kernel `mix` has parameters of [8, 8, 8, 4, 8] bytes, its signature declares [8, 8, 4]: make them agree, 8 \
         bytes for a buffer"
    );
    // SAFETY: the kernel is never launched.
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
    assert!(matches!(&refused, Error::Argument(text) if text.contains("allows 1 to 1024")), "{refused}");
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
    // SAFETY: the kernel takes this argument, and does nothing without the shared memory that it uses.
    let shared = unsafe { module.kernel::<(Write<u32>,)>("shared") }.unwrap();
    shared.launch(&stream, Launch::covering(1, 1), (z.view_mut(),)).unwrap();
    assert_eq!(stream.read(&z).unwrap(), [0]);
    shared.launch(&stream, Launch::covering(1, 1).shared_bytes(100 << 10), (z.view_mut(),)).unwrap();
    assert_eq!(stream.read(&z).unwrap(), [5]);
    assert!(shared.blocks_per_multiprocessor(256, 0).unwrap() >= 4);
}

#[test]
fn the_same_code_is_loaded_once() {
    let machine = Machine::new(Config { kernels_for: Some((9, 0)), ..Config::default() });
    let device = machine.device(0).unwrap();
    // SAFETY: nothing runs it.
    let load = |image: &[u8]| unsafe { device.load("image", image.to_vec()) };
    load(&[1, 2, 3]).unwrap();

    machine.fail(Fault::at(0).call(Call::LoadModule));
    load(&[1, 2, 3]).unwrap(); // does not call the driver
    let of_other_code = load(&[1, 2, 4]).unwrap_err();

    assert!(of_other_code.to_string().starts_with("cuModuleLoadDataEx failed"), "{of_other_code}");
}

#[test]
fn a_function_takes_arguments_whose_types_are_known_only_now() {
    let Some((device, module)) = module() else { return };
    let stream = device.stream().unwrap();
    let (a, b) = (pattern(1, 10), pattern(2, 10));
    let bytes = |numbers: &[u32]| stream.allocate_from(bytemuck::cast_slice::<_, u8>(numbers)).unwrap();
    let (x, y, mut z) = (bytes(&a), bytes(&b), stream.zeros::<u8>(40).unwrap());
    let mix = module.function("mix").unwrap();
    let (k, n) = (3_u32.to_ne_bytes(), 10_u64.to_ne_bytes());
    let read = || [Argument::Read(x.view()), Argument::Read(y.view())];
    let launch = Launch::covering(10, 32);

    let [left, right] = read();
    let arguments = [left, right, Argument::Write(z.view_mut()), Argument::Value(&k), Argument::Value(&n)];
    // SAFETY: the kernel takes these, and all buffers have `n` elements.
    unsafe { mix.launch(&stream, launch, &arguments) }.unwrap();
    // SAFETY: the launch is refused.
    let refused = unsafe { mix.launch(&stream, launch, &read()) }.unwrap_err();

    let expected: Vec<u32> = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(b.wrapping_mul(3))).collect();
    assert_eq!(stream.read(&z).unwrap(), bytemuck::cast_slice::<u32, u8>(&expected));
    assert_eq!(
        refused.to_string(),
        "kernel `mix` has parameters of [8, 8, 8, 4, 8] bytes, its signature declares [8, 8]: make them agree, 8 bytes \
         for a buffer"
    );
}

#[test]
fn launches_that_are_made_again_and_again_each_have_their_own_arguments() {
    const LEN: usize = 1_000;
    const TIMES: usize = 60;
    let Some((device, module)) = module() else { return };
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let (typed, untyped) = (mix(&module), module.function("mix").unwrap());
    let (a, b) = (pattern(1, LEN), pattern(2, LEN));
    let [x, y] = [&a, &b].map(|numbers| streams[0].allocate_from(numbers).unwrap());
    let bytes = |numbers: &[u32]| streams[0].allocate_from(bytemuck::cast_slice::<_, u8>(numbers)).unwrap();
    let (x_bytes, y_bytes) = (bytes(&a), bytes(&b));
    let mut found: Vec<[_; 2]> = Vec::new();

    for k in 0..TIMES {
        let stream = &streams[k % 2];
        // More launch sizes than a kernel keeps track of; three of them occur often.
        let threads = if k % 5 == 0 { 32 * (1 + k as u32 % 31) } else { [64, 128, 256][k / 2 % 3] };
        let (launch, k) = (Launch::covering(LEN, threads), k as u32);
        let mut z = stream.zeros(LEN).unwrap();
        typed.launch(stream, launch, (x.view(), y.view(), z.view_mut(), k, LEN as u64)).unwrap();
        let mut z_bytes = stream.zeros::<u8>(4 * LEN).unwrap();
        let (k, n) = (k.to_ne_bytes(), (LEN as u64).to_ne_bytes());
        let [x, y] = [&x_bytes, &y_bytes].map(|bytes| Argument::Read(bytes.view()));
        let arguments = [x, y, Argument::Write(z_bytes.view_mut()), Argument::Value(&k), Argument::Value(&n)];
        // SAFETY: the kernel takes these, and all buffers have `n` elements.
        unsafe { untyped.launch(stream, launch, &arguments) }.unwrap();
        let bytes = streams[0].read(&z_bytes).unwrap();
        found.push([streams[0].read(&z).unwrap(), bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()]);
    }

    for (k, found) in found.into_iter().enumerate() {
        let expected: Vec<u32> = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(b.wrapping_mul(k as u32))).collect();
        assert!(found.iter().all(|found| *found == expected), "launch {k}");
    }
}

#[test]
fn launches_that_are_queued_keep_their_arguments_and_outlive_their_kernel() {
    const LEN: usize = 4_096;
    let Some((device, module)) = module() else { return };
    let stream = device.stream().unwrap();
    let kernel = mix(&module);
    let (zeros, ones) = (stream.zeros::<u32>(LEN).unwrap(), stream.allocate_from(&[1; LEN]).unwrap());
    let mut results: Vec<_> = (0..200).map(|_| stream.allocate::<u32>(LEN).unwrap()).collect();
    let (go, gone) = std::sync::mpsc::channel();
    let pause = stream.call(move || gone.recv()).unwrap();

    for (k, z) in results.iter_mut().enumerate() {
        let arguments = (zeros.view(), ones.view(), z.view_mut(), k as u32, LEN as u64);
        kernel.launch(&stream, Launch::covering(LEN, 256), arguments).unwrap();
    }
    drop(kernel);
    go.send(()).unwrap();

    pause.wait().unwrap().unwrap();
    for (k, z) in results.iter().enumerate() {
        assert_eq!(stream.read(z).unwrap(), [k as u32; LEN], "launch {k}");
    }
}

#[test]
fn a_kernel_that_was_launched_often_can_be_part_of_a_graph() {
    const LEN: usize = 1_000;
    let Some((device, module)) = module() else { return };
    let stream = device.stream().unwrap();
    let kernel = mix(&module);
    let x = stream.allocate_from(&pattern(3, LEN)).unwrap();
    let mut z = stream.zeros::<u32>(LEN).unwrap();
    let launch = |stream: &_, k, z: &mut pagelock_cuda::DeviceBuffer<u32>| {
        kernel.launch(stream, Launch::covering(LEN, 256), (x.view(), x.view(), z.view_mut(), k, LEN as u64))
    };
    (0..40).for_each(|k| launch(&stream, k, &mut z).unwrap());

    let graph = device.capture(|stream| launch(stream, 2, &mut z)).unwrap().shared().unwrap();
    launch(&stream, 7, &mut z).unwrap();
    graph.launch(&stream).unwrap();

    let tripled: Vec<u32> = pattern(3, LEN).into_iter().map(|x| x.wrapping_mul(3)).collect();
    assert_eq!(stream.read(&z).unwrap(), tripled);
}

#[test]
fn a_launch_that_cannot_be_prepared_is_made_all_the_same() {
    let machine = Machine::new(Config { kernels_for: Some((9, 0)), ..Config::default() });
    let device = machine.device(0).unwrap();
    let stream = device.stream().unwrap();
    // SAFETY: nothing runs it.
    let function = unsafe { device.load("image", vec![1, 2, 3]) }.unwrap().function("any").unwrap();
    // SAFETY: as above.
    let launch = |threads| unsafe { function.launch(&stream, Launch::covering(100, threads), &[]) };

    (0..40).for_each(|_| launch(32).unwrap());
    machine.fail(Fault::at(0).call(Call::AddKernelNode));
    (0..40).for_each(|_| launch(64).unwrap());

    machine.fail(Fault::at(0).call(Call::LaunchGraph));
    launch(64).unwrap();
    let failed = launch(32).unwrap_err();
    assert!(failed.to_string().starts_with("cuGraphLaunch failed"), "{failed}");
    launch(32).unwrap();
    for _ in 0..2 {
        machine.fail(Fault::at(0).call(Call::LaunchGraph).status(Status::OUT_OF_MEMORY));
        launch(32).unwrap(); // without a graph, from the first failure on
    }
    drop((function, stream, device));
    assert_eq!(machine.violations(), [""; 0]);
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
    assert!(matches!(&refused, Error::Argument(text) if text.contains("allows 1 to 1024")), "{refused}");
}

#[test]
fn a_software_device_says_that_it_runs_no_kernels() {
    let device = lazy(1).device(0).unwrap();
    // SAFETY: nothing is loaded.
    let refused = unsafe { device.load("image", vec![1, 2, 3]) }.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "cuModuleLoadDataEx failed: CUDA_ERROR_NOT_SUPPORTED (801); the device or the driver does not support this call"
    );
}
