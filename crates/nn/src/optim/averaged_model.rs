//! [`AveragedModel`]: a model whose weights are averages of another's over its training.

use crate::{Counter, Error, Forward, Module, Result};
use pagelock_tensor::optimizer_steps::{AverageRule, Rate, StepTensors};
use pagelock_tensor::{self as tensor, AnyTensor, Tensor, copy_all_, no_grad};

/// Averages of a model's weights, as PyTorch's `torch.optim.swa_utils.AveragedModel`: their mean (stochastic weight
/// averaging), or an exponential moving average ([`ema`](Self::ema)). They often generalize better than the last
/// weights.
///
/// The first [`update_parameters`](Self::update_parameters) copies the weights `w`. After `n` updates, the next one
/// does `a ← a + (w − a) / (n + 1)`, or with [`ema`](Self::ema) `a ← a + (1 − decay) · (w − a)`. One kernel updates
/// many tensors, and nothing waits for a GPU, so an update may be part of a captured step. Buffers, such as running
/// means of norms, are copied, unless [`use_buffers`](Self::use_buffers) averages them too.
///
/// P. Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018,
/// <https://arxiv.org/abs/1803.05407>. [`SwaLr`](super::lr_scheduler::SwaLr) is the schedule for it.
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, Linear, Module, optim::{AveragedModel, Optimizer, Sgd}};
/// use pagelock_tensor::Tensor;
///
/// let model = Linear::new(3, 1)?;
/// let averaged = AveragedModel::new(Linear::new(3, 1)?)?.ema(0.99); // of another model like it
/// let mut opt = Sgd::new(model.parameters(), 0.1);
/// for _ in 0..10 {
///     model.forward(&Tensor::ones([4, 3])?)?.pow(2.0)?.mean(..)?.backward()?;
///     opt.step()?;
///     opt.zero_grad();
///     averaged.update_parameters(&model)?;
/// }
/// let y = averaged.forward(&Tensor::ones([4, 3])?)?;
/// # assert_eq!(y.dims(), [4, 1]);
/// # Ok::<(), pagelock_nn::Error>(())
/// ```
#[derive(Module)]
pub struct AveragedModel<M: Module> {
    /// The model with the averages.
    pub module: M,
    /// The number of updates so far.
    pub n_averaged: Counter,
    #[module(skip)]
    averaging: Averaging,
}

/// How the averages are updated.
struct Averaging {
    decay: Option<f64>,
    use_buffers: bool,
    rate: Rate, // not used by the rule, but every kernel takes a rate
}

impl<M: Module> AveragedModel<M> {
    /// Averages by the mean, in `module`: a separate model with the structure of the averaged one. Its weights are
    /// overwritten.
    ///
    /// # Errors
    /// [`Error::Tensor`] if a count does not fit the memory budget.
    pub fn new(module: M) -> Result<Self> {
        let averaging = Averaging { decay: None, use_buffers: false, rate: Rate::new(0.0) };
        let n_averaged = match module.parameters().first() {
            Some(parameter) => Module::to(Counter::new()?, &parameter.device())?,
            None => Counter::new()?,
        };
        Ok(Self { module, n_averaged, averaging })
    }

    /// Takes an exponential moving average, which decays by the factor `decay`, from 0 to 1, in each update.
    #[must_use]
    pub fn ema(mut self, decay: f64) -> Self {
        self.averaging.decay = Some(decay);
        self
    }

    /// Averages buffers of floats too.
    #[must_use]
    pub fn use_buffers(mut self, use_buffers: bool) -> Self {
        self.averaging.use_buffers = use_buffers;
        self
    }

    /// Adds the current weights of `model` to the averages.
    ///
    /// # Errors
    /// [`Error::Argument`] if the models differ in the number or shapes of their parameters or buffers, or the decay
    /// is not from 0 to 1; [`Error::Tensor`] if there is not enough memory for copies between devices. Nothing is
    /// changed then.
    pub fn update_parameters<N: Module>(&self, model: &N) -> Result<()> {
        let averages = NamedTensors { parameters: named_tensors(&self.module), buffers: self.module.named_buffers() };
        let new = NamedTensors { parameters: named_tensors(model), buffers: model.named_buffers() };
        self.averaging.update(averages, new, &self.n_averaged)
    }
}

impl<M: Module + Forward> Forward for AveragedModel<M> {
    fn forward(&self, x: &Tensor) -> tensor::Result<Tensor> {
        self.module.forward(x)
    }
}

fn named_tensors<M: Module>(model: &M) -> Vec<(String, AnyTensor)> {
    let mut all = Vec::new();
    for (name, parameter) in model.named_parameters() {
        all.push((name, parameter.as_tensor().into()));
    }
    all
}

/// The tensors of a model, by name.
struct NamedTensors {
    parameters: Vec<(String, AnyTensor)>,
    buffers: Vec<(String, AnyTensor)>,
}

impl Averaging {
    fn update(&self, averages: NamedTensors, new: NamedTensors, count: &Counter) -> Result<()> {
        if let Some(decay) = self.decay {
            super::groups::check((0.0..=1.0).contains(&decay), "AveragedModel", "decay", decay, "from 0 to 1")?;
        }
        let mut pairs = paired("parameters", &averages.parameters, &new.parameters)?;
        let mut copied = paired("buffers", &averages.buffers, &new.buffers)?;
        if self.use_buffers {
            pairs.extend(copied.extract_if(.., |(average, _)| average.dtype().is_float()));
        }
        no_grad(|| {
            let tensors = pairs.into_iter().map(|(average, new)| averaged(average, new));
            let tensors = tensors.collect::<tensor::Result<Vec<_>>>()?;
            copy_all_(&copied)?; // all or none
            AverageRule { decay: self.decay }.step(tensors, count, &self.rate)
        })?;
        Ok(count.increment()?)
    }
}

/// The tensors of a step that averages `new` into `average`.
fn averaged(average: &AnyTensor, new: &AnyTensor) -> tensor::Result<StepTensors> {
    let parameter = average.float()?;
    let grad = new.float()?.detach().to_dtype(parameter.dtype())?.to(&parameter.device())?;
    Ok(StepTensors { parameter, grad, half_copy: None, state: [None, None, None], clock: None, is_first: false })
}

/// Pairs the tensors of both models by position, if their number and shapes are the same.
fn paired<'a>(
    what: &str,
    averages: &'a [(String, AnyTensor)],
    new: &'a [(String, AnyTensor)],
) -> Result<Vec<(&'a AnyTensor, &'a AnyTensor)>> {
    let fix = "average a model of the same structure";
    if averages.len() != new.len() {
        let (n_averages, n_new) = (averages.len(), new.len());
        let problem = format!("the averaged model has {n_averages} {what}, but the model has {n_new}");
        return Err(Error::Argument(format!("AveragedModel: {problem}; {fix}")));
    }
    let pairs = averages.iter().zip(new);
    let misfit = pairs.clone().find(|((_, average), (_, new))| average.shape() != new.shape());
    if let Some(((name, average), (other, new))) = misfit {
        let problem = format!("`{name}` is {}, but the model's `{other}` is {}", average.shape(), new.shape());
        return Err(Error::Argument(format!("AveragedModel: {problem}; {fix}")));
    }
    Ok(pairs.map(|((_, average), (_, new))| (average, new)).collect())
}
