//! Making tensors: from data, constants, ranges and random numbers.
//!
//! `Tensor::zeros([2, 3])` is `f32`: the creation functions are inherent to `Tensor<f32>`. For the other element types
//! the same names come from the trait [`Create`]: `Tensor::<i64>::zeros([2, 3])`. Inherent functions win where both
//! apply, so neither form needs an annotation that the other does not. `Tensor::on(&device).zeros([2, 3])` makes tensors on
//! a device.

use std::marker::PhantomData;

use crate::cuda::{Formula, constant};
use crate::device::Device;
use crate::element::{Element, Float, Num, Scalar, decimal};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::random::{self, Draw, Generator};
use crate::shape::{IntoShape, Shape};
use crate::storage::{Fresh, FreshCuda};
use crate::tensor::Tensor;

/// Nested arrays, slices and vectors of numbers: `[[1.0, 2.0], [3.0, 4.0]]`.
pub trait NestedArray<T> {
    /// Appends the sizes, outermost first.
    #[doc(hidden)]
    fn sizes(&self, sizes: &mut Vec<usize>);
    /// Appends the elements, row-major; every row must have the sizes given.
    #[doc(hidden)]
    fn elements(&self, sizes: &[usize], out: &mut Vec<T>) -> Result<()>;
}

impl<T: Element> NestedArray<T> for T {
    fn sizes(&self, _: &mut Vec<usize>) {}

    fn elements(&self, _: &[usize], out: &mut Vec<T>) -> Result<()> {
        out.push(*self);
        Ok(())
    }
}

impl<T, A: NestedArray<T>> NestedArray<T> for [A] {
    fn sizes(&self, sizes: &mut Vec<usize>) {
        sizes.push(self.len());
        if let Some(first) = self.first() {
            first.sizes(sizes);
        }
    }

    fn elements(&self, sizes: &[usize], out: &mut Vec<T>) -> Result<()> {
        for row in self {
            let mut row_sizes = Vec::new();
            row.sizes(&mut row_sizes);
            if row_sizes != sizes[1..] {
                return Err(Error::Ragged { first: sizes[1..].to_vec(), other: row_sizes });
            }
            row.elements(&sizes[1..], out)?;
        }
        Ok(())
    }
}

macro_rules! nested_like_slice {
    ($type:ty $(, const $n:ident)?) => {
        impl<T, A: NestedArray<T> $(, const $n: usize)?> NestedArray<T> for $type {
            fn sizes(&self, sizes: &mut Vec<usize>) {
                self[..].sizes(sizes);
            }

            fn elements(&self, sizes: &[usize], out: &mut Vec<T>) -> Result<()> {
                self[..].elements(sizes, out)
            }
        }
    };
}

nested_like_slice!([A; N], const N);
nested_like_slice!(Vec<A>);
nested_like_slice!(&[A]);

/// `create! { fn … }` writes each function twice: inherent to `Tensor<f32>`, and in the trait for the other types.
macro_rules! create {
    ($($(#[$doc:meta])* fn $name:ident ($($argument:ident: $type:ty),*);)*) => {
        impl Tensor<f32> {
            $($(#[$doc])*
            pub fn $name($($argument: $type),*) -> Result<Tensor<f32>> {
                <Tensor<f32> as Create<f32>>::$name($($argument),*)
            })*
        }
    };
}

/// The creation functions for every element type; those of `f32` need no import.
///
/// ```
/// # use pagelock_tensor::{Create, Tensor};
/// let labels = Tensor::<i64>::new([3, 1, 4])?;
/// let mask = Tensor::<bool>::zeros([3])?;
/// let floats = Tensor::zeros([3])?; // f32
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub trait Create<T: Element>: Sized {
    /// A tensor of nested arrays; see [`Tensor::new`](struct@Tensor).
    ///
    /// # Errors
    /// [`Error::Ragged`] if rows differ in length.
    #[expect(clippy::new_ret_no_self, reason = "the trait is a set of constructors of `Tensor<T>`")]
    fn new(data: impl NestedArray<T>) -> Result<Tensor<T>> {
        let mut sizes = Vec::new();
        data.sizes(&mut sizes);
        let mut elements = Vec::with_capacity(sizes.iter().product());
        let _counted = crate::heap::reserve("new", "nested arrays", elements.capacity() * size_of::<T>())?;
        data.elements(&sizes, &mut elements)?;
        Tensor::from_slice(&elements, &sizes[..])
    }

    /// Where the next tensor is made.
    ///
    /// ```
    /// # use pagelock_tensor::{Create, Device, Tensor};
    /// let labels = Tensor::<i64>::on(&Device::best()).zeros([64])?;
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    fn on(device: &Device) -> On<'_, T> {
        On { device, element: PhantomData }
    }

    /// Zeros (`false` for `bool`).
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses; [`Error::TooLarge`].
    fn zeros(shape: impl IntoShape) -> Result<Tensor<T>> {
        filled("zeros", shape, T::ZERO)
    }

    /// Ones (`true` for `bool`).
    ///
    /// # Errors
    /// As [`Create::zeros`].
    fn ones(shape: impl IntoShape) -> Result<Tensor<T>> {
        filled("ones", shape, T::ONE)
    }

    /// `value` everywhere.
    ///
    /// # Errors
    /// As [`Create::zeros`].
    fn full(shape: impl IntoShape, value: T) -> Result<Tensor<T>> {
        filled("full", shape, value)
    }

    /// `start, start + step, …` as long as they come before `end`: ⌈(end − start) / step⌉ numbers.
    ///
    /// A float counts as the shortest decimal that it is nearest to: `arange(0.0, 0.3, 0.1)` has three numbers, as in PyTorch.
    ///
    /// # Errors
    /// [`Error::BadArgument`] for a step of 0 or NaN, or one that leads away from `end`.
    fn arange(start: T, end: T, step: T) -> Result<Tensor<T>>
    where
        T: Num,
    {
        let count = if T::DTYPE.is_float() { float_steps(start, end, step) } else { integer_steps(start, end, step) };
        let count = count.ok_or_else(|| Error::BadArgument {
            op: "arange",
            argument: "step",
            value: format!("{step:?}"),
            expected: format!("it must lead from the start {start:?} towards the end {end:?}"),
        })?;
        let mut out = Fresh::allocate("arange", Shape::new(&[count])?)?;
        let (from, by) = (decimal(start), decimal(step));
        for (i, element) in out.elements().iter_mut().enumerate() {
            *element = if T::DTYPE.is_float() {
                T::from_f64(from + i as f64 * by)
            } else {
                start.plus(step.times((i as i64).cast()))
            };
        }
        Ok(Tensor::from_fresh(out))
    }

    /// The `n` × `n` identity matrix.
    ///
    /// # Errors
    /// As [`Create::zeros`].
    fn eye(n: usize) -> Result<Tensor<T>> {
        let mut out = Fresh::allocate("eye", Shape::new(&[n, n])?)?;
        out.elements().fill(T::ZERO);
        out.elements().iter_mut().step_by(n + 1).for_each(|element| *element = T::ONE);
        Ok(Tensor::from_fresh(out))
    }

    /// Uniform in [0, 1), from the default generator ([`manual_seed`](crate::manual_seed)).
    ///
    /// # Errors
    /// As [`Create::zeros`].
    fn rand(shape: impl IntoShape) -> Result<Tensor<T>>
    where
        T: Float,
    {
        Self::rand_with(shape, random::default_generator())
    }

    /// Uniform in [0, 1), from `generator`.
    ///
    /// # Errors
    /// As [`Create::zeros`].
    fn rand_with(shape: impl IntoShape, generator: &Generator) -> Result<Tensor<T>>
    where
        T: Float,
    {
        drawn_on(&Device::Cpu, Distribution::Uniform, shape.into_shape()?, generator)
    }

    /// From the normal distribution with mean 0 and variance 1, by the default generator.
    ///
    /// # Errors
    /// As [`Create::zeros`].
    fn randn(shape: impl IntoShape) -> Result<Tensor<T>>
    where
        T: Float,
    {
        Self::randn_with(shape, random::default_generator())
    }

    /// From the normal distribution with mean 0 and variance 1, by `generator`.
    ///
    /// # Errors
    /// As [`Create::zeros`].
    fn randn_with(shape: impl IntoShape, generator: &Generator) -> Result<Tensor<T>>
    where
        T: Float,
    {
        drawn_on(&Device::Cpu, Distribution::Normal, shape.into_shape()?, generator)
    }
}

impl<T: Element> Create<T> for Tensor<T> {}

create! {
    /// A tensor of nested arrays of numbers.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// assert_eq!(Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?.shape(), &[2, 3]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Ragged`] if rows differ in length.
    fn new(data: impl NestedArray<f32>);
    /// Zeros.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses; [`Error::TooLarge`].
    fn zeros(shape: impl IntoShape);
    /// Ones.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    fn ones(shape: impl IntoShape);
    /// `value` everywhere.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    fn full(shape: impl IntoShape, value: f32);
    /// `start, start + step, …` as long as they come before `end`; see [`Create::arange`].
    ///
    /// # Errors
    /// [`Error::BadArgument`] for a step of 0 or NaN, or one that leads away from `end`.
    fn arange(start: f32, end: f32, step: f32);
    /// The `n` × `n` identity matrix.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    fn eye(n: usize);
    /// Uniform in [0, 1), from the default generator ([`manual_seed`](crate::manual_seed)).
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    fn rand(shape: impl IntoShape);
    /// Uniform in [0, 1), from `generator`.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    fn rand_with(shape: impl IntoShape, generator: &Generator);
    /// From the normal distribution with mean 0 and variance 1, by the default generator.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    fn randn(shape: impl IntoShape);
    /// From the normal distribution with mean 0 and variance 1, by `generator`.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    fn randn_with(shape: impl IntoShape, generator: &Generator);
}

/// How many of `start, start + step, …` come before `end`; `None` if the step leads elsewhere.
fn float_steps<T: Num>(start: T, end: T, step: T) -> Option<usize> {
    let [start, end, step] = [start, end, step].map(decimal);
    let count = ((end - start) / step).ceil();
    (count >= 0.0 && count.is_finite()).then_some(count as usize)
}

/// The same, exactly: an `f64` does not hold every `i64`.
fn integer_steps<T: Num>(start: T, end: T, step: T) -> Option<usize> {
    let [start, end, step] = [start, end, step].map(|value| i128::from(value.cast::<i64>()));
    let (way, stride) = if step < 0 { (start - end, -step) } else { (end - start, step) };
    (way >= 0 && stride != 0).then(|| usize::try_from((way + stride - 1) / stride).ok()).flatten()
}

fn filled<T: Element>(op: &'static str, shape: impl IntoShape, value: T) -> Result<Tensor<T>> {
    filled_on(&Device::Cpu, op, shape.into_shape()?, value)
}

fn filled_on<T: Element>(device: &Device, op: &'static str, shape: Shape, value: T) -> Result<Tensor<T>> {
    match device {
        Device::Cpu => {
            let mut out = Fresh::allocate(op, shape)?;
            out.elements().fill(value);
            Ok(Tensor::from_fresh(out))
        }
        Device::Cuda(cuda) => {
            let mut out = FreshCuda::allocate(op, shape, T::DTYPE, device, cuda)?;
            if value == T::ZERO && !is_negative_zero(value) {
                let zeroed = cuda.stream().fill(out.out().into_bytes(), 0);
                zeroed.map_err(|source| Error::cuda(op, source))?;
            } else {
                FULL.run(cuda, op, &[], &[constant(value)], out.out())?;
            }
            Ok(Tensor::from_fresh_cuda(out))
        }
    }
}

/// What random numbers are like.
#[derive(Clone, Copy)]
enum Distribution {
    /// In [0, 1).
    Uniform,
    /// With mean 0 and variance 1.
    Normal,
}

/// The same numbers on any device.
fn drawn_on<T: Float>(
    device: &Device,
    distribution: Distribution,
    shape: Shape,
    generator: &Generator,
) -> Result<Tensor<T>> {
    let op = match distribution {
        Distribution::Uniform => "rand",
        Distribution::Normal => "randn",
    };
    match device {
        Device::Cpu => {
            let mut out = Fresh::allocate(op, shape)?;
            let draw = Draw::new(generator, shape.elements(), T::DTYPE);
            match distribution {
                Distribution::Uniform => random::fill_uniform(draw, out.elements()),
                Distribution::Normal => random::fill_normal(draw, out.elements()),
            }
            Ok(Tensor::from_fresh(out))
        }
        Device::Cuda(cuda) => {
            let mut out = FreshCuda::allocate(op, shape, T::DTYPE, device, cuda)?;
            Draw::make(generator, shape.elements(), T::DTYPE, |draw| match distribution {
                Distribution::Uniform => draw.uniform_on(cuda, out.out()),
                Distribution::Normal => draw.normal_on(cuda, out.out()),
            })?;
            Ok(Tensor::from_fresh_cuda(out))
        }
    }
}

static FULL: Formula = Formula { name: "full", inputs: &["to"], constants: &["value"], text: "value", changes: true };

fn is_negative_zero<T: Element>(value: T) -> bool {
    matches!(value.to_scalar(), Scalar::Float(value) if value.is_sign_negative())
}

/// Makes tensors on a device; see [`Tensor::on`](Create::on).
#[derive(Debug, Clone, Copy)]
pub struct On<'d, T = f32> {
    device: &'d Device,
    element: PhantomData<T>,
}

impl<T: Element> On<'_, T> {
    /// Zeros (`false` for `bool`).
    ///
    /// # Errors
    /// [`Error::DeviceMemory`] or [`Error::Memory`] if there is no room; [`Error::TooLarge`]; [`Error::Cuda`].
    pub fn zeros(self, shape: impl IntoShape) -> Result<Tensor<T>> {
        filled_on(self.device, "zeros", shape.into_shape()?, T::ZERO)
    }

    /// Ones (`true` for `bool`).
    ///
    /// # Errors
    /// As [`On::zeros`].
    pub fn ones(self, shape: impl IntoShape) -> Result<Tensor<T>> {
        filled_on(self.device, "ones", shape.into_shape()?, T::ONE)
    }

    /// `value` everywhere.
    ///
    /// # Errors
    /// As [`On::zeros`].
    pub fn full(self, shape: impl IntoShape, value: T) -> Result<Tensor<T>> {
        filled_on(self.device, "full", shape.into_shape()?, value)
    }

    /// Uniform in [0, 1), from the default generator: the numbers that it gives on the CPU.
    ///
    /// # Errors
    /// As [`On::zeros`].
    pub fn rand(self, shape: impl IntoShape) -> Result<Tensor<T>>
    where
        T: Float,
    {
        self.rand_with(shape, random::default_generator())
    }

    /// Uniform in [0, 1), from `generator`.
    ///
    /// # Errors
    /// As [`On::zeros`].
    pub fn rand_with(self, shape: impl IntoShape, generator: &Generator) -> Result<Tensor<T>>
    where
        T: Float,
    {
        drawn_on(self.device, Distribution::Uniform, shape.into_shape()?, generator)
    }

    /// From the normal distribution with mean 0 and variance 1, by the default generator: the numbers that it gives on
    /// the CPU.
    ///
    /// # Errors
    /// As [`On::zeros`].
    pub fn randn(self, shape: impl IntoShape) -> Result<Tensor<T>>
    where
        T: Float,
    {
        self.randn_with(shape, random::default_generator())
    }

    /// From the normal distribution with mean 0 and variance 1, by `generator`.
    ///
    /// # Errors
    /// As [`On::zeros`].
    pub fn randn_with(self, shape: impl IntoShape, generator: &Generator) -> Result<Tensor<T>>
    where
        T: Float,
    {
        drawn_on(self.device, Distribution::Normal, shape.into_shape()?, generator)
    }

    /// A tensor of nested arrays; see [`Tensor::new`](struct@Tensor).
    ///
    /// # Errors
    /// [`Error::Ragged`] if rows differ in length; as [`On::zeros`].
    #[expect(clippy::new_ret_no_self, reason = "a constructor of `Tensor<T>`")]
    pub fn new(self, data: impl NestedArray<T>) -> Result<Tensor<T>> {
        <Tensor<T> as Create<T>>::new(data)?.to(self.device)
    }

    /// A tensor of values in row-major order.
    ///
    /// # Errors
    /// [`Error::DataLength`] if the shape has another number of elements; as [`On::zeros`].
    pub fn from_slice(self, data: &[T], shape: impl IntoShape) -> Result<Tensor<T>> {
        Tensor::from_slice(data, shape)?.to(self.device)
    }
}

impl Tensor<f32> {
    /// Where the next tensor is made: `Tensor::on(&device).zeros([2, 3])`. For other element types see [`Create::on`].
    ///
    /// ```
    /// # use pagelock_tensor::{Device, Tensor};
    /// let device = Device::best();
    /// assert_eq!(Tensor::on(&device).full([2], 1.5)?.to_vec()?, [1.5, 1.5]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    pub fn on(device: &Device) -> On<'_, f32> {
        On { device, element: PhantomData }
    }
}

impl<T: Element> Tensor<T> {
    /// A tensor of values in row-major order; the element type is that of the data.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let labels = Tensor::from_slice(&[3i64, 1, 4, 1], [2, 2])?;
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DataLength`] if the shape has another number of elements.
    pub fn from_slice(data: &[T], shape: impl IntoShape) -> Result<Tensor<T>> {
        let shape = shape.into_shape()?;
        if data.len() != shape.elements() {
            return Err(Error::DataLength { op: "from_slice", given: data.len(), shape });
        }
        let mut out = Fresh::allocate("from_slice", shape)?;
        out.elements().copy_from_slice(data);
        Ok(Tensor::from_fresh(out))
    }

    /// A tensor whose elements `fill` writes in place, in row-major order: for readers and decoders, without a copy.
    ///
    /// What `fill` leaves unwritten has unspecified values.
    ///
    /// ```
    /// # use pagelock_tensor::Tensor;
    /// let x = Tensor::build([2, 2], |out| out.copy_from_slice(&[1u8, 2, 3, 4]))?;
    /// assert_eq!(x.select(0, 1)?.to_vec()?, [3, 4]);
    /// # Ok::<(), pagelock_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    pub fn build(shape: impl IntoShape, fill: impl FnOnce(&mut [T])) -> Result<Tensor<T>> {
        let mut out = Fresh::allocate("build", shape.into_shape()?)?;
        fill(out.elements());
        Ok(Tensor::from_fresh(out))
    }

    /// As [`Tensor::from_slice`], from a vector.
    ///
    /// # Errors
    /// As [`Tensor::from_slice`].
    pub fn from_vec(data: Vec<T>, shape: impl IntoShape) -> Result<Tensor<T>> {
        Tensor::from_slice(&data, shape)
    }

    /// One number, of shape `[]`.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    pub fn scalar(value: T) -> Result<Tensor<T>> {
        filled("scalar", (), value)
    }

    /// Zeros of this tensor's shape, where it is; as `ones_like` and `full_like` give them, with the channels of a pixel
    /// together if they are so here ([`channels_last`](Tensor::channels_last)).
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    pub fn zeros_like(&self) -> Result<Tensor<T>> {
        self.filled_like("zeros_like", T::ZERO)
    }

    /// Ones of this tensor's shape, where it is.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    pub fn ones_like(&self) -> Result<Tensor<T>> {
        self.filled_like("ones_like", T::ONE)
    }

    /// `value` in this tensor's shape, where it is.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    pub fn full_like(&self, value: T) -> Result<Tensor<T>> {
        self.filled_like("full_like", value)
    }

    fn filled_like(&self, op: &'static str, value: T) -> Result<Tensor<T>> {
        let filled = filled_on(self.storage().device(), op, *self.shape(), value)?;
        let is_turned = self.is_channels_last() && !self.is_contiguous();
        Ok(if is_turned { filled.with_layout(Layout::channels_last(*self.shape())) } else { filled })
    }
}

impl Tensor<i64> {
    /// The numbers `0..n` in random order, from the default generator.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    pub fn randperm(n: usize) -> Result<Tensor<i64>> {
        Tensor::randperm_with(n, random::default_generator())
    }

    /// The numbers `0..n` in random order, from `generator`.
    ///
    /// # Errors
    /// [`Error::Memory`] if the budget refuses.
    pub fn randperm_with(n: usize, generator: &Generator) -> Result<Tensor<i64>> {
        let mut out = Fresh::allocate("randperm", Shape::new(&[n])?)?;
        for (i, element) in out.elements().iter_mut().enumerate() {
            *element = i as i64;
        }
        generator.shuffle(out.elements());
        Ok(Tensor::from_fresh(out))
    }
}
