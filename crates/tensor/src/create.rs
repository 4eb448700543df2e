//! Making tensors: from data, constants, ranges and random numbers.
//!
//! The kind of a tensor comes from the numbers that it is made of. Without numbers (`zeros`, `rand`), it is a float.
//! `new`, `full`, `scalar` and `arange` give the default precision of the kind, so that literals need no suffix;
//! [`Tensor::from_slice`] keeps the precision of the data. [`Tensor::on`] and [`Tensor::of`] choose device and
//! precision.

mod like;
mod nested;
mod range;
mod samples;

pub use self::nested::NestedArray;
use self::nested::nested;
use self::range::range;
use crate::cuda::{CudaDevice, CudaOut, Formula, constant};
use crate::device::Device;
use crate::element::{DType, Element, Scalar};
use crate::error::{Error, Result};
use crate::inlined::{Array, Slice};
use crate::kind::{ElementOf, Facts, Float, Int, Kind, Number, Numeric, facts};
use crate::ops::cast;
use crate::profiler;
use crate::random::{self, Draw, Generator};
use crate::shape::{IntoShape, Shape};
use crate::storage::{Fresh, FreshCuda};
use crate::tensor::{Raw, Tensor, by_dtype, by_real};

impl<K: Kind> Tensor<K> {
    /// A tensor of nested arrays of numbers: `float32` for floats ([`default_dtype`](crate::default_dtype)), `int64`
    /// for integers, `bool` for truth values.
    ///
    /// ```
    /// # use pagelock_tensor::{DType, Tensor};
    /// assert_eq!(Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?.shape(), &[2, 3]);
    /// assert_eq!(Tensor::new([3, 1, 4])?.dtype(), DType::I64);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if rows differ in length.
    pub fn new<A>(data: A) -> Result<Tensor<K>>
    where
        A: NestedArray,
        A::Element: ElementOf<K>,
    {
        Ok(nested(&data, K::default_dtype())?.typed())
    }

    /// A tensor of values in row-major order, in the precision that they have.
    ///
    /// ```
    /// # use pagelock_tensor::{DType, Tensor};
    /// let labels = Tensor::from_slice(&[3_u8, 1, 4, 1], [2, 2])?;
    /// assert_eq!(labels.dtype(), DType::U8);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the shape has another number of elements.
    pub fn from_slice<T: Element<Kind = K>>(data: &[T], shape: impl IntoShape) -> Result<Tensor<K>> {
        let mut out = for_numbers(data.len(), shape.into_shape(), T::DTYPE)?;
        out.elements().copy_from(data);
        Ok(out.share().typed())
    }

    /// As [`Tensor::from_slice`], from a vector.
    ///
    /// # Errors
    /// As [`Tensor::from_slice`].
    pub fn from_vec<T: Element<Kind = K>>(data: Vec<T>, shape: impl IntoShape) -> Result<Tensor<K>> {
        Tensor::from_slice(&data, shape)
    }

    /// A tensor whose elements `fill` writes in place, in row-major order: for readers and decoders, without a copy.
    ///
    /// What `fill` leaves unwritten has unspecified values.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::build([2, 2], |out| out.copy_from_slice(&[1_u8, 2, 3, 4]))?;
    /// assert_eq!(x.select(0, 1)?.to_vec::<u8>()?, [3, 4]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    pub fn build<T: Element<Kind = K>>(shape: impl IntoShape, fill: impl FnOnce(&mut [T])) -> Result<Tensor<K>> {
        let mut out = Fresh::allocate("build", shape.into_shape()?, T::DTYPE)?;
        fill(out.elements());
        Ok(out.share().typed())
    }

    /// A tensor filled with `value`: `full([2, 3], 0.5)` holds floats, `full([2, 3], 0)` integers. Its precision is
    /// that of [`Tensor::new`].
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn full<T: Element + ElementOf<K>>(shape: impl IntoShape, value: T) -> Result<Tensor<K>> {
        TensorOptions::CPU.filled("full", shape, value.to_scalar())
    }

    /// One number, of shape `[]`, in the precision that [`Tensor::new`] gives.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    pub fn scalar<T: Element + ElementOf<K>>(value: T) -> Result<Tensor<K>> {
        filled(&Device::Cpu, "scalar", Shape::SCALAR, K::default_dtype(), value.to_scalar()).map(Raw::typed)
    }

    /// `start, start + step, …` as long as they come before `end`: ⌈(end − start) / step⌉ numbers, floats or integers.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::arange(0, 10, 3)?.to_vec::<i64>()?, [0, 3, 6, 9]);
    /// assert_eq!(Tensor::arange(0.0, 0.3, 0.1)?.len(), 3);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a step of 0 or NaN, or one that leads away from `end`.
    pub fn arange<T: Element<Kind = K> + Number<K>>(start: T, end: T, step: T) -> Result<Tensor<K>>
    where
        K: Numeric,
    {
        range(&Device::Cpu, [start, end, step].mapped(Element::to_scalar), K::default_dtype()).map(Raw::typed)
    }
}

impl Tensor {
    /// Zeros.
    ///
    /// ```
    /// # use pagelock_tensor::{DType, Tensor};
    /// assert_eq!(Tensor::zeros([2, 3])?.dtype(), DType::F32);
    /// let counts = Tensor::full([2, 3], 0)?; // integers
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses; [`Error::Argument`] for more bytes than memory can address.
    pub fn zeros(shape: impl IntoShape) -> Result<Tensor> {
        TensorOptions::CPU.zeros(shape)
    }

    /// Ones.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn ones(shape: impl IntoShape) -> Result<Tensor> {
        TensorOptions::CPU.ones(shape)
    }

    /// The `n` × `n` identity matrix.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn eye(n: usize) -> Result<Tensor> {
        TensorOptions::CPU.eye(n)
    }

    /// Uniform random numbers in [0, 1), from the default generator ([`manual_seed`](crate::manual_seed)).
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn rand(shape: impl IntoShape) -> Result<Tensor> {
        TensorOptions::CPU.rand(shape)
    }

    /// Uniform random numbers in [0, 1), from `generator`.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn rand_with(shape: impl IntoShape, generator: &Generator) -> Result<Tensor> {
        TensorOptions::CPU.rand_with(shape, generator)
    }

    /// Random numbers from the normal distribution with mean 0 and variance 1, by the default generator.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn randn(shape: impl IntoShape) -> Result<Tensor> {
        TensorOptions::CPU.randn(shape)
    }

    /// Random numbers from the normal distribution with mean 0 and variance 1, by `generator`.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn randn_with(shape: impl IntoShape, generator: &Generator) -> Result<Tensor> {
        TensorOptions::CPU.randn_with(shape, generator)
    }

    /// Options for making a tensor on `device`: `Tensor::on(&device).zeros([2, 3])`.
    ///
    /// ```
    /// # use pagelock_tensor::{DType, Device, Tensor};
    /// let device = Device::best();
    /// let x = Tensor::on(&device).of(DType::F64).full([2], 1.5)?;
    /// assert_eq!(x.to_vec::<f64>()?, [1.5, 1.5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn on(device: &Device) -> TensorOptions<'_> {
        TensorOptions { device, dtype: None }
    }

    /// Options for making a tensor of a precision: `Tensor::of(DType::F64).zeros([2, 3])`,
    /// `Tensor::of(DType::I32).new([1, 2])`.
    pub fn of(dtype: DType) -> TensorOptions<'static> {
        TensorOptions::CPU.of(dtype)
    }
}

impl Tensor<Int> {
    /// The numbers `0..n` in random order, from the default generator.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    pub fn randperm(n: usize) -> Result<Tensor<Int>> {
        Tensor::randperm_with(n, random::default_generator())
    }

    /// The numbers `0..n` in random order, from `generator`.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    pub fn randperm_with(n: usize, generator: &Generator) -> Result<Tensor<Int>> {
        let mut out = Fresh::allocate("randperm", Shape::new(&[n])?, DType::I64)?;
        let numbers = out.elements::<i64>();
        match u32::try_from(n) {
            Ok(n) => shuffled(n, generator, numbers),
            Err(_) => {
                numbers.iter_mut().zip(0..).for_each(|(number, i)| *number = i);
                generator.shuffle(numbers);
            }
        }
        Ok(out.share().typed())
    }
}

/// Writes the numbers `0..n` in random order. They are shuffled as `u32` in the first half of the memory, since
/// caches hold more of these, and then widened from the last to the first.
fn shuffled(n: u32, generator: &Generator, numbers: &mut [i64]) {
    let halves: &mut [u32] = bytemuck::cast_slice_mut(numbers);
    let short = &mut halves[..n as usize];
    short.iter_mut().zip(0..).for_each(|(number, i)| *number = i);
    generator.shuffle(short);
    for i in (0..numbers.len()).rev() {
        numbers[i] = i64::from(bytemuck::cast_slice::<i64, u32>(numbers)[i]);
    }
}

/// The device and the precision of new tensors; see [`Tensor::on`] and [`Tensor::of`].
///
/// Without a precision, tensors have the default one, except that [`from_slice`](Self::from_slice) keeps that of the
/// data.
#[derive(Debug, Clone, Copy)]
pub struct TensorOptions<'d> {
    device: &'d Device,
    dtype: Option<DType>,
}

impl<'d> TensorOptions<'d> {
    const CPU: TensorOptions<'static> = TensorOptions { device: &Device::Cpu, dtype: None };

    /// These options with the precision `dtype`.
    #[must_use]
    pub fn of(self, dtype: DType) -> TensorOptions<'d> {
        TensorOptions { dtype: Some(dtype), ..self }
    }

    /// These options on `device`.
    #[must_use]
    pub fn on(self, device: &Device) -> TensorOptions<'_> {
        TensorOptions { device, dtype: self.dtype }
    }

    /// Zeros.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`] or [`Error::Memory`] if there is not enough memory; [`Error::Cuda`];
    /// [`Error::Argument`] as [`Tensor::zeros`]; [`Error::WrongKind`] for a precision that floats do not have.
    pub fn zeros(self, shape: impl IntoShape) -> Result<Tensor> {
        self.filled("zeros", shape, Scalar::Int(0))
    }

    /// Ones.
    ///
    /// # Errors
    /// As [`TensorOptions::zeros`].
    pub fn ones(self, shape: impl IntoShape) -> Result<Tensor> {
        self.filled("ones", shape, Scalar::Int(1))
    }

    /// A tensor filled with `value`; see [`Tensor::full`].
    ///
    /// # Errors
    /// As [`TensorOptions::zeros`].
    pub fn full<T: Element>(self, shape: impl IntoShape, value: T) -> Result<Tensor<T::Kind>> {
        self.filled("full", shape, value.to_scalar())
    }

    fn filled<K: Kind>(self, op: &'static str, shape: impl IntoShape, value: Scalar) -> Result<Tensor<K>> {
        self.filled_raw(op, shape.into_shape(), facts::<K>(), value).map(Raw::typed)
    }

    fn filled_raw(self, op: &'static str, shape: Result<Shape>, kind: Facts, value: Scalar) -> Result<Raw> {
        filled(self.device, op, shape?, kind.dtype(op, self.dtype)?, value)
    }

    /// The `n` × `n` identity matrix.
    ///
    /// # Errors
    /// As [`TensorOptions::zeros`].
    pub fn eye(self, n: usize) -> Result<Tensor> {
        let dtype = self.dtype::<Float>("eye")?;
        if self.device.is_cpu() {
            return eye(n, dtype).map(Raw::typed);
        }
        let x: Tensor = filled(self.device, "eye", Shape::new(&[n, n])?, dtype, Scalar::Int(0))?.typed();
        x.fill_diagonal_(1)?;
        Ok(x)
    }

    /// `start, start + step, …`; see [`Tensor::arange`].
    ///
    /// # Errors
    /// As [`Tensor::arange`] and [`TensorOptions::zeros`].
    pub fn arange<T>(self, start: T, end: T, step: T) -> Result<Tensor<T::Kind>>
    where
        T: Element + Number<<T as Element>::Kind>,
    {
        let dtype = self.dtype::<T::Kind>("arange")?;
        range(self.device, [start, end, step].mapped(Element::to_scalar), dtype).map(Raw::typed)
    }

    /// Uniform random numbers in [0, 1), from the default generator: the same numbers on any device.
    ///
    /// # Errors
    /// As [`TensorOptions::zeros`].
    pub fn rand(self, shape: impl IntoShape) -> Result<Tensor> {
        self.rand_with(shape, random::default_generator())
    }

    /// Uniform random numbers in [0, 1), from `generator`.
    ///
    /// # Errors
    /// As [`TensorOptions::zeros`].
    pub fn rand_with(self, shape: impl IntoShape, generator: &Generator) -> Result<Tensor> {
        self.drawn(Distribution::Uniform, shape.into_shape()?, generator)
    }

    /// Random numbers from the normal distribution with mean 0 and variance 1, by the default generator: the same
    /// numbers on any device.
    ///
    /// # Errors
    /// As [`TensorOptions::zeros`].
    pub fn randn(self, shape: impl IntoShape) -> Result<Tensor> {
        self.randn_with(shape, random::default_generator())
    }

    /// Random numbers from the normal distribution with mean 0 and variance 1, by `generator`.
    ///
    /// # Errors
    /// As [`TensorOptions::zeros`].
    pub fn randn_with(self, shape: impl IntoShape, generator: &Generator) -> Result<Tensor> {
        self.drawn(Distribution::Normal, shape.into_shape()?, generator)
    }

    fn drawn(self, distribution: Distribution, shape: Shape, generator: &Generator) -> Result<Tensor> {
        let dtype = self.dtype::<Float>(distribution.name())?;
        drawn(self.device, distribution, shape, dtype, generator).map(Raw::typed)
    }

    /// A tensor of nested arrays; see [`Tensor::new`].
    ///
    /// # Errors
    /// [`Error::Argument`] if rows differ in length; as [`TensorOptions::zeros`].
    #[expect(clippy::new_ret_no_self, reason = "a constructor of tensors")]
    pub fn new<A: NestedArray>(self, data: A) -> Result<Tensor<<A::Element as Element>::Kind>> {
        let dtype = self.dtype::<<A::Element as Element>::Kind>("new")?;
        nested(&data, dtype)?.converted_on(dtype, self.device)
    }

    /// A tensor of values in row-major order.
    ///
    /// # Errors
    /// [`Error::Argument`] if the shape has another number of elements; as [`TensorOptions::zeros`].
    pub fn from_slice<T: Element>(self, data: &[T], shape: impl IntoShape) -> Result<Tensor<T::Kind>> {
        let dtype = self.dtype.map_or(Ok(T::DTYPE), |_| self.dtype::<T::Kind>("from_slice"))?;
        Tensor::from_slice(data, shape)?.into_raw().converted_on(dtype, self.device)
    }

    /// The precision for tensors of kind `K`.
    fn dtype<K: Kind>(self, op: &'static str) -> Result<DType> {
        facts::<K>().dtype(op, self.dtype)
    }
}

impl Raw {
    /// Converts a tensor that was just made to `dtype`, and moves it to `device`.
    fn converted_on<K: Kind>(self, dtype: DType, device: &Device) -> Result<Tensor<K>> {
        let converted = if self.dtype() == dtype { self } else { cast(&self, dtype)? };
        converted.typed().to(device)
    }
}

/// Allocates memory for `n_numbers` numbers, which have to fill the shape.
fn for_numbers(n_numbers: usize, shape: Result<Shape>, dtype: DType) -> Result<Fresh> {
    let shape = shape?;
    if n_numbers != shape.elements() {
        return Err(Error::wrong_length("from_slice", "the data", n_numbers, &shape));
    }
    Fresh::allocate("from_slice", shape, dtype)
}

fn eye(n: usize, dtype: DType) -> Result<Raw> {
    let mut out = Fresh::allocate("eye", Shape::new(&[n, n])?, dtype)?;
    by_dtype!(dtype, T => out.fill(T::ZERO));
    by_dtype!(dtype, T => out.elements::<T>().iter_mut().step_by(n + 1).for_each(|element| *element = T::ONE));
    Ok(out.share())
}

pub(crate) fn filled(device: &Device, op: &'static str, shape: Shape, dtype: DType, value: Scalar) -> Result<Raw> {
    let _running = profiler::op(op);
    match device {
        Device::Cpu => {
            let mut out = Fresh::allocate(op, shape, dtype)?;
            by_dtype!(dtype, T => out.fill(T::from_scalar(value)));
            Ok(out.share())
        }
        Device::Cuda(cuda) => fresh_on(op, (device, cuda), (shape, dtype), |out| match value.is_positive_zero() {
            true => cuda.stream().fill(out.into_bytes(), 0).map_err(|source| Error::cuda(op, source)),
            false => FULL.run(cuda, op, &[], &[constant(dtype, value)], out),
        }),
    }
}

/// A tensor on a device, whose elements `fill` computes.
fn fresh_on(
    op: &'static str,
    (device, cuda): (&Device, &CudaDevice),
    (shape, dtype): (Shape, DType),
    fill: impl FnOnce(CudaOut<'_>) -> Result<()>,
) -> Result<Raw> {
    let mut out = FreshCuda::allocate(op, shape, dtype, device, cuda)?;
    profiler::on_stream(op, || cuda.stream(), || fill(out.out()))?;
    Ok(out.share())
}

fn filled_like(op: &'static str, like: &Raw, value: Scalar) -> Result<Raw> {
    let filled = filled(like.storage.device(), op, *like.shape(), like.dtype(), value)?;
    Ok(filled.with_layout(like.layout.dense()))
}

static FULL: Formula = Formula { name: "full", inputs: &["to"], constants: &["value"], text: "value", changes: true };

/// How random numbers are distributed.
#[derive(Clone, Copy)]
enum Distribution {
    /// Uniform in [0, 1).
    Uniform,
    /// Normal, with mean 0 and variance 1.
    Normal,
}

impl Distribution {
    fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "rand",
            Distribution::Normal => "randn",
        }
    }
}

/// Random numbers, the same on any device.
fn drawn(
    device: &Device,
    distribution: Distribution,
    shape: Shape,
    dtype: DType,
    generator: &Generator,
) -> Result<Raw> {
    let op = distribution.name();
    let _running = profiler::op(op);
    match device {
        Device::Cpu => {
            let mut out = Fresh::allocate(op, shape, dtype)?;
            let draw = Draw::new(generator, shape.elements(), dtype);
            by_real!(dtype, R => match distribution {
                Distribution::Uniform => random::fill_uniform(draw, out.stored::<R>()),
                Distribution::Normal => random::fill_normal(draw, out.stored::<R>()),
            });
            Ok(out.share())
        }
        Device::Cuda(cuda) => {
            let mut out = FreshCuda::allocate(op, shape, dtype, device, cuda)?;
            let draw = |draw: Draw| match distribution {
                Distribution::Uniform => draw.uniform_on(cuda, out.out()),
                Distribution::Normal => draw.normal_on(cuda, out.out()),
            };
            profiler::on_stream(op, || cuda.stream(), || Draw::make(generator, shape.elements(), dtype, draw))?;
            Ok(out.share())
        }
    }
}
