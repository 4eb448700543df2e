// y[o, i, k] = x[o, n - 1 - i, k].   x, y: [elements / n / inner, n, inner], contiguous.

#define PER_THREAD 4

// The index in x of the element that goes to index `at` of y.
template <typename Number> INLINE Number mirrored(Number at, Number n, Number inner) {
    Number i = (inner == 1 ? at : at / inner) % n;
    return at + (n - 1 - 2 * i) * inner; // unsigned: a negative distance wraps around
}

// A thread handles elements a block apart, and loads all of them before it uses the first.
template <typename Number> INLINE void flip_elements(T* y, const T* x, Number elements, Number n, Number inner) {
    Number first = Number(blockIdx.x) * blockDim.x * PER_THREAD + threadIdx.x;
    T found[PER_THREAD];
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        Number at = first + k * blockDim.x;
        if (at < elements) found[k] = x[mirrored(at, n, inner)];
    }
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        Number at = first + k * blockDim.x;
        if (at < elements) y[at] = found[k];
    }
}

extern "C" __global__ void flip(T* y, const T* x, u64 elements, u64 n, u64 inner) {
    begin();
    if (elements < 1ull << 31) flip_elements<u32>(y, x, elements, n, inner);
    else flip_elements<u64>(y, x, elements, n, inner);
}
