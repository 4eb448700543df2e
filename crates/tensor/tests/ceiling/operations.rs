//! Every operation, for every element type that it has.

use half::{bf16, f16};
use pagelock_tensor::descent::{Rate, SgdRule, SgdTensors, sgd_step};
use pagelock_tensor::{
    AnyTensor, Axes, BatchNormOptions, Bool, Conv2dOptions, DType, Element, Float, Generator, Int, Kind, Number,
    Numeric, Pool2dOptions, Reduction, Result, Tensor, TensorMap, no_grad,
};

use super::{Case, MIB, unless_refused};

/// Small tensors, for which there is room, and large ones.
const SIZES: [usize; 3] = [64 << 10, 8 * MIB, 16 * MIB];

const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
const INTS: &[DType] = &[DType::I64, DType::I32, DType::U8];

/// Runs `body` for tensors of each precision and size, for which it is given how many elements they have.
fn sizes(dtypes: &[DType], body: fn(DType, usize) -> Result<()>) -> Result<()> {
    for &dtype in dtypes {
        for bytes in SIZES {
            let done = unless_refused(body(dtype, bytes / dtype.size()))?;
            assert!(done.is_some() || bytes > SIZES[0], "there is room for {dtype} tensors of {bytes} bytes");
        }
    }
    Ok(())
}

/// `(name, body)` where `body(dtype, n)` runs for tensors of `n` elements, of each precision of the kinds that it has.
macro_rules! cases {
    ($($kinds:tt: $($name:ident),+;)+) => { &[$($(cases!(@ $kinds $name)),+),+] };
    (@ floats $name:ident) => { (stringify!($name), || sizes(FLOATS, $name)) };
    (@ numbers $name:ident) => {
        (stringify!($name), || {
            sizes(FLOATS, $name::<Float>)?;
            sizes(INTS, $name::<Int>)
        })
    };
    (@ elements $name:ident) => {
        (stringify!($name), || {
            sizes(FLOATS, $name::<Float>)?;
            sizes(INTS, $name::<Int>)?;
            sizes(&[DType::Bool], $name::<Bool>)
        })
    };
}

pub(super) const CASES: &[Case] = cases! {
    floats: unary, powers, divisions, matmul, linear, softmax, cross_entropy, losses, dropout, layer_norm, batch_norm,
        conv2d, grouped_conv2d, conv2d_relu, max_pool2d, avg_pool2d, variance, random, in_place_of_floats, sgd;
    numbers: binary, reductions, extremes, products_of_numbers, index_add, in_place, arange;
    elements: views, joins, selections, creation, comparisons, casts, saving, printing;
};

/// Ones of a precision.
fn ones(dtype: DType, sizes: &[usize]) -> Result<AnyTensor> {
    fn all<E: Element>(sizes: &[usize], one: E) -> Result<AnyTensor> {
        Ok(Tensor::build(sizes, |out: &mut [E]| out.fill(one))?.into())
    }
    match dtype {
        DType::F32 => all(sizes, 1_f32),
        DType::F64 => all(sizes, 1_f64),
        DType::F16 => all(sizes, f16::ONE),
        DType::BF16 => all(sizes, bf16::ONE),
        DType::I64 => all(sizes, 1_i64),
        DType::I32 => all(sizes, 1_i32),
        DType::U8 => all(sizes, 1_u8),
        DType::Bool => all(sizes, true),
        other => panic!("no ones of {other}"),
    }
}

fn filled<K: Kind>(dtype: DType, sizes: &[usize]) -> Result<Tensor<K>> {
    ones(dtype, sizes)?.kind()
}

/// Of a gradient that `backward` will ask for.
fn leaf(dtype: DType, sizes: &[usize]) -> Result<Tensor> {
    Ok(filled::<Float>(dtype, sizes)?.set_requires_grad(true))
}

fn backward(result: Tensor) -> Result<()> {
    result.sum(..)?.backward()
}

fn unary(dtype: DType, n: usize) -> Result<()> {
    type Unary = fn(&Tensor) -> Result<Tensor>;
    let all: [Unary; 8] =
        [Tensor::exp, Tensor::log, Tensor::sqrt, Tensor::relu, Tensor::sigmoid, Tensor::tanh, Tensor::abs, Tensor::neg];
    all.into_iter().try_for_each(|op| backward(op(&leaf(dtype, &[n])?)?))
}

fn powers(dtype: DType, n: usize) -> Result<()> {
    backward(leaf(dtype, &[n])?.pow(3.0)?)?;
    leaf(dtype, &[n])?.sign().map(drop)
}

fn divisions(dtype: DType, n: usize) -> Result<()> {
    backward(leaf(dtype, &[n])?.div(&leaf(dtype, &[n])?)?)?;
    backward(leaf(dtype, &[n / 64, 64])?.div(&leaf(dtype, &[64])?)?)
}

/// The side of a square matrix of `n` elements.
fn side(n: usize) -> usize {
    n.isqrt()
}

fn matmul(dtype: DType, n: usize) -> Result<()> {
    // Much shorter than wide, so that the work stays small.
    let short = 32;
    for (m, k, columns) in [(n / 1024, 1024, short), (short, n / 1024, 1024), (short, 256, n / 256)] {
        backward(leaf(dtype, &[m, k])?.matmul(&leaf(dtype, &[k, columns])?)?)?;
        let turned = leaf(dtype, &[columns, k])?;
        backward(leaf(dtype, &[m, k])?.matmul(&turned.t()?)?)?;
    }
    let (batch, side) = (n / 1024, 32);
    backward(leaf(dtype, &[batch, side, side])?.matmul(&leaf(dtype, &[batch, side, side])?)?)
}

fn linear(dtype: DType, n: usize) -> Result<()> {
    let (x, weight, bias) = (leaf(dtype, &[32, n / 256])?, leaf(dtype, &[256, n / 256])?, leaf(dtype, &[256])?);
    backward(x.linear(&weight, Some(&bias))?)
}

fn softmax(dtype: DType, n: usize) -> Result<()> {
    for (sizes, dim) in [([n / 100, 100], 1), ([2, n / 2], 1), ([n / 100, 100], 0)] {
        backward(leaf(dtype, &sizes)?.softmax(dim)?)?;
        backward(leaf(dtype, &sizes)?.log_softmax(dim)?)?;
    }
    Ok(())
}

fn cross_entropy(dtype: DType, n: usize) -> Result<()> {
    for rows in [n / 10, 4] {
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let labels = Tensor::full([rows], 0)?;
            backward(leaf(dtype, &[rows, n / rows])?.cross_entropy(&labels, reduction)?)?;
        }
    }
    Ok(())
}

fn losses(dtype: DType, n: usize) -> Result<()> {
    backward(leaf(dtype, &[n])?.mse_loss(&leaf(dtype, &[n])?, Reduction::Mean)?)?;
    let labels = Tensor::full([n / 100], 0)?;
    backward(leaf(dtype, &[n / 100, 100])?.nll_loss(&labels, Reduction::Mean)?)
}

fn dropout(dtype: DType, n: usize) -> Result<()> {
    backward(leaf(dtype, &[n])?.dropout(0.5, &Generator::new(0))?)
}

fn layer_norm(dtype: DType, n: usize) -> Result<()> {
    for len in [64, n / 64] {
        let (weight, bias) = (leaf(dtype, &[len])?, leaf(dtype, &[len])?);
        backward(leaf(dtype, &[n / len, len])?.layer_norm(len, Some(&weight), Some(&bias), 1e-5)?)?;
    }
    Ok(())
}

fn batch_norm(dtype: DType, n: usize) -> Result<()> {
    for channels in [64, n / 64] {
        let (weight, bias) = (leaf(dtype, &[channels])?, leaf(dtype, &[channels])?);
        let x = leaf(dtype, &[n / channels, channels])?;
        let options = BatchNormOptions::default();
        backward(x.batch_norm(None, Some(&weight), Some(&bias), options)?)?;
        backward(x.batch_norm_relu(None, Some(&weight), Some(&bias), options)?)?;
    }
    Ok(())
}

/// Images of `channels` that are all together `n` elements.
fn images(dtype: DType, n: usize, channels: usize, side: usize) -> Result<Tensor> {
    leaf(dtype, &[n / (channels * side * side), channels, side, side])
}

fn convolve(dtype: DType, n: usize, side: usize, [channels, out, groups]: [usize; 3], relu: bool) -> Result<()> {
    let options = Conv2dOptions::new().padding(1).stride(2).groups(groups);
    let (weight, bias) = (leaf(dtype, &[out, channels / groups, 3, 3])?, leaf(dtype, &[out])?);
    let x = images(dtype, n, channels, side)?;
    let y = if relu { x.conv2d_relu(&weight, Some(&bias), options)? } else { x.conv2d(&weight, Some(&bias), options)? };
    backward(y)
}

fn conv2d(dtype: DType, n: usize) -> Result<()> {
    convolve(dtype, n, 32, [4, 4, 1], false)?;
    convolve(dtype, n, 32, [4, 16, 1], false)?;
    convolve(dtype, n, side(n / 4), [4, 2, 1], false)
}

fn grouped_conv2d(dtype: DType, n: usize) -> Result<()> {
    convolve(dtype, n, 32, [16, 16, 16], false)
}

fn conv2d_relu(dtype: DType, n: usize) -> Result<()> {
    convolve(dtype, n, 32, [4, 4, 1], true)?;
    convolve(dtype, n, 32, [4, 16, 1], true)
}

fn max_pool2d(dtype: DType, n: usize) -> Result<()> {
    backward(images(dtype, n, 4, 32)?.max_pool2d(Pool2dOptions::new(2))?)?;
    backward(leaf(dtype, &[1, 1, 2, n / 2])?.max_pool2d(Pool2dOptions::new(2))?)
}

fn avg_pool2d(dtype: DType, n: usize) -> Result<()> {
    backward(images(dtype, n, 4, 32)?.avg_pool2d(Pool2dOptions::new(2))?)?;
    backward(leaf(dtype, &[1, 1, 4, n / 4])?.avg_pool2d(Pool2dOptions::new(3).stride(1).padding(1))?)?;
    backward(images(dtype, n, 4, 32)?.adaptive_avg_pool2d([3, 3])?)
}

fn variance(dtype: DType, n: usize) -> Result<()> {
    for axis in [0, 1] {
        backward(leaf(dtype, &[side(n), side(n)])?.var(axis)?)?;
    }
    backward(leaf(dtype, &[n])?.mean(..)?)
}

fn random(dtype: DType, n: usize) -> Result<()> {
    Tensor::of(dtype).rand([n])?;
    Tensor::of(dtype).randn([n])?;
    Tensor::randperm(n / 8).map(drop)
}

fn in_place_of_floats(dtype: DType, n: usize) -> Result<()> {
    let [x, a, b]: [Tensor; 3] = [filled(dtype, &[n])?, filled(dtype, &[n])?, filled(dtype, &[n])?];
    x.lerp_(&a, 0.5)?;
    x.addcmul_(&a, &b, 0.5)?;
    x.addcdiv_(&a, &b, 0.5)?;
    x.sqrt_()
}

fn sgd(dtype: DType, n: usize) -> Result<()> {
    let [parameter, grad, kept] = [filled(dtype, &[n])?, filled(dtype, &[n])?, filled(dtype, &[n])?];
    let tensors = SgdTensors { parameter, grad, half: None, kept: Some(kept), is_first: true };
    let rule = SgdRule { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
    no_grad(|| sgd_step([tensors], rule, &Rate::new(0.1)))
}

fn binary<K: Numeric>(dtype: DType, n: usize) -> Result<()>
where
    i32: Number<K>,
{
    type Binary<K> = fn(&Tensor<K>, &Tensor<K>) -> Result<Tensor<K>>;
    let all: [Binary<K>; 4] = [Tensor::add, Tensor::sub, Tensor::mul, Tensor::maximum];
    for op in all {
        op(&filled(dtype, &[n])?, &filled(dtype, &[n])?)?;
        op(&filled(dtype, &[n / 64, 64])?, &filled(dtype, &[64])?)?;
        op(&filled(dtype, &[64, n / 64])?.t()?, &filled(dtype, &[64])?)?;
    }
    filled::<K>(dtype, &[n])?.add_scalar(1)?;
    filled::<K>(dtype, &[n])?.mul_scalar(1).map(drop)
}

fn reductions<K: Numeric>(dtype: DType, n: usize) -> Result<()> {
    fn every<K: Numeric>(x: &Tensor<K>, axes: impl Axes + Copy) -> Result<()> {
        x.sum(axes)?;
        x.sum_keepdim(axes).map(drop)
    }
    for sizes in [[n / 64, 64], [64, n / 64]] {
        let x = filled::<K>(dtype, &sizes)?;
        every(&x, ..)?;
        every(&x, 0)?;
        every(&x, 1)?;
        every(&x.t()?, 1)?;
    }
    Ok(())
}

fn extremes<K: Numeric>(dtype: DType, n: usize) -> Result<()> {
    for sizes in [[n / 64, 64], [64, n / 64]] {
        let x = filled::<K>(dtype, &sizes)?;
        for dim in [0, 1] {
            x.argmax(dim)?;
            x.max(dim)?;
            x.min(dim)?;
        }
    }
    Ok(())
}

fn products_of_numbers<K: Numeric>(dtype: DType, n: usize) -> Result<()> {
    filled::<K>(dtype, &[32, n / 128])?.matmul(&filled(dtype, &[n / 128, 128])?)?;
    filled::<K>(dtype, &[128, n / 128])?.t()?.matmul(&filled(dtype, &[32, 128])?.t()?).map(drop)
}

fn index_add<K: Numeric>(dtype: DType, n: usize) -> Result<()> {
    let index = Tensor::full([n / 64], 0)?;
    filled::<K>(dtype, &[n / 64, 64])?.index_select(0, &index)?;
    filled::<K>(dtype, &[n / 64, 64])?.gather(0, &Tensor::full([n / 64, 8], 0)?).map(drop)
}

fn in_place<K: Numeric>(dtype: DType, n: usize) -> Result<()>
where
    i32: Number<K>,
{
    let x = filled::<K>(dtype, &[n])?;
    x.fill_(1)?;
    x.zero_()?;
    x.add_scalar_(1)?;
    x.mul_scalar_(1)?;
    x.copy_(&filled(dtype, &[n])?)?;
    x.add_scaled_(&filled(dtype, &[n])?, 1)?;
    x.add_scaled_(&x, 1)
}

fn arange<K: Numeric>(dtype: DType, n: usize) -> Result<()>
where
    i32: Number<K>,
{
    filled::<K>(dtype, &[n])?.zeros_like()?;
    filled::<K>(dtype, &[n])?.full_like(1).map(drop)
}

fn views<K: Kind>(dtype: DType, n: usize) -> Result<()> {
    let x = filled::<K>(dtype, &[n / 64, 64])?;
    x.t()?.contiguous()?;
    x.t()?.reshape([-1])?;
    x.narrow(1, 3, 50)?.contiguous()?;
    x.slice(0, .., 2)?.contiguous()?;
    x.select(1, 3)?.contiguous()?;
    x.select(1, 3)?.expand([64, n / 64])?.contiguous()?;
    filled::<K>(dtype, &[n / 4096, 4, 32, 32])?.channels_last()?.contiguous().map(drop)
}

fn joins<K: Kind>(dtype: DType, n: usize) -> Result<()> {
    let x = filled::<K>(dtype, &[n / 64, 64])?;
    for dim in [0, 1] {
        Tensor::cat(&[&x, &x], dim)?;
        Tensor::stack(&[&x, &x], dim)?;
    }
    let mut map = TensorMap::new([n / 64])?;
    map.set("x", x)?;
    TensorMap::stack(&[&map, &map], 0).map(drop)
}

fn selections<K: Kind>(dtype: DType, n: usize) -> Result<()> {
    let x = filled::<K>(dtype, &[n / 64, 64])?;
    x.index_select(0, &Tensor::full([n / 64], 0)?)?;
    x.index_select(1, &Tensor::full([64], 0)?)?;
    x.gather(1, &Tensor::full([n / 64, 4], 0)?).map(drop)
}

/// Zeros of a precision.
fn zeros(dtype: DType, n: usize) -> Result<AnyTensor> {
    match dtype {
        DType::Bool => Ok(Tensor::full([n], false)?.into()),
        _ if dtype.is_float() => Ok(Tensor::of(dtype).zeros([n])?.into()),
        _ => Ok(Tensor::of(dtype).full([n], 0)?.into()),
    }
}

fn creation<K: Kind>(dtype: DType, n: usize) -> Result<()> {
    zeros(dtype, n)?;
    if dtype.is_float() {
        Tensor::of(dtype).ones([n])?;
        Tensor::of(dtype).full([n], 1.0)?;
    }
    filled::<K>(dtype, &[n])?.zeros_like()?;
    filled::<K>(dtype, &[n])?.ones_like()?;
    let mut all = Vec::new();
    while let Some(next) = unless_refused(zeros(dtype, n))? {
        all.push(next);
        if all.len() * n * dtype.size() > 2 * super::LIMIT {
            panic!("{} tensors of {n} elements were not refused", all.len());
        }
        if n * dtype.size() < MIB && all.len() > 100 {
            return Ok(());
        }
    }
    Ok(())
}

fn comparisons<K: Kind>(dtype: DType, n: usize) -> Result<()> {
    let [a, b] = [filled::<K>(dtype, &[n])?, filled(dtype, &[n])?];
    for op in [Tensor::eq, Tensor::ne, Tensor::lt, Tensor::le, Tensor::gt, Tensor::ge] {
        op(&a, &b)?;
    }
    Ok(())
}

fn casts<K: Kind>(dtype: DType, n: usize) -> Result<()> {
    let x = filled::<K>(dtype, &[n])?;
    x.to_float()?.to_dtype(DType::F64)?;
    x.to_float()?.to_dtype(DType::F16)?;
    x.to_bool()?;
    x.to_int()?.to_dtype(DType::U8)?.scaled(1.0 / 255.0).map(drop)
}

fn saving<K: Kind>(dtype: DType, n: usize) -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let mut map = TensorMap::new(())?;
    map.set("x", filled::<K>(dtype, &[n / 64, 64])?.t()?)?;
    map.save(&path)?;
    TensorMap::open(&path)?.to(&pagelock_tensor::Device::Cpu)?;
    let mut whole = TensorMap::new(())?;
    whole.set("x", filled::<K>(dtype, &[n])?)?;
    whole.set("y", filled::<K>(dtype, &[n])?)?;
    whole.consolidate().map(drop)
}

fn printing<K: Kind>(dtype: DType, n: usize) -> Result<()> {
    let text = format!("{} {:?}", filled::<K>(dtype, &[n])?, filled::<K>(dtype, &[n])?);
    assert!(text.len() < MIB);
    Ok(())
}
