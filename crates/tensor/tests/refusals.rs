//! Refusals of a device, their texts, and that nothing is lost: memory, where training continues with a smaller
//! batch, and kernels. The tests have a program of their own, because they fill a GPU and count its used memory.

mod common;

use pagelock_cuda::software::{Config, Fault, Machine};
use pagelock_memory::ByteSize;
use pagelock_tensor::{DType, Device, Error, Generator, Result, Tensor};

use self::common::gpu_alone;

/// The device of `pagelock-cuda` behind a device.
fn cuda(device: &Device) -> pagelock_cuda::Device {
    let Device::Cuda(device) = device else { unreachable!("tests of memory are on devices") };
    device.cuda().clone()
}

const WIDTH: usize = 256;

/// Two layers, forward and backward, for a batch of `batch` rows. Returns the loss.
fn train(data: &Tensor, weights: &[Tensor; 2], batch: usize) -> Result<f32> {
    let x = data.narrow(0, 0, batch)?;
    let loss = x.matmul(&weights[0])?.relu()?.layer_norm(WIDTH, None, None, 1e-5)?.matmul(&weights[1])?;
    let loss = loss.log_softmax(1)?.pow(2.0)?.mean(..)?;
    loss.backward()?;
    loss.item::<f32>()
}

fn weights(device: &Device) -> Result<[Tensor; 2]> {
    let random = |seed| Tensor::randn_with([WIDTH, WIDTH], &Generator::new(seed))?.to(device);
    Ok([random(1)?.set_requires_grad(true), random(2)?.set_requires_grad(true)])
}

fn forget_gradients(weights: &[Tensor; 2]) {
    weights.iter().for_each(Tensor::zero_grad);
}

#[test]
fn training_that_runs_out_of_memory_goes_on_with_a_smaller_batch_and_nothing_is_lost() {
    let Some(gpu) = gpu_alone() else { return };
    let device = cuda(&gpu);
    let budget = device.memory_budget();
    let data = Tensor::randn_with([1 << 16, WIDTH], &Generator::new(3)).unwrap().to(&gpu).unwrap();
    let weights = weights(&gpu).unwrap();
    train(&data, &weights, 1 << 10).unwrap(); // loads all kernels
    forget_gradients(&weights);
    device.synchronize().unwrap();
    device.trim().unwrap();
    let (limit, before) = (budget.limit(), budget.used());
    budget.set_limit(before.0 + ByteSize::mib(64).0);

    let (mut batch, mut refusals) = (1 << 16, Vec::new());
    let loss = loop {
        match train(&data, &weights, batch) {
            Err(error) if error.is_out_of_memory() && batch > 1 => {
                refusals.push(error.to_string());
                forget_gradients(&weights);
                batch /= 2;
            }
            result => break result.unwrap(),
        }
    };
    let grads = weights.each_ref().map(|weight| weight.grad().unwrap().to_vec::<f32>().unwrap());

    // The error says what was asked for.
    assert!(refusals.len() >= 2, "{refusals:?}");
    let first = &refusals[0];
    assert!(first.contains(": no memory for [65536, 256] of float32: cannot take 64 MiB"), "{first}");
    // No memory is held after the last try, nor after those that failed.
    forget_gradients(&weights);
    device.synchronize().unwrap();
    device.trim().unwrap();
    assert_eq!(budget.used(), before);
    assert_eq!(device.leaked().memory, ByteSize::default());
    // The numbers are those of a program that tries this batch only.
    budget.set_limit(limit);
    assert_eq!(train(&data, &weights, batch).unwrap(), loss);
    assert_eq!(weights.each_ref().map(|weight| weight.grad().unwrap().to_vec::<f32>().unwrap()), grads);
}

#[test]
fn a_gpu_that_is_full_says_how_full_and_can_be_used_when_it_is_not() {
    let Some(gpu) = gpu_alone() else { return };
    let device = cuda(&gpu);
    device.trim().unwrap();
    let before = device.memory_budget().used();
    let mut held = Vec::new();
    let refused = loop {
        match Tensor::on(&gpu).zeros([1 << 30]) {
            // 4 GiB each
            Ok(tensor) => held.push(tensor),
            Err(refused) => break refused,
        }
        assert!(held.len() < 200, "no device has that much");
    };
    assert!(refused.is_out_of_memory());
    let said = refused.to_string();
    assert!(said.starts_with("zeros: no memory for [1073741824] of float32: "), "{said}");
    assert!(said.contains("4 GiB") && said.contains("drop "), "{said}");
    drop(held);
    device.synchronize().unwrap();
    device.trim().unwrap();
    assert_eq!(device.memory_budget().used(), before);
    assert_eq!(Tensor::on(&gpu).ones([1 << 20]).unwrap().sum(..).unwrap().item::<f32>().unwrap(), (1 << 20) as f32);
}

#[test]
fn a_refused_tensor_leaves_a_software_device_as_it_was() {
    let machine = Machine::new(Config { memory: ByteSize::mib(16), ..Config::default() });
    let device = Device::try_from(&machine.device(0).unwrap()).unwrap();
    let used = || cuda(&device).memory_budget().used();
    let kept = Tensor::ones([1 << 20]).unwrap().to(&device).unwrap();
    let before = used();
    for _ in 0..100 {
        let refused = Tensor::on(&device).zeros([1 << 22]).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        assert_eq!(used(), before);
    }
    assert_eq!(kept.to_vec::<f32>().unwrap(), vec![1.0; 1 << 20]);
    assert!(machine.violations().is_empty());
}

#[test]
fn a_lost_device_is_an_error_of_the_operation_that_met_it() {
    let machine = Machine::new(Config::default());
    let device = Device::try_from(&machine.device(0).unwrap()).unwrap();
    let x = Tensor::ones([2, 3]).unwrap().to(&device).unwrap();
    machine.fail(Fault::at(0).lasting());
    let (zeros, read) = (Tensor::on(&device).zeros([4, 5]).unwrap_err(), x.to_vec::<f32>().unwrap_err());
    let copied = x.to(&Device::Cpu).and_then(|x| x.to_vec::<f32>()).unwrap_err();
    for error in [&zeros, &read, &copied] {
        assert!(!error.is_out_of_memory(), "{error}");
        assert!(error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "{error}");
    }
    assert!(zeros.to_string().starts_with("zeros: cuMemsetD8Async failed: "), "{zeros}");
    for error in [read, copied] {
        assert!(error.to_string().starts_with("to: "), "{error}");
    }
    machine.heal();
}

#[test]
fn without_kernels_an_operation_says_what_it_was_given() {
    let device = Device::try_from(&Machine::new(Config::default()).device(0).unwrap()).unwrap();
    let x = Tensor::ones([2, 3]).unwrap().to(&device).unwrap();
    let refused = x.softmax(1).unwrap_err();
    assert!(matches!(refused, Error::Cuda { op: "softmax", .. }));
    assert!(refused.to_string().starts_with("softmax of float32 [2, 3]: "), "{refused}");
}

#[test]
fn a_missing_compiler_is_named_with_the_operation_and_its_inputs() {
    if let Ok(version) = pagelock_cuda::compiler_version() {
        eprintln!("SKIPPED: this machine has NVRTC {version:?}");
        return;
    }
    let config = Config { kernels_for: Some((9, 0)), ..Config::default() };
    let device = Device::try_from(&pagelock_cuda::Device::software(config).unwrap()).unwrap();
    let [x, weight] =
        [&[64, 10][..], &[10]].map(|shape| Tensor::of(DType::F64).ones(shape).unwrap().to(&device).unwrap());
    let said = x.layer_norm(10, Some(&weight), None, 1e-5).unwrap_err().to_string();
    let expected = "layer_norm of float64 [64, 10], float64 [10]: no NVRTC to compile kernels: ";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn a_kernel_that_does_not_compile_is_named_with_the_operation_and_its_inputs() {
    if let Err(missing) = pagelock_cuda::compiler_version() {
        eprintln!("SKIPPED: {missing}");
        return;
    }
    let config = Config { kernels_for: Some((99, 9)), ..Config::default() }; // an architecture that no compiler knows
    let device = Device::try_from(&pagelock_cuda::Device::software(config).unwrap()).unwrap();
    let x = Tensor::ones([64, 10]).unwrap().to(&device).unwrap();
    for _ in 0..2 {
        let refused = x.softmax(1).unwrap_err();
        assert!(matches!(refused, Error::Cuda { op: "softmax", .. }) && !refused.is_out_of_memory(), "{refused}");
        let said = refused.to_string();
        assert!(said.starts_with("softmax of float32 [64, 10]: "), "{said}");
        assert!(said.contains("--gpu-architecture"), "{said}");
    }
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 640]);
}
