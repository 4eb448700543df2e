//! [`GraphBuilder`]: builds a graph of tensors and operations.

use std::ffi::{c_int, c_void};

use super::{
    Api, Layout4,
    descriptor::{Descriptor, Values},
    plan::{DATA_TYPE, OperationGraph, device_tensor, tensor_with},
};
use crate::library::work::Refusal;

// Types of elements: `cudnnDataType_t`.
pub(super) const FLOAT: c_int = 0;
const INT32: c_int = 4;
const BOOLEAN: c_int = 11;

// Operations on single elements: `cudnnPointwiseMode_t`.
pub(super) const ADD: c_int = 0;
pub(super) const MULTIPLY: c_int = 1;
pub(super) const DIVIDE: c_int = 6;
pub(super) const SUBTRACT: c_int = 9;
pub(super) const EXP: c_int = 13;
pub(super) const LOG: c_int = 15;
pub(super) const IDENTITY: c_int = 21;
const GREATER_OR_EQUAL: c_int = 303;
const INDEX: c_int = 501;
const SELECT: c_int = 601;

// Reductions: `cudnnReduceTensorOp_t`.
pub(super) const SUM: c_int = 0;
pub(super) const MAX: c_int = 3;

// Kinds of objects: `cudnnBackendDescriptorType_t`.
const POINTWISE: c_int = 0;
const OPERATION_POINTWISE: c_int = 13;
const PRODUCT: c_int = 18;
const OPERATION_PRODUCT: c_int = 19;
const REDUCTION: c_int = 21;
const OPERATION_REDUCTION: c_int = 22;
const OPERATION_RESHAPE: c_int = 31;

// Types of attributes: `cudnnBackendAttributeType_t`.
const POINTWISE_MODE: c_int = 14;
const REDUCTION_MODE: c_int = 18;
const REORDERING: c_int = 20;

/// The order of elements in which tensor cores add to memory: a `cudnnBackendTensorReordering_t`.
const F16X16: c_int = 2;

/// The alignment of addresses in bytes.
pub(super) const ALIGNMENT: u32 = 16;

/// The UID of the first virtual tensor; the others follow.
const FIRST_VIRTUAL: i64 = 1000;

/// A tensor of a graph that is being built.
#[derive(Clone, Copy)]
pub(super) struct Node(usize);

pub(super) struct GraphBuilder {
    api: &'static Api,
    tensors: Vec<Descriptor>,
    /// The descriptors of operations' parameters.
    settings: Vec<Descriptor>,
    operations: Vec<Descriptor>,
}

impl GraphBuilder {
    pub(super) fn new(api: &'static Api) -> GraphBuilder {
        GraphBuilder { api, tensors: Vec::new(), settings: Vec::new(), operations: Vec::new() }
    }

    /// A tensor in device memory, whose address each call passes by this UID.
    pub(super) fn tensor(&mut self, uid: i64, element: c_int, layout: &Layout4) -> Result<Node, Refusal> {
        let descriptor = device_tensor(self.api, element, layout, uid, ALIGNMENT)?;
        Ok(self.add_tensor(descriptor))
    }

    /// Like [`tensor`](Self::tensor), for a tensor whose order of elements the library chooses.
    pub(super) fn reordered(&mut self, uid: i64, element: c_int, layout: &Layout4) -> Result<Node, Refusal> {
        let order = [(909, Values::Enum(REORDERING, F16X16))];
        let descriptor = tensor_with(self.api, element, layout, uid, ALIGNMENT, &order)?;
        Ok(self.add_tensor(descriptor))
    }

    /// An `f32` number in host memory, whose address each call passes by this UID.
    pub(super) fn scalar(&mut self, uid: i64) -> Result<Node, Refusal> {
        let one = Layout4 { sizes: [1; 4], strides: [1; 4] };
        let descriptor = tensor_with(self.api, FLOAT, &one, uid, 4, &[(908, Values::Flag(true))])?;
        Ok(self.add_tensor(descriptor))
    }

    /// A tensor that is never in memory.
    pub(super) fn virtual_tensor(&mut self, element: c_int, layout: &Layout4) -> Result<Node, Refusal> {
        let uid = FIRST_VIRTUAL + self.tensors.len() as i64;
        let descriptor = tensor_with(self.api, element, layout, uid, ALIGNMENT, &[(907, Values::Flag(true))])?;
        Ok(self.add_tensor(descriptor))
    }

    fn add_tensor(&mut self, tensor: Descriptor) -> Node {
        self.tensors.push(tensor);
        Node(self.tensors.len() - 1)
    }

    /// Applies a pointwise operation to each element of `x` and the elements of up to two other tensors at the same index.
    pub(super) fn pointwise(&mut self, mode: c_int, x: Node, others: &[Node], out: Node) -> Result<Node, Refusal> {
        self.pointwise_in(FLOAT, mode, &[], x, others, out)
    }

    fn pointwise_in(
        &mut self,
        computing: c_int,
        mode: c_int,
        axis: &[i64],
        x: Node,
        others: &[Node],
        out: Node,
    ) -> Result<Node, Refusal> {
        let setting = Descriptor::new(self.api, POINTWISE)?;
        setting.set(0, &Values::Enum(POINTWISE_MODE, mode))?;
        setting.set(1, &Values::Enum(DATA_TYPE, computing))?;
        if !axis.is_empty() {
            setting.set(9, &Values::Integers(axis))?;
        }
        let mut attributes = vec![(751, x), (753, out)];
        attributes.extend([752, 758].into_iter().zip(others.iter().copied()));
        self.operation(OPERATION_POINTWISE, Some((750, setting.finalized()?)), &attributes)?;
        Ok(out)
    }

    /// `x` up to the diagonal of its last two dimensions, and `above` beyond it.
    pub(super) fn lower_triangle(&mut self, x: Node, above: Node, layout: &Layout4) -> Result<Node, Refusal> {
        let [row, column] = [self.virtual_tensor(INT32, layout)?, self.virtual_tensor(INT32, layout)?];
        self.pointwise_in(INT32, INDEX, &[2], x, &[], row)?;
        self.pointwise_in(INT32, INDEX, &[3], x, &[], column)?;
        let is_below = self.virtual_tensor(BOOLEAN, layout)?;
        self.pointwise_in(BOOLEAN, GREATER_OR_EQUAL, &[], row, &[column], is_below)?;
        let out = self.virtual_tensor(FLOAT, layout)?;
        self.pointwise(SELECT, x, &[above, is_below], out)
    }

    /// The matrix product of the last two dimensions, summed in `f32`.
    pub(super) fn product(&mut self, a: Node, b: Node, out: Node) -> Result<Node, Refusal> {
        let setting = Descriptor::with(self.api, PRODUCT, &[(1500, Values::Enum(DATA_TYPE, FLOAT))])?;
        self.operation(OPERATION_PRODUCT, Some((1523, setting)), &[(1520, a), (1521, b), (1522, out)])?;
        Ok(out)
    }

    /// Reduces `x` over the dimensions in which `out` has size 1.
    pub(super) fn reduction(&mut self, mode: c_int, x: Node, out: Node) -> Result<Node, Refusal> {
        let settings = [(1600, Values::Enum(REDUCTION_MODE, mode)), (1601, Values::Enum(DATA_TYPE, FLOAT))];
        let setting = Descriptor::with(self.api, REDUCTION, &settings)?;
        self.operation(OPERATION_REDUCTION, Some((1612, setting)), &[(1610, x), (1611, out)])?;
        Ok(out)
    }

    /// The same elements, with the sizes and strides of `out`.
    pub(super) fn reshape(&mut self, x: Node, out: Node) -> Result<Node, Refusal> {
        self.operation(OPERATION_RESHAPE, None, &[(2200, x), (2201, out)])?;
        Ok(out)
    }

    fn operation(
        &mut self,
        kind: c_int,
        setting: Option<(c_int, Descriptor)>,
        tensors: &[(c_int, Node)],
    ) -> Result<(), Refusal> {
        let operation = Descriptor::new(self.api, kind)?;
        for (name, Node(at)) in tensors {
            operation.set(*name, &Values::Descriptors(&[&self.tensors[*at]]))?;
        }
        if let Some((name, setting)) = setting {
            operation.set(name, &Values::Descriptors(&[&setting]))?;
            self.settings.push(setting);
        }
        self.operations.push(operation.finalized()?);
        Ok(())
    }

    pub(super) fn finish(self, library: *mut c_void) -> Result<OperationGraph, Refusal> {
        let GraphBuilder { api, mut tensors, settings, operations } = self;
        tensors.extend(settings);
        OperationGraph::new(api, library, operations, tensors)
    }
}
