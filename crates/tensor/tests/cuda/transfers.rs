//! Copies of tensors between host and devices: a software device that runs its work late, and a GPU if there is one.

use pagelock_cuda::software::{Config, Execution};
use pagelock_tensor::{Bool, CopyStream, DType, Device, Float, Int, Result, Tensor};

use crate::common::{FLOATS, INTS, Values, all_devices, gpu, ones, software};

#[test]
fn a_tensor_comes_back_as_it_went() {
    for device in all_devices() {
        for len in [0, 1, 1_000, 100_000] {
            let values: Vec<i64> = (0..len).map(|i| i * 7 - 3).collect();
            let there = Tensor::from_slice(&values, [len as usize]).unwrap().to(&device).unwrap();
            assert_eq!(there.device(), device);
            assert_eq!(there.to_vec::<i64>().unwrap(), values, "{device}, {len}");
            let back = there.to(&Device::Cpu).unwrap();
            assert!(back.device().is_cpu());
            assert_eq!(back.to_vec::<i64>().unwrap(), values, "{device}, {len}");
        }
    }
}

#[test]
fn every_element_type_moves() {
    fn moves<K: Values>(device: &Device, dtype: DType) {
        let there = ones::<K>(&Device::Cpu, dtype, &[3, 5]).unwrap().to(device).unwrap();
        assert_eq!((there.dtype(), K::values(&there).unwrap()), (dtype, vec![1.0; 15]));
        assert_eq!(K::values(&there.zeros_like().unwrap()).unwrap(), vec![0.0; 15]);
    }
    for device in all_devices() {
        FLOATS.iter().for_each(|&dtype| moves::<Float>(&device, dtype));
        INTS.iter().for_each(|&dtype| moves::<Int>(&device, dtype));
        moves::<Bool>(&device, DType::Bool);
    }
}

#[test]
fn views_work_on_a_device_and_show_the_same_elements() {
    for device in all_devices() {
        let x = Tensor::arange(0.0, 24.0, 1.0).unwrap().reshape([2, 3, 4]).unwrap();
        let there = x.to(&device).unwrap();
        let same = |view: fn(&Tensor) -> Result<Tensor>| {
            let (here, there) = (view(&x).unwrap(), view(&there).unwrap());
            assert_eq!(there.device(), device);
            assert_eq!(there.strides(), here.strides());
            assert_eq!(there.to_vec::<f32>().unwrap(), here.to_vec::<f32>().unwrap());
        };
        same(|x| x.transpose(0, 2));
        same(|x| x.select(1, 2));
        same(|x| x.slice(2, 1..4, 1));
        same(|x| x.select(0, 1)?.unsqueeze(0)?.expand([5, 3, 4]));
        same(|x| x.select(2, 3));
    }
}

#[test]
fn a_dense_view_keeps_its_strides_on_its_way() {
    for device in all_devices() {
        let x = Tensor::arange(0.0, 6.0, 1.0).unwrap().reshape([2, 3]).unwrap().t().unwrap();
        let there = x.to(&device).unwrap();
        assert_eq!(there.strides(), [1, 3]);
        assert_eq!(there.to(&Device::Cpu).unwrap().strides(), [1, 3]);
        assert_eq!(there.to_vec::<f32>().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    }
}

#[test]
fn a_view_with_gaps_becomes_contiguous_on_its_way_up() {
    for device in all_devices().filter(|device| !device.is_cpu()) {
        let x = Tensor::arange(0.0, 12.0, 1.0).unwrap().reshape([3, 4]).unwrap().select(1, 1).unwrap();
        let there = x.to(&device).unwrap();
        assert!(there.is_contiguous());
        assert_eq!(there.to_vec::<f32>().unwrap(), [1.0, 5.0, 9.0]);
    }
}

#[test]
fn a_source_that_changes_after_it_was_sent_does_not_change_what_was_sent() {
    for device in [software()] {
        for pinned in [false, true] {
            let x = Tensor::ones([1_000]).unwrap();
            let x = if pinned { x.pin_memory_for(&device).unwrap() } else { x };
            assert_eq!(x.is_pinned(), pinned);
            let there = x.to(&device).unwrap();
            x.fill_(2.0).unwrap();
            assert_eq!(there.to_vec::<f32>().unwrap(), [1.0; 1_000], "pinned: {pinned}");
        }
    }
}

#[test]
fn a_device_tensor_that_changes_after_it_was_fetched_does_not_change_what_was_fetched() {
    let device = software();
    let there = Tensor::on(&device).zeros([1_000]).unwrap();
    let here = there.to(&Device::Cpu).unwrap();
    drop(there);
    let other = Tensor::on(&device).from_slice(&[3.0_f32; 1_000], 1_000).unwrap(); // perhaps in the same memory
    assert_eq!(here.to_vec::<f32>().unwrap(), [0.0; 1_000]);
    assert_eq!(other.to_vec::<f32>().unwrap(), [3.0; 1_000]);
}

#[test]
fn a_page_locked_copy_that_is_dropped_on_its_way_up_waits_for_nothing() {
    let lazy = Config { execution: Execution::Stepped { haste: 0 }, ..Config::default() };
    let cuda = pagelock_cuda::Device::software(lazy).unwrap();
    let gpu = Device::try_from(&cuda).unwrap();
    let x = Tensor::full([1_000], 7.0).unwrap();
    let there = x.pin_memory_for(&gpu).unwrap().to(&gpu).unwrap();
    assert_eq!(cuda.in_flight().deferred, 1, "the device has not read it yet");
    assert_eq!(there.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
    cuda.release_finished();
    assert_eq!(cuda.in_flight().deferred, 0);
}

#[test]
fn what_comes_down_is_page_locked_and_waits_where_it_is_read() {
    let here = Tensor::on(&software()).zeros([10]).unwrap().to(&Device::Cpu).unwrap();
    assert!(here.is_pinned());
    assert_eq!((&here + 1.0).unwrap().to_vec::<f32>().unwrap(), [1.0; 10]);
}

#[test]
fn tensors_made_on_a_device_are_those_made_on_the_host() {
    for device in all_devices() {
        assert_eq!(Tensor::on(&device).zeros([2, 3]).unwrap().to_vec::<f32>().unwrap(), [0.0; 6]);
        assert_eq!(Tensor::on(&device).new([[1.0, 2.0]]).unwrap().shape(), &[1, 2]);
        assert_eq!(Tensor::on(&device).from_slice(&[5_i64, 6], 2).unwrap().to_vec::<i64>().unwrap(), [5, 6]);
    }
}

#[test]
fn a_number_on_a_device_can_be_read_and_printed() {
    for device in all_devices().filter(|device| !device.is_cpu()) {
        let x = Tensor::on(&device).new([[1.0, 2.5], [-3.0, 4.0]]).unwrap();
        assert_eq!(x.select(0, 0).unwrap().select(0, 1).unwrap().item::<f32>().unwrap(), 2.5);
        assert_eq!(
            x.to_string(),
            format!("tensor([[ 1.0000,  2.5000],\n        [-3.0000,  4.0000]], device='{device}')")
        );
    }
}

#[test]
fn a_gradient_goes_back_to_where_its_tensor_came_from() {
    let device = software();
    let x = Tensor::ones([3]).unwrap().set_requires_grad(true);
    let there = x.to(&device).unwrap();
    assert!(there.requires_grad());
    let gradient = Tensor::on(&device).new([1.0, 2.0, 3.0]).unwrap();
    let options = pagelock_tensor::autograd::Backward { gradient: Some(gradient), ..Default::default() };
    there.backward_with(options).unwrap();
    let grad = x.grad().unwrap();
    assert!(grad.device().is_cpu());
    assert_eq!(grad.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
}

#[test]
fn a_tensor_that_is_there_already_is_not_copied() {
    for device in all_devices() {
        let x = Tensor::on(&device).zeros([3]).unwrap();
        assert_eq!(x.to(&device).unwrap().version(), 0);
        x.to(&device).unwrap().zero_().unwrap_or_default();
        assert_eq!(x.version(), 1, "{device}: it is the same tensor");
    }
}

#[test]
fn devices_are_equal_if_they_are_the_same() {
    let cuda = pagelock_cuda::Device::software(Default::default()).unwrap();
    let (one, same) = (Device::try_from(&cuda).unwrap(), Device::try_from(&cuda).unwrap());
    assert_eq!(one, same);
    assert_ne!(one, software());
    assert_ne!(one, Device::Cpu);
    assert_eq!((one.to_string(), Device::Cpu.to_string()), ("cuda:0".to_owned(), "cpu".to_owned()));
}

#[test]
fn memory_of_a_device_is_given_back_when_the_last_view_goes() {
    let cuda = pagelock_cuda::Device::software(Default::default()).unwrap();
    let device = Device::try_from(&cuda).unwrap();
    let x = Tensor::on(&device).zeros([1_000]).unwrap();
    let view = x.narrow(0, 10, 5).unwrap();
    drop(x);
    assert!(cuda.pool_stats().live.0 >= 4_000);
    drop(view);
    assert_eq!(cuda.pool_stats().live.0, 0);
}

#[test]
fn a_copy_stream_takes_tensors_to_a_device_in_any_shape() {
    for device in all_devices() {
        let copies = CopyStream::new(&device).unwrap();
        let x = Tensor::arange(0.0, 12.0, 1.0).unwrap().reshape([3, 4]).unwrap();
        for x in [x.clone(), x.t().unwrap(), x.select(1, 1).unwrap(), x.pin_memory().unwrap()] {
            let there = copies.upload(&x).unwrap();
            assert_eq!(there.device(), device);
            assert_eq!(there.to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
            assert_eq!(
                copies.upload(&there).unwrap().to_vec::<f32>().unwrap(),
                x.to_vec::<f32>().unwrap(),
                "it is there already"
            );
        }
        let tracked = Tensor::ones([2]).unwrap().set_requires_grad(true);
        assert!(!copies.upload(&tracked).unwrap().requires_grad());
    }
}

#[test]
fn what_a_copy_stream_brings_is_there_for_the_next_operation() {
    for device in all_devices().filter(|device| !device.is_cpu()) {
        let copies = CopyStream::new(&device).unwrap();
        for round in 0..20 {
            let x = Tensor::full([10_000], round as f32).unwrap().pin_memory().unwrap();
            let there = copies.upload(&x).unwrap();
            x.fill_(-1.0).unwrap(); // waits for the copy
            assert!(there.to_vec::<f32>().unwrap().iter().all(|&element| element == round as f32), "round {round}");
        }
    }
}

/// The gradients of weight and bias are parts of one buffer, the second at byte 60.
#[test]
fn neighboring_parts_of_a_buffer_come_down_wherever_they_begin() {
    let Some(gpu) = gpu() else { return };
    let [x, weight, bias] = [&[2, 5][..], &[3, 5], &[3]]
        .map(|shape| Tensor::ones(shape).unwrap().to(&gpu).unwrap().set_requires_grad(true));
    x.linear(&weight, Some(&bias)).unwrap().sum(..).unwrap().backward().unwrap();
    let there = Tensor::all_to(&[weight.grad().unwrap(), bias.grad().unwrap()], &Device::Cpu).unwrap();
    assert_eq!(there[0].to_vec::<f32>().unwrap(), [2.0; 15]);
    assert_eq!(there[1].to_vec::<f32>().unwrap(), [2.0; 3]);
}
