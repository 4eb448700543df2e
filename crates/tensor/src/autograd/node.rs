//! The graph: one node per recorded result, with edges to the nodes of its inputs.
//!
//! Edges point from later to earlier nodes only, so the graph has no cycles. Numbers ([`Node::seq`]) identify nodes;
//! inputs have lower ones. Nodes are freed without recursion: a chain of a million operations does not overflow the
//! stack.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::mem::{ManuallyDrop, replace, take};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::element::DType;
use crate::error::{Error, Result};
use crate::free_lists::{self, AnySlot, Slot};
use crate::layout::Layout;
use crate::ops::cast;
use crate::profiler;
use crate::shape::Shape;
use crate::tensor::Raw;

/// A handle to a node of any kind, counted like an `Arc`.
#[derive(Clone)]
pub(crate) struct NodeRef(Arc<dyn AnyNode>); // see `free_lists.rs`

trait AnyNode: AnySlot + Send + Sync {
    fn node(&self) -> &Node;
}

impl<F: GradFn + 'static> AnyNode for Slot<Node<F>> {
    fn node(&self) -> &Node {
        self.value()
    }
}

impl NodeRef {
    /// A node for a recorded result.
    pub(crate) fn new(dtype: DType, shape: Shape, function: impl GradFn + 'static) -> NodeRef {
        NodeRef(free_lists::share(Node::new(dtype, shape, function), 0))
    }

    /// A node for a tensor that the user made: it keeps its gradient.
    pub(crate) fn leaf(dtype: DType, shape: Shape) -> NodeRef {
        let leaf = NodeRef::new(dtype, shape, Leaf);
        leaf.keep_grad();
        leaf
    }
}

impl Deref for NodeRef {
    type Target = Node;

    fn deref(&self) -> &Node {
        self.0.node()
    }
}

impl Drop for NodeRef {
    fn drop(&mut self) {
        free_lists::release(&mut self.0);
    }
}

/// What a node does with the gradient of its result.
pub(crate) trait GradFn: Send + Sync {
    /// The operation's name.
    fn name(&self) -> &'static str;
    /// The nodes of the inputs, `None` where an input is not tracked.
    fn edges(&self) -> &[Option<NodeRef>];
    /// Sends each input's gradient to `send(input, gradient)`.
    fn backward(&self, this: &NodeRef, grad: Raw, send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<()>;
    /// [`backward`](Self::backward) for a gradient of 1 that is not a tensor yet. False, with nothing sent, if it
    /// needs the tensor.
    fn backward_of_one(&self, _this: &NodeRef, _send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<bool> {
        Ok(false)
    }
    /// Whether [`backward`](Self::backward) takes the gradient of an `f32` result in half precision, too.
    fn takes_half_gradients(&self) -> bool {
        false
    }
    /// The layout of the result in its only input, if the result is a part of that input.
    fn part(&self, _input: &Layout) -> Option<Result<Layout>> {
        None
    }
    /// Frees saved tensors.
    fn release(&self) {}
    /// Moves every node that this one keeps alive into `links`.
    fn take_links(&mut self, links: &mut Vec<NodeRef>);
    /// Takes out what else may keep nodes alive: a user's function.
    fn take_rest(&mut self) -> Option<Box<dyn Any>> {
        None
    }
}

pub(crate) type Hook = Arc<dyn Fn(Raw) -> Result<Raw> + Send + Sync>;

/// A recorded result, or a leaf.
pub(crate) struct Node<F: ?Sized + GradFn = dyn GradFn> {
    seq: u64,
    dtype: DType,
    shape: Shape,
    keeps_grad: AtomicBool,
    scope: u32,          // the module that it was made in, if that was recorded
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
    fn new(dtype: DType, shape: Shape, function: F) -> Node<F> {
        // Relaxed: only the order within a thread matters, and passing a tensor to another thread orders the rest.
        let seq = NEXT_SEQ.fetch_add(1, Ordering::Relaxed);
        let scope = profiler::current_scope();
        Node { seq, dtype, shape, keeps_grad: AtomicBool::new(false), scope, state: Mutex::default(), function }
    }
}

impl Node {
    /// Later results have larger numbers.
    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn name(&self) -> &'static str {
        self.function.name()
    }

    /// The module that it was made in, for profiles.
    pub(crate) fn scope(&self) -> u32 {
        self.scope
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

    /// Replaces the gradient and returns the previous one, to be dropped outside of locks: freeing it may free a
    /// graph.
    #[must_use]
    pub(crate) fn replace_grad(&self, grad: Option<Raw>) -> Option<Raw> {
        std::mem::replace(&mut self.state().grad, grad)
    }

    /// Adds a hook and returns the number to remove it by.
    pub(crate) fn add_hook(&self, hook: Hook) -> u64 {
        let mut state = self.state();
        let id = state.hooks.last().map_or(0, |(id, _)| id + 1);
        state.hooks.push((id, hook));
        id
    }

    pub(crate) fn remove_hook(&self, id: u64) {
        let mut state = self.state();
        let removed = state.hooks.iter().position(|(other, _)| *other == id).map(|at| state.hooks.remove(at));
        drop(state);
        drop(removed); // after the lock: what a user's hook holds may do anything when it is dropped
    }

    /// The gradient after all hooks, in the order in which they were added.
    pub(crate) fn through_hooks(&self, mut grad: Raw) -> Result<Raw> {
        // Copied, since a hook may add and remove hooks.
        let hooks: Vec<Hook> = self.state().hooks.iter().map(|(_, hook)| Arc::clone(hook)).collect();
        for hook in hooks {
            grad = hook(grad)?;
            self.check_shape("hook", &grad)?;
            grad = self.converted(grad)?;
        }
        Ok(grad)
    }

    /// Whether a user can see this node's gradient.
    pub(crate) fn is_watched(&self) -> bool {
        self.keeps_grad() || !self.state().hooks.is_empty()
    }

    pub(crate) fn check_grad(&self, op: &'static str, grad: &Raw) -> Result<()> {
        check_grad(op, grad, self.dtype, &self.shape)
    }

    pub(crate) fn check_shape(&self, op: &'static str, grad: &Raw) -> Result<()> {
        check_grad(op, grad, grad.dtype(), &self.shape)
    }

    /// Converts a gradient to a precision that the node's function takes.
    pub(crate) fn acceptable(&self, grad: Raw) -> Result<Raw> {
        let is_narrow = self.dtype == DType::F32 && grad.dtype().size() == 2;
        if is_narrow && self.function.takes_half_gradients() { Ok(grad) } else { self.converted(grad) }
    }

    /// Converts a gradient to the precision of the node's tensor.
    pub(crate) fn converted(&self, grad: Raw) -> Result<Raw> {
        if grad.dtype() == self.dtype { Ok(grad) } else { cast(&grad, self.dtype) }
    }
}

/// Checks that a gradient has the precision and shape of its tensor.
pub(crate) fn check_grad(op: &'static str, grad: &Raw, dtype: DType, shape: &Shape) -> Result<()> {
    if grad.dtype() == dtype && grad.shape() == shape {
        return Ok(());
    }
    let (given_dtype, given) = (grad.dtype(), grad.shape());
    Err(Error::Argument(format!(
        "{op}: the gradient is {given_dtype} {given}, but {dtype} {shape} was expected; a gradient is shaped like its tensor"
    )))
}

/// The function of tensors that the user made: a backward pass ends here.
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

    fn take_links(&mut self, _links: &mut Vec<NodeRef>) {}
}

thread_local! {
    /// What the outermost `Node::drop` of this thread will drop. The variable has no destructor, so that tensors in
    /// other thread-local variables can be dropped when the thread ends; `FREED_AT_END` frees the queue instead.
    static DOOMED: RefCell<ManuallyDrop<Doomed>> = const { RefCell::new(ManuallyDrop::new(Doomed::NOTHING)) };
    static DROPPING: Cell<bool> = const { Cell::new(false) };
    static FREED_AT_END: FreeDoomed = const { FreeDoomed };
}

struct Doomed {
    nodes: Vec<NodeRef>,
    others: Vec<Box<dyn Any>>, // which may hold tensors, and these nodes
}

impl Doomed {
    const NOTHING: Doomed = Doomed { nodes: Vec::new(), others: Vec::new() };
}

/// Dropping a node would drop the nodes it points to, and so on, one stack frame each. Instead every node hands what it
/// holds to a queue, which the outermost drop on this thread empties.
impl<F: ?Sized + GradFn> Drop for Node<F> {
    fn drop(&mut self) {
        let state = take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        drop_later(state, &mut |doomed| {
            self.function.take_links(&mut doomed.nodes);
            doomed.others.extend(self.function.take_rest());
        });
    }
}

/// Moves what a node holds into the queue, and empties that if this is the outermost drop.
fn drop_later(state: State, take_all: &mut dyn FnMut(&mut Doomed)) {
    DOOMED.with_borrow_mut(|doomed| {
        take_all(doomed);
        if state.grad.is_some() || !state.hooks.is_empty() {
            doomed.others.push(Box::new(state)); // a gradient may have a graph, and hooks may hold tensors
        }
    });
    if DROPPING.replace(true) {
        return; // an outer drop empties the queue
    }
    let _end = EndOfDrop;
    loop {
        let (node, other) = DOOMED.with_borrow_mut(|doomed| {
            let node = doomed.nodes.pop();
            let other = if node.is_none() { doomed.others.pop() } else { None };
            (node, other)
        });
        if node.is_none() && other.is_none() {
            break;
        }
        drop((node, other)); // outside of the borrow: more may be queued
    }
}

/// Ends the outermost drop, also if something that a user put into the graph panics when it is dropped.
struct EndOfDrop;

impl Drop for EndOfDrop {
    fn drop(&mut self) {
        DROPPING.set(false);
        if FREED_AT_END.try_with(|_| ()).is_err() {
            drop(FreeDoomed); // the thread is past the destructor that would have done it
        }
    }
}

/// Frees the queue.
struct FreeDoomed;

impl Drop for FreeDoomed {
    fn drop(&mut self) {
        drop(DOOMED.with_borrow_mut(|doomed| replace(&mut **doomed, Doomed::NOTHING)));
    }
}
