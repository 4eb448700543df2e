// z = x + y for each of up to four pairs of tensors without gaps; blockIdx.y is the pair. Pairs that are aligned to
// 16 bytes, as sums are, are read in packs of 16 bytes.

#define V int(16 / sizeof(T))

struct Lengths { u64 of[4]; };

// Does what indexing an array would do; an indexed array would be in local memory.
template <typename Type> INLINE Type choose(u32 pair, Type a, Type b, Type c, Type d) {
    return pair == 0 ? a : pair == 1 ? b : pair == 2 ? c : d;
}

extern "C" __global__ void pair_sums(
    T* z0, T* z1, T* z2, T* z3, const T* x0, const T* x1, const T* x2, const T* x3, const T* y0, const T* y1, const T* y2, const T* y3,
    Lengths lengths
) {
    begin();
    u32 pair = blockIdx.y;
    T* z = choose(pair, z0, z1, z2, z3);
    const T* x = choose(pair, x0, x1, x2, x3);
    const T* y = choose(pair, y0, y1, y2, y3);
    u64 n = choose(pair, lengths.of[0], lengths.of[1], lengths.of[2], lengths.of[3]), at = wide_thread_number() * V;
    bool is_aligned = ((u64(x) | u64(y) | u64(z)) & 15) == 0;
    if (is_aligned && at + V <= n) {
        Pack<T, V> left = *reinterpret_cast<const Pack<T, V>*>(x + at), right = *reinterpret_cast<const Pack<T, V>*>(y + at), sum;
        for (int i = 0; i < V; i++) sum.at[i] = to<T>(real(left.at[i]) + real(right.at[i]));
        *reinterpret_cast<Pack<T, V>*>(z + at) = sum;
        return;
    }
    for (u64 end = at + V < n ? at + V : n; at < end; at++) z[at] = to<T>(real(x[at]) + real(y[at]));
}
