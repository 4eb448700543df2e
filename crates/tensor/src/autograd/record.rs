//! Recording: what an operation leaves in the graph, and what its derivative finds there.

use std::sync::{Arc, Mutex, PoisonError};

use super::audit;
use super::mode::is_grad_enabled;
use super::node::{GradFn, Node, NodeRef};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::op::{Op, Saves, View};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

/// Gives `out` a node if a gradient may be asked for.
pub(crate) fn record<T: Element, O: Op<T, N>, const N: usize>(
    op: O,
    inputs: [&Tensor<T>; N],
    out: Tensor<O::Out>,
) -> Tensor<O::Out> {
    if !is_recorded(O::NAME, inputs.iter().map(|input| input.node()), O::Out::DTYPE.is_float()) {
        return out;
    }
    let saved = SavedTensors {
        inputs: inputs.map(|input| (O::SAVES == Saves::Inputs).then(|| Kept::new(input.raw().clone()))),
        output: (O::SAVES == Saves::Output).then(|| Kept::new(out.raw().clone())),
    };
    let function = OpNode {
        op,
        edges: inputs.map(|input| input.node().cloned()),
        shapes: inputs.map(|input| *input.shape()),
        saved: Mutex::new(Some(saved)),
        element: std::marker::PhantomData,
    };
    let node: NodeRef = Arc::new(Node::new(O::Out::DTYPE, *out.shape(), function));
    out.with_node(Some(node))
}

/// Gives a view a node if a gradient may be asked for.
pub(crate) fn record_view<T: Element, V: View<T>>(op: V, input: &Tensor<T>, out: Tensor<T>) -> Tensor<T> {
    if !is_recorded(V::NAME, [input.node()].into_iter(), T::DTYPE.is_float()) {
        return out;
    }
    let function =
        ViewNode { op, edge: [input.node().cloned()], shape: *input.shape(), element: std::marker::PhantomData };
    let node: NodeRef = Arc::new(Node::new(T::DTYPE, *out.shape(), function));
    out.with_node(Some(node))
}

/// Whether a result gets a node; tells a running audit if it does not although an input is tracked.
pub(crate) fn is_recorded<'a>(
    name: &'static str,
    inputs: impl Iterator<Item = Option<&'a NodeRef>> + Clone,
    float: bool,
) -> bool {
    if inputs.clone().all(|node| node.is_none()) {
        return false;
    }
    let recorded = is_grad_enabled() && float;
    if !recorded {
        audit::note_cut(name, inputs.flatten());
    }
    recorded
}

/// A saved tensor and the version at which it was saved.
pub(crate) struct Kept {
    raw: Raw,
    version: u64,
}

impl Kept {
    pub(crate) fn new(raw: Raw) -> Kept {
        let version = raw.storage.version();
        Kept { raw, version }
    }

    /// The tensor, if it is still what was saved.
    pub(crate) fn get(&self, op: &'static str) -> Result<Raw> {
        let now = self.raw.storage.version();
        if now != self.version {
            return Err(Error::StaleSaved { op, shape: *self.raw.shape(), saved: self.version, now });
        }
        Ok(self.raw.clone())
    }

    pub(crate) fn take_link(&mut self, links: &mut Vec<NodeRef>) {
        links.extend(self.raw.node.take());
    }
}

struct SavedTensors<const N: usize> {
    inputs: [Option<Kept>; N],
    output: Option<Kept>, // without its node, which would be a cycle
}

/// The node of an [`Op`].
struct OpNode<T, O, const N: usize> {
    op: O,
    edges: [Option<NodeRef>; N],
    shapes: [Shape; N],
    saved: Mutex<Option<SavedTensors<N>>>, // emptied by a backward that does not retain the graph
    element: std::marker::PhantomData<fn() -> T>,
}

impl<T: Element, O: Op<T, N>, const N: usize> OpNode<T, O, N> {
    fn saved(&self, this: &NodeRef) -> Result<Saved<'_, T, O::Out, N>> {
        let mut inputs = [const { None }; N];
        let mut output = None;
        let lock = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        match &*lock {
            Some(saved) => {
                for (input, kept) in inputs.iter_mut().zip(&saved.inputs) {
                    *input = kept.as_ref().map(|kept| kept.get(O::NAME)).transpose()?.map(Raw::typed);
                }
                if let Some(kept) = &saved.output {
                    output = Some(kept.get(O::NAME)?.typed().with_node(Some(Arc::clone(this))));
                }
            }
            None if O::SAVES == Saves::Nothing => {}
            None => return Err(Error::GraphFreed { op: O::NAME }),
        }
        Ok(Saved { inputs, output, shapes: &self.shapes, needs: self.edges.each_ref().map(Option::is_some) })
    }
}

impl<T: Element, O: Op<T, N>, const N: usize> GradFn for OpNode<T, O, N> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn edges(&self) -> &[Option<NodeRef>] {
        &self.edges
    }

    fn backward(&self, this: &NodeRef, grad: Raw, send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<()> {
        let saved = self.saved(this)?;
        let grads = self.op.backward(&saved, &grad.typed())?;
        for (input, grad) in grads.into_iter().enumerate() {
            if let Some(grad) = grad {
                send(input, grad.into_raw())?;
            }
        }
        Ok(())
    }

    fn release(&self) {
        let saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(saved); // after the lock
    }

    fn take_links(&mut self, links: &mut Vec<NodeRef>) {
        links.extend(self.edges.iter_mut().filter_map(Option::take));
        if let Some(saved) = self.saved.get_mut().unwrap_or_else(PoisonError::into_inner) {
            saved.inputs.iter_mut().flatten().for_each(|kept| kept.take_link(links));
        }
    }
}

/// What a derivative may use: the tensors its operation said it saves, and which gradients are wanted.
pub(crate) struct Saved<'a, T, Out, const N: usize> {
    inputs: [Option<Tensor<T>>; N],
    output: Option<Tensor<Out>>,
    shapes: &'a [Shape; N],
    needs: [bool; N],
}

impl<T: Element, Out: Element, const N: usize> Saved<'_, T, Out, N> {
    /// Input `i`, of an operation with [`Saves::Inputs`].
    pub(crate) fn input(&self, i: usize) -> &Tensor<T> {
        self.inputs[i].as_ref().unwrap_or_else(|| unreachable!("the operation said that it saves its inputs"))
    }

    /// The result, of an operation with [`Saves::Output`].
    pub(crate) fn output(&self) -> &Tensor<Out> {
        self.output.as_ref().unwrap_or_else(|| unreachable!("the operation said that it saves its output"))
    }

    /// The shape of input `i`, whatever was saved.
    pub(crate) fn shape(&self, i: usize) -> &Shape {
        &self.shapes[i]
    }

    /// Whether anyone wants the gradient of input `i`.
    pub(crate) fn needs(&self, i: usize) -> bool {
        self.needs[i]
    }

    /// The gradient of input `i`, computed only if anyone wants it.
    pub(crate) fn grad_of(&self, i: usize, grad: impl FnOnce() -> Result<Tensor<T>>) -> Result<Option<Tensor<T>>> {
        self.needs(i).then(grad).transpose()
    }
}

/// The node of a [`View`].
struct ViewNode<T, V> {
    op: V,
    edge: [Option<NodeRef>; 1],
    shape: Shape,
    element: std::marker::PhantomData<fn() -> T>,
}

impl<T: Element, V: View<T>> GradFn for ViewNode<T, V> {
    fn name(&self) -> &'static str {
        V::NAME
    }

    fn edges(&self) -> &[Option<NodeRef>] {
        &self.edge
    }

    fn backward(&self, _this: &NodeRef, grad: Raw, send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<()> {
        send(0, self.op.backward(&self.shape, &grad.typed())?.into_raw())
    }

    fn release(&self) {}

    fn take_links(&mut self, links: &mut Vec<NodeRef>) {
        links.extend(self.edge[0].take());
    }
}
