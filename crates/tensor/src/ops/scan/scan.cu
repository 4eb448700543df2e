// Scans along a dimension, from its start or (reverse) its end.   x, a, y: [lines / inner, n, inner], contiguous.
//   cumsum      y[k] = y[k - 1] + x[k]
//   cumprod     y[k] = y[k - 1] * x[k]
//   recurrence  y[k] = x[k] + a[k] * y[k - 1]; in reverse x[k] + a[k + 1] * y[k + 1]
// `_lines` has a thread for each line. `_rows`, for inner = 1, has a warp for each line, which takes 32 neighbors at
// a time.
//
// Long lines are cut into chunks, which are scanned in parallel. The kernel `_totals` computes the total of each
// chunk. `before` is the scan of these totals; a chunk starts with the element of the chunk before it.   totals,
// before: [lines / inner, chunks, inner].

struct Scan {
    u64 lines, n, inner, reverse;
    u64 chunk, chunks; // neighbors of a chunk, and how many chunks a line has
};

struct Sum {
    INLINE Q of(Q a, Q b) { return plus(a, b); }
    INLINE Q none() { return 0; }
};

struct Product {
    INLINE Q of(Q a, Q b) { return times(a, b); }
    INLINE Q none() { return 1; }
};

// The index of element k of a scan.
INLINE u64 place(const Scan& g, u64 line_start, u64 k) { return line_start + (g.reverse ? g.n - 1 - k : k) * g.inner; }

template <typename Op, bool WRITES> INLINE void scan_line(O* __restrict__ y, Q* totals, const T* __restrict__ x, const Q* before, const Scan& g) {
    u64 id = wide_thread_number();
    if (id >= g.lines * g.chunks) return;
    u64 number = id / g.inner % g.chunks, start = id / g.inner / g.chunks * g.n * g.inner + id % g.inner;
    u64 end = min(g.n, (number + 1) * g.chunk);
    Q all = WRITES && number > 0 ? before[id - g.inner] : Op::none();
    #pragma unroll 4
    for (u64 k = number * g.chunk; k < end; k++) {
        u64 at = place(g, start, k);
        all = Op::of(all, Q(real(x[at])));
        if (WRITES) y[at] = to<O>(all);
    }
    if (!WRITES) totals[id] = all;
}

template <typename Op, bool WRITES> INLINE void scan_row(O* __restrict__ y, Q* totals, const T* __restrict__ x, const Q* before, const Scan& g) {
    u64 id = wide_thread_number() / 32;
    u32 lane = threadIdx.x % 32;
    if (id >= g.lines * g.chunks) return;
    u64 number = id % g.chunks, start = id / g.chunks * g.n, end = min(g.n, (number + 1) * g.chunk);
    Q last = WRITES && number > 0 ? before[id - 1] : Op::none();
    #pragma unroll 4
    for (u64 first = number * g.chunk; first < end; first += 32) {
        u64 k = first + lane, at = place(g, start, k);
        Q all = k < end ? Q(real(x[at])) : Op::none();
        for (u32 step = 1; step < 32; step *= 2) {
            Q other = __shfl_up_sync(~0u, all, step);
            if (lane >= step) all = Op::of(other, all);
        }
        all = Op::of(last, all);
        if (WRITES && k < end) y[at] = to<O>(all);
        last = __shfl_sync(~0u, all, 31);
    }
    if (!WRITES && lane == 0) totals[id] = last;
}

#define SCAN(name, Op, along) extern "C" __global__ void name(O* y, const T* x, const Q* before, Scan g) { \
    begin(); \
    along<Op, true>(y, nullptr, x, before, g); \
}
#define TOTALS(name, Op, along) extern "C" __global__ void name(Q* totals, const T* x, const Q* before, Scan g) { \
    begin(); \
    along<Op, false>(nullptr, totals, x, before, g); \
}
#ifdef KERNEL_cumsum_lines
SCAN(cumsum_lines, Sum, scan_line)
#endif
#ifdef KERNEL_cumsum_rows
SCAN(cumsum_rows, Sum, scan_row)
#endif
#ifdef KERNEL_cumsum_lines_totals
TOTALS(cumsum_lines_totals, Sum, scan_line)
#endif
#ifdef KERNEL_cumsum_rows_totals
TOTALS(cumsum_rows_totals, Sum, scan_row)
#endif
#ifdef KERNEL_cumprod_lines
SCAN(cumprod_lines, Product, scan_line)
#endif
#ifdef KERNEL_cumprod_rows
SCAN(cumprod_rows, Product, scan_row)
#endif
#ifdef KERNEL_cumprod_lines_totals
TOTALS(cumprod_lines_totals, Product, scan_line)
#endif
#ifdef KERNEL_cumprod_rows_totals
TOTALS(cumprod_rows_totals, Product, scan_row)
#endif

#ifdef KERNEL_recurrence_lines
extern "C" __global__ void recurrence_lines(O* y, const T* x, const T* a, Scan g) {
    begin();
    u64 lines = g.lines, n = g.n, inner = g.inner, reverse = g.reverse;
    u64 line = wide_thread_number();
    if (line >= lines) return;
    u64 start = line / inner * n * inner + line % inner;
    R last = 0;
    for (u64 k = 0; k < n; k++) {
        u64 at = start + (reverse ? n - 1 - k : k) * inner;
        R here = real(x[at]);
        if (k > 0) here += real(a[reverse ? at + inner : at]) * last;
        last = here;
        y[at] = to<O>(last);
    }
}
#endif

// Each lane has the map y -> sum + factor * y from the result before the warp's first element to the result of its own.
#ifdef KERNEL_recurrence_rows
extern "C" __global__ void recurrence_rows(O* y, const T* x, const T* a, Scan g) {
    begin();
    u64 lines = g.lines, n = g.n, reverse = g.reverse;
    u64 line = wide_thread_number() / 32;
    u32 lane = threadIdx.x % 32;
    if (line >= lines) return;
    R before = 0;
    for (u64 start = 0; start < n; start += 32) {
        u64 k = start + lane;
        u64 at = line * n + (reverse ? n - 1 - k : k);
        R sum = k < n ? real(x[at]) : R(0);
        R factor = k > 0 && k < n ? real(a[reverse ? at + 1 : at]) : R(0);
        for (u32 step = 1; step < 32; step *= 2) {
            R earlier = __shfl_up_sync(~0u, sum, step), by = __shfl_up_sync(~0u, factor, step);
            if (lane >= step) {
                sum += factor * earlier;
                factor *= by;
            }
        }
        if (start > 0) sum += factor * before;
        if (k < n) y[at] = to<O>(sum);
        before = __shfl_sync(~0u, sum, 31);
    }
}
#endif
