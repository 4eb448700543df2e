// Sums over the threads of a warp or of a block. The order of additions depends only on the number of threads, so
// every run gives the same bits.

#define EVERYONE 0xffffffffu
#define WARP 32

// a · b + c, with a single rounding where the type has a fused multiply-add.
INLINE f32 multiply_add(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
INLINE f64 multiply_add(f64 a, f64 b, f64 c) { return __fma_rn(a, b, c); }
template <typename Type> INLINE Type multiply_add(Type a, Type b, Type c) { return plus(Type(times(a, b)), c); }

INLINE R from_lane(R x, u32 other) { return R(__shfl_xor_sync(EVERYONE, x, other)); }

// The sum over each group of `lanes` neighboring lanes (a power of two, at most a warp). Every lane of the group gets
// it.
INLINE R sum_of_lanes(R x, u32 lanes) {
    for (u32 other = lanes / 2; other > 0; other /= 2) x = plus(x, from_lane(x, other));
    return x;
}

// The sum over a warp in `f64`, whatever R is.
INLINE f64 wide_from_lane(f64 x, u32 other) { return __shfl_xor_sync(EVERYONE, x, other); }
INLINE f64 wide_sum_of_lanes(f64 x) {
    for (u32 other = WARP / 2; other > 0; other /= 2) x += wide_from_lane(x, other);
    return x;
}

// The sums of COUNT values (a power of two, at most 32) over a warp. In each step a lane hands over half of its values
// and keeps the other half, so this takes COUNT − 1 exchanges instead of 5 · COUNT.
// Lane l gets the sum of value number `value_of_lane<COUNT>(l)`.
template <int COUNT, int STEP = 1> INLINE R sums_of_values(R* x, u32 lane) {
    if constexpr (COUNT == 1) {
        for (int step = STEP; step < WARP; step *= 2) x[0] = plus(x[0], from_lane(x[0], step));
        return x[0];
    } else {
        bool upper = lane & STEP;
        #pragma unroll
        for (int i = 0; i < COUNT / 2; i++) {
            R low = x[i], high = x[COUNT / 2 + i];
            x[i] = plus(upper ? high : low, from_lane(upper ? low : high, STEP));
        }
        return sums_of_values<COUNT / 2, 2 * STEP>(x, lane);
    }
}
// The number made of the lane's lowest log2(COUNT) bits in reverse order.
template <int COUNT> INLINE u32 value_of_lane(u32 lane) { return COUNT == 1 ? 0 : __brev(lane % COUNT) / (0x80000000u / COUNT * 2); }

// The sums of COUNT values over all threads of a one-dimensional block of whole warps. They are written to `sums`, in
// shared memory, where all threads may read them.
template <int COUNT> INLINE void sums_of_block(R (&x)[COUNT], R (&sums)[COUNT]) {
    constexpr int REST = COUNT % WARP; // 0 or a power of two
    __shared__ R parts[WARP][COUNT];
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    #pragma unroll
    for (int start = 0; start + WARP <= COUNT; start += WARP)
        parts[warp][start + value_of_lane<WARP>(lane)] = sums_of_values<WARP>(x + start, lane);
    if constexpr (REST > 0) {
        R sum = sums_of_values<REST>(x + COUNT - REST, lane);
        if (lane < REST) parts[warp][COUNT - REST + value_of_lane<REST>(lane)] = sum;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < COUNT; i += blockDim.x) {
        R sum = parts[0][i];
        #pragma unroll 1
        for (u32 warp = 1; warp < blockDim.x / WARP; warp++) sum = plus(sum, parts[warp][i]);
        sums[i] = sum;
    }
    __syncthreads();
}
