//! Products and convolutions by NVIDIA's libraries, if they are installed: compared with the CPU, and how exact they
//! are.

use std::fs;
use std::process::Command;

use pagelock_tensor::{
    CapturedStep, Conv2dOptions, DType, Device, Error, Float32MatmulPrecision as Precision, Half, Kernels, Result,
    Tensor, autocast, set_float32_matmul_precision, with_kernels,
};

use crate::agreement::same;
use crate::common::{Gpu, devices, gpu, gpu_alone, software};
use crate::networks::{agree, largest, random};

/// Whether the GPU has both libraries. Prints what is missing.
pub(crate) fn has_libraries<Use>(gpu: &Gpu<Use>) -> bool {
    let Device::Cuda(cuda) = &**gpu else { unreachable!("it is a GPU") };
    let libraries = cuda.libraries();
    let there = libraries.blas.is_ok() && libraries.dnn.is_ok();
    if !there {
        eprintln!("SKIPPED: {libraries}");
    }
    there
}

#[test]
fn products_by_a_library_agree() {
    fn of(gpu: &Device, dtype: DType, bound: f64) {
        let shapes: [[&[usize]; 2]; 7] = [
            [&[64, 300], &[300, 10]],
            [&[650, 24], &[24, 661]],
            [&[5], &[5, 3]],
            [&[1, 1], &[1, 1]],
            [&[2, 70, 9], &[9, 67]],
            [&[4, 1, 50, 70], &[1, 3, 70, 20]], // batches without a common stride
            [&[3, 8, 40], &[3, 40, 16]],
        ];
        for [a, b] in shapes {
            agree(gpu, dtype, bound, &format!("{a:?} · {b:?}"), &[a, b], |x| x[0].matmul(&x[1]));
        }
        agree(gpu, dtype, bound, "transposed", &[&[40, 30], &[20, 40]], |x| x[0].t()?.matmul(&x[1].t()?));
        agree(gpu, dtype, bound, "cut", &[&[40, 33], &[50, 21]], |x| {
            x[0].narrow(1, 1, 31)?.matmul(&x[1].narrow(0, 3, 31)?.narrow(1, 2, 17)?)
        });
        agree(gpu, dtype, bound, "heads of attention, as views of one tensor", &[&[3, 17, 2, 4, 8]], |x| {
            let [q, k] = [x[0].select(2, 0)?.transpose(1, 2)?, x[0].select(2, 1)?.transpose(1, 2)?];
            q.matmul(&k.transpose(-2, -1)?)?.matmul(&k)
        });
        agree(gpu, dtype, bound, "of every second", &[&[40, 60], &[30, 20]], |x| {
            x[0].slice(1, 0..60, 2)?.contiguous()?.matmul(&x[1])
        });
    }
    let Some(gpu) = gpu().filter(has_libraries) else { return };
    with_kernels(Kernels::Library, || {
        of(&gpu, DType::F32, 2e-5);
        of(&gpu, DType::F64, 1e-13);
        of(&gpu, DType::F16, 2e-2);
        of(&gpu, DType::BF16, 0.15);
    });
}

#[test]
fn convolutions_by_a_library_agree() {
    fn of(gpu: &Device, dtype: DType, bound: f64) {
        let plain = Conv2dOptions::new();
        let uneven = Conv2dOptions { stride: [2, 1], padding: [1, 2], ..plain };
        let cases: [(&[usize], &[usize], Conv2dOptions); 7] = [
            (&[4, 16, 14, 14], &[32, 16, 3, 3], plain.padding(1)),
            (&[3, 32, 9, 11], &[16, 32, 3, 3], plain.padding(1).stride(2)),
            (&[2, 8, 12, 7], &[8, 8, 5, 5], uneven),
            (&[2, 64, 6, 6], &[128, 64, 1, 1], plain.stride(2)),
            (&[2, 3, 20, 20], &[16, 3, 7, 7], plain.stride(2).padding(3)),
            (&[2, 16, 10, 10], &[16, 16, 3, 3], plain.padding(2).dilation(2)),
            (&[2, 32, 8, 8], &[32, 8, 3, 3], plain.padding(1).groups(4)),
        ];
        for (image, weight, geometry) in cases {
            let name = format!("conv2d of {image:?} with {weight:?}, {geometry:?}");
            agree(gpu, dtype, bound, &name, &[image, weight, &weight[..1]], |x| {
                x[0].conv2d(&x[1], Some(&x[2]), geometry)
            });
            agree(gpu, dtype, bound, &name, &[image, weight], |x| x[0].conv2d(&x[1], None, geometry));
            agree(gpu, dtype, bound, &name, &[image, weight, &weight[..1]], |x| {
                x[0].conv2d_relu(&x[1], Some(&x[2]), geometry)
            });
        }
    }
    let Some(gpu) = gpu().filter(has_libraries) else { return };
    with_kernels(Kernels::Library, || {
        of(&gpu, DType::F32, 4e-5);
        of(&gpu, DType::F16, 2e-2);
        of(&gpu, DType::BF16, 0.15);
    });
}

#[test]
fn images_whose_channels_lie_together_give_such_images_and_the_same_numbers() {
    fn of(gpu: &Device, dtype: DType, bound: f64) {
        let plain = Conv2dOptions::new();
        let cases: [(&[usize], &[usize], Conv2dOptions); 4] = [
            (&[4, 16, 14, 14], &[32, 16, 3, 3], plain.padding(1)),
            (&[3, 32, 9, 11], &[16, 32, 3, 3], plain.padding(1).stride(2)),
            (&[2, 64, 6, 6], &[128, 64, 1, 1], plain.stride(2)),
            (&[2, 16, 8, 8], &[24, 16, 5, 5], plain.padding(2)),
        ];
        for (image, weight, geometry) in cases {
            let name = format!("channels last, {image:?} with {weight:?}");
            agree(gpu, dtype, bound, &name, &[image, weight, &weight[..1]], |x| {
                let y = x[0].channels_last()?.conv2d(&x[1], Some(&x[2]), geometry)?.relu()?;
                y.add(&x[0].channels_last()?.conv2d(&x[1].channels_last()?, Some(&x[2]), geometry)?)
            });
            let [image, weight] = [random(dtype, image, 1), random(dtype, weight, 2)].map(|x| x.to(gpu).unwrap());
            let (image, weight) = (image.channels_last().unwrap(), weight.set_requires_grad(true));
            let image = image.detach().set_requires_grad(true);
            let result = image.conv2d(&weight, None, geometry).unwrap();
            let after = result.relu().unwrap().mul(&result).unwrap();
            after.sum(..).unwrap().backward().unwrap();
            assert!(image.is_channels_last() && result.is_channels_last() && after.is_channels_last(), "{name}");
            let grad = weight.grad().unwrap();
            assert!(grad.is_contiguous(), "{name}: as optimizers want it");

            let turned = weight.detach().channels_last().unwrap().set_requires_grad(true);
            let same_result = image.conv2d(&turned, None, geometry).unwrap();
            same(&result, &same_result, 0.0, &format!("{name}, as the weight"));
            same_result.relu().unwrap().mul(&same_result).unwrap().sum(..).unwrap().backward().unwrap();
            same(&grad, &turned.grad().unwrap(), 0.0, &format!("{name}, the weight's gradient"));
            assert!(turned.grad().unwrap().is_channels_last(), "{name}: as the weight lies");
        }
    }
    let Some(gpu) = gpu().filter(has_libraries) else { return };
    with_kernels(Kernels::Library, || {
        of(&gpu, DType::F32, 4e-5);
        of(&gpu, DType::BF16, 0.15);
    });
}

#[test]
fn channels_last_is_an_order_in_memory_and_nothing_else() {
    for device in devices() {
        let x = random(DType::F32, &[2, 3, 4, 5], 1).to(&device).unwrap();
        let last = x.channels_last().unwrap();
        assert!(last.is_channels_last() && !x.is_channels_last() && !last.is_contiguous());
        let (sum, plain) = (last.add(&x).unwrap(), x.add(&x).unwrap());
        same(&plain, &sum, 0.0, "one of each order");
        let halved = last.mul_scalar(0.5).unwrap();
        same(&x.mul_scalar(0.5).unwrap(), &halved, 0.0, "a result in that order");
        assert!(halved.is_channels_last());
        let row = random(DType::F32, &[3, 1, 1], 2).to(&device).unwrap();
        same(&x.add(&row).unwrap(), &last.add(&row).unwrap(), 0.0, "with what is repeated");
        same(&x.sum([0, 2, 3]).unwrap(), &last.sum([0, 2, 3]).unwrap(), 1e-6, "summed");
    }
}

#[test]
fn a_measured_algorithm_agrees() {
    let Some(gpu) = gpu().filter(has_libraries) else { return };
    with_kernels(Kernels::Measured, || {
        let (image, weight): (&[usize], &[usize]) = (&[16, 64, 18, 18], &[64, 64, 3, 3]);
        let geometry = Conv2dOptions::new().padding(1);
        agree(&gpu, DType::F32, 1e-4, "measured", &[image, weight], |x| x[0].conv2d(&x[1], None, geometry));
        agree(&gpu, DType::BF16, 0.15, "measured", &[image, weight], |x| x[0].conv2d(&x[1], None, geometry));
    });
}

/// Two processes run the test above and share a folder for their choices.
#[test]
fn a_measured_algorithm_is_stored_and_chosen_again_by_another_process() {
    let Some(_gpu) = gpu().filter(has_libraries) else { return };
    let folder = tempfile::tempdir().unwrap();
    let stored_by_a_process = || {
        let this_program = std::env::current_exe().unwrap();
        let mut child = Command::new(this_program);
        child.args(["--exact", "libraries::a_measured_algorithm_agrees"]).env("PAGELOCK_PLAN_CACHE", folder.path());
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let files = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap());
        let mut files: Vec<_> =
            files.map(|file| (file.file_name(), file.metadata().unwrap().modified().unwrap())).collect();
        files.sort();
        files
    };

    let (first, second) = (stored_by_a_process(), stored_by_a_process());

    assert!(!first.is_empty(), "the first process stored nothing");
    assert_eq!(second, first, "the second process measured again");
}

/// The largest difference of two results, relative to the largest number; ∞ if a number is NaN.
fn apart(one: &Tensor, other: &Tensor) -> f64 {
    assert_eq!(one.dims(), other.dims());
    let pairs = one.to_vec::<f32>().unwrap().into_iter().zip(other.to_vec::<f32>().unwrap());
    let far = pairs.map(|(a, b)| f64::from((a - b).abs()));
    let most = far.fold(0.0, |most: f64, x| if x.is_nan() { f64::INFINITY } else { most.max(x) });
    most / largest(one)
}

#[test]
fn products_are_exact_until_a_program_chooses_otherwise() {
    let Some(gpu) = gpu_alone().filter(has_libraries) else { return };
    let (a, b) = (random(DType::F32, &[256, 512], 1), random(DType::F32, &[512, 256], 2));
    let (image, weight) = (random(DType::F32, &[8, 64, 16, 16], 3), random(DType::F32, &[64, 64, 3, 3], 4));
    let geometry = Conv2dOptions::new().padding(1);
    let on = |device: &Device| -> Result<[Tensor; 2]> {
        let product = a.to(device)?.matmul(&b.to(device)?)?;
        Ok([product, image.to(device)?.conv2d(&weight.to(device)?, None, geometry)?])
    };
    let exact = on(&Device::Cpu).unwrap();
    let errors = |precision| {
        set_float32_matmul_precision(precision);
        let found = with_kernels(Kernels::Library, || on(&gpu));
        set_float32_matmul_precision(Precision::Highest);
        let found = found.unwrap();
        [0, 1].map(|i| apart(&exact[i], &found[i]))
    };

    let [highest, high, medium] = [Precision::Highest, Precision::High, Precision::Medium].map(errors);

    assert!(highest.iter().all(|&error| error < 2e-6), "{highest:?}");
    assert!(high.iter().all(|&error| (2e-6..2e-3).contains(&error)), "ten bits: {high:?}");
    assert!((2e-6..2e-2).contains(&medium[0]), "seven bits, or ten: {medium:?}");
}

#[test]
fn a_captured_step_of_library_kernels_does_what_the_step_does() {
    let Some(gpu) = gpu().filter(has_libraries) else { return };
    let image = |i| random(DType::F32, &[8, 16, 8, 8], i);
    let train = |w: &Tensor, x: &Tensor| -> Result<Tensor> {
        let y = x.conv2d(&w.narrow(0, 0, 16 * 144)?.reshape([16, 16, 3, 3])?, None, Conv2dOptions::new().padding(1))?;
        let loss = y.reshape([8, 1024])?.matmul(&w.narrow(0, 0, 4096)?.reshape([1024, 4])?)?.pow(2.0)?.mean(..)?;
        loss.backward()?;
        pagelock_tensor::no_grad(|| w.add_scaled_(&w.grad().unwrap(), -1e-4))?;
        w.zero_grad();
        Ok(loss)
    };
    let start = || random(DType::F32, &[4096], 9).mul_scalar(0.1).unwrap().to(&gpu).unwrap().set_requires_grad(true);
    let (eager, captured) = (start(), start());
    let mut step = CapturedStep::new(&gpu);
    with_kernels(Kernels::Library, || {
        for i in 0..8 {
            let expected = train(&eager, &image(i).to(&gpu).unwrap()).unwrap().item::<f32>().unwrap();
            let found = step.run(image(i), |x| train(&captured, x)).unwrap().item::<f32>().unwrap();
            assert_eq!(found, expected, "step {i}");
        }
    });
    assert!(step.is_captured(&image(0)));
    same(&eager.detach(), &captured.detach(), 0.0, "the weight");
}

#[test]
fn autocast_rounds_as_its_type_does_here_and_there() {
    let (a, b) = (random(DType::F32, &[48, 96], 1), random(DType::F32, &[64, 96], 2));
    let (image, weight) = (random(DType::F32, &[4, 16, 10, 10], 3), random(DType::F32, &[16, 16, 3, 3], 4));
    let geometry = Conv2dOptions::new().padding(1);
    let on = |device: &Device, half: Half| -> Result<Vec<Tensor>> {
        let inputs = [&a, &b, &image, &weight].map(|x| Ok::<_, Error>(x.to(device)?.set_requires_grad(true)));
        let inputs = inputs.into_iter().collect::<Result<Vec<_>>>()?;
        let [a, b, image, weight] = &inputs[..] else { unreachable!("there are four") };
        let (product, result) =
            autocast(half, || Ok::<_, Error>((a.matmul(&b.t()?)?, image.conv2d(weight, None, geometry)?)))?;
        product.sum(..)?.add(&result.mean(..)?)?.backward()?;
        let grads = inputs.iter().filter_map(Tensor::grad);
        Ok([product.detach(), result.detach()].into_iter().chain(grads).collect())
    };
    let rounded = |dtype| a.to_dtype(dtype).unwrap().matmul(&b.to_dtype(dtype).unwrap().t().unwrap()).unwrap();
    for (half, expected, bound) in [(Half::BF16, rounded(DType::BF16), 0.02), (Half::F16, rounded(DType::F16), 0.003)] {
        let here = on(&Device::Cpu, half).unwrap();
        assert_eq!(here.len(), 6);
        assert!(here[..2].iter().all(|result| result.dtype() == expected.dtype()), "results are half");
        assert!(here[2..].iter().all(|grad| grad.dtype() == DType::F32), "gradients have the operands' precision");
        same(&expected, &here[0], 0.0, "the product of rounded operands");
        let Some(gpu) = gpu() else { continue };
        for (i, (here, there)) in here.iter().zip(&on(&gpu, half).unwrap()).enumerate() {
            same(here, there, bound * largest(here), &format!("output or gradient {i} in {half:?}"));
        }
    }
}

#[test]
fn a_library_that_is_asked_for_and_missing_is_named_with_operation_and_sizes() {
    let device = software();
    let x = Tensor::on(&device).zeros([8, 16]).unwrap();
    let image = Tensor::on(&device).zeros([2, 3, 8, 8]).unwrap();
    let weight = Tensor::on(&device).zeros([4, 3, 3, 3]).unwrap();

    let (product, result) = with_kernels(Kernels::Library, || {
        (x.matmul(&x.t().unwrap()).unwrap_err(), image.conv2d(&weight, None, Conv2dOptions::new()).unwrap_err())
    });

    let [product, result] = [product, result].map(|error| error.to_string());
    assert!(product.starts_with("matmul of [8, 16] · [16, 8] of float32: "), "{product}");
    assert!(product.ends_with("; or compute it with `Kernels::Fastest`"), "{product}");
    let expected = "conv2d of an image [2, 3, 8, 8] and a weight [4, 3, 3, 3] of float32: ";
    assert!(result.starts_with(expected), "{result}");
}
