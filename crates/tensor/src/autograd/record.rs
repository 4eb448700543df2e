//! Recording: what an operation leaves in the graph, and what its derivative finds there.
//!
//! Only the derivative itself depends on the operation's type. Edges, shapes and saved tensors are kept by [`Links`],
//! which is compiled once per number of inputs and not once per operation.

use std::mem::replace;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::audit::{self, CutBy};
use super::mode::is_grad_enabled;
use super::node::{GradFn, NodeRef};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::{Array, from_fn};
use crate::layout::Layout;
use crate::op::{Derivative, Saves, View};
use crate::shape::Shape;
use crate::tensor::{Raw, Tensor};

/// Gives `out` a node if its gradient may be needed.
pub(crate) fn record<D: Derivative<N>, const N: usize>(
    name: &'static str,
    derivative: D,
    inputs: [Option<&Raw>; N],
    out: Raw,
) -> Raw {
    match Links::of(name, D::SAVES, inputs, &out) {
        None => out,
        Some(links) => Raw { node: Some(NodeRef::new(out.dtype(), *out.shape(), OpNode { derivative, links })), ..out },
    }
}

/// Gives a view a node if its gradient may be needed.
pub(crate) fn record_view<V: View>(op: V, input: &Raw, out: Raw) -> Raw {
    if !is_recorded(V::NAME, [input.node.as_ref()].into_iter(), input.dtype()) {
        return out;
    }
    let function = ViewNode { op, edge: [input.node.clone()], shape: *input.shape() };
    Raw { node: Some(NodeRef::new(out.dtype(), *out.shape(), function)), ..out }
}

/// Whether a result of element type `out` gets a node. Tells a running audit about the tracked inputs.
pub(crate) fn is_recorded<'a>(
    name: &'static str,
    inputs: impl Iterator<Item = Option<&'a NodeRef>> + Clone,
    out: DType,
) -> bool {
    if inputs.clone().all(|node| node.is_none()) {
        return false;
    }
    let cut = match (out.is_float(), is_grad_enabled()) {
        (true, true) => None,
        (true, false) => Some(CutBy::NoGrad),
        (false, _) => Some(CutBy::Type(out)),
    };
    match cut {
        None => audit::note_use(inputs.flatten()),
        Some(by) => audit::note_cut(name, by, inputs.flatten()),
    }
    cut.is_none()
}

/// A saved tensor and the version at which it was saved.
#[derive(Clone)]
pub(crate) struct SavedTensor {
    raw: Raw,
    version: u64,
}

impl SavedTensor {
    pub(crate) fn new(raw: Raw) -> SavedTensor {
        let version = raw.storage.version();
        SavedTensor { raw, version }
    }

    /// The tensor, if it has not changed since it was saved.
    pub(crate) fn get(&self, op: &'static str) -> Result<Raw> {
        let now = self.raw.storage.version();
        if now != self.version {
            return Err(Error::StaleSaved { op, shape: *self.raw.shape(), saved: self.version, now });
        }
        Ok(self.raw.clone())
    }

    pub(crate) fn raw(&self) -> &Raw {
        &self.raw
    }

    pub(crate) fn dtype(&self) -> DType {
        self.raw.dtype()
    }

    /// Replaces the tensor's node.
    pub(crate) fn set_node(&mut self, node: Option<NodeRef>) {
        self.raw.node = node;
    }

    pub(crate) fn take_link(&mut self, links: &mut Vec<NodeRef>) {
        links.extend(self.raw.node.take());
    }
}

/// The tensors that are saved for a derivative, as its operation declares in [`Saves`].
enum SavedTensors<const N: usize> {
    Nothing,
    Inputs([Option<SavedTensor>; N]),
    Output(SavedTensor), // without its node, which would be a cycle
    OutputForLast([Option<SavedTensor>; N]),
    /// Freed by a backward pass that does not retain the graph.
    Freed,
}

impl<const N: usize> SavedTensors<N> {
    fn new(saves: Saves, inputs: [Option<&Raw>; N], out: &Raw) -> SavedTensors<N> {
        let kept = |of: &[Option<&Raw>]| {
            let mut all = [const { None }; N];
            for (kept, raw) in all.iter_mut().zip(of) {
                *kept = raw.map(|raw| SavedTensor::new(raw.clone()));
            }
            all
        };
        match saves {
            Saves::Nothing => SavedTensors::Nothing,
            Saves::Inputs => SavedTensors::Inputs(kept(&inputs)),
            Saves::OtherInputs => {
                let needs_grad = inputs.mapped(|input| input.is_some_and(|input| input.node.is_some()));
                let is_needed = |i: usize| (0..N).any(|other| other != i && needs_grad[other]);
                SavedTensors::Inputs(kept(&from_fn::<_, N>(|i| inputs[i].filter(|_| is_needed(i)))))
            }
            Saves::Output => SavedTensors::Output(SavedTensor::new(out.clone())),
            Saves::OutputForLast => {
                let mut of = inputs;
                of[N - 1] = Some(out);
                SavedTensors::OutputForLast(kept(&of))
            }
        }
    }
}

/// What every recorded operation of `N` inputs keeps, whatever it computes.
struct Links<const N: usize> {
    name: &'static str,
    edges: [Option<NodeRef>; N],
    shapes: [Shape; N],
    saved: Mutex<SavedTensors<N>>,
}

impl<const N: usize> Links<N> {
    /// The links of an operation, or `None` if its gradient cannot be needed.
    fn of(name: &'static str, saves: Saves, inputs: [Option<&Raw>; N], out: &Raw) -> Option<Links<N>> {
        let nodes = inputs.mapped(|input| input.and_then(|input| input.node.as_ref()));
        if !is_recorded(name, nodes.into_iter(), out.dtype()) {
            return None;
        }
        let mut edges = [const { None }; N];
        for (edge, node) in edges.iter_mut().zip(nodes) {
            *edge = node.cloned();
        }
        Some(Links {
            name,
            edges,
            shapes: inputs.mapped(|input| input.map_or(Shape::SCALAR, |input| *input.shape())),
            saved: Mutex::new(SavedTensors::new(saves, inputs, out)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, SavedTensors<N>> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a derivative may use, if it has not changed since it was saved. `this` is the node that owns the links.
    fn restore(&self, this: &NodeRef) -> Result<Saved<'_, N>> {
        let needs = self.edges.each_ref().mapped(Option::is_some);
        let mut saved = Saved { inputs: [const { None }; N], output: None, shapes: &self.shapes, needs };
        let mut restore_inputs = |all: &[Option<SavedTensor>]| -> Result<()> {
            for (input, kept) in saved.inputs.iter_mut().zip(all) {
                if let Some(kept) = kept {
                    *input = Some(kept.get(self.name)?.typed());
                }
            }
            Ok(())
        };
        let restored_output = |kept: &SavedTensor| Ok(Raw { node: Some(this.clone()), ..kept.get(self.name)? }.typed());
        match &*self.lock() {
            SavedTensors::Nothing => {}
            SavedTensors::Inputs(kept) => restore_inputs(kept)?,
            SavedTensors::Output(kept) => saved.output = Some(restored_output(kept)?),
            SavedTensors::OutputForLast(kept) => {
                restore_inputs(&kept[..N - 1])?;
                saved.output = kept[N - 1].as_ref().map(restored_output).transpose()?;
            }
            SavedTensors::Freed => return Err(Error::GraphFreed { op: self.name }),
        }
        Ok(saved)
    }

    /// Sends the gradients that `derivative` computes from the saved tensors. Returns false if it computes none.
    fn differentiate(
        &self,
        this: &NodeRef,
        derivative: &dyn Fn(&Saved<'_, N>) -> Option<Result<[Option<Tensor>; N]>>,
        send: &mut dyn FnMut(usize, Raw) -> Result<()>,
    ) -> Result<bool> {
        let saved = self.restore(this)?;
        let Some(grads) = derivative(&saved) else { return Ok(false) };
        drop(saved);
        for (input, grad) in grads?.into_iter().enumerate() {
            if let Some(grad) = grad {
                send(input, grad.into_raw())?;
            }
        }
        Ok(true)
    }

    fn release(&self) {
        let mut saved = self.lock();
        if !matches!(*saved, SavedTensors::Nothing) {
            let freed = replace(&mut *saved, SavedTensors::Freed);
            drop(saved);
            drop(freed); // after the lock
        }
    }

    fn take(&mut self, links: &mut Vec<NodeRef>) {
        links.extend(self.edges.iter_mut().filter_map(Option::take));
        let saved = self.saved.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let SavedTensors::Inputs(kept) | SavedTensors::OutputForLast(kept) = saved {
            kept.iter_mut().flatten().for_each(|kept| kept.take_link(links));
        }
    }
}

/// The node of an operation that has a [`Derivative`].
struct OpNode<D, const N: usize> {
    derivative: D,
    links: Links<N>,
}

impl<D: Derivative<N>, const N: usize> GradFn for OpNode<D, N> {
    fn name(&self) -> &'static str {
        self.links.name
    }

    fn edges(&self) -> &[Option<NodeRef>] {
        &self.links.edges
    }

    fn backward(&self, this: &NodeRef, grad: Raw, send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<()> {
        let grad = grad.typed();
        self.links.differentiate(this, &|saved| Some(self.derivative.backward(saved, &grad)), send).map(drop)
    }

    fn backward_of_one(&self, this: &NodeRef, send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<bool> {
        self.links.differentiate(this, &|saved| self.derivative.backward_of_one(saved), send)
    }

    fn takes_half_gradients(&self) -> bool {
        D::TAKES_HALF_GRADIENTS
    }

    fn release(&self) {
        self.links.release();
    }

    fn take_links(&mut self, links: &mut Vec<NodeRef>) {
        self.links.take(links);
    }
}

/// What a derivative may use: the tensors that its operation saves, and which gradients are needed.
pub(crate) struct Saved<'a, const N: usize> {
    inputs: [Option<Tensor>; N],
    output: Option<Tensor>,
    shapes: &'a [Shape; N],
    needs: [bool; N],
}

impl<const N: usize> Saved<'_, N> {
    /// Input `i`, of an operation that saves it.
    pub(crate) fn input(&self, i: usize) -> &Tensor {
        self.inputs[i].as_ref().unwrap_or_else(|| unreachable!("the operation said that it saves this input"))
    }

    /// Input `i`, of an operation that saves it, if it was given.
    pub(crate) fn optional(&self, i: usize) -> Option<&Tensor> {
        self.inputs[i].as_ref()
    }

    /// The result, of an operation that saves it.
    pub(crate) fn output(&self) -> &Tensor {
        self.output.as_ref().unwrap_or_else(|| unreachable!("the operation said that it saves its output"))
    }

    /// The shape of input `i`, whatever was saved.
    pub(crate) fn shape(&self, i: usize) -> &Shape {
        &self.shapes[i]
    }

    /// Whether the gradient of input `i` is needed.
    pub(crate) fn needs(&self, i: usize) -> bool {
        self.needs[i]
    }

    /// The gradients that are needed, of all that were computed.
    pub(crate) fn wanted(&self, grads: [Tensor; N]) -> [Option<Tensor>; N] {
        let mut needs = self.needs.into_iter();
        grads.mapped(|grad| needs.next().unwrap_or(false).then_some(grad))
    }

    /// The gradient of input `i`, computed only if it is needed.
    pub(crate) fn grad_of(&self, i: usize, grad: impl FnOnce() -> Result<Tensor>) -> Result<Option<Tensor>> {
        self.needs(i).then(grad).transpose()
    }
}

/// The node of a [`View`].
struct ViewNode<V> {
    op: V,
    edge: [Option<NodeRef>; 1],
    shape: Shape,
}

impl<V: View> GradFn for ViewNode<V> {
    fn name(&self) -> &'static str {
        V::NAME
    }

    fn edges(&self) -> &[Option<NodeRef>] {
        &self.edge
    }

    fn backward(&self, _this: &NodeRef, grad: Raw, send: &mut dyn FnMut(usize, Raw) -> Result<()>) -> Result<()> {
        send(0, self.op.backward(&self.shape, &grad.typed())?.into_raw())
    }

    fn part(&self, input: &Layout) -> Option<Result<Layout>> {
        self.op.part(input)
    }

    fn take_links(&mut self, links: &mut Vec<NodeRef>) {
        links.extend(self.edge[0].take());
    }
}
