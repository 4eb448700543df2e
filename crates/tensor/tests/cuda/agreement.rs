//! A GPU against the CPU, in addition to the samples of the table (`table.rs`): casts of extreme numbers, functions
//! within few units in the last place, copies and reductions of many shapes and sizes.

use half::{bf16, f16};
use pagelock_tensor::{AnyTensor, DType, Device, Element, Float, Generator, Int, Kind, Numeric, Result, Tensor};

use crate::common::{INTS, Values, converted, gpu, numbers_of, same_kind};

/// The number of memory layouts in which [`lay`] makes `[6, 4, 8]` from `[6, 4, 16]`.
const N_LAYOUTS: usize = 6;

fn lay<K: Kind>(x: &Tensor<K>, how: usize) -> Result<Tensor<K>> {
    match how {
        0 => x.narrow(2, 0, 8)?.contiguous(),
        1 => x.narrow(2, 3, 8)?.permute([2, 1, 0])?.contiguous()?.permute([2, 1, 0]),
        2 => x.slice(2, 0..16, 2),
        3 => x.narrow(2, 8, 8)?.select(1, 2)?.unsqueeze(1)?.expand([6, 4, 8]),
        4 => x.narrow(2, 1, 8), // not aligned to 16 bytes
        _ => x.narrow(2, 5, 1)?.expand([6, 4, 8]),
    }
}

/// Numbers of both signs and several magnitudes, some of them whole.
fn numbers(seed: u64) -> Tensor {
    let generator = Generator::new(seed);
    let value = |i: usize| match i % 5 {
        0 => (generator.next_f64() * 7.0).floor() - 3.0,
        1 => generator.next_f64() * 1e-3,
        _ => generator.next_f64() * 20.0 - 10.0,
    };
    Tensor::from_vec((0..6 * 4 * 16).map(value).collect(), [6, 4, 16]).unwrap()
}

/// Computes a function of a tensor on both devices, in each memory layout, and compares the results.
struct Check<'a> {
    gpu: &'a Device,
    bound: f64,
}

impl Check<'_> {
    fn one<K: Kind, R: Values>(&self, dtype: DType, name: &str, f: impl Fn(&Tensor<K>) -> Result<Tensor<R>>) {
        let x: Tensor<K> = converted(&numbers(3), dtype);
        for i in 0..N_LAYOUTS {
            let on = |device: &Device| f(&lay(&x.to(device)?, i)?);
            let name = format!("{name} of {dtype}, laid {i}");
            same(&on(&Device::Cpu).unwrap(), &on(self.gpu).unwrap(), self.bound, &name);
        }
    }
}

pub(crate) fn same<K: Values>(cpu: &Tensor<K>, gpu: &Tensor<K>, bound: f64, name: &str) {
    difference(&cpu.into(), &gpu.into(), bound).unwrap_or_else(|why| panic!("{name}: {why}"));
}

/// The first element at which two results differ by more than `bound · max(1, |CPU's|)`, or how their shapes or
/// dtypes differ.
pub(crate) fn difference(cpu: &AnyTensor, gpu: &AnyTensor, bound: f64) -> Result<(), String> {
    if (cpu.dims(), cpu.dtype()) != (gpu.dims(), gpu.dtype()) {
        let [cpu, gpu] = [cpu, gpu].map(|x| format!("{} {:?}", x.dtype(), x.dims()));
        return Err(format!("{gpu} on the GPU, {cpu} on the CPU"));
    }
    for (i, (e, f)) in numbers_of(cpu).unwrap().into_iter().zip(numbers_of(gpu).unwrap()).enumerate() {
        let close = e == f || (e.is_nan() && f.is_nan()) || (e - f).abs() <= bound * e.abs().max(1.0);
        if !close {
            return Err(format!("element {i} is {f:?} on the GPU, {e:?} on the CPU"));
        }
    }
    Ok(())
}

/// Numbers at the edges of what types hold, which casts round, saturate or wrap.
#[test]
fn casts_of_extreme_numbers_agree() {
    fn of<E: Element<Kind: Values>>(gpu: &Device, values: &[E]) {
        let x = Tensor::from_slice(values, values.len()).unwrap();
        let there = x.to(gpu).unwrap();
        let name = |to: &str| format!("cast from {} to {to}", E::DTYPE);
        same(&x.to_float().unwrap(), &there.to_float().unwrap(), 0.0, &name("float32"));
        same(&x.to_bool().unwrap(), &there.to_bool().unwrap(), 0.0, &name("bool"));
        let [here, ints] = [&x, &there].map(|x| x.to_int().unwrap());
        same(&here, &ints, 0.0, &name("int64"));
        for &to in INTS {
            same(&here.to_dtype(to).unwrap(), &ints.to_dtype(to).unwrap(), 0.0, &name(to.name()));
        }
        for &to in same_kind(E::DTYPE) {
            same(&x.to_dtype(to).unwrap(), &there.to_dtype(to).unwrap(), 0.0, &name(to.name()));
        }
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
fn bytes_are_divided_by_every_byte() {
    type Operation = fn(&Tensor<Int>, &Tensor<Int>) -> Result<Tensor<Int>>;

    let Some(gpu) = gpu() else { return };
    let bytes = Tensor::arange(0, 256, 1).unwrap().to_dtype(DType::U8).unwrap();
    let (x, y) = (bytes.unsqueeze(1).unwrap(), bytes);
    let operations: [(&str, Operation); 5] = [
        ("fmod", Tensor::fmod),
        ("remainder", Tensor::remainder),
        ("floor_divide", Tensor::floor_divide),
        ("gcd", Tensor::gcd),
        ("lcm", Tensor::lcm),
    ];
    for (name, operation) in operations {
        let there = operation(&x.to(&gpu).unwrap(), &y.to(&gpu).unwrap()).unwrap();
        same(&operation(&x, &y).unwrap(), &there, 0.0, name);
    }
}

#[test]
fn functions_differ_by_few_units_in_the_last_place() {
    fn of(check: &Check<'_>, dtype: DType) {
        check.one::<Float, Float>(dtype, "exp", Tensor::exp);
        check.one::<Float, Float>(dtype, "log", Tensor::log);
        check.one::<Float, Float>(dtype, "tanh", Tensor::tanh);
        check.one::<Float, Float>(dtype, "sigmoid", Tensor::sigmoid);
        check.one::<Float, Float>(dtype, "pow", |x| x.abs()?.pow(1.5));
    }
    let Some(gpu) = gpu() else { return };
    let within = |bound| Check { gpu: &gpu, bound };
    of(&within(5e-7), DType::F32);
    of(&within(1e-15), DType::F64);
    of(&within(1e-3), DType::F16);
    of(&within(8e-3), DType::BF16);
}

#[test]
fn transposed_tensors_of_many_sizes_agree() {
    fn of<K: Values>(gpu: &Device, dtype: DType, wide: DType, shape: &[usize]) {
        let n = shape.iter().product();
        let x: Tensor<K> =
            converted(&Tensor::from_vec((0..n).map(|i| i as f64 % 251.0).collect(), shape).unwrap(), dtype);
        let there = x.to(gpu).unwrap();
        let last = shape.len() as isize - 1;
        let orders: [fn(&Tensor<K>, isize) -> Result<Tensor<K>>; 3] = [
            |x, last| x.transpose(0, last),
            |x, last| x.transpose(last - 1, last),
            |x, last| x.transpose(0, last)?.transpose(0, 1),
        ];
        for order in orders {
            let [cpu, gpu] = [&x, &there].map(|x| order(x, last).unwrap());
            let name = format!("{dtype} {shape:?} with strides {:?}", cpu.strides());
            same(&cpu.contiguous().unwrap(), &gpu.contiguous().unwrap(), 0.0, &name);
            same(&cpu.to_dtype(wide).unwrap(), &gpu.to_dtype(wide).unwrap(), 0.0, &name);
        }
    }
    let Some(gpu) = gpu() else { return };
    for shape in [&[8, 8][..], &[9, 100], &[33, 31], &[300, 129], &[3, 40, 50], &[12, 1, 65, 40], &[2, 3, 17, 19, 8]] {
        of::<Float>(&gpu, DType::F32, DType::F64, shape);
        of::<Int>(&gpu, DType::U8, DType::I64, shape);
        of::<Float>(&gpu, DType::F64, DType::F32, shape);
        of::<Float>(&gpu, DType::BF16, DType::F64, shape);
    }
}

#[test]
fn reductions_over_any_axes_agree() {
    const AXES: [&[isize]; 7] = [&[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]];
    fn of<K: Numeric + Values>(check: &Check<'_>, dtype: DType) {
        for axes in AXES {
            check.one::<K, K>(dtype, &format!("sum over {axes:?}"), |x| x.sum(axes));
        }
        let exact = Check { bound: 0.0, ..*check };
        for axes in AXES {
            exact.one::<K, K>(dtype, &format!("max over {axes:?}"), |x| x.max(axes));
            exact.one::<K, K>(dtype, &format!("min over {axes:?}"), |x| x.min(axes));
        }
        for dim in 0..3 {
            exact.one::<K, Int>(dtype, &format!("argmax over {dim}"), |x| x.argmax(dim));
        }
    }
    fn of_floats(check: &Check<'_>, dtype: DType) {
        of::<Float>(check, dtype);
        for axes in AXES {
            check.one::<Float, Float>(dtype, &format!("mean over {axes:?}"), |x| x.mean(axes));
        }
    }
    let Some(gpu) = gpu() else { return };
    let within = |bound| Check { gpu: &gpu, bound };
    of_floats(&within(2e-5), DType::F32); // sums of numbers up to 10 that nearly cancel
    of_floats(&within(1e-13), DType::F64);
    of_floats(&within(1e-3), DType::F16);
    of_floats(&within(8e-3), DType::BF16);
    let exact = within(0.0);
    INTS.iter().for_each(|&dtype| of::<Int>(&exact, dtype));
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
fn a_number_has_no_coordinates() {
    let Some(gpu) = gpu() else { return };
    for (number, places) in [(1.5, 1), (0.0, 0)] {
        let number = Tensor::full((), number).unwrap();
        for number in [number.to(&gpu).unwrap(), number] {
            assert_eq!(number.nonzero().unwrap().dims(), [places, 0]);
        }
    }
}

#[test]
fn variances_beside_infinite_elements_are_nan() {
    let Some(gpu) = gpu() else { return };
    for dtype in [DType::F64, DType::F32] {
        for at in 0..4 {
            let x: Vec<f64> = (0..4).map(|i| if i == at { f64::INFINITY } else { f64::from(i) }).collect();
            let x = Tensor::from_vec(x, 4).unwrap().to_dtype(dtype).unwrap().to(&gpu).unwrap();
            assert!(x.var(..).unwrap().item::<f64>().unwrap().is_nan(), "{dtype} {at}");
        }
    }
}

#[test]
fn entries_of_many_lines_are_added() {
    let Some(gpu) = gpu() else { return };
    let (lines, len) = (1 << 18, 128);
    let index = Tensor::on(&gpu).arange(0_i64, len as i64, 1).unwrap().reshape([1, -1, 1]).unwrap();
    let index = index.expand([2, len as isize, lines / 2]).unwrap();
    let x = Tensor::on(&gpu).ones([2, len, lines as usize / 2]).unwrap();
    let sums = x.scatter_add(1, &index, &x).unwrap();
    assert_eq!(sums.min(..).unwrap().item::<f32>().unwrap(), 2.0);
    assert_eq!(sums.max(..).unwrap().item::<f32>().unwrap(), 2.0);
}
