// Elements combined by their indices, for few and long lines. Once indices are sorted, equal ones are neighbors.
//
// keys_of_index       keys[line, j] = index[…, j, …], or y_len where there is no such element; `g` has the lines of the
//                     index only once
// combine_sum, …      combines y[…, key, …] with all x that have this key, in the order of x up to PIECE of them
// join_sum, …         the same for the keys that combine_… leaves in parts

#ifdef KERNEL_keys_of_index
extern "C" __global__ void keys_of_index(u32* keys, const i64* index, Fault* fault, u64 site, Lines g) {
    begin();
    Element e = element_of(g, false);
    if (!e.is_inside) return;
    i64 at = index[e.index];
    keys[wide_thread_number()] = exists(at, g.y_len, fault, site) ? u32(at) : u32(g.y_len);
}
#endif

// Elements with one key are combined in the order of x, as on the CPU: up to FEW of them by the thread of their first
// place, up to PIECE by a warp. If there are more, each piece of PIECE places of the line is combined by itself, and
// then the results of the pieces.
#define FEW 16
#define PIECE 1024

// The first place from `low` on whose key is larger, or not less; keys are in order.
template <bool LARGER> INLINE u64 search(const u32* keys, u32 key, u64 low, u64 high) {
    while (low < high) {
        u64 middle = low + (high - low) / 2;
        if (LARGER ? keys[middle] > key : keys[middle] >= key) high = middle;
        else low = middle + 1;
    }
    return low;
}

// A line of y, of x, and of the sorted keys and places, which lines with the same index share.
struct Line { O* y; const T* x; const u32 *keys, *places; };
INLINE Line line_at(O* y, const T* x, const u32* keys, const u32* places, u64 line, const Lines& g) {
    Offsets at = offsets_of_line(g, line);
    return {y + at.y, x + at.x, keys + at.index_line * g.x_len, places + at.index_line * g.x_len};
}
INLINE R element_at(const Line& line, u64 i, const Lines& g) { return real(line.x[line.places[i] * g.step[2]]); }

// Combines `a` with the elements at places `first` to `end`, in order. All threads of a warp call it, and have the
// result.
template <typename Combination> INLINE R in_order(R a, const Line& line, u64 first, u64 end, const Lines& g) {
    u32 lane = threadIdx.x % WARP;
    for (u64 start = first; start < end; start += WARP) {
        R own = start + lane < end ? element_at(line, start + lane, g) : R(0);
        u32 n = end - start < WARP ? u32(end - start) : WARP;
        for (u32 from = 0; from < n; from++) a = Combination::of(a, R(__shfl_sync(EVERYONE, own, from)));
    }
    return a;
}

// The places that a thread combines: from `first` to the end of its piece or of its key. The key is at places `begin`
// to `end`.
struct Part { u64 first, begin, end; u32 key; };

// The part for the thread of place `first`; empty if another thread combines that place.
INLINE Part part_at(const u32* keys, u64 first, u32 key, const Lines& g) {
    Part empty = {first, first, first, key};
    bool begins = first == 0 || keys[first - 1] != key;
    if (key >= g.y_len || (!begins && first % PIECE != 0)) return empty;
    u64 begin = begins ? first : search<false>(keys, key, 0, first), end = first + 1;
    while (end < g.x_len && end - first <= FEW && keys[end] == key) end++;
    if (end - first > FEW) end = search<true>(keys, key, end, g.x_len);
    return begins || end - begin > PIECE ? Part{first, begin, end, key} : empty;
}

template <typename Combination> INLINE void combine(
    O* y, R* begun, R* going_on, const T* x, const u32* keys, const u32* places, const Lines& g) {
    u64 id = wide_thread_number(), number = id / g.x_len, pieces = (g.x_len + PIECE - 1) / PIECE;
    bool is_inside = id < g.lines * g.x_len;
    Line line = line_at(y, x, keys, places, is_inside ? number : 0, g);
    u64 place = is_inside ? id % g.x_len : 0;
    Part part = part_at(line.keys, place, is_inside ? line.keys[place] : u32(g.y_len), g);
    u64 n = part.end - part.begin;
    if (n > 0 && n <= FEW) {
        O* there = line.y + part.key * g.step[0];
        R a = real(*there);
        for (u64 i = part.first; i < part.end; i++) a = Combination::of(a, element_at(line, i, g));
        *there = to<O>(a);
    }
    for (u32 rest = __ballot_sync(EVERYONE, n > FEW); rest != 0; rest &= rest - 1) {
        u32 from = __ffs(rest) - 1;
        u64 of = __shfl_sync(EVERYONE, number, from);
        Part many = {__shfl_sync(EVERYONE, part.first, from), __shfl_sync(EVERYONE, part.begin, from),
                     __shfl_sync(EVERYONE, part.end, from), __shfl_sync(EVERYONE, part.key, from)};
        Line line = line_at(y, x, keys, places, of, g);
        O* there = line.y + many.key * g.step[0];
        bool is_whole = many.end - many.begin <= PIECE;
        if (is_whole) {
            R a = in_order<Combination>(real(*there), line, many.first, many.end, g);
            if (threadIdx.x % WARP == 0) *there = to<O>(a);
            continue;
        }
        u64 piece = many.first / PIECE, piece_end = (piece + 1) * PIECE;
        u64 end = many.end < piece_end ? many.end : piece_end;
        R a = in_order<Combination>(element_at(line, many.first, g), line, many.first + 1, end, g);
        if (threadIdx.x % WARP == 0) (many.first == many.begin ? begun : going_on)[of * pieces + piece] = a;
    }
}

// Combines the results of pieces. Each piece has a warp, which takes the key that begins there and continues in the
// next piece.
template <typename Combination>
INLINE void join(O* y, const R* begun, const R* going_on, const u32* keys, const Lines& g) {
    u64 pieces = (g.x_len + PIECE - 1) / PIECE, id = wide_thread_number() / WARP, number = id / pieces, piece = id % pieces;
    if (number >= g.lines || piece + 1 == pieces) return;
    Line line = line_at(y, nullptr, keys, keys, number, g);
    u64 first = piece * PIECE, next = first + PIECE;
    u32 key = line.keys[next];
    bool begins_here = line.keys[next - 1] == key && (first == 0 || line.keys[first - 1] != key);
    if (key >= g.y_len || !begins_here) return;
    u64 begin = search<false>(line.keys, key, first, next), end = search<true>(line.keys, key, next, g.x_len);
    if (end - begin <= PIECE) return;
    R a = begun[id];
    for (u64 part = id + 1, last = number * pieces + (end - 1) / PIECE; part <= last; part += WARP) {
        u32 lane = threadIdx.x % WARP, n = last - part < WARP ? u32(last - part + 1) : WARP;
        R own = lane < n ? going_on[part + lane] : R(0);
        for (u32 from = 0; from < n; from++) a = Combination::of(a, R(__shfl_sync(EVERYONE, own, from)));
    }
    O* there = line.y + key * g.step[0];
    if (threadIdx.x % WARP == 0) *there = to<O>(Combination::of(real(*there), a));
}

#define COMBINE(name, Combination)                                                                                     \
    extern "C" __global__ void combine_##name(                                                                         \
        O* y, R* begun, R* going_on, const T* x, const u32* keys, const u32* places, Lines g) {                        \
        begin();                                                                                                       \
        combine<Combination>(y, begun, going_on, x, keys, places, g);                                                  \
    }
#define JOIN(name, Combination)                                                                                        \
    extern "C" __global__ void join_##name(O* y, const R* begun, const R* going_on, const u32* keys, Lines g) {        \
        begin();                                                                                                       \
        join<Combination>(y, begun, going_on, keys, g);                                                                \
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
