//! Maps of tensors that are copied between host and devices: a software device, and a GPU if there is one.

use pagelock_cuda::driver::Call;
use pagelock_cuda::software::{Config, Fault, Machine};
use pagelock_tensor::{AnyTensor, Bool, DType, Device, Float, Int, Tensor, TensorMap};
use proptest::prelude::*;

use crate::common::{Values, all_devices, devices, software};

/// Tensors of several types and lengths, contiguous and not, some of which share a storage.
fn mixed() -> TensorMap {
    let mut map = TensorMap::new([4]).unwrap();
    let rows = Tensor::arange(0.0, 400.0, 1.0).unwrap().reshape([4, 100]).unwrap();
    map.set("rows", &rows).unwrap();
    map.set("columns", Tensor::arange(0.0, 40.0, 1.0).unwrap().reshape([10, 4]).unwrap().t().unwrap()).unwrap();
    map.set("inner.some", rows.slice(1, 3..50, 2).unwrap()).unwrap();
    map.set("inner.one", rows.select(1, 7).unwrap()).unwrap();
    map.set("inner.labels", Tensor::new([1, 2, 3, 4]).unwrap()).unwrap();
    map.set("inner.masks", Tensor::new([true, false, true, true]).unwrap()).unwrap();
    map.set("inner.large", Tensor::full([4, 100_000], 7.0).unwrap()).unwrap();
    map.set("inner.bytes", Tensor::of(DType::U8).full([4, 3], 9).unwrap()).unwrap();
    map.set("nothing", Tensor::zeros([4, 0]).unwrap()).unwrap();
    map
}

/// The path, precision, shape and values of each tensor of a map.
fn shown(map: &TensorMap) -> Vec<(String, DType, Vec<usize>, Vec<f64>)> {
    let values = |tensor: &AnyTensor| match tensor.dtype() {
        DType::Bool => Bool::values(&tensor.bool()?),
        dtype if dtype.is_float() => Float::values(&tensor.float()?),
        _ => Int::values(&tensor.int()?),
    };
    map.iter().map(|(path, tensor)| (path, tensor.dtype(), tensor.dims().to_vec(), values(tensor).unwrap())).collect()
}

#[test]
fn a_map_comes_back_as_it_went() {
    for device in all_devices() {
        let there = mixed().to(&device).unwrap();
        assert_eq!(there.device(), Some(device.clone()));
        assert_eq!(shown(&there.to(&Device::Cpu).unwrap()), shown(&mixed()), "{device}");
    }
}

#[test]
fn a_pinned_map_is_one_block_and_comes_back_as_it_went() {
    for device in all_devices() {
        let pinned = match &device {
            Device::Cpu => mixed().pin_memory().unwrap(),
            device => mixed().pin_memory_for(device).unwrap(),
        };
        assert!(pinned.is_pinned() && !mixed().is_pinned());
        let there = pinned.to(&device).unwrap();
        assert_eq!(shown(&there.to(&Device::Cpu).unwrap()), shown(&mixed()), "{device}");
    }
}

#[test]
fn a_consolidated_map_stays_one_on_its_way() {
    let mut map = TensorMap::new(()).unwrap();
    (0..20).for_each(|i| map.set(&format!("x{i}"), Tensor::full([i + 1], i as f32).unwrap()).unwrap());
    let software = pagelock_cuda::Device::software(Default::default()).unwrap();
    let device = Device::try_from(&software).unwrap();
    let pinned = map.pin_memory_for(&device).unwrap();
    assert!(pinned.is_consolidated() && !map.is_consolidated());
    let there = pinned.to(&device).unwrap();
    assert!(there.is_consolidated());
    let back = there.to(&Device::Cpu).unwrap();
    assert!(back.is_consolidated() && back.is_pinned());
    assert_eq!(back.get("x19").unwrap().to_vec::<f32>().unwrap(), [19.0; 20]);
    assert!(map.consolidate().unwrap().is_consolidated());
    assert!(map.to(&device).unwrap().consolidate().unwrap().is_consolidated());
}

#[test]
fn tensors_in_one_block_are_changed_apart() {
    for device in devices() {
        let mut map = TensorMap::new(()).unwrap();
        map.set("a", Tensor::ones([10]).unwrap()).unwrap();
        map.set("b", Tensor::ones([10]).unwrap()).unwrap();
        let there = map.to(&device).unwrap().consolidate().unwrap();
        assert!(there.is_consolidated());
        let [a, b] = ["a", "b"].map(|path| there.get(path).unwrap());
        a.zero_().unwrap();
        assert_eq!((a.version(), b.version()), (1, 0));
        assert_eq!((a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap()), (vec![0.0; 10], vec![1.0; 10]));
    }
}

#[test]
fn sources_that_change_after_they_were_sent_do_not_change_what_was_sent() {
    for pinned in [false, true] {
        let device = software();
        let map = if pinned { mixed().pin_memory_for(&device).unwrap() } else { mixed() };
        let there = map.to(&device).unwrap();
        map.get("rows").unwrap().fill_(-1.0).unwrap();
        map.get("inner.large").unwrap().fill_(-1.0).unwrap();
        assert_eq!(shown(&there), shown(&mixed()), "pinned: {pinned}");
    }
}

#[test]
fn the_memory_of_a_packed_map_goes_with_its_last_tensor() {
    let software = pagelock_cuda::Device::software(Default::default()).unwrap();
    let device = Device::try_from(&software).unwrap();
    let there = mixed().to(&device).unwrap();
    let last = there.get("rows").unwrap();
    drop(there);
    assert!(software.pool_stats().live.0 >= 1_600);
    drop(last);
    assert_eq!(software.pool_stats().live.0, 0);
}

#[test]
fn gradients_go_back_to_where_the_tensors_came_from() {
    let device = software();
    let x = Tensor::ones([3]).unwrap().set_requires_grad(true);
    let mut map = TensorMap::new(()).unwrap();
    map.set("x", &x).unwrap();
    let there = map.pin_memory_for(&device).unwrap().to(&device).unwrap().get("x").unwrap();
    let gradient = Tensor::on(&device).new([1.0, 2.0, 3.0]).unwrap();
    let options = pagelock_tensor::autograd::Backward { gradient: Some(gradient), ..Default::default() };
    there.backward_with(options).unwrap();
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
}

#[test]
fn a_list_of_tensors_moves_as_one() {
    for device in all_devices() {
        let tensors: Vec<Tensor> = (0..300).map(|i| Tensor::full([i], i as f32).unwrap()).collect();
        let there = Tensor::all_to(&tensors, &device).unwrap();
        for (i, tensor) in there.iter().enumerate() {
            assert_eq!(tensor.device(), device);
            assert_eq!(tensor.to_vec::<f32>().unwrap(), vec![i as f32; i]);
        }
    }
}

/// Tries as many tensors as share an allocation, and more.
#[test]
fn tensors_that_move_as_one_are_laid_out_as_before() {
    let device = software();
    for count in [1, 2, 128, 129, 300] {
        let numbers: Vec<f32> = (0..6 * count).map(|i| i as f32).collect();
        let whole = Tensor::from_slice(&numbers, [count, 2, 3]).unwrap();
        let tensors: Vec<Tensor> = (0..count).map(|i| whole.select(0, i as isize).unwrap().t().unwrap()).collect();
        let there = Tensor::all_to(&tensors, &device).unwrap();
        assert_eq!(there.len(), count);
        for (from, moved) in tensors.iter().zip(&there) {
            assert_eq!((moved.strides(), moved.device()), (from.strides(), device.clone()));
            assert_eq!(moved.to_vec::<f32>().unwrap(), from.to_vec::<f32>().unwrap());
        }
    }
}

/// So many small tensors that they are packed, whatever the cost model of the machine says.
fn many_small() -> Vec<Tensor> {
    (0..500).map(|i| Tensor::full([1_000], i as f32).unwrap()).collect()
}

#[test]
fn a_tensor_that_is_in_a_list_twice_moves_twice() {
    let device = software();
    let (one, other) = (Tensor::arange(0.0, 300.0, 1.0).unwrap(), Tensor::ones([3]).unwrap());
    let there = Tensor::all_to(&[one.clone(), other, one.clone(), one.slice(0, 10..20, 1).unwrap()], &device).unwrap();
    assert_eq!(there[0].to_vec::<f32>().unwrap(), one.to_vec::<f32>().unwrap());
    assert_eq!(there[2].to_vec::<f32>().unwrap(), one.to_vec::<f32>().unwrap());
    assert_eq!(there[3].to_vec::<f32>().unwrap(), one.to_vec::<f32>().unwrap()[10..20]);
}

#[test]
fn a_list_of_all_kinds_of_memory_moves() {
    let device = software();
    let mut tensors = many_small();
    tensors[300] = tensors[300].pin_memory_for(&device).unwrap();
    tensors[400] = tensors[400].to(&device).unwrap();
    tensors[450] = Tensor::ones([2, 3]).unwrap().slice(1, 0..3, 2).unwrap();
    let there = Tensor::all_to(&tensors, &device).unwrap();
    for (from, moved) in tensors.iter().zip(&there) {
        assert_eq!(moved.device(), device);
        assert_eq!(moved.to_vec::<f32>().unwrap(), from.to_vec::<f32>().unwrap());
    }
}

#[test]
fn tensors_that_another_thread_writes_or_moves_too_arrive_whole() {
    let (device, tensors) = (software(), many_small());
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                tensors[round % 500].fill_(-1.0 - round as f32).unwrap();
                if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
            }
        });
        let moving = [0, 1].map(|_| {
            scope.spawn(|| {
                for _ in 0..20 {
                    for moved in Tensor::all_to(&tensors, &device).unwrap() {
                        let elements = moved.to_vec::<f32>().unwrap();
                        assert!(elements.iter().all(|&element| element == elements[0]), "{elements:?}");
                    }
                }
            })
        });
        let moved = moving.map(|thread| thread.join());
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        moved.into_iter().for_each(|moved| moved.unwrap());
    });
}

#[test]
fn a_list_that_fails_on_its_way_leaves_nothing_in_use() {
    let machine = Machine::new(Config::default());
    let software = machine.device(0).unwrap();
    let (device, tensors) = (Device::try_from(&software).unwrap(), many_small());
    for skip in 0..5 {
        machine.fail(Fault::at(skip).call(Call::CopyToDevice));
        let moved = Tensor::all_to(&tensors, &device);
        machine.heal();
        let has_failed = moved.is_err();
        assert!(has_failed || skip > 0, "there is a copy");
        drop(moved);
        device.synchronize().unwrap();
        assert_eq!((software.pool_stats().live.0, software.leaked().count), (0, 0));
    }
    assert_eq!(Tensor::all_to(&tensors, &device).unwrap()[9].to_vec::<f32>().unwrap(), [9.0; 1_000]);
}

#[test]
fn tensors_that_moved_as_one_are_used_by_several_threads_for_the_first_time() {
    let (device, tensors) = (software(), many_small());
    let there = Tensor::all_to(&tensors, &device).unwrap();
    assert_eq!((there[7].dtype(), there[7].version()), (DType::F32, 0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let same =
                    |(from, moved): (&Tensor, &Tensor)| moved.to_vec::<f32>().unwrap() == from.to_vec::<f32>().unwrap();
                assert!(tensors.iter().zip(&there).all(same));
            });
        }
    });
}

#[test]
fn gradients_go_back_to_tensors_that_moved_as_one() {
    let device = software();
    let tensors: Vec<Tensor> = (0..3).map(|i| Tensor::ones([2]).unwrap().set_requires_grad(i == 1)).collect();
    let there = Tensor::all_to(&tensors, &device).unwrap();
    let gradient = Tensor::on(&device).new([1.0, 2.0]).unwrap();
    let options = pagelock_tensor::autograd::Backward { gradient: Some(gradient), ..Default::default() };
    there[1].backward_with(options).unwrap();
    assert_eq!(tensors[1].grad().unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert!(tensors[0].grad().is_none() && tensors[2].grad().is_none());
}

#[test]
fn what_does_not_fit_a_device_is_refused_with_the_largest_shape() {
    let software = pagelock_cuda::Device::software(Default::default()).unwrap();
    software.memory_budget().set_limit(pagelock_memory::ByteSize::kib(64));
    let device = Device::try_from(&software).unwrap();
    let error = mixed().to(&device).unwrap_err().to_string();
    assert!(error.starts_with("to: no memory for [4, 100000] of float32: cannot take"), "{error}");
}

fn tensors() -> impl Strategy<Value = Vec<(Vec<usize>, bool)>> {
    prop::collection::vec((prop::collection::vec(0_usize..7, 0..4), any::<bool>()), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_map_goes_round(shapes in tensors(), pin: bool, consolidate: bool, threads in prop::option::of(0_usize..4)) {
        let device = software();
        let mut map = TensorMap::new(()).unwrap();
        for (at, (shape, is_bool)) in shapes.iter().enumerate() {
            let len: usize = shape.iter().product();
            let path = format!("{}.x{at}", ["a", "b.c", "d"][at % 3]);
            if *is_bool {
                let values: Vec<bool> = (0..len).map(|i| (i + at) % 3 == 0).collect();
                map.set(&path, Tensor::from_slice(&values, &shape[..]).unwrap()).unwrap();
            } else {
                let values: Vec<i64> = (0..len as i64).map(|i| i * 1_000 + at as i64).collect();
                map.set(&path, Tensor::from_slice(&values, &shape[..]).unwrap()).unwrap();
            }
        }
        let mut sent = if pin { map.pin_memory_by(threads).unwrap() } else { map.clone() };
        sent = if consolidate { sent.consolidate().unwrap() } else { sent };
        let there = sent.to(&device).unwrap();
        let moved = if consolidate { there.consolidate()? } else { there };
        prop_assert_eq!(shown(&moved.to(&Device::Cpu)?), shown(&map));
    }
}
