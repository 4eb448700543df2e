// Histograms: counts[i] = the number of elements whose counter is i.   counts: [counters], zero at first;  x: [n].
// Elements without a counter are not counted. Sums of integers do not depend on their order.
//
// count_numbers    the counter of an element is its value
// count_bins       the counter of an element is its bin among `counters` equal bins of [least, most], computed in R

#define THREADS 256

typedef unsigned long long Count;

struct Counts { u64 n, counters, in_shared; f64 least, most; };

#ifdef KERNEL_count_numbers
INLINE u64 counter_of(T x, const Counts&) { return u64(x); }
#endif
#ifdef KERNEL_count_bins
INLINE u64 counter_of(T x, const Counts& g) {
    R number = real(x), least = R(g.least), most = R(g.most);
    if (!(number >= least && number <= most)) return g.counters;
    u64 bin = u64((number - least) * R(g.counters) / (most - least));
    return bin < g.counters ? bin : g.counters - 1;
}
#endif

// If the counters fit in shared memory, each block has its own.
INLINE void count_all(i64* counts, const T* x, const Counts& g) {
    extern __shared__ u32 block_counts[];
    u64 n_shared = g.in_shared ? g.counters : 0;
    for (u64 i = threadIdx.x; i < n_shared; i += THREADS) block_counts[i] = 0;
    __syncthreads();
    #pragma unroll 4
    for (u64 i = wide_thread_number(); i < g.n; i += u64(gridDim.x) * THREADS) {
        u64 counter = counter_of(x[i], g);
        if (counter >= g.counters) continue;
        if (g.in_shared) atomicAdd(&block_counts[counter], 1u);
        else atomicAdd(reinterpret_cast<Count*>(counts + counter), Count(1));
    }
    __syncthreads();
    for (u64 i = threadIdx.x; i < n_shared; i += THREADS)
        if (block_counts[i] > 0) atomicAdd(reinterpret_cast<Count*>(counts + i), Count(block_counts[i]));
}

#ifdef KERNEL_count_numbers
extern "C" __global__ void __launch_bounds__(THREADS) count_numbers(i64* counts, const T* x, Counts g) {
    begin();
    count_all(counts, x, g);
}
#endif
#ifdef KERNEL_count_bins
extern "C" __global__ void __launch_bounds__(THREADS) count_bins(i64* counts, const T* x, Counts g) {
    begin();
    count_all(counts, x, g);
}
#endif
