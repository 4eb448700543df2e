// y[i, m, n] = Σ_k a[i, m, k] · b[i, k, n] for every batch i.   y: contiguous; a, b: any strides, batches may repeat.
//
// - `dots`, for few results: one block per 4 × 4 tile, whose threads split k.
// - `split_tiles`, for more results: one block per TILE × TILE tile (TILE is 16 or 32), whose groups of threads split
//   k.
// - `tiles`, for many results: one block per 64 × 64 tile, computed from slices of 16 k in shared memory, 4 × 4
//   results per thread.
// With ADDS_BIAS, `dots` and `split_tiles` add bias[n]. With SUMS_ROWS, they write Σ_k a[m, k] behind y, as if b had
// one more column, of ones. Halves are added up in f32; the order of each sum depends on the sizes alone.

#define BATCH_RANK 6

// Filled in by the host. Strides are in elements; those of the batches begin with the innermost dimension.
struct Product {
    u32 m, n, k;
    u32 batches;
    u32 batch_rank, batch_size[BATCH_RANK], unused;
    u64 bias_stride;
    u64 a_stride[2], b_stride[2];
    u64 a_batch[BATCH_RANK], b_batch[BATCH_RANK];
};

// Where the matrices of a batch start.
struct Start { u64 a, b; };
INLINE Start start_of(const Product& p, u32 batch) {
    Start at = {0, 0};
    for (u32 dim = 0; dim < p.batch_rank; dim++) {
        u32 index = batch % p.batch_size[dim];
        at.a += index * p.a_batch[dim];
        at.b += index * p.b_batch[dim];
        batch /= p.batch_size[dim];
    }
    return at;
}
INLINE void write(O* y, const Product& p, u32 batch, u32 m, u32 n, R sum) {
    if (m < p.m && n < p.n) y[(u64(batch) * p.m + m) * p.n + n] = to<O>(sum);
}
// Writes a result of a kernel that takes a bias.
#if defined(KERNEL_dots) || defined(KERNEL_split_tiles)
INLINE void write_with_bias(O* y, const T* bias, const Product& p, u32 batch, u32 m, u32 n, R sum) {
    if (SUMS_ROWS && n == p.n && m < p.m) y[u64(p.m) * p.n + m] = to<O>(sum);
    else write(y, p, batch, m, n, ADDS_BIAS && n < p.n ? sum + real(bias[n * p.bias_stride]) : sum);
}
#endif
// Grid: tiles along m, tiles along n, batches. Blocks step through batches by gridDim.z; those of `tiles` step along
// n by gridDim.y.
#define FOR_EACH_BATCH(batch) for (u32 batch = blockIdx.z; batch < p.batches; batch += gridDim.z)

// ---- few results ----------------------------------------------------------------------------------------------------

#define SIDE 4
#ifdef KERNEL_dots

INLINE void tile_of_dots(O* y, const T* a, const T* b, const T* bias, const Product& p, u32 batch, u32 row, u32 column) {
    Start start = start_of(p, batch);
    a += start.a, b += start.b;
    R sums[SIDE * SIDE] = {};
    for (u32 k = threadIdx.x; k < p.k; k += blockDim.x) {
        R left[SIDE], right[SIDE];
        #pragma unroll
        for (int i = 0; i < SIDE; i++) {
            left[i] = row + i < p.m ? real(a[(row + i) * p.a_stride[0] + k * p.a_stride[1]]) : R(0);
            right[i] = column + i < p.n ? real(b[k * p.b_stride[0] + (column + i) * p.b_stride[1]]) : R(0);
            if (SUMS_ROWS && column + i == p.n) right[i] = R(1);
        }
        #pragma unroll
        for (int i = 0; i < SIDE * SIDE; i++) sums[i] = multiply_add(left[i / SIDE], right[i % SIDE], sums[i]);
    }
    __shared__ R results[SIDE * SIDE];
    sums_of_block(sums, results);
    u32 i = threadIdx.x, m = row + i / SIDE, n = column + i % SIDE;
    if (i >= SIDE * SIDE) return;
    write_with_bias(y, bias, p, batch, m, n, results[i]);
}

extern "C" __global__ void __launch_bounds__(512) dots(O* y, const T* a, const T* b, const T* bias, Product p) {
    begin();
    FOR_EACH_BATCH(batch) tile_of_dots(y, a, b, bias, p, batch, blockIdx.x * SIDE, blockIdx.y * SIDE);
}

#endif

// ---- more results ---------------------------------------------------------------------------------------------------

#ifdef KERNEL_split_tiles

#define THREADS 256
#define STEP (4 * THREADS / TILE) // columns of a slice that the threads copy at once, four elements each
#define DEPTH (2 * STEP)
#define ROWS 8
#define COLUMNS 4
#define GROUP (TILE / ROWS * TILE / COLUMNS) // threads that compute a tile for some k
#define GROUPS (THREADS / GROUP)
#define EACH (TILE * DEPTH / THREADS) // elements of a slice that a thread copies

// A matrix with `rows` rows and `depth` columns. If `ones`, it has one more row, of ones.
struct Side {
    const T* x;
    u64 row_stride, stride;
    u32 first, rows, depth;
    bool ones;
};

INLINE R element(const Side& side, u32 row, u32 k) {
    if (k >= side.depth) return R(0);
    if (row < side.rows) return real(side.x[row * side.row_stride + k * side.stride]);
    return side.ones && row == side.rows ? R(1) : R(0);
}

// The position of a thread's elements i to i + 3 in a slice. They are adjacent in memory, and those of neighboring
// threads follow.
struct Place { u32 row, k; };
INLINE Place place_of(bool along_k, u32 i) {
    u32 t = threadIdx.x, k = i / 4 * STEP;
    if (along_k) return {t / 4 % TILE, k + t / (4 * TILE) * 16 + t % 4 * 4};
    return {t % (TILE / 4) * 4, k + t / (TILE / 4)};
}

INLINE void fetch(R (&values)[EACH], const Side& side, u32 k) {
    bool along_k = side.stride == 1;
    u64 far = along_k ? side.row_stride : side.stride;
    bool in_fours = (along_k || side.row_stride == 1) && far % 4 == 0 && u64(side.x) % (4 * sizeof(T)) == 0;
    #pragma unroll
    for (int i = 0; i < EACH; i += 4) {
        Place at = place_of(along_k, i);
        u32 row = side.first + at.row, column = k + at.k;
        bool is_inside = along_k ? row < side.rows && column + 3 < side.depth : row + 3 < side.rows && column < side.depth;
        if (in_fours && is_inside) {
            Pack<T, 4> pack = *reinterpret_cast<const Pack<T, 4>*>(side.x + row * side.row_stride + column * side.stride);
            for (int j = 0; j < 4; j++) values[i + j] = real(pack.at[j]);
        } else {
            for (int j = 0; j < 4; j++) values[i + j] = along_k ? element(side, row, column + j) : element(side, row + j, column);
        }
    }
}

INLINE void store(R (&slice)[DEPTH][TILE + 4], const R (&values)[EACH], bool along_k) {
    #pragma unroll
    for (int i = 0; i < EACH; i += 4) {
        Place at = place_of(along_k, i);
        if (along_k) {
            for (int j = 0; j < 4; j++) slice[at.k + j][at.row] = values[i + j];
        } else {
            *reinterpret_cast<Pack<R, 4>*>(&slice[at.k][at.row]) = {values[i], values[i + 1], values[i + 2], values[i + 3]};
        }
    }
}

// Reduces N values to N / 2: adds the partner lane's values to the half that this lane keeps, and sends the other
// half there.
template <int N> INLINE void exchange(R* x, u32 lane, u32 step) {
    bool upper = lane & step;
    #pragma unroll
    for (int i = 0; i < N / 2; i++) {
        R low = x[i], high = x[N / 2 + i];
        x[i] = plus(upper ? high : low, from_lane(upper ? low : high, step));
    }
}

INLINE void split_tile(O* y, const T* a, const T* b, const T* bias, const Product& p, u32 batch, u32 row, u32 column) {
    __shared__ __align__(16) union {
        struct { R left[DEPTH][TILE + 4], right[DEPTH][TILE + 4]; };
        R parts[THREADS / WARP][TILE][TILE];
    } at;
    Start start = start_of(p, batch);
    Side a_side = {a + start.a, p.a_stride[0], p.a_stride[1], row, p.m, p.k, false};
    Side b_side = {b + start.b, p.b_stride[1], p.b_stride[0], column, p.n, p.k, bool(SUMS_ROWS)};
    u32 group = threadIdx.x / GROUP, lane = threadIdx.x % WARP;
    u32 m = threadIdx.x % GROUP / (TILE / COLUMNS) * ROWS, n = threadIdx.x % (TILE / COLUMNS) * COLUMNS;
    R a_values[EACH], b_values[EACH], sums[ROWS * COLUMNS] = {};
    fetch(a_values, a_side, 0);
    fetch(b_values, b_side, 0);
    for (u32 k = 0; k < p.k; k += DEPTH) {
        __syncthreads(); // the slices before were read
        store(at.left, a_values, a_side.stride == 1);
        store(at.right, b_values, b_side.stride == 1);
        __syncthreads();
        if (k + DEPTH < p.k) {
            fetch(a_values, a_side, k + DEPTH);
            fetch(b_values, b_side, k + DEPTH);
        }
        u32 depth = p.k - k < DEPTH ? p.k - k : DEPTH;
        #pragma unroll 4
        for (u32 c = group; c < depth; c += GROUPS) {
            Pack<R, 4> upper = *reinterpret_cast<Pack<R, 4>*>(&at.left[c][m]), lower = *reinterpret_cast<Pack<R, 4>*>(&at.left[c][m + 4]);
            Pack<R, 4> r = *reinterpret_cast<Pack<R, 4>*>(&at.right[c][n]);
            #pragma unroll
            for (int i = 0; i < ROWS * COLUMNS; i++) {
                R l = i / COLUMNS < 4 ? upper.at[i / COLUMNS % 4] : lower.at[i / COLUMNS % 4];
                sums[i] = multiply_add(l, r.at[i % COLUMNS], sums[i]);
            }
        }
    }
    // Adds up the groups of each warp, then the warps.
    constexpr int KEPT = ROWS * GROUP / WARP; // rows that a thread keeps
    if (GROUP < WARP) {
        exchange<ROWS * COLUMNS>(sums, lane, 8);
        exchange<ROWS * COLUMNS / 2>(sums, lane, 16);
        m += (lane & 8 ? 4 : 0) + (lane & 16 ? 2 : 0);
    }
    __syncthreads(); // the slices were read
    #pragma unroll
    for (int i = 0; i < KEPT * COLUMNS; i++) at.parts[threadIdx.x / WARP][m + i / COLUMNS][n + i % COLUMNS] = sums[i];
    __syncthreads();
    for (u32 i = threadIdx.x; i < TILE * TILE; i += THREADS) {
        u32 r = i / TILE, c = i % TILE;
        R sum = at.parts[0][r][c];
        #pragma unroll
        for (u32 warp = 1; warp < THREADS / WARP; warp++) sum = plus(sum, at.parts[warp][r][c]);
        write_with_bias(y, bias, p, batch, row + r, column + c, sum);
    }
    __syncthreads(); // the parts were read
}

extern "C" __global__ void __launch_bounds__(THREADS) split_tiles(O* y, const T* a, const T* b, const T* bias, Product p) {
    begin();
    FOR_EACH_BATCH(batch) split_tile(y, a, b, bias, p, batch, blockIdx.x * TILE, blockIdx.y * TILE);
}

#endif

// ---- many results ---------------------------------------------------------------------------------------------------

#ifdef KERNEL_tiles

#define TILE 64
#define DEPTH 16
#define THREADS (TILE / SIDE * TILE / SIDE)

// Copies a slice of a matrix with `rows` rows and `depth` columns to `slice[column][row]`, with zeros outside of the
// matrix. Neighboring threads read adjacent elements.
INLINE void load(R (&slice)[DEPTH][TILE + SIDE], const T* x, u64 row_stride, u64 stride, u32 row, u32 rows, u32 k, u32 depth) {
    bool by_row = stride == 1;
    #pragma unroll
    for (u32 step = 0; step < TILE * DEPTH; step += THREADS) {
        u32 i = step + threadIdx.x;
        u32 r = by_row ? i / DEPTH : i % TILE, c = by_row ? i % DEPTH : i / TILE;
        slice[c][r] = row + r < rows && k + c < depth ? real(x[(row + r) * row_stride + (k + c) * stride]) : R(0);
    }
}

INLINE void tile_of_slices(O* y, const T* a, const T* b, const Product& p, u32 batch, u32 row, u32 column) {
    __shared__ R left[DEPTH][TILE + SIDE], right[DEPTH][TILE + SIDE];
    Start start = start_of(p, batch);
    a += start.a, b += start.b;
    u32 m = threadIdx.x / (TILE / SIDE) * SIDE, n = threadIdx.x % (TILE / SIDE) * SIDE;
    R sums[SIDE][SIDE] = {};
    for (u32 k = 0; k < p.k; k += DEPTH) {
        __syncthreads(); // the slices before were read
        load(left, a, p.a_stride[0], p.a_stride[1], row, p.m, k, p.k);
        load(right, b, p.b_stride[1], p.b_stride[0], column, p.n, k, p.k);
        __syncthreads();
        #pragma unroll
        for (int c = 0; c < DEPTH; c++) {
            Pack<R, SIDE> l = *reinterpret_cast<Pack<R, SIDE>*>(&left[c][m]);
            Pack<R, SIDE> r = *reinterpret_cast<Pack<R, SIDE>*>(&right[c][n]);
            for (int i = 0; i < SIDE; i++)
                for (int j = 0; j < SIDE; j++) sums[i][j] = multiply_add(l.at[i], r.at[j], sums[i][j]);
        }
    }
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) write(y, p, batch, row + m + i, column + n + j, sums[i][j]);
}

extern "C" __global__ void __launch_bounds__(THREADS) tiles(O* y, const T* a, const T* b, Product p) {
    begin();
    FOR_EACH_BATCH(batch)
        for (u32 column = blockIdx.y * TILE; column < p.n; column += gridDim.y * TILE)
            tile_of_slices(y, a, b, p, batch, blockIdx.x * TILE, column);
}

#endif
