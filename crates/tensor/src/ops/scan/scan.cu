// Scans along a dimension, from its start or (reverse) its end.   x, a, y: [lines / inner, n, inner], contiguous.
//   cumsum      y[k] = y[k - 1] + x[k]
//   cumprod     y[k] = y[k - 1] * x[k]
//   recurrence  y[k] = x[k] + a[k] * y[k - 1]; in reverse x[k] + a[k + 1] * y[k + 1]
// `_lines` has a thread for each line. `_rows`, for inner = 1, has a warp for each line, which takes 32 neighbors at
// a time.
//
// Long lines are cut into chunks, which are scanned in parallel. The kernel `_totals` computes the total of each
// chunk, for the recurrence also the product of its factors. `before` is the scan of these totals; a chunk starts with
// the element of the chunk before it.   totals, factors, before: [lines / inner, chunks, inner].

struct Scan {
    u64 lines, n, inner, reverse;
    u64 chunk, chunks; // neighbors of a chunk, and how many chunks a line has
};

// Each scan says what it keeps of a part of a line (a `Part`): of no elements, of one, and of two neighboring parts.
struct Sum {
    typedef Q Part;
    INLINE Q none() { return 0; }
    INLINE Q after(Q result) { return result; }
    INLINE Q element(const Scan&, const T* x, const T*, u64, u64 at) { return Q(real(x[at])); }
    INLINE Q of(Q earlier, Q later) { return plus(earlier, later); }
};

struct Product : Sum {
    INLINE Q none() { return 1; }
    INLINE Q of(Q earlier, Q later) { return times(earlier, later); }
};

INLINE Q result(Q part) { return part; }
INLINE void store_factor(Q*, u64, Q) {}
INLINE Q of_lane(Q part, u32 lane) { return __shfl_sync(~0u, part, lane); }

#if defined(KERNEL_recurrence_lines) || defined(KERNEL_recurrence_rows) || defined(KERNEL_recurrence_lines_totals) || defined(KERNEL_recurrence_rows_totals)
// The map y -> sum + factor * y from the result before a part to the result of its last element.
struct Map {
    Q sum, factor;
};

INLINE Q result(Map part) { return part.sum; }
INLINE void store_factor(Q* factors, u64 i, Map part) { factors[i] = part.factor; }
INLINE Map of_lane(Map part, u32 lane) { return {of_lane(part.sum, lane), of_lane(part.factor, lane)}; }

// A product of finite numbers that is too large becomes the largest number, so that 0 times it is 0.
INLINE Q finite_product(Q a, Q b) {
    const Q largest = sizeof(Q) == 4 ? Q(3.4028234663852886e38) : Q(1.7976931348623157e308);
    Q product = a * b;
    bool overflows = is_nan(product - product) && !is_nan(a - a) && !is_nan(b - b);
    return overflows ? copysign(largest, product) : product;
}

struct Recurrence {
    typedef Map Part;
    INLINE Map none() { return {0, 1}; }
    INLINE Map after(Q result) { return {result, 0}; }
    INLINE Map element(const Scan& g, const T* x, const T* a, u64 k, u64 at) {
        return {Q(real(x[at])), k > 0 ? Q(real(a[g.reverse ? at + g.inner : at])) : Q(0)};
    }
    INLINE Map of(Map earlier, Map later) {
        return {later.sum + later.factor * earlier.sum, finite_product(earlier.factor, later.factor)};
    }
};
#endif

// The index of element k of a scan.
INLINE u64 place(const Scan& g, u64 line_start, u64 k) { return line_start + (g.reverse ? g.n - 1 - k : k) * g.inner; }

template <typename Op, bool WRITES> INLINE void scan_line(O* __restrict__ y, Q* totals, Q* factors, const T* __restrict__ x, const T* __restrict__ a, const Q* before, const Scan& g) {
    u64 id = wide_thread_number();
    if (id >= g.lines * g.chunks) return;
    u64 number = id / g.inner % g.chunks, start = id / g.inner / g.chunks * g.n * g.inner + id % g.inner;
    u64 end = min(g.n, (number + 1) * g.chunk);
    typename Op::Part all = WRITES && number > 0 ? Op::after(before[id - g.inner]) : Op::none();
    #pragma unroll 4
    for (u64 k = number * g.chunk; k < end; k++) {
        u64 at = place(g, start, k);
        all = Op::of(all, Op::element(g, x, a, k, at));
        if (WRITES) y[at] = to<O>(result(all));
    }
    if (WRITES) return;
    totals[id] = result(all);
    store_factor(factors, id, all);
}

template <typename Op, bool WRITES> INLINE void scan_row(O* __restrict__ y, Q* totals, Q* factors, const T* __restrict__ x, const T* __restrict__ a, const Q* before, const Scan& g) {
    u64 id = wide_thread_number() / 32;
    u32 lane = threadIdx.x % 32;
    if (id >= g.lines * g.chunks) return;
    u64 number = id % g.chunks, start = id / g.chunks * g.n, end = min(g.n, (number + 1) * g.chunk);
    typename Op::Part last = WRITES && number > 0 ? Op::after(before[id - 1]) : Op::none();
    #pragma unroll 4
    for (u64 first = number * g.chunk; first < end; first += 32) {
        u64 k = first + lane, at = place(g, start, k);
        typename Op::Part all = k < end ? Op::element(g, x, a, k, at) : Op::none();
        for (u32 step = 1; step < 32; step *= 2) {
            typename Op::Part other = of_lane(all, lane - step);
            if (lane >= step) all = Op::of(other, all);
        }
        all = Op::of(last, all);
        if (WRITES && k < end) y[at] = to<O>(result(all));
        last = of_lane(all, 31);
    }
    if (WRITES || lane > 0) return;
    totals[id] = result(last);
    store_factor(factors, id, last);
}

#define SCAN(name, Op, along) extern "C" __global__ void name(O* y, const T* x, const T* a, const Q* before, Scan g) { \
    begin(); \
    along<Op, true>(y, nullptr, nullptr, x, a, before, g); \
}
#define TOTALS(name, Op, along) extern "C" __global__ void name(Q* totals, Q* factors, const T* x, const T* a, Scan g) { \
    begin(); \
    along<Op, false>(nullptr, totals, factors, x, a, nullptr, g); \
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
SCAN(recurrence_lines, Recurrence, scan_line)
#endif
#ifdef KERNEL_recurrence_rows
SCAN(recurrence_rows, Recurrence, scan_row)
#endif
#ifdef KERNEL_recurrence_lines_totals
TOTALS(recurrence_lines_totals, Recurrence, scan_line)
#endif
#ifdef KERNEL_recurrence_rows_totals
TOTALS(recurrence_rows_totals, Recurrence, scan_row)
#endif
