//! Random numbers of other distributions, made from those of `rand` and `randn`; and evenly spaced numbers.

use super::TensorOptions;
use super::range::spaced;
use crate::autograd::no_grad;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::kind::{Float, Int};
use crate::random::{self, Generator};
use crate::shape::{IntoShape, Shape};
use crate::tensor::{Raw, Tensor};

impl Tensor<Int> {
    /// Random integers from `low` on, below `high`, from the default generator.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no such integer; as [`Tensor::zeros`].
    pub fn randint(low: i64, high: i64, shape: impl IntoShape) -> Result<Tensor<Int>> {
        Tensor::randint_with(low, high, shape, random::default_generator())
    }

    /// Random integers from `low` on, below `high`, with this tensor's shape and precision, on its device, from the
    /// default generator.
    ///
    /// # Errors
    /// As [`Tensor::randint`].
    pub fn randint_like(&self, low: i64, high: i64) -> Result<Tensor<Int>> {
        Tensor::randint(low, high, self.dims())?.to_dtype(self.dtype())?.to(&self.device())
    }

    /// Random integers from `low` on, below `high`, from `generator`.
    ///
    /// # Errors
    /// As [`Tensor::randint`].
    pub fn randint_with(low: i64, high: i64, shape: impl IntoShape, generator: &Generator) -> Result<Tensor<Int>> {
        if low >= high {
            return Err(Error::bad_argument("randint", "high", high, format!("it must be above low, which is {low}")));
        }
        let count = high.wrapping_sub(low) as u64;
        Tensor::build(shape, |numbers: &mut [i64]| generator.fill_below(count, numbers, |n| low.wrapping_add(n as i64)))
    }
}

impl Tensor {
    /// Random numbers from the normal distribution with this mean and standard deviation, by the default generator.
    ///
    /// # Errors
    /// [`Error::Argument`] for a negative deviation; as [`Tensor::zeros`].
    pub fn normal(mean: f64, std: f64, shape: impl IntoShape) -> Result<Tensor> {
        Tensor::normal_with(mean, std, shape, random::default_generator())
    }

    /// Random numbers from the normal distribution with this mean and standard deviation, by `generator`.
    ///
    /// # Errors
    /// As [`Tensor::normal`].
    pub fn normal_with(mean: f64, std: f64, shape: impl IntoShape, generator: &Generator) -> Result<Tensor> {
        if std < 0.0 || std.is_nan() {
            return Err(Error::bad_argument("normal", "std", std, "it must be at least 0"));
        }
        TensorOptions::CPU.randn_with(shape, generator)?.mul_scalar(std)?.add_scalar(mean)
    }

    /// Uniform random numbers in [0, 1), with this tensor's shape and precision, on its device, from the default
    /// generator.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn rand_like(&self) -> Result<Tensor> {
        Tensor::on(&self.device()).of(self.dtype()).rand(self.shape())
    }

    /// Random numbers from the normal distribution with mean 0 and variance 1, with this tensor's shape and
    /// precision, on its device, by the default generator.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn randn_like(&self) -> Result<Tensor> {
        Tensor::on(&self.device()).of(self.dtype()).randn(self.shape())
    }

    /// For each element, 1 with a probability of that element, else 0, from the default generator. The result has no
    /// gradient.
    ///
    /// # Errors
    /// [`Error::Memory`] if the result does not fit the budget.
    pub fn bernoulli(&self) -> Result<Tensor> {
        self.bernoulli_with(random::default_generator())
    }

    /// [`bernoulli`](Tensor::bernoulli) from `generator`.
    ///
    /// # Errors
    /// As [`Tensor::bernoulli`].
    pub fn bernoulli_with(&self, generator: &Generator) -> Result<Tensor> {
        let wide = self.dtype().computing(); // halves would round numbers up to 1
        let drawn = Tensor::on(&self.device()).of(wide).rand_with(self.shape(), generator)?;
        drawn.lt(&self.detach().to_dtype(wide)?)?.to_float_of(self.dtype())
    }

    /// Draws `samples` indices along the last dimension for each row, with probabilities proportional to the row's
    /// elements, from the default generator.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let weights = Tensor::new([[0.0, 3.0], [1.0, 0.0]])?;
    /// assert_eq!(weights.multinomial(2, true)?.to_vec::<i64>()?, [1, 1, 0, 0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the tensor is not a vector or a matrix, if its rows have no elements, and without
    /// `replacement` for more samples than elements. On the CPU also for elements that are negative or NaN, and for
    /// rows whose sum is 0 or infinite; a device does not check these, and gives arbitrary indices.
    pub fn multinomial(&self, samples: usize, replacement: bool) -> Result<Tensor<Int>> {
        self.multinomial_with(samples, replacement, random::default_generator())
    }

    /// [`multinomial`](Tensor::multinomial) from `generator`.
    ///
    /// # Errors
    /// As [`Tensor::multinomial`].
    pub fn multinomial_with(&self, samples: usize, replacement: bool, generator: &Generator) -> Result<Tensor<Int>> {
        const OP: &str = "multinomial";
        let wrong_shape = |expected| Err(Error::wrong_shape(OP, "the tensor", self.shape(), expected));
        let classes = match self.dims() {
            [.., 0] if self.rank() <= 2 => return wrong_shape("its rows must have elements"),
            &[classes] | &[_, classes] => classes,
            _ => return wrong_shape("it must have one or two dimensions; reshape it"),
        };
        if !replacement && samples > classes {
            let expected = format!("without replacement, at most {classes} can be drawn from {}", self.shape());
            return Err(Error::bad_argument(OP, "samples", samples, expected));
        }
        no_grad(|| {
            let weights = self.detach().to_dtype(DType::F64)?;
            let sums = weights.cumsum(-1)?;
            let total = sums.narrow(-1, classes - 1, 1)?;
            if self.device().is_cpu() {
                let are_weights = weights.ge_scalar(0.0)?.all(..)?.item::<bool>()?;
                let are_sums = total.gt_scalar(0.0)?.logical_and(&total.isfinite()?)?.all(..)?.item::<bool>()?;
                if !are_weights || !are_sums {
                    return wrong_shape("its elements must be at least 0, and each row needs a finite sum above 0");
                }
            }
            let uniform = |shape: Shape| Tensor::on(&self.device()).of(DType::F64).rand_with(shape, generator);
            if !replacement {
                return Ok(weights.exponential_race(&uniform(*self.shape())?)?.topk(samples, -1, true)?.1);
            }
            // The first index whose cumulative sum reaches a number that is above zero and at most the total.
            let drawn = uniform(self.shape().with(self.rank() - 1, samples))?;
            let reached = drawn.neg()?.add_scalar(1.0)?.mul(&total)?.clamp_min(f64::from_bits(1))?;
            sums.searchsorted(&reached, false)?.clamp_max(classes as i64 - 1)
        })
    }
}

impl Tensor {
    /// `steps` numbers from `start` to `end`, both included, at equal distances.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::linspace(0.0, 1.0, 5)?.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75, 1.0]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn linspace(start: f64, end: f64, steps: usize) -> Result<Tensor> {
        TensorOptions::CPU.linspace(start, end, steps)
    }

    /// `base` to the power of each number of [`linspace`](Tensor::linspace).
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn logspace(start: f64, end: f64, steps: usize, base: f64) -> Result<Tensor> {
        TensorOptions::CPU.logspace(start, end, steps, base)
    }
}

impl TensorOptions<'_> {
    /// `steps` numbers from `start` to `end`; see [`Tensor::linspace`].
    ///
    /// # Errors
    /// As [`TensorOptions::zeros`].
    pub fn linspace(self, start: f64, end: f64, steps: usize) -> Result<Tensor> {
        let dtype = self.dtype::<Float>("linspace")?;
        spaced("linspace", (self.device, dtype), ([start, end], steps), None).map(Raw::typed)
    }

    /// `base` to the power of each number of [`linspace`](Tensor::linspace).
    ///
    /// # Errors
    /// As [`TensorOptions::zeros`].
    pub fn logspace(self, start: f64, end: f64, steps: usize, base: f64) -> Result<Tensor> {
        let dtype = self.dtype::<Float>("logspace")?;
        spaced("logspace", (self.device, dtype), ([start, end], steps), Some(base)).map(Raw::typed)
    }
}
