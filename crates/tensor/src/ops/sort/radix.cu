// Sorts lines by the digits of their keys, the last digit first. Each pass keeps the order of the one before it
// among keys with the same digit (a stable counting sort; Knuth, The Art of Computer Programming 3, 5.2.5). A block
// processes one tile of a line.
//
// keys_of          keys[line, i] = the key of element i of a line of x
// count_digits     counts[line, digit, tile] = how many keys of the tile have the digit
// sum_counts       before[line, digit, tile] = how many keys of the tiles before it have the digit
//                  totals[line, digit] = how many keys of the line have the digit
// move_by_digit    keys and places in order by the digit; places are indices in the line, at first 0, 1, 2 …
// write_places     y = the places of the first `kept` of each line, in the layout of `sort.cu`

#define WARP 32
#define EVERYONE 0xffffffffu
#define DIGIT 8
#define BINS (1 << DIGIT)
// A block has a thread for each digit, and a thread has ITEMS elements of the tile. The shared memory of a block takes
// less than 48 KiB.
#define THREADS BINS
#define ITEMS (sizeof(Key) == 4 ? 16 : 8)
#define TILE (THREADS * ITEMS)

// lines: the number of lines; inner: the stride of their elements in x; shift: where the digit begins in a key.
struct Radix { u64 lines, n, inner, tiles, shift, first_pass, descending, kept; };

INLINE u32 digit_of(Key key, const Radix& g) { return u32(key >> g.shift) & (BINS - 1); }

#ifdef KERNEL_keys_of
extern "C" __global__ void keys_of(Key* keys, const T* x, Radix g) {
    begin();
    u64 at = wide_thread_number();
    if (at >= g.lines * g.n) return;
    u64 line = g.inner == 1 ? 0 : at / g.n, i = g.inner == 1 ? at : at % g.n;
    keys[at] = key_of(x[line / g.inner * g.n * g.inner + i * g.inner + line % g.inner], g.descending);
}
#endif
#ifdef KERNEL_count_digits
extern "C" __global__ void __launch_bounds__(THREADS) count_digits(u32* counts, const Key* keys, Radix g) {
    begin();
    __shared__ u32 bins[BINS];
    u64 line = blockIdx.x / g.tiles, tile = blockIdx.x % g.tiles, first = tile * TILE + threadIdx.x;
    keys += line * g.n;
    bins[threadIdx.x] = 0;
    __syncthreads();
    Key key[ITEMS];
    #pragma unroll
    for (u32 j = 0; j < ITEMS; j++)
        if (first + j * THREADS < g.n) key[j] = keys[first + j * THREADS];
    #pragma unroll
    for (u32 j = 0; j < ITEMS; j++)
        if (first + j * THREADS < g.n) atomicAdd(&bins[digit_of(key[j], g)], 1u);
    __syncthreads();
    counts[(line * BINS + threadIdx.x) * g.tiles + tile] = bins[threadIdx.x];
}
#endif
#ifdef KERNEL_sum_counts
// A warp has the counts of one digit of one line; a thread adds up AT_ONCE neighbors at a time.
#define AT_ONCE 8
extern "C" __global__ void sum_counts(u32* before, u32* totals, const u32* counts, Radix g) {
    begin();
    u64 row = wide_thread_number() / WARP;
    u32 lane = threadIdx.x % WARP, sum = 0;
    if (row >= g.lines * BINS) return;
    counts += row * g.tiles, before += row * g.tiles;
    for (u64 start = lane * AT_ONCE; start - lane * AT_ONCE < g.tiles; start += WARP * AT_ONCE) {
        u32 count[AT_ONCE], own = 0;
        #pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++) count[j] = start + j < g.tiles ? counts[start + j] : 0;
        #pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++) own += count[j];
        u32 up_to = own;
        #pragma unroll
        for (u32 step = 1; step < WARP; step *= 2) {
            u32 other = __shfl_up_sync(EVERYONE, up_to, step);
            up_to += lane >= step ? other : 0;
        }
        u32 here = sum + up_to - own;
        for (u32 j = 0; j < AT_ONCE; j++) {
            if (start + j < g.tiles) before[start + j] = here;
            here += count[j];
        }
        sum += __shfl_sync(EVERYONE, up_to, WARP - 1);
    }
    if (lane == 0) totals[row] = sum;
}
#endif
#ifdef KERNEL_move_by_digit
extern "C" __global__ void __launch_bounds__(THREADS) move_by_digit(
    Key* moved_keys, u32* moved_places, const Key* keys, const u32* places, const u32* before, const u32* totals, Radix g) {
    begin();
    __shared__ Key tile_keys[TILE];
    __shared__ u32 tile_places[TILE], found[THREADS / WARP][BINS], starts[BINS], to[BINS];
    u64 line = blockIdx.x / g.tiles, tile = blockIdx.x % g.tiles, first = tile * TILE;
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, size = g.n - first < TILE ? u32(g.n - first) : TILE;
    keys += line * g.n + first, places += line * g.n + first;

    // In each warp: how many elements before this one have the same digit. Elements beyond the line come last.
    for (u32 i = lane; i < BINS; i += WARP) found[warp][i] = 0;
    Key key[ITEMS];
    u32 place[ITEMS], rank[ITEMS];
    #pragma unroll
    for (u32 j = 0; j < ITEMS; j++) {
        u32 at = (warp * ITEMS + j) * WARP + lane;
        key[j] = at < size ? keys[at] : ~Key(0);
        place[j] = g.first_pass || at >= size ? u32(first) + at : places[at];
    }
    __syncwarp();
    #pragma unroll
    for (u32 j = 0; j < ITEMS; j++) {
        u32 digit = digit_of(key[j], g), same = EVERYONE;
        #pragma unroll
        for (u32 bit = 0; bit < DIGIT; bit++) {
            u32 have = __ballot_sync(EVERYONE, digit >> bit & 1);
            same &= digit >> bit & 1 ? have : ~have;
        }
        u32 earlier = found[warp][digit];
        rank[j] = earlier + __popc(same & ((1u << lane) - 1));
        __syncwarp();
        if (lane == __ffs(same) - 1) found[warp][digit] = earlier + __popc(same);
        __syncwarp();
    }
    __syncthreads();

    // Each thread finds where the keys with one digit begin: in the tile, in each warp's share of it, and in the line.
    u32 digit = threadIdx.x, own = 0, all;
    for (u32 w = 0; w < THREADS / WARP; w++) {
        u32 here = found[w][digit];
        found[w][digit] = own, own += here;
    }
    u64 row = line * BINS + digit;
    starts[digit] = exclusive_sum<THREADS>(own, all);
    to[digit] = exclusive_sum<THREADS>(totals[row], all) + before[row * g.tiles + tile] - starts[digit];
    __syncthreads();

    #pragma unroll
    for (u32 j = 0; j < ITEMS; j++) {
        u32 digit = digit_of(key[j], g), at = starts[digit] + found[warp][digit] + rank[j];
        tile_keys[at] = key[j], tile_places[at] = place[j];
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < size; at += THREADS) {
        Key key = tile_keys[at];
        u64 into = line * g.n + (to[digit_of(key, g)] + at);
        moved_keys[into] = key, moved_places[into] = tile_places[at];
    }
}
#endif
#ifdef KERNEL_write_places
extern "C" __global__ void write_places(O* y, const u32* places, Radix g) {
    begin();
    u64 at = wide_thread_number();
    if (at >= g.lines * g.kept) return;
    u64 line = at / g.kept, i = at % g.kept;
    y[(line / g.inner * g.kept + i) * g.inner + line % g.inner] = O(places[line * g.n + i]);
}
#endif
