// y[…, index[j], …] += x[…, j, …] for whole entries, each named by one index: contiguous x [outer, x_entries, inner]
// and y [outer, y_entries, inner], which is zero at first. Once indices are sorted, equal ones are neighbors.
//
// keys_of_entries    keys[j] = index[j], or y_entries where there is no such entry
// add_entries        sums of the entries with one key, in the order of x, as on the CPU
//
// `entries.rs` defines V, the elements of a pack. V divides `inner`, and all entries are aligned to packs.

struct Entries { u64 y_entries, x_entries, inner; };

#ifdef KERNEL_keys_of_entries
extern "C" __global__ void keys_of_entries(u32* keys, const i64* index, Fault* fault, u64 site, Entries g) {
    begin();
    u64 i = wide_thread_number();
    if (i < g.x_entries) keys[i] = exists(index[i], g.y_entries, fault, site) ? u32(index[i]) : u32(g.y_entries);
}
#endif
#ifdef KERNEL_add_entries
#define WARP 32
#define WARPS 8
// Packs that a thread loads at once.
#define AT_ONCE 4
// A warp adds up 32 neighboring packs of all entries with one key, if its entry is the first of these; otherwise it
// returns.
extern "C" __global__ void __launch_bounds__(WARP * WARPS) add_entries(
    O* y, const T* x, const u32* keys, const u32* places, Entries g) {
    begin();
    u64 columns = (g.inner + WARP * V - 1) / (WARP * V), starts = (g.x_entries + WARPS - 1) / WARPS, at = blockIdx.x;
    u64 column = (at % columns * WARP + threadIdx.x) * V, first = at / columns % starts * WARPS + threadIdx.y;
    u64 outer = at / columns / starts;
    if (first >= g.x_entries || column >= g.inner) return;
    u32 key = keys[first];
    if (key >= g.y_entries || (first > 0 && keys[first - 1] == key)) return;
    x += outer * g.x_entries * g.inner + column;
    R sums[V] = {};
    for (u64 i = first; i < g.x_entries; i += AT_ONCE) {
        R values[AT_ONCE][V];
        u32 here = 0;
        #pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++) {
            if (i + k >= g.x_entries || keys[i + k] != key) break;
            read_pack(x + places[i + k] * g.inner, values[k]);
            here = k + 1;
        }
        #pragma unroll
        for (u32 k = 0; k < AT_ONCE; k++)
            if (k < here)
                for (int v = 0; v < V; v++) sums[v] = rounded(plus(sums[v], values[k][v]));
        if (here < AT_ONCE) break;
    }
    write_pack(y + (outer * g.y_entries + key) * g.inner + column, sums);
}
#endif
