// y[k] = finish(lift(x[k, 0]) + lift(x[k, 1]) + …), where + is `combine`.   x: T, y: O, for K kept and N reduced positions.
//
// `reduce.rs` writes in front of this: A, the accumulator; identity(), add(A&, R x, u64 i), combine(A, A) and finish(A, …);
// CONSTANTS, a `u64` parameter for each constant of `finish`, ARGUMENTS, their names, and FINISH(total), which uses them.
//
// A block of 256 threads has `lanes` threads for each of 256 / lanes kept positions. If neighbors in memory are
// different kept positions (`in_columns`), so are neighboring threads. Each thread takes every `lanes`-th reduced
// position of its segment; then halves of the threads are combined. Grid: blocks of kept positions × segments. With
// several segments, partial results go to `partial`, and `finish_segments` combines them. The order depends on sizes
// alone.

#define THREADS 256
// Elements of a pack: 16 bytes, unless accumulators would not fit into shared memory.
#define V int(16 / sizeof(T) < 128 / sizeof(A) ? 16 / sizeof(T) : 128 / sizeof(A))

// Adds a pack of one result to EACH accumulators, unless the reduction defines its own function for this.
#ifndef EACH
#define EACH V
INLINE void add_pack(A (&each)[EACH], const Pack<T, V>& pack, u64 i) {
    for (int v = 0; v < V; v++) add(each[v], real(pack.at[v]), i * V + v);
}
#endif

struct ThreadLane {
    u32 kept_lane;
    u32 reduced_lane;
    u32 step; // from a thread to the one for the next reduced position
};

INLINE ThreadLane thread_lane(u32 lanes, bool in_columns) {
    u32 across = THREADS / lanes;
    ThreadLane here;
    here.kept_lane = in_columns ? threadIdx.x % across : threadIdx.x / lanes;
    here.reduced_lane = in_columns ? threadIdx.x / across : threadIdx.x % lanes;
    here.step = in_columns ? across : 1;
    return here;
}

// Combines the accumulators of the threads of one kept position. The thread in lane 0 gets the result.
template <int COUNT> INLINE void combine_lanes(A (&total)[COUNT], ThreadLane here, u32 lanes) {
    __shared__ A shared[COUNT][THREADS];
    for (int v = 0; v < COUNT; v++) shared[v][threadIdx.x] = total[v];
    for (u32 half = lanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (here.reduced_lane < half)
            for (int v = 0; v < COUNT; v++)
                shared[v][threadIdx.x] = combine(shared[v][threadIdx.x], shared[v][threadIdx.x + half * here.step]);
    }
    for (int v = 0; v < COUNT; v++) total[v] = shared[v][threadIdx.x];
}

// The first of `n` positions that a segment has.
INLINE u64 segment_start(u64 n, u32 segment) { return n / gridDim.y * segment + min(u64(segment), n % gridDim.y); }

INLINE void store(CONSTANTS O* y, A* partial, u64 k, A total) {
    if (gridDim.y > 1) partial[k * gridDim.y + blockIdx.y] = total;
    else y[k] = FINISH(total);
}

// Any strides.
template <typename Index, typename Positions>
INLINE void reduce(CONSTANTS O* y, A* partial, const T* x, const Positions& kept, const Positions& reduced, u32 lanes,
                   bool in_columns) {
    ThreadLane here = thread_lane(lanes, in_columns);
    u64 k = u64(blockIdx.x) * (THREADS / lanes) + here.kept_lane;
    A total[1] = {identity()};
    if (k < kept.n) {
        Index base[1], at[1];
        positions(kept, Index(k), base);
        u64 end = segment_start(reduced.n, blockIdx.y + 1);
        #pragma unroll 4
        for (u64 i = segment_start(reduced.n, blockIdx.y) + here.reduced_lane; i < end; i += lanes) {
            positions(reduced, Index(i), at);
            add(total[0], real(x[base[0] + at[0]]), i);
        }
    }
    combine_lanes(total, here, lanes);
    if (k < kept.n && here.reduced_lane == 0) store(ARGUMENTS y, partial, k, total[0]);
}

#ifdef KERNEL_any
extern "C" __global__ void any(CONSTANTS O* y, A* partial, const T* x, Indexing kept, Indexing reduced, u32 lanes,
                               u32 in_columns) {
    begin();
    reduce<u32>(ARGUMENTS y, partial, x, kept, reduced, lanes, in_columns);
}
#endif

#ifdef KERNEL_wide
extern "C" __global__ void wide(CONSTANTS O* y, A* partial, const T* x, WideIndexing kept, WideIndexing reduced,
                                u32 lanes, u32 in_columns) {
    begin();
    reduce<u64>(ARGUMENTS y, partial, x, kept, reduced, lanes, in_columns);
}
#endif

// The innermost reduced dimension is contiguous: `reduced` indexes packs.
#ifdef KERNEL_rows
extern "C" __global__ void rows(CONSTANTS O* y, A* partial, const T* x, Indexing kept, Indexing reduced, u32 lanes,
                                u32 in_columns) {
    begin();
    ThreadLane here = thread_lane(lanes, false);
    u32 k = blockIdx.x * (THREADS / lanes) + here.kept_lane;
    A total[1] = {identity()};
    if (k < kept.n) {
        A each[EACH];
        for (int e = 0; e < EACH; e++) each[e] = identity();
        u32 base[1], at[1];
        positions(kept, k, base);
        u32 end = segment_start(reduced.n, blockIdx.y + 1);
        #pragma unroll 4
        for (u32 i = segment_start(reduced.n, blockIdx.y) + here.reduced_lane; i < end; i += lanes) {
            positions(reduced, i, at);
            Pack<T, V> pack = *reinterpret_cast<const Pack<T, V>*>(x + base[0] + at[0]);
            add_pack(each, pack, i);
        }
        for (int half = EACH / 2; half > 0; half /= 2)
            for (int e = 0; e < half; e++) each[e] = combine(each[e], each[e + half]);
        total[0] = each[0];
    }
    combine_lanes(total, here, lanes);
    if (k < kept.n && here.reduced_lane == 0) store(ARGUMENTS y, partial, k, total[0]);
}
#endif

// The innermost kept dimension is contiguous: `kept` indexes packs, and each thread has the sums of one.
#ifdef KERNEL_columns
extern "C" __global__ void columns(CONSTANTS O* y, A* partial, const T* x, Indexing kept, Indexing reduced, u32 lanes,
                                   u32 in_columns) {
    begin();
    ThreadLane here = thread_lane(lanes, true);
    u32 k = blockIdx.x * (THREADS / lanes) + here.kept_lane;
    A total[V];
    for (int v = 0; v < V; v++) total[v] = identity();
    if (k < kept.n) {
        u32 base[1], at[1];
        positions(kept, k, base);
        u32 end = segment_start(reduced.n, blockIdx.y + 1);
        #pragma unroll 4
        for (u32 i = segment_start(reduced.n, blockIdx.y) + here.reduced_lane; i < end; i += lanes) {
            positions(reduced, i, at);
            Pack<T, V> pack = *reinterpret_cast<const Pack<T, V>*>(x + base[0] + at[0]);
            for (int v = 0; v < V; v++) add(total[v], real(pack.at[v]), i);
        }
    }
    combine_lanes(total, here, lanes);
    if (k < kept.n && here.reduced_lane == 0)
        for (int v = 0; v < V; v++) store(ARGUMENTS y, partial, u64(k) * V + v, total[v]);
}
#endif

// y[k] = finish(partial[k, 0] + …) over `segments`.   32 threads for each k, 8 to a block.
#ifdef KERNEL_finish_segments
extern "C" __global__ void finish_segments(CONSTANTS O* y, const A* partial, u64 n, u32 segments) {
    begin();
    ThreadLane here = thread_lane(32, false);
    u64 k = u64(blockIdx.x) * (THREADS / 32) + here.kept_lane;
    A total[1] = {identity()};
    if (k < n)
        for (u32 s = here.reduced_lane; s < segments; s += 32)
            total[0] = combine(total[0], partial[k * segments + s]);
    combine_lanes(total, here, 32);
    if (k < n && here.reduced_lane == 0) y[k] = FINISH(total[0]);
}
#endif
