//! Every kernel compiles: all of them for some element types, some for all, since types differ only in the header.

use half::{bf16, f16};
use pagelock_tensor::{Create, Device, Element, Float, Num, Result, Tensor};

use crate::common::compiler;

/// Something of everything; the results mean nothing.
fn some<T: Element>(device: &Device) -> Result<()> {
    let x = <Tensor<T> as Create<T>>::on(device).ones([4, 6])?;
    x.add(&x.t()?.contiguous()?.t()?)?.cast::<f32>()?.cast::<T>()?;
    x.eq(&x)?;
    x.fill_(T::ONE)
}

/// What all element types have.
fn all<T: Element>(device: &Device) -> Result<()> {
    let x = <Tensor<T> as Create<T>>::on(device).ones([4, 6])?;
    let y = <Tensor<T> as Create<T>>::on(device).zeros([6])?;
    x.add(&x)?;
    x.add(&y)?;
    x.t()?.add(&x.t()?)?;
    x.mul(&y)?;
    x.t()?.contiguous()?;
    <Tensor<T> as Create<T>>::on(device).ones([9, 10])?.t()?.contiguous()?;
    x.eq(&y)?;
    x.ne(&y)?;
    x.lt(&y)?;
    x.le(&y)?;
    x.gt(&y)?;
    x.ge(&y)?;
    x.cast::<f32>()?;
    x.cast::<f64>()?;
    x.cast::<f16>()?;
    x.cast::<bf16>()?;
    x.cast::<i64>()?;
    x.cast::<i32>()?;
    x.cast::<u8>()?;
    x.cast::<bool>()?;
    x.copy_(&y)?;
    x.fill_(T::ONE)
}

fn numbers<T: Num>(device: &Device) -> Result<()> {
    all::<T>(device)?;
    let x = <Tensor<T> as Create<T>>::on(device).ones([4, 6])?;
    x.sub(&x)?.maximum(&x)?;
    x.add_scalar(T::ONE)?.mul_scalar(T::ONE)?.neg()?.abs()?.sign()?;
    x.sum(..)?;
    x.sum(0)?;
    x.narrow(1, 0, 5)?.sum(0)?;
    <Tensor<T> as Create<T>>::on(device).ones([4, 4096])?.sum(1)?;
    <Tensor<T> as Create<T>>::on(device).ones([4096, 16])?.sum(0)?;
    x.max(1)?;
    x.min(..)?;
    x.argmax(0)?;
    x.add_(&x)?;
    x.sub_(&x)?;
    x.mul_(&x)?;
    x.add_scalar_(T::ONE)?;
    x.mul_scalar_(T::ONE)?;
    x.add_scaled_(&x, T::ONE)
}

fn floats<T: Float>(device: &Device) -> Result<()> {
    numbers::<T>(device)?;
    let x = <Tensor<T> as Create<T>>::on(device).ones([4, 6])?;
    x.exp()?.log()?.sqrt()?.tanh()?.sigmoid()?.relu()?.pow(2.5)?.div(&x)?;
    x.mean(0)?;
    x.var(1)?;
    let x = x.set_requires_grad(true);
    (&x / T::ONE)?
        .maximum(&x)?
        .relu()?
        .pow(3.0)?
        .backward_with(pagelock_tensor::autograd::Backward { gradient: Some(x.detach()), ..Default::default() })?;
    let x = x.detach();
    x.addcmul_(&x, &x, 2.0)?;
    x.addcdiv_(&x, &x, 2.0)?;
    x.sqrt_()?;
    x.div_(&x)
}

#[test]
fn every_kernel_compiles() {
    let Some(device) = compiler() else { return };
    floats::<f32>(&device).unwrap();
    floats::<f16>(&device).unwrap();
    numbers::<i64>(&device).unwrap();
    some::<f64>(&device).unwrap();
    some::<bf16>(&device).unwrap();
    some::<i32>(&device).unwrap();
    some::<u8>(&device).unwrap();
    some::<bool>(&device).unwrap();
}
