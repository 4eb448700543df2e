//! Tensors as values, and graphs of operations on them.

use std::borrow::Cow;

use pagelock_tensor::profiler::{NodeSource, RecordedGraph, RecordedNode};
use pagelock_tensor::{Bool, CountedHeap, DType, Device, Element, Int, Tensor};

use crate::array::{Array, Number, ToArray, ToScalar};
use crate::error::Result;
use crate::graph::{GraphNode, ToGraph};

/// The elements, and the memory that counts for them.
fn listed<T: Element + Number>(of: &Tensor<T::Kind>) -> Result<Array<'static>> {
    let counted = CountedHeap::granted("to_array", "the elements", of.len() * size_of::<T>())?;
    let array = Array::of(T::values(Cow::Owned(of.to_vec()?)), of.shape().to_vec())?;
    Ok(Array { counted: counted.into(), ..array })
}

impl ToArray for Tensor {
    fn to_array(&self) -> Result<Array<'_>> {
        if self.dtype() == DType::F64 { listed::<f64>(self) } else { listed::<f32>(self) }
    }
}

impl ToArray for Tensor<Int> {
    fn to_array(&self) -> Result<Array<'_>> {
        if self.dtype() == DType::U8 { listed::<u8>(self) } else { listed::<i64>(self) }
    }
}

/// The values become 0 and 1.
impl ToArray for Tensor<Bool> {
    fn to_array(&self) -> Result<Array<'_>> {
        listed::<f32>(&self.to_float_of(DType::F32)?)
    }
}

impl ToScalar for Tensor {
    fn to_scalar(&self) -> Result<f64> {
        Ok(self.item()?)
    }
}

impl ToScalar for Tensor<Int> {
    fn to_scalar(&self) -> Result<f64> {
        Ok(self.item::<i64>()? as f64)
    }
}

/// A forward pass that `pagelock_tensor` recorded; `record_graph` of `pagelock-nn` records that of a model.
///
/// # Examples
/// ```
/// use pagelock_board::SummaryWriter;
/// use pagelock_tensor::{Tensor, profiler::GraphRecorder};
///
/// let folder = tempfile::tempdir()?;
/// let writer = SummaryWriter::new(folder.path())?;
/// let (x, w) = (Tensor::ones([4, 3])?, Tensor::ones([3, 2])?);
/// let mut recorder = GraphRecorder::new();
/// recorder.input("x", &x);
/// recorder.parameter("net/weight", &w);
/// writer.add_graph(&recorder.record(|| x.matmul(&w)?.relu())?)?;
/// writer.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl ToGraph for RecordedGraph {
    fn to_graph(&self) -> Cow<'_, [GraphNode]> {
        Cow::Owned(self.nodes.iter().map(|node| graph_node(node, &self.nodes)).collect())
    }
}

/// Converts a recorded node. Inputs and outputs of the graph are `IO Node`s, as in PyTorch.
fn graph_node(node: &RecordedNode, all: &[RecordedNode]) -> GraphNode {
    let op = match node.source {
        NodeSource::Operation(op) => op,
        NodeSource::Parameter => "Parameter",
        NodeSource::Input | NodeSource::Output => "IO Node",
        _ => "Constant",
    };
    let device = match &node.device {
        Device::Cpu => "/device:CPU:0".to_owned(),
        Device::Cuda(cuda) => format!("/device:GPU:{}", cuda.ordinal()),
        other => other.to_string(),
    };
    let node_of = GraphNode::new(&node.name, op).shape(node.shape.to_vec()).device(device);
    let inputs = node.inputs.iter().map(|&input| all[input].name.as_str());
    inputs.fold(node_of.attributes(format!("dtype: {}", node.dtype)), GraphNode::input)
}
