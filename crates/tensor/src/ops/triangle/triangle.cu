// y[.., row, column] = x[.., row, column] on one side of a diagonal, else 0.   x, y: [.., rows, columns], contiguous.

#define PER_THREAD 4

// Of the lower triangle, if `is_lower`: column <= row + diagonal, else column >= row + diagonal.
struct Triangle { u64 elements, rows, columns; i64 diagonal; u64 is_lower; };

// A thread has elements a block apart, and asks for all of them before it waits for the first.
template <typename Number> INLINE void keep_triangle(T* y, const T* x, const Triangle& g) {
    Number first = Number(blockIdx.x) * blockDim.x * PER_THREAD + threadIdx.x;
    T kept[PER_THREAD];
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        Number at = first + k * blockDim.x;
        if (at >= g.elements) continue;
        Number line = at / Number(g.columns);
        i64 column = at - line * Number(g.columns), middle = i64(line % Number(g.rows)) + g.diagonal;
        kept[k] = (g.is_lower ? column <= middle : column >= middle) ? x[at] : to<T>(R(0));
    }
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        Number at = first + k * blockDim.x;
        if (at < g.elements) y[at] = kept[k];
    }
}

extern "C" __global__ void triangle(T* y, const T* x, Triangle g) {
    begin();
    if (g.elements < 1ull << 31) keep_triangle<u32>(y, x, g);
    else keep_triangle<u64>(y, x, g);
}
