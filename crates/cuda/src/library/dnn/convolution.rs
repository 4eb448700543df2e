//! Convolutions: their description, and their graph for cuDNN.

use std::{ffi::c_void, fmt};

use super::{
    Api, Call, Choice, Dnn, Layout4,
    descriptor::{Descriptor, Values},
    header::*,
    plan::{self, Operation, OperationGraph, code},
    unsupported,
};
use crate::{
    buffer::{DeviceView, DeviceViewMut},
    error::Result,
    library::{
        DataType, Exactness, alignment,
        work::{self, Refusal},
    },
    stream::Stream,
};

/// The UIDs of image, weight and result.
const UIDS: [i64; 3] = [1, 2, 3];

/// Which of image, weight and result is computed from the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvolutionKind {
    /// The result, from the image and the weight.
    Forward,
    /// The image's gradient, from the weight and the result's gradient.
    ImageGrad,
    /// The weight's gradient, from the image and the result's gradient.
    WeightGrad,
}

/// A convolution (cross-correlation, zero padding). The number of groups is the image's channels divided by the
/// weight's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// Which tensor is computed.
    pub kind: ConvolutionKind,
    /// The type of all numbers. Sums are `f64` for `f64`, else `f32`.
    pub data_type: DataType,
    /// How `f32` factors are rounded.
    pub exactness: Exactness,
    /// Which algorithm computes the convolution.
    pub choice: Choice,
    /// The layout of the image.
    pub image: Layout4,
    /// The layout of the weight.
    pub weight: Layout4,
    /// The layout of the result.
    pub result: Layout4,
    /// The vertical and the horizontal stride.
    pub stride: [usize; 2],
    /// The vertical and the horizontal padding on each side.
    pub padding: [usize; 2],
    /// The vertical and the horizontal distance between taps.
    pub dilation: [usize; 2],
}

impl fmt::Display for Convolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Convolution { kind, image, weight, data_type, .. } = self;
        write!(f, "{kind:?} of image {:?} and weight {:?} of {data_type:?}", image.sizes, weight.sizes)
    }
}

impl Dnn {
    /// Queues the convolution. `inputs` are the two inputs in the order image, weight, result, and `out` is the
    /// computed tensor.
    ///
    /// # Errors
    /// [`Error::Library`](crate::Error::Library) if the library has no plan for it;
    /// [`Error::Unsupported`](crate::Error::Unsupported) if sizes do not match;
    /// [`Error::Argument`](crate::Error::Argument) if a tensor reaches beyond its buffer,
    /// [`Error::OtherDevice`](crate::Error::OtherDevice), [`Error::OutOfMemory`](crate::Error::OutOfMemory) for
    /// scratch memory, [`Error::Driver`](crate::Error::Driver).
    pub fn convolve(
        &self,
        stream: &Stream,
        convolution: &Convolution,
        inputs: [DeviceView<'_, u8>; 2],
        out: DeviceViewMut<'_, u8>,
    ) -> Result<()> {
        work::check_device(&self.device, stream)?;
        let addresses = convolution.in_order(inputs.map(|input| input.address().0), out.address().0);
        convolution.check(convolution.in_order(inputs.map(|input| input.len()), out.len()))?;
        inputs.iter().try_for_each(|view| view.check_same_device(stream.core()))?;
        out.check_same_device(stream.core())?;
        let tensors = [0, 1, 2].map(|i| (UIDS[i], addresses[i]));
        let call = Call { tensors: &tensors, accesses: &[inputs[0].access(), inputs[1].access(), out.access()] };
        self.compute(stream, Operation::Convolution(*convolution, addresses.map(alignment)), &call)
    }
}

impl Convolution {
    fn size_bytes(&self) -> u32 {
        self.data_type.size_bytes() as u32
    }

    /// Puts the values of the inputs and the output into the order image, weight, result.
    fn in_order<X>(&self, [one, other]: [X; 2], out: X) -> [X; 3] {
        match self.kind {
            ConvolutionKind::Forward => [one, other, out],
            ConvolutionKind::ImageGrad => [out, one, other],
            ConvolutionKind::WeightGrad => [one, out, other],
        }
    }

    /// An error unless image, weight and result are inside buffers of `len_bytes`, and their sizes match each other.
    fn check(&self, len_bytes: [usize; 3]) -> Result<()> {
        let (image, weight, result) = (self.image.sizes, self.weight.sizes, self.result.sizes);
        let belong = |axis: usize| {
            let reach = self.dilation[axis].checked_mul(weight[2 + axis].checked_sub(1)?)?.checked_add(1)?;
            let padded = image[2 + axis].checked_add(self.padding[axis].checked_mul(2)?)?;
            Some(padded.checked_sub(reach)?.checked_div(self.stride[axis])? + 1 == result[2 + axis])
        };
        let sizes_fit = [image, weight, result].iter().flatten().all(|&size| size > 0 && size <= i32::MAX as usize)
            && image[0] == result[0]
            && weight[0] == result[1]
            && image[1].is_multiple_of(weight[1])
            && weight[0].is_multiple_of(image[1] / weight[1]);
        if !sizes_fit || belong(0) != Some(true) || belong(1) != Some(true) {
            let requirement = "the sizes of image, weight and result must be at least 1 and match the geometry";
            return Err(unsupported(self, requirement));
        }
        let layouts = [self.image, self.weight, self.result];
        layouts.iter().zip(len_bytes).try_for_each(|(layout, len)| layout.check(self.data_type, len))
    }
}

/// The graph of the convolution.
pub(super) fn graph(
    api: &'static Api,
    library: *mut c_void,
    c: &Convolution,
    alignments: [u32; 3],
) -> Result<OperationGraph, Refusal> {
    let alignment = |i: usize| alignments[i].max(c.size_bytes());
    let tensor = |i: usize, layout| plan::tensor(api, code(c.data_type), layout, UIDS[i], alignment(i), &[]);
    let (image, weight, result) = (tensor(0, &c.image)?, tensor(1, &c.weight)?, tensor(2, &c.result)?);
    let sums = if c.data_type == DataType::F64 { DataType::F64 } else { DataType::F32 };
    let [stride, padding, dilation] = [c.stride, c.padding, c.dilation].map(|both| both.map(|size| size as i64));
    let geometry = [
        (CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Values::Enum(CUDNN_TYPE_DATA_TYPE, code(sums))),
        (CUDNN_ATTR_CONVOLUTION_CONV_MODE, Values::Enum(CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION)),
        (CUDNN_ATTR_CONVOLUTION_DILATIONS, Values::Integers(&dilation)),
        (CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Values::Integers(&stride)),
        (CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, Values::Integers(&padding)),
        (CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, Values::Integers(&padding)),
        (CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, Values::Integers(&[2])),
    ];
    let geometry = Descriptor::with(api, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, &geometry)?;
    // alpha is the factor of the new result, beta that of the old one.
    let (kind, names) = match c.kind {
        ConvolutionKind::Forward => (
            CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            [
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            ],
        ),
        ConvolutionKind::ImageGrad => (
            CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            [
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            ],
        ),
        ConvolutionKind::WeightGrad => (
            CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            [
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            ],
        ),
    };
    let factor = |value: f32| match sums {
        DataType::F64 => Values::DoubleNumber(value.into()),
        _ => Values::Number(value),
    };
    let operation = [
        (names[0], Values::Descriptors(&[&image])),
        (names[1], Values::Descriptors(&[&weight])),
        (names[2], Values::Descriptors(&[&result])),
        (names[3], Values::Descriptors(&[&geometry])),
        (names[4], factor(1.0)),
        (names[5], factor(0.0)),
    ];
    let operation = Descriptor::with(api, kind, &operation)?;
    OperationGraph::new(api, library, vec![operation], vec![image, weight, result, geometry])
}
