//! [`Parameter`]: a tensor that is trained; [`Buffer`]: one that is saved but not trained.

use crate::{Module, VisitEvent, VisitEventMut, Visitor, VisitorMut};
use pagelock_memory::{Holder, HolderScope};
use pagelock_tensor::{Bool, Float, Int, Kind, Result, Tensor};
use std::fmt;
use std::ops::{Add, Deref, Div, Mul, Sub};
use std::sync::{Arc, OnceLock};

/// A tensor that is trained: a leaf of the autograd graph that requires a gradient.
///
/// Derefs to [`Tensor`], and takes part in arithmetic as `&parameter`. A clone is a handle of the same parameter: the
/// model and the optimizer each hold one. The elements only change in place. When one of them moves to another device,
/// changes its precision or is frozen, it gets a new tensor, and so do all others.
///
/// # Examples
/// ```
/// use pagelock_nn::Parameter;
/// use pagelock_tensor::Tensor;
///
/// let weights = Parameter::new((Tensor::randn([784, 10])? / 28.0)?);
/// assert!(weights.requires_grad() && weights.is_leaf());
/// let y = Tensor::ones([1, 784])?.matmul(&weights)?;
/// y.sum(..)?.backward()?;
/// assert_eq!(weights.grad().unwrap().dims(), [784, 10]);
/// assert_eq!((1.0 - &weights)?.dims(), (&weights * 2)?.dims());
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Parameter {
    shared: Arc<Shared>,
}

/// What the handles of a parameter share.
struct Shared {
    tensor: Tensor,
    /// The parameter that replaced this one, for example on another device or with another precision.
    moved: OnceLock<Parameter>,
}

impl Parameter {
    /// Makes a parameter that shares the elements of a tensor, and is detached from the graph that computed them.
    pub fn new(tensor: Tensor) -> Self {
        Self::of(Float::cut_off(tensor).set_requires_grad(true))
    }

    /// Makes a parameter of a tensor without detaching it from the graph.
    pub(crate) fn in_graph(tensor: Tensor) -> Self {
        Self::of(tensor)
    }

    /// A new parameter with the elements of `copy`, which requires a gradient if this one does.
    pub(crate) fn with_elements_of(&self, copy: Tensor) -> Self {
        Self::of(copy.set_requires_grad(self.requires_grad()))
    }

    /// A new parameter that shares the elements.
    pub(crate) fn with_grad_wanted(&self, requires_grad: bool) -> Self {
        Self::of(self.detach().set_requires_grad(requires_grad))
    }

    /// The tensor, as by deref.
    pub fn as_tensor(&self) -> &Tensor {
        &self.newest().tensor
    }

    /// What the parameter is now, after everything that replaced it.
    fn newest(&self) -> &Arc<Shared> {
        let mut newest = &self.shared;
        while let Some(other) = newest.moved.get() {
            newest = &other.shared;
        }
        newest
    }

    /// An id that two handles share if, and only if, they are of the same parameter. It is valid while one of them
    /// lives.
    pub(crate) fn id(&self) -> *const () {
        Arc::as_ptr(self.newest()).cast()
    }

    /// Whether two handles are of the same parameter.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.newest(), other.newest())
    }

    fn of(tensor: Tensor) -> Self {
        Self { shared: Arc::new(Shared { tensor, moved: OnceLock::new() }) }
    }

    /// Replaces this parameter, which was not replaced yet, by `other`: for all handles.
    pub(crate) fn replace(&mut self, other: &Self) {
        let _ = self.shared.moved.set(other.clone());
        *self = other.clone();
    }

    /// The parameter that replaced this one, or this one.
    pub(crate) fn latest(&self) -> Self {
        Self { shared: self.newest().clone() }
    }

    /// Returns the tensor that the parameter was before it was replaced, if it was, and keeps it no longer.
    pub(crate) fn follow(&mut self) -> Option<Tensor> {
        let Self { shared: before } = std::mem::replace(self, self.latest());
        (!Arc::ptr_eq(&before, &self.shared)).then(|| before.tensor.clone())
    }
}

impl Clone for Parameter {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl Deref for Parameter {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        self.as_tensor()
    }
}

impl Module for Parameter {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.report(VisitEvent::Parameter(self));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.report(VisitEventMut::Parameter(self));
    }

    fn title(&self) -> String {
        String::new()
    }
}

/// Prints as PyTorch does: `Parameter containing:` and the tensor.
impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parameter containing:\n{}", self.as_tensor())
    }
}

/// A tensor that belongs to a module's saved state but is not trained, such as a running mean; `Buffer<Int>` and
/// `Buffer<Bool>` hold integers and truth values.
///
/// # Examples
/// ```
/// use pagelock_nn::{Buffer, Module};
/// use pagelock_tensor::{Bool, Tensor};
///
/// #[derive(Module)]
/// struct Center {
///     mean: Buffer,
///     known: Buffer<Bool>,
/// }
/// let center = Center { mean: Buffer::new(Tensor::zeros(3)?), known: Buffer::new(Tensor::full(3, false)?) };
/// assert_eq!(center.parameters().len(), 0);
/// assert!(center.state_dict().get("mean").is_some());
/// assert!(center.state_dict().get_bool("known").is_some());
/// assert_eq!((Tensor::ones([2, 3])? - &center.mean)?.dims(), [2, 3]);
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Buffer<K: Kind = Float> {
    tensor: Tensor<K>,
}

impl<K: BufferKind> Buffer<K> {
    /// Makes a buffer that shares the elements of a tensor, and is detached from the graph that computed them.
    pub fn new(tensor: Tensor<K>) -> Self {
        Self { tensor: K::cut_off(tensor) }
    }
}

impl<K: Kind> Deref for Buffer<K> {
    type Target = Tensor<K>;

    fn deref(&self) -> &Tensor<K> {
        &self.tensor
    }
}

impl<K: BufferKind> Module for Buffer<K> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.report(K::event(&self.tensor));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.report(K::event_mut(&mut self.tensor));
    }

    fn title(&self) -> String {
        String::new()
    }
}

impl<K: Kind> fmt::Debug for Buffer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tensor)
    }
}

/// The kinds of elements that a buffer can have: all of them.
pub trait BufferKind: Kind + Sized {
    /// The event that reports a buffer.
    fn event(buffer: &Tensor<Self>) -> VisitEvent<'_>;

    /// The event that reports a buffer to a visitor that may change it.
    fn event_mut(buffer: &mut Tensor<Self>) -> VisitEventMut<'_>;

    /// The tensor, detached from the graph that computed it.
    fn cut_off(tensor: Tensor<Self>) -> Tensor<Self> {
        tensor
    }
}

impl BufferKind for Float {
    fn event(buffer: &Tensor) -> VisitEvent<'_> {
        VisitEvent::Buffer(buffer)
    }

    fn event_mut(buffer: &mut Tensor) -> VisitEventMut<'_> {
        VisitEventMut::Buffer(buffer)
    }

    fn cut_off(tensor: Tensor) -> Tensor {
        if tensor.requires_grad() { tensor.detach() } else { tensor }
    }
}

impl BufferKind for Int {
    fn event(buffer: &Tensor<Int>) -> VisitEvent<'_> {
        VisitEvent::IntBuffer(buffer)
    }

    fn event_mut(buffer: &mut Tensor<Int>) -> VisitEventMut<'_> {
        VisitEventMut::IntBuffer(buffer)
    }
}

impl BufferKind for Bool {
    fn event(buffer: &Tensor<Bool>) -> VisitEvent<'_> {
        VisitEvent::BoolBuffer(buffer)
    }

    fn event_mut(buffer: &mut Tensor<Bool>) -> VisitEventMut<'_> {
        VisitEventMut::BoolBuffer(buffer)
    }
}

/// `&parameter` or `&buffer` on either side of an operator, as if it were `&tensor`.
macro_rules! operators {
    ($wrapper:ident: $($operator:ident $method:ident)+) => {$(
        operators! { $operator $method; &Tensor, &$wrapper, |left, right| $operator::$method(left, &**right) }
        operators! { $operator $method; Tensor, &$wrapper, |left, right| $operator::$method(&left, &**right) }
        operators! { $operator $method; Result<Tensor>, &$wrapper, |left, right| $operator::$method(&left?, &**right) }
        operators! { $operator $method; f64, &$wrapper, |left, right| $operator::$method(left, &**right) }
        operators! { $operator $method; i32, &$wrapper, |left, right| $operator::$method(left, &**right) }
        operators! { $operator $method; &$wrapper, &Tensor, |left, right| $operator::$method(&**left, right) }
        operators! { $operator $method; &$wrapper, Tensor, |left, right| $operator::$method(&**left, &right) }
        operators! { $operator $method; &$wrapper, Result<Tensor>, |left, right| $operator::$method(&**left, &right?) }
        operators! { $operator $method; &$wrapper, &Parameter, |left, right| $operator::$method(&**left, &**right) }
        operators! { $operator $method; &$wrapper, &Buffer, |left, right| $operator::$method(&**left, &**right) }
        operators! { $operator $method; &$wrapper, f64, |left, right| $operator::$method(&**left, right) }
        operators! { $operator $method; &$wrapper, i32, |left, right| $operator::$method(&**left, right) }
    )+};
    ($operator:ident $method:ident; $left:ty, $right:ty, |$a:ident, $b:ident| $result:expr) => {
        impl $operator<$right> for $left {
            type Output = Result<Tensor>;
            fn $method(self, right: $right) -> Self::Output {
                let ($a, $b) = (self, right);
                $result
            }
        }
    };
}

operators! { Parameter: Add add Sub sub Mul mul Div div }
operators! { Buffer: Add add Sub sub Mul mul Div div }

/// Charges memory to [`Holder::PARAMETERS`] until the scope drops, unless the program has set another holder.
pub(crate) fn charged() -> HolderScope {
    Holder::PARAMETERS.by_default()
}
