//! Captured steps: on the CPU, which calls the closure each time, and on a GPU, which launches a graph.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use pagelock_memory::ByteSize;
use pagelock_tensor::{
    AnyTensor, CapturedStep, Conv2dOptions, Device, Error, Generator, Int, Pool2dOptions, Reduction, Result, Tensor,
    default_generator, manual_seed,
};

use crate::common::{devices, gpu, gpu_alone, software};

/// A network, and the state of its optimizer.
struct Training {
    parameters: Vec<Tensor>,
    momenta: Vec<Tensor>,
}

impl Training {
    fn on(device: &Device) -> Result<Training> {
        let shapes: [&[usize]; 4] = [&[4, 1, 3, 3], &[4], &[10, 4, 3, 3], &[10]];
        let (mut parameters, mut momenta) = (Vec::new(), Vec::new());
        for (shape, seed) in shapes.iter().zip(1..) {
            let start = Tensor::randn_with(*shape, &Generator::new(seed))?.mul_scalar(0.3)?;
            momenta.push(Tensor::zeros(*shape)?.to(device)?);
            parameters.push(start.to(device)?.set_requires_grad(true));
        }
        Ok(Training { parameters, momenta })
    }

    /// One step of gradient descent. Returns its loss.
    fn step(&self, x: &Tensor, labels: &Tensor<Int>) -> Result<Tensor> {
        let p = &self.parameters;
        let halving = Conv2dOptions::new().stride(2).padding(1);
        let x = x.conv2d(&p[0], Some(&p[1]), halving)?.relu()?;
        let x = x.conv2d(&p[2], Some(&p[3]), halving)?.relu()?.avg_pool2d(Pool2dOptions::new(4))?;
        let loss = x.flatten(1, -1)?.cross_entropy(labels, Reduction::Mean)?;
        loss.backward()?;
        pagelock_tensor::no_grad(|| {
            for (parameter, momentum) in p.iter().zip(&self.momenta) {
                momentum.mul_scalar_(0.9)?;
                momentum.add_(&parameter.grad().unwrap())?;
                parameter.add_scaled_(momentum, -0.1)?;
                parameter.zero_grad();
            }
            Ok(loss)
        })
    }

    fn values(&self) -> Vec<Vec<f32>> {
        self.parameters.iter().chain(&self.momenta).map(|x| x.detach().to_vec::<f32>().unwrap()).collect()
    }
}

/// A batch on the host; every fifth batch is smaller.
fn batch(i: u64) -> (Tensor, Tensor<Int>) {
    let n = if i % 5 == 4 { 3 } else { 8 };
    let x = Tensor::randn_with([n, 1, 16, 16], &Generator::new(100 + i)).unwrap();
    let labels = (0..n as i64).map(|k| (k + i as i64) % 10).collect();
    (x, Tensor::from_vec(labels, n).unwrap())
}

#[test]
fn a_captured_step_does_what_the_step_does_bit_for_bit() {
    for device in devices() {
        let eager = Training::on(&device).unwrap();
        let captured = Training::on(&device).unwrap();
        let mut step = CapturedStep::new(&device);
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        for i in 0..30 {
            let (x, labels) = batch(i);
            expected.push(eager.step(&x.to(&device).unwrap(), &labels.to(&device).unwrap()).unwrap().detach());
            found.push(step.run((x, labels), |(x, labels)| captured.step(x, labels)).unwrap());
            assert!(!found[i as usize].requires_grad());
        }
        let numbers = |losses: &[Tensor]| losses.iter().map(|loss| loss.item::<f32>().unwrap()).collect::<Vec<_>>();
        assert_eq!(numbers(&found), numbers(&expected), "on {device}: losses that were kept stay what they were");
        assert_eq!(captured.values(), eager.values(), "on {device}");
        assert_eq!(step.is_captured(&batch(0)), !device.is_cpu());
        assert_eq!(step.is_captured(&batch(4)), !device.is_cpu());
    }
}

#[test]
fn inputs_may_be_anywhere_and_have_any_strides() {
    for device in devices() {
        let sum = Tensor::zeros([3, 4]).unwrap().to(&device).unwrap();
        let mut step = CapturedStep::new(&device);
        for i in 0..12 {
            let x = Tensor::full([3, 4], i as f32).unwrap();
            let x = match i % 4 {
                0 => x,
                1 => x.to(&device).unwrap(),
                2 => Tensor::full((), i as f32).unwrap().expand([3, 4]).unwrap(),
                _ => x.t().unwrap().contiguous().unwrap().t().unwrap(),
            };
            step.run(x, |x| -> Result<()> { sum.add_(x) }).unwrap();
        }
        assert_eq!(sum.to_vec::<f32>().unwrap(), [66.0; 12], "on {device}");
    }
}

#[test]
fn what_is_changed_between_calls_is_seen_by_the_next() {
    for device in devices() {
        let w = Tensor::zeros([2]).unwrap().to(&device).unwrap();
        let mut step = CapturedStep::new(&device);
        for i in 0..6 {
            w.fill_(i as f32).unwrap();
            let y = step.run(Tensor::ones([2]).unwrap(), |x| x + &w).unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), [i as f32 + 1.0; 2], "on {device}");
        }
        step.forget();
        assert!(!step.is_captured(&Tensor::ones([2]).unwrap()));
        let y = step.run(Tensor::ones([2]).unwrap(), |x| x * &w).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [5.0; 2], "on {device}");
    }
}

#[test]
fn a_change_by_a_captured_step_is_found_by_a_backward_that_saved_the_old_values() {
    for device in devices() {
        let w = Tensor::ones([2]).unwrap().to(&device).unwrap();
        let mut step = CapturedStep::new(&device);
        for _ in 0..4 {
            let x = Tensor::ones([2]).unwrap().to(&device).unwrap().set_requires_grad(true);
            let y = (&x * &w).unwrap();
            step.run((), |()| w.mul_scalar_(2.0)).unwrap();
            let error = y.sum(..).unwrap().backward().unwrap_err();
            assert!(matches!(error, Error::StaleSaved { .. }), "on {device}: {error}");
        }
        assert_eq!(w.to_vec::<f32>().unwrap(), [16.0; 2], "on {device}");
    }
}

#[test]
fn launches_change_tensors_that_outlive_the_capture() {
    for device in devices().chain([software()]).filter(|device| !device.is_cpu()) {
        let (mut kept, mut step) = (None, CapturedStep::new(&device));
        for _ in 0..3 {
            let mut make = || {
                kept = Some(Tensor::on(&device).zeros([2])?);
                Ok::<_, Error>(())
            };
            step.run((), |()| make()).unwrap();
        }
        let kept = kept.unwrap();
        let version = kept.version();
        step.run((), |()| Ok::<_, Error>(())).unwrap();
        assert!(kept.version() > version, "a backward on {device} would use the new values");
    }
}

/// A layer's gradients are parts of one block.
#[test]
fn launches_change_gradients_that_outlive_the_capture() {
    let Some(gpu) = gpu() else { return };
    let on_gpu = |x: Result<Tensor>| x.unwrap().to(&gpu).unwrap().set_requires_grad(true);
    let (w, b, kernel) = (on_gpu(Tensor::ones([3, 4])), on_gpu(Tensor::zeros([3])), on_gpu(Tensor::ones([2, 1, 3, 3])));
    let bias = on_gpu(Tensor::zeros([2]));
    let all = [&w, &b, &kernel, &bias];
    let mut step = CapturedStep::new(&gpu);
    let mut versions = Vec::new();
    for _ in 0..8 {
        let x = Tensor::ones([5, 4]).unwrap();
        step.run(x, |x| {
            all.iter().for_each(|parameter| parameter.zero_grad());
            x.linear(&w, Some(&b))?.sum(..)?.backward()?;
            let image = x.reshape([1, 1, 5, 4])?;
            image.conv2d(&kernel, Some(&bias), Conv2dOptions::new())?.sum(..)?.backward()
        })
        .unwrap();
        versions.push(all.map(|parameter| parameter.grad().unwrap().version()));
    }
    // The gradients are those of the third capture, which is the fifth call, and which the eighth launches again.
    for (before, after) in versions[4].iter().zip(versions[7]) {
        assert!(after > *before, "{versions:?}");
    }
}

#[test]
fn other_threads_use_no_tensor_of_a_step_before_it_was_computed() {
    for device in devices().chain([software()]).filter(|device| !device.is_cpu()) {
        let (mut step, mut read, mut kept) = (CapturedStep::new(&device), Vec::new(), None);
        for _ in 0..3 {
            let mut make = || {
                let y = Tensor::on(&device).zeros([4])?;
                read.push(thread::scope(|scope| scope.spawn(|| y.to_vec::<f32>()).join().unwrap()));
                kept = Some(y);
                Ok::<_, Error>(())
            };
            step.run((), |()| make()).unwrap();
        }
        let error = read.pop().unwrap().unwrap_err();
        assert!(error.to_string().contains("is being captured"), "on {device}: {error}");
        assert!(read.into_iter().all(|read| read.unwrap() == [0.0; 4]), "on {device}");
        assert_eq!(kept.unwrap().to_vec::<f32>().unwrap(), [0.0; 4], "on {device}");
    }
}

/// Two handles of one result, parts of one, and one that the step changed in place.
#[test]
fn results_that_share_elements_stay_what_they_were() {
    for device in devices() {
        let mut step = CapturedStep::new(&device);
        let mut kept = Vec::new();
        for i in 0..7 {
            let x = Tensor::full([4], i).unwrap().to_float().unwrap();
            let results = step.run(x, |x| {
                let (y, changed) = (x.add_scalar(1.0)?, x.mul_scalar(2.0)?);
                changed.add_scalar_(0.5)?;
                Ok::<_, Error>((y.clone(), y.narrow(0, 1, 2)?, y, changed))
            });
            kept.push(results.unwrap());
        }
        for (i, (one, part, other, changed)) in kept.iter().enumerate() {
            for y in [one, part, other] {
                assert_eq!(y.to_vec::<f64>().unwrap(), vec![i as f64 + 1.0; y.len()], "launch {i} on {device}");
            }
            assert_eq!(changed.to_vec::<f64>().unwrap(), [2.0 * i as f64 + 0.5; 4], "launch {i} on {device}");
        }
    }
}

#[test]
fn results_that_share_elements_still_share_them_after_a_call_without_memory() {
    let software = pagelock_cuda::Device::software(Default::default()).unwrap();
    let device = Device::try_from(&software).unwrap();
    let mut step = CapturedStep::new(&device);
    let mut run = || {
        step.run((), |()| {
            let (y, large) = (Tensor::on(&device).zeros([4])?, Tensor::on(&device).zeros([1 << 24])?);
            Ok::<_, Error>((y.clone(), large, y.narrow(0, 1, 2)?))
        })
    };
    let _kept: Vec<_> = (0..3).map(|_| run().unwrap()).collect();
    let budget = software.memory_budget();
    let limit = budget.limit();
    budget.set_limit(ByteSize(budget.used().0 + ByteSize::mib(4).0));
    assert!(run().unwrap_err().to_string().contains("budget"));
    budget.set_limit(limit);

    let (y, _, part) = run().unwrap();

    assert_eq!(AnyTensor::from(y).storage_id(), AnyTensor::from(part).storage_id());
}

/// An input, and a part of one.
#[test]
fn results_that_are_inputs_stay_what_they_were() {
    for device in devices() {
        let mut step = CapturedStep::new(&device);
        let mut kept = Vec::new();
        for i in 0..10 {
            let x = Tensor::full([4], i).unwrap().to_float().unwrap();
            let results = step.run(x, |x| Ok::<_, Error>((x.clone(), x.narrow(0, 1, 2)?, x.mul_scalar(2.0)?)));
            kept.push(results.unwrap());
        }
        for (i, (whole, part, double)) in kept.iter().enumerate() {
            assert_eq!(whole.to_vec::<f64>().unwrap(), [i as f64; 4], "launch {i} on {device}");
            assert_eq!(part.to_vec::<f64>().unwrap(), [i as f64; 2], "launch {i} on {device}");
            assert_eq!(double.to_vec::<f64>().unwrap(), [2.0 * i as f64; 4], "launch {i} on {device}");
        }
    }
}

#[test]
fn an_index_out_of_range_in_a_captured_step_is_found_each_time() {
    let Some(gpu) = gpu_alone() else { return };
    let x = Tensor::ones([3, 4]).unwrap().to(&gpu).unwrap();
    let mut step = CapturedStep::new(&gpu);
    for i in 0..8 {
        let index = Tensor::from_slice(&[0_i64, i % 4, 1], 3).unwrap();
        let selected = step.run(index.clone(), |index| x.index_select(0, index)).unwrap();
        let read = selected.to_vec::<f32>();
        assert_eq!(read.is_err(), i % 4 == 3, "launch {i}: {read:?}");
        gpu.synchronize().unwrap();
    }
    assert!(step.is_captured(&Tensor::from_slice(&[0_i64, 0, 1], 3).unwrap()));
}

#[test]
fn what_needs_the_host_is_refused_and_breaks_nothing() {
    let Some(gpu) = gpu() else { return };
    let x = || Tensor::ones([2]).unwrap();
    let refused = |work: &dyn Fn(&Tensor) -> Result<Tensor>| {
        let mut step = CapturedStep::new(&gpu);
        step.run(x(), |x| work(x)).unwrap();
        step.run(x(), |x| work(x)).unwrap();
        let error = step.run(x(), |x| work(x)).unwrap_err().to_string();
        assert_eq!(x().to(&gpu).unwrap().add_scalar(1.0).unwrap().to_vec::<f32>().unwrap(), [2.0; 2]);
        error
    };
    assert_eq!(
        refused(&|x| x.sum(..)?.add_scalar(x.sum(..)?.item::<f32>()?)),
        "reading elements on the host cannot be part of a captured step; do that before or after it, with tensors that it \
         takes or returns"
    );
    let host = x();
    assert!(refused(&|x| x + host.to(&gpu)?).starts_with("a copy from the host cannot be part of a captured step"));
    let dropped = refused(&|x| x.dropout(0.5, &Generator::new(1)));
    assert!(dropped.starts_with("drawing random numbers from a generator other than the default cannot"), "{dropped}");
    let nested = refused(&|x| {
        let mut inner = CapturedStep::new(&gpu);
        (0..3).map(|_| inner.run(x.clone(), |x| x + x)).last().unwrap()
    });
    assert!(nested.starts_with("another captured step cannot be part of a captured step"), "{nested}");
}

#[test]
fn a_step_that_panics_or_fails_can_be_run_again() {
    let Some(gpu) = gpu() else { return };
    let sum = Tensor::zeros([2]).unwrap().to(&gpu).unwrap();
    let mut step = CapturedStep::new(&gpu);
    let x = || Tensor::ones([2]).unwrap();
    let add = |x: &Tensor| -> Result<()> { sum.add_(x) };
    (0..2).for_each(|_| step.run(x(), add).unwrap());
    let panicked = catch_unwind(AssertUnwindSafe(|| step.run(x(), |_| -> Result<()> { panic!("in the middle") })));
    assert!(panicked.is_err());
    let failed = step.run(x(), |x| {
        add(x)?;
        sum.add_(&Tensor::ones([3])?.to(&Device::Cpu)?)
    });
    assert!(failed.is_err());
    (0..4).for_each(|_| step.run(x(), add).unwrap());
    assert_eq!(sum.to_vec::<f32>().unwrap(), [7.0; 2], "what a step did before it failed stays done");
}

#[test]
fn a_tensor_that_outlives_a_step_that_failed_has_its_values() {
    let gpu = gpu();
    for device in [software()].into_iter().chain(gpu.iter().map(|gpu| (**gpu).clone())) {
        for panics in [false, true] {
            let mut step = CapturedStep::new(&device);
            let x = || Tensor::ones([2]).unwrap();
            (0..2).for_each(|_| step.run(x(), |_| Ok::<_, Error>(())).unwrap());
            let mut kept = None;
            let failed = catch_unwind(AssertUnwindSafe(|| {
                step.run(x(), |_| {
                    let kept = kept.insert(Tensor::on(&device).zeros([1000])?);
                    if panics { panic!("in the middle") } else { kept.to_vec::<f32>().map(drop) }
                })
            }));
            assert!(!matches!(failed, Ok(Ok(()))));
            assert_eq!(kept.unwrap().to_vec::<f32>().unwrap(), [0.0; 1000]);
        }
    }
}

/// Has the GPU alone, since other tests draw from the default generator too.
#[test]
fn random_numbers_go_on_from_call_to_call() {
    let Some(gpu) = gpu_alone() else { return };
    let x = || Tensor::ones([1_000]).unwrap().to(&gpu).unwrap();
    let drawn = |x: &Tensor| -> Result<(Tensor, Tensor)> {
        Ok((x.dropout(0.5, default_generator())?, Tensor::on(&x.device()).rand([7])?))
    };
    goes_on(&gpu, x, drawn);
    // Each launch writes the memory of `a` and `b`, which is free when numbers are drawn.
    goes_on(
        &gpu,
        || Tensor::ones([8]).unwrap().to(&gpu).unwrap(),
        |x| {
            let a = x.add_scalar(1.0)?;
            let b = a.mul_scalar(2.0)?;
            let c = a.mul(&b)?;
            drop((a, b));
            Ok((c.dropout(0.5, default_generator())?, c))
        },
    );
}

fn goes_on(gpu: &Device, x: impl Fn() -> Tensor, drawn: impl Fn(&Tensor) -> Result<(Tensor, Tensor)>) {
    let values = |(a, b): (Tensor, Tensor)| [a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap()];
    manual_seed(5);
    let expected: Vec<_> = (0..8).map(|_| values(drawn(&x()).unwrap())).collect();
    let mut step = CapturedStep::new(gpu);
    for seed in [5, 6, 5] {
        manual_seed(seed);
        let found: Vec<_> = (0..8).map(|_| values(step.run(x(), &drawn).unwrap())).collect();
        assert_eq!(found == expected, seed == 5);
    }
}

#[test]
fn steps_of_several_threads_do_not_disturb_each_other() {
    let Some(gpu) = gpu() else { return };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let gpu = gpu.clone();
            scope.spawn(move || {
                let training = Training::on(&gpu).unwrap();
                let eager = Training::on(&gpu).unwrap();
                let mut step = CapturedStep::new(&gpu);
                for i in 0..20 {
                    let (x, labels) = batch(i + thread);
                    eager.step(&x.to(&gpu).unwrap(), &labels.to(&gpu).unwrap()).unwrap();
                    step.run((x, labels), |(x, labels)| training.step(x, labels)).unwrap();
                }
                assert_eq!(training.values(), eager.values());
            });
        }
    });
}

#[test]
fn every_call_sees_its_inputs_in_the_same_layout() {
    for device in devices() {
        let image = Tensor::randn_with([2, 3, 4, 5], &Generator::new(7)).unwrap();
        for image in [image.clone(), image.to(&device).unwrap()] {
            let views = [
                (image.channels_last().unwrap(), [60, 1, 15, 3]),
                (image.permute([3, 0, 2, 1]).unwrap(), [1, 60, 5, 20]),
                (image.narrow(1, 0, 2).unwrap(), [40, 20, 5, 1]),
                (image.permute([1, 0, 3, 2]).unwrap().narrow(0, 1, 2).unwrap(), [20, 40, 1, 5]),
                (image.narrow(1, 2, 1).unwrap().expand([2, 4, 4, 5]).unwrap(), [80, 20, 5, 1]),
            ];
            for (view, strides) in &views {
                let (mut step, mut seen, mut sums) = (CapturedStep::new(&device), Vec::new(), Vec::new());
                for _ in 0..6 {
                    let sum = step.run(view.clone(), |x| {
                        seen.push(x.strides().to_vec());
                        x.sum(1)
                    });
                    sums.push(sum.unwrap().to_vec::<f32>().unwrap());
                }
                assert!(sums.iter().all(|sum| *sum == sums[0]), "{strides:?}: {sums:?}");
                let wanted = if device.is_cpu() { view.strides() } else { &strides[..] };
                assert!(seen.iter().all(|seen| seen == wanted), "{strides:?}: {seen:?}");
            }
        }
    }
}
