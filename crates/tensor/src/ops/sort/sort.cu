// Argsort of lines. x: [outer, n, inner] without gaps; the elements of a line are
// `inner` apart. NaN is larger than all numbers, and equal elements keep their order.

// Elements that a thread sorts by itself.
constexpr u32 ITEMS = 8;

// The index of element `i` of a tile. Threads that each take eight neighbors have no bank conflicts this way.
INLINE u32 spread(u32 i) { return i ^ (i >> 5 & 7); }

// A block sorts a line. Each thread sorts `ITEMS` elements by odd-even transposition. Then pairs of runs are merged
// (Green, McColl and Bader 2012, "GPU merge path", https://doi.org/10.1145/2304576.2304621: a thread finds by
// bisection where its share of the result begins in both runs). Only the first `k` elements of each run are needed.
//
// y[line, rank] = the element's index in its line, for ranks below `k`.
extern "C" __global__ void __launch_bounds__(1024) sort_lines(O* y, const T* x, u64 n, u64 inner, u64 k, u64 descending) {
    begin();
    extern __shared__ u64 shared[];
    u32 tile = blockDim.x * ITEMS, mine = threadIdx.x * ITEMS, size = u32(n);
    Key* keys = reinterpret_cast<Key*>(shared);
    unsigned short* places = reinterpret_cast<unsigned short*>(keys + tile);

    u64 line = blockIdx.x;
    const T* from = x + line / inner * n * inner + line % inner;
    for (u32 i = threadIdx.x; i < tile; i += blockDim.x)
        keys[spread(i)] = i < size ? key_of(from[i * inner], descending) : ~Key(0);
    __syncthreads();

    Key key[ITEMS];
    unsigned short place[ITEMS];
    for (u32 j = 0; j < ITEMS; j++) key[j] = keys[spread(mine + j)], place[j] = mine + j;
#pragma unroll
    for (u32 round = 0; round < ITEMS; round++) {
#pragma unroll
        for (u32 j = round % 2; j + 1 < ITEMS; j += 2) {
            bool is_wrong = key[j] > key[j + 1];
            Key low = is_wrong ? key[j + 1] : key[j], high = is_wrong ? key[j] : key[j + 1];
            unsigned short before = is_wrong ? place[j + 1] : place[j], behind = is_wrong ? place[j] : place[j + 1];
            key[j] = low, key[j + 1] = high, place[j] = before, place[j + 1] = behind;
        }
    }
    for (u32 j = 0; j < ITEMS; j++) keys[spread(mine + j)] = key[j], places[spread(mine + j)] = place[j];

    for (u32 width = ITEMS; width < size; width *= 2) {
        __syncthreads();
        u32 left = mine & ~(2 * width - 1), right = left + width, skipped = mine - left;
        u32 kept = k < width ? u32(k) : width;
        if (skipped < k) {
            u32 low = skipped > kept ? skipped - kept : 0, high = skipped < kept ? skipped : kept;
            while (low < high) {
                u32 middle = (low + high) / 2;
                bool comes_first = keys[spread(left + middle)] <= keys[spread(right + skipped - 1 - middle)];
                low = comes_first ? middle + 1 : low;
                high = comes_first ? high : middle;
            }
            u32 i = low, j = skipped - low;
#pragma unroll
            for (u32 q = 0; q < ITEMS; q++) {
                bool takes_left = j >= kept || (i < kept && keys[spread(left + i)] <= keys[spread(right + j)]);
                u32 at = spread(takes_left ? left + i : right + j);
                key[q] = keys[at], place[q] = places[at];
                takes_left ? i++ : j++;
            }
        }
        __syncthreads();
        if (skipped < k)
            for (u32 j = 0; j < ITEMS; j++) keys[spread(mine + j)] = key[j], places[spread(mine + j)] = place[j];
    }
    __syncthreads();
    O* to_line = y + line / inner * k * inner + line % inner;
    for (u32 i = threadIdx.x; i < k; i += blockDim.x) to_line[i * inner] = O(places[spread(i)]);
}
