//! A GPU against the CPU: the same bits where each result is rounded once, else within the bounds given here.

use half::{bf16, f16};
use pagelock_tensor::{Device, Element, Float, Generator, Num, Result, Tensor};

use crate::common::gpu;

/// Ways in which `[6, 4, 8]` can lie in memory, made of `[6, 4, 16]`.
const N_LAYOUTS: usize = 6;

fn lay<T: Element>(x: &Tensor<T>, how: usize) -> Result<Tensor<T>> {
    match how {
        0 => x.narrow(2, 0, 8)?.contiguous(),
        1 => x.narrow(2, 3, 8)?.permute([2, 1, 0])?.contiguous()?.permute([2, 1, 0]),
        2 => x.slice(2, 0..16, 2),
        3 => x.narrow(2, 8, 8)?.select(1, 2)?.unsqueeze(1)?.expand([6, 4, 8]),
        4 => x.narrow(2, 1, 8), // not aligned to 16 bytes
        _ => x.narrow(2, 5, 1)?.expand([6, 4, 8]),
    }
}

/// Numbers of all signs and several magnitudes, whole ones among them.
fn numbers(seed: u64) -> Tensor<f64> {
    let generator = Generator::new(seed);
    let value = |i: usize| match i % 5 {
        0 => (generator.next_f64() * 7.0).floor() - 3.0,
        1 => generator.next_f64() * 1e-3,
        _ => generator.next_f64() * 20.0 - 10.0,
    };
    Tensor::from_vec((0..6 * 4 * 16).map(value).collect(), [6, 4, 16]).unwrap()
}

/// A function of two tensors computed on both devices, however these lie in memory, and compared.
struct Check<'a> {
    gpu: &'a Device,
    bound: f64,
}

impl Check<'_> {
    fn pair<T: Element, U: Element>(&self, name: &str, f: impl Fn(&Tensor<T>, &Tensor<T>) -> Result<Tensor<U>>) {
        let (a, b): (Tensor<T>, Tensor<T>) = (numbers(1).cast().unwrap(), numbers(2).cast().unwrap());
        for (i, j) in (0..N_LAYOUTS).flat_map(|i| (0..N_LAYOUTS).map(move |j| (i, j))) {
            let on = |device: &Device| f(&lay(&a.to(device)?, i)?, &lay(&b.to(device)?, j)?);
            let name = format!("{name} of {}, laid {i} and {j}", T::DTYPE);
            same(&on(&Device::Cpu).unwrap(), &on(self.gpu).unwrap(), self.bound, &name);
        }
    }

    fn one<T: Element, U: Element>(&self, name: &str, f: impl Fn(&Tensor<T>) -> Result<Tensor<U>>) {
        let x: Tensor<T> = numbers(3).cast().unwrap();
        for i in 0..N_LAYOUTS {
            let on = |device: &Device| f(&lay(&x.to(device)?, i)?);
            let name = format!("{name} of {}, laid {i}", T::DTYPE);
            same(&on(&Device::Cpu).unwrap(), &on(self.gpu).unwrap(), self.bound, &name);
        }
    }
}

pub(crate) fn same<U: Element>(cpu: &Tensor<U>, gpu: &Tensor<U>, bound: f64, name: &str) {
    assert_eq!(cpu.shape(), gpu.shape(), "{name}");
    for (i, (expected, found)) in cpu.to_vec().unwrap().into_iter().zip(gpu.to_vec().unwrap()).enumerate() {
        let (e, f): (f64, f64) = (expected.cast(), found.cast());
        let close = e == f || (e.is_nan() && f.is_nan()) || (e - f).abs() <= bound * e.abs().max(1.0);
        assert!(close, "{name}: element {i} is {found:?} on the GPU, {expected:?} on the CPU");
    }
}

/// Whatever a name stands for in all element types.
macro_rules! for_types {
    ($check:ident; $function:ident: $($type:ty),+) => {
        $($function::<$type>(&$check);)+
    };
}

#[test]
fn arithmetic_has_the_same_bits() {
    fn of<T: Num>(check: &Check<'_>) {
        check.pair::<T, T>("add", Tensor::add);
        check.pair::<T, T>("sub", Tensor::sub);
        check.pair::<T, T>("mul", Tensor::mul);
        check.pair::<T, T>("maximum", Tensor::maximum);
        check.one::<T, T>("neg", Tensor::neg);
        check.one::<T, T>("abs", Tensor::abs);
        check.one::<T, T>("sign", Tensor::sign);
        check.one::<T, T>("add a number", |x| x.add_scalar(T::from_f64(3.0)));
        check.one::<T, T>("mul by a number", |x| x.mul_scalar(T::from_f64(3.0)));
        check.one::<T, T>("contiguous", Tensor::contiguous);
    }
    fn of_floats<T: Float>(check: &Check<'_>) {
        of::<T>(check);
        check.pair::<T, T>("div", Tensor::div);
        check.one::<T, T>("relu", Tensor::relu);
        check.one::<T, T>("sqrt", Tensor::sqrt);
        check.one::<T, T>("pow", |x| x.pow(3.0));
        check.one::<T, T>("div by a number", |x| x / T::from_f64(3.0));
    }
    let Some(gpu) = gpu() else { return };
    let check = Check { gpu: &gpu, bound: 0.0 };
    for_types!(check; of_floats: f32, f64, f16, bf16);
    for_types!(check; of: i64, i32, u8);
    check.pair::<bool, bool>("or", Tensor::add);
    check.pair::<bool, bool>("and", Tensor::mul);
}

#[test]
fn comparisons_and_casts_agree() {
    fn of<T: Element>(check: &Check<'_>) {
        check.pair::<T, bool>("eq", |a, b| a.eq(&a.narrow(2, 0, 1)?)?.mul(&b.eq(b)?));
        check.pair::<T, bool>("ne", Tensor::ne);
        check.pair::<T, bool>("lt", Tensor::lt);
        check.pair::<T, bool>("le", Tensor::le);
        check.pair::<T, bool>("gt", Tensor::gt);
        check.pair::<T, bool>("ge", Tensor::ge);
        check.one::<T, f32>("cast", Tensor::cast);
        check.one::<T, f64>("cast", Tensor::cast);
        check.one::<T, f16>("cast", Tensor::cast);
        check.one::<T, bf16>("cast", Tensor::cast);
        check.one::<T, i64>("cast", Tensor::cast);
        check.one::<T, i32>("cast", Tensor::cast);
        check.one::<T, u8>("cast", Tensor::cast);
        check.one::<T, bool>("cast", Tensor::cast);
    }
    let Some(gpu) = gpu() else { return };
    let check = Check { gpu: &gpu, bound: 0.0 };
    for_types!(check; of: f32, f64, f16, bf16, i64, i32, u8, bool);
}

/// Numbers at the edges of what types hold, which casts round, saturate or wrap.
#[test]
fn casts_of_extreme_numbers_agree() {
    fn of<T: Element>(gpu: &Device, values: &[T]) {
        fn to<T: Element, U: Element>(gpu: &Device, x: &Tensor<T>) {
            let name = format!("cast from {} to {}", T::DTYPE, U::DTYPE);
            same(&x.cast::<U>().unwrap(), &x.to(gpu).unwrap().cast::<U>().unwrap(), 0.0, &name);
        }
        let x = Tensor::from_slice(values, values.len()).unwrap();
        to::<T, f32>(gpu, &x);
        to::<T, f64>(gpu, &x);
        to::<T, f16>(gpu, &x);
        to::<T, bf16>(gpu, &x);
        to::<T, i64>(gpu, &x);
        to::<T, i32>(gpu, &x);
        to::<T, u8>(gpu, &x);
        to::<T, bool>(gpu, &x);
    }
    let Some(gpu) = gpu() else { return };
    let edges =
        [0.0, -0.0, 0.5, 1.5, -0.9, 255.0, 256.0, 65_504.0, 65_520.0, 2147483647.0, 2147483648.0, 9.3e18, 1e300];
    let edges: Vec<f64> = edges.iter().flat_map(|&x| [x, -x, x * (1.0 + 1e-9), x * (1.0 + f64::EPSILON)]).collect();
    let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 5.96e-8, 2.98e-8, 1e-40, 1.0 + 2f64.powi(-11)];
    let floats: Vec<f64> = edges.iter().chain(&specials).copied().collect();
    of::<f64>(&gpu, &floats);
    of::<f32>(&gpu, &floats.iter().map(|&x| x as f32).collect::<Vec<_>>());
    of::<f16>(&gpu, &floats.iter().map(|&x| f16::from_f64(x)).collect::<Vec<_>>());
    of::<bf16>(&gpu, &floats.iter().map(|&x| bf16::from_f64(x)).collect::<Vec<_>>());
    let integers = [0, 1, -1, 255, 256, -300, i64::MAX, i64::MIN, (1 << 53) + 1, 2049, 16_777_217, 65_520, 1 << 40];
    of::<i64>(&gpu, &integers);
    of::<i32>(&gpu, &integers.map(|x| x as i32));
    of::<u8>(&gpu, &integers.map(|x| x as u8));
    of::<bool>(&gpu, &[false, true]);
}

#[test]
fn joined_and_cut_tensors_agree() {
    let Some(gpu) = gpu() else { return };
    let of = |device: &Device| -> Result<Vec<Tensor>> {
        let x = numbers(5).cast::<f32>()?.to(device)?.set_requires_grad(true);
        let joined = Tensor::cat(&[&lay(&x, 1)?, &lay(&x, 2)?, &lay(&x, 4)?], 1)?;
        let stacked = Tensor::stack(&[&lay(&x, 0)?, &lay(&x, 5)?], -1)?;
        joined.mul(&joined)?.sum(..)?.add(&stacked.pow(2.0)?.sum(..)?)?.backward()?;
        Ok(vec![joined.detach(), stacked.detach(), x.grad().unwrap()])
    };
    for (cpu, gpu) in of(&Device::Cpu).unwrap().iter().zip(&of(&gpu).unwrap()) {
        same(cpu, gpu, 1e-5, "joined, or a gradient");
    }
}

#[test]
fn functions_differ_by_few_units_in_the_last_place() {
    fn of<T: Float>(check: &Check<'_>) {
        check.one::<T, T>("exp", Tensor::exp);
        check.one::<T, T>("log", Tensor::log);
        check.one::<T, T>("tanh", Tensor::tanh);
        check.one::<T, T>("sigmoid", Tensor::sigmoid);
        check.one::<T, T>("pow", |x| x.abs()?.pow(1.5));
    }
    let Some(gpu) = gpu() else { return };
    let within = |bound| Check { gpu: &gpu, bound };
    of::<f32>(&within(5e-7));
    of::<f64>(&within(1e-15));
    of::<f16>(&within(1e-3));
    of::<bf16>(&within(8e-3));
}

#[test]
fn changes_in_place_have_the_same_bits() {
    fn changed<T: Element>(
        change: impl Fn(&Tensor<T>, &Tensor<T>) -> Result<()>,
    ) -> impl Fn(&Tensor<T>, &Tensor<T>) -> Result<Tensor<T>> {
        move |a, b| {
            let a = a.add(&a.zeros_like()?)?; // expanded views cannot be changed
            for view in [a.clone(), a.permute([2, 0, 1])?.narrow(0, 1, 5)?, a.select(0, 3)?] {
                change(&view, &b.narrow(2, 0, 1)?.select(1, 0)?.select(1, 0)?.select(0, 2)?)?;
            }
            change(&a, b)?;
            Ok(a)
        }
    }
    fn of<T: Num>(check: &Check<'_>) {
        check.pair::<T, T>("add_", changed(Tensor::add_));
        check.pair::<T, T>("sub_", changed(Tensor::sub_));
        check.pair::<T, T>("mul_", changed(Tensor::mul_));
        check.pair::<T, T>("copy_", changed(Tensor::copy_));
        check.pair::<T, T>("fill_", changed(|a: &Tensor<T>, _: &Tensor<T>| a.fill_(T::from_f64(5.0))));
        check.pair::<T, T>("add_scaled_", changed(|a: &Tensor<T>, b: &Tensor<T>| a.add_scaled_(b, T::from_f64(3.3))));
    }
    fn of_floats<T: Float>(check: &Check<'_>) {
        of::<T>(check);
        check.pair::<T, T>("div_", changed(Tensor::div_));
        check.pair::<T, T>("addcmul_", changed(|a: &Tensor<T>, b: &Tensor<T>| a.addcmul_(b, b, 0.7)));
        check.pair::<T, T>("addcdiv_", changed(|a: &Tensor<T>, b: &Tensor<T>| a.addcdiv_(b, b, 0.7)));
        check.pair::<T, T>("sqrt_", changed(|a: &Tensor<T>, _: &Tensor<T>| a.sqrt_()));
    }
    let Some(gpu) = gpu() else { return };
    let check = Check { gpu: &gpu, bound: 0.0 };
    for_types!(check; of_floats: f32, f64, f16, bf16);
    for_types!(check; of: i64, i32, u8);
}

#[test]
fn transposed_tensors_of_many_sizes_agree() {
    fn of<T: Element>(gpu: &Device, shape: &[usize]) {
        let n = shape.iter().product();
        let x: Tensor<T> = Tensor::from_vec((0..n).map(|i| i as f64 % 251.0).collect(), shape).unwrap().cast().unwrap();
        let there = x.to(gpu).unwrap();
        let last = shape.len() as isize - 1;
        let orders: [fn(&Tensor<T>, isize) -> Result<Tensor<T>>; 3] = [
            |x, last| x.transpose(0, last),
            |x, last| x.transpose(last - 1, last),
            |x, last| x.transpose(0, last)?.transpose(0, 1),
        ];
        for order in orders {
            let [cpu, gpu] = [&x, &there].map(|x| order(x, last).unwrap());
            let name = format!("{} {shape:?} with strides {:?}", T::DTYPE, cpu.strides());
            same(&cpu.contiguous().unwrap(), &gpu.contiguous().unwrap(), 0.0, &name);
            same(&cpu.cast::<f64>().unwrap(), &gpu.cast::<f64>().unwrap(), 0.0, &name);
        }
    }
    let Some(gpu) = gpu() else { return };
    for shape in [&[8, 8][..], &[9, 100], &[33, 31], &[300, 129], &[3, 40, 50], &[12, 1, 65, 40], &[2, 3, 17, 19, 8]] {
        of::<f32>(&gpu, shape);
        of::<u8>(&gpu, shape);
        of::<f64>(&gpu, shape);
        of::<bf16>(&gpu, shape);
    }
}

#[test]
fn reductions_over_any_axes_agree() {
    const AXES: [&[isize]; 7] = [&[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]];
    fn of<T: Num>(check: &Check<'_>) {
        for axes in AXES {
            check.one::<T, T>(&format!("sum over {axes:?}"), |x| x.sum(axes));
        }
        let exact = Check { bound: 0.0, ..*check };
        for axes in AXES {
            exact.one::<T, T>(&format!("max over {axes:?}"), |x| x.max(axes));
            exact.one::<T, T>(&format!("min over {axes:?}"), |x| x.min(axes));
        }
        for dim in 0..3 {
            exact.one::<T, i64>(&format!("argmax over {dim}"), |x| x.argmax(dim));
        }
    }
    fn of_floats<T: Float>(check: &Check<'_>) {
        of::<T>(check);
        for axes in AXES {
            check.one::<T, T>(&format!("mean over {axes:?}"), |x| x.mean(axes));
        }
    }
    let Some(gpu) = gpu() else { return };
    let within = |bound| Check { gpu: &gpu, bound };
    of_floats::<f32>(&within(2e-5)); // sums of numbers up to 10 that nearly cancel
    of_floats::<f64>(&within(1e-13));
    of_floats::<f16>(&within(1e-3));
    of_floats::<bf16>(&within(8e-3));
    let exact = within(0.0);
    for_types!(exact; of: i64, i32, u8);
}

#[test]
fn reductions_of_large_tensors_agree_and_repeat_bit_for_bit() {
    let Some(gpu) = gpu() else { return };
    for (shape, axes) in [
        (&[3_000_001][..], &[0][..]),
        (&[3, 500_000], &[1]),
        (&[500_000, 3], &[0]),
        (&[4_096, 300], &[0]),
        (&[300, 4_096], &[1]),
        (&[64, 32, 28, 28], &[0, 2, 3]),
        (&[100_000, 10], &[1]),
    ] {
        let x = Tensor::randn(shape).unwrap();
        let there = x.to(&gpu).unwrap();
        let axes: &[isize] = axes;
        let sums = there.sum(axes).unwrap();
        same(&x.sum(axes).unwrap(), &sums, 2e-4, &format!("sum of {shape:?} over {axes:?}"));
        same(&x.max(axes).unwrap(), &there.max(axes).unwrap(), 0.0, &format!("max of {shape:?} over {axes:?}"));
        for _ in 0..3 {
            same(&sums, &there.sum(axes).unwrap(), 0.0, "the same sum again");
        }
        if let [dim] = axes {
            same(&x.argmax(*dim).unwrap(), &there.argmax(*dim).unwrap(), 0.0, &format!("argmax of {shape:?}"));
        }
    }
}

#[test]
fn empty_tensors_agree() {
    let Some(gpu) = gpu() else { return };
    let x = Tensor::zeros([0, 3]).unwrap();
    let there = x.to(&gpu).unwrap();
    same(&x.sum(0).unwrap(), &there.sum(0).unwrap(), 0.0, "sum of nothing");
    same(&x.sum(1).unwrap(), &there.sum(1).unwrap(), 0.0, "no sums");
    same(&x.mean(0).unwrap(), &there.mean(0).unwrap(), 0.0, "mean of nothing");
    same(&x.relu().unwrap(), &there.relu().unwrap(), 0.0, "relu of nothing");
}

#[test]
fn gradients_agree() {
    let Some(gpu) = gpu() else { return };
    let grads = |device: &Device| -> Result<Vec<Tensor>> {
        let x = Tensor::from_slice(&[0.5, -1.0, 2.0, 3.0, -0.25, 1.5], [2, 3])?.to(device)?.set_requires_grad(true);
        let b = Tensor::from_slice(&[1.0, 2.0, 3.0], [3])?.to(device)?.set_requires_grad(true);
        (x.mul(&b)?.relu()? + &b)?.pow(2.0)?.mean(..)?.backward()?;
        Ok(vec![x.grad().unwrap(), b.grad().unwrap()])
    };
    for (cpu, gpu) in grads(&Device::Cpu).unwrap().iter().zip(&grads(&gpu).unwrap()) {
        same(cpu, gpu, 1e-6, "gradient");
    }
}
