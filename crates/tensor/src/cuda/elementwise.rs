//! Formulas of elements as kernels; `elementwise.cu` has the loops.
//!
//! Dimensions are merged first. What is contiguous and aligned goes in packs of 16 bytes, also row by row beside inputs
//! that are repeated along rows; what is left, element by element.

use std::sync::Arc;

use pagelock_cuda::{Argument, Function, KernelSource, Launch};

use super::arguments::{Arguments, values};
use super::code::source;
use super::walk::{Dims, MAX_OPERANDS};
use super::{CudaDevice, CudaOut, CudaView};
use crate::element::{DType, Element, Scalar};
use crate::error::{Error, Result};

/// An expression in CUDA C++ and the names of what it is computed from; see `header.cu` for its words.
///
/// A `static` beside the operation: its address is its identity.
pub(crate) struct Formula {
    /// What errors and profiles call it.
    pub(crate) name: &'static str,
    /// The inputs, each a value of the computing type. In a change in place the first is the element that is changed.
    pub(crate) inputs: &'static [&'static str],
    /// Constants of the computing type, given at each launch; see [`constant`].
    pub(crate) constants: &'static [&'static str],
    /// The new element, converted to the output's type.
    pub(crate) text: &'static str,
    /// Whether the output is changed in place.
    pub(crate) changes: bool,
}

/// Copies elements, whatever they are.
pub(crate) static COPY: Formula = Formula { name: "copy", inputs: &["x"], constants: &[], text: "x", changes: false };

// The kernels.
const CONTIGUOUS: &str = "contiguous";
const ROWS: &str = "rows";
const STRIDED: &str = "strided";
const WIDE: &str = "wide";

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
        let plan = Plan::new(self.changes, inputs, &out);
        if plan.threads == 0 {
            return Ok(());
        }
        let (walk, wide_walk, packed) = (plan.dims.walk(), plan.dims.wide_walk(), plan.packed.to_ne_bytes());
        let len = plan.dims.len().to_ne_bytes();
        let (kernel, last): (&str, [Option<&[u8]>; 2]) = match (plan.kernel, &walk) {
            (CONTIGUOUS, _) => (CONTIGUOUS, [Some(&len), None]),
            (ROWS, Some(walk)) => (ROWS, [Some(bytemuck::bytes_of(walk)), Some(&packed)]),
            (_, Some(walk)) => (STRIDED, [Some(bytemuck::bytes_of(walk)), None]),
            (_, None) => (WIDE, [Some(bytemuck::bytes_of(&wide_walk)), None]),
        };
        let last = last.into_iter().flatten().map(Argument::Value);
        let inputs = inputs.iter().map(CudaView::argument);
        let arguments =
            Arguments::of(std::iter::once(out.argument()).chain(inputs).chain(values(constants)).chain(last));
        let launch = Launch::covering(plan.threads, THREADS);
        let function = self.kernel(device, op, types, kernel)?;
        // SAFETY: the kernels of `elementwise.cu` take these, in this order; they touch only positions that the walk,
        // or the length, leads to, which are those of the views; the plan says which kernel these allow.
        unsafe { function.launch(&device.stream(), launch, arguments.get()) }.map_err(|source| Error::cuda(op, source))
    }

    fn kernel(
        &'static self,
        device: &CudaDevice,
        op: &'static str,
        types: [DType; 2],
        kernel: &'static str,
    ) -> Result<Arc<Function>> {
        let address = std::ptr::from_ref(self).addr();
        device.kernel(op, address, types, kernel, || self.source(types, kernel))
    }

    /// The whole text of a kernel for inputs of one type and an output of another.
    pub(super) fn source(&self, types: [DType; 2], kernel: &str) -> KernelSource {
        let n = self.inputs.len();
        let own = usize::from(self.changes); // the first input is the output
        let pointers = (own..n).map(|k| format!("const T* p{k}, "));
        let parameters: String = pointers.chain((0..self.constants.len()).map(|k| format!("u64 c{k}, "))).collect();
        let pointers: Vec<String> = (0..n).map(|k| if k < own { "y".into() } else { format!("p{k}") }).collect();
        let names: Vec<String> =
            self.inputs.iter().chain(self.constants).map(|name| format!("[[maybe_unused]] R {name}")).collect();
        let inputs = (0..n).map(|k| format!("x[{k}]"));
        let values: Vec<String> = inputs.chain((0..self.constants.len()).map(|k| format!("constant(c{k})"))).collect();
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

/// A constant as formulas take it: the bytes of what the element type computes in.
pub(crate) fn constant<T: Element>(value: T) -> u64 {
    match value.to_scalar() {
        Scalar::Int(value) => value as u64,
        Scalar::Float(value) if T::Sum::DTYPE == DType::F32 => u64::from((value as f32).to_bits()),
        Scalar::Float(value) => value.to_bits(),
    }
}

/// Which kernel runs over which dimensions.
struct Plan {
    kernel: &'static str,
    dims: Dims,
    /// The inputs that [`ROWS`] reads in packs, as bits.
    packed: u32,
    threads: usize,
}

impl Plan {
    fn new(changes: bool, inputs: &[CudaView<'_>], out: &CudaOut<'_>) -> Plan {
        let own = usize::from(changes);
        let n = inputs.len() + own;
        let mut strides: [&[usize]; MAX_OPERANDS] = [&[]; MAX_OPERANDS];
        strides[..=own].fill(out.strides());
        strides[1 + own..].iter_mut().zip(inputs).for_each(|(strides, input)| *strides = input.strides());
        let dims = Dims::merged(out.shape(), &strides[..=n]);
        let types = inputs.iter().map(|input| input.dtype().size()).chain([out.dtype().size()]);
        let pack = PACK_BYTES / types.max().unwrap_or(1);

        let is_aligned = |k: usize| match k.checked_sub(1 + own) {
            Some(input) => inputs[input].is_aligned(pack * inputs[input].dtype().size()),
            None => out.is_aligned(pack * out.dtype().size()),
        };
        let (inner_size, inner) = dims.inner();
        let in_rows = |k: usize| {
            inner[k] == 1 && is_aligned(k) && dims.strides().iter().skip(1).all(|steps| steps[k].is_multiple_of(pack))
        };
        let packed = (1..=n).filter(|&k| in_rows(k)).fold(0, |bits, k| bits | 1 << (k - 1));
        let all = (1 << n) - 1;
        let (len, rank) = (dims.len(), dims.sizes().len());
        if rank == 1 && in_rows(0) && packed == all {
            return Plan { kernel: CONTIGUOUS, dims, packed, threads: len.div_ceil(pack) };
        }
        let is_row = |k: usize| packed >> (k - 1) & 1 == 1 || inner[k] == 0;
        if rank > 0 && inner_size.is_multiple_of(pack) && in_rows(0) && (1..=n).all(is_row) {
            let dims = dims.in_packs(pack);
            if dims.walk().is_some() {
                return Plan { kernel: ROWS, dims, packed, threads: len / pack };
            }
            return Plan { kernel: STRIDED, dims: Dims::merged(out.shape(), &strides[..=n]), packed, threads: len };
        }
        Plan { kernel: STRIDED, dims, packed, threads: len }
    }
}
