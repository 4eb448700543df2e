// The places of the true elements of a mask, in order. A block has a tile of the mask; a warp reads adjacent elements
// of it, 32 at a time.
//
// count_true    counts[tile] = how many are true
// places        y = the places; ends[tile] = how many were true up to the end of the tile
// spread        y = elements, one after another, at the places

#define WARP 32
#define EVERYONE 0xffffffffu
#define THREADS 256
// Elements per thread.
#define ITEMS 16
#define TILE (THREADS * ITEMS)

// Which of the 32 elements in round `j` of this warp are true.
INLINE u32 truths(const bool* mask, u64 n, u32 j) {
    u64 i = u64(blockIdx.x) * TILE + (threadIdx.x / WARP * ITEMS + j) * WARP + threadIdx.x % WARP;
    return __ballot_sync(EVERYONE, i < n && mask[i]);
}

// Finds the truths of all rounds, and returns the number of true elements before this warp.
INLINE u64 find_truths(const bool* mask, const i64* ends, u64 n, u32 (&truth)[ITEMS]) {
    u32 own = 0, total;
    #pragma unroll
    for (u32 j = 0; j < ITEMS; j++) truth[j] = truths(mask, n, j), own += __popc(truth[j]);
    u32 before = __shfl_sync(EVERYONE, exclusive_sum<THREADS>(threadIdx.x % WARP == 0 ? own : 0, total), 0);
    return (blockIdx.x > 0 ? ends[blockIdx.x - 1] : 0) + before;
}

#ifdef KERNEL_count_true
extern "C" __global__ void __launch_bounds__(THREADS) count_true(i64* counts, const bool* mask, u64 n) {
    begin();
    u32 own = 0, total;
    #pragma unroll
    for (u32 j = 0; j < ITEMS; j++) own += __popc(truths(mask, n, j));
    exclusive_sum<THREADS>(threadIdx.x % WARP == 0 ? own : 0, total);
    if (threadIdx.x == 0) counts[blockIdx.x] = total;
}
#endif
#ifdef KERNEL_places
// A block writes y[ends[tile - 1] .. ends[tile]], and no other element. Another thread of the program may have changed
// the mask since `count_true`: places beyond that range are dropped, and zeros stand for those that are missing.
extern "C" __global__ void __launch_bounds__(THREADS) places(i64* y, const bool* mask, const i64* ends, u64 n) {
    begin();
    u32 lane = threadIdx.x % WARP, truth[ITEMS];
    u64 at = find_truths(mask, ends, n, truth), end = ends[blockIdx.x];
    u64 first = u64(blockIdx.x) * TILE + threadIdx.x / WARP * ITEMS * WARP + lane;
    for (u32 j = 0; j < ITEMS; j++) {
        u64 to = at + __popc(truth[j] & ((1u << lane) - 1));
        if ((truth[j] >> lane & 1) && to < end) y[to] = first + j * WARP;
        at += __popc(truth[j]);
    }
    if (threadIdx.x / WARP < THREADS / WARP - 1) return;
    for (u64 i = at + lane; i < end; i += WARP) y[i] = 0; // the last warp: `at` is behind all places of the block
}
#endif
#ifdef KERNEL_spread
// y[i] = mask[i] ? the next of n_source elements : x[i], or 0 without x.
extern "C" __global__ void __launch_bounds__(THREADS) spread(
    T* y, const T* x, u64 has_x, const T* source, const bool* mask, const i64* ends, Fault* fault, u64 site, u64 n, u64 n_source) {
    begin();
    u32 lane = threadIdx.x % WARP, truth[ITEMS];
    u64 next = find_truths(mask, ends, n, truth);
    u64 first = u64(blockIdx.x) * TILE + threadIdx.x / WARP * ITEMS * WARP + lane;
    #pragma unroll 4
    for (u32 j = 0; j < ITEMS; j++) {
        u64 i = first + j * WARP, from = next + __popc(truth[j] & ((1u << lane) - 1));
        if (i >= n) break;
        if (!(truth[j] >> lane & 1)) y[i] = has_x ? x[i] : to<T>(R(0));
        else y[i] = exists(from, n_source, fault, site) ? source[from] : missing_value();
        next += __popc(truth[j]);
    }
}
#endif
