// Scans along a dimension, from its start or (reverse) its end.   x, a, y: [lines / inner, n, inner], contiguous.
//   cumsum      y[k] = y[k - 1] + x[k]
//   cumprod     y[k] = y[k - 1] * x[k]
//   recurrence  y[k] = x[k] + a[k] * y[k - 1]; in reverse x[k] + a[k + 1] * y[k + 1]
// `_lines` has a thread for each line; `_rows`, where inner is 1, a warp for each line, 32 neighbors at a time.

struct Sum {
    INLINE Q of(Q a, Q b) { return plus(a, b); }
    INLINE Q none() { return 0; }
};

struct Product {
    INLINE Q of(Q a, Q b) { return times(a, b); }
    INLINE Q none() { return 1; }
};

template <typename Op> INLINE void scan_line(O* y, const T* x, u64 lines, u64 n, u64 inner, u64 reverse) {
    u64 line = wide_thread_number();
    if (line >= lines) return;
    u64 start = line / inner * n * inner + line % inner;
    Q all = Op::none();
    for (u64 k = 0; k < n; k++) {
        u64 at = start + (reverse ? n - 1 - k : k) * inner;
        all = Op::of(all, Q(real(x[at])));
        y[at] = to<O>(all);
    }
}

template <typename Op> INLINE void scan_row(O* y, const T* x, u64 lines, u64 n, u64 reverse) {
    u64 line = wide_thread_number() / 32;
    u32 lane = threadIdx.x % 32;
    if (line >= lines) return;
    Q before = Op::none();
    for (u64 start = 0; start < n; start += 32) {
        u64 k = start + lane;
        u64 at = line * n + (reverse ? n - 1 - k : k);
        Q all = k < n ? Q(real(x[at])) : Op::none();
        for (u32 step = 1; step < 32; step *= 2) {
            Q other = __shfl_up_sync(~0u, all, step);
            if (lane >= step) all = Op::of(other, all);
        }
        all = Op::of(before, all);
        if (k < n) y[at] = to<O>(all);
        before = __shfl_sync(~0u, all, 31);
    }
}

#ifdef KERNEL_cumsum_lines
extern "C" __global__ void cumsum_lines(O* y, const T* x, u64 lines, u64 n, u64 inner, u64 reverse) {
    begin();
    scan_line<Sum>(y, x, lines, n, inner, reverse);
}
#endif

#ifdef KERNEL_cumsum_rows
extern "C" __global__ void cumsum_rows(O* y, const T* x, u64 lines, u64 n, u64, u64 reverse) {
    begin();
    scan_row<Sum>(y, x, lines, n, reverse);
}
#endif

#ifdef KERNEL_cumprod_lines
extern "C" __global__ void cumprod_lines(O* y, const T* x, u64 lines, u64 n, u64 inner, u64 reverse) {
    begin();
    scan_line<Product>(y, x, lines, n, inner, reverse);
}
#endif

#ifdef KERNEL_cumprod_rows
extern "C" __global__ void cumprod_rows(O* y, const T* x, u64 lines, u64 n, u64, u64 reverse) {
    begin();
    scan_row<Product>(y, x, lines, n, reverse);
}
#endif

#ifdef KERNEL_recurrence_lines
extern "C" __global__ void recurrence_lines(O* y, const T* x, const T* a, u64 lines, u64 n, u64 inner, u64 reverse) {
    begin();
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

// Each lane has the map y -> sum + factor * y from what is before its first neighbor to itself.
#ifdef KERNEL_recurrence_rows
extern "C" __global__ void recurrence_rows(O* y, const T* x, const T* a, u64 lines, u64 n, u64, u64 reverse) {
    begin();
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
