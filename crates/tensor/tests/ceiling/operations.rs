//! Every operation, for every element type that it has.

use half::{bf16, f16};
use pagelock_tensor::descent::{Rate, SgdRule, SgdTensors, sgd_step};
use pagelock_tensor::{
    Axes, BatchNormOptions, Conv2dOptions, Create, Element, Float, Generator, Num, Pool2dOptions, Reduction, Result,
    Tensor, TensorMap, no_grad,
};

use super::{Case, MIB, unless_refused};

/// Small tensors, for which there is room, and large ones.
const SIZES: [usize; 3] = [64 << 10, 8 * MIB, 16 * MIB];

/// Runs `body` for tensors of each size, for which it is given how many elements they have.
fn sizes<T>(body: impl Fn(usize) -> Result<()>) -> Result<()> {
    for bytes in SIZES {
        let done = unless_refused(body(bytes / size_of::<T>()))?;
        assert!(done.is_some() || bytes > SIZES[0], "there is room for tensors of {bytes} bytes");
    }
    Ok(())
}

/// `(name, body)` where `body::<T>(n)` runs for tensors of `n` elements, of each of the types.
macro_rules! cases {
    ($($types:tt: $($name:ident),+;)+) => { &[$($(cases!(@ $types $name)),+),+] };
    (@ floats $name:ident) => { (stringify!($name), || cases!($name: f32 f64 f16 bf16)) };
    (@ numbers $name:ident) => { (stringify!($name), || cases!($name: f32 f64 f16 bf16 i64 i32 u8)) };
    (@ elements $name:ident) => { (stringify!($name), || cases!($name: f32 f64 f16 bf16 i64 i32 u8 bool)) };
    ($name:ident: $($type:ident)+) => {{ $(sizes::<$type>($name::<$type>)?;)+ Ok(()) }};
}

pub(super) const CASES: &[Case] = cases! {
    floats: unary, powers, divisions, matmul, linear, softmax, cross_entropy, losses, dropout, layer_norm, batch_norm,
        conv2d, grouped_conv2d, conv2d_relu, max_pool2d, avg_pool2d, variance, random, in_place_of_floats, sgd;
    numbers: binary, reductions, extremes, products_of_numbers, index_add, in_place, arange;
    elements: views, joins, selections, creation, comparisons, casts, saving, printing;
};

fn filled<T: Element>(sizes: &[usize]) -> Result<Tensor<T>> {
    Tensor::build(sizes, |out| out.fill(T::ONE))
}

/// Of a gradient that `backward` will ask for.
fn leaf<T: Float>(sizes: &[usize]) -> Result<Tensor<T>> {
    Ok(filled(sizes)?.set_requires_grad(true))
}

fn backward<T: Float>(result: Tensor<T>) -> Result<()> {
    result.sum(..)?.backward()
}

fn unary<T: Float>(n: usize) -> Result<()> {
    type Unary<T> = fn(&Tensor<T>) -> Result<Tensor<T>>;
    let all: [Unary<T>; 8] =
        [Tensor::exp, Tensor::log, Tensor::sqrt, Tensor::relu, Tensor::sigmoid, Tensor::tanh, Tensor::abs, Tensor::neg];
    all.into_iter().try_for_each(|op| backward(op(&leaf(&[n])?)?))
}

fn powers<T: Float>(n: usize) -> Result<()> {
    backward(leaf::<T>(&[n])?.pow(3.0)?)?;
    leaf::<T>(&[n])?.sign().map(drop)
}

fn divisions<T: Float>(n: usize) -> Result<()> {
    backward(leaf::<T>(&[n])?.div(&leaf(&[n])?)?)?;
    backward(leaf::<T>(&[n / 64, 64])?.div(&leaf(&[64])?)?)
}

/// The side of a square matrix of `n` elements.
fn side(n: usize) -> usize {
    n.isqrt()
}

fn matmul<T: Float>(n: usize) -> Result<()> {
    // Much shorter than wide, so that the work stays small.
    let short = 32;
    for (m, k, columns) in [(n / 1024, 1024, short), (short, n / 1024, 1024), (short, 256, n / 256)] {
        backward(leaf::<T>(&[m, k])?.matmul(&leaf(&[k, columns])?)?)?;
        let turned = leaf::<T>(&[columns, k])?;
        backward(leaf::<T>(&[m, k])?.matmul(&turned.t()?)?)?;
    }
    let (batch, side) = (n / 1024, 32);
    backward(leaf::<T>(&[batch, side, side])?.matmul(&leaf(&[batch, side, side])?)?)
}

fn linear<T: Float>(n: usize) -> Result<()> {
    let (x, weight, bias) = (leaf::<T>(&[32, n / 256])?, leaf(&[256, n / 256])?, leaf(&[256])?);
    backward(x.linear(&weight, Some(&bias))?)
}

fn softmax<T: Float>(n: usize) -> Result<()> {
    for (sizes, dim) in [([n / 100, 100], 1), ([2, n / 2], 1), ([n / 100, 100], 0)] {
        backward(leaf::<T>(&sizes)?.softmax(dim)?)?;
        backward(leaf::<T>(&sizes)?.log_softmax(dim)?)?;
    }
    Ok(())
}

fn cross_entropy<T: Float>(n: usize) -> Result<()> {
    for rows in [n / 10, 4] {
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let labels = Tensor::<i64>::zeros([rows])?;
            backward(leaf::<T>(&[rows, n / rows])?.cross_entropy(&labels, reduction)?)?;
        }
    }
    Ok(())
}

fn losses<T: Float>(n: usize) -> Result<()> {
    backward(leaf::<T>(&[n])?.mse_loss(&leaf(&[n])?, Reduction::Mean)?)?;
    let labels = Tensor::<i64>::zeros([n / 100])?;
    backward(leaf::<T>(&[n / 100, 100])?.nll_loss(&labels, Reduction::Mean)?)
}

fn dropout<T: Float>(n: usize) -> Result<()> {
    backward(leaf::<T>(&[n])?.dropout(0.5, &Generator::new(0))?)
}

fn layer_norm<T: Float>(n: usize) -> Result<()> {
    for len in [64, n / 64] {
        let (weight, bias) = (leaf(&[len])?, leaf(&[len])?);
        backward(leaf::<T>(&[n / len, len])?.layer_norm(len, Some(&weight), Some(&bias), 1e-5)?)?;
    }
    Ok(())
}

fn batch_norm<T: Float>(n: usize) -> Result<()> {
    for channels in [64, n / 64] {
        let (weight, bias) = (leaf(&[channels])?, leaf(&[channels])?);
        let x = leaf::<T>(&[n / channels, channels])?;
        let options = BatchNormOptions::default();
        backward(x.batch_norm(None, Some(&weight), Some(&bias), options)?)?;
        backward(x.batch_norm_relu(None, Some(&weight), Some(&bias), options)?)?;
    }
    Ok(())
}

/// Images of `channels` that are all together `n` elements.
fn images<T: Float>(n: usize, channels: usize, side: usize) -> Result<Tensor<T>> {
    leaf(&[n / (channels * side * side), channels, side, side])
}

fn convolve<T: Float>(n: usize, side: usize, [channels, out, groups]: [usize; 3], relu: bool) -> Result<()> {
    let options = Conv2dOptions::new().padding(1).stride(2).groups(groups);
    let (weight, bias) = (leaf::<T>(&[out, channels / groups, 3, 3])?, leaf(&[out])?);
    let x = images(n, channels, side)?;
    let y = if relu { x.conv2d_relu(&weight, Some(&bias), options)? } else { x.conv2d(&weight, Some(&bias), options)? };
    backward(y)
}

fn conv2d<T: Float>(n: usize) -> Result<()> {
    convolve::<T>(n, 32, [4, 4, 1], false)?;
    convolve::<T>(n, 32, [4, 16, 1], false)?;
    convolve::<T>(n, side(n / 4), [4, 2, 1], false)
}

fn grouped_conv2d<T: Float>(n: usize) -> Result<()> {
    convolve::<T>(n, 32, [16, 16, 16], false)
}

fn conv2d_relu<T: Float>(n: usize) -> Result<()> {
    convolve::<T>(n, 32, [4, 4, 1], true)?;
    convolve::<T>(n, 32, [4, 16, 1], true)
}

fn max_pool2d<T: Float>(n: usize) -> Result<()> {
    backward(images::<T>(n, 4, 32)?.max_pool2d(Pool2dOptions::new(2))?)?;
    backward(leaf::<T>(&[1, 1, 2, n / 2])?.max_pool2d(Pool2dOptions::new(2))?)
}

fn avg_pool2d<T: Float>(n: usize) -> Result<()> {
    backward(images::<T>(n, 4, 32)?.avg_pool2d(Pool2dOptions::new(2))?)?;
    backward(leaf::<T>(&[1, 1, 4, n / 4])?.avg_pool2d(Pool2dOptions::new(3).stride(1).padding(1))?)?;
    backward(images::<T>(n, 4, 32)?.adaptive_avg_pool2d([3, 3])?)
}

fn variance<T: Float>(n: usize) -> Result<()> {
    for axis in [0, 1] {
        backward(leaf::<T>(&[side(n), side(n)])?.var(axis)?)?;
    }
    backward(leaf::<T>(&[n])?.mean(..)?)
}

fn random<T: Float>(n: usize) -> Result<()> {
    Tensor::<T>::rand([n])?;
    Tensor::<T>::randn([n])?;
    Tensor::<i64>::randperm(n / 8).map(drop)
}

fn in_place_of_floats<T: Float>(n: usize) -> Result<()> {
    let [x, a, b] = [filled::<T>(&[n])?, filled(&[n])?, filled(&[n])?];
    x.lerp_(&a, 0.5)?;
    x.addcmul_(&a, &b, 0.5)?;
    x.addcdiv_(&a, &b, 0.5)?;
    x.sqrt_()
}

fn sgd<T: Float>(n: usize) -> Result<()> {
    let [parameter, grad, kept] = [filled::<T>(&[n])?, filled(&[n])?, filled(&[n])?];
    let tensors = SgdTensors { parameter, grad, kept: Some(kept), is_first: true };
    let rule = SgdRule { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
    no_grad(|| sgd_step([tensors], rule, &Rate::new(0.1)))
}

fn binary<T: Num>(n: usize) -> Result<()> {
    type Binary<T> = fn(&Tensor<T>, &Tensor<T>) -> Result<Tensor<T>>;
    let all: [Binary<T>; 4] = [Tensor::add, Tensor::sub, Tensor::mul, Tensor::maximum];
    for op in all {
        op(&filled(&[n])?, &filled(&[n])?)?;
        op(&filled(&[n / 64, 64])?, &filled(&[64])?)?;
        op(&filled(&[64, n / 64])?.t()?, &filled(&[64])?)?;
    }
    filled::<T>(&[n])?.add_scalar(T::ONE)?;
    filled::<T>(&[n])?.mul_scalar(T::ONE).map(drop)
}

fn reductions<T: Num>(n: usize) -> Result<()> {
    fn every<T: Num>(x: &Tensor<T>, axes: impl Axes + Copy) -> Result<()> {
        x.sum(axes)?;
        x.sum_keepdim(axes).map(drop)
    }
    for sizes in [[n / 64, 64], [64, n / 64]] {
        let x = filled::<T>(&sizes)?;
        every(&x, ..)?;
        every(&x, 0)?;
        every(&x, 1)?;
        every(&x.t()?, 1)?;
    }
    Ok(())
}

fn extremes<T: Num>(n: usize) -> Result<()> {
    for sizes in [[n / 64, 64], [64, n / 64]] {
        let x = filled::<T>(&sizes)?;
        for dim in [0, 1] {
            x.argmax(dim)?;
            x.max(dim)?;
            x.min(dim)?;
        }
    }
    Ok(())
}

fn products_of_numbers<T: Num>(n: usize) -> Result<()> {
    filled::<T>(&[32, n / 128])?.matmul(&filled(&[n / 128, 128])?)?;
    filled::<T>(&[128, n / 128])?.t()?.matmul(&filled(&[32, 128])?.t()?).map(drop)
}

fn index_add<T: Num>(n: usize) -> Result<()> {
    let index = Tensor::<i64>::zeros([n / 64])?;
    filled::<T>(&[n / 64, 64])?.index_select(0, &index)?;
    filled::<T>(&[n / 64, 64])?.gather(0, &Tensor::<i64>::zeros([n / 64, 8])?).map(drop)
}

fn in_place<T: Num>(n: usize) -> Result<()> {
    let x = filled::<T>(&[n])?;
    x.fill_(T::ONE)?;
    x.zero_()?;
    x.add_scalar_(T::ONE)?;
    x.mul_scalar_(T::ONE)?;
    x.copy_(&filled(&[n])?)?;
    x.add_scaled_(&filled(&[n])?, T::ONE)?;
    x.add_scaled_(&x, T::ONE)
}

fn arange<T: Num>(n: usize) -> Result<()> {
    filled::<T>(&[n])?.zeros_like()?;
    filled::<T>(&[n])?.full_like(T::ONE).map(drop)
}

fn views<T: Element>(n: usize) -> Result<()> {
    let x = filled::<T>(&[n / 64, 64])?;
    x.t()?.contiguous()?;
    x.t()?.reshape([-1])?;
    x.narrow(1, 3, 50)?.contiguous()?;
    x.slice(0, .., 2)?.contiguous()?;
    x.select(1, 3)?.contiguous()?;
    x.select(1, 3)?.expand([64, n / 64])?.contiguous()?;
    filled::<T>(&[n / 4096, 4, 32, 32])?.channels_last()?.contiguous().map(drop)
}

fn joins<T: Element>(n: usize) -> Result<()> {
    let x = filled::<T>(&[n / 64, 64])?;
    for dim in [0, 1] {
        Tensor::cat(&[&x, &x], dim)?;
        Tensor::stack(&[&x, &x], dim)?;
    }
    let mut map = TensorMap::new([n / 64])?;
    map.set("x", x)?;
    TensorMap::stack(&[&map, &map], 0).map(drop)
}

fn selections<T: Element>(n: usize) -> Result<()> {
    let x = filled::<T>(&[n / 64, 64])?;
    x.index_select(0, &Tensor::<i64>::zeros([n / 64])?)?;
    x.index_select(1, &Tensor::<i64>::zeros([64])?)?;
    x.gather(1, &Tensor::<i64>::zeros([n / 64, 4])?).map(drop)
}

fn creation<T: Element>(n: usize) -> Result<()> {
    Tensor::<T>::zeros([n])?;
    Tensor::<T>::ones([n])?;
    Tensor::<T>::full([n], T::ONE)?;
    let mut all = Vec::new();
    while let Some(next) = unless_refused(Tensor::<T>::zeros([n]))? {
        all.push(next);
        if all.len() * n * size_of::<T>() > 2 * super::LIMIT {
            panic!("{} tensors of {n} elements were not refused", all.len());
        }
        if n * size_of::<T>() < MIB && all.len() > 100 {
            return Ok(());
        }
    }
    Ok(())
}

fn comparisons<T: Element>(n: usize) -> Result<()> {
    let [a, b] = [filled::<T>(&[n])?, filled(&[n])?];
    for op in [Tensor::eq, Tensor::ne, Tensor::lt, Tensor::le, Tensor::gt, Tensor::ge] {
        op(&a, &b)?;
    }
    Ok(())
}

fn casts<T: Element>(n: usize) -> Result<()> {
    let x = filled::<T>(&[n])?;
    x.cast::<f64>()?;
    x.cast::<f16>()?;
    x.cast::<bool>()?;
    x.cast::<u8>()?.scaled(1.0 / 255.0).map(drop)
}

fn saving<T: Element>(n: usize) -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let mut map = TensorMap::new(())?;
    map.set("x", filled::<T>(&[n / 64, 64])?.t()?)?;
    map.save(&path)?;
    TensorMap::open(&path)?.to(&pagelock_tensor::Device::Cpu)?;
    let mut whole = TensorMap::new(())?;
    whole.set("x", filled::<T>(&[n])?)?;
    whole.set("y", filled::<T>(&[n])?)?;
    whole.consolidate().map(drop)
}

fn printing<T: Element>(n: usize) -> Result<()> {
    let text = format!("{} {:?}", filled::<T>(&[n])?, filled::<T>(&[n])?);
    assert!(text.len() < MIB);
    Ok(())
}
