//! Operations that a GPU computes in `f32` from halves without converting them first, compared with the CPU, which
//! converts.

use pagelock_tensor::{DType, Device, Generator, Half, Reduction, Result, Tensor, autocast};

use crate::agreement::same;
use crate::common::{compiler, gpu};
use crate::networks::{agree, largest, random};

const HALVES: [(Half, DType); 2] = [(Half::BF16, DType::BF16), (Half::F16, DType::F16)];
/// Lengths of rows that part of a warp keeps in registers, that a block keeps, and that are too long to be kept.
const LENGTHS: [usize; 3] = [6, 1000, 40_000];

/// A value in `f32` and the gradient of an input in half precision, under autocast.
fn of_half(
    device: &Device,
    half: Half,
    shape: [usize; 2],
    f: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<[Tensor; 2]> {
    let dtype = HALVES[usize::from(half == Half::F16)].1;
    let x = random(dtype, &shape, 1).to(device)?.set_requires_grad(true);
    let y = autocast(half, || f(&x))?;
    assert_eq!(y.dtype(), DType::F32);
    let weights = random(DType::F32, y.shape(), 2).to(device)?;
    y.mul(&weights)?.sum(..)?.backward()?;
    let grad = x.grad().expect("x has a gradient");
    assert_eq!(grad.dtype(), dtype);
    Ok([y.detach(), grad])
}

fn rows_agree(name: &str, f: impl Fn(&Tensor) -> Result<Tensor>) {
    let Some(gpu) = gpu() else { return };
    for ((half, dtype), n) in HALVES.into_iter().flat_map(|half| LENGTHS.map(|n| (half, n))) {
        let [here, there] = [&Device::Cpu, &*gpu].map(|device| of_half(device, half, [3, n], &f).unwrap());
        let name = format!("{name} of {n} {dtype}");
        same(&here[0], &there[0], 4e-6 * largest(&here[0]), &name);
        let unit = if dtype == DType::BF16 { 1.0 / 128.0 } else { 1.0 / 1024.0 };
        same(&here[1], &there[1], 2.0 * unit * largest(&here[1]), &format!("{name}, gradient"));
    }
}

#[test]
fn softmax_of_halves_is_f32() {
    rows_agree("softmax", |x| x.softmax(-1));
    rows_agree("log_softmax", |x| x.log_softmax(-1));
    rows_agree("softmax of columns", |x| x.softmax(0));
    rows_agree("log_softmax of columns", |x| x.log_softmax(0));
}

#[test]
fn softmax_takes_gradients_of_what_was_rounded() {
    rows_agree("softmax times a matrix", |x| x.softmax(-1)?.matmul(&x.t()?)?.sum(..));
}

#[test]
fn cross_entropy_of_halves_is_f32() {
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        rows_agree("cross_entropy", |x| x.cross_entropy(&Tensor::new([1, 5, 0])?.to(&x.device())?, reduction));
    }
}

#[test]
fn cross_entropy_of_many_classes_agrees() {
    let Some(gpu) = gpu() else { return };
    for (dtype, bound) in [(DType::F32, 2e-5), (DType::F64, 1e-12), (DType::F16, 2e-2), (DType::BF16, 0.15)] {
        for (classes, reduction) in [(1024, Reduction::Mean), (5003, Reduction::None), (40_000, Reduction::Sum)] {
            agree(&gpu, dtype, bound, &format!("{classes} classes"), &[&[7, classes]], |x| {
                let labels = Tensor::new([0, 1023, 5, 5, 1000, 17, 512])?.to(&x[0].device())?;
                x[0].cross_entropy(&labels, reduction)
            });
        }
    }
}

#[test]
fn gradients_of_selected_entries_have_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let generator = Generator::new(3);
    for (entries, inner, n) in [(65, 384, 5000), (3, 1, 100), (2000, 33, 257), (1, 7, 64), (50, 40, 0)] {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let index: Vec<i64> = (0..n).map(|_| (generator.next_f64() * entries as f64) as i64).collect();
            let index = Tensor::from_slice(&index, [n]).unwrap();
            let weights = random(dtype, &[2, n, inner], 5);
            let grad = |device: &Device| -> Result<Tensor> {
                let x = Tensor::on(device).of(dtype).zeros([2, entries, inner])?.set_requires_grad(true);
                x.index_select(1, &index.to(device)?)?.mul(&weights.to(device)?)?.sum(..)?.backward()?;
                Ok(x.grad().expect("x has a gradient"))
            };
            let name = format!("{n} of {entries} entries of {inner} {dtype}");
            same(&grad(&Device::Cpu).unwrap(), &grad(&gpu).unwrap(), 0.0, &name);
        }
    }
}

#[test]
fn layers_of_sequences_agree() {
    let Some(gpu) = gpu() else { return };
    for (dtype, bound) in [(DType::F32, 2e-5), (DType::F64, 1e-12), (DType::F16, 2e-2), (DType::BF16, 0.15)] {
        for [batch, length, from, to] in [[2, 3, 5, 4], [4, 33, 96, 200], [2, 300, 160, 640]] {
            let shapes: [&[usize]; 3] = [&[batch, length, from], &[to, from], &[to]];
            agree(&gpu, dtype, bound, &format!("linear of {shapes:?}"), &shapes, |x| {
                x[0].mul_scalar(0.1)?.linear(&x[1], Some(&x[2]))
            });
        }
        agree(&gpu, dtype, bound, "gelu", &[&[3, 5, 7]], |x| x[0].gelu_tanh());
    }
}

#[test]
fn kernels_for_halves_beside_f32_compile() {
    let Some(device) = compiler() else { return };
    for n in LENGTHS {
        of_half(&device, Half::BF16, [3, n], |x| x.softmax(-1)).unwrap();
        of_half(&device, Half::F16, [3, n], |x| x.log_softmax(-1)).unwrap();
        let labels = Tensor::on(&device).full([3], 0).unwrap();
        for reduction in [Reduction::Mean, Reduction::None] {
            of_half(&device, Half::BF16, [3, n], |x| x.cross_entropy(&labels, reduction)).unwrap();
        }
    }
}
