//! The graph of a model, from a description of its nodes.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use prost::Message;

use crate::error::{Result, ensure};
use crate::proto::{Attribute, AttributeValue, GraphDef, NodeDef, Shapes, TensorShape, Versions, What};
use crate::step::Step;
use crate::writer::SummaryWriter;

/// The version of the format, as in PyTorch's files.
const PRODUCER: i32 = 22;

/// A node of a graph: an operation, a parameter, an input or an output.
///
/// `/` in a name groups nodes: TensorBoard draws `net/conv1/weight` and `net/conv1/convolution` as one expandable box
/// `conv1` inside the box `net`.
///
/// # Examples
/// ```
/// use pagelock_board::{GraphNode, SummaryWriter};
///
/// let folder = tempfile::tempdir()?;
/// let writer = SummaryWriter::new(folder.path())?;
/// writer.add_graph(&[
///     GraphNode::new("input/x", "IO Node").shape([4, 784]),
///     GraphNode::new("net/fc/weight", "Parameter").shape([10, 784]),
///     GraphNode::new("net/fc/linear", "linear").input("input/x").input("net/fc/weight").shape([4, 10]),
///     GraphNode::new("output/y", "IO Node").input("net/fc/linear").shape([4, 10]),
/// ])?;
/// writer.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphNode {
    name: String,
    op: String,
    inputs: Vec<String>,
    shape: Option<Vec<usize>>,
    attributes: String,
    device: String,
}

impl GraphNode {
    /// A node without inputs. `op` says what kind of node it is; nodes of one kind have one color.
    pub fn new(name: impl Into<String>, op: impl Into<String>) -> Self {
        let (name, op) = (name.into(), op.into());
        Self { name, op, inputs: Vec::new(), shape: None, attributes: String::new(), device: String::new() }
    }

    /// Adds an input: the name of a node whose result this node uses.
    pub fn input(mut self, name: impl Into<String>) -> Self {
        self.inputs.push(name.into());
        self
    }

    /// The shape of the result, which TensorBoard shows at the edges to its users.
    pub fn shape(mut self, shape: impl Into<Vec<usize>>) -> Self {
        self.shape = Some(shape.into());
        self
    }

    /// Further information, such as settings of the operation.
    pub fn attributes(mut self, text: impl Into<String>) -> Self {
        self.attributes = text.into();
        self
    }

    /// The device that computes the node.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = name.into();
        self
    }
}

/// Types that can be read as a graph: slices and vectors of [`GraphNode`]s, and with the feature `tensors` graphs that
/// `pagelock-tensor` recorded.
pub trait ToGraph {
    /// The nodes.
    fn to_graph(&self) -> Cow<'_, [GraphNode]>;
}

impl ToGraph for [GraphNode] {
    fn to_graph(&self) -> Cow<'_, [GraphNode]> {
        Cow::Borrowed(self)
    }
}

impl<const N: usize> ToGraph for [GraphNode; N] {
    fn to_graph(&self) -> Cow<'_, [GraphNode]> {
        Cow::Borrowed(self)
    }
}

impl ToGraph for Vec<GraphNode> {
    fn to_graph(&self) -> Cow<'_, [GraphNode]> {
        Cow::Borrowed(self)
    }
}

impl SummaryWriter {
    /// Adds the graph of a model. TensorBoard shows the last graph of a run.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if there is no node, a name or `op` is empty, two nodes have the
    /// same name, or an input names no node; [`Error::Write`](crate::Error::Write).
    pub fn add_graph(&self, graph: &(impl ToGraph + ?Sized)) -> Result<()> {
        self.add_nodes(&graph.to_graph())
    }

    fn add_nodes(&self, nodes: &[GraphNode]) -> Result<()> {
        check(nodes)?;
        let node = nodes.iter().map(node_def).collect();
        let graph = GraphDef { node, versions: Some(Versions { producer: PRODUCER }) };
        self.add_event(self.main, Step::from(0), What::Graph(graph.encode_to_vec()))
    }
}

fn check(nodes: &[GraphNode]) -> Result<()> {
    ensure!(!nodes.is_empty(), "the graph has no nodes");
    let mut names = HashSet::new();
    for GraphNode { name, op, .. } in nodes {
        ensure!(
            !name.is_empty() && !op.is_empty(),
            "a node of the graph, `{name}` of kind `{op}`, has no name or kind"
        );
        ensure!(names.insert(name.as_str()), "two nodes of the graph have the name `{name}`");
    }
    for GraphNode { name, inputs, .. } in nodes {
        let missing = inputs.iter().find(|input| !names.contains(input.as_str()));
        ensure!(
            missing.is_none(),
            "the input `{}` of `{name}` is not a node of the graph",
            missing.map_or("", |name| name)
        );
    }
    Ok(())
}

fn node_def(node: &GraphNode) -> NodeDef {
    let attribute = |value| Attribute { value: Some(value) };
    let mut attr = BTreeMap::new();
    attr.insert("attr".to_owned(), attribute(AttributeValue::Text(node.attributes.clone().into_bytes())));
    if let Some(shape) = &node.shape {
        let shapes = Shapes { shape: vec![TensorShape::new(shape)] };
        attr.insert("_output_shapes".to_owned(), attribute(AttributeValue::List(shapes)));
    }
    let GraphNode { name, op, inputs, device, .. } = node.clone();
    NodeDef { name, op, input: inputs, device, attr }
}
