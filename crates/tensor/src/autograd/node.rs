//! The graph: one node per recorded result, with edges to the nodes of its inputs.
//!
//! Edges point from later to earlier nodes only, so the graph has no cycles and numbers ([`Node::seq`]) order it.
//! Nodes are freed without recursion: a chain of a million operations does not overflow the stack.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::element::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::Raw;

/// A shared node of any kind.
pub(crate) type NodeRef = Arc<Node>;

/// What a node does with the gradient of its result.
pub(crate) trait GradFn: Send + Sync {
    /// The operation's name.
    fn name(&self) -> &'static str;
    /// The nodes of the inputs, `None` where an input is not tracked.
    fn edges(&self) -> &[Option<NodeRef>];
    /// Sends each input's gradient to `send(input, gradient)`.
    fn backward(&self, this: &NodeRef, grad: Raw, send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<()>;
    /// Frees saved tensors.
    fn release(&self);
    /// Moves every node that this one keeps alive into `links`.
    fn take_links(&mut self, links: &mut Vec<NodeRef>);
}

pub(crate) type Hook = Arc<dyn Fn(Raw) -> Result<Raw> + Send + Sync>;

/// A recorded result, or a leaf.
pub(crate) struct Node<F: ?Sized + GradFn = dyn GradFn> {
    seq: u64,
    dtype: DType,
    shape: Shape,
    keeps_grad: AtomicBool,
    state: Mutex<State>, // guards what users may change while the graph is shared
    function: F,
}

#[derive(Default)]
struct State {
    grad: Option<Raw>,
    hooks: Vec<(u64, Hook)>,
}

static NEXT_SEQ: AtomicU64 = AtomicU64::new(1);

impl<F: GradFn> Node<F> {
    pub(crate) fn new(dtype: DType, shape: Shape, function: F) -> Node<F> {
        // Relaxed: only the order within a thread matters, and passing a tensor to another thread orders the rest.
        let seq = NEXT_SEQ.fetch_add(1, Ordering::Relaxed);
        Node { seq, dtype, shape, keeps_grad: AtomicBool::new(false), state: Mutex::default(), function }
    }
}

impl Node {
    /// A node for a tensor that the user made: it keeps its gradient.
    pub(crate) fn leaf(dtype: DType, shape: Shape) -> NodeRef {
        let leaf = Node::new(dtype, shape, Leaf);
        leaf.keeps_grad.store(true, Ordering::Relaxed);
        Arc::new(leaf)
    }

    /// Later results have larger numbers.
    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn name(&self) -> &'static str {
        self.function.name()
    }

    pub(crate) fn function(&self) -> &dyn GradFn {
        &self.function
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.function.edges().is_empty()
    }

    pub(crate) fn keeps_grad(&self) -> bool {
        self.keeps_grad.load(Ordering::Relaxed)
    }

    pub(crate) fn keep_grad(&self) {
        self.keeps_grad.store(true, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn grad(&self) -> Option<Raw> {
        self.state().grad.clone()
    }

    pub(crate) fn set_grad(&self, grad: Option<Raw>) {
        let old = std::mem::replace(&mut self.state().grad, grad);
        drop(old); // after the lock: freeing a gradient may free a graph
    }

    /// Adds a hook and returns the number to remove it by.
    pub(crate) fn add_hook(&self, hook: Hook) -> u64 {
        let mut state = self.state();
        let id = state.hooks.last().map_or(0, |(id, _)| id + 1);
        state.hooks.push((id, hook));
        id
    }

    pub(crate) fn remove_hook(&self, id: u64) {
        self.state().hooks.retain(|(other, _)| *other != id);
    }

    /// The gradient after all hooks, in the order in which they were added.
    pub(crate) fn through_hooks(&self, mut grad: Raw) -> Result<Raw> {
        let n_hooks = self.state().hooks.len();
        for i in 0..n_hooks {
            // The lock is not held while a user's hook runs.
            let Some(hook) = self.state().hooks.get(i).map(|(_, hook)| Arc::clone(hook)) else { break };
            grad = hook(grad)?;
            self.check_grad("hook", &grad)?;
        }
        Ok(grad)
    }

    pub(crate) fn check_grad(&self, op: &'static str, grad: &Raw) -> Result<()> {
        if grad.dtype() == self.dtype && *grad.shape() == self.shape {
            return Ok(());
        }
        Err(Error::GradientShape {
            op,
            dtype: grad.dtype(),
            shape: *grad.shape(),
            expected_dtype: self.dtype,
            expected: self.shape,
        })
    }
}

/// The function of tensors that the user made: their gradients stay with them.
struct Leaf;

impl GradFn for Leaf {
    fn name(&self) -> &'static str {
        "leaf"
    }

    fn edges(&self) -> &[Option<NodeRef>] {
        &[]
    }

    fn backward(&self, _this: &NodeRef, _grad: Raw, _send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn release(&self) {}

    fn take_links(&mut self, _links: &mut Vec<NodeRef>) {}
}

thread_local! {
    /// Nodes waiting to be dropped by the outermost `Node::drop` of this thread.
    static DOOMED: RefCell<Vec<NodeRef>> = const { RefCell::new(Vec::new()) };
    static DROPPING: Cell<bool> = const { Cell::new(false) };
}

/// Dropping a node would drop the nodes it points to, and so on, one stack frame each. Instead every node hands its
/// links to a queue, which the outermost drop on this thread empties.
impl<F: ?Sized + GradFn> Drop for Node<F> {
    fn drop(&mut self) {
        drop_links(&mut |links| self.function.take_links(links));
    }
}

/// Drops what `take_links` puts into a list, and in turn what that kept alive.
fn drop_links(take_links: &mut dyn FnMut(&mut Vec<NodeRef>)) {
    if DOOMED.try_with(|doomed| take_links(&mut doomed.borrow_mut())).is_err() {
        return drop_on_own_queue(take_links); // the thread is ending, its queue is gone
    }
    if DROPPING.replace(true) {
        return; // an outer drop empties the queue
    }
    while let Some(node) = DOOMED.with(|doomed| doomed.borrow_mut().pop()) {
        drop(node);
    }
    DROPPING.set(false);
}

fn drop_on_own_queue(take_links: &mut dyn FnMut(&mut Vec<NodeRef>)) {
    let mut links = Vec::new();
    take_links(&mut links);
    while let Some(mut node) = links.pop() {
        if let Some(last) = Arc::get_mut(&mut node) {
            last.function.take_links(&mut links);
        }
    }
}
