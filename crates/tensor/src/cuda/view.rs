//! Views of tensors in device memory, which kernels read and write.

use pagelock_cuda::{Argument, DeviceView, DeviceViewMut};

use crate::element::DType;
use crate::inlined::Array;
use crate::layout::Layout;
use crate::shape::Shape;

/// A strided tensor that a kernel reads. Element `[i0, i1, …]` is `i0 · strides[0] + i1 · strides[1] + …` elements after
/// the first.
#[derive(Clone, Copy)]
pub(crate) struct CudaView<'a> {
    bytes: DeviceView<'a, u8>,
    layout: &'a Layout,
    dtype: DType,
}

/// A strided tensor that a kernel writes, and may read.
pub(crate) struct CudaOut<'a> {
    bytes: DeviceViewMut<'a, u8>,
    layout: &'a Layout,
    dtype: DType,
}

macro_rules! view {
    ($View:ident, $Bytes:ident) => {
        #[allow(dead_code, reason = "both kinds of view have the same methods")]
        impl<'a> $View<'a> {
            /// A tensor with this layout in a storage whose whole memory is `bytes`.
            pub(crate) fn new(bytes: $Bytes<'a, u8>, layout: &'a Layout, dtype: DType) -> $View<'a> {
                let [start, len] = [layout.offset(), layout.span()].mapped(|elements| elements * dtype.size());
                let bytes = bytes.slice(start..start + len);
                let bytes = bytes.unwrap_or_else(|error| unreachable!("a layout is inside its storage: {error}"));
                $View { bytes, layout, dtype }
            }

            /// The tensor's shape, strides and offset.
            pub(crate) fn layout(&self) -> &'a Layout {
                self.layout
            }

            pub(crate) fn shape(&self) -> &Shape {
                self.layout.shape()
            }

            pub(crate) fn strides(&self) -> &[usize] {
                self.layout.strides()
            }

            pub(crate) fn is_contiguous(&self) -> bool {
                self.layout.is_contiguous()
            }

            pub(crate) fn dtype(&self) -> DType {
                self.dtype
            }

            /// Elements from the first to the last, gaps included.
            pub(crate) fn span(&self) -> usize {
                self.layout.span()
            }

            /// Whether the first element's address is a multiple of `bytes`.
            pub(crate) fn is_aligned(&self, bytes: usize) -> bool {
                self.bytes.address().0.is_multiple_of(bytes as u64)
            }
        }
    };
}

view!(CudaView, DeviceView);
view!(CudaOut, DeviceViewMut);

impl<'a> CudaView<'a> {
    /// The same memory with another layout of this tensor, permuted or expanded.
    pub(crate) fn with_layout<'b>(&self, layout: &'b Layout) -> CudaView<'b>
    where
        'a: 'b,
    {
        debug_assert_eq!(layout.span(), self.span());
        CudaView { bytes: self.bytes, layout, dtype: self.dtype }
    }

    /// The bytes from the first element to the last, gaps included.
    pub(crate) fn bytes(&self) -> DeviceView<'a, u8> {
        self.bytes
    }

    /// The first element's address, for a kernel that reads the tensor.
    pub(crate) fn argument(&self) -> Argument<'a> {
        Argument::Read(self.bytes)
    }
}

impl<'a> CudaOut<'a> {
    /// The first element's address, for a kernel that writes the tensor.
    pub(crate) fn argument(&mut self) -> Argument<'_> {
        Argument::Write(self.bytes.reborrow())
    }

    /// [`argument`](Self::argument), for as long as the memory is borrowed.
    pub(crate) fn into_argument(self) -> Argument<'a> {
        Argument::Write(self.bytes)
    }

    /// The same tensor, borrowed for a shorter time.
    pub(crate) fn reborrow(&mut self) -> CudaOut<'_> {
        CudaOut { bytes: self.bytes.reborrow(), layout: self.layout, dtype: self.dtype }
    }

    /// A part of this tensor, which must be contiguous. `layout` is the part's layout within it.
    pub(crate) fn window<'b>(&'b mut self, layout: &'b Layout) -> CudaOut<'b> {
        debug_assert!(self.is_contiguous());
        CudaOut::new(self.bytes.reborrow(), layout, self.dtype)
    }

    /// The elements from the first to the last, gaps included.
    pub(crate) fn into_bytes(self) -> DeviceViewMut<'a, u8> {
        self.bytes
    }
}
