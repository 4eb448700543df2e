//! Every kernel compiles: all of them for some element types, some for all. A text may differ between floats and halves.

use half::{bf16, f16};
use pagelock_tensor::descent::{AdamRule, AdamTensors, Rate, SgdRule, SgdTensors, adam_step, sgd_step};
use pagelock_tensor::{
    BatchNormOptions, Conv2dOptions, Create, Device, Element, Float, Generator, Num, Pool2dOptions, Reduction, Result,
    Tensor,
};

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
    let index = <Tensor<i64> as Create<i64>>::on(device).zeros([2])?;
    x.index_select(0, &index)?;
    x.gather(1, &index.unsqueeze(0)?)?;
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
    x.matmul(&x.t()?)?;
    let large = <Tensor<T> as Create<T>>::on(device).ones([640, 640])?;
    large.matmul(&large)?;
    x.add_(&x)?;
    x.sub_(&x)?;
    x.mul_(&x)?;
    x.add_scalar_(T::ONE)?;
    x.mul_scalar_(T::ONE)?;
    x.add_scaled_(&x, T::ONE)
}

/// What networks are made of, forth and back.
fn networks<T: Float>(device: &Device) -> Result<()> {
    let on = || <Tensor<T> as Create<T>>::on(device);
    let variable = |shape: &[usize]| Ok::<_, pagelock_tensor::Error>(on().rand(shape)?.set_requires_grad(true));
    let labels = <Tensor<i64> as Create<i64>>::on(device).zeros([8])?;
    let (small, bias) = (variable(&[8, 4, 12, 12])?, variable(&[4])?);
    let geometry = Conv2dOptions::new().padding(1).stride(2);
    let features = small.conv2d(&variable(&[4, 4, 3, 3])?, Some(&bias), geometry)?;
    let features = features.add(&small.conv2d_relu(&variable(&[4, 4, 3, 3])?, Some(&bias), geometry)?)?;
    let pooled = features.max_pool2d(Pool2dOptions::new(2))?.avg_pool2d(Pool2dOptions::new(2))?;
    let scores = pooled.adaptive_avg_pool2d([1, 1])?.flatten(1, -1)?.dropout(0.5, &Generator::new(1))?;
    scores.cross_entropy(&labels, Reduction::Mean)?.backward()?;
    let losses = variable(&[8, 3])?.cross_entropy(&labels, Reduction::None)?;
    losses.add(&variable(&[8, 3])?.softmax(-1)?.nll_loss(&labels, Reduction::None)?)?.sum(..)?.backward()?;
    // Planes too large to be kept, and many results.
    variable(&[1, 1, 300, 300])?.conv2d(&variable(&[2, 1, 3, 3])?, None, geometry)?.sum(..)?.backward()?;
    let wide = variable(&[1, 200, 4, 4])?.conv2d(&variable(&[200, 200, 3, 3])?, None, geometry)?;
    wide.log_softmax(1)?.sum(..)?.backward()?;
    on().randn([3])?;
    normalizations::<T>(device)
}

/// Rows that are kept and rows that are not, channels in planes and in rows, with and without what there may be.
fn normalizations<T: Float>(device: &Device) -> Result<()> {
    let on = || <Tensor<T> as Create<T>>::on(device);
    let variable = |shape: &[usize]| Ok::<_, pagelock_tensor::Error>(on().rand(shape)?.set_requires_grad(true));
    for n in [6, 1000, 40_000] {
        let (x, weight, bias) = (variable(&[3, n])?, variable(&[n])?, variable(&[n])?);
        x.layer_norm(n, Some(&weight), Some(&bias), 1e-5)?.softmax(1)?.log_softmax(1)?.sum(..)?.backward()?;
        x.layer_norm(n, None, None, 1e-5)?.sum(..)?.backward()?;
    }
    let (weight, bias) = (variable(&[6])?, variable(&[6])?);
    let running = [on().zeros(6)?, on().ones(6)?];
    for x in [variable(&[4, 6, 3, 5])?, variable(&[4, 6])?, variable(&[4, 5, 2, 6])?.permute([0, 3, 1, 2])?] {
        for training in [true, false] {
            let options = BatchNormOptions { training, ..Default::default() };
            let running = Some(running.each_ref());
            x.batch_norm(running, Some(&weight), Some(&bias), options)?.sum(..)?.backward()?;
            x.batch_norm_relu(running, None, None, options)?.sum(..)?.backward()?;
        }
    }
    Ok(())
}

/// Steps of optimizers.
fn descents<T: Float>(device: &Device) -> Result<()> {
    let some = || <Tensor<T> as Create<T>>::on(device).ones([4, 6]);
    let (parameter, grad, lr) = (some()?, some()?, Rate::new(0.1));
    let rule = SgdRule { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
    let tensors = SgdTensors { parameter: parameter.clone(), grad: grad.clone(), kept: Some(some()?), is_first: false };
    sgd_step([tensors], rule, &lr)?;
    let rule = AdamRule { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0, is_decoupled: false };
    let steps = <Tensor<f64> as Create<f64>>::on(device).ones(())?;
    adam_step([AdamTensors { parameter, grad, mean: some()?, square: some()?, steps }], rule, &lr)
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
    networks::<T>(device)?;
    descents::<T>(device)?;
    Tensor::on(device).ones([4, 6])?.cast::<u8>()?.scaled(0.5)?;
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
    networks::<f64>(&device).unwrap();
    some::<bf16>(&device).unwrap();
    some::<i32>(&device).unwrap();
    some::<u8>(&device).unwrap();
    some::<bool>(&device).unwrap();
}
