//! The operations of networks on a GPU, compared with the CPU: products, convolutions, pooling, indices, losses,
//! random numbers.

use pagelock_tensor::autograd::Backward;
use pagelock_tensor::{
    BatchNormOptions, Bool, Conv2dOptions, DType, Device, Error, Float, Generator, Int, Kind, Pool2dOptions, Reduction,
    Result, Tensor, add_correct_,
};

use crate::agreement::same;
use crate::common::{FLOATS, INTS, Values, converted, gpu, gpu_alone};

/// Random numbers that are the same for each device.
pub(crate) fn random(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    random_of(dtype, shape, seed)
}

/// [`random`] for any kind.
fn random_of<K: Kind>(dtype: DType, shape: &[usize], seed: u64) -> Tensor<K> {
    converted(&Tensor::randn_with(shape, &Generator::new(seed)).unwrap().mul_scalar(2.0).unwrap(), dtype)
}

/// Checks that the result of `f` and the gradients of all inputs agree on both devices within `bound`, and that a
/// second run on the GPU has the same bits.
pub(crate) fn agree(
    gpu: &Device,
    dtype: DType,
    bound: f64,
    name: &str,
    inputs: &[&[usize]],
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
) {
    let on = |device: &Device| -> Result<Vec<Tensor>> {
        let inputs = inputs.iter().zip(1..).map(|(shape, seed)| random(dtype, shape, seed).to(device));
        let inputs: Vec<_> = inputs.map(|x| x.map(|x| x.set_requires_grad(true))).collect::<Result<_>>()?;
        let out = f(&inputs)?;
        let weights = random(dtype, out.shape(), 99).to(device)?;
        out.mul(&weights)?.sum(..)?.backward()?;
        Ok([out.detach()].into_iter().chain(inputs.iter().filter_map(Tensor::grad)).collect())
    };
    let (here, there, again) = (on(&Device::Cpu).unwrap(), on(gpu).unwrap(), on(gpu).unwrap());
    assert_eq!(there.len(), 1 + inputs.len(), "{name}");
    for (i, ((here, there), again)) in here.iter().zip(&there).zip(&again).enumerate() {
        let name = format!("{name} in {dtype}, output or gradient {i}");
        same(here, there, bound * largest(here), &name);
        same(there, again, 0.0, &format!("{name}, again"));
    }
}

/// The largest magnitude, at least 1: if terms of a sum cancel, its rounding error does not shrink with it.
pub(crate) fn largest(x: &Tensor) -> f64 {
    x.to_vec::<f64>().unwrap().into_iter().fold(1.0, |largest, x| largest.max(x.abs()))
}

/// Calls a function for each float type, with a bound for sums of some hundred products of numbers around 2, relative
/// to the largest number.
macro_rules! for_floats {
    ($gpu:expr, $function:ident) => {
        $function($gpu, DType::F32, 2e-5);
        $function($gpu, DType::F64, 1e-13);
        $function($gpu, DType::F16, 2e-2);
        $function($gpu, DType::BF16, 0.15);
    };
}

#[test]
fn matrix_products_agree() {
    fn of(gpu: &Device, dtype: DType, bound: f64) {
        let shapes: [[&[usize]; 2]; 8] = [
            [&[64, 300], &[300, 10]],
            [&[3, 1, 5, 7], &[4, 7, 2]],
            [&[650, 20], &[20, 660]],
            [&[5], &[5, 3]],
            [&[2, 3], &[3]],
            [&[1, 1], &[1, 1]],
            [&[2, 70, 9], &[9, 67]],
            [&[2, 3, 0], &[0, 4]],
        ];
        for [a, b] in shapes {
            agree(gpu, dtype, bound, &format!("{a:?} · {b:?}"), &[a, b], |x| x[0].matmul(&x[1]));
        }
        agree(gpu, dtype, bound, "transposed", &[&[40, 30], &[20, 40]], |x| x[0].t()?.matmul(&x[1].t()?));
    }
    fn of_integers(gpu: &Device, dtype: DType) {
        let (a, b) = (random_of::<Int>(dtype, &[7, 300], 1), random_of(dtype, &[300, 9], 2));
        let there = a.to(gpu).unwrap().matmul(&b.to(gpu).unwrap()).unwrap();
        same(&a.matmul(&b).unwrap(), &there, 0.0, "a product of integers");
    }
    let Some(gpu) = gpu() else { return };
    for_floats!(&gpu, of);
    INTS.iter().for_each(|&dtype| of_integers(&gpu, dtype));
}

#[test]
fn convolutions_agree_in_every_geometry() {
    fn of(gpu: &Device, dtype: DType, bound: f64) {
        let plain = Conv2dOptions::new();
        let halving = plain.stride(2).padding(1);
        let uneven = Conv2dOptions { stride: [3, 2], padding: [2, 2], dilation: [1, 2], groups: 4 };
        let cases: [(&[usize], &[usize], Conv2dOptions); 13] = [
            (&[64, 1, 28, 28], &[16, 1, 3, 3], halving),
            (&[8, 16, 14, 14], &[16, 16, 3, 3], halving),
            (&[8, 16, 7, 7], &[10, 16, 3, 3], halving),
            (&[2, 1, 5, 6], &[3, 1, 3, 3], plain),
            (&[2, 4, 10, 7], &[8, 1, 5, 5], uneven),
            (&[1, 3, 12, 12], &[5, 3, 7, 1], Conv2dOptions { padding: [3, 0], ..plain }),
            (&[1, 2, 6, 6], &[2, 2, 1, 1], plain.stride(3)),
            (&[1, 40, 8, 9], &[33, 40, 3, 3], plain.padding(1).dilation(2)),
            (&[2, 2, 4, 4], &[4, 1, 2, 2], plain.stride(5).padding(3).dilation(3).groups(2)),
            (&[1, 1, 30, 30], &[1, 1, 20, 21], Conv2dOptions { padding: [5, 4], ..plain }),
            (&[5, 8, 6, 6], &[8, 1, 3, 3], Conv2dOptions { dilation: [2, 3], ..plain.stride(4).padding(4).groups(8) }),
            (&[2, 1, 160, 150], &[2, 1, 3, 3], halving), // too large for `small.cu`
            (&[1, 2, 9, 9], &[2, 2, 3, 3], plain.stride(6).padding(4)),
        ];
        for (image, weight, geometry) in cases {
            let name = format!("conv2d of {image:?} with {weight:?}, {geometry:?}");
            agree(gpu, dtype, bound, &name, &[image, weight, &weight[..1]], |x| {
                x[0].conv2d(&x[1], Some(&x[2]), geometry)
            });
            agree(gpu, dtype, bound, &name, &[image, weight], |x| {
                x[0].transpose(2, 3)?.contiguous()?.transpose(2, 3)?.conv2d(&x[1], None, geometry)
            });
        }
    }
    let Some(gpu) = gpu() else { return };
    for_floats!(&gpu, of);
}

#[test]
fn a_convolution_with_relu_is_one_after_the_other() {
    fn of(gpu: &Device, dtype: DType, bound: f64) {
        let plain = Conv2dOptions::new();
        let halving = plain.stride(2).padding(1);
        let cases: [(&[usize], &[usize], Conv2dOptions); 7] = [
            (&[64, 1, 28, 28], &[16, 1, 3, 3], halving),
            (&[19, 16, 14, 14], &[16, 16, 3, 3], halving),
            (&[8, 16, 7, 7], &[10, 16, 3, 3], halving),
            (&[3, 6, 12, 12], &[7, 6, 5, 5], plain),
            (&[5, 3, 9, 11], &[5, 3, 3, 2], Conv2dOptions { stride: [2, 1], padding: [1, 0], ..plain }),
            (&[1, 2, 4, 5], &[3, 2, 1, 4], Conv2dOptions { stride: [3, 4], padding: [0, 3], ..plain }),
            (&[2, 1, 160, 150], &[2, 1, 3, 3], halving), // too large for `small.cu`
        ];
        for (image, weight, geometry) in cases {
            let on = |fused: bool, of_image: bool| -> Result<Vec<Tensor>> {
                let input = |shape: &[usize], seed, needed| {
                    Ok::<_, Error>(random(dtype, shape, seed).to(gpu)?.set_requires_grad(needed))
                };
                let inputs = [input(image, 1, of_image)?, input(weight, 2, true)?, input(&weight[..1], 3, true)?];
                let [x, w, b] = &inputs;
                let out = match fused {
                    true => x.conv2d_relu(w, Some(b), geometry)?,
                    false => x.conv2d(w, Some(b), geometry)?.relu()?,
                };
                out.mul(&random(dtype, out.shape(), 99).to(gpu)?)?.sum(..)?.backward()?;
                Ok([out.detach()].into_iter().chain(inputs.iter().filter_map(Tensor::grad)).collect())
            };
            for of_image in [false, true] {
                let (one, two) = (on(true, of_image).unwrap(), on(false, of_image).unwrap());
                assert_eq!(one.len(), if of_image { 4 } else { 3 });
                for (i, (one, two)) in one.iter().zip(&two).enumerate() {
                    let name = format!("{image:?} with {weight:?} in {dtype}, output or gradient {i}");
                    same(two, one, if i == 0 { 0.0 } else { bound }, &name);
                }
            }
        }
    }
    let Some(gpu) = gpu() else { return };
    for_floats!(&gpu, of);
}

#[test]
fn pooling_agrees() {
    fn of(gpu: &Device, dtype: DType, bound: f64) {
        let uneven = Pool2dOptions { kernel: [3, 2], stride: [2, 1], padding: [1, 1] };
        let large = Pool2dOptions { kernel: [17, 16], stride: [3, 5], padding: [8, 8] };
        for geometry in [Pool2dOptions::new(4), uneven, large, Pool2dOptions::new(2).stride(3)] {
            let name = format!("{geometry:?}");
            let image: &[usize] = &[2, 3, 20, 21];
            agree(gpu, dtype, 0.0, &name, &[image], |x| x[0].max_pool2d(geometry)?.mul_scalar(1.0));
            agree(gpu, dtype, bound, &name, &[image], |x| x[0].avg_pool2d(geometry));
        }
        for size in [[1, 1], [3, 4], [9, 30]] {
            agree(gpu, dtype, bound, &format!("to {size:?}"), &[&[2, 2, 7, 9]], |x| x[0].adaptive_avg_pool2d(size));
        }
    }
    let Some(gpu) = gpu() else { return };
    // Where windows overlap, many gradients are added in one pixel, in the same order on both devices.
    for_floats!(&gpu, of);
}

#[test]
fn softmax_and_losses_agree() {
    fn of(gpu: &Device, dtype: DType, bound: f64) {
        for shape in [&[64, 10][..], &[3, 1], &[5, 33], &[7, 1000], &[2, 5000], &[1, 60_000], &[4, 3, 5]] {
            agree(gpu, dtype, bound, &format!("softmax of {shape:?}"), &[shape], |x| x[0].softmax(1));
            agree(gpu, dtype, bound, &format!("log_softmax of {shape:?}"), &[shape], |x| x[0].log_softmax(1));
        }
        for (reduction, shape) in [
            (Reduction::Mean, &[64, 10][..]),
            (Reduction::Sum, &[5, 100]),
            (Reduction::None, &[300, 7]),
            (Reduction::Mean, &[3000, 3]),
            (Reduction::Mean, &[2, 3, 4]),
        ] {
            let labels: Vec<i64> =
                (0..shape.iter().product::<usize>() / shape[1]).map(|i| (i * 7 % shape[1]) as i64).collect();
            let without: Vec<usize> = [shape[0]].into_iter().chain(shape[2..].iter().copied()).collect();
            let labels = Tensor::from_vec(labels, &without[..]).unwrap();
            let name = format!("{reduction:?} of {shape:?}");
            let bound = bound * if reduction == Reduction::Sum { 20.0 } else { 2.0 };
            agree(gpu, dtype, bound, &name, &[shape], |x| x[0].cross_entropy(&labels.to(&x[0].device())?, reduction));
            agree(gpu, dtype, bound, &name, &[shape], |x| x[0].nll_loss(&labels.to(&x[0].device())?, reduction));
        }
    }
    let Some(gpu) = gpu() else { return };
    for_floats!(&gpu, of);
}

/// A GPU computes the gradient of a small batch along with the loss, for a backward that begins at the loss. In the
/// middle of a graph, the gradient is computed later.
#[test]
fn a_loss_that_backward_begins_with_has_the_gradient_of_one_in_the_middle() {
    fn of(gpu: &Device, dtype: DType, bound: f64) {
        for (reduction, [batch, classes]) in [
            (Reduction::Mean, [64, 10]),
            (Reduction::Sum, [5, 100]),
            (Reduction::Mean, [1, 3000]),
            (Reduction::Mean, [700, 100]),
            (Reduction::Sum, [2, 40_000]),
        ] {
            let labels: Vec<i64> = (0..batch).map(|i| (i * 7 % classes) as i64).collect();
            let labels = Tensor::from_vec(labels, [batch]).unwrap();
            let of_end = |device: &Device| -> Result<[Tensor; 3]> {
                let x = random(dtype, &[batch, classes], 1).to(device)?.set_requires_grad(true);
                let loss = x.cross_entropy(&labels.to(device)?, reduction)?;
                loss.backward_with(Backward { retain_graph: true, ..Backward::default() })?;
                let first = x.grad().unwrap();
                let kept = first.mul_scalar(1.0)?;
                x.zero_grad();
                first.zero_()?; // the owner of a gradient may change it
                loss.backward()?;
                Ok([loss.detach(), kept, x.grad().unwrap()])
            };
            let [here, there] = [&Device::Cpu, gpu].map(|device| of_end(device).unwrap());
            let name = format!("{reduction:?} of {batch} x {classes} in {dtype}");
            for (here, there) in here.iter().zip(&there) {
                same(here, there, bound * largest(here), &name);
            }
            same(&there[1], &there[2], 0.0, &format!("{name}, made along and later"));
            let x = random(dtype, &[batch, classes], 1).to(gpu).unwrap().set_requires_grad(true);
            let loss = x.cross_entropy(&labels.to(gpu).unwrap(), reduction).unwrap();
            loss.reshape([1]).unwrap().sum(..).unwrap().backward().unwrap();
            same(&there[1], &x.grad().unwrap(), 0.0, &format!("{name}, in the middle"));
        }
    }
    let Some(gpu) = gpu() else { return };
    for_floats!(&gpu, of);
}

#[test]
fn indexing_agrees_and_adds_up_in_the_same_order() {
    fn of<K: Values>(gpu: &Device, dtype: DType) {
        let on = |device: &Device| -> Result<Vec<Tensor<K>>> {
            let x = random_of::<K>(dtype, &[6, 70, 5], 1).to(device)?;
            let indices = |n: usize, size: usize| (0..n).map(|i| (i * i * 7 % size) as i64).collect::<Vec<_>>();
            let mut out = Vec::new();
            for (dim, size) in [6, 70, 5].into_iter().enumerate() {
                let index = Tensor::from_vec(indices(90, size), 90)?.to(device)?;
                out.push(x.index_select(dim as isize, &index)?);
                out.push(x.transpose(0, 2)?.index_select(2 - dim as isize, &index)?);
                let mut shape = [4, 60, 3];
                shape[dim] = 80;
                let index = Tensor::from_vec(indices(shape.iter().product(), size), shape)?.to(device)?;
                out.push(x.gather(dim as isize, &index)?);
            }
            Ok(out)
        };
        for (cpu, gpu) in on(&Device::Cpu).unwrap().iter().zip(&on(gpu).unwrap()) {
            same(cpu, gpu, 0.0, &format!("an index of {dtype}"));
        }
    }
    fn gradients(gpu: &Device, dtype: DType) {
        let indices = |n: usize, size: usize| (0..n).map(|i| (i * i * 7 % size) as i64).collect::<Vec<_>>();
        for dim in 0..3 {
            let entries = Tensor::from_vec(indices(90, 5), 90).unwrap();
            let mut shape = [4, 60, 3];
            shape[dim] = 80;
            let elements = Tensor::from_vec(indices(shape.iter().product(), 5), shape).unwrap();
            agree(gpu, dtype, 0.0, "index_select", &[&[6, 70, 5]], |x| {
                x[0].index_select(dim as isize, &entries.to(&x[0].device())?)
            });
            agree(gpu, dtype, 0.0, "gather", &[&[6, 70, 5]], |x| {
                x[0].gather(dim as isize, &elements.to(&x[0].device())?)
            });
        }
        long_entries(gpu, dtype);
    }
    /// Entries of whole packs, of packs for part of a warp, without packs, and at addresses that are not aligned to
    /// packs. Many entries are added to one place, and some lines have their sums in shared memory.
    fn long_entries(gpu: &Device, dtype: DType) {
        let indices = |shape: &[usize], size: usize| {
            let numbers: Vec<i64> = (0..shape.iter().product::<usize>()).map(|i| (i * i * 7 % size) as i64).collect();
            Tensor::from_vec(numbers, shape).unwrap()
        };
        let entries = indices(&[600], 40);
        for shape in [[40, 768], [40, 264], [40, 65], [40, 2]] {
            agree(gpu, dtype, 0.0, "index_select of rows", &[&shape], |x| {
                x[0].index_select(0, &entries.to(&x[0].device())?)
            });
            agree(gpu, dtype, 0.0, "index_select of shifted rows", &[&[41 * shape[1]]], |x| {
                let rows = x[0].narrow(0, 1, 40 * shape[1])?.reshape(shape)?;
                rows.index_select(0, &entries.to(&x[0].device())?)
            });
        }
        agree(gpu, dtype, 0.0, "index_select in the middle", &[&[3, 40, 132]], |x| {
            x[0].index_select(1, &entries.to(&x[0].device())?)
        });
        let elements = indices(&[5, 3000], 700);
        agree(gpu, dtype, 0.0, "gather of long lines", &[&[5, 700]], |x| x[0].gather(1, &elements.to(&x[0].device())?));
    }
    let Some(gpu) = gpu() else { return };
    FLOATS.iter().for_each(|&dtype| of::<Float>(&gpu, dtype));
    INTS.iter().for_each(|&dtype| of::<Int>(&gpu, dtype));
    of::<Bool>(&gpu, DType::Bool);
    gradients(&gpu, DType::F32);
    gradients(&gpu, DType::F64);
    gradients(&gpu, DType::F16);
    gradients(&gpu, DType::BF16);
}

#[test]
fn an_index_out_of_range_is_an_error_when_the_host_reads() {
    let Some(gpu) = gpu_alone() else { return };
    let x = Tensor::ones([3, 4]).unwrap().to(&gpu).unwrap();
    let index = Tensor::from_slice(&[0_i64, 3, -1], 3).unwrap().to(&gpu).unwrap();
    let labels = Tensor::from_slice(&[0_i64, 4, 1], 3).unwrap().to(&gpu).unwrap();

    let selected = x.index_select(0, &index).unwrap();
    let error = selected.to_vec::<f32>().unwrap_err();
    assert!(matches!(error, Error::IndexOutOfRange { op: "index_select", index: 3 | -1, dim: 0, .. }), "{error}");
    assert_eq!(selected.sum(..).unwrap().to_vec::<f32>().unwrap().len(), 1, "an error is said once");

    x.cross_entropy(&labels, Reduction::Mean).unwrap();
    let error = gpu.synchronize().unwrap_err();
    assert!(matches!(error, Error::IndexOutOfRange { op: "cross_entropy", index: 4, dim: 1, .. }), "{error}");
    gpu.synchronize().unwrap();
}

#[test]
fn random_numbers_and_what_dropout_keeps_have_the_same_bits() {
    fn of(gpu: &Device, dtype: DType) {
        for n in [1, 63, 64, 1_000, 100_003] {
            let on = |device: &Device| -> Result<[Tensor; 4]> {
                let generator = Generator::new(7).stream(u64::MAX - 5);
                generator.set_position((1 << 32) - 100);
                let on = || Tensor::on(device).of(dtype);
                let (uniform, normal) = (on().rand_with([n], &generator)?, on().randn_with([n], &generator)?);
                let x = uniform.clone().set_requires_grad(true);
                let dropped = x.dropout(0.3, &generator)?;
                dropped.sum(..)?.backward()?;
                Ok([uniform, normal, dropped.detach(), x.grad().unwrap()])
            };
            for (i, (cpu, gpu)) in on(&Device::Cpu).unwrap().iter().zip(&on(gpu).unwrap()).enumerate() {
                same(cpu, gpu, 0.0, &format!("{n} random numbers of {dtype}, {i}"));
            }
        }
    }
    let Some(gpu) = gpu() else { return };
    FLOATS.iter().for_each(|&dtype| of(&gpu, dtype));
}

/// 100 steps of the walkthrough's convolutional network, on random numbers instead of images.
#[test]
fn a_network_learns_the_same() {
    let Some(gpu) = gpu() else { return };
    let train = |device: &Device| -> Result<Vec<Tensor>> {
        let shapes: [&[usize]; 6] = [&[16, 1, 3, 3], &[16], &[16, 16, 3, 3], &[16], &[10, 16, 3, 3], &[10]];
        let parameters =
            shapes.iter().zip(1..).map(|(shape, seed)| random(DType::F32, shape, seed).mul_scalar(0.1)?.to(device));
        let p: Vec<Tensor> = parameters.map(|p| p.map(|p| p.set_requires_grad(true))).collect::<Result<_>>()?;
        let halving = Conv2dOptions::new().stride(2).padding(1);
        let labels: Vec<i64> = (0..64).map(|i| i % 10).collect();
        let (images, labels) =
            (random(DType::F32, &[64, 1, 28, 28], 8).to(device)?, Tensor::from_vec(labels, 64)?.to(device)?);
        for _ in 0..100 {
            let x = images.conv2d(&p[0], Some(&p[1]), halving)?.relu()?;
            let x = x.conv2d(&p[2], Some(&p[3]), halving)?.relu()?;
            let x = x.conv2d(&p[4], Some(&p[5]), halving)?.relu()?.avg_pool2d(Pool2dOptions::new(4))?;
            x.reshape([64, 10])?.cross_entropy(&labels, Reduction::Mean)?.backward()?;
            pagelock_tensor::no_grad(|| p.iter().try_for_each(|p| p.add_scaled_(&p.grad().unwrap(), -0.05)))?;
            p.iter().for_each(Tensor::zero_grad);
        }
        Ok(p.iter().map(Tensor::detach).collect())
    };
    for (cpu, gpu) in train(&Device::Cpu).unwrap().iter().zip(&train(&gpu).unwrap()) {
        same(cpu, gpu, 1e-3, "a parameter after 100 steps");
    }
}

/// Rows for part of a warp, for a warp and for several warps, rows that fit in registers and rows that do not, and
/// rows that are not whole packs. Columns that a thread keeps in registers, and longer ones.
#[test]
fn layer_norms_and_softmaxes_agree() {
    fn of(gpu: &Device, dtype: DType, bound: f64) {
        for (rows, n) in [(5, 1), (70, 10), (3, 64), (9, 257), (6, 1000), (3, 8192), (2, 40_000)] {
            let shape = [rows, n];
            agree(gpu, dtype, bound, &format!("softmax {shape:?}"), &[&shape], |x| x[0].softmax(1));
            agree(gpu, dtype, bound, &format!("log_softmax {shape:?}"), &[&shape], |x| x[0].log_softmax(1));
            if n == 1 {
                continue; // a normalized row of one number is always 0
            }
            let name = format!("layer_norm {shape:?}");
            agree(gpu, dtype, bound, &name, &[&shape, &[n], &[n]], |x| {
                x[0].layer_norm(n, Some(&x[1]), Some(&x[2]), 1e-5)
            });
            agree(gpu, dtype, bound, &name, &[&shape], |x| x[0].layer_norm(n, None, None, 1e-5));
            let name = format!("rms_norm {shape:?}");
            agree(gpu, dtype, bound, &name, &[&shape, &[n]], |x| x[0].rms_norm(n, Some(&x[1]), None));
            agree(gpu, dtype, bound, &name, &[&shape], |x| x[0].rms_norm(n, None, Some(1e-5)));
        }
        for shape in [[5, 21, 40], [3, 64, 7], [2, 100, 9000]] {
            agree(gpu, dtype, bound, &format!("softmax of columns {shape:?}"), &[&shape], |x| x[0].softmax(1));
            agree(gpu, dtype, bound, &format!("log_softmax of columns {shape:?}"), &[&shape], |x| x[0].log_softmax(1));
        }
        agree(gpu, dtype, bound, "layer_norm without alignment", &[&[6, 65], &[64]], |x| {
            x[0].narrow(1, 1, 64)?.contiguous()?.layer_norm(64, Some(&x[1]), None, 1e-5)
        });
        agree(gpu, dtype, bound, "layer_norm of many rows", &[&[5000, 40], &[40], &[40]], |x| {
            x[0].layer_norm(40, Some(&x[1]), Some(&x[2]), 1e-5)
        });
        // A block sums the gradient of the weight over several rows. In the second case, only the weight has a
        // gradient.
        for n in [40, 300] {
            agree(gpu, dtype, bound, "rms_norm of many rows", &[&[5000, n], &[n]], |x| {
                x[0].rms_norm(n, Some(&x[1]), None)
            });
            agree(gpu, dtype, bound, "rms_norm of constants", &[&[n]], |x| {
                let rows = random(dtype, &[5000, n], 9).to(&x[0].device())?;
                rows.rms_norm(n, Some(&x[0]), None)
            });
        }
    }
    let Some(gpu) = gpu() else { return };
    for_floats!(&gpu, of);
}

/// Statistics of each precision, with inputs of each precision.
#[test]
fn running_statistics_of_any_precision_move_as_on_the_cpu() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    for (dtype, of_running, momentum) in
        FLOATS.iter().flat_map(|x| FLOATS.iter().flat_map(move |y| [(*x, *y, 0.1), (*x, *y, 0.75)]))
    {
        let moved = |device: &Device| -> Result<[Vec<f64>; 2]> {
            let x = random(dtype, &[40, 300, 3], 1).to(device)?;
            let on = || Tensor::on(device).of(of_running);
            let (mean, variance) = (on().full([300], 0.5)?, on().ones([300])?);
            let options = BatchNormOptions { momentum, ..Default::default() };
            x.batch_norm(Some([&mean, &variance]), None, None, options)?;
            Ok([mean.to_vec()?, variance.to_vec()?])
        };
        let unit = if [DType::F16, DType::BF16].contains(&of_running) { 0.01 } else { 1e-5 };
        for (here, there) in moved(&Device::Cpu)?.iter().flatten().zip(moved(&gpu)?.iter().flatten()) {
            assert!((here - there).abs() <= unit * here.abs().max(0.1), "{of_running} of {dtype}: {there}, not {here}");
        }
    }
    Ok(())
}

#[test]
fn right_answers_are_counted_as_on_the_cpu() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    for (n, classes, dtype) in
        [(1, 1, DType::F32), (64, 10, DType::BF16), (1000, 33, DType::F16), (77, 700, DType::F64), (0, 4, DType::F32)]
    {
        // Rounded, so that many scores are equal; some are NaN.
        let scores = random(DType::F32, &[n, classes], 3).round()?;
        let scores = scores.where_cond(&scores.lt_scalar(4.0)?, &scores.full_like(f64::NAN)?)?.to_dtype(dtype)?;
        let labels = Tensor::arange(0, n as i64, 1)?.remainder_scalar(classes as i64 + 1)?; // one label is no class
        let found = |device: &Device| -> Result<[i64; 2]> {
            let (correct, total) = (Tensor::on(device).full((), 5)?, Tensor::on(device).full([1], 7)?);
            let (scores, labels) = (scores.to(device)?, labels.to(device)?);
            add_correct_(&correct, &total, &scores, &labels)?;
            if n > 0 && classes > 1 {
                add_correct_(&correct, &total, &scores.t()?.contiguous()?.t()?, &labels)?;
            }
            Ok([correct.item()?, total.item()?])
        };
        assert_eq!(found(&Device::Cpu)?, found(&gpu)?, "{n} rows of {classes}");
    }
    Ok(())
}

/// Planes and rows of channels, one or many channels in a block, and channels that are not whole packs.
#[test]
fn batch_norms_agree() {
    fn of(gpu: &Device, dtype: DType, bound: f64) {
        let shapes: [&[usize]; 7] =
            [&[4, 3, 5, 7], &[8, 16, 8, 8], &[64, 5, 4, 4], &[70, 33], &[500, 64], &[3, 2, 100, 100], &[2000, 3]];
        for shape in shapes {
            let inputs = [shape, &[shape[1]], &[shape[1]]];
            for training in [true, false] {
                let options = BatchNormOptions { training, ..Default::default() };
                let run = |x: &[Tensor], last: bool| {
                    let device = x[0].device();
                    let mean = random(dtype, &[shape[1]], 7).to(&device)?;
                    let variance = random(dtype, &[shape[1]], 8).abs()?.add_scalar(1.0)?.to(&device)?;
                    let image = match last {
                        true => x[0].permute([0, 2, 3, 1])?.contiguous()?.permute([0, 3, 1, 2])?,
                        false => x[0].clone(),
                    };
                    // Without relu, whose gradient jumps where results are near 0.
                    let y = image.batch_norm(Some([&mean, &variance]), Some(&x[1]), Some(&x[2]), options)?;
                    y.add(&mean.add(&variance)?.mean(..)?)
                };
                let name = format!("batch_norm {shape:?}, training {training}");
                agree(gpu, dtype, bound, &name, &inputs, |x| run(x, false));
                if shape.len() == 4 {
                    agree(gpu, dtype, bound, &format!("{name}, channels last"), &inputs, |x| run(x, true));
                }
            }
        }
        // With statistics that keep signs, since relu's gradient jumps where results are 0.
        agree(gpu, dtype, bound, "batch_norm_relu", &[&[4, 3, 8, 8]], |x| {
            let zeros = x[0].detach().sum([0, 2, 3])?.zeros_like()?;
            let options = BatchNormOptions { training: false, ..Default::default() };
            x[0].batch_norm_relu(Some([&zeros, &zeros.ones_like()?]), None, None, options)
        });
    }
    let Some(gpu) = gpu() else { return };
    for_floats!(&gpu, of);
}

#[test]
fn rows_that_begin_with_masked_scores_agree() {
    let Some(gpu) = gpu() else { return };
    for (classes, masked) in [(700, 600), (100_000, 90_000)] {
        let scores = random(DType::F32, &[40, classes], 1);
        let is_masked = Tensor::<Int>::arange(0, classes as i64, 1).unwrap().lt_scalar(masked).unwrap();
        let scores = scores.masked_fill(&is_masked, f64::NEG_INFINITY).unwrap();
        let labels = Tensor::<Int>::full([40], classes as i64 - 1).unwrap();
        let on = |device: &Device| -> Result<[Tensor; 4]> {
            let x = scores.to(device)?.set_requires_grad(true);
            let loss = x.cross_entropy(&labels.to(device)?, Reduction::None)?;
            loss.sum(..)?.backward()?;
            Ok([loss.detach(), x.grad().unwrap(), x.detach().logsumexp(1)?, x.detach().log_softmax(1)?])
        };
        let [cpu, found] = [on(&Device::Cpu).unwrap(), on(&gpu).unwrap()];
        assert!(cpu[0].isfinite().unwrap().all(..).unwrap().item::<bool>().unwrap());
        for (cpu, found) in cpu.iter().zip(&found) {
            same(cpu, found, 1e-5, &format!("{masked} of {classes} classes are masked"));
        }
    }
}
