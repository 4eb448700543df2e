// y[i, m, n] = Σ_k a[i, m, k] · b[i, k, n] for every batch i.   y: contiguous; a, b: any strides, batches may repeat.
//
// `dots` is for few results: one block per tile of 4 × 4, its threads share k. Where ADDS_BIAS, there is + bias[n]; where
// SUMS_ROWS, behind y there is Σ_k a[m, k], as if b had one more column, of ones. `tiles` is for many: one block per tile of
// 64 × 64, which it computes from slices of 16 k in shared memory, 4 × 4 results per thread.
// Halves are added up in f32; the order of each sum depends on the sizes alone.

#define BATCH_RANK 6

// What the host fills in. Strides are in elements; those of batches are the innermost first.
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
// Grid: tiles along m, tiles along n, batches (each block takes every gridDim.z-th).
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
    if (SUMS_ROWS && n == p.n && m < p.m) y[u64(p.m) * p.n + m] = to<O>(results[i]);
    else write(y, p, batch, m, n, ADDS_BIAS && n < p.n ? results[i] + real(bias[n * p.bias_stride]) : results[i]);
}

extern "C" __global__ void __launch_bounds__(512) dots(O* y, const T* a, const T* b, const T* bias, Product p) {
    begin();
    FOR_EACH_BATCH(batch) tile_of_dots(y, a, b, bias, p, batch, blockIdx.x * SIDE, blockIdx.y * SIDE);
}

#endif

// ---- many results ---------------------------------------------------------------------------------------------------

#ifdef KERNEL_tiles

#define TILE 64
#define DEPTH 16
#define THREADS (TILE / SIDE * TILE / SIDE)

// Copies a slice of a matrix with `rows` rows and `depth` columns to `slice[column][row]`, with zeros outside of the
// matrix. Neighboring threads take what is next to each other in memory.
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
    FOR_EACH_BATCH(batch) tile_of_slices(y, a, b, p, batch, blockIdx.x * TILE, blockIdx.y * TILE);
}

#endif
