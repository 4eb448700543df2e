// y[i] = condition[i] ? yes[i] : no[i].   y, yes, no: T; condition: bytes, 0 is false. All contiguous.
// A side with step 0 instead of 1 is a single number. `cuda.rs` defines V, the elements of a pack, which is 1 unless
// all tensors are aligned to packs.

// The pack of a side at offset `at`.
INLINE Pack<T, V> side(const T* x, u64 at, u64 step) {
    if (step == 1) return *reinterpret_cast<const Pack<T, V>*>(x + at);
    Pack<T, V> pack;
    for (int v = 0; v < V; v++) pack.at[v] = *x;
    return pack;
}

// One thread per pack.
extern "C" __global__ void where_cond(T* y, const u8* condition, const T* yes, const T* no, u64 n, u64 yes_step, u64 no_step) {
    begin();
    u64 at = wide_thread_number() * V;
    if (at + V <= n) {
        Pack<u8, V> chosen = *reinterpret_cast<const Pack<u8, V>*>(condition + at);
        Pack<T, V> out = side(no, at, no_step), from = side(yes, at, yes_step);
        for (int v = 0; v < V; v++)
            if (chosen.at[v]) out.at[v] = from.at[v];
        *reinterpret_cast<Pack<T, V>*>(y + at) = out;
        return;
    }
    for (; at < n; at++) y[at] = condition[at] ? yes[at * yes_step] : no[at * no_step];
}
