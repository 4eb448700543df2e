//! [`Parameter`]: a tensor that is trained; [`Buffer`]: one that is saved but not trained.

use crate::{Module, VisitEvent, VisitEventMut, Visitor, VisitorMut};
use pagelock_memory::{Holder, HolderScope};
use pagelock_tensor::{Bool, Float, Int, Kind, Result, Tensor};
use std::borrow::BorrowMut;
use std::fmt;
use std::ops::{Add, Deref, Div, Mul, Sub};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A tensor that is trained: a leaf of the autograd graph that requires a gradient.
///
/// Derefs to [`Tensor`], and takes part in arithmetic as `&parameter`. A clone is a handle of the same parameter: the
/// model and the optimizer each hold one. The elements only change in place. When one of them moves to another device
/// or changes its precision, it gets a new tensor, with the gradient, and so do all others. A handle outside of the
/// model keeps the tensors alive that it gave out before.
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
    /// Behind a trait, so that programs do not compile again how it is dropped.
    handle: Box<dyn BorrowMut<Handle> + Send + Sync>,
}

struct Handle {
    shared: Arc<Shared>,
    given: Given,
}

/// What the handles of a parameter share: its newest version.
struct Shared {
    /// The version's address, by which a handle sees whether it has the newest.
    address: AtomicPtr<Version>,
    newest: Mutex<Arc<Version>>,
}

/// The versions to which a handle has given references, oldest first. They stay as long as the handle is borrowed.
struct Given {
    version: Arc<Version>,
    later: OnceLock<Box<Given>>,
}

impl Given {
    fn new(version: Arc<Version>) -> Self {
        Self { version, later: OnceLock::new() }
    }
}

/// Drops a long list without recursion.
impl Drop for Given {
    fn drop(&mut self) {
        let mut rest = self.later.take();
        while let Some(mut given) = rest {
            rest = given.later.take();
        }
    }
}

/// A parameter on one device and in one precision. Both tensors share the elements; each is made when it is needed.
struct Version {
    requires_grad: AtomicBool,
    tracked: OnceLock<Tensor>,
    constant: OnceLock<Tensor>,
}

impl Version {
    fn new(tensor: Tensor) -> Self {
        let requires_grad = AtomicBool::new(tensor.requires_grad());
        let (tracked, constant) = (OnceLock::new(), OnceLock::new());
        let _ = if tensor.requires_grad() { tracked.set(tensor) } else { constant.set(tensor) };
        Self { requires_grad, tracked, constant }
    }

    fn tensor(&self) -> &Tensor {
        let requires_grad = self.requires_grad.load(Ordering::Acquire);
        let [wanted, other] =
            if requires_grad { [&self.tracked, &self.constant] } else { [&self.constant, &self.tracked] };
        wanted.get_or_init(|| match other.get() {
            Some(other) => other.detach().set_requires_grad(requires_grad),
            None => unreachable!("`new` sets one of them"),
        })
    }

    fn zero_grad(&self) {
        self.tracked.get().into_iter().for_each(Tensor::zero_grad);
    }
}

impl Handle {
    /// The newest version, which this handle keeps from now on.
    fn version(&self) -> &Arc<Version> {
        let mut given = &self.given;
        loop {
            if let Some(later) = given.later.get() {
                given = later;
            } else if self.shared.address.load(Ordering::Acquire).cast_const() == Arc::as_ptr(&given.version) {
                return &given.version;
            } else {
                let _ = given.later.set(Box::new(Given::new(self.newest().clone()))); // another thread may have set it
            }
        }
    }

    fn newest(&self) -> MutexGuard<'_, Arc<Version>> {
        self.shared.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Parameter {
    /// Makes a parameter that shares the elements of a tensor, and is detached from the graph that computed them.
    pub fn new(tensor: Tensor) -> Self {
        Self::in_graph(Float::cut_off(tensor).set_requires_grad(true))
    }

    /// Makes a parameter of a tensor without detaching it from the graph.
    pub(crate) fn in_graph(tensor: Tensor) -> Self {
        let version = Arc::new(Version::new(tensor));
        let address = AtomicPtr::new(Arc::as_ptr(&version).cast_mut());
        let shared = Arc::new(Shared { address, newest: Mutex::new(version.clone()) });
        Self { handle: Box::new(Handle { shared, given: Given::new(version) }) }
    }

    fn handle(&self) -> &Handle {
        (*self.handle).borrow()
    }

    /// The tensor, as by deref.
    pub fn as_tensor(&self) -> &Tensor {
        self.handle().version().tensor()
    }

    /// An id that two handles share if, and only if, they are of the same parameter. It is valid while one of them
    /// lives.
    pub(crate) fn id(&self) -> *const () {
        Arc::as_ptr(&self.handle().shared).cast()
    }

    /// Whether two handles are of the same parameter.
    pub fn is_same(&self, other: &Self) -> bool {
        self.id() == other.id()
    }

    /// Removes the gradient, if there is one, also while the parameter is frozen.
    pub fn zero_grad(&self) {
        self.handle().version().zero_grad();
    }

    /// Whether the parameter requires a gradient from now on, for all handles.
    pub(crate) fn set_requires_grad(&self, requires_grad: bool) {
        self.handle().version().requires_grad.store(requires_grad, Ordering::Release);
    }

    /// Gives all handles another tensor, for example a copy on another device.
    pub(crate) fn replace(&self, tensor: Tensor) {
        let version = Arc::new(Version::new(tensor));
        let mut newest = self.handle().newest();
        let before = std::mem::replace(&mut *newest, version);
        self.handle().shared.address.store(Arc::as_ptr(&newest).cast_mut(), Ordering::Release);
        drop(newest);
        before.zero_grad();
    }

    /// Whether the parameter was replaced since this handle was made or followed.
    pub(crate) fn is_replaced(&self) -> bool {
        let Handle { shared, given } = self.handle();
        shared.address.load(Ordering::Acquire).cast_const() != Arc::as_ptr(&given.version)
    }

    /// If the parameter was replaced since this handle was made or followed, returns the tensor that it was then, and
    /// keeps it no longer.
    pub(crate) fn follow(&mut self) -> Option<Tensor> {
        let handle: &mut Handle = (*self.handle).borrow_mut();
        let newest = handle.newest().clone();
        let before = std::mem::replace(&mut handle.given, Given::new(newest));
        (!Arc::ptr_eq(&before.version, &handle.given.version)).then(|| before.version.tensor().clone())
    }
}

impl Clone for Parameter {
    fn clone(&self) -> Self {
        let Handle { shared, given } = self.handle();
        Self { handle: Box::new(Handle { shared: shared.clone(), given: Given::new(given.version.clone()) }) }
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
