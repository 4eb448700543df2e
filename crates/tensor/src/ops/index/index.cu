// Reading and adding at places that indices name. `index_select` is `gather` with an index that is the same along all
// dimensions but one; `entries.cu` has kernels for that where nothing has gaps.
//
// gather         y[…, j, …] = x[…, index[…, j, …], …]
// scatter_add    y[…, index[…, j, …], …] += x[…, j, …], from zeros: the transpose

// A thread has PER_THREAD elements of y, a block apart, and asks for all of them before it waits for the first. The walk is over
// y, the index, and x without what the index says.
#define PER_THREAD 4
template <typename Number, typename AnyWalk>
INLINE void gather_elements(O* y, const T* x, const i64* index, const AnyWalk& walk, u64 size, u64 stride, Fault* fault, u64 site) {
    Number first = Number(blockIdx.x) * blockDim.x * PER_THREAD + threadIdx.x;
    Number at[PER_THREAD][3];
    i64 entry[PER_THREAD];
    T found[PER_THREAD];
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        Number i = first + k * blockDim.x;
        if (i >= walk.n) continue;
        positions(walk, i, at[k]);
        entry[k] = index[at[k][1]];
    }
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++)
        if (first + k * blockDim.x < walk.n)
            found[k] = exists(entry[k], size, fault, site) ? x[at[k][2] + entry[k] * stride] : nothing();
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++)
        if (first + k * blockDim.x < walk.n) y[at[k][0]] = found[k];
}
#ifdef KERNEL_gather
extern "C" __global__ void gather(O* y, const T* x, const i64* index, Fault* fault, u64 site, u64 size, u64 stride, Walk walk) {
    begin();
    gather_elements<u32>(y, x, index, walk, size, stride, fault, site);
}
#endif
#ifdef KERNEL_wide_gather
extern "C" __global__ void wide_gather(O* y, const T* x, const i64* index, Fault* fault, u64 site, u64 size, u64 stride, WideWalk walk) {
    begin();
    gather_elements<u64>(y, x, index, walk, size, stride, fault, site);
}
#endif

#define EVERYONE 0xffffffffu
#define WARP 32

#if defined(KERNEL_scatter_add) || defined(KERNEL_scatter_add_shared)
// y is made of lines along the indexed dimension. All other dimensions, the innermost first, with the distances of y, of
// the index and of x; where a line is beyond `limit`, the size of the index there, nothing is added to it.
struct Lines {
    u64 lines, rank;
    u64 size[MAX_RANK], limit[MAX_RANK], stride[MAX_RANK][3];
    u64 y_len, x_len, step[3]; // along the indexed dimension
};

// Moves to a line; whether anything is added to it.
INLINE bool find_line(const Lines& g, u64 line, O*& y, const i64*& index, const T*& x) {
    bool has_source = true;
    for (u64 dim = 0; dim < g.rank; dim++) {
        u64 i = line % g.size[dim];
        line /= g.size[dim];
        has_source = has_source && i < g.limit[dim];
        y += i * g.stride[dim][0], index += i * g.stride[dim][1], x += i * g.stride[dim][2];
    }
    return has_source;
}
#endif
#ifdef KERNEL_scatter_add
// One warp per line. It takes 32 elements of x at a time, and the first thread of those that have the same index adds up
// all of them: every sum is added up in the order of x, as on the CPU.
extern "C" __global__ void scatter_add(O* y, const T* x, const i64* index, Fault* fault, u64 site, Lines g) {
    begin();
    u64 line = wide_thread_number() / WARP;
    u32 lane = threadIdx.x % WARP;
    if (line >= g.lines) return;
    bool has_source = find_line(g, line, y, index, x);
    for (u64 i = lane; i < g.y_len; i += WARP) y[i * g.step[0]] = to<O>(R(0));
    if (!has_source) return;
    for (u64 start = 0; start < g.x_len; start += WARP) {
        __syncwarp(); // what other threads wrote is seen
        u64 own = start + lane;
        i64 at = own < g.x_len ? index[own * g.step[1]] : -1;
        bool inside = own < g.x_len && exists(at, g.y_len, fault, site);
        u32 same = __match_any_sync(EVERYONE, at);
        if (!inside || lane != __ffs(same) - 1) continue;
        R sum = real(y[at * g.step[0]]);
        for (u32 rest = same; rest != 0; rest &= rest - 1)
            sum = rounded(plus(sum, real(x[(start + __ffs(rest) - 1) * g.step[2]])));
        y[at * g.step[0]] = to<O>(sum);
    }
}
#endif
#ifdef KERNEL_scatter_add_shared
// The same with a block of one warp, whose sums are in shared memory until the line is done. While it adds up AHEAD · 32 elements,
// it waits for as many others. Comparing indices takes longer than all else, so it is left out where all 32 are different.
#define AHEAD 8
#define NOWHERE 0xffffffffu
extern __shared__ R sums[];

// Whether two threads have the same place. What is there is lost: all write their numbers, and one of the two finds the other's.
INLINE bool any_meet(u32 at, bool inside) {
    if constexpr (sizeof(R) < 4) return true; // too small to be written at once
    R number = R(threadIdx.x);
    if constexpr (sizeof(R) == 8) { if (inside) atomicExch(reinterpret_cast<u64*>(&sums[at]), *reinterpret_cast<u64*>(&number)); }
    else if (inside) atomicExch(reinterpret_cast<u32*>(&sums[at]), *reinterpret_cast<u32*>(&number));
    __syncwarp();
    return __any_sync(EVERYONE, inside && sums[at] != number);
}

// What a thread has of AHEAD · 32 elements.
struct Part {
    i64 at[AHEAD];
    T x[AHEAD];
    __device__ __forceinline__ void read(const i64* index, const T* from, u64 start, const Lines& g) {
        #pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            u64 own = start + k * WARP + threadIdx.x;
            if (own < g.x_len) at[k] = index[own * g.step[1]], x[k] = from[own * g.step[2]];
        }
    }
};

extern "C" __global__ void __launch_bounds__(32) scatter_add_shared(
    O* y, const T* x, const i64* index, Fault* fault, u64 site, Lines g) {
    begin();
    u32 lane = threadIdx.x;
    bool has_source = find_line(g, blockIdx.x, y, index, x);
    u64 n = has_source ? g.x_len : 0;
    Part next, part;
    if (n > 0) next.read(index, x, 0, g);
    for (u64 i = lane; i < g.y_len; i += WARP) sums[i] = R(0);
    for (u64 start = 0; start < n; start += AHEAD * WARP) {
        part = next;
        if (start + AHEAD * WARP < n) next.read(index, x, start + AHEAD * WARP, g);
        #pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            u64 first = start + k * WARP;
            bool inside = first + lane < n && exists(part.at[k], g.y_len, fault, site);
            u32 at = inside ? u32(part.at[k]) : NOWHERE;
            R value = real(part.x[k]);
            __syncwarp(); // what other threads wrote is seen
            R sum = inside ? sums[at] : R(0);
            __syncwarp();
            u32 same = any_meet(at, inside) ? __match_any_sync(EVERYONE, at) : 1u << lane;
            if (!inside || lane != __ffs(same) - 1) continue;
            sum = rounded(plus(sum, value));
            for (u32 rest = same & (same - 1); rest != 0; rest &= rest - 1)
                sum = rounded(plus(sum, real(x[(first + __ffs(rest) - 1) * g.step[2]])));
            sums[at] = sum;
        }
    }
    __syncwarp();
    for (u64 i = lane; i < g.y_len; i += WARP) y[i * g.step[0]] = to<O>(sums[i]);
}
#endif
