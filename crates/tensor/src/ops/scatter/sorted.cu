// Elements combined by their indices where lines are few and long: once indices are sorted, those that have one are neighbors.
//
// keys_of_index       keys[line, j] = index[…, j, …], or y_len where there is no such element
// combine_sum, …      y[…, key, …] = combined(that, all x with this key), in an order that places of keys alone decide
// join_sum, …         the same for what combine_… leaves in several pieces

#ifdef KERNEL_keys_of_index
extern "C" __global__ void keys_of_index(u32* keys, const i64* index, Fault* fault, u64 site, Lines g) {
    begin();
    Element e = element_of(g, false);
    if (!e.is_there) return;
    i64 at = index[e.index];
    keys[wide_thread_number()] = exists(at, g.y_len, fault, site) ? u32(at) : u32(g.y_len);
}
#endif

// A line is cut into pieces of this many places, so that no warp has more of one key.
#define PIECE 1024
// As many of one key are combined by the thread of the first of them, and more by its warp.
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

// The element of y with that key.
INLINE O* element_at(O* y, const Lines& g, u64 line, u32 key) {
    const i64* index = nullptr;
    const T* x = nullptr;
    find_line(g, line, y, index, x);
    return y + key * g.step[0];
}

// The line of x.
INLINE const T* line_of(const T* x, const Lines& g, u64 line) {
    const i64* index = nullptr;
    O* y = nullptr;
    find_line(g, line, y, index, x);
    return x;
}

// What all lanes have, combined in one order.
template <typename How> INLINE R of_warp(R a) {
    #pragma unroll
    for (u32 step = WARP / 2; step > 0; step /= 2) a = How::of(a, R(__shfl_down_sync(EVERYONE, a, step)));
    return a;
}

// Where a part of what has one key is in a line: from `first` to `end`, which are in one piece.
struct Part { u64 line, first, end; u32 key; };

// The element of y gets what is all in one piece. Of longer ones each piece keeps its part, in `begun` if it has the first one, else
// in `going_on`.
template <typename How> INLINE void write_part(O* y, R* begun, R* going_on, const u32* keys, const Part& part, R a, const Lines& g) {
    u64 pieces = (g.x_len + PIECE - 1) / PIECE, piece = part.line * pieces + part.first / PIECE;
    keys += part.line * g.x_len;
    bool goes_on = part.end % PIECE == 0 && part.end < g.x_len && keys[part.end] == part.key;
    if (part.first > 0 && keys[part.first - 1] == part.key) going_on[piece] = a;
    else if (goes_on) begun[piece] = a;
    else {
        O* to_ = element_at(y, g, part.line, part.key);
        *to_ = to<O>(How::of(real(*to_), a));
    }
}

template <typename How> INLINE void combine(
    O* y, R* begun, R* going_on, const T* x, const u32* keys, const u32* places, const Lines& g) {
    u64 id = wide_thread_number(), line = id / g.x_len, first = id % g.x_len, end = first;
    u32 lane = threadIdx.x % WARP, key = id < g.lines * g.x_len ? keys[id] : u32(g.y_len);
    if (key < g.y_len && (first % PIECE == 0 || keys[id - 1] != key)) {
        const u32* of_line = keys + line * g.x_len;
        u64 most = first / PIECE * PIECE + PIECE;
        most = most < g.x_len ? most : g.x_len;
        while (end < most && end - first <= FEW && of_line[end] == key) end++;
        if (end - first > FEW) end = end_of(of_line, key, end, most);
    }
    bool are_many = end - first > FEW;
    if (end > first && !are_many) {
        const T* from = line_of(x, g, line);
        const u32* at = places + line * g.x_len;
        R a = real(from[at[first] * g.step[2]]);
        for (u64 j = first + 1; j < end; j++) a = How::of(a, real(from[at[j] * g.step[2]]));
        write_part<How>(y, begun, going_on, keys, Part{line, first, end, key}, a, g);
    }
    for (u32 rest = __ballot_sync(EVERYONE, are_many); rest != 0; rest &= rest - 1) {
        u32 owner = __ffs(rest) - 1;
        Part part = {__shfl_sync(EVERYONE, line, owner), __shfl_sync(EVERYONE, first, owner), __shfl_sync(EVERYONE, end, owner),
                     __shfl_sync(EVERYONE, key, owner)};
        const T* from = line_of(x, g, part.line);
        const u32* at = places + part.line * g.x_len;
        R a = real(from[at[part.first + lane] * g.step[2]]);
        #pragma unroll 4
        for (u64 j = part.first + lane + WARP; j < part.end; j += WARP) a = How::of(a, real(from[at[j] * g.step[2]]));
        a = of_warp<How>(a);
        if (lane == 0) write_part<How>(y, begun, going_on, keys, part, a, g);
    }
}

// What begins in one piece and goes on in others; a warp for each piece.
template <typename How> INLINE void join(O* y, const R* begun, const R* going_on, const u32* keys, const Lines& g) {
    u64 pieces = (g.x_len + PIECE - 1) / PIECE, id = wide_thread_number() / WARP, line = id / pieces, piece = id % pieces;
    if (line >= g.lines || piece + 1 == pieces) return;
    keys += line * g.x_len;
    u64 first = piece * PIECE, next = first + PIECE, lane = threadIdx.x % WARP;
    u32 key = keys[next];
    bool begins_here = keys[next - 1] == key && (first == 0 || keys[first - 1] != key);
    if (key >= g.y_len || !begins_here) return;
    u64 last = line * pieces + (end_of(keys, key, next, g.x_len) - 1) / PIECE;
    R a = begun[id];
    // As if the first of all were lane 0's: it is there even where the others are fewer than lanes.
    if (last - id >= WARP) {
        R own = going_on[id + 1 + lane];
        for (u64 i = id + 1 + lane + WARP; i <= last; i += WARP) own = How::of(own, going_on[i]);
        a = How::of(a, of_warp<How>(own));
    } else {
        for (u64 i = id + 1; i <= last; i++) a = How::of(a, going_on[i]);
    }
    O* to_ = element_at(y, g, line, key);
    if (lane == 0) *to_ = to<O>(How::of(real(*to_), a));
}

#define COMBINE(name, How)                                                                                                 \
    extern "C" __global__ void combine_##name(                                                                             \
        O* y, R* begun, R* going_on, const T* x, const u32* keys, const u32* places, Lines g) {                           \
        begin();                                                                                                           \
        combine<How>(y, begun, going_on, x, keys, places, g);                                                             \
    }
#define JOIN(name, How)                                                                                                    \
    extern "C" __global__ void join_##name(O* y, const R* begun, const R* going_on, const u32* keys, Lines g) {           \
        begin();                                                                                                           \
        join<How>(y, begun, going_on, keys, g);                                                                           \
    }

#ifdef KERNEL_combine_sum
COMBINE(sum, Sum)
#endif
#ifdef KERNEL_join_sum
JOIN(sum, Sum)
#endif
#ifdef KERNEL_combine_prod
COMBINE(prod, Product)
#endif
#ifdef KERNEL_join_prod
JOIN(prod, Product)
#endif
#ifdef KERNEL_combine_amax
COMBINE(amax, Largest)
#endif
#ifdef KERNEL_join_amax
JOIN(amax, Largest)
#endif
#ifdef KERNEL_combine_amin
COMBINE(amin, Smallest)
#endif
#ifdef KERNEL_join_amin
JOIN(amin, Smallest)
#endif
