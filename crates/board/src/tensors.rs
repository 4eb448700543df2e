//! Tensors as values, and graphs of operations on them.

use std::borrow::Cow;

use pagelock_tensor::profiler::{NodeSource, RecordedGraph, RecordedNode};
use pagelock_tensor::{Bool, DType, Device, Int, Tensor};

use crate::array::{Array, ToArray, ToScalar, Values};
use crate::error::Result;
use crate::graph::{GraphNode, ToGraph};

impl ToArray for Tensor {
    fn to_array(&self) -> Result<Array<'_>> {
        let values = match self.dtype() {
            DType::F64 => Values::F64(Cow::Owned(self.to_vec()?)),
            _ => Values::F32(Cow::Owned(self.to_vec()?)),
        };
        Array::of(values, self.shape().to_vec())
    }
}

impl ToArray for Tensor<Int> {
    fn to_array(&self) -> Result<Array<'_>> {
        let values = match self.dtype() {
            DType::U8 => Values::U8(Cow::Owned(self.to_vec()?)),
            _ => Values::I64(Cow::Owned(self.to_vec()?)),
        };
        Array::of(values, self.shape().to_vec())
    }
}

/// The values become 0 and 1.
impl ToArray for Tensor<Bool> {
    fn to_array(&self) -> Result<Array<'_>> {
        let values: Vec<bool> = self.to_vec()?;
        let values = values.into_iter().map(|value| f32::from(u8::from(value))).collect();
        Array::of(Values::F32(Cow::Owned(values)), self.shape().to_vec())
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
