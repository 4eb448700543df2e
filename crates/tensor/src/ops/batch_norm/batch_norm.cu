// Normalization of channels, and its gradients.   x: [outer, channels, inner], contiguous.
//
// statistics        m = Σ x / N,  q = Σ (x − m)² / N,  u = Σ (x − m)² / (N − 1)      of N = outer · inner elements
// batch_norm        y = (x − m) · s · w + b,  s = 1 / √(q + eps)                      with RELU: 0 where y < 0
// sums              Σ g·x̂, Σ g,  x̂ = (x − m) · s                                       with RELU: g counts as 0 where y <= 0
// batch_norm_grad   ẋ = s · w · (g − Σ g / N − x̂ · Σ g·x̂ / N)                          if TRAINING, else s · w · g
//
// The work is divided in one of two ways. With PLANES, a block handles one channel and a segment of its planes
// [inner], which its threads read in packs of V elements, so V divides `inner`. Otherwise `inner` is 1, and a thread
// handles V neighboring channels and a segment of the rows, so V divides `channels`. Grid: blocks of channels ×
// segments. `combine_statistics` and `combine_sums` combine segments in a fixed order. The division depends on sizes
// alone, so every run gives the same bits.
//
// `cuda.rs` defines PLANES, ACROSS, V, RELU and TRAINING before this file and `packs.cu`. T: x, y and their
// gradients; O: w and b, which are T or R. Halves are computed in f32. Results of threads are combined in f64, where
// they neither overflow nor lose digits. A thread whose elements are too large for f32 computes in f64.

#define THREADS 256
// Packs of each input that a thread reads at once. Without PLANES, two inputs take so many registers that fewer
// threads run at once; half as many packs are a third faster.
#if !PLANES && (defined(KERNEL_sums) || defined(KERNEL_batch_norm_grad))
#define UNROLL 2
#else
#define UNROLL 4
#endif
// For halves without PLANES, registers are limited so that four blocks run on a multiprocessor.
#define BOUNDS __launch_bounds__(THREADS, !PLANES && sizeof(T) == 2 ? 4 : 1)
// Whether visits of all UNROLL packs are compiled separately, without conditions. That makes these kernels a third
// faster, but would take too many registers in the others.
#if defined(KERNEL_sums) || defined(KERNEL_batch_norm_grad)
#define SPLIT true
#else
#define SPLIT false
#endif
// Without PLANES, the threads of a block are DOWN rows of ACROSS threads with neighboring channels.
#define DOWN (THREADS / ACROSS)

struct Geometry { u64 outer, channels, inner; };

// Where a segment of `n` begins; there are gridDim.y segments of nearly equal length.
INLINE u64 segment_start(u64 n, u32 segment) { return n / gridDim.y * segment + min(u64(segment), n % gridDim.y); }

// Channels of a thread: with PLANES the one of its block, otherwise V of its own.
#define CHANNELS_PER_THREAD (PLANES ? 1 : V)
INLINE u64 first_channel() { return PLANES ? blockIdx.x : (u64(blockIdx.x) * ACROSS + threadIdx.x % ACROSS) * V; }
// Which of these channels element v of a pack belongs to.
#define CHANNEL_OF(v) (PLANES ? 0 : (v))

// Calls visit(offsets, count) for the packs of this thread, up to UNROLL at once.
template <typename Visit> INLINE void each_packs(const Geometry& g, Visit visit) {
    u64 at[UNROLL];
    u64 begin = segment_start(g.outer, blockIdx.y), end = segment_start(g.outer, blockIdx.y + 1);
#if PLANES
    u64 plane = g.inner, stride = g.channels * plane;
    u32 packs = plane / V, step_samples = THREADS / packs, step = THREADS % packs;
    u64 sample = begin + threadIdx.x / packs;
    u32 pack = threadIdx.x % packs;
    const u64 base = blockIdx.x * plane;
    while (sample < end) {
        int count = 0;
        #pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            at[k] = sample * stride + base + u64(pack) * V;
            count += sample < end;
            sample += step_samples, pack += step;
            if (pack >= packs) pack -= packs, sample++;
        }
        if (SPLIT && count == UNROLL) visit(at, UNROLL);
        else visit(at, count);
    }
#else
    u64 channel = first_channel();
    if (channel >= g.channels) return;
    for (u64 row = begin + threadIdx.x / ACROSS; row < end; row += DOWN * UNROLL) {
        int count = 0;
        #pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            u64 here = row + k * DOWN;
            at[k] = here * g.channels + channel;
            count += here < end;
        }
        if (SPLIT && count == UNROLL) visit(at, UNROLL);
        else visit(at, count);
    }
#endif
}

#if defined(KERNEL_statistics) || defined(KERNEL_combine_statistics)
// How many numbers, their sum, and the sum of their squared deviations from their mean (Chan, Golub and LeVeque 1979).
struct Moments { f64 count, sum, squares; };
INLINE Moments merge(Moments a, Moments b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    f64 count = a.count + b.count;
    if constexpr (sizeof(R) < 8) { // one division instead of three; products of f32 sums and counts do not overflow in f64
        f64 d = b.sum * a.count - a.sum * b.count;
        return {count, a.sum + b.sum, a.squares + b.squares + d * (d / (a.count * b.count * count))};
    }
    f64 d = b.sum / b.count - a.sum / a.count;
    return {count, a.sum + b.sum, a.squares + b.squares + d * (d * (a.count * (b.count / count)))};
}
INLINE Moments moments_from_lane(Moments m, u32 other) {
    return {wide_from_lane(m.count, other), wide_from_lane(m.sum, other), wide_from_lane(m.squares, other)};
}
// A butterfly in which the lower lane always comes first, so that all lanes get the same bits.
INLINE Moments warp_moments(Moments m) {
    for (u32 other = WARP / 2; other > 0; other /= 2) {
        Moments there = moments_from_lane(m, other);
        m = threadIdx.x & other ? merge(there, m) : merge(m, there);
    }
    return m;
}
#endif
#ifdef KERNEL_statistics
// This thread's elements of each channel, in type S: their count, their mean, and the sum of squared deviations from
// it.
template <typename S> struct OwnMoments { S count, mean[CHANNELS_PER_THREAD], squares[CHANNELS_PER_THREAD]; };
template <typename S> INLINE OwnMoments<S> own_moments(const T* x, const Geometry& g) {
    OwnMoments<S> all = {};
    each_packs(g, [&](const u64 (&at)[UNROLL], int n) {
        R values[UNROLL][V];
        #pragma unroll
        for (int k = 0; k < UNROLL; k++)
            if (k < n) read_pack(x + at[k], values[k]);
        // The moments of these few elements, in two passes, are then merged into those of all elements so far.
        S count = PLANES ? n * V : n, one = S(1) / count;
        S share = count / (all.count + count), weight = all.count * share;
        #pragma unroll
        for (int c = 0; c < CHANNELS_PER_THREAD; c++) {
            S sum = 0, squares = 0;
            #pragma unroll
            for (int k = 0; k < UNROLL; k++)
                #pragma unroll
                for (int v = c; v < V; v += CHANNELS_PER_THREAD)
                    if (k < n) sum += values[k][v];
            S mean = sum * one, d = mean - all.mean[c];
            #pragma unroll
            for (int k = 0; k < UNROLL; k++)
                #pragma unroll
                for (int v = c; v < V; v += CHANNELS_PER_THREAD)
                    if (k < n) squares = multiply_add(values[k][v] - mean, values[k][v] - mean, squares);
            all.mean[c] = multiply_add(d, share, all.mean[c]);
            all.squares[c] += multiply_add(d, d * weight, squares);
        }
        all.count += count;
    });
    return all;
}
// partial[channel, segment]
// Registers are limited so that four blocks fit on a multiprocessor; with those of the rare f64 pass, only three would.
extern "C" __global__ void __launch_bounds__(THREADS, 4) statistics(Moments* partial, const T* x, Geometry g) {
    begin();
    OwnMoments<R> moments = own_moments<R>(x, g);
    f64 seen = moments.count, sums[CHANNELS_PER_THREAD], squares[CHANNELS_PER_THREAD];
    R check = 0;
    #pragma unroll
    for (int v = 0; v < CHANNELS_PER_THREAD; v++) {
        sums[v] = f64(moments.mean[v]) * seen, squares[v] = moments.squares[v];
        check += moments.squares[v] - moments.squares[v]; // not 0: too large for R, or not finite
    }
    if (sizeof(R) < 8 && check != 0) {
        OwnMoments<f64> wide = own_moments<f64>(x, g);
        #pragma unroll
        for (int v = 0; v < CHANNELS_PER_THREAD; v++) sums[v] = wide.mean[v] * seen, squares[v] = wide.squares[v];
    }
#if PLANES
    __shared__ Moments parts[THREADS / WARP];
    Moments m = warp_moments({seen, sums[0], squares[0]});
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = m;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int warp = 1; warp < THREADS / WARP; warp++) m = merge(m, parts[warp]);
    partial[u64(blockIdx.x) * gridDim.y + blockIdx.y] = m;
#else
    __shared__ Moments parts[DOWN][ACROSS * V];
    for (int v = 0; v < V; v++) parts[threadIdx.x / ACROSS][threadIdx.x % ACROSS * V + v] = {seen, sums[v], squares[v]};
    __syncthreads();
    u64 channel = u64(blockIdx.x) * (ACROSS * V) + threadIdx.x;
    if (threadIdx.x >= ACROSS * V || channel >= g.channels) return;
    Moments m = parts[0][threadIdx.x];
    for (int down = 1; down < DOWN; down++) m = merge(m, parts[down][threadIdx.x]);
    partial[channel * gridDim.y + blockIdx.y] = m;
#endif
}
#endif
#ifdef KERNEL_combine_statistics
// y: [3, channels]: m, q and u.   A warp for each channel, 8 to a block.
extern "C" __global__ void __launch_bounds__(THREADS) combine_statistics(R* y, const Moments* partial, u64 channels, u32 segments) {
    begin();
    u64 channel = u64(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    if (channel >= channels) return;
    Moments m = {};
    for (u32 s = threadIdx.x % WARP; s < segments; s += WARP) m = merge(m, partial[channel * segments + s]);
    m = warp_moments(m);
    if (threadIdx.x % WARP > 0) return;
    y[channel] = R(m.sum / m.count);
    y[channels + channel] = R(m.squares / m.count);
    y[2 * channels + channel] = R(m.squares / (m.count - 1));
}
#endif

#if defined(KERNEL_batch_norm) || defined(KERNEL_sums) || defined(KERNEL_batch_norm_grad)
// The numbers that a channel is normalized with.
struct Normalizer {
    R mean, scale, weight, bias;

    __device__ __forceinline__ Normalizer() {}
    __device__ __forceinline__
    Normalizer(const R* statistics, const O* w, const O* b, u64 channels, u64 channel, R eps) {
        scale = R(1) / sqrt(statistics[channels + channel] + eps);
        mean = scale == 0 ? R(0) : statistics[channel]; // if the variance overflows, x − mean may overflow, too
        weight = w ? real(w[channel]) : R(1);
        bias = b ? real(b[channel]) : R(0);
    }
    __device__ __forceinline__ R normal(R x) const { return (x - mean) * scale; }
    __device__ __forceinline__ R out(R x) const { return multiply_add(normal(x), weight, bias); }
    // The gradient of `out(x)`: that of the result, but 0 where RELU cut it off.
    __device__ __forceinline__ R grad(R x, R g) const { return RELU && out(x) <= 0 ? R(0) : g; }
};
INLINE void load_normalizers(
    Normalizer (&normalizers)[CHANNELS_PER_THREAD],
    const R* statistics, const O* w, const O* b, const Geometry& g, R eps
) {
    u64 channel = first_channel();
    #pragma unroll
    for (int c = 0; c < CHANNELS_PER_THREAD; c++)
        normalizers[c] = Normalizer(statistics, w, b, g.channels, min(channel + c, g.channels - 1), eps);
}
#endif
#ifdef KERNEL_batch_norm
extern "C" __global__ void BOUNDS
batch_norm(T* y, const T* x, const O* w, const O* b, const R* statistics, Geometry g, u64 eps) {
    begin();
    Normalizer normalizers[CHANNELS_PER_THREAD];
    load_normalizers(normalizers, statistics, w, b, g, constant(eps));
    each_packs(g, [&](const u64 (&at)[UNROLL], int n) {
        R values[UNROLL][V];
        #pragma unroll
        for (int k = 0; k < UNROLL; k++)
            if (k < n) read_pack(x + at[k], values[k]);
        #pragma unroll
        for (int k = 0; k < UNROLL; k++)
            if (k < n) {
                #pragma unroll
                for (int v = 0; v < V; v++) {
                    R out = normalizers[CHANNEL_OF(v)].out(values[k][v]);
                    values[k][v] = RELU && out < 0 ? R(0) : out;
                }
                write_pack(y + at[k], values[k]);
            }
    });
}
#endif
#ifdef KERNEL_sums
// partial[2, channel, segment]
extern "C" __global__ void BOUNDS
sums(f64* partial, const T* x, const T* grad, const O* w, const O* b, const R* statistics, Geometry g, u64 eps) {
    begin();
    Normalizer normalizers[CHANNELS_PER_THREAD];
    load_normalizers(normalizers, statistics, w, b, g, constant(eps));
    R all[2][CHANNELS_PER_THREAD] = {};
    each_packs(g, [&](const u64 (&at)[UNROLL], int n) {
        R values[UNROLL][V], grads[UNROLL][V];
        #pragma unroll
        for (int k = 0; k < UNROLL; k++)
            if (k < n) read_pack(x + at[k], values[k]), read_pack(grad + at[k], grads[k]);
        #pragma unroll
        for (int c = 0; c < CHANNELS_PER_THREAD; c++) {
            R dot = 0, sum = 0; // of these few packs alone, which loses fewer digits
            #pragma unroll
            for (int k = 0; k < UNROLL; k++)
                #pragma unroll
                for (int v = c; v < V; v += CHANNELS_PER_THREAD)
                    if (k < n) {
                        R d = normalizers[c].grad(values[k][v], grads[k][v]);
                        dot = multiply_add(d, normalizers[c].normal(values[k][v]), dot);
                        sum += d;
                    }
            all[0][c] += dot, all[1][c] += sum;
        }
    });
    u64 kinds = g.channels * gridDim.y;
#if PLANES
    __shared__ f64 parts[2][THREADS / WARP];
    for (int kind = 0; kind < 2; kind++) {
        f64 sum = wide_sum_of_lanes(all[kind][0]);
        if (threadIdx.x % WARP == 0) parts[kind][threadIdx.x / WARP] = sum;
    }
    __syncthreads();
    if (threadIdx.x >= 2) return;
    f64 sum = parts[threadIdx.x][0];
    for (int warp = 1; warp < THREADS / WARP; warp++) sum += parts[threadIdx.x][warp];
    partial[threadIdx.x * kinds + u64(blockIdx.x) * gridDim.y + blockIdx.y] = sum;
#else
    __shared__ f64 parts[2][DOWN][ACROSS];
    for (int v = 0; v < V; v++) {
        for (int kind = 0; kind < 2; kind++) parts[kind][threadIdx.x / ACROSS][threadIdx.x % ACROSS] = all[kind][v];
        __syncthreads();
        u64 channel = first_channel() + v;
        u32 kind = threadIdx.x / ACROSS;
        if (kind < 2 && channel < g.channels) { // there are at least two rows of threads
            f64 sum = parts[kind][0][threadIdx.x % ACROSS];
            for (int down = 1; down < DOWN; down++) sum += parts[kind][down][threadIdx.x % ACROSS];
            partial[kind * kinds + channel * gridDim.y + blockIdx.y] = sum;
        }
        __syncthreads();
    }
#endif
}
#endif
#ifdef KERNEL_combine_sums
// y[i] = Σ partial[i, segment] for i < n.   A warp for each i, 8 to a block.
extern "C" __global__ void __launch_bounds__(THREADS) combine_sums(R* y, const f64* partial, u64 n, u32 segments) {
    begin();
    u64 i = u64(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    if (i >= n) return;
    f64 sum = 0;
    for (u32 s = threadIdx.x % WARP; s < segments; s += WARP) sum += partial[i * segments + s];
    sum = wide_sum_of_lanes(sum);
    if (threadIdx.x % WARP == 0) y[i] = R(sum);
}
#endif
#ifdef KERNEL_batch_norm_grad
extern "C" __global__ void BOUNDS
batch_norm_grad(
    T* dx, const T* x, const T* grad, const O* w, const O* b, const R* statistics, const R* sums, Geometry g, u64 eps
) {
    begin();
    Normalizer normalizers[CHANNELS_PER_THREAD];
    load_normalizers(normalizers, statistics, w, b, g, constant(eps));
    R dot[CHANNELS_PER_THREAD], sum[CHANNELS_PER_THREAD];
    for (int c = 0; c < CHANNELS_PER_THREAD; c++) {
        u64 channel = min(first_channel() + c, g.channels - 1);
        R count = TRAINING ? R(g.outer * g.inner) : R(1);
        dot[c] = TRAINING ? sums[channel] / count : R(0), sum[c] = TRAINING ? sums[g.channels + channel] / count : R(0);
    }
    each_packs(g, [&](const u64 (&at)[UNROLL], int n) {
        R values[UNROLL][V], grads[UNROLL][V];
        #pragma unroll
        for (int k = 0; k < UNROLL; k++)
            if (k < n) read_pack(x + at[k], values[k]), read_pack(grad + at[k], grads[k]);
        #pragma unroll
        for (int k = 0; k < UNROLL; k++)
            if (k < n) {
                #pragma unroll
                for (int v = 0; v < V; v++) {
                    const Normalizer& c = normalizers[CHANNEL_OF(v)];
                    R x = values[k][v], d = c.grad(x, grads[k][v]);
                    R centered = TRAINING ? d - sum[CHANNEL_OF(v)] - c.normal(x) * dot[CHANNEL_OF(v)] : d;
                    values[k][v] = centered * c.scale * c.weight;
                }
                write_pack(dx + at[k], values[k]);
            }
    });
}
#endif
