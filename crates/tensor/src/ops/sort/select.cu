// The first `k` places of each line in order, if `k` is small. The elements that come first are found by the digits
// of their keys, and only these are sorted. Lines, keys and y are those of `sort.cu`; y has `k` places for each line.
//
// A block has one line. It counts how many keys begin with each digit of DIGIT bits, and finds the digit of the `k`th
// key in order. All keys with a lower digit are wanted, none with a higher one; keys with this digit are counted by
// their next digit, until all keys that may be wanted fit into shared memory. There they are sorted by key and place.
// If the equal keys alone do not fit, the first of them are taken in order.

#define THREADS 512
#define DIGIT 11
#define BINS (1 << DIGIT)
// The most elements that are sorted; `k` is at most this.
#define ROOM 1024
// Elements that a thread loads at once.
#define AT_ONCE 4

// Calls visit(key, i) for the elements of this thread.
template <typename Visit> INLINE void each(const T* from, u64 n, u64 inner, bool descending, Visit visit) {
    for (u64 first = threadIdx.x; first < n; first += AT_ONCE * THREADS) {
        T found[AT_ONCE];
        #pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++)
            if (first + j * THREADS < n) found[j] = from[(first + j * THREADS) * inner];
        #pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++)
            if (first + j * THREADS < n) visit(key_of(found[j], descending), u32(first + j * THREADS));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) select_first(O* y, const T* x, u64 n, u64 inner, u64 k, u64 descending) {
    begin();
    __shared__ Key keys[ROOM];
    __shared__ u32 places[ROOM], bins[BINS], chosen[3], count; // chosen: the digit, how many are less, how many have it
    const T* from = x + blockIdx.x / inner * n * inner + blockIdx.x % inner;

    constexpr u32 BITS = sizeof(Key) * 8;
    u32 shift = BITS, less = 0, same = 0; // how many keys have first bits below, and equal to, `prefix`
    Key prefix = 0;
    do {
        u32 width = shift < DIGIT ? shift : DIGIT, from_bit = shift - width;
        for (u32 i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
        __syncthreads();
        each(from, n, inner, descending, [&](Key key, u32) {
            if (shift == BITS || key >> shift == prefix) atomicAdd(&bins[u32(key >> from_bit) & ((1u << width) - 1)], 1u);
        });
        __syncthreads();
        constexpr u32 OWN = BINS / THREADS;
        u32 own = 0, all;
        for (u32 j = 0; j < OWN; j++) own += bins[threadIdx.x * OWN + j];
        u32 before = less + exclusive_sum<THREADS>(own, all);
        for (u32 j = 0; j < OWN; j++) {
            u32 here = bins[threadIdx.x * OWN + j];
            if (before < k && k <= before + here)
                chosen[0] = threadIdx.x * OWN + j, chosen[1] = before, chosen[2] = here;
            before += here;
        }
        __syncthreads();
        prefix = (shift == BITS ? Key(0) : Key(prefix << width)) | chosen[0];
        less = chosen[1], same = chosen[2], shift = from_bit;
        __syncthreads();
    } while (less + same > ROOM && shift > 0);

    bool all_fit = less + same <= ROOM;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    each(from, n, inner, descending, [&](Key key, u32 i) {
        if (key >> shift < prefix || (all_fit && key >> shift == prefix)) {
            u32 at = atomicAdd(&count, 1u);
            keys[at] = key, places[at] = i;
        }
    });
    u32 kept = all_fit ? less + same : u32(k);
    if (!all_fit)
        for (u64 first = 0, at = less; at < k; first += THREADS) { // the line has enough of them
            u64 i = first + threadIdx.x;
            bool is_same = i < n && key_of(from[i * inner], descending) == prefix;
            u32 found, to = at + exclusive_sum<THREADS>(is_same, found);
            if (is_same && to < k) keys[to] = prefix, places[to] = u32(i);
            at += found;
        }

    // A bitonic sort: exchanges elements `step` apart, in runs of twice the length of those before (Batcher 1968).
    u32 size = 2;
    while (size < kept) size *= 2;
    for (u32 i = kept + threadIdx.x; i < size; i += THREADS) keys[i] = ~Key(0), places[i] = ~0u;
    for (u32 length = 2; length <= size; length *= 2)
        for (u32 step = length / 2; step > 0; step /= 2) {
            __syncthreads();
            for (u32 pair = threadIdx.x; pair < size / 2; pair += THREADS) {
                u32 i = 2 * pair - (pair & (step - 1)), j = i + step;
                Key a = keys[i], b = keys[j];
                u32 place_a = places[i], place_b = places[j];
                bool is_wrong = a > b || (a == b && place_a > place_b);
                if (is_wrong == ((i & length) == 0)) keys[i] = b, keys[j] = a, places[i] = place_b, places[j] = place_a;
            }
        }
    __syncthreads();
    O* to_line = y + blockIdx.x / inner * k * inner + blockIdx.x % inner;
    for (u32 i = threadIdx.x; i < k; i += THREADS) to_line[i * inner] = O(places[i]);
}
