// Clips gradients by the norm of all of them, and by value. A launch takes up to TENSORS contiguous gradients, and
// blockIdx.y selects one. Read `sums.cu` first.
//
// squares   partial[first + ..] = Σ x² of each block's part of a gradient
// scale     norm = √ Σ squares,   x ← x · min(1, most / (norm + 1e-6))
// clamp     x ← min(max(x, -most), most); NaN stays

#define TENSORS 6 // gradients per launch, at most
#define UNROLL 4 // elements that a thread reads at once

struct Lengths { u64 of[TENSORS]; };

// Calls visit(indices, count) for the elements of this thread, up to UNROLL at once.
template <typename Visit> INLINE void each_few(u64 n, Visit visit) {
    u64 stride = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += UNROLL * stride) {
        u64 at[UNROLL];
        int count = 0;
        #pragma unroll
        for (int k = 0; k < UNROLL; k++) at[k] = i + k * stride, count += at[k] < n;
        visit(at, count);
    }
}

#define EACH switch (blockIdx.y) { ONE(0); ONE(1); ONE(2); ONE(3); ONE(4); ONE(5); }

#if defined(KERNEL_squares) || defined(KERNEL_scale)
// The sum over the threads of a block. Every thread gets it.
INLINE f64 sum_of_block(f64 x) {
    __shared__ f64 parts[WARP];
    x = wide_sum_of_lanes(x);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = x;
    __syncthreads();
    x = parts[0];
    for (u32 warp = 1; warp < blockDim.x / WARP; warp++) x += parts[warp];
    return x;
}
#endif

#ifdef KERNEL_squares
struct Squares { Lengths n; u64 first; };

INLINE void squares_of(const T* x, u64 n, f64* to) {
    R sum = 0;
    each_few(n, [&](const u64 (&at)[UNROLL], int count) {
        R few[UNROLL];
        #pragma unroll
        for (int k = 0; k < UNROLL; k++) few[k] = k < count ? real(x[at[k]]) : R(0);
        #pragma unroll
        for (int k = 0; k < UNROLL; k++) sum = multiply_add(few[k], few[k], sum);
    });
    f64 all = sum_of_block(sum);
    if (threadIdx.x == 0) *to = all;
}

#define ONE(k) case k: return squares_of(x##k, settings.n.of[k], partial)
extern "C" __global__ void squares(
    const T* x0, const T* x1, const T* x2, const T* x3, const T* x4, const T* x5, f64* partial, Squares settings
) {
    begin();
    partial += settings.first + blockIdx.y * gridDim.x + blockIdx.x;
    EACH
}
#endif

#ifdef KERNEL_scale
struct Scale { Lengths n; f64 most; u64 count; };

#define ONE(k) case k: x = x##k, n = settings.n.of[k]; break
extern "C" __global__ void scale(
    T* x0, T* x1, T* x2, T* x3, T* x4, T* x5, const f64* squares, R* norm_to, Scale settings
) {
    begin();
    T* x = x0;
    u64 n = 0;
    EACH
    // The first element is loaded while the norm is added up.
    u64 i = wide_thread_number(), stride = u64(gridDim.x) * blockDim.x;
    R first = i < n ? real(x[i]) : R(0);
    f64 sum = 0;
    for (u64 k = threadIdx.x; k < settings.count; k += blockDim.x) sum += squares[k];
    f64 norm = sqrt(sum_of_block(sum)), by = settings.most / (norm + 1e-6); // NaN stays NaN
    if (norm_to && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *norm_to = R(norm);
    R factor = R(by > 1 ? 1 : by);
    if (factor == 1 || i >= n) return;
    x[i] = to<T>(first * factor);
    if (n <= stride) return;
    x += stride;
    each_few(n - stride, [&](const u64 (&at)[UNROLL], int count) {
        R few[UNROLL];
        #pragma unroll
        for (int k = 0; k < UNROLL; k++) if (k < count) few[k] = real(x[at[k]]);
        #pragma unroll
        for (int k = 0; k < UNROLL; k++) if (k < count) x[at[k]] = to<T>(few[k] * factor);
    });
}
#endif

#ifdef KERNEL_clamp
struct Clamp { Lengths n; f64 most; };

INLINE void clamped(T* x, u64 n, R most) {
    each_few(n, [&](const u64 (&at)[UNROLL], int count) {
        #pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            if (k >= count) continue;
            R one = real(x[at[k]]);
            if (one > most) x[at[k]] = to<T>(most);
            if (one < -most) x[at[k]] = to<T>(-most);
        }
    });
}

#define ONE(k) case k: return clamped(x##k, settings.n.of[k], R(settings.most))
extern "C" __global__ void clamp(T* x0, T* x1, T* x2, T* x3, T* x4, T* x5, Clamp settings) {
    begin();
    EACH
}
#endif
