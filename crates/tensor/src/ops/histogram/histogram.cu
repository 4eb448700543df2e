// Histograms: counts[place] += the number of elements with that place.   counts: [places], zero at first;  x: [n].
// Elements without a counter are not counted. Sums of integers do not depend on their order.
//
// count_numbers    the place of an element is its value
// count_bins       the place of an element is its bin, of `places` equal bins of [least, most]

#define THREADS 256

typedef unsigned long long Count;

struct Counts { u64 n, places, in_shared; f64 least, most; };

#ifdef KERNEL_count_numbers
INLINE u64 place_of(T x, const Counts&) { return u64(x); }
#endif
#ifdef KERNEL_count_bins
INLINE u64 place_of(T x, const Counts& g) {
    f64 number = f64(real(x)), last = f64(g.places - 1);
    if (!(number >= g.least && number <= g.most)) return g.places;
    f64 bin = (number - g.least) / (g.most - g.least) * f64(g.places);
    return u64(bin < last ? bin : last);
}
#endif

// If the counters fit in shared memory, each block has its own.
INLINE void count_all(i64* counts, const T* x, const Counts& g) {
    extern __shared__ u32 own[];
    u64 places = g.in_shared ? g.places : 0;
    for (u64 i = threadIdx.x; i < places; i += THREADS) own[i] = 0;
    __syncthreads();
    #pragma unroll 4
    for (u64 i = wide_thread_number(); i < g.n; i += u64(gridDim.x) * THREADS) {
        u64 place = place_of(x[i], g);
        if (place >= g.places) continue;
        if (g.in_shared) atomicAdd(&own[place], 1u);
        else atomicAdd(reinterpret_cast<Count*>(counts + place), Count(1));
    }
    __syncthreads();
    for (u64 i = threadIdx.x; i < places; i += THREADS)
        if (own[i] > 0) atomicAdd(reinterpret_cast<Count*>(counts + i), Count(own[i]));
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
