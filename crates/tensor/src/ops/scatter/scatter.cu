// y[…, index[…, j, …], …] = combination of its value so far and x[…, j, …].

// One warp per line. A warp takes 32 elements of x at a time, and the first of the threads with equal indices combines
// all their elements. So elements are combined in the order of x, as on the CPU.
template <typename Combination>
INLINE void scatter_lines(O* y, const T* x, const i64* index, Fault* fault, u64 site, const Lines& g) {
    u64 line = wide_thread_number() / WARP;
    u32 lane = threadIdx.x % WARP;
    if (line >= g.lines) return;
    find_line(g, line, y, index, x);
    for (u64 start = 0; start < g.x_len; start += WARP) {
        __syncwarp(); // makes the writes of other threads visible
        u64 own = start + lane;
        i64 at = own < g.x_len ? index[own * g.step[1]] : -1;
        bool inside = own < g.x_len && exists(at, g.y_len, fault, site);
        u32 same = __match_any_sync(EVERYONE, at);
        if (!inside || lane != __ffs(same) - 1) continue;
        R a = real(y[at * g.step[0]]);
        for (u32 rest = same; rest != 0; rest &= rest - 1)
            a = Combination::of(a, real(x[(start + __ffs(rest) - 1) * g.step[2]]));
        y[at * g.step[0]] = to<O>(a);
    }
}
#define SCATTER(name, Combination)                                                                                     \
    extern "C" __global__ void name(O* y, const T* x, const i64* index, Fault* fault, u64 site, Lines g) {             \
        begin();                                                                                                       \
        scatter_lines<Combination>(y, x, index, fault, site, g);                                                       \
    }

#ifdef KERNEL_scatter_last
SCATTER(scatter_last, Last)
#endif
#ifdef KERNEL_scatter_sum
SCATTER(scatter_sum, Sum)
#endif
#ifdef KERNEL_scatter_prod
SCATTER(scatter_prod, Product)
#endif
#ifdef KERNEL_scatter_amax
SCATTER(scatter_amax, Largest)
#endif
#ifdef KERNEL_scatter_amin
SCATTER(scatter_amin, Smallest)
#endif

#ifdef KERNEL_scatter_sum_shared
// Sums from zeros. A block is one warp, whose sums are in shared memory until its line is done. While it adds up
// AHEAD · 32 elements, it loads the next ones. Matching indices takes most of the time, so a warp skips it if all 32
// are different (`any_equal`).
#define AHEAD 8
#define NOWHERE 0xffffffffu
extern __shared__ R sums[];

// Whether two threads have the same index. Each thread writes its number to sums[at], and one of the two reads the
// other's number. These sums are overwritten.
INLINE bool any_equal(u32 at, bool inside) {
    if constexpr (sizeof(R) < 4) return true; // too small for an atomic write
    R number = R(threadIdx.x);
    if constexpr (sizeof(R) == 8) { if (inside) atomicExch(reinterpret_cast<u64*>(&sums[at]), *reinterpret_cast<u64*>(&number)); }
    else if (inside) atomicExch(reinterpret_cast<u32*>(&sums[at]), *reinterpret_cast<u32*>(&number));
    __syncwarp();
    return __any_sync(EVERYONE, inside && sums[at] != number);
}

// The AHEAD elements that a thread loads at once.
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

extern "C" __global__ void __launch_bounds__(32) scatter_sum_shared(
    O* y, const T* x, const i64* index, Fault* fault, u64 site, Lines g) {
    begin();
    u32 lane = threadIdx.x;
    find_line(g, blockIdx.x, y, index, x);
    u64 n = g.x_len;
    Part next, part;
    next.read(index, x, 0, g);
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
            __syncwarp(); // makes the writes of other threads visible
            R sum = inside ? sums[at] : R(0);
            __syncwarp();
            u32 same = any_equal(at, inside) ? __match_any_sync(EVERYONE, at) : 1u << lane;
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

// ---- a thread for each element of x ---------------------------------------------------------------------------------
//
// If several elements may have one index, `note_last` keeps the largest of their numbers in `last`, and `write_last`
// writes only the element with that number.
//   last: for each element of y, or with ONE_INDEX (all lines have the same index) of one line of y, the number of
//         the element of x to write, counted from 1; 0 at first.

#ifdef KERNEL_note_last
// With ONE_INDEX, g has one line.
extern "C" __global__ void note_last(u32* last, const i64* index, Fault* fault, u64 site, u64 lines_first, Lines g) {
    begin();
    Element e = element_of(g, lines_first);
    if (!e.is_inside) return;
    i64 at = index[e.index];
    if (exists(at, g.y_len, fault, site)) atomicMax(&last[ONE_INDEX ? at : e.y + at * g.step[0]], u32(e.number + 1));
}
#endif
#ifdef KERNEL_write_last
extern "C" __global__ void write_last(O* y, const u32* last, const T* x, const i64* index, u64 lines_first, Lines g) {
    begin();
    Element e = element_of(g, lines_first);
    if (!e.is_inside) return;
    i64 at = index[e.index];
    u64 place = e.y + at * g.step[0];
    if (u64(at) < g.y_len && last[ONE_INDEX ? at : place] == u32(e.number + 1)) y[place] = x[e.x];
}
#endif

#ifdef KERNEL_write_once
// For indices without duplicates.
extern "C" __global__ void write_once(O* y, const T* x, const i64* index, Fault* fault, u64 site, u64 lines_first, Lines g) {
    begin();
    Element e = element_of(g, lines_first);
    if (!e.is_inside) return;
    i64 at = index[e.index];
    if (exists(at, g.y_len, fault, site)) y[e.y + at * g.step[0]] = x[e.x];
}
#endif
