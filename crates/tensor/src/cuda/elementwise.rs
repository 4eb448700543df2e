//! Elementwise formulas as kernels; `elementwise.cu` has the loops.
//!
//! Dimensions are merged first. Contiguous, aligned tensors are computed in packs of 16 bytes, also row by row if
//! other inputs are repeated along rows. Transposed planes are computed in tiles, and everything else element by
//! element.

use bytemuck::{Pod, Zeroable};
use pagelock_cuda::{Argument, KernelSource, Launch};

use super::arguments::{Arguments, values};
use super::code::{Constants, source};
use super::walk::{Dims, Indexing, MAX_OPERANDS, WideIndexing};
use super::{CudaDevice, CudaOut, CudaView};
use crate::element::{DType, Element, Scalar};
use crate::error::{Error, Result};
use crate::inlined::{Array, Slice};

/// An expression in CUDA C++, and the names of its inputs and constants. `header.cu` has the functions that it may
/// use.
///
/// A `static` beside the operation: its address is its identity.
pub(crate) struct Formula {
    /// The name in errors and profiles.
    pub(crate) name: &'static str,
    /// The inputs, each a value of the computing type. In a change in place the first is the element that is changed.
    pub(crate) inputs: &'static [&'static str],
    /// Constants of the type that results are computed in, given at each launch; see [`constant`].
    pub(crate) constants: &'static [&'static str],
    /// The expression of the new element, which is converted to the output's type.
    pub(crate) text: &'static str,
    /// Whether the output is changed in place.
    pub(crate) changes: bool,
}

/// Copies elements of any type.
pub(crate) static COPY: Formula = Formula { name: "copy", inputs: &["x"], constants: &[], text: "x", changes: false };

const LOOPS: &str = include_str!("elementwise.cu");
const THREADS: u32 = 256;
const PACK_BYTES: usize = 16;

impl Formula {
    /// Computes every element of `out` from those of the inputs, which have its shape.
    pub(crate) fn run(
        &'static self,
        device: &CudaDevice,
        op: &'static str,
        inputs: &[CudaView<'_>],
        constants: &[u64],
        mut out: CudaOut<'_>,
    ) -> Result<()> {
        debug_assert_eq!(inputs.len() + usize::from(self.changes), self.inputs.len(), "{}", self.name);
        debug_assert_eq!(constants.len(), self.constants.len(), "{}", self.name);
        let types = [inputs.first().map_or(out.dtype(), CudaView::dtype), out.dtype()];
        let Some(steps) = Steps::new(self.changes, inputs, &out) else { return Ok(()) };
        let (address, kernel) = (std::ptr::from_ref(self).addr(), steps.kernel());
        let source = || self.source(types, kernel);
        let function = device.kernel(op, address, types, (kernel, &Constants::NONE), source)?;
        let mut arguments = Arguments::new(); // filled in place: to collect them would copy the whole list
        arguments.push(out.argument());
        arguments.extend(inputs.iter().map(CudaView::argument));
        arguments.extend(values(constants));
        arguments.extend(steps.arguments().into_iter().flatten().map(Argument::Value));
        // SAFETY: the kernels of `elementwise.cu` take these arguments, in this order. The length or the indexing was
        // made from the views, so kernels access only elements of the views. `Steps::new` chooses packs only for
        // aligned views.
        unsafe { function.launch(&device.stream(), steps.launch(), &arguments) }
            .map_err(|source| Error::cuda(op, source))
    }

    /// The whole text of a kernel for inputs of one type and an output of another.
    pub(super) fn source(&self, types: [DType; 2], kernel: &str) -> KernelSource {
        let n = self.inputs.len();
        let own = usize::from(self.changes); // the first input is the output
        let pointers = (own..n).map(|k| format!("const T* p{k}, "));
        let parameters: String = pointers.chain((0..self.constants.len()).map(|k| format!("u64 c{k}, "))).collect();
        let pointers: Vec<String> = (0..n).map(|k| if k < own { "y".into() } else { format!("p{k}") }).collect();
        let named = |kind: &str, name: &str| format!("[[maybe_unused]] {kind} {name}");
        let inputs = self.inputs.iter().map(|name| named("R", name));
        let names: Vec<String> = inputs.chain(self.constants.iter().map(|name| named("Q", name))).collect();
        let inputs = (0..n).map(|k| format!("x[{k}]"));
        let constants = (0..self.constants.len()).map(|k| format!("result_constant(c{k})"));
        let values: Vec<String> = inputs.chain(constants).collect();
        let own_text = format!(
            "INLINE auto formula({}) {{ return {}; }}\n#define N {n}\n#define PARAMETERS {parameters}\n\
             #define POINTERS {{ {} }}\n#define VALUE(x) to<O>(formula({}))\n",
            names.join(", "),
            self.text,
            pointers.join(", "),
            values.join(", ")
        );
        source(self.name, types, kernel, &[&own_text, LOOPS])
    }
}

/// A constant as kernels take it: the bits of the number in the computing type of `dtype`.
pub(crate) fn constant(dtype: DType, value: Scalar) -> u64 {
    match (dtype.computing(), value) {
        (DType::F32, value) => u64::from(f32::from_scalar(value).to_bits()),
        (DType::F64, value) => value.to_f64().to_bits(),
        (_, value) => i64::from_scalar(value) as u64,
    }
}

/// Which kernel runs, over which positions.
enum Steps {
    /// Everything, in packs.
    Contiguous { len: u64, pack: usize },
    /// Packs of the output, and of the inputs whose bit of `packed` is set.
    Rows { packs: Indexing, packed: u32 },
    /// Single elements, at any strides.
    Strided(Indexing),
    /// Planes that are transposed.
    Tiles { outer: Indexing, plane: Plane },
    /// Single elements with 64-bit positions, for tensors with 2³¹ positions or more.
    Wide(WideIndexing),
}

/// `Plane` of `elementwise.cu`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Plane {
    columns: u32,
    rows: u32,
    x_stride: u32,
    y_stride: u32,
    column_tiles: u32,
    row_tiles: u32,
}

// The names of the kernels in `elementwise.cu`.
const CONTIGUOUS: &str = "contiguous";
const ROWS: &str = "rows";
const STRIDED: &str = "strided";
const TILES: &str = "tiles";
const WIDE: &str = "wide";

/// Packs per thread of `contiguous`, and elements per thread of `strided`. `elementwise.cu` has the same names.
const PACKS: usize = 2;
const EACH: usize = 4;

/// Threads of a block of `contiguous`: with two packs each, long formulas run at the rate of a copy.
const CONTIGUOUS_THREADS: u32 = 128;

/// The side of a tile, and the least number of rows and columns for which tiles are faster.
const SIDE: usize = 32;
const MIN_SIDE: usize = 8;

impl Steps {
    /// None if there are no elements.
    fn new(changes: bool, inputs: &[CudaView<'_>], out: &CudaOut<'_>) -> Option<Steps> {
        let own = usize::from(changes);
        let n = inputs.len() + own;
        let widest = inputs.iter().map(|input| input.dtype().size()).chain([out.dtype().size()]).max();
        let pack = PACK_BYTES / widest.unwrap_or(1);
        let is_aligned = |k: usize| match k.checked_sub(1 + own) {
            Some(input) => inputs[input].is_aligned(pack * inputs[input].dtype().size()),
            None => out.is_aligned(pack * out.dtype().size()),
        };
        let are_contiguous = out.is_contiguous() && inputs.iter().all(CudaView::is_contiguous);
        if are_contiguous && (0..=n).all(is_aligned) {
            let len = Some(out.shape().elements()).filter(|&len| len > 0);
            return len.map(|len| Steps::Contiguous { len: len as u64, pack }); // most calls, without merging dimensions
        }
        let mut strides: [&[usize]; MAX_OPERANDS] = [&[]; MAX_OPERANDS];
        strides[..=own].set_to(out.strides());
        strides[1 + own..].iter_mut().zip(inputs).for_each(|(strides, input)| *strides = input.strides());
        let dims = Dims::by_stride(out.shape(), &strides[..=n], |_| true);
        let len = Some(dims.len()).filter(|&len| len > 0)?;
        let (inner_len, inner) = dims.inner();
        let in_packs = |k: usize| {
            inner[k] == 1 && is_aligned(k) && dims.strides().iter().skip(1).all(|steps| steps[k].is_multiple_of(pack))
        };
        let packed = (1..=n).filter(|&k| in_packs(k)).fold(0, |bits, k| bits | 1 << (k - 1));
        if dims.sizes().len() == 1 && in_packs(0) && packed == (1 << n) - 1 {
            return Some(Steps::Contiguous { len: len as u64, pack });
        }
        let in_rows = |k: usize| packed >> (k - 1) & 1 == 1 || inner[k] == 0;
        if inner_len.is_multiple_of(pack) && in_packs(0) && (1..=n).all(in_rows) && dims.indexing().is_some() {
            return dims.in_packs(pack).indexing().map(|packs| Steps::Rows { packs, packed });
        }
        if n == 1
            && let Some(tiles) = Steps::in_tiles(&dims)
        {
            return Some(tiles);
        }
        Some(dims.indexing().map_or_else(|| Steps::Wide(dims.wide_indexing()), Steps::Strided))
    }

    /// Tiles, if the only input is contiguous along another dimension than the output.
    fn in_tiles(dims: &Dims) -> Option<Steps> {
        let (columns, [y_step, x_stride, ..]) = dims.inner();
        let at = dims.strides().iter().skip(1).position(|[_, x_step, ..]| *x_step == 1)? + 1;
        let (rows, y_stride) = (dims.sizes()[at], dims.strides()[at][0]);
        if y_step != 1 || x_stride <= 1 || columns < MIN_SIDE || rows < MIN_SIDE || dims.indexing().is_none() {
            return None; // with 32-bit indexing, everything is below 2^31
        }
        let [columns, rows, x_stride, y_stride] = [columns, rows, x_stride, y_stride].mapped(|size| size as u32);
        let [column_tiles, row_tiles] = [columns, rows].mapped(|size| size.div_ceil(SIDE as u32));
        let plane = Plane { columns, rows, x_stride, y_stride, column_tiles, row_tiles };
        let outer = dims.without([0, at]).indexing()?;
        Some(Steps::Tiles { outer, plane })
    }

    fn kernel(&self) -> &'static str {
        match self {
            Steps::Contiguous { .. } => CONTIGUOUS,
            Steps::Rows { .. } => ROWS,
            Steps::Strided(_) => STRIDED,
            Steps::Tiles { .. } => TILES,
            Steps::Wide(_) => WIDE,
        }
    }

    fn launch(&self) -> Launch {
        let threads = match self {
            Steps::Contiguous { len, pack } => {
                return Launch::covering((*len as usize).div_ceil(*pack * PACKS), CONTIGUOUS_THREADS);
            }
            Steps::Rows { packs, .. } => packs.len(),
            Steps::Strided(indexing) => indexing.len().div_ceil(EACH),
            Steps::Tiles { outer, plane } => {
                let blocks = outer.len() * plane.column_tiles as usize * plane.row_tiles as usize;
                return Launch { block: [SIDE as u32, THREADS / SIDE as u32, 1], ..Launch::covering(blocks, 1) };
            }
            Steps::Wide(indexing) => indexing.len(),
        };
        Launch::covering(threads, THREADS)
    }

    /// The arguments of the kernel after tensors and constants.
    fn arguments(&self) -> [Option<&[u8]>; 2] {
        match self {
            Steps::Contiguous { len, .. } => [Some(bytemuck::bytes_of(len)), None],
            Steps::Rows { packs, packed } => [Some(bytemuck::bytes_of(packs)), Some(bytemuck::bytes_of(packed))],
            Steps::Strided(indexing) => [Some(bytemuck::bytes_of(indexing)), None],
            Steps::Tiles { outer, plane } => [Some(bytemuck::bytes_of(outer)), Some(bytemuck::bytes_of(plane))],
            Steps::Wide(indexing) => [Some(bytemuck::bytes_of(indexing)), None],
        }
    }
}
