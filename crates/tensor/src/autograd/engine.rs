//! The engine: walks the graph from the results to the leaves.
//!
//! A pass first lists the nodes depth-first, each behind all of its inputs. It then takes them from the end of the list,
//! so a node's gradient is complete when its turn comes. The order depends on the graph alone: gradients are added in
//! the same order in every run, also if several threads made the graph.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;
use pagelock_memory::Holder;
use rustc_hash::FxHashMap;

use super::audit::hidden_from_audit;
use super::mode::{is_grad_enabled, with_grad_enabled};
use super::node::{GradFn, NodeRef};
use crate::autocast;
use crate::error::Result;
use crate::heap::CountedHeap;
use crate::kind::Float;
use crate::ops::{MAX_PAIRS, Pairs, pair_sums};
use crate::profiler;
use crate::shape::Shape;
use crate::tensor::Raw;

/// Options of one backward pass.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    /// Keep saved tensors for another pass.
    pub(crate) retain_graph: bool,
    /// Record the derivatives themselves.
    pub(crate) create_graph: bool,
}

/// The gradient that a pass starts from.
pub(crate) enum RootGradient<'a> {
    Given(Raw),
    /// The number 1. The function makes the tensor, if one is needed.
    One(&'a dyn Fn() -> Result<Raw>),
}

/// Runs a pass from `root` and adds to the gradient of each leaf. On an error no leaf is changed.
pub(crate) fn backward(root: &NodeRef, start: RootGradient<'_>, options: Options) -> Result<()> {
    with_buffers(|Buffers { pending, leaves }| {
        pending.list(root, None)?;
        let begin = |pending: &mut Pending| match start {
            RootGradient::Given(gradient) => pending.arrive(root, gradient),
            RootGradient::One(make) if root.is_watched() || options.create_graph => pending.arrive(root, make()?),
            RootGradient::One(make) => {
                let function = root.function();
                let running = profiler::backward(root.name(), root.scope());
                match function.backward_of_one(root, &mut |input, grad| pending.send(function, input, grad))? {
                    true => {
                        if !options.retain_graph {
                            function.release();
                        }
                        Ok(())
                    }
                    false => {
                        running.discard(); // `propagate` records the node again
                        pending.arrive(root, make()?)
                    }
                }
            }
        };
        propagate(pending, begin, options, &mut |node, grad| {
            if node.keeps_grad() {
                leaves.push((node.clone(), Some(grad.clone())));
            }
        })?;
        accumulate(leaves, options)
    })
}

/// The gradients of `targets`, in their order. Leaves store nothing.
pub(crate) fn gradients(roots: Vec<(NodeRef, Raw)>, targets: &[NodeRef], options: Options) -> Result<Vec<Option<Raw>>> {
    let mut found = vec![None; targets.len()];
    let mut visit = |node: &NodeRef, grad: &Raw| {
        for (target, slot) in targets.iter().zip(&mut found) {
            if target.seq() == node.seq() {
                *slot = Some(grad.clone());
            }
        }
    };
    with_buffers(|Buffers { pending, .. }| {
        let of_targets = &targets.iter().map(|target| target.seq()).collect();
        roots.iter().try_for_each(|(root, _)| pending.list(root, Some(of_targets)))?;
        let begin = |pending: &mut Pending| roots.into_iter().try_for_each(|(root, grad)| pending.arrive(&root, grad));
        propagate(pending, begin, options, &mut visit)
    })?;
    for (target, grad) in targets.iter().zip(&mut found) {
        *grad = grad.take().map(|grad| as_derivative(options, || target.converted(grad))).transpose()?;
    }
    Ok(found)
}

/// Propagates the gradients that `begin` adds to all listed nodes, and calls `visit` with each node's complete gradient.
fn propagate(
    pending: &mut Pending,
    begin: impl FnOnce(&mut Pending) -> Result<()>,
    options: Options,
    visit: &mut dyn FnMut(&NodeRef, &Raw),
) -> Result<()> {
    as_derivative(options, || {
        begin(pending)?;
        while let Some((node, grad)) = pending.next()? {
            let Some(grad) = grad else { continue }; // no gradient has reached it
            let grad = if node.is_watched() { node.through_hooks(node.converted(grad)?)? } else { grad };
            visit(&node, &grad);
            let function = node.function();
            if !function.edges().iter().flatten().any(|input| pending.position(input).is_some()) {
                continue; // a leaf, or a target that leads to no other one
            }
            let _running = profiler::backward(node.name(), node.scope());
            if !pending.add_part(function, &grad, options)? {
                function.backward(&node, grad, &mut |input, grad| pending.send(function, input, grad))?;
            }
            if !options.retain_graph {
                function.release();
            }
        }
        Ok(())
    })
}

fn as_derivative<R>(options: Options, f: impl FnOnce() -> R) -> R {
    let _charged = Holder::GRADIENTS.by_default();
    // Each gradient is computed in the precision of its tensor, inside autocast too.
    hidden_from_audit(|| with_grad_enabled(options.create_graph, || autocast::no_autocast(f)))
}

/// The nodes that are still to be visited, and the gradients that have arrived there.
#[derive(Default)]
struct Pending {
    /// Each behind all of its inputs.
    nodes: Vec<NodeRef>,
    /// The gradient of each of the nodes, if one has arrived.
    grads: Vec<Option<Raw>>,
    /// Where the nodes with these numbers are in `nodes`; `None` for nodes that lead to no target.
    positions: FxHashMap<u64, Option<usize>>,
    /// While nodes are listed: the path to the current one, each with the number of its inputs that were visited.
    path: Vec<(NodeRef, usize)>,
    /// Gradients that are still to be added to those in `grads`, at most one per node.
    unadded: ArrayVec<(usize, Raw), MAX_PAIRS>,
    /// The memory of the other lists, counted for each [`NODES_PER_CHARGE`] nodes.
    counted: Vec<CountedHeap>,
}

/// For how many nodes the lists are charged at a time. Shorter lists are not counted.
const NODES_PER_CHARGE: usize = 4096;
/// What the lists take for a node: its gradient, three handles, and an entry of the map; twice, since lists that grow
/// have room to spare.
const NODE_BYTES: usize = 2 * (size_of::<Option<Raw>>() + 3 * size_of::<NodeRef>() + size_of::<(u64, Option<usize>)>());

impl Pending {
    /// Lists the nodes behind `root`, and `root` itself: all, or the `targets` and those that lead to one.
    ///
    /// # Errors
    /// [`Error::WorkingMemory`](crate::Error::WorkingMemory) if the budget refuses the lists.
    fn list(&mut self, root: &NodeRef, targets: Option<&HashSet<u64>>) -> Result<()> {
        let oldest = targets.and_then(|targets| targets.iter().copied().min()).unwrap_or(0);
        self.enter(root, oldest)?;
        while let Some((node, n_visited)) = self.path.last_mut() {
            if let Some(input) = node.function().edges().get(*n_visited) {
                *n_visited += 1;
                if let Some(input) = input.clone() {
                    self.enter(&input, oldest)?;
                }
                continue;
            }
            let Some((node, _)) = self.path.pop() else { break };
            let leads_on = || node.function().edges().iter().flatten().any(|input| self.position(input).is_some());
            if targets.is_none_or(|targets| targets.contains(&node.seq()) || leads_on()) {
                self.positions.insert(node.seq(), Some(self.nodes.len()));
                self.nodes.push(node);
                self.grads.push(None);
            }
        }
        Ok(())
    }

    /// Begins to visit a node, unless it was visited, or is older than every target: inputs are older than results.
    fn enter(&mut self, node: &NodeRef, oldest: u64) -> Result<()> {
        if node.seq() >= oldest && !self.positions.contains_key(&node.seq()) {
            if self.positions.len() >= NODES_PER_CHARGE * (self.counted.len() + 1) {
                let len_bytes = NODES_PER_CHARGE * NODE_BYTES;
                self.counted.push(CountedHeap::granted("backward", "its list of the graph's nodes", len_bytes)?);
            }
            self.positions.insert(node.seq(), None);
            self.path.push((node.clone(), 0));
        }
        Ok(())
    }

    fn position(&self, node: &NodeRef) -> Option<usize> {
        self.positions.get(&node.seq()).copied().flatten()
    }

    /// Stores the gradient of a root, if that is listed.
    fn arrive(&mut self, root: &NodeRef, grad: Raw) -> Result<()> {
        root.check_shape("backward", &grad)?;
        self.position(root).map_or(Ok(()), |position| self.store(position, grad))
    }

    /// Stores a gradient of a listed node: in `grads` if it is the first, else in `unadded`.
    fn store(&mut self, position: usize, grad: Raw) -> Result<()> {
        let grad = self.nodes[position].acceptable(grad)?;
        if self.grads[position].is_none() {
            self.grads[position] = Some(grad);
            return Ok(());
        }
        if self.unadded.is_full() || self.unadded.iter().any(|(other, _)| *other == position) {
            self.add_up()?;
        }
        self.unadded.push((position, grad));
        Ok(())
    }

    /// Adds the gradients in `unadded` to those in `grads`, in each node's precision: all inputs of an operation in
    /// one call.
    fn add_up(&mut self) -> Result<()> {
        if self.unadded.is_empty() {
            return Ok(());
        }
        let (mut positions, mut pairs) = (ArrayVec::<_, MAX_PAIRS>::new(), Pairs::new());
        for (position, grad) in self.unadded.drain(..) {
            let (node, earlier) = (&self.nodes[position], self.grads[position].take());
            let Some(earlier) = earlier else { unreachable!("a gradient has reached the node") };
            pairs.push([node.converted(earlier)?, node.converted(grad)?]);
            positions.push(position);
        }
        let sums = pair_sums(&pairs)?;
        positions.into_iter().zip(sums).for_each(|(position, sum)| self.grads[position] = Some(sum));
        Ok(())
    }

    /// Passes the gradient of an input on.
    fn send(&mut self, function: &dyn GradFn, input: usize, grad: Raw) -> Result<()> {
        let next = function.edges()[input].as_ref();
        let Some(position) = next.and_then(|next| self.position(next)) else { return Ok(()) };
        self.store(position, sum_down(grad, self.nodes[position].shape())?)
    }

    /// Adds the gradient of a part of a tensor to the gradient of the whole, in place. Returns false, having done
    /// nothing, if the whole has no gradient yet, another handle shares that gradient, or the sum must be recorded.
    fn add_part(&mut self, function: &dyn GradFn, grad: &Raw, options: Options) -> Result<bool> {
        let [Some(input)] = function.edges() else { return Ok(false) };
        let arrived = self.position(input).and_then(|position| self.grads[position].as_ref());
        let Some(whole) = arrived.filter(|_| !options.create_graph) else { return Ok(false) };
        let Some(part) = function.part(&whole.layout) else { return Ok(false) };
        if !whole.storage.is_unique() || whole.layout.overlaps() || whole.dtype() != grad.dtype() {
            return Ok(false);
        }
        whole.with_layout(part?).typed::<Float>().add_(&grad.clone().typed())?;
        Ok(true)
    }

    /// The next node and its gradient, which is complete.
    fn next(&mut self) -> Result<Option<(NodeRef, Option<Raw>)>> {
        self.add_up()?;
        Ok(self.nodes.pop().zip(self.grads.pop()))
    }
}

/// The collections that a pass fills. A thread keeps them from pass to pass, so that a steady training step allocates
/// nothing.
#[derive(Default)]
struct Buffers {
    pending: Pending,
    /// Leaves, and the gradients that have arrived there.
    leaves: Vec<(NodeRef, Option<Raw>)>,
}

/// The largest capacity that idle buffers keep, and how many buffers a thread keeps: a hook that runs a backward pass
/// uses its own.
const MAX_CAPACITY: usize = 1 << 14;
const MAX_BUFFERS: usize = 4;

thread_local! {
    static IDLE: RefCell<Vec<Buffers>> = const { RefCell::new(Vec::new()) };
}

/// Calls `walk` with empty buffers.
fn with_buffers<R>(walk: impl FnOnce(&mut Buffers) -> R) -> R {
    let idle = IDLE.try_with(|idle| idle.borrow_mut().pop()); // fails while the thread ends
    let mut buffers = idle.ok().flatten().unwrap_or_default();
    let result = walk(&mut buffers);
    buffers.clear();
    if IDLE.try_with(|idle| idle.borrow().len() < MAX_BUFFERS) == Ok(true) {
        IDLE.with_borrow_mut(|idle| idle.push(buffers));
    }
    result
}

impl Buffers {
    fn clear(&mut self) {
        let Buffers { pending: Pending { nodes, grads, positions, path, unadded, counted }, leaves } = self;
        unadded.clear();
        nodes.clear();
        nodes.shrink_to(MAX_CAPACITY);
        grads.clear();
        grads.shrink_to(MAX_CAPACITY);
        positions.clear();
        positions.shrink_to(MAX_CAPACITY);
        path.clear();
        path.shrink_to(MAX_CAPACITY);
        leaves.clear();
        leaves.shrink_to(MAX_CAPACITY);
        counted.clear();
    }
}

/// Held while gradients are added to those of leaves: two threads may reach the same leaf.
static ACCUMULATING: Mutex<()> = Mutex::new(());

/// Adds to the gradients of all leaves, or of none if an addition fails.
fn accumulate(leaves: &mut [(NodeRef, Option<Raw>)], options: Options) -> Result<()> {
    let one_at_a_time = ACCUMULATING.lock().unwrap_or_else(PoisonError::into_inner);
    as_derivative(options, || leaves.chunks_mut(MAX_PAIRS).try_for_each(accumulate_some))?;
    for (leaf, grad) in leaves {
        *grad = leaf.replace_grad(grad.take());
    }
    drop(one_at_a_time);
    Ok(()) // the old gradients, and graphs behind them, are freed after the lock
}

/// Computes the new gradients of some leaves. A gradient that shares memory with another tensor is copied, so that
/// changing one in place never changes the other. So is one that is neither contiguous nor channels-last.
fn accumulate_some(leaves: &mut [(NodeRef, Option<Raw>)]) -> Result<()> {
    let (mut added, mut pairs) = (ArrayVec::<_, MAX_PAIRS>::new(), Pairs::new());
    for (leaf, grad_slot) in leaves {
        let Some(grad) = grad_slot.take() else { continue };
        match leaf.grad() {
            Some(earlier) => {
                pairs.push([earlier, grad]);
                added.push(grad_slot);
            }
            None if has_own_memory(&grad) => *grad_slot = Some(grad),
            None if is_grad_enabled() => *grad_slot = Some(grad.deep_clone()?), // recorded
            None => *grad_slot = Some(grad.detached_copy("backward")?),
        }
    }
    if !pairs.is_empty() {
        added.into_iter().zip(pair_sums(&pairs)?).for_each(|(grad_slot, sum)| *grad_slot = Some(sum));
    }
    Ok(())
}

fn has_own_memory(grad: &Raw) -> bool {
    grad.storage.is_unique() && (grad.layout.is_contiguous() || grad.layout.is_channels_last())
}

/// Sums a gradient over the dimensions along which an input of shape `to` was broadcast. Nothing else does this.
fn sum_down(grad: Raw, to: &Shape) -> Result<Raw> {
    if grad.shape() == to {
        return Ok(grad);
    }
    Ok(grad.typed::<Float>().sum_to(to)?.into_raw())
}
