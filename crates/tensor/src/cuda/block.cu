// Exclusive prefix sum over the threads of a block; `total` gets the sum over all threads. Synchronizes the block
// twice.
template <u32 COUNT> INLINE u32 exclusive_sum(u32 x, u32& total) {
    __shared__ u32 sums[COUNT / 32];
    u32 sum = x, lane = threadIdx.x % 32;
    #pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        u32 other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    u32 before = 0;
    total = 0;
    #pragma unroll
    for (u32 warp = 0; warp < COUNT / 32; warp++) {
        if (warp == threadIdx.x / 32) before = total;
        total += sums[warp];
    }
    __syncthreads();
    return before + sum - x;
}
