// Copies whole entries of a dimension: y[…, j, …] = x[…, index[j], …], for contiguous x [outer, x_entries, inner] and
// y [outer, y_entries, inner].
//
// `cuda.rs` defines V, the elements of a pack, which divides `inner`; all entries are aligned to packs.

struct Entries { u64 y_entries, x_entries, inner; };

#define AT_ONCE 4
// A block copies blockDim.y entries of y with blockDim.x threads each. A thread loads AT_ONCE packs before it uses
// the first.
extern "C" __global__ void __launch_bounds__(128) select_entries(
    O* y, const T* x, const i64* index, Fault* fault, u64 site, Entries g, u64 rows) {
    begin();
    u64 row = u64(blockIdx.x) * blockDim.y + threadIdx.y, packs = g.inner / V;
    if (row >= rows) return;
    u64 outer = rows == g.y_entries ? 0 : row / g.y_entries;
    i64 entry = index[row - outer * g.y_entries];
    bool is_there = exists(entry, g.x_entries, fault, site);
    const Pack<T, V>* from = reinterpret_cast<const Pack<T, V>*>(x) + (is_there ? (outer * g.x_entries + entry) * packs : 0);
    Pack<T, V>* to = reinterpret_cast<Pack<T, V>*>(y) + row * packs;
    Pack<T, V> none;
    for (int v = 0; v < V; v++) none.at[v] = missing_value();
    for (u64 first = threadIdx.x; first < packs; first += AT_ONCE * blockDim.x) {
        Pack<T, V> found[AT_ONCE];
        #pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            u64 at = first + k * blockDim.x;
            found[k] = none;
            if (is_there && at < packs) found[k] = from[at];
        }
        #pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k * blockDim.x < packs) to[first + k * blockDim.x] = found[k];
    }
}
