//! Refused calls, and the texts of their errors.

use pagelock_cuda::software::{Config, Machine};
use pagelock_memory::ByteSize;
use pagelock_tensor::{Device, Error, Tensor};

use crate::common::software;

#[test]
fn tensors_on_two_devices_are_both_named() {
    let (here, there) = (Tensor::zeros([2, 3]).unwrap(), Tensor::on(&software()).zeros([3]).unwrap());
    let expected = "add: tensor 0, float32 [2, 3], is on cpu, tensor 1, float32 [3], is on cuda:0; move one with \
                    `.to(&device)?`";
    assert_eq!(here.add(&there).unwrap_err().to_string(), expected);
    assert!(matches!(there.mul(&here), Err(Error::DeviceMismatch { op: "mul", .. })));
    assert!(matches!(here.add_(&there), Err(Error::DeviceMismatch { op: "add_", .. })));
    assert!(matches!(
        Tensor::cat(&[&here, &there.unsqueeze(0).unwrap()], 0),
        Err(Error::DeviceMismatch { op: "cat", .. })
    ));
    let index = Tensor::on(&software()).zeros([1]).unwrap().to_int();
    assert!(index.is_err(), "software devices run no kernels");
}

#[test]
fn an_index_on_another_device_is_named() {
    let index = Tensor::full([1], 0).unwrap().to(&software()).unwrap();
    let refused = Tensor::zeros([2, 3]).unwrap().index_select(0, &index).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "index_select: tensor 0, float32 [2, 3], is on cpu, tensor 1, int64 [1], is on cuda:0; move one with \
         `.to(&device)?`"
    );
}

#[test]
fn a_device_without_memory_says_so_and_nothing_is_lost() {
    let machine = Machine::new(Config { memory: ByteSize::mib(4), ..Config::default() });
    let device = Device::try_from(&machine.device(0).unwrap()).unwrap();
    let kept = Tensor::on(&device).zeros([1 << 18]).unwrap();
    let refused = Tensor::on(&device).zeros([1 << 20]).unwrap_err();
    assert!(matches!(refused, Error::DeviceMemory { op: "zeros", .. }));
    assert!(
        refused.to_string().starts_with("zeros: no memory for [1048576] of float32: cannot take 4 MiB: "),
        "{refused}"
    );
    drop(kept);
    assert_eq!(Tensor::on(&device).zeros([1 << 18]).unwrap().to_vec::<f32>().unwrap().len(), 1 << 18);
}

#[test]
fn there_is_nothing_to_page_lock_for_the_cpu_or_on_a_device() {
    let refused = Tensor::zeros([2]).unwrap().pin_memory_for(&Device::Cpu).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "pin_memory: device is cpu, but only a GPU copies from page-locked memory; name one"
    );
    let device = software();
    let refused = Tensor::on(&device).zeros([2]).unwrap().pin_memory_for(&device).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "pin_memory: [2] is on cuda:0, but the host reads only its own memory; copy it with `.to(&Device::Cpu)?`"
    );
}

#[test]
fn a_missing_gpu_is_an_error_that_says_what_is_missing() {
    if let Err(missing) = Device::cuda(0) {
        assert!(matches!(missing, Error::NoDevice(_)));
        assert!(missing.to_string().starts_with("CUDA is not available: "), "{missing}");
        assert_eq!(Device::best(), Device::Cpu);
    }
}
