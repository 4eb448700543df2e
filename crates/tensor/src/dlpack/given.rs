//! [`ForeignTensor`]: the checked contents of a DLPack struct of another library.

use super::managed::{CPU, CUDA, CUDA_HOST, CUDA_MANAGED, DataType, Managed};
use super::refused;
use crate::element::DType;
use crate::error::Result;
use crate::inlined::Slice;
use crate::layout::Layout;
use crate::shape::{MAX_RANK, Shape};

/// Element `[i0, i1, …]` is at `data + (i0·strides[0] + i1·strides[1] + …)` elements.
///
/// Invariant: no position of an element overflows, whether counted in elements or in bytes.
pub(super) struct ForeignTensor {
    pub(super) location: Location,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) strides: [i64; MAX_RANK],
    low: i64,  // the least position in elements, 0 or less
    high: i64, // the greatest position in elements, 0 or more
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Location {
    Host,
    Cuda(u32),
}

/// DLPack's numbers of element types: code and bits.
const CODES: [(DType, u8, u8); 8] = [
    (DType::F32, 2, 32),
    (DType::F64, 2, 64),
    (DType::F16, 2, 16),
    (DType::BF16, 4, 16),
    (DType::I64, 0, 64),
    (DType::I32, 0, 32),
    (DType::U8, 1, 8),
    (DType::Bool, 6, 8),
];

impl DataType {
    pub(super) fn of(dtype: DType) -> DataType {
        let Some((_, code, bits)) = CODES.iter().find(|(known, ..)| *known == dtype) else {
            unreachable!("`CODES` has all element types")
        };
        DataType { code: *code, bits: *bits, lanes: 1 }
    }

    fn dtype(self) -> Result<DType> {
        let DataType { code, bits, lanes } = self;
        let found = CODES.iter().find(|known| (known.1, known.2) == (code, bits)).filter(|_| lanes == 1);
        found.map(|(dtype, ..)| *dtype).ok_or_else(|| {
            let lanes = if lanes == 1 { String::new() } else { format!(" × {lanes}") };
            let kind = match code {
                0 => "int",
                1 => "uint",
                2 => "float",
                4 => "bfloat",
                5 => "complex",
                6 => "bool",
                _ => {
                    let problem = format!("elements of unknown type code {code}, {bits} bits{lanes}");
                    return refused(&format!("{problem}; convert them first"));
                }
            };
            refused(&format!("the elements are {kind}{bits}{lanes}, which no tensor can hold; convert them first"))
        })
    }
}

impl ForeignTensor {
    pub(super) fn of(managed: &Managed) -> Result<ForeignTensor> {
        let (major, minor) = managed.version();
        if major != 1 {
            let fix = "ask for version 1";
            return Err(refused(&format!("the struct is of version {major}.{minor}, which is not supported; {fix}")));
        }
        let (device, ordinal) = managed.device();
        let location = match (device, u32::try_from(ordinal)) {
            (CPU | CUDA_HOST, _) => Location::Host,
            (CUDA | CUDA_MANAGED, Ok(ordinal)) => Location::Cuda(ordinal),
            _ => {
                return Err(refused(&format!(
                    "the elements are on a device of kind {device}; copy them to the CPU first"
                )));
            }
        };
        let dtype = managed.data_type().dtype()?;
        let sizes = managed.sizes()?;
        let sizes: Option<Vec<usize>> = sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
        let sizes = sizes.ok_or_else(|| refused("the shape has a negative size; give another"))?;
        let shape = Shape::new(&sizes)?;
        let mut strides = [0; MAX_RANK];
        match managed.strides() {
            Some(explicit) => strides[..shape.rank()].copy_from(explicit),
            None => {
                Layout::contiguous(shape).strides().iter().zip(&mut strides).for_each(|(from, to)| *to = *from as i64)
            }
        }
        let [low, high] = reach(&shape, &strides, dtype).ok_or_else(|| {
            let strides = &strides[..shape.rank()];
            refused(&format!("strides {strides:?} of {shape} lead beyond the address space; check them"))
        })?;
        Ok(ForeignTensor { location, dtype, shape, strides, low, high })
    }

    /// The least position, in bytes.
    pub(super) fn low(&self) -> isize {
        self.low as isize * self.dtype.size() as isize
    }

    /// The number of bytes from the first to the last element in memory.
    pub(super) fn span_bytes(&self) -> Result<usize> {
        if self.shape.elements() == 0 {
            return Ok(0);
        }
        Ok((self.high - self.low + 1) as usize * self.dtype.size())
    }

    /// The layout in a storage that begins with the first element in memory.
    pub(super) fn layout(&self) -> Result<Layout> {
        let mut strides = [0; MAX_RANK];
        for (dim, &size) in self.shape.iter().enumerate().filter(|(_, size)| **size > 1) {
            strides[dim] = usize::try_from(self.strides[dim])
                .map_err(|_| refused(&format!("dimension {dim} of {size} has a negative stride; copy it first")))?;
        }
        let n_elements = self.span_bytes()? / self.dtype.size();
        Layout::in_storage(self.shape, &strides[..self.shape.rank()], 0, n_elements)
    }
}

/// The least and the greatest position; `None` if they overflow.
fn reach(shape: &Shape, strides: &[i64; MAX_RANK], dtype: DType) -> Option<[i64; 2]> {
    let (mut low, mut high) = (0_i64, 0_i64);
    if shape.elements() == 0 {
        return Some([0, 0]);
    }
    for (&size, stride) in shape.iter().zip(strides) {
        let end = i64::try_from(size - 1).ok()?.checked_mul(*stride)?;
        low = low.checked_add(end.min(0))?;
        high = high.checked_add(end.max(0))?;
    }
    high.checked_sub(low)?.checked_add(1)?.checked_mul(dtype.size() as i64)?;
    low.checked_mul(dtype.size() as i64)?;
    Some([low, high])
}
