//! Every kernel compiles: all kernels for some element types, some kernels for all. The source of a kernel may differ
//! between floats and halves.

use pagelock_tensor::optimizer_steps::{
    AdadeltaRule, AdagradRule, AdamRule, AdamaxRule, AsgdRule, AverageRule, LionRule, NAdamRule, RAdamRule, Rate,
    RmsPropRule, SgdRule, StepTensors, clip_grad_norm_, clip_grad_value_,
};
use pagelock_tensor::{
    BatchNormOptions, Bool, Conv2dOptions, DType, Device, Float, Generator, Int, Kind, Number, Numeric, Pool2dOptions,
    Recurrence, RecurrentLayer, Reduction, Result, ScatterReduce, Steps, Tensor,
};

use crate::common::{compiler, ones, same_kind};

/// A few operations on ones, whose results mean nothing.
fn some<K: Kind>(device: &Device, dtype: DType) -> Result<Tensor<K>> {
    let x = ones::<K>(device, dtype, &[4, 6])?;
    x.add(&x.t()?.contiguous()?.t()?)?.to_float()?;
    x.eq(&x)?;
    ones(device, dtype, &[4, 6])
}

/// Operations that all element types have.
fn all<K: Kind>(device: &Device, dtype: DType) -> Result<()> {
    let (x, y) = (ones::<K>(device, dtype, &[4, 6])?, ones::<K>(device, dtype, &[6])?.zeros_like()?);
    x.add(&x)?;
    x.add(&y)?;
    x.t()?.add(&x.t()?)?;
    x.mul(&y)?;
    x.t()?.contiguous()?;
    ones::<K>(device, dtype, &[9, 10])?.t()?.contiguous()?;
    x.eq(&y)?;
    x.ne(&y)?;
    x.lt(&y)?;
    x.le(&y)?;
    x.gt(&y)?;
    x.ge(&y)?;
    same_kind(dtype).iter().try_for_each(|&other| x.to_dtype(other).map(drop))?;
    x.to_float()?;
    x.to_int()?;
    x.to_bool()?;
    let index = Tensor::on(device).full([2], 0)?;
    x.index_select(0, &index)?;
    if dtype.is_float() {
        let variable = x.to_float()?.detach().set_requires_grad(true);
        variable.index_select(0, &index)?.sum(..)?.backward()?;
        let lines = ones::<Float>(device, dtype, &[2, 300])?.set_requires_grad(true);
        lines.gather(1, &Tensor::on(device).full([2, 300], 0)?)?.sum(..)?.backward()?;
    }
    x.gather(1, &index.unsqueeze(0)?)?;
    x.scatter(1, &index.unsqueeze(0)?, &x)?;
    x.copy_(&y)
}

fn numbers<K: Numeric>(device: &Device, dtype: DType) -> Result<()>
where
    i32: Number<K>,
{
    all::<K>(device, dtype)?;
    let x = ones::<K>(device, dtype, &[4, 6])?;
    x.fill_(1)?;
    x.sub(&x)?.maximum(&x)?;
    x.add_scalar(1)?.mul_scalar(1)?.neg()?.abs()?.sign()?;
    x.sum(..)?;
    x.sum(0)?;
    x.narrow(1, 0, 5)?.sum(0)?;
    ones::<K>(device, dtype, &[4, 4096])?.sum(1)?;
    ones::<K>(device, dtype, &[4096, 16])?.sum(0)?;
    x.max(1)?;
    x.min(..)?;
    x.argmax(0)?;
    x.prod(1)?;
    x.sort(0, false)?;
    ones::<K>(device, dtype, &[2, 1024])?.topk(5, 1, true)?;
    x.matmul(&x.t()?)?;
    let index = Tensor::on(device).full([1, 2], 0)?;
    for reduce in [ScatterReduce::Prod, ScatterReduce::Amax, ScatterReduce::Amin] {
        x.scatter_reduce(1, &index, &x, reduce, true)?;
    }
    let large = ones::<K>(device, dtype, &[640, 640])?;
    large.matmul(&large)?;
    x.add_(&x)?;
    x.sub_(&x)?;
    x.mul_(&x)?;
    x.add_scalar_(1)?;
    x.mul_scalar_(1)?;
    x.add_scaled_(&x, 1)
}

/// The operations of networks, forward and backward.
fn networks(device: &Device, dtype: DType) -> Result<()> {
    let on = || Tensor::on(device).of(dtype);
    let variable = |shape: &[usize]| Ok::<_, pagelock_tensor::Error>(on().rand(shape)?.set_requires_grad(true));
    let labels = Tensor::on(device).full([8], 0)?;
    let (small, bias) = (variable(&[8, 4, 12, 12])?, variable(&[4])?);
    let geometry = Conv2dOptions::new().padding(1).stride(2);
    let features = small.conv2d(&variable(&[4, 4, 3, 3])?, Some(&bias), geometry)?;
    let features = features.add(&small.conv2d_relu(&variable(&[4, 4, 3, 3])?, Some(&bias), geometry)?)?;
    let pooled = features.max_pool2d(Pool2dOptions::new(2))?.avg_pool2d(Pool2dOptions::new(2))?;
    let scores = pooled.adaptive_avg_pool2d([1, 1])?.flatten(1, -1)?.dropout(0.5, &Generator::new(1))?;
    scores.cross_entropy(&labels, Reduction::Mean)?.backward()?;
    let losses = variable(&[8, 3])?.cross_entropy(&labels, Reduction::None)?;
    variable(&[2, 640, 64])?.linear(&variable(&[640, 64])?, Some(&variable(&[640])?))?.sum(..)?.backward()?;
    losses.add(&variable(&[8, 3])?.softmax(-1)?.nll_loss(&labels, Reduction::None)?)?.sum(..)?.backward()?;
    // Planes too large for shared memory, and many output channels.
    variable(&[1, 1, 300, 300])?.conv2d(&variable(&[2, 1, 3, 3])?, None, geometry)?.sum(..)?.backward()?;
    let wide = variable(&[1, 200, 4, 4])?.conv2d(&variable(&[200, 200, 3, 3])?, None, geometry)?;
    wide.log_softmax(1)?.sum(..)?.backward()?;
    on().randn([3])?;
    normalizations(device, dtype)
}

/// Normalizations of rows that fit in registers and rows that do not, of channels in planes and in rows, with and
/// without weight and bias.
fn normalizations(device: &Device, dtype: DType) -> Result<()> {
    let on = || Tensor::on(device).of(dtype);
    let variable = |shape: &[usize]| Ok::<_, pagelock_tensor::Error>(on().rand(shape)?.set_requires_grad(true));
    for n in [6, 1000, 40_000] {
        let (x, weight, bias) = (variable(&[3, n])?, variable(&[n])?, variable(&[n])?);
        x.layer_norm(n, Some(&weight), Some(&bias), 1e-5)?.softmax(1)?.log_softmax(1)?.sum(..)?.backward()?;
        x.layer_norm(n, None, None, 1e-5)?.sum(..)?.backward()?;
        x.rms_norm(n, Some(&weight), None)?.add(&x.rms_norm(n, None, None)?)?.sum(..)?.backward()?;
    }
    let (weight, bias) = (variable(&[6])?, variable(&[6])?);
    let [wide_weight, wide_bias] =
        [&weight, &bias].map(|x| x.detach().to_dtype(if dtype.size() == 2 { DType::F32 } else { dtype }));
    let (wide_weight, wide_bias) = (wide_weight?.set_requires_grad(true), wide_bias?.set_requires_grad(true));
    let running = [on().zeros(6)?, on().ones(6)?];
    for x in [variable(&[4, 6, 3, 5])?, variable(&[4, 6])?, variable(&[4, 5, 2, 6])?.permute([0, 3, 1, 2])?] {
        for training in [true, false] {
            let options = BatchNormOptions { training, ..Default::default() };
            let running = Some(running.each_ref());
            x.batch_norm(running, Some(&weight), Some(&bias), options)?.sum(..)?.backward()?;
            x.batch_norm_relu(running, Some(&wide_weight), Some(&wide_bias), options)?.sum(..)?.backward()?;
            x.batch_norm_relu(running, None, None, options)?.sum(..)?.backward()?;
        }
    }
    Ok(())
}

/// Recurrent layers of all kinds, and their gradients.
fn recurrent(device: &Device, dtype: DType) -> Result<()> {
    for kind in [Recurrence::Tanh, Recurrence::Relu, Recurrence::Lstm, Recurrence::Gru] {
        let new = |shape: [usize; 2]| Tensor::on(device).of(dtype).ones(shape).map(|x| x.set_requires_grad(true));
        let rows = kind.gates() * 4;
        let (x, weight_ih, weight_hh, h0) = (new([6, 3])?, new([rows, 3])?, new([rows, 4])?, new([3, 4])?);
        let bias = new([1, rows])?.squeeze(0)?;
        let layer = RecurrentLayer::new(kind, &weight_ih, &weight_hh).bias(Some([&bias, &bias]));
        let (h, c) = layer.run(&x, &Steps::packed(&[3, 2, 1])?, Some(&h0), None)?;
        h.sum(..)?.backward()?;
        assert_eq!(c.is_some(), kind == Recurrence::Lstm);
        layer.reverse(true).run(&x, &Steps::packed(&[3, 2, 1])?, Some(&h0), None)?.0.sum(..)?.backward()?;
        layer.run(&x, &Steps::even(2, 3), Some(&h0), None)?.0.sum(..)?.backward()?;
    }
    Ok(())
}

/// Steps of optimizers, also of halves with `f32` masters, and clipping of gradients.
fn optimizer_steps(device: &Device, dtype: DType) -> Result<()> {
    let some = || Tensor::on(device).of(dtype).ones([4, 6]);
    steps(some()?, None, some()?)?;
    if dtype.size() == 2 {
        steps(some()?.to_dtype(DType::F32)?, Some(some()?), some()?)?;
    }
    clip_grad_value_([some()?, some()?], 1.0)?;
    clip_grad_norm_([some()?, some()?], 1.0).map(drop)
}

fn steps(parameter: Tensor, half: Option<Tensor>, grad: Tensor) -> Result<()> {
    let (device, lr) = (parameter.device(), Rate::new(0.1));
    let clock = Tensor::on(&device).of(DType::F64).ones([3])?;
    let keeping = |keeps: [bool; 3]| -> Result<[StepTensors; 1]> {
        let mut state = [const { None }; 3];
        for (state, _) in state.iter_mut().zip(keeps).filter(|(_, keeps)| *keeps) {
            *state = Some(parameter.ones_like()?);
        }
        let (parameter, grad, half, clock) = (parameter.clone(), grad.clone(), half.clone(), Some(clock.clone()));
        Ok([StepTensors { parameter, grad, half_copy: half, state, clock, is_first: false }])
    };
    let (one, two) = (|| keeping([true, false, false]), || keeping([true, true, false]));
    let (betas, eps, weight_decay, is_decoupled, maximize) = ([0.9, 0.999], 1e-8, 0.1, false, false);
    SgdRule { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay, is_decoupled, maximize }
        .step(one()?, &lr)?;
    for amsgrad in [false, true] {
        let rule = AdamRule { betas, eps, weight_decay, is_decoupled, amsgrad, maximize };
        rule.step(keeping([true, true, amsgrad])?, &lr)?;
    }
    for (centered, momentum) in [(false, 0.0), (true, 0.0), (true, 0.9)] {
        let rule = RmsPropRule { alpha: 0.99, eps, weight_decay, momentum, centered, maximize };
        rule.step(keeping([true, centered, momentum > 0.0])?, &lr)?;
    }
    AdagradRule { lr_decay: 0.1, eps, weight_decay, maximize }.step(one()?, &lr)?;
    AdadeltaRule { rho: 0.9, eps, weight_decay, maximize }.step(two()?, &lr)?;
    AdamaxRule { betas, eps, weight_decay, maximize }.step(two()?, &lr)?;
    let nadam = NAdamRule { betas, eps, weight_decay, is_decoupled, momentum_decay: 0.004, maximize };
    nadam.advance(&clock)?;
    nadam.step(two()?, &lr)?;
    RAdamRule { betas, eps, weight_decay, is_decoupled, maximize }.step(two()?, &lr)?;
    let asgd = AsgdRule { lambd: 1e-4, alpha: 0.75, t0: 1.0, weight_decay, maximize };
    asgd.step(one()?, &lr)?;
    asgd.anneal(&clock, &lr)?;
    LionRule { betas, weight_decay, maximize }.step(one()?, &lr)?;
    AverageRule { decay: None }.step(keeping([false; 3])?, &Tensor::on(&device).full((), 0)?, &lr)
}

fn floats(device: &Device, dtype: DType) -> Result<()> {
    numbers::<Float>(device, dtype)?;
    let x = Tensor::on(device).of(dtype).ones([4, 6])?;
    x.exp()?.log()?.sqrt()?.tanh()?.sigmoid()?.relu()?.pow(2.5)?.div(&x)?.gelu_tanh()?;
    x.logaddexp(&x)?.hypot(&x)?;
    x.mean(0)?;
    x.var(1)?;
    let x = x.set_requires_grad(true);
    (&x / 1.0)?
        .maximum(&x)?
        .gelu_tanh()?
        .relu()?
        .pow(3.0)?
        .backward_with(pagelock_tensor::autograd::Backward { gradient: Some(x.detach()), ..Default::default() })?;
    let x = x.detach();
    networks(device, dtype)?;
    optimizer_steps(device, dtype)?;
    ones::<Int>(device, DType::U8, &[4, 6])?.scaled(0.5)?;
    x.addcmul_(&x, &x, 2.0)?;
    x.addcdiv_(&x, &x, 2.0)?;
    x.sqrt_()?;
    x.clamp_(-1.0, 1.0)?;
    x.div_(&x)
}

#[test]
fn every_kernel_compiles() {
    let Some(device) = compiler() else { return };
    floats(&device, DType::F32).unwrap();
    floats(&device, DType::F16).unwrap();
    [DType::F32, DType::F64, DType::BF16].iter().for_each(|&dtype| recurrent(&device, dtype).unwrap());
    numbers::<Int>(&device, DType::I64).unwrap();
    some::<Float>(&device, DType::F64).unwrap().fill_(1.0).unwrap();
    networks(&device, DType::F64).unwrap();
    some::<Float>(&device, DType::BF16).unwrap().fill_(1.0).unwrap();
    some::<Int>(&device, DType::I32).unwrap().fill_(1).unwrap();
    some::<Int>(&device, DType::U8).unwrap().fill_(1).unwrap();
    all::<Bool>(&device, DType::Bool).unwrap();
    some::<Bool>(&device, DType::Bool).unwrap().fill_(true).unwrap();
}
