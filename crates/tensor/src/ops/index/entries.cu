// Whole entries of a dimension, which one index each names: contiguous x [outer, x_entries, inner], y [outer, y_entries, inner].
//
// select_entries   y[…, j, …] = x[…, index[j], …]
// add_entries      y[…, index[j], …] += x[…, j, …], from zeros: the transpose
//
// `cuda.rs` writes V in front of this: elements of a pack, which divides `inner`; all entries begin where packs may.

struct Entries { u64 y_entries, x_entries, inner; };

#ifdef KERNEL_select_entries
#define AT_ONCE 4
// An entry of y has blockDim.x threads, a block blockDim.y of them. A thread asks for AT_ONCE packs before it waits for the first.
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
    for (int v = 0; v < V; v++) none.at[v] = nothing();
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
#endif
#ifdef KERNEL_add_entries
#define EVERYONE 0xffffffffu
#define WARP 32
// A warp has 32 neighboring packs of some entries of y: those whose number is `owner` modulo the number of warps of a column, a
// power of two. It looks at all indices and adds up what is for its entries, in the order of x, as on the CPU.
#define AHEAD 8
#define AT_ONCE (V > 1 ? 4 : 8)
extern "C" __global__ void __launch_bounds__(256) add_entries(
    O* y, const T* x, const i64* index, Fault* fault, u64 site, Entries g) {
    begin();
    u32 lane = threadIdx.x, owners = gridDim.y * blockDim.y, owner = blockIdx.y * blockDim.y + threadIdx.y;
    u64 columns = (g.inner + WARP * V - 1) / (WARP * V), outer = blockIdx.x / columns;
    u64 column = (blockIdx.x % columns * WARP + lane) * V;
    bool is_inside = column < g.inner;
    y += outer * g.y_entries * g.inner + column, x += outer * g.x_entries * g.inner + column;
    R sums[V] = {};
    if (is_inside)
        for (u64 entry = owner; entry < g.y_entries; entry += owners) write_pack(y + entry * g.inner, sums);
    i64 entry = -1, ahead[AHEAD]; // entry: the one that `sums` are of
    for (u64 start = 0; start < g.x_entries; start += WARP) {
        if (start / WARP % AHEAD == 0)
            #pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                u64 own = start + i * WARP + lane;
                ahead[i] = own < g.x_entries ? index[own] : -1;
            }
        i64 at = ahead[0];
        #pragma unroll
        for (int i = 1; i < AHEAD; i++) ahead[i - 1] = ahead[i];
        bool exists_here = start + lane < g.x_entries && u64(at) < g.y_entries;
        if (start + lane < g.x_entries && blockIdx.x == 0 && owner == 0) exists(at, g.y_entries, fault, site);
        u32 own = __ballot_sync(EVERYONE, exists_here && (u64(at) & (owners - 1)) == owner);
        while (own != 0) {
            i64 to_entry[AT_ONCE];
            R values[AT_ONCE][V];
            #pragma unroll
            for (int i = 0; i < AT_ONCE; i++, own &= own - 1) {
                u32 from = own != 0 ? __ffs(own) - 1 : 0;
                to_entry[i] = own != 0 ? __shfl_sync(EVERYONE, at, from) : -1;
                if (own != 0 && is_inside) read_pack(x + (start + from) * g.inner, values[i]);
            }
            #pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (to_entry[i] < 0) break;
                if (!is_inside) continue;
                if (to_entry[i] != entry) {
                    if (entry >= 0) write_pack(y + entry * g.inner, sums);
                    entry = to_entry[i];
                    read_pack(y + entry * g.inner, sums);
                }
                for (int v = 0; v < V; v++) sums[v] = rounded(plus(sums[v], values[i][v]));
            }
        }
    }
    if (entry >= 0 && is_inside) write_pack(y + entry * g.inner, sums);
}
#endif
