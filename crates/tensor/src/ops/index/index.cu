// y[…, j, …] = x[…, index[…, j, …], …]. `index_select` is this with an index that is the same along all dimensions but one;
// `entries.cu` has a kernel for it if all tensors are contiguous.

// A thread handles PER_THREAD elements of y, a block apart, and loads all of them before it uses the first. The walk
// gives offsets in y, in the index, and in x at index 0.
#define PER_THREAD 4
template <typename Number, typename AnyWalk>
INLINE void gather_elements(O* y, const T* x, const i64* index, const AnyWalk& walk, u64 size, u64 stride, Fault* fault, u64 site) {
    Number first = Number(blockIdx.x) * blockDim.x * PER_THREAD + threadIdx.x;
    Number at[PER_THREAD][3];
    i64 entry[PER_THREAD];
    T found[PER_THREAD];
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++) {
        Number i = first + k * blockDim.x;
        if (i >= walk.n) continue;
        positions(walk, i, at[k]);
        entry[k] = index[at[k][1]];
    }
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++)
        if (first + k * blockDim.x < walk.n)
            found[k] = exists(entry[k], size, fault, site) ? x[at[k][2] + entry[k] * stride] : nothing();
    #pragma unroll
    for (int k = 0; k < PER_THREAD; k++)
        if (first + k * blockDim.x < walk.n) y[at[k][0]] = found[k];
}
#ifdef KERNEL_gather
extern "C" __global__ void gather(O* y, const T* x, const i64* index, Fault* fault, u64 site, u64 size, u64 stride, Walk walk) {
    begin();
    gather_elements<u32>(y, x, index, walk, size, stride, fault, site);
}
#endif
#ifdef KERNEL_wide_gather
extern "C" __global__ void wide_gather(O* y, const T* x, const i64* index, Fault* fault, u64 site, u64 size, u64 stride, WideWalk walk) {
    begin();
    gather_elements<u64>(y, x, index, walk, size, stride, fault, site);
}
#endif
