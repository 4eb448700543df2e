// Softmax and its logarithm along the rows of contiguous [rows, n], and their gradients.
//
// softmax        y = exp(x − max) / Σ exp(x − max)            log_softmax        y = x − max − log Σ exp(x − max)
// softmax_grad   x = y · (g − Σ g·y)                          log_softmax_grad   x = g − exp(y) · Σ g
//
// A row has blockDim.x threads (a power of two: part of a warp, or whole ones), a block blockDim.y rows. Rows that are not
// too long are kept in shared memory, which each thread uses for its own elements only. Halves are computed in f32.

#define THREADS 512
#define MAX_WARPS (THREADS / WARP)

extern __shared__ __align__(16) unsigned char shared[];

// Combines what all threads of a row have; all of them get the result.
template <typename Combine> INLINE R of_row(R x, Combine combine) {
    for (u32 other = min(blockDim.x, WARP) / 2; other > 0; other /= 2) x = combine(x, from_lane(x, other));
    if (blockDim.x <= WARP) return x;
    __shared__ R parts[MAX_WARPS];
    u32 warps = blockDim.x / WARP, first = threadIdx.y * warps;
    __syncthreads(); // what the call before wrote was read
    if (threadIdx.x % WARP == 0) parts[first + threadIdx.x / WARP] = x;
    __syncthreads();
    x = parts[first];
    for (u32 warp = 1; warp < warps; warp++) x = combine(x, parts[first + warp]);
    return x;
}
INLINE R sum_of_row(R x) { return of_row(x, [](R a, R b) { return a + b; }); }
INLINE R larger(R a, R b) { return b > a || is_nan(b) ? b : a; }

// The row of this thread, or the last one again behind it.
INLINE u64 row_number(u64 rows) { return min(u64(blockIdx.x) * blockDim.y + threadIdx.y, rows - 1); }

// The threads' elements of a row: number `slot` of those in shared memory, if `keep`.
struct Row {
    const T* x;
    R* kept;
    u32 n;

    __device__ __forceinline__ Row(const T* x, u32 n, u32 slot, u32 keep)
        : x(x), kept(keep ? reinterpret_cast<R*>(shared) + slot * n : nullptr), n(n) {
        if (!kept) return;
        #pragma unroll 8
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) kept[i] = real(x[i]);
    }
    __device__ __forceinline__ R at(u32 i) const { return kept ? kept[i] : real(x[i]); }
    // Calls `visit(i, element)`.
    template <typename Visit> __device__ __forceinline__ void each(Visit visit) const {
        if (kept) {
            #pragma unroll 4
            for (u32 i = threadIdx.x; i < n; i += blockDim.x) visit(i, kept[i]);
        } else {
            #pragma unroll 4
            for (u32 i = threadIdx.x; i < n; i += blockDim.x) visit(i, real(x[i]));
        }
    }
};

// A row's largest element, and the sum of exp(x − largest).
struct Scale { R largest, sum; };
INLINE Scale scale_of(const Row& row) {
    R largest = -INFINITY, sum = 0;
    row.each([&](u32, R x) { largest = larger(largest, x); });
    largest = of_row(largest, larger);
    row.each([&](u32, R x) { sum += exp(x - largest); });
    return {largest, sum_of_row(sum)};
}

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)

#ifdef KERNEL_softmax
KERNEL softmax(T* y, const T* x, u64 rows, u32 n, u32 keep) {
    u64 start = row_number(rows) * n;
    Row row(x + start, n, threadIdx.y, keep);
    Scale scale = scale_of(row);
    row.each([&](u32 i, R x) { y[start + i] = to<T>(exp(x - scale.largest) / scale.sum); });
}
#endif
#ifdef KERNEL_log_softmax
KERNEL log_softmax(T* y, const T* x, u64 rows, u32 n, u32 keep) {
    u64 start = row_number(rows) * n;
    Row row(x + start, n, threadIdx.y, keep);
    Scale scale = scale_of(row);
    R log_sum = log(scale.sum);
    row.each([&](u32 i, R x) { y[start + i] = to<T>(x - scale.largest - log_sum); });
}
#endif
#ifdef KERNEL_softmax_grad
KERNEL softmax_grad(T* x, const T* y, const T* g, u64 rows, u32 n, u32 keep) {
    u64 start = row_number(rows) * n;
    Row row(y + start, n, 2 * threadIdx.y, keep), grads(g + start, n, 2 * threadIdx.y + 1, keep);
    R sum = 0;
    row.each([&](u32 i, R y) { sum += y * grads.at(i); });
    sum = sum_of_row(sum);
    row.each([&](u32 i, R y) { x[start + i] = to<T>(y * (grads.at(i) - sum)); });
}
#endif
#ifdef KERNEL_log_softmax_grad
KERNEL log_softmax_grad(T* x, const T* y, const T* g, u64 rows, u32 n, u32 keep) {
    u64 start = row_number(rows) * n;
    Row row(y + start, n, 2 * threadIdx.y, keep), grads(g + start, n, 2 * threadIdx.y + 1, keep);
    R sum = 0;
    grads.each([&](u32, R g) { sum += g; });
    sum = sum_of_row(sum);
    row.each([&](u32 i, R y) { x[start + i] = to<T>(grads.at(i) - exp(y) * sum); });
}
#endif
