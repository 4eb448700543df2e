//! The constants of cuDNN's header `cudnn_graph.h` that this module passes to the library.

use std::ffi::c_int;

// `cudnnDataType_t`.
pub(super) const CUDNN_DATA_FLOAT: c_int = 0;
pub(super) const CUDNN_DATA_DOUBLE: c_int = 1;
pub(super) const CUDNN_DATA_HALF: c_int = 2;
pub(super) const CUDNN_DATA_INT32: c_int = 4;
pub(super) const CUDNN_DATA_BFLOAT16: c_int = 9;
pub(super) const CUDNN_DATA_BOOLEAN: c_int = 11;

// `cudnnConvolutionMode_t`.
pub(super) const CUDNN_CROSS_CORRELATION: c_int = 1;

// `cudnnPointwiseMode_t`.
pub(super) const CUDNN_POINTWISE_ADD: c_int = 0;
pub(super) const CUDNN_POINTWISE_MUL: c_int = 1;
pub(super) const CUDNN_POINTWISE_DIV: c_int = 6;
pub(super) const CUDNN_POINTWISE_SUB: c_int = 9;
pub(super) const CUDNN_POINTWISE_EXP: c_int = 13;
pub(super) const CUDNN_POINTWISE_LOG: c_int = 15;
pub(super) const CUDNN_POINTWISE_IDENTITY: c_int = 21;
pub(super) const CUDNN_POINTWISE_CMP_GE: c_int = 303;
pub(super) const CUDNN_POINTWISE_GEN_INDEX: c_int = 501;
pub(super) const CUDNN_POINTWISE_BINARY_SELECT: c_int = 601;

// `cudnnReduceTensorOp_t`.
pub(super) const CUDNN_REDUCE_TENSOR_ADD: c_int = 0;
pub(super) const CUDNN_REDUCE_TENSOR_MAX: c_int = 3;

// `cudnnBackendTensorReordering_t`.
pub(super) const CUDNN_TENSOR_REORDERING_F16X16: c_int = 2;

// `cudnnBackendHeurMode_t`.
pub(super) const CUDNN_HEUR_MODE_FALLBACK: c_int = 2;
pub(super) const CUDNN_HEUR_MODE_A: c_int = 3;

// `cudnnBackendNumericalNote_t`.
pub(super) const CUDNN_NUMERICAL_NOTE_TENSOR_CORE: c_int = 0;
pub(super) const CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS: c_int = 1;
pub(super) const CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION: c_int = 2;
pub(super) const CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC: c_int = 4;

// `cudnnBackendDescriptorType_t`.
pub(super) const CUDNN_BACKEND_POINTWISE_DESCRIPTOR: c_int = 0;
pub(super) const CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: c_int = 1;
pub(super) const CUDNN_BACKEND_ENGINE_DESCRIPTOR: c_int = 2;
pub(super) const CUDNN_BACKEND_ENGINECFG_DESCRIPTOR: c_int = 3;
pub(super) const CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: c_int = 4;
pub(super) const CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: c_int = 5;
pub(super) const CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR: c_int = 10;
pub(super) const CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR: c_int = 11;
pub(super) const CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR: c_int = 12;
pub(super) const CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: c_int = 13;
pub(super) const CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: c_int = 15;
pub(super) const CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: c_int = 16;
pub(super) const CUDNN_BACKEND_TENSOR_DESCRIPTOR: c_int = 17;
pub(super) const CUDNN_BACKEND_MATMUL_DESCRIPTOR: c_int = 18;
pub(super) const CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: c_int = 19;
pub(super) const CUDNN_BACKEND_REDUCTION_DESCRIPTOR: c_int = 21;
pub(super) const CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: c_int = 22;
pub(super) const CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: c_int = 31;

// `cudnnBackendAttributeType_t`.
pub(super) const CUDNN_TYPE_HANDLE: c_int = 0;
pub(super) const CUDNN_TYPE_DATA_TYPE: c_int = 1;
pub(super) const CUDNN_TYPE_BOOLEAN: c_int = 2;
pub(super) const CUDNN_TYPE_INT64: c_int = 3;
pub(super) const CUDNN_TYPE_FLOAT: c_int = 4;
pub(super) const CUDNN_TYPE_DOUBLE: c_int = 5;
pub(super) const CUDNN_TYPE_VOID_PTR: c_int = 6;
pub(super) const CUDNN_TYPE_CONVOLUTION_MODE: c_int = 7;
pub(super) const CUDNN_TYPE_HEUR_MODE: c_int = 8;
pub(super) const CUDNN_TYPE_NUMERICAL_NOTE: c_int = 11;
pub(super) const CUDNN_TYPE_POINTWISE_MODE: c_int = 14;
pub(super) const CUDNN_TYPE_BACKEND_DESCRIPTOR: c_int = 15;
pub(super) const CUDNN_TYPE_REDUCTION_OPERATOR_TYPE: c_int = 18;
pub(super) const CUDNN_TYPE_TENSOR_REORDERING_MODE: c_int = 20;

// `cudnnBackendAttributeName_t`.
pub(super) const CUDNN_ATTR_POINTWISE_MODE: c_int = 0;
pub(super) const CUDNN_ATTR_POINTWISE_MATH_PREC: c_int = 1;
pub(super) const CUDNN_ATTR_POINTWISE_AXIS: c_int = 9;
pub(super) const CUDNN_ATTR_CONVOLUTION_COMP_TYPE: c_int = 100;
pub(super) const CUDNN_ATTR_CONVOLUTION_CONV_MODE: c_int = 101;
pub(super) const CUDNN_ATTR_CONVOLUTION_DILATIONS: c_int = 102;
pub(super) const CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES: c_int = 103;
pub(super) const CUDNN_ATTR_CONVOLUTION_POST_PADDINGS: c_int = 104;
pub(super) const CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS: c_int = 105;
pub(super) const CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS: c_int = 106;
pub(super) const CUDNN_ATTR_ENGINEHEUR_MODE: c_int = 200;
pub(super) const CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH: c_int = 201;
pub(super) const CUDNN_ATTR_ENGINEHEUR_RESULTS: c_int = 202;
pub(super) const CUDNN_ATTR_ENGINECFG_ENGINE: c_int = 300;
pub(super) const CUDNN_ATTR_EXECUTION_PLAN_HANDLE: c_int = 400;
pub(super) const CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG: c_int = 401;
pub(super) const CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: c_int = 402;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA: c_int = 700;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA: c_int = 701;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC: c_int = 702;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W: c_int = 703;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X: c_int = 704;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y: c_int = 705;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA: c_int = 706;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA: c_int = 707;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC: c_int = 708;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W: c_int = 709;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX: c_int = 710;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY: c_int = 711;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA: c_int = 712;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA: c_int = 713;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC: c_int = 714;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW: c_int = 715;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X: c_int = 716;
pub(super) const CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY: c_int = 717;
pub(super) const CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR: c_int = 750;
pub(super) const CUDNN_ATTR_OPERATION_POINTWISE_XDESC: c_int = 751;
pub(super) const CUDNN_ATTR_OPERATION_POINTWISE_BDESC: c_int = 752;
pub(super) const CUDNN_ATTR_OPERATION_POINTWISE_YDESC: c_int = 753;
pub(super) const CUDNN_ATTR_OPERATION_POINTWISE_TDESC: c_int = 758;
pub(super) const CUDNN_ATTR_OPERATIONGRAPH_HANDLE: c_int = 800;
pub(super) const CUDNN_ATTR_OPERATIONGRAPH_OPS: c_int = 801;
pub(super) const CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT: c_int = 900;
pub(super) const CUDNN_ATTR_TENSOR_DATA_TYPE: c_int = 901;
pub(super) const CUDNN_ATTR_TENSOR_DIMENSIONS: c_int = 902;
pub(super) const CUDNN_ATTR_TENSOR_STRIDES: c_int = 903;
pub(super) const CUDNN_ATTR_TENSOR_UNIQUE_ID: c_int = 906;
pub(super) const CUDNN_ATTR_TENSOR_IS_VIRTUAL: c_int = 907;
pub(super) const CUDNN_ATTR_TENSOR_IS_BY_VALUE: c_int = 908;
pub(super) const CUDNN_ATTR_TENSOR_REORDERING_MODE: c_int = 909;
pub(super) const CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS: c_int = 1000;
pub(super) const CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS: c_int = 1001;
pub(super) const CUDNN_ATTR_VARIANT_PACK_WORKSPACE: c_int = 1003;
pub(super) const CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: c_int = 1303;
pub(super) const CUDNN_ATTR_MATMUL_COMP_TYPE: c_int = 1500;
pub(super) const CUDNN_ATTR_OPERATION_MATMUL_ADESC: c_int = 1520;
pub(super) const CUDNN_ATTR_OPERATION_MATMUL_BDESC: c_int = 1521;
pub(super) const CUDNN_ATTR_OPERATION_MATMUL_CDESC: c_int = 1522;
pub(super) const CUDNN_ATTR_OPERATION_MATMUL_DESC: c_int = 1523;
pub(super) const CUDNN_ATTR_REDUCTION_OPERATOR: c_int = 1600;
pub(super) const CUDNN_ATTR_REDUCTION_COMP_TYPE: c_int = 1601;
pub(super) const CUDNN_ATTR_OPERATION_REDUCTION_XDESC: c_int = 1610;
pub(super) const CUDNN_ATTR_OPERATION_REDUCTION_YDESC: c_int = 1611;
pub(super) const CUDNN_ATTR_OPERATION_REDUCTION_DESC: c_int = 1612;
pub(super) const CUDNN_ATTR_OPERATION_RESHAPE_XDESC: c_int = 2200;
pub(super) const CUDNN_ATTR_OPERATION_RESHAPE_YDESC: c_int = 2201;
