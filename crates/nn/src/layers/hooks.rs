//! [`Hooked`]: a layer that calls functions before and after its forward, and in its backward.

use crate::functional::shared::wrong_shape;
use crate::{Forward, Module, VisitEvent, Visitor, VisitorMut, print};
use pagelock_tensor::autograd::{Context, Function};
use pagelock_tensor::{Result, Tensor};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

type PreHook<L> = dyn Fn(&L, &Tensor) -> Result<Option<Tensor>> + Send + Sync;
type PostHook<L> = dyn Fn(&L, &Tensor, &Tensor) -> Result<Option<Tensor>> + Send + Sync;
type GradPreHook = dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync;
type GradHook = dyn Fn(Option<&Tensor>, &Tensor) -> Result<Option<Tensor>> + Send + Sync;

/// A layer with PyTorch's hooks. In PyTorch every module has hooks, since every call goes through `Module.__call__`.
/// Here a call is a plain method, so hooks need this wrapper. The names of parameters and the printed text are those
/// of the layer.
///
/// Hooks run in the order in which they were registered. A tensor that a hook returns replaces the input, output or
/// gradient that the hook was called for.
///
/// # Examples
/// ```
/// use pagelock_nn::{Forward, Hooked, Linear, Module};
/// use pagelock_tensor::Tensor;
/// use std::sync::{Arc, Mutex};
///
/// let layer = Hooked::new(Linear::new(3, 2)?);
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let log = seen.clone();
/// let handle = layer.register_forward_hook(move |layer, input, output| {
///     log.lock().unwrap().push((layer.to_string(), input.dims().to_vec(), output.dims().to_vec()));
///     Ok(None)
/// });
/// layer.forward(&Tensor::ones([4, 3])?)?;
/// handle.remove();
/// layer.forward(&Tensor::ones([4, 3])?)?;
/// assert_eq!(seen.lock().unwrap().len(), 1);
/// assert_eq!(layer.named_parameters()[0].0, "weight");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub struct Hooked<L> {
    layer: L,
    before: List<PreHook<L>>,
    after: List<PostHook<L>>,
    grad_before: List<GradPreHook>,
    grad_after: List<GradHook>,
}

/// A list of hooks. Each has a number, by which its handle finds it.
struct List<F: ?Sized>(Arc<Mutex<Hooks<F>>>);

struct Hooks<F: ?Sized> {
    next: u64,
    hooks: Vec<(u64, Arc<F>)>,
}

impl<F: ?Sized + Send + Sync + 'static> List<F> {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Hooks { next: 0, hooks: Vec::new() })))
    }

    fn add(&self, hook: Arc<F>) -> HookHandle {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = list.next;
        list.next += 1;
        list.hooks.push((number, hook));
        let list = Arc::downgrade(&self.0);
        let remove = move || {
            if let Some(list) = list.upgrade() {
                let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
                let index = list.hooks.iter().position(|(other, _)| *other == number);
                let hook = index.map(|index| list.hooks.remove(index));
                drop(list); // unlocked before the user's hook is dropped
                drop(hook);
            }
        };
        HookHandle(Box::new(remove))
    }

    /// The current hooks. They run without the lock, so a hook may change the list.
    fn all(&self) -> Vec<Arc<F>> {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.hooks.iter().map(|(_, hook)| Arc::clone(hook)).collect()
    }
}

/// A handle to remove a hook. Dropping the handle keeps the hook.
pub struct HookHandle(Box<dyn FnOnce() + Send>);

impl HookHandle {
    /// Removes the hook.
    pub fn remove(self) {
        (self.0)();
    }
}

impl fmt::Debug for HookHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookHandle")
    }
}

impl<L: Module + Forward + 'static> Hooked<L> {
    /// Wraps a layer, without hooks.
    pub fn new(layer: L) -> Self {
        let (before, after) = (List::new(), List::new());
        Self { layer, before, after, grad_before: List::new(), grad_after: List::new() }
    }

    /// The layer.
    pub fn layer(&self) -> &L {
        &self.layer
    }

    /// Takes the layer out and drops the hooks.
    pub fn into_layer(self) -> L {
        self.layer
    }

    /// Calls `hook` with the layer and its input before each forward.
    pub fn register_forward_pre_hook(
        &self,
        hook: impl Fn(&L, &Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> HookHandle {
        self.before.add(Arc::new(hook))
    }

    /// Calls `hook` with the layer, its input and its output after each forward.
    pub fn register_forward_hook(
        &self,
        hook: impl Fn(&L, &Tensor, &Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> HookHandle {
        self.after.add(Arc::new(hook))
    }

    /// Calls `hook` with the gradient of the output in each backward, before the backward of the layer.
    pub fn register_full_backward_pre_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> HookHandle {
        self.grad_before.add(Arc::new(hook))
    }

    /// Calls `hook` with the gradient of the input, if it has one, and the gradient of the output in each backward,
    /// after the backward of the layer. A tensor that the hook returns replaces the gradient of the input. Unlike in
    /// PyTorch, the hook does not get the layer, because a backward may run after the layer is dropped.
    ///
    /// As in PyTorch, the hook is not called if a gradient reaches the input without passing the output. Two backward
    /// passes through one forward must not overlap, on two threads or with one inside a hook of the other: the hook may
    /// then be called with the output's gradient of the other pass, or not at all.
    pub fn register_full_backward_hook(
        &self,
        hook: impl Fn(Option<&Tensor>, &Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> HookHandle {
        self.grad_after.add(Arc::new(hook))
    }
}

impl<L: Module + Forward + 'static> Forward for Hooked<L> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for hook in self.before.all() {
            x = hook(&self.layer, &x)?.unwrap_or(x);
        }
        let watch = Watch::new(self.grad_before.all(), self.grad_after.all(), &x);
        let input = watch.enter(&x)?;
        let mut y = self.layer.forward(&input)?;
        for hook in self.after.all() {
            y = hook(&self.layer, &x, &y)?.unwrap_or(y);
        }
        watch.leave(&y)
    }
}

/// The backward hooks of one forward, and the gradient of its output once it is known.
struct Watch {
    before: Vec<Arc<GradPreHook>>,
    after: Vec<Arc<GradHook>>,
    has_input_grad: bool,
    grad_output: Mutex<Option<Tensor>>,
}

impl Watch {
    fn new(before: Vec<Arc<GradPreHook>>, after: Vec<Arc<GradHook>>, x: &Tensor) -> Arc<Self> {
        Arc::new(Self { before, after, has_input_grad: x.requires_grad(), grad_output: Mutex::new(None) })
    }

    fn enter(self: &Arc<Self>, x: &Tensor) -> Result<Tensor> {
        if self.after.is_empty() || !self.has_input_grad { Ok(x.clone()) } else { Entry(Arc::clone(self)).apply(&[x]) }
    }

    fn leave(self: &Arc<Self>, y: &Tensor) -> Result<Tensor> {
        let is_watched = !self.before.is_empty() || !self.after.is_empty();
        if is_watched && y.requires_grad() { Exit(Arc::clone(self)).apply(&[y]) } else { Ok(y.clone()) }
    }

    fn keep(&self, grad: Option<Tensor>) -> Option<Tensor> {
        std::mem::replace(&mut *self.grad_output.lock().unwrap_or_else(PoisonError::into_inner), grad)
    }
}

/// The gradient after a hook: the tensor that the hook returned, if any, else the gradient before.
fn replaced(grad: Tensor, other: Option<Tensor>) -> Result<Tensor> {
    match other {
        Some(other) if other.shape() != grad.shape() => {
            let expected = format!("the gradient is {}; return a tensor of that shape", grad.shape());
            Err(wrong_shape("Hooked", "the tensor that a hook returned", other.shape(), &expected))
        }
        Some(other) => Ok(other),
        None => Ok(grad),
    }
}

/// The node after the layer. Its backward runs before that of the layer.
struct Exit(Arc<Watch>);

impl Function for Exit {
    fn forward(&self, _: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
        Ok(inputs[0].clone())
    }

    fn backward(&self, _: &Context, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let mut grad = grad.clone();
        for hook in &self.0.before {
            let other = hook(&grad)?;
            grad = replaced(grad, other)?;
        }
        if !self.0.has_input_grad {
            for hook in &self.0.after {
                hook(None, &grad)?;
            }
        } else if !self.0.after.is_empty() {
            self.0.keep(Some(grad.clone()));
        }
        Ok(vec![Some(grad)])
    }

    fn name(&self) -> &'static str {
        "full_backward_pre_hook"
    }
}

/// The node before the layer. Its backward runs after that of the layer.
struct Entry(Arc<Watch>);

impl Function for Entry {
    fn forward(&self, _: &mut Context, inputs: &[&Tensor]) -> Result<Tensor> {
        Ok(inputs[0].clone())
    }

    fn backward(&self, _: &Context, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let mut grad = grad.clone();
        if let Some(grad_output) = self.0.keep(None) {
            for hook in &self.0.after {
                let other = hook(Some(&grad), &grad_output)?;
                grad = replaced(grad, other)?;
            }
        }
        Ok(vec![Some(grad)])
    }

    fn name(&self) -> &'static str {
        "full_backward_hook"
    }
}

impl<L: Module> Module for Hooked<L> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.report(VisitEvent::Inside { address: std::ptr::from_ref(&self.layer).addr() });
        self.layer.visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.layer.visit_mut(visitor);
    }

    fn title(&self) -> String {
        self.layer.title()
    }

    fn details(&self) -> String {
        self.layer.details()
    }
}

impl<L: Module> fmt::Display for Hooked<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self).fmt(f)
    }
}

impl<L: Module> fmt::Debug for Hooked<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
