// y[…, i, …] = Σ x[…, j, …] for j ≤ i (with reverse: j ≥ i) along a dimension.   x, y: [lines / inner, n, inner], contiguous.

// One thread per line.
#ifdef KERNEL_cumsum_lines
extern "C" __global__ void cumsum_lines(O* y, const T* x, u64 lines, u64 n, u64 inner, u64 reverse) {
    begin();
    u64 line = wide_thread_number();
    if (line >= lines) return;
    u64 start = line / inner * n * inner + line % inner;
    Q sum = 0;
    for (u64 k = 0; k < n; k++) {
        u64 at = start + (reverse ? n - 1 - k : k) * inner;
        sum = plus(sum, Q(real(x[at])));
        y[at] = to<O>(sum);
    }
}
#endif

// One warp per line, 32 neighbors at a time; inner is 1.
#ifdef KERNEL_cumsum_rows
extern "C" __global__ void cumsum_rows(O* y, const T* x, u64 lines, u64 n, u64, u64 reverse) {
    begin();
    u64 line = wide_thread_number() / 32;
    u32 lane = threadIdx.x % 32;
    if (line >= lines) return;
    Q before = 0;
    for (u64 start = 0; start < n; start += 32) {
        u64 k = start + lane;
        u64 at = line * n + (reverse ? n - 1 - k : k);
        Q sum = k < n ? Q(real(x[at])) : Q(0);
        for (u32 step = 1; step < 32; step *= 2) {
            Q other = __shfl_up_sync(~0u, sum, step);
            if (lane >= step) sum = plus(sum, other);
        }
        sum = plus(before, sum);
        if (k < n) y[at] = to<O>(sum);
        before = __shfl_sync(~0u, sum, 31);
    }
}
#endif
