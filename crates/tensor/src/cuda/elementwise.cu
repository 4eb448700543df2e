// y[i] = formula(x0[i], x1[i], …) for every index i.   y: O, x: T, all of one shape (broadcasting is stride 0).
//
// The host defines in front of this: N, the number of inputs; PARAMETERS, a `const T*` for each input and a `u64` for
// each constant; POINTERS, the pointers of the inputs; VALUE(x), the formula of `R x[N]` as an O. For a change in
// place, x0 is y.

// Elements of a pack: 16 bytes of the wider type.
#define V int(16 / (sizeof(T) > sizeof(O) ? sizeof(T) : sizeof(O)))

// All tensors are contiguous and aligned to packs. Each thread has PACKS packs, a block's width apart, and reads all
// of them before it computes one.
#ifdef KERNEL_contiguous
#define PACKS 2

extern "C" __global__ void contiguous(O* y, PARAMETERS u64 n) {
    begin();
    const T* const x[] = POINTERS;
    u64 first = u64(blockIdx.x) * (blockDim.x * PACKS) + threadIdx.x;
    Pack<T, V> packs[PACKS][N];
    R in[N];
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        u64 at = (first + p * blockDim.x) * V;
        if (at + V > n) break;
        for (int k = 0; k < N; k++) packs[p][k] = *reinterpret_cast<const Pack<T, V>*>(x[k] + at);
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        u64 at = (first + p * blockDim.x) * V;
        if (at + V <= n) {
            Pack<O, V> out;
            for (int i = 0; i < V; i++) {
                for (int k = 0; k < N; k++) in[k] = real(packs[p][k].at[i]);
                out.at[i] = VALUE(in);
            }
            *reinterpret_cast<Pack<O, V>*>(y + at) = out;
        } else {
            for (; at < n; at++) {
                for (int k = 0; k < N; k++) in[k] = real(x[k][at]);
                y[at] = VALUE(in);
            }
            return;
        }
    }
}
#endif

// Rows are contiguous and aligned to packs in y and in the inputs whose bit of `packed` is set. In the other inputs,
// a row is one repeated element. It indexes packs. One thread per pack.
#ifdef KERNEL_rows
extern "C" __global__ void rows(O* y, PARAMETERS Indexing indexing, u32 packed) {
    begin();
    const T* const x[] = POINTERS;
    u32 i = thread_number();
    if (i >= indexing.n) return;
    u32 at[N + 1];
    positions(indexing, i, at);
    Pack<T, V> packs[N];
    for (int k = 0; k < N; k++) {
        if (packed >> k & 1) {
            packs[k] = *reinterpret_cast<const Pack<T, V>*>(x[k] + at[k + 1]);
        } else {
            T repeated = x[k][at[k + 1]];
            for (int i = 0; i < V; i++) packs[k].at[i] = repeated;
        }
    }
    Pack<O, V> out;
    for (int i = 0; i < V; i++) {
        R in[N];
        for (int k = 0; k < N; k++) in[k] = real(packs[k].at[i]);
        out.at[i] = VALUE(in);
    }
    *reinterpret_cast<Pack<O, V>*>(y + at[0]) = out;
}
#endif

// Any strides. Each thread has EACH elements, a block's width apart, and reads all of them before it writes one.
#ifdef KERNEL_strided
#define EACH 4

extern "C" __global__ void strided(O* y, PARAMETERS Indexing indexing) {
    begin();
    const T* const x[] = POINTERS;
    u32 first = blockIdx.x * (blockDim.x * EACH) + threadIdx.x;
    u32 offsets[EACH];
    R in[EACH][N];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        u32 i = first + e * blockDim.x;
        if (i >= indexing.n) break;
        u32 at[N + 1];
        positions(indexing, i, at);
        offsets[e] = at[0];
        for (int k = 0; k < N; k++) in[e][k] = real(x[k][at[k + 1]]);
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (first + e * blockDim.x >= indexing.n) break;
        y[offsets[e]] = VALUE(in[e]);
    }
}
#endif

// Any strides and any size. One thread per element.
#ifdef KERNEL_wide
extern "C" __global__ void wide(O* y, PARAMETERS WideIndexing indexing) {
    begin();
    const T* const x[] = POINTERS;
    u64 i = wide_thread_number();
    if (i >= indexing.n) return;
    u64 at[N + 1];
    positions(indexing, i, at);
    R in[N];
    for (int k = 0; k < N; k++) in[k] = real(x[k][at[k + 1]]);
    y[at[0]] = VALUE(in);
}
#endif

// One input that is contiguous along another dimension than y: a transposed matrix, or many of them. A block of 32 ×
// 8 threads reads a tile of 32 × 32 along the rows of x, and writes it along those of y.
#ifdef KERNEL_tiles
#define SIDE 32

struct Plane {
    u32 columns;     // neighbors in y
    u32 rows;        // neighbors in x
    u32 x_stride;    // from column to column in x
    u32 y_stride;    // from row to row in y
    u32 column_tiles;
    u32 row_tiles;
};

extern "C" __global__ void tiles(O* y, PARAMETERS Indexing outer, Plane plane) {
    begin();
    __shared__ T tile[SIDE][SIDE + 1]; // columns start in different banks
    const T* const x[] = POINTERS;
    u32 first_column = blockIdx.x % plane.column_tiles * SIDE;
    u32 first_row = blockIdx.x / plane.column_tiles % plane.row_tiles * SIDE;
    u32 at[2];
    positions(outer, blockIdx.x / plane.column_tiles / plane.row_tiles, at);
    u32 row = first_row + threadIdx.x;
    for (u32 j = threadIdx.y; j < SIDE; j += blockDim.y) {
        u32 column = first_column + j;
        if (row < plane.rows && column < plane.columns) tile[j][threadIdx.x] = x[0][at[1] + column * plane.x_stride + row];
    }
    __syncthreads();
    u32 column = first_column + threadIdx.x;
    for (u32 j = threadIdx.y; j < SIDE; j += blockDim.y) {
        u32 row = first_row + j;
        if (row < plane.rows && column < plane.columns) {
            R in[N] = {real(tile[threadIdx.x][j])};
            y[at[0] + row * plane.y_stride + column] = VALUE(in);
        }
    }
}
#endif
