// Rows of contiguous [rows, n]. A row has LANES threads (a power of two: part of a warp, or whole warps), a block has
// blockDim.y rows. A thread takes packs of V elements, LANES packs apart. It keeps PACKS of them in registers, so
// that memory is read once. If PACKS is 0, it takes any number of packs, and reads them again each time.
//
// `rows.rs` defines LANES, PACKS and V in front of this and of `packs.cu`. V divides n, and all rows are aligned to
// packs.
//
// A "row" may also be a column of [n, inner]: its elements have the stride `apart` = inner, and LANES and V are 1.

#define MAX_WARPS 32
#define KEPT (PACKS > 0 ? PACKS : 1)

// Combines the values of all threads of a row; all of them get the result. The calls in a kernel differ in SLOT, so
// that each has shared memory of its own, and none overwrites what another has not read yet.
template <int SLOT, typename Combine> INLINE R of_row(R x, Combine combine) {
    constexpr u32 warps = LANES > WARP ? LANES / WARP : 1;
    #pragma unroll
    for (u32 other = LANES < WARP ? LANES / 2 : WARP / 2; other > 0; other /= 2) x = combine(x, from_lane(x, other));
    if constexpr (warps == 1) return x;
    __shared__ R parts[MAX_WARPS];
    u32 first = threadIdx.y * warps;
    if (threadIdx.x % WARP == 0) parts[first + threadIdx.x / WARP] = x;
    __syncthreads();
    x = parts[first];
    #pragma unroll
    for (u32 warp = 1; warp < warps; warp++) x = combine(x, parts[first + warp]);
    return x;
}
template <int SLOT> INLINE R sum_of_row(R x) { return of_row<SLOT>(x, [](R a, R b) { return a + b; }); }

// Two sums at once, with a single synchronization.
template <int SLOT> INLINE void sums_of_row(R (&x)[2]) {
    constexpr u32 warps = LANES > WARP ? LANES / WARP : 1;
    #pragma unroll
    for (u32 other = LANES < WARP ? LANES / 2 : WARP / 2; other > 0; other /= 2)
        for (int k = 0; k < 2; k++) x[k] += from_lane(x[k], other);
    if constexpr (warps == 1) return;
    __shared__ R parts[2][MAX_WARPS];
    u32 first = threadIdx.y * warps;
    if (threadIdx.x % WARP == 0)
        for (int k = 0; k < 2; k++) parts[k][first + threadIdx.x / WARP] = x[k];
    __syncthreads();
    for (int k = 0; k < 2; k++) {
        x[k] = parts[k][first];
        #pragma unroll
        for (u32 warp = 1; warp < warps; warp++) x[k] += parts[k][first + warp];
    }
}

// The row of this thread, or the last row if there are no more.
INLINE u64 row_number(u64 rows) { return min(u64(blockIdx.x) * blockDim.y + threadIdx.y, rows - 1); }

// Calls visit(p, i) for each pack of this thread: number p of those that it keeps, elements i to i + V of the row.
template <typename Visit> INLINE void each_pack(u32 n, Visit visit) {
    u32 i = threadIdx.x * V;
    #pragma unroll
    for (int p = 0; p < PACKS; p++, i += LANES * V)
        if (i < n) visit(p, i);
    if constexpr (PACKS == 0)
        for (; i < n; i += LANES * V) visit(0, i);
}

// The packs of a row that a thread has.
template <typename Type> struct Row {
    const Type* x;
    u64 apart;
    R kept[KEPT][V];

    __device__ __forceinline__ Row(const Type* x, u32 n, u64 apart = 1) : x(x), apart(apart) {
        if constexpr (PACKS > 0) each_pack(n, [&](int p, u32 i) { read_pack(x + i * apart, kept[p]); });
    }
    // The pack for which `each_pack` calls visit(p, i).
    __device__ __forceinline__ const R (&pack(int p, u32 i))[V] {
        if constexpr (PACKS == 0) read_pack(x + i * apart, kept[0]);
        return kept[p];
    }
    template <typename Visit> __device__ __forceinline__ void each(u32 n, Visit visit) {
        each_pack(n, [&](int p, u32 i) {
            const R (&pack)[V] = this->pack(p, i);
            #pragma unroll
            for (int v = 0; v < V; v++) visit(pack[v]);
        });
    }
};

#define KERNEL extern "C" __global__ void __launch_bounds__(LANES < 128 ? 128 : LANES)
