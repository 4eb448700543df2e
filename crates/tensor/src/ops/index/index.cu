// y[…, j, …] = x[…, index[…, j, …], …]. `index_select` is this with an index that varies along one dimension only;
// `entries.cu` has a kernel for it if all tensors are contiguous.

// A thread handles PER_THREAD elements of y, blockDim.x apart, and loads the indices of all before it uses the first.
// The indexing gives offsets in y, in the index, and in x at index 0.
#define PER_THREAD 4
template <typename Number, typename AnyIndexing>
INLINE void gather_elements(O* y, const T* x, const i64* index, const AnyIndexing& indexing, u64 size, u64 stride,
                            Fault* fault, u64 site) {
    Number first = Number(blockIdx.x) * blockDim.x * PER_THREAD + threadIdx.x;
    Number at[PER_THREAD][3];
    i64 entry[PER_THREAD];
    T found[PER_THREAD];
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        Number i = first + k * blockDim.x;
        if (i >= indexing.n) continue;
        positions(indexing, i, at[k]);
        entry[k] = index[at[k][1]];
    }
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++)
        if (first + k * blockDim.x < indexing.n)
            found[k] = exists(entry[k], size, fault, site) ? x[at[k][2] + entry[k] * stride] : missing_value();
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++)
        if (first + k * blockDim.x < indexing.n) y[at[k][0]] = found[k];
}
#ifdef KERNEL_gather
extern "C" __global__ void gather(O* y, const T* x, const i64* index, Fault* fault, u64 site, u64 size, u64 stride,
                                  Indexing indexing) {
    begin();
    gather_elements<u32>(y, x, index, indexing, size, stride, fault, site);
}
#endif
#ifdef KERNEL_wide_gather
extern "C" __global__ void wide_gather(O* y, const T* x, const i64* index, Fault* fault, u64 site, u64 size,
                                       u64 stride, WideIndexing indexing) {
    begin();
    gather_elements<u64>(y, x, index, indexing, size, stride, fault, site);
}
#endif
