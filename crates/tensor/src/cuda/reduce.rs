//! Reductions over any axes as kernels; `reduce.cu` has the loops, and describes in which order they combine.
//!
//! Contiguous, aligned tensors are read in packs of up to 16 bytes, along rows or across columns. Few results of many
//! elements are computed in segments, in two launches. All is chosen by sizes, strides and alignment, never by the
//! device, so results repeat bit for bit.

use std::sync::Arc;

use pagelock_cuda::{Argument, KernelFunction, KernelSource, Launch};

use super::arguments::{Arguments, values};
use super::code::{Constants, source};
use super::walk::{Dims, Indexing, WideIndexing};
use super::{CudaDevice, CudaOut, CudaView};
use crate::element::DType;
use crate::error::{Error, Result};
use crate::inlined::Array;
use crate::shape::AxisSet;

/// A reduction in CUDA C++; `header.cu` has the functions that it may use. A `static` beside the operation: its
/// address is its identity.
pub(crate) struct CudaReduction {
    /// The name in errors and profiles.
    pub(crate) name: &'static str,
    pub(crate) accumulator: Accumulator,
    /// The neutral element of `combine`.
    pub(crate) identity: &'static str,
    /// The accumulator of `R x`, which is element number `u64 i` of a result. Moments and powers have their own.
    pub(crate) lift: &'static str,
    /// The combination of two accumulators, `A a` and `A b`. Their order may change nothing except rounding.
    pub(crate) combine: &'static str,
    /// The result for `A total`.
    pub(crate) finish: &'static str,
    /// Constants for `finish`, of the computing type; see [`constant`](super::constant).
    pub(crate) constants: &'static [&'static str],
}

/// The type `A` of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accumulator {
    /// `R`
    Computing,
    /// `struct A { R value; i64 index; }`
    Indexed,
    /// The count of some numbers, their mean, and the sum of their squared distances from it, in `f64`. `centered(A)`
    /// computes these from an accumulator, and `merged(A, A)` combines two.
    Moments,
    /// The largest number, and the sum of e^(x − largest) over all x. `merged(A, A)` combines two.
    Powers,
}

// The kernels.
const ANY: &str = "any";
const WIDE: &str = "wide";
const ROWS: &str = "rows";
const COLUMNS: &str = "columns";
const FINISH: &str = "finish_segments";

const LOOPS: &str = include_str!("reduce.cu");
/// Chan, Golub, LeVeque 1979. The number of elements in a pack is a power of two.
///
/// Numbers are added and combined without a division: `mean` is one of the numbers, `squares` and `distance` are sums
/// over distances from it, and `centered` moves these to the mean at the end. Since `mean` is one of the numbers, its
/// squared distance from the true mean is at most n times the variance, so the subtraction costs at most log2(n) bits
/// of 53. `f64` numbers, whose squares might overflow, are added one by one.
const MOMENTS: &str = "
struct __align__(32) A { f64 n, mean, squares, distance; };
INLINE A centered(A a) {
    f64 shift = a.n == 0 ? 0 : a.distance / a.n, mean = a.mean + shift;
    return A{a.n, mean, a.squares - a.distance * shift + 0 * mean, 0}; // NaN if the mean is infinite
}
INLINE A merged(A a, A b) {
    if (a.n == 0) return b;
    if (b.n == 0) return a;
    f64 n = a.n + b.n, distance = b.mean - a.mean;
    if constexpr (sizeof(R) == 8) {
        f64 share = b.n / n;
        return A{n, a.mean + distance * share, a.squares + b.squares + distance * (distance * (a.n * share)), 0};
    } else {
        f64 moved = distance * b.n;
        return A{n, a.mean, a.squares + b.squares + distance * (2 * b.distance + moved), a.distance + b.distance + moved};
    }
}
INLINE void add(A& total, R x, u64 i) {
    if constexpr (sizeof(R) == 8) {
        total = merged(total, A{1, f64(x), 0, 0});
    } else {
        if (total.n == 0) total.mean = f64(x);
        f64 distance = f64(x) - total.mean;
        total.n += 1, total.distance += distance, total.squares += distance * distance;
    }
}
#define EACH 1
template <int N> INLINE void add_pack(A (&total)[EACH], const Pack<T, N>& pack, u64 i) {
    if constexpr (sizeof(R) == 8) {
        for (int v = 0; v < N; v++) add(total[0], real(pack.at[v]), i);
    } else {
        if (total[0].n == 0) total[0].mean = f64(real(pack.at[0]));
        for (int v = 0; v < N; v++) {
            f64 distance = f64(real(pack.at[v])) - total[0].mean;
            total[0].distance += distance, total[0].squares += distance * distance;
        }
        total[0].n += N;
    }
}
";
/// The sum is at most the number of powers. An infinite largest number is not subtracted: its power is infinite, or 0
/// for −∞.
const POWERS: &str = "
struct __align__(2 * sizeof(R)) A { R most, sum; };
INLINE R finite_or_zero(R most) { return magnitude(most) == R(INFINITY) ? R(0) : most; }
INLINE R power(R x, R less) { return exp_for<O>(x - less); }
INLINE A merged(A a, A b) {
    R most = max(a.most, b.most), less = finite_or_zero(most);
    return A{most, a.sum * power(a.most, less) + b.sum * power(b.most, less)};
}
template <int N> INLINE void add_all(A& total, const R (&x)[N]) {
    R most = total.most;
    for (int v = 0; v < N; v++) most = max(most, x[v]);
    R less = finite_or_zero(most), sum = total.sum * power(total.most, less);
    for (int v = 0; v < N; v++) sum += power(x[v], less);
    total = A{most, sum};
}
INLINE void add(A& total, R x, u64 i) {
    const R one[] = {x};
    add_all(total, one);
}
#define EACH 1
template <int N> INLINE void add_pack(A (&total)[EACH], const Pack<T, N>& pack, u64 i) {
    R x[N];
    for (int v = 0; v < N; v++) x[v] = real(pack.at[v]);
    add_all(total[0], x);
}
";
const THREADS: usize = 256;
/// Blocks that keep any GPU of today busy. A constant: results must not depend on the device.
const ENOUGH_BLOCKS: usize = 512;
/// Threads that keep any GPU of today busy. If there are many rows, a row has no more threads than this takes.
const ENOUGH_THREADS: usize = 1 << 18;
/// The fewest positions of a thread if there are several segments.
const MIN_POSITIONS: usize = 8;

impl CudaReduction {
    /// Reduces `x` over `axes` to `out`, which is contiguous.
    pub(crate) fn run(
        &'static self,
        device: &CudaDevice,
        op: &'static str,
        x: CudaView<'_>,
        axes: AxisSet,
        constants: &[u64],
        mut out: CudaOut<'_>,
    ) -> Result<()> {
        debug_assert_eq!(constants.len(), self.constants.len(), "{}", self.name);
        let types = [x.dtype(), out.dtype()];
        let n_results = out.shape().elements();
        if n_results == 0 {
            return Ok(());
        }
        let failed = |source| Error::cuda(op, source);
        let plan = Plan::new(&x, axes, self.pack(types[0]), n_results);
        let n_partial = if plan.segments > 1 { n_results * plan.segments } else { 0 };
        let partial_bytes = n_partial * self.accumulator.size(types[0]);
        let mut partial = device.stream().allocate::<u8>(partial_bytes).map_err(failed)?;

        let positions = plan.positions();
        let (lanes, in_columns) = ((plan.lanes as u32).to_ne_bytes(), u32::from(plan.in_columns).to_ne_bytes());
        let [kept, reduced] = positions.bytes();
        let arguments: Arguments<'_> = values(constants)
            .chain([out.argument(), Argument::Write(partial.view_mut()), x.argument()])
            .chain([kept, reduced, &lanes, &in_columns].mapped(Argument::Value))
            .collect();
        let blocks = plan.kept.len().div_ceil(THREADS / plan.lanes);
        let launch = Launch { grid: [blocks as u32, plan.segments as u32, 1], ..Launch::covering(1, THREADS as u32) };
        // SAFETY: the kernels of `reduce.cu` take these arguments, in this order; they read only where the indexing
        // leads, which is inside the view, and write one element for each result, or for each result and segment, to
        // buffers of these lengths.
        unsafe { self.kernel(device, op, types, plan.kernel)?.launch(&device.stream(), launch, &arguments) }
            .map_err(failed)?;
        drop(arguments); // they borrow the output
        if plan.segments == 1 {
            return Ok(());
        }
        let (n, segments) = ((n_results as u64).to_ne_bytes(), (plan.segments as u32).to_ne_bytes());
        let arguments: Arguments<'_> = values(constants)
            .chain([out.argument(), Argument::Read(partial.view())])
            .chain([&n[..], &segments].mapped(Argument::Value))
            .collect();
        let launch = Launch { block: [THREADS as u32, 1, 1], ..Launch::covering(n_results, (THREADS / 32) as u32) };
        // SAFETY: as above; `partial` has `segments` accumulators for each result.
        unsafe { self.kernel(device, op, types, FINISH)?.launch(&device.stream(), launch, &arguments) }.map_err(failed)
    }

    fn kernel(
        &'static self,
        device: &CudaDevice,
        op: &'static str,
        types: [DType; 2],
        kernel: &'static str,
    ) -> Result<Arc<KernelFunction>> {
        let address = std::ptr::from_ref(self).addr();
        device.kernel(op, address, types, (kernel, &Constants::NONE), || self.source(types, kernel))
    }

    /// `V` of `reduce.cu`: elements of a pack.
    fn pack(&self, dtype: DType) -> usize {
        (16 / dtype.size()).min(128 / self.accumulator.size(dtype))
    }

    pub(super) fn source(&self, types: [DType; 2], kernel: &str) -> KernelSource {
        let CudaReduction { identity, lift, combine, finish, .. } = self;
        let add = format!("INLINE void add(A& total, R x, u64 i) {{ total = combine(total, {lift}); }}");
        let (accumulator, add) = match self.accumulator {
            Accumulator::Computing => ("typedef R A;", &*add),
            Accumulator::Indexed => ("struct A { R value; i64 index; };", &*add),
            Accumulator::Moments => (MOMENTS, ""),
            Accumulator::Powers => (POWERS, ""),
        };
        let n = self.constants.len();
        let parameters: String = (0..n).map(|k| format!("u64 c{k}, ")).collect();
        let passed: String = (0..n).map(|k| format!("c{k}, ")).collect();
        let values: String = (0..n).map(|k| format!(", constant(c{k})")).collect();
        let names: String = self.constants.iter().map(|name| format!(", R {name}")).collect();
        let own_text = format!(
            "{accumulator}\n\
             INLINE A identity() {{ return {identity}; }}\n\
             INLINE A combine(A a, A b) {{ return {combine}; }}\n\
             {add}\n\
             INLINE O finish(A total{names}) {{ return to<O>({finish}); }}\n\
             #define CONSTANTS {parameters}\n#define ARGUMENTS {passed}\n#define FINISH(total) finish(total{values})\n"
        );
        source(self.name, types, kernel, &[&own_text, LOOPS])
    }
}

impl Accumulator {
    fn size(self, dtype: DType) -> usize {
        match self {
            Accumulator::Computing => dtype.computing().size(),
            Accumulator::Powers => 2 * dtype.computing().size(),
            Accumulator::Indexed => 16,
            Accumulator::Moments => 32,
        }
    }
}

/// Which kernel runs, over which positions, with how many threads for each result.
struct Plan {
    kernel: &'static str,
    kept: Dims,
    reduced: Dims,
    lanes: usize,
    in_columns: bool,
    segments: usize,
}

impl Plan {
    fn new(x: &CudaView<'_>, axes: AxisSet, pack: usize, n_results: usize) -> Plan {
        let kept = Dims::in_order(x.shape(), &[x.strides()], |dim| !axes.contains(dim));
        let reduced = Dims::by_stride(x.shape(), &[x.strides()], |dim| axes.contains(dim));
        let ((kept_size, [kept_step, ..]), (reduced_size, [reduced_step, ..])) = (kept.inner(), reduced.inner());
        let aligned = x.is_aligned(pack * x.dtype().size());
        let steps =
            |dims: &Dims, but: usize| dims.strides().iter().skip(but).all(|[step, ..]| step.is_multiple_of(pack));
        let in_columns = n_results > 1 && (reduced_size <= 1 || (kept_step > 0 && kept_step < reduced_step));
        let narrow = kept.indexing().is_some() && reduced.indexing().is_some();
        let in_packs = narrow
            && aligned
            && if in_columns {
                kept_step == 1 && kept_size.is_multiple_of(pack) && steps(&kept, 1) && steps(&reduced, 0)
            } else {
                reduced_step == 1 && reduced_size.is_multiple_of(pack) && steps(&reduced, 1) && steps(&kept, 0)
            };
        let (kernel, kept, reduced) = match (narrow, in_packs, in_columns) {
            (false, ..) => (WIDE, kept, reduced),
            (true, false, _) => (ANY, kept, reduced),
            (true, true, true) => (COLUMNS, kept.in_packs(pack), reduced),
            (true, true, false) => (ROWS, kept, reduced.in_packs(pack)),
        };
        let n = reduced.len();
        let enough = (ENOUGH_THREADS / kept.len().max(1)).next_power_of_two().min(THREADS);
        let lanes = if in_columns {
            (THREADS / kept.len().next_power_of_two().min(32)).min(n.next_power_of_two()).min(enough)
        } else {
            (n.next_power_of_two() / 4).clamp(1, enough.max(32))
        };
        let blocks = kept.len().div_ceil(THREADS / lanes);
        let segments = (ENOUGH_BLOCKS / blocks).min(n / lanes / MIN_POSITIONS).max(1);
        Plan { kernel, kept, reduced, lanes, in_columns, segments }
    }

    fn positions(&self) -> Positions {
        match (self.kept.indexing(), self.reduced.indexing()) {
            (Some(kept), Some(reduced)) => Positions::Narrow([kept, reduced]),
            _ => Positions::Wide(Box::new([self.kept.wide_indexing(), self.reduced.wide_indexing()])),
        }
    }
}

/// Index arithmetic as the kernel takes it.
#[expect(clippy::large_enum_variant, reason = "the usual variants need no allocation")]
enum Positions {
    Narrow([Indexing; 2]),
    Wide(Box<[WideIndexing; 2]>),
}

impl Positions {
    fn bytes(&self) -> [&[u8]; 2] {
        match self {
            Positions::Narrow(both) => both.each_ref().mapped(bytemuck::bytes_of),
            Positions::Wide(both) => both.each_ref().mapped(bytemuck::bytes_of),
        }
    }
}
