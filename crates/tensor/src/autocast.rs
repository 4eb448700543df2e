//! Autocast: inside a scope, products and convolutions run in half precision, and operations that need all bits in
//! `f32`.
//!
//! Each operation declares its [`Precision`]; this file applies it inside a scope. The lists of operations are
//! PyTorch's: <https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference>.

use std::cell::{Cell, RefCell};

use rustc_hash::FxHashMap;

use crate::autograd::is_grad_enabled;
use crate::capture;
use crate::element::DType;
use crate::error::Result;
use crate::op::Precision;
use crate::ops::cast;
use crate::tensor::{Raw, Tensor};

/// An element type of two bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// `bfloat16`: the range of `f32` with 7 bits behind the point.
    BF16,
    /// `float16`: 10 bits behind the point, up to 65,504; gradients need a scale (`pagelock_nn::GradScaler`).
    F16,
}

impl Half {
    fn dtype(self) -> DType {
        match self {
            Half::BF16 => DType::BF16,
            Half::F16 => DType::F16,
        }
    }
}

thread_local! {
    static CHOSEN: Cell<Option<Half>> = const { Cell::new(None) };
    static CONVERTED: RefCell<FxHashMap<Weight, Rounded>> = RefCell::new(FxHashMap::default());
}

/// Runs `f`. Until it returns, operations on this thread choose their precision, as in PyTorch's `torch.autocast`.
///
/// - Matrix products ([`matmul`](Tensor::matmul), [`linear`](Tensor::linear)) and convolutions round their operands
///   to `to`, accumulate in `f32`, and return tensors of type `to`.
/// - [`exp`](Tensor::exp), [`log`](Tensor::log), [`pow`](Tensor::pow), [`sum`](Tensor::sum), softmax, layer norms and
///   losses compute in `f32` and return `f32`.
/// - Everything else computes in the precision of its operands; elementwise operations compute in the wider one if they
///   differ. A batch norm returns the precision of its input even if its weights are `f32`.
///
/// Operations on `f64` tensors are not affected. A parameter is rounded once in the scope, however often it is used.
/// `backward` needs no scope, and each gradient has the precision of its tensor.
///
/// ```
/// use pagelock_tensor::{DType, Half, Tensor, autocast};
///
/// let x = Tensor::new([[1.0, 1.0 / 3.0]])?;
/// let product = autocast(Half::BF16, || x.matmul(&x.t()?))?;
/// assert_eq!(product.dtype(), DType::BF16);
/// assert_eq!(product.item::<f32>()?, 1.109375); // 1 + 1/9 is 1.1111…
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn autocast<R>(to: Half, f: impl FnOnce() -> R) -> R {
    scope(Some(to), f)
}

/// Runs `f` as if it were in no [`autocast`]: for a part of a network that needs all bits.
pub fn no_autocast<R>(f: impl FnOnce() -> R) -> R {
    scope(None, f)
}

/// The precision of the [`autocast`] that this thread is in, if any.
pub fn autocast_type() -> Option<Half> {
    CHOSEN.get()
}

fn scope<R>(to: Option<Half>, f: impl FnOnce() -> R) -> R {
    let _restore = Scope::enter(to);
    f()
}

/// Restores the type when dropped, also if the function unwinds. The outermost scope drops the rounded parameters.
struct Scope {
    before: Option<Half>,
    is_outermost: bool,
}

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

impl Scope {
    fn enter(to: Option<Half>) -> Scope {
        let depth = DEPTH.replace(DEPTH.get() + 1);
        Scope { before: CHOSEN.replace(to), is_outermost: depth == 0 }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        CHOSEN.set(self.before);
        DEPTH.set(DEPTH.get() - 1);
        if self.is_outermost {
            let converted = CONVERTED.take();
            drop(converted); // while the list is not borrowed: this may drop graphs
        }
    }
}

/// The precision to which the scope converts an operation's inputs; `None` if it converts nothing.
pub(crate) fn wanted(precision: Precision, inputs: &[&Raw]) -> Option<DType> {
    let half = CHOSEN.get()?.dtype();
    let narrow = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    if !inputs.iter().all(|input| narrow(input.dtype())) {
        return None;
    }
    match precision {
        Precision::HalfUnderAutocast => Some(half),
        Precision::F32UnderAutocast => Some(DType::F32),
        Precision::Same | Precision::Widest | Precision::Computing => None,
    }
}

/// The tensor, converted as an operation of this precision converts its inputs. For functions that consist of several
/// operations.
pub(crate) fn prepared(precision: Precision, tensor: &Tensor) -> Result<Tensor> {
    prepared_raw(precision, tensor.raw()).map(Raw::typed)
}

/// [`prepared`] of a tensor without its kind.
pub(crate) fn prepared_raw(precision: Precision, tensor: &Raw) -> Result<Raw> {
    match wanted(precision, &[tensor]) {
        Some(dtype) if dtype != tensor.dtype() => converted(tensor, dtype),
        _ => Ok(tensor.clone()),
    }
}

/// The key of a rounded parameter: which parameter was rounded, and how.
#[derive(PartialEq, Eq, Hash)]
struct Weight {
    /// The number of its node.
    node: u64,
    to: DType,
    is_recorded: bool,
}

/// A rounded parameter.
#[derive(Clone)]
struct Rounded {
    tensor: Raw,
    /// The version of the parameter that was rounded.
    version: u64,
    /// The capture in which it was rounded: captured work must not use a tensor that was rounded outside.
    capture: u64,
}

/// The same numbers in another precision. A parameter that was rounded in this scope is not rounded again, unless it
/// changed; then the new tensor replaces the old one.
pub(crate) fn converted(tensor: &Raw, to: DType) -> Result<Raw> {
    let leaf = tensor.node.as_ref().filter(|node| node.is_leaf() && CHOSEN.get().is_some());
    let Some(leaf) = leaf else { return rounded(tensor, to) };
    let weight = Weight { node: leaf.seq(), to, is_recorded: is_grad_enabled() };
    let (version, capture) = (tensor.storage.version(), capture::number());
    if let Some(known) = CONVERTED.with_borrow(|known| known.get(&weight).cloned())
        && (known.version, known.capture, known.tensor.shape()) == (version, capture, tensor.shape())
    {
        return Ok(known.tensor);
    }
    let rounded = Rounded { tensor: rounded(tensor, to)?, version, capture };
    let replaced = CONVERTED.with_borrow_mut(|known| known.insert(weight, rounded.clone()));
    drop(replaced); // while the list is not borrowed
    Ok(rounded.tensor)
}

/// Rounds a tensor. A transposed matrix stays transposed: making it contiguous takes longer than rounding it.
fn rounded(tensor: &Raw, to: DType) -> Result<Raw> {
    if tensor.shape().rank() >= 2 && !tensor.layout.is_contiguous() {
        let turned = tensor.transpose(-2, -1)?;
        if turned.layout.is_contiguous() {
            return cast(&turned, to)?.transpose(-2, -1);
        }
    }
    cast(tensor, to)
}
