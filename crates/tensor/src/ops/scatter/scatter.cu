// y[…, index[…, j, …], …] = combined(that, x[…, j, …]), where y holds what is there already.

#define EVERYONE 0xffffffffu
#define WARP 32

// y is made of lines along the indexed dimension. All other dimensions, the innermost first, with the distances of y, of
// the index and of x; where a line is beyond `limit`, the size of the index there, nothing is written to it.
struct Lines {
    u64 lines, rank;
    u64 size[MAX_RANK], limit[MAX_RANK], stride[MAX_RANK][3];
    u64 y_len, x_len, step[3]; // along the indexed dimension
};

// One warp per line. It takes 32 elements of x at a time, and the first thread of those that have the same index combines
// all of them: every element is combined in the order of x, as on the CPU.
#define SCATTER(name, combined)                                                                                            \
    extern "C" __global__ void name(O* y, const T* x, const i64* index, Fault* fault, u64 site, Lines g) {                \
        begin();                                                                                                           \
        u64 line = wide_thread_number() / WARP;                                                                            \
        u32 lane = threadIdx.x % WARP;                                                                                     \
        if (line >= g.lines) return;                                                                                       \
        for (u64 dim = 0; dim < g.rank; dim++) {                                                                           \
            u64 i = line % g.size[dim];                                                                                    \
            line /= g.size[dim];                                                                                           \
            if (i >= g.limit[dim]) return;                                                                                 \
            y += i * g.stride[dim][0], index += i * g.stride[dim][1], x += i * g.stride[dim][2];                           \
        }                                                                                                                  \
        for (u64 start = 0; start < g.x_len; start += WARP) {                                                              \
            __syncwarp(); /* what other threads wrote is seen */                                                           \
            u64 own = start + lane;                                                                                        \
            i64 at = own < g.x_len ? index[own * g.step[1]] : -1;                                                          \
            bool inside = own < g.x_len && exists(at, g.y_len, fault, site);                                               \
            u32 same = __match_any_sync(EVERYONE, at);                                                                     \
            if (!inside || lane != __ffs(same) - 1) continue;                                                              \
            R a = real(y[at * g.step[0]]);                                                                                 \
            for (u32 rest = same; rest != 0; rest &= rest - 1) {                                                           \
                R b = real(x[(start + __ffs(rest) - 1) * g.step[2]]);                                                      \
                a = combined;                                                                                              \
            }                                                                                                              \
            y[at * g.step[0]] = to<O>(a);                                                                                  \
        }                                                                                                                  \
    }

#ifdef KERNEL_scatter_last
SCATTER(scatter_last, b)
#endif
#ifdef KERNEL_scatter_prod
SCATTER(scatter_prod, times(a, b))
#endif
#ifdef KERNEL_scatter_amax
SCATTER(scatter_amax, a > b || is_nan(a) ? a : b)
#endif
#ifdef KERNEL_scatter_amin
SCATTER(scatter_amin, a < b || is_nan(a) ? a : b)
#endif

// ---- few long lines -------------------------------------------------------------------------------------------------
//
// All elements of x at once: each says at its place that it comes, of several the last one stays, and it alone writes.
//   last: for each element of y the number of the element of x that stays, from 1; 0 at first.

// Where element `own` of a line of x is, and where its line starts.
struct Element { u64 own, y, index, x; bool is_there; };
INLINE Element element_of(const Lines& g, u64 lines_first) {
    u64 id = wide_thread_number(), line = lines_first ? id % g.lines : id / g.x_len;
    Element e = {lines_first ? id / g.lines : id % g.x_len, 0, 0, 0, id < g.lines * g.x_len};
    for (u64 dim = 0; dim < g.rank; dim++) {
        u64 i = line % g.size[dim];
        line /= g.size[dim];
        if (i >= g.limit[dim]) e.is_there = false;
        e.y += i * g.stride[dim][0], e.index += i * g.stride[dim][1], e.x += i * g.stride[dim][2];
    }
    e.index += e.own * g.step[1], e.x += e.own * g.step[2];
    return e;
}

#ifdef KERNEL_note_last
extern "C" __global__ void note_last(u32* last, const i64* index, Fault* fault, u64 site, u64 lines_first, Lines g) {
    begin();
    Element e = element_of(g, lines_first);
    if (!e.is_there) return;
    i64 at = index[e.index];
    if (exists(at, g.y_len, fault, site)) atomicMax(&last[e.y + at * g.step[0]], u32(e.own + 1));
}
#endif
#ifdef KERNEL_write_last
extern "C" __global__ void write_last(O* y, const u32* last, const T* x, const i64* index, u64 lines_first, Lines g) {
    begin();
    Element e = element_of(g, lines_first);
    if (!e.is_there) return;
    i64 at = index[e.index];
    u64 place = e.y + at * g.step[0];
    if (u64(at) < g.y_len && last[place] == u32(e.own + 1)) y[place] = x[e.x];
}
#endif
