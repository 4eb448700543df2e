// Reading and adding at places that indices name. `index_select` is `gather` with an index that is the same along all
// dimensions but one.
//
// gather         y[…, j, …] = x[…, index[…, j, …], …]
// scatter_add    y[…, index[…, j, …], …] += x[…, j, …], from zeros: the transpose; `add_entries` does that for index_select

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

#ifdef KERNEL_add_entries
// `scatter_add` of contiguous x [outer, entries, inner] to y [outer, y_entries, inner], with one index for each entry.
//
// A warp has 32 neighboring elements of some entries of y: those whose number is `owner` modulo the number of warps of a
// column, a power of two. It looks at all indices and adds up what is for its entries, in the order of x, as on the CPU.
struct Entries { u64 y_entries, x_entries, inner; };
#define AT_ONCE 8

extern "C" __global__ void add_entries(O* y, const T* x, const i64* index, Fault* fault, u64 site, Entries g) {
    begin();
    u32 lane = threadIdx.x, owners = gridDim.y * blockDim.y, owner = blockIdx.y * blockDim.y + threadIdx.y;
    u64 columns = (g.inner + WARP - 1) / WARP, outer = blockIdx.x / columns, column = blockIdx.x % columns * WARP + lane;
    bool is_inside = column < g.inner;
    y += outer * g.y_entries * g.inner + column, x += outer * g.x_entries * g.inner + column;
    if (is_inside)
        for (u64 entry = owner; entry < g.y_entries; entry += owners) y[entry * g.inner] = to<O>(R(0));
    i64 entry = -1, ahead[AT_ONCE]; // entry: the one that `sum` is of
    R sum = 0;
    for (u64 start = 0; start < g.x_entries; start += WARP) {
        if (start / WARP % AT_ONCE == 0)
            #pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                u64 own = start + i * WARP + lane;
                ahead[i] = own < g.x_entries ? index[own] : -1;
            }
        i64 at = ahead[0];
        #pragma unroll
        for (int i = 1; i < AT_ONCE; i++) ahead[i - 1] = ahead[i];
        bool exists_here = start + lane < g.x_entries && u64(at) < g.y_entries;
        if (start + lane < g.x_entries && blockIdx.x == 0 && owner == 0) exists(at, g.y_entries, fault, site);
        u32 own = __ballot_sync(EVERYONE, exists_here && (u64(at) & (owners - 1)) == owner);
        while (own != 0) {
            i64 to_entry[AT_ONCE];
            R values[AT_ONCE];
            #pragma unroll
            for (int i = 0; i < AT_ONCE; i++, own &= own - 1) {
                u32 from = own != 0 ? __ffs(own) - 1 : 0;
                to_entry[i] = own != 0 ? __shfl_sync(EVERYONE, at, from) : -1;
                values[i] = own != 0 && is_inside ? real(x[(start + from) * g.inner]) : R(0);
            }
            #pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (to_entry[i] < 0) break;
                if (to_entry[i] != entry) {
                    if (entry >= 0 && is_inside) y[entry * g.inner] = to<O>(sum);
                    entry = to_entry[i];
                    sum = is_inside ? real(y[entry * g.inner]) : R(0);
                }
                sum = rounded(plus(sum, values[i]));
            }
        }
    }
    if (entry >= 0 && is_inside) y[entry * g.inner] = to<O>(sum);
}
#endif
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
// The same with a block of one warp, whose sums are in shared memory until the line is done. It asks for AHEAD · 32 elements
// before it waits for the first.
#define AHEAD 4
extern __shared__ R sums[];
extern "C" __global__ void scatter_add_shared(O* y, const T* x, const i64* index, Fault* fault, u64 site, Lines g) {
    begin();
    u32 lane = threadIdx.x;
    bool has_source = find_line(g, blockIdx.x, y, index, x);
    for (u64 i = lane; i < g.y_len; i += WARP) sums[i] = R(0);
    for (u64 start = 0; has_source && start < g.x_len; start += AHEAD * WARP) {
        i64 at[AHEAD];
        R values[AHEAD];
        #pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            u64 own = start + k * WARP + lane;
            at[k] = own < g.x_len ? index[own * g.step[1]] : -1;
            values[k] = own < g.x_len ? real(x[own * g.step[2]]) : R(0);
        }
        #pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            __syncwarp(); // what other threads wrote is seen
            u64 first = start + k * WARP;
            bool inside = first + lane < g.x_len && exists(at[k], g.y_len, fault, site);
            u32 same = __match_any_sync(EVERYONE, at[k]);
            if (!inside || lane != __ffs(same) - 1) continue;
            R sum = rounded(plus(sums[at[k]], values[k]));
            for (u32 rest = same & (same - 1); rest != 0; rest &= rest - 1)
                sum = rounded(plus(sum, real(x[(first + __ffs(rest) - 1) * g.step[2]])));
            sums[at[k]] = sum;
        }
    }
    __syncwarp();
    for (u64 i = lane; i < g.y_len; i += WARP) y[i * g.step[0]] = to<O>(sums[i]);
}
#endif
