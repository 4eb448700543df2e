//! [`GraphRecorder`]: the operations of a forward pass as a graph, with the modules that called them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use super::scopes::{self, ModuleNames};
use super::switch;
use crate::capture::{self, Tensors};
use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::heap::CountedHeap;
use crate::kind::Kind;
use crate::shape::Shape;
use crate::storage::Storage;
use crate::tensor::{Raw, Tensor};

/// The most nodes of a graph.
const MAX_NODES: usize = 100_000;

thread_local! {
    static GRAPH: RefCell<Option<Nodes>> = const { RefCell::new(None) };
    /// Operations of this thread that have begun and not ended.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A graph of operations; made by [`GraphRecorder::record`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedGraph {
    /// The nodes in an order in which each comes after those that it uses.
    pub nodes: Vec<RecordedNode>,
}

/// A tensor of a [`RecordedGraph`], and what made it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedNode {
    /// A name that no other node has: the modules and the operation, such as `Net/Conv2d[conv1]/conv2d`.
    pub name: String,
    /// What made the tensor.
    pub source: NodeSource,
    /// The indices of the nodes that it was made of.
    pub inputs: Vec<usize>,
    /// Its shape.
    pub shape: Shape,
    /// Its precision.
    pub dtype: DType,
    /// Where it is.
    pub device: Device,
}

/// Where a tensor of a [`RecordedGraph`] comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeSource {
    /// An input, which the program gave to the forward pass.
    Input,
    /// An output, which the forward pass returned.
    Output,
    /// A parameter, or a buffer, of a module.
    Parameter,
    /// The forward pass used it, and nothing that was recorded made it.
    Constant,
    /// An operation with this name made it.
    Operation(&'static str),
}

/// Records operations of the thread as a graph, for TensorBoard's `add_graph`. `record_graph` of `pagelock-nn` does it for a model.
///
/// While it records, all tensors that are made stay alive.
///
/// # Examples
/// ```
/// use pagelock_tensor::{Tensor, profiler::{GraphRecorder, NodeSource}};
///
/// let (x, w) = (Tensor::ones([4, 3])?, Tensor::ones([3, 2])?);
/// let mut recorder = GraphRecorder::new();
/// recorder.input("x", &x);
/// recorder.parameter("weight", &w);
/// let graph = recorder.record(|| x.matmul(&w)?.relu())?;
/// let names: Vec<_> = graph.nodes.iter().map(|node| &*node.name).collect();
/// assert_eq!(names, ["input/x", "weight", "matmul", "relu", "output/output.1"]);
/// assert_eq!(graph.nodes[2].inputs, [0, 1]);
/// assert_eq!(graph.nodes[3].source, NodeSource::Operation("relu"));
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
#[derive(Default)]
pub struct GraphRecorder<'m> {
    nodes: Nodes,
    names: ModuleNames<'m>,
}

/// The identity of a tensor: its storage, which is kept alive, and its layout.
#[derive(PartialEq, Eq, Hash)]
struct Value {
    storage: *const Storage,
    offset: usize,
    shape: Shape,
    strides: Box<[usize]>,
}

impl Value {
    fn of(tensor: &Raw) -> Value {
        let (offset, strides) = (tensor.layout.offset(), tensor.layout.strides().into());
        Value { storage: tensor.storage.address(), offset, shape: *tensor.shape(), strides }
    }
}

#[derive(Default)]
struct Nodes {
    all: Vec<RecordedNode>,
    by_value: HashMap<Value, usize>,
    kept: Vec<Raw>, // so that no other tensor gets their memory
    taken: HashMap<String, usize>,
    counted: Vec<CountedHeap>,
    is_full: bool,
}

impl Nodes {
    /// Adds a node that made `tensor`.
    fn add(&mut self, name: String, source: NodeSource, inputs: Vec<usize>, tensor: &Raw) {
        if self.all.len() >= MAX_NODES {
            self.is_full = true;
            return;
        }
        self.counted.push(CountedHeap::new(2 * size_of::<RecordedNode>() + 2 * name.len() + size_of::<(Value, Raw)>()));
        let (shape, dtype, device) = (*tensor.shape(), tensor.dtype(), tensor.storage.device().clone());
        let name = self.unique(name);
        self.all.push(RecordedNode { name, source, inputs, shape, dtype, device });
        if source != NodeSource::Output {
            self.by_value.insert(Value::of(tensor), self.all.len() - 1);
            self.kept.push(tensor.without_node());
        }
    }

    /// The name, with a number from the second node of that name on.
    fn unique(&mut self, name: String) -> String {
        let count = self.taken.entry(name.clone()).or_default();
        let number = *count;
        *count += 1;
        if number == 0 { name } else { self.unique(format!("{name}_{number}")) }
    }

    /// The index of the node that made the tensor, or of a new constant if none is known.
    fn find(&mut self, tensor: &Raw) -> usize {
        if let Some(known) = self.by_value.get(&Value::of(tensor)) {
            return *known;
        }
        self.add(in_scope("Constant"), NodeSource::Constant, Vec::new(), tensor);
        self.all.len() - 1
    }
}

/// A name, preceded by the module that the thread is in.
fn in_scope(name: &str) -> String {
    scopes::find(scopes::current()).map_or_else(|| name.to_owned(), |scope| format!("{}/{name}", scope.graph))
}

/// Notes that an operation begins. Returns whether a graph is being recorded. Operations inside another one are not
/// recorded.
pub(super) fn enter() -> bool {
    let is_recorded = GRAPH.try_with(|graph| graph.borrow().is_some()) == Ok(true); // the thread may be ending
    if is_recorded {
        DEPTH.set(DEPTH.get() + 1);
    }
    is_recorded
}

/// Notes that the operation ends.
pub(super) fn leave() {
    DEPTH.set(DEPTH.get().saturating_sub(1));
}

/// Notes that an operation made `out`, unless it is inside another one.
pub(super) fn note(op: &'static str, inputs: &[Option<&Raw>], out: &Raw) {
    if DEPTH.get() != 1 {
        return;
    }
    GRAPH.with_borrow_mut(|graph| {
        let Some(nodes) = graph.as_mut().filter(|nodes| !nodes.is_full) else { return };
        let inputs = inputs.iter().flatten().map(|input| nodes.find(input)).collect();
        nodes.add(in_scope(op), NodeSource::Operation(op), inputs, out);
    });
}

impl<'m> GraphRecorder<'m> {
    /// A recorder without names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names a tensor that the program gives to the forward pass.
    pub fn input<K: Kind>(&mut self, name: &str, tensor: &Tensor<K>) {
        self.nodes.add(format!("input/{name}"), NodeSource::Input, Vec::new(), tensor.raw());
    }

    /// Names a parameter or a buffer, with the modules that it is in: `Net/Conv2d[conv1]/weight`. It is left out of the graph if
    /// nothing uses it.
    pub fn parameter<K: Kind>(&mut self, name: &str, tensor: &Tensor<K>) {
        self.nodes.add(name.to_owned(), NodeSource::Parameter, Vec::new(), tensor.raw());
    }

    /// Adds the names of modules.
    #[must_use]
    pub fn with_modules(mut self, names: ModuleNames<'m>) -> Self {
        self.names.extend(names);
        self
    }

    /// Runs `forward`, and returns the operations that this thread ran in it, in the order in which they ended.
    ///
    /// # Errors
    /// Those of `forward`; [`Error::Argument`] inside another `record`, or if there are more than 100,000 nodes;
    /// [`Error::WorkingMemory`] if the graph does not fit the budget.
    pub fn record<O: Tensors, E: From<Error>>(
        self,
        forward: impl FnOnce() -> Result<O, E>,
    ) -> Result<RecordedGraph, E> {
        let recording = Recording::begin(self.nodes, self.names)?;
        let outputs = forward()?;
        let mut all = Vec::new();
        capture::visit(&outputs, &mut |output| all.push(output.clone()));
        Ok(recording.end(&all)?)
    }
}

/// A graph is recorded on this thread as long as this lives.
struct Recording;

impl Recording {
    fn begin(nodes: Nodes, names: ModuleNames<'_>) -> Result<Recording> {
        if GRAPH.with_borrow(Option::is_some) {
            let text = "record: a graph is being recorded on this thread already; end that one first";
            return Err(Error::Argument(text.to_owned()));
        }
        GRAPH.set(Some(nodes));
        DEPTH.set(0);
        switch::begin(switch::GRAPH);
        names.publish();
        Ok(Recording)
    }

    fn end(self, outputs: &[Raw]) -> Result<RecordedGraph> {
        let taken = GRAPH.take();
        drop(self);
        let Some(mut nodes) = taken else { unreachable!("only this takes the nodes") };
        for (i, output) in outputs.iter().enumerate() {
            let input = nodes.find(output);
            nodes.add(format!("output/output.{}", i + 1), NodeSource::Output, vec![input], output);
        }
        if nodes.is_full {
            let text =
                format!("record: the graph has more than {MAX_NODES} nodes; record a smaller part of the program");
            return Err(Error::Argument(text));
        }
        crate::heap::check_for_node("record")?;
        Ok(RecordedGraph { nodes: without_unused_parameters(nodes.all) })
    }
}

fn without_unused_parameters(mut nodes: Vec<RecordedNode>) -> Vec<RecordedNode> {
    let mut is_kept: Vec<bool> = nodes.iter().map(|node| node.source != NodeSource::Parameter).collect();
    nodes.iter().flat_map(|node| &node.inputs).for_each(|&input| is_kept[input] = true);
    let mut n_kept = 0;
    let new_index = |&is_kept: &bool| {
        n_kept += usize::from(is_kept);
        n_kept - usize::from(is_kept)
    };
    let new_indices: Vec<usize> = is_kept.iter().map(new_index).collect();
    let mut is_kept = is_kept.into_iter();
    nodes.retain(|_| is_kept.next() == Some(true));
    nodes.iter_mut().flat_map(|node| &mut node.inputs).for_each(|input| *input = new_indices[*input]);
    nodes
}

impl Drop for Recording {
    fn drop(&mut self) {
        switch::end(switch::GRAPH);
        drop(GRAPH.take());
        DEPTH.set(0);
    }
}
