// y[i] = condition[i] ? yes[i] : no[i].   y, yes, no: T; condition: bytes, of which 0 is false. All contiguous; a step of 0 in place
// of 1 says that a side is one number. `cuda.rs` writes V in front of this: elements of a pack, where all begin at packs.

// The pack of a side at `at`.
INLINE Pack<T, V> side(const T* x, u64 at, u64 step) {
    if (step == 1) return *reinterpret_cast<const Pack<T, V>*>(x + at);
    Pack<T, V> pack;
    for (int v = 0; v < V; v++) pack.at[v] = *x;
    return pack;
}

// One thread per pack.
extern "C" __global__ void choose(T* y, const u8* condition, const T* yes, const T* no, u64 n, u64 yes_step, u64 no_step) {
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
