// Elements combined by their indices where lines are few and long: once indices are sorted, those that have one are neighbors.
//
// keys_of_index       keys[line, j] = index[…, j, …], or y_len where there is no such element
// combine_sum, …      y[…, key, …] = combined(that, all x with this key), in an order that their number alone decides

#ifdef KERNEL_keys_of_index
extern "C" __global__ void keys_of_index(u32* keys, const i64* index, Fault* fault, u64 site, Lines g) {
    begin();
    Element e = element_of(g, false);
    if (!e.is_there) return;
    i64 at = index[e.index];
    keys[wide_thread_number()] = exists(at, g.y_len, fault, site) ? u32(at) : u32(g.y_len);
}
#endif

// So many of one key are combined by the thread of the first of them, in the order of x, and more by its warp.
#define FEW 32

// The first place from `low` on whose key is larger; keys are in order.
INLINE u64 end_of(const u32* keys, u32 key, u64 low, u64 high) {
    while (low < high) {
        u64 middle = low + (high - low) / 2;
        if (keys[middle] > key) high = middle;
        else low = middle + 1;
    }
    return low;
}

// A line of y and of x, and what is sorted in it.
struct Line { O* y; const T* x; const u32* places; };
INLINE Line line_at(O* y, const T* x, const u32* places, u64 line, const Lines& g) {
    const i64* no_index = nullptr;
    places += line * g.x_len;
    find_line(g, line, y, no_index, x);
    return {y, x, places};
}

template <typename How> INLINE void combine(O* y, const T* x, const u32* keys, const u32* places, const Lines& g) {
    u64 id = wide_thread_number(), line = id / g.x_len, line_end = (line + 1) * g.x_len, end = id;
    u32 lane = threadIdx.x % WARP, key = id < g.lines * g.x_len ? keys[id] : u32(g.y_len);
    if (key < g.y_len && (id == line * g.x_len || keys[id - 1] != key)) {
        end = id + 1;
        while (end < line_end && end - id <= FEW && keys[end] == key) end++;
        if (end - id > FEW) end = end_of(keys, key, end, line_end);
    }
    bool is_first = end > id, are_many = end - id > FEW;
    if (is_first && !are_many) {
        Line at = line_at(y, x, places, line, g);
        R a = real(at.y[key * g.step[0]]);
        for (u64 j = id - line * g.x_len; j < end - line * g.x_len; j++) a = How::of(a, real(at.x[at.places[j] * g.step[2]]));
        at.y[key * g.step[0]] = to<O>(a);
    }
    for (u32 rest = __ballot_sync(EVERYONE, are_many); rest != 0; rest &= rest - 1) {
        u32 from = __ffs(rest) - 1, of_key = __shfl_sync(EVERYONE, key, from);
        u64 of_line = __shfl_sync(EVERYONE, line, from), first = __shfl_sync(EVERYONE, id, from) - of_line * g.x_len;
        u64 many_end = __shfl_sync(EVERYONE, end, from) - of_line * g.x_len;
        Line at = line_at(y, x, places, of_line, g);
        R a = real(at.x[at.places[first + lane] * g.step[2]]);
        #pragma unroll 8
        for (u64 j = first + lane + WARP; j < many_end; j += WARP) a = How::of(a, real(at.x[at.places[j] * g.step[2]]));
        #pragma unroll
        for (u32 step = WARP / 2; step > 0; step /= 2) a = How::of(a, R(__shfl_down_sync(EVERYONE, a, step)));
        O* there = &at.y[of_key * g.step[0]];
        if (lane == 0) *there = to<O>(How::of(real(*there), a));
    }
}
#define COMBINE(name, How)                                                                                                 \
    extern "C" __global__ void name(O* y, const T* x, const u32* keys, const u32* places, Lines g) {                      \
        begin();                                                                                                           \
        combine<How>(y, x, keys, places, g);                                                                               \
    }

#ifdef KERNEL_combine_sum
COMBINE(combine_sum, Sum)
#endif
#ifdef KERNEL_combine_prod
COMBINE(combine_prod, Product)
#endif
#ifdef KERNEL_combine_amax
COMBINE(combine_amax, Largest)
#endif
#ifdef KERNEL_combine_amin
COMBINE(combine_amin, Smallest)
#endif
