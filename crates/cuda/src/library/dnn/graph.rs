//! [`GraphBuilder`]: builds a graph of tensors and operations.

use std::{
    ffi::{c_int, c_void},
    slice,
};

use super::{
    Api, Layout4,
    descriptor::{Descriptor, Values},
    header::*,
    plan::{OperationGraph, tensor},
};
use crate::library::work::Refusal;

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
        let descriptor = tensor(self.api, element, layout, uid, ALIGNMENT, &[])?;
        Ok(self.add_tensor(descriptor))
    }

    /// Like [`tensor`](Self::tensor), for a tensor in the order of elements in which tensor cores add to memory.
    pub(super) fn reordered(&mut self, uid: i64, element: c_int, layout: &Layout4) -> Result<Node, Refusal> {
        let order = Values::Enum(CUDNN_TYPE_TENSOR_REORDERING_MODE, CUDNN_TENSOR_REORDERING_F16X16);
        let order = [(CUDNN_ATTR_TENSOR_REORDERING_MODE, order)];
        let descriptor = tensor(self.api, element, layout, uid, ALIGNMENT, &order)?;
        Ok(self.add_tensor(descriptor))
    }

    /// An `f32` number in host memory, whose address each call passes by this UID.
    pub(super) fn scalar(&mut self, uid: i64) -> Result<Node, Refusal> {
        let one = Layout4 { sizes: [1; 4], strides: [1; 4] };
        let by_value = [(CUDNN_ATTR_TENSOR_IS_BY_VALUE, Values::Flag(true))];
        let descriptor = tensor(self.api, CUDNN_DATA_FLOAT, &one, uid, 4, &by_value)?;
        Ok(self.add_tensor(descriptor))
    }

    /// A tensor that is never in memory.
    pub(super) fn virtual_tensor(&mut self, element: c_int, layout: &Layout4) -> Result<Node, Refusal> {
        let uid = FIRST_VIRTUAL + self.tensors.len() as i64;
        let is_virtual = [(CUDNN_ATTR_TENSOR_IS_VIRTUAL, Values::Flag(true))];
        let descriptor = tensor(self.api, element, layout, uid, ALIGNMENT, &is_virtual)?;
        Ok(self.add_tensor(descriptor))
    }

    fn add_tensor(&mut self, tensor: Descriptor) -> Node {
        self.tensors.push(tensor);
        Node(self.tensors.len() - 1)
    }

    /// Applies a pointwise operation to each element of `x` and the elements of up to two other tensors at the same index.
    pub(super) fn pointwise(&mut self, mode: c_int, x: Node, others: &[Node], out: Node) -> Result<Node, Refusal> {
        self.pointwise_in(CUDNN_DATA_FLOAT, mode, None, x, others, out)
    }

    fn pointwise_in(
        &mut self,
        computing: c_int,
        mode: c_int,
        axis: Option<i64>,
        x: Node,
        others: &[Node],
        out: Node,
    ) -> Result<Node, Refusal> {
        let mut settings = vec![
            (CUDNN_ATTR_POINTWISE_MODE, Values::Enum(CUDNN_TYPE_POINTWISE_MODE, mode)),
            (CUDNN_ATTR_POINTWISE_MATH_PREC, Values::Enum(CUDNN_TYPE_DATA_TYPE, computing)),
        ];
        settings.extend(axis.as_ref().map(|axis| (CUDNN_ATTR_POINTWISE_AXIS, Values::Integers(slice::from_ref(axis)))));
        let setting = Descriptor::with(self.api, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &settings)?;
        let inputs = [CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC];
        let mut tensors = vec![(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x), (CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out)];
        tensors.extend(inputs.into_iter().zip(others.iter().copied()));
        let setting = (CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, setting);
        self.operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, Some(setting), &tensors)?;
        Ok(out)
    }

    /// `x` up to the diagonal of its last two dimensions, and `above` beyond it.
    pub(super) fn lower_triangle(&mut self, x: Node, above: Node, layout: &Layout4) -> Result<Node, Refusal> {
        let [row, column] =
            [self.virtual_tensor(CUDNN_DATA_INT32, layout)?, self.virtual_tensor(CUDNN_DATA_INT32, layout)?];
        self.pointwise_in(CUDNN_DATA_INT32, CUDNN_POINTWISE_GEN_INDEX, Some(2), x, &[], row)?;
        self.pointwise_in(CUDNN_DATA_INT32, CUDNN_POINTWISE_GEN_INDEX, Some(3), x, &[], column)?;
        let is_below = self.virtual_tensor(CUDNN_DATA_BOOLEAN, layout)?;
        self.pointwise_in(CUDNN_DATA_BOOLEAN, CUDNN_POINTWISE_CMP_GE, None, row, &[column], is_below)?;
        let out = self.virtual_tensor(CUDNN_DATA_FLOAT, layout)?;
        self.pointwise(CUDNN_POINTWISE_BINARY_SELECT, x, &[above, is_below], out)
    }

    /// The matrix product of the last two dimensions, summed in `f32`.
    pub(super) fn matmul(&mut self, a: Node, b: Node, out: Node) -> Result<Node, Refusal> {
        let settings = [(CUDNN_ATTR_MATMUL_COMP_TYPE, Values::Enum(CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT))];
        let setting = Descriptor::with(self.api, CUDNN_BACKEND_MATMUL_DESCRIPTOR, &settings)?;
        let tensors = [
            (CUDNN_ATTR_OPERATION_MATMUL_ADESC, a),
            (CUDNN_ATTR_OPERATION_MATMUL_BDESC, b),
            (CUDNN_ATTR_OPERATION_MATMUL_CDESC, out),
        ];
        let setting = (CUDNN_ATTR_OPERATION_MATMUL_DESC, setting);
        self.operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, Some(setting), &tensors)?;
        Ok(out)
    }

    /// Reduces `x` over the dimensions in which `out` has size 1.
    pub(super) fn reduction(&mut self, mode: c_int, x: Node, out: Node) -> Result<Node, Refusal> {
        let settings = [
            (CUDNN_ATTR_REDUCTION_OPERATOR, Values::Enum(CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode)),
            (CUDNN_ATTR_REDUCTION_COMP_TYPE, Values::Enum(CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)),
        ];
        let setting = Descriptor::with(self.api, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, &settings)?;
        let tensors = [(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x), (CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out)];
        let setting = (CUDNN_ATTR_OPERATION_REDUCTION_DESC, setting);
        self.operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, Some(setting), &tensors)?;
        Ok(out)
    }

    /// The same elements, with the sizes and strides of `out`.
    pub(super) fn reshape(&mut self, x: Node, out: Node) -> Result<Node, Refusal> {
        let tensors = [(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x), (CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out)];
        self.operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, None, &tensors)?;
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
